//! What came of a notification.

// `KubeSchema` repeats the struct inside a function, where `pub` reaches nobody.
#![allow(unreachable_pub)]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reasons;
use crate::text::cut;

/// The current state of a PodNotification.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("oldSelf.state == 'New' || self.state == oldSelf.state").message("a final state may not change"),
    validation = Rule::new("oldSelf.state == 'New' || (has(self.startTime) == has(oldSelf.startTime) && (!has(self.startTime) || self.startTime == oldSelf.startTime))").message("startTime may not change once the notification is final"),
    validation = Rule::new("oldSelf.state == 'New' || (has(self.completeTime) == has(oldSelf.completeTime) && (!has(self.completeTime) || self.completeTime == oldSelf.completeTime))").message("completeTime may not change once the notification is final"),
    validation = Rule::new("oldSelf.state == 'New' || (has(self.containers) == has(oldSelf.containers) && (!has(self.containers) || self.containers == oldSelf.containers))").message("containers may not change once the notification is final"),
    validation = Rule::new("oldSelf.state == 'New' || (has(self.error) == has(oldSelf.error) && (!has(self.error) || self.error == oldSelf.error))").message("error may not change once the notification is final"),
    validation = Rule::new("!has(oldSelf.nodeName) || (has(self.nodeName) && self.nodeName == oldSelf.nodeName)").message("nodeName may be set once"),
    validation = Rule::new("!has(oldSelf.podUID) || (has(self.podUID) && self.podUID == oldSelf.podUID)").message("podUID may be set once"),
    validation = Rule::new("!has(oldSelf.executor) || (has(self.executor) && self.executor == oldSelf.executor)").message("executor may be set once"),
    validation = Rule::new("(self.state == 'New') == !has(self.completeTime)").message("completeTime is set exactly when the state is final"),
    validation = Rule::new("self.state != 'Failed' || has(self.error) || (has(self.containers) && self.containers.exists(c, has(c.error)))").message("a failed notification says why: set error, or an error of a container"),
    validation = Rule::new("self.state != 'Succeeded' || !has(self.containers) || self.containers.all(c, has(c.succeeded) && c.succeeded)").message("every container has succeeded when the state is Succeeded")
)]
pub struct PodNotificationStatus {
    /// What happened in each container that declares the notifier.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub containers: Vec<ContainerNotificationStatus>,

    /// When the notification was first acknowledged by its executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the notification ended, well or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,

    /// `New` until every handler has ended, then `Succeeded` if all succeeded, else `Failed`.
    #[serde(default)]
    pub state: State,

    /// Why the notification failed, where the reason is not one container's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<PodNotificationError>,

    /// Observations about the notification: `NotifierFound`, `SignalHandled` and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,

    /// The node the pod is on. Set once; its agent acts on the notification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node_name: Option<String>,

    /// The pod that is notified: a later pod of the same name is another one. Set once.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub pod_uid: Option<String>,

    /// Who claimed the notification. Nobody else acts on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub executor: Option<String>,
}

/// What a notification comes to before anybody acts on it.
impl PodNotificationStatus {
    /// It is for the agent of this node, and for this pod.
    #[must_use]
    pub fn assigned(node: impl Into<String>, pod_uid: impl Into<String>) -> Self {
        Self {
            node_name: Some(node.into()),
            pod_uid: Some(pod_uid.into()),
            ..Self::default()
        }
    }

    /// It failed at once; nothing was run.
    #[must_use]
    pub fn refused(type_: ErrorType, message: String, now: Timestamp) -> Self {
        Self {
            state: State::Failed,
            start_time: Some(Time(now)),
            complete_time: Some(Time(now)),
            error: Some(PodNotificationError {
                type_,
                message,
                timestamp: Time(now),
            }),
            ..Self::default()
        }
    }

    /// It succeeded at once: no container of the pod declares the notifier.
    #[must_use]
    pub fn nothing_declared(message: String, now: Timestamp) -> Self {
        Self {
            state: State::Succeeded,
            start_time: Some(Time(now)),
            complete_time: Some(Time(now)),
            conditions: vec![Condition {
                type_: reasons::NOTIFIER_FOUND.to_owned(),
                status: "False".to_owned(),
                reason: reasons::NOT_DECLARED.to_owned(),
                message,
                last_transition_time: Time(now),
                observed_generation: None,
            }],
            ..Self::default()
        }
    }
}

