//! The lines of KEP-3960's test plan, and its sentences, that are about the API. Each test quotes
//! what it is about. Lines about the handler itself are tested in `belay-core`, those about
//! containers in `e2e`.

// A test that cannot go on stops; and `json!` reads best as the argument itself.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use belay_api::gates::{Feature, FeatureGates};
use belay_api::rules::{DAEMON_SET, POD, Rules};
use serde_json::{Value, json};

const GRACE: i64 = 10;

fn gate(on: bool) -> FeatureGates {
    FeatureGates::default().with(Feature::PodLifecycleSleepAction, on)
}

fn spec(seconds: Option<i64>) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    if let Some(seconds) = seconds {
        container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": seconds}}});
    }
    json!({"containers": [container], "terminationGracePeriodSeconds": GRACE})
}

fn pod(seconds: Option<i64>) -> Value {
    json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec(seconds)})
}

/// Where upstream lets a handler be updated: in a template.
fn daemon_set(seconds: Option<i64>) -> Value {
    json!({"metadata": {"name": "d", "namespace": "n"}, "spec": {
        "selector": {"matchLabels": {"app": "d"}},
        "template": {"metadata": {"labels": {"app": "d"}}, "spec": spec(seconds)}}})
}

/// What is stored of a new object, or the errors.
fn created(rules: &dyn Rules, mut object: Value, gates: &FeatureGates) -> Result<Value, String> {
    rules.default(&mut object);
    rules.prepare_create(&mut object);
    rules.drop_disabled(&mut object, None, gates);
    told(rules.validate_create(&object, gates).errors).map(|()| object)
}

/// What is stored of an update, or the errors.
fn updated(
    rules: &dyn Rules,
    old: &Value,
    mut new: Value,
    gates: &FeatureGates,
) -> Result<Value, String> {
    rules.default(&mut new);
    rules.drop_disabled(&mut new, Some(old), gates);
    told(rules.validate_update(&new, old, gates).errors).map(|()| new)
}

fn told(errors: belay_api::field::Errors) -> Result<(), String> {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    if texts.is_empty() {
        Ok(())
    } else {
        Err(texts.join("\n"))
    }
}

/// The seconds that an object asks for.
fn sleep(object: &Value) -> Option<i64> {
    let spec = match object["spec"].get("template") {
        Some(template) => &template["spec"],
        None => &object["spec"],
    };
    spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"].as_i64()
}

fn refusal(seconds: i64) -> String {
    format!(
        "spec.containers[0].lifecycle.preStop.sleep: Invalid value: {seconds}: must be non-negative \
         and less than terminationGracePeriodSeconds ({GRACE})"
    )
}

/// "Test that the validation returns an error when given an invalid duration value (e.g., a negative
/// value)."
#[test]
fn kep_3960_a_negative_duration_is_refused() {
    for seconds in [-1, -2, i64::MIN] {
        let said = created(POD, pod(Some(seconds)), &gate(true)).unwrap_err();
        assert_eq!(said, refusal(seconds));
    }
}

/// "Test that the validation returns an error when given duration is longer than the termination
/// graceperiod."
#[test]
fn kep_3960_a_duration_longer_than_the_grace_period_is_refused() {
    for seconds in [GRACE + 1, 3600, i64::MAX] {
        let said = created(POD, pod(Some(seconds)), &gate(true)).unwrap_err();
        assert_eq!(said, refusal(seconds));
    }
}

/// The boundaries on the right side: nothing, the least, the whole grace period.
#[test]
fn kep_3960_durations_from_nothing_to_the_whole_grace_period_are_accepted() {
    for seconds in [0, 1, 2, GRACE - 1, GRACE] {
        let stored = created(POD, pod(Some(seconds)), &gate(true)).unwrap();
        assert_eq!(sleep(&stored), Some(seconds));
    }
}

/// "Test the handler is silently dropped when a pod created with feature-gate disabled."
#[test]
fn kep_3960_the_handler_of_a_pod_created_with_the_gate_disabled_is_dropped_silently() {
    let stored = created(POD, pod(Some(5)), &gate(false)).unwrap();
    assert_eq!(stored["spec"]["containers"][0].get("lifecycle"), None);
    // What would be invalid is dropped, too, and nobody complains about it.
    for seconds in [-1, GRACE + 1] {
        let stored = created(POD, pod(Some(seconds)), &gate(false)).unwrap();
        assert_eq!(sleep(&stored), None);
    }
}

