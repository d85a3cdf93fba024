//! Ending everything of a pod that runs, for whatever reason.

use std::collections::BTreeMap;
use std::time::Duration;

use belay_action::ContainerId;
use belay_api::pod::Pod;
use belay_api::reasons;
use belay_core::termination::{Cause, End};
use belay_runtime::{Exit, ExitReason};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::warn;

use super::ending::TEAR_DOWN;
use super::{Worker, earliest_time, unknown_exit};
use crate::pods::status::DEADLINE_MESSAGE;
use crate::pods::terminate;

/// Longer than anything lasts; a grace that is longer still no clock could add.
const LONGEST: Duration = crate::pods::hook::FOREVER;
/// How long a runtime may take to tell how a container ended, counted from when its end was seen.
const UNTOLD: Duration = Duration::from_secs(5);
const SIGKILL: i32 = 9;

/// Incarnations that have ended, and of which the runtime has not told how: when that was seen.
#[derive(Debug, Default)]
pub(super) struct Untold(BTreeMap<ContainerId, Seen>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    since: Instant,
    at: Timestamp,
}

impl Untold {
    /// Takes note of these, and of no others any more.
    fn see(&mut self, ended: &[(String, ContainerId)], now: Seen) {
        self.0
            .retain(|known, _| ended.iter().any(|(_, id)| id == known));
        for (_, id) in ended {
            self.0.entry(id.clone()).or_insert(now);
        }
    }

    /// How much of its time the runtime has left to tell of one.
    fn left(&self, id: &ContainerId, now: Instant) -> Duration {
        self.0.get(id).map_or(UNTOLD, |seen| {
            (seen.since + UNTOLD).saturating_duration_since(now)
        })
    }

    /// When the end of one was seen.
    fn at(&self, id: &ContainerId) -> Timestamp {
        self.0.get(id).map_or_else(Timestamp::now, |seen| seen.at)
    }
}

/// The end of an incarnation of which the runtime does not tell, from how it was brought about.
fn untold(end: Option<&End>, started: Timestamp, seen: Timestamp) -> Exit {
    match end {
        Some(End::Killed { .. }) => Exit {
            code: 128 + SIGKILL,
            signal: Some(SIGKILL),
            started,
            finished: seen,
            reason: ExitReason::Error,
        },
        // It ended by itself or of its signal: nobody knows with which code.
        Some(End::NotRunning | End::Itself | End::StopSignal | End::Reboot) | None => {
            unknown_exit(started, seen)
        }
    }
}

impl Worker {
    /// Ends a pod that is there longer than it may be.
    pub(super) fn keep_deadline(&mut self, pod: &Pod) {
        let (Some(seconds), Some(start)) = (
            pod.spec.active_deadline_seconds,
            self.reported.start_time.as_ref(),
        ) else {
            return;
        };
        let deadline = start.0.saturating_add(SignedDuration::from_secs(seconds));
        let deadline = deadline.unwrap_or(Timestamp::MAX);
        if Timestamp::now() < deadline {
            self.wake = earliest_time(self.wake, Some(deadline));
            return;
        }
        match self.terminations.pod_cause() {
            None | Some(Cause::PodCompleted) => {}
            Some(_) => return,
        }
        let about = self.reference(pod, None);
        let message = DEADLINE_MESSAGE.to_owned();
        let events = &self.context.events;
        events.normal(about, reasons::DEADLINE_EXCEEDED, message);
        self.begin_stop(Cause::DeadlineExceeded, terminate::grace(pod, false));
    }

    /// Begins to end everything of the pod.
    pub(super) fn begin_stop(&mut self, cause: Cause, grace: Duration) {
        self.launches.cancel();
        self.cancel_post_starts();
        self.ending_since = Some(Instant::now());
        self.terminations.end_pod(cause, grace, &self.tracked);
    }

