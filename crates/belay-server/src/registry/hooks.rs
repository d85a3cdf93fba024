//! ExecutionHooks and HookActions, and the PodActions by which hooks are carried out.
//!
//! Whoever deletes a hook and then finds none of its PodActions left may take it that nothing of it
//! runs or will. So none is created any more from then on, not even one whose creation was already
//! under way.

use belay_api::GROUP;
use belay_api::VERSION;
use belay_api::metadata::NameRule;
use belay_api::rules::Rules;
use serde_json::Value;

use super::{Column, Kind, Needed, Plain, Strategy, age, column, field, or_none, text};

const NAME: Column = Column {
    name: "Name",
    format: "name",
    description: "Its name.",
    priority: 0,
};

pub(super) static EXECUTION_HOOKS: Kind = Kind {
    group: GROUP,
    version: VERSION,
    kind: "ExecutionHook",
    plural: "executionhooks",
    singular: "executionhook",
    short_names: &["eh"],
    categories: &["belay"],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &["status"],
    fields: &[],
    columns: &[
        NAME,
        column("Action", 0, "The HookAction that is run."),
        column(
            "Succeed",
            0,
            "Whether it succeeded in all containers; empty while it is not known.",
        ),
        column("Containers", 0, "In how many containers it is run."),
        column("Succeeded", 0, "Containers in which it succeeded."),
        column("Failed", 0, "Containers in which it failed."),
        column("Age", 0, "Time since it was created."),
        column("Complete", 1, "Time since the last container was done."),
        column("Error", 1, "Why it failed."),
    ],
    cells: |o, now| {
        let count = |pointer: &str| o.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        let succeed = match o.pointer("/status/actionSucceed").and_then(Value::as_bool) {
            None => "",
            Some(true) => "true",
            Some(false) => "false",
        };
        vec![
            text(o, "/metadata/name").into(),
            text(o, "/spec/actionName").into(),
            succeed.into(),
            count("/status/targetCount").into(),
            count("/status/succeededCount").into(),
            count("/status/failedCount").into(),
            age::of(o, now),
            age::since(text(o, "/status/completeTime"), now),
            or_none(error(o, "/status/hookStatuses")),
        ]
    },
    strategic_merge: false,
    generation: true,
    unconditional_update: false,
    gate: None,
    expires_after: None,
    audited: &["/spec/actionName", "/spec/podSelection"],
    strategy: &Plain(belay_api::rules::EXECUTION_HOOK),
};

pub(super) static HOOK_ACTIONS: Kind = Kind {
    group: GROUP,
    version: VERSION,
    kind: "HookAction",
    plural: "hookactions",
    singular: "hookaction",
    short_names: &["ha"],
    categories: &["belay"],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &[],
    fields: &[],
    columns: &[
        NAME,
        column("Handler", 0, "How it acts: exec, httpGet or tcpSocket."),
        column("Timeout", 0, "How many seconds it is tried."),
        column("Age", 0, "Time since it was created."),
        column("Command", 1, "What exec runs."),
    ],
    cells: |o, now| {
        let set = |kind: &&&str| !o["action"][**kind].is_null();
        let handler = ["exec", "httpGet", "tcpSocket"].iter().find(set);
        let seconds = &o["actionTimeoutSeconds"];
        let words = o.pointer("/action/exec/command").and_then(Value::as_array);
        let words = words.into_iter().flatten().filter_map(Value::as_str);
        vec![
            text(o, "/metadata/name").into(),
            or_none(handler.copied().unwrap_or_default()),
            format!("{}s", seconds.as_i64().unwrap_or_default()).into(),
            age::of(o, now),
            or_none(&words.collect::<Vec<_>>().join(" ")),
        ]
    },
    strategic_merge: false,
    generation: true,
    unconditional_update: false,
    gate: None,
    expires_after: None,
    audited: &["/action", "/actionTimeoutSeconds"],
    strategy: &Plain(belay_api::rules::HOOK_ACTION),
};

pub(super) static POD_ACTIONS: Kind = Kind {
    group: GROUP,
    version: VERSION,
    kind: "PodAction",
    plural: "podactions",
    singular: "podaction",
    short_names: &[],
    categories: &[],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &["status"],
    fields: &[
        field("spec.nodeName", "/spec/nodeName"),
        field("status.state", "/status/state"),
    ],
    columns: &[
        NAME,
        column("Hook", 0, "The hook that it is a part of."),
        column("Pod", 0, "The pod that the action is run in."),
        column("State", 0, "New, Succeeded or Failed."),
        column("Age", 0, "Time since it was created."),
        column("Node", 1, "The node that acts."),
        column("Error", 1, "Why it failed."),
    ],
    cells: |o, now| {
        vec![
            text(o, "/metadata/name").into(),
            text(o, "/spec/hook/name").into(),
            text(o, "/spec/podName").into(),
            text(o, "/status/state").into(),
            age::of(o, now),
            or_none(text(o, "/spec/nodeName")),
            or_none(error(o, "/status/containers")),
        ]
    },
    strategic_merge: false,
    generation: true,
    unconditional_update: false,
    gate: None,
    expires_after: None,
    audited: &["/spec/hook", "/spec/podName", "/spec/containers"],
    strategy: &PodActions,
};

/// Its own error, else the first of a container's.
fn error<'a>(object: &'a Value, containers: &str) -> &'a str {
    let of_containers = || {
        let containers = object.pointer(containers).and_then(Value::as_array);
        let types = containers.into_iter().flatten();
        types
            .map(|container| text(container, "/error/errorType"))
            .find(|type_| !type_.is_empty())
    };
    match text(object, "/status/error/errorType") {
        "" => of_containers().unwrap_or_default(),
        own => own,
    }
}

#[derive(Debug)]
struct PodActions;

impl Strategy for PodActions {
    fn rules(&self) -> &'static dyn Rules {
        belay_api::rules::POD_ACTION
    }

    fn needs(&self, object: &Value) -> Option<Needed> {
        Some(Needed {
            plural: "executionhooks",
            name: text(object, "/spec/hook/name").to_owned(),
            uid: text(object, "/spec/hook/uid").to_owned(),
        })
    }
}
