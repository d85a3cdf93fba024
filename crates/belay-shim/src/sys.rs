//! The few system calls that the standard library does not offer, each behind a safe function.
//!
//! This is the only module with unsafe code. [`fork`] is safe to offer because the one program
//! that calls it has a single thread.

pub(crate) mod mount;

use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use crate::clock::Boot;

/// A process ID. Always positive.
pub type Pid = i32;

fn check(result: c_int) -> io::Result<c_int> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn check_long(result: libc::c_long) -> io::Result<c_int> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    c_int::try_from(result).map_err(io::Error::other)
}

/// Which clock to read.
#[derive(Debug, Clone, Copy)]
pub enum Clock {
    Real,
    Boot,
}

/// Seconds and nanoseconds of a clock.
pub fn clock(clock: Clock) -> (i64, i64) {
    let id = match clock {
        Clock::Real => libc::CLOCK_REALTIME,
        Clock::Boot => libc::CLOCK_BOOTTIME,
    };
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the answer. Both clocks exist on every Linux we run on,
    // so the call cannot fail; if it did, zero is read, and deadlines end at once.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    (time.tv_sec, time.tv_nsec)
}

/// A timer on the boot clock that makes its descriptor readable at `at`.
pub fn timer(at: Boot) -> io::Result<OwnedFd> {
    // SAFETY: plain call; the descriptor is new and ours.
    let fd = unsafe {
        let fd = check(libc::timerfd_create(
            libc::CLOCK_BOOTTIME,
            libc::TFD_CLOEXEC,
        ))?;
        OwnedFd::from_raw_fd(fd)
    };
    // A time of zero would disarm the timer instead of ending it at once.
    let nanos = at.0.max(1);
    let spec = libc::itimerspec {
        it_interval: libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        },
        it_value: libc::timespec {
            tv_sec: nanos / 1_000_000_000,
            tv_nsec: nanos % 1_000_000_000,
        },
    };
    // SAFETY: `spec` is valid, and no old value is asked for.
    check(unsafe {
        libc::timerfd_settime(
            fd.as_raw_fd(),
            libc::TFD_TIMER_ABSTIME,
            &raw const spec,
            ptr::null_mut(),
        )
    })?;
    Ok(fd)
}

/// Who one is after a [`fork`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    Parent { child: Pid },
    Child,
}

/// Makes a copy of this process. Only for a program with one thread.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: the shim never starts a thread, so the child may go on using everything.
    match check(unsafe { libc::fork() })? {
        0 => Ok(Fork::Child),
        child => Ok(Fork::Parent { child }),
    }
}

/// Ends this process at once, running nothing of the parent's on the way out.
pub(crate) fn exit_now(code: c_int) -> ! {
    // SAFETY: always allowed.
    unsafe { libc::_exit(code) }
}

pub(crate) fn setsid() -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { libc::setsid() }).map(drop)
}

pub(crate) fn set_umask(mask: libc::mode_t) {
    // SAFETY: always succeeds.
    unsafe { libc::umask(mask) };
}

/// In a shim's environment: how many files it and what it starts may have open, where that is not
/// what its starter may.
pub const OPEN_FILES: &str = "BELAY_OPEN_FILES";

/// How many files this process, and what it starts, may have open until they ask for more.
pub(crate) fn limit_open_files(count: u64) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is a valid place for the answer, and then a valid limit.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max.min(count as libc::rlim_t);
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)).map(drop)
    }
}

/// Orphans among the descendants become children of this process.
pub(crate) fn become_subreaper() -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// This process gets SIGKILL when its parent ends.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) }).map(drop)
}

/// Nothing that this process executes can give it more rights than it has.
pub(crate) fn keep_from_new_privileges() -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).map(drop)
}

/// Drops privileges for good: these supplementary groups alone, then the group, then the user.
pub(crate) fn become_user(user: Option<u32>, group: Option<u32>, groups: &[u32]) -> io::Result<()> {
    // SAFETY: plain calls; the pointer and the length describe `groups`.
    unsafe {
        // Without the privilege the groups stay as they are: the process has no more of them than
        // its starter, and changing to its own IDs is still allowed. Asked for groups, it fails.
        if libc::geteuid() == 0 || !groups.is_empty() {
            check(libc::setgroups(groups.len(), groups.as_ptr()))?;
        }
        if let Some(group) = group {
            check(libc::setresgid(group, group, group))?;
        }
        if let Some(user) = user {
            check(libc::setresuid(user, user, user))?;
        }
    }
    Ok(())
}

