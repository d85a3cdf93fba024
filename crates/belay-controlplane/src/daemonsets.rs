//! Keeps one pod of each daemon set on each node that should have one.
//!
//! ```text
//!  watch daemon sets --.
//!  watch pods ---------+--> Ledger --decide--> [Create | Delete | Adopt], status --> server
//!  watch nodes --------'      ^                                                        |
//!                             '------------- what was done counts at once -------------'
//! ```
//!
//! # Expected flow
//!
//! Every change of a set, of one of its pods or of a node's labels and taints leads to a look at
//! everything, and what [`decide`] finds missing is done. Pods are bound to their node as they are
//! made; no scheduler is asked.
//!
//! # Guarantees
//!
//! A node never has two pods that were made for one set: a set's pod on a node has one possible
//! name, and the server refuses a name that is taken. What is deleted is deleted by its UID. Nothing
//! is remembered but how long to rest after a failure, so a controller that was killed in the middle
//! goes on where the objects are.
//!
//! # Caveats
//!
//! Revisions of a template are not kept: there is no `kubectl rollout undo`.

mod backoff;
mod decide;
mod ledger;
mod set;

use std::collections::HashSet;
use std::time::Duration;

use futures::future::FutureExt as _;
use futures::stream::{BoxStream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::event::{self, About, By};
use crate::ledger::PodKey;
use backoff::Spot;
use decide::{Action, NodeFacts, Plan, PodFacts, Why};
use ledger::Ledger;
use set::{Set, Status};

/// How long to wait before trying again after a write that failed.
const RETRY: Duration = Duration::from_secs(1);
/// How many writes are under way at once; they share the store's group commit.
const CONCURRENT: usize = 16;

const BY: By = By {
    controller: "daemonsets",
    action: "Syncing",
};

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// Looks after daemon sets until `shutdown`.
pub async fn run(client: Client, shutdown: CancellationToken) {
    let config = watcher::Config::default;
    let sets = Api::all_with(client.clone(), &ApiResource::erase::<DaemonSet>(&()));
    let mut sets: Events<DynamicObject> = watcher(sets, config()).default_backoff().boxed();
    let pods = Api::all(client.clone());
    let mut pods: Events<Pod> = watcher(pods, config()).default_backoff().boxed();
    let nodes = Api::all(client.clone());
    let mut nodes: Events<Node> = watcher(nodes, config()).default_backoff().boxed();
    let mut controller = Controller {
        client,
        ledger: Ledger::default(),
        refused: HashSet::new(),
    };
    let mut due = false;
    let mut look_at: Option<Instant> = None;
    let mut pausing = false;
    loop {
        let timer = async {
            match look_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(event) = sets.next() => due |= controller.set_event(event),
            Some(event) = pods.next() => due |= controller.pod_event(event),
            Some(event) = nodes.next() => due |= controller.node_event(event),
            () = timer => {
                look_at = None;
                pausing = false;
                due = true;
            }
        }
        // A burst is looked at once, not once per event.
        while let Some(Some(event)) = sets.next().now_or_never() {
            due |= controller.set_event(event);
        }
        while let Some(Some(event)) = pods.next().now_or_never() {
            due |= controller.pod_event(event);
        }
        while let Some(Some(event)) = nodes.next().now_or_never() {
            due |= controller.node_event(event);
        }
        if !due || pausing || !controller.ledger.is_complete() {
            continue;
        }
        due = false;
        let round = tokio::select! {
            () = shutdown.cancelled() => return,
            round = controller.round() => round,
        };
        pausing = round.failed;
        let after = match round {
            Round { failed: true, .. } => Some(RETRY),
            // What was done counts already, and the watch may have nothing to add.
            Round { changed: true, .. } => Some(Duration::ZERO),
            Round { again, .. } => again,
        };
        look_at = after.map(|after| Instant::now() + after);
    }
}

/// What a look at everything came to.
#[derive(Debug, Default)]
struct Round {
    /// Something could not be written.
    failed: bool,
    /// Pods were made or deleted.
    changed: bool,
    again: Option<Duration>,
}

struct Controller {
    client: Client,
    ledger: Ledger,
    /// Sets, by UID and generation, of which it was said that their pods are placed nowhere.
    refused: HashSet<(String, i64)>,
}

impl Controller {
    fn set_event(&mut self, event: watcher::Result<Event<DynamicObject>>) -> bool {
        let read = |object: DynamicObject| {
            let read = Set::read(&object);
            if read.is_none() {
                warn!(name = object.name_any(), "cannot read this daemon set");
            }
            (object.metadata.uid.unwrap_or_default(), read)
        };
        match event {
            Ok(event) => self.ledger.sets.take(event, read),
            Err(error) => interrupted(&error),
        }
    }

    fn pod_event(&mut self, event: watcher::Result<Event<Pod>>) -> bool {
        let read = |pod: Pod| {
            let facts = PodFacts::of(&pod);
            (pod.metadata.uid.unwrap_or_default(), facts)
        };
        match event {
            Ok(event) => self.ledger.pods.take(event, read),
            Err(error) => interrupted(&error),
        }
    }

    fn node_event(&mut self, event: watcher::Result<Event<Node>>) -> bool {
        let read = |node: Node| (node.name_any(), Some(NodeFacts::of(node)));
        match event {
            Ok(event) => self.ledger.nodes.take(event, read),
            Err(error) => interrupted(&error),
        }
    }

    async fn round(&mut self) -> Round {
        let mut round = Round::default();
        for (set, plan) in self.ledger.plan(Timestamp::now(), Instant::now()) {
            let Plan {
                actions,
                status,
                again,
            } = plan;
            round.again = [round.again, again].into_iter().flatten().min();
            self.refuse(&set).await;
            self.act(&set, actions, &mut round).await;
            if let Some(status) = status.filter(|status| *status != set.status) {
                match self.report(&set, status).await {
                    Ok(()) => self.ledger.reported(&set.uid, status),
                    Err(error) => {
                        warn!(name = set.name, %error, "cannot report a daemon set; trying again");
                        round.failed = true;
                    }
                }
            }
        }
        self.refused
            .retain(|(uid, _)| self.ledger.set(uid).is_some());
        // What was just made to rest has to be looked at again, too.
        let now = Instant::now();
        let rests = self.ledger.backoff.next(now);
        round.again = [round.again, rests].into_iter().flatten().min();
        round
    }

    /// Says once of a set that no node gets its pods, and why.
    async fn refuse(&mut self, set: &Set) {
        let Some(refusal) = &set.refusal else {
            return;
        };
        if self.refused.insert((set.uid.clone(), set.generation)) {
            self.tell(set, "Warning", "FailedPlacement", refusal).await;
        }
    }

    /// Does all of it, and keeps in mind what came of it.
    async fn act(&mut self, set: &Set, actions: Vec<Action>, round: &mut Round) {
        let this = &*self;
        let done: Vec<_> = futures::stream::iter(actions)
            .map(|action| async move {
                let done = this.carry_out(set, &action).await;
                (action, done)
            })
            .buffer_unordered(CONCURRENT)
            .collect()
            .await;
        for (action, result) in done {
            match (action, result) {
                (Action::Create { .. }, Ok(Some(pod))) => {
                    self.ledger.created(&pod);
                    round.changed = true;
                }
                (Action::Create { node }, Err(error)) => {
                    debug!(name = set.name, node, %error, "cannot make a pod; trying again later");
                    self.rest(set, node);
                }
                (Action::Delete { pod, node, why }, Ok(_)) => {
                    self.ledger.deleted(&pod);
                    round.changed = true;
                    if why == Why::Ended {
                        self.rest(set, node);
                    }
                }
                (Action::Create { .. } | Action::Adopt { .. }, Ok(_)) => {}
                (action, Err(error)) => {
                    warn!(name = set.name, ?action, %error, "cannot do this; trying again");
                    round.failed = true;
                }
            }
        }
    }

    fn rest(&mut self, set: &Set, node: String) {
        let spot = Spot {
            uid: set.uid.clone(),
            hash: set.hash.clone(),
            node,
        };
        self.ledger.backoff.rest(spot, Instant::now());
    }

    async fn carry_out(&self, set: &Set, action: &Action) -> kube::Result<Option<Box<Pod>>> {
        match action {
            Action::Create { node } => self.create(set, node).await.map(Some),
            Action::Delete { pod, why, .. } => self.delete(set, pod, *why).await.map(|()| None),
            Action::Adopt { pod } => self.adopt(set, pod).await.map(|()| None),
        }
    }

    async fn create(&self, set: &Set, node: &str) -> kube::Result<Box<Pod>> {
        // Not by its type, which does not know all fields.
        let resource = ApiResource::erase::<Pod>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &set.namespace, &resource);
        let pod = serde_json::from_value(set.pod(node)).map_err(kube::Error::SerdeError)?;
        let made = api.create(&PostParams::default(), &pod).await;
        match made {
            Ok(made) => {
                let note = format!("Created pod: {}", made.name_any());
                self.tell(set, "Normal", "SuccessfulCreate", &note).await;
                let made = serde_json::to_value(made).map_err(kube::Error::SerdeError)?;
                let pod = serde_json::from_value(made).map_err(kube::Error::SerdeError)?;
                Ok(Box::new(pod))
            }
            Err(error) => {
                let why = match &error {
                    kube::Error::Api(status) => status.message.clone(),
                    other => other.to_string(),
                };
                let note = format!("Error creating the pod of node {node}: {why}");
                self.tell(set, "Warning", "FailedCreate", &note).await;
                Err(error)
            }
        }
    }

    async fn delete(&self, set: &Set, pod: &PodKey, why: Why) -> kube::Result<()> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        });
        match api.delete(&pod.name, &params).await {
            Ok(_) => {
                debug!(pod = pod.name, ?why, "deleted");
                let note = format!("Deleted pod: {}", pod.name);
                self.tell(set, "Normal", "SuccessfulDelete", &note).await;
                Ok(())
            }
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes over a pod that nobody controls. The set is looked at once more: one that is being
    /// deleted may just have let this very pod go, and must not take it along.
    async fn adopt(&self, set: &Set, pod: &PodKey) -> kube::Result<()> {
        let sets: Api<DaemonSet> = Api::namespaced(self.client.clone(), &set.namespace);
        let still = sets.get_opt(&set.name).await?.is_some_and(|found| {
            found.metadata.uid.as_deref() == Some(&set.uid)
                && found.metadata.deletion_timestamp.is_none()
        });
        if !still {
            return Ok(());
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let patch = json!({
            "metadata": {"uid": pod.uid, "ownerReferences": [set.owner_reference()]},
        });
        match pods
            .patch(&pod.name, &PatchParams::default(), &Patch::Strategic(patch))
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn report(&self, set: &Set, status: Status) -> kube::Result<()> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &set.namespace);
        // The UID keeps it from a successor of the same name.
        let patch = Patch::Merge(json!({"metadata": {"uid": set.uid}, "status": status}));
        match api
            .patch_status(&set.name, &PatchParams::default(), &patch)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn tell(&self, set: &Set, kind: &str, reason: &str, note: &str) {
        let about = About {
            api_version: "apps/v1",
            kind: "DaemonSet",
            namespace: &set.namespace,
            name: &set.name,
            uid: &set.uid,
        };
        event::record(&self.client, &about, &BY, kind, reason, note).await;
    }
}

/// Whether an object is gone, or another has taken its name: the watch says what now.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

fn interrupted(error: &watcher::Error) -> bool {
    debug!(%error, "watch interrupted; it is resumed");
    false
}

#[cfg(test)]
mod tests;
