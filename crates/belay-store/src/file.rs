//! Files as a store needs them: readable by their owner alone, never seen half made.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use crate::disk::{OpenError, refusal};

/// Why a file was not made.
#[derive(Debug)]
pub(crate) enum CreateError {
    /// There is one already, and it was left alone.
    Exists,
    Engine(redb::Error),
    Io(io::Error),
}

impl From<io::Error> for CreateError {
    fn from(error: io::Error) -> Self {
        CreateError::Io(error)
    }
}

impl CreateError {
    pub(crate) fn into_open_error(self, path: &Path) -> OpenError {
        match self {
            CreateError::Exists => OpenError::Io {
                path: path.to_owned(),
                source: io::ErrorKind::AlreadyExists.into(),
            },
            CreateError::Engine(error) => refusal(path, error),
            CreateError::Io(source) => OpenError::Io {
                path: path.to_owned(),
                source,
            },
        }
    }
}

/// Opens an existing file for the engine.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Makes a new file at `path`: `fill` writes it under another name, and only when it is whole and
/// on disk does it get its own. An existing file is never replaced.
pub(crate) fn create(
    path: &Path,
    fill: impl FnOnce(File) -> Result<(), redb::Error>,
) -> Result<(), CreateError> {
    let (unfinished, file) = Unfinished::beside(path)?;
    let written = file.try_clone()?;
    fill(file).map_err(CreateError::Engine)?;
    written.sync_all()?;
    settle(&unfinished.0, path)?;
    File::open(directory(path))?.sync_all()?;
    Ok(())
}

/// The directory that holds `path`.
pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn settle(from: &Path, to: &Path) -> Result<(), CreateError> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(CreateError::Exists),
        // Not every file system can rename without replacing; a second link never replaces.
        Err(Errno::INVAL | Errno::NOSYS) => match fs::hard_link(from, to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(CreateError::Exists),
            linked => Ok(linked?),
        },
        Err(error) => Err(CreateError::Io(error.into())),
    }
}

/// A file under its working name, gone again unless it was moved into place.
struct Unfinished(PathBuf);

impl Unfinished {
    fn beside(path: &Path) -> io::Result<(Self, File)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path names no file",
            ));
        };
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{}-{count}.new", std::process::id()));
            let hidden = directory(path).join(hidden);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            match options.open(&hidden) {
                Ok(file) => return Ok((Unfinished(hidden), file)),
                // Left by one that had our process id and was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After a rename there is nothing here any more, and that is as it should be.
        let _ = fs::remove_file(&self.0);
    }
}
