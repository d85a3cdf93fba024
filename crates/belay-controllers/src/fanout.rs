//! Carries out Notifications: one PodNotification for each pod, and counts of what came of them.
//!
//! ```text
//!  watch notifications ──┐                          ┌─ list the pods, once      ─┐
//!  watch their children ─┼─▶ Ledger ── work ──▶ ────┼─ create a child            ├─▶ answers
//!  watch pods (AllPods) ─┘   (a Fanout each)        ├─ write the status          │      │
//!                                 ▲                 └─ let a deleted child go   ─┘      │
//!                                 └─────────────────────────────────────────────────────┘
//! ```
//!
//! # Expected flow
//!
//! The pods of `PreExistingPods` are listed at the resource version of the Notification and written
//! into its status, together with `startTime`; from then on they are fixed. Then children are
//! created, as many at a time as `parallelism` allows. What a crash leaves at each step, and what is
//! made of it, is the table in [`belay_core::fanout`].
//!
//! # Guarantees
//!
//! - Nobody is notified before the start is on the server.
//! - A status is written at most once a second, and once more at the end.
//! - Every status is written on the version that is known. A status that somebody else has written
//!   leads to a fresh start, which reads everything again.
//!
//! # Caveats
//!
//! A Notification that is changed (a label, say) before its pods were listed takes them at the
//! version of that change. Where the server has forgotten the version (a stock one does after five
//! minutes), the pods that run now and were created before the Notification take their place.

pub mod idle;
mod ledger;
mod pods;
mod record;
mod work;

use std::sync::Arc;
use std::time::Duration;

use belay_api::fanout::{Notification, OWNER_LABEL};
use belay_api::notification::PodNotification;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::clock::Clock;
use crate::expiry::decide::Facts;
use crate::expiry::tracker::{Key, Tracker};
use crate::watching::{self, Events, next, watch, watch_all};
use crate::{Controllers, Metrics};
use ledger::{Ledger, Op};
use pods::SlimPod;
use work::{Creation, Done, RETRY};

/// How many children are created at once, and how many are let go.
const CONCURRENT: usize = 16;

