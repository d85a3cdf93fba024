//! Every Notification and how far it has come. Watch events and answers come in, work goes out;
//! nothing here waits or talks to anybody.
//!
//! What one event costs does not depend on how many children a Notification has. What is to be
//! written is put together when it may be written, at most once a second.

mod entry;
mod told;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use belay_api::fanout::{Notification, PodSelectionPolicy};
use belay_api::notification::State;
use belay_api::reasons;
use belay_api::selector::LabelSelector;
use belay_core::fanout::{Target, child_name};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;
use tokio::time::Instant;
use tracing::{info, warn};

use super::pods::Pods;
use super::record;
use super::work::{Creation, RETRY, Writing};
use crate::clock::Clock;
use crate::expiry::tracker::Key;
use entry::{Active, Entry, Why};

/// How long after a write of a status the next one waits.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

/// Work to be done.
#[derive(Debug)]
pub(super) enum Op {
    Fix(Notification, LabelSelector),
    Write(Notification, belay_api::fanout::NotificationStatus),
    Tell(Event),
}

/// A Notification that is final, and when and how long it is to be kept.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) key: Key,
    pub(super) at: Option<Timestamp>,
    pub(super) ttl: Option<Duration>,
}

/// A Notification that has just ended, and how long after its creation.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) state: State,
    pub(super) took: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    clock: Clock,
    entries: HashMap<String, Entry>,
    /// Those with `AllPods`, by namespace.
    open: HashMap<String, HashSet<String>>,
    pods: Pods,
    /// Whether all children there are have been told.
    children_known: bool,
    /// Seen in the list of children that is being read: pod UIDs by Notification.
    listing: HashMap<String, HashSet<String>>,
    notifications_listing: HashSet<String>,
    /// Notifications that may have somebody to notify, each once, in the order of their turns.
    ready: VecDeque<String>,
    /// Children to let go: namespace and name.
    releases: VecDeque<(String, String)>,
    /// Children to delete: namespace and name.
    collections: VecDeque<(String, String)>,
    ops: VecDeque<Op>,
    finished: Vec<Finished>,
    ended: Vec<Ended>,
    /// How many pods wait for their turn, of all Notifications.
    pending: usize,
    timers: BTreeSet<(Instant, String)>,
    /// Something happened that only a fresh start explains.
    confused: bool,
}

