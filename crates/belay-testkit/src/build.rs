//! Objects as a user would write them, built in one expression.

use std::path::Path;

use serde_json::{Value, json};

use crate::image;

/// What is asked for waits longer than any test does, so that a busy machine lets nothing expire by
/// the default of a minute.
const DEADLINE: u32 = 600;

/// Where images are not used.
const NO_IMAGE: &str = "none";

/// A pod that runs to nowhere until told otherwise: no restart policy, no labels, no containers.
pub fn pod(name: &str) -> PodBuilder {
    PodBuilder {
        object: json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name },
            "spec": { "containers": [], "terminationGracePeriodSeconds": 1 },
        }),
        list: "containers",
    }
}

/// Asks for `notifier` in the pod `pod`.
pub fn notification(name: &str, pod: &str, notifier: &str) -> NotificationBuilder {
    NotificationBuilder {
        object: json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "PodNotification",
            "metadata": { "name": name },
            "spec": { "podName": pod, "notifier": notifier, "deadlineSeconds": DEADLINE },
        }),
    }
}

/// Asks for `notifier` in the pods with this label that are there now.
pub fn fanout(name: &str, label: (&str, &str), notifier: &str) -> FanoutBuilder {
    let (key, value) = label;
    FanoutBuilder {
        object: json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "Notification",
            "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": { key: value } },
                "policy": "PreExistingPods",
                "notifier": notifier,
                "deadlineSeconds": DEADLINE,
            },
        }),
    }
}

/// A handler that runs a command in the container.
pub fn exec<const N: usize>(command: [&str; N]) -> Handler {
    Handler {
        fields: json!({ "handler": { "exec": { "command": command.as_slice() } } }),
    }
}

/// A handler that signals the container's first process.
pub fn signal(name: &str) -> Handler {
    Handler {
        fields: json!({ "handler": { "signal": name } }),
    }
}

/// What a notifier does, and for how long at most.
#[derive(Debug, Clone)]
pub struct Handler {
    fields: Value,
}

impl Handler {
    pub fn timeout(mut self, seconds: u32) -> Self {
        self.fields["timeoutSeconds"] = seconds.into();
        self
    }

    /// Any further field of a notifier.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.fields[field] = value.into();
        self
    }
}

#[derive(Debug, Clone)]
pub struct PodBuilder {
    object: Value,
    /// Where the last container was added.
    list: &'static str,
}

impl PodBuilder {
    /// Adds a container; what follows about containers is about this one.
    pub fn container<const N: usize>(self, name: &str, command: [&str; N]) -> Self {
        self.add("containers", name, &command)
    }

    /// Adds an init container that goes on beside the others.
    pub fn sidecar<const N: usize>(self, name: &str, command: [&str; N]) -> Self {
        self.add("initContainers", name, &command)
            .container_field("restartPolicy", "Always")
    }

    fn add(mut self, list: &'static str, name: &str, command: &[&str]) -> Self {
        self.list = list;
        let container = json!({ "name": name, "image": NO_IMAGE, "command": command });
        match self.object["spec"][list].as_array_mut() {
            Some(containers) => containers.push(container),
            None => self.object["spec"][list] = json!([container]),
        }
        self
    }

    /// Adds a container that does nothing until it is stopped.
    pub fn idle(self, name: &str) -> Self {
        self.container(name, ["sh", "-c", "while :; do sleep 3600 & wait; done"])
    }

    /// Declares a notifier in the last container.
    pub fn notifier(mut self, name: &str, handler: Handler) -> Self {
        let mut notifier = handler.fields;
        notifier["name"] = name.into();
        let container = self.last();
        match container["notifiers"].as_array_mut() {
            Some(notifiers) => notifiers.push(notifier),
            None => container["notifiers"] = json!([notifier]),
        }
        self
    }

    /// Has the health of the last container probed all the time, with what succeeds.
    pub fn probed(self) -> Self {
        let probe = json!({
            "exec": { "command": ["true"] },
            "periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 5,
        });
        self.container_field("livenessProbe", probe.clone())
            .container_field("readinessProbe", probe)
    }

    /// Sets any field of the last container.
    pub fn container_field(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.last()[field] = value.into();
        self
    }

