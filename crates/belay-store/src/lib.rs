//! Revisioned values by key, durable on disk, with watches.
//!
//! ```text
//!   write() --> queue --> committer thread --> one transaction, one sync --> file
//!                                |                                            |
//!                                | publishes the group, in order      scanned once, at open
//!                                v                                            |
//!   get(), list() <------- visible state: live entries + history <------------+
//!                                |
//!   watch() <-- reads the shared history by revision, woken by each group
//! ```
//!
//! The file holds one log, revision to record, in parts of bounded size; what is live and what is history is derived from it
//! when it is opened. Compaction removes the records that nobody can ask for any more, as part of
//! the groups that are written anyway. A store runs one thread of its own, the committer.
//!
//! **Invariant:** a revision becomes visible (to reads, lists, watches, answers, and conflicts that
//! it causes) only after its group is on disk, and in order.
//!
//! **Invariant:** every write has its own revision, without gaps; a revision is never used twice,
//! across crashes too. (A revision that never became visible may be.)
//!
//! **Invariant:** a failed commit ends the store: nothing of the group is shown, and no later write
//! is accepted.
//!
//! **Invariant:** a file that lost something acknowledged is refused, never opened without it.
//!
//! **Invariant:** a watcher holds no events of its own, so its slowness costs nobody anything.
//!
//! The store knows nothing of Kubernetes, of objects, or of what its values mean.

mod backup;
mod committer;
mod disk;
mod entry;
mod file;
mod frame;
mod group;
mod log;
mod record;
mod revision;
mod shared;
mod space;
mod state;
mod store;
mod watch;
mod write;

/// What fuzzing reaches and nobody else needs.
#[doc(hidden)]
pub mod fuzzing {
    /// Reads a record and writes it again.
    pub fn read_and_write_record(revision: u64, bytes: &[u8]) -> Option<Vec<u8>> {
        let record = crate::record::Record::read(crate::Revision(revision), bytes).ok()?;
        let mut written = vec![0; record.length()];
        record.write(&mut written);
        Some(written)
    }
}

pub use backup::BackupError;
pub use committer::Fatal;
pub use disk::OpenError;
pub use entry::{Entry, Event, Page};
pub use revision::{ParseRevisionError, Revision};
pub use store::{Derive, OnFatal, Options, Stats, Store};
pub use watch::{Watch, WatchError, WatchItem};
pub use write::{Change, Encode, Expect, Write, WriteError};
