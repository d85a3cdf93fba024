//! What attempts leave on disk, and what it means together with what containerd knows.
//!
//! ```text
//!   <dir>/cri/<id>/boot                     the boot on which it was first acted on; durable
//!   <dir>/cri/<id>/execs/<attempt>/         made before the exec is made known to containerd
//!       starting      the point of no return       before it is started
//!       started | start-error                      after
//!       exit          how it ended                 before containerd forgets it
//!       output        the end of what it wrote     by `belay-shim output`
//! ```
//!
//! Only `boot` is synced, once per container: after a power failure no container is what it was,
//! and that is all one has to know of its execs. A file that the failure tore counts as not written.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belay_action::{AttemptId, ContainerId};
use belay_shim::collect::Collected;
use belay_shim::instance::{self, Durable, Exit, StartError, Started};
use belay_shim::record::{Record, RecordError};

use super::protocol::containerd::v1::types::{Process, Status};
use crate::RuntimeError;

const BOOT: &str = "boot";

/// One container's directory.
#[derive(Debug, Clone)]
pub(crate) struct ContainerTraces {
    dir: PathBuf,
}

/// Where an attempt stands by its files alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Traces {
    /// There is no directory, and there was none on this boot.
    None,
    /// There is no directory, and an earlier boot may have lost it.
    Unknown,
    /// Of an earlier boot.
    Past,
    /// It was not yet started.
    Made,
    /// It may have been started.
    Starting {
        timeout: Duration,
        started: Option<Started>,
    },
    Failed(StartError),
    Ended(Exit),
}

impl ContainerTraces {
    pub(crate) fn new(containers: &Path, id: &ContainerId) -> Self {
        ContainerTraces {
            dir: containers.join(id.as_str()),
        }
    }

    pub(crate) fn attempt(&self, attempt: &AttemptId) -> AttemptTraces {
        AttemptTraces {
            dir: self.dir.join(instance::EXECS).join(attempt.as_str()),
            container: self.clone(),
        }
    }

    /// The boot on which the container was first acted on.
    fn boot(&self) -> Result<Option<String>, RuntimeError> {
        match fs::read_to_string(self.dir.join(BOOT)) {
            Ok(boot) => Ok(Some(boot)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RuntimeError::io("read", &self.dir.join(BOOT))(error)),
        }
    }

    /// Makes the directory. True when it is new.
    pub(crate) fn prepare(&self, boot_id: &str) -> Result<bool, RuntimeError> {
        if self.boot()?.is_some() {
            return Ok(false);
        }
        let make = || -> io::Result<()> {
            let mut builder = DirBuilder::new();
            builder.recursive(true).mode(0o700);
            builder.create(self.dir.join(instance::EXECS))?;
            instance::write(&self.dir, BOOT, boot_id.as_bytes(), Durable::Yes)?;
            self.dir.parent().map_or(Ok(()), instance::sync_directory)
        };
        make().map_err(RuntimeError::io("create", &self.dir))?;
        Ok(true)
    }
}

/// All containers that have a directory, with their IDs.
pub(crate) fn all(containers: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(containers).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            (
                entry.path(),
                entry.file_name().to_string_lossy().into_owned(),
            )
        })
        .collect()
}

/// One attempt's directory.
#[derive(Debug, Clone)]
pub(crate) struct AttemptTraces {
    dir: PathBuf,
    container: ContainerTraces,
}

impl AttemptTraces {
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its container's.
    pub(crate) fn container(&self) -> &ContainerTraces {
        &self.container
    }

