//! Pods: graceful deletion, binding, and the columns everybody reads first.

use belay_api::metadata::NameRule;
use belay_api::rules::Rules;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Column, Kind, Strategy, age, column, or_none, text};
use crate::object::{is_terminating, name, seconds};
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
        ("spec.nodeName", "/spec/nodeName"),
        ("spec.restartPolicy", "/spec/restartPolicy"),
        ("spec.schedulerName", "/spec/schedulerName"),
        ("spec.serviceAccountName", "/spec/serviceAccountName"),
        ("spec.hostNetwork", "/spec/hostNetwork"),
        ("status.phase", "/status/phase"),
        ("status.podIP", "/status/podIP"),
        ("status.nominatedNodeName", "/status/nominatedNodeName"),
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
    cells,
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

/// Gives a pod its node, once.
fn bind(pod: &mut Value, binding: &Value) -> ApiResult<()> {
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

fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let list = |pointer: &str| -> Vec<&Value> {
        pod.pointer(pointer)
            .and_then(Value::as_array)
            .map(|a| a.iter().collect())
            .unwrap_or_default()
    };
    let statuses = list("/status/containerStatuses");
    let total = list("/spec/containers").len();
    let ready = statuses.iter().filter(|c| c["ready"] == true).count();
    let (restarts, last) = restarts(&initialising(pod).unwrap_or_else(|| statuses.clone()));
    let restarts = match last {
        Some(at) if restarts > 0 => {
            format!(
                "{restarts} ({} ago)",
                age::since(at, now).as_str().unwrap_or_default()
            )
        }
        _ => restarts.to_string(),
    };
    vec![
        text(pod, "/metadata/name").into(),
        format!("{ready}/{total}").into(),
        status(pod, &list("/status/initContainerStatuses"), &statuses).into(),
        restarts.into(),
        age::of(pod, now),
        or_none(text(pod, "/status/podIP")),
        or_none(text(pod, "/spec/nodeName")),
        or_none(text(pod, "/status/nominatedNodeName")),
        or_none(""),
    ]
}

/// The init containers' statuses, while any of them still has to succeed.
fn initialising(pod: &Value) -> Option<Vec<&Value>> {
    let init: Vec<&Value> = pod
        .pointer("/status/initContainerStatuses")
        .and_then(Value::as_array)?
        .iter()
        .collect();
    let waiting = |c: &&Value| c["state"]["terminated"]["exitCode"] != 0;
    init.iter().any(waiting).then_some(init)
}

fn restarts<'a>(statuses: &[&'a Value]) -> (i64, Option<&'a str>) {
    let count = statuses
        .iter()
        .filter_map(|c| c["restartCount"].as_i64())
        .sum();
    let last = statuses
        .iter()
        .map(|c| text(c, "/lastState/terminated/finishedAt"))
        .max();
    (count, last.filter(|t| !t.is_empty()))
}

/// One word for the pod: the most telling of its phase and its containers' states.
fn status(pod: &Value, init: &[&Value], containers: &[&Value]) -> String {
    let phase = text(pod, "/status/phase");
    let own = text(pod, "/status/reason");
    let mut word = if own.is_empty() {
        phase.to_owned()
    } else {
        own.to_owned()
    };
    for (index, container) in init.iter().enumerate() {
        let state = &container["state"];
        if state["terminated"]["exitCode"] == 0 {
            continue;
        }
        word = match (
            text(state, "/terminated/reason"),
            text(state, "/waiting/reason"),
        ) {
            ("", "" | "PodInitializing") => format!("Init:{index}/{}", init.len()),
            ("", waiting) => format!("Init:{waiting}"),
            (ended, _) => format!("Init:{ended}"),
        };
        return finish(pod, word);
    }
    let mut running = false;
    for container in containers.iter().rev() {
        let state = &container["state"];
        let (waiting, ended) = (
            text(state, "/waiting/reason"),
            text(state, "/terminated/reason"),
        );
        if !waiting.is_empty() {
            word = waiting.to_owned();
        } else if !ended.is_empty() {
            word = ended.to_owned();
        } else if let Some(signal) = state["terminated"]["signal"].as_i64().filter(|s| *s != 0) {
            word = format!("Signal:{signal}");
        } else if let Some(code) = state["terminated"]["exitCode"].as_i64() {
            word = format!("ExitCode:{code}");
        } else if container["ready"] == true && !state["running"].is_null() {
            running = true;
        }
    }
    if word == "Completed" && running {
        word = "Running".to_owned();
    }
    finish(pod, word)
}

fn finish(pod: &Value, word: String) -> String {
    if is_terminating(pod) {
        "Terminating".to_owned()
    } else {
        word
    }
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

    #[test]
    fn the_status_column_tells_the_most_useful_word() {
        let check = |pod: Value, expected: &str| {
            let cells = cells(&pod, Timestamp::UNIX_EPOCH);
            assert_eq!(cells[2], expected, "{pod}");
        };
        check(json!({"status": {"phase": "Pending"}}), "Pending");
        check(
            json!({"status": {"phase": "Running", "containerStatuses": [
                {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}}),
            "CrashLoopBackOff",
        );
        check(
            json!({"status": {"phase": "Succeeded", "containerStatuses": [
                {"state": {"terminated": {"reason": "Completed", "exitCode": 0}}}]}}),
            "Completed",
        );
        check(
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
                   "status": {"phase": "Running"}}),
            "Terminating",
        );
        check(
            json!({"status": {"phase": "Pending", "initContainerStatuses": [
                {"state": {"running": {}}}, {}]}}),
            "Init:0/2",
        );
    }
}
