//! The pods of this node: one worker for each.
//!
//! ```text
//!   watch of pods with spec.nodeName = this node
//!        |  by UID                             runtime: containers at the start,
//!        v                                            |  sandboxes again and again
//!     Worker (one task per pod)  <---- adopted -------'
//!        |                 \
//!        v                  '--> reports: status, events, final delete
//!      Table: what notifications and logs look up
//! ```
//!
//! **Invariant:** a container of a pod that the API does not know is stopped, and its sandbox removed,
//! only after a complete list of pods has been read; an API server that is away stops nothing.

mod backoff;
pub(crate) mod config;
mod environment;
mod expand;
mod hook;
mod images;
mod message;
pub(crate) mod objects;
mod plan;
mod probes;
mod report;
mod security;
mod status;
mod table;
mod terminate;
mod tracked;
mod volumes;
mod waiting;
mod worker;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use belay_api::pod::Pod;
use belay_runtime::{ContainerState, Listed, RuntimeError, Sandbox};
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::StreamExt as _;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub(crate) use table::{ContainerView, PodView, Table};
use worker::{Desired, Worker};

use crate::context::Host;
use crate::reconnect::Reconnect;

/// How often the runtime is asked for its sandboxes: one that died without its containers is seen by
/// nobody else.
const LOOK: Duration = Duration::from_secs(5);

/// How often logs are looked at that the runtime does not rotate by itself.
const BOUND: Duration = Duration::from_secs(10);

/// How long a runtime may take to tell what it runs before nobody waits for it.
const PROMPT: Duration = Duration::from_secs(1);

/// How long containers of which the runtime cannot tell hold up the pods of this node.
const UNTOLD: Duration = Duration::from_secs(30);

/// What the runtime has of a pod.
#[derive(Debug, Default)]
pub(crate) struct Found {
    containers: Vec<ContainerState>,
    sandboxes: Vec<Sandbox>,
}

impl Found {
    /// All that is known of a pod whose object is gone.
    fn pod(&self) -> Option<Pod> {
        let container = self.containers.first().map(|state| &state.config);
        let sandbox = self.sandboxes.first();
        let (namespace, name, uid) = match (container, sandbox) {
            (Some(config), _) => (&config.pod_namespace, &config.pod_name, &config.pod_uid),
            (None, Some(one)) => (&one.pod_namespace, &one.pod_name, &one.pod_uid),
            (None, None) => return None,
        };
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.clone());
        pod.metadata.namespace = Some(namespace.clone());
        pod.metadata.uid = Some(uid.clone());
        Some(pod)
    }
}

/// Runs the node's pods until `shutdown`.
pub(crate) async fn run(context: Arc<Host>, shutdown: CancellationToken) {
    let adopted = tokio::select! {
        () = shutdown.cancelled() => return,
        adopted = adopt(&context) => adopted,
    };
    let mut pods = Pods {
        context: Arc::clone(&context),
        workers: HashMap::new(),
        tasks: JoinSet::new(),
        adopted,
        listing: HashSet::new(),
        listed: false,
        shutdown: shutdown.clone(),
    };
    pods.go_on();
    let mut looking = look(Arc::clone(&context));
    let mut bounding = bound_logs(Arc::clone(&context));
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
            sandboxes = &mut looking => {
                if let Some(sandboxes) = sandboxes {
                    pods.looked(sandboxes);
                }
                looking = look(Arc::clone(&context));
            }
            () = &mut bounding => bounding = bound_logs(Arc::clone(&context)),
            Some(ended) = pods.tasks.join_next() => match ended {
                Ok(uid) => pods.left(&uid),
                Err(error) => warn!(%error, "a pod's worker failed"),
            },
        }
    }
    while pods.tasks.join_next().await.is_some() {}
}

/// What the runtime has from before, by pod. While it does not answer, what was being ended goes on
/// to end.
async fn adopt(context: &Arc<Host>) -> HashMap<String, Found> {
    let mut listing = std::pin::pin!(list(context));
    if let Ok(adopted) = tokio::time::timeout(PROMPT, &mut listing).await {
        return adopted;
    }
    info!("the runtime does not tell what it runs yet; terminations go on without");
    let over = CancellationToken::new();
    let told = async {
        let adopted = listing.await;
        over.cancel();
        adopted
    };
    tokio::join!(told, terminate::meanwhile(context, &over)).0
}