/// Runs until `shutdown`.
pub(crate) async fn run(controllers: Controllers, clock: Clock, shutdown: CancellationToken) {
    while !shutdown.is_cancelled() {
        let session = Session::new(&controllers, clock.clone());
        tokio::select! {
            () = shutdown.cancelled() => return controllers.metrics.pending(0),
            () = session.run() => {}
        }
        info!("notifications are read anew");
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

/// Everything from one reading of the whole to the next.
struct Session {
    client: Client,
    metrics: Arc<Metrics>,
    clock: Clock,
    ledger: Ledger,
    tracker: Tracker,
    /// Bounded.
    creations: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Releases and collections. They do not share in the bound of creations, which must not wait for
    /// what can never be let go.
    leaving: FuturesUnordered<BoxFuture<'static, Done>>,
    /// For what is leaving.
    slots: Arc<Semaphore>,
    /// Work of which there is at most one piece for each Notification.
    single: FuturesUnordered<BoxFuture<'static, Done>>,
    told: watching::Told,
}

impl Session {
    fn new(controllers: &Controllers, clock: Clock) -> Self {
        Self {
            client: controllers.client.clone(),
            metrics: Arc::clone(&controllers.metrics),
            ledger: Ledger::new(clock.clone()),
            clock,
            tracker: Tracker::new(Instant::now()),
            creations: FuturesUnordered::new(),
            leaving: FuturesUnordered::new(),
            slots: Arc::new(Semaphore::new(CONCURRENT)),
            single: FuturesUnordered::new(),
            told: watching::Told::default(),
        }
    }

    /// Runs until everything has to be read anew.
    async fn run(mut self) {
        let mut notifications: Events<Notification> =
            watch_all(&self.client, watcher::Config::default());
        // Children are told when the Notifications they belong to are known.
        let mut children: Option<Events<PodNotification>> = None;
        let mut pods: Option<Events<SlimPod>> = None;
        while !self.ledger.is_confused() {
            let timer = timer([self.ledger.next_timer(), self.tracker.next_due()]);
            tokio::select! {
                Some(event) = notifications.next() => {
                    if self.notification(event) && children.is_none() {
                        let labelled = watcher::Config::default().labels(OWNER_LABEL);
                        children = Some(watch_all(&self.client, labelled));
                    }
                }
                Some(event) = next(&mut children) => self.child(event),
                Some(event) = next(&mut pods) => self.pod(event),
                Some(done) = self.creations.next() => self.done(done),
                Some(done) = self.leaving.next() => self.done(done),
                Some(done) = self.single.next() => self.done(done),
                () = timer => {}
            }
            self.ledger.wake(Instant::now());
            match (self.ledger.wants_pods(), &pods) {
                (true, None) => {
                    let api = Api::all_with(self.client.clone(), &pods::resource());
                    pods = Some(watch(api, watcher::Config::default()));
                }
                (false, Some(_)) => {
                    pods = None;
                    self.ledger.pods_unwatched();
                }
                (true, Some(_)) | (false, None) => {}
            }
            self.set_going();
        }
    }

    /// Starts what the ledger has, as far as there is room.
    fn set_going(&mut self) {
        while let Some(op) = self.ledger.next_op() {
            let client = self.client.clone();
            self.single.push(match op {
                Op::Fix(object, selector) => work::fix(client, object, selector).boxed(),
                Op::Write(object, status) => work::write(client, object, status).boxed(),
                Op::Tell(event) => work::tell(client, event).boxed(),
            });
        }
        for ended in self.ledger.take_ended() {
            self.metrics.fanned_out(ended.state.as_str(), ended.took);
        }
        for finished in self.ledger.take_finished() {
            let facts = Facts::finished(finished.at, finished.ttl);
            self.tracker.applied(finished.key, facts, self.clock.now());
        }
        for key in self.tracker.due(self.clock.now()) {
            self.single
                .push(work::collect(self.client.clone(), key).boxed());
        }
        while let Some((namespace, name)) = self.ledger.next_release() {
            let (client, slots) = (self.client.clone(), Arc::clone(&self.slots));
            self.leaving
                .push(work::let_go(client, slots, namespace, name).boxed());
        }
        while let Some((namespace, name)) = self.ledger.next_collection() {
            let (client, slots) = (self.client.clone(), Arc::clone(&self.slots));
            self.leaving
                .push(work::discard(client, slots, namespace, name).boxed());
        }
        while self.creations.len() < CONCURRENT
            && let Some((object, target)) = self.ledger.next_child(Instant::now())
        {
            let client = self.client.clone();
            self.creations
                .push(work::create(client, object, target, self.clock.latest()).boxed());
        }
        self.metrics.pending(self.ledger.pending());
    }

    fn done(&mut self, done: Done) {
        let now = Instant::now();
        match done {
            Done::Fixed(uid, result) => self.ledger.fixed(&uid, result, now),
            Done::Created(uid, target, creation) => {
                if matches!(creation, Creation::There(_)) {
                    self.metrics.child_created();
                }
                self.ledger.created(&uid, &target, creation, now);
            }
            Done::Written(uid, writing) => self.ledger.written(&uid, *writing, now),
            Done::Collected(_, true) | Done::Quietly => {}
            Done::Collected(key, false) => {
                let facts = Facts::finished(Some(Timestamp::MIN), Some(Duration::ZERO));
                self.tracker.retry(key, facts, now + RETRY);
            }
        }
    }

    /// Whether the list of Notifications is complete now.
    fn notification(&mut self, event: watcher::Result<Event<Notification>>) -> bool {
        let now = Instant::now();
        match event {
            Ok(Event::Init) => self.ledger.notifications_listing(),
            Ok(Event::InitApply(object)) => self.ledger.notification_listed(object, now),
            Ok(Event::InitDone) => {
                self.ledger.notifications_listed();
                return true;
            }
            Ok(Event::Apply(object)) => self.ledger.notification_applied(object, now),
            Ok(Event::Delete(object)) => {
                let uid = object.uid().unwrap_or_default();
                self.ledger.notification_gone(&uid);
                self.tracker.forget(&Key {
                    namespace: object.namespace().unwrap_or_default(),
                    name: object.name_any(),
                    uid,
                });
            }
            Err(error) => self.told.interrupted("notifications", &error),
        }
        false
    }

    fn child(&mut self, event: watcher::Result<Event<PodNotification>>) {
        let now = Instant::now();
        match event {
            Ok(Event::Init) => self.ledger.children_listing(),
            Ok(Event::InitApply(object)) => self.ledger.child_listed(&object, now),
            Ok(Event::InitDone) => self.ledger.children_listed(now),
            Ok(Event::Apply(object)) => self.ledger.child_applied(&object, now),
            Ok(Event::Delete(object)) => self.ledger.child_deleted(&object, now),
            Err(error) => self.told.interrupted("podnotifications", &error),
        }
    }

    fn pod(&mut self, event: watcher::Result<Event<SlimPod>>) {
        let now = Instant::now();
        let namespace = |pod: &SlimPod| pod.namespace().unwrap_or_default();
        match event {
            Ok(Event::Init) => self.ledger.pods_listing(),
            Ok(Event::InitApply(pod)) => {
                self.ledger
                    .pod_listed(&namespace(&pod), pods::facts(&pod), now);
            }
            Ok(Event::InitDone) => self.ledger.pods_listed(now),
            Ok(Event::Apply(pod)) => {
                self.ledger
                    .pod_applied(&namespace(&pod), pods::facts(&pod), now);
            }
            Ok(Event::Delete(pod)) => {
                let target = pods::facts(&pod).target;
                self.ledger.pod_deleted(&namespace(&pod), &target, now);
            }
            Err(error) => self.told.interrupted("pods", &error),
        }
    }
}

async fn timer(times: [Option<Instant>; 2]) {
    match times.into_iter().flatten().min() {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
