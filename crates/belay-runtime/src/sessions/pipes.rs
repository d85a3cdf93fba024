//! Pipes that have names, so that a shim, ours or containerd's, can open its ends by itself.

use std::io;
use std::path::{Path, PathBuf};

use belay_shim::instance::{STDERR, STDIN, STDOUT};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::net::unix::pipe::{OpenOptions, Receiver, Sender};

use super::Streams;
use crate::RuntimeError;

/// The pipes of one session in its directory, before the other ends are open.
#[derive(Debug)]
pub(crate) struct Pipes {
    dir: PathBuf,
    /// Keeps the input open until the other end is: it can be read as well as written.
    stdin: Option<Sender>,
    stdout: Receiver,
    stderr: Option<Receiver>,
}

impl Pipes {
    /// Makes them and opens our ends of the output. Needs the tokio runtime.
    pub(crate) fn make(dir: &Path, stdin: bool, stderr: bool) -> Result<Self, RuntimeError> {
        let make = |name: &str| -> io::Result<PathBuf> {
            let path = dir.join(name);
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            Ok(path)
        };
        let reader = |name: &str| OpenOptions::new().open_receiver(make(name)?);
        let made = || -> io::Result<Self> {
            Ok(Pipes {
                dir: dir.to_owned(),
                stdin: stdin
                    .then(|| {
                        OpenOptions::new()
                            .read_write(true)
                            .open_sender(make(STDIN)?)
                    })
                    .transpose()?,
                stdout: reader(STDOUT)?,
                stderr: stderr.then(|| reader(STDERR)).transpose()?,
            })
        };
        made().map_err(RuntimeError::io("make pipes in", dir))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Our ends, once the others are open. Only now does a write fail that nobody reads.
    pub(crate) fn streams(self) -> Streams {
        let stdin = self.stdin.as_ref().and_then(|_| {
            let path = self.dir.join(STDIN);
            OpenOptions::new().open_sender(path).ok()
        });
        Streams {
            stdin,
            stdout: self.stdout,
            stderr: self.stderr,
        }
    }
}
