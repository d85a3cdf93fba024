//! Strategic merge: one table per directive, then what upstream's library answered.

use belay_api::schema;
use belay_patch::{PatchError, strategic_merge};
use serde_json::{Value, json};

fn patched(mut doc: Value, patch: &Value) -> Result<Value, PatchError> {
    let pod = schema::of("Pod").expect("a known kind");
    strategic_merge(&mut doc, patch, pod.node()).map(|()| doc)
}

fn check(cases: &[(&str, Value, Value, Value)]) {
    for (name, doc, patch, expected) in cases {
        assert_eq!(patched(doc.clone(), patch).as_ref(), Ok(expected), "{name}");
    }
}

#[test]
fn without_directives_objects_merge_and_atomic_lists_are_replaced() {
    check(&[
        (
            "labels are merged, null removes",
            json!({"metadata": {"labels": {"a": "1", "b": "2"}}}),
            json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
            json!({"metadata": {"labels": {"b": "2", "c": "3"}}}),
        ),
        (
            "null for something absent is nothing",
            json!({"metadata": {}}),
            json!({"metadata": {"labels": {"a": null}}, "spec": null}),
            json!({"metadata": {"labels": {}}}),
        ),
        (
            "an atomic list is replaced",
            json!({"spec": {"tolerations": [{"key": "a"}, {"key": "b"}]}}),
            json!({"spec": {"tolerations": [{"key": "c"}]}}),
            json!({"spec": {"tolerations": [{"key": "c"}]}}),
        ),
        (
            "so are a command's arguments",
            json!({"spec": {"containers": [{"name": "a", "args": ["x", "y"]}]}}),
            json!({"spec": {"containers": [{"name": "a", "args": ["z"]}]}}),
            json!({"spec": {"containers": [{"name": "a", "args": ["z"]}]}}),
        ),
        (
            "a value of another type is replaced",
            json!({"spec": {"nodeName": "x"}}),
            json!({"spec": {"nodeName": {"a": null, "b": 1}}}),
            json!({"spec": {"nodeName": {"b": 1}}}),
        ),
    ]);
}

#[test]
fn lists_with_a_key_merge_element_by_element() {
    check(&[
        (
            "a container is found by its name",
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}]}}),
            json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}}),
        ),
        (
            "a new one comes first, because the patch's order goes before the server's",
            json!({"spec": {"containers": [{"name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
        ),
        (
            "keys nest: container, then variable",
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "1"}]}]}}),
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}}),
            json!({"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]}}),
        ),
        (
            "keys need not be strings",
            json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}, {"containerPort": 81}]}]}}),
            json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 81, "name": "x"}]}]}}),
            json!({"spec": {"containers": [{"name": "a", "ports": [{"containerPort": 80}, {"containerPort": 81, "name": "x"}]}]}}),
        ),
        (
            "our notifiers merge by name as well",
            json!({"spec": {"containers": [{"name": "a", "notifiers": [{"name": "lock", "timeoutSeconds": 1}]}]}}),
            json!({"spec": {"containers": [{"name": "a", "notifiers": [{"name": "lock", "timeoutSeconds": 5}]}]}}),
            json!({"spec": {"containers": [{"name": "a", "notifiers": [{"name": "lock", "timeoutSeconds": 5}]}]}}),
        ),
        (
            "two new elements with one key become one",
            json!({"spec": {"containers": [{"name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "1"}, {"name": "b", "image": "2"}]}}),
            json!({"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "a"}]}}),
        ),
        (
            "an empty list changes nothing",
            json!({"spec": {"containers": [{"name": "a"}]}}),
            json!({"spec": {"containers": []}}),
            json!({"spec": {"containers": [{"name": "a"}]}}),
        ),
        (
            "a set takes what it has not",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["c", "b"]}}),
            json!({"metadata": {"finalizers": ["c", "a", "b"]}}),
        ),
    ]);
}

#[test]
fn patch_replace_and_delete_act_on_objects_and_on_elements() {
    check(&[
        (
            "replace an object",
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}}}),
            json!({"metadata": {"labels": {"b": "2"}}}),
        ),
        (
            "delete an object's content",
            json!({"metadata": {"labels": {"a": "1"}}}),
            json!({"metadata": {"labels": {"$patch": "delete"}}}),
            json!({"metadata": {"labels": {}}}),
        ),
        (
            "delete where there is nothing",
            json!({"metadata": {}}),
            json!({"metadata": {"labels": {"$patch": "delete"}}}),
            json!({"metadata": {}}),
        ),
        (
            "delete an element",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"$patch": "delete", "name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "b"}]}}),
        ),
        (
            "delete an element that is not there",
            json!({"spec": {"containers": [{"name": "a"}]}}),
            json!({"spec": {"containers": [{"$patch": "delete", "name": "x"}]}}),
            json!({"spec": {"containers": [{"name": "a"}]}}),
        ),
        (
            "delete is said of a list that is not there",
            json!({"spec": {}}),
            json!({"spec": {"containers": [{"$patch": "delete", "name": "x"}, {"name": "y"}]}}),
            json!({"spec": {"containers": [{"name": "y"}]}}),
        ),
        (
            "replace a list",
            json!({"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "c"}, {"$patch": "replace"}]}}),
            json!({"spec": {"containers": [{"name": "c"}]}}),
        ),
        (
            "replace the whole object",
            json!({"metadata": {"name": "a"}, "spec": {}}),
            json!({"$patch": "replace", "metadata": {"name": "b"}}),
            json!({"metadata": {"name": "b"}}),
        ),
    ]);
}

