//! What is mounted where, as the kernel tells it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

const TABLE: &str = "/proc/self/mountinfo";

/// The name under which the agent mounts memory, so that it knows its own.
pub(super) const OWN: &str = "belay-volume";

/// Everything that is mounted on a directory or in it, in the order in which it was mounted. The
/// directory is a real path: without links.
pub(super) fn below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    points(dir, |_| true)
}

/// The memory in a directory that the agent itself mounted.
pub(super) fn own(dir: &Path) -> io::Result<Vec<PathBuf>> {
    points(dir, |source| source == OWN.as_bytes())
}

fn points(dir: &Path, wanted: impl Fn(&[u8]) -> bool) -> io::Result<Vec<PathBuf>> {
    let table = fs::read(TABLE)?;
    let lines = table.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| {
        // ... the mount point is the fifth; after a dash follow type and source.
        let mut words = line.split(|byte| *byte == b' ');
        let point = words.nth(4)?;
        let source = words.skip_while(|word| *word != b"-").nth(2)?;
        wanted(source).then(|| PathBuf::from(OsString::from_vec(unescape(point))))
    });
    Ok(points.filter(|point| point.starts_with(dir)).collect())
}

/// Unmounts everything on a directory or in it, what was mounted last first.
pub(super) fn clear(dir: &Path) -> io::Result<()> {
    for point in below(dir)?.iter().rev() {
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        unmount(point, flags).map_err(|error| {
            let error = io::Error::from(error);
            let why = format!("cannot unmount {}: {error}", point.display());
            io::Error::new(error.kind(), why)
        })?;
    }
    match below(dir)?.first() {
        None => Ok(()),
        Some(point) => Err(io::Error::other(format!(
            "{} stays mounted",
            point.display()
        ))),
    }
}

/// Spaces and the like are written as `\040`.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        };
        match tail {
            [a, b, c, after @ ..] if *first == b'\\' && octal(&[*a, *b, *c]).is_some() => {
                bytes.extend(octal(&[*a, *b, *c]));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_bytes_are_read_back() {
        for (text, expected) in [
            ("/a\\040b", "/a b"),
            ("/a\\134b", "/a\\b"),
            ("\\011", "\t"),
            ("\\9", "\\9"),
            ("a\\", "a\\"),
            ("\\777x", "\\777x"),
            ("", ""),
        ] {
            assert_eq!(unescape(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }

    #[test]
    fn the_root_is_mounted_and_a_new_directory_is_not() {
        assert!(below(Path::new("/")).unwrap().contains(&PathBuf::from("/")));
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        assert_eq!(below(&real).unwrap(), Vec::<PathBuf>::new());
    }
}
