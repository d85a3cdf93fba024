//! A window on pods: the fields that Belay's logic reads are typed, everything else is carried
//! along in `other` and written back as it came.
//!
//! The window implements [`k8s_openapi::Resource`] and [`k8s_openapi::Metadata`], so
//! `kube::Api<Pod>` works as with the upstream type.
//!
//! **Invariant:** at every level that users write, reading and writing back loses nothing but
//! nulls and empty lists, which mean "absent" in the Kubernetes API. `metadata` and `status` are
//! the upstream types: nobody writes fields there that they do not have.

mod annotation;
mod container;
mod notifier;
mod reference;
mod volume;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ListableResource, Metadata, NamespaceResourceScope, Resource};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use container::{
    Container, EnvFromSource, EnvVar, EnvVarSource, ExecAction, KeySelector, Lifecycle,
    LifecycleHandler, LinuxCapabilities, ObjectFieldSelector, ObjectSource, ResourceFieldSelector,
    ResourceRequirements, RestartPolicy, SecurityContext, SleepAction, VolumeMount,
};
pub use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, PodCondition, PodIP, PodStatus, Probe,
};
pub use notifier::{
    ContainerNotifier, ContainerNotifierHandler, DEFAULT_MAX_HOLD_SECONDS, DEFAULT_TIMEOUT_SECONDS,
    NotifierAction, NotifierError, NotifierExec, NotifierHold, NotifierOutput,
    NotifiersByContainer, parse_annotation,
};
pub use reference::{Reference, ReferenceKind};
pub use volume::{
    EmptyDirSource, HostPathSource, HostPathType, KeyToPath, ProjectedSource, Volume, VolumeSource,
};

/// The annotation that declares notifiers where the API server drops unknown fields: a JSON
/// object from container name to list of notifiers. Immutable once set.
pub const NOTIFIERS_ANNOTATION: &str = "apps.k8s.io/notifiers";

/// Grace period of a pod that does not name one.
pub const DEFAULT_GRACE_PERIOD_SECONDS: i64 = 30;

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    #[serde(flatten)]
    types: PodTypes,
    #[serde(default)]
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: PodSpec,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PodStatus>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// What every pod says of itself; items of a list leave it out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodTypes {
    api_version: String,
    kind: String,
}

