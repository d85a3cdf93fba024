//! What is filled in when a pod leaves it out.

use serde_json::{Map, Value, json};

use super::super::{object_at, set_default};
use crate::pod::{DEFAULT_GRACE_PERIOD_SECONDS, DEFAULT_MAX_HOLD_SECONDS, DEFAULT_TIMEOUT_SECONDS};

/// Mode 0644 of files in volumes that project objects.
const FILE_MODE: i64 = 0o644;

type Object = Map<String, Value>;

pub(super) fn default_pod(pod: &mut Value) {
    default_template(pod);
    let Some(spec) = object_at(pod, "spec") else {
        return;
    };
    let host_network = spec.get("hostNetwork") == Some(&Value::Bool(true));
    for list in ["initContainers", "containers"] {
        for container in objects(spec, list) {
            requests_from_limits(container);
            if host_network {
                host_ports(container);
            }
        }
    }
    set_absent(spec, "enableServiceLinks", true);
}

/// What is filled in already in a template; the rest follows in the pods that are made of it.
pub(super) fn default_template(template: &mut Value) {
    let Some(spec) = object_at(template, "spec") else {
        return;
    };
    for volume in objects(spec, "volumes") {
        default_volume(volume);
    }
    for list in super::CONTAINER_LISTS {
        for container in objects(spec, list) {
            default_container(container);
        }
    }
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "schedulerName", "default-scheduler");
    set_absent(spec, "securityContext", json!({}));
    set_absent(
        spec,
        "terminationGracePeriodSeconds",
        DEFAULT_GRACE_PERIOD_SECONDS,
    );
    let grace = spec
        .get("terminationGracePeriodSeconds")
        .and_then(Value::as_i64);
    if grace.is_some_and(|grace| grace < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), 1.into());
    }
    service_account(spec);
}

/// The old and the new name of one field say the same.
fn service_account(spec: &mut Object) {
    let named = |field: &str| {
        spec.get(field)
            .filter(|value| value.as_str().is_some_and(|name| !name.is_empty()))
            .cloned()
    };
    if let Some(name) = named("serviceAccountName").or_else(|| named("serviceAccount")) {
        spec.insert("serviceAccountName".to_owned(), name.clone());
        spec.insert("serviceAccount".to_owned(), name);
    }
}

fn default_container(container: &mut Object) {
    let image = container
        .get("image")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let policy = if tag(image) == "latest" {
        "Always"
    } else {
        "IfNotPresent"
    };
    set_default(container, "imagePullPolicy", policy);
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    for port in objects(container, "ports") {
        set_default(port, "protocol", "TCP");
    }
    for variable in objects(container, "env") {
        let reference = child(variable, "valueFrom").and_then(|source| child(source, "fieldRef"));
        if let Some(reference) = reference {
            set_default(reference, "apiVersion", "v1");
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = child(container, probe) {
            default_probe(probe);
        }
    }
    if let Some(lifecycle) = child(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(hook) = child(lifecycle, hook) {
                default_handler(hook);
            }
        }
    }
    for notifier in objects(container, "notifiers") {
        default_notifier(notifier);
    }
}

pub(super) fn default_notifier(notifier: &mut Object) {
    set_absent(notifier, "timeoutSeconds", DEFAULT_TIMEOUT_SECONDS);
    let holds = ["undo", "hold"]
        .iter()
        .any(|field| notifier.get(*field).is_some_and(|value| !value.is_null()));
    if holds {
        set_absent(notifier, "maxHoldSeconds", DEFAULT_MAX_HOLD_SECONDS);
    }
    if let Some(probe) = child(notifier, "probe") {
        default_probe(probe);
    }
}

fn default_probe(probe: &mut Object) {
    set_default(probe, "timeoutSeconds", 1);
    set_default(probe, "periodSeconds", 10);
    set_default(probe, "successThreshold", 1);
    set_default(probe, "failureThreshold", 3);
    default_handler(probe);
}

pub(in crate::rules) fn default_handler(handler: &mut Object) {
    if let Some(http) = child(handler, "httpGet") {
        set_default(http, "path", "/");
        set_default(http, "scheme", "HTTP");
    }
    if let Some(grpc) = child(handler, "grpc") {
        set_absent(grpc, "service", "");
    }
}

fn default_volume(volume: &mut Object) {
    let sources = volume
        .iter()
        .filter(|(field, value)| *field != "name" && !value.is_null());
    if sources.count() == 0 {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = child(volume, source) {
            set_absent(source, "defaultMode", FILE_MODE);
        }
    }
    if let Some(host_path) = child(volume, "hostPath") {
        set_absent(host_path, "type", "");
    }
    if let Some(projected) = child(volume, "projected") {
        for source in objects(projected, "sources") {
            if let Some(token) = child(source, "serviceAccountToken") {
                set_absent(token, "expirationSeconds", 3600);
            }
        }
    }
}

