//! The first process of a container: the one that was started, never another of the same number.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use belay_action::Disposition;
use belay_shim::instance::Started;
use belay_shim::proc::Process;
use belay_shim::sys;

/// A handle on the process, or `None` when it has ended.
pub(crate) fn handle(started: &Started, boot_id: &str) -> Option<OwnedFd> {
    if started.boot_id != boot_id {
        return None;
    }
    // First the handle, then the look: what the handle is on cannot change after the look.
    let handle = sys::pidfd_open(started.pid).ok()?;
    let process = Process::read(started.pid)?;
    (process.start_time == started.start_time && !process.is_dead()).then_some(handle)
}

/// Sends a signal to the process; false when it has ended.
pub(crate) fn signal(started: &Started, boot_id: &str, number: i32) -> std::io::Result<bool> {
    let Some(handle) = handle(started, boot_id) else {
        return Ok(false);
    };
    match sys::pidfd_send_signal(handle.as_fd(), number) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// What the process does on a signal; `None` when it has ended.
pub(crate) fn disposition(started: &Started, boot_id: &str, number: i32) -> Option<Disposition> {
    let _handle = handle(started, boot_id)?;
    let status = fs::read_to_string(format!("/proc/{}/status", started.pid)).ok()?;
    // While the handle's process is not reaped its number is not used again; a second look tells
    // that the file was its own.
    let process = Process::read(started.pid)?;
    if process.start_time != started.start_time {
        return None;
    }
    parse_disposition(&status, number)
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

    #[test]
    fn a_process_with_another_start_time_or_boot_is_not_ours() {
        let boot = boot_id().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let start_time = Process::read(pid).unwrap().start_time;
        let mut started = Started {
            pid,
            start_time,
            boot_id: boot.clone(),
            at: Wall(0),
            deadline: None,
        };
        assert!(handle(&started, &boot).is_some());
        assert!(handle(&started, "another").is_none());
        started.start_time += 1;
        assert!(handle(&started, &boot).is_none());
        assert!(!signal(&started, &boot, 10).unwrap());
    }

    proptest! {
        #[test]
        fn rubbish_is_no_disposition_and_never_a_panic(status in "(SigCgt:|SigIgn:|\\PC{0,9}|\n){0,9}", number in any::<i32>()) {
            let _ = parse_disposition(&status, number);
        }
    }
}
