//! The files of one instance (a container or an exec), and what is in them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::clock::{Boot, Wall};
use crate::record::{Record, RecordError};
use crate::sys::{Pid, WaitStatus};

/// What to run; written before the directory becomes visible.
pub const SPEC: &str = "spec";
/// Held (flock, exclusive) from before the directory becomes visible until the shim has ended.
pub const LOCK: &str = "lock";
/// From here on something of the workload may have run.
pub const STARTING: &str = "starting";
/// The first process, once it is exec'ed.
pub const STARTED: &str = "started";
/// Why the first process could not be started.
pub const START_ERROR: &str = "start-error";
/// How it ended.
pub const EXIT: &str = "exit";
/// The end of what an exec in another runtime's container wrote; see [`crate::collect`].
pub const OUTPUT: &str = "output";
/// A session's: pipes by name, through which the agent reaches its first process.
pub const STDIN: &str = "stdin";
pub const STDOUT: &str = "stdout";
pub const STDERR: &str = "stderr";
/// The shim's socket.
pub const CONTROL: &str = "control";
/// A container's: no exec begins any more.
pub const ENDING: &str = "ending";
/// A container's: see [`crate::gate`].
pub const GATE: &str = "gate";
/// A container's: the directory of its execs.
pub const EXECS: &str = "execs";

/// Whether a file must be there after a power failure.
///
/// Execs do without: after one their container is gone with its boot, which its own durable spec
/// tells, so nothing that their files could say would be acted on. A sync costs more than an exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    Yes,
    No,
}

/// Puts a file in place whole: readers see all of it or none.
pub fn write(dir: &Path, name: &str, bytes: &[u8], durable: Durable) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}.new"));
    let mut options = OpenOptions::new();
    options.create(true).truncate(true).write(true).mode(0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(bytes)?;
    if durable == Durable::Yes {
        file.sync_all()?;
    }
    fs::rename(&temporary, dir.join(name))?;
    if durable == Durable::Yes {
        sync_directory(dir)?;
    }
    Ok(())
}

/// Makes names in a directory survive a power failure.
pub fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Reads one of the records; `None` when it is not there.
pub fn read(dir: &Path, name: &str) -> io::Result<Option<Result<Record, RecordError>>> {
    match fs::read(dir.join(name)) {
        Ok(bytes) => Ok(Some(Record::parse(&bytes))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the instance has no shim: neither a living one nor one on its way up.
pub fn is_abandoned(dir: &Path) -> io::Result<bool> {
    // Shared, so that two who ask do not take each other for a shim.
    match File::open(dir.join(LOCK))?.try_lock_shared() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The first process of an instance, named so that no other can be taken for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    pub pid: Pid,
    pub start_time: u64,
    pub boot_id: String,
    pub at: Wall,
    /// An exec's deadline.
    pub deadline: Option<Boot>,
}

impl Started {
    const KIND: &'static str = "started";

    pub fn to_record(&self) -> Record {
        let mut record = Record::new(Self::KIND)
            .with_number("pid", self.pid)
            .with("start-time", self.start_time.to_string())
            .with("boot", &self.boot_id)
            .with_number("at", self.at.0);
        if let Some(deadline) = self.deadline {
            record = record.with_number("deadline", deadline.0);
        }
        record
    }

    pub fn from_record(record: &Record) -> Result<Self, RecordError> {
        record.expect(Self::KIND)?;
        let pid = record.number("pid")?;
        if pid <= 1 {
            return Err(RecordError::Field {
                field: "pid".to_owned(),
            });
        }
        Ok(Started {
            pid,
            start_time: record.number("start-time")?,
            boot_id: record.text("boot")?.to_owned(),
            at: Wall(record.number("at")?),
            deadline: record.optional_number("deadline")?.map(Boot),
        })
    }
}

/// What kept the first process from starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartFailure {
    /// There is no such program.
    NotFound,
    /// There is one, and it cannot be executed.
    NotExecutable,
    /// The working directory cannot be entered.
    WorkingDirectory,
    /// User or group cannot be taken on.
    User,
    /// What it mounts cannot be mounted.
    Mount,
    /// The container has ended meanwhile: nothing was tried.
    ContainerEnded,
    /// Anything else: no more processes, a log that cannot be opened, and the like.
    System,
}

impl StartFailure {
    const NAMES: [(StartFailure, &'static str); 7] = [
        (StartFailure::NotFound, "CommandNotFound"),
        (StartFailure::NotExecutable, "CommandNotExecutable"),
        (StartFailure::WorkingDirectory, "BadWorkingDirectory"),
        (StartFailure::User, "BadUser"),
        (StartFailure::Mount, "BadMount"),
        (StartFailure::ContainerEnded, "ContainerEnded"),
        (StartFailure::System, "SystemError"),
    ];

    pub fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(failure, _)| *failure == self)
            .map_or("", |(_, name)| name)
    }

    fn named(name: &str) -> Option<Self> {
        Self::NAMES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(failure, _)| *failure)
    }
}

/// A start that failed, with a message for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    pub failure: StartFailure,
    pub message: String,
    pub at: Wall,
}

impl StartError {
    pub const KIND: &'static str = "start-error";

    pub fn to_record(&self) -> Record {
        let mut record = Record::new(Self::KIND)
            .with("failure", self.failure.name())
            .with_number("at", self.at.0);
        record.body = self.message.as_bytes().to_vec();
        record
    }

    pub fn from_record(record: &Record) -> Result<Self, RecordError> {
        record.expect(Self::KIND)?;
        let failure =
            StartFailure::named(record.text("failure")?).ok_or_else(|| RecordError::Field {
                field: "failure".to_owned(),
            })?;
        let message = String::from_utf8_lossy(&record.body).into_owned();
        Ok(StartError {
            failure,
            message,
            at: Wall(record.number("at")?),
        })
    }
}

