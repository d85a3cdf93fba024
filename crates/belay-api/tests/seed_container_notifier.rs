//! The promises of the container notifier design (phases 1 and 2, without selectors) that are
//! about the API. Each test quotes the sentence that it keeps.

// A test that cannot go on stops; and `json!` reads best as the argument itself.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use belay_api::gates::{Feature, FeatureGates};
use belay_api::notification::{
    ContainerNotificationStatus, ErrorType, PodNotification, PodNotificationSpec,
    PodNotificationStatus, State,
};
use belay_api::pod::{NotifierAction, Pod};
use belay_api::rules::{POD, POD_NOTIFICATION, Review};
use belay_api::signal::Signal;
use serde_json::{Value, json};

fn pod(notifiers: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db", "namespace": "default"},
           "spec": {"containers": [{"name": "mysql", "image": "mysql:8", "notifiers": notifiers}]}})
}

fn exec(name: &str) -> Value {
    json!({"name": name, "handler": {"exec": {"command": ["/run", name]}}, "timeoutSeconds": 5})
}

/// A new pod as the server stores it, and what the server says about it.
fn create(pod: Value, gates: &FeatureGates) -> (Value, Review) {
    let mut pod = pod;
    POD.prepare_create(&mut pod);
    POD.drop_disabled(&mut pod, None, gates);
    POD.default(&mut pod);
    let review = POD.validate_create(&pod, gates);
    (pod, review)
}

fn created(notifiers: Value) -> Vec<String> {
    let (_, review) = create(pod(notifiers), &FeatureGates::default());
    review
        .errors
        .iter()
        .map(|error| error.field.clone())
        .collect()
}

fn window(pod: Value) -> Pod {
    serde_json::from_value(pod).unwrap()
}

fn notification(spec: Value) -> (Value, Vec<String>) {
    let mut object = json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
                            "metadata": {"name": "n", "namespace": "default"}, "spec": spec});
    POD_NOTIFICATION.prepare_create(&mut object);
    POD_NOTIFICATION.default(&mut object);
    let review = POD_NOTIFICATION.validate_create(&object, &FeatureGates::default());
    let fields = review.errors.iter().map(ToString::to_string).collect();
    (object, fields)
}

/// Errors of a status write on a notification that has this status.
fn report(old: Value, new: Value) -> Vec<String> {
    let (object, _) = notification(json!({"podName": "db", "notifier": "lock"}));
    let with = |status: Value| {
        let mut object = object.clone();
        object["status"] = status;
        object
    };
    let review = POD_NOTIFICATION.validate_status(&with(new), &with(old));
    review.errors.iter().map(ToString::to_string).collect()
}

/// "Users can specify an optional list of commands in `Pod`s specification at container level."
#[test]
fn commands_are_specified_in_a_container_and_optional() {
    assert!(created(json!([exec("lockTables"), exec("unlockTables")])).is_empty());
    assert!(created(json!([])).is_empty());
    let (stored, review) = create(
        json!({"spec": {"containers": [{"name": "a", "image": "i"}]}}),
        &FeatureGates::default(),
    );
    assert!(review.errors.is_empty());
    assert!(stored["spec"]["containers"][0].get("notifiers").is_none());
}

/// "Each notifier must have a unique name within the Container."
#[test]
fn each_notifier_has_a_unique_name_within_the_container() {
    assert_eq!(
        created(json!([exec("lock"), exec("lock")])),
        ["spec.containers[0].notifiers[1].name"]
    );
}

/// "Name must be a valid label key."
#[test]
fn a_name_is_a_valid_label_key() {
    for bad in ["", "a b", "-a", "a/b/c", "UPPER.example/a/"] {
        assert!(!created(json!([exec(bad)])).is_empty(), "{bad:?}");
    }
}

/// "Names with the prefix `k8s.io/` are reserved for Kubernetes-defined "well-known" notifiers."
#[test]
fn names_with_the_prefix_k8s_io_are_reserved() {
    assert_eq!(
        created(json!([exec("k8s.io/quiesce")])),
        ["spec.containers[0].notifiers[0].name"]
    );
}

/// "Names with other prefixes such as `example.com/` or unprefixed are custom names."
#[test]
fn other_prefixes_and_none_are_custom_names() {
    assert!(created(json!([exec("example.com/quiesce"), exec("quiesce")])).is_empty());
}

