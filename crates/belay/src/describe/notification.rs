//! A Notification, its pods, and what happened in order.

use belay_api::fanout::Notification;
use belay_api::notification::{PodNotification, State};
use belay_api::selector::LabelSelector;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;

use super::{conditions, facts, section};
use crate::notify;
use crate::table::Table;
use crate::timeline::{Timeline, span};

pub(super) fn describe(
    object: &Notification,
    children: &[PodNotification],
    events: &[Event],
) -> String {
    let spec = &object.spec;
    let status = object.status.clone().unwrap_or_default();
    let selector = match LabelSelector::try_from(&spec.selector) {
        Ok(selector) if selector.is_empty() => "every pod of the namespace".to_owned(),
        Ok(selector) => selector.to_string(),
        Err(error) => error.to_string(),
    };
    let number = |number: Option<i32>| number.map(|n| n.to_string()).unwrap_or_default();
    let error = status.error.as_ref();
    let mut out = facts([
        ("Name", object.name_any()),
        ("Namespace", object.namespace().unwrap_or_default()),
        ("Selector", selector),
        ("Policy", spec.policy.to_string()),
        ("Notifier", spec.notifier.clone()),
        (
            "Parallelism",
            match spec.parallelism {
                0 => "all at once".to_owned(),
                limit => limit.to_string(),
            },
        ),
        ("Max failures", number(spec.max_failures)),
        ("State", object.state().to_string()),
        (
            "Error",
            error.map_or_else(String::new, |e| format!("{}: {}", e.type_, e.message)),
        ),
        (
            "Pods",
            format!(
                "{} selected, {} succeeded, {} failed, {} waiting",
                status.target_count,
                status.succeeded_count,
                status.failed_count,
                status.pending.len()
            ),
        ),
    ]);
    let mut pods = Table::new(["POD", "STATE", "DURATION", "ERROR", "PODNOTIFICATION"]);
    let mut sorted: Vec<&PodNotification> = children.iter().collect();
    // What failed is what one looks for.
    sorted.sort_by_key(|child| (child.state() != State::Failed, &child.spec.pod_name));
    for child in sorted {
        let status = child.status.clone().unwrap_or_default();
        let failed = child.state() == State::Failed;
        pods.row([
            child.spec.pod_name.clone(),
            child.state().to_string(),
            span(status.start_time.as_ref(), status.complete_time.as_ref()),
            if failed {
                notify::failure(child)
            } else {
                String::new()
            },
            child.name_any(),
        ]);
    }
    if !pods.is_empty() {
        out.push_str(&section("Pods", &pods.to_string()));
    }
    out.push_str(&conditions(&status.conditions));
    let timeline = Timeline::of_fanout(object, children, events);
    out.push_str(&section("Timeline", &timeline.render().to_string()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_notification_is_described_with_its_pods_and_timeline() {
        let object: Notification = serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification",
            "metadata": {"name": "n", "namespace": "default",
                "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "notifier": "reload",
                "policy": "PreExistingPods", "parallelism": 2},
            "status": {"state": "Failed", "targetCount": 2, "succeededCount": 1, "failedCount": 1,
                "startTime": "2026-01-01T00:00:00Z", "completeTime": "2026-01-01T00:00:03Z"},
        }))
        .unwrap();
        let child = |pod: &str, status: serde_json::Value| -> PodNotification {
            serde_json::from_value(json!({
                "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
                "metadata": {"name": format!("n-{pod}"),
                    "creationTimestamp": "2026-01-01T00:00:01Z"},
                "spec": {"podName": pod, "notifier": "reload"}, "status": status,
            }))
            .unwrap()
        };
        let children = [
            child(
                "a",
                json!({"state": "Succeeded", "startTime": "2026-01-01T00:00:01Z",
                    "completeTime": "2026-01-01T00:00:02Z"}),
            ),
            child(
                "b",
                json!({"state": "Failed", "completeTime": "2026-01-01T00:00:03Z",
                    "error": {"type": "Expired", "message": "late",
                        "timestamp": "2026-01-01T00:00:03Z"}}),
            ),
        ];
        assert_eq!(
            describe(&object, &children, &[]),
            "\
Name:         n
Namespace:    default
Selector:     app=web
Policy:       PreExistingPods
Notifier:     reload
Parallelism:  2
State:        Failed
Pods:         2 selected, 1 succeeded, 1 failed, 0 waiting
Pods:
  POD  STATE      DURATION  ERROR          PODNOTIFICATION
  b    Failed     -         Expired: late  n-b
  a    Succeeded  1s                       n-a
Timeline:
  00:00:00Z  +0s  created: \"reload\", PreExistingPods
  00:00:00Z  +0s  acknowledged: 2 pods
  00:00:01Z  +1s  a: notified
  00:00:01Z  +1s  b: notified
  00:00:02Z  +2s  a: Succeeded
  00:00:03Z  +3s  b: Failed
  00:00:03Z  +3s  Failed
"
        );
    }
}
