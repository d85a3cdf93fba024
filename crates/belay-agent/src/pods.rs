//! The pods of this node: one worker for each.
//!
//! ```text
//!   watch of pods with spec.nodeName = this node
//!        |  by UID                             runtime.list() at the start
//!        v                                            |
//!     Worker (one task per pod)  <---- adopted -------'
//!        |                 \
//!        v                  '--> reports: status, events, final delete
//!      Table: what notifications and logs look up
//! ```
//!
//! **Invariant:** a container of a pod that the API does not know is stopped only after a complete
//! list of pods has been read; an API server that is away stops nothing.

mod backoff;
pub(crate) mod config;
mod expand;
mod hook;
mod plan;
mod probes;
mod report;
mod status;
mod table;
mod terminate;
mod tracked;
mod waiting;
mod worker;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use belay_api::pod::Pod;
use belay_core::termination::Cause;
use belay_runtime::{ContainerConfig, ContainerState};
use futures::stream::StreamExt as _;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub(crate) use table::{ContainerView, PodView, Table};
use worker::{Desired, Worker};

use crate::context::Host;
use crate::reconnect::Reconnect;

/// Runs the node's pods until `shutdown`.
pub(crate) async fn run(context: Arc<Host>, shutdown: CancellationToken) {
    let adopted = tokio::select! {
        () = shutdown.cancelled() => return,
        adopted = list(&context) => adopted,
    };
    let mut pods = Pods {
        context: Arc::clone(&context),
        workers: HashMap::new(),
        tasks: JoinSet::new(),
        adopted,
        listing: HashSet::new(),
        shutdown: shutdown.clone(),
    };
    pods.go_on();
    let api: Api<Pod> = Api::all(context.client.clone());
    let selector =
        watcher::Config::default().fields(&format!("spec.nodeName={}", context.node_name));
    let mut events = std::pin::pin!(watcher(api, selector).backoff(Reconnect::default()));
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            event = events.next() => match event {
                Some(Ok(event)) => pods.event(event),
                Some(Err(error)) => warn!(%error, "the watch of pods was interrupted; it is resumed"),
                None => break,
            },
            Some(ended) = pods.tasks.join_next() => match ended {
                Ok(uid) => pods.left(&uid),
                Err(error) => warn!(%error, "a pod's worker failed"),
            },
        }
    }
    while pods.tasks.join_next().await.is_some() {}
}

/// What the runtime has from before, by pod. Asked until it answers.
async fn list(context: &Host) -> HashMap<String, Vec<ContainerState>> {
    loop {
        match context.runtime.list().await {
            Ok(states) => {
                let mut adopted: HashMap<String, Vec<ContainerState>> = HashMap::new();
                for state in states {
                    adopted
                        .entry(state.config.pod_uid.clone())
                        .or_default()
                        .push(state);
                }
                return adopted;
            }
            Err(error) => warn!(%error, "the runtime cannot tell what it runs; asking again"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

struct Pods {
    context: Arc<Host>,
    workers: HashMap<String, watch::Sender<Desired>>,
    tasks: JoinSet<String>,
    /// Containers from before whose pod has not been seen yet.
    adopted: HashMap<String, Vec<ContainerState>>,
    /// Pods seen in the list that is being read.
    listing: HashSet<String>,
    shutdown: CancellationToken,
}

impl Pods {
    /// Goes on with the terminations that an agent before this one began. Whether the API server is
    /// there to tell of the pods does not matter to their containers.
    fn go_on(&mut self) {
        let begun: Vec<(String, ContainerConfig)> = self
            .adopted
            .iter()
            .filter(|(uid, _)| {
                let journalled = self.context.journal.stop(uid);
                journalled.is_some_and(|record| record.cause != Cause::PodCompleted)
            })
            .filter_map(|(uid, states)| Some((uid.clone(), states.first()?.config.clone())))
            .collect();
        for (uid, config) in begun {
            let pod = Arc::new(remembered(&config));
            self.spawn(&uid, Desired::Remembered(pod));
        }
    }

    fn event(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(pod) => {
                self.listing.insert(pod.uid().to_owned());
                self.apply(pod);
            }
            Event::InitDone => self.listed(),
            Event::Apply(pod) => self.apply(pod),
            Event::Delete(pod) => {
                let pod = Arc::new(pod);
                self.gone(pod.uid(), Some(Arc::clone(&pod)));
            }
        }
    }

    fn apply(&mut self, pod: Pod) {
        let uid = pod.uid().to_owned();
        let desired = Desired::Known(Arc::new(pod));
        match self.workers.get(&uid) {
            Some(worker) => {
                worker.send_replace(desired);
            }
            None => self.spawn(&uid, desired),
        }
    }

    fn spawn(&mut self, uid: &str, desired: Desired) {
        let adopted = self.adopted.remove(uid).unwrap_or_default();
        let (sender, receiver) = watch::channel(desired);
        let worker = Worker::new(Arc::clone(&self.context), receiver, adopted);
        self.workers.insert(uid.to_owned(), sender);
        let (uid, shutdown) = (uid.to_owned(), self.shutdown.clone());
        self.tasks.spawn(async move {
            worker.run(shutdown).await;
            uid
        });
    }

    /// A complete list has been read: what is not in it is gone.
    fn listed(&mut self) {
        let known: Vec<String> = self.workers.keys().cloned().collect();
        for uid in known {
            if !self.listing.contains(&uid) {
                self.gone(&uid, None);
            }
        }
        let orphans: Vec<(String, ContainerConfig)> = self
            .adopted
            .iter()
            .filter_map(|(uid, states)| Some((uid.clone(), states.first()?.config.clone())))
            .collect();
        for (uid, config) in orphans {
            info!(
                pod = config.pod_name,
                namespace = config.pod_namespace,
                uid,
                "its pod is gone; it is stopped"
            );
            let pod = Arc::new(remembered(&config));
            self.spawn(&uid, Desired::Gone(pod));
        }
        self.context.pods.listed();
    }

    fn gone(&mut self, uid: &str, last: Option<Arc<Pod>>) {
        if let Some(worker) = self.workers.get(uid) {
            worker.send_modify(|desired| {
                let last = last.unwrap_or_else(|| Arc::clone(desired.pod()));
                *desired = Desired::Gone(last);
            });
        }
    }

    /// A worker is done with its pod.
    fn left(&mut self, uid: &str) {
        self.workers.remove(uid);
    }
}

/// All that is known of a pod whose object is gone.
fn remembered(config: &ContainerConfig) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(config.pod_name.clone());
    pod.metadata.namespace = Some(config.pod_namespace.clone());
    pod.metadata.uid = Some(config.pod_uid.clone());
    pod
}
