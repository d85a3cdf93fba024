//! The mounts of a container, and how its execs come to see them.
//!
//! A container without mounts sees the host as it is. One with mounts has a mount namespace, made by
//! its first process; the shim stays outside.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::instance::{self, Started};
use crate::proc::Process;
use crate::record::{Record, RecordError};
use crate::sys::mount;

/// Something of the host that a container sees at another path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub source: PathBuf,
    pub target: PathBuf,
    pub read_only: bool,
    /// Whether it sees what is mounted in it later.
    pub follows_host: bool,
}

/// How far [`make`] came.
#[derive(Debug)]
pub(crate) enum Failed {
    /// There is no namespace of its own.
    Leave(io::Error),
    /// This one of the mounts.
    At(usize, io::Error),
}

/// Makes the mounts, in a namespace of this process. All sources are taken before the first is
/// attached, which may hide the others.
pub(crate) fn make(mounts: &[Mount]) -> Result<(), Failed> {
    if mounts.is_empty() {
        return Ok(());
    }
    mount::leave_mounts().map_err(Failed::Leave)?;
    let mut trees = Vec::with_capacity(mounts.len());
    for (index, wanted) in mounts.iter().enumerate() {
        let copy = || {
            let tree = mount::copy_tree(&wanted.source)?;
            mount::set_tree(tree.as_fd(), wanted.follows_host, wanted.read_only)?;
            Ok(tree)
        };
        trees.push(copy().map_err(|error| Failed::At(index, error))?);
    }
    for (index, (wanted, tree)) in mounts.iter().zip(&trees).enumerate() {
        mount::attach_tree(tree.as_fd(), &wanted.target)
            .map_err(|error| Failed::At(index, error))?;
    }
    Ok(())
}

/// The mounts of a running container; `None` when its first process is gone.
///
/// Held open, they are those of that process, whatever becomes of its number.
pub(crate) fn of_container(dir: &Path) -> io::Result<Option<File>> {
    let Some(record) = instance::read(dir, instance::STARTED)? else {
        return Ok(None);
    };
    let started = record
        .and_then(|record| Started::from_record(&record))
        .map_err(io::Error::other)?;
    let opened = File::open(format!("/proc/{}/ns/mnt", started.pid));
    // After it was opened: a process that is still there is the one that was opened.
    let there = Process::read(started.pid)?.is_some_and(|process| {
        process.start_time == started.start_time && !matches!(process.state, 'Z' | 'X')
    });
    match opened {
        Ok(file) if there => Ok(Some(file)),
        Err(error) if there => Err(error),
        _ => Ok(None),
    }
}

pub(crate) fn join(mounts: &File) -> io::Result<()> {
    mount::join_mounts(mounts.as_fd())
}

const READ_ONLY: &str = "ro";
const FOLLOWS_HOST: &str = "follows";

pub(crate) fn write(mounts: &[Mount], mut record: Record) -> Record {
    use std::os::unix::ffi::OsStrExt;
    for mount in mounts {
        let flags = [
            (mount.read_only, READ_ONLY),
            (mount.follows_host, FOLLOWS_HOST),
        ];
        let flags: Vec<&str> = flags
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, f)| *f)
            .collect();
        record = record
            .with("mount-source", mount.source.as_os_str().as_bytes())
            .with("mount-target", mount.target.as_os_str().as_bytes())
            .with("mount-flags", flags.join(","));
    }
    record
}

pub(crate) fn read(record: &Record) -> Result<Vec<Mount>, RecordError> {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    let count = |field: &str| record.all(field).count();
    let all = count("mount-source");
    if count("mount-target") != all || count("mount-flags") != all {
        let field = "mount-source".to_owned();
        return Err(RecordError::Field { field });
    }
    let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
    let targets = record.all("mount-target").zip(record.all("mount-flags"));
    Ok(record
        .all("mount-source")
        .zip(targets)
        .map(|(source, (target, flags))| {
            let has = |flag: &str| flags.split(|b| *b == b',').any(|f| f == flag.as_bytes());
            Mount {
                source: path(source),
                target: path(target),
                read_only: has(READ_ONLY),
                follows_host: has(FOLLOWS_HOST),
            }
        })
        .collect())
}
