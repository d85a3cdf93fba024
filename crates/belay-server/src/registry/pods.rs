//! Pods: graceful deletion, binding, and the columns everybody reads first.

mod row;

use belay_api::metadata::NameRule;
use belay_api::rules::Rules;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Column, Kind, Strategy, column, field, flag, text};
use crate::object::{is_terminating, name, seconds};
use crate::preconditions::Preconditions;
use crate::status::{ApiError, ApiResult};

pub(super) static PODS: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    categories: &["all"],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &["status", "binding", "log", "exec", "attach", "portforward"],
    fields: &[
        field("spec.nodeName", "/spec/nodeName"),
        field("spec.restartPolicy", "/spec/restartPolicy"),
        field("spec.schedulerName", "/spec/schedulerName"),
        field("spec.serviceAccountName", "/spec/serviceAccountName"),
        flag("spec.hostNetwork", "/spec/hostNetwork"),
        field("status.phase", "/status/phase"),
        field("status.podIP", "/status/podIP"),
        field("status.nominatedNodeName", "/status/nominatedNodeName"),
    ],
    columns: &[
        Column {
            name: "Name",
            format: "name",
            description: "The pod's name.",
            priority: 0,
        },
        column("Ready", 0, "Containers that are ready, of all containers."),
        column(
            "Status",
            0,
            "The state of the pod, all containers considered.",
        ),
        column("Restarts", 0, "How often its containers were restarted."),
        column("Age", 0, "Time since the pod was created."),
        column("IP", 1, "The pod's address."),
        column("Node", 1, "The node it is bound to."),
        column("Nominated Node", 1, "The node that is cleared for it."),
        column(
            "Readiness Gates",
            1,
            "Conditions that must hold before it is ready.",
        ),
    ],
    cells: row::cells,
    strategic_merge: true,
    generation: true,
    unconditional_update: true,
    gate: None,
    expires_after: None,
    audited: &[],
    strategy: &Pods,
};

#[derive(Debug)]
struct Pods;

impl Strategy for Pods {
    fn rules(&self) -> &'static dyn Rules {
        belay_api::rules::POD
    }

    fn grace(&self, pod: &Value, requested: Option<i64>) -> Option<i64> {
        let unscheduled = text(pod, "/spec/nodeName").is_empty();
        if unscheduled || matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
            return Some(0);
        }
        let own = pod
            .pointer("/spec/terminationGracePeriodSeconds")
            .and_then(Value::as_i64);
        let seconds = requested.or(own).unwrap_or(30);
        Some(if seconds < 0 { 1 } else { seconds })
    }

    fn act(&self, subresource: &str, pod: &mut Value, body: &Value) -> Option<ApiResult<()>> {
        (subresource == "binding").then(|| bind(pod, body))
    }
}

/// Gives a pod its node, once. It is the pod that the binding was made for: a successor of the same
/// name may need something else.
fn bind(pod: &mut Value, binding: &Value) -> ApiResult<()> {
    Preconditions::of(binding).check(&PODS, pod)?;
    let node = text(binding, "/target/name").to_owned();
    let kind = text(binding, "/target/kind");
    if node.is_empty() || !matches!(kind, "" | "Node") {
        return Err(ApiError::bad_request(
            "a binding needs target.kind \"Node\" and target.name",
        ));
    }
    if is_terminating(pod) {
        let why = format!(
            "pod {} is being deleted, cannot be assigned to a host",
            name(pod)
        );
        return Err(ApiError::conflict(&PODS, name(pod), &why));
    }
    let bound = text(pod, "/spec/nodeName");
    if !bound.is_empty() {
        let why = format!("pod {} is already assigned to node {bound:?}", name(pod));
        return Err(ApiError::conflict(&PODS, name(pod), &why));
    }
    pod["spec"]["nodeName"] = node.into();
    let scheduled = json!({
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": seconds(Timestamp::now()),
    });
    if !pod["status"].is_object() {
        pod["status"] = json!({"phase": "Pending"});
    }
    match pod["status"]["conditions"].as_array_mut() {
        Some(list) => {
            list.retain(|c| c["type"] != "PodScheduled");
            list.push(scheduled);
        }
        None => pod["status"]["conditions"] = json!([scheduled]),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_is_the_request_then_the_pod_then_thirty_and_nothing_for_what_does_not_run() {
        let bound = json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 7}});
        assert_eq!(Pods.grace(&bound, None), Some(7));
        assert_eq!(Pods.grace(&bound, Some(3)), Some(3));
        assert_eq!(Pods.grace(&bound, Some(0)), Some(0));
        assert_eq!(Pods.grace(&bound, Some(-4)), Some(1));
        assert_eq!(
            Pods.grace(&json!({"spec": {"nodeName": "n"}}), None),
            Some(30)
        );
        assert_eq!(Pods.grace(&json!({"spec": {}}), Some(9)), Some(0));
        let done = json!({"spec": {"nodeName": "n"}, "status": {"phase": "Succeeded"}});
        assert_eq!(Pods.grace(&done, None), Some(0));
    }

    #[test]
    fn a_pod_is_bound_once() {
        let mut pod =
            json!({"metadata": {"name": "p"}, "spec": {}, "status": {"phase": "Pending"}});
        let binding = json!({"target": {"kind": "Node", "name": "n1"}});
        bind(&mut pod, &binding).unwrap();
        assert_eq!(pod["spec"]["nodeName"], "n1");
        assert_eq!(pod["status"]["conditions"][0]["status"], "True");
        assert_eq!(bind(&mut pod, &binding).unwrap_err().reason, "Conflict");
        assert!(bind(&mut json!({}), &json!({})).is_err());
    }
}
