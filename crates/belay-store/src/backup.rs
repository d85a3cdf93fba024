//! A copy of a store that is a store.
//!
//! Made from what is visible in memory, which is exactly what the log holds once it is compacted,
//! so it needs nothing from the committer and cannot see anything that is not on disk.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;

use crate::Revision;
use crate::disk::{Content, initialise};
use crate::entry::{Entry, Event};
use crate::file::{self, CreateError};
use crate::record::{Deed, Record};
use crate::shared::Shared;
use crate::state::State;

/// Why a backup was not made.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Something is there already.
    #[error("{} exists already and was left alone; choose another name", path.display())]
    Exists {
        /// Where the backup was to go.
        path: PathBuf,
    },
    /// It could not be written.
    #[error("cannot write the backup {}", path.display())]
    Write {
        /// Where the backup was to go.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: Box<redb::Error>,
    },
    /// The operating system refused.
    #[error("cannot make the backup {}", path.display())]
    Io {
        /// Where the backup was to go.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

/// Writes a copy of what is visible now to a new file at `path`.
pub(crate) fn write<M>(shared: &Shared<M>, path: &Path) -> Result<Revision, BackupError> {
    let snapshot = Snapshot::of(&shared.read());
    let revision = snapshot.revision;
    file::create(path, |file| {
        initialise(Arc::new(FileBackend::new(file)?), &snapshot)
    })
    .map_err(|error| match error {
        CreateError::Exists => BackupError::Exists {
            path: path.to_owned(),
        },
        CreateError::Engine(source) => BackupError::Write {
            path: path.to_owned(),
            source: Box::new(source),
        },
        CreateError::Io(source) => BackupError::Io {
            path: path.to_owned(),
            source,
        },
    })?;
    Ok(revision)
}

/// What is visible at one revision, apart from the store.
struct Snapshot<M> {
    compacted: Revision,
    revision: Revision,
    /// What the compaction point left: the last word on every key that was live there.
    base: BTreeMap<Revision, Arc<Entry<M>>>,
    history: Vec<Event<M>>,
}

impl<M> Snapshot<M> {
    fn of(state: &State<M>) -> Self {
        let compacted = state.compacted();
        let superseded = state
            .history()
            .iter()
            .filter_map(|event| event.previous.as_ref());
        Snapshot {
            compacted,
            revision: state.revision(),
            base: state
                .live()
                .values()
                .chain(superseded)
                .filter(|entry| entry.modified <= compacted)
                .map(|entry| (entry.modified, Arc::clone(entry)))
                .collect(),
            history: state.history().iter().cloned().collect(),
        }
    }
}

impl<M> Content for Snapshot<M> {
    fn compacted(&self) -> Revision {
        self.compacted
    }

    fn revision(&self) -> Revision {
        self.revision
    }

    fn records(&self) -> impl Iterator<Item = (Revision, Record<'_>)> {
        let base = self.base.iter().map(|(revision, entry)| {
            let deed = Deed::Put(&entry.value);
            (
                *revision,
                Record {
                    key: &entry.key,
                    created: entry.created,
                    deed,
                },
            )
        });
        base.chain(
            self.history
                .iter()
                .map(|event| (event.revision, Record::of(event))),
        )
    }
}
