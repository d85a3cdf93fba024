//! What came of a hook.

// `KubeSchema` repeats the struct inside a function, where `pub` reaches nobody.
#![allow(unreachable_pub)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Handler, MAX_CONTAINERS};
use crate::notification::UnknownErrorType;
use crate::text::cut;

/// How large the status of a hook may be as JSON. A stock server refuses objects beyond 1.5 MiB, and
/// a status is not all there is of one.
pub const MAX_STATUS_BYTES: usize = 1024 * 1024;

/// To how many bytes the texts of errors are shortened, one after the other, until a status fits.
const TEXT_LIMITS: [usize; 6] = [1024, 512, 256, 128, 64, 16];

/// The current state of a hook.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.actionSucceed) || (has(self.actionSucceed) && self.actionSucceed == oldSelf.actionSucceed)").message("actionSucceed may be set once"),
    validation = Rule::new("!has(oldSelf.actionSucceed) || (has(self.hookStatuses) == has(oldSelf.hookStatuses) && (!has(self.hookStatuses) || self.hookStatuses == oldSelf.hookStatuses))").message("hookStatuses may not change once the hook has ended"),
    validation = Rule::new("!has(oldSelf.actionSucceed) || (has(self.error) == has(oldSelf.error) && (!has(self.error) || self.error == oldSelf.error))").message("error may not change once the hook has ended"),
    validation = Rule::new("!has(oldSelf.completeTime) || (has(self.completeTime) && self.completeTime == oldSelf.completeTime)").message("completeTime may be set once"),
    validation = Rule::new("!has(oldSelf.startTime) || (has(self.startTime) && self.startTime == oldSelf.startTime)").message("startTime may be set once"),
    validation = Rule::new("!has(oldSelf.action) || (has(self.action) && self.action == oldSelf.action)").message("action may be set once"),
    validation = Rule::new("has(self.actionSucceed) == has(self.completeTime)").message("completeTime is set exactly when actionSucceed is"),
    validation = Rule::new("!has(self.actionSucceed) || !has(self.hookStatuses) || self.hookStatuses.all(c, has(c.succeed))").message("actionSucceed is set when the action has ended in all containers"),
    validation = Rule::new("!has(self.actionSucceed) || !self.actionSucceed || (has(self.hookStatuses) && self.hookStatuses.all(c, has(c.succeed) && c.succeed))").message("every container has succeeded when actionSucceed is true"),
    validation = Rule::new("!has(self.actionSucceed) || self.actionSucceed || has(self.error) || (has(self.hookStatuses) && self.hookStatuses.exists(c, has(c.error)))").message("a failed hook says why: set error, or an error of a container")
)]
pub struct ExecutionHookStatus {
    /// What happened in each container. Every container that was selected is in it from the start.
    // One owner writes all of it at once. Tracked item by item, its managed fields would be larger
    // than the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_CONTAINERS),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub hook_statuses: Vec<ContainerExecutionHookStatus>,

    /// Whether the action succeeded in all containers. Not set until it has ended in all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_succeed: Option<bool>,

    /// When the hook was first acknowledged by its controller: its containers and its action are
    /// fixed from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When the action had ended in all containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,

    /// The action as it was when the hook started, which is what is run. Changing or deleting the
    /// HookAction afterwards changes nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<ResolvedAction>,

    /// In how many containers the action is to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub target_count: Option<i32>,

    /// In how many containers it has succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub succeeded_count: Option<i32>,

    /// In how many containers it has failed for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub failed_count: Option<i32>,

    /// Why the hook failed, where the reason is not one container's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<HookError>,

    /// Observations about the hook: `FullGuarantees` and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
}

/// A HookAction as it was when a hook started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedAction {
    /// UID of the HookAction.
    #[schemars(length(max = 128))]
    pub uid: String,

    /// Its resource version.
    #[schemars(length(max = 128))]
    pub resource_version: String,

    /// What is run in each container.
    pub action: Handler,

    /// How long it is tried in each container.
    #[schemars(range(min = 1))]
    pub action_timeout_seconds: i64,
}

