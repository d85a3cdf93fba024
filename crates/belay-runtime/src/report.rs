//! From the record of an exec's end to the report of its attempt.

use async_trait::async_trait;
use belay_action::{Outcome, Report, Running, TargetError, output_text};
use belay_shim::clock::Wall;
use belay_shim::instance::{Ending, Exit, StartError};
use jiff::Timestamp;

use crate::RuntimeError;
use crate::cri::CallError;

/// An attempt that was over as soon as it began.
pub(crate) struct Ended(pub(crate) Report);

#[async_trait]
impl Running for Ended {
    async fn wait(&mut self) -> Result<Report, TargetError> {
        Ok(self.0.clone())
    }

    async fn cancel(&mut self) {}
}

/// The report of an exec's end; `None` when nobody saw it.
pub(crate) fn report(exit: &Exit) -> Option<Report> {
    let outcome = match exit.ending {
        Ending::Exited(0) => Outcome::Succeeded,
        Ending::Exited(code) => Outcome::Exited { code },
        Ending::Signaled(signal) => Outcome::Signaled { signal },
        Ending::TimedOut => Outcome::TimedOut,
        Ending::Cancelled => Outcome::Cancelled,
        Ending::Unknown => return None,
    };
    Some(Report {
        outcome,
        output: output_text(&exit.output, exit.output_cut),
        survivors: exit.survivors.clone(),
        started: timestamp(exit.started),
        finished: timestamp(exit.finished),
    })
}

pub(crate) fn start_report(error: &StartError) -> Report {
    let at = timestamp(error.at);
    Report::new(
        Outcome::StartFailed {
            message: error.message.clone(),
        },
        at,
        at,
    )
}

pub(crate) fn failed(
    what: &'static str,
) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> TargetError {
    move |source| {
        let what = what.to_owned();
        if is_away(&*source) {
            TargetError::Away { what, source }
        } else {
            TargetError::Runtime { what, source }
        }
    }
}

fn is_away(error: &(dyn std::error::Error + 'static)) -> bool {
    let call = error.downcast_ref::<CallError>();
    let runtime = error.downcast_ref::<RuntimeError>();
    matches!(
        call,
        Some(CallError::Away { .. } | CallError::Silent { .. })
    ) || matches!(runtime, Some(RuntimeError::Away { .. }))
}

pub(crate) fn timestamp(wall: Wall) -> Timestamp {
    // Every number of nanoseconds in 64 bits is within the years that a timestamp can have.
    Timestamp::from_nanosecond(i128::from(wall.0)).unwrap_or(Timestamp::UNIX_EPOCH)
}
