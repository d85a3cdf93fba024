//! The port for commands with somebody at the other end: `kubectl exec`.
//!
//! ```text
//!   Sessions::open ──> Session   resize, close_stdin, ended, kill
//!                  └─> Streams   stdin, stdout, stderr: pipes or one terminal
//! ```
//!
//! Unlike an attempt, a session leaves no record: whoever opened it is told its end or kills it.
//!
//! **Invariant:** a session is killed with all it started when it is dropped while its command runs,
//! and when the agent dies: at once where a shim of ours looks after it, else when the next agent
//! begins. What a command leaves running when it ends by itself is its container's.

mod pipes;
mod terminal;

use async_trait::async_trait;
use belay_action::{AttemptId, ContainerId};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::RuntimeError;

pub(crate) use pipes::Pipes;
pub(crate) use terminal::Terminal;

/// What a terminal shows at once. Zero means that nobody knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    pub columns: u16,
    pub rows: u16,
}

/// A command, and what it is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRequest {
    /// In the environment of everything that it starts.
    pub id: AttemptId,
    pub command: Vec<String>,
    /// Whether there is anything to read.
    pub stdin: bool,
    /// Runs it on a terminal of that size instead of pipes.
    pub terminal: Option<Size>,
}

/// Our ends of what a command reads and writes.
#[derive(Debug)]
pub struct Streams {
    /// Dropping it is the end of the input, once [`Session::close_stdin`] was called as well. A
    /// write may wait for ever when the command has ended.
    pub stdin: Option<pipe::Sender>,
    /// Ends, with nothing or with an error, when nobody has the other end any more.
    pub stdout: pipe::Receiver,
    /// On a terminal all output is one stream.
    pub stderr: Option<pipe::Receiver>,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    Exited(i32),
    Signaled(i32),
    /// It was killed as asked; what would not die is named as `pid (name)`.
    Killed {
        survivors: Vec<String>,
    },
    /// Nobody knows how.
    Lost {
        problem: String,
    },
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("container {container} is not running")]
    NotRunning { container: ContainerId },
    #[error("{message}")]
    Command { message: String },
    #[error("this runtime cannot {what}")]
    Unsupported { what: &'static str },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Runs commands with somebody at the other end.
#[async_trait]
pub trait Sessions: Send + Sync {
    /// Starts a command in a container that runs; when this returns it has been exec'ed.
    async fn open(
        &self,
        container: &ContainerId,
        request: &SessionRequest,
    ) -> Result<(Session, Streams), SessionError>;
}

/// What can be done to a session that is not done through its streams.
#[async_trait]
pub(crate) trait Knobs: Send + Sync {
    async fn resize(&self, size: Size) -> Result<(), RuntimeError>;
    async fn close_stdin(&self);
}

/// A command under way. Dropping it kills it.
pub struct Session {
    knobs: Box<dyn Knobs>,
    kill: watch::Sender<bool>,
    end: watch::Receiver<Option<SessionEnd>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("end", &*self.end.borrow())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Changes the size of the terminal, if there is one.
    ///
    /// # Errors
    ///
    /// When the runtime does not do it; the session goes on.
    pub async fn resize(&self, size: Size) -> Result<(), RuntimeError> {
        self.knobs.resize(size).await
    }

    /// Says that nothing more is written to the standard input, and returns when that was heard. A
    /// terminal's has no end: there somebody types ^D.
    pub async fn close_stdin(&self) {
        tokio::select! {
            () = self.knobs.close_stdin() => {}
            _ = self.ended() => {}
        }
    }

    /// Waits until the command has ended. May be asked again.
    pub async fn ended(&self) -> SessionEnd {
        let mut end = self.end.clone();
        let ended = end.wait_for(Option::is_some).await;
        match ended.as_deref() {
            Ok(Some(end)) => end.clone(),
            Ok(None) | Err(_) => SessionEnd::Lost {
                problem: "the agent is ending".to_owned(),
            },
        }
    }

    /// Kills the command with all it started, and waits until that is done.
    pub async fn kill(&self) -> SessionEnd {
        self.kill.send_replace(true);
        self.ended().await
    }
}

/// The follower's side of a session.
pub(crate) struct Reins {
    kill: watch::Receiver<bool>,
    end: watch::Sender<Option<SessionEnd>>,
}

/// A session for whoever opened it, and what its follower needs.
pub(crate) fn reined(knobs: Box<dyn Knobs>) -> (Session, Reins) {
    let (kill, killed) = watch::channel(false);
    let (tell, end) = watch::channel(None);
    let reins = Reins {
        kill: killed,
        end: tell,
    };
    (Session { knobs, kill, end }, reins)
}

impl Reins {
    /// Returns when the session is to be killed: asked for, or dropped.
    pub(crate) async fn killed(&mut self) {
        // An error means that it was dropped.
        let _ = self.kill.wait_for(|kill| *kill).await;
    }

    /// Returns when the session was dropped.
    pub(crate) async fn dropped(&mut self) {
        while self.kill.changed().await.is_ok() {}
    }

    pub(crate) fn tell(&self, end: SessionEnd) {
        self.end.send_replace(Some(end));
    }
}
