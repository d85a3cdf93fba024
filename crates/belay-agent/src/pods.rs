//! The pods of this node: one worker for each.
//!
//! ```text
//!   watch of pods with spec.nodeName = this node
//!        |  by UID        journal ---> Interim     runtime: containers at the start,
//!        v                                |               |  sandboxes again and again
//!     Worker (one task per pod)  <--------+--- adopted ---'
//!        |                 \
//!        v                  '--> reports: status, events, final delete
//!      Table: what notifications and logs look up
//! ```
//!
//! **Invariant:** a container of a pod that the API does not know is stopped, and its sandbox removed,
//! only after a complete list of pods has been read; an API server that is away stops nothing.

mod backoff;
pub(crate) mod config;
mod contents;
mod environment;
mod expand;
mod hook;
mod images;
mod message;
mod network;
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
use futures::stream::{FuturesUnordered, StreamExt as _};
use kube::Api;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

pub(crate) use table::{ContainerView, PodView, Table};
use terminate::{Interim, Terminations};
use worker::{Desired, Worker};

use crate::context::Host;
use crate::watching::follow;

/// How often the runtime is asked for its sandboxes: one that died without its containers is seen by
/// nobody else.
const LOOK: Duration = Duration::from_secs(5);

/// How often logs are looked at that the runtime does not rotate by itself.
const BOUND: Duration = Duration::from_secs(10);

/// How long a runtime may take to tell what it runs before nobody waits for it.
const PROMPT: Duration = Duration::from_secs(1);

/// How long a pod whose worker failed waits for another: what made it fail may still be there.
const AGAIN: Duration = Duration::from_secs(10);

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

/// What the runtime has from before.
#[derive(Debug, Default)]
struct Before {
    pods: HashMap<String, Found>,
    /// There are containers of which it cannot tell, nor whose they are.
    untold: bool,
}

/// Runs the node's pods until `shutdown`.
pub(crate) async fn run(context: Arc<Host>, shutdown: CancellationToken) {
    let mut listing = std::pin::pin!(list(&context));
    let prompt = tokio::select! {
        () = shutdown.cancelled() => return,
        prompt = tokio::time::timeout(PROMPT, &mut listing) => prompt,
    };
    let interim = Interim::of_all(&context);
    let adopted = match prompt {
        Ok(adopted) => Some(adopted),
        Err(_) => {
            info!("the runtime does not tell what it runs yet; terminations go on without");
            shutdown.run_until_cancelled(listing).await
        }
    };
    let mut pods = Pods {
        context: Arc::clone(&context),
        workers: HashMap::new(),
        tasks: JoinSet::new(),
        interim,
        again: FuturesUnordered::new(),
        adopted: Before::default(),
        listing: HashSet::new(),
        listed: false,
        shutdown: shutdown.clone(),
    };
    if let Some(adopted) = adopted {
        pods.adopted = adopted;
        pods.follow().await;
    }
    pods.leave().await;
}