/// The stage a notification is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum State {
    #[default]
    New,
    Succeeded,
    Failed,
}

impl State {
    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_final(self) -> bool {
        self != Self::New
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What happened in one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerNotificationStatus {
    /// Name of the container.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,

    /// When the handler was first started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the handler ended, well or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,

    /// Whether the handler succeeded; not set while that is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<bool>,

    /// Why the handler failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<PodNotificationError>,

    /// The incarnation of the container that was acted on.
    #[serde(
        default,
        rename = "containerID",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 1024))]
    pub container_id: Option<String>,

    /// Exit code of an exec handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// The signal that was sent, or that ended an exec handler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub signal: Option<String>,

    /// The last 4 KiB of the handler's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub output: Option<String>,

    /// How often the handler was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,
}

/// A reason for failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodNotificationError {
    /// Type of the error.
    #[serde(rename = "type")]
    pub type_: ErrorType,

    /// Details for a human.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,

    /// When the error occurred.
    pub timestamp: Time,
}

impl PodNotificationError {
    /// Longest message of an error, in bytes. A status holds one for each container, and is to fit
    /// into what a server takes.
    pub const LONGEST_MESSAGE: usize = 1024;

    /// An error. Its message is cut to the longest.
    #[must_use]
    pub fn new(type_: ErrorType, message: impl Into<String>, timestamp: Time) -> Self {
        let mut error = Self {
            type_,
            message: message.into(),
            timestamp,
        };
        error.shorten(Self::LONGEST_MESSAGE);
        error
    }

    /// Cuts the message to at most so many bytes.
    pub fn shorten(&mut self, limit: usize) {
        cut(&mut self.message, limit);
    }
}

/// Ways in which a notification fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ErrorType {
    /// There is no such pod.
    PodNotFound,
    /// The handler did not end in time and was killed.
    HandlerTimeout,
    /// The handler ended with an error.
    HandlerFailed,
    /// The container, or the pod, does not run.
    ContainerNotRunning,
    /// The container was replaced by another incarnation.
    ContainerRestarted,
    /// The pod is being deleted.
    PodTerminating,
    /// The deadline passed before anybody started.
    Expired,
    /// The handler may have run, and nobody can tell how it ended.
    Interrupted,
    /// The notification was deleted while the handler ran.
    Cancelled,
    /// The container runtime failed.
    RuntimeError,
    /// The executor may not do this.
    Forbidden,
}

impl ErrorType {
    /// Every error type.
    pub const ALL: [Self; 11] = [
        Self::PodNotFound,
        Self::HandlerTimeout,
        Self::HandlerFailed,
        Self::ContainerNotRunning,
        Self::ContainerRestarted,
        Self::PodTerminating,
        Self::Expired,
        Self::Interrupted,
        Self::Cancelled,
        Self::RuntimeError,
        Self::Forbidden,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodNotFound => "PodNotFound",
            Self::HandlerTimeout => "HandlerTimeout",
            Self::HandlerFailed => "HandlerFailed",
            Self::ContainerNotRunning => "ContainerNotRunning",
            Self::ContainerRestarted => "ContainerRestarted",
            Self::PodTerminating => "PodTerminating",
            Self::Expired => "Expired",
            Self::Interrupted => "Interrupted",
            Self::Cancelled => "Cancelled",
            Self::RuntimeError => "RuntimeError",
            Self::Forbidden => "Forbidden",
        }
    }
}

impl std::fmt::Display for ErrorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for ErrorType {
    type Err = UnknownErrorType;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|type_| type_.as_str() == name)
            .ok_or_else(|| UnknownErrorType {
                name: name.to_owned(),
            })
    }
}

/// A name that is not an error type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown error type {name:?}")]
pub struct UnknownErrorType {
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_types_are_named_alike_in_text_and_json() {
        for type_ in ErrorType::ALL {
            assert_eq!(serde_json::to_value(type_).unwrap(), type_.as_str());
            assert_eq!(type_.as_str().parse(), Ok(type_));
        }
        for state in [State::New, State::Succeeded, State::Failed] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
