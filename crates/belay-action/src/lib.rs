//! Runs one action against one target: deadline, probe, cancel, outcome.
//!
//! ```text
//!   agent ── run(target, action, attempt, timeout, cancel) ──> Report
//!                        │
//!                        v
//!                 port `Target`      one incarnation of one container, as a runtime offers it:
//!                                    start, find, signal, disposition, wait
//!                        ^
//!                        │
//!   agent ── probe::run(target, probe, attempt, course, cancel) ──> Probed
//! ```
//!
//! The engine has no tasks of its own: an action lives in the future of the one who asked for it,
//! and a started exec lives in the runtime, whether that future does or not. After a restart the
//! attempt is looked up with [`Target::find`] and taken up again with [`resume`].
//!
//! **Invariant:** a target is one incarnation. An action never reaches the container's successor.
//!
//! **Invariant:** the deadline of an exec is kept by the runtime, beginning with its process; the
//! engine's own clock is only a backstop against a runtime that does not answer.
//!
//! **Invariant:** after a cancel the outcome is still waited for, because only then everything the
//! action started is dead.

mod engine;
mod id;
mod outcome;
pub mod probe;
mod target;

pub use engine::{OVERDUE, resume, run};
pub use id::{AttemptId, ContainerId, IdError};
pub use outcome::{MAX_OUTPUT, Outcome, Report, output_text};
pub use target::{
    Capabilities, Disposition, ExecRequest, Found, Incarnation, Running, Target, TargetError,
};

use belay_api::signal::Signal;

/// What to do in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Run a command with the container's user, directory and environment.
    Exec { command: Vec<String> },
    /// Send a signal to the container's first process.
    Signal(Signal),
}
