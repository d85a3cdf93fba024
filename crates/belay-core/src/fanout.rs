//! Whom a Notification has to notify, whom it has notified, and what came of it.
//!
//! # Expected flow
//!
//! ```text
//!            a pod is selected                    its turn has come
//!                   │                     (parallelism, maxFailures allow it)
//!                   ▼                                    │
//!              ┌─────────┐ ───────── start_next ───────▶ ▼
//!              │ pending │                          ┌──────────┐
//!              └─────────┘ ◀──── not_created ────── │ starting │  the child is being created
//!                   │         after all the others  └──────────┘
//!                   │                                          ├── taken ──▶ counts as failed
//!                   │ child_seen (a child from before a crash) │ created, child_seen
//!                   ▼                                          ▼
//!              ┌─────────────────────────────────────────────────┐
//!              │ child: running ── ends ──▶ succeeded or failed   │
//!              └─────────────────────────────────────────────────┘
//!                   │ it has ended and is being deleted
//!                   ▼
//!              ┌─────────┐  in the status (memory) ──▶ its finalizer is removed ──▶ gone
//!              │ settled │
//!              └─────────┘
//! ```
//!
//! # What is durable, and what a crash leaves
//!
//! Three things are: the children themselves, the list of pending pods (with `PreExistingPods`; with
//! `AllPods` it is the pods that run and have no child), and what is settled. Every child carries a
//! finalizer, so none disappears before it is settled in the Notification's own status.
//!
//! | crash after                       | what is found again                | what follows |
//! |-----------------------------------|------------------------------------|--------------|
//! | the set is fixed in the status    | all pending, no child              | the children are created |
//! | a child was created               | pending, and a child of that pod   | the child counts, the pod is no longer pending |
//! | the status was written            | a child and no pending entry       | nothing |
//! | a child ended                     | an ended child                     | it is counted from the child |
//! | a child's deletion began          | a child that is being deleted      | it is settled when it has ended |
//! | its settling was written          | the child, and its pod is settled  | its finalizer is removed, it is not counted twice |
//! | its finalizer was removed         | its pod is settled, no child       | it is not notified again |
//!
//! With `AllPods`, which never completes, a child that has ended is collected when its pod is gone
//! ([`Fanout::take_collectable`]): it is deleted like any other, so that its outcome is settled first.
//! Its pod never comes back, so nothing of it has to be remembered but the counts. What is kept is
//! thereby bounded by the pods there are.
//!
//! # Guarantees
//!
//! - At most one child per pod UID, ever, as long as nobody removes the finalizer by hand. A child
//!   that was removed that way while nobody looked counts as failed with `PreExistingPods`: its
//!   pod is neither pending, nor has it a child, nor is it settled.
//! - Never more unfinished children than `parallelism`.
//! - A pod whose child cannot be created has its next turn after all the others have had one.
//! - After `maxFailures` failures nothing more is started, nor after [`Fanout::expire`].
//!
//! # Cost
//!
//! One write for each child, its creation. The status is written when the set is fixed, at most
//! once a second while it changes, and at the end. A child that is deleted before its Notification
//! costs one more write, the removal of its finalizer.

mod name;
mod queue;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZeroUsize;

pub use name::child_name;
use queue::Queue;

/// A pod to notify. Ordered by name, which is the order in which pods take their turns.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub name: String,
    /// A later pod of the same name is another pod.
    pub uid: String,
}

/// Which pods are selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Every pod, also those that come later. Never completes.
    AllPods,
    /// A set that is fixed at the start.
    PreExistingPods,
}

/// What the Notification asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    pub policy: Policy,
    /// How many unfinished children there may be; no limit when not set.
    pub parallelism: Option<NonZeroUsize>,
    /// After how many failures nothing more is started; no limit when not set.
    pub max_failures: Option<NonZeroUsize>,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    Succeeded,
    Failed,
}

/// Children that are gone, or about to go, while the Notification goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    pub succeeded: usize,
    pub failed: usize,
    /// Pods that must not be notified again, or whose child still has to go.
    pub uids: BTreeSet<String>,
}

/// What is kept in the Notification's status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    pub targets: usize,
    pub succeeded: usize,
    pub failed: usize,
    /// With `PreExistingPods`: whose child is not known to exist.
    pub pending: Vec<Target>,
    pub settled: Settled,
}

