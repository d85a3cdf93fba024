//! What comes after a handler that has succeeded: its probe, which decides.
//!
//! Handler and probe are one attempt. Its outcome is recorded when both are done; until then the
//! handler's own end is kept by the runtime. After a restart it is found there and the probe goes on
//! with what is left of the time, counted from the handler's start. A signal leaves no trace, so it
//! is sent again, and then probed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belay_action::probe::{self, Course, Probe, Probed};
use belay_action::{AttemptId, ContainerId, Report, Running, TargetError};
use belay_core::clock::LocalMillis;
use belay_core::delivery::{Outcome, Verdict};
use tokio_util::sync::CancellationToken;

use super::action::{Came, runs, target};
use super::handler::{Action, Handler};
use crate::clock::{boot_millis, wall_millis};
use crate::context::Context;

/// All that a probe needs when its turn comes.
pub(crate) struct Verification {
    pub(crate) context: Arc<Context>,
    pub(crate) id: ContainerId,
    pub(crate) attempt: AttemptId,
    /// `None` where the pod is not known any more.
    pub(crate) handler: Option<Handler>,
    /// Whether the record says that there is a probe.
    pub(crate) probed: bool,
    pub(crate) cancel: CancellationToken,
}

impl Verification {
    /// What an action comes to that has come to this by itself.
    ///
    /// May be given up anywhere, as a shutdown does: what is left of a try is found and ended by
    /// whoever takes the attempt up again.
    pub(crate) async fn of(self, came: Came) -> Came {
        match came {
            Came::Ended { outcome, begun } if outcome.verdict.succeeded() => Came::Ended {
                outcome: self.verified(outcome, begun).await,
                begun,
            },
            Came::Refused(_) | Came::Ended { .. } | Came::Lost { .. } => came,
        }
    }

    async fn verified(self, outcome: Outcome, begun: Option<LocalMillis>) -> Outcome {
        let Some(handler) = &self.handler else {
            return unverified(self.probed, outcome);
        };
        let Some(probe) = &handler.probe else {
            return outcome;
        };
        let course = |outcome| {
            course(
                outcome,
                begun,
                handler.timeout,
                boot_millis(),
                wall_millis(),
            )
        };
        let probed = self.probe(probe, course(&outcome)).await;
        let verdict = match (verdict(probed, handler), &handler.action) {
            // What answers at the pod's address may be the successor already.
            (Verdict::Succeeded, Action::Exec { .. }) if !runs(&self.context, &self.id).await => {
                ended()
            }
            (verdict, Action::Exec { .. } | Action::Signal(_) | Action::Check(_)) => verdict,
        };
        Outcome {
            verdict,
            finished: wall_millis(),
            ..outcome
        }
    }

    async fn probe(&self, probe: &Probe, course: Course) -> Probed {
        let Some(target) = target(&self.context, &self.id).await else {
            return Probed::TargetEnded;
        };
        // Boxed, because most actions have no probe and need no room for one.
        let run = probe::run(&*target, probe, &self.attempt, course, &self.cancel);
        Box::pin(run).await
    }
}

/// A handler's success whose probe nobody can make any more, because pod and probe are gone.
pub(crate) fn unverified(probed: bool, outcome: Outcome) -> Outcome {
    if probed && outcome.verdict.succeeded() {
        Outcome {
            verdict: ended(),
            ..outcome
        }
    } else {
        outcome
    }
}

/// How far the action is, at this time since boot and on the wall.
///
/// The runtime tells its own times on the wall, where the clock may be set. So where the start was
/// seen the time since then is what the clock says that nobody sets; and a handler that succeeded has
/// never taken more than its timeout, which the runtime keeps.
fn course(
    outcome: &Outcome,
    begun: Option<LocalMillis>,
    timeout: Duration,
    boot: LocalMillis,
    wall: i64,
) -> Course {
    let span = |from: i64, to: i64| {
        Duration::from_millis(u64::try_from(to.saturating_sub(from)).unwrap_or(0))
    };
    let started = outcome.started.unwrap_or(outcome.finished);
    let told = span(started, outcome.finished).min(timeout);
    let now = match begun {
        Some(begun) => span(begun, boot),
        None => told.saturating_add(span(outcome.finished, wall)),
    };
    Course {
        handled: told.min(now),
        now,
        end: timeout,
    }
}

fn ended() -> Verdict {
    Verdict::ContainerRestarted { may_have_run: true }
}

