//! What the controller of daemon sets knows, from watch events and from its own writes.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use tokio::time::Instant;

use super::backoff::{Backoff, Spot};
use super::decide::{Facts, NodeFacts, Plan, PodFacts, decide};
use super::set::{Set, Status};
use crate::ledger::PodKey;

/// The objects of one kind, by their key.
#[derive(Debug)]
pub(super) struct Listing<T> {
    known: BTreeMap<String, T>,
    /// Seen during a re-list; what is not among them at its end is gone.
    listed: BTreeSet<String>,
    synced: bool,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            listed: BTreeSet::new(),
            synced: false,
        }
    }
}

impl<T: PartialEq> Listing<T> {
    /// Takes an event in; `read` gives the key of an object and what is kept of it, if anything.
    /// Tells whether something changed.
    pub(super) fn take<K>(
        &mut self,
        event: Event<K>,
        read: impl Fn(K) -> (String, Option<T>),
    ) -> bool {
        match event {
            Event::Init => {
                self.listed.clear();
                false
            }
            Event::InitApply(object) => {
                let (key, facts) = read(object);
                self.listed.insert(key.clone());
                self.put(key, facts)
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.known.retain(|key, _| listed.contains(key));
                self.synced = true;
                true
            }
            Event::Apply(object) => {
                let (key, facts) = read(object);
                self.put(key, facts)
            }
            Event::Delete(object) => {
                let (key, _) = read(object);
                self.known.remove(&key).is_some()
            }
        }
    }

    fn put(&mut self, key: String, facts: Option<T>) -> bool {
        let Some(facts) = facts else {
            return self.known.remove(&key).is_some();
        };
        if self.known.get(&key) == Some(&facts) {
            return false;
        }
        self.known.insert(key, facts);
        true
    }
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// By UID.
    pub(super) sets: Listing<Set>,
    /// By UID.
    pub(super) pods: Listing<PodFacts>,
    /// By name.
    pub(super) nodes: Listing<NodeFacts>,
    /// Pods that were deleted here; they count as such before the watch tells.
    deleted: BTreeSet<String>,
    pub(super) backoff: Backoff,
}

impl Ledger {
    /// Whether all is known that a decision rests on: with half a picture every node would seem to
    /// lack its pod.
    pub(super) fn is_complete(&self) -> bool {
        self.sets.synced && self.pods.synced && self.nodes.synced
    }

    pub(super) fn set(&self, uid: &str) -> Option<&Set> {
        self.sets.known.get(uid)
    }

    /// A pod was made here.
    pub(super) fn created(&mut self, pod: &Pod) {
        if let (Some(uid), Some(facts)) = (pod.metadata.uid.clone(), PodFacts::of(pod)) {
            self.pods.known.entry(uid).or_insert(facts);
        }
    }

    /// A pod was deleted here, and is ending or gone.
    pub(super) fn deleted(&mut self, pod: &PodKey) {
        self.deleted.insert(pod.uid.clone());
    }

    /// A status was written here.
    pub(super) fn reported(&mut self, uid: &str, status: Status) {
        if let Some(set) = self.sets.known.get_mut(uid) {
            set.status = status;
        }
    }

    /// What every set needs now.
    pub(super) fn plan(&mut self, now: Timestamp, at: Instant) -> Vec<(Set, Plan)> {
        let known = &mut self.pods.known;
        self.deleted.retain(|uid| known.contains_key(uid));
        for uid in &self.deleted {
            if let Some(pod) = known.get_mut(uid) {
                pod.terminating = true;
            }
        }
        // Anybody may write any UID into a reference; a set owns nothing outside its namespace.
        let mut owned: HashMap<(&str, &str), Vec<&PodFacts>> = HashMap::new();
        let mut orphans = Vec::new();
        for pod in self.pods.known.values() {
            match &pod.owner {
                Some(owner) => {
                    let key = (pod.key.namespace.as_str(), owner.as_str());
                    owned.entry(key).or_default().push(pod);
                }
                None => orphans.push(pod),
            }
        }
        let sets = self.sets.known.values();
        sets.map(|set| {
            let key = (set.namespace.as_str(), set.uid.as_str());
            let mut pods = owned.remove(&key).unwrap_or_default();
            pods.extend(orphans.iter().copied().filter(|pod| {
                pod.key.namespace == set.namespace && set.selector.matches(&pod.labels)
            }));
            let resting = self.nodes.known.keys().filter_map(|node| {
                let spot = Spot {
                    uid: set.uid.clone(),
                    hash: set.hash.clone(),
                    node: node.clone(),
                };
                let left = self.backoff.remaining(&spot, at)?;
                Some((node.clone(), left))
            });
            let facts = Facts {
                set,
                nodes: &self.nodes.known,
                pods,
                resting: resting.collect(),
                now,
            };
            (set.clone(), decide(&facts))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;
    use serde_json::{from_value, json};

    use super::super::decide::Action;
    use super::*;

    #[test]
    fn a_pod_that_names_a_set_of_another_namespace_is_none_of_the_sets_business() {
        let set: DynamicObject = from_value(json!({
            "metadata": {"namespace": "ns", "name": "d", "uid": "u", "generation": 1},
            "spec": {
                "selector": {"matchLabels": {"app": "d"}},
                "template": {
                    "metadata": {"labels": {"app": "d"}},
                    "spec": {"containers": [{"name": "c"}]},
                },
            },
        }))
        .unwrap();
        let pod = |namespace: &str| -> Pod {
            let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d",
                "uid": "u", "controller": true});
            from_value(json!({
                "metadata": {"namespace": namespace, "name": "p", "uid": namespace,
                    "labels": {"app": "d"}, "ownerReferences": [owner]},
                "spec": {"nodeName": "gone", "containers": []},
            }))
            .unwrap()
        };
        let mut ledger = Ledger::default();
        ledger
            .sets
            .known
            .insert("u".into(), Set::read(&set).unwrap());
        ledger.created(&pod("ns"));
        ledger.created(&pod("other"));
        let plans = ledger.plan(Timestamp::UNIX_EPOCH, Instant::now());
        let [(_, plan)] = &plans[..] else {
            panic!("{plans:?}")
        };
        assert!(
            matches!(&plan.actions[..], [Action::Delete { pod, .. }] if pod.namespace == "ns"),
            "{plan:?}"
        );
    }
}