    /// Makes the directory; false when it is there already.
    pub(crate) fn make(&self) -> Result<bool, RuntimeError> {
        match DirBuilder::new().mode(0o700).create(&self.dir) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(RuntimeError::io("create", &self.dir)(error)),
        }
    }

    pub(crate) fn remove(&self) -> Result<(), RuntimeError> {
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(RuntimeError::io("remove", &self.dir)(error))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn write_starting(&self, timeout: Duration) -> Result<(), RuntimeError> {
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let record = Record::new(instance::STARTING).with("timeout", nanos.to_string());
        self.write(instance::STARTING, &record)
    }

    pub(crate) fn write_started(&self, started: &Started) -> Result<(), RuntimeError> {
        self.write(instance::STARTED, &started.to_record())
    }

    pub(crate) fn write_failed(&self, error: &StartError) -> Result<(), RuntimeError> {
        self.write(instance::START_ERROR, &error.to_record())
    }

    pub(crate) fn write_exit(&self, exit: &Exit) -> Result<(), RuntimeError> {
        self.write(instance::EXIT, &exit.to_record())
    }

    fn write(&self, name: &str, record: &Record) -> Result<(), RuntimeError> {
        let path = self.dir.join(name);
        let bytes = record.encode().map_err(RuntimeError::damaged(&path))?;
        instance::write(&self.dir, name, &bytes, Durable::No)
            .map_err(RuntimeError::io("write", &path))
    }

    /// Where the attempt stands.
    pub(crate) fn read(&self, boot_id: &str) -> Result<Traces, RuntimeError> {
        let same_boot = self.container.boot()?.map(|boot| boot == boot_id);
        if !self.dir.exists() {
            return Ok(match same_boot {
                None | Some(true) => Traces::None,
                Some(false) => Traces::Unknown,
            });
        }
        let here = same_boot == Some(true);
        let whole = |error: &RuntimeError| here || !matches!(error, RuntimeError::Damaged { .. });
        match self.record(instance::EXIT, Exit::from_record) {
            Ok(Some(exit)) => return Ok(Traces::Ended(exit)),
            Err(error) if whole(&error) => return Err(error),
            Ok(None) | Err(_) => {}
        }
        match self.record(instance::START_ERROR, StartError::from_record) {
            Ok(Some(error)) => return Ok(Traces::Failed(error)),
            Err(error) if whole(&error) => return Err(error),
            Ok(None) | Err(_) => {}
        }
        if !here {
            return Ok(Traces::Past);
        }
        let timeout = self.record(instance::STARTING, |record| {
            record.expect(instance::STARTING)?;
            record.number("timeout").map(Duration::from_nanos)
        })?;
        let Some(timeout) = timeout else {
            return Ok(Traces::Made);
        };
        let started = self.record(instance::STARTED, Started::from_record)?;
        Ok(Traces::Starting { timeout, started })
    }

    /// The end of what it wrote; empty when nobody kept it.
    pub(crate) fn output(&self) -> Collected {
        let collected = self.record(instance::OUTPUT, Collected::from_record);
        collected.ok().flatten().unwrap_or_default()
    }

    /// Whether the collector has written what it had: containerd has then forgotten the exec.
    pub(crate) fn has_output(&self) -> bool {
        self.dir.join(instance::OUTPUT).exists()
    }

    fn record<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&Record) -> Result<T, RecordError>,
    ) -> Result<Option<T>, RuntimeError> {
        let path = self.dir.join(name);
        let record = instance::read(&self.dir, name).map_err(RuntimeError::io("read", &path))?;
        record
            .map(|record| record.and_then(|record| parse(&record)))
            .transpose()
            .map_err(RuntimeError::damaged(&path))
    }
}

/// What containerd knows of an exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sight {
    /// There is none of that name: never made, deleted, or gone with its container.
    Unknown,
    Created,
    Running {
        pid: i32,
    },
    Stopped {
        status: u32,
        nanos: Option<i64>,
    },
}

impl Sight {
    /// `None` when containerd could not tell.
    pub(crate) fn of(process: &Process) -> Option<Self> {
        match process.status() {
            Status::Created => Some(Sight::Created),
            Status::Running | Status::Paused | Status::Pausing => Some(Sight::Running {
                pid: i32::try_from(process.pid).ok()?,
            }),
            Status::Stopped => Some(Sight::Stopped {
                status: process.exit_status,
                nanos: super::nanos(process.exited_at.as_ref()),
            }),
            Status::Unknown => None,
        }
    }
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    NeverStarted,
    Running { pid: i32 },
    Stopped { status: u32, nanos: Option<i64> },
    Lost,
}

