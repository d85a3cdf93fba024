//! A terminal of which we have the side where the user sits.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::{Size, Streams};
use crate::RuntimeError;

/// Our side of a terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    ours: OwnedFd,
    /// The command's side.
    pub(crate) path: PathBuf,
}

impl Terminal {
    pub(crate) fn open(size: Size) -> Result<Self, RuntimeError> {
        let open = || -> io::Result<Self> {
            let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
            fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
            fcntl_setfl(&ours, fcntl_getfl(&ours)? | OFlags::NONBLOCK)?;
            grantpt(&ours)?;
            unlockpt(&ours)?;
            let path = OsString::from_vec(ptsname(&ours, Vec::new())?.into_bytes());
            Ok(Terminal {
                ours,
                path: path.into(),
            })
        };
        let terminal = open().map_err(RuntimeError::io("open", Path::new("/dev/ptmx")))?;
        terminal.resize(size)?;
        Ok(terminal)
    }

    pub(crate) fn resize(&self, size: Size) -> Result<(), RuntimeError> {
        let size = Winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.ours, size)
            .map_err(|error| RuntimeError::io("resize", &self.path)(error.into()))
    }

    /// What is typed and what is shown. Needs the tokio runtime.
    pub(crate) fn streams(&self) -> Result<Streams, RuntimeError> {
        let streams = || -> io::Result<Streams> {
            let copy = || self.ours.try_clone().map(File::from);
            Ok(Streams {
                stdin: Some(Sender::from_file_unchecked(copy()?)?),
                stdout: Receiver::from_file_unchecked(copy()?)?,
                stderr: None,
            })
        };
        streams().map_err(RuntimeError::io("use", &self.path))
    }
}
