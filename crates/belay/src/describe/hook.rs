//! A hook, its containers, and what happened in order; an action; what a hook asked for in one pod.

use belay_api::hook::{ExecutionHook, HookAction, PodAction, PodSelection};
use belay_api::selector::LabelSelector;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;

use super::{conditions, facts, section};
use crate::hook;
use crate::table::Table;
use crate::timeline::Timeline;

pub(super) fn describe(object: &ExecutionHook, actions: &[PodAction], events: &[Event]) -> String {
    let spec = &object.spec;
    let status = object.status.clone().unwrap_or_default();
    let resolved = status.action.as_ref();
    let seconds = |seconds: i64| format!("{seconds} s after the first start in a container");
    let count = |count: Option<i32>| count.unwrap_or(0);
    let mut out = facts([
        ("Name", object.name_any()),
        ("Namespace", object.namespace().unwrap_or_default()),
        ("Selects", selection(&spec.pod_selection)),
        ("Action", spec.action_name.clone()),
        (
            "Runs",
            resolved.map_or_else(String::new, |it| hook::handler(&it.action)),
        ),
        (
            "Timeout",
            resolved.map_or_else(String::new, |it| seconds(it.action_timeout_seconds)),
        ),
        (
            "Deadline",
            format!("{} s after creation, to start", spec.deadline_seconds),
        ),
        (
            "Succeeded",
            match status.action_succeed {
                None => "not known yet".to_owned(),
                Some(all) => all.to_string(),
            },
        ),
        (
            "Error",
            status
                .error
                .as_ref()
                .map_or_else(String::new, hook::failure),
        ),
        (
            "Containers",
            format!(
                "{} selected, {} succeeded, {} failed",
                count(status.target_count),
                count(status.succeeded_count),
                count(status.failed_count)
            ),
        ),
    ]);
    let results = hook::results(&status, &hook::outputs(actions));
    if !results.is_empty() {
        out.push_str(&section("Results", &results.to_string()));
    }
    out.push_str(&conditions(&status.conditions));
    let timeline = Timeline::of_hook(object, actions, events);
    out.push_str(&section("Timeline", &timeline.render().to_string()));
    out
}

fn selection(selection: &PodSelection) -> String {
    let list = &selection.pod_container_names_list;
    if !list.is_empty() {
        let pods = list.iter().map(|one| match one.container_names.as_slice() {
            [] => one.pod_name.clone(),
            names => format!("{}/{}", one.pod_name, names.join(",")),
        });
        return pods.collect::<Vec<_>>().join(" ");
    }
    let Some(selector) = &selection.pod_container_selector else {
        return "nothing".to_owned();
    };
    let pods = match LabelSelector::try_from(&selector.pod_selector) {
        Ok(selector) if selector.is_empty() => "every pod of the namespace".to_owned(),
        Ok(selector) => selector.to_string(),
        Err(error) => error.to_string(),
    };
    match selector.container_list.as_slice() {
        [] => pods,
        names => format!("{pods} (containers {})", names.join(", ")),
    }
}

pub(super) fn describe_action(object: &HookAction) -> String {
    facts([
        ("Name", object.name_any()),
        ("Namespace", object.namespace().unwrap_or_default()),
        ("Runs", hook::handler(&object.spec.action)),
        (
            "Timeout",
            format!(
                "{} s after the first start in a container",
                object.spec.action_timeout_seconds
            ),
        ),
    ])
}

pub(super) fn describe_pod_action(object: &PodAction) -> String {
    let (spec, status) = (&object.spec, object.status.clone().unwrap_or_default());
    let mut out = facts([
        ("Name", object.name_any()),
        ("Namespace", object.namespace().unwrap_or_default()),
        ("Hook", spec.hook.name.clone()),
        ("Pod", spec.pod_name.clone()),
        ("Pod UID", spec.pod_uid.clone()),
        ("Runs", hook::handler(&spec.action)),
        ("Node", spec.node_name.clone()),
        ("Executor", status.executor.clone().unwrap_or_default()),
        ("State", object.state().to_string()),
        (
            "Error",
            status
                .error
                .as_ref()
                .map_or_else(String::new, hook::failure),
        ),
    ]);
    let mut table = Table::new(["NAME", "SUCCEEDED", "ATTEMPTS", "ERROR"]);
    for container in &status.containers {
        let succeeded = container.succeed.map(|it| it.to_string());
        table.row_with(
            [
                container.name.clone(),
                succeeded.unwrap_or_else(|| "-".to_owned()),
                container.attempts.unwrap_or(0).to_string(),
                container
                    .error
                    .as_ref()
                    .map_or_else(String::new, hook::failure),
            ],
            container
                .output
                .iter()
                .flat_map(|output| output.lines().map(str::to_owned)),
        );
    }
    if !table.is_empty() {
        out.push_str(&section("Containers", &table.to_string()));
    }
    out.push_str(&conditions(&status.conditions));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_hook_is_described_with_its_action_containers_and_timeline() {
        let object: ExecutionHook = serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "ExecutionHook",
            "metadata": {"name": "h", "namespace": "default",
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"actionName": "flush", "podSelection": {"podContainerSelector": {
                "podSelector": {"matchLabels": {"app": "db"}}, "containerList": ["main"]}}},
            "status": {
                "startTime": "2026-01-01T00:00:00Z", "completeTime": "2026-01-01T00:00:04Z",
                "action": {"uid": "a", "resourceVersion": "1", "actionTimeoutSeconds": 3,
                    "action": {"exec": {"command": ["flush.sh", "-v"]}}},
                "targetCount": 2, "succeededCount": 1, "failedCount": 1, "actionSucceed": false,
                "hookStatuses": [
                    {"podName": "db-0", "containerName": "main", "timestamp": 1_767_225_601,
                     "succeed": true, "attempts": 2},
                    {"podName": "db-1", "containerName": "main", "timestamp": 1_767_225_601,
                     "succeed": false, "attempts": 5, "exitCode": 3,
                     "error": {"errorType": "ExecutionFailwithError", "message": "exit code 3"}},
                ],
            },
        }))
        .unwrap();
        assert_eq!(
            describe(&object, &[], &[]),
            "\
Name:        h
Namespace:   default
Selects:     app=db (containers main)
Action:      flush
Runs:        exec flush.sh -v
Timeout:     3 s after the first start in a container
Deadline:    60 s after creation, to start
Succeeded:   false
Containers:  2 selected, 1 succeeded, 1 failed
Results:
  POD   CONTAINER  RESULT                  EXIT/SIGNAL  ERROR
  db-1  main       failed (5 attempts)     3            ExecutionFailwithError: exit code 3
  db-0  main       succeeded (2 attempts)  -
Timeline:
  00:00:00Z  +0s  created: \"flush\"
  00:00:00Z  +0s  acknowledged: 2 containers
  00:00:01Z  +1s  db-0/main: started
  00:00:01Z  +1s  db-1/main: started
  00:00:04Z  +4s  failed
"
        );
    }

    #[test]
    fn named_pods_are_told_as_they_are_written() {
        let named: PodSelection = serde_json::from_value(json!({"podContainerNamesList": [
            {"podName": "a"}, {"podName": "b", "containerNames": ["c", "d"]}]}))
        .unwrap();
        assert_eq!(selection(&named), "a b/c,d");
        assert_eq!(selection(&PodSelection::default()), "nothing");
    }
}
