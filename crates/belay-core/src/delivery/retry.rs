//! Retrying: an action that failed is tried again until its time is over.
//!
//! A delivery without [`Retry`] makes one attempt per container, as notifications do. With it every
//! attempt goes through the journal after it has its slot, so that the first start is durable before
//! anything runs and every later process counts from the same moment:
//!
//! ```text
//!   Queued --slot--> Stamping --on disk--> Running --failed--> Waiting --pause over--> Queued ...
//!                                             |                   |
//!                                  succeeded, timed out,     time is over:
//!                                  container is gone         the failure is the outcome
//! ```
//!
//! The time is counted in milliseconds since boot, so that a clock that is set moves nothing. What
//! another boot counted is over: its containers are gone too.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::machine::{Aim, Delivery, Phase, Step};
use super::{Effect, Entry, Outcome, Verdict};
use crate::clock::{LocalMillis, ServerMillis};

/// The present, by every clock that something is measured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The latest it can be on the server: what has a deadline there is measured with it.
    pub server: ServerMillis,
    /// Milliseconds since boot: how long something lasts is measured with it.
    pub boot: LocalMillis,
    /// The node's wall clock, for people.
    pub wall: i64,
}

impl From<i64> for Now {
    /// All clocks agree.
    fn from(millis: i64) -> Self {
        Now {
            server: millis,
            boot: millis,
            wall: millis,
        }
    }
}

/// How often, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Retry {
    /// Counted from the start of the first attempt.
    pub timeout: Duration,
    /// The pause after the first failure; each one is twice as long as the one before.
    pub first_pause: Duration,
    /// No pause is longer.
    pub longest_pause: Duration,
}

impl Retry {
    /// With pauses from half a second to five.
    pub fn within(timeout: Duration) -> Self {
        Retry {
            timeout,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(5),
        }
    }

    /// How long to wait after this many attempts.
    pub fn pause(&self, attempts: u32) -> Duration {
        let doubled = attempts.saturating_sub(1).min(20);
        self.first_pause
            .saturating_mul(1 << doubled)
            .min(self.longest_pause)
    }

    /// When the time is over that began then.
    pub fn end(&self, first: First) -> LocalMillis {
        first.boot.saturating_add(millis(self.timeout))
    }
}

/// The start of the first attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct First {
    /// Milliseconds since boot.
    pub boot: LocalMillis,
    /// Milliseconds since the epoch, for people.
    pub wall: i64,
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Whether another attempt may come to something else.
fn is_worth_another(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Exited { .. }
        | Verdict::Signaled { .. }
        | Verdict::StartFailed { .. }
        | Verdict::CheckFailed { .. }
        | Verdict::ProbeTimedOut { .. }
        | Verdict::Interrupted
        | Verdict::Runtime { .. } => true,
        // An attempt has all the time that is left, so none is left after one that timed out.
        Verdict::TimedOut { .. }
        | Verdict::LeftRunning { .. }
        | Verdict::Unconfirmed { .. }
        | Verdict::NoAnswer { .. } => false,
        Verdict::Succeeded
        | Verdict::PodNotFound
        | Verdict::PodTerminating
        | Verdict::ContainerNotRunning
        | Verdict::ContainerRestarted { .. }
        | Verdict::Expired
        | Verdict::Cancelled { .. }
        | Verdict::Forbidden { .. } => false,
    }
}

impl Delivery {
    /// Whether it is too late for an attempt of this container.
    pub(super) fn too_late(&self, entry: &Entry, now: Now) -> bool {
        match (self.retry, entry.first) {
            (Some(retry), Some(first)) => now.boot >= retry.end(first),
            (Some(_) | None, _) => self.late(now),
        }
    }

    /// The container has its slot: the start goes into the journal, and then it starts.
    pub(super) fn stamp(&mut self, container: &str, now: Now, out: &mut Vec<Effect>) {
        let seq = self.seq + 1;
        if let Phase::Working { legs, .. } = &mut self.phase
            && let Some(leg) = legs.get_mut(container)
        {
            leg.entry.first.get_or_insert(First {
                boot: now.boot,
                wall: now.wall,
            });
            leg.step = Step::Stamping { seq };
        }
        self.journal_legs(out);
    }

    /// Everything up to this write is in the journal.
    pub(super) fn stamped(&mut self, seq: u32, now: Now, out: &mut Vec<Effect>) {
        for container in self.stamping(seq) {
            let Phase::Working { legs, aim, .. } = &self.phase else {
                return;
            };
            let Some(entry) = legs.get(&container).map(|leg| &leg.entry) else {
                continue;
            };
            if *aim != Aim::Deliver || self.too_late(entry, now) {
                self.give_up(&container, now, out);
                continue;
            }
            let attempt = entry.attempt;
            if let Phase::Working { legs, .. } = &mut self.phase
                && let Some(leg) = legs.get_mut(&container)
            {
                leg.step = Step::Running;
            }
            if attempt > 1 {
                // Not before the journal has gone on: a process that reads of the old one looks for it.
                out.push(Effect::Discard {
                    container: container.clone(),
                    attempt: attempt - 1,
                });
            }
            out.push(Effect::Start { container, attempt });
            out.push(Effect::Progress);
        }
    }

    /// The journal refused this write: nothing of it may start.
    pub(super) fn unstamped(&mut self, seq: u32, message: &str, now: Now, out: &mut Vec<Effect>) {
        for container in self.stamping(seq) {
            let message =
                format!("the journal of this node cannot take another attempt: {message}");
            let outcome = Outcome::unstarted(Verdict::Runtime { message }, now.server);
            self.came(&container, outcome, now, out);
        }
    }

