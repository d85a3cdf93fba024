//! The store itself: opening, reading, writing, ending.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use redb::StorageBackend;
use tokio::sync::{mpsc, oneshot};

use crate::Revision;
use crate::backup::{self, BackupError};
use crate::committer::{Committer, Fatal, GARBAGE_RECORDS, Request};
use crate::disk::{Disk, OpenError, Opened};
use crate::entry::{Entry, Page};
use crate::shared::Shared;
use crate::space::Space;
use crate::state::Limits;
use crate::watch::{Watch, WatchError};
use crate::write::{Write, WriteError};

/// How many writes may wait for the committer before writers have to wait for the queue.
const QUEUE_WRITES: usize = 1024;

/// Makes of a key and its value what the caller wants at hand in memory.
///
/// Called once for every value, by the committer and when a store is opened, so it should be quick
/// and must not panic, whatever the value.
pub type Derive<M> = Arc<dyn Fn(&str, &[u8]) -> M + Send + Sync>;

/// Told once, when the store can no longer keep its promises.
pub type OnFatal = Arc<dyn Fn(&Fatal) + Send + Sync>;

/// How a store is opened.
pub struct Options<M> {
    /// What is kept beside every value.
    pub derive: Derive<M>,
    /// How many events are retained for watchers, at most.
    pub history_events: usize,
    /// How many bytes of events are retained for watchers, at most. What an event replaced is
    /// counted with it. The newest event is always retained.
    pub history_bytes: usize,
    /// How much of the disk must be free for a put to be accepted.
    pub min_free_bytes: u64,
    /// What happens when a commit fails. Unless set, the failure is logged and the process ends:
    /// after a failed sync nobody can know what is on disk, so going on would be guessing.
    pub on_fatal: OnFatal,
}

impl<M> Options<M> {
    /// The usual limits, with this `derive`.
    pub fn new(derive: impl Fn(&str, &[u8]) -> M + Send + Sync + 'static) -> Self {
        Options {
            derive: Arc::new(derive),
            history_events: 10_000,
            history_bytes: 16 << 20,
            min_free_bytes: 64 << 20,
            on_fatal: Arc::new(|fatal| {
                tracing::error!(error = %fatal, "the store has failed, ending the process");
                // Whoever runs this must read it even if no log is set up.
                eprintln!("belay: {fatal}");
                std::process::abort();
            }),
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            events: self.history_events,
            bytes: self.history_bytes,
        }
    }
}

impl<M> fmt::Debug for Options<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("history_events", &self.history_events)
            .field("history_bytes", &self.history_bytes)
            .field("min_free_bytes", &self.min_free_bytes)
            .finish_non_exhaustive()
    }
}

/// How large a store is, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The newest visible revision.
    pub revision: Revision,
    /// The oldest revision a watch can start from.
    pub compacted: Revision,
    /// How many keys exist.
    pub entries: usize,
    /// What they take in memory, near enough.
    pub entries_bytes: usize,
    /// How many events are retained.
    pub history_events: usize,
    /// What they take in memory at most, as counted for [`Options::history_bytes`].
    pub history_bytes: usize,
}

/// Revisioned values by key. Cloning is cheap; all clones are one store.
///
/// When the last clone is dropped the store closes in the background; use [`Store::shutdown`] to
/// know when it has.
pub struct Store<M> {
    shared: Arc<Shared<M>>,
    queue: Arc<Queue<M>>,
}

/// The way to the committer. Gone once the store is shut down.
struct Queue<M>(Mutex<Option<mpsc::Sender<Request<M>>>>);

