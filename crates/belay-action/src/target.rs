//! The port: what a runtime offers for one incarnation of one container.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use belay_api::signal::Signal;
use serde::{Deserialize, Serialize};

use crate::{AttemptId, ContainerId, Report};

/// One incarnation of one container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incarnation {
    pub pod_uid: String,
    pub container: String,
    pub id: ContainerId,
}

/// What a runtime can do for a target; what it cannot, it must not seem to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Signals reach the first process.
    pub signal: bool,
    /// An attempt is found again after a restart of the agent.
    pub find_attempts: bool,
    /// A timeout or cancel kills everything that an exec started.
    pub kills_tree: bool,
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    pub attempt: AttemptId,
    pub command: Vec<String>,
    /// Counted from the start of the process.
    pub timeout: Duration,
}

/// What the first process does on a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Disposition {
    Handled,
    Ignored,
    Default,
}

/// What a runtime knows of an attempt.
pub enum Found {
    /// It is certain that nothing of it has run, and that nothing will.
    NeverStarted,
    Running(Box<dyn Running>),
    Ended(Report),
    /// It was started, and how it ended nobody knows. What it left is dead.
    Lost,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::NeverStarted => f.write_str("NeverStarted"),
            Found::Running(_) => f.write_str("Running"),
            Found::Ended(report) => f.debug_tuple("Ended").field(report).finish(),
            Found::Lost => f.write_str("Lost"),
        }
    }
}

/// Why an action could not be carried out, or its outcome not be learnt.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The container has ended, or has not begun.
    #[error("container {container} is not running")]
    NotRunning { container: ContainerId },
    /// Another incarnation has taken the container's place.
    #[error("container {container} was restarted")]
    Restarted { container: ContainerId },
    /// An attempt of that ID exists already, so this one was not started.
    #[error("attempt {attempt} was started before")]
    Exists { attempt: AttemptId },
    #[error("the runtime cannot {what}")]
    Unsupported { what: &'static str },
    /// Its time to be started was over, so it was not.
    #[error("attempt {attempt} came too late and was not started")]
    TooLate { attempt: AttemptId },
    /// The attempt was started, and is gone without a trace.
    #[error("attempt {attempt} was started, and its outcome is lost")]
    Lost { attempt: AttemptId },
    /// The runtime failed to do it. Whether it was done is not known.
    #[error("the runtime failed to {what}")]
    Runtime {
        what: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// One incarnation of one container. All methods may be called concurrently.
#[async_trait]
pub trait Target: Send + Sync {
    fn incarnation(&self) -> &Incarnation;

    fn capabilities(&self) -> Capabilities;

    /// Starts a command. When this returns, its process runs or has run; a command that could not
    /// be started is running all the same until [`Running::wait`] tells
    /// [`Outcome::StartFailed`](crate::Outcome::StartFailed).
    ///
    /// Not cancel-safe: a start that is given up may still happen, and is found by its attempt.
    async fn start(&self, request: &ExecRequest) -> Result<Box<dyn Running>, TargetError>;

    /// As [`Target::start`], if that can be before `latest`; [`TargetError::TooLate`] when nothing
    /// has run because it cannot. A runtime in which a start may have to wait looks at the time when
    /// the wait is over.
    async fn start_before(
        &self,
        request: &ExecRequest,
        latest: Instant,
    ) -> Result<Box<dyn Running>, TargetError> {
        if Instant::now() >= latest {
            return Err(TargetError::TooLate {
                attempt: request.attempt.clone(),
            });
        }
        self.start(request).await
    }

    /// Looks an attempt up, also one from before a restart of the agent.
    async fn find(&self, attempt: &AttemptId) -> Result<Found, TargetError>;

    /// Drops the runtime's record of a finished attempt. One that runs is left alone.
    async fn forget(&self, attempt: &AttemptId);

    /// Sends a signal to the first process of this incarnation, and to no other.
    async fn signal(&self, signal: Signal) -> Result<(), TargetError>;

    /// What the first process does on that signal now.
    async fn disposition(&self, signal: Signal) -> Result<Disposition, TargetError>;

    /// Returns when the first process has ended.
    async fn wait(&self) -> Result<(), TargetError>;
}

/// An attempt under way. Dropping it changes nothing for the attempt.
#[async_trait]
pub trait Running: Send {
    /// The end of the attempt. Cancel-safe, and may be called again after it returned.
    async fn wait(&mut self) -> Result<Report, TargetError>;

    /// Asks for the attempt to be killed with all it started; [`Running::wait`] then tells when
    /// that is done. An attempt that has ended meanwhile keeps its outcome.
    async fn cancel(&mut self);
}
