//! Carries out ExecutionHooks: one PodAction for each pod, and a status that tells of each container.
//!
//! ```text
//!   watch executionhooks ──▶ Session ──▶ one task for each hook ──▶ PodActions, status
//!   watch podactions ───────────┘  (what they say, by the hook they belong to)
//! ```
//!
//! # Expected flow
//!
//! The HookAction and the pods are read once, and written into the hook's status together with
//! `startTime`: from then on action and containers are fixed. Then one PodAction is made for each
//! pod, under a name that hook and pod determine, and run by whoever runs notifications there. What
//! the PodActions say is copied into the status, at most once a second; when the action has ended
//! everywhere, `actionSucceed` is set.
//!
//! A PodAction has a finalizer, as the children of Notifications have: one that somebody deletes
//! stays until the status of its hook, as the server tells it, says what came of it in all its
//! containers. Where the hook has ended, is being deleted or is gone, it goes as soon as nothing of it
//! runs: it has ended, or nobody has claimed it.
//!
//! # Guarantees
//!
//! - Nothing is run before the start is on the server, and nothing is run that is not in it.
//! - A hook ends: where nothing can be run that is said at once, what cannot be started in the hook's
//!   time has expired, also where the server does not say what there is, and whatever no executor
//!   ends [`crate::expiry`] does.
//! - A controller that is started anew goes on with what the status says and the PodActions tell, and
//!   makes those that were never made. What somebody deleted meanwhile is not made again.
//! - A PodAction that is gone has nothing that runs.
//! - A pod that is selected and cannot be read is not passed over: the hook waits until it can be, and
//!   expires.
//! - A finished hook is deleted after its time to live, and what belongs to it with it. One that is
//!   not finished is never deleted.
//!
//! # Caveats
//!
//! A PodAction whose finalizer somebody takes away by hand while no controller runs is made again, so
//! that its action may run twice.

mod record;
mod select;
mod work;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use belay_api::hook::{ExecutionHook, HOOK_LABEL, PodAction};
use belay_api::lenient::Lenient;
use futures::stream::StreamExt as _;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::clock::Clock;
use crate::expiry::decide::Facts;
use crate::expiry::tracker::{Key, Tracker};
use crate::release::{Held as _, Patience, release};
use crate::watching::Events;
use crate::{Controllers, objects, watching};
use work::{End, RETRY, Shop, Told, Work};

/// How many PodActions are made at once, and how many are let go.
const CONCURRENT: usize = 16;

