//! Which PodNotification has to be looked at when. Pure bookkeeping: watch events and the time come
//! in, due keys go out. Of a finished one without a time to live nothing is kept.
//!
//! # Who is heard of
//!
//! A claim names its executor, and the executor's own lease counts: the one of its name among the
//! leases of Belay's roles (companion agents, the controller), and only if there never was one, the
//! lease of the node of its name (an agent that is the node). A kubelet that goes on renewing its
//! node's lease therefore does not keep the claim of a dead companion alive: the companion had a lease
//! of its own before it claimed anything.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::decide::{Facts, Progress, Verdict, decide};

/// The longest a timer is set for. Deadlines are wall time and timers are not, so a clock that was
/// set, or a machine that slept, is noticed after this long at the latest.
const LONGEST_TIMER: Duration = Duration::from_secs(60);

/// Names one PodNotification, not its successor of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Both clocks, read together.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// What deadlines are written in: the server's clock, as early as it can be.
    pub wall: Timestamp,
    /// What silence and timers are measured in; it stands still while the machine sleeps.
    pub steady: Instant,
}

#[derive(Debug)]
struct Tracked {
    facts: Facts,
    due: Instant,
}

/// Whose lease was renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A node's, in the namespace of node leases.
    Node,
    /// That of one of Belay's own roles.
    Role,
}

/// A lease's newest renewal, and when it was seen.
type Heartbeats = HashMap<String, (Option<String>, Instant)>;

/// Everything unfinished, the order in which it falls due, and who was last heard of when.
#[derive(Debug)]
pub struct Tracker {
    tracked: HashMap<Key, Tracked>,
    queue: BTreeSet<(Instant, Key)>,
    listed: HashSet<Key>,
    nodes: Heartbeats,
    roles: Heartbeats,
    /// Who was never heard of is silent since then, not since for ever: a controller that has just
    /// started knows nothing yet.
    started: Instant,
}

impl Tracker {
    /// An empty one; silence of unknown executors is counted from `started`.
    pub fn new(started: Instant) -> Tracker {
        Tracker {
            tracked: HashMap::new(),
            queue: BTreeSet::new(),
            listed: HashSet::new(),
            nodes: HashMap::new(),
            roles: HashMap::new(),
            started,
        }
    }

    /// A re-list begins.
    pub fn listing(&mut self) {
        self.listed.clear();
    }

    /// A PodNotification as a re-list shows it.
    pub fn listed(&mut self, key: Key, facts: Facts, now: Now) {
        self.applied(key.clone(), facts, now);
        // Finished ones may be many, and are not tracked.
        if self.tracked.contains_key(&key) {
            self.listed.insert(key);
        }
    }

    /// A re-list is complete; what it did not show is gone.
    pub fn listing_done(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        let gone: Vec<Key> = self
            .tracked
            .keys()
            .filter(|key| !listed.contains(key))
            .cloned()
            .collect();
        for key in gone {
            self.forget(&key);
        }
    }

    /// A PodNotification was created or changed.
    pub fn applied(&mut self, key: Key, facts: Facts, now: Now) {
        self.forget(&key);
        let after = match self.verdict(&facts, now) {
            Verdict::Leave => return,
            Verdict::LookAgain { after } => after.min(LONGEST_TIMER),
            Verdict::Expire | Verdict::Interrupt { .. } | Verdict::Collect => Duration::ZERO,
        };
        self.schedule(key, facts, now.steady + after);
    }

    /// It is gone, or has nothing left to wait for.
    pub fn forget(&mut self, key: &Key) {
        if let Some(tracked) = self.tracked.remove(key) {
            self.queue.remove(&(tracked.due, key.clone()));
        }
    }

    /// A lease as it is now. It counts as a sign of life only when `renewed` differs from what was
    /// seen before: the lease carries its holder's clock, and only the change is trusted.
    pub fn heartbeat(&mut self, source: Source, name: &str, renewed: Option<String>, now: Now) {
        let heartbeats = match source {
            Source::Node => &mut self.nodes,
            Source::Role => &mut self.roles,
        };
        match heartbeats.get_mut(name) {
            Some((seen, _)) if *seen == renewed => {}
            Some(entry) => *entry = (renewed, now.steady),
            None => {
                heartbeats.insert(name.to_owned(), (renewed, now.steady));
            }
        }
    }