/// "Immutable." (of a notifier)
#[test]
fn a_notifier_is_immutable() {
    let (old, _) = create(pod(json!([exec("lock")])), &FeatureGates::default());
    for change in ["name", "handler", "timeoutSeconds"] {
        let mut new = old.clone();
        let at = &mut new["spec"]["containers"][0]["notifiers"][0];
        at[change] = match change {
            "name" => json!("other"),
            "handler" => json!({"signal": "SIGHUP"}),
            _ => json!(77),
        };
        let review = POD.validate_update(&new, &old, &FeatureGates::default());
        assert_eq!(review.errors.len(), 1, "{change}");
        assert!(review.errors[0].to_string().starts_with("spec: Forbidden"));
    }
}

/// "Number of seconds after which the notifier will time out. Default to 1 second. Minimum value
/// is 1."
#[test]
fn a_timeout_defaults_to_one_second_and_is_at_least_one() {
    let silent = json!([{"name": "n", "handler": {"exec": {"command": ["x"]}}}]);
    let (stored, review) = create(pod(silent), &FeatureGates::default());
    assert!(review.errors.is_empty());
    assert_eq!(
        stored["spec"]["containers"][0]["notifiers"][0]["timeoutSeconds"],
        1
    );
    let notifiers = window(stored).notifiers("mysql").unwrap();
    assert_eq!(notifiers[0].timeout(), std::time::Duration::from_secs(1));
    let mut zero = exec("n");
    zero["timeoutSeconds"] = json!(0);
    assert_eq!(
        created(json!([zero])),
        ["spec.containers[0].notifiers[0].timeoutSeconds"]
    );
}

/// "Exec specifies the action to take." and "Signal specifies a signal to send to the container"
#[test]
fn a_handler_runs_a_command_or_sends_a_signal() {
    let (stored, review) = create(
        pod(json!([exec("lock"), {"name": "reload", "handler": {"signal": "SIGHUP"}}])),
        &FeatureGates::default(),
    );
    assert!(review.errors.is_empty());
    let actions: Vec<_> = window(stored)
        .notifiers("mysql")
        .unwrap()
        .iter()
        .map(|notifier| notifier.action().unwrap())
        .collect();
    assert_eq!(
        actions,
        [
            NotifierAction::Exec(vec!["/run".into(), "lock".into()]),
            NotifierAction::Signal(Signal::HUP)
        ]
    );
}

/// "Exactly one of Exec and Signal should be set."
#[test]
fn exactly_one_of_exec_and_signal_is_set() {
    let handler = |handler: Value| created(json!([{"name": "n", "handler": handler}]));
    assert_eq!(
        handler(json!({})),
        ["spec.containers[0].notifiers[0].handler"]
    );
    assert_eq!(
        handler(json!({"exec": {"command": ["a"]}, "signal": "SIGHUP"})),
        ["spec.containers[0].notifiers[0].handler.signal"]
    );
}

/// "define constants for signals? validate the signals are valid?  windows?"
#[test]
fn signals_are_a_closed_set_and_fewer_on_windows() {
    let signal = |name: &str, os: &str| {
        let mut pod = pod(json!([{"name": "n", "handler": {"signal": name}}]));
        pod["spec"]["os"] = json!({ "name": os });
        create(pod, &FeatureGates::default()).1.errors.is_empty()
    };
    assert!(signal("SIGHUP", "linux") && signal("SIGRTMIN+15", "linux"));
    assert!(!signal("HUP", "linux") && !signal("SIGRTMIN+16", "linux"));
    assert!(signal("SIGTERM", "windows") && !signal("SIGHUP", "windows"));
}

/// "All containers in the specified `Pod` which have the requested "ContainerNotifier" defined in
/// their spec will have their corresponding "ContainerNotifierHandler" executed."
#[test]
fn all_containers_that_declare_a_notifier_are_found() {
    let pod = window(json!({"spec": {"containers": [
        {"name": "a", "notifiers": [exec("flush")]},
        {"name": "b", "notifiers": [exec("other")]},
        {"name": "c", "notifiers": [exec("other"), exec("flush")]}]}}));
    let found: Vec<_> = pod
        .declarations("flush")
        .unwrap()
        .into_iter()
        .map(|(container, _)| container)
        .collect();
    assert_eq!(found, ["a", "c"]);
}

/// "The PodNotification completes immediately if no Container in the Pod has the requested
/// ContainerNotifier defined."
#[test]
fn a_pod_tells_that_no_container_declares_a_notifier() {
    assert!(
        !window(pod(json!([exec("flush")])))
            .declares("lock")
            .unwrap()
    );
}