#[test]
fn retain_keys_clears_what_it_does_not_name() {
    check(&[
        (
            "one member of a union takes the place of another",
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}, "$retainKeys": ["name", "hostPath"]}]}}),
            json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}}),
        ),
        (
            "what it names and the patch leaves alone stays",
            json!({"spec": {"securityContext": {"runAsUser": 1, "runAsGroup": 2}}}),
            json!({"spec": {"securityContext": {"$retainKeys": ["runAsUser"]}}}),
            json!({"spec": {"securityContext": {"runAsUser": 1}}}),
        ),
    ]);
    for retained in [json!(["name"]), json!("name"), json!({}), json!([1])] {
        let patch = json!({"spec": {"securityContext": {"runAsUser": 1, "$retainKeys": retained}}});
        let error = patched(json!({"spec": {"securityContext": {}}}), &patch).expect_err("refused");
        assert_eq!(
            error,
            PatchError::RetainKeys {
                path: "spec.securityContext".to_owned()
            }
        );
        assert!(error.is_malformed());
    }
}

#[test]
fn a_deletion_list_removes_from_a_set() {
    check(&[
        (
            "what is there goes",
            json!({"metadata": {"finalizers": ["a", "b", "c"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b", "x"]}}),
            json!({"metadata": {"finalizers": ["a", "c"]}}),
        ),
        (
            "where there is no list nothing happens",
            json!({"metadata": {}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}}),
            json!({"metadata": {}}),
        ),
        (
            "together with an addition",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}}),
            json!({"metadata": {"finalizers": ["c", "b"]}}),
        ),
    ]);
    for key in [
        "$deleteFromPrimitiveList/finalizers",
        "$deleteFromPrimitiveListfinalizers",
    ] {
        let patch = json!({"metadata": {key: {"a": 1}}});
        let error = patched(json!({"metadata": {"finalizers": ["a"]}}), &patch);
        assert!(matches!(error, Err(PatchError::DeleteList { .. })), "{key}");
    }
}

#[test]
fn an_element_order_orders_what_it_names_and_leaves_the_rest_in_place() {
    let containers = |names: &[&str]| {
        let list: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        Value::Array(list)
    };
    let case = |server: &[&str], patch: &[&str], order: &[&str], expected: &[&str]| {
        let mut spec = json!({"$setElementOrder/containers": containers(order)});
        if !patch.is_empty() {
            spec["containers"] = containers(patch);
        }
        let result = patched(
            json!({"spec": {"containers": containers(server)}}),
            &json!({"spec": spec}),
        );
        assert_eq!(
            result,
            Ok(json!({"spec": {"containers": containers(expected)}})),
            "{server:?} + {patch:?} ordered {order:?}"
        );
    };
    case(&["a", "b", "c"], &[], &["c", "b", "a"], &["c", "b", "a"]);
    case(
        &["a", "b", "c"],
        &["d"],
        &["a", "d", "b", "c"],
        &["a", "d", "b", "c"],
    );
    // `s` is the server's alone: it stays before the first that it stood before.
    case(&["a", "s", "b"], &[], &["b", "a"], &["s", "b", "a"]);
    case(
        &["s", "a", "b"],
        &["c"],
        &["c", "b", "a"],
        &["c", "s", "b", "a"],
    );
    case(&["a", "b"], &[], &["x", "y"], &["a", "b"]);
    case(&["a", "b"], &[], &[], &["a", "b"]);

    check(&[
        (
            "scalars are ordered as well",
            json!({"metadata": {"finalizers": ["a", "b"]}}),
            json!({"metadata": {"finalizers": ["c"], "$setElementOrder/finalizers": ["c", "b", "a"]}}),
            json!({"metadata": {"finalizers": ["c", "b", "a"]}}),
        ),
        (
            "a list that is new is taken over without its directives",
            json!({"spec": {}}),
            json!({"spec": {"containers": [{"name": "a"}, {"$patch": "delete", "name": "b"}],
                "$setElementOrder/containers": [{"name": "a"}]}}),
            json!({"spec": {"containers": [{"name": "a"}]}}),
        ),
        (
            "an order of nothing is nothing",
            json!({"spec": {}}),
            json!({"spec": {"$setElementOrder/containers": [{"name": "a"}]}}),
            json!({"spec": {}}),
        ),
        (
            "an empty list is stored as one, and can be ordered",
            json!({"spec": {"containers": []}}),
            json!({"spec": {"$setElementOrder/containers": []}}),
            json!({"spec": {"containers": []}}),
        ),
    ]);
}

