//! The end of pods on a real containerd: half of the scripts on the oldest that is installed, half on
//! the newest. Without one, the same scripts run on plain processes only.

use belay_testkit::Builder;
use belay_testkit::containerd::{Containerd, Installation, is_for_newest};
use belay_testkit::source::tests;

#[path = "termination/amid_kills.rs"]
mod amid_kills;
#[path = "termination/in_flight.rs"]
mod in_flight;
#[path = "termination/scripts.rs"]
mod scripts;

async fn on_runtime(instance: Builder) -> anyhow::Result<Builder> {
    match Installation::of_this_test() {
        Some(installation) => Ok(instance.on(Containerd::shared(&installation).await?)),
        None => Ok(instance),
    }
}

/// Nothing is left of these pods, whose commands have `mark` in them.
async fn nothing_left(uids: &[String], mark: &str) -> anyhow::Result<()> {
    match Installation::of_this_test() {
        Some(installation) => {
            let containerd = Containerd::shared(&installation).await?;
            containerd.nothing_left(uids, mark).await
        }
        None => Ok(()),
    }
}

/// Of each kind of fault there is a script for the one and one for the other.
#[test]
fn each_of_two_versions_of_containerd_meets_every_kind_of_fault() {
    let scripts = tests(include_str!("termination/scripts.rs"));
    for kind in ["killed_before", "killed_between", "killed_while", "server"] {
        let of_kind = scripts.iter().filter(|name| name.contains(kind));
        let (mut newest, mut oldest) = (0, 0);
        for name in of_kind {
            if is_for_newest(name) {
                newest += 1;
            } else {
                oldest += 1;
            }
        }
        assert!(newest > 0 && oldest > 0, "{kind}: {newest} and {oldest}");
    }
}
