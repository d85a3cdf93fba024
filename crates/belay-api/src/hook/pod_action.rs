//! `PodAction`: what a hook asks for in one pod, for whoever runs it there. Only the controller
//! makes them.

// `KubeSchema` repeats the struct inside a function, where `pub` reaches nobody.
#![allow(unreachable_pub)]

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CONTAINER_PATTERN, Handler, HookError, MAX_CONTAINERS_OF_POD, SUBDOMAIN_PATTERN};
use crate::notification::State;

/// What to run in which containers of one pod, all of it resolved. Immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.k8s.io",
    version = "v1alpha1",
    kind = "PodAction",
    plural = "podactions",
    namespaced,
    status = "PodActionStatus",
    derive = "PartialEq",
    doc = "PodAction is internal: what an ExecutionHook asks for in one pod, and what came of it. The controller makes one for each pod of a hook; nobody else may.",
    selectable = ".spec.nodeName",
    selectable = ".status.state",
    annotation("api-approved.kubernetes.io", "unapproved, implements a design that upstream closed unbuilt"),
    printcolumn(name = "Hook", type_ = "string", json_path = ".spec.hook.name"),
    printcolumn(name = "Pod", type_ = "string", json_path = ".spec.podName"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Error", type_ = "string", json_path = ".status.error.errorType"),
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("!has(oldSelf.status) || has(self.status)").message("status may not be removed"),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("field is immutable"))]
pub struct PodActionSpec {
    /// The hook that this is a part of.
    pub hook: HookReference,

    /// Name of the pod.
    #[schemars(length(min = 1, max = 253), regex(pattern = SUBDOMAIN_PATTERN))]
    pub pod_name: String,

    /// UID of the pod: a later pod of the same name is another one.
    #[serde(rename = "podUID")]
    #[schemars(length(min = 1, max = 128))]
    pub pod_uid: String,

    /// The node that the pod is on. Its agent runs the action.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,

    /// Names of the containers to run the action in, at the same time.
    #[schemars(
        length(min = 1, max = MAX_CONTAINERS_OF_POD),
        inner(length(min = 1, max = 63), regex(pattern = CONTAINER_PATTERN)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub containers: Vec<String>,

    /// What to do in each of them: the HookAction as it was when the hook started.
    pub action: Handler,

    /// Seconds after its first start in a container after which the action is not tried again there
    /// and, if it still runs, is stopped.
    #[schemars(range(min = 1))]
    pub action_timeout_seconds: i64,

    /// Seconds after creation, by the server's clock, after which the action is not started in any
    /// container where it has not been started yet.
    #[schemars(range(min = 1))]
    pub deadline_seconds: i32,
}

/// The hook that a PodAction is a part of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookReference {
    /// Its name, in the same namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,

    /// Its UID: a later hook of the same name is another one.
    #[schemars(length(min = 1, max = 128))]
    pub uid: String,
}

/// The current state of a PodAction.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("oldSelf.state == 'New' || self.state == oldSelf.state").message("a final state may not change"),
    validation = Rule::new("oldSelf.state == 'New' || (has(self.completeTime) == has(oldSelf.completeTime) && (!has(self.completeTime) || self.completeTime == oldSelf.completeTime))").message("completeTime may not change once the state is final"),
    validation = Rule::new("oldSelf.state == 'New' || (has(self.containers) == has(oldSelf.containers) && (!has(self.containers) || self.containers == oldSelf.containers))").message("containers may not change once the state is final"),
    validation = Rule::new("oldSelf.state == 'New' || (has(self.error) == has(oldSelf.error) && (!has(self.error) || self.error == oldSelf.error))").message("error may not change once the state is final"),
    validation = Rule::new("!has(oldSelf.executor) || (has(self.executor) && self.executor == oldSelf.executor)").message("executor may be set once"),
    validation = Rule::new("!has(oldSelf.startTime) || (has(self.startTime) && self.startTime == oldSelf.startTime)").message("startTime may be set once"),
    validation = Rule::new("(self.state == 'New') == !has(self.completeTime)").message("completeTime is set exactly when the state is final"),
    validation = Rule::new("self.state != 'Failed' || has(self.error) || (has(self.containers) && self.containers.exists(c, has(c.error)))").message("a failed action says why: set error, or an error of a container"),
    validation = Rule::new("self.state != 'Succeeded' || (has(self.containers) && self.containers.all(c, has(c.succeed) && c.succeed))").message("every container has succeeded when the state is Succeeded")
)]
pub struct PodActionStatus {
    /// What happened in each container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_CONTAINERS_OF_POD),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub containers: Vec<ContainerActionStatus>,

    /// When it was claimed by its executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// When it ended, well or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,

    /// `New` until the action has ended in all containers, then `Succeeded` if it succeeded in all
    /// of them, else `Failed`.
    #[serde(default)]
    pub state: State,

    /// Why it failed, where the reason is not one container's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<HookError>,

    /// Observations: `FullGuarantees` and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,

    /// Who claimed it. Nobody else acts on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub executor: Option<String>,
}

/// What happened in one container.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(oldSelf.succeed) || (has(self.succeed) && self.succeed == oldSelf.succeed)").message("succeed may be set once"),
    validation = Rule::new("!has(oldSelf.startTime) || (has(self.startTime) && self.startTime == oldSelf.startTime)").message("startTime may be set once"),
    validation = Rule::new("!has(oldSelf.containerID) || (has(self.containerID) && self.containerID == oldSelf.containerID)").message("containerID may be set once"),
    validation = Rule::new("!has(self.succeed) || self.succeed || has(self.error)").message("a container in which the action failed says why: set error")
)]
pub struct ContainerActionStatus {
    /// Name of the container.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,

    /// The incarnation of the container that is acted on. Set once.
    #[serde(
        default,
        rename = "containerID",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(max = 1024))]
    pub container_id: Option<String>,

    /// When the action was first started. The time it may take counts from here. Set once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<MicroTime>,

    /// When nothing more was to be done here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete_time: Option<Time>,

    /// Whether the action succeeded; not set while it is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub succeed: Option<bool>,

    /// Why the last attempt failed; there may be more of them while `succeed` is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<HookError>,

    /// How often the action was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub attempts: Option<i32>,

    /// Exit code of the last attempt, of an exec action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// The signal that ended the last attempt, of an exec action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub signal: Option<String>,

    /// The last 4 KiB of the last attempt's output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub output: Option<String>,
}

impl PodActionSpec {
    /// How long the action is tried in a container, counted from its first start there.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(
            u64::try_from(self.action_timeout_seconds)
                .unwrap_or_default()
                .max(1),
        )
    }
}

impl PodAction {
    /// Its state; `New` until somebody wrote another.
    #[must_use]
    pub fn state(&self) -> State {
        self.status
            .as_ref()
            .map_or(State::New, |status| status.state)
    }
}
