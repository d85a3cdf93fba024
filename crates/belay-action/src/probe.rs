//! Verifying an action: a probe is tried until it succeeds, or until the action's time is over.
//!
//! ```text
//!   start of the action                                              end of its time
//!   |------ handler ------|-- initial delay --|try|-- period --|try|------|
//!                         ^ the probe's turn                              ^ timed out
//! ```
//!
//! [`Schedule`] decides, with numbers for time: when is the next try, and what does its result mean.
//! [`run`] carries that out on a target. What one try is stands in [`Check`]; the rules are the
//! kubelet's, except that a failure never counts towards a threshold: there is a time limit instead.
//!
//! **Invariant:** at most one try is under way. An exec try has an attempt ID of its own, made from
//! the action's, which is forgotten after each try. So a try that an agent left behind when it was
//! killed is found by the next one, and ended.
//!
//! **Invariant:** when [`run`] has returned, nothing of a try is left running.

mod check;
mod grpc;
mod http;
mod redirect;
mod schedule;

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use check::{Tried, once, tried};
pub use http::{HttpGet, NO_ANSWER};
pub use schedule::{Cadence, Course, Schedule, Step};

use crate::{AttemptId, Found, Target, TargetError, resume};

/// How to find out whether an action had its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub check: Check,
    pub cadence: Cadence,
}

/// What one try does. Addresses and ports are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// A command in the container that ends with 0.
    Exec { command: Vec<String> },
    /// An HTTP request that is answered with a code from 200 to 399.
    Http(HttpGet),
    /// A port that takes connections.
    Tcp { host: String, port: u16 },
    /// A service that says of itself that it is serving, by `grpc.health.v1.Health/Check`.
    Grpc {
        host: String,
        port: u16,
        service: String,
    },
}

/// What a probe came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probed {
    Succeeded,
    /// The time was over first.
    TimedOut {
        /// What the last try said; `None` when there was none.
        last: Option<String>,
    },
    /// The target's first process ended first.
    TargetEnded,
    Cancelled,
}

/// How long a target that cannot be waited for is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// Tries the probe of an action that has succeeded so far, until that is decided.
///
/// The end of the target and `cancel` end it at once, with the try that is under way.
pub async fn run(
    target: &dyn Target,
    probe: &Probe,
    attempt: &AttemptId,
    course: Course,
    cancel: &CancellationToken,
) -> Probed {
    let began = Instant::now();
    let now = || course.now.saturating_add(began.elapsed());
    let mut schedule = Schedule::new(probe.cadence, course);
    let mut last = None;
    let mut ended = std::pin::pin!(ended(target));
    if matches!(probe.check, Check::Exec { .. }) {
        clear(target, attempt).await;
    }
    loop {
        match schedule.next(now()) {
            Step::Succeeded => return Probed::Succeeded,
            Step::TimedOut => return Probed::TimedOut { last },
            Step::Wait { until } => {
                tokio::select! {
                    biased;
                    () = &mut ended => return Probed::TargetEnded,
                    () = cancel.cancelled() => return Probed::Cancelled,
                    () = sleep(until.saturating_sub(now())) => {}
                }
            }
            Step::Try { timeout } => {
                let stop = CancellationToken::new();
                let since = now();
                let tried = {
                    let trying = check::once(target, &probe.check, attempt, timeout, stop.clone());
                    let mut trying = std::pin::pin!(trying);
                    tokio::select! {
                        biased;
                        // First, because the successor of a target that has ended may answer too.
                        () = &mut ended => {
                            stop.cancel();
                            let _ = trying.await;
                            return Probed::TargetEnded;
                        }
                        tried = &mut trying => tried,
                        () = cancel.cancelled() => {
                            stop.cancel();
                            let _ = trying.await;
                            return Probed::Cancelled;
                        }
                    }
                };
                debug!(%attempt, ?tried, "probed");
                let until = now();
                schedule.tried(since, until, tried.is_ok());
                // A try that the end of the time cut off says less than the one before it.
                let cut = timeout < probe.cadence.timeout && until - since >= timeout;
                match tried {
                    Ok(()) => {
                        let (passed, wanted) = schedule.passed();
                        last = Some(format!("success, {passed} of {wanted} times in a row"));
                    }
                    Err(_) if cut && last.is_some() => {}
                    Err(said) => last = Some(said),
                }
            }
        }
    }
}

/// Ends and forgets the try that a killed agent may have left behind.
pub async fn clear(target: &dyn Target, attempt: &AttemptId) {
    let Ok(own) = own_id(attempt) else {
        return;
    };
    match target.find(&own).await {
        Ok(Found::Running(running)) => {
            let cancel = CancellationToken::new();
            cancel.cancel();
            let ended = resume(running, cancel).await;
            debug!(attempt = %own, ?ended, "ended a probe that was left behind");
        }
        Ok(Found::NeverStarted | Found::Ended(_) | Found::Lost) => {}
        Err(error) => debug!(attempt = %own, %error, "cannot look for a probe"),
    }
    target.forget(&own).await;
}

/// The one ID of an attempt's probe: whoever knows the attempt finds its try.
fn own_id(attempt: &AttemptId) -> Result<AttemptId, crate::IdError> {
    AttemptId::new(format!("{attempt}.probe"))
}

/// Returns when the first process has ended. A runtime that cannot tell is asked again.
async fn ended(target: &dyn Target) {
    loop {
        match target.wait().await {
            Ok(()) | Err(TargetError::NotRunning { .. } | TargetError::Restarted { .. }) => return,
            Err(error) => debug!(%error, "cannot wait for the end of a container"),
        }
        sleep(PAUSE).await;
    }
}