/// How an instance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Exited(i32),
    Signaled(i32),
    /// An exec's time was over: killed with all it started.
    TimedOut,
    /// An exec was asked to end: killed with all it started.
    Cancelled,
    /// The shim is gone and took the answer with it. Written by the agent.
    Unknown,
}

impl From<WaitStatus> for Ending {
    fn from(status: WaitStatus) -> Self {
        match status {
            WaitStatus::Exited(code) => Ending::Exited(code),
            WaitStatus::Signaled(signal) => Ending::Signaled(signal),
        }
    }
}

/// The end of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    pub ending: Ending,
    pub started: Wall,
    pub finished: Wall,
    /// What should have died and did not, as `pid (name)`.
    pub survivors: Vec<String>,
    /// The end of an exec's output.
    pub output: Vec<u8>,
    /// There was more output before it.
    pub output_cut: bool,
}

impl Exit {
    pub const KIND: &'static str = "exit";

    pub fn to_record(&self) -> Record {
        let (how, number) = match self.ending {
            Ending::Exited(code) => ("exited", Some(code)),
            Ending::Signaled(signal) => ("signaled", Some(signal)),
            Ending::TimedOut => ("timed-out", None),
            Ending::Cancelled => ("cancelled", None),
            Ending::Unknown => ("unknown", None),
        };
        let mut record = Record::new(Self::KIND)
            .with("how", how)
            .with_number("started", self.started.0)
            .with_number("finished", self.finished.0)
            .with_number("output-cut", i64::from(self.output_cut));
        if let Some(number) = number {
            record = record.with_number("number", number);
        }
        for survivor in &self.survivors {
            record = record.with("survivor", survivor.replace('\0', " "));
        }
        record.body.clone_from(&self.output);
        record
    }

    pub fn from_record(record: &Record) -> Result<Self, RecordError> {
        record.expect(Self::KIND)?;
        let ending = match record.text("how")? {
            "exited" => Ending::Exited(record.number("number")?),
            "signaled" => Ending::Signaled(record.number("number")?),
            "timed-out" => Ending::TimedOut,
            "cancelled" => Ending::Cancelled,
            "unknown" => Ending::Unknown,
            _ => {
                return Err(RecordError::Field {
                    field: "how".to_owned(),
                });
            }
        };
        let survivors = record
            .all("survivor")
            .map(|name| String::from_utf8_lossy(name).into_owned());
        Ok(Exit {
            ending,
            started: Wall(record.number("started")?),
            finished: Wall(record.number("finished")?),
            survivors: survivors.collect(),
            output: record.body.clone(),
            output_cut: record.number::<u8>("output-cut")? != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ending() -> impl Strategy<Value = Ending> {
        prop_oneof![
            any::<i32>().prop_map(Ending::Exited),
            any::<i32>().prop_map(Ending::Signaled),
            Just(Ending::TimedOut),
            Just(Ending::Cancelled),
            Just(Ending::Unknown),
        ]
    }

    fn through_bytes(record: &Record) -> Record {
        Record::parse(&record.encode().unwrap()).unwrap()
    }

    #[test]
    fn a_file_is_replaced_whole_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), EXIT, b"one", Durable::Yes).unwrap();
        write(dir.path(), EXIT, b"two", Durable::No).unwrap();
        assert_eq!(fs::read(dir.path().join(EXIT)).unwrap(), b"two");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(read(dir.path(), STARTED).unwrap().is_none());
        assert!(read(dir.path(), EXIT).unwrap().unwrap().is_err());
    }

    #[test]
    fn init_is_never_a_first_process() {
        let record = Started {
            pid: 1,
            start_time: 1,
            boot_id: "b".to_owned(),
            at: Wall(1),
            deadline: None,
        };
        assert!(Started::from_record(&record.to_record()).is_err());
    }

    #[test]
    fn every_start_failure_keeps_its_name() {
        for (failure, _) in StartFailure::NAMES {
            let error = StartError {
                failure,
                message: "why".to_owned(),
                at: Wall(5),
            };
            assert_eq!(
                StartError::from_record(&through_bytes(&error.to_record())),
                Ok(error)
            );
        }
    }

    proptest! {
        #[test]
        fn an_exit_reads_back(
            ending in ending(),
            times in (any::<i64>(), any::<i64>()),
            survivors in proptest::collection::vec("[0-9]{1,6} \\([a-z ()]{0,12}\\)", 0..4),
            output in proptest::collection::vec(any::<u8>(), 0..5000),
            output_cut in any::<bool>(),
        ) {
            let exit = Exit {
                ending, started: Wall(times.0), finished: Wall(times.1), survivors, output, output_cut,
            };
            prop_assert_eq!(Exit::from_record(&through_bytes(&exit.to_record())), Ok(exit));
        }

        #[test]
        fn rubbish_in_fields_is_an_error_and_never_a_panic(
            kind in prop_oneof![Just("exit"), Just("started"), Just("start-error"), Just("x")],
            keys in proptest::collection::vec(
                (prop_oneof![Just("how"), Just("number"), Just("pid"), Just("at"), Just("started"),
                    Just("finished"), Just("output-cut"), Just("boot"), Just("start-time"),
                    Just("failure")],
                 prop_oneof![Just("exited".to_owned()), Just("1".to_owned()), ".{0,8}"]), 0..12),
        ) {
            let mut record = Record::new(kind);
            for (key, value) in keys {
                record = record.with(key, value);
            }
            let _ = Exit::from_record(&record);
            let _ = Started::from_record(&record);
            let _ = StartError::from_record(&record);
        }
    }
}
