//! The end of volumes.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Layout, all, mount_table};

/// Removes everything of a pod. Nothing is no error.
///
/// Links are removed and never followed. What stays mounted keeps the directory: it may be a path
/// of the host.
pub(crate) fn remove(layout: &Layout) -> io::Result<()> {
    let dir = match layout.dir.canonicalize() {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    wipe(&dir);
    mount_table::clear(&dir)?;
    fs::remove_dir_all(&dir)
}

/// Empties what is in memory: it would live on where another process has a copy of the mount.
fn wipe(dir: &Path) {
    let mounted = mount_table::below(dir).unwrap_or_default();
    for point in mount_table::own(dir).unwrap_or_default() {
        // Something was mounted over it or in it, which is not ours to empty.
        if mounted
            .iter()
            .filter(|other| other.starts_with(&point))
            .count()
            != 1
        {
            continue;
        }
        for entry in fs::read_dir(point).into_iter().flatten().flatten() {
            let path = entry.path();
            let _ = match entry.file_type() {
                Ok(kind) if kind.is_dir() => fs::remove_dir_all(path),
                _ => fs::remove_file(path),
            };
        }
    }
}

/// The pods that have something on disk and are not among those `known`.
pub(crate) fn orphans(data_dir: &Path, known: &HashSet<&str>) -> Vec<(String, Layout)> {
    let entries = fs::read_dir(all(data_dir)).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|uid| !known.contains(uid.as_str()))
        .map(|uid| {
            let dir: PathBuf = all(data_dir).join(&uid);
            (uid, Layout { dir })
        })
        .collect()
}