impl Default for PodTypes {
    fn default() -> Self {
        Self {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<PodOs>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodOs {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl PodSpec {
    /// The pod's restart policy; `Always` unless said otherwise.
    #[must_use]
    pub fn restart_policy(&self) -> RestartPolicy {
        self.restart_policy.unwrap_or(RestartPolicy::Always)
    }

    /// The pod's own grace period in seconds, before any delete request shortens it.
    #[must_use]
    pub fn grace_period_seconds(&self) -> i64 {
        self.termination_grace_period_seconds
            .unwrap_or(DEFAULT_GRACE_PERIOD_SECONDS)
    }

    /// Containers that run as long as the pod does: regular ones and restartable init containers.
    pub fn long_running(&self) -> impl Iterator<Item = &Container> {
        self.init_containers
            .iter()
            .filter(|container| container.is_sidecar())
            .chain(&self.containers)
    }
}

impl Pod {
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    #[must_use]
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The phase, `Pending` while nobody has reported one.
    #[must_use]
    pub fn phase(&self) -> &str {
        self.status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            .unwrap_or("Pending")
    }

    /// Whether the pod was asked to end.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    #[must_use]
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.spec
            .containers
            .iter()
            .chain(&self.spec.init_containers)
            .find(|container| container.name == name)
    }

    /// The notifiers of one container: those of its `notifiers` field, then those of the
    /// annotation.
    ///
    /// # Errors
    ///
    /// When anything in the annotation is wrong, for whichever container: what a pod declares is
    /// used as a whole or not at all. The embedded server refuses such pods; a stock one does not
    /// look.
    pub fn notifiers(&self, container: &str) -> Result<Vec<ContainerNotifier>, NotifierError> {
        let mut annotated = annotation::checked(self)?;
        Ok(self.merged(container, &mut annotated))
    }

    /// Every container that declares this notifier, with its declaration, in the order of the
    /// spec. Only containers that run as long as the pod does can be notified.
    ///
    /// # Errors
    ///
    /// As [`Pod::notifiers`].
    pub fn declarations(
        &self,
        notifier: &str,
    ) -> Result<Vec<(&str, ContainerNotifier)>, NotifierError> {
        let mut annotated = annotation::checked(self)?;
        let mut found = Vec::new();
        for container in self.spec.long_running() {
            let declared = self
                .merged(&container.name, &mut annotated)
                .into_iter()
                .find(|declared| declared.name == notifier);
            found.extend(declared.map(|declared| (container.name.as_str(), declared)));
        }
        Ok(found)
    }

    /// Whether a notification of this name would find anything to run.
    ///
    /// # Errors
    ///
    /// As [`Pod::notifiers`]: what cannot be used is not the same as nothing declared.
    pub fn declares(&self, notifier: &str) -> Result<bool, NotifierError> {
        Ok(!self.declarations(notifier)?.is_empty())
    }

    fn merged(
        &self,
        container: &str,
        annotated: &mut NotifiersByContainer,
    ) -> Vec<ContainerNotifier> {
        let mut merged = self
            .container(container)
            .map(|container| container.notifiers.clone())
            .unwrap_or_default();
        merged.extend(annotated.remove(container).into_iter().flatten());
        merged
    }
}

impl Resource for Pod {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Pod";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = NamespaceResourceScope;
}

impl ListableResource for Pod {
    const LIST_KIND: &'static str = "PodList";
}

impl Metadata for Pod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests {
    use super::*;
    use crate::signal::Signal;
    use serde_json::json;

    fn pod(value: Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_window_is_a_pod_to_kube() {
        fn api_of<K: kube::Resource<DynamicType = ()>>() -> String {
            format!("{}/{}", K::url_path(&(), Some("ns")), K::kind(&()))
        }
        assert_eq!(api_of::<Pod>(), "/api/v1/namespaces/ns/pods/Pod");
    }

    #[test]
    fn a_new_pod_says_what_it_is() {
        let value = serde_json::to_value(Pod::default()).unwrap();
        assert_eq!(value["apiVersion"], "v1");
        assert_eq!(value["kind"], "Pod");
    }

    #[test]
    fn field_and_annotation_notifiers_are_merged() {
        let pod = pod(json!({
            "metadata": {"name": "db", "annotations": {NOTIFIERS_ANNOTATION:
                r#"{"mysql": [{"name": "unlock", "handler": {"exec": {"command": ["u"]}}}]}"#}},
            "spec": {"containers": [
                {"name": "mysql", "notifiers": [
                    {"name": "lock", "handler": {"exec": {"command": ["l"]}}, "timeoutSeconds": 7}]},
                {"name": "log", "notifiers": [
                    {"name": "lock", "handler": {"signal": "SIGHUP"}}]}]}
        }));
        let names: Vec<_> = pod
            .notifiers("mysql")
            .unwrap()
            .into_iter()
            .map(|notifier| notifier.name)
            .collect();
        assert_eq!(names, ["lock", "unlock"]);

        let locks = pod.declarations("lock").unwrap();
        assert_eq!(locks.len(), 2);
        assert_eq!(locks[0].0, "mysql");
        assert_eq!(locks[0].1.timeout().as_secs(), 7);
        assert_eq!(
            locks[1].1.action().unwrap(),
            NotifierAction::Signal(Signal::HUP)
        );
        assert_eq!(locks[1].1.timeout().as_secs(), 1);
        assert!(pod.declares("unlock").unwrap());
        assert!(!pod.declares("nothing").unwrap());
    }

    #[test]
    fn a_name_in_field_and_annotation_is_an_error() {
        let pod = pod(json!({
            "metadata": {"annotations": {NOTIFIERS_ANNOTATION:
                r#"{"c": [{"name": "n", "handler": {"signal": "SIGHUP"}}]}"#}},
            "spec": {"containers": [{"name": "c", "notifiers": [
                {"name": "n", "handler": {"signal": "SIGTERM"}}]}]}
        }));
        assert_eq!(
            pod.notifiers("c").unwrap_err().to_string(),
            "metadata.annotations[apps.k8s.io/notifiers][c][0].name: Duplicate value: \"n\": declared in spec.containers[0].notifiers too"
        );
    }

    #[test]
    fn plain_init_containers_are_not_notified() {
        let pod = pod(json!({"spec": {
            "initContainers": [
                {"name": "setup", "notifiers": [{"name": "n", "handler": {"signal": "SIGHUP"}}]},
                {"name": "proxy", "restartPolicy": "Always",
                 "notifiers": [{"name": "n", "handler": {"signal": "SIGHUP"}}]}],
            "containers": [{"name": "c"}]
        }}));
        let found = pod.declarations("n").unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "proxy");
    }
}