impl Ledger {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            ..Self::default()
        }
    }

    pub(super) fn is_confused(&self) -> bool {
        self.confused
    }

    pub(super) fn wants_pods(&self) -> bool {
        !self.open.is_empty()
    }

    pub(super) fn next_op(&mut self) -> Option<Op> {
        self.ops.pop_front()
    }

    pub(super) fn next_release(&mut self) -> Option<(String, String)> {
        self.releases.pop_front()
    }

    pub(super) fn next_collection(&mut self) -> Option<(String, String)> {
        self.collections.pop_front()
    }

    pub(super) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    pub(super) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Looks again at those whose time has come.
    pub(super) fn wake(&mut self, now: Instant) {
        while let Some((at, _)) = self.timers.first()
            && *at <= now
        {
            if let Some((_, uid)) = self.timers.pop_first() {
                self.begin(&uid, now);
                self.pump(&uid, now);
            }
        }
    }

    /// Takes the next child to create, one Notification after the other.
    pub(super) fn next_child(&mut self, now: Instant) -> Option<(Notification, Target)> {
        while let Some(uid) = self.ready.pop_front() {
            let Some(Entry::Active(active)) = self.entries.get_mut(&uid) else {
                continue;
            };
            active.queued = false;
            if active.is_held_off(now) {
                continue;
            }
            if active.check_time(self.clock.latest(), now).is_none()
                && active.fanout.ran_out_of_time()
            {
                self.timers.insert((now, uid));
                continue;
            }
            if let Some(target) = active.fanout.start_next() {
                active.queued = true;
                let object = active.object.clone();
                self.ready.push_back(uid);
                return Some((object, target));
            }
        }
        None
    }

    // What came of work.

    pub(super) fn fixed(&mut self, uid: &str, result: kube::Result<Vec<Target>>, now: Instant) {
        let Some(Entry::New { object, busy }) = self.entries.get_mut(uid) else {
            return;
        };
        *busy = false;
        match result {
            Ok(targets) => {
                let object = (**object).clone();
                let refused = record::too_many(&targets);
                let targets = if refused.is_some() {
                    Vec::new()
                } else {
                    targets
                };
                self.start(object, targets, refused, now);
            }
            Err(error) if record::is_expired(object, self.clock.latest()) => {
                let object = (**object).clone();
                let refused = record::never_listed(&object, &error);
                self.start(object, Vec::new(), Some(refused), now);
            }
            Err(error) => {
                warn!(uid, %error, "pods cannot be listed; trying again");
                self.timers.insert((now + RETRY, uid.to_owned()));
            }
        }
    }

    pub(super) fn created(&mut self, uid: &str, target: &Target, creation: Creation, now: Instant) {
        let Some(Entry::Active(active)) = self.entries.get_mut(uid) else {
            return;
        };
        let answered = !matches!(creation, Creation::Unanswered(_));
        match creation {
            Creation::There(outcome) => {
                active.accepted();
                active.fanout.created(target, outcome);
            }
            Creation::Refused(said) | Creation::Unanswered(said) => {
                active.fanout.not_created(target);
                warn!(
                    uid,
                    pod = target.name,
                    why = said,
                    "cannot be notified; trying again"
                );
                // Others may have better luck with a server that answers: they need not wait.
                let why = match answered {
                    false => Some(Why::Unanswered),
                    true => active.fanout.only_put_off().then_some(Why::AllRefused),
                };
                if let Some(until) = why.and_then(|why| active.hold_off(why, now)) {
                    self.timers.insert((until, uid.to_owned()));
                    self.ops
                        .push_back(Op::Tell(not_notified(&active.object, target, &said)));
                }
            }
            Creation::Taken(child) => {
                active.fanout.taken(target);
                let why = format!("podnotification {child} is somebody else's");
                warn!(
                    uid,
                    pod = target.name,
                    why,
                    "cannot be notified; it counts as failed"
                );
                self.ops
                    .push_back(Op::Tell(not_notified(&active.object, target, &why)));
            }
        }
        // A pod that went meanwhile was told of when there was nothing yet that it left behind.
        let namespace = active.object.namespace().unwrap_or_default();
        if !self.pods.may_exist(&namespace, &target.uid) {
            active.fanout.pod_gone(target);
        }
        active.dirty = true;
        self.pump(uid, now);
    }

    pub(super) fn written(&mut self, uid: &str, writing: Writing, now: Instant) {
        let Some(Entry::Active(active)) = self.entries.get_mut(uid) else {
            return;
        };
        let Some(status) = active.writing.take() else {
            return;
        };
        match writing {
            Writing::Ok(object) => self.stored(uid, object, status, now),
            Writing::Changed(object) if object.status.as_ref() == Some(&status) => {
                self.stored(uid, object, status, now);
            }
            Writing::Changed(object)
                if object.status.clone().unwrap_or_default() == active.written =>
            {
                active.object.metadata = object.metadata;
                active.dirty = true;
            }
            Writing::Changed(_) => {
                warn!(uid, "its status was written by somebody else");
                self.confused = true;
            }
            Writing::Gone => self.notification_gone(uid),
            Writing::Failed(error) => {
                warn!(uid, %error, "status cannot be written; trying again");
                active.dirty = true;
                active.retry_at = Some(now + RETRY);
                self.timers.insert((now + RETRY, uid.to_owned()));
            }
        }
        self.pump(uid, now);
    }

    /// A status is on the server: what waited for it may go on.
    fn stored(
        &mut self,
        uid: &str,
        object: Notification,
        status: belay_api::fanout::NotificationStatus,
        now: Instant,
    ) {
        let Some(Entry::Active(active)) = self.entries.get_mut(uid) else {
            return;
        };
        active.object.metadata = object.metadata;
        active.retry_at = None;
        active.next_write = now + BETWEEN_WRITES;
        let began = !active.started;
        active.started = true;
        let settled = record::memory(&status).settled;
        let over = status.state.is_final();
        active.written = status;
        let (name, namespace) = (
            active.object.name_any(),
            active.object.namespace().unwrap_or_default(),
        );
        let leaving: Vec<String> = match over {
            true => active.fanout.leaving().map(str::to_owned).collect(),
            false => active
                .fanout
                .released(&settled)
                .map(str::to_owned)
                .collect(),
        };
        for pod_uid in leaving {
            let child = child_name(&name, uid, &pod_uid);
            if active.releasing.insert(pod_uid) {
                self.releases.push_back((namespace.clone(), child));
            }
        }
        if over {
            let mut object = active.object.clone();
            object.status = Some(active.written.clone());
            self.ops.push_back(Op::Tell(ending(&object)));
            let created = object.creation_timestamp().map(|time| time.0);
            let took = created.map(|created| self.clock.latest().duration_since(created));
            self.ended.push(Ended {
                state: object.state(),
                took: took
                    .and_then(|took| Duration::try_from(took).ok())
                    .unwrap_or_default(),
            });
            info!(namespace, name, state = %object.state(), "notification ended");
            self.finish(&object);
            self.end(uid);
        } else if began {
            self.tell_pods(uid);
        }
    }

    // The stages.

    /// Goes to work on a Notification that is new.
    fn begin(&mut self, uid: &str, now: Instant) {
        if !self.children_known {
            return;
        }
        let Some(Entry::New { object, busy }) = self.entries.get_mut(uid) else {
            return;
        };
        if *busy {
            return;
        }
        match record::selector(object) {
            Err(refusal) => {
                let object = (**object).clone();
                self.start(object, Vec::new(), Some(refusal), now);
            }
            Ok(selector) => match object.spec.policy {
                PodSelectionPolicy::AllPods => {
                    let object = (**object).clone();
                    self.start(object, Vec::new(), None, now);
                }
                PodSelectionPolicy::PreExistingPods => {
                    *busy = true;
                    self.ops.push_back(Op::Fix((**object).clone(), selector));
                }
            },
        }
    }

    fn start(
        &mut self,
        object: Notification,
        targets: Vec<Target>,
        refused: Option<record::Refusal>,
        now: Instant,
    ) {
        let uid = object.uid().unwrap_or_default();
        let active = Active::new(object, targets, refused, now);
        self.enter(uid.clone(), active);
        self.pump(&uid, now);
    }

    /// Goes on with a Notification that was begun before this process was.
    fn resume(&mut self, uid: String, object: Notification) {
        let active = Active::resumed(object);
        self.enter(uid, active);
    }

    fn enter(&mut self, uid: String, active: Active) {
        if active.object.spec.policy == PodSelectionPolicy::AllPods && active.refused.is_none() {
            let namespace = active.object.namespace().unwrap_or_default();
            self.open.entry(namespace).or_default().insert(uid.clone());
        }
        self.entries.insert(uid, Entry::Active(Box::new(active)));
    }

    /// Nothing more happens with it. What was known of its children is dropped; those that are
    /// being deleted may go.
    fn end(&mut self, uid: &str) {
        if let Some(Entry::Active(active)) = self.entries.insert(uid.to_owned(), Entry::Final) {
            self.pending -= active.waiting;
            let namespace = active.object.namespace().unwrap_or_default();
            let name = active.object.name_any();
            for pod_uid in active.fanout.deleted() {
                let child = child_name(&name, uid, pod_uid);
                if !active.releasing.contains(pod_uid) {
                    self.releases.push_back((namespace.clone(), child));
                }
            }
            if let Some(open) = self.open.get_mut(&namespace) {
                open.remove(uid);
                if open.is_empty() {
                    self.open.remove(&namespace);
                }
            }
        }
    }

    fn finish(&mut self, object: &Notification) {
        let ttl = object.spec.ttl_seconds_after_finished;
        let status = object.status.as_ref();
        self.finished.push(Finished {
            key: Key {
                namespace: object.namespace().unwrap_or_default(),
                name: object.name_any(),
                uid: object.uid().unwrap_or_default(),
            },
            at: status
                .and_then(|s| s.complete_time.as_ref().or(s.start_time.as_ref()))
                .map(|time| time.0),
            ttl: ttl.map(|seconds| Duration::from_secs(seconds.try_into().unwrap_or(0))),
        });
    }

    /// Sets going what may go now: creations, and a write of the status.
    fn pump(&mut self, uid: &str, now: Instant) {
        let Some(Entry::Active(active)) = self.entries.get_mut(uid) else {
            return;
        };
        if active.loading {
            return;
        }
        let waiting = active.fanout.waiting();
        self.pending = self.pending - active.waiting + waiting;
        active.waiting = waiting;
        // Everybody who waits for a turn is looked after, and nobody else.
        if active.fanout.waiting() > 0
            && let Some(at) = active.check_time(self.clock.latest(), now)
            && active.look_at.is_none_or(|known| known <= now)
        {
            active.look_at = Some(at);
            self.timers.insert((at, uid.to_owned()));
        }
        for pod_uid in active.fanout.take_collectable() {
            let child = child_name(&active.object.name_any(), uid, &pod_uid);
            let namespace = active.object.namespace().unwrap_or_default();
            self.collections.push_back((namespace, child));
        }
        if active.may_create() && !active.queued {
            active.queued = true;
            self.ready.push_back(uid.to_owned());
        }
        if !active.dirty || active.writing.is_some() {
            return;
        }
        if let Some(at) = active.write_not_before().filter(|at| *at > now) {
            self.timers.insert((at, uid.to_owned()));
            return;
        }
        active.dirty = false;
        if let Some((object, status)) = active.write(self.clock.latest()) {
            self.ops.push_back(Op::Write(object, status));
        }
    }
}

fn not_notified(object: &Notification, target: &Target, why: &str) -> Event {
    let message = format!("pod {} cannot be notified: {why}", target.name);
    let now = Timestamp::now();
    crate::event::about(object, reasons::FAILED_CREATE, "Notifying", message, now)
}

fn ending(object: &Notification) -> Event {
    let status = object.status.clone().unwrap_or_default();
    let (reason, message) = match (&status.error, status.state) {
        (Some(error), _) => (
            reasons::NOTIFICATION_FAILED,
            format!("{}: {}", error.type_, error.message),
        ),
        (None, State::Failed) => (
            reasons::NOTIFICATION_FAILED,
            format!(
                "{} of {} pods failed",
                status.failed_count, status.target_count
            ),
        ),
        (None, _) if status.target_count == 0 => (
            reasons::NO_PODS,
            "no running pod matches the selector; nothing was run".to_owned(),
        ),
        (None, _) => (
            reasons::NOTIFICATION_SUCCEEDED,
            format!("{} pods were notified", status.succeeded_count),
        ),
    };
    crate::event::about(object, reason, "Notifying", message, Timestamp::now())
}