    /// What is to be done with an object of these facts.
    pub fn verdict(&self, facts: &Facts, now: Now) -> Verdict {
        let silence = match &facts.progress {
            Progress::Claimed { executor } => {
                let heard = self
                    .roles
                    .get(executor)
                    .or_else(|| self.nodes.get(executor))
                    .map_or(self.started, |(_, at)| *at);
                now.steady.saturating_duration_since(heard)
            }
            Progress::Unclaimed | Progress::Finished { .. } => Duration::ZERO,
        };
        decide(facts, silence, now.wall)
    }

    /// Takes what has to be acted on now. What is only to be looked at again stays, with its next
    /// time. A key that is taken is forgotten; the driver puts it back if its write fails.
    pub fn due(&mut self, now: Now) -> Vec<Key> {
        let mut due = Vec::new();
        while let Some((at, _)) = self.queue.first()
            && *at <= now.steady
        {
            let Some((_, key)) = self.queue.pop_first() else {
                break;
            };
            let Some(tracked) = self.tracked.remove(&key) else {
                continue;
            };
            match self.verdict(&tracked.facts, now) {
                Verdict::Leave => {}
                Verdict::LookAgain { after } => {
                    // At least a millisecond, so that a timer that fires a hair early cannot spin.
                    let after = after.clamp(Duration::from_millis(1), LONGEST_TIMER);
                    self.schedule(key, tracked.facts, now.steady + after);
                }
                Verdict::Expire | Verdict::Interrupt { .. } | Verdict::Collect => due.push(key),
            }
        }
        due
    }

    /// Puts back what could not be written, unless the watch has brought something newer.
    pub fn retry(&mut self, key: Key, facts: Facts, at: Instant) {
        if !self.tracked.contains_key(&key) {
            self.schedule(key, facts, at);
        }
    }

    /// When to call [`Tracker::due`] next.
    pub fn next_due(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    fn schedule(&mut self, key: Key, facts: Facts, due: Instant) {
        self.queue.insert((due, key.clone()));
        self.tracked.insert(key, Tracked { facts, due });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clock(Now);

    impl Clock {
        fn start() -> Clock {
            Clock(Now {
                wall: Timestamp::from_second(1_800_000_000).unwrap(),
                steady: Instant::now(),
            })
        }

        fn after(&self, seconds: u64) -> Now {
            let passed = Duration::from_secs(seconds);
            Now {
                wall: self.0.wall + passed,
                steady: self.0.steady + passed,
            }
        }
    }

    fn key(name: &str) -> Key {
        Key {
            namespace: "ns".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
        }
    }

    fn facts(clock: &Clock, deadline: u64, progress: Progress) -> Facts {
        Facts {
            created: clock.0.wall,
            deadline: Duration::from_secs(deadline),
            progress,
        }
    }

    fn claimed(executor: &str) -> Progress {
        Progress::Claimed {
            executor: executor.into(),
        }
    }

    #[tokio::test]
    async fn each_falls_due_at_its_own_time_and_only_once() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        for (name, deadline) in [("late", 30), ("soon", 5)] {
            let facts = facts(&clock, deadline, Progress::Unclaimed);
            tracker.applied(key(name), facts, clock.0);
        }
        assert_eq!(tracker.next_due(), Some(clock.after(7).steady));
        assert!(tracker.due(clock.after(6)).is_empty());
        assert_eq!(tracker.due(clock.after(7)), [key("soon")]);
        assert!(tracker.due(clock.after(8)).is_empty());
        assert_eq!(tracker.due(clock.after(32)), [key("late")]);
        assert_eq!(tracker.next_due(), None);
    }

    #[tokio::test]
    async fn a_result_or_a_deletion_ends_the_wait() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        tracker.applied(key("a"), facts(&clock, 5, Progress::Unclaimed), clock.0);
        tracker.applied(key("b"), facts(&clock, 5, Progress::Unclaimed), clock.0);
        let finished = Progress::Finished {
            at: Some(clock.0.wall),
            ttl: None,
        };
        tracker.applied(key("a"), facts(&clock, 5, finished), clock.after(1));
        tracker.forget(&key("b"));
        assert_eq!(tracker.next_due(), None);
    }

