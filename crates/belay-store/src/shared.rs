//! The visible state, as the committer shares it with readers and watchers.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::watch;

use crate::Revision;
use crate::entry::Event;
use crate::state::State;

/// How far the store has come, as watchers are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) revision: Revision,
    pub(crate) closed: bool,
}

/// The visible state behind its lock, and the bell that tells of a new one.
pub(crate) struct Shared<M> {
    state: RwLock<State<M>>,
    head: watch::Sender<Head>,
}

impl<M> Shared<M> {
    pub(crate) fn new(state: State<M>) -> Self {
        let head = Head {
            revision: state.revision(),
            closed: false,
        };
        Shared {
            state: RwLock::new(state),
            head: watch::Sender::new(head),
        }
    }

    /// Looks at the visible state. Held for a moment only: the committer may be waiting.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State<M>> {
        // Nothing that can panic half way runs under the write lock, so a poisoned state is whole.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a group visible, all of it at once, and returns what fell out of the history.
    pub(crate) fn publish(&self, events: Vec<Event<M>>) -> Vec<Event<M>> {
        let (evicted, revision) = {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            for event in events {
                state.apply(event);
            }
            (state.evict(), state.revision())
        };
        self.head.send_replace(Head {
            revision,
            closed: false,
        });
        evicted
    }

    /// Tells watchers and whoever waits for the end that nothing more will come.
    pub(crate) fn close(&self) {
        self.head.send_modify(|head| head.closed = true);
    }

    pub(crate) fn heads(&self) -> watch::Receiver<Head> {
        self.head.subscribe()
    }
}
