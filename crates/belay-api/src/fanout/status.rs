//! What came of a Notification, and what its controller has to remember.

// `KubeSchema` repeats the struct inside a function, where `pub` reaches nobody.
#![allow(unreachable_pub)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::notification::{State, UnknownErrorType};

/// The current state of a Notification.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("oldSelf.state == 'New' || self.state == oldSelf.state").message("a final state may not change"),
    validation = Rule::new("oldSelf.state == 'New' || (has(self.completeTime) == has(oldSelf.completeTime) && (!has(self.completeTime) || self.completeTime == oldSelf.completeTime))").message("completeTime may not change once the notification is final"),
    validation = Rule::new("oldSelf.state == 'New' || self.succeededCount == oldSelf.succeededCount").message("succeededCount may not change once the notification is final"),
    validation = Rule::new("oldSelf.state == 'New' || self.failedCount == oldSelf.failedCount").message("failedCount may not change once the notification is final"),
    validation = Rule::new("oldSelf.state == 'New' || (has(self.error) == has(oldSelf.error) && (!has(self.error) || self.error == oldSelf.error))").message("error may not change once the notification is final"),
    validation = Rule::new("!has(oldSelf.startTime) || (has(self.startTime) && self.startTime == oldSelf.startTime)").message("startTime may be set once"),
    validation = Rule::new("!has(self.completeTime) || self.state != 'New'").message("completeTime may not be set while the state is New"),
    validation = Rule::new("self.state != 'Failed' || has(self.error) || self.failedCount > 0").message("a failed notification says why: set error or failedCount"),
    validation = Rule::new("self.state != 'Succeeded' || self.failedCount == 0").message("nothing has failed when the state is Succeeded")
)]
pub struct NotificationStatus {
    /// How many pods are to be notified. Fixed at the start with the policy `PreExistingPods`;
    /// with `AllPods`, how many have been so far or are about to be.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub target_count: i32,

    /// How many PodNotifications of this Notification have succeeded.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub succeeded_count: i32,

    /// How many PodNotifications of this Notification have failed.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub failed_count: i32,

    /// When the Notification was first acknowledged by its controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the last PodNotification had ended. Never set with the policy `AllPods`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,

    /// `New` until every PodNotification has ended, then `Succeeded` if all succeeded, else
    /// `Failed`.
    #[serde(default)]
    pub state: State,

    /// Why the Notification failed, where the reason is not a PodNotification's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<NotificationError>,

    /// Observations about the Notification: `PodsFound` and `Stopped`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,

    /// With the policy `PreExistingPods`: the pods whose turn has not come, as `name/UID`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = super::MAX_TARGETS),
        inner(length(max = 512)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub pending: Vec<String>,

    /// PodNotifications that were deleted while the Notification went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Settled>,
}

/// What is remembered of PodNotifications that were deleted before their Notification had ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settled {
    /// How many of them had succeeded.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub succeeded_count: i32,

    /// How many of them had failed.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub failed_count: i32,

    /// UIDs of their pods, as long as these could be notified again.
    #[serde(default, rename = "podUIDs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        inner(length(max = 128)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub pod_uids: Vec<String>,
}

/// Why a Notification failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationError {
    /// Type of the error.
    #[serde(rename = "type")]
    pub type_: NotificationErrorType,

    /// Details for a human.
    #[serde(default)]
    #[schemars(length(max = 32768))]
    pub message: String,

    /// When the error occurred.
    pub timestamp: Time,
}

/// Ways in which a Notification fails as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum NotificationErrorType {
    /// `parallelism` is negative.
    InvalidParallelism,
    /// `selector` is not one; a stock server does not look into it.
    InvalidSelector,
    /// The selector matches more pods than one Notification can be for.
    TooManyPods,
    /// As many PodNotifications failed as `maxFailures` allows; the rest was not started.
    TooManyFailures,
    /// The deadline passed before every pod had its turn; the rest was not started.
    Expired,
}

impl NotificationErrorType {
    /// Every error type.
    pub const ALL: [Self; 5] = [
        Self::InvalidParallelism,
        Self::InvalidSelector,
        Self::TooManyPods,
        Self::TooManyFailures,
        Self::Expired,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidParallelism => "InvalidParallelism",
            Self::InvalidSelector => "InvalidSelector",
            Self::TooManyPods => "TooManyPods",
            Self::TooManyFailures => "TooManyFailures",
            Self::Expired => "Expired",
        }
    }
}

impl std::fmt::Display for NotificationErrorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for NotificationErrorType {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_types_are_named_alike_in_text_and_json() {
        for type_ in NotificationErrorType::ALL {
            assert_eq!(serde_json::to_value(type_).unwrap(), type_.as_str());
            assert_eq!(type_.as_str().parse(), Ok(type_));
        }
    }
}