/// "The name of the Pod to which notification will be addressed. […] Required. Immutable." and
/// "The name of the ContainerNotifier to trigger. […] Required. Immutable."
#[test]
fn pod_name_and_notifier_are_required_and_immutable() {
    let (_, errors) = notification(json!({}));
    assert_eq!(
        errors,
        [
            "spec.podName: Required value",
            "spec.notifier: Required value"
        ]
    );
    let (old, errors) = notification(json!({"podName": "db", "notifier": "lock"}));
    assert!(errors.is_empty());
    for field in [
        "podName",
        "notifier",
        "deadlineSeconds",
        "ttlSecondsAfterFinished",
    ] {
        let mut new = old.clone();
        new["spec"][field] = if field.ends_with('s') || field.contains("Seconds") {
            json!(7)
        } else {
            json!("other")
        };
        let review = POD_NOTIFICATION.validate_update(&new, &old, &FeatureGates::default());
        assert_eq!(review.errors.len(), 1);
        assert!(
            review.errors[0]
                .to_string()
                .ends_with(": field is immutable"),
            "{}",
            review.errors[0]
        );
        assert_eq!(review.errors[0].field, format!("spec.{field}"));
    }
}

/// "Note that a PodNotificaion only notifies a Pod in the same namespace."
#[test]
fn there_is_no_way_to_name_a_pod_of_another_namespace() {
    for name in ["other/db", "db.other/", "../db"] {
        let (_, errors) = notification(json!({"podName": name, "notifier": "lock"}));
        assert_eq!(errors.len(), 1, "{name}");
    }
    let spec = serde_json::to_value(PodNotificationSpec::new("db", "lock")).unwrap();
    assert_eq!(
        spec,
        json!({"podName": "db", "notifier": "lock", "deadlineSeconds": 60})
    );
}

/// "State represents the current stage of the PodNotification. Default to
/// PodNotificationStateNew."
#[test]
fn the_state_is_new_from_creation_whatever_the_client_sends() {
    let mut object = json!({"spec": {"podName": "db", "notifier": "lock"},
                            "status": {"state": "Succeeded", "nodeName": "mine"}});
    POD_NOTIFICATION.prepare_create(&mut object);
    assert_eq!(object["status"], json!({"state": "New"}));
    assert_eq!(PodNotificationStatus::default().state, State::New);
}

/// The constants of the design: `New`, `Succeeded`, `Failed`; `PodNotFound`, `HandlerTimeout`.
#[test]
fn states_and_errors_are_spelled_as_in_the_design() {
    assert_eq!(
        json!([State::New, State::Succeeded, State::Failed]),
        json!(["New", "Succeeded", "Failed"])
    );
    assert_eq!(
        json!([ErrorType::PodNotFound, ErrorType::HandlerTimeout]),
        json!(["PodNotFound", "HandlerTimeout"])
    );
    let error =
        json!({"type": "HandlerTimeout", "message": "m", "timestamp": "2026-01-01T00:00:00Z"});
    let unknown = json!({"type": "Odd", "message": "m", "timestamp": "2026-01-01T00:00:00Z"});
    let failed = |error: Value| json!({"state": "Failed", "completeTime": "2026-01-01T00:00:00Z", "error": error});
    assert!(report(json!({"state": "New"}), failed(error)).is_empty());
    assert_eq!(report(json!({"state": "New"}), failed(unknown)).len(), 1);
}

/// "A `PodNotification` is considered to be successful(i.e., with succeeded flag set to `true`)
/// only if the notification have been successfully executed in all qualified containers"
#[test]
fn a_notification_succeeds_only_if_every_container_did() {
    let succeeded = |second: Value| {
        json!({"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z",
               "containers": [{"name": "a", "succeeded": true}, second]})
    };
    let new = json!({"state": "New"});
    assert!(
        report(
            new.clone(),
            succeeded(json!({"name": "b", "succeeded": true}))
        )
        .is_empty()
    );
    for second in [
        json!({"name": "b", "succeeded": false}),
        json!({"name": "b"}),
    ] {
        let errors = report(new.clone(), succeeded(second));
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with("status.containers[1].succeeded: "));
    }
}

/// "a completed PodNotification does NOT mean the notification has been executed successfully"
#[test]
fn a_failed_notification_is_completed_too() {
    let failed = json!({"state": "Failed", "containers": [{"name": "a", "succeeded": false,
        "error": {"type": "HandlerFailed", "message": "", "timestamp": "2026-01-01T00:00:00Z"}}]});
    assert_eq!(
        report(json!({"state": "New"}), failed.clone()),
        ["status.completeTime: Required value: must be set when the state is Failed"]
    );
    let mut complete = failed;
    complete["completeTime"] = json!("2026-01-01T00:00:00Z");
    assert!(report(json!({"state": "New"}), complete).is_empty());
}

