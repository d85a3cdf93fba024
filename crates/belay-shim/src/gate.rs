//! Keeps execs from beginning in a container that has ended.
//!
//! An exec's shim holds the container's `gate` shared from before it looks for the `ending` mark
//! until its process has been exec'ed. Whoever ends a container sets the mark, then takes the gate
//! alone: by then every exec has either seen the mark or has a process that can be found.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::instance;

/// A start that takes longer hangs in the kernel; its shim is found by its mark all the same.
const PATIENCE: Duration = Duration::from_secs(3);

fn open(container: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(container.join(instance::GATE))
}

/// Lets an exec begin: the answer is held until its process is exec'ed. `None` when the container
/// has ended, or has lost its shim.
pub(crate) fn enter(container: &Path) -> io::Result<Option<File>> {
    let gate = open(container)?;
    gate.lock_shared()?;
    let ended = container.join(instance::ENDING).try_exists()?;
    if ended || instance::is_abandoned(container)? {
        return Ok(None);
    }
    Ok(Some(gate))
}

/// Closes the gate for good, and waits for those on their way through.
pub fn close(container: &Path) -> io::Result<()> {
    instance::write(container, instance::ENDING, b"", instance::Durable::No)?;
    let gate = open(container)?;
    let begin = Instant::now();
    loop {
        match gate.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if begin.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> (tempfile::TempDir, File) {
        let dir = tempfile::tempdir().unwrap();
        let lock = File::create(dir.path().join(instance::LOCK)).unwrap();
        lock.lock().unwrap();
        (dir, lock)
    }

    #[test]
    fn an_exec_enters_while_the_container_lives() {
        let (dir, _lock) = container();
        assert!(enter(dir.path()).unwrap().is_some());
    }

    #[test]
    fn nobody_enters_after_the_end() {
        let (dir, _lock) = container();
        close(dir.path()).unwrap();
        assert!(enter(dir.path()).unwrap().is_none());
    }

    #[test]
    fn nobody_enters_a_container_that_lost_its_shim() {
        let (dir, lock) = container();
        drop(lock);
        assert!(enter(dir.path()).unwrap().is_none());
    }

    #[test]
    fn the_end_waits_for_those_on_their_way_through() {
        let (dir, _lock) = container();
        let pass = enter(dir.path()).unwrap().unwrap();
        let path = dir.path().to_owned();
        let closer = thread::spawn(move || close(&path).unwrap());
        while !dir.path().join(instance::ENDING).exists() {
            thread::yield_now();
        }
        assert!(!closer.is_finished());
        drop(pass);
        closer.join().unwrap();
    }
}
