//! What the proposals about stop signals (KEP-4960) and about the sleep action (KEP-3960) promise, on
//! the embedded server with real containers: on every version of containerd that is installed.
//! `promises/termination.md` has all their lines, each with its tests.

// The same promises, once for each version: a test is one version's success or failure.
#![allow(clippy::duplicate_mod)]

use belay_testkit::containerd::Installation;
use belay_testkit::skip::skip;
use belay_testkit::{Containerd, Stage};

#[path = "stages/containerd_another.rs"]
mod another;
#[path = "stages/containerd_one.rs"]
mod one;

/// The containerd of this number, shared by all tests; `None` after having said that the test is
/// skipped.
async fn containerd(number: usize) -> anyhow::Result<Option<&'static Containerd>> {
    let all = match Installation::all() {
        Ok(all) => all,
        Err(missing) => {
            skip(&missing);
            return Ok(None);
        }
    };
    match all.get(number) {
        Some(installation) => Containerd::shared(installation).await.map(Some),
        None => {
            skip("there is no other containerd; `cargo xtask test --kubernetes` builds one");
            Ok(None)
        }
    }
}

/// The embedded server and its node there.
async fn stage(number: usize) -> anyhow::Result<Option<Stage>> {
    match containerd(number).await? {
        Some(_) => Ok(Stage::on_each_containerd().await?.into_iter().nth(number)),
        None => Ok(None),
    }
}
