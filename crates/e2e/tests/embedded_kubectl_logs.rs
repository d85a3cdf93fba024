//! `kubectl logs` of plain processes.

use belay_testkit::{Instance, Kubectl, Stage};

#[path = "kubectl/logs.rs"]
mod logs;
#[path = "kubectl/rotation.rs"]
mod rotation;

async fn shared() -> anyhow::Result<Option<(&'static Instance, Stage, Kubectl)>> {
    let instance = Instance::shared().await?;
    let stage = Stage::on(instance).await?;
    let kubectl = stage.kubectl().cloned();
    Ok(kubectl.map(|kubectl| (instance, stage, kubectl)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_grows_too_long_is_rotated_and_no_line_of_it_is_missed() -> anyhow::Result<()> {
    match shared().await? {
        Some((_, stage, _)) => {
            rotation::a_long_log_is_rotated_and_read_over_the_boundary(&stage).await
        }
        None => Ok(()),
    }
}
