//! What the proposals about stop signals (KEP-4960) and about the sleep action (KEP-3960) promise, on
//! the embedded server with real containers: on every version of containerd that is installed.
//! `promises/termination.md` has all their lines, each with its tests.

// The same promises, once for each version: a test is one version's success or failure.
#![allow(clippy::duplicate_mod)]

use belay_testkit::containerd::Installation;
use belay_testkit::skip::skip;
use belay_testkit::{Containerd, Instance, Stage};

#[path = "stages/containerd_another.rs"]
mod another;
#[path = "stages/containerd_one.rs"]
mod one;

/// What is installed under this number; `None` after having said that the test is skipped.
fn installation(number: usize) -> Option<Installation> {
    let all = match Installation::all() {
        Ok(all) => all,
        Err(missing) => {
            skip(&missing);
            return None;
        }
    };
    let found = all.into_iter().nth(number);
    if found.is_none() {
        skip("there is no other containerd; `cargo xtask test --kubernetes` builds one");
    }
    found
}

/// The containerd of this number, shared by all tests.
async fn containerd(number: usize) -> anyhow::Result<Option<&'static Containerd>> {
    match installation(number) {
        Some(installation) => Containerd::shared(&installation).await.map(Some),
        None => Ok(None),
    }
}

/// The embedded server and its node there.
async fn stage(number: usize) -> anyhow::Result<Option<Stage>> {
    match installation(number) {
        Some(installation) => {
            let instance = Instance::shared_on(&installation).await?;
            Stage::on(instance).await.map(Some)
        }
        None => Ok(None),
    }
}