/// "Test the handler is correctly added when a pod created with feature-gate enabled."
#[test]
fn kep_3960_the_handler_of_a_pod_created_with_the_gate_enabled_is_there() {
    let stored = created(POD, pod(Some(5)), &gate(true)).unwrap();
    assert_eq!(sleep(&stored), Some(5));
    let stored = created(DAEMON_SET, daemon_set(Some(5)), &gate(true)).unwrap();
    assert_eq!(sleep(&stored), Some(5));
}

/// "Test the handler is silently dropped when a pod created with no handler and feature-gate enabled
/// is updated with handler and feature-gate disabled." On the gate function, as upstream tests it;
/// the update of a real object goes through a template.
#[test]
fn kep_3960_a_handler_that_an_update_adds_with_the_gate_disabled_is_dropped_silently() {
    let old = created(POD, pod(None), &gate(true)).unwrap();
    let mut new = pod(Some(5));
    POD.default(&mut new);
    POD.drop_disabled(&mut new, Some(&old), &gate(false));
    assert_eq!(new["spec"], old["spec"], "as if nobody had asked for it");

    let old = created(DAEMON_SET, daemon_set(None), &gate(true)).unwrap();
    let new = updated(DAEMON_SET, &old, daemon_set(Some(5)), &gate(false)).unwrap();
    assert_eq!(new["spec"], old["spec"]);
}

/// "Test the handler is correctly added when a pod created with no handler and feature-gate disabled
/// is updated with handler and feature-gate enabled."
#[test]
fn kep_3960_a_handler_that_an_update_adds_with_the_gate_enabled_is_there() {
    let old = created(POD, pod(None), &gate(false)).unwrap();
    let mut new = pod(Some(5));
    POD.default(&mut new);
    POD.drop_disabled(&mut new, Some(&old), &gate(true));
    assert_eq!(sleep(&new), Some(5));

    let old = created(DAEMON_SET, daemon_set(None), &gate(false)).unwrap();
    let new = updated(DAEMON_SET, &old, daemon_set(Some(5)), &gate(true)).unwrap();
    assert_eq!(sleep(&new), Some(5));
    let said = updated(DAEMON_SET, &old, daemon_set(Some(GRACE + 1)), &gate(true)).unwrap_err();
    assert!(said.starts_with("spec.template.spec.containers[0].lifecycle.preStop.sleep: Invalid"));
}

/// What both of these lines say of a pod is more than any API server lets a user do: the spec of a
/// pod stays as it is.
#[test]
fn kep_3960_a_pod_s_own_handler_cannot_be_updated_whatever_the_gate() {
    let old = created(POD, pod(None), &gate(true)).unwrap();
    let said = updated(POD, &old, pod(Some(5)), &gate(true)).unwrap_err();
    assert!(
        said.starts_with("spec: Forbidden: pod updates may not change fields other than"),
        "{said}"
    );
    // With the gate off nothing is left of the change that could be refused.
    assert!(updated(POD, &old, pod(Some(5)), &gate(false)).is_ok());
}

/// "It will silently drop the sleep prestop hook if someone wants to add that to the object (or
/// create object with it). However, existing objects that have it set will not be cleared."
#[test]
fn kep_3960_what_existing_objects_have_is_not_cleared() {
    for (rules, object) in [(POD, pod(Some(5))), (DAEMON_SET, daemon_set(Some(5)))] {
        let old = created(rules, object, &gate(true)).unwrap();
        let mut touched = old.clone();
        touched["metadata"]["labels"] = json!({"a": "b"});
        let new = updated(rules, &old, touched, &gate(false)).unwrap();
        assert_eq!(sleep(&new), Some(5));
    }
    // In use is in use: a template that has one may get another.
    let old = created(DAEMON_SET, daemon_set(Some(5)), &gate(true)).unwrap();
    let new = updated(DAEMON_SET, &old, daemon_set(Some(7)), &gate(false)).unwrap();
    assert_eq!(sleep(&new), Some(7));
    // And what it has given up it does not get back.
    let without = updated(DAEMON_SET, &old, daemon_set(None), &gate(false)).unwrap();
    let new = updated(DAEMON_SET, &without, daemon_set(Some(5)), &gate(false)).unwrap();
    assert_eq!(sleep(&new), None);
}

/// "New pods with sleep action in prestop hook can be created" when the feature is enabled again.
#[test]
fn kep_3960_with_the_gate_enabled_again_all_is_as_before() {
    let old = created(POD, pod(Some(5)), &gate(true)).unwrap();
    let kept = updated(POD, &old, old.clone(), &gate(false)).unwrap();
    let again = updated(POD, &kept, kept.clone(), &gate(true)).unwrap();
    assert_eq!(again, old);
    let new = created(POD, pod(Some(5)), &gate(true)).unwrap();
    assert_eq!(sleep(&new), Some(5));
}
