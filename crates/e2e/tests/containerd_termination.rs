//! The end of pods on a real containerd, the newest that is installed. Without one, the same scripts
//! run on plain processes only.

use belay_testkit::Builder;
use belay_testkit::containerd::{Containerd, Installation};

#[path = "termination/amid_kills.rs"]
mod amid_kills;
#[path = "termination/scripts.rs"]
mod scripts;

async fn on_runtime(instance: Builder) -> anyhow::Result<Builder> {
    match Installation::newest() {
        Some(installation) => Ok(instance.on(Containerd::shared(&installation).await?)),
        None => Ok(instance),
    }
}
