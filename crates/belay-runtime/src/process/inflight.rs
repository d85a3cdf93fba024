//! Starts under way in this process.
//!
//! A start that its caller gave up goes on, and before it has made its directory nothing on disk
//! tells of it. Who looks the attempt up must wait for it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The directories that are about to be made.
#[derive(Debug, Default, Clone)]
pub(crate) struct InFlight {
    dirs: Arc<Mutex<HashSet<PathBuf>>>,
}

/// Held while a start is under way.
#[derive(Debug)]
pub(crate) struct Start {
    all: InFlight,
    dir: PathBuf,
}

impl InFlight {
    /// Announces a start; `None` when one of the same directory is under way.
    pub(crate) fn begin(&self, dir: PathBuf) -> Option<Start> {
        self.lock().insert(dir.clone()).then(|| Start {
            all: self.clone(),
            dir,
        })
    }

    pub(crate) fn contains(&self, dir: &Path) -> bool {
        self.lock().contains(dir)
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        // Nobody panics while holding it, and a set of paths is whole in any case.
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        self.all.lock().remove(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_known_until_it_is_over_and_there_is_one_at_a_time() {
        let all = InFlight::default();
        let start = all.begin("a".into()).unwrap();
        assert!(all.contains(Path::new("a")) && !all.contains(Path::new("b")));
        assert!(all.begin("a".into()).is_none());
        drop(start);
        assert!(!all.contains(Path::new("a")));
    }
}
