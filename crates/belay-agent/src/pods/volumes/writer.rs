//! Files that change all at once, as the kubelet writes them.
//!
//! ```text
//!   <volume>/..2026_01_31_09_00_00.1b2f/   the files themselves
//!   <volume>/..data       -> ..2026_01_31_09_00_00.1b2f     renamed into place
//!   <volume>/user.conf    -> ..data/user.conf
//! ```
//!
//! Whoever opens `..data` once sees one version and never a mixture. A writer that was killed at any
//! point leaves something that the next write makes right.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::files::Files;
use crate::pods::contents;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// Makes the volume show exactly these files.
pub(super) fn write(dir: &Path, files: &Files, group: Option<u32>) -> io::Result<()> {
    let mut current = current(dir);
    let up_to_date = match &current {
        Some(version) => shows(&dir.join(version), files)?,
        None => false,
    };
    if !up_to_date {
        let version = new_version(dir, files, group)?;
        switch(dir, &version)?;
        current = Some(version);
    }
    link(dir, files)?;
    tidy(dir, current.as_deref())
}

/// The name of the version that is shown.
fn current(dir: &Path) -> Option<OsString> {
    let version = fs::read_link(dir.join(DATA)).ok()?.into_os_string();
    is_hidden(&version).then_some(version)
}

fn is_hidden(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    bytes.starts_with(b"..") && !bytes.contains(&b'/')
}

/// Whether a version holds these files and no others.
fn shows(version: &Path, files: &Files) -> io::Result<bool> {
    let mut found = BTreeSet::new();
    if !version.is_dir() {
        return Ok(false);
    }
    let mut directories = vec![PathBuf::new()];
    while let Some(below) = directories.pop() {
        for entry in fs::read_dir(version.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                directories.push(path);
            } else {
                found.insert(path);
            }
        }
    }
    Ok(found.iter().eq(files.keys())
        && files
            .iter()
            .all(|(path, file)| contents::is(&version.join(path), &file.data)))
}

fn new_version(dir: &Path, files: &Files, group: Option<u32>) -> io::Result<OsString> {
    let now = Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S");
    let name = OsString::from(format!("..{now}.{}", uuid::Uuid::new_v4().simple()));
    let version = dir.join(&name);
    let directory = |path: &Path| -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)?;
        own(path, group, 0o755, 0o2110 | 0o440)
    };
    directory(&version)?;
    for (path, file) in files {
        let mut parent = version.clone();
        for part in path.parent().into_iter().flatten() {
            parent.push(part);
            if !parent.is_dir() {
                directory(&parent)?;
            }
        }
        let path = version.join(path);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&path)?.write_all(&file.data)?;
        own(&path, group, file.mode, 0o440)?;
    }
    if let Some(group) = group {
        std::os::unix::fs::lchown(dir, None, Some(group))?;
    }
    Ok(name)
}

