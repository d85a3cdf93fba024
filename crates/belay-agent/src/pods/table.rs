//! What the other tasks may know of the node's pods. Written by the pods' workers, read by everyone.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use belay_action::ContainerId;
use belay_api::pod::Pod;
use tokio::sync::watch;

/// One container as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerView {
    pub(crate) id: ContainerId,
    pub(crate) restart_count: u32,
    pub(crate) running: bool,
    /// Number of the incarnation before it.
    pub(crate) previous: Option<u32>,
}

/// One pod as it is now.
#[derive(Debug, Clone)]
pub(crate) struct PodView {
    pub(crate) pod: Arc<Pod>,
    /// Where its containers are reached; the node's own for a pod on the host's network.
    pub(crate) address: String,
    pub(crate) containers: BTreeMap<String, ContainerView>,
}

impl PodView {
    /// The ID of a container that runs.
    pub(crate) fn running(&self, container: &str) -> Option<&ContainerId> {
        self.containers
            .get(container)
            .filter(|view| view.running)
            .map(|view| &view.id)
    }
}

/// All pods by UID.
#[derive(Debug)]
pub(crate) struct Table {
    pods: RwLock<HashMap<String, Arc<PodView>>>,
    listed: watch::Sender<bool>,
}

impl Default for Table {
    fn default() -> Self {
        Table {
            pods: RwLock::default(),
            listed: watch::Sender::new(false),
        }
    }
}

impl Table {
    pub(crate) fn put(&self, uid: &str, view: PodView) {
        let view = Arc::new(view);
        self.pods
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(uid.to_owned(), view);
    }

    pub(crate) fn remove(&self, uid: &str) {
        self.pods
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
    }

    pub(crate) fn get(&self, uid: &str) -> Option<Arc<PodView>> {
        self.pods
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(uid)
            .cloned()
    }

    /// The pod of this name. Of two, one that is going and its successor, the successor.
    pub(crate) fn named(&self, namespace: &str, name: &str) -> Option<Arc<PodView>> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        pods.values()
            .filter(|view| view.pod.namespace() == namespace && view.pod.name() == name)
            .max_by_key(|view| {
                view.pod
                    .metadata
                    .creation_timestamp
                    .as_ref()
                    .map(|time| time.0)
            })
            .cloned()
    }

    /// Says that every pod of the node has been listed once and is in the table.
    pub(crate) fn listed(&self) {
        self.listed.send_replace(true);
    }

    /// Waits for that.
    pub(crate) async fn until_listed(&self) {
        // The sender lives in this table, so the wait cannot fail.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }
}