    #[tokio::test]
    async fn a_node_that_renews_its_lease_keeps_its_claims() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        tracker.applied(key("a"), facts(&clock, 5, claimed("n")), clock.0);
        for second in (0..200).step_by(10) {
            tracker.heartbeat(
                Source::Node,
                "n",
                Some(second.to_string()),
                clock.after(second),
            );
            assert!(tracker.due(clock.after(second)).is_empty(), "{second}");
        }
        assert!(tracker.due(clock.after(229)).is_empty());
        assert_eq!(tracker.due(clock.after(230)), [key("a")]);
    }

    #[tokio::test]
    async fn seeing_the_same_renewal_again_is_no_sign_of_life() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        tracker.applied(key("a"), facts(&clock, 5, claimed("n")), clock.0);
        for second in (0..40).step_by(10) {
            tracker.heartbeat(Source::Node, "n", Some("then".into()), clock.after(second));
        }
        assert_eq!(tracker.due(clock.after(40)), [key("a")]);
    }

    #[tokio::test]
    async fn a_kubelet_that_renews_its_node_s_lease_does_not_keep_a_dead_companion_s_claims() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        tracker.applied(key("a"), facts(&clock, 5, claimed("n")), clock.0);
        tracker.heartbeat(Source::Role, "n", Some("once".into()), clock.0);
        for second in (0..40).step_by(10) {
            tracker.heartbeat(
                Source::Node,
                "n",
                Some(second.to_string()),
                clock.after(second),
            );
            assert!(tracker.due(clock.after(second)).is_empty(), "{second}");
        }
        assert_eq!(tracker.due(clock.after(40)), [key("a")]);
    }

    #[tokio::test]
    async fn a_controller_that_claims_is_heard_of_by_its_own_lease_not_by_the_pod_s_node() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        let name = belay_api::CONTROLLER;
        tracker.applied(key("a"), facts(&clock, 5, claimed(name)), clock.0);
        for second in (0..100).step_by(10) {
            tracker.heartbeat(
                Source::Role,
                name,
                Some(second.to_string()),
                clock.after(second),
            );
            assert!(tracker.due(clock.after(second)).is_empty(), "{second}");
        }
        assert_eq!(tracker.due(clock.after(130)), [key("a")]);
    }

    #[tokio::test]
    async fn of_finished_ones_nothing_is_kept_also_while_they_are_listed() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        tracker.listing();
        for n in 0..1000 {
            let finished = Progress::Finished {
                at: Some(clock.0.wall),
                ttl: None,
            };
            tracker.listed(key(&n.to_string()), facts(&clock, 5, finished), clock.0);
        }
        assert!(tracker.listed.is_empty() && tracker.tracked.is_empty());
        assert!(tracker.queue.is_empty());
    }

    #[tokio::test]
    async fn a_node_without_a_lease_is_silent_since_the_controller_started() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.after(100).steady);
        tracker.applied(
            key("a"),
            facts(&clock, 5, claimed("gone")),
            clock.after(100),
        );
        assert!(tracker.due(clock.after(139)).is_empty());
        assert_eq!(tracker.due(clock.after(140)), [key("a")]);
    }

    #[tokio::test]
    async fn what_a_relist_does_not_show_is_forgotten() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        tracker.applied(key("a"), facts(&clock, 5, Progress::Unclaimed), clock.0);
        tracker.listing();
        tracker.listed(key("b"), facts(&clock, 5, Progress::Unclaimed), clock.0);
        tracker.listing_done();
        assert_eq!(tracker.due(clock.after(60)), [key("b")]);
    }

    #[tokio::test]
    async fn a_failed_write_is_tried_again_unless_something_newer_came() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        let old = facts(&clock, 5, Progress::Unclaimed);
        tracker.retry(key("a"), old.clone(), clock.after(20).steady);
        assert_eq!(tracker.due(clock.after(20)), [key("a")]);
        let newer = facts(&clock, 500, Progress::Unclaimed);
        tracker.applied(key("a"), newer, clock.after(20));
        tracker.retry(key("a"), old, clock.after(21).steady);
        assert!(tracker.due(clock.after(21)).is_empty());
    }

    #[tokio::test]
    async fn a_wall_clock_that_jumped_is_noticed_within_a_minute() {
        let clock = Clock::start();
        let mut tracker = Tracker::new(clock.0.steady);
        tracker.applied(key("a"), facts(&clock, 7200, Progress::Unclaimed), clock.0);
        let jumped = Now {
            wall: clock.after(7300).wall,
            steady: clock.after(60).steady,
        };
        assert_eq!(tracker.due(jumped), [key("a")]);
    }
}
