use super::*;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

fn node() -> Node<'static> {
    Node {
        name: "n1",
        address: "192.0.2.7",
        pod_address: "10.0.0.3",
        cpus: 4,
        memory: 1 << 30,
        data_dir: Path::new("/d"),
    }
}

fn object(data: &[(&str, &str)], binary: &[(&str, &[u8])]) -> Known {
    Known::Found(Arc::new(Object {
        data: data
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec()))
            .collect(),
        binary: binary
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.to_vec()))
            .collect(),
    }))
}

/// A ConfigMap `m` and a secret `s` that are there, and a few that are not.
fn found() -> Found {
    let raw = Known::Found(Arc::new(Object {
        data: [("bad".to_owned(), vec![0xff]), ("nul".to_owned(), vec![0])].into(),
        binary: BTreeMap::new(),
    }));
    [
        (
            Reference::config_map("m"),
            object(&[("a", "1"), ("b", "2")], &[("bin", b"x")]),
        ),
        (
            Reference::secret("s"),
            object(&[("a", "sa"), ("p.w", "$(A)")], &[]),
        ),
        (Reference::secret("raw"), raw),
        (Reference::config_map("gone"), Known::Missing),
        (Reference::secret("gone"), Known::Missing),
        (Reference::config_map("new"), Known::Unread(None)),
        (
            Reference::config_map("away"),
            Known::Unread(Some("refused".into())),
        ),
    ]
    .into()
}

// `json!` literals read better without a borrow.
#[allow(clippy::needless_pass_by_value)]
fn check(container: Value) -> Result<Vec<(String, String)>, Waiting> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "db", "namespace": "ns", "uid": "u1",
            "labels": {"app": "x"}, "annotations": {"note": "y"}},
        "spec": {"serviceAccountName": "sa", "containers": [container, {
            "name": "other", "resources": {"limits": {"memory": "2Gi"}}}]},
    }))
    .unwrap();
    environment(&pod, &pod.spec.containers[0], node(), &found()).map(Environment::into_pairs)
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn of_key(kind: &str, name: &str, key: &str, optional: bool) -> Value {
    json!({"name": "X", "valueFrom": {kind: {"name": name, "key": key, "optional": optional}}})
}

#[test]
fn whole_objects_come_first_and_a_variable_of_the_same_name_wins() {
    let env = check(json!({"name": "c",
        "envFrom": [{"configMapRef": {"name": "m"}}, {"prefix": "S_", "secretRef": {"name": "s"}},
            {"secretRef": {"name": "s"}}, {"configMapRef": {"name": "gone", "optional": true}}],
        "env": [{"name": "b", "value": "own"}, {"name": "ALL", "value": "$(a)-$(b)-$(S_a)-$(p.w)"}],
    }));
    // Binary data is for files; a value is not expanded a second time.
    let expected = [
        ("a", "sa"),
        ("b", "own"),
        ("S_a", "sa"),
        ("S_p.w", "$(A)"),
        ("p.w", "$(A)"),
        ("ALL", "sa-own-sa-$(A)"),
    ];
    assert_eq!(env.unwrap(), pairs(&expected));
}

#[test]
fn the_last_value_of_a_name_wins_in_the_place_of_the_first() {
    let env = check(json!({"name": "c", "env": [
        {"name": "PATH", "value": "/a"}, {"name": "B", "value": "$(PATH)"},
        {"name": "PATH", "value": "$(PATH):/b"}, {"name": "EMPTY"}]}));
    assert_eq!(
        env.unwrap(),
        pairs(&[("PATH", "/a:/b"), ("B", "/a"), ("EMPTY", "")])
    );
}

#[test]
fn a_key_is_taken_from_its_object() {
    for (source, value) in [
        (of_key("configMapKeyRef", "m", "a", false), Some("1")),
        (of_key("secretKeyRef", "s", "a", false), Some("sa")),
        (of_key("secretKeyRef", "s", "none", true), None),
        (of_key("secretKeyRef", "gone", "a", true), None),
        (of_key("configMapKeyRef", "gone", "a", true), None),
        // A value that is written comes before a source, as with the kubelet.
        (
            json!({"name": "X", "value": "v", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "a"}}}),
            Some("v"),
        ),
    ] {
        let env = check(json!({"name": "c", "env": [source.clone()]})).unwrap();
        let expected: Vec<(&str, &str)> = value.map(|value| ("X", value)).into_iter().collect();
        assert_eq!(env, pairs(&expected), "{source}");
    }
}

