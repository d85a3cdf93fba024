//! What the agent itself must not forget: started notifications and started terminations.
//!
//! One store for both, so that everything that is on its way to disk at a moment shares a sync.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belay_core::delivery::Record;
use belay_store::{Expect, OpenError, Options, Store, Write, WriteError};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tracing::warn;

/// What is kept of a notification besides the record: enough to end it without its object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Started {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) notifier: String,
    pub(crate) pod_name: String,
    /// By the server's clock, milliseconds since the epoch.
    pub(crate) deadline: i64,
    pub(crate) record: Record,
}

/// A termination under way. Times since boot, because a wall clock may be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stopping {
    pub(crate) boot_id: String,
    pub(crate) started: i64,
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

const NOTIFICATIONS: &str = "notification/";
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

    pub(crate) async fn put_notification(&self, started: &Started) -> Result<(), JournalError> {
        self.put(format!("{NOTIFICATIONS}{}", started.uid), started)
            .await
    }

    pub(crate) async fn forget_notification(&self, uid: &str) {
        self.forget(format!("{NOTIFICATIONS}{uid}")).await;
    }

    pub(crate) fn notification(&self, uid: &str) -> Option<Started> {
        self.get(&format!("{NOTIFICATIONS}{uid}"))
    }

    /// Every notification that was started and not forgotten.
    pub(crate) fn notifications(&self) -> Vec<Started> {
        match &self.backing {
            Backing::Disk(store) => store
                .list(NOTIFICATIONS, None, 0, &mut |_| true)
                .entries
                .iter()
                .filter_map(|entry| decode(&entry.key, &entry.value))
                .collect(),
            Backing::Memory(entries) => lock(entries)
                .iter()
                .filter(|(key, _)| key.starts_with(NOTIFICATIONS))
                .filter_map(|(key, value)| decode(key, value))
                .collect(),
        }
    }

    pub(crate) async fn put_stop(
        &self,
        pod_uid: &str,
        stop: &Stopping,
    ) -> Result<(), JournalError> {
        self.put(format!("{STOPS}{pod_uid}"), stop).await
    }

    pub(crate) fn stop(&self, pod_uid: &str) -> Option<Stopping> {
        self.get(&format!("{STOPS}{pod_uid}"))
    }

    pub(crate) async fn forget_stop(&self, pod_uid: &str) {
        self.forget(format!("{STOPS}{pod_uid}")).await;
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

    fn get<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        match &self.backing {
            Backing::Disk(store) => decode(key, &store.get(key)?.value),
            Backing::Memory(entries) => decode(key, lock(entries).get(key)?),
        }
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

    fn started(uid: &str) -> Started {
        Started {
            namespace: "ns".into(),
            name: "n".into(),
            uid: uid.into(),
            notifier: "lock".into(),
            pod_name: "db".into(),
            deadline: 7,
            record: Record {
                pod_uid: "p".into(),
                entries: [("main".to_owned(), Entry::planned(Some("c1".into()), true))].into(),
            },
        }
    }

    #[tokio::test]
    async fn what_was_started_is_there_after_a_restart_and_gone_when_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        journal.put_notification(&started("u1")).await.unwrap();
        journal.put_notification(&started("u2")).await.unwrap();
        journal.forget_notification("u2").await;
        journal.forget_notification("never there").await;
        journal
            .put_stop(
                "p",
                &Stopping {
                    boot_id: "b".into(),
                    started: 5,
                },
            )
            .await
            .unwrap();
        journal.shutdown().await;
        drop(journal);

        let journal = Journal::open(dir.path()).unwrap();
        assert_eq!(journal.notifications(), [started("u1")]);
        assert_eq!(journal.stop("p").unwrap().started, 5);
        journal.forget_stop("p").await;
        assert_eq!(journal.stop("p"), None);
    }

    #[tokio::test]
    async fn one_in_memory_remembers_as_long_as_it_lives() {
        let journal = Journal::in_memory();
        journal.put_notification(&started("u1")).await.unwrap();
        assert_eq!(journal.notification("u1"), Some(started("u1")));
        assert_eq!(journal.notifications(), [started("u1")]);
        journal.forget_notification("u1").await;
        assert_eq!(journal.notification("u1"), None);
    }
}
