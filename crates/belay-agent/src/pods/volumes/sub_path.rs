//! A part of a volume, held fast.
//!
//! What a `subPath` leads to can be changed by a container at any time, also to a link out of its
//! volume. So it is resolved once, without leaving the volume, and what was found is mounted at a
//! path of the agent's own; that path is what the runtime is given.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, mkdirat, open, openat2};
use rustix::mount::mount_bind;

use super::mount_table;

/// Mounts the part of the volume at `base` on `target`. A part that is not there becomes a
/// directory.
pub(super) fn bind(base: &Path, sub: &Path, target: &Path) -> io::Result<()> {
    let found = resolve(base, sub)?;
    let is_dir = File::from(found.try_clone()?).metadata()?.is_dir();
    prepare(target, is_dir)?;
    let source = format!("/proc/self/fd/{}", found.as_raw_fd());
    mount_bind(&source, target).map_err(|error| {
        let error = io::Error::from(error);
        let why = format!("cannot mount it on {}: {error}", target.display());
        io::Error::new(error.kind(), why)
    })
}

/// Opens the part, making directories on the way as need be. Links that lead out of the volume,
/// and absolute ones, are errors.
fn resolve(base: &Path, sub: &Path) -> io::Result<OwnedFd> {
    let path_only = OFlags::PATH | OFlags::CLOEXEC;
    let root = open(base, path_only | OFlags::DIRECTORY, Mode::empty())?;
    let mode = File::from(root.try_clone()?)
        .metadata()?
        .permissions()
        .mode()
        & 0o7777;
    let inside = |path: &Path| {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        openat2(&root, path, path_only, Mode::empty(), resolve)
    };
    let mut at = root.try_clone()?;
    let mut so_far = std::path::PathBuf::new();
    for part in sub {
        if part == OsStr::new(".") {
            continue;
        }
        so_far.push(part);
        at = match inside(&so_far) {
            Err(rustix::io::Errno::NOENT) => {
                make(&at, part, mode)?;
                inside(&so_far)?
            }
            found => found?,
        };
    }
    Ok(at)
}

fn make(parent: &impl AsFd, name: &OsStr, mode: u32) -> io::Result<()> {
    mkdirat(parent, name, Mode::from_raw_mode(0o700))?;
    let opened = rustix::fs::openat(
        parent,
        name,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // Whatever the umask is.
    File::from(opened).set_permissions(fs::Permissions::from_mode(mode))
}

/// Something of the right kind to mount on. A mount of an earlier incarnation makes way.
fn prepare(target: &Path, is_dir: bool) -> io::Result<()> {
    let parent = target.parent().unwrap_or(target);
    let mut directory = DirBuilder::new();
    directory.mode(0o700);
    directory.recursive(true).create(parent)?;
    let real = parent.canonicalize()?;
    let real = real.join(target.file_name().unwrap_or_default());
    mount_table::clear(&real)?;
    match fs::symlink_metadata(&real) {
        Ok(there) if there.is_dir() => fs::remove_dir(&real)?,
        Ok(_) => fs::remove_file(&real)?,
        Err(_) => {}
    }
    if is_dir {
        return directory.recursive(false).create(&real);
    }
    let mut file = OpenOptions::new();
    file.write(true).create_new(true).mode(0o600);
    file.open(&real).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    fn found(base: &Path, sub: &str) -> io::Result<u64> {
        let fd = resolve(base, Path::new(sub))?;
        Ok(File::from(fd).metadata()?.ino())
    }

    #[test]
    fn parts_are_found_and_made_in_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o2770)).unwrap();
        let ino = |name: &str| fs::metadata(dir.path().join(name)).unwrap().ino();
        fs::write(dir.path().join("file"), "x").unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        assert_eq!(found(dir.path(), "file").unwrap(), ino("file"));
        assert_eq!(found(dir.path(), "link").unwrap(), ino("file"));
        assert_eq!(found(dir.path(), "a/./b").unwrap(), ino("a/b"));
        let mode = fs::metadata(dir.path().join("a/b")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o2770);
        assert_eq!(found(dir.path(), "a/b").unwrap(), ino("a/b"));
    }

    #[test]
    fn no_link_leads_out_of_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        let base = dir.path().join("base");
        fs::create_dir(&outside).unwrap();
        fs::create_dir(&base).unwrap();
        symlink("../outside", base.join("up")).unwrap();
        symlink(&outside, base.join("absolute")).unwrap();
        symlink("nowhere", base.join("dangling")).unwrap();
        symlink("loop", base.join("loop")).unwrap();
        for sub in [
            "up",
            "absolute",
            "up/new",
            "absolute/new",
            "dangling",
            "dangling/x",
            "loop",
        ] {
            found(&base, sub).unwrap_err();
        }
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert!(!base.join("nowhere").exists());
    }
}
