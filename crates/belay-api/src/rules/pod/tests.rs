//! One table per part of a pod: what is sent, and what is said about it.

mod notifiers;
mod signals;
mod updates;

use serde_json::{Value, json};

use super::PodRules;
use crate::gates::FeatureGates;
use crate::rules::{Review, Rules};

/// What the server says about a new pod with this spec.
fn review(spec: Value) -> Review {
    review_pod(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec}))
}

fn review_pod(mut pod: Value) -> Review {
    let gates = FeatureGates::default();
    PodRules.prepare_create(&mut pod);
    PodRules.drop_disabled(&mut pod, None, &gates);
    let mut warnings = PodRules.warnings_before_default(&pod, None);
    PodRules.default(&mut pod);
    let review = PodRules.validate_create(&pod, &gates);
    warnings.extend(review.warnings);
    Review {
        warnings,
        errors: review.errors,
    }
}

fn texts(review: &Review) -> Vec<String> {
    review.errors.iter().map(ToString::to_string).collect()
}

/// A pod of one container with these further fields.
fn container(extra: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    merge(&mut container, extra);
    json!({ "containers": [container] })
}

/// A pod of one good container with these further fields.
fn spec(extra: Value) -> Value {
    let mut spec = container(json!({}));
    merge(&mut spec, extra);
    spec
}

fn merge(into: &mut Value, extra: Value) {
    let Value::Object(extra) = extra else {
        panic!("not an object: {extra}");
    };
    into.as_object_mut().unwrap().extend(extra);
}

fn check(spec: Value, expected: &[&str]) {
    let got = texts(&review(spec.clone()));
    assert_eq!(got, expected, "for {spec}");
}

/// As [`check`], for messages whose end lists what would be right.
fn check_starts(spec: Value, expected: &[&str]) {
    let got = texts(&review(spec.clone()));
    assert_eq!(got.len(), expected.len(), "{got:?} for {spec}");
    for (got, expected) in got.iter().zip(expected) {
        assert!(
            got.starts_with(expected),
            "{got} does not start with {expected}"
        );
    }
}

#[test]
fn the_smallest_pod_is_good() {
    check(container(json!({})), &[]);
}

#[test]
fn a_pod_has_containers_with_names_and_images() {
    check(json!({}), &["spec.containers: Required value"]);
    check(
        json!({"containers": [{}]}),
        &[
            "spec.containers[0].name: Required value",
            "spec.containers[0].image: Required value",
        ],
    );
    check_starts(
        json!({"containers": [{"name": "A", "image": " i"}]}),
        &[
            "spec.containers[0].name: Invalid value: \"A\": a lowercase RFC 1123 label must consist",
            "spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace",
        ],
    );
}

#[test]
fn names_are_unique_across_containers_and_init_containers() {
    let named = |name: &str| json!({"name": name, "image": "i"});
    check(
        json!({"containers": [named("a"), named("a")],
               "initContainers": [named("a"), named("b"), named("b")]}),
        &[
            "spec.containers[1].name: Duplicate value: \"a\"",
            "spec.initContainers[0].name: Duplicate value: \"a\"",
            "spec.initContainers[2].name: Duplicate value: \"b\"",
        ],
    );
}

#[test]
fn policies_are_of_their_sets() {
    check(
        spec(json!({"restartPolicy": "Sometimes", "dnsPolicy": "Mine"})),
        &[
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            "spec.dnsPolicy: Unsupported value: \"Mine\": supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\"",
        ],
    );
    check(
        container(json!({"imagePullPolicy": "Maybe", "terminationMessagePolicy": "x"})),
        &[
            "spec.containers[0].terminationMessagePolicy: Unsupported value: \"x\": supported values: \"File\", \"FallbackToLogsOnError\"",
            "spec.containers[0].imagePullPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
        ],
    );
}