/// Judges an attempt that has no record of its end.
///
/// The exec of a start that was under way when containerd or the agent was killed may show as
/// created although its process ran: from `starting` on only a process that containerd knows to
/// have run tells anything.
pub(crate) fn judge(traces: &Traces, sight: &Sight) -> Standing {
    match (traces, sight) {
        (Traces::None, _) => Standing::NeverStarted,
        (Traces::Unknown | Traces::Past, _) => Standing::Lost,
        (_, Sight::Running { pid }) => Standing::Running { pid: *pid },
        (_, Sight::Stopped { status, nanos }) => Standing::Stopped {
            status: *status,
            nanos: *nanos,
        },
        (Traces::Made, Sight::Unknown | Sight::Created) => Standing::NeverStarted,
        (
            Traces::Starting { .. } | Traces::Failed(_) | Traces::Ended(_),
            Sight::Unknown | Sight::Created,
        ) => Standing::Lost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_shim::clock::{Boot, Wall};
    use belay_shim::instance::{Ending, StartFailure};

    const BOOT_ID: &str = "boot-1";

    fn traces() -> (tempfile::TempDir, ContainerTraces, AttemptTraces) {
        let root = tempfile::tempdir().unwrap();
        let container = ContainerTraces::new(root.path(), &ContainerId::new("c1").unwrap());
        let attempt = container.attempt(&AttemptId::new("a1").unwrap());
        (root, container, attempt)
    }

    fn exit() -> Exit {
        Exit {
            ending: Ending::Exited(3),
            started: Wall(1),
            finished: Wall(2),
            survivors: vec![],
            output: vec![],
            output_cut: false,
        }
    }

    fn started() -> Started {
        Started {
            pid: 7,
            start_time: 8,
            boot_id: BOOT_ID.to_owned(),
            at: Wall(9),
            deadline: Some(Boot(10)),
        }
    }

    #[test]
    fn every_step_of_an_attempt_is_told_by_its_files() {
        let (_root, container, attempt) = traces();
        assert_eq!(attempt.read(BOOT_ID).unwrap(), Traces::None);
        assert!(container.prepare(BOOT_ID).unwrap());
        assert!(!container.prepare(BOOT_ID).unwrap());
        assert_eq!(attempt.read(BOOT_ID).unwrap(), Traces::None);
        assert!(attempt.make().unwrap());
        assert!(!attempt.make().unwrap());
        assert_eq!(attempt.read(BOOT_ID).unwrap(), Traces::Made);
        let timeout = Duration::from_millis(1500);
        attempt.write_starting(timeout).unwrap();
        let starting = |started| Traces::Starting { timeout, started };
        assert_eq!(attempt.read(BOOT_ID).unwrap(), starting(None));
        attempt.write_started(&started()).unwrap();
        assert_eq!(attempt.read(BOOT_ID).unwrap(), starting(Some(started())));
        attempt.write_exit(&exit()).unwrap();
        assert_eq!(attempt.read(BOOT_ID).unwrap(), Traces::Ended(exit()));
        attempt.remove().unwrap();
        attempt.remove().unwrap();
        assert_eq!(attempt.read(BOOT_ID).unwrap(), Traces::None);
    }

    #[test]
    fn after_another_boot_only_a_recorded_end_is_certain() {
        let (_root, container, attempt) = traces();
        container.prepare("boot-0").unwrap();
        assert_eq!(attempt.read(BOOT_ID).unwrap(), Traces::Unknown);
        attempt.make().unwrap();
        assert_eq!(attempt.read(BOOT_ID).unwrap(), Traces::Past);
        attempt.write_exit(&exit()).unwrap();
        assert_eq!(attempt.read(BOOT_ID).unwrap(), Traces::Ended(exit()));
    }

    #[test]
    fn what_a_power_failure_tore_counts_as_not_written() {
        for name in [instance::EXIT, instance::START_ERROR] {
            let (_root, container, attempt) = traces();
            container.prepare("boot-0").unwrap();
            attempt.make().unwrap();
            for torn in ["", "rubbish", "\0\0\0\0"] {
                fs::write(attempt.dir().join(name), torn).unwrap();
                assert_eq!(attempt.read(BOOT_ID).unwrap(), Traces::Past, "{torn:?}");
            }
        }
    }

    #[test]
    fn a_damaged_record_is_an_error_that_names_the_file() {
        let (_root, container, attempt) = traces();
        container.prepare(BOOT_ID).unwrap();
        attempt.make().unwrap();
        fs::write(attempt.dir().join(instance::EXIT), "rubbish").unwrap();
        let error = attempt.read(BOOT_ID).unwrap_err().to_string();
        assert!(error.contains("a1/exit"), "{error}");
    }

    #[test]
    fn what_an_attempt_came_to_is_decided_for_every_pair() {
        let starting = Traces::Starting {
            timeout: Duration::ZERO,
            started: None,
        };
        let failed = Traces::Failed(StartError {
            failure: StartFailure::NotFound,
            message: String::new(),
            at: Wall(0),
        });
        let sights = [
            Sight::Unknown,
            Sight::Created,
            Sight::Running { pid: 7 },
            Sight::Stopped {
                status: 3,
                nanos: None,
            },
        ];
        use Standing::{Lost, NeverStarted, Running};
        let running = || Running { pid: 7 };
        let stopped = || Standing::Stopped {
            status: 3,
            nanos: None,
        };
        let never = [NeverStarted, NeverStarted, NeverStarted, NeverStarted];
        let table = [
            (Traces::None, never),
            (Traces::Unknown, [Lost, Lost, Lost, Lost]),
            (Traces::Past, [Lost, Lost, Lost, Lost]),
            (
                Traces::Made,
                [NeverStarted, NeverStarted, running(), stopped()],
            ),
            (starting, [Lost, Lost, running(), stopped()]),
            (failed, [Lost, Lost, running(), stopped()]),
            (Traces::Ended(exit()), [Lost, Lost, running(), stopped()]),
        ];
        for (traces, expected) in table {
            for (sight, expected) in sights.iter().zip(expected) {
                assert_eq!(judge(&traces, sight), expected, "{traces:?} {sight:?}");
            }
        }
    }
}
