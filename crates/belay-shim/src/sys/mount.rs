//! Mounts of a process of its own. Linux 5.12 or later.

use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use super::{check, check_long};

/// From the kernel's `linux/mount.h` and `linux/fcntl.h`.
const OPEN_TREE_CLONE: c_int = 1;
const MOVE_MOUNT_FROM_FD: c_int = 0x4;
const MOVE_MOUNT_TO_FOLLOWS_LINKS: c_int = 0x10;
const MOUNT_ATTR_RDONLY: u64 = 1;
const AT_RECURSIVE: c_int = 0x8000;

#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// Gives this process a copy of all mounts: what is mounted here is not seen outside, what is
/// mounted outside later is seen here.
pub(crate) fn leave_mounts() -> io::Result<()> {
    // SAFETY: plain calls; the unused strings may be null.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(
            ptr::null(),
            c"/".as_ptr(),
            ptr::null(),
            libc::MS_REC | libc::MS_SLAVE,
            ptr::null(),
        ))
        .map(drop)
    }
}

/// Joins the mounts that a `/proc/PID/ns/mnt` stands for.
pub(crate) fn join_mounts(of: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { libc::setns(of.as_raw_fd(), libc::CLONE_NEWNS) }).map(drop)
}

/// A copy of what is at a path, with everything that is mounted in it, attached nowhere yet.
pub(crate) fn copy_tree(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let flags = OPEN_TREE_CLONE | AT_RECURSIVE | libc::O_CLOEXEC;
    // SAFETY: the path is a C string; the descriptor is new and ours.
    unsafe {
        let fd = check_long(libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Whether later mounts of the host are seen in a tree, and whether it can be written to.
pub(crate) fn set_tree(
    tree: BorrowedFd<'_>,
    follows_host: bool,
    read_only: bool,
) -> io::Result<()> {
    let propagation = if follows_host {
        libc::MS_SLAVE
    } else {
        libc::MS_PRIVATE
    };
    let all = MountAttr {
        propagation,
        ..MountAttr::default()
    };
    set_attributes(tree, &all, AT_RECURSIVE)?;
    if read_only {
        let top = MountAttr {
            set: MOUNT_ATTR_RDONLY,
            ..MountAttr::default()
        };
        set_attributes(tree, &top, 0)?;
    }
    Ok(())
}

fn set_attributes(tree: BorrowedFd<'_>, attributes: &MountAttr, flags: c_int) -> io::Result<()> {
    // SAFETY: the structure is the kernel's first version of it, and its size is passed along.
    check_long(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | flags,
            ptr::from_ref(attributes),
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Attaches a tree.
pub(crate) fn attach_tree(tree: BorrowedFd<'_>, target: &Path) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: both paths are C strings.
    check_long(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            MOVE_MOUNT_FROM_FD | MOVE_MOUNT_TO_FOLLOWS_LINKS,
        )
    })
    .map(drop)
}
