//! The lines of KEP-4960's test plan, and its sentences, that are about the API. Each test quotes
//! what it is about. How containers are stopped is tested in `belay-core` and `e2e`.

// A test that cannot go on stops; and `json!` reads best as the argument itself.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use belay_api::decode::{self, FieldValidation};
use belay_api::gates::{Feature, FeatureGates};
use belay_api::rules::{DAEMON_SET, POD, Review, Rules};
use belay_api::schema;
use serde_json::{Value, json};

/// Where a signal may stand: the seed's place, and the one that upstream chose later.
const PLACES: [&str; 2] = ["/stopSignal", "/lifecycle/stopSignal"];

fn gate(on: bool) -> FeatureGates {
    FeatureGates::default().with(Feature::ContainerStopSignals, on)
}

fn pod(place: &str, signal: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i", "lifecycle": {}});
    if let Some((parent, field)) = place.rsplit_once('/') {
        container.pointer_mut(parent).unwrap()[field] = signal;
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"},
           "spec": {"containers": [container]}})
}

fn field(place: &str) -> String {
    format!("spec.containers[0]{}", place.replace('/', "."))
}

fn review(rules: &dyn Rules, mut object: Value, gates: &FeatureGates) -> Review {
    rules.default(&mut object);
    rules.prepare_create(&mut object);
    rules.drop_disabled(&mut object, None, gates);
    rules.validate_create(&object, gates)
}

fn names() -> Vec<String> {
    let file: Value = serde_json::from_str(include_str!("data/cri_signal_enum.json")).unwrap();
    let all = file["cases"].as_array().unwrap();
    all.iter()
        .filter_map(|one| one["k8s_name"].as_str())
        .map(str::to_owned)
        .collect()
}

/// "Test that the validation fails when given a non string value for StopSignal"
#[test]
fn kep_4960_a_value_that_is_no_string_is_refused() {
    let kind = schema::of("Pod").unwrap();
    for place in PLACES {
        for value in [json!(15), json!(true), json!(["SIGTERM"]), json!({"a": 1})] {
            let text = pod(place, value.clone()).to_string();
            let said = decode::decode(text.as_bytes(), kind, FieldValidation::Strict)
                .unwrap_err()
                .to_string();
            assert!(said.contains(&field(place)), "{value}: {said}");
        }
    }
}

/// "Test that the validation passes when given a proper string value representing a standard stop
/// signal": all 65 of them, in both places.
#[test]
fn kep_4960_every_name_of_a_signal_is_accepted() {
    let names = names();
    assert_eq!(names.len(), 65);
    for place in PLACES {
        for name in &names {
            let errors = review(POD, pod(place, json!(name)), &gate(true)).errors;
            assert!(errors.is_empty(), "{name}: {errors:?}");
        }
    }
}

/// "Test that the validation fails when the StopSignal is given with the feature gate disabled"
#[test]
fn kep_4960_with_the_gate_disabled_a_signal_is_refused() {
    for place in PLACES {
        let errors = review(POD, pod(place, json!("SIGUSR1")), &gate(false)).errors;
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let expected = format!(
            "{}: Forbidden: may not be set while the feature gate ContainerStopSignals is off",
            field(place)
        );
        assert_eq!(said, [expected]);
    }
    // "Does enabling the feature change any default behavior? No": and neither does disabling it.
    for on in [true, false] {
        let none = pod("/stopSignal", Value::Null);
        assert!(review(POD, none, &gate(on)).errors.is_empty());
    }
}

/// "Test that the validation returns the appropriate error message when an invalid string value is
/// given for StopSignal"
#[test]
fn kep_4960_what_is_no_signal_is_refused_with_all_that_are() {
    let wrong = [
        "TERM",
        "sigterm",
        "15",
        "SIGNOPE",
        "SIGRTMIN+16",
        "SIGRTMAX-15",
    ];
    let mut sorted = names();
    sorted.sort();
    let supported: Vec<String> = sorted.iter().map(|name| format!("\"{name}\"")).collect();
    for place in PLACES {
        for name in wrong {
            let errors = review(POD, pod(place, json!(name)), &gate(true)).errors;
            let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let expected = format!(
                "{}: Unsupported value: \"{name}\": supported values: {}",
                field(place),
                supported.join(", ")
            );
            assert_eq!(said, [expected]);
        }
    }
}

/// "Tests for verifying behavior when feature gate is disabled after being used to create Pods where
/// StopSignal field is used". "Existing containers which have the field set would not be cleared."
#[test]
fn kep_4960_a_pod_keeps_its_signal_when_the_gate_is_disabled_after_use() {
    for place in PLACES {
        let mut old = pod(place, json!("SIGUSR1"));
        POD.default(&mut old);
        let mut new = old.clone();
        new["metadata"]["labels"] = json!({"a": "b"});
        POD.drop_disabled(&mut new, Some(&old), &gate(false));
        assert!(
            POD.validate_update(&new, &old, &gate(false))
                .errors
                .is_empty()
        );
        assert_eq!(new["spec"], old["spec"]);
        // "You will no longer be able to create": the same pod under another name.
        let mut other = old.clone();
        other["metadata"]["name"] = json!("q");
        assert_eq!(review(POD, other, &gate(false)).errors.len(), 1);
    }
}

/// "Tests for verifying behavior when feature gate is reenabled after being disabled after creating
/// Pods with StopSignal". "If you reenable the feature, you'll be able to set the StopSignal field in
/// your Container spec again."
#[test]
fn kep_4960_with_the_gate_enabled_again_all_is_as_before() {
    for place in PLACES {
        let mut old = pod(place, json!("SIGUSR1"));
        POD.default(&mut old);
        let mut kept = old.clone();
        POD.drop_disabled(&mut kept, Some(&old), &gate(false));
        let mut again = kept.clone();
        POD.drop_disabled(&mut again, Some(&kept), &gate(true));
        assert!(
            POD.validate_update(&again, &kept, &gate(true))
                .errors
                .is_empty()
        );
        assert_eq!(again, old);
        assert!(review(POD, old, &gate(true)).errors.is_empty());
    }
}

/// "`StopSignal` ... across all types of workloads": a template has the rules of a pod.
#[test]
fn kep_4960_a_template_is_held_to_the_same_rules() {
    let set = |signal: &str| {
        let spec = pod("/stopSignal", json!(signal))["spec"].take();
        json!({"metadata": {"name": "d", "namespace": "n"}, "spec": {
            "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": spec}}})
    };
    assert!(
        review(DAEMON_SET, set("SIGQUIT"), &gate(true))
            .errors
            .is_empty()
    );
    let errors = review(DAEMON_SET, set("QUIT"), &gate(true)).errors;
    assert_eq!(
        errors[0].field,
        "spec.template.spec.containers[0].stopSignal"
    );
    let errors = review(DAEMON_SET, set("SIGQUIT"), &gate(false)).errors;
    assert_eq!(
        errors[0].field,
        "spec.template.spec.containers[0].stopSignal"
    );
}
