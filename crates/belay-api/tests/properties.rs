//! Whatever JSON comes, rules and windows answer; and what goes through a window comes back.

// A test that cannot go on stops; and `json!` reads best as the argument itself.
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value)]

use belay_api::gates::{Feature, FeatureGates};
use belay_api::metadata::{self, NameRule};
use belay_api::notification::PodNotification;
use belay_api::pod::{Pod, parse_annotation};
use belay_api::quantity::Quantity;
use belay_api::rules::{self, Rules};
use belay_api::signal::Signal;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const RULES: [&dyn Rules; 10] = [
    rules::POD,
    rules::POD_NOTIFICATION,
    rules::EXECUTION_HOOK,
    rules::HOOK_ACTION,
    rules::POD_ACTION,
    rules::NAMESPACE,
    rules::NODE,
    rules::EVENT,
    rules::CONFIG_MAP,
    rules::LEASE,
];

/// Names that the rules look for, so that arbitrary JSON gets past their first question.
const FIELDS: [&str; 72] = [
    "metadata",
    "spec",
    "status",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "containers",
    "initContainers",
    "ephemeralContainers",
    "image",
    "command",
    "env",
    "valueFrom",
    "fieldRef",
    "fieldPath",
    "ports",
    "containerPort",
    "hostPort",
    "volumeMounts",
    "volumes",
    "mountPath",
    "emptyDir",
    "hostPath",
    "secret",
    "items",
    "lifecycle",
    "preStop",
    "postStart",
    "exec",
    "httpGet",
    "sleep",
    "seconds",
    "port",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "resources",
    "limits",
    "requests",
    "notifiers",
    "handler",
    "signal",
    "timeoutSeconds",
    "undo",
    "hold",
    "maxHoldSeconds",
    "stopSignal",
    "restartPolicy",
    "tolerations",
    "key",
    "securityContext",
    "podName",
    "notifier",
    "state",
    "conditions",
    "capacity",
    "apps.k8s.io/notifiers",
    "podSelection",
    "podContainerNamesList",
    "podContainerSelector",
    "podSelector",
    "containerNames",
    "action",
    "host",
    "hookStatuses",
    "actionSucceed",
    "succeed",
    "hook",
    "errorType",
];

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2_i64..100).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "Always",
            "SIGTERM",
            "SIGCLD",
            "1Gi",
            "100m",
            "-1",
            "New",
            "Failed",
            "a",
            "../b",
            "{\"a\": [{\"name\": \"n\", \"handler\": {\"signal\": \"SIGHUP\"}}]}",
        ])
        .prop_map(Value::from),
    ]
}

fn json_value() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        8 => prop::sample::select(FIELDS.to_vec()).prop_map(str::to_owned),
        1 => ".{0,8}",
    ];
    scalar().prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// An object with the skeleton of a pod and arbitrary JSON in its places.
fn pod_like() -> impl Strategy<Value = Value> {
    (
        json_value(),
        json_value(),
        vec(json_value(), 0..3),
        json_value(),
        json_value(),
    )
        .prop_map(|(metadata, mut spec, containers, status, whole)| {
            if let Some(spec) = spec.as_object_mut() {
                spec.insert("containers".to_owned(), containers.into());
            }
            match metadata {
                Value::Null => whole,
                _ => json!({"metadata": metadata, "spec": spec, "status": status}),
            }
        })
}

fn gates() -> impl Strategy<Value = FeatureGates> {
    vec(any::<bool>(), 3).prop_map(|on| {
        Feature::ALL
            .into_iter()
            .zip(on)
            .fold(FeatureGates::default(), |gates, (feature, on)| {
                gates.with(feature, on)
            })
    })
}

/// Fields that no window types, with anything in them.
fn unknown_fields() -> impl Strategy<Value = Map<String, Value>> {
    btree_map("x[a-z]{1,6}", json_value(), 0..3).prop_map(|map| map.into_iter().collect())
}

fn with(mut object: Value, extra: Map<String, Value>) -> Value {
    object.as_object_mut().unwrap().extend(extra);
    object
}

fn notifier() -> impl Strategy<Value = Value> {
    let signal = prop::sample::select(Signal::ALL.to_vec());
    let handler = prop_oneof![
        vec("[a-z]{1,4}", 1..3).prop_map(|command| json!({"exec": {"command": command}})),
        signal.prop_map(|signal| json!({"signal": signal.name()})),
    ];
    (handler, any::<Option<i32>>(), unknown_fields()).prop_map(|(handler, timeout, extra)| {
        with(
            json!({"name": "n", "handler": handler, "timeoutSeconds": timeout}),
            extra,
        )
    })
}