#[test]
fn environment_variables_have_names_and_one_source() {
    let env = |variable: Value| container(json!({ "env": [variable] }));
    check(env(json!({"name": "A", "value": "x"})), &[]);
    check(
        env(json!({"value": "x"})),
        &["spec.containers[0].env[0].name: Required value"],
    );
    check(
        env(json!({"name": "A=B"})),
        &[
            "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='",
        ],
    );
    check(
        env(json!({"name": "A", "valueFrom": {}})),
        &[
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        ],
    );
    check(
        env(json!({"name": "A", "value": "x",
                   "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})),
        &[
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
        ],
    );
    check(
        env(json!({"name": "A", "valueFrom": {
            "fieldRef": {"fieldPath": "metadata.labels['app']"},
            "configMapKeyRef": {"name": "m"}}})),
        &[
            "spec.containers[0].env[0].valueFrom.configMapKeyRef.key: Required value",
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not have more than one field specified at a time",
        ],
    );
    check_starts(
        env(json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}})),
        &[
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"status.phase\": supported values: \"metadata.name\"",
        ],
    );
    check(
        env(json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.secret"}}})),
        &[
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.secret\": error converting fieldPath: field label not supported: spec.secret",
        ],
    );
    check(
        container(json!({"envFrom": [{}, {"secretRef": {}}]})),
        &[
            "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
            "spec.containers[0].envFrom[1].secretRef.name: Required value",
        ],
    );
}

#[test]
fn ports_are_in_range_named_once_and_free_on_the_host() {
    let ports = |ports: Value| container(json!({ "ports": ports }));
    check(ports(json!([{"containerPort": 80, "name": "http"}])), &[]);
    check(
        ports(json!([{"containerPort": 0}, {"containerPort": 70000, "protocol": "ICMP"}])),
        &[
            "spec.containers[0].ports[0].containerPort: Required value",
            "spec.containers[0].ports[1].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            "spec.containers[0].ports[1].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ],
    );
    check(
        ports(json!([{"containerPort": 80, "name": "a", "hostPort": 80},
                     {"containerPort": 81, "name": "a", "hostPort": 80},
                     {"containerPort": 82, "name": "A"}])),
        &[
            "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
            "spec.containers[0].ports[2].name: Invalid value: \"A\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
            "spec.containers[0].ports[2].name: Invalid value: \"A\": must contain at least one letter (a-z)",
            "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//80\"",
        ],
    );
    let mut host = ports(json!([{"containerPort": 80}, {"containerPort": 81, "hostPort": 82}]));
    merge(&mut host, json!({"hostNetwork": true}));
    check(
        host,
        &[
            "spec.containers[0].ports[1].hostPort: Invalid value: 82: must match `containerPort` when `hostNetwork` is true",
        ],
    );
}

#[test]
fn volumes_have_one_source_and_mounts_refer_to_them() {
    let with = |volumes: Value, mounts: Value| {
        let mut spec = container(json!({ "volumeMounts": mounts }));
        merge(&mut spec, json!({ "volumes": volumes }));
        spec
    };
    check(
        with(
            json!([{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "m"}}]),
            json!([{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}]),
        ),
        &[],
    );
    check(
        with(
            json!([{"name": "a", "emptyDir": {}, "hostPath": {"path": "/x"}},
                   {"name": "b", "emptyDir": {}}, {"name": "b", "emptyDir": {}},
                   {"emptyDir": {}}, {"name": "d", "hostPath": {"path": "/a/../b"}},
                   {"name": "e", "secret": {"defaultMode": 512}}]),
            json!([{"name": "z", "mountPath": "/a"}, {"name": "b", "mountPath": "/a"},
                   {"name": "b"}, {"name": "b", "mountPath": "/c", "subPath": "../x"}]),
        ),
        &[
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            "spec.volumes[2].name: Duplicate value: \"b\"",
            "spec.volumes[3].name: Required value",
            "spec.volumes[4].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
            "spec.volumes[5].secret.secretName: Required value",
            "spec.volumes[5].secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive",
            "spec.containers[0].volumeMounts[0].name: Not found: \"z\"",
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
            "spec.containers[0].volumeMounts[2].mountPath: Required value",
            "spec.containers[0].volumeMounts[3].subPath: Invalid value: \"../x\": must not contain '..'",
        ],
    );
}

