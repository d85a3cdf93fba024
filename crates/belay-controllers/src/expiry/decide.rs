//! What becomes of one PodNotification, as a pure function of its facts and the time.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Added to every deadline before it counts as passed. One second because `creationTimestamp` has
/// whole seconds and is cut, not rounded; one more for the difference between this clock and that
/// of the server and the agents, all of which refuse to start anything after the plain deadline.
pub const MARGIN: Duration = Duration::from_secs(2);

/// How long an executor may be silent before what it claimed is given up, as the stock control
/// plane does for a node.
pub const SILENCE: Duration = Duration::from_secs(40);

/// What the decision reads of a PodNotification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub created: Timestamp,
    pub deadline: Duration,
    pub progress: Progress,
}

/// How far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Nobody has written a claim.
    Unclaimed,
    /// This executor has.
    Claimed { executor: String },
    /// It has its final state; `ttl` is how long it is to be kept after that.
    Finished {
        at: Option<Timestamp>,
        ttl: Option<Duration>,
    },
}

/// What to do, now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing, ever.
    Leave,
    /// Nothing before this much time has passed.
    LookAgain { after: Duration },
    /// It ends as `Expired`: nothing ran and nothing will.
    Expire,
    /// It ends as `Interrupted`: it may have run.
    Interrupt { executor: String },
    /// It has been kept as long as it asked to be.
    Collect,
}

impl Verdict {
    /// One word for metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Verdict::Leave | Verdict::LookAgain { .. } => "Left",
            Verdict::Expire => "Expired",
            Verdict::Interrupt { .. } => "Interrupted",
            Verdict::Collect => "Collected",
        }
    }
}

/// Decides. `silence` is how long ago the claiming executor's lease was last seen renewed, by a
/// clock that stands still while the machine sleeps: a laptop that wakes up must not find its own
/// agent lost. It is read only where somebody has claimed.
pub fn decide(facts: &Facts, silence: Duration, now: Timestamp) -> Verdict {
    match &facts.progress {
        Progress::Unclaimed => match until_over(facts, now) {
            Some(after) => Verdict::LookAgain { after },
            None => Verdict::Expire,
        },
        Progress::Claimed { executor } => {
            let deadline = until_over(facts, now);
            let lost = SILENCE.checked_sub(silence).filter(|d| !d.is_zero());
            match (deadline, lost) {
                (None, None) => Verdict::Interrupt {
                    executor: executor.clone(),
                },
                (deadline, lost) => Verdict::LookAgain {
                    after: deadline.max(lost).unwrap_or_default(),
                },
            }
        }
        Progress::Finished {
            at: Some(at),
            ttl: Some(ttl),
        } => match until(*at, *ttl, now) {
            Some(after) => Verdict::LookAgain { after },
            None => Verdict::Collect,
        },
        Progress::Finished { .. } => Verdict::Leave,
    }
}

/// Time left until the deadline is certainly over; `None` when it is.
fn until_over(facts: &Facts, now: Timestamp) -> Option<Duration> {
    until(facts.created, facts.deadline.saturating_add(MARGIN), now)
}

