//! Says of a node whose agent has gone silent that nobody knows how it is.
//!
//! # Expected flow
//!
//! An agent renews its lease every ten seconds. When a lease has not changed for [`SILENCE`], the
//! node's `Ready` becomes `Unknown`, so that nothing new is bound to it and `kubectl get nodes`
//! tells. When the lease changes again, it becomes `True` again.
//!
//! # Guarantees
//!
//! Silence is measured by what this process has seen, on a clock that never jumps, never by
//! comparing times written on two machines. After a restart every node has the whole time again.
//! Every write names the version of the node it was decided on, so an agent that is faster wins.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long an agent may be silent.
pub const SILENCE: Duration = Duration::from_secs(40);
/// How often silence is looked for.
const LOOK: Duration = Duration::from_secs(5);
const LEASES: &str = "kube-node-lease";
/// The reason of a `Ready` that this controller has set.
const SILENT: &str = "NodeStatusUnknown";

/// What has to be said about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judgement {
    Silent,
    Back,
}

/// When a lease was last seen to change.
#[derive(Debug, Default)]
struct Heard {
    leases: HashMap<String, (Option<Timestamp>, Instant)>,
}

impl Heard {
    fn lease(&mut self, node: &str, renewed: Option<Timestamp>, now: Instant) {
        match self.leases.get(node) {
            Some((known, _)) if *known == renewed => {}
            _ => {
                self.leases.insert(node.to_owned(), (renewed, now));
            }
        }
    }

    /// How long a node has been silent. One that was never heard counts from `now` on.
    fn silence(&mut self, node: &str, now: Instant) -> Duration {
        let (_, at) = self.leases.entry(node.to_owned()).or_insert((None, now));
        now.saturating_duration_since(*at)
    }
}

/// Whether the node's `Ready` says something else than its silence does.
fn judge(ready: Option<&NodeCondition>, silence: Duration) -> Option<Judgement> {
    let unknown = ready.is_some_and(|c| c.status == "Unknown");
    let ours = ready.is_some_and(|c| c.reason.as_deref() == Some(SILENT));
    match (silence >= SILENCE, unknown) {
        (true, false) => Some(Judgement::Silent),
        (false, true) if ours => Some(Judgement::Back),
        _ => None,
    }
}

/// Watches over the nodes until `shutdown`.
pub async fn run(client: Client, shutdown: CancellationToken) {
    let nodes: Api<Node> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let mut renewals = watcher(leases, watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    let mut heard = Heard::default();
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            lease = renewals.next() => match lease {
                Some(Ok(lease)) => {
                    let renewed = lease.spec.as_ref().and_then(|s| s.renew_time.as_ref());
                    heard.lease(&lease.name_any(), renewed.map(|t| t.0), Instant::now());
                }
                Some(Err(error)) => tracing::debug!(%error, "watching leases"),
                None => return,
            },
            _ = look.tick() => {
                if let Err(error) = check(&nodes, &mut heard).await {
                    tracing::debug!(%error, "cannot look after the nodes");
                }
            }
        }
    }
}

async fn check(nodes: &Api<Node>, heard: &mut Heard) -> kube::Result<()> {
    for node in nodes.list(&kube::api::ListParams::default()).await? {
        let name = node.name_any();
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        let ready = conditions.and_then(|list| list.iter().find(|c| c.type_ == "Ready"));
        let silence = heard.silence(&name, Instant::now());
        let Some(judgement) = judge(ready, silence) else {
            continue;
        };
        tracing::info!(node = name, ?judgement, "node");
        let patch = Patch::Strategic(patch(&node, judgement, Timestamp::now()));
        match nodes
            .patch_status(&name, &PatchParams::default(), &patch)
            .await
        {
            Ok(_) => {}
            // Its agent, or its deletion, was faster.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn patch(node: &Node, judgement: Judgement, now: Timestamp) -> Value {
    let (status, reason, message) = match judgement {
        Judgement::Silent => ("Unknown", SILENT, "the agent stopped renewing its lease"),
        Judgement::Back => ("True", "AgentReady", "the agent renews its lease again"),
    };
    json!({
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "status": {"conditions": [{
            "type": "Ready",
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(status: &str, reason: &str) -> NodeCondition {
        NodeCondition {
            type_: "Ready".into(),
            status: status.into(),
            reason: Some(reason.into()),
            ..NodeCondition::default()
        }
    }

    #[test]
    fn a_silent_node_is_unknown_once_and_ready_again_when_it_is_heard() {
        let (well, ours) = (ready("True", "AgentReady"), ready("Unknown", SILENT));
        assert_eq!(judge(Some(&well), SILENCE), Some(Judgement::Silent));
        assert_eq!(judge(Some(&well), Duration::ZERO), None);
        assert_eq!(judge(Some(&ours), SILENCE), None);
        assert_eq!(judge(Some(&ours), Duration::ZERO), Some(Judgement::Back));
        let theirs = ready("Unknown", "SomethingElse");
        assert_eq!(judge(Some(&theirs), Duration::ZERO), None);
        assert_eq!(judge(None, SILENCE), Some(Judgement::Silent));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_change_of_the_lease_not_from_its_last_delivery() {
        let mut heard = Heard::default();
        let renewed = Timestamp::from_second(1_000).ok();
        heard.lease("n", renewed, Instant::now());
        tokio::time::advance(Duration::from_secs(30)).await;
        // A watch that starts again delivers the same lease again.
        heard.lease("n", renewed, Instant::now());
        assert_eq!(heard.silence("n", Instant::now()), Duration::from_secs(30));
        heard.lease("n", Timestamp::from_second(1_030).ok(), Instant::now());
        assert_eq!(heard.silence("n", Instant::now()), Duration::ZERO);
        assert_eq!(heard.silence("never", Instant::now()), Duration::ZERO);
    }
}