/// What the runtime has from before, by pod. Asked until it answers, and, for a while, until it tells
/// of every container: one that is left out here is one that nobody knows.
async fn list(context: &Host) -> Before {
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
                return Before {
                    pods: adopted,
                    untold: !untold.is_empty(),
                };
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

/// The ways to a worker, whichever it is.
struct Seat {
    desired: watch::Sender<Desired>,
    seen: watch::Sender<Vec<Sandbox>>,
    /// The worker's; `None` while another is awaited.
    task: Option<tokio::task::Id>,
}

struct Pods {
    context: Arc<Host>,
    workers: HashMap<String, Seat>,
    tasks: JoinSet<()>,
    /// The terminations of pods that have no worker yet.
    interim: HashMap<String, Interim>,
    /// What the runtime has of pods whose worker failed: another takes its seat.
    again: FuturesUnordered<BoxFuture<'static, (String, Found)>>,
    /// What is there from before of pods that have not been seen yet.
    adopted: Before,
    /// Pods seen in the list that is being read.
    listing: HashSet<String>,
    /// Whether a complete list has been read.
    listed: bool,
    shutdown: CancellationToken,
}

impl Pods {
    /// Follows what the API and the runtime tell, until the end of the agent.
    async fn follow(&mut self) {
        let (context, shutdown) = (Arc::clone(&self.context), self.shutdown.clone());
        let mut looking = look(Arc::clone(&context));
        let mut bounding = bound_logs(Arc::clone(&context));
        let api: Api<Pod> = Api::all(context.client.clone());
        let selector =
            watcher::Config::default().fields(&format!("spec.nodeName={}", context.node_name));
        let mut events = std::pin::pin!(follow(api, selector));
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                event = events.next() => match event {
                    Some(Ok(event)) => self.event(event).await,
                    Some(Err(error)) => {
                        warn!(%error, "the watch of pods was interrupted; it is resumed");
                    }
                    None => return,
                },
                sandboxes = &mut looking => {
                    if let Some(sandboxes) = sandboxes {
                        self.looked(sandboxes).await;
                    }
                    looking = look(Arc::clone(&context));
                }
                () = &mut bounding => bounding = bound_logs(Arc::clone(&context)),
                Some((uid, found)) = self.again.next() => self.seat(&uid, found, None),
                Some(ended) = self.tasks.join_next_with_id() => match ended {
                    Ok((task, ())) => self.left(task),
                    Err(error) => self.failed(&error),
                },
            }
        }
    }

    /// Leaves the pods to the next agent.
    async fn leave(mut self) {
        for interim in self.interim.into_values() {
            if let Some(begun) = interim.end().await {
                begun.leave().await;
            }
        }
        while self.tasks.join_next().await.is_some() {}
    }

    async fn event(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(pod) => {
                self.listing.insert(pod.uid().to_owned());
                self.apply(pod).await;
            }
            Event::InitDone => self.listed().await,
            Event::Apply(pod) => self.apply(pod).await,
            Event::Delete(pod) => {
                let pod = Arc::new(pod);
                self.gone(pod.uid(), Some(Arc::clone(&pod)));
            }
        }
    }

    async fn apply(&mut self, pod: Pod) {
        let uid = pod.uid().to_owned();
        let desired = Desired::Known(Arc::new(pod));
        match self.workers.get(&uid) {
            Some(worker) => {
                worker.desired.send_replace(desired);
            }
            None => self.spawn(&uid, desired).await,
        }
    }

    /// A pod has a worker from now on.
    async fn spawn(&mut self, uid: &str, desired: Desired) {
        let found = self.adopted.pods.remove(uid).unwrap_or_default();
        let seat = Seat {
            desired: watch::Sender::new(desired),
            seen: watch::Sender::new(Vec::new()),
            task: None,
        };
        self.workers.insert(uid.to_owned(), seat);
        let begun = match self.interim.remove(uid) {
            Some(interim) => interim.end().await,
            None => None,
        };
        self.seat(uid, found, begun);
    }

    /// A worker begins, or another in the place of one that failed.
    fn seat(&mut self, uid: &str, found: Found, begun: Option<Terminations>) {
        let Some(seat) = self.workers.get_mut(uid) else {
            return;
        };
        let (desired, seen) = (seat.desired.subscribe(), seat.seen.subscribe());
        let worker = Worker::new(Arc::clone(&self.context), desired, seen, found, begun);
        let task = self.tasks.spawn(worker.run(self.shutdown.clone()));
        seat.task = Some(task.id());
    }

    /// A complete list has been read: what is not in it is gone.
    async fn listed(&mut self) {
        let known: Vec<String> = self.workers.keys().cloned().collect();
        for uid in known {
            if !self.listing.contains(&uid) {
                self.gone(&uid, None);
            }
        }
        self.listed = true;
        self.end_orphans().await;
        self.remove_orphans().await;
        self.context.pods.listed();
    }

    /// Removes what is on disk of pods that are gone: an agent that is killed between the last word
    /// to the runtime and the last to the disk leaves it. A pod that has a worker is the worker's.
    ///
    /// A container of which the runtime cannot tell may be of any of them, and may come up yet: then
    /// all is left to the next agent.
    async fn remove_orphans(&mut self) {
        if self.adopted.untold {
            info!("the runtime did not tell of all containers; what is left of pods stays for now");
            return;
        }
        // The runtime has nothing of these.
        for (_, interim) in std::mem::take(&mut self.interim) {
            if let Some(begun) = interim.end().await {
                begun.leave().await;
            }
        }
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
    async fn end_orphans(&mut self) {
        let orphans: Vec<(String, Pod)> = self
            .adopted
            .pods
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
            self.spawn(&uid, Desired::Gone(Arc::new(pod))).await;
        }
    }

    /// The runtime has told which sandboxes it has.
    async fn looked(&mut self, sandboxes: Vec<Sandbox>) {
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
                    self.adopted.pods.insert(uid, found);
                }
                None => {}
            }
        }
        if self.listed {
            self.end_orphans().await;
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

    fn seat_of(&self, task: tokio::task::Id) -> Option<String> {
        let mut seats = self.workers.iter();
        let found = seats.find(|(_, seat)| seat.task == Some(task));
        found.map(|(uid, _)| uid.clone())
    }

    /// A worker is done with its pod.
    fn left(&mut self, task: tokio::task::Id) {
        if let Some(uid) = self.seat_of(task) {
            self.workers.remove(&uid);
        }
    }

    /// A worker has panicked. What it did is in the runtime and in the journal; another goes on.
    fn failed(&mut self, error: &JoinError) {
        let Some(uid) = self.seat_of(error.id()) else {
            return;
        };
        error!(uid, %error, "the worker of a pod failed; another is begun");
        let context = Arc::clone(&self.context);
        let found = async move {
            tokio::time::sleep(AGAIN).await;
            let found = list(&context).await.pods.remove(&uid).unwrap_or_default();
            (uid, found)
        };
        self.again.push(found.boxed());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::terminate::tests::{Stage, Stubborn};

    #[tokio::test]
    async fn nothing_is_removed_of_pods_that_may_have_a_container_of_which_nobody_can_tell() {
        let stage = Stage::new(Stubborn::default(), &json!([{"name": "web"}]));
        let orphan = volumes::dir(&stage.host.data_dir, "gone");
        std::fs::create_dir_all(&orphan).unwrap();
        let pods = |untold| Pods {
            context: Arc::clone(&stage.host),
            workers: HashMap::new(),
            tasks: JoinSet::new(),
            interim: HashMap::new(),
            again: FuturesUnordered::new(),
            adopted: Before {
                pods: HashMap::new(),
                untold,
            },
            listing: HashSet::new(),
            listed: true,
            shutdown: CancellationToken::new(),
        };
        pods(true).remove_orphans().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(orphan.exists());
        pods(false).remove_orphans().await;
        while orphan.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