/// Replaces this process by a program; returns only if that failed.
pub(crate) fn exec(program: &CString, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings
            .iter()
            .map(|string| string.as_ptr())
            .chain([ptr::null()])
            .collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both lists end with a null pointer, and everything they point to outlives the call.
    unsafe { libc::execve(program.as_ptr(), args.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Makes `to` another name of `from`, open across exec.
pub(crate) fn duplicate_onto(from: BorrowedFd<'_>, to: RawFd) -> io::Result<()> {
    if from.as_raw_fd() == to {
        // dup2 onto itself would leave the close-on-exec flag set.
        // SAFETY: plain call on an open descriptor.
        return check(unsafe { libc::fcntl(to, libc::F_SETFD, 0) }).map(drop);
    }
    // SAFETY: plain call; `to` is one of the standard descriptors, which nothing else owns.
    check(unsafe { libc::dup2(from.as_raw_fd(), to) }).map(drop)
}

/// Takes over an inherited descriptor: a copy above the standard three, closed on exec.
pub(crate) fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the copy is new and ours.
    unsafe {
        let copy = check(libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3))?;
        Ok(OwnedFd::from_raw_fd(copy))
    }
}

/// Takes an inherited descriptor itself. Called at most once for each, before anything is opened.
pub(crate) fn take(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: it is open, as the first call tells, and nothing else in this program owns it.
    unsafe {
        check(libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Closes everything above the standard three. Called first of all, when nothing is open yet.
pub(crate) fn close_inherited() {
    // SAFETY: nothing in this program owns a descriptor above 2 at this point. A kernel without
    // the call leaves them open, as they are with any other program.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    change_flags(fd, |flags| flags | libc::O_NONBLOCK)
}

pub(crate) fn set_blocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    change_flags(fd, |flags| flags & !libc::O_NONBLOCK)
}

fn change_flags(fd: BorrowedFd<'_>, change: fn(c_int) -> c_int) -> io::Result<()> {
    // SAFETY: plain calls on an open descriptor.
    unsafe {
        let flags = check(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL))?;
        check(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, change(flags))).map(drop)
    }
}

/// Makes a terminal the controlling one of this session, which has none yet.
pub(crate) fn control_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the argument is a number: nobody is robbed of the terminal.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSCTTY, 0) }).map(drop)
}

/// A signal that a program of ours wants to hear of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    ChildEnded = libc::SIGCHLD as isize,
    Terminate = libc::SIGTERM as isize,
    Interrupt = libc::SIGINT as isize,
}

/// Blocks every signal, so that none but SIGKILL ends a shim, and returns a descriptor that is
/// readable when one of those that are `heard` has arrived.
pub(crate) fn take_signals(heard: &[Heard]) -> io::Result<OwnedFd> {
    // SAFETY: the sets are initialised by the calls that fill them; the descriptor is new.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        check(libc::sigprocmask(
            libc::SIG_SETMASK,
            &raw const all,
            ptr::null_mut(),
        ))?;
        // An ignored SIGCHLD, which a starter may hand down, would make the kernel throw away how
        // children ended; any other that is ignored would not be told.
        let mut some: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut some);
        for signal in heard {
            libc::signal(*signal as c_int, libc::SIG_DFL);
            libc::sigaddset(&raw mut some, *signal as c_int);
        }
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        let fd = check(libc::signalfd(-1, &raw const some, flags))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Gives a new process the signals as the kernel has them: nothing blocked, nothing ignored.
pub(crate) fn reset_signals() {
    /// An action of the kernel's own layout: all zero is the default action.
    static DEFAULT: [u64; 4] = [0; 4];
    // SAFETY: the action is as large as the kernel's on every architecture with 64 signals, and
    // the old one is not asked for. The kernel is asked itself because the C library refuses to
    // touch two numbers that it may have inherited as ignored. SIGKILL and SIGSTOP just fail.
    unsafe {
        for signal in 1..=64 {
            let old: *mut u64 = ptr::null_mut();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                DEFAULT.as_ptr(),
                old,
                8_usize,
            );
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStatus {
    Exited(i32),
    Signaled(i32),
}

/// What [`reap`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaped {
    Ended(Pid, WaitStatus),
    /// There are children, and all of them live.
    NoneYet,
    /// There is no child at all. A subreaper without children has no descendants.
    NoChildren,
}

/// Takes note of one child that has ended, without waiting for one.
pub(crate) fn reap() -> Reaped {
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
        let result = check(unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) });
        return match result {
            Ok(0) => Reaped::NoneYet,
            Ok(pid) if libc::WIFEXITED(status) => {
                Reaped::Ended(pid, WaitStatus::Exited(libc::WEXITSTATUS(status)))
            }
            Ok(pid) => Reaped::Ended(pid, WaitStatus::Signaled(libc::WTERMSIG(status))),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => Reaped::NoChildren,
        };
    }
}