    fn stamping(&self, seq: u32) -> Vec<String> {
        let Phase::Working { legs, .. } = &self.phase else {
            return Vec::new();
        };
        let stamping = legs.iter().filter(
            |(_, leg)| matches!(leg.step, Step::Stamping { seq: pending } if pending <= seq),
        );
        stamping.map(|(container, _)| container.clone()).collect()
    }

    /// An attempt came to this: the outcome, unless it is tried again.
    pub(super) fn came(
        &mut self,
        container: &str,
        outcome: Outcome,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Phase::Working { legs, aim, .. } = &self.phase else {
            return;
        };
        let Some(entry) = legs.get(container).map(|leg| &leg.entry) else {
            return;
        };
        let again = *aim == Aim::Deliver
            && is_worth_another(&outcome.verdict)
            && !self.too_late(entry, now);
        let Some(retry) = self.retry.filter(|_| again) else {
            return self.done(container, outcome, out);
        };
        let pause = millis(retry.pause(entry.attempt));
        let until = now.boot.saturating_add(pause);
        let until = entry
            .first
            .map_or(until, |first| until.min(retry.end(first)));
        if let Phase::Working { legs, .. } = &mut self.phase
            && let Some(leg) = legs.get_mut(container)
        {
            leg.entry.failed = Some(Box::new(outcome));
            leg.step = Step::Waiting { until };
        }
        out.push(Effect::Progress);
    }

    /// No attempt is made any more: what the last one came to is the outcome.
    pub(super) fn give_up(&mut self, container: &str, now: Now, out: &mut Vec<Effect>) {
        let Phase::Working { legs, aim, .. } = &mut self.phase else {
            return;
        };
        let Some(leg) = legs.get_mut(container) else {
            return;
        };
        let known = leg.entry.failed.take().filter(|_| *aim == Aim::Deliver);
        match known {
            Some(outcome) => {
                if !matches!(leg.step, Step::Waiting { .. }) {
                    leg.entry.attempt = leg.entry.attempt.saturating_sub(1);
                }
                self.done(container, *outcome, out);
            }
            None => {
                let verdict = match *aim {
                    Aim::Deliver if leg.entry.attempt > 1 => Verdict::Interrupted,
                    Aim::Deliver => Verdict::Expired,
                    aim @ (Aim::Cancel | Aim::Withdraw | Aim::Abandon) => {
                        super::work::lost_under(aim)
                    }
                };
                self.unstarted(container, verdict, now, out);
            }
        }
    }

    /// Time has passed: pauses end, and so does the time of those who wait.
    pub(super) fn retry_on(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.retry.is_none() {
            return;
        }
        let Phase::Working { legs, aim, .. } = &self.phase else {
            return;
        };
        if *aim != Aim::Deliver {
            return;
        }
        let (mut over, mut due) = (Vec::new(), Vec::new());
        for (container, leg) in legs {
            let waits = match leg.step {
                Step::Waiting { until } => {
                    if now.boot >= until {
                        due.push(container.clone());
                    }
                    true
                }
                Step::Queued | Step::Recording { .. } => leg.entry.first.is_some(),
                Step::Looking { .. } | Step::Stamping { .. } | Step::Running | Step::Done => false,
            };
            if waits && self.too_late(&leg.entry, now) {
                over.push(container.clone());
            }
        }
        due.retain(|container| !over.contains(container));
        for container in over {
            self.give_up(&container, now, out);
        }
        for container in due {
            if let Phase::Working { legs, .. } = &mut self.phase
                && let Some(leg) = legs.get_mut(&container)
            {
                leg.entry.attempt += 1;
                leg.step = Step::Queued;
                out.push(Effect::Queue { container });
            }
        }
    }

    /// Whether this container keeps the slot that it was given.
    pub fn holds_slot(&self, container: &str) -> bool {
        match &self.phase {
            Phase::Working { legs, .. } => legs
                .get(container)
                .is_some_and(|leg| matches!(leg.step, Step::Stamping { .. })),
            Phase::Claiming { .. } | Phase::Reporting { .. } | Phase::Over => false,
        }
    }

    /// How long until a [`super::Event::Tick`] changes something; `None`: it will not.
    pub fn pause(&self, now: Now) -> Option<Duration> {
        let Phase::Working { legs, .. } = &self.phase else {
            return None;
        };
        let left = |at: i64, now: i64| {
            Duration::from_millis(u64::try_from(at.saturating_sub(now)).unwrap_or(0))
        };
        let ends = legs.values().filter_map(|leg| match leg.step {
            Step::Waiting { until } => Some(left(until, now.boot)),
            Step::Queued | Step::Recording { .. } => match (self.retry, leg.entry.first) {
                (Some(retry), Some(first)) => Some(left(retry.end(first), now.boot)),
                (Some(_) | None, _) => Some(left(self.deadline(), now.server)),
            },
            Step::Looking { .. } | Step::Stamping { .. } | Step::Running | Step::Done => None,
        });
        ends.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let retry = Retry::within(Duration::from_secs(30));
        let millis = |attempts| retry.pause(attempts).as_millis();
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, u32::MAX].map(millis),
            [500, 500, 1000, 2000, 4000, 5000, 5000, 5000]
        );
    }

    #[test]
    fn a_time_without_end_ends_never() {
        let retry = Retry::within(Duration::MAX);
        assert_eq!(retry.end(First { boot: 5, wall: 0 }), i64::MAX);
    }
}
