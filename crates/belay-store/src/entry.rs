//! What a store holds and hands out.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::Revision;

/// One key with its value, as of one revision. Never changed once made; a write makes a new one.
///
/// `M` is what the caller derives from a value (labels, fields), kept beside it in memory so that
/// selecting needs no decoding.
pub struct Entry<M> {
    /// The key, shared with the store's own index.
    pub key: Arc<str>,
    /// The value, byte for byte as it was encoded.
    pub value: Bytes,
    /// The revision that created the key, kept through all its updates.
    pub created: Revision,
    /// The revision that wrote this value. For a tombstone, the revision of the deletion.
    pub modified: Revision,
    /// What the caller's `derive` made of key and value.
    pub meta: M,
}

impl<M> Entry<M> {
    /// What the entry costs in memory, near enough for a bound.
    pub(crate) fn cost(&self) -> usize {
        self.value.len() + self.key.len() + std::mem::size_of::<Self>()
    }
}

impl<M> fmt::Debug for Entry<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key)
            .field("created", &self.created)
            .field("modified", &self.modified)
            .field("bytes", &self.value.len())
            .finish_non_exhaustive()
    }
}

/// One write, as watchers see it.
pub struct Event<M> {
    /// The write's revision, equal to `entry.modified`.
    pub revision: Revision,
    /// What the key holds now, or the tombstone.
    pub entry: Arc<Entry<M>>,
    /// What the key held before.
    pub previous: Option<Arc<Entry<M>>>,
    /// Whether the write removed the key.
    pub deleted: bool,
}

impl<M> Event<M> {
    /// What keeping the event costs in memory. The previous entry is counted too, although it is
    /// often shared, so that the sum over a history is a true upper bound.
    pub(crate) fn cost(&self) -> usize {
        self.entry.cost() + self.previous.as_ref().map_or(0, |previous| previous.cost())
    }
}

impl<M> Clone for Event<M> {
    fn clone(&self) -> Self {
        Event {
            revision: self.revision,
            entry: Arc::clone(&self.entry),
            previous: self.previous.clone(),
            deleted: self.deleted,
        }
    }
}

impl<M> fmt::Debug for Event<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("revision", &self.revision)
            .field("entry", &self.entry)
            .field("previous", &self.previous)
            .field("deleted", &self.deleted)
            .finish()
    }
}

/// A part of a list, all of it as of one revision.
pub struct Page<M> {
    /// The entries in the order of their keys.
    pub entries: Vec<Arc<Entry<M>>>,
    /// The revision the page is consistent with: a watch from here misses nothing.
    pub revision: Revision,
    /// Whether further entries would follow.
    pub more: bool,
    /// How many further entries would follow.
    pub remaining: usize,
}

impl<M> fmt::Debug for Page<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page")
            .field("entries", &self.entries)
            .field("revision", &self.revision)
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}