impl<M> Queue<M> {
    fn sender(&self) -> Option<mpsc::Sender<Request<M>>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl<M> Clone for Store<M> {
    fn clone(&self) -> Self {
        Store {
            shared: Arc::clone(&self.shared),
            queue: Arc::clone(&self.queue),
        }
    }
}

impl<M> fmt::Debug for Store<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

impl<M: Send + Sync + 'static> Store<M> {
    /// Opens the store at `path`, which is created if there is none. Blocks while it reads.
    ///
    /// The whole file is verified. A file that has lost anything that was acknowledged is refused;
    /// what a crash left unfinished is rolled back, as nobody was told of it.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. A damaged file is refused every time; nothing but the engine's own attempt
    /// at repair has touched it.
    pub fn open(path: &Path, options: Options<M>) -> Result<Self, OpenError> {
        let opened = Disk::open(path, &options.derive, options.limits())?;
        let space = Space::of(path, options.min_free_bytes).map_err(|source| OpenError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::start(opened, space, options)
    }

    /// Opens the store in `backend`, which may be empty, for tests of what a disk can do.
    ///
    /// A crash while an empty backend is being filled can leave something that is refused later;
    /// [`Store::open`] has no such moment.
    ///
    /// # Errors
    ///
    /// As for [`Store::open`].
    pub fn open_backend(
        backend: impl StorageBackend,
        options: Options<M>,
    ) -> Result<Self, OpenError> {
        let path = Path::new("(storage backend)");
        let opened = Disk::open_backend(backend, path, &options.derive, options.limits())?;
        Self::start(opened, Space::unlimited(path), options)
    }

    fn start(opened: Opened<M>, space: Space, options: Options<M>) -> Result<Self, OpenError> {
        let Opened {
            disk,
            state,
            garbage,
        } = opened;
        let Options {
            derive,
            on_fatal,
            history_events,
            ..
        } = options;
        let path = disk.path().to_owned();
        let shared = Arc::new(Shared::new(state));
        let (sender, queue) = mpsc::channel(QUEUE_WRITES);
        let committer = Committer {
            shared: Arc::clone(&shared),
            queue,
            disk,
            space,
            derive,
            on_fatal,
            garbage,
            // A log should not hold more of what is gone than of what is kept.
            garbage_limit: history_events.clamp(1, GARBAGE_RECORDS),
            shrinkable: true,
            shrink_after: Instant::now(),
        };
        std::thread::Builder::new()
            .name("belay-store".to_owned())
            .spawn(move || committer.run())
            .map_err(|source| OpenError::Io { path, source })?;
        Ok(Store {
            shared,
            queue: Arc::new(Queue(Mutex::new(Some(sender)))),
        })
    }

    /// Carries out one write, and returns what it made once that is on disk and visible. For a
    /// deletion this is the tombstone.
    ///
    /// Dropping the future does not take the write back once it is queued.
    ///
    /// # Errors
    ///
    /// See [`WriteError`]. A conflict is answered only when what caused it is on disk, too.
    pub async fn write(&self, write: Write) -> Result<Arc<Entry<M>>, WriteError<M>> {
        let (answer, answered) = oneshot::channel();
        {
            let queue = self.queue.sender().ok_or(WriteError::Closed)?;
            let request = Request { write, answer };
            queue.send(request).await.map_err(|_| WriteError::Closed)?;
        }
        answered.await.unwrap_or(Err(WriteError::Closed))
    }
}

impl<M> Store<M> {
    /// The newest visible revision.
    pub fn revision(&self) -> Revision {
        self.shared.read().revision()
    }

    /// What `key` holds.
    pub fn get(&self, key: &str) -> Option<Arc<Entry<M>>> {
        self.shared.read().get(key).cloned()
    }

    /// The entries under `prefix` that `keep` accepts, in the order of their keys, beginning after
    /// the key `after`. At most `limit` of them, or all if `limit` is 0.
    ///
    /// `keep` is called for all entries that are left, beyond the limit too, so that what remains
    /// is counted exactly. It is not called under the store's lock.
    pub fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        keep: &mut dyn FnMut(&Entry<M>) -> bool,
    ) -> Page<M> {
        let (found, revision) = {
            let state = self.shared.read();
            let found: Vec<_> = state.range(prefix, after).cloned().collect();
            (found, state.revision())
        };
        let limit = if limit == 0 { usize::MAX } else { limit };
        let mut entries = Vec::new();
        let mut remaining = 0;
        for entry in found {
            if !keep(&entry) {
                continue;
            }
            if entries.len() < limit {
                entries.push(entry);
            } else {
                remaining += 1;
            }
        }
        Page {
            entries,
            revision,
            more: remaining > 0,
            remaining,
        }
    }

    /// Follows what happens under `prefix` after the revision `after`.
    ///
    /// # Errors
    ///
    /// [`WatchError::TooOld`] when history is not kept from there, and [`WatchError::Future`] when
    /// the store has not come that far.
    pub fn watch(&self, prefix: &str, after: Revision) -> Result<Watch<M>, WatchError> {
        Watch::start(&self.shared, prefix, after)
    }

    /// Writes a copy of the store, as of the newest visible revision, to a new file at `path`, and
    /// returns that revision. Blocks while it writes; the store goes on meanwhile.
    ///
    /// The copy is a store itself, with history: restoring is putting it in the place of the lost
    /// file and opening it. Revisions go on from the copy's.
    ///
    /// # Errors
    ///
    /// See [`BackupError`]. An existing file is never replaced.
    pub fn backup(&self, path: &Path) -> Result<Revision, BackupError> {
        backup::write(&self.shared, path)
    }

    /// How large the store is.
    pub fn stats(&self) -> Stats {
        let state = self.shared.read();
        Stats {
            revision: state.revision(),
            compacted: state.compacted(),
            entries: state.live().len(),
            entries_bytes: state.live_bytes(),
            history_events: state.history().len(),
            history_bytes: state.history_bytes(),
        }
    }

    /// Takes no more writes, finishes those that are queued, and closes the file. What was visible
    /// can still be read; watches end with [`WatchError::Closed`].
    pub async fn shutdown(&self) {
        let mut heads = self.shared.heads();
        self.queue.close();
        // An error would mean that the sender is gone, and with it the store.
        let _ = heads.wait_for(|head| head.closed).await;
    }
}
