//! Following a store from a revision on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::Revision;
use crate::entry::Event;
use crate::shared::{Head, Shared};
use crate::state::Scan;

/// How many events are looked at under one lock.
const SCAN_EVENTS: usize = 256;

/// What a watch delivers.
pub enum WatchItem<M> {
    /// A write under the watch's prefix.
    Event(Event<M>),
    /// Everything up to this revision has been delivered, and there may have been nothing.
    Progress(Revision),
}

impl<M> fmt::Debug for WatchItem<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WatchItem::Event(event) => event.fmt(f),
            WatchItem::Progress(revision) => f.debug_tuple("Progress").field(revision).finish(),
        }
    }
}

/// Why there is nothing to follow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchError {
    /// What happened after the revision asked for is no longer retained.
    #[error("revision {requested} is too old: history is kept from {compacted} on; list again")]
    TooOld {
        /// The revision asked for.
        requested: Revision,
        /// The oldest revision a watch can start from.
        compacted: Revision,
    },
    /// The store has not come that far.
    #[error("revision {requested} lies in the future: the store is at {current}")]
    Future {
        /// The revision asked for.
        requested: Revision,
        /// The newest visible revision.
        current: Revision,
    },
    /// The watcher read so slowly that what it would see next is gone.
    #[error("stopped at revision {seen}, and history is kept from {compacted} on; list again")]
    Lagged {
        /// The last revision it was shown.
        seen: Revision,
        /// The oldest revision a watch can start from.
        compacted: Revision,
    },
    /// The store was shut down or failed, and everything it made visible has been delivered.
    #[error("the store is closed")]
    Closed,
}

/// A place in the store's history, moving on.
///
/// # Guarantees
///
/// Every event under the prefix after the starting revision is delivered once, in order, first
/// from history and then as it happens, with no gap between the two; or the watch ends with an
/// error. A watch holds no events: it reads the history all watches share, so one that nobody
/// reads from costs nothing and is told [`WatchError::Lagged`] when it comes back too late.
pub struct Watch<M> {
    shared: Arc<Shared<M>>,
    heads: watch::Receiver<Head>,
    prefix: Box<str>,
    seen: Revision,
    progress: Option<Progress>,
}

#[derive(Debug)]
struct Progress {
    every: Duration,
    due: Instant,
}

impl<M> Watch<M> {
    pub(crate) fn start(
        shared: &Arc<Shared<M>>,
        prefix: &str,
        after: Revision,
    ) -> Result<Self, WatchError> {
        let heads = shared.heads();
        let (current, compacted) = {
            let state = shared.read();
            (state.revision(), state.compacted())
        };
        if after > current {
            return Err(WatchError::Future {
                requested: after,
                current,
            });
        }
        if after < compacted {
            return Err(WatchError::TooOld {
                requested: after,
                compacted,
            });
        }
        let (shared, prefix) = (Arc::clone(shared), prefix.into());
        Ok(Watch {
            shared,
            heads,
            prefix,
            seen: after,
            progress: None,
        })
    }

    /// Asks for a [`WatchItem::Progress`] every so often, also when there are no events.
    #[must_use]
    pub fn progress_every(mut self, every: Duration) -> Self {
        self.progress = Some(Progress {
            every,
            due: Instant::now() + every,
        });
        self
    }

    /// The revision up to which everything under the prefix has been delivered.
    pub fn seen(&self) -> Revision {
        self.seen
    }

    /// The next item. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// [`WatchError::Lagged`] when the watcher fell behind the retained history, and
    /// [`WatchError::Closed`] after the last event of a store that was closed.
    pub async fn next(&mut self) -> Result<WatchItem<M>, WatchError> {
        loop {
            // A long history must not keep a whole worker thread to itself.
            tokio::task::coop::consume_budget().await;
            // Noted before looking, so that what comes in between wakes us.
            let head = *self.heads.borrow_and_update();
            if let Some(event) = self.look()? {
                return Ok(WatchItem::Event(event));
            }
            if let Some(progress) = &mut self.progress
                && progress.due <= Instant::now()
            {
                progress.due = Instant::now() + progress.every;
                return Ok(WatchItem::Progress(self.seen));
            }
            if self.seen < head.revision {
                continue;
            }
            if head.closed {
                return Err(WatchError::Closed);
            }
            self.wait().await?;
        }
    }

    fn look(&mut self) -> Result<Option<Event<M>>, WatchError> {
        let state = self.shared.read();
        match state.scan(&self.prefix, self.seen, SCAN_EVENTS) {
            Scan::Found(event) => {
                self.seen = event.revision;
                Ok(Some(event))
            }
            Scan::Nothing(upto) => {
                self.seen = upto;
                Ok(None)
            }
            Scan::Behind => Err(WatchError::Lagged {
                seen: self.seen,
                compacted: state.compacted(),
            }),
        }
    }

    async fn wait(&mut self) -> Result<(), WatchError> {
        let rung = self.heads.changed();
        let rung = match &self.progress {
            None => rung.await,
            // Passing the deadline is as good a reason to look again as an event.
            Some(progress) => tokio::time::timeout_at(progress.due, rung)
                .await
                .unwrap_or(Ok(())),
        };
        rung.map_err(|_| WatchError::Closed)
    }
}

impl<M> fmt::Debug for Watch<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("prefix", &self.prefix)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}
