//! The rows of `version_skew.json` that are about an API server, as the design reads them: where
//! upstream drops a stop signal silently, a new pod with one is refused.

// A test that cannot go on stops; and `json!` reads best as the argument itself.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::collections::BTreeMap;

use belay_api::gates::{Feature, FeatureGates};
use belay_api::rules::POD;
use serde_json::{Value, json};

fn rows() -> BTreeMap<String, Value> {
    let file: Value = serde_json::from_str(include_str!("data/version_skew.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    cases
        .iter()
        .map(|case| (case["id"].as_str().unwrap().to_owned(), case.clone()))
        .collect()
}

fn gates(row: &Value) -> FeatureGates {
    let on = row["gates"]["apiserver"].as_bool().unwrap();
    FeatureGates::default().with(Feature::ContainerStopSignals, on)
}

fn pod(signal: &Value, os: &Value) -> Value {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {
        "containers": [{"name": "c", "image": "i", "lifecycle": {"stopSignal": signal}}]}});
    if os.is_string() {
        pod["spec"]["os"] = json!({ "name": os });
    }
    pod
}

#[test]
fn a_stop_signal_is_stored_with_the_gate_on_and_refused_with_it_off() {
    let rows = rows();
    for id in [
        "skew-both-off",
        "skew-api-on-kubelet-off",
        "skew-api-off-kubelet-on",
    ] {
        let row = &rows[id];
        let gates = gates(row);
        let create = &row["input"]["create"];
        let mut pod = pod(&create["stopSignal"], &create["os"]);
        POD.drop_disabled(&mut pod, None, &gates);
        POD.default(&mut pod);
        let errors = POD.validate_create(&pod, &gates).errors;
        if gates.enabled(Feature::ContainerStopSignals) {
            assert!(errors.is_empty(), "{id}");
            assert_eq!(
                pod["spec"]["containers"][0]["lifecycle"]["stopSignal"],
                row["expect"]["storedStopSignal"],
                "{id}"
            );
        } else {
            assert_eq!(errors.len(), 1, "{id}");
            assert_eq!(errors[0].field, "spec.containers[0].lifecycle.stopSignal");
        }
    }
}

#[test]
fn a_stop_signal_survives_its_gate_going_off() {
    let row = &rows()["skew-gate-off-after-use"];
    let gates = gates(row);
    let mut old = pod(&row["input"]["old"]["stopSignal"], &Value::Null);
    POD.default(&mut old);
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"a": "b"});
    POD.drop_disabled(&mut new, Some(&old), &gates);
    assert!(POD.validate_update(&new, &old, &gates).errors.is_empty());
    assert_eq!(
        new["spec"]["containers"][0]["lifecycle"]["stopSignal"],
        row["expect"]["storedStopSignal"]
    );
}

#[test]
fn a_sleep_is_dropped_from_new_pods_and_kept_in_old_ones() {
    let row = &rows()["skew-sleep-gate-off-then-on"];
    assert_eq!(row["expect"]["newPodWhileOff"], "field dropped");
    assert_eq!(row["expect"]["existingPodKeepsHook"], true);
    let off = FeatureGates::default().with(Feature::PodLifecycleSleepAction, false);
    let pod = json!({"spec": {"containers": [
        {"name": "c", "image": "i", "lifecycle": {"preStop": {"sleep": {"seconds": 5}}}}]}});
    let mut created = pod.clone();
    POD.drop_disabled(&mut created, None, &off);
    assert_eq!(
        created["spec"]["containers"][0],
        json!({"name": "c", "image": "i"})
    );
    let mut updated = pod.clone();
    POD.drop_disabled(&mut updated, Some(&pod), &off);
    assert_eq!(updated, pod);
}
