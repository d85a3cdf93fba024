//! The files of one log, of which all but the newest have been renamed.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use belay_runtime::rotation::rotated;

/// Which file it is, whatever its name.
pub(super) type Identity = (u64, u64);

pub(super) fn identity(meta: &std::fs::Metadata) -> Identity {
    (meta.dev(), meta.ino())
}

/// Opens what there is of a log, from the oldest to the newest.
pub(super) fn open(path: &Path) -> io::Result<VecDeque<File>> {
    let newest = there(File::open(path))?;
    let own = newest.as_ref().map(File::metadata).transpose()?;
    let own = own.as_ref().map(identity);
    let mut files = VecDeque::new();
    for (_, renamed) in there(rotated(path))?.unwrap_or_default() {
        let Some(file) = there(File::open(renamed))? else {
            continue;
        };
        // The one that was the newest a moment ago.
        if Some(identity(&file.metadata()?)) == own {
            break;
        }
        files.push_back(file);
    }
    files.extend(newest);
    Ok(files)
}

/// The file that comes after this one, which is open. If that is removed already, the oldest there
/// is.
pub(super) fn successor(path: &Path, open: Identity) -> io::Result<Option<File>> {
    loop {
        // First the newest: what is not the newest has been renamed by now.
        let newest = there(std::fs::metadata(path))?.as_ref().map(identity);
        if newest == Some(open) {
            return Ok(None);
        }
        let mut files: Vec<(PathBuf, Identity)> = Vec::new();
        for (_, renamed) in there(rotated(path))?.unwrap_or_default() {
            if let Some(meta) = there(std::fs::metadata(&renamed))? {
                files.push((renamed, identity(&meta)));
            }
        }
        let after = files.iter().position(|(_, file)| *file == open);
        let newest = newest.map(|newest| (path.to_owned(), newest));
        let mut next = files.into_iter().skip(after.map_or(0, |at| at + 1));
        let Some((next, expected)) = next.next().or(newest) else {
            return Ok(None);
        };
        // Renamed or removed since: then it is looked for again.
        if let Some(file) = there(File::open(next))?
            && identity(&file.metadata()?) == expected
        {
            return Ok(Some(file));
        }
    }
}

/// What is not there is no error.
fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_runtime::rotation::{FILES, rotate};
    use std::io::Read as _;

    fn text(mut file: File) -> String {
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_log_is_read_from_its_oldest_file_to_its_newest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        assert!(open(&path).unwrap().is_empty());
        for word in ["a", "b", "c"] {
            std::fs::write(&path, word).unwrap();
            rotate(&path).unwrap();
        }
        let all = |path: &Path| {
            open(path)
                .unwrap()
                .into_iter()
                .map(text)
                .collect::<String>()
        };
        assert_eq!(all(&path), "abc", "the next one is not there yet");
        std::fs::write(&path, "d").unwrap();
        assert_eq!(all(&path), "abcd");
    }

    #[test]
    fn every_file_but_the_newest_has_one_that_comes_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, "0").unwrap();
        let first = File::open(&path).unwrap();
        let id = |file: &File| identity(&file.metadata().unwrap());
        assert!(successor(&path, id(&first)).unwrap().is_none());
        rotate(&path).unwrap();
        assert!(successor(&path, id(&first)).unwrap().is_none());
        std::fs::write(&path, "1").unwrap();
        let second = successor(&path, id(&first)).unwrap().unwrap();
        rotate(&path).unwrap();
        std::fs::write(&path, "2").unwrap();
        assert_eq!(text(successor(&path, id(&first)).unwrap().unwrap()), "1");
        assert_eq!(text(successor(&path, id(&second)).unwrap().unwrap()), "2");
        for number in 3..3 + FILES {
            rotate(&path).unwrap();
            std::fs::write(&path, number.to_string()).unwrap();
        }
        // What came after it is gone, too: the oldest there is comes next.
        assert_eq!(text(successor(&path, id(&first)).unwrap().unwrap()), "3");
    }
}
