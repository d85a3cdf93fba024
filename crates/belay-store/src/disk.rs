//! The log on disk: making, opening, reading and extending it.
//!
//! The tables of the log map a revision to its record, one table `meta` holds the compaction point.
//! Everything else a store knows is derived from these when it is opened.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, Durability, ReadableDatabase, StorageBackend, TableDefinition,
};

use crate::entry::Event;
use crate::file;
use crate::frame::{FORMAT_VERSION, Frame, FrameError, Marks};
use crate::log::Log;
use crate::record::Record;
use crate::state::{Limits, State, obsolete};
use crate::{Derive, Revision};

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const COMPACTED: &str = "compacted";

/// Appending touches the right edge of one tree and a few small ones; reads never come here.
const CACHE_BYTES: usize = 1 << 20;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another store in this one, has it open.
    #[error(
        "{} is in use by another process; stop that one first, or use another data directory",
        path.display()
    )]
    Locked {
        /// The store's file.
        path: PathBuf,
    },
    /// The file was a store once, and can no longer be trusted to hold everything.
    #[error(
        "{} is damaged: {what}. Move it aside and put a backup in its place",
        path.display()
    )]
    Damaged {
        /// The store's file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file was written by a newer program.
    #[error(
        "{} has format version {found}, and this program reads up to version {supported}; \
         use the newer program that wrote it",
        path.display()
    )]
    NewerFormat {
        /// The store's file.
        path: PathBuf,
        /// The version the file has.
        found: u32,
        /// The newest version this program reads.
        supported: u32,
    },
    /// The file is something else.
    #[error("{} is not a belay store; nothing in it was changed", path.display())]
    NotAStore {
        /// The file.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot open the store {}", path.display())]
    Io {
        /// The store's file.
        path: PathBuf,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

/// An open log. The committer's alone.
pub(crate) struct Disk {
    db: Database,
    log: Log,
    marks: Marks,
    path: PathBuf,
}

/// An open log and what it came to.
pub(crate) struct Opened<M> {
    pub(crate) disk: Disk,
    pub(crate) state: State<M>,
    /// Records that fell out of the history while it was read, to be removed by a later commit.
    pub(crate) garbage: Vec<Revision>,
}

impl Disk {
    /// Opens the file at `path`, which is made first if there is none.
    ///
    /// A new file is made under another name and moved into place when it is whole and on disk, so
    /// that a crash while it is made cannot leave half a store behind. For the same reason an empty
    /// file is damage, not a new store.
    pub(crate) fn open<M>(
        path: &Path,
        derive: &Derive<M>,
        limits: Limits,
    ) -> Result<Opened<M>, OpenError> {
        let failed = |source| OpenError::Io {
            path: path.to_owned(),
            source,
        };
        let file = match file::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match file::create(path, |file| {
                    initialise(Arc::new(FileBackend::new(file)?), &Empty)
                }) {
                    // Somebody else was faster; theirs is as good.
                    Err(file::CreateError::Exists) => {}
                    made => made.map_err(|error| error.into_open_error(path))?,
                }
                file::open(path).map_err(failed)?
            }
            opened => opened.map_err(failed)?,
        };
        let backend = FileBackend::new(file).map_err(|error| refusal(path, error))?;
        Self::open_existing(Arc::new(backend), path, derive, limits)
    }

    /// Opens what `backend` holds, or begins a log in it if it is empty.
    pub(crate) fn open_backend<M>(
        backend: impl StorageBackend,
        path: &Path,
        derive: &Derive<M>,
        limits: Limits,
    ) -> Result<Opened<M>, OpenError> {
        let failed = |source| OpenError::Io {
            path: path.to_owned(),
            source,
        };
        let backend: Arc<dyn StorageBackend> = Arc::new(backend);
        if backend.len().map_err(failed)? == 0 {
            initialise(Arc::clone(&backend), &Empty).map_err(|error| refusal(path, error))?;
        }
        Self::open_existing(backend, path, derive, limits)
    }

    fn open_existing<M>(
        backend: Arc<dyn StorageBackend>,
        path: &Path,
        derive: &Derive<M>,
        limits: Limits,
    ) -> Result<Opened<M>, OpenError> {
        let damaged = |what: String| OpenError::Damaged {
            path: path.to_owned(),
            what,
        };
        let frame = Frame::open(backend).map_err(|error| match error {
            FrameError::Foreign => OpenError::NotAStore {
                path: path.to_owned(),
            },
            FrameError::Newer(found) => OpenError::NewerFormat {
                path: path.to_owned(),
                found,
                supported: FORMAT_VERSION,
            },
            FrameError::Damaged(what) => damaged(what.to_owned()),
            FrameError::Io(source) => OpenError::Io {
                path: path.to_owned(),
                source,
            },
        })?;
        // The engine answers most damage with an error, and some with a panic. Both say that the
        // file cannot be used.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let db = open_verified(&frame)?;
            let marks = frame.marks()?;
            let mut opened = Disk {
                db,
                log: Log::default(),
                marks,
                path: path.to_owned(),
            }
            .load(derive, limits)?;
            opened.disk.settle(opened.state.revision())?;
            Ok(opened)
        }));
        match opened {
            Ok(opened) => opened.map_err(|error: LoadError| error.into_open_error(path)),
            Err(_) => Err(damaged(
                "reading it failed in a way no intact file can cause".into(),
            )),
        }
    }

    fn load<M>(mut self, derive: &Derive<M>, limits: Limits) -> Result<Opened<M>, LoadError> {
        let mut garbage = Vec::new();
        let state = {
            let read = self.db.begin_read().map_err(redb::Error::from)?;
            let meta = read.open_table(META).map_err(redb::Error::from)?;
            let Some(compacted) = meta.get(COMPACTED).map_err(redb::Error::from)? else {
                return Err(LoadError::Content(
                    "it does not say where its history begins".into(),
                ));
            };
            let mut state = State::empty(Revision(compacted.value()), limits);
            self.log = Log::read(&read, |revision, bytes| {
                let record = Record::read(revision, bytes).map_err(|error| {
                    LoadError::Content(format!("the record of revision {revision}: {error}"))
                })?;
                state
                    .replay(revision, record, derive)
                    .map_err(|error| LoadError::Content(error.to_string()))?;
                garbage.extend(state.evict().iter().flat_map(obsolete));
                Ok::<_, LoadError>(())
            })?;
            state
        };
        let acknowledged = self.marks.acknowledged();
        if state.revision() < acknowledged {
            return Err(LoadError::Content(format!(
                "it ends at revision {}, although everything up to {acknowledged} was acknowledged",
                state.revision()
            )));
        }
        Ok(Opened {
            disk: self,
            state,
            garbage,
        })
    }

    /// A group that a killed process had written but not yet synced is shown to everybody from now
    /// on, so it has to be as safe as any other first. So has the version, before anything is
    /// written that an older program would overlook.
    fn settle(&mut self, revision: Revision) -> Result<(), FrameError> {
        self.marks.stamp()?;
        self.marks.sync()?;
        if revision > self.marks.acknowledged() {
            self.marks.acknowledge(revision)?;
        }
        Ok(())
    }

    /// Puts a group on disk, and takes what has become obsolete off it in the same stroke.
    ///
    /// When this returns `Ok` the group survives anything; on an error nobody can tell, and the
    /// store must not go on.
    pub(crate) fn commit<M>(
        &mut self,
        events: &[Event<M>],
        garbage: &[Revision],
        compacted: Revision,
    ) -> Result<(), redb::Error> {
        let Some(last) = events.last() else {
            return Ok(());
        };
        let mut write = self.db.begin_write()?;
        write.set_durability(Durability::Immediate)?;
        self.log.remove(&write, garbage)?;
        let records = events
            .iter()
            .map(|event| (event.revision, Record::of(event)));
        Log::append(&write, records)?;
        if !garbage.is_empty() {
            write.open_table(META)?.insert(COMPACTED, compacted.0)?;
        }
        write.commit()?;
        self.marks.acknowledge(last.revision)?;
        Ok(())
    }

    /// Gives pages that are no longer used back to the file system. Slow: it moves pages.
    pub(crate) fn shrink(&mut self) -> Result<(), redb::Error> {
        self.db.compact()?;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The engine, with every page it can reach verified.
///
/// After a crash the engine walks and verifies everything by itself. After a clean end it would
/// trust the file, and a page that went bad since would be read as if it were good.
fn open_verified(frame: &Frame) -> Result<Database, LoadError> {
    let repaired = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&repaired);
    let mut db = Builder::new()
        .set_cache_size(CACHE_BYTES)
        .set_repair_callback(move |_| seen.store(true, Ordering::Relaxed))
        .create_with_backend(frame.clone())?;
    if !repaired.load(Ordering::Relaxed) && !db.check_integrity()? {
        tracing::warn!("the store was changed from outside; its content was verified and is whole");
    }
    Ok(db)
}

