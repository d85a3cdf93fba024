//! What the container notifier proposal promises about notifying a pod, on a real Kubernetes: the
//! kubelet runs the pods, Belay runs as its manifests say.

use belay_testkit::Stage;

#[path = "promises/seed_000.rs"]
mod seed_000;
#[path = "promises/seed_000_fanout.rs"]
mod seed_000_fanout;
#[path = "promises/seed_000_probes.rs"]
mod seed_000_probes;

async fn stage() -> anyhow::Result<Option<Stage>> {
    Stage::kubernetes().await
}
