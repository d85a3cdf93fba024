//! What the workload writes: read for ever, kept within bounds.

use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::clock::Wall;
use crate::log::Splitter;
use crate::rotation;
use crate::sys;
use crate::tail::Tail;

/// More than any pipe holds: what was written before an end is read, and somebody who goes on
/// writing does not keep us.
const DRAIN: usize = 2 * 1024 * 1024;

#[derive(Debug)]
enum Sink {
    /// Both of an exec's streams.
    Tail(Tail),
    /// One of a container's streams.
    Log(Splitter),
}

#[derive(Debug)]
struct Stream {
    reader: Option<PipeReader>,
    sink: Sink,
}

/// The reading ends of the workload's output.
#[derive(Debug)]
pub(crate) struct Output {
    streams: Vec<Stream>,
    log: Option<Log>,
}

/// The file that a container's lines are appended to, and its place.
#[derive(Debug)]
struct Log {
    file: File,
    path: PathBuf,
    written: u64,
}

/// The workload's ends: for it alone, and dropped once it has them.
#[derive(Debug)]
pub(crate) struct Ends {
    /// `None` when there is nothing to read.
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: File,
    pub(crate) stderr: File,
    /// All three are one terminal.
    pub(crate) terminal: bool,
}

impl Ends {
    fn of_pipes(stdout: PipeWriter, stderr: PipeWriter) -> Self {
        Ends {
            stdin: None,
            stdout: File::from(OwnedFd::from(stdout)),
            stderr: File::from(OwnedFd::from(stderr)),
            terminal: false,
        }
    }
}

impl Output {
    /// Both streams go into one tail, in the order in which they were written.
    pub(crate) fn tail() -> io::Result<(Self, Ends)> {
        let (stream, stdout) = Stream::new(Sink::Tail(Tail::default()))?;
        let stderr = stdout.try_clone()?;
        Ok((
            Output {
                streams: vec![stream],
                log: None,
            },
            Ends::of_pipes(stdout, stderr),
        ))
    }

    /// Somebody else reads it.
    pub(crate) fn elsewhere() -> Self {
        Output {
            streams: Vec::new(),
            log: None,
        }
    }

    /// Lines of both streams are appended to a log file.
    pub(crate) fn log(path: &Path) -> io::Result<(Self, Ends)> {
        let log = Log::open(path)?;
        let (out, stdout) = Stream::new(Sink::Log(Splitter::new("stdout")))?;
        let (err, stderr) = Stream::new(Sink::Log(Splitter::new("stderr")))?;
        Ok((
            Output {
                streams: vec![out, err],
                log: Some(log),
            },
            Ends::of_pipes(stdout, stderr),
        ))
    }

    /// The descriptors to watch.
    pub(crate) fn watched(&self) -> Vec<BorrowedFd<'_>> {
        self.streams
            .iter()
            .filter_map(|stream| stream.reader.as_ref().map(AsFd::as_fd))
            .collect()
    }

    /// Reads some of what there is, from every stream.
    pub(crate) fn read(&mut self) {
        for index in 0..self.streams.len() {
            self.read_stream(index);
        }
    }

    /// Reads what the pipes hold now. Called when the end is known.
    pub(crate) fn drain(&mut self) {
        for index in 0..self.streams.len() {
            let mut total = 0;
            while total < DRAIN {
                match self.read_stream(index) {
                    0 => break,
                    length => total += length,
                }
            }
        }
    }

    /// Completes the log's last lines. What comes later begins new ones.
    pub(crate) fn finish_lines(&mut self) {
        let mut lines = Vec::new();
        for stream in &mut self.streams {
            if let Sink::Log(splitter) = &mut stream.sink {
                splitter.finish(Wall::now(), &mut lines);
            }
        }
        self.append(&lines);
    }

    /// The end of an exec's output, and whether there was more before it.
    pub(crate) fn contents(&self) -> (Vec<u8>, bool) {
        self.streams
            .iter()
            .find_map(|stream| match &stream.sink {
                Sink::Tail(tail) => Some(tail.contents()),
                Sink::Log(_) => None,
            })
            .unwrap_or_default()
    }

    /// How many bytes were read; zero also when the stream has ended or has nothing now.
    fn read_stream(&mut self, index: usize) -> usize {
        let mut chunk = [0; 8192];
        let stream = &mut self.streams[index];
        let Some(reader) = &mut stream.reader else {
            return 0;
        };
        let length = match reader.read(&mut chunk) {
            Ok(0) => {
                stream.reader = None;
                return 0;
            }
            Ok(length) => length,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return 0;
            }
            Err(_) => {
                stream.reader = None;
                return 0;
            }
        };
        let mut lines = Vec::new();
        match &mut stream.sink {
            Sink::Tail(tail) => tail.push(&chunk[..length]),
            Sink::Log(splitter) => splitter.push(&chunk[..length], Wall::now(), &mut lines),
        }
        self.append(&lines);
        length
    }

    fn append(&mut self, lines: &[u8]) {
        if let Some(log) = &mut self.log {
            log.append(lines);
        }
    }
}

