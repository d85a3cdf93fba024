//! What is to be stopped, and why.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::record::millis;

/// Why a pod or a container ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Cause {
    /// Somebody deleted the pod.
    PodDeleted,
    /// The pod disappeared from the API without having been stopped.
    PodVanished,
    /// The pod's own containers have ended for good, and its sidecars have nobody left to serve.
    PodCompleted,
    /// The pod ran longer than its `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// A container failed its liveness probe.
    LivenessProbe {
        /// Whether the restart policy brings it back.
        restarts: bool,
    },
    /// A container failed its startup probe.
    StartupProbe {
        /// Whether the restart policy brings it back.
        restarts: bool,
    },
    /// A container's `postStart` hook failed.
    PostStartFailed,
    /// What the containers of the pod share is gone, and is made anew.
    SandboxChanged,
    /// The pod's spec names another image for a container.
    DefinitionChanged,
}

impl Cause {
    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::PodDeleted => "PodDeleted",
            Cause::PodVanished => "PodVanished",
            Cause::PodCompleted => "PodCompleted",
            Cause::DeadlineExceeded => "DeadlineExceeded",
            Cause::LivenessProbe { .. } => "LivenessProbe",
            Cause::StartupProbe { .. } => "StartupProbe",
            Cause::PostStartFailed => "PostStartFailed",
            Cause::SandboxChanged => "SandboxChanged",
            Cause::DefinitionChanged => "DefinitionChanged",
        }
    }

    /// Whether what is ended for it is to come back, however it ends: neither its exit code nor the
    /// restart policy has a say.
    pub fn restarts(self) -> bool {
        match self {
            Cause::LivenessProbe { restarts } | Cause::StartupProbe { restarts } => restarts,
            Cause::DefinitionChanged => true,
            Cause::PodDeleted
            | Cause::PodVanished
            | Cause::PodCompleted
            | Cause::DeadlineExceeded
            | Cause::PostStartFailed
            | Cause::SandboxChanged => false,
        }
    }
}

/// What a container is to its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// An init container that runs to its end.
    Init,
    /// An init container that runs as long as the pod does, and serves what is declared after it.
    Sidecar,
    /// One of the pod's own.
    Main,
}

/// A container's `preStop`. What exactly is run or asked is the driver's to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Hook {
    /// A command inside the container. The runtime remembers it by its attempt.
    Exec,
    /// An HTTP request; it ends with the agent that made it.
    HttpGet,
    /// A connection; it ends with the agent that made it.
    TcpSocket,
    /// A pause, which the machine itself keeps.
    Sleep {
        /// How long.
        #[serde(with = "millis", rename = "sleepMillis")]
        time: Duration,
    },
}

/// One container that is to end.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Its name in the pod.
    pub name: String,
    /// The incarnation. Everything that is done is done to this one.
    pub id: String,
    /// What it is to its pod.
    pub role: Role,
    /// Its `preStop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<Hook>,
    /// Its stop signal, resolved: pod spec, else image, else SIGTERM.
    pub signal: String,
}

impl Container {
    /// The ID of its hook's only attempt. It follows from the incarnation, so whoever knows the
    /// container can ask the runtime for it, with or without a record.
    pub fn hook_attempt(&self) -> String {
        format!("{}.prestop", self.id)
    }
}

/// Everything that is known when a termination begins.
///
/// The termination of a single container is a plan with one container: nothing serves anything, and
/// all other rules are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The pod.
    pub pod_uid: String,
    /// Its namespace and name, for people.
    pub pod_name: (String, String),
    /// Identity of this boot: times mean nothing under another.
    pub boot_id: String,
    /// Why.
    pub cause: Cause,
    /// The effective grace ([`super::Sources::effective`]).
    pub grace: Duration,
    /// Whether the gate for `sleep` is on.
    pub sleep_enabled: bool,
    /// The containers in the order of the pod's spec, init containers first. Those that never
    /// started may be left out.
    pub containers: Vec<Container>,
    /// Those of them that run, by incarnation.
    pub running: BTreeSet<String>,
    /// What earlier terminations of this pod's containers have counted.
    pub counted: BTreeSet<Early>,
}

/// Why a sleep ended before its time: the label `reason` of `sleep_action_terminated_early_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Early {
    /// The container was gone.
    ContainerExited,
    /// The grace was over. The API allows no sleep longer than the pod's own grace, so a delete
    /// request or a probe has shortened it, before the sleep began or while it lasted.
    GraceShortened,
}

impl Early {
    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Early::ContainerExited => "container_exited",
            Early::GraceShortened => "grace_shortened",
        }
    }
}