#[test]
fn hooks_have_exactly_one_handler() {
    let hook = |handler: Value| container(json!({"lifecycle": {"preStop": handler}}));
    check(hook(json!({"exec": {"command": ["a"]}})), &[]);
    check(hook(json!({"httpGet": {"port": "http"}})), &[]);
    check(hook(json!({"tcpSocket": {"port": 80}})), &[]);
    check(
        hook(json!({})),
        &["spec.containers[0].lifecycle.preStop: Required value: must specify a handler type"],
    );
    check(
        hook(json!({"exec": {}, "httpGet": {}, "sleep": {"seconds": 1}})),
        &[
            "spec.containers[0].lifecycle.preStop.exec.command: Required value",
            "spec.containers[0].lifecycle.preStop.httpGet: Forbidden: may not specify more than 1 handler type",
            "spec.containers[0].lifecycle.preStop.sleep: Forbidden: may not specify more than 1 handler type",
        ],
    );
    check(
        hook(json!({"httpGet": {"port": 0, "scheme": "FTP", "httpHeaders": [{"name": "a b"}]}})),
        &[
            "spec.containers[0].lifecycle.preStop.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.containers[0].lifecycle.preStop.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\"",
            "spec.containers[0].lifecycle.preStop.httpGet.httpHeaders: Invalid value: \"a b\": a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
        ],
    );
}

#[test]
fn a_sleep_lasts_from_nothing_to_the_whole_grace_period() {
    let sleep = |hook: &str, seconds: i64, grace: Value| {
        let mut spec = container(json!({"lifecycle": {hook: {"sleep": {"seconds": seconds}}}}));
        merge(&mut spec, json!({ "terminationGracePeriodSeconds": grace }));
        spec
    };
    for seconds in [0, 1, 10] {
        check(sleep("preStop", seconds, json!(10)), &[]);
    }
    check(sleep("preStop", 30, Value::Null), &[]);
    for (hook, seconds, grace, said) in [
        ("preStop", -1, json!(10), 10),
        ("preStop", 11, json!(10), 10),
        ("postStart", 31, Value::Null, 30),
        ("preStop", 2, json!(-5), 1),
    ] {
        let expected = format!(
            "spec.containers[0].lifecycle.{hook}.sleep: Invalid value: {seconds}: must be non-negative and less than terminationGracePeriodSeconds ({said})"
        );
        check(sleep(hook, seconds, grace), &[&expected]);
    }
}

#[test]
fn probes_have_bounds_and_one_handler() {
    let probe = |field: &str, probe: Value| container(json!({ field: probe }));
    let exec = json!({"exec": {"command": ["a"]}});
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        check(probe(field, exec.clone()), &[]);
    }
    check(
        probe(
            "livenessProbe",
            json!({"grpc": {"port": 0}, "periodSeconds": -1,
                                      "successThreshold": 2,
                                      "terminationGracePeriodSeconds": 0}),
        ),
        &[
            "spec.containers[0].livenessProbe.grpc.port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.containers[0].livenessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
            "spec.containers[0].livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ],
    );
    check(
        probe(
            "readinessProbe",
            json!({"successThreshold": 2, "terminationGracePeriodSeconds": 5}),
        ),
        &[
            "spec.containers[0].readinessProbe: Required value: must specify a handler type",
            "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes",
        ],
    );
}

