//! Deciding the writes of one group, before any of them is on disk.
//!
//! Pure but for calling the caller's `encode` and `derive`. A group is checked against what is
//! visible plus what the group itself has accepted so far, so the writes of a group behave exactly
//! as if each had been alone.

use std::collections::HashMap;
use std::sync::Arc;

use crate::entry::{Entry, Event};
use crate::record::Record;
use crate::space::occupied;
use crate::write::{Change, Write, WriteError};
use crate::{Derive, Revision};

/// What a key holds, and whether everybody may know it.
pub(crate) enum Current<M> {
    /// It is visible: on disk and published.
    Visible(Option<Arc<Entry<M>>>),
    /// This group made it so, and may yet fail.
    Pending(Option<Arc<Entry<M>>>),
}

impl<M> Current<M> {
    fn entry(&self) -> Option<&Arc<Entry<M>>> {
        match self {
            Current::Visible(entry) | Current::Pending(entry) => entry.as_ref(),
        }
    }
}

/// What becomes of one write.
pub(crate) enum Decision<M> {
    /// It is part of the group; this is its entry once the group is on disk.
    Accepted(Arc<Entry<M>>),
    /// It is refused, for a reason that is visible to all: the answer can go out at once.
    Refused(WriteError<M>),
    /// It is refused because of a write of this group: the answer has to wait for the disk.
    RefusedByPending(WriteError<M>),
}

/// The writes accepted so far.
pub(crate) struct Group<M> {
    next: Revision,
    pending: HashMap<Arc<str>, Option<Arc<Entry<M>>>>,
    events: Vec<Event<M>>,
    bytes: u64,
}

impl<M> Group<M> {
    /// An empty group on top of what is visible at `revision`.
    pub(crate) fn after(revision: Revision) -> Self {
        Group {
            next: revision.next(),
            pending: HashMap::new(),
            events: Vec::new(),
            bytes: 0,
        }
    }

    /// How many bytes the accepted writes take in the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The accepted writes in the order of their revisions.
    pub(crate) fn into_events(self) -> Vec<Event<M>> {
        self.events
    }

    /// Decides one write.
    ///
    /// `visible` looks a key up in what is published. `room` refuses a write that adds data when
    /// the disk has no place for it; it is told how many bytes the group takes with this write, and
    /// whether the write may use the reserve.
    pub(crate) fn decide(
        &mut self,
        write: Write,
        visible: &dyn Fn(&str) -> Option<Arc<Entry<M>>>,
        derive: &Derive<M>,
        room: &dyn Fn(u64, bool) -> Result<(), WriteError<M>>,
    ) -> Decision<M> {
        let Write {
            key,
            expect,
            also,
            change,
            reserve,
        } = write;
        let current = self.current(&key, visible);
        let deletes = matches!(change, Change::Delete(_));
        if !expect.holds(current.entry().map(Arc::as_ref)) || (deletes && current.entry().is_none())
        {
            return conflict(key, current);
        }
        for (key, expect) in also {
            let other = self.current(&key, visible);
            if !expect.holds(other.entry().map(Arc::as_ref)) {
                return conflict(key, other);
            }
        }
        let event = self.event(key, current.entry().cloned(), change, derive);
        let bytes = self.bytes + occupied(Record::of(&event).length());
        if !deletes && let Err(full) = room(bytes, reserve) {
            return Decision::Refused(full);
        }
        self.bytes = bytes;
        Decision::Accepted(self.accept(event))
    }

    fn current(&self, key: &str, visible: &dyn Fn(&str) -> Option<Arc<Entry<M>>>) -> Current<M> {
        match self.pending.get(key) {
            Some(entry) => Current::Pending(entry.clone()),
            None => Current::Visible(visible(key)),
        }
    }

    /// What the write comes to, if it is accepted.
    fn event(
        &self,
        key: String,
        previous: Option<Arc<Entry<M>>>,
        change: Change,
        derive: &Derive<M>,
    ) -> Event<M> {
        let revision = self.next;
        let deleted = matches!(change, Change::Delete(_));
        let value = match (change, &previous) {
            (Change::Put(encode) | Change::Delete(Some(encode)), _) => encode(revision),
            (Change::Delete(None), Some(previous)) => previous.value.clone(),
            (Change::Delete(None), None) => bytes::Bytes::new(),
        };
        let (key, created) = match &previous {
            Some(previous) => (Arc::clone(&previous.key), previous.created),
            None => (Arc::from(key), revision),
        };
        let meta = derive(&key, &value);
        let entry = Arc::new(Entry {
            key,
            value,
            created,
            modified: revision,
            meta,
        });
        Event {
            revision,
            entry,
            previous,
            deleted,
        }
    }

    fn accept(&mut self, event: Event<M>) -> Arc<Entry<M>> {
        let entry = Arc::clone(&event.entry);
        self.pending.insert(
            Arc::clone(&entry.key),
            (!event.deleted).then(|| Arc::clone(&entry)),
        );
        self.next = event.revision.next();
        self.events.push(event);
        entry
    }
}

fn conflict<M>(key: String, current: Current<M>) -> Decision<M> {
    match current {
        Current::Visible(current) => Decision::Refused(WriteError::Conflict { key, current }),
        Current::Pending(current) => {
            Decision::RefusedByPending(WriteError::Conflict { key, current })
        }
    }
}
