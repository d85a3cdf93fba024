//! Carrying an action out.

use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use belay_api::signal::Signal;

use crate::{Action, AttemptId, ExecRequest, Outcome, Report, Running, Target, TargetError};

/// How long after its timeout, or after a cancel, an exec may stay without an outcome. A runtime
/// needs a few seconds to kill a stubborn tree; one that needs more will not answer at all.
pub const OVERDUE: Duration = Duration::from_secs(30);

/// Runs an action once, and returns how it ended.
///
/// `timeout` begins with the process. `cancel` before the start means that nothing is started;
/// later it kills what was.
///
/// # Errors
///
/// When the action could not be carried out or its outcome not be learnt. An action that was
/// carried out and failed is a [`Report`].
pub async fn run(
    target: &dyn Target,
    action: &Action,
    attempt: &AttemptId,
    timeout: Duration,
    cancel: CancellationToken,
) -> Result<Report, TargetError> {
    if cancel.is_cancelled() {
        let now = Timestamp::now();
        return Ok(Report::new(Outcome::Cancelled, now, now));
    }
    match action {
        Action::Exec { command } => {
            let request = ExecRequest {
                attempt: attempt.clone(),
                command: command.clone(),
                timeout,
            };
            // Not raced against the cancel: a start that is given up could still happen.
            let running = target.start(&request).await?;
            debug!(%attempt, container = %target.incarnation().id, "exec started");
            let started = Timestamp::now();
            // A huge timeout is no timeout of the engine's.
            let Some(limit) = timeout.checked_add(OVERDUE) else {
                return resume(running, cancel).await;
            };
            let mut running = running;
            tokio::select! {
                biased;
                result = running.wait() => return result,
                () = cancel.cancelled() => return kill(running).await,
                () = tokio::time::sleep(limit) => {}
            }
            // The runtime should have ended it long ago.
            let killed = kill(running).await;
            debug!(%attempt, ?killed, "killed an overdue exec");
            match killed {
                Ok(report) => Ok(Report {
                    outcome: Outcome::TimedOut,
                    ..report
                }),
                // Nothing of a lost attempt is left alive.
                Err(TargetError::Lost { .. }) => {
                    Ok(Report::new(Outcome::TimedOut, started, Timestamp::now()))
                }
                Err(error) => Err(error),
            }
        }
        Action::Signal(signal) => send(target, *signal, timeout).await,
    }
}

/// Waits for an attempt that is under way, and kills it on `cancel`.
pub async fn resume(
    mut running: Box<dyn Running>,
    cancel: CancellationToken,
) -> Result<Report, TargetError> {
    tokio::select! {
        // An outcome that is there beats a cancel that came too late.
        biased;
        result = running.wait() => return result,
        () = cancel.cancelled() => {}
    }
    kill(running).await
}

async fn kill(mut running: Box<dyn Running>) -> Result<Report, TargetError> {
    running.cancel().await;
    tokio::time::timeout(OVERDUE, running.wait())
        .await
        .unwrap_or_else(|_| {
            Err(TargetError::Runtime {
                what: "kill a cancelled exec".to_owned(),
                source: format!("no outcome after {} s", OVERDUE.as_secs()).into(),
            })
        })
}

async fn send(
    target: &dyn Target,
    signal: Signal,
    timeout: Duration,
) -> Result<Report, TargetError> {
    if !target.capabilities().signal {
        return Err(TargetError::Unsupported {
            what: "send signals",
        });
    }
    let started = Timestamp::now();
    let outcome = match tokio::time::timeout(timeout, target.signal(signal)).await {
        Ok(sent) => sent.map(|()| Outcome::Succeeded)?,
        Err(_) => Outcome::TimedOut,
    };
    Ok(Report::new(outcome, started, Timestamp::now()))
}