/// What a new file is filled with.
pub(crate) trait Content {
    /// Where its history begins.
    fn compacted(&self) -> Revision;
    /// The newest revision it holds.
    fn revision(&self) -> Revision;
    /// Its records, in the order of revisions.
    fn records(&self) -> impl Iterator<Item = (Revision, Record<'_>)>;
}

/// Nothing: a new store.
struct Empty;

impl Content for Empty {
    fn compacted(&self) -> Revision {
        Revision(0)
    }

    fn revision(&self) -> Revision {
        Revision::FIRST
    }

    fn records(&self) -> impl Iterator<Item = (Revision, Record<'_>)> {
        std::iter::empty()
    }
}

/// How many bytes of records are gathered before they are handed to the engine for good.
const FILL_BYTES: usize = 4 << 20;

/// Makes a whole store in empty storage, and puts it on disk.
pub(crate) fn initialise(
    backend: Arc<dyn StorageBackend>,
    content: &impl Content,
) -> Result<(), redb::Error> {
    let frame = Frame::create(backend)?;
    let db = Builder::new()
        .set_cache_size(CACHE_BYTES)
        .create_with_backend(frame.clone())?;
    let mut records = content.records().peekable();
    while records.peek().is_some() {
        let mut write = db.begin_write()?;
        write.set_durability(Durability::None)?;
        let mut bytes = 0;
        let some = std::iter::from_fn(|| {
            let next = records.next_if(|_| bytes < FILL_BYTES)?;
            bytes += next.1.length();
            Some(next)
        });
        Log::append(&write, some)?;
        write.commit()?;
    }
    let write = db.begin_write()?;
    write
        .open_table(META)?
        .insert(COMPACTED, content.compacted().0)?;
    write.commit()?;
    let mut marks = frame.marks().map_err(io::Error::other)?;
    marks.acknowledge(content.revision())?;
    // Closing the engine syncs once more, and with it the mark.
    drop(db);
    Ok(())
}

/// Why the content of a file cannot be taken.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Engine(#[from] redb::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("{0}")]
    Content(String),
}

