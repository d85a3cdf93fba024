//! How much room the disk has left.
//!
//! Running into a full disk in the middle of a commit ends the process, so writes that add data are
//! refused before it comes to that. Deleting is still allowed: it is how room is made, once what was
//! deleted has left the history. What has to be written before something can be deleted may use most
//! of what is kept from everything else.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::file;
use crate::write::WriteError;

/// A group writes its records, and copies of the pages around them.
const PAGES_PER_BYTE: u64 = 2;

/// The share of the free space to be kept that is kept from writes on the way to a deletion, too.
const KEPT_FROM_ALL: u64 = 4;

/// Watches the free space of the file system a store is on.
pub(crate) struct Space {
    directory: Option<File>,
    path: PathBuf,
    min_free: u64,
}

impl Space {
    /// The file system that holds the file at `path`.
    pub(crate) fn of(path: &Path, min_free: u64) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let directory = Some(File::open(file::directory(&path))?);
        Ok(Space {
            directory,
            path,
            min_free,
        })
    }

    /// Storage that is no file and has no limit that could be asked for.
    pub(crate) fn unlimited(path: &Path) -> Self {
        Space {
            directory: None,
            path: path.to_owned(),
            min_free: 0,
        }
    }

    /// The bytes an unprivileged process may still use. A file system that does not say is taken
    /// to have room: the commit will tell.
    pub(crate) fn free(&self) -> u64 {
        let Some(directory) = &self.directory else {
            return u64::MAX;
        };
        rustix::fs::fstatvfs(directory)
            .map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Whether the disk is so full that it is worth giving back what is no longer used.
    pub(crate) fn short(&self, free: u64) -> bool {
        free < self.min_free
    }

    /// Whether a write fits, when `free` bytes were free before a group that has taken `taken`.
    pub(crate) fn room<M>(
        &self,
        free: u64,
        taken: u64,
        reserve: bool,
    ) -> Result<(), WriteError<M>> {
        let kept = match reserve {
            true => self.min_free / KEPT_FROM_ALL,
            false => self.min_free,
        };
        let needed = kept.saturating_add(taken.saturating_mul(PAGES_PER_BYTE));
        match free >= needed {
            true => Ok(()),
            false => Err(WriteError::Full {
                path: self.path.clone(),
                free,
                needed,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_to_a_deletion_fits_for_longer() {
        let space = Space {
            min_free: 400,
            ..Space::unlimited(Path::new("store"))
        };
        for (free, taken, others, deletions) in [
            (400, 0, true, true),
            (400, 1, false, true),
            (399, 0, false, true),
            (100, 0, false, true),
            (100, 1, false, false),
            (99, 0, false, false),
        ] {
            let fits = |reserve| space.room::<()>(free, taken, reserve).is_ok();
            assert_eq!((fits(false), fits(true)), (others, deletions), "{free}");
        }
    }
}
