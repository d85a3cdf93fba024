use super::*;
use belay_api::hook::Handler;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2030-01-01T00:00:10.5Z".parse().unwrap()
}

fn target(pod: &str, container: &str) -> Target {
    Target {
        pod: pod.into(),
        pod_uid: Some(format!("u-{pod}")),
        container: container.into(),
        node: Ok("n1".into()),
    }
}

fn missing(pod: &str) -> Target {
    Target {
        pod_uid: None,
        node: Err(HookError::new(HookErrorType::PodNotFound, "gone")),
        ..target(pod, "a")
    }
}

fn action() -> ResolvedAction {
    ResolvedAction {
        uid: "au".into(),
        resource_version: "7".into(),
        action: Handler::default(),
        action_timeout_seconds: 30,
    }
}

fn progress(targets: &[Target]) -> Progress {
    Progress::of(started(action(), targets, now()))
}

fn child(pod: &str, version: u32, status: &Value) -> PodAction {
    serde_json::from_value(json!({
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodAction",
        "metadata": {"name": "h-1", "resourceVersion": version.to_string()},
        "spec": {
            "hook": {"name": "h", "uid": "hu"}, "podName": pod, "podUID": format!("u-{pod}"),
            "nodeName": "n1", "containers": ["a"], "action": {},
            "actionTimeoutSeconds": 30, "deadlineSeconds": 60,
        },
        "status": status,
    }))
    .unwrap()
}

fn hook() -> ExecutionHook {
    serde_json::from_value(json!({
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "ExecutionHook",
        "metadata": {"name": "h", "namespace": "ns", "uid": "hu",
            "creationTimestamp": "2030-01-01T00:00:00Z"},
        "spec": {"podSelection": {}, "actionName": "x", "deadlineSeconds": 60},
    }))
    .unwrap()
}

#[test]
fn the_start_names_every_container_and_what_is_run() {
    let progress = progress(&[target("p", "a"), target("p", "b"), missing("q")]);
    let status = progress.status(now());
    assert_eq!(status.action, Some(action()));
    assert_eq!(status.action_succeed, None);
    assert_eq!(status.target_count, Some(3));
    assert_eq!(status.failed_count, Some(1));
    let open = progress.uncreated();
    assert_eq!(open.len(), 1, "one for each pod that there is");
    assert_eq!(open[0].containers, ["a", "b"]);
}

#[test]
fn a_hook_ends_when_it_has_ended_everywhere() {
    let mut progress = progress(&[target("p", "a"), target("q", "a")]);
    let good = json!({"state": "Succeeded", "completeTime": "2030-01-01T00:00:05Z",
        "containers": [{"name": "a", "succeed": true, "attempts": 2, "exitCode": 0,
            "startTime": "2030-01-01T00:00:01.900000Z"}]});
    progress.seen(&child("p", 5, &good));
    assert!(!progress.is_over());
    let status = progress.status(now());
    assert_eq!(
        (status.action_succeed, status.succeeded_count),
        (None, Some(1))
    );
    let started: Timestamp = "2030-01-01T00:00:01Z".parse().unwrap();
    let first = &status.hook_statuses[0];
    assert_eq!(first.timestamp, Some(started.as_second()));
    assert_eq!((first.succeed, first.attempts), (Some(true), Some(2)));
    progress.seen(&child("q", 6, &good));
    let status = progress.status(now());
    assert_eq!(status.action_succeed, Some(true));
    let complete: Timestamp = "2030-01-01T00:00:10Z".parse().unwrap();
    assert_eq!(status.complete_time, Some(Time(complete)));
}

#[test]
fn what_is_told_late_does_not_undo_what_is_known() {
    let mut progress = progress(&[target("p", "a")]);
    let failing = json!({"state": "New", "containers": [{"name": "a", "error":
        {"errorType": "ExecutionFailwithError", "message": "no"}}]});
    progress.seen(&child("p", 9, &failing));
    progress.seen(&child("p", 5, &json!({"state": "New"})));
    let status = progress.status(now());
    assert!(status.hook_statuses[0].error.is_some());
    progress.fail("u-p", &HookError::new(HookErrorType::Cancelled, "gone"));
    progress.seen(&child("p", 12, &json!({"state": "New"})));
    let status = progress.status(now());
    assert_eq!(status.action_succeed, Some(false));
    let error = status.hook_statuses[0].error.as_ref();
    assert_eq!(
        error.map(|it| it.error_type),
        Some(HookErrorType::Cancelled)
    );
}

#[test]
fn an_error_of_the_whole_pod_is_that_of_each_container_without_a_result() {
    let mut progress = progress(&[target("p", "a"), target("p", "b")]);
    let ended = json!({"state": "Failed", "completeTime": "2030-01-01T00:00:05Z",
        "error": {"errorType": "Interrupted", "message": "lost"},
        "containers": [{"name": "a", "succeed": true}]});
    progress.seen(&child("p", 5, &ended));
    let status = progress.status(now());
    assert_eq!(status.action_succeed, Some(false));
    let [a, b] = &status.hook_statuses[..] else {
        panic!("two containers");
    };
    assert_eq!((a.succeed, a.error.as_ref()), (Some(true), None));
    let error = b.error.as_ref().map(|error| error.error_type);
    assert_eq!(
        (b.succeed, error),
        (Some(false), Some(HookErrorType::Interrupted))
    );
}

