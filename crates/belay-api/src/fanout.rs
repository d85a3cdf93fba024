//! `Notification`: a request to run one notifier in every pod that a selector matches, and what
//! came of it. It is carried out by its children: one `PodNotification` for each pod.

// `KubeSchema` repeats the struct inside a function, where `pub` reaches nobody.
#![allow(unreachable_pub)]

mod status;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use status::{NotificationError, NotificationErrorType, NotificationStatus, Settled};

use crate::notification::{LABEL_KEY_MAX_LENGTH, LABEL_KEY_PATTERN, State};

/// Label of a child; its value is the UID of the Notification.
pub const OWNER_LABEL: &str = "apps.k8s.io/notification-uid";

/// Finalizer of a child: it stays until its outcome is counted in the Notification's own status.
pub const FINALIZER: &str = "apps.k8s.io/notification";

/// The most pods that one Notification with `PreExistingPods` can be for.
pub const MAX_TARGETS: usize = 20_000;

/// How much room the names and UIDs of its pods may take. They are in the status until their turn
/// has come, and a stock server refuses objects beyond 1.5 MiB.
pub const MAX_TARGET_BYTES: usize = 1024 * 1024;

/// Which notifier to run in which pods. Immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.k8s.io",
    version = "v1alpha1",
    kind = "Notification",
    plural = "notifications",
    shortname = "ntf",
    namespaced,
    status = "NotificationStatus",
    derive = "PartialEq",
    doc = "Notification requests that a notifier be triggered in every running pod that its selector matches, and counts what came of it. Each pod is notified once, by a PodNotification that belongs to this object and is deleted with it.",
    annotation("api-approved.kubernetes.io", "unapproved, implements a design that upstream closed unbuilt"),
    printcolumn(name = "Notifier", type_ = "string", json_path = ".spec.notifier"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.policy"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Succeeded", type_ = "integer", json_path = ".status.succeededCount"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failedCount"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Complete", type_ = "date", json_path = ".status.completeTime", priority = "1"),
    printcolumn(name = "Error", type_ = "string", json_path = ".status.error.type", priority = "1"),
    validation = Rule::new("!has(oldSelf.status) || has(self.status)").message("status may not be removed"),
    validation = Rule::new("!has(self.status) || !has(self.status.completeTime) || self.spec.policy != 'AllPods'").message("completeTime is never set with the policy AllPods"),
    validation = Rule::new("!has(self.status) || self.status.state == 'New' || has(self.status.completeTime) || self.spec.policy == 'AllPods'").message("completeTime must be set when the state is final"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("field is immutable"))]
pub struct NotificationSpec {
    /// Which pods of the same namespace to notify, by their labels. Only pods that are Running
    /// are notified. An empty selector matches every pod of the namespace. Required, immutable.
    pub selector: LabelSelector,

    /// `AllPods`: every pod that matches, also those that come later; such a Notification never
    /// completes. `PreExistingPods`: those that are there when it is created. Defaults to
    /// `AllPods`.
    #[serde(default)]
    pub policy: PodSelectionPolicy,

    /// Name of the notifier to trigger. A pod of which no container declares it counts as
    /// succeeded. Required, immutable.
    #[schemars(
        length(min = 1, max = LABEL_KEY_MAX_LENGTH),
        regex(pattern = LABEL_KEY_PATTERN)
    )]
    #[x_kube(validation = Rule::new("size(self.substring(self.lastIndexOf('/') + 1)) <= 63").message("name part must be no more than 63 bytes"))]
    pub notifier: String,

    /// How many pods are notified at a time, at most. 0, the default: all at once. A negative
    /// number fails the Notification at once.
    #[serde(default)]
    pub parallelism: i32,

    /// Seconds within which handlers may start, at least 1. With `PreExistingPods` they count from
    /// the creation of the Notification: pods whose turn has not come by then are not notified, and
    /// the Notification fails. With `AllPods`, which never completes, they count for each pod from
    /// the creation of its PodNotification. When not set, each PodNotification has its own default
    /// of 60 seconds, however many there are before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub deadline_seconds: Option<i32>,

    /// Seconds after its end at which the Notification is deleted, together with its
    /// PodNotifications. Kept until somebody deletes it when not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,

    /// After this many failures no more pods are notified; what has been started goes on. At
    /// least 1. No limit when not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_failures: Option<i32>,
}

/// Which of the pods that match are notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum PodSelectionPolicy {
    #[default]
    AllPods,
    PreExistingPods,
}

impl PodSelectionPolicy {
    /// Every policy.
    pub const ALL: [Self; 2] = [Self::AllPods, Self::PreExistingPods];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllPods => "AllPods",
            Self::PreExistingPods => "PreExistingPods",
        }
    }
}

impl std::fmt::Display for PodSelectionPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl NotificationSpec {
    /// A request with the defaults of the API.
    #[must_use]
    pub fn new(selector: LabelSelector, notifier: impl Into<String>) -> Self {
        Self {
            selector,
            policy: PodSelectionPolicy::default(),
            notifier: notifier.into(),
            parallelism: 0,
            deadline_seconds: None,
            ttl_seconds_after_finished: None,
            max_failures: None,
        }
    }
}

impl Notification {
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
    fn a_notification_without_status_is_new_and_has_the_defaults_of_the_api() {
        let notification: Notification = serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "Notification",
            "metadata": {"name": "n"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "notifier": "reload"},
            "status": {}
        }))
        .unwrap();
        assert_eq!(notification.state(), State::New);
        let selector = LabelSelector {
            match_labels: Some([("app".to_owned(), "web".to_owned())].into()),
            match_expressions: None,
        };
        assert_eq!(
            notification.spec,
            NotificationSpec::new(selector, "reload"),
            "the constructor gives what the API defaults to"
        );
        assert_eq!(notification.spec.policy, PodSelectionPolicy::AllPods);
        assert_eq!(notification.spec.deadline_seconds, None);
    }

    #[test]
    fn policies_are_named_alike_in_text_and_json() {
        for policy in PodSelectionPolicy::ALL {
            assert_eq!(serde_json::to_value(policy).unwrap(), policy.as_str());
        }
    }
}