#[test]
fn what_cannot_be_merged_is_refused_with_its_place() {
    let doc = json!({
        "metadata": {"finalizers": ["a"], "labels": {"a": "1"}},
        "spec": {"containers": [{"name": "a", "env": [{"name": "X"}]}], "tolerations": [{"key": "a"}]}
    });
    let cases = [
        (json!([]), "the patch must be an object, but is a list"),
        (
            json!({"metadata": {"labels": {"$patch": "merge"}}}),
            "metadata.labels: $patch: merge cannot be given, it is what happens without a directive",
        ),
        (
            json!({"$patch": 1}),
            "the patch: unknown $patch directive 1: use delete or replace",
        ),
        (
            json!({"spec": {"containers": [{"name": "a", "env": [{"value": "1"}]}]}}),
            "spec.containers[\"a\"].env: an element lacks \"name\", by which the elements of this list are told apart",
        ),
        (
            json!({"spec": {"containers": [{"$patch": "delete"}]}}),
            "spec.containers: an element lacks \"name\", by which the elements of this list are told apart",
        ),
        (
            json!({"spec": {"containers": [1]}}),
            "spec.containers: the elements of the list are not all of one type",
        ),
        (
            json!({"metadata": {"finalizers": [null]}}),
            "metadata.finalizers: the elements of the list are not all of one type",
        ),
        (
            json!({"metadata": {"finalizers": ["b"], "$setElementOrder/finalizers": ["a"]}}),
            "metadata.finalizers: the order of the patched elements is not the one that $setElementOrder gives",
        ),
        (
            json!({"metadata": {"$setElementOrder/labels": []}}),
            "metadata.labels: $setElementOrder/<field> must be a list, for a field that is a list",
        ),
        (
            json!({"spec": {"$setElementOrder/tolerations": [{"key": "a"}]}}),
            "spec.tolerations: objects in this list have no key by which they could be merged or ordered",
        ),
    ];
    for (patch, expected) in cases {
        let error = patched(doc.clone(), &patch).expect_err("refused");
        assert_eq!(error.to_string(), expected);
    }
    let error = patched(
        json!({"spec": {"nonsense": {}}}),
        &json!({"spec": {"nonsense": {"a": 1}}}),
    );
    assert_eq!(
        error,
        Err(PatchError::UnknownField {
            path: "spec.nonsense".to_owned()
        })
    );
}

/// Documents and patches made at random, half of them by upstream's own diff as `kubectl apply`
/// computes it, and what upstream's library (0.36) makes of them.
#[test]
fn upstream_answers_the_same() {
    fn without_nulls(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.retain(|_, inner| !inner.is_null());
                map.values_mut().for_each(without_nulls);
            }
            Value::Array(list) => list.iter_mut().for_each(without_nulls),
            _ => {}
        }
    }
    let cases = include_str!("data/upstream_strategic.jsonl");
    for (line, case) in cases.lines().enumerate() {
        let case: Value = serde_json::from_str(case).expect("a case");
        let result = patched(case["doc"].clone(), &case["patch"]);
        match (result, case.get("result")) {
            (Ok(mut result), Some(expected)) => {
                // Nulls that a patch leaves in a new element mean absence to both.
                let mut expected = expected.clone();
                without_nulls(&mut expected);
                without_nulls(&mut result);
                assert_eq!(result, expected, "case {}", line + 1);
            }
            (Err(_), None) => {}
            (result, expected) => panic!("case {}: {result:?}, upstream {expected:?}", line + 1),
        }
    }
}
