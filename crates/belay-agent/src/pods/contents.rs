//! What is in files that containers can write. One may have grown beyond all memory since it was
//! made, or be something else by now: no more is read than is wanted, and only of what is a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Whether a file holds exactly this; blocks. What cannot be read, or is a link, holds nothing.
pub(crate) fn is(path: &Path, data: &[u8]) -> bool {
    let same = || {
        let file = open(path, OFlags::NOFOLLOW)?;
        let length = data.len() as u64;
        if file.metadata()?.len() != length {
            return Ok(false);
        }
        let mut found = Vec::new();
        // It may grow while it is read.
        file.take(length.saturating_add(1))
            .read_to_end(&mut found)?;
        Ok::<_, io::Error>(found == data)
    };
    same().unwrap_or(false)
}

/// The last bytes of a file, `longest` at most; blocks.
pub(crate) fn tail(path: &Path, longest: u64) -> io::Result<Vec<u8>> {
    let mut found = Vec::new();
    let mut file = open(path, OFlags::empty())?;
    let from = file.metadata()?.len().saturating_sub(longest);
    file.seek(SeekFrom::Start(from))?;
    // It may grow while it is read.
    file.take(longest).read_to_end(&mut found)?;
    Ok(found)
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    // Nobody waits for the other end of a pipe.
    let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if !file.metadata()?.is_file() {
        let what = "it is not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// More than any machine could read into its memory.
    const HUGE: u64 = 1 << 42;

    #[test]
    fn a_file_is_what_was_written_and_nothing_longer_shorter_or_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(!is(&path, b""), "it is not there");
        fs::write(&path, "some").unwrap();
        assert!(is(&path, b"some"));
        for other in ["som", "some ", "Some", ""] {
            assert!(!is(&path, other.as_bytes()), "{other}");
        }
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(!is(&link, b"some") && !is(dir.path(), b""));
    }

    #[test]
    fn of_a_file_that_no_memory_could_hold_only_what_is_wanted_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("huge");
        File::create(&path).unwrap().set_len(HUGE).unwrap();
        assert!(!is(&path, b"some"));
        assert_eq!(tail(&path, 3).unwrap(), [0; 3]);
    }

    #[test]
    fn a_pipe_that_nobody_writes_to_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).unwrap();
        assert!(!is(&pipe, b""));
        let refused = tail(&pipe, 3).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}