/// A child that is not settled.
#[derive(Debug, Clone, Copy)]
struct Child {
    outcome: Option<Outcome>,
    /// Whether the watch has shown it. Before that a list that lacks it may just be older.
    seen: bool,
    /// With `AllPods`: whether its pod is gone.
    orphan: bool,
    /// Whether it is being deleted. It stays until it has ended, unless nobody waits for that.
    deleted: bool,
}

/// One Notification under way.
#[derive(Debug)]
pub struct Fanout {
    rule: Rule,
    /// With `PreExistingPods`: how many pods there are in the fixed set.
    fixed: usize,
    pending: BTreeSet<Target>,
    /// Pending too, but their children could not be created: their turn is after the others'.
    put_off: Queue,
    starting: BTreeSet<Target>,
    /// By the pod's UID.
    children: HashMap<String, Child>,
    /// How many of `children` are in which stage.
    running: usize,
    succeeded: usize,
    failed: usize,
    settled: Settled,
    /// Settled, and the child is still there.
    leaving: BTreeSet<String>,
    /// Ended, and their pods are gone.
    collectable: Vec<String>,
    /// Whether the time in which more may be started is over.
    expired: bool,
}

impl Fanout {
    /// A Notification that begins. With `AllPods`, pods are told one by one.
    pub fn new(rule: Rule, targets: impl IntoIterator<Item = Target>) -> Self {
        let pending: BTreeSet<Target> = targets.into_iter().collect();
        Self {
            rule,
            fixed: pending.len(),
            pending,
            put_off: Queue::default(),
            starting: BTreeSet::new(),
            children: HashMap::new(),
            running: 0,
            succeeded: 0,
            failed: 0,
            settled: Settled::default(),
            leaving: BTreeSet::new(),
            collectable: Vec::new(),
            expired: false,
        }
    }

    /// A Notification as it was left. To be followed by [`Fanout::child_seen`] for every child there
    /// is, then [`Fanout::loaded`].
    pub fn load(rule: Rule, memory: Memory) -> Self {
        Self {
            fixed: memory.targets,
            settled: memory.settled,
            ..Self::new(rule, memory.pending)
        }
    }

    /// Every child there is has been told. Pods that are in no record any more had a child that
    /// somebody removed by force: what came of it is unknown, so it counts as failed.
    pub fn loaded(&mut self) {
        if self.rule.policy == Policy::AllPods {
            return;
        }
        // A pod that is settled had its turn, whatever the list of the pending says.
        let settled = &self.settled.uids;
        self.pending.retain(|target| !settled.contains(&target.uid));
        let known =
            self.pending.len() + self.children.len() + self.settled.succeeded + self.settled.failed;
        self.settled.failed += self.fixed.saturating_sub(known);
        // The pods of children that are gone cannot be selected again.
        self.settled.uids.clone_from(&self.leaving);
    }

    /// With `AllPods`: a pod is there that may be notified. Told again and again; only the first time
    /// matters.
    pub fn pod_eligible(&mut self, target: &Target) {
        let known = self.children.contains_key(&target.uid)
            || self.settled.uids.contains(&target.uid)
            || self.starting.contains(target)
            || self.put_off.contains(target);
        if self.rule.policy == Policy::AllPods && !known {
            self.pending.insert(target.clone());
        }
    }

    /// With `AllPods`: a pod may not be notified, because it does not run, is going, or does not
    /// match any more.
    pub fn pod_ineligible(&mut self, target: &Target) {
        if self.rule.policy == Policy::AllPods {
            self.not_pending(target);
        }
    }

    /// With `AllPods`: a pod is no longer there.
    pub fn pod_gone(&mut self, target: &Target) {
        self.pod_ineligible(target);
        if self.rule.policy == Policy::PreExistingPods {
            return;
        }
        if !self.leaving.contains(&target.uid) {
            self.settled.uids.remove(&target.uid);
        }
        if let Some(child) = self.children.get_mut(&target.uid)
            && !std::mem::replace(&mut child.orphan, true)
            && child.outcome.is_some()
        {
            self.collectable.push(target.uid.clone());
        }
    }

