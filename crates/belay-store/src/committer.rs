//! The one thread that writes: it takes what is queued, puts it on disk, and only then shows it.
//!
//! ```text
//! queue -> decide each against visible + group -> one transaction, one sync -> mark
//!       -> publish the group under one lock -> wake watchers -> answer
//! ```
//!
//! While a group is being synced the queue fills, and what has come in by then is the next group:
//! the busier the store, the more writes share one sync, and an idle one adds no delay.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};

use crate::disk::{Disk, is_full};
use crate::entry::Entry;
use crate::group::{Decision, Group};
use crate::shared::Shared;
use crate::space::Space;
use crate::state::obsolete;
use crate::write::{Write, WriteError};
use crate::{Derive, OnFatal, Revision};

/// The most writes in one group, so that no answer waits for an endless group.
const GROUP_WRITES: usize = 1024;
/// The most bytes in one group.
const GROUP_BYTES: u64 = 4 << 20;
/// Obsolete records are removed this many at a time: removing each on its own would rewrite pages
/// over and over, and letting more pile up would make one group slow.
pub(crate) const GARBAGE_RECORDS: usize = 256;
/// The same when the disk is nearly full and every record counts.
const GARBAGE_RECORDS_WHEN_SHORT: usize = 16;
/// Shrinking the file may take no more than one part in this many of the committer's time.
const SHRINK_SHARE: u32 = 5;

/// The answer to one write.
pub(crate) type Answer<M> = Result<Arc<Entry<M>>, WriteError<M>>;

/// A write on its way, with where its answer goes.
pub(crate) struct Request<M> {
    pub(crate) write: Write,
    pub(crate) answer: oneshot::Sender<Answer<M>>,
}

/// Why a store had to stop. Nothing that was not on disk has been shown to anybody.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The disk filled up in the middle of a group.
    #[error(
        "the disk that holds the store {} is full: revisions {first} to {last} could not be \
         written. Free some space and start again; everything acknowledged is safe",
        path.display()
    )]
    Full {
        /// The store's file.
        path: PathBuf,
        /// The first revision of the group.
        first: Revision,
        /// The last one.
        last: Revision,
        /// What the engine said.
        #[source]
        source: Box<redb::Error>,
    },
    /// The disk did not take a group, and nobody can know how much of it is there.
    #[error(
        "the store {} could not put revisions {first} to {last} on disk ({source}). Look for disk \
         errors in the kernel log, then start again; everything acknowledged is safe",
        path.display()
    )]
    Commit {
        /// The store's file.
        path: PathBuf,
        /// The first revision of the group.
        first: Revision,
        /// The last one.
        last: Revision,
        /// What the engine said.
        #[source]
        source: Box<redb::Error>,
    },
    /// The file could not be made smaller, and the engine will not go on after that.
    #[error(
        "the store {} could not give unused space back to a nearly full disk ({source}). Free some \
         space and start again; everything acknowledged is safe",
        path.display()
    )]
    Shrink {
        /// The store's file.
        path: PathBuf,
        /// What the engine said.
        #[source]
        source: Box<redb::Error>,
    },
    /// The committer's own code, or an `encode` or `derive` it called, panicked.
    #[error(
        "the store {} stopped over a fault in the program: {message}. Start again; everything \
         acknowledged is safe",
        path.display()
    )]
    Panicked {
        /// The store's file.
        path: PathBuf,
        /// What the panic said.
        message: String,
    },
}

/// Everything the committer owns.
pub(crate) struct Committer<M> {
    pub(crate) shared: Arc<Shared<M>>,
    pub(crate) queue: mpsc::Receiver<Request<M>>,
    pub(crate) disk: Disk,
    pub(crate) space: Space,
    pub(crate) derive: Derive<M>,
    pub(crate) on_fatal: OnFatal,
    /// Records that have become obsolete and are still in the log.
    pub(crate) garbage: Vec<Revision>,
    /// How many of them are let pile up.
    pub(crate) garbage_limit: usize,
    /// Whether records were removed since the file was last shrunk.
    pub(crate) shrinkable: bool,
    /// When the file may be shrunk next.
    pub(crate) shrink_after: Instant,
}