/// What happened in one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerExecutionHookStatus {
    /// Name of the pod.
    #[schemars(length(min = 1, max = 253))]
    pub pod_name: String,

    /// Name of the container. Empty where a pod that was named does not exist, and no container of
    /// it was named.
    #[schemars(length(max = 63))]
    pub container_name: String,

    /// When the action was first started, in seconds since 1970. Not set: it has not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,

    /// True: the action succeeded. False: it did not within its time, or could not be run. Not set
    /// while it is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeed: Option<bool>,

    /// The last error; there may be more attempts while `succeed` is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<HookError>,

    /// UID of the pod: a later pod of the same name is another one.
    #[serde(default, rename = "podUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub pod_uid: Option<String>,

    /// The incarnation of the container that was acted on.
    #[serde(
        default,
        rename = "containerID",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 1024))]
    pub container_id: Option<String>,

    /// How often the action was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,

    /// Exit code of the last attempt, of an exec action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// Why a hook, or its action in a container, failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookError {
    /// Type of the error.
    pub error_type: HookErrorType,

    /// What happened, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,

    /// Why, in more detail: what the action said last, or what the runtime or the server answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
}

/// Ways in which a hook, or its action in a container, fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum HookErrorType {
    /// The action still ran when its time was over, and was killed.
    ExecutionTimeout,
    /// The action failed, and its time was over before it succeeded.
    ExecutionFailwithError,
    /// There is no such pod, or it was replaced by another of the same name.
    PodNotFound,
    /// The pod has no such container.
    ContainerNotFound,
    /// The container, or the pod, does not run.
    ContainerNotRunning,
    /// The container was replaced by another incarnation.
    ContainerRestarted,
    /// The pod is being deleted.
    PodTerminating,
    /// The deadline passed before anybody started.
    Expired,
    /// The action may have run, and nobody can tell how it ended.
    Interrupted,
    /// The hook was deleted while the action ran.
    Cancelled,
    /// The container runtime failed.
    RuntimeError,
    /// The executor may not do this.
    Forbidden,
    /// Of a hook: there is no HookAction of that name.
    ActionNotFound,
    /// Of a hook: it selects no container.
    NothingSelected,
    /// Of a hook: `podSelector` is not one; a stock server does not look into it.
    InvalidSelector,
    /// Of a hook: it selects more containers than one hook can be for.
    TooManyContainers,
}

impl HookErrorType {
    /// Every error type.
    pub const ALL: [Self; 16] = [
        Self::ExecutionTimeout,
        Self::ExecutionFailwithError,
        Self::PodNotFound,
        Self::ContainerNotFound,
        Self::ContainerNotRunning,
        Self::ContainerRestarted,
        Self::PodTerminating,
        Self::Expired,
        Self::Interrupted,
        Self::Cancelled,
        Self::RuntimeError,
        Self::Forbidden,
        Self::ActionNotFound,
        Self::NothingSelected,
        Self::InvalidSelector,
        Self::TooManyContainers,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExecutionTimeout => "ExecutionTimeout",
            Self::ExecutionFailwithError => "ExecutionFailwithError",
            Self::PodNotFound => "PodNotFound",
            Self::ContainerNotFound => "ContainerNotFound",
            Self::ContainerNotRunning => "ContainerNotRunning",
            Self::ContainerRestarted => "ContainerRestarted",
            Self::PodTerminating => "PodTerminating",
            Self::Expired => "Expired",
            Self::Interrupted => "Interrupted",
            Self::Cancelled => "Cancelled",
            Self::RuntimeError => "RuntimeError",
            Self::Forbidden => "Forbidden",
            Self::ActionNotFound => "ActionNotFound",
            Self::NothingSelected => "NothingSelected",
            Self::InvalidSelector => "InvalidSelector",
            Self::TooManyContainers => "TooManyContainers",
        }
    }
}