    /// Sets any field of the pod's spec.
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.object["spec"][field] = value.into();
        self
    }

    pub fn restart_policy(self, policy: &str) -> Self {
        self.spec("restartPolicy", policy)
    }

    pub fn grace(self, seconds: u32) -> Self {
        self.spec("terminationGracePeriodSeconds", seconds)
    }

    pub fn node(self, name: &str) -> Self {
        self.spec("nodeName", name)
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.object["metadata"]["labels"][key] = value.into();
        self
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.object["metadata"]["annotations"][key] = value.into();
        self
    }

    /// The same pod in real containers: images that its node has, and `files` seen by every
    /// container under its own path.
    pub fn in_containers(mut self, files: &Path) -> Self {
        for container in self.containers_mut() {
            if container["image"] == NO_IMAGE {
                container["image"] = image::BUSYBOX.into();
            }
            container["volumeMounts"] = json!([{ "name": "files", "mountPath": files }]);
        }
        self.spec(
            "volumes",
            json!([{ "name": "files", "hostPath": { "path": files } }]),
        )
    }

    /// The same pod for a stock cluster: in containers, and notifiers as an annotation.
    pub fn for_kubernetes(self, files: &Path) -> Self {
        let mut pod = self.in_containers(files);
        let mut declared = serde_json::Map::new();
        for container in pod.containers_mut() {
            let Some(fields) = container.as_object_mut() else {
                continue;
            };
            let name = fields
                .get("name")
                .and_then(Value::as_str)
                .map(str::to_owned);
            if let (Some(name), Some(notifiers)) = (name, fields.remove("notifiers")) {
                declared.insert(name, notifiers);
            }
        }
        if !declared.is_empty() {
            let text = Value::Object(declared).to_string();
            pod = pod.annotation("apps.k8s.io/notifiers", &text);
        }
        pod
    }

    pub fn build(self) -> Value {
        self.object
    }

    fn containers_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let spec = self.object["spec"].as_object_mut().into_iter().flatten();
        spec.filter(|(field, _)| ["initContainers", "containers"].contains(&field.as_str()))
            .filter_map(|(_, list)| list.as_array_mut())
            .flatten()
    }

    fn last(&mut self) -> &mut Value {
        self.object["spec"][self.list]
            .as_array_mut()
            .and_then(|containers| containers.last_mut())
            .expect("a container comes before what is said about it")
    }
}

#[derive(Debug, Clone)]
pub struct NotificationBuilder {
    object: Value,
}

impl NotificationBuilder {
    pub fn deadline(self, seconds: u32) -> Self {
        self.spec("deadlineSeconds", seconds)
    }

    /// Sets any field of the spec.
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.object["spec"][field] = value.into();
        self
    }

    pub fn build(self) -> Value {
        self.object
    }
}

/// A `Notification`, which is for many pods.
#[derive(Debug, Clone)]
pub struct FanoutBuilder {
    object: Value,
}

impl FanoutBuilder {
    /// Also the pods that come later.
    pub fn all_pods(self) -> Self {
        self.spec("policy", "AllPods")
    }

    pub fn parallelism(self, limit: i32) -> Self {
        self.spec("parallelism", limit)
    }

    /// Sets any field of the spec.
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.object["spec"][field] = value.into();
        self
    }

    pub fn build(self) -> Value {
        self.object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_reads_like_its_manifest() {
        let built = pod("db")
            .label("app", "db")
            .container("main", ["sleep", "1"])
            .notifier("lock", exec(["lock.sh"]).timeout(5))
            .notifier("reload", signal("SIGHUP"))
            .idle("side")
            .build();
        assert_eq!(built["metadata"]["labels"]["app"], "db");
        let main = &built["spec"]["containers"][0];
        assert_eq!(main["command"], json!(["sleep", "1"]));
        assert_eq!(
            main["notifiers"],
            json!([
                { "name": "lock", "handler": { "exec": { "command": ["lock.sh"] } }, "timeoutSeconds": 5 },
                { "name": "reload", "handler": { "signal": "SIGHUP" } },
            ])
        );
        assert_eq!(built["spec"]["containers"][1]["name"], "side");
    }

    #[test]
    fn on_a_stock_cluster_notifiers_are_an_annotation() {
        let built = pod("db")
            .idle("main")
            .notifier("reload", signal("SIGHUP"))
            .idle("side")
            .for_kubernetes(Path::new("/files"))
            .build();
        let annotation = &built["metadata"]["annotations"]["apps.k8s.io/notifiers"];
        assert_eq!(
            annotation,
            r#"{"main":[{"handler":{"signal":"SIGHUP"},"name":"reload"}]}"#
        );
        let main = &built["spec"]["containers"][0];
        assert_eq!(main["notifiers"], Value::Null);
        assert_eq!(main["volumeMounts"][0]["mountPath"], "/files");
    }

    #[test]
    fn a_notification_names_pod_and_notifier() {
        let built = notification("n", "db", "lock").deadline(7).build();
        assert_eq!(
            built["spec"],
            json!({ "podName": "db", "notifier": "lock", "deadlineSeconds": 7 })
        );
    }
}
