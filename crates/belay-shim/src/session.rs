//! The streams of a session: pipes that the agent has made in its directory, or a terminal.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;

use crate::instance;
use crate::output::Ends;
use crate::spec::Spec;
use crate::sys;

/// Opens them. An agent that is gone meanwhile is an error, and never waited for.
pub(crate) fn open(
    dir: &Path,
    spec: &Spec,
    terminal: Option<&Path>,
    stdin: bool,
) -> io::Result<Ends> {
    let ends = match terminal {
        Some(path) => on_terminal(path)?,
        None => Ends {
            stdin: stdin
                .then(|| pipe(&dir.join(instance::STDIN), OpenOptions::new().read(true)))
                .transpose()?,
            stdout: pipe(&dir.join(instance::STDOUT), OpenOptions::new().write(true))?,
            stderr: pipe(&dir.join(instance::STDERR), OpenOptions::new().write(true))?,
            terminal: false,
        },
    };
    if let Some(user) = spec.user {
        // So that it can open them again under names like /dev/stdout or /dev/tty.
        let all = [ends.stdin.as_ref(), Some(&ends.stdout), Some(&ends.stderr)];
        for stream in all.into_iter().flatten() {
            fchown(stream, Some(user), None)?;
        }
    }
    Ok(ends)
}

fn on_terminal(path: &Path) -> io::Result<Ends> {
    let terminal = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(path)?;
    Ok(Ends {
        stdin: Some(terminal.try_clone()?),
        stdout: terminal.try_clone()?,
        stderr: terminal,
        terminal: true,
    })
}

/// Opened without waiting for the other end, and then made to wait, as programs expect.
fn pipe(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    sys::set_blocking(file.as_fd())?;
    Ok(file)
}