impl<M> Committer<M> {
    /// Serves the queue until it is closed and empty, or until the disk fails.
    pub(crate) fn run(self) {
        let shared = Arc::clone(&self.shared);
        let on_fatal = Arc::clone(&self.on_fatal);
        let path = self.disk.path().to_owned();
        // The committer is consumed inside: queue and file are closed when the outcome is known.
        let outcome = match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(outcome) => outcome,
            Err(panic) => Err(Fatal::Panicked {
                path,
                message: message(&*panic),
            }),
        };
        if let Err(fatal) = outcome {
            on_fatal(&fatal);
        }
        shared.close();
    }

    fn serve(mut self) -> Result<(), Fatal> {
        while let Some(first) = self.queue.blocking_recv() {
            self.commit_group(first)?;
        }
        Ok(())
    }

    fn commit_group(&mut self, first: Request<M>) -> Result<(), Fatal> {
        let free = self.make_room()?;
        let short = self.space.short(free);
        let (group, answers) = self.gather(first, free);
        let events = group.into_events();
        if let (Some(first), Some(last)) = (events.first(), events.last()) {
            let (first, last) = (first.revision, last.revision);
            let garbage = self.take_garbage(short);
            self.shrinkable |= !garbage.is_empty();
            let compacted = self.shared.read().compacted();
            self.disk
                .commit(&events, &garbage, compacted)
                .map_err(|source| {
                    let (path, source) = (self.disk.path().to_owned(), Box::new(source));
                    match is_full(&source) {
                        true => Fatal::Full {
                            path,
                            first,
                            last,
                            source,
                        },
                        false => Fatal::Commit {
                            path,
                            first,
                            last,
                            source,
                        },
                    }
                })?;
            let evicted = self.shared.publish(events);
            self.garbage.extend(evicted.iter().flat_map(obsolete));
        }
        for (answer, result) in answers {
            // Whoever asked may have gone; the write stands all the same.
            let _ = answer.send(result);
        }
        Ok(())
    }

    /// The obsolete records that the next commit should remove, if there are enough of them.
    fn take_garbage(&mut self, short: bool) -> Vec<Revision> {
        let limit = match short {
            true => self.garbage_limit.min(GARBAGE_RECORDS_WHEN_SHORT),
            false => self.garbage_limit,
        };
        match self.garbage.len() >= limit {
            true => std::mem::take(&mut self.garbage),
            false => Vec::new(),
        }
    }

    /// The free space of the disk. If there is too little of it, what the file no longer uses is
    /// given back first, unless that was done a short while ago.
    fn make_room(&mut self) -> Result<u64, Fatal> {
        let free = self.space.free();
        let begun = Instant::now();
        if !self.space.short(free) || !self.shrinkable || begun < self.shrink_after {
            return Ok(free);
        }
        self.disk.shrink().map_err(|source| Fatal::Shrink {
            path: self.disk.path().to_owned(),
            source: Box::new(source),
        })?;
        self.shrinkable = false;
        self.shrink_after = Instant::now() + begun.elapsed() * (SHRINK_SHARE - 1);
        Ok(self.space.free())
    }

    /// Takes what is queued by now, up to the size of a group, and decides it.
    #[allow(clippy::type_complexity)]
    fn gather(
        &mut self,
        first: Request<M>,
        free: u64,
    ) -> (Group<M>, Vec<(oneshot::Sender<Answer<M>>, Answer<M>)>) {
        let shared = Arc::clone(&self.shared);
        let visible = |key: &str| shared.read().get(key).cloned();
        let mut group = Group::after(shared.read().revision());
        let mut answers = Vec::new();
        let mut next = Some(first);
        while let Some(Request { write, answer }) = next.take() {
            let room = |taken, reserve| self.space.room(free, taken, reserve);
            match group.decide(write, &visible, &self.derive, &room) {
                Decision::Accepted(entry) => answers.push((answer, Ok(entry))),
                Decision::RefusedByPending(error) => answers.push((answer, Err(error))),
                Decision::Refused(error) => drop(answer.send(Err(error))),
            }
            if answers.len() < GROUP_WRITES && group.bytes() < GROUP_BYTES {
                next = self.queue.try_recv().ok();
            }
        }
        (group, answers)
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