/// What a probe's end means for the action. A signal that ends its container has been effective;
/// a command's effect is gone with it.
fn verdict(probed: Probed, handler: &Handler) -> Verdict {
    match (probed, &handler.action) {
        (Probed::Succeeded, Action::Exec { .. } | Action::Signal(_) | Action::Check(_))
        | (Probed::TargetEnded, Action::Signal(_)) => Verdict::Succeeded,
        (Probed::TargetEnded, Action::Exec { .. } | Action::Check(_)) => ended(),
        (Probed::TimedOut { last }, Action::Exec { .. } | Action::Signal(_) | Action::Check(_)) => {
            Verdict::ProbeTimedOut {
                seconds: handler.timeout.as_secs(),
                last,
            }
        }
        (Probed::Cancelled, Action::Exec { .. } | Action::Signal(_) | Action::Check(_)) => {
            Verdict::Cancelled {
                survivors: Vec::new(),
            }
        }
    }
}

/// A handler that was found ended and has its probe before it: followed like one that runs.
pub(super) struct Handled(pub(super) Report);

#[async_trait]
impl Running for Handled {
    async fn wait(&mut self) -> Result<Report, TargetError> {
        Ok(self.0.clone())
    }

    async fn cancel(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handler(action: Action) -> Handler {
        Handler {
            action,
            timeout: Duration::from_secs(7),
            until: None,
            output: true,
            probe: None,
        }
    }

    fn outcome(started: Option<i64>, finished: i64) -> Outcome {
        Outcome {
            started,
            ..Outcome::unstarted(Verdict::Succeeded, finished)
        }
    }

    #[test]
    fn every_end_of_a_probe_has_its_verdict() {
        let exec = handler(Action::Exec {
            command: vec!["x".into()],
        });
        let signal = handler(Action::Signal("SIGHUP".parse().unwrap()));
        let timed_out = || Probed::TimedOut {
            last: Some("HTTP 503".into()),
        };
        let late = || Verdict::ProbeTimedOut {
            seconds: 7,
            last: Some("HTTP 503".into()),
        };
        let cancelled = || Verdict::Cancelled { survivors: vec![] };
        for (probed, of_exec, of_signal) in [
            (Probed::Succeeded, Verdict::Succeeded, Verdict::Succeeded),
            (timed_out(), late(), late()),
            (Probed::TargetEnded, ended(), Verdict::Succeeded),
            (Probed::Cancelled, cancelled(), cancelled()),
        ] {
            assert_eq!(verdict(probed.clone(), &exec), of_exec);
            assert_eq!(verdict(probed, &signal), of_signal);
        }
    }

    #[test]
    fn the_time_is_counted_from_the_start_of_the_handler() {
        let limit = Duration::from_secs(7);
        let at = |wall| {
            let course = course(&outcome(Some(5_000), 6_500), None, limit, 0, wall);
            (course.handled.as_millis(), course.now.as_millis())
        };
        assert_eq!(at(6_600), (1_500, 1_600));
        assert_eq!(at(60_000), (1_500, 55_000));
        // A clock that was set back.
        assert_eq!(at(1_000), (1_500, 1_500));
        let unknown = course(&outcome(None, 3), None, limit, 0, 4);
        assert_eq!((unknown.handled, unknown.end), (Duration::ZERO, limit));
    }

    #[test]
    fn a_clock_that_is_set_while_the_handler_runs_takes_and_gives_no_time() {
        let limit = Duration::from_secs(7);
        // Started at 100 since boot, ended 1.5 s later; the clock was set an hour on or back.
        for finished in [5_000 + 3_600_000, 5_000 - 3_600_000] {
            let outcome = outcome(Some(5_000), finished);
            let seen = course(&outcome, Some(100), limit, 1_600, finished);
            assert_eq!(seen.now.as_millis(), 1_500);
            assert!(seen.handled <= seen.now);
            let found = course(&outcome, None, limit, 1_600, finished);
            assert!(found.handled <= limit && found.now == found.handled);
        }
    }

    #[test]
    fn a_success_is_not_the_whole_when_a_probe_was_to_follow() {
        let verdict = |probed| unverified(probed, outcome(Some(1), 2)).verdict;
        assert_eq!(verdict(false), Verdict::Succeeded);
        assert_eq!(verdict(true), ended());
        let mut failed = outcome(Some(1), 2);
        failed.verdict = Verdict::Exited { code: 3 };
        assert_eq!(unverified(true, failed.clone()), failed);
    }
}