/// "the `PodNotification` controller (or Kubelet in phase 2) will NOT retry upon failures/errors":
/// a final state is final.
#[test]
fn a_final_state_is_final() {
    let done = |state: &str| {
        json!({"state": state, "completeTime": "2026-01-01T00:00:00Z",
               "error": {"type": "Expired", "message": "", "timestamp": "2026-01-01T00:00:00Z"}})
    };
    for (old, new) in [("Failed", "Succeeded"), ("Succeeded", "Failed")] {
        let errors = report(done(old), done(new));
        assert_eq!(
            errors,
            [format!(
                "status.state: Invalid value: \"{new}\": may not change: {old} is final"
            )]
        );
    }
    assert!(!report(done("Failed"), json!({"state": "New"})).is_empty());
    assert!(report(done("Failed"), done("Failed")).is_empty());
}

/// "It will not be specified if the status of execution is unknown(i.e., in execution)."
#[test]
fn success_is_not_specified_while_it_is_unknown() {
    let running = ContainerNotificationStatus {
        name: "mysql".to_owned(),
        ..ContainerNotificationStatus::default()
    };
    assert_eq!(
        serde_json::to_value(running).unwrap(),
        json!({"name": "mysql"})
    );
}

/// "The name of the Container in which the handler has been executed. Required."
#[test]
fn a_result_names_its_container_once() {
    let containers = |containers: Value| {
        report(
            json!({"state": "New"}),
            json!({"state": "New", "containers": containers}),
        )
    };
    assert_eq!(
        containers(json!([{}])),
        ["status.containers[0].name: Required value"]
    );
    assert_eq!(
        containers(json!([{"name": "a"}, {"name": "a"}])),
        ["status.containers[1].name: Duplicate value: \"a\""]
    );
}

/// JSON names are the camelCase of the Go names.
#[test]
fn fields_are_spelled_in_camel_case() {
    let status = json!({
        "containers": [{"name": "a", "startTime": "2026-01-01T00:00:00Z",
            "completeTime": "2026-01-01T00:00:01Z", "succeeded": false,
            "error": {"type": "HandlerTimeout", "message": "m", "timestamp": "2026-01-01T00:00:01Z"},
            "containerID": "c1", "exitCode": 1, "signal": "SIGKILL", "output": "o", "attempts": 1}],
        "startTime": "2026-01-01T00:00:00Z", "completeTime": "2026-01-01T00:00:01Z",
        "state": "Failed",
        "error": {"type": "HandlerTimeout", "message": "m", "timestamp": "2026-01-01T00:00:01Z"},
        "conditions": [{"type": "NotifierFound", "status": "True", "reason": "Declared",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "nodeName": "node", "podUID": "u", "executor": "node"
    });
    let object = json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
        "metadata": {"name": "n"},
        "spec": {"podName": "db", "notifier": "lock", "deadlineSeconds": 5,
                 "ttlSecondsAfterFinished": 0},
        "status": status});
    let typed: PodNotification = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), object);
}

mod the_feature_gate {
    use super::*;

    fn off() -> FeatureGates {
        FeatureGates::default().with(Feature::ContainerNotifier, false)
    }

    /// "Introduce a new gate `ContainerNotifier` to toggle this feature."
    #[test]
    fn toggles_notifiers_in_new_pods() {
        assert_eq!(Feature::ContainerNotifier.name(), "ContainerNotifier");
        let (stored, review) = create(pod(json!([exec("lock")])), &off());
        assert!(review.errors.is_empty());
        assert!(stored["spec"]["containers"][0].get("notifiers").is_none());
    }

    /// "Does enabling the feature change any default behavior? […] No."
    #[test]
    fn changes_nothing_for_pods_without_notifiers() {
        let plain = json!({"spec": {"containers": [{"name": "a", "image": "i"}]}});
        assert_eq!(
            create(plain.clone(), &off()),
            create(plain, &FeatureGates::default())
        );
    }

    /// "If we reenable the feature if it was previously rolled back, user can continue to leverage
    /// the ContainerNotifier feature": stored pods keep their notifiers meanwhile.
    #[test]
    fn leaves_stored_pods_as_they_are() {
        let (stored, _) = create(pod(json!([exec("lock")])), &FeatureGates::default());
        let mut update = stored.clone();
        update["metadata"]["labels"] = json!({"a": "b"});
        let sent = update.clone();
        POD.drop_disabled(&mut update, Some(&stored), &off());
        assert_eq!(update, sent);
        assert!(
            POD.validate_update(&update, &stored, &off())
                .errors
                .is_empty()
        );
        assert!(window(update).declares("lock").unwrap());
    }
}
