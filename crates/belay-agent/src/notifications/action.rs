//! Starting, finding and following one container's action.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_action::probe::{self, Check, Tried};
use belay_action::{
    AttemptId, ContainerId, Disposition, ExecRequest, Found, Incarnation, OVERDUE, Report, Running,
    Target, TargetError,
};
use belay_core::clock::{LocalMillis, ServerMillis};
use belay_core::delivery::{Outcome, Trace, Verdict};
use belay_runtime::RuntimeError;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::handler::{Action, Handler};
use super::verify::Handled;
use crate::clock::{boot_millis, wall_millis};
use crate::context::Context;
use crate::crash;

/// What an action came to, or what is known of it.
pub(crate) enum Came {
    /// Nothing was started.
    Refused(Verdict),
    /// It ended.
    Ended {
        outcome: Outcome,
        /// When it was started, in milliseconds since boot; `None` where nobody saw that.
        begun: Option<LocalMillis>,
    },
    /// It was started, and is gone without a trace.
    Lost { same_incarnation: bool },
}

impl Came {
    fn ended(outcome: Outcome) -> Self {
        Came::Ended {
            outcome,
            begun: None,
        }
    }

    /// What was seen to begin then.
    fn begun(self, at: LocalMillis) -> Self {
        match self {
            Came::Ended { outcome, .. } => Came::Ended {
                outcome,
                begun: Some(at),
            },
            Came::Refused(_) | Came::Lost { .. } => self,
        }
    }
}

/// What a look into the runtime found.
pub(crate) struct Sight {
    pub(crate) trace: Trace,
    pub(crate) same_incarnation: bool,
    /// To be followed, if it runs.
    pub(crate) running: Option<Box<dyn Running>>,
}