fn requests_from_limits(container: &mut Object) {
    let Some(resources) = child(container, "resources") else {
        return;
    };
    let Some(Value::Object(limits)) = resources.get("limits").cloned() else {
        return;
    };
    let requests = resources.entry("requests").or_insert(Value::Null);
    if requests.is_null() {
        *requests = json!({});
    }
    if let Some(requests) = requests.as_object_mut() {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

fn host_ports(container: &mut Object) {
    for port in objects(container, "ports") {
        if let Some(number) = port.get("containerPort").cloned() {
            set_default(port, "hostPort", number);
        }
    }
}

/// The tag of an image reference: `latest` when there is neither tag nor digest, nothing when
/// the text is not a reference at all.
fn tag(image: &str) -> &str {
    let (name, digest) = match image.split_once('@') {
        Some((name, _)) => (name, true),
        None => (image, false),
    };
    let last = name.rsplit('/').next().unwrap_or_default();
    let (repository, tag) = last.split_once(':').unwrap_or((last, ""));
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let valid = repository.starts_with(lower)
        && repository.ends_with(lower)
        && repository.chars().all(|c| lower(c) || "._-".contains(c));
    match (valid, tag, digest) {
        (false, _, _) | (true, "", true) => "",
        (true, "", false) => "latest",
        (true, tag, _) => tag,
    }
}

/// Sets a field of pointer type: zero and empty are values of their own there.
fn set_absent(object: &mut Object, field: &str, value: impl Into<Value>) {
    if object.get(field).is_none_or(Value::is_null) {
        object.insert(field.to_owned(), value.into());
    }
}

fn child<'a>(object: &'a mut Object, field: &str) -> Option<&'a mut Object> {
    object.get_mut(field).and_then(Value::as_object_mut)
}

/// The objects in a list.
fn objects<'a>(object: &'a mut Object, field: &str) -> impl Iterator<Item = &'a mut Object> {
    object
        .get_mut(field)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_an_image_decides_whether_it_is_always_pulled() {
        for (image, expected) in [
            ("nginx", "latest"),
            ("nginx:latest", "latest"),
            ("nginx:1.27", "1.27"),
            ("registry:5000/nginx", "latest"),
            ("registry:5000/team/nginx:v1", "v1"),
            ("nginx@sha256:abc", ""),
            ("nginx:latest@sha256:abc", "latest"),
            ("", ""),
            ("Not An Image", ""),
        ] {
            assert_eq!(tag(image), expected, "{image}");
        }
    }

    #[test]
    fn a_pod_gets_the_defaults_of_a_stock_server() {
        let mut pod = json!({"spec": {
            "hostNetwork": true,
            "volumes": [{"name": "a"}, {"name": "b", "configMap": {"name": "c"}},
                        {"name": "c", "hostPath": {"path": "/x"}}],
            "containers": [{
                "name": "c", "image": "nginx",
                "ports": [{"containerPort": 80}],
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                "livenessProbe": {"httpGet": {"port": 80}},
                "lifecycle": {"preStop": {"httpGet": {"port": 80, "path": "/stop"}}},
                "notifiers": [
                    {"name": "lock", "handler": {"exec": {"command": ["l"]}}, "undo": "unlock"},
                    {"name": "unlock", "handler": {"exec": {"command": ["u"]}},
                     "timeoutSeconds": 5}]
            }]
        }});
        default_pod(&mut pod);
        assert_eq!(
            pod,
            json!({"spec": {
                "hostNetwork": true,
                "dnsPolicy": "ClusterFirst",
                "restartPolicy": "Always",
                "schedulerName": "default-scheduler",
                "securityContext": {},
                "enableServiceLinks": true,
                "terminationGracePeriodSeconds": 30,
                "volumes": [{"name": "a", "emptyDir": {}},
                            {"name": "b", "configMap": {"name": "c", "defaultMode": 420}},
                            {"name": "c", "hostPath": {"path": "/x", "type": ""}}],
                "containers": [{
                    "name": "c", "image": "nginx", "imagePullPolicy": "Always",
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "ports": [{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
                    "env": [{"name": "N", "valueFrom": {"fieldRef":
                        {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
                    "resources": {"limits": {"cpu": "1", "memory": "1Gi"},
                                  "requests": {"cpu": "500m", "memory": "1Gi"}},
                    "livenessProbe": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                        "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1,
                        "failureThreshold": 3},
                    "lifecycle": {"preStop": {"httpGet":
                        {"port": 80, "path": "/stop", "scheme": "HTTP"}}},
                    "notifiers": [
                        {"name": "lock", "handler": {"exec": {"command": ["l"]}},
                         "undo": "unlock", "timeoutSeconds": 1, "maxHoldSeconds": 60},
                        {"name": "unlock", "handler": {"exec": {"command": ["u"]}},
                         "timeoutSeconds": 5}]
                }]
            }})
        );
        let once = pod.clone();
        default_pod(&mut pod);
        assert_eq!(pod, once, "defaulting is idempotent");
    }

    #[test]
    fn a_negative_grace_period_becomes_one_second() {
        let mut pod = json!({"spec": {"terminationGracePeriodSeconds": -5}});
        default_pod(&mut pod);
        assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 1);
        let mut pod = json!({"spec": {"terminationGracePeriodSeconds": 0}});
        default_pod(&mut pod);
        assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 0);
    }
}