    /// Whether everything that runs has ended, and nothing is expected to come: a start that is
    /// under way is waited for as long as the pod may take to end.
    pub(super) fn is_stopped(&mut self, grace: Duration) -> bool {
        let ended = self.see_ends();
        if !self.terminations.pod_is_over() && !self.hooks_had_their_time() {
            return false;
        }
        self.give_up_waiting(ended);
        if self.tracked.values().any(|known| known.running().is_some()) {
            return false;
        }
        let since = *self.ending_since.get_or_insert_with(Instant::now);
        let left = (since + grace.min(LONGEST)).saturating_duration_since(Instant::now());
        if self.is_launching() && !left.is_zero() {
            let until = Timestamp::now().saturating_add(left);
            self.wake = earliest_time(self.wake, until.ok());
            return false;
        }
        true
    }

    /// Whether nothing but cancelled hooks is left, and the runtime had its time to tell of them.
    fn hooks_had_their_time(&mut self) -> bool {
        if !self.terminations.only_hooks_are_left() {
            return false;
        }
        let since = *self.hooks_since.get_or_insert_with(Instant::now);
        let left = (since + TEAR_DOWN).saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let until = Timestamp::now().saturating_add(left);
            self.wake = earliest_time(self.wake, until.ok());
        }
        left.is_zero()
    }

    /// Takes note of the incarnations that have ended without a word of the runtime.
    fn see_ends(&mut self) -> Vec<(String, ContainerId)> {
        let running = self.tracked.iter();
        let running =
            running.filter_map(|(name, known)| Some((name.clone(), known.running()?.clone())));
        let ended: Vec<(String, ContainerId)> = running
            .filter(|(name, id)| self.terminations.has_ended(name, id))
            .collect();
        let now = Seen {
            since: Instant::now(),
            at: Timestamp::now(),
        };
        self.untold.see(&ended, now);
        ended
    }

    /// What has ended is dead, also when its runtime does not come to tell.
    fn give_up_waiting(&mut self, ended: Vec<(String, ContainerId)>) {
        for (name, id) in ended {
            let left = self.untold.left(&id, Instant::now());
            if !left.is_zero() {
                let until = Timestamp::now().saturating_add(left);
                self.wake = earliest_time(self.wake, until.ok());
                continue;
            }
            // That its first process has ended says nothing of the others.
            if !self.terminations.is_killed(&name, &id) {
                self.terminations.sweep(&name, &id);
                continue;
            }
            let end = self.terminations.end_of(&name, &id);
            let known = self.tracked.get_mut(&name);
            if let Some(instance) = known.and_then(|known| known.current.as_mut()) {
                warn!(container = name, id = %instance.id, ?end, "the runtime does not tell how it ended");
                let exit = untold(end, instance.started, self.untold.at(&id));
                instance.exit = Some(exit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str) -> (String, ContainerId) {
        (name.to_owned(), ContainerId::new(name).unwrap())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn only_what_was_killed_is_told_to_have_been_killed() {
        let killed = End::Killed { survivors: vec![] };
        let told = untold(Some(&killed), at(1), at(2));
        assert_eq!((told.code, told.signal), (137, Some(9)));
        assert_eq!(told.reason, ExitReason::Error);
        for end in [Some(&End::StopSignal), Some(&End::Itself), None] {
            let told = untold(end, at(1), at(2));
            assert_eq!((told.code, told.signal), (137, None), "{end:?}");
            assert_eq!(told.reason, ExitReason::ContainerStatusUnknown);
            assert_eq!((told.started, told.finished), (at(1), at(2)));
        }
    }

    #[test]
    fn each_end_has_its_own_time_in_which_the_runtime_may_tell_of_it() {
        let begin = Instant::now();
        let after = |seconds: u64| Seen {
            since: begin + Duration::from_secs(seconds),
            at: at(i64::try_from(seconds).unwrap()),
        };
        let (a, b) = (one("a"), one("b"));
        let mut untold = Untold::default();
        untold.see(std::slice::from_ref(&a), after(0));
        untold.see(&[a.clone(), b.clone()], after(4));
        let now = after(5).since;
        assert_eq!(untold.left(&a.1, now), Duration::ZERO);
        assert_eq!(untold.left(&b.1, now), Duration::from_secs(4));
        assert_eq!((untold.at(&a.1), untold.at(&b.1)), (at(0), at(4)));
        // What the runtime told of is over.
        untold.see(std::slice::from_ref(&b), after(6));
        assert_eq!(untold.0.len(), 1);
    }
}