    /// With `AllPods`: all pods there are have been told; others are no longer there.
    pub fn forget_pods(&mut self, exists: impl Fn(&str) -> bool) {
        if self.rule.policy == Policy::AllPods {
            let leaving = &self.leaving;
            let keep = |uid: &String| leaving.contains(uid) || exists(uid);
            self.settled.uids.retain(keep);
            for (uid, child) in &mut self.children {
                if !child.orphan && !exists(uid) {
                    child.orphan = true;
                    if child.outcome.is_some() {
                        self.collectable.push(uid.clone());
                    }
                }
            }
        }
    }

    /// With `AllPods`: the pods whose children are to be deleted, for they have ended and their pods
    /// are gone. Each is named once.
    pub fn take_collectable(&mut self) -> Vec<String> {
        std::mem::take(&mut self.collectable)
    }

    /// Takes the next pod whose child is to be created, if one may be created now.
    pub fn start_next(&mut self) -> Option<Target> {
        let unfinished = self.running + self.starting.len();
        let full = self
            .rule
            .parallelism
            .is_some_and(|limit| unfinished >= limit.get());
        if full || self.expired || self.limit_reached() {
            return None;
        }
        let first = self.pending.pop_first();
        let target = first.or_else(|| self.put_off.pop())?;
        self.starting.insert(target.clone());
        Some(target)
    }

    /// The time in which more may be started is over, for good. It is not part of the memory: whoever
    /// goes on with it after a crash finds the same by the clock.
    pub fn expire(&mut self) {
        self.expired = true;
    }

    /// The child of this pod exists now; it may have ended in the write that created it.
    pub fn created(&mut self, target: &Target, outcome: Option<Outcome>) {
        if self.starting.remove(target) {
            self.count(outcome);
            let child = Child {
                outcome,
                seen: false,
                orphan: false,
                deleted: false,
            };
            self.children.insert(target.uid.clone(), child);
        }
    }

    /// The child of this pod was not created. Not to be said on a guess: while nobody knows, its
    /// creation is under way, and counts against the limits.
    pub fn not_created(&mut self, target: &Target) {
        if self.starting.remove(target) {
            self.put_off.push(target.clone());
        }
    }

    /// The child of this pod can never be created, because its name belongs to something else. It
    /// counts as failed. Whoever goes on after a crash before that was written finds it pending, and
    /// finds the same.
    pub fn taken(&mut self, target: &Target) {
        if self.starting.remove(target) {
            self.settled.failed += 1;
            if self.rule.policy == Policy::AllPods {
                self.settled.uids.insert(target.uid.clone());
            }
        }
    }

    /// Whether every pod whose turn has not come has been tried already.
    pub fn only_put_off(&self) -> bool {
        self.pending.is_empty()
    }

    /// A child as the watch shows it.
    pub fn child_seen(&mut self, target: &Target, outcome: Option<Outcome>, terminating: bool) {
        self.not_pending(target);
        self.starting.remove(target);
        let uid = &target.uid;
        if self.settled.uids.contains(uid) {
            self.leaving.insert(uid.clone());
            return;
        }
        let before = self.children.get(uid).copied();
        if let Some(before) = before {
            self.uncount(before.outcome);
        }
        // An end is an end: a watch that lags does not take it back.
        let ended = before.and_then(|child| child.outcome);
        let orphan = before.is_some_and(|child| child.orphan);
        let outcome = ended.or(outcome);
        match outcome {
            Some(outcome) if terminating => {
                self.children.remove(uid);
                self.settle(uid, outcome);
                self.leaving.insert(uid.clone());
            }
            outcome => {
                self.count(outcome);
                if orphan && ended.is_none() && outcome.is_some() {
                    self.collectable.push(uid.clone());
                }
                let child = Child {
                    outcome,
                    seen: true,
                    orphan,
                    deleted: terminating,
                };
                self.children.insert(uid.clone(), child);
            }
        }
    }

    /// A child is gone. `pod_exists` tells whether its pod could be selected again.
    pub fn child_gone(&mut self, uid: &str, pod_exists: bool) {
        if let Some(child) = self.children.remove(uid) {
            // Somebody took the finalizer away. What had not ended is counted as failed: nobody
            // will tell how it ended.
            self.uncount(child.outcome);
            self.settle(uid, child.outcome.unwrap_or(Outcome::Failed));
        }
        self.leaving.remove(uid);
        if self.rule.policy == Policy::PreExistingPods || !pod_exists {
            self.settled.uids.remove(uid);
        }
    }

