//! Keeping a log within bounds: a file that has grown too long is renamed, and another takes its
//! place. `0.log` becomes `0.log.1`, the next time `0.log.2`; the oldest are removed.
//!
//! **Invariant:** numbers only grow and a renamed file keeps its name, so that whoever has one open
//! can tell which comes after it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How long a file gets before another takes its place, as with a kubelet.
pub const LIMIT: u64 = 10 << 20;
/// How many files of one log there are at most, the newest included; as with a kubelet.
pub const FILES: usize = 5;

/// The renamed files of a log with their numbers, from the oldest to the newest.
pub fn rotated(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(number) = number(&entry.file_name(), name) {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn number(file: &OsStr, log: &OsStr) -> Option<u64> {
    let rest = file.as_bytes().strip_prefix(log.as_bytes())?;
    std::str::from_utf8(rest.strip_prefix(b".")?)
        .ok()?
        .parse()
        .ok()
}

/// Renames a log and removes the oldest of its files. Whoever writes it has to open it anew.
pub fn rotate(path: &Path) -> io::Result<()> {
    let old = rotated(path)?;
    let next = old.last().map_or(1, |(newest, _)| newest.saturating_add(1));
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{next}"));
    fs::rename(path, name)?;
    // With the one that was just renamed and the one that is about to be made.
    let surplus = (old.len() + 2).saturating_sub(FILES);
    for (_, file) in old.into_iter().take(surplus) {
        // One that stays is removed the next time.
        let _ = fs::remove_file(file);
    }
    Ok(())
}

/// Removes a log with all its files.
pub fn remove(path: &Path) -> io::Result<()> {
    for (_, file) in rotated(path)? {
        fs::remove_file(file)?;
    }
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_newest_files_of_a_log_stay_and_others_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        for other in ["11.log", "1.log.old", "1.log.", "1.logs.1"] {
            fs::write(dir.path().join(other), "").unwrap();
        }
        for number in 1..=12 {
            fs::write(&path, number.to_string()).unwrap();
            rotate(&path).unwrap();
        }
        let files = rotated(&path).unwrap();
        let numbers: Vec<u64> = files.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [9, 10, 11, 12]);
        for (number, file) in files {
            assert_eq!(fs::read_to_string(file).unwrap(), number.to_string());
        }
        assert!(rotate(&path).is_err(), "there is nothing to rename");
        fs::write(&path, "").unwrap();
        remove(&path).unwrap();
        assert_eq!(
            names(dir.path()),
            ["1.log.", "1.log.old", "1.logs.1", "11.log"]
        );
    }
}
