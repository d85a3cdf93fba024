#![allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself

use super::*;
use serde_json::json;

fn created(rules: &dyn Rules, mut object: Value) -> (Value, Review) {
    rules.default(&mut object);
    rules.prepare_create(&mut object);
    let review = rules.validate_create(&object, &FeatureGates::default());
    let again = {
        let mut again = object.clone();
        rules.default(&mut again);
        again
    };
    assert_eq!(again, object, "defaults are idempotent");
    (object, review)
}

fn texts(review: &Review) -> Vec<String> {
    review.errors.iter().map(ToString::to_string).collect()
}

fn hook(spec: Value) -> Vec<String> {
    texts(&created(&ExecutionHookRules, json!({"spec": spec})).1)
}

fn selecting(selection: Value) -> Vec<String> {
    hook(json!({"podSelection": selection, "actionName": "a"}))
}

fn action(fields: Value) -> Vec<String> {
    texts(&created(&HookActionRules, fields).1)
}

#[test]
fn a_hook_names_pods_and_an_action() {
    assert_eq!(
        hook(json!({})),
        [
            "spec.podSelection: Required value: say where to run the action: podContainerNamesList or podContainerSelector",
            "spec.actionName: Required value"
        ]
    );
    let (object, review) = created(
        &ExecutionHookRules,
        json!({"spec": {
            "podSelection": {"podContainerNamesList": [{"podName": "db", "containerNames": ["c"]}]},
            "actionName": "a",
        }, "status": {"actionSucceed": true}}),
    );
    assert_eq!(review, Review::default());
    assert_eq!(object["spec"]["deadlineSeconds"], 60);
    assert_eq!(object["status"], json!({}), "a client writes no status");
}

#[test]
fn a_selector_without_pod_selector_is_refused() {
    assert_eq!(
        selecting(json!({"podContainerSelector": {"containerList": ["c"]}})),
        [
            "spec.podSelection.podContainerSelector.podSelector: Required value: say which pods; {} selects every pod of the namespace"
        ]
    );
    assert!(selecting(json!({"podContainerSelector": {"podSelector": {}}})).is_empty());
    let bad = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
    assert_eq!(
        selecting(json!({"podContainerSelector": {"podSelector": bad}})).len(),
        1
    );
}

#[test]
fn names_have_their_form_and_are_given_once() {
    let entry = |pod: &str, containers: Value| {
        selecting(json!({"podContainerNamesList": [
            {"podName": "other"}, {"podName": pod, "containerNames": containers},
        ]}))
    };
    assert!(entry("db", json!(["a", "b"])).is_empty());
    for (pod, containers, field) in [
        ("", json!([]), "podName: Required"),
        ("myPod1", json!([]), "podName: Invalid"),
        ("other", json!([]), "podName: Duplicate"),
        ("db", json!(["a", "a"]), "containerNames[1]: Duplicate"),
        ("db", json!(["A"]), "containerNames[0]: Invalid"),
        ("db", json!([""]), "containerNames[0]: Invalid"),
    ] {
        let errors = entry(pod, containers);
        assert_eq!(errors.len(), 1, "{errors:?}");
        let at = format!("spec.podSelection.podContainerNamesList[1].{field}");
        assert!(errors[0].starts_with(&at), "{}", errors[0]);
    }
}

#[test]
fn what_fails_at_once_or_is_not_used_is_stored_with_a_warning() {
    for (selection, at) in [
        (json!({}), "spec.podSelection: neither"),
        (
            json!({"podContainerNamesList": [{"podName": "a"}], "podContainerSelector": {"podSelector": {}}}),
            "spec.podSelection.podContainerSelector: not used",
        ),
    ] {
        let spec = json!({"podSelection": selection, "actionName": "a"});
        let (_, review) = created(&ExecutionHookRules, json!({"spec": spec}));
        assert!(review.errors.is_empty());
        assert_eq!(review.warnings.len(), 1);
        assert!(review.warnings[0].starts_with(at), "{:?}", review.warnings);
    }
}

#[test]
fn times_of_a_hook_are_not_nothing() {
    for (field, value) in [("deadlineSeconds", 0), ("ttlSecondsAfterFinished", -1)] {
        let errors = hook(json!({
            "podSelection": {}, "actionName": "a", field: value,
        }));
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with(&format!("spec.{field}: Invalid")));
    }
}