#[test]
fn who_goes_on_has_only_what_is_open_before_him() {
    let mut first = progress(&[target("p", "a"), target("q", "a")]);
    let good = json!({"state": "Succeeded", "completeTime": "2030-01-01T00:00:05Z",
        "containers": [{"name": "a", "succeed": true}]});
    first.seen(&child("p", 5, &good));
    let mut second = Progress::of(first.status(now()));
    let open: Vec<String> = second
        .uncreated()
        .into_iter()
        .map(|part| part.pod)
        .collect();
    assert_eq!(open, ["q"], "what succeeded is not run again");
    second.seen(&child("q", 6, &json!({"state": "New"})));
    assert!(second.uncreated().is_empty() && second.under_way().len() == 1);
}

#[test]
fn a_podaction_has_what_is_left_of_the_hooks_time() {
    let progress = progress(&[target("p", "a")]);
    let part = &progress.uncreated()[0];
    let left = time_left(&hook(), now(), None).unwrap();
    let made = super::child(&hook(), &action(), part, "n1", left);
    assert_eq!(made.spec.deadline_seconds, 49);
    assert_eq!(made.name_any(), name(&hook(), "u-p"));
    assert_eq!(made.labels()[HOOK_LABEL], "hu");
    assert!(made.is_held() && !made.is_leaving());
    let owner = &made.owner_references()[0];
    assert_eq!((owner.uid.as_str(), owner.controller), ("hu", Some(true)));
    let late: Timestamp = "2030-01-01T00:00:59.5Z".parse().unwrap();
    let error = time_left(&hook(), late, Some("no quota")).unwrap_err();
    assert_eq!(error.error_type, HookErrorType::Expired);
    assert_eq!(error.reason.as_deref(), Some("no quota"));
}

#[test]
fn a_pod_is_recorded_when_all_its_containers_are() {
    let mut object = hook();
    assert!(recorded(&object).is_empty());
    let targets = [
        target("p", "a"),
        target("p", "b"),
        target("q", "a"),
        missing("r"),
    ];
    let mut status = started(action(), &targets, now());
    status.hook_statuses[0].succeed = Some(true);
    status.hook_statuses[2].succeed = Some(false);
    object.status = Some(status.clone());
    assert_eq!(recorded(&object), HashSet::from(["u-q".to_owned()]));
    status.hook_statuses[1].succeed = Some(false);
    object.status = Some(status);
    assert!(recorded(&object).contains("u-p"));
}

#[test]
fn more_containers_than_fit_are_refused() {
    let many: Vec<Target> = (0..=MAX_CONTAINERS)
        .map(|number| target(&format!("p{number}"), "a"))
        .collect();
    let status = started(action(), &many, now());
    assert_eq!(status.action_succeed, Some(false));
    let error = status.error.as_ref().map(|error| error.error_type);
    assert_eq!(error, Some(HookErrorType::TooManyContainers));
    assert!(status.hook_statuses.is_empty());
}

#[test]
fn the_end_is_told_in_a_sentence() {
    let told = |targets: &[Target], error: Option<&HookError>| {
        let mut progress = progress(targets);
        for part in progress.uncreated() {
            match error {
                Some(error) => progress.fail(&part.pod_uid, error),
                None => {
                    let good = json!({"state": "Succeeded", "completeTime": "2030-01-01T00:00:05Z",
                        "containers": [{"name": "a", "succeed": true}]});
                    progress.seen(&child(&part.pod, 5, &good));
                }
            }
        }
        let event = ending(&hook(), &progress.status(now()), now());
        (event.type_.unwrap(), event.message.unwrap())
    };
    let (type_, message) = told(&[target("p", "a")], None);
    assert_eq!(type_, "Normal");
    assert_eq!(message, "the action succeeded in 1 containers");
    let error = HookError::new(HookErrorType::Expired, "late");
    let (type_, message) = told(&[target("p", "a"), target("q", "a")], Some(&error));
    assert_eq!(type_, "Warning");
    assert_eq!(
        message,
        "the action failed in 2 of 2 containers; p/a: Expired: late"
    );
}

#[test]
fn a_pod_whose_podaction_is_seen_has_not_failed_because_its_creation_was_not_answered() {
    let expired = HookError::new(HookErrorType::Expired, "nothing was run");
    let mut unseen = progress(&[target("p", "a")]);
    unseen.not_created("u-p", &expired);
    assert_eq!(unseen.status(now()).action_succeed, Some(false));

    let mut seen = progress(&[target("p", "a")]);
    seen.seen(&child("p", 1, &json!({"state": "New"})));
    seen.not_created("u-p", &expired);
    assert_eq!(seen.status(now()).action_succeed, None, "it may run");
    seen.seen(&child(
        "p",
        2,
        &json!({"state": "Succeeded", "completeTime": "2030-01-01T00:00:05Z",
            "containers": [{"name": "a", "succeed": true, "attempts": 1, "exitCode": 0}]}),
    ));
    assert_eq!(seen.status(now()).action_succeed, Some(true));
}
