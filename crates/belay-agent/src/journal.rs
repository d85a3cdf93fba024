//! What the agent itself must not forget: started notifications and actions, and started
//! terminations.
//!
//! One store for both, so that everything that is on its way to disk at a moment shares a sync.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belay_core::delivery::Record;
use belay_core::termination;
use belay_store::{Expect, OpenError, Options, Store, Write, WriteError};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::warn;

/// What is kept of a notification or an action besides the record: enough to end it without its
/// object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Started {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// What it runs of what the pod declares; `None`: the action of a hook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) notifier: Option<String>,
    pub(crate) pod_name: String,
    /// By the server's clock, milliseconds since the epoch.
    pub(crate) deadline: i64,
    /// The boot that the record's times count from.
    #[serde(default)]
    pub(crate) boot_id: String,
    pub(crate) record: Record,
}

/// Why the journal did not take something.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalError {
    #[error("{0}")]
    Refused(String),
    #[error("an entry cannot be written as JSON: {0}")]
    Encode(#[from] serde_json::Error),
}

/// The journal.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    backing: Backing,
}

/// Where it is kept.
#[derive(Debug, Clone)]
enum Backing {
    Disk(Store<()>),
    /// For an executor that has nothing it could go on with after a restart.
    Memory(Arc<Mutex<BTreeMap<String, Bytes>>>),
}

const STOPS: &str = "stop/";

impl Journal {
    /// Opens the journal; blocks.
    pub(crate) fn open(data_dir: &Path) -> Result<Self, OpenError> {
        let path: PathBuf = data_dir.join("journal");
        let mut options = Options::new(|_, _| ());
        // Nobody watches a journal.
        options.history_events = 1;
        options.history_bytes = 1;
        options.min_free_bytes = 4 << 20;
        Ok(Journal {
            backing: Backing::Disk(Store::open(&path, options)?),
        })
    }

    /// A journal that ends with the process.
    pub(crate) fn in_memory() -> Self {
        Journal {
            backing: Backing::Memory(Arc::default()),
        }
    }

    pub(crate) async fn put_started(
        &self,
        kind: &str,
        started: &Started,
    ) -> Result<(), JournalError> {
        self.put(format!("{kind}{}", started.uid), started).await
    }

    pub(crate) async fn forget_started(&self, kind: &str, uid: &str) {
        self.forget(format!("{kind}{uid}")).await;
    }

    pub(crate) fn started(&self, kind: &str, uid: &str) -> Option<Started> {
        self.get(&format!("{kind}{uid}"))
    }

    /// Everything of a kind that was started and not forgotten.
    pub(crate) fn all_started(&self, kind: &str) -> Vec<Started> {
        self.under(kind)
            .into_iter()
            .map(|(_, started)| started)
            .collect()
    }

    /// Keeps the termination of a pod, or of one of its containers.
    pub(crate) async fn put_stop(
        &self,
        container: Option<&str>,
        stop: &termination::Record,
    ) -> Result<(), JournalError> {
        self.put(stop_key(&stop.pod_uid, container), stop).await
    }

    /// The termination of a whole pod.
    pub(crate) fn stop(&self, pod_uid: &str) -> Option<termination::Record> {
        self.get(&stop_key(pod_uid, None))
    }

    /// The terminations of single containers of a pod, by their names.
    pub(crate) fn container_stops(&self, pod_uid: &str) -> Vec<(String, termination::Record)> {
        self.under(&stop_key(pod_uid, Some("")))
    }

    pub(crate) async fn forget_stop(&self, pod_uid: &str, container: Option<&str>) {
        self.forget(stop_key(pod_uid, container)).await;
    }

    /// The pods of which terminations are kept, whole or in part.
    pub(crate) fn stopped_pods(&self) -> BTreeSet<String> {
        let all: Vec<(String, termination::Record)> = self.under(STOPS);
        all.into_iter().map(|(_, record)| record.pod_uid).collect()
    }

    /// Forgets all terminations of a pod.
    pub(crate) async fn forget_stops(&self, pod_uid: &str) {
        for (container, _) in self.container_stops(pod_uid) {
            self.forget_stop(pod_uid, Some(&container)).await;
        }
        self.forget_stop(pod_uid, None).await;
    }

    pub(crate) async fn shutdown(&self) {
        match &self.backing {
            Backing::Disk(store) => store.shutdown().await,
            Backing::Memory(_) => {}
        }
    }

    async fn put(&self, key: String, value: &impl Serialize) -> Result<(), JournalError> {
        let value = Bytes::from(serde_json::to_vec(value)?);
        let store = match &self.backing {
            Backing::Disk(store) => store,
            Backing::Memory(entries) => {
                lock(entries).insert(key, value);
                return Ok(());
            }
        };
        match store
            .write(Write::put(key, Expect::Any, move |_| value))
            .await
        {
            Ok(_) => Ok(()),
            Err(error) => Err(JournalError::Refused(error.to_string())),
        }
    }

