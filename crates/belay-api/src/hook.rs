//! `ExecutionHook`: a request to run a `HookAction` in containers of pods, and what came of it. It
//! is carried out by its children: one `PodAction` for each pod.

// `KubeSchema` repeats the struct inside a function, where `pub` reaches nobody.
#![allow(unreachable_pub)]

mod action;
mod pod_action;
mod status;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

pub use action::{
    ActionError, DEFAULT_ACTION_TIMEOUT_SECONDS, Handler, HookAction, HookActionFields,
};
pub use pod_action::{
    ContainerActionStatus, HookReference, PodAction, PodActionSpec, PodActionStatus,
};
pub use status::{
    ContainerExecutionHookStatus, ExecutionHookStatus, HookError, HookErrorType, MAX_STATUS_BYTES,
    ResolvedAction,
};

use crate::notification::{DEFAULT_DEADLINE_SECONDS, default_deadline_seconds};

/// Label of a PodAction; its value is the UID of the hook.
pub const HOOK_LABEL: &str = "apps.k8s.io/hook-uid";

/// Finalizer of a PodAction: it stays until what came of it stands in the hook's own status.
pub const FINALIZER: &str = "apps.k8s.io/hook";

/// The most containers that one hook can be for. Their statuses are in one object, which a stock
/// server refuses beyond 1.5 MiB; see [`MAX_STATUS_BYTES`].
pub const MAX_CONTAINERS: usize = 5_000;

/// The most containers of one pod that a hook can name.
pub(crate) const MAX_CONTAINERS_OF_POD: usize = 256;

/// What the name of a pod, or of any object, looks like.
pub(crate) const SUBDOMAIN_PATTERN: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// What the name of a container looks like.
pub(crate) const CONTAINER_PATTERN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";

/// Where to run which action. Immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.k8s.io",
    version = "v1alpha1",
    kind = "ExecutionHook",
    plural = "executionhooks",
    shortname = "eh",
    namespaced,
    status = "ExecutionHookStatus",
    derive = "PartialEq",
    doc = "ExecutionHook requests that a HookAction be run in all containers that it selects, at the same time, and records what came of it in each of them. The action is tried again until it succeeds or its time is over.",
    annotation("api-approved.kubernetes.io", "unapproved, implements a design that upstream closed unbuilt"),
    printcolumn(name = "Action", type_ = "string", json_path = ".spec.actionName"),
    printcolumn(name = "Succeed", type_ = "boolean", json_path = ".status.actionSucceed"),
    printcolumn(name = "Containers", type_ = "integer", json_path = ".status.targetCount"),
    printcolumn(name = "Succeeded", type_ = "integer", json_path = ".status.succeededCount"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failedCount"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Complete", type_ = "date", json_path = ".status.completeTime", priority = "1"),
    printcolumn(name = "Error", type_ = "string", json_path = ".status.error.errorType", priority = "1"),
    validation = Rule::new("!has(oldSelf.status) || has(self.status)").message("status may not be removed"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("field is immutable"))]
pub struct ExecutionHookSpec {
    /// Which pods and containers of the same namespace to run the action in. They are fixed when
    /// the hook starts. The action runs in all of them at the same time; who needs an order creates
    /// one hook after the other. Required, immutable.
    pub pod_selection: PodSelection,

    /// Name of the HookAction, in the same namespace. Required, immutable.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN_PATTERN))]
    pub action_name: String,

    /// Seconds after creation, by the server's clock, after which the action is not started in any
    /// container where it has not been started yet. How long it is tried where it has been started
    /// is the action's `actionTimeoutSeconds`. Defaults to 60, at least 1.
    #[serde(default = "default_deadline_seconds")]
    #[schemars(range(min = 1))]
    pub deadline_seconds: i32,

    /// Seconds after its end at which the hook is deleted, together with its PodActions. When not
    /// set, the controller decides: after an hour, unless it was told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// Which pods and containers to run an action in: by name, or else by selector. A hook with neither
/// fails.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodSelection {
    /// The pods and containers by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_CONTAINERS),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["podName"])
    )]
    pub pod_container_names_list: Vec<PodContainerNames>,

    /// The pods by their labels, and their containers. Not used when `podContainerNamesList` names
    /// any pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_container_selector: Option<PodContainerSelector>,
}

/// A pod, and containers of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodContainerNames {
    /// Name of the pod.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN_PATTERN))]
    pub pod_name: String,

    /// Names of its containers. All of them when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_CONTAINERS_OF_POD),
        inner(length(min = 1, max = 63), regex(pattern = CONTAINER_PATTERN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub container_names: Vec<String>,
}

/// Pods by their labels, and containers of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodContainerSelector {
    /// Which pods. An empty selector matches every pod of the namespace. Required.
    pub pod_selector: LabelSelector,

    /// Names of containers. In each pod those that it has of them; all of them when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_CONTAINERS_OF_POD),
        inner(length(min = 1, max = 63), regex(pattern = CONTAINER_PATTERN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub container_list: Vec<String>,
}

impl ExecutionHookSpec {
    /// A request with the defaults of the API.
    #[must_use]
    pub fn new(pod_selection: PodSelection, action_name: impl Into<String>) -> Self {
        Self {
            pod_selection,
            action_name: action_name.into(),
            deadline_seconds: DEFAULT_DEADLINE_SECONDS,
            ttl_seconds_after_finished: None,
        }
    }
}

impl ExecutionHook {
    /// Whether it succeeded in all containers; `None` while that is not known.
    #[must_use]
    pub fn succeeded(&self) -> Option<bool> {
        self.status.as_ref()?.action_succeed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_hook_without_status_is_not_finished_and_has_the_defaults_of_the_api() {
        let hook: ExecutionHook = serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "ExecutionHook",
            "metadata": {"name": "hook-demo"},
            "spec": {
                "podSelection": {"podContainerNamesList": [{"podName": "db"}]},
                "actionName": "action-demo",
            },
            "status": {}
        }))
        .unwrap();
        assert_eq!(hook.succeeded(), None);
        let selection = PodSelection {
            pod_container_names_list: vec![PodContainerNames {
                pod_name: "db".into(),
                container_names: vec![],
            }],
            pod_container_selector: None,
        };
        assert_eq!(
            hook.spec,
            ExecutionHookSpec::new(selection, "action-demo"),
            "the constructor gives what the API defaults to"
        );
    }
}