/// One descriptor to watch, and whether it had anything to say.
#[derive(Debug)]
pub(crate) struct Watched {
    fd: RawFd,
    pub(crate) ready: bool,
}

impl Watched {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Self {
        Watched {
            fd: fd.as_raw_fd(),
            ready: false,
        }
    }
}

/// Waits until at least one of the descriptors can be read or has been closed by its other end, or
/// until `limit` is over.
pub(crate) fn poll(watched: &mut [Watched], limit: Option<Duration>) -> io::Result<()> {
    let limit = limit.map_or(-1, |limit| {
        c_int::try_from(limit.as_millis()).unwrap_or(c_int::MAX)
    });
    let mut fds: Vec<libc::pollfd> = watched
        .iter()
        .map(|watched| libc::pollfd {
            fd: watched.fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: the pointer and the length describe `fds`.
    let result = check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit) });
    match result {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
        Err(_) | Ok(_) => {}
    }
    for (watched, fd) in watched.iter_mut().zip(&fds) {
        watched.ready = fd.revents != 0;
    }
    Ok(())
}

/// A handle on a process that no reuse of its number can redirect.
pub fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: plain call; the descriptor is new, ours, and closed on exec.
    unsafe {
        let fd = check_long(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Sends a signal, real-time ones included, to the process behind the handle.
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let info: *const libc::siginfo_t = ptr::null();
    // SAFETY: no information is passed along, which the kernel allows.
    check_long(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            info,
            0,
        )
    })
    .map(drop)
}

/// How the process behind the handle ended, whoever's child it was. `None` while it lives or is not
/// reaped, and on kernels before 6.15, which tell it only to its parent.
pub fn pidfd_exit(pidfd: BorrowedFd<'_>) -> Option<WaitStatus> {
    /// The kernel's `struct pidfd_info`, in its first version.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        group: u64,
        ids: [u32; 11],
        status: c_int,
    }
    const EXIT: u64 = 1 << 3;
    // _IOWR(0xFF, 11, struct pidfd_info)
    const PIDFD_GET_INFO: libc::c_ulong = 0xC040_FF0B;
    let mut info = Info {
        mask: EXIT,
        ..Info::default()
    };
    // SAFETY: `info` is as large as the number of the call says, and a valid place for the answer.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO as _, &raw mut info) };
    check(result).ok()?;
    if info.mask & EXIT == 0 {
        None
    } else if libc::WIFEXITED(info.status) {
        Some(WaitStatus::Exited(libc::WEXITSTATUS(info.status)))
    } else {
        Some(WaitStatus::Signaled(libc::WTERMSIG(info.status)))
    }
}

/// Sends SIGKILL to every process of a group. The kernel does this in one step, so that a group
/// that forks all the time has no gap to slip through.
pub(crate) fn kill_group(group: Pid) -> io::Result<()> {
    if group <= 1 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: plain call; the group is neither "all processes" nor our own.
    check(unsafe { libc::kill(-group, libc::SIGKILL) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::Command;

    #[test]
    fn how_a_process_ended_is_told_to_whoever_has_a_handle_or_not_at_all() {
        for (script, expected) in [
            ("exit 7", WaitStatus::Exited(7)),
            ("kill -9 $$", WaitStatus::Signaled(9)),
        ] {
            let script = format!("read line; {script}");
            let mut command = Command::new("sh");
            command.args(["-c", &script]);
            let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
            let handle = pidfd_open(Pid::try_from(child.id()).unwrap()).unwrap();
            assert_eq!(pidfd_exit(handle.as_fd()), None, "it lives");
            drop(child.stdin.take());
            child.wait().unwrap();
            let told = pidfd_exit(handle.as_fd());
            // A kernel that tells nothing is none that tells something wrong.
            assert!(told.is_none_or(|told| told == expected), "{told:?}");
        }
    }
}
