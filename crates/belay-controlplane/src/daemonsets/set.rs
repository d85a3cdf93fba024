//! A daemon set as its controller reads it, and the pods that it makes.

use std::collections::BTreeMap;

use belay_api::selector::LabelSelector;
use k8s_openapi::api::core::v1::{PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use kube::api::DynamicObject;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::choose::not_evaluated;

/// The label that says of which template a pod was made.
pub(super) const HASH_LABEL: &str = "controller-revision-hash";

/// Letters and digits that make no words, as in generated names.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: usize = 8;
/// Room for a dash and the suffix in a name that is also a host name.
const PREFIX: usize = 63 - SUFFIX - 1;

/// Conditions of a node that its daemons are there to live with, or to mend.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const TOLERATED_ON_HOST_NETWORK: (&str, &str) =
    ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// When pods of an old template are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Strategy {
    /// While no more nodes than this are without an available pod.
    Rolling(Share),
    /// When somebody deletes them.
    OnDelete,
}

/// A number of nodes, or a share of those that should run the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    Nodes(usize),
    Percent(usize),
}

impl Share {
    /// At least one, or nothing would ever be replaced.
    pub(super) fn of(self, nodes: usize) -> usize {
        match self {
            Share::Nodes(number) => number.max(1),
            Share::Percent(percent) => (nodes * percent).div_ceil(100).max(1),
        }
    }
}

/// What the controller reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Status {
    pub(super) observed_generation: i64,
    pub(super) desired_number_scheduled: usize,
    pub(super) current_number_scheduled: usize,
    pub(super) number_misscheduled: usize,
    pub(super) number_ready: usize,
    pub(super) updated_number_scheduled: usize,
    pub(super) number_available: usize,
    pub(super) number_unavailable: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Set {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) deleting: bool,
    pub(super) selector: LabelSelector,
    pub(super) strategy: Strategy,
    pub(super) min_ready_seconds: i64,
    pub(super) hash: String,
    /// What the placement of its pods depends on.
    pub(super) spec: PodSpec,
    /// Why its pods are placed nowhere.
    pub(super) refusal: Option<String>,
    pub(super) status: Status,
    /// As it is stored: no type here knows all that a pod may have.
    template: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    selector: meta::LabelSelector,
    template: Value,
    update_strategy: Option<UpdateStrategy>,
    min_ready_seconds: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct UpdateStrategy {
    #[serde(rename = "type")]
    kind: Option<String>,
    rolling_update: Option<RollingUpdate>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RollingUpdate {
    max_unavailable: Value,
}

impl Set {
    /// Reads a stored daemon set; `None` for one that no server that checks its objects would have
    /// stored.
    pub(super) fn read(object: &DynamicObject) -> Option<Set> {
        let read: Spec = serde_json::from_value(object.data.get("spec")?.clone()).ok()?;
        let spec = read.template.get("spec").cloned().unwrap_or_default();
        let mut spec: PodSpec = serde_json::from_value(spec).ok()?;
        let added = tolerations(spec.host_network == Some(true));
        spec.tolerations.get_or_insert_default().extend(added);
        let status = object.data.get("status").cloned().unwrap_or_default();
        Some(Set {
            namespace: object.metadata.namespace.clone()?,
            name: object.metadata.name.clone()?,
            uid: object.metadata.uid.clone()?,
            generation: object.metadata.generation.unwrap_or_default(),
            deleting: object.metadata.deletion_timestamp.is_some(),
            selector: LabelSelector::try_from(&read.selector).ok()?,
            strategy: strategy(&read.update_strategy.unwrap_or_default()),
            min_ready_seconds: read.min_ready_seconds.unwrap_or_default(),
            hash: hash(&read.template),
            refusal: not_evaluated(&spec),
            spec,
            status: serde_json::from_value(status).unwrap_or_default(),
            template: read.template,
        })
    }

    /// The name of its pod on a node: always the same, so that the server itself refuses a second
    /// one, however old the picture is that it was decided on.
    pub(super) fn pod_name(&self, node: &str) -> String {
        let digest = fnv(format!("{}/{node}", self.uid).as_bytes());
        format!("{}-{}", self.prefix(), encode(digest))
    }

    fn prefix(&self) -> &str {
        // Names are ASCII.
        let cut = self.name.get(..PREFIX).unwrap_or(&self.name);
        cut.trim_end_matches(['.', '-'])
    }

    /// A new pod for a node.
    pub(super) fn pod(&self, node: &str) -> Value {
        let from = self.template.get("metadata").cloned().unwrap_or_default();
        let mut labels = from["labels"].as_object().cloned().unwrap_or_default();
        labels.insert(HASH_LABEL.to_owned(), self.hash.as_str().into());
        let mut metadata = json!({
            "name": self.pod_name(node),
            "generateName": format!("{}-", self.prefix()),
            "namespace": self.namespace,
            "labels": labels,
            "ownerReferences": [self.owner_reference()],
        });
        for field in ["annotations", "finalizers"] {
            if let Some(value) = from.get(field) {
                metadata[field] = value.clone();
            }
        }
        let mut spec = self.template.get("spec").cloned().unwrap_or_default();
        spec["nodeName"] = node.into();
        spec["tolerations"] = json!(self.spec.tolerations);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }

    /// Says in a pod whose it is.
    pub(super) fn owner_reference(&self) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": self.name,
            "uid": self.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        })
    }
}

