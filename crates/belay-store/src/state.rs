//! What is visible: the live entries and the retained history, in memory.
//!
//! Pure: no locks, no disk. The committer is the only one who changes it, readers look at it under
//! a lock they hold for a moment.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::entry::{Entry, Event};
use crate::record::{Deed, Record};
use crate::{Derive, Revision};

/// How much history is kept for watchers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
}

/// The visible state as of one revision.
///
/// Invariants: `history` holds every event after `compacted`, without a gap, and ends at
/// `revision`; `live` is what all events up to `revision` come to.
pub(crate) struct State<M> {
    live: BTreeMap<Arc<str>, Arc<Entry<M>>>,
    live_bytes: usize,
    history: VecDeque<Event<M>>,
    history_bytes: usize,
    revision: Revision,
    compacted: Revision,
    limits: Limits,
}

/// What a watcher finds after the last revision it has seen.
pub(crate) enum Scan<M> {
    /// The next event under its prefix.
    Found(Event<M>),
    /// Nothing for it up to here.
    Nothing(Revision),
    /// What it would have to see is no longer retained.
    Behind,
}

/// Why the records of a log do not add up to a state.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error("revision {found} follows {after}, so what lies between is missing")]
    Gap { after: Revision, found: Revision },
    #[error("revision {revision} deletes {key:?}, which does not exist at that point")]
    DeletesNothing { revision: Revision, key: String },
    #[error("revision {revision} and the record before it disagree on when {key:?} was created")]
    Created { revision: Revision, key: String },
}