/// What the runtime has from before, by pod. Asked until it answers, and, for a while, until it tells
/// of every container: one that is left out here is one that nobody knows.
async fn list(context: &Host) -> HashMap<String, Found> {
    let mut untold_since = None;
    loop {
        let listed = async {
            // First the containers: one without its sandbox would look dead.
            let states = context.runtime.list().await?;
            Ok::<_, RuntimeError>((states, context.runtime.sandboxes().await?))
        };
        match listed.await {
            Ok((Listed { states, untold }, sandboxes)) => {
                context.health.answered();
                for (container, error) in &untold {
                    warn!(%container, %error, "the runtime cannot tell a container's state");
                }
                let since = *untold_since.get_or_insert_with(Instant::now);
                if !untold.is_empty() && since.elapsed() < UNTOLD {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
                let mut adopted: HashMap<String, Found> = HashMap::new();
                for state in states {
                    let found = adopted.entry(state.config.pod_uid.clone()).or_default();
                    found.containers.push(state);
                }
                for (uid, sandboxes) in by_pod(sandboxes) {
                    adopted.entry(uid).or_default().sandboxes = sandboxes;
                }
                return adopted;
            }
            Err(error) => {
                warn!(%error, "the runtime cannot tell what it runs; asking again");
                context.health.refused(error.to_string());
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The runtime's sandboxes, a while from now; `None` if it does not tell.
fn look(context: Arc<Host>) -> BoxFuture<'static, Option<Vec<Sandbox>>> {
    async move {
        tokio::time::sleep(LOOK).await;
        match context.runtime.sandboxes().await {
            Ok(sandboxes) => {
                context.health.answered();
                Some(sandboxes)
            }
            Err(error) => {
                debug!(%error, "the runtime cannot tell which sandboxes it has");
                context.health.refused(error.to_string());
                None
            }
        }
    }
    .boxed()
}

/// Keeps the logs within bounds, a while from now.
fn bound_logs(context: Arc<Host>) -> BoxFuture<'static, ()> {
    async move {
        tokio::time::sleep(BOUND).await;
        if let Err(error) = context.runtime.bound_logs().await {
            debug!(%error, "logs are not rotated");
        }
    }
    .boxed()
}

fn by_pod(sandboxes: Vec<Sandbox>) -> HashMap<String, Vec<Sandbox>> {
    let mut pods: HashMap<String, Vec<Sandbox>> = HashMap::new();
    for sandbox in sandboxes {
        pods.entry(sandbox.pod_uid.clone())
            .or_default()
            .push(sandbox);
    }
    pods
}

/// The ways to a worker.
struct Seat {
    desired: watch::Sender<Desired>,
    seen: watch::Sender<Vec<Sandbox>>,
}

struct Pods {
    context: Arc<Host>,
    workers: HashMap<String, Seat>,
    tasks: JoinSet<String>,
    /// What is there from before of pods that have not been seen yet.
    adopted: HashMap<String, Found>,
    /// Pods seen in the list that is being read.
    listing: HashSet<String>,
    /// Whether a complete list has been read.
    listed: bool,
    shutdown: CancellationToken,
}

impl Pods {
    /// Goes on with the terminations that an agent before this one began. Whether the API server is
    /// there to tell of the pods does not matter to their containers.
    fn go_on(&mut self) {
        let begun: Vec<(String, Pod)> = self
            .adopted
            .iter()
            .filter(|(uid, _)| self.context.journal.stop(uid).is_some())
            .filter_map(|(uid, found)| Some((uid.clone(), found.pod()?)))
            .collect();
        for (uid, pod) in begun {
            self.spawn(&uid, Desired::Remembered(Arc::new(pod)));
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
                worker.desired.send_replace(desired);
            }
            None => self.spawn(&uid, desired),
        }
    }

    fn spawn(&mut self, uid: &str, desired: Desired) {
        let found = self.adopted.remove(uid).unwrap_or_default();
        let (desired, receiver) = watch::channel(desired);
        let (seen, sandboxes) = watch::channel(Vec::new());
        let worker = Worker::new(Arc::clone(&self.context), receiver, sandboxes, found);
        self.workers.insert(uid.to_owned(), Seat { desired, seen });
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
        self.listed = true;
        self.end_orphans();
        self.remove_orphans();
        self.context.pods.listed();
    }

    /// Removes what is on disk of pods that are gone: an agent that is killed between the last word
    /// to the runtime and the last to the disk leaves it. A pod that has a worker is the worker's.
    fn remove_orphans(&self) {
        let known: HashSet<&str> = self.workers.keys().map(String::as_str).collect();
        for uid in self.context.journal.stopped_pods() {
            if !known.contains(uid.as_str()) {
                let journal = self.context.journal.clone();
                tokio::spawn(async move { journal.forget_stops(&uid).await });
            }
        }
        for logs in config::orphaned_logs(&self.context.data_dir, &known) {
            tokio::task::spawn_blocking(move || {
                if let Err(error) = std::fs::remove_dir_all(&logs) {
                    warn!(path = %logs.display(), %error, "logs of a pod that is gone stay");
                }
            });
        }
        for (uid, layout) in volumes::orphans(&self.context.data_dir, &known) {
            tokio::task::spawn_blocking(move || match volumes::remove(&layout) {
                Ok(()) => info!(uid, "the volumes of a pod that is gone were removed"),
                Err(error) => warn!(uid, %error, "volumes of a pod that is gone stay"),
            });
        }
    }

    /// Ends what is there of pods that are not.
    fn end_orphans(&mut self) {
        let orphans: Vec<(String, Pod)> = self
            .adopted
            .iter()
            .filter_map(|(uid, found)| Some((uid.clone(), found.pod()?)))
            .collect();
        for (uid, pod) in orphans {
            info!(
                pod = pod.name(),
                namespace = pod.namespace(),
                uid,
                "its pod is gone; it is stopped"
            );
            self.spawn(&uid, Desired::Gone(Arc::new(pod)));
        }
    }

    /// The runtime has told which sandboxes it has.
    fn looked(&mut self, sandboxes: Vec<Sandbox>) {
        for (uid, sandboxes) in by_pod(sandboxes) {
            match self.workers.get(&uid) {
                Some(worker) => {
                    worker.seen.send_if_modified(|seen| {
                        let changed = *seen != sandboxes;
                        *seen = sandboxes;
                        changed
                    });
                }
                // One that was asked for, and came when nobody waited for it any more.
                None if self.listed => {
                    let found = Found {
                        sandboxes,
                        ..Found::default()
                    };
                    self.adopted.insert(uid, found);
                }
                None => {}
            }
        }
        if self.listed {
            self.end_orphans();
        }
    }

    fn gone(&mut self, uid: &str, last: Option<Arc<Pod>>) {
        if let Some(worker) = self.workers.get(uid) {
            worker.desired.send_modify(|desired| {
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
