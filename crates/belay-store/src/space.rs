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

/// What the largest writes take.
const LARGEST: u64 = 4 << 20;

/// What is longer than this takes a block of its own, of a power of two.
const PAGE: u64 = 4096;

/// The bytes that a record of this length takes in the file.
pub(crate) fn occupied(length: usize) -> u64 {
    let length = length as u64;
    match length > PAGE {
        true => length.next_power_of_two(),
        false => length,
    }
}

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

    /// Whether the disk is so full that it is worth giving back what is no longer used: that a write
    /// may be refused for want of room.
    pub(crate) fn short(&self, free: u64) -> bool {
        free < self.min_free.saturating_add(LARGEST * PAGES_PER_BYTE)
    }

    /// Whether a write fits, when `free` bytes were free before a group that takes `taken` with it.
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
    fn a_long_record_takes_a_block_of_a_power_of_two() {
        for (length, takes) in [(100, 100), (4096, 4096), (4097, 8192), (3 << 20, 4 << 20)] {
            assert_eq!(occupied(length), takes);
        }
    }

    #[test]
    fn what_leads_to_a_deletion_fits_for_longer() {
        let space = Space {
            min_free: 400,
            ..Space::unlimited(Path::new("store"))
        };
        for (free, taken, others, deletions) in [
            (402, 1, true, true),
            (402, 2, false, true),
            (401, 1, false, true),
            (102, 1, false, true),
            (102, 2, false, false),
            (101, 1, false, false),
        ] {
            let fits = |reserve| space.room::<()>(free, taken, reserve).is_ok();
            assert_eq!((fits(false), fits(true)), (others, deletions), "{free}");
        }
    }
}
