//! The pods, reduced to what a selector and a Notification need.

use std::collections::{BTreeMap, HashMap, HashSet};

use belay_api::lenient::Lenient;
use belay_core::fanout::Target;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, Object};
use kube::{Client, ResourceExt as _};
use serde::Deserialize;

/// A pod of which only metadata and phase are read.
pub(super) type SlimPod = Object<Nothing, Phase>;

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Nothing {}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Phase {
    #[serde(default)]
    phase: String,
}

pub(super) fn resource() -> ApiResource {
    ApiResource::erase::<Pod>(&())
}

pub(super) fn api(client: &Client, namespace: &str) -> Api<Lenient<SlimPod>> {
    Api::namespaced_with(client.clone(), namespace, &resource())
}

/// What is kept of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodFacts {
    pub(super) target: Target,
    pub(super) labels: BTreeMap<String, String>,
    /// It runs, and is not being deleted.
    pub(super) eligible: bool,
}

pub(super) fn facts(pod: &SlimPod) -> PodFacts {
    let running = pod.status.as_ref().is_some_and(|s| s.phase == "Running");
    PodFacts {
        target: Target {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
        },
        labels: pod.labels().clone(),
        eligible: running && pod.metadata.deletion_timestamp.is_none(),
    }
}

/// All pods, by namespace and UID.
#[derive(Debug, Default)]
pub(super) struct Pods {
    pods: HashMap<String, HashMap<String, PodFacts>>,
    /// Seen in the list that is being read.
    listing: HashSet<String>,
    synced: bool,
}

impl Pods {
    pub(super) fn applied(&mut self, namespace: &str, facts: PodFacts) {
        let pods = self.pods.entry(namespace.to_owned()).or_default();
        pods.insert(facts.target.uid.clone(), facts);
    }

    pub(super) fn deleted(&mut self, namespace: &str, uid: &str) {
        if let Some(pods) = self.pods.get_mut(namespace) {
            pods.remove(uid);
            if pods.is_empty() {
                self.pods.remove(namespace);
            }
        }
    }

    pub(super) fn listing(&mut self) {
        self.listing.clear();
    }

    pub(super) fn listed(&mut self, uid: &str) {
        self.listing.insert(uid.to_owned());
    }

    /// The list is complete. Returns what it did not show: those are gone.
    pub(super) fn listing_done(&mut self) -> Vec<(String, Target)> {
        self.synced = true;
        let listing = std::mem::take(&mut self.listing);
        let gone: Vec<(String, Target)> = self
            .pods
            .iter()
            .flat_map(|(namespace, pods)| {
                let gone = pods
                    .values()
                    .filter(|pod| !listing.contains(&pod.target.uid));
                gone.map(|pod| (namespace.clone(), pod.target.clone()))
            })
            .collect();
        for (namespace, target) in &gone {
            self.deleted(namespace, &target.uid);
        }
        gone
    }

    pub(super) fn of(&self, namespace: &str) -> impl Iterator<Item = &PodFacts> {
        self.pods
            .get(namespace)
            .into_iter()
            .flat_map(HashMap::values)
    }

    /// Whether the pod is there, as far as that can be excluded.
    pub(super) fn may_exist(&self, namespace: &str, uid: &str) -> bool {
        let known = self
            .pods
            .get(namespace)
            .is_some_and(|pods| pods.contains_key(uid));
        known || !self.synced
    }

    pub(super) fn is_synced(&self) -> bool {
        self.synced
    }
}
