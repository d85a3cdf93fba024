//! What is written down: where each container stands, and how it came there.
//!
//! The record is the machine's whole state, so what the journal holds is what a restarted agent
//! goes on with. Beside the present stage it keeps the steps taken so far, for people.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cause, Container, Early, HookResult};
use crate::clock::LocalMillis;

/// A termination, of a pod or of one container of it. Times are milliseconds since boot.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The pod.
    pub pod_uid: String,
    /// Its namespace and name: an agent that comes back before its server tells events about it.
    #[serde(default)]
    pub pod_name: (String, String),
    /// The boot that the times belong to.
    pub boot_id: String,
    /// Why.
    pub cause: Cause,
    /// When it began.
    pub began: LocalMillis,
    /// The containers, in the order of the pod's spec.
    pub legs: Vec<Leg>,
    /// What has been counted of this pod.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub counted: BTreeSet<Early>,
}

/// One container's part.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leg {
    /// The container.
    pub container: Container,
    /// When its own end began: earlier than the pod's if it was being stopped already.
    pub began: LocalMillis,
    /// How long it may take, from then on.
    #[serde(with = "millis", rename = "graceMillis")]
    pub grace: Duration,
    /// Where it is.
    pub stage: Stage,
    /// Whether a hook was cancelled that nobody has reported dead yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stray_hook: bool,
    /// What was done so far.
    pub steps: Vec<Step>,
}

/// Where a container is on its way out.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// Its `preStop` is under way.
    Hook {
        /// Since when.
        since: LocalMillis,
        /// What is waited for.
        doing: Doing,
    },
    /// A sidecar that waits for the containers it serves.
    Turn {
        /// Since when.
        since: LocalMillis,
    },
    /// The stop signal is due; it has what is left of its grace.
    Signalled {
        /// When the signal was first due.
        asked: LocalMillis,
        /// The signal's way.
        sending: Sending,
    },
    /// It is being killed.
    Killing {
        /// Since when.
        since: LocalMillis,
        /// Whether its first process is known to be gone.
        exited: bool,
    },
    /// It has ended.
    Over {
        /// What ended it.
        end: End,
    },
}

/// What a hook is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Doing {
    /// Nothing runs; the time passes.
    Sleeping {
        /// Until when, if the grace lasts.
        until: LocalMillis,
    },
    /// It was started, or is about to be.
    Running,
    /// The runtime is asked what became of it.
    Finding,
}

/// A stop signal's way to the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Sending {
    /// On its way.
    Asked {
        /// How often it failed before.
        failures: u32,
    },
    /// The runtime would not.
    Failed {
        /// How often.
        failures: u32,
        /// When to try again.
        retry: LocalMillis,
    },
    /// Delivered. Never sent again.
    Sent,
}

/// What ended a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum End {
    /// It did not run when it was to be stopped.
    NotRunning,
    /// It ended before any stop signal.
    Itself,
    /// It ended after the stop signal.
    StopSignal,
    /// SIGKILL.
    Killed {
        /// What could not be killed, as "pid (name)".
        survivors: Vec<String>,
    },
    /// The machine was started anew, and nothing runs any more of what ran before.
    Reboot,
}

/// Something that was done, and when.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// When, in milliseconds since boot.
    pub at: LocalMillis,
    /// What.
    #[serde(flatten)]
    pub did: Did,
}

/// What can be done on the way out. Lengths are milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "did", rename_all = "camelCase")]
pub enum Did {
    /// The end began, or a pod's end took over that of its container.
    Begin {
        /// Why.
        cause: Cause,
        /// The grace, from the container's own beginning.
        #[serde(with = "millis", rename = "graceMillis")]
        grace: Duration,
    },
    /// The grace became shorter.
    ShrinkGrace {
        /// The grace, from the container's own beginning.
        #[serde(with = "millis", rename = "graceMillis")]
        grace: Duration,
    },
    /// A hook was not run.
    SkipHook {
        /// Why.
        why: Skipped,
    },
    /// The hook was started.
    StartHook,
    /// The hook came to its end.
    EndHook {
        /// How.
        how: HookEnd,
        /// How long it had.
        #[serde(with = "millis", rename = "tookMillis")]
        took: Duration,
    },
    /// A sidecar has waited.
    Wait {
        /// Whether the containers it serves had ended; else its own grace was over.
        served: bool,
        /// How long.
        #[serde(with = "millis", rename = "tookMillis")]
        took: Duration,
    },
    /// The stop signal was due.
    AskSignal {
        /// Its name.
        signal: String,
    },
    /// The runtime has delivered it.
    SendSignal,
    /// The runtime would not deliver it, for the first time.
    FailSignal {
        /// Why.
        message: String,
    },
    /// SIGKILL was due.
    Kill {
        /// Why.
        why: KillReason,
    },
    /// The container has ended.
    End {
        /// What ended it.
        end: End,
        /// How long its end took in all.
        #[serde(with = "millis", rename = "tookMillis")]
        took: Duration,
    },
    /// Another process of the agent has taken over.
    Resume,
}

/// Why a hook was not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Skipped {
    /// There is no grace.
    NoGrace,
    /// It is a `sleep`, and its gate is off.
    GateOff,
}

/// How a hook came to its end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HookEnd {
    /// By itself, or because its own supervisor found its time over.
    Ended(HookResult),
    /// Cancelled, because the container had ended.
    ContainerExited,
    /// Cancelled, because the grace was over.
    GraceOver,
    /// An earlier process of the agent started it, and nobody knows what became of it.
    Lost,
}

/// Why SIGKILL was due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KillReason {
    /// It had its stop signal and its time.
    GraceOver,
    /// The grace is 0: no hook, no stop signal.
    NoGrace,
}

/// Lengths as whole milliseconds.
pub(super) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(in crate::termination) fn serialize<S: Serializer>(
        length: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(length.as_millis()).unwrap_or(u64::MAX))
    }

    pub(in crate::termination) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}
