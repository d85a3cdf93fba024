//! Keeps the end of what an exec in a container of containerd writes.
//!
//! ```text
//!   exec ──pipes 3 and 4──> belay-shim output DIR ──at the end──> DIR/output
//!   containerd's shim ──starts it; SIGTERM when the exec is deleted──┘
//! ```
//!
//! Such an exec has no shim of ours: its output would need the agent as reader, and break or stop
//! while there is none. containerd starts this program instead, as a child of its own shim, when
//! the output is to go to `binary://`. It reads for ever, so that nobody who writes ever blocks.
//!
//! **Invariant:** when the program that was started has ended, the file is written. containerd
//! waits for it while it deletes the exec; whoever deleted the exec finds the file. Daemons that
//! the exec left behind still have a reader: a copy of the program that keeps nothing.

use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use crate::instance::{self, Durable};
use crate::record::{Record, RecordError};
use crate::sys::{self, Fork, Heard, Watched};
use crate::tail::Tail;

const KIND: &str = "output";
/// More than any pipe holds: what was written before an end is read, and somebody who goes on
/// writing does not keep us.
const DRAIN: usize = 2 * 1024 * 1024;

/// The end of an exec's output, and whether there was more before it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    pub output: Vec<u8>,
    pub cut: bool,
}

impl Collected {
    fn to_record(&self) -> Record {
        let mut record = Record::new(KIND).with_number("cut", i64::from(self.cut));
        record.body.clone_from(&self.output);
        record
    }

    pub fn from_record(record: &Record) -> Result<Self, RecordError> {
        record.expect(KIND)?;
        Ok(Collected {
            output: record.body.clone(),
            cut: record.number::<u8>("cut")? != 0,
        })
    }
}

pub(crate) fn main(dir: &Path) -> ExitCode {
    match begin() {
        Ok(collector) => {
            collector.collect(dir);
            ExitCode::SUCCESS
        }
        Err(_) => ExitCode::FAILURE,
    }
}

fn begin() -> io::Result<Collector> {
    // As containerd hands them over: standard output, standard error, and whom to tell.
    let streams = [sys::take(3)?, sys::take(4)?];
    let mut ready = File::from(sys::take(5)?);
    for stream in &streams {
        sys::set_nonblocking(stream.as_fd())?;
    }
    let signals = sys::take_signals(&[Heard::Terminate])?;
    ready.write_all(b"1")?;
    Ok(Collector {
        streams: streams
            .into_iter()
            .map(|fd| Some(PipeReader::from(fd)))
            .collect(),
        signals,
        tail: Tail::default(),
    })
}

struct Collector {
    streams: Vec<Option<PipeReader>>,
    signals: OwnedFd,
    tail: Tail,
}

impl Collector {
    fn collect(mut self, dir: &Path) {
        let mut asked = false;
        while !asked && self.is_open() {
            let Ok(ready) = self.wait() else { break };
            asked = ready;
            for index in 0..self.streams.len() {
                self.read(index);
            }
        }
        for index in 0..self.streams.len() {
            let mut total = 0;
            while total < DRAIN {
                match self.read(index) {
                    0 => break,
                    length => total += length,
                }
            }
        }
        let (output, cut) = self.tail.contents();
        if let Ok(bytes) = (Collected { output, cut }).to_record().encode() {
            // Without room for it, or with the directory gone, there is nobody to tell.
            let _ = instance::write(dir, instance::OUTPUT, &bytes, Durable::No);
        }
        if self.is_open() {
            self.stay();
        }
    }

    fn is_open(&self) -> bool {
        self.streams.iter().any(Option::is_some)
    }

    /// Goes on in a process of its own that reads and keeps nothing.
    fn stay(mut self) {
        if let Ok(Fork::Child) = sys::fork() {
            while self.is_open() {
                if self.wait().is_err() {
                    return;
                }
                for index in 0..self.streams.len() {
                    self.read(index);
                }
            }
        }
    }

    /// Waits for anything to happen. True when the end was asked for.
    fn wait(&mut self) -> io::Result<bool> {
        let mut watched = vec![Watched::new(self.signals.as_fd())];
        watched.extend(
            self.streams
                .iter()
                .flatten()
                .map(|s| Watched::new(s.as_fd())),
        );
        sys::poll(&mut watched, None)?;
        if watched[0].ready {
            let mut discard = [0; 1024];
            let _ = File::from(self.signals.try_clone()?).read(&mut discard);
        }
        Ok(watched[0].ready)
    }

    /// How many bytes were read; zero also when the stream has ended or has nothing now.
    fn read(&mut self, index: usize) -> usize {
        let mut chunk = [0; 8192];
        let Some(stream) = &mut self.streams[index] else {
            return 0;
        };
        match stream.read(&mut chunk) {
            Ok(length) if length > 0 => {
                self.tail.push(&chunk[..length]);
                length
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                0
            }
            Ok(_) | Err(_) => {
                self.streams[index] = None;
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector(streams: [PipeReader; 2]) -> Collector {
        let streams = streams.map(|stream| {
            sys::set_nonblocking(stream.as_fd()).unwrap();
            Some(stream)
        });
        let (signals, _) = io::pipe().unwrap();
        Collector {
            streams: streams.into_iter().collect(),
            // Ready at once, as after a SIGTERM: its other end is closed.
            signals: signals.into(),
            tail: Tail::default(),
        }
    }

    #[test]
    fn what_was_written_before_the_end_is_kept_of_both_streams() {
        let dir = tempfile::tempdir().unwrap();
        let (out, mut stdout) = io::pipe().unwrap();
        let (err, mut stderr) = io::pipe().unwrap();
        stdout.write_all(&[b'x'; 5000]).unwrap();
        stderr.write_all(b"last").unwrap();
        drop((stdout, stderr));
        collector([out, err]).collect(dir.path());
        let record = instance::read(dir.path(), instance::OUTPUT)
            .unwrap()
            .unwrap();
        let collected = Collected::from_record(&record.unwrap()).unwrap();
        assert!(collected.cut);
        assert!(collected.output.ends_with(b"xlast"));
        assert_eq!(collected.output.len(), 4096);
    }

    #[test]
    fn nothing_written_is_an_empty_output() {
        let dir = tempfile::tempdir().unwrap();
        let (out, _) = io::pipe().unwrap();
        let (err, _) = io::pipe().unwrap();
        collector([out, err]).collect(dir.path());
        let record = instance::read(dir.path(), instance::OUTPUT)
            .unwrap()
            .unwrap();
        assert_eq!(
            Collected::from_record(&record.unwrap()),
            Ok(Collected::default())
        );
    }
}
