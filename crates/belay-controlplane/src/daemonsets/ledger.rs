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
        let mut owned: HashMap<&str, Vec<&PodFacts>> = HashMap::new();
        let mut orphans = Vec::new();
        for pod in self.pods.known.values() {
            match &pod.owner {
                Some(owner) => owned.entry(owner).or_default().push(pod),
                None => orphans.push(pod),
            }
        }
        let sets = self.sets.known.values();
        sets.map(|set| {
            let mut pods = owned.remove(set.uid.as_str()).unwrap_or_default();
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