#[test]
fn requests_are_quantities_within_their_limits() {
    let resources = |resources: Value| container(json!({ "resources": resources }));
    check(
        resources(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
        &[],
    );
    check(
        resources(json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1500m"}})),
        &[
            "spec.containers[0].resources.requests: Invalid value: \"1500m\": must be less than or equal to cpu limit of 1",
        ],
    );
    check_starts(
        resources(json!({"limits": {"cpu": "x"}, "requests": {"memory": "-1", "foo": "1"}})),
        &[
            "spec.containers[0].resources.limits[cpu]: Invalid value: \"x\": quantities must match the regular expression",
            "spec.containers[0].resources.requests[cpu]: Invalid value: \"x\": quantities must match the regular expression",
            "spec.containers[0].resources.requests[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified",
            "spec.containers[0].resources.requests[foo]: Invalid value: \"foo\": must be a standard resource for containers",
            "spec.containers[0].resources.requests[memory]: Invalid value: \"-1\": must be greater than or equal to 0",
        ],
    );
    check(
        resources(json!({"requests": {"example.com/gpu": "1"}})),
        &[
            "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
        ],
    );
    check(
        resources(
            json!({"limits": {"example.com/gpu": "2"}, "requests": {"example.com/gpu": "1"}}),
        ),
        &[
            "spec.containers[0].resources.requests: Invalid value: \"1\": must be equal to example.com/gpu limit of 2",
        ],
    );
}

#[test]
fn the_quality_of_service_follows_from_the_resources() {
    let class = |resources: Value| {
        let mut pod = json!({ "spec": container(json!({ "resources": resources })) });
        PodRules.prepare_create(&mut pod);
        assert_eq!(pod["status"]["phase"], "Pending");
        let early = pod["status"]["qosClass"].clone();
        PodRules.default(&mut pod);
        PodRules.prepare_create(&mut pod);
        assert_eq!(pod["status"]["qosClass"], early, "defaults do not matter");
        early
    };
    assert_eq!(class(json!({})), "BestEffort");
    assert_eq!(class(json!({"requests": {"cpu": "1"}})), "Burstable");
    assert_eq!(
        class(json!({"limits": {"cpu": "1", "memory": "1Gi"}})),
        "Guaranteed"
    );
    assert_eq!(
        class(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
        "Burstable"
    );
    assert_eq!(class(json!({"limits": {"cpu": "1"}})), "Burstable");
}

#[test]
fn the_pod_as_a_whole_has_bounds() {
    check(
        spec(json!({"activeDeadlineSeconds": 0})),
        &[
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ],
    );
    check_starts(
        spec(json!({"nodeSelector": {"a b": "c"}, "nodeName": "N", "hostname": "a.b"})),
        &[
            "spec.nodeSelector: Invalid value: \"a b\": name part must consist of",
            "spec.nodeName: Invalid value: \"N\": a lowercase RFC 1123 subdomain",
            "spec.hostname: Invalid value: \"a.b\": must not contain dots",
        ],
    );
    check(
        spec(json!({"tolerations": [
            {"operator": "Exists"},
            {"key": "a", "operator": "Exists", "value": "b"},
            {"value": "b"},
            {"key": "a", "operator": "Near"},
            {"key": "a", "effect": "Sometimes"},
            {"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5}]})),
        &[
            "spec.tolerations[1].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
            "spec.tolerations[2].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            "spec.tolerations[3].operator: Unsupported value: \"Near\": supported values: \"Equal\", \"Exists\"",
            "spec.tolerations[4].effect: Unsupported value: \"Sometimes\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
            "spec.tolerations[5].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
        ],
    );
    check(
        spec(
            json!({"securityContext": {"runAsUser": -1, "fsGroup": 4294967296i64},
                    "os": {"name": "plan9"}}),
        ),
        &[
            "spec.securityContext.fsGroup: Invalid value: 4294967296: must be between 0 and 2147483647, inclusive",
            "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            "spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\"",
        ],
    );
    check(
        spec(json!({"dnsPolicy": "None"})),
        &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
    );
    check(
        spec(json!({"hostAliases": [{"ip": "300.0.0.1", "hostnames": ["a"]}]})),
        &[
            "spec.hostAliases[0].ip: Invalid value: \"300.0.0.1\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ],
    );
}

#[test]
fn a_privileged_container_cannot_forbid_escalation() {
    check(
        container(json!({"securityContext":
            {"privileged": true, "allowPrivilegeEscalation": false}})),
        &[
            "spec.containers[0].securityContext: Invalid value: {\"allowPrivilegeEscalation\":false,\"privileged\":true}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
        ],
    );
}

#[test]
fn init_containers_have_hooks_and_probes_only_when_they_are_sidecars() {
    let init = |extra: Value| {
        let mut container = json!({"name": "i", "image": "i", "stopSignal": "SIGINT",
            "lifecycle": {"preStop": {"exec": {"command": ["a"]}}},
            "livenessProbe": {"exec": {"command": ["a"]}},
            "notifiers": [{"name": "n", "handler": {"signal": "SIGHUP"}}]});
        merge(&mut container, extra);
        spec(json!({ "initContainers": [container] }))
    };
    check(init(json!({"restartPolicy": "Always"})), &[]);
    let forbidden = |field: &str| {
        format!(
            "spec.initContainers[0].{field}: Forbidden: may not be set for init containers without restartPolicy=Always"
        )
    };
    let expected: Vec<_> = ["livenessProbe", "lifecycle", "stopSignal", "notifiers"]
        .map(forbidden)
        .into();
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    check(init(json!({})), &expected);
    check(
        container(json!({"restartPolicy": "Always"})),
        &["spec.containers[0].restartPolicy: Forbidden: may not be set for non-init containers"],
    );
}

#[test]
fn ephemeral_containers_come_later_and_have_neither_hooks_nor_notifiers() {
    let ephemeral = json!({"name": "e", "image": "i", "stopSignal": "SIGINT",
        "notifiers": [{"name": "n", "handler": {"signal": "SIGHUP"}}],
        "targetContainerName": "nobody"});
    check(
        spec(json!({ "ephemeralContainers": [ephemeral] })),
        &[
            "spec.ephemeralContainers[0].targetContainerName: Not found: \"nobody\"",
            "spec.ephemeralContainers[0].stopSignal: Forbidden: cannot be set for an Ephemeral Container",
            "spec.ephemeralContainers[0].notifiers: Forbidden: cannot be set for an Ephemeral Container",
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ],
    );
}

/// As much of everything as fits into a request, with names that are all different: what is looked
/// up must be found at once, not looked for.
#[test]
fn a_pod_as_large_as_a_request_is_judged_in_time_that_grows_with_its_size() {
    const MANY: usize = 20_000;
    let many = |make: fn(usize) -> Value| (0..MANY).map(make).collect::<Value>();
    let huge = || {
        json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {
            "containers": [{
                "name": "c",
                "image": "i",
                "notifiers": many(|i| json!({"name": format!("n{i}")})),
                "volumeMounts": many(|i| json!({"name": "v", "mountPath": format!("/{i}")})),
                "volumeDevices": many(|i| json!({"name": format!("d{i}"), "devicePath": "/d"})),
            }],
            "schedulingGates": many(|i| json!({"name": format!("g{i}")})),
            "tolerations": many(|i| json!({"key": format!("k{i}"), "operator": "Exists"})),
        }})
    };
    let errors = review_pod(huge()).errors;
    assert!(errors.total() > 2 * MANY, "{}", errors.total());
    let mut changed = huge();
    changed["spec"]["tolerations"][0]["key"] = "other".into();
    let gates = FeatureGates::default();
    let refused = PodRules.validate_update(&changed, &huge(), &gates);
    assert!(!refused.errors.is_empty());
    let annotation: serde_json::Map<String, Value> =
        (0..MANY).map(|i| (format!("c{i}"), json!([]))).collect();
    let annotation = Value::Object(annotation).to_string();
    let containers = many(|i| json!({"name": format!("b{i}"), "image": "i"}));
    let annotated = json!({"metadata": {"name": "p", "namespace": "n",
        "annotations": {crate::pod::NOTIFIERS_ANNOTATION: annotation}},
        "spec": {"containers": containers}});
    assert_eq!(review_pod(annotated).errors.total(), MANY);
}