fn container() -> impl Strategy<Value = Value> {
    (
        "[a-z]{1,8}",
        vec("[a-z]{1,4}", 0..3),
        vec(notifier(), 0..3),
        vec((unknown_fields(), any::<Option<bool>>()), 0..3),
        prop::option::of(prop::sample::select(Signal::ALL.to_vec())),
        unknown_fields(),
        unknown_fields(),
    )
        .prop_map(|(name, command, notifiers, env, signal, lifecycle, extra)| {
            let env: Vec<_> = env
                .into_iter()
                .map(|(extra, optional)| {
                    let source = json!({"configMapKeyRef":
                        with(json!({"name": "m", "key": "k", "optional": optional}), extra.clone())});
                    with(json!({"name": "E", "valueFrom": source}), extra)
                })
                .collect();
            let lifecycle = json!({
                "stopSignal": signal.map(Signal::name),
                "preStop": with(json!({"sleep": {"seconds": 3}}), lifecycle.clone()),
                "postStart": {"exec": with(json!({"command": ["a"]}), lifecycle)},
            });
            with(
                json!({"name": name, "command": command, "notifiers": notifiers, "env": env,
                       "stopSignal": signal.map(Signal::name), "lifecycle": lifecycle}),
                extra,
            )
        })
}

fn pod() -> impl Strategy<Value = Value> {
    let context = (any::<Option<i64>>(), unknown_fields())
        .prop_map(|(user, extra)| with(json!({"runAsUser": user}), extra));
    (
        vec(container(), 0..3),
        vec(container(), 0..2),
        context,
        unknown_fields(),
        unknown_fields(),
    )
        .prop_map(|(containers, init, context, spec, whole)| {
            let spec = with(
                json!({"containers": containers, "initContainers": init, "restartPolicy": "Never",
                       "securityContext": context, "terminationGracePeriodSeconds": 0}),
                spec,
            );
            let status = json!({"phase": "Running", "podIP": "10.0.0.1"});
            let metadata = json!({"name": "p", "labels": {"a": "b"}, "finalizers": ["x/y"]});
            with(
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec,
                       "status": status}),
                whole,
            )
        })
}

/// Nulls and empty lists mean "absent" in the API.
fn without_nothings(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null() && value != &json!([]));
            object.values_mut().for_each(without_nothings);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nothings),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn rules_never_panic_and_defaulting_is_idempotent(
        new in pod_like(), old in pod_like(), gates in gates()
    ) {
        for rules in RULES {
            let mut object = new.clone();
            let _ = rules.warnings_before_default(&object, None);
            rules.prepare_create(&mut object);
            rules.drop_disabled(&mut object, Some(&old), &gates);
            rules.drop_disabled(&mut object, None, &gates);
            rules.default(&mut object);
            let once = object.clone();
            rules.default(&mut object);
            prop_assert_eq!(&object, &once);
            for review in [
                rules.validate_create(&object, &gates),
                rules.validate_update(&object, &old, &gates),
                rules.validate_status(&object, &old),
                rules.validate_create(&new, &gates),
                rules.validate_update(&new, &old, &gates),
                rules.validate_status(&new, &old),
            ] {
                for error in &review.errors {
                    prop_assert!(!error.to_string().is_empty());
                }
            }
        }
    }

    #[test]
    fn metadata_rules_never_panic(new in pod_like(), old in pod_like(), namespaced: bool) {
        for rule in [NameRule::DnsSubdomain, NameRule::DnsLabel, NameRule::PathSegment] {
            let _ = metadata::validate_create(&new, rule, namespaced);
        }
        let _ = metadata::validate_update(&new, &old);
    }

    #[test]
    fn windows_never_panic(value in pod_like()) {
        if let Ok(pod) = serde_json::from_value::<Pod>(value.clone()) {
            let _ = pod.declarations("a");
            let _ = pod.declares("a");
            let _ = serde_json::to_value(&pod).unwrap();
        }
        let _ = serde_json::from_value::<PodNotification>(value);
    }

    #[test]
    fn a_pod_goes_through_its_window_without_loss(pod in pod()) {
        let window: Pod = serde_json::from_value(pod.clone()).unwrap();
        let (mut sent, mut back) = (pod, serde_json::to_value(&window).unwrap());
        without_nothings(&mut sent);
        without_nothings(&mut back);
        prop_assert_eq!(back, sent);
    }

    #[test]
    fn an_unchanged_pod_is_always_an_allowed_update_of_itself(pod in pod()) {
        let mut pod = pod;
        rules::POD.default(&mut pod);
        let gates = FeatureGates::default();
        let created = rules::POD.validate_create(&pod, &gates).errors;
        let updated = rules::POD.validate_update(&pod, &pod, &gates).errors;
        for error in &updated {
            prop_assert!(created.contains(error), "{error} was not said on create");
        }
    }

    #[test]
    fn parsers_of_text_never_panic(text in ".{0,40}", json in json_value()) {
        let _ = text.parse::<Signal>();
        let _ = text.parse::<FeatureGates>();
        let _ = text.parse::<Quantity>();
        let _ = parse_annotation(&text);
        let _ = parse_annotation(&json.to_string());
    }

    #[test]
    fn quantities_of_any_shape_never_panic(text in "[-+]?[0-9.]{0,40}(n|u|m|k|M|Ki|Ei|e|E)?[-+]?[0-9]{0,12}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            prop_assert_eq!(quantity.cmp(&quantity), std::cmp::Ordering::Equal);
            let _ = quantity.is_integer();
        }
    }
}