    /// Children that a complete list lacks although the watch has shown them.
    pub fn missing(&self, listed: &HashSet<String>) -> Vec<String> {
        let seen = self.children.iter().filter(|(_, child)| child.seen);
        seen.map(|(uid, _)| uid)
            .chain(&self.leaving)
            .filter(|uid| !listed.contains(*uid))
            .cloned()
            .collect()
    }

    /// What the status should say.
    pub fn memory(&self) -> Memory {
        let pending = match self.rule.policy {
            Policy::AllPods => Vec::new(),
            // Whose creation is under way may still come to nothing.
            Policy::PreExistingPods => {
                let waiting = self.pending.iter().chain(self.put_off.iter());
                let all = waiting.chain(&self.starting);
                all.collect::<BTreeSet<_>>().into_iter().cloned().collect()
            }
        };
        Memory {
            targets: self.targets(),
            succeeded: self.succeeded(),
            failed: self.failed(),
            pending,
            settled: self.settled.clone(),
        }
    }

    /// Which children may go, given what the status says: those that are settled in it.
    pub fn released<'a>(&'a self, written: &'a Settled) -> impl Iterator<Item = &'a str> {
        self.leaving
            .iter()
            .filter(|uid| written.uids.contains(*uid))
            .map(String::as_str)
    }

    /// Children that are counted and still there.
    pub fn leaving(&self) -> impl Iterator<Item = &str> {
        self.leaving.iter().map(String::as_str)
    }

    /// Children that are being deleted, counted or not. Where nobody counts any more they may all go,
    /// and of those that have not ended nothing else may ever be told.
    pub fn deleted(&self) -> impl Iterator<Item = &str> {
        let going = self.children.iter().filter(|(_, child)| child.deleted);
        self.leaving().chain(going.map(|(uid, _)| uid.as_str()))
    }

    /// How many pods have been selected.
    pub fn targets(&self) -> usize {
        match self.rule.policy {
            Policy::PreExistingPods => self.fixed,
            Policy::AllPods => {
                self.waiting()
                    + self.starting.len()
                    + self.children.len()
                    + self.settled.succeeded
                    + self.settled.failed
            }
        }
    }

    pub fn succeeded(&self) -> usize {
        self.succeeded + self.settled.succeeded
    }

    pub fn failed(&self) -> usize {
        self.failed + self.settled.failed
    }

    /// Whose turn has not come.
    pub fn waiting(&self) -> usize {
        self.pending.len() + self.put_off.len()
    }

    /// Whether pods are left out because too many have failed.
    pub fn stopped(&self) -> bool {
        self.limit_reached() && (self.rule.policy == Policy::AllPods || self.waiting() > 0)
    }

    /// Whether pods are left out because the time is over.
    pub fn ran_out_of_time(&self) -> bool {
        self.expired && self.waiting() > 0
    }

    /// Whether nothing more will happen.
    pub fn complete(&self) -> bool {
        self.rule.policy == Policy::PreExistingPods
            && self.running == 0
            && self.starting.is_empty()
            && (self.waiting() == 0 || self.expired || self.limit_reached())
    }

    fn limit_reached(&self) -> bool {
        self.rule
            .max_failures
            .is_some_and(|limit| self.failed() >= limit.get())
    }

    fn not_pending(&mut self, target: &Target) {
        if !self.pending.remove(target) {
            self.put_off.remove(target);
        }
    }

    fn settle(&mut self, uid: &str, outcome: Outcome) {
        match outcome {
            Outcome::Succeeded => self.settled.succeeded += 1,
            Outcome::Failed => self.settled.failed += 1,
        }
        self.settled.uids.insert(uid.to_owned());
    }

    fn count(&mut self, outcome: Option<Outcome>) {
        *self.counter(outcome) += 1;
    }

    fn uncount(&mut self, outcome: Option<Outcome>) {
        *self.counter(outcome) -= 1;
    }

    fn counter(&mut self, outcome: Option<Outcome>) -> &mut usize {
        match outcome {
            None => &mut self.running,
            Some(Outcome::Succeeded) => &mut self.succeeded,
            Some(Outcome::Failed) => &mut self.failed,
        }
    }
}