impl Log {
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o640)
            .open(path)?;
        Ok(Log {
            written: file.metadata()?.len(),
            file,
            path: path.to_owned(),
        })
    }

    fn append(&mut self, lines: &[u8]) {
        // A full disk loses lines; it must not stop the workload that writes them.
        let _ = self.file.write_all(lines);
        self.written = self.written.saturating_add(lines.len() as u64);
        if self.written >= rotation::LIMIT {
            self.rotate();
        }
    }

    /// Goes on in a new file. Where that cannot be made, in the old one, until that is as long again.
    fn rotate(&mut self) {
        self.written = 0;
        match rotation::rotate(&self.path) {
            Ok(()) => {}
            // It was renamed the last time, and no new one could be made.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return,
        }
        if let Ok(next) = Log::open(&self.path) {
            *self = next;
        }
    }
}

impl Stream {
    fn new(sink: Sink) -> io::Result<(Self, PipeWriter)> {
        let (reader, writer) = io::pipe()?;
        sys::set_nonblocking(reader.as_fd())?;
        Ok((
            Stream {
                reader: Some(reader),
                sink,
            },
            writer,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_holds_both_streams_in_order() {
        let (mut output, mut ends) = Output::tail().unwrap();
        ends.stdout.write_all(b"one ").unwrap();
        ends.stderr.write_all(b"two ").unwrap();
        ends.stdout.write_all(b"three").unwrap();
        output.drain();
        assert_eq!(output.contents(), (b"one two three".to_vec(), false));
        assert_eq!(output.watched().len(), 1);
        drop(ends);
        output.read();
        assert!(output.watched().is_empty());
    }

    #[test]
    fn a_log_names_the_stream_of_every_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let (mut output, mut ends) = Output::log(&path).unwrap();
        ends.stdout.write_all(b"good\nunfinished").unwrap();
        ends.stderr.write_all(b"bad\n").unwrap();
        output.drain();
        output.finish_lines();
        let log = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = log.lines().map(|line| &line[31..]).collect();
        assert_eq!(
            lines,
            ["stdout F good", "stderr F bad", "stdout F unfinished"]
        );
    }

    #[test]
    fn a_log_that_has_grown_too_long_goes_on_in_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let mut log = Log::open(&path).unwrap();
        let line = [b"x".repeat(1 << 20), b"\n".to_vec()].concat();
        let mut total = 0;
        while rotation::rotated(&path).unwrap().len() < 2 {
            log.append(&line);
            total += line.len() as u64;
        }
        log.append(b"last\n");
        let length = |path: &Path| std::fs::metadata(path).unwrap().len();
        let old: Vec<u64> = rotation::rotated(&path)
            .unwrap()
            .iter()
            .map(|(_, file)| length(file))
            .collect();
        assert!(
            old.iter()
                .all(|length| *length < rotation::LIMIT + (2 << 20))
        );
        assert_eq!(old.iter().sum::<u64>(), total, "nothing is lost");
        assert_eq!(std::fs::read(&path).unwrap(), b"last\n");
        // A shim whose file somebody renamed makes it anew when it is its turn.
        std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        log.rotate();
        log.append(b"anew\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"anew\n");
    }
}