/// How often it is looked whether a container still runs that is waited for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Whether this incarnation still runs. A runtime that cannot tell is asked again.
pub(super) async fn runs(context: &Context, id: &ContainerId) -> bool {
    let mut pause = FIRST_PAUSE;
    loop {
        match context.runtime.is_running(id).await {
            Ok(running) => return running,
            Err(RuntimeError::NotFound { .. }) => return false,
            Err(error) => warn!(container = %id, %error, "its state cannot be read; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The container, unless the runtime has forgotten it. One that cannot tell is asked again.
pub(super) async fn target(context: &Context, id: &ContainerId) -> Option<Arc<dyn Target>> {
    let mut pause = FIRST_PAUSE;
    loop {
        match context.runtime.target(id).await {
            Ok(target) => return Some(target),
            Err(RuntimeError::NotFound { .. }) => return None,
            Err(error) => warn!(container = %id, %error, "cannot be acted on; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Why nothing is done in a container; `None`: it is the one that is meant.
///
/// The ID comes from the claim in the object. Whoever can write that must not reach another pod.
fn foreign(target: &Arc<dyn Target>, meant: &Incarnation) -> Option<Verdict> {
    let found = target.incarnation();
    let same = found.pod_uid == meant.pod_uid && found.container == meant.container;
    (!same).then(|| Verdict::Forbidden {
        message: format!(
            "the claim names container {}, which is not container {:?} of this pod; nothing was run",
            meant.id, meant.container
        ),
    })
}

/// Looks an attempt up.
///
/// Asked until there is an answer: calling an attempt lost because the runtime did not answer could
/// run it twice.
pub(crate) async fn find(
    context: &Context,
    meant: &Incarnation,
    attempt: &AttemptId,
    handler: Option<&Handler>,
    traceable: bool,
) -> Sight {
    let id = &meant.id;
    let mut pause = FIRST_PAUSE;
    let found = loop {
        if !traceable {
            break Found::Lost;
        }
        let target = context.runtime.target(id).await;
        if let Ok(target) = &target
            && let Some(verdict) = foreign(target, meant)
        {
            return Sight {
                trace: Trace::Ended(Outcome::unstarted(verdict, wall_millis())),
                same_incarnation: false,
                running: None,
            };
        }
        let found = match target {
            Ok(target) if !target.capabilities().find_attempts => {
                let same_incarnation = runs(context, id).await;
                return Sight {
                    trace: Trace::Ended(never_again(same_incarnation)),
                    same_incarnation,
                    running: None,
                };
            }
            Ok(target) => target
                .find(attempt)
                .await
                .map_err(|error| error.to_string()),
            // Its records are gone with it.
            Err(RuntimeError::NotFound { .. }) => break Found::Lost,
            Err(error) => Err(error.to_string()),
        };
        match found {
            Ok(found) => break found,
            Err(error) => warn!(%attempt, error, "an attempt cannot be looked up; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    debug!(%attempt, container = %id, ?found, "looked up");
    let (trace, running) = match found {
        Found::NeverStarted => (Trace::NeverStarted, None),
        Found::Running(running) => (Trace::Running, Some(running)),
        // The handler is done, the attempt is not.
        Found::Ended(report)
            if report.outcome == belay_action::Outcome::Succeeded
                && handler.is_some_and(|handler| handler.probe.is_some()) =>
        {
            let handled: Box<dyn Running> = Box::new(Handled(report));
            (Trace::Running, Some(handled))
        }
        Found::Ended(report) => (
            Trace::Ended(settled(context, id, report, handler).await),
            None,
        ),
        Found::Lost => (Trace::Lost, None),
    };
    // Nobody goes on with the probe of an attempt that is lost.
    if matches!(trace, Trace::Lost)
        && handler.is_none_or(|handler| handler.probe.is_some())
        && let Ok(target) = context.runtime.target(id).await
    {
        belay_action::probe::clear(&*target, attempt).await;
    }
    Sight {
        trace,
        same_incarnation: runs(context, id).await,
        running,
    }
}

/// The runtime was away, so that nothing was started.
struct Away {
    message: String,
}

/// Starts an action, if that can be before the deadline, and waits for its end. A runtime that is
/// away, as during a restart, is waited for until then.
pub(crate) async fn run(
    context: &Context,
    meant: &Incarnation,
    attempt: &AttemptId,
    handler: &Handler,
    deadline: ServerMillis,
    cancel: CancellationToken,
) -> Came {
    let mut pause = FIRST_PAUSE;
    loop {
        let tried = attempted(context, meant, attempt, handler, deadline, cancel.clone()).await;
        let Away { message } = match tried {
            Ok(came) => {
                crash::at(crash::ENDED);
                return came;
            }
            Err(away) => away,
        };
        if context.clock.until(deadline) <= pause {
            return Came::Refused(Verdict::Runtime { message });
        }
        warn!(%attempt, message, "nothing was started; trying again");
        tokio::select! {
            () = cancel.cancelled() => {
                return Came::Refused(Verdict::Cancelled { survivors: Vec::new() });
            }
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn attempted(
    context: &Context,
    meant: &Incarnation,
    attempt: &AttemptId,
    handler: &Handler,
    deadline: ServerMillis,
    cancel: CancellationToken,
) -> Result<Came, Away> {
    let target = match context.runtime.target(&meant.id).await {
        Ok(target) => target,
        Err(RuntimeError::NotFound { .. }) => return Ok(Came::Refused(restarted())),
        Err(error @ RuntimeError::Away { .. }) => {
            return Err(Away {
                message: error.to_string(),
            });
        }
        Err(error) => {
            return Ok(Came::Refused(Verdict::Runtime {
                message: error.to_string(),
            }));
        }
    };
    if let Some(verdict) = foreign(&target, meant) {
        return Ok(Came::Refused(verdict));
    }
    match &handler.action {
        Action::Exec { command } => {
            let request = ExecRequest {
                attempt: attempt.clone(),
                command: command.clone(),
                timeout: handler.time(),
            };
            exec(context, &target, &request, handler, deadline, cancel).await
        }
        Action::Signal(signal) => send(context, &target, *signal, handler.timeout, deadline).await,
        Action::Check(check) => {
            let asked = ask(context, &target, attempt, check, handler, deadline, cancel);
            // Boxed, because most actions are no requests and need no room for one.
            Ok(Box::pin(asked).await)
        }
    }
}

/// Asks the pod. What answers at its address may be another incarnation, so both sides of the answer
/// are looked at.
async fn ask(
    context: &Context,
    target: &Arc<dyn Target>,
    attempt: &AttemptId,
    check: &Check,
    handler: &Handler,
    deadline: ServerMillis,
    cancel: CancellationToken,
) -> Came {
    let id = &target.incarnation().id;
    if !runs(context, id).await {
        return Came::Refused(restarted());
    }
    if context.clock.until(deadline).is_zero() {
        return Came::Refused(Verdict::Expired);
    }
    let time = handler.time();
    let (started, since) = (wall_millis(), Instant::now());
    crash::at(crash::STARTED);
    let stop = cancel.clone();
    let asking = probe::tried(&**target, check, attempt, time, stop);
    let tried = tokio::select! {
        tried = asking => Some(tried),
        () = gone(context, id) => None,
    };
    let verdict = match tried {
        None => Verdict::ContainerRestarted { may_have_run: true },
        Some(Tried::Succeeded) if !runs(context, id).await => {
            Verdict::ContainerRestarted { may_have_run: true }
        }
        Some(Tried::Succeeded) => Verdict::Succeeded,
        Some(Tried::Failed { .. } | Tried::Unknown { .. }) if cancel.is_cancelled() => {
            Verdict::Cancelled {
                survivors: Vec::new(),
            }
        }
        Some(Tried::Failed { .. } | Tried::Unknown { .. }) if since.elapsed() >= time => {
            Verdict::NoAnswer {
                seconds: handler.timeout.as_secs(),
            }
        }
        Some(Tried::Failed { message, .. } | Tried::Unknown { message }) => {
            Verdict::CheckFailed { message }
        }
    };
    Came::ended(Outcome {
        started: Some(started),
        ..Outcome::unstarted(verdict, wall_millis())
    })
}

/// Returns when this incarnation does not run any more.
async fn gone(context: &Context, id: &ContainerId) {
    while runs(context, id).await {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn exec(
    context: &Context,
    target: &Arc<dyn Target>,
    request: &ExecRequest,
    handler: &Handler,
    deadline: ServerMillis,
    cancel: CancellationToken,
) -> Result<Came, Away> {
    let attempt = &request.attempt;
    let now = Instant::now();
    let latest = now.checked_add(context.clock.until(deadline));
    let started = match latest {
        Some(latest) => target.start_before(request, latest).await,
        // Further away than this clock can count.
        None => target.start(request).await,
    };
    let error = match started {
        Ok(running) => {
            let begun = boot_millis();
            crash::at(crash::STARTED);
            let came = follow(context, target, running, attempt, Some(handler), cancel).await;
            return Ok(came.begun(begun));
        }
        Err(TargetError::NotRunning { .. } | TargetError::Restarted { .. }) => {
            return Ok(Came::Refused(restarted()));
        }
        Err(TargetError::TooLate { .. }) => return Ok(Came::Refused(Verdict::Expired)),
        Err(error @ TargetError::Unsupported { .. }) => {
            return Ok(Came::Refused(Verdict::Runtime {
                message: error.to_string(),
            }));
        }
        Err(
            error @ (TargetError::Exists { .. }
            | TargetError::Lost { .. }
            | TargetError::Away { .. }
            | TargetError::Runtime { .. }),
        ) => error,
    };
    // Whether it was started is not known: the runtime's record decides.
    let message = causes(&error);
    warn!(%attempt, message, "a start went wrong; looking what came of it");
    let came = look(context, target, attempt, Some(handler), cancel).await;
    Ok(match came {
        Looked::Came(came) => came,
        Looked::NeverStarted { same_incarnation } if !same_incarnation => {
            Came::Refused(restarted())
        }
        Looked::NeverStarted { .. } if matches!(error, TargetError::Away { .. }) => {
            return Err(Away { message });
        }
        Looked::NeverStarted { .. } => Came::Refused(Verdict::Runtime { message }),
    })
}

/// Follows an attempt to its end.
pub(crate) async fn follow(
    context: &Context,
    target: &Arc<dyn Target>,
    running: Box<dyn Running>,
    attempt: &AttemptId,
    handler: Option<&Handler>,
    cancel: CancellationToken,
) -> Came {
    match wait(running, handler, cancel.clone()).await {
        Ok(report) => {
            Came::ended(settled(context, &target.incarnation().id, report, handler).await)
        }
        Err(TargetError::Lost { .. }) => {
            given_up(target, runs(context, &target.incarnation().id).await)
        }
        Err(error) => {
            warn!(%attempt, message = causes(&error), "an attempt was lost sight of; looking for it");
            match look(context, target, attempt, handler, cancel).await {
                Looked::Came(came) => came,
                Looked::NeverStarted { same_incarnation } => Came::Lost { same_incarnation },
            }
        }
    }
}

/// The runtime keeps the timeout; this is only for a runtime that does not answer.
async fn wait(
    running: Box<dyn Running>,
    handler: Option<&Handler>,
    cancel: CancellationToken,
) -> Result<Report, TargetError> {
    let resumed = belay_action::resume(running, cancel);
    match handler.and_then(|handler| handler.timeout.checked_add(OVERDUE)) {
        None => resumed.await,
        Some(limit) => tokio::time::timeout(limit, resumed)
            .await
            .unwrap_or_else(|_| {
                Err(TargetError::Runtime {
                    what: "tell the outcome of an attempt".to_owned(),
                    source: format!("no answer {} s after its start", limit.as_secs()).into(),
                })
            }),
    }
}

/// What a search came to.
enum Looked {
    Came(Came),
    NeverStarted { same_incarnation: bool },
}

/// Looks for an attempt until its end is known, or it is known to have none.
async fn look(
    context: &Context,
    target: &Arc<dyn Target>,
    attempt: &AttemptId,
    handler: Option<&Handler>,
    cancel: CancellationToken,
) -> Looked {
    let incarnation = target.incarnation();
    let id = &incarnation.id;
    let mut pause = FIRST_PAUSE;
    loop {
        let sight = find(context, incarnation, attempt, handler, true).await;
        let same_incarnation = sight.same_incarnation;
        match (sight.trace, sight.running) {
            (Trace::Ended(outcome), _) => return Looked::Came(Came::ended(outcome)),
            (Trace::NeverStarted, _) => return Looked::NeverStarted { same_incarnation },
            (Trace::Lost, _) | (Trace::Running, None) => {
                return Looked::Came(Came::Lost { same_incarnation });
            }
            (Trace::Running, Some(running)) => match wait(running, handler, cancel.clone()).await {
                Ok(report) => {
                    return Looked::Came(Came::ended(settled(context, id, report, handler).await));
                }
                Err(TargetError::Lost { .. }) => {
                    return Looked::Came(given_up(target, runs(context, id).await));
                }
                Err(error) => warn!(%attempt, message = causes(&error), "lost sight of again"),
            },
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn send(
    context: &Context,
    target: &Arc<dyn Target>,
    signal: belay_api::signal::Signal,
    timeout: Duration,
    deadline: ServerMillis,
) -> Result<Came, Away> {
    if !target.capabilities().signal {
        let message = format!(
            "signals cannot be sent over {}: that needs Belay's agent on the pod's node",
            context.runtime.name()
        );
        return Ok(Came::Refused(Verdict::Runtime { message }));
    }
    // Read before sending: afterwards the process may be gone.
    let handled = match target.disposition(signal).await {
        Ok(disposition) => Some(disposition == Disposition::Handled),
        Err(TargetError::NotRunning { .. } | TargetError::Restarted { .. }) => {
            return Ok(Came::Refused(restarted()));
        }
        Err(error) => {
            debug!(%error, "cannot tell whether the signal is handled");
            None
        }
    };
    if context.clock.until(deadline).is_zero() {
        return Ok(Came::Refused(Verdict::Expired));
    }
    let (started, begun) = (wall_millis(), boot_millis());
    let verdict = match tokio::time::timeout(timeout, target.signal(signal)).await {
        Ok(Ok(())) => Verdict::Succeeded,
        Ok(Err(TargetError::NotRunning { .. } | TargetError::Restarted { .. })) => {
            return Ok(Came::Refused(restarted()));
        }
        // Sent or not: a signal may come twice, and must not be lost.
        Ok(Err(error @ TargetError::Away { .. })) => {
            return Err(Away {
                message: causes(&error),
            });
        }
        Ok(Err(error)) => Verdict::Runtime {
            message: causes(&error),
        },
        Err(_) => Verdict::Unconfirmed {
            seconds: timeout.as_secs(),
        },
    };
    crash::at(crash::STARTED);
    let outcome = Outcome {
        verdict,
        started: Some(started),
        finished: wall_millis(),
        output: String::new(),
        signal_handled: handled,
    };
    Ok(Came::ended(outcome).begun(begun))
}

/// An attempt that is gone without a trace. Where attempts can be looked up the machine decides
/// whether it runs again; where they cannot, nobody could tell a second run from the first.
fn given_up(target: &Arc<dyn Target>, same_incarnation: bool) -> Came {
    if target.capabilities().find_attempts {
        Came::Lost { same_incarnation }
    } else {
        Came::ended(never_again(same_incarnation))
    }
}

/// The end of an attempt that may have run and is never repeated.
fn never_again(same_incarnation: bool) -> Outcome {
    let verdict = if same_incarnation {
        Verdict::Interrupted
    } else {
        Verdict::ContainerRestarted { may_have_run: true }
    };
    Outcome::unstarted(verdict, wall_millis())
}

/// The machine knows whether an earlier attempt may have run.
fn restarted() -> Verdict {
    Verdict::ContainerRestarted {
        may_have_run: false,
    }
}

/// How long to wait for the end of a container whose exec was killed, to learn whether that is why.
const TAKEN_ALONG: Duration = Duration::from_millis(500);
const SIGKILL: i32 = 9;

/// What a report comes to. A container that ends takes its execs with it: a handler that was killed
/// then has not failed by itself.
async fn settled(
    context: &Context,
    id: &ContainerId,
    report: Report,
    handler: Option<&Handler>,
) -> Outcome {
    let killed = report.outcome == belay_action::Outcome::Signaled { signal: SIGKILL };
    let taken_along = killed
        && match target(context, id).await {
            Some(target) => {
                // Nobody knows of an end for which nobody could wait.
                let ended = tokio::time::timeout(TAKEN_ALONG, target.wait()).await;
                matches!(ended, Ok(Ok(())))
            }
            None => true,
        };
    let mut outcome = outcome(report, handler);
    if let Verdict::TimedOut { seconds, .. } = outcome.verdict
        && let Some(target) = target(context, id).await
        && !target.capabilities().kills_tree
    {
        outcome.verdict = Verdict::LeftRunning { seconds };
    }
    if taken_along {
        outcome.verdict = Verdict::ContainerRestarted { may_have_run: true };
    }
    outcome
}

/// From the runtime's report to what is recorded.
fn outcome(report: Report, handler: Option<&Handler>) -> Outcome {
    use belay_action::Outcome as Came;
    let seconds = handler.map_or_else(
        || u64::try_from(report.finished.duration_since(report.started).as_secs()).unwrap_or(0),
        |handler| handler.timeout.as_secs(),
    );
    let verdict = match report.outcome {
        Came::Succeeded => Verdict::Succeeded,
        Came::Exited { code } => Verdict::Exited { code },
        Came::Signaled { signal } => Verdict::Signaled { signal },
        Came::TimedOut => Verdict::TimedOut {
            seconds,
            survivors: report.survivors,
        },
        Came::Cancelled => Verdict::Cancelled {
            survivors: report.survivors,
        },
        Came::StartFailed { message } => Verdict::StartFailed { message },
    };
    // What may not be shown is not kept either; without its handler nobody knows whether it may.
    let shown = handler.is_some_and(|handler| handler.output);
    Outcome {
        verdict,
        started: Some(report.started.as_millisecond()),
        finished: report.finished.as_millisecond(),
        output: if shown { report.output } else { String::new() },
        signal_handled: None,
    }
}

fn causes(error: &TargetError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
