#![allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself

use super::*;

fn created(spec: Value) -> (Value, Review) {
    let mut object = json!({"metadata": {"name": "n"}, "spec": spec});
    NotificationRules.prepare_create(&mut object);
    NotificationRules.default(&mut object);
    let review = NotificationRules.validate_create(&object, &FeatureGates::default());
    (object, review)
}

fn errors(spec: Value) -> Vec<String> {
    let (_, review) = created(spec);
    review.errors.iter().map(ToString::to_string).collect()
}

fn spec() -> Value {
    json!({"selector": {"matchLabels": {"app": "web"}}, "notifier": "reload"})
}

fn with(field: &str, value: Value) -> Value {
    let mut spec = spec();
    spec[field] = value;
    spec
}

#[test]
fn what_is_left_out_is_filled_in_and_a_status_that_is_sent_is_not_kept() {
    let (object, review) = created(spec());
    assert!(review.errors.is_empty() && review.warnings.is_empty());
    assert_eq!(object["spec"]["policy"], "AllPods");
    assert_eq!(object["spec"]["parallelism"], 0);
    assert_eq!(
        object["spec"].get("deadlineSeconds"),
        None,
        "it would bound all pods together"
    );
    let mut forged = json!({"spec": spec(), "status": {"state": "Succeeded", "succeededCount": 9}});
    NotificationRules.prepare_create(&mut forged);
    assert_eq!(forged["status"]["state"], "New");
    assert_eq!(forged["status"]["succeededCount"], 0);
    let mut again = object.clone();
    NotificationRules.default(&mut again);
    assert_eq!(again, object, "defaults are idempotent");
}

#[test]
fn every_mistake_is_named_with_its_field() {
    assert_eq!(
        errors(json!({})),
        [
            "spec.selector: Required value: say which pods to notify; {} selects every pod of the namespace",
            "spec.notifier: Required value",
        ]
    );
    assert!(errors(with("selector", json!({}))).is_empty());
    assert_eq!(
        errors(with("policy", json!("Some"))),
        [
            "spec.policy: Unsupported value: \"Some\": supported values: \"AllPods\", \"PreExistingPods\""
        ]
    );
    for (field, value) in [("deadlineSeconds", 0), ("maxFailures", 0)] {
        assert_eq!(
            errors(with(field, json!(value))),
            [format!(
                "spec.{field}: Invalid value: 0: must be greater than or equal to 1"
            )]
        );
    }
    assert_eq!(
        errors(with("ttlSecondsAfterFinished", json!(-1))),
        ["spec.ttlSecondsAfterFinished: Invalid value: -1: must be greater than or equal to 0"]
    );
    assert_eq!(errors(with("notifier", json!("a b"))).len(), 1);
}

#[test]
fn selectors_are_refused_as_upstream_refuses_them() {
    let expression =
        |expression: Value| errors(with("selector", json!({"matchExpressions": [expression]})));
    assert!(expression(json!({"key": "a", "operator": "In", "values": ["x"]})).is_empty());
    assert!(expression(json!({"key": "a", "operator": "Exists"})).is_empty());
    for (bad, field) in [
        (
            json!({"key": "a", "operator": "In"}),
            "values: Required value",
        ),
        (
            json!({"key": "a", "operator": "Exists", "values": ["x"]}),
            "values: Forbidden",
        ),
        (
            json!({"key": "a", "operator": "Gt", "values": ["1"]}),
            "operator: Invalid value: \"Gt\"",
        ),
        (
            json!({"key": "a b", "operator": "Exists"}),
            "key: Invalid value",
        ),
        (
            json!({"key": "a", "operator": "In", "values": ["x y"]}),
            "values[0]: Invalid value",
        ),
    ] {
        let errors = expression(bad);
        assert_eq!(errors.len(), 1, "{errors:?}");
        let at = format!("spec.selector.matchExpressions[0].{field}");
        assert!(errors[0].starts_with(&at), "{}", errors[0]);
    }
    let errors = errors(with("selector", json!({"matchLabels": {"a b": "x"}})));
    assert_eq!(errors.len(), 1);
}

#[test]
fn what_has_no_effect_or_fails_at_once_is_stored_with_a_warning() {
    for (field, value, policy) in [
        ("parallelism", -1, "PreExistingPods"),
        ("ttlSecondsAfterFinished", 5, "AllPods"),
    ] {
        let mut spec = with(field, json!(value));
        spec["policy"] = json!(policy);
        let (_, review) = created(spec);
        assert!(review.errors.is_empty());
        assert_eq!(review.warnings.len(), 1);
        assert!(review.warnings[0].starts_with(&format!("spec.{field}: ")));
    }
}

#[test]
fn the_spec_is_immutable() {
    let (old, _) = created(spec());
    for (field, value) in [
        ("selector", json!({})),
        ("policy", json!("PreExistingPods")),
        ("notifier", json!("other")),
        ("parallelism", json!(3)),
        ("deadlineSeconds", json!(7)),
        ("ttlSecondsAfterFinished", json!(7)),
        ("maxFailures", json!(7)),
    ] {
        let mut new = old.clone();
        new["spec"][field] = value;
        let review = NotificationRules.validate_update(&new, &old, &FeatureGates::default());
        assert_eq!(review.errors.len(), 1);
        assert_eq!(review.errors[0].field, format!("spec.{field}"));
    }
}
