//! Pods that a real Kubernetes was asked about: the same pods get the same answers here.

// A test that cannot go on stops; and `json!` reads best as the argument itself.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use std::collections::BTreeSet;

use belay_api::gates::FeatureGates;
use belay_api::metadata::{self, NameRule};
use belay_api::pod::Pod;
use belay_api::rules::POD;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Corpus {
    base: Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    /// Whether the patched pod is sent as an update of the base.
    update: bool,
    patch: json_patch::Patch,
    /// First lines of what upstream says.
    errors: BTreeSet<String>,
}

fn corpus() -> Corpus {
    serde_json::from_str(include_str!("data/upstream_pods.json")).unwrap()
}

fn patched(base: &Value, case: &Case) -> Value {
    let mut pod = base.clone();
    json_patch::patch(&mut pod, &case.patch).unwrap();
    pod
}

#[test]
fn pods_are_judged_as_upstream_judges_them_in_its_words() {
    let Corpus { base, cases } = corpus();
    assert!(cases.len() >= 400);
    let gates = FeatureGates::default();
    let mut old = base.clone();
    POD.default(&mut old);
    for case in &cases {
        let mut pod = patched(&base, case);
        POD.default(&mut pod);
        let errors = if case.update {
            let mut errors = metadata::validate_update(&pod, &old);
            errors.append(POD.validate_update(&pod, &old, &gates).errors);
            errors
        } else {
            let mut errors = metadata::validate_create(&pod, NameRule::DnsSubdomain, true);
            errors.append(POD.validate_create(&pod, &gates).errors);
            errors
        };
        let said: BTreeSet<String> = errors
            .iter()
            .filter_map(|error| error.to_string().lines().next().map(str::to_owned))
            .collect();
        assert_eq!(
            said, case.errors,
            "update: {}, {:?}",
            case.update, case.patch
        );
    }
}

/// Nulls and empty lists mean "absent" in the API.
fn without_nothings(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| {
                !value.is_null() && value.as_array().is_none_or(|a| !a.is_empty())
            });
            object.values_mut().for_each(without_nothings);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nothings),
        _ => {}
    }
}

#[test]
fn what_is_written_in_a_pod_comes_back_from_the_window() {
    let Corpus { base, cases } = corpus();
    let mut read = 0;
    for case in &cases {
        let mut pod = patched(&base, case);
        // Not every pod in the corpus has the types that the window is about.
        let Ok(window) = serde_json::from_value::<Pod>(pod.clone()) else {
            continue;
        };
        read += 1;
        let mut back = serde_json::to_value(window).unwrap();
        as_always_written(&mut pod);
        without_nothings(&mut pod);
        without_nothings(&mut back);
        assert_eq!(back, pod);
    }
    assert!(read >= 350, "only {read} pods were read");
}

/// Fills in what is always written, here as by upstream: names, and the length of a sleep.
fn as_always_written(pod: &mut Value) {
    fn fill(object: Option<&mut Value>, field: &str, value: Value) {
        if let Some(Value::Object(object)) = object {
            object.entry(field).or_insert(value);
        }
    }
    for list in ["containers", "initContainers"] {
        let containers = pod.pointer_mut(&format!("/spec/{list}"));
        for container in containers
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            for hook in ["postStart", "preStop"] {
                let sleep = container.pointer_mut(&format!("/lifecycle/{hook}/sleep"));
                fill(sleep, "seconds", 0.into());
            }
            let variables = container.get_mut("env").and_then(Value::as_array_mut);
            for variable in variables.into_iter().flatten() {
                fill(Some(variable), "name", "".into());
            }
            fill(Some(container), "name", "".into());
        }
    }
}
