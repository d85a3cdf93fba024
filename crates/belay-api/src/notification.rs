//! `PodNotification`: a request to run one notifier in one pod, and what came of it.

// `KubeSchema` repeats the struct inside a function, where `pub` reaches nobody.
#![allow(unreachable_pub)]

mod status;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
pub use status::{
    ContainerNotificationStatus, ErrorType, PodNotificationError, PodNotificationStatus, State,
    UnknownErrorType,
};

/// Deadline of a notification that does not name one.
pub const DEFAULT_DEADLINE_SECONDS: i32 = 60;

/// Longest label key: a DNS subdomain, a slash, and a name of 63 characters.
pub(crate) const LABEL_KEY_MAX_LENGTH: usize = 253 + 1 + 63;

/// What a label key looks like, but for the length of its name.
pub(crate) const LABEL_KEY_PATTERN: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";

/// Which notifier to run in which pod. Immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.k8s.io",
    version = "v1alpha1",
    kind = "PodNotification",
    plural = "podnotifications",
    shortname = "pn",
    namespaced,
    status = "PodNotificationStatus",
    derive = "PartialEq",
    doc = "PodNotification requests that a notifier be triggered in every container of a pod that declares it, and records what came of it. It is never retried; create another one to try again.",
    selectable = ".spec.podName",
    selectable = ".spec.ttlSecondsAfterFinished",
    selectable = ".status.nodeName",
    selectable = ".status.state",
    annotation("api-approved.kubernetes.io", "unapproved, implements a design that upstream closed unbuilt"),
    printcolumn(name = "Pod", type_ = "string", json_path = ".spec.podName"),
    printcolumn(name = "Notifier", type_ = "string", json_path = ".spec.notifier"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Error", type_ = "string", json_path = ".status.error.type"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.nodeName", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("!has(oldSelf.status) || has(self.status)").message("status may not be removed"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("field is immutable"))]
pub struct PodNotificationSpec {
    /// Name of the pod to notify, in the same namespace. The notification fails at once if there
    /// is no such pod. Required, immutable.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub pod_name: String,

    /// Name of the notifier to trigger. The notification completes at once if no container of
    /// the pod declares it. Required, immutable.
    #[schemars(
        length(min = 1, max = LABEL_KEY_MAX_LENGTH),
        regex(pattern = LABEL_KEY_PATTERN)
    )]
    #[x_kube(validation = Rule::new("size(self.substring(self.lastIndexOf('/') + 1)) <= 63").message("name part must be no more than 63 bytes"))]
    pub notifier: String,

    /// UID of the pod to notify. A pod of the same name with another UID is another pod, and the
    /// notification fails at once as if there was none. Any pod of the name when not set.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub pod_uid: Option<String>,

    /// Seconds after creation, by the server's clock, after which nothing starts any more.
    /// Defaults to 60, at least 1.
    #[serde(default = "default_deadline_seconds")]
    #[schemars(range(min = 1))]
    pub deadline_seconds: i32,

    /// Seconds after its end at which the notification is deleted. Kept until somebody deletes
    /// it when not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

pub(crate) fn default_deadline_seconds() -> i32 {
    DEFAULT_DEADLINE_SECONDS
}

impl PodNotificationSpec {
    /// A request with the default deadline, kept until it is deleted.
    #[must_use]
    pub fn new(pod_name: impl Into<String>, notifier: impl Into<String>) -> Self {
        Self {
            pod_name: pod_name.into(),
            notifier: notifier.into(),
            pod_uid: None,
            deadline_seconds: DEFAULT_DEADLINE_SECONDS,
            ttl_seconds_after_finished: None,
        }
    }
}

impl PodNotification {
    /// Its state; `New` until somebody wrote another.
    #[must_use]
    pub fn state(&self) -> State {
        self.status
            .as_ref()
            .map_or(State::New, |status| status.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_notification_without_status_is_new() {
        let notification: PodNotification = serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "PodNotification",
            "metadata": {"name": "n"},
            "spec": {"podName": "db", "notifier": "lock"},
            "status": {}
        }))
        .unwrap();
        assert_eq!(notification.state(), State::New);
        assert_eq!(notification.spec.deadline_seconds, 60);
        assert_eq!(
            notification.spec,
            PodNotificationSpec::new("db", "lock"),
            "the constructor gives what the API defaults to"
        );
    }
}