/// Runs until `shutdown`.
pub(crate) async fn run(controllers: Controllers, clock: Clock, shutdown: CancellationToken) {
    let client = controllers.client.clone();
    let mut session = Session::new(&controllers, clock);
    let mut hooks = watching::watch_all::<ExecutionHook>(&client, watcher::Config::default());
    // PodActions are told when the hooks they belong to are known: what belongs to none may go.
    let mut actions: Option<Events<PodAction>> = None;
    let mut told = watching::Told::default();
    loop {
        let due = session.tracker.next_due();
        let timer = async {
            match due {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(event) = hooks.next() => match event {
                Ok(event) => {
                    if session.hook(event) && actions.is_none() {
                        let labelled = watcher::Config::default().labels(HOOK_LABEL);
                        actions = Some(watching::watch_all(&client, labelled));
                    }
                }
                Err(error) => told.interrupted("executionhooks", &error),
            },
            Some(event) = watching::next(&mut actions) => match event {
                Ok(event) => session.action(event),
                Err(error) => told.interrupted("podactions", &error),
            },
            Some(ended) = session.tasks.join_next() => session.ended(ended),
            Some(collected) = session.collecting.join_next() => {
                if let Ok(Some(key)) = collected {
                    let facts = Facts::finished(Some(jiff::Timestamp::MIN), Some(Duration::ZERO));
                    session.tracker.retry(key, facts, Instant::now() + RETRY);
                }
            }
            Some(_) = session.releasing.join_next() => {}
            () = timer => {}
        }
        for key in session.tracker.due(session.clock.now()) {
            let client = session.shop.client.clone();
            session.collecting.spawn(collect(client, key));
        }
    }
}

/// A hook that is being worked on.
struct Running {
    tell: mpsc::UnboundedSender<Told>,
    task: AbortHandle,
    /// The pods, by UID, whose outcome is in the status on the server.
    recorded: HashSet<String>,
    /// PodActions that are being deleted and have to be recorded first: namespace and name, by the
    /// UID of their pod.
    leaving: HashMap<String, (String, String)>,
}

struct Session {
    shop: Shop,
    clock: Clock,
    /// How long a finished hook is kept that does not say so.
    ttl: Duration,
    /// By UID.
    running: HashMap<String, Running>,
    /// Ended here, and the watch has not caught up.
    ended: HashSet<String>,
    /// Finished hooks, and when they are to be deleted.
    tracker: Tracker,
    /// Hooks that the list shows that is being read.
    listing: HashSet<String>,
    tasks: JoinSet<(Key, End)>,
    collecting: JoinSet<Option<Key>>,
    releasing: JoinSet<()>,
    /// For releases. Not those of creations: what cannot be let go must not hold up others' hooks.
    releases: Arc<Semaphore>,
}

fn key(object: &ExecutionHook) -> Key {
    Key {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
    }
}

impl Session {
    fn new(controllers: &Controllers, clock: Clock) -> Self {
        Session {
            clock: clock.clone(),
            ttl: controllers.hook_ttl,
            shop: Shop {
                client: controllers.client.clone(),
                metrics: Arc::clone(&controllers.metrics),
                clock,
                slots: Arc::new(Semaphore::new(CONCURRENT)),
            },
            running: HashMap::new(),
            ended: HashSet::new(),
            tracker: Tracker::new(Instant::now()),
            listing: HashSet::new(),
            tasks: JoinSet::new(),
            collecting: JoinSet::new(),
            releasing: JoinSet::new(),
            releases: Arc::new(Semaphore::new(CONCURRENT)),
        }
    }

    /// Whether the list of hooks is complete now.
    fn hook(&mut self, event: Event<ExecutionHook>) -> bool {
        match event {
            Event::Init => {
                self.listing.clear();
                self.tracker.listing();
            }
            Event::InitApply(object) => {
                self.listing.insert(object.uid().unwrap_or_default());
                if object.succeeded().is_some() {
                    let facts = self.finished(&object);
                    self.tracker.listed(key(&object), facts, self.clock.now());
                }
                self.applied(object);
            }
            Event::InitDone => {
                self.tracker.listing_done();
                let listed = std::mem::take(&mut self.listing);
                let known = self.running.keys().chain(&self.ended);
                let gone = known.filter(|uid| !listed.contains(*uid));
                for uid in gone.cloned().collect::<Vec<_>>() {
                    self.gone(&uid);
                }
                return true;
            }
            Event::Apply(object) => self.applied(object),
            Event::Delete(object) => {
                self.tracker.forget(&key(&object));
                self.gone(&object.uid().unwrap_or_default());
            }
        }
        false
    }

    fn applied(&mut self, object: ExecutionHook) {
        let key = key(&object);
        if object.metadata.deletion_timestamp.is_some() {
            // What belongs to it goes with it, and what runs of that is stopped.
            self.tracker.forget(&key);
            return self.gone(&key.uid);
        }
        if let Some(running) = self.running.get_mut(&key.uid) {
            running.recorded = record::recorded(&object);
            let recorded = &running.recorded;
            let free = running
                .leaving
                .extract_if(|pod_uid, _| recorded.contains(pod_uid));
            for (_, child) in free.collect::<Vec<_>>() {
                self.release(child);
            }
        }
        if object.succeeded().is_some() {
            self.ended.remove(&key.uid);
            let facts = self.finished(&object);
            return self.tracker.applied(key, facts, self.clock.now());
        }
        if !self.running.contains_key(&key.uid) && !self.ended.contains(&key.uid) {
            self.begin(key, object);
        }
    }

    fn finished(&self, object: &ExecutionHook) -> Facts {
        let status = object.status.as_ref();
        let at = status
            .and_then(|status| status.complete_time.as_ref())
            .map(|time| time.0);
        let ttl = object.spec.ttl_seconds_after_finished;
        let ttl = ttl.map(|seconds| Duration::from_secs(seconds.try_into().unwrap_or(0)));
        Facts::finished(at, Some(ttl.unwrap_or(self.ttl)))
    }

    fn begin(&mut self, key: Key, object: ExecutionHook) {
        let (tell, told) = mpsc::unbounded_channel();
        let recorded = record::recorded(&object);
        let work = Work::new(self.shop.clone(), object);
        let uid = key.uid.clone();
        let task = self.tasks.spawn(async move { (key, work.run(told).await) });
        let running = Running {
            tell,
            task,
            recorded,
            leaving: HashMap::new(),
        };
        self.running.insert(uid, running);
    }

    fn gone(&mut self, uid: &str) {
        self.ended.remove(uid);
        if let Some(running) = self.running.remove(uid) {
            running.task.abort();
            self.release_all(running);
        }
    }

    fn ended(&mut self, ended: Result<(Key, End), tokio::task::JoinError>) {
        let (key, end) = match ended {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => return,
            Err(error) => return warn!(%error, "the work on a hook failed"),
        };
        let Some(running) = self.running.remove(&key.uid) else {
            return;
        };
        if end == End::Over {
            self.ended.insert(key.uid);
            self.release_all(running);
        } else {
            let client = self.shop.client.clone();
            let shop = self.shop.clone();
            let (tell, told) = mpsc::unbounded_channel();
            let uid = key.uid.clone();
            let task = self.tasks.spawn(async move {
                let end = again(&client, &key, shop, told).await;
                (key, end)
            });
            let running = Running {
                tell,
                task,
                ..running
            };
            self.running.insert(uid, running);
        }
    }

    fn action(&mut self, event: Event<PodAction>) {
        match event {
            Event::Init => {}
            Event::InitApply(object) | Event::Apply(object) => self.seen(object),
            Event::InitDone => {
                for running in self.running.values() {
                    let _ = running.tell.send(Told::Relisted);
                }
            }
            Event::Delete(object) => {
                if let Some(running) = self.running.get_mut(&object.spec.hook.uid) {
                    running.leaving.remove(&object.spec.pod_uid);
                    let _ = running.tell.send(Told::Gone(object.spec.pod_uid));
                }
            }
        }
    }

    fn seen(&mut self, object: PodAction) {
        let child = (object.namespace().unwrap_or_default(), object.name_any());
        let pod_uid = object.spec.pod_uid.clone();
        let leaving = object.is_leaving();
        // The end of one that runs is told when it comes.
        let mut free = leaving && object.is_at_rest();
        if let Some(running) = self.running.get_mut(&object.spec.hook.uid) {
            if leaving && !running.recorded.contains(&pod_uid) {
                free = false;
                running.leaving.insert(pod_uid, child.clone());
            }
            // Work that has just ended needs to know nothing more.
            let _ = running.tell.send(Told::Seen(Box::new(object)));
        }
        if free {
            self.release(child);
        }
    }

    /// Nobody works on the hook any more: nothing has to be recorded.
    fn release_all(&mut self, running: Running) {
        for child in running.leaving.into_values() {
            self.release(child);
        }
    }

    fn release(&mut self, (namespace, name): (String, String)) {
        let (client, slots) = (self.shop.client.clone(), Arc::clone(&self.releases));
        let patience = Patience::UntilAtRest;
        self.releasing.spawn(release::<PodAction>(
            client, slots, namespace, name, patience,
        ));
    }
}

/// Takes up a hook that somebody else has written.
async fn again(client: &Client, key: &Key, shop: Shop, told: mpsc::UnboundedReceiver<Told>) -> End {
    let api: Api<Lenient<ExecutionHook>> = Api::namespaced(client.clone(), &key.namespace);
    loop {
        tokio::time::sleep(RETRY).await;
        match objects::find(&api, &key.name).await {
            Ok(Some(object))
                if object.uid().as_deref() == Some(&key.uid) && object.succeeded().is_none() =>
            {
                return Box::pin(Work::new(shop, object).run(told)).await;
            }
            Ok(_) => return End::Over,
            Err(error) => debug!(name = key.name, %error, "cannot be read; trying again"),
        }
    }
}

/// Deletes a hook whose time to live is over; what belongs to it goes with it. Returns it if it could
/// not be done.
async fn collect(client: Client, key: Key) -> Option<Key> {
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(key.uid.clone()),
        resource_version: None,
    });
    let api: Api<Lenient<ExecutionHook>> = Api::namespaced(client, &key.namespace);
    match api.delete(&key.name, &params).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => None,
        Err(error) => {
            warn!(namespace = key.namespace, name = key.name, %error, "cannot be collected; trying again");
            Some(key)
        }
    }
}

#[cfg(test)]
mod tests;
