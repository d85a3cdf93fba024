//! What goes into the machine and what comes out of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Early, Notice, Record};
use crate::clock::LocalMillis;

/// What a hook came to, told by whoever ran it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "camelCase")]
pub enum HookResult {
    /// It did what it should.
    Succeeded,
    /// It did not, or could not be started.
    Failed {
        /// Why. Not what the hook wrote, which may be a secret: events are read by many.
        message: String,
    },
    /// It was killed because it was cancelled or its deadline had passed.
    Killed {
        /// What could not be killed, as "pid (name)".
        survivors: Vec<String>,
    },
}

/// What the runtime knows of a hook that an earlier process may have started.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HookTrace {
    /// It provably was not started.
    NeverStarted,
    /// It runs; the driver holds on to it and reports its end.
    Running,
    /// It has ended.
    Ended(HookResult),
    /// It may have been started, and is gone without a trace.
    Lost,
}

/// What happened to one container.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum News {
    /// Its first process is gone. Told before the end of its hook if both are known, so that a hook
    /// that stops its container is not called a failure.
    Exited,
    /// Its hook has ended.
    HookEnded(HookResult),
    /// What the runtime knows of its hook: the answer to [`Effect::FindHook`], and told unasked
    /// with [`HookTrace::Lost`] if a running hook disappears.
    HookFound(HookTrace),
    /// The stop signal is delivered, or there was nobody left to take it.
    SignalSent,
    /// The stop signal may not have been delivered.
    SignalFailed {
        /// Why.
        message: String,
    },
    /// All that could be killed is dead.
    Killed {
        /// What could not be, as "pid (name)".
        survivors: Vec<String>,
    },
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// Something about one container.
    Of {
        /// Its name.
        container: String,
        /// What.
        news: News,
    },
    /// Somebody asked for another grace, counted from the beginning of the termination.
    GraceChanged {
        /// The grace; a longer one than the present changes nothing.
        grace: Duration,
    },
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order. Every effect that asks for an answer names the [`News`] that
/// bring it; each may come late, and none is waited for beyond the grace.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Make the journal say this; a later one replaces an earlier. Only [`Effect::RunHook`] waits
    /// for it.
    Journal(Record),
    /// Start the hook when the journal has this batch's record on disk or has refused it:
    /// `HookEnded`, or `HookFound` with `Lost`. One that already runs under this attempt is
    /// followed.
    RunHook {
        /// The container.
        container: String,
        /// The attempt.
        attempt: String,
        /// When it is cancelled at the latest, for a supervisor that outlives the agent.
        deadline: LocalMillis,
    },
    /// Ask the runtime what became of a hook: `HookFound`.
    FindHook {
        /// The container.
        container: String,
        /// The attempt.
        attempt: String,
    },
    /// Kill the hook with all that it started, or make sure that it never starts: `HookEnded`.
    CancelHook {
        /// The container.
        container: String,
        /// The attempt.
        attempt: String,
    },
    /// Send the stop signal: `SignalSent` or `SignalFailed`.
    Signal {
        /// The container.
        container: String,
        /// The signal's name.
        signal: String,
    },
    /// Kill everything in the container, again and again until the runtime has done it: `Killed`.
    Kill {
        /// The container.
        container: String,
    },
    /// An event about the container.
    Tell {
        /// The container.
        container: String,
        /// What to say.
        notice: Notice,
    },
    /// Count in `sleep_action_terminated_early_total`.
    SleepEndedEarly {
        /// The label.
        reason: Early,
    },
    /// Nothing is left to do; the record is final.
    Done,
}
