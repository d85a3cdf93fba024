//! Whether a path of the host is what a pod takes it for.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use belay_api::pod::HostPathType;

/// Checks the path, and makes what is to be made.
pub(super) fn check(path: &Path, type_: HostPathType) -> io::Result<()> {
    let there = fs::metadata(path).ok().map(|found| found.file_type());
    let refuse = |what: &str| {
        let path = path.display();
        Err(io::Error::other(format!(
            "hostPath type check failed: {path} is not {what}"
        )))
    };
    match (type_, there) {
        (HostPathType::Any, _) => Ok(()),
        (HostPathType::DirectoryOrCreate, None) => {
            DirBuilder::new().recursive(true).mode(0o755).create(path)
        }
        (HostPathType::FileOrCreate, None) => OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(path)
            .map(drop),
        (HostPathType::Directory | HostPathType::DirectoryOrCreate, found) => match found {
            Some(found) if found.is_dir() => Ok(()),
            _ => refuse("a directory"),
        },
        (HostPathType::File | HostPathType::FileOrCreate, found) => match found {
            Some(found) if found.is_file() => Ok(()),
            _ => refuse("a file"),
        },
        (HostPathType::Socket, found) => match found {
            Some(found) if found.is_socket() => Ok(()),
            _ => refuse("a socket file"),
        },
        (HostPathType::CharDevice, found) => match found {
            Some(found) if found.is_char_device() => Ok(()),
            _ => refuse("a character device"),
        },
        (HostPathType::BlockDevice, found) => match found {
            Some(found) if found.is_block_device() => Ok(()),
            _ => refuse("a block device"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HostPathType as T;

    #[test]
    fn each_type_takes_what_it_names_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("dir", at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let table = [
            ("dir", vec![T::Directory, T::DirectoryOrCreate]),
            ("link", vec![T::Directory, T::DirectoryOrCreate]),
            ("file", vec![T::File, T::FileOrCreate]),
            ("socket", vec![T::Socket]),
            ("/dev/null", vec![T::CharDevice]),
            ("none/none", vec![]),
        ];
        let types = [
            (T::Directory, "a directory"),
            (T::File, "a file"),
            (T::Socket, "a socket file"),
            (T::CharDevice, "a character device"),
            (T::BlockDevice, "a block device"),
        ];
        for (name, good) in table {
            let path = at(name);
            check(&path, T::Any).unwrap();
            for (type_, what) in types {
                match check(&path, type_) {
                    Ok(()) => assert!(good.contains(&type_), "{name} {type_:?}"),
                    Err(error) => {
                        assert!(!good.contains(&type_), "{name} {type_:?}");
                        let path = path.display();
                        let text = format!("hostPath type check failed: {path} is not {what}");
                        assert_eq!(error.to_string(), text);
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_there_is_made_where_the_type_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let (deep, file) = (dir.path().join("a/b"), dir.path().join("f"));
        for _ in 0..2 {
            check(&deep, T::DirectoryOrCreate).unwrap();
            check(&file, T::FileOrCreate).unwrap();
        }
        assert!(deep.is_dir() && file.is_file());
        check(&deep, T::FileOrCreate).unwrap_err();
        check(&file, T::DirectoryOrCreate).unwrap_err();
        check(&dir.path().join("no/f"), T::FileOrCreate).unwrap_err();
    }
}