impl<M> State<M> {
    /// The state of a log whose history begins after `compacted`, before any record is replayed.
    pub(crate) fn empty(compacted: Revision, limits: Limits) -> Self {
        State {
            live: BTreeMap::new(),
            live_bytes: 0,
            history: VecDeque::new(),
            history_bytes: 0,
            revision: compacted.max(Revision::FIRST),
            compacted,
            limits,
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn compacted(&self) -> Revision {
        self.compacted
    }

    pub(crate) fn live(&self) -> &BTreeMap<Arc<str>, Arc<Entry<M>>> {
        &self.live
    }

    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    pub(crate) fn history(&self) -> &VecDeque<Event<M>> {
        &self.history
    }

    pub(crate) fn history_bytes(&self) -> usize {
        self.history_bytes
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Entry<M>>> {
        self.live.get(key)
    }

    /// The live entries under `prefix` whose keys follow `after`, in order.
    pub(crate) fn range(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = &Arc<Entry<M>>> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        self.live
            .range::<str, _>((from, Bound::Unbounded))
            .map(|(_, entry)| entry)
            .take_while(move |entry| entry.key.starts_with(prefix))
    }

    /// Makes the next event visible.
    pub(crate) fn apply(&mut self, event: Event<M>) {
        debug_assert_eq!(
            event.revision,
            self.revision.next(),
            "revisions have no gaps"
        );
        self.revision = event.revision;
        self.change(&event.entry, event.deleted);
        self.history_bytes += event.cost();
        self.history.push_back(event);
    }

    fn change(&mut self, entry: &Arc<Entry<M>>, deleted: bool) {
        let replaced = if deleted {
            self.live.remove(&entry.key)
        } else {
            self.live_bytes += entry.cost();
            self.live.insert(Arc::clone(&entry.key), Arc::clone(entry))
        };
        self.live_bytes -= replaced.map_or(0, |replaced| replaced.cost());
    }

    /// Takes the oldest events out of the history until it fits its limits.
    ///
    /// The newest event always stays, however large, so that a watcher who keeps up is never told
    /// it fell behind. The caller drops what is returned after letting go of the lock.
    pub(crate) fn evict(&mut self) -> Vec<Event<M>> {
        let mut evicted = Vec::new();
        while self.history.len() > 1
            && (self.history.len() > self.limits.events || self.history_bytes > self.limits.bytes)
        {
            let Some(event) = self.history.pop_front() else {
                break;
            };
            self.history_bytes -= event.cost();
            self.compacted = event.revision;
            evicted.push(event);
        }
        evicted
    }

    /// Looks for the first event under `prefix` after `seen`, at no more than `most` events.
    pub(crate) fn scan(&self, prefix: &str, seen: Revision, most: usize) -> Scan<M> {
        if seen < self.compacted {
            return Scan::Behind;
        }
        let first = self.compacted.max(Revision::FIRST);
        let skip = usize::try_from(seen.0.saturating_sub(first.0)).unwrap_or(usize::MAX);
        let mut upto = seen.max(first);
        // The deque is indexed, not walked, to where the watcher stands.
        let range = skip.min(self.history.len())..skip.saturating_add(most).min(self.history.len());
        for event in self.history.range(range) {
            if event.entry.key.starts_with(prefix) {
                return Scan::Found(event.clone());
            }
            upto = event.revision;
        }
        Scan::Nothing(upto)
    }

    /// Adds one record of the log, in the order of revisions.
    ///
    /// Records up to the compaction point are the state it left; those after it are history.
    pub(crate) fn replay(
        &mut self,
        revision: Revision,
        record: Record<'_>,
        derive: &Derive<M>,
    ) -> Result<(), ReplayError> {
        let previous = self.live.get(record.key).cloned();
        let (value, deleted) = match (record.deed, &previous) {
            (Deed::Put(value), _) => (Bytes::copy_from_slice(value), false),
            (Deed::Delete(value), Some(_)) => (Bytes::copy_from_slice(value), true),
            (Deed::DeleteSame, Some(previous)) => (previous.value.clone(), true),
            (Deed::Delete(_) | Deed::DeleteSame, None) => {
                return Err(ReplayError::DeletesNothing {
                    revision,
                    key: record.key.to_owned(),
                });
            }
        };
        let created = previous
            .as_ref()
            .map_or(record.created, |previous| previous.created);
        let history = revision > self.compacted;
        if record.created != created || (history && previous.is_none() && created != revision) {
            return Err(ReplayError::Created {
                revision,
                key: record.key.to_owned(),
            });
        }
        let key = match &previous {
            Some(previous) => Arc::clone(&previous.key),
            None => Arc::from(record.key),
        };
        let meta = derive(&key, &value);
        let entry = Arc::new(Entry {
            key,
            value,
            created,
            modified: revision,
            meta,
        });
        if !history {
            self.change(&entry, deleted);
            return Ok(());
        }
        if revision != self.revision.next() {
            return Err(ReplayError::Gap {
                after: self.revision,
                found: revision,
            });
        }
        self.apply(Event {
            revision,
            entry,
            previous,
            deleted,
        });
        Ok(())
    }
}

/// The records that nobody needs any more once `event` has left the history.
///
/// A record is needed while its event is retained, and, if it is the last word on its key, for as
/// long as the event that supersedes it is retained (as that event's `previous`). So an event that
/// leaves takes the record it superseded with it, and its own too if it was a deletion.
///
/// The order matters: what was superseded comes before the deletion that superseded it, so that
/// removing any front part of the sequence can never bring a deleted key back.
pub(crate) fn obsolete<M>(event: &Event<M>) -> impl Iterator<Item = Revision> {
    let superseded = event.previous.as_ref().map(|previous| previous.modified);
    let deletion = event.deleted.then_some(event.revision);
    superseded.into_iter().chain(deletion)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: Limits = Limits {
        events: 100,
        bytes: 1 << 20,
    };

    fn replay(
        state: &mut State<()>,
        revision: u64,
        key: &str,
        created: u64,
        deed: Deed<'_>,
    ) -> Result<(), ReplayError> {
        let derive: Derive<()> = Arc::new(|_, _| ());
        let record = Record {
            key,
            created: Revision(created),
            deed,
        };
        state.replay(Revision(revision), record, &derive)
    }

    /// a is put, put again and deleted, b stays: revisions 2 to 5.
    fn some(limits: Limits) -> State<()> {
        let mut state = State::empty(Revision(0), limits);
        replay(&mut state, 2, "a", 2, Deed::Put(b"1")).expect("put");
        replay(&mut state, 3, "b", 3, Deed::Put(b"1")).expect("put");
        replay(&mut state, 4, "a", 2, Deed::Put(b"2")).expect("put");
        replay(&mut state, 5, "a", 2, Deed::DeleteSame).expect("delete");
        state
    }

    #[test]
    fn an_event_that_leaves_takes_what_it_superseded_and_a_deletion_itself() {
        let mut state = some(Limits {
            events: 0,
            ..PLENTY
        });
        replay(&mut state, 6, "c", 6, Deed::Put(b"1")).expect("put");
        let gone: Vec<_> = state
            .evict()
            .iter()
            .map(|event| obsolete(event).collect::<Vec<_>>())
            .collect();
        let [none, superseded, both] = [vec![], vec![Revision(2)], vec![Revision(4), Revision(5)]];
        assert_eq!(gone, [none.clone(), none, superseded, both]);
        assert_eq!((state.compacted(), state.history().len()), (Revision(5), 1));
    }

    #[test]
    fn a_scan_begins_where_the_watcher_stands_and_looks_no_further_than_told() {
        let state = some(PLENTY);
        let found = |seen, most| match state.scan("a", Revision(seen), most) {
            Scan::Found(event) => Ok(event.revision.0),
            Scan::Nothing(upto) => Err(upto.0),
            Scan::Behind => panic!("nothing was evicted"),
        };
        assert_eq!(found(0, 10), Ok(2));
        assert_eq!(found(1, 10), Ok(2));
        assert_eq!(found(2, 10), Ok(4));
        assert_eq!(
            found(2, 1),
            Err(3),
            "it stopped at the limit and can go on from there"
        );
        assert_eq!(found(5, 10), Err(5));
    }

    #[test]
    fn a_watcher_whose_next_event_was_evicted_is_behind() {
        let mut state = some(Limits {
            events: 2,
            ..PLENTY
        });
        state.evict();
        assert_eq!(state.compacted(), Revision(3));
        assert!(matches!(state.scan("", Revision(2), 10), Scan::Behind));
        assert!(matches!(state.scan("", Revision(3), 10), Scan::Found(_)));
    }

    #[test]
    fn a_log_that_does_not_add_up_is_refused() {
        let gap = replay(&mut some(PLENTY), 7, "c", 7, Deed::Put(b"1"));
        assert!(matches!(gap, Err(ReplayError::Gap { .. })), "{gap:?}");
        let nothing = replay(&mut some(PLENTY), 6, "a", 2, Deed::DeleteSame);
        assert!(
            matches!(nothing, Err(ReplayError::DeletesNothing { .. })),
            "{nothing:?}"
        );
        let disagrees = replay(&mut some(PLENTY), 6, "b", 2, Deed::Put(b"2"));
        assert!(
            matches!(disagrees, Err(ReplayError::Created { .. })),
            "{disagrees:?}"
        );
        let unknown = replay(&mut some(PLENTY), 6, "c", 5, Deed::Put(b"1"));
        assert!(
            matches!(unknown, Err(ReplayError::Created { .. })),
            "{unknown:?}"
        );
    }

    #[test]
    fn what_the_compaction_point_left_is_live_and_not_history() {
        let mut state = State::empty(Revision(10), PLENTY);
        replay(&mut state, 4, "b", 3, Deed::Put(b"1")).expect("left");
        assert_eq!((state.revision(), state.history().len()), (Revision(10), 0));
        replay(&mut state, 11, "b", 3, Deed::Put(b"2")).expect("history");
        let event = &state.history()[0];
        assert_eq!(
            event.previous.as_ref().map(|entry| entry.modified),
            Some(Revision(4))
        );
        assert_eq!(state.live_bytes(), event.entry.cost());
    }
}
