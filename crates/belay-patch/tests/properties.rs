//! What holds for any document and any patch. The fuzz targets run the same bodies for longer.

use belay_api::decode::{self, FieldValidation};
use belay_api::schema;
use belay_patch::{json_patch, merge_patch, strategic_merge};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Any JSON, with the words that patches and pods are made of.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::String),
        prop_oneof![
            "replace", "delete", "merge", "add", "remove", "copy", "move", "test"
        ]
        .prop_map(Value::String),
        "(/[a-c0-2~-]{0,2}){0,4}".prop_map(Value::String),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((word(), inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => prop::sample::select(vec![
            "metadata", "spec", "status", "labels", "finalizers", "ownerReferences", "uid", "name",
            "containers", "env", "ports", "containerPort", "volumes", "conditions", "type", "value",
            "tolerations", "nodeSelector", "notifiers", "op", "path", "from",
        ])
        .prop_map(str::to_owned),
        2 => prop::sample::select(vec![
            "$patch", "$retainKeys", "$setElementOrder/containers", "$setElementOrder/env",
            "$setElementOrder/finalizers", "$deleteFromPrimitiveList/finalizers",
            "$setElementOrder", "$deleteFromPrimitiveList/spec", "$setElementOrder/nonsense",
        ])
        .prop_map(str::to_owned),
        1 => "[a-c~/]{0,3}",
    ]
}

/// Something like a pod.
fn pod() -> impl Strategy<Value = Value> {
    let names = || prop::sample::subsequence(vec!["a", "b", "c", "d"], 0..=4).prop_shuffle();
    let env = names().prop_map(|names| {
        let list: Vec<Value> = names
            .iter()
            .map(|name| json!({"name": name, "value": "v"}))
            .collect();
        Value::Array(list)
    });
    let containers =
        (names(), prop::collection::vec((env, "[xyz]"), 4)).prop_map(|(names, rest)| {
            let list: Vec<Value> = names
                .iter()
                .zip(rest)
                .map(|(name, (env, image))| json!({"name": name, "image": image, "env": env}))
                .collect();
            Value::Array(list)
        });
    (
        containers,
        names(),
        prop::collection::btree_map("[a-d]", "[xyz]", 0..4),
    )
        .prop_map(|(containers, finalizers, labels)| {
            json!({
                "metadata": {"name": "p", "labels": labels, "finalizers": finalizers},
                "spec": {"containers": containers},
            })
        })
}

/// The merge patch that leads from `from` to `to`, where neither holds nulls.
fn merge_diff(from: &Value, to: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        return to.clone();
    };
    let mut patch = Map::new();
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in new {
        match old.get(name) {
            Some(before) if before == value => {}
            Some(before) => {
                patch.insert(name.clone(), merge_diff(before, value));
            }
            None => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

fn pod_schema() -> &'static schema::Schema {
    schema::of("Pod").expect("a known kind")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_json_patch_panics(doc in any_json(), patch in any_json()) {
        let mut doc = doc;
        let _ = json_patch(&mut doc, &patch);
        let _ = json_patch(&mut doc, &json!([patch.clone(), patch]));
    }

    #[test]
    fn json_patches_made_of_operations_never_panic(
        doc in any_json(),
        operations in prop::collection::vec(
            ("add|remove|replace|move|copy|test", "(/([a-c]|spec|0|1|-|-1)){0,3}",
                "(/([a-c]|spec|0|1|-|-1)){0,3}", any_json()),
            0..12,
        ),
    ) {
        let patch: Vec<Value> = operations
            .into_iter()
            .map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}))
            .collect();
        let mut doc = doc;
        let _ = json_patch(&mut doc, &Value::Array(patch));
    }

    #[test]
    fn no_merge_patch_panics_and_none_needs_applying_twice(doc in any_json(), patch in any_json()) {
        let mut once = doc;
        merge_patch(&mut once, &patch).expect("not deep");
        let mut twice = once.clone();
        merge_patch(&mut twice, &patch).expect("not deep");
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn no_strategic_merge_panics(doc in any_json(), patch in any_json()) {
        let node = pod_schema().node();
        let _ = strategic_merge(&mut doc.clone(), &patch, node);
        let _ = strategic_merge(&mut json!({"spec": doc}), &json!({"spec": patch}), node);
    }

    #[test]
    fn whatever_a_strategic_merge_makes_of_a_pod_can_be_checked(doc in pod(), patch in any_json()) {
        let mut patched = doc;
        if strategic_merge(&mut patched, &patch, pod_schema().node()).is_ok() {
            let _ = decode::check(&mut patched, pod_schema(), FieldValidation::Warn);
        }
    }

    #[test]
    fn a_merge_diff_leads_from_any_pod_to_any_other(from in pod(), to in pod()) {
        let mut doc = from.clone();
        merge_patch(&mut doc, &merge_diff(&from, &to)).expect("applies");
        prop_assert_eq!(doc, to);
    }

    #[test]
    fn merging_a_pod_into_itself_strategically_changes_nothing(doc in pod()) {
        let mut patched = doc.clone();
        strategic_merge(&mut patched, &doc, pod_schema().node()).expect("applies");
        prop_assert_eq!(patched, doc);
    }

    #[test]
    fn a_replace_directive_leads_to_the_patch(from in pod(), to in pod()) {
        let mut patch = to.clone();
        patch["$patch"] = json!("replace");
        let mut doc = from;
        strategic_merge(&mut doc, &patch, pod_schema().node()).expect("applies");
        prop_assert_eq!(doc, to);
    }

    #[test]
    fn after_a_strategic_merge_everything_the_patch_sets_is_there(from in pod(), to in pod()) {
        let mut doc = from.clone();
        strategic_merge(&mut doc, &to, pod_schema().node()).expect("applies");
        let containers = |pod: &Value| pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
        let names = |pod: &Value| -> Vec<Value> {
            containers(pod).iter().map(|container| container["name"].clone()).collect()
        };
        let merged = containers(&doc);
        // The patched elements stand in the patch's order, and none occurs twice.
        let patched: Vec<Value> = names(&doc).into_iter().filter(|name| names(&to).contains(name)).collect();
        prop_assert_eq!(&patched, &names(&to));
        prop_assert_eq!(merged.len(), {
            let mut all: Vec<String> = names(&from).iter().chain(&names(&to)).map(Value::to_string).collect();
            all.sort();
            all.dedup();
            all.len()
        });
        for container in containers(&to) {
            let found = merged.iter().find(|merged| merged["name"] == container["name"]);
            prop_assert_eq!(found.map(|found| &found["image"]), Some(&container["image"]));
        }
    }
}
