//! `kubectl exec` and `kubectl logs` of containers on a real containerd: half of what is
//! tried on the oldest that is installed, half on the newest.

use belay_testkit::containerd::{Containerd, Installation};
use belay_testkit::{Builder, Instance, Kubectl, Stage};

#[path = "kubectl/exec.rs"]
mod exec;
#[path = "kubectl/logs.rs"]
mod logs;

async fn shared() -> anyhow::Result<Option<(&'static Instance, Stage, Kubectl)>> {
    let Some(installation) = Installation::of_this_test() else {
        return Ok(None);
    };
    let instance = Instance::shared_on(&installation).await?;
    let stage = Stage::on(instance).await?;
    let kubectl = stage.kubectl().cloned();
    Ok(kubectl.map(|kubectl| (instance, stage, kubectl)))
}

/// Without a containerd, which is said, a test of its own instance runs on plain processes.
async fn on_runtime(instance: Builder) -> anyhow::Result<Builder> {
    match Installation::of_this_test() {
        Some(installation) => Ok(instance.on(Containerd::shared(&installation).await?)),
        None => Ok(instance),
    }
}