#[test]
fn what_is_missing_is_said_as_the_kubelet_says_it() {
    for (container, message) in [
        (
            json!({"env": [of_key("configMapKeyRef", "gone", "a", false)]}),
            "configmap \"gone\" not found",
        ),
        (
            json!({"env": [of_key("secretKeyRef", "gone", "a", false)]}),
            "secret \"gone\" not found",
        ),
        (
            json!({"env": [of_key("configMapKeyRef", "m", "none", false)]}),
            "couldn't find key none in ConfigMap ns/m",
        ),
        // A key of the binary data is no key for an environment.
        (
            json!({"env": [of_key("configMapKeyRef", "m", "bin", false)]}),
            "couldn't find key bin in ConfigMap ns/m",
        ),
        (
            json!({"env": [of_key("secretKeyRef", "s", "none", false)]}),
            "couldn't find key none in Secret ns/s",
        ),
        (
            json!({"env": [of_key("configMapKeyRef", "away", "a", true)]}),
            "cannot read configmap \"away\": refused",
        ),
        (
            json!({"envFrom": [{"secretRef": {"name": "gone"}}]}),
            "secret \"gone\" not found",
        ),
        (
            json!({"env": [of_key("secretKeyRef", "raw", "bad", false)]}),
            "key bad in secret \"raw\" is not text, which an environment variable has to be; mount it as a file",
        ),
        (
            json!({"env": [of_key("secretKeyRef", "raw", "nul", false)]}),
            "key nul in secret \"raw\" is not text, which an environment variable has to be; mount it as a file",
        ),
        (
            json!({"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.foo"}}}]}),
            "environment variable X of container \"c\" refers to the unknown field spec.foo",
        ),
        (
            json!({"env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.gpu"}}}]}),
            "environment variable X of container \"c\" refers to the resource limits.gpu; this agent knows requests and limits of cpu and memory",
        ),
        (
            json!({"env": [{"name": "X", "valueFrom": {"fileKeyRef": {}}}]}),
            "environment variable X of container \"c\" takes its value from a source that is not supported; this agent knows fieldRef, resourceFieldRef, configMapKeyRef and secretKeyRef",
        ),
    ] {
        let mut container = container;
        container["name"] = json!("c");
        let waiting = check(container).unwrap_err();
        assert_eq!(waiting.reason, "CreateContainerConfigError");
        assert_eq!(waiting.message, message);
    }
}

#[test]
fn what_has_not_been_read_yet_is_waited_for() {
    let waiting = check(json!({"name": "c", "envFrom": [{"configMapRef": {"name": "new"}}]}));
    assert_eq!(waiting.unwrap_err(), Waiting::creating());
}

#[test]
fn fields_of_the_pod_and_its_node_are_known() {
    for (path, value) in [
        ("metadata.name", "db"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u1"),
        ("metadata.labels['app']", "x"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['note']", "y"),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "sa"),
        ("status.hostIP", "192.0.2.7"),
        ("status.hostIPs", "192.0.2.7"),
        ("status.podIP", "10.0.0.3"),
        ("status.podIPs", "10.0.0.3"),
    ] {
        let env = check(json!({"name": "c", "env": [
            {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}));
        assert_eq!(env.unwrap(), pairs(&[("X", value)]), "{path}");
    }
}

#[test]
fn resources_are_counted_in_units_of_their_divisor_rounded_up() {
    for (reference, value) in [
        (json!({"resource": "limits.cpu"}), "2"),
        (json!({"resource": "limits.cpu", "divisor": "1m"}), "1500"),
        (json!({"resource": "requests.cpu", "divisor": "100m"}), "3"),
        (json!({"resource": "limits.memory", "divisor": "1Mi"}), "64"),
        (
            json!({"resource": "limits.memory", "divisor": "0"}),
            "67108864",
        ),
        (
            json!({"resource": "limits.memory", "divisor": "-0.1"}),
            "67108864",
        ),
        (json!({"resource": "requests.memory"}), "0"),
        // What is not limited has the whole node.
        (
            json!({"resource": "limits.cpu", "containerName": "other"}),
            "4",
        ),
        (
            json!({"resource": "limits.memory", "containerName": "other", "divisor": "1Gi"}),
            "2",
        ),
    ] {
        let env = check(json!({"name": "c",
            "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}, "requests": {"cpu": "250m"}},
            "env": [{"name": "X", "valueFrom": {"resourceFieldRef": reference}}]}));
        assert_eq!(env.unwrap(), pairs(&[("X", value)]), "{reference}");
    }
}