    async fn forget(&self, key: String) {
        let store = match &self.backing {
            Backing::Disk(store) => store,
            Backing::Memory(entries) => {
                lock(entries).remove(&key);
                return;
            }
        };
        if store.get(&key).is_none() {
            return;
        }
        match store.write(Write::delete(key, Expect::Present)).await {
            Ok(_) | Err(WriteError::Conflict { .. } | WriteError::Closed) => {}
            Err(error @ WriteError::Full { .. }) => {
                warn!(%error, "an entry of the journal could not be removed");
            }
        }
    }

    /// All entries whose key begins with `prefix`, by the rest of their key.
    fn under<T: DeserializeOwned>(&self, prefix: &str) -> Vec<(String, T)> {
        let read = |key: &str, value: &[u8]| {
            let rest = key.strip_prefix(prefix)?.to_owned();
            Some((rest, decode(key, value)?))
        };
        match &self.backing {
            Backing::Disk(store) => store
                .list(prefix, None, 0, &mut |_| true)
                .entries
                .iter()
                .filter_map(|entry| read(&entry.key, &entry.value))
                .collect(),
            Backing::Memory(entries) => lock(entries)
                .iter()
                .filter_map(|(key, value)| read(key, value))
                .collect(),
        }
    }

    fn get<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        match &self.backing {
            Backing::Disk(store) => decode(key, &store.get(key)?.value),
            Backing::Memory(entries) => decode(key, lock(entries).get(key)?),
        }
    }
}

fn stop_key(pod_uid: &str, container: Option<&str>) -> String {
    match container {
        None => format!("{STOPS}{pod_uid}"),
        Some(container) => format!("{STOPS}{pod_uid}/{container}"),
    }
}

fn lock(entries: &Mutex<BTreeMap<String, Bytes>>) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An entry that cannot be read counts as lost; the object and the runtime still tell.
fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Option<T> {
    serde_json::from_slice(value)
        .map_err(|error| warn!(key, %error, "an entry of the journal cannot be read"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_core::delivery::Entry;

    const KIND: &str = "notification/";

    fn started(uid: &str) -> Started {
        Started {
            namespace: "ns".into(),
            name: "n".into(),
            uid: uid.into(),
            notifier: Some("lock".into()),
            pod_name: "db".into(),
            deadline: 7,
            boot_id: "b".into(),
            record: Record {
                pod_uid: "p".into(),
                entries: [("main".to_owned(), Entry::planned(Some("c1".into()), true))].into(),
            },
        }
    }

    fn stop() -> termination::Record {
        termination::Record {
            pod_uid: "p".into(),
            pod_name: ("ns".into(), "p".into()),
            boot_id: "b".into(),
            cause: termination::Cause::PodDeleted,
            began: 5,
            legs: Vec::new(),
            counted: [termination::Early::ContainerExited].into(),
        }
    }

    #[tokio::test]
    async fn what_was_started_is_there_after_a_restart_and_gone_when_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        journal.put_started(KIND, &started("u1")).await.unwrap();
        journal.put_started(KIND, &started("u2")).await.unwrap();
        journal.forget_started(KIND, "u2").await;
        journal.forget_started(KIND, "never there").await;
        journal.put_stop(None, &stop()).await.unwrap();
        journal.put_stop(Some("c"), &stop()).await.unwrap();
        journal.shutdown().await;
        drop(journal);

        let journal = Journal::open(dir.path()).unwrap();
        assert_eq!(journal.all_started(KIND), [started("u1")]);
        assert_eq!(journal.stop("p"), Some(stop()));
        assert_eq!(journal.container_stops("p"), [("c".to_owned(), stop())]);
        assert_eq!(journal.stopped_pods(), ["p".to_owned()].into());
        journal.forget_stop("p", None).await;
        assert_eq!(journal.stop("p"), None);
        journal.forget_stops("p").await;
        assert_eq!(journal.container_stops("p"), []);
        assert!(journal.stopped_pods().is_empty());
    }

    #[tokio::test]
    async fn a_termination_in_an_older_form_counts_as_lost() {
        let journal = Journal::in_memory();
        let old = serde_json::json!({"bootId": "b", "started": 5});
        journal.put(stop_key("p", None), &old).await.unwrap();
        assert_eq!(journal.stop("p"), None);
    }

    #[tokio::test]
    async fn one_in_memory_remembers_as_long_as_it_lives() {
        let journal = Journal::in_memory();
        journal.put_started(KIND, &started("u1")).await.unwrap();
        assert_eq!(journal.started(KIND, "u1"), Some(started("u1")));
        assert_eq!(journal.all_started(KIND), [started("u1")]);
        journal.forget_started(KIND, "u1").await;
        assert_eq!(journal.started(KIND, "u1"), None);
    }
}
