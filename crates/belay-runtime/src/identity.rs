//! The first process of a container: the one that was started, never another of the same number.
//!
//! **Invariant:** a process of which nothing can be learnt is not told to have ended.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use belay_action::Disposition;
use belay_shim::instance::Started;
use belay_shim::proc::{self, Process};
use belay_shim::sys;
use rustix::io::Errno;

/// A handle on the process, or `None` when it has ended.
pub(crate) fn handle(started: &Started, boot_id: &str) -> io::Result<Option<OwnedFd>> {
    if started.boot_id != boot_id {
        return Ok(None);
    }
    // First the handle, then the look: what the handle is on cannot change after the look.
    let handle = match sys::pidfd_open(started.pid) {
        Ok(handle) => handle,
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let same = |process: Process| process.start_time == started.start_time && !process.is_dead();
    Ok(Process::read(started.pid)?
        .is_some_and(same)
        .then_some(handle))
}

/// Whether the number is no process's: nobody's, or a mere thread's by now.
fn is_nobody(error: &io::Error) -> bool {
    proc::is_gone(error) || error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// Sends a signal to the process; false when it has ended.
pub(crate) fn signal(started: &Started, boot_id: &str, number: i32) -> io::Result<bool> {
    let Some(handle) = handle(started, boot_id)? else {
        return Ok(false);
    };
    match sys::pidfd_send_signal(handle.as_fd(), number) {
        Ok(()) => Ok(true),
        Err(error) if proc::is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// What the process does on a signal; `None` when it has ended.
pub(crate) fn disposition(
    started: &Started,
    boot_id: &str,
    number: i32,
) -> io::Result<Option<Disposition>> {
    let Some(_handle) = handle(started, boot_id)? else {
        return Ok(None);
    };
    let status = match fs::read_to_string(format!("/proc/{}/status", started.pid)) {
        Ok(status) => status,
        Err(error) if proc::is_gone(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    // While the handle's process is not reaped its number is not used again; a second look tells
    // that the file was its own.
    let process = Process::read(started.pid)?;
    let same = process.is_some_and(|process| process.start_time == started.start_time);
    Ok(same.then(|| parse_disposition(&status, number)).flatten())
}

fn parse_disposition(status: &str, number: i32) -> Option<Disposition> {
    let bit = u32::try_from(number).ok()?.checked_sub(1)?;
    let set = |name: &str| -> Option<bool> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let mask = u64::from_str_radix(line.trim(), 16).ok()?;
        Some(mask.checked_shr(bit)? & 1 == 1)
    };
    Some(match (set("SigCgt:")?, set("SigIgn:")?) {
        (true, _) => Disposition::Handled,
        (false, true) => Disposition::Ignored,
        (false, false) => Disposition::Default,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RuntimeError;
    use belay_shim::clock::Wall;
    use belay_shim::proc::boot_id;
    use proptest::prelude::*;

    const STATUS: &str = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n\
                          SigCgt:\t8000000200014000\n";

    #[test]
    fn masks_are_read_for_every_signal_up_to_the_last() {
        use Disposition::*;
        let table = [
            (1, Ignored),
            (13, Ignored),
            (15, Handled),
            (17, Handled),
            (34, Handled),
        ];
        for (number, expected) in table.into_iter().chain([(64, Handled), (9, Default)]) {
            assert_eq!(
                parse_disposition(STATUS, number),
                Some(expected),
                "signal {number}"
            );
        }
        for impossible in [0, -1, 65, i32::MIN] {
            assert_eq!(parse_disposition(STATUS, impossible), None);
        }
    }

    fn own() -> (Started, String) {
        let boot = boot_id().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let started = Started {
            pid,
            start_time: Process::read(pid).unwrap().unwrap().start_time,
            boot_id: boot.clone(),
            at: Wall(0),
            deadline: None,
        };
        (started, boot)
    }

    #[test]
    fn a_process_with_another_start_time_or_boot_is_not_ours() {
        let (mut started, boot) = own();
        assert!(handle(&started, &boot).unwrap().is_some());
        assert!(handle(&started, "another").unwrap().is_none());
        started.start_time += 1;
        assert!(handle(&started, &boot).unwrap().is_none());
        assert!(!signal(&started, &boot, 10).unwrap());
        for nobody in [0, -1, i32::MAX] {
            started.pid = nobody;
            assert!(handle(&started, &boot).unwrap().is_none(), "{nobody}");
        }
    }

    /// Runs itself again as a process that can open nothing: what it lacks all of it lacks.
    #[test]
    fn who_can_open_nothing_takes_nobody_for_dead() {
        const BLIND: &str = "BELAY_TEST_BLIND";
        if std::env::var_os(BLIND).is_none() {
            let name = "identity::tests::who_can_open_nothing_takes_nobody_for_dead";
            let again = std::process::Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact", "--nocapture"])
                .env(BLIND, "1")
                .output()
                .unwrap();
            assert!(again.status.success(), "{again:?}");
            return;
        }
        let (started, boot) = own();
        let all = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let none = rustix::process::Rlimit {
            current: Some(0),
            ..all
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
        let told = [
            handle(&started, &boot).map(drop),
            signal(&started, &boot, 0).map(drop),
            disposition(&started, &boot, 15).map(drop),
        ];
        let killed = crate::cri::kill_all("no-such-container-id");
        rustix::process::setrlimit(rustix::process::Resource::Nofile, all).unwrap();
        for told in told {
            assert!(proc::is_blind(&told.unwrap_err()));
        }
        let blind = killed.unwrap_err();
        assert!(
            matches!(&blind, RuntimeError::Io { source, .. } if proc::is_blind(source)),
            "{blind}"
        );
    }

    proptest! {
        #[test]
        fn rubbish_is_no_disposition_and_never_a_panic(status in "(SigCgt:|SigIgn:|\\PC{0,9}|\n){0,9}", number in any::<i32>()) {
            let _ = parse_disposition(&status, number);
        }
    }
}