impl std::fmt::Display for HookErrorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for HookErrorType {
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

impl HookError {
    /// An error of which a sentence says all. Texts are cut to what the API takes.
    #[must_use]
    pub fn new(error_type: HookErrorType, message: impl Into<String>) -> Self {
        let mut error = Self {
            error_type,
            message: Some(message.into()),
            reason: None,
        };
        error.shorten(TEXT_LIMITS[0]);
        error
    }

    /// The same, with what is known in more detail.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self.shorten(TEXT_LIMITS[0]);
        self
    }

    /// Cuts each of its texts to at most so many bytes.
    pub fn shorten(&mut self, limit: usize) {
        for text in [&mut self.message, &mut self.reason].into_iter().flatten() {
            cut(text, limit);
        }
    }
}

impl ExecutionHookStatus {
    /// Shortens the texts of errors as far as it takes for the status to fit into
    /// [`MAX_STATUS_BYTES`]. False if names alone take more than that: the hook has too many
    /// containers.
    #[must_use]
    pub fn shorten(&mut self) -> bool {
        for limit in TEXT_LIMITS {
            for error in self
                .hook_statuses
                .iter_mut()
                .filter_map(|container| container.error.as_mut())
            {
                error.shorten(limit);
            }
            if self.size() <= MAX_STATUS_BYTES {
                return true;
            }
        }
        false
    }

    /// How large it is as JSON.
    #[must_use]
    pub fn size(&self) -> usize {
        let mut count = Count(0);
        // Counting cannot fail, and neither can writing these types.
        let _ = serde_json::to_writer(&mut count, self);
        count.0
    }
}

struct Count(usize);

impl std::io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_types_are_named_alike_in_text_and_json() {
        for type_ in HookErrorType::ALL {
            assert_eq!(serde_json::to_value(type_).unwrap(), type_.as_str());
            assert_eq!(type_.as_str().parse(), Ok(type_));
        }
    }

    fn failed(containers: usize, pod_name: usize) -> ExecutionHookStatus {
        let error = HookError::new(HookErrorType::ExecutionFailwithError, "é".repeat(5000))
            .because("\u{7}".repeat(5000));
        let container = |i: usize| ContainerExecutionHookStatus {
            pod_name: format!("{i:0>pod_name$}"),
            container_name: "c".repeat(63),
            timestamp: Some(i64::from(u32::MAX)),
            succeed: Some(false),
            error: Some(error.clone()),
            pod_uid: Some("u".repeat(36)),
            container_id: Some(format!("containerd://{}", "0".repeat(64))),
            attempts: Some(i32::MAX),
            exit_code: Some(i32::MIN),
        };
        ExecutionHookStatus {
            hook_statuses: (0..containers).map(container).collect(),
            ..ExecutionHookStatus::default()
        }
    }

    #[test]
    fn texts_are_cut_between_characters_and_say_so() {
        let error = HookError::new(HookErrorType::Expired, "é".repeat(600));
        let message = error.message.unwrap();
        assert!(message.len() <= 1024 && message.len() > 1000);
        assert!(message.ends_with("é..."));
        let short = HookError::new(HookErrorType::Expired, "short").because("why");
        assert_eq!(short.message.as_deref(), Some("short"));
        assert_eq!(short.reason.as_deref(), Some("why"));
    }

    #[test]
    fn a_hook_over_1000_containers_fits_into_a_mebibyte_whatever_they_say() {
        let mut status = failed(1000, 253);
        assert!(status.size() > 4 * MAX_STATUS_BYTES);
        assert!(status.shorten());
        assert!(status.size() <= MAX_STATUS_BYTES);
        for container in &status.hook_statuses {
            let error = container.error.as_ref().unwrap();
            assert_eq!(error.error_type, HookErrorType::ExecutionFailwithError);
            assert!(error.message.is_some() && error.reason.is_some());
        }
    }

    #[test]
    fn a_small_hook_keeps_what_its_containers_say() {
        let mut status = failed(3, 10);
        let before = status.clone();
        assert!(status.shorten());
        assert_eq!(status, before);
    }

    #[test]
    fn names_that_do_not_fit_are_too_many() {
        assert!(!failed(5000, 253).shorten());
    }
}
