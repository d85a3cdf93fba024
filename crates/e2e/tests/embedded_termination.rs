//! The end of pods whose containers are plain processes.

use belay_testkit::Builder;

#[path = "termination/amid_kills.rs"]
mod amid_kills;
#[path = "termination/in_flight.rs"]
mod in_flight;
#[path = "termination/scripts.rs"]
mod scripts;

async fn on_runtime(instance: Builder) -> anyhow::Result<Builder> {
    Ok(instance)
}

/// What is left of plain processes is seen on disk and by their commands.
#[allow(clippy::unused_async)]
async fn nothing_left(_uids: &[String], _mark: &str) -> anyhow::Result<()> {
    Ok(())
}
