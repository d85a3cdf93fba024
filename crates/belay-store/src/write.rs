//! What a caller asks for, and how it may be refused.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Entry, Revision};

/// Makes the value of a write, given the revision the write gets, so that a value can carry its own
/// revision.
///
/// Called on the committer's thread, so it should be quick; all it needs should be ready. It may be
/// called for a write that is not carried out in the end, and then its revision goes to another.
pub type Encode = Box<dyn FnOnce(Revision) -> Bytes + Send>;

/// What must hold of a key for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Any,
    /// The key does not exist.
    Absent,
    /// The key exists.
    Present,
    /// The key exists and was last written at this revision.
    At(Revision),
}

impl Expect {
    /// Whether a key that holds `current` is as expected.
    pub fn holds<M>(self, current: Option<&Entry<M>>) -> bool {
        match self {
            Expect::Any => true,
            Expect::Absent => current.is_none(),
            Expect::Present => current.is_some(),
            Expect::At(revision) => current.is_some_and(|entry| entry.modified == revision),
        }
    }
}

/// What a write does.
pub enum Change {
    /// The key holds this value from then on.
    Put(Encode),
    /// The key is gone. The value, if one is given, is what watchers see as its last one; without
    /// it they see the value it had.
    ///
    /// Deleting a key that does not exist is a conflict, whatever was expected.
    Delete(Option<Encode>),
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Change::Put(_) => "Put",
            Change::Delete(Some(_)) => "Delete with a last value",
            Change::Delete(None) => "Delete",
        })
    }
}

/// One change to one key, all or nothing.
#[derive(Debug)]
pub struct Write {
    /// The key that changes.
    pub key: String,
    /// What must hold of it.
    pub expect: Expect,
    /// Further keys of which something must hold at the same moment.
    pub also: Vec<(String, Expect)>,
    /// What happens to the key.
    pub change: Change,
    /// Whether it is on the way to a deletion, as a mark or a last report is: such a write may use
    /// room that is kept from all others.
    pub reserve: bool,
}

impl Write {
    /// A write that puts what `encode` makes.
    pub fn put(
        key: impl Into<String>,
        expect: Expect,
        encode: impl FnOnce(Revision) -> Bytes + Send + 'static,
    ) -> Self {
        let change = Change::Put(Box::new(encode));
        Write {
            key: key.into(),
            expect,
            also: Vec::new(),
            change,
            reserve: false,
        }
    }

    /// A write that deletes the key and shows its last value to watchers.
    pub fn delete(key: impl Into<String>, expect: Expect) -> Self {
        Write {
            key: key.into(),
            expect,
            also: Vec::new(),
            change: Change::Delete(None),
            reserve: false,
        }
    }

    /// Adds a key of which something must hold as well.
    #[must_use]
    pub fn also(mut self, key: impl Into<String>, expect: Expect) -> Self {
        self.also.push((key.into(), expect));
        self
    }
}

/// Why a write did not happen.
#[derive(thiserror::Error)]
pub enum WriteError<M> {
    /// A key is not as expected. What it holds instead is on disk and visible to all.
    #[error("{key:?} is not as expected: {}", Found(current.as_deref()))]
    Conflict {
        /// The key that differs: the write's own, or one of `also`.
        key: String,
        /// What it holds.
        current: Option<Arc<Entry<M>>>,
    },
    /// The disk is nearly full. Deleting still works, and for longer also what leads to it.
    #[error(
        "the disk that holds {} has {free} bytes free, and writing needs {needed}; \
         free some space on it",
        path.display()
    )]
    Full {
        /// The store's file.
        path: PathBuf,
        /// What is free.
        free: u64,
        /// What must be free for a write to be accepted.
        needed: u64,
    },
    /// The store has been shut down or has failed. A write that was under way when it failed may
    /// or may not be there when the store is opened again.
    #[error("the store is closed")]
    Closed,
}

impl<M> fmt::Debug for WriteError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct Found<'a, M>(Option<&'a Entry<M>>);

impl<M> fmt::Display for Found<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("it does not exist"),
            Some(entry) => write!(f, "it was last written at revision {}", entry.modified),
        }
    }
}