impl From<DatabaseError> for LoadError {
    fn from(error: DatabaseError) -> Self {
        LoadError::Engine(error.into())
    }
}

impl LoadError {
    fn into_open_error(self, path: &Path) -> OpenError {
        match self {
            LoadError::Engine(error) => refusal(path, error),
            LoadError::Frame(FrameError::Io(source)) => OpenError::Io {
                path: path.to_owned(),
                source,
            },
            LoadError::Frame(error) => OpenError::Damaged {
                path: path.to_owned(),
                what: error.to_string(),
            },
            LoadError::Content(what) => OpenError::Damaged {
                path: path.to_owned(),
                what,
            },
        }
    }
}

/// What the engine's refusal of a file means to whoever opens it.
pub(crate) fn refusal(path: &Path, error: impl Into<redb::Error>) -> OpenError {
    let path = path.to_owned();
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => OpenError::Locked { path },
        // Pages that are said to be there and are not, or sizes that cannot be.
        redb::Error::Io(source)
            if !matches!(
                source.kind(),
                io::ErrorKind::UnexpectedEof
                    | io::ErrorKind::InvalidData
                    | io::ErrorKind::InvalidInput
            ) =>
        {
            OpenError::Io { path, source }
        }
        redb::Error::Corrupted(what) => OpenError::Damaged { path, what },
        other => OpenError::Damaged {
            path,
            what: other.to_string(),
        },
    }
}

/// Whether an error of the engine says that the disk is full.
pub(crate) fn is_full(error: &redb::Error) -> bool {
    matches!(
        error,
        redb::Error::Io(source)
            if matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    )
}
