//! The first process of a pod's sandbox: holds what its containers share, and reaps.
//!
//! Where containers share a process namespace, this is its first process, and inherits everybody
//! whose parent has ended.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::ExitCode;

use crate::sys::{self, Heard, Reaped, Watched};

/// As large as what the kernel tells of a signal, whose number comes first.
const TOLD: usize = 128;

pub(crate) fn main() -> ExitCode {
    match wait() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Returns when it is asked to end.
fn wait() -> io::Result<()> {
    let signals = sys::take_signals(&[Heard::Terminate, Heard::Interrupt, Heard::ChildEnded])?;
    let mut signals = File::from(signals);
    loop {
        let mut watched = [Watched::new(signals.as_fd())];
        sys::poll(&mut watched, None)?;
        let mut told = [0; TOLD];
        while let Ok(TOLD) = signals.read(&mut told) {
            let number = i32::from_ne_bytes([told[0], told[1], told[2], told[3]]);
            if number != Heard::ChildEnded as i32 {
                return Ok(());
            }
        }
        // Several that ended at once are told once.
        while let Reaped::Ended(..) = sys::reap() {}
    }
}