#[test]
fn the_spec_of_a_hook_is_immutable_and_an_action_is_not() {
    let spec = json!({"podSelection": {}, "actionName": "a"});
    let (old, _) = created(&ExecutionHookRules, json!({ "spec": spec }));
    for (field, value) in [
        (
            "podSelection",
            json!({"podContainerNamesList": [{"podName": "a"}]}),
        ),
        ("actionName", json!("b")),
        ("deadlineSeconds", json!(7)),
        ("ttlSecondsAfterFinished", json!(7)),
    ] {
        let mut new = old.clone();
        new["spec"][field] = value;
        let review = ExecutionHookRules.validate_update(&new, &old, &FeatureGates::default());
        assert_eq!(review.errors.len(), 1);
        assert_eq!(review.errors[0].field, format!("spec.{field}"));
    }
    let exec = |name: &str| json!({"action": {"exec": {"command": [name]}}});
    let review = HookActionRules.validate_update(&exec("a"), &exec("b"), &FeatureGates::default());
    assert_eq!(review, Review::default());
    let review = HookActionRules.validate_update(&json!({}), &exec("b"), &FeatureGates::default());
    assert_eq!(review.errors.len(), 1, "what it changes to is checked");
}

#[test]
fn an_action_is_complete() {
    assert_eq!(
        action(json!({})),
        ["action: Required value: say what to do: exec, httpGet or tcpSocket"]
    );
    let cases = [
        (
            json!({}),
            "action: Required value: must specify a handler type",
        ),
        (json!({"exec": {}}), "action.exec.command: Required value"),
        (
            json!({"exec": {"command": ["a"]}, "httpGet": {"port": 80}}),
            "action.httpGet: Forbidden: may not specify more than 1 handler type",
        ),
        (
            json!({"sleep": {"seconds": 1}}),
            "action.sleep: Forbidden: does nothing in a container; use exec, httpGet or tcpSocket",
        ),
        (
            json!({"exec": {"command": ["a"]}, "sleep": {"seconds": 1}}),
            "action.sleep: Forbidden: does nothing in a container; use exec, httpGet or tcpSocket",
        ),
        (
            json!({"httpGet": {"port": 80, "host": "db"}}),
            "action.httpGet.host: Forbidden: may not be set: the request goes to the pod",
        ),
        (
            json!({"tcpSocket": {"port": 80, "host": "db"}}),
            "action.tcpSocket.host: Forbidden: may not be set: the connection goes to the pod",
        ),
        (
            json!({"tcpSocket": {"port": 0}}),
            "action.tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ),
    ];
    for (handler, expected) in cases {
        assert_eq!(action(json!({ "action": handler })), [expected]);
    }
    let get = json!({"httpGet": {"port": "web"}});
    let (object, review) = created(&HookActionRules, json!({ "action": get }));
    assert_eq!(review, Review::default());
    assert_eq!(object["actionTimeoutSeconds"], 30);
    assert_eq!(object["action"]["httpGet"]["path"], "/");
    assert_eq!(object["action"]["httpGet"]["scheme"], "HTTP");
}

#[test]
fn an_action_has_at_least_a_second() {
    for seconds in [0, -1] {
        let errors = action(json!({
            "action": {"exec": {"command": ["a"]}}, "actionTimeoutSeconds": seconds,
        }));
        assert_eq!(
            errors,
            [format!(
                "actionTimeoutSeconds: Invalid value: {seconds}: must be greater than or equal to 1"
            )]
        );
    }
}

#[test]
fn what_came_of_many_containers_is_compared_in_time_that_grows_with_their_number() {
    let containers: Value = (0..50_000)
        .map(|i| json!({"name": format!("c{i}")}))
        .collect();
    let object = json!({"status": {"state": "New", "containers": containers}});
    let review = PodActionRules.validate_status(&object, &object);
    assert_eq!(texts(&review), Vec::<String>::new());
}

#[test]
fn a_pod_action_is_complete() {
    let errors = texts(&created(&PodActionRules, json!({"spec": {}})).1);
    let required = [
        "hook.name",
        "hook.uid",
        "podName",
        "podUID",
        "nodeName",
        "containers",
        "actionTimeoutSeconds",
        "deadlineSeconds",
        "action",
    ];
    assert_eq!(errors.len(), required.len(), "{errors:?}");
    for (field, error) in required.iter().zip(errors) {
        assert!(
            error.starts_with(&format!("spec.{field}: Required")),
            "{error}"
        );
    }
}