fn strategy(read: &UpdateStrategy) -> Strategy {
    if read.kind.as_deref() == Some("OnDelete") {
        return Strategy::OnDelete;
    }
    let most = read.rolling_update.as_ref().map(|it| &it.max_unavailable);
    let number = |text: &str| text.parse().unwrap_or(1);
    Strategy::Rolling(match most.unwrap_or(&Value::Null) {
        Value::String(text) => match text.strip_suffix('%') {
            Some(percent) => Share::Percent(number(percent)),
            None => Share::Nodes(number(text)),
        },
        other => Share::Nodes(
            other
                .as_u64()
                .and_then(|number| usize::try_from(number).ok())
                .unwrap_or(1),
        ),
    })
}

fn tolerations(host_network: bool) -> impl Iterator<Item = Toleration> {
    let network = host_network.then_some(TOLERATED_ON_HOST_NETWORK);
    TOLERATED
        .into_iter()
        .chain(network)
        .map(|(key, effect)| Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        })
}

/// A short name of a template's content. It depends on nothing but that: neither on the order in
/// which fields were written, nor on whether an empty one was written as null.
fn hash(template: &Value) -> String {
    encode(fnv(canonical(template).to_string().as_bytes()))
}

fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, &Value> =
                map.iter().filter(|(_, value)| !value.is_null()).collect();
            let entries = sorted
                .into_iter()
                .map(|(key, value)| (key.clone(), canonical(value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Value::Array(list) => Value::Array(list.iter().map(canonical).collect()),
        other => other.clone(),
    }
}

/// FNV-1a: stable over releases and machines, which is all that is asked of it.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn encode(mut number: u64) -> String {
    let base = ALPHABET.len() as u64;
    // The high bits of the sum are the well mixed ones.
    number ^= number >> 32;
    (0..SUFFIX)
        .map(|_| {
            let digit = usize::try_from(number % base).unwrap_or_default();
            number /= base;
            char::from(ALPHABET[digit])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(spec: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"namespace": "ns", "name": "d", "uid": "u", "generation": 3},
            "spec": spec,
        }))
        .unwrap()
    }

    fn spec() -> Value {
        json!({
            "selector": {"matchLabels": {"app": "d"}},
            "template": {
                "metadata": {"labels": {"app": "d"}, "annotations": {"note": "x"}},
                "spec": {"containers": [{
                    "name": "c",
                    "stopSignal": "SIGUSR1",
                    "notifiers": [{"name": "n", "handler": {"signal": "SIGHUP"}}],
                }]},
            },
        })
    }

    #[test]
    fn a_pod_has_all_of_its_template_a_node_and_an_owner() {
        let set = Set::read(&object(&spec())).unwrap();
        let pod = set.pod("n1");
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container, &spec()["template"]["spec"]["containers"][0]);
        assert_eq!(pod["spec"]["nodeName"], "n1");
        assert_eq!(pod["metadata"]["annotations"]["note"], "x");
        let labels = json!({"app": "d", HASH_LABEL: set.hash});
        assert_eq!(pod["metadata"]["labels"], labels);
        let owner = &pod["metadata"]["ownerReferences"][0];
        assert_eq!(
            (&owner["uid"], &owner["controller"]),
            (&json!("u"), &json!(true))
        );
        let tolerations = pod["spec"]["tolerations"].as_array().unwrap();
        assert_eq!(tolerations.len(), TOLERATED.len());
    }

    #[test]
    fn the_name_of_a_pod_tells_node_and_set_apart_and_is_always_the_same() {
        let set = Set::read(&object(&spec())).unwrap();
        assert_eq!(set.pod_name("n1"), set.pod_name("n1"));
        assert_ne!(set.pod_name("n1"), set.pod_name("n2"));
        let mut other = set.clone();
        other.uid = "another".to_owned();
        assert_ne!(set.pod_name("n1"), other.pod_name("n1"));
        other.name = format!("{}.{}", "a".repeat(PREFIX - 1), "b".repeat(60));
        let name = other.pod_name("n1");
        assert!(name.len() <= 63 && !name.contains(".-"), "{name}");
    }

    #[test]
    fn the_hash_follows_the_content_of_the_template_alone() {
        let template = json!({"a": 1, "b": [{"c": null, "d": 2}]});
        let same = json!({"b": [{"d": 2}], "a": 1, "e": null});
        assert_eq!(hash(&template), hash(&same));
        assert_ne!(hash(&template), hash(&json!({"a": 1, "b": [{"d": 3}]})));
        // Written down, because pods in a store are compared with it by later releases.
        assert_eq!(hash(&json!({})), "j42cpmdt");
    }

    #[test]
    fn a_share_is_rounded_up_and_never_nothing() {
        for (share, nodes, expected) in [
            (Share::Nodes(1), 3, 1),
            (Share::Nodes(0), 3, 1),
            (Share::Percent(30), 3, 1),
            (Share::Percent(50), 3, 2),
            (Share::Percent(100), 3, 3),
            (Share::Percent(10), 0, 1),
        ] {
            assert_eq!(share.of(nodes), expected, "{share:?} of {nodes}");
        }
    }

    #[test]
    fn strategies_read_as_they_are_written() {
        let read = |strategy: Value| {
            let mut spec = spec();
            spec["updateStrategy"] = strategy;
            Set::read(&object(&spec)).unwrap().strategy
        };
        assert_eq!(read(json!({"type": "OnDelete"})), Strategy::OnDelete);
        let rolling = |value: Value| {
            read(json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": value}}))
        };
        assert_eq!(rolling(json!(2)), Strategy::Rolling(Share::Nodes(2)));
        assert_eq!(rolling(json!("40%")), Strategy::Rolling(Share::Percent(40)));
        assert_eq!(read(json!({})), Strategy::Rolling(Share::Nodes(1)));
    }
}