fn until(start: Timestamp, span: Duration, now: Timestamp) -> Option<Duration> {
    let passed = now.duration_since(start);
    // A span beyond what the signed type holds is centuries away: never over.
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::MAX);
    let left = span.checked_sub(passed).unwrap_or(SignedDuration::MAX);
    // A start in the future comes from a clock ahead of ours; it only lengthens the wait.
    Duration::try_from(left).ok().filter(|d| !d.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: Duration = Duration::from_secs(1_000_000);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn facts(progress: Progress) -> Facts {
        Facts {
            created: at(0),
            deadline: secs(60),
            progress,
        }
    }

    fn claimed() -> Progress {
        Progress::Claimed {
            executor: "n".into(),
        }
    }

    fn interrupt() -> Verdict {
        Verdict::Interrupt {
            executor: "n".into(),
        }
    }

    fn look(seconds: u64) -> Verdict {
        Verdict::LookAgain {
            after: secs(seconds),
        }
    }

    /// The whole table: progress, time since creation, silence of the executor, verdict.
    #[test]
    fn every_combination_has_its_verdict() {
        let table = [
            (Progress::Unclaimed, 0, NEVER, look(62)),
            (Progress::Unclaimed, 59, secs(0), look(3)),
            (Progress::Unclaimed, 60, secs(0), look(2)),
            (Progress::Unclaimed, 61, NEVER, look(1)),
            (Progress::Unclaimed, 62, secs(0), Verdict::Expire),
            (Progress::Unclaimed, 9999, secs(0), Verdict::Expire),
            (Progress::Unclaimed, -30, secs(0), look(92)),
            (claimed(), 0, secs(0), look(62)),
            (claimed(), 0, NEVER, look(62)),
            (claimed(), 50, secs(10), look(30)),
            (claimed(), 61, secs(39), look(1)),
            (claimed(), 62, secs(0), look(40)),
            (claimed(), 62, secs(39), look(1)),
            (claimed(), 62, secs(40), interrupt()),
            (claimed(), 9999, secs(9), look(31)),
            (claimed(), 9999, NEVER, interrupt()),
        ];
        for (progress, now, silence, expected) in table {
            let verdict = decide(&facts(progress.clone()), silence, at(now));
            assert_eq!(
                verdict, expected,
                "{progress:?} at {now}, silent {silence:?}"
            );
        }
    }

    #[test]
    fn a_finished_one_is_left_unless_it_asked_to_be_collected() {
        let finished = |at, ttl| facts(Progress::Finished { at, ttl });
        let done = Some(at(100));
        for (facts, now, expected) in [
            (finished(done, None), 9999, Verdict::Leave),
            (finished(None, Some(secs(1))), 9999, Verdict::Leave),
            (finished(None, None), 9999, Verdict::Leave),
            (finished(done, Some(secs(0))), 100, Verdict::Collect),
            (finished(done, Some(secs(30))), 100, look(30)),
            (finished(done, Some(secs(30))), 129, look(1)),
            (finished(done, Some(secs(30))), 130, Verdict::Collect),
        ] {
            assert_eq!(
                decide(&facts, NEVER, at(now)),
                expected,
                "{facts:?} at {now}"
            );
        }
    }

    #[test]
    fn nothing_is_ever_expired_before_its_deadline_by_the_latest_clock_reading() {
        for deadline in [1_u64, 2, 60, 86_400] {
            for millis in 0..(deadline.min(100) * 1000 + 1500) {
                let mut f = facts(Progress::Unclaimed);
                f.deadline = secs(deadline);
                let start = i64::try_from(deadline.saturating_sub(100)).unwrap();
                let now = at(start) + SignedDuration::from_millis(i64::try_from(millis).unwrap());
                let passed = now.duration_since(f.created);
                // The object may have been created up to a second after what it shows.
                let latest =
                    SignedDuration::try_from(f.deadline).unwrap() + SignedDuration::from_secs(1);
                if decide(&f, NEVER, now) == Verdict::Expire {
                    assert!(passed >= latest, "{deadline} s expired after {passed}");
                }
            }
        }
    }

    #[test]
    fn absurd_spans_do_not_overflow() {
        let mut f = facts(Progress::Unclaimed);
        f.deadline = Duration::MAX;
        assert!(matches!(
            decide(&f, NEVER, at(0)),
            Verdict::LookAgain { .. }
        ));
        f.created = Timestamp::MIN;
        f.deadline = secs(1);
        assert_eq!(decide(&f, NEVER, Timestamp::MAX), Verdict::Expire);
        f.created = Timestamp::MAX;
        assert!(matches!(
            decide(&f, NEVER, Timestamp::MIN),
            Verdict::LookAgain { .. }
        ));
    }
}