/// Gives a file its mode whatever the umask is, and to the volume's group what the group needs.
fn own(path: &Path, group: Option<u32>, mode: u32, for_group: u32) -> io::Result<()> {
    let mut mode = mode;
    if let Some(group) = group {
        std::os::unix::fs::lchown(path, None, Some(group))?;
        mode |= for_group;
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Shows another version, in one step.
fn switch(dir: &Path, version: &OsStr) -> io::Result<()> {
    let new = dir.join(NEW_DATA);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(version, &new)?;
    fs::rename(&new, dir.join(DATA))
}

/// The first part of each path, which is what a user sees in the volume.
fn visible(files: &Files) -> BTreeSet<&OsStr> {
    files.keys().filter_map(|path| path.iter().next()).collect()
}

fn link(dir: &Path, files: &Files) -> io::Result<()> {
    for name in visible(files) {
        let link = dir.join(name);
        let target = Path::new(DATA).join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(target, link)?;
        }
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let ours = fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(DATA));
        if ours && !visible(files).contains(&*entry.file_name()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes every version but one, and what else a killed writer left.
fn tidy(dir: &Path, keep: Option<&OsStr>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if !is_hidden(&name) || name == DATA || Some(&*name) == keep {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::files::File;
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn files(list: &[(&str, &str)]) -> Files {
        list.iter()
            .map(|(path, text)| {
                let data = text.as_bytes().to_vec();
                (PathBuf::from(path), File { data, mode: 0o640 })
            })
            .collect()
    }

    /// Everything that a user sees: path and contents.
    fn seen(dir: &Path) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut directories = vec![PathBuf::new()];
        while let Some(below) = directories.pop() {
            for entry in fs::read_dir(dir.join(&below)).unwrap().flatten() {
                let path = below.join(entry.file_name());
                if is_hidden(&entry.file_name()) {
                    continue;
                }
                if dir.join(&path).is_dir() {
                    directories.push(path);
                } else {
                    let text = fs::read_to_string(dir.join(&path)).unwrap();
                    found.push((path.display().to_string(), text));
                }
            }
        }
        found.sort();
        found
    }

    fn hidden(dir: &Path) -> usize {
        let entries = fs::read_dir(dir).unwrap().flatten();
        entries
            .filter(|entry| is_hidden(&entry.file_name()))
            .count()
    }

    fn check(dir: &Path, list: &[(&str, &str)]) {
        let expected: Vec<_> = list
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        assert_eq!(seen(dir), expected);
        assert_eq!(hidden(dir), 2, "one version and the link to it");
    }

    #[test]
    fn each_write_shows_its_files_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let steps: [&[(&str, &str)]; 7] = [
            &[("a", "1"), ("d/e/f", "2")],
            &[("a", "1"), ("d/e/f", "3")],
            &[("a", "1"), ("d/e/f", "3"), ("d/g", "4")],
            &[("d/g", "4")],
            &[("d", "now a file")],
            &[],
            &[("a", "")],
        ];
        for step in steps {
            write(dir.path(), &files(step), None).unwrap();
            check(dir.path(), step);
        }
        let mode = fs::metadata(dir.path().join("a")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o7777, 0o640);
    }

    #[test]
    fn a_write_of_what_is_there_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &files(&[("a", "1")]), None).unwrap();
        let before = current(dir.path());
        write(dir.path(), &files(&[("a", "1")]), None).unwrap();
        assert_eq!(current(dir.path()), before);
    }

    /// What a writer leaves that is killed after each of its steps.
    #[test]
    fn a_writer_that_was_killed_at_any_step_leaves_what_the_next_one_makes_right() {
        let old: &[(&str, &str)] = &[("a", "old"), ("gone", "x")];
        let new: &[(&str, &str)] = &[("a", "new"), ("b", "y")];
        type Step = fn(&Path, &Files);
        let steps: [(Step, bool); 6] = [
            (
                |dir, _| fs::create_dir(dir.join("..2026_half")).unwrap(),
                false,
            ),
            (
                |dir, _| {
                    fs::create_dir(dir.join("..2026_half")).unwrap();
                    fs::write(dir.join("..2026_half/a"), "ne").unwrap();
                },
                false,
            ),
            (
                |dir, files| drop(new_version(dir, files, None).unwrap()),
                false,
            ),
            (
                |dir, files| {
                    let version = new_version(dir, files, None).unwrap();
                    symlink(version, dir.join(NEW_DATA)).unwrap();
                },
                false,
            ),
            (
                |dir, files| {
                    let version = new_version(dir, files, None).unwrap();
                    switch(dir, &version).unwrap();
                },
                true,
            ),
            (
                |dir, files| {
                    let version = new_version(dir, files, None).unwrap();
                    switch(dir, &version).unwrap();
                    link(dir, files).unwrap();
                },
                true,
            ),
        ];
        for (index, (step, switched)) in steps.into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), &files(old), None).unwrap();
            step(dir.path(), &files(new));
            let text = fs::read_to_string(dir.path().join("a")).unwrap();
            assert_eq!(text, if switched { "new" } else { "old" }, "step {index}");
            write(dir.path(), &files(new), None).unwrap();
            check(dir.path(), new);
        }
    }

    #[test]
    fn a_reader_never_sees_a_mixture() {
        let dir = tempfile::tempdir().unwrap();
        let version = |n: u32| {
            let text = n.to_string();
            files(&[("a", &text), ("b", &text)])
        };
        write(dir.path(), &version(0), None).unwrap();
        let (done, path) = (AtomicBool::new(false), dir.path().to_owned());
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut looked = 0;
                while !done.load(Ordering::Relaxed) || looked == 0 {
                    // A version may go while it is read, but what was read is of one.
                    let Ok(version) = fs::canonicalize(path.join(DATA)) else {
                        continue;
                    };
                    let read = |name: &str| fs::read_to_string(version.join(name));
                    if let (Ok(a), Ok(b)) = (read("a"), read("b")) {
                        assert_eq!(a, b);
                        looked += 1;
                    }
                }
                looked
            });
            for n in 1..200 {
                write(dir.path(), &version(n), None).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
    }

    #[test]
    fn what_a_user_put_beside_the_files_stays() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("made-for-a-subpath")).unwrap();
        symlink("/etc", dir.path().join("link")).unwrap();
        write(dir.path(), &files(&[("a", "1")]), None).unwrap();
        write(dir.path(), &files(&[]), None).unwrap();
        assert!(dir.path().join("made-for-a-subpath").is_dir());
        assert!(dir.path().join("link").symlink_metadata().is_ok());
    }
}
