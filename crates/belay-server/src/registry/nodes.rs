//! Nodes.

use belay_api::metadata::NameRule;
use jiff::Timestamp;
use serde_json::Value;

use super::{Column, Kind, Plain, age, column, flag, or_none, text};

pub(super) static NODES: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Node",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    categories: &[],
    namespaced: false,
    name_rule: NameRule::DnsSubdomain,
    subresources: &["status"],
    fields: &[flag("spec.unschedulable", "/spec/unschedulable")],
    columns: &[
        Column {
            name: "Name",
            format: "name",
            description: "The node's name.",
            priority: 0,
        },
        column("Status", 0, "Whether the node is ready."),
        column("Roles", 0, "The node's roles, from its labels."),
        column("Age", 0, "Time since the node registered."),
        column("Version", 0, "The agent's version."),
        column("Internal-IP", 1, "The node's own address."),
        column("External-IP", 1, "The node's address from outside."),
        column("OS-Image", 1, "The operating system."),
        column("Kernel-Version", 1, "The kernel."),
        column("Container-Runtime", 1, "The runtime and its version."),
    ],
    cells,
    strategic_merge: true,
    generation: false,
    unconditional_update: true,
    gate: None,
    expires_after: None,
    audited: &[],
    strategy: &Plain(belay_api::rules::NODE),
};

const ROLE_PREFIX: &str = "node-role.kubernetes.io/";

fn cells(o: &Value, now: Timestamp) -> Vec<Value> {
    let list = |pointer: &str| {
        o.pointer(pointer)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let ready = list("/status/conditions")
        .find(|c| c["type"] == "Ready")
        .map_or("Unknown", |c| {
            if c["status"] == "True" {
                "Ready"
            } else {
                "NotReady"
            }
        });
    let unschedulable = o.pointer("/spec/unschedulable") == Some(&Value::Bool(true));
    let status = if unschedulable {
        format!("{ready},SchedulingDisabled")
    } else {
        ready.to_owned()
    };
    let roles: Vec<&str> = o
        .pointer("/metadata/labels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(k, _)| k.strip_prefix(ROLE_PREFIX))
        .collect();
    let address = |kind: &str| {
        let found = list("/status/addresses").find(|a| a["type"] == kind);
        or_none(
            found
                .and_then(|a| a["address"].as_str())
                .unwrap_or_default(),
        )
    };
    vec![
        text(o, "/metadata/name").into(),
        status.into(),
        or_none(&roles.join(",")),
        age::of(o, now),
        text(o, "/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP"),
        address("ExternalIP"),
        or_none(text(o, "/status/nodeInfo/osImage")),
        or_none(text(o, "/status/nodeInfo/kernelVersion")),
        or_none(text(o, "/status/nodeInfo/containerRuntimeVersion")),
    ]
}
