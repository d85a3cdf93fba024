//! Where an instance stands, judged from its files and its lock.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use belay_shim::instance::{self, Exit, StartError, Started};
use belay_shim::record::{Record, RecordError};

use crate::RuntimeError;

/// What was seen of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// A shim lives or is on its way up. Seen before everything else: when it is false, the rest
    /// does not change any more.
    pub(crate) held: bool,
    pub(crate) same_boot: bool,
    pub(crate) starting: bool,
    pub(crate) started: Option<Started>,
    pub(crate) start_error: Option<StartError>,
    pub(crate) exit: Option<Exit>,
}

/// What follows from the facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A shim is on its way up.
    Coming,
    Running(Started),
    Ended(Exit),
    /// The first process could not be started: nothing has run.
    Failed(StartError),
    /// There was no shim that got as far as starting anything, and there is none now.
    NeverStarted,
    /// Something may have run, and nobody looks after it.
    Abandoned(Option<Started>),
}

pub(crate) fn judge(facts: Facts) -> Standing {
    if let Some(exit) = facts.exit {
        return Standing::Ended(exit);
    }
    if let Some(error) = facts.start_error {
        return Standing::Failed(error);
    }
    match (facts.held, facts.same_boot, facts.started) {
        (true, _, Some(started)) => Standing::Running(started),
        (true, _, None) => Standing::Coming,
        (false, true, None) if !facts.starting => Standing::NeverStarted,
        // On another boot the marks may have been lost with the power, so that their absence
        // proves nothing.
        (false, _, started) => Standing::Abandoned(started),
    }
}

/// One directory with a shim's files.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) dir: PathBuf,
}

impl Instance {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Instance { dir }
    }

    /// Where it stands; `None` when there is no such instance.
    pub(crate) fn standing(&self, same_boot: bool) -> Result<Option<Standing>, RuntimeError> {
        let held = match instance::is_abandoned(&self.dir) {
            Ok(abandoned) => !abandoned,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(RuntimeError::io("look at", &self.dir.join(instance::LOCK))(
                    error,
                ));
            }
        };
        self.look(held, same_boot).map(Some)
    }

    /// The same, for one who has [claimed](Instance::claim) it.
    pub(crate) fn claimed_standing(&self, same_boot: bool) -> Result<Standing, RuntimeError> {
        self.look(false, same_boot)
    }

    fn look(&self, held: bool, same_boot: bool) -> Result<Standing, RuntimeError> {
        let facts = Facts {
            held,
            same_boot,
            started: self.read(instance::STARTED, same_boot, Started::from_record)?,
            start_error: self.read(instance::START_ERROR, same_boot, StartError::from_record)?,
            exit: self.read(instance::EXIT, same_boot, Exit::from_record)?,
            starting: self.dir.join(instance::STARTING).exists(),
        };
        Ok(judge(facts))
    }

    /// A file torn by a power failure counts as not written; on the same boot that cannot be.
    fn read<T>(
        &self,
        name: &str,
        same_boot: bool,
        parse: fn(&Record) -> Result<T, RecordError>,
    ) -> Result<Option<T>, RuntimeError> {
        let path = self.dir.join(name);
        let record = instance::read(&self.dir, name).map_err(RuntimeError::io("read", &path))?;
        match record
            .map(|record| record.and_then(|record| parse(&record)))
            .transpose()
        {
            Ok(value) => Ok(value),
            Err(_) if !same_boot => Ok(None),
            Err(error) => Err(RuntimeError::damaged(&path)(error)),
        }
    }

    /// Takes the place of the shim that is not there, to clear up. `None` when there is one, or
    /// somebody else is clearing up.
    pub(crate) fn claim(&self) -> Result<Option<File>, RuntimeError> {
        let path = self.dir.join(instance::LOCK);
        let lock = match File::open(&path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(RuntimeError::io("open", &path)(error)),
        };
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(RuntimeError::io("lock", &path)(error)),
        }
    }

    /// Makes the instance disappear in one step, then takes its space back.
    pub(crate) fn remove(&self) -> Result<(), RuntimeError> {
        let gone = hidden(&self.dir, "gone");
        match fs::rename(&self.dir, &gone) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(RuntimeError::io("remove", &self.dir)(error)),
        }
        // What is left of it is swept up when the runtime is opened.
        let _ = fs::remove_dir_all(&gone);
        Ok(())
    }
}

/// A name beside `dir` that nobody takes for an instance: IDs do not begin with a dot.
pub(crate) fn hidden(dir: &Path, why: &str) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    dir.with_file_name(format!(".{why}-{name}-{}", uuid::Uuid::new_v4().simple()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_shim::clock::Wall;
    use belay_shim::instance::{Ending, StartFailure};

    fn started() -> Started {
        Started {
            pid: 7,
            start_time: 1,
            boot_id: "b".into(),
            at: Wall(0),
            deadline: None,
        }
    }

    fn exit() -> Exit {
        Exit {
            ending: Ending::Exited(0),
            started: Wall(0),
            finished: Wall(1),
            survivors: vec![],
            output: vec![],
            output_cut: false,
        }
    }

    fn facts(held: bool, same_boot: bool, starting: bool, has_started: bool) -> Facts {
        let started = has_started.then(started);
        Facts {
            held,
            same_boot,
            starting,
            started,
            start_error: None,
            exit: None,
        }
    }

    #[test]
    fn every_combination_has_one_standing() {
        use Standing::*;
        let table = [
            // held, same boot, starting, started
            ((true, true, false, false), Coming),
            ((true, true, true, false), Coming),
            ((true, true, true, true), Running(started())),
            ((false, true, false, false), NeverStarted),
            ((false, true, true, false), Abandoned(None)),
            ((false, true, true, true), Abandoned(Some(started()))),
            ((false, false, false, false), Abandoned(None)),
            ((false, false, true, false), Abandoned(None)),
            ((false, false, true, true), Abandoned(Some(started()))),
        ];
        for ((held, same_boot, starting, has_started), standing) in table {
            let facts = facts(held, same_boot, starting, has_started);
            assert_eq!(judge(facts.clone()), standing, "{facts:?}");
        }
    }

    #[test]
    fn a_recorded_end_is_the_end_whatever_else_is_seen() {
        for bits in 0..16u8 {
            let mut facts = facts(bits & 1 != 0, bits & 2 != 0, bits & 4 != 0, bits & 8 != 0);
            facts.exit = Some(exit());
            assert_eq!(judge(facts), Standing::Ended(exit()));
        }
    }

    #[test]
    fn a_failed_start_is_not_a_loss() {
        let failure = StartFailure::NotFound;
        let error = StartError {
            failure,
            message: "no".into(),
            at: Wall(0),
        };
        for held in [true, false] {
            let mut facts = facts(held, true, true, false);
            facts.start_error = Some(error.clone());
            assert_eq!(judge(facts), Standing::Failed(error.clone()));
        }
    }

    #[test]
    fn rubbish_in_a_file_is_an_error_now_and_nothing_after_a_power_failure() {
        let dir = tempfile::tempdir().unwrap();
        let instance = Instance::new(dir.path().to_owned());
        assert_eq!(instance.standing(true).unwrap(), None);
        for file in [instance::LOCK, instance::STARTED, instance::EXIT] {
            fs::write(dir.path().join(file), "\0rubbish").unwrap();
        }
        let error = instance.standing(true).unwrap_err();
        assert!(matches!(error, RuntimeError::Damaged { .. }), "{error}");
        assert_eq!(
            instance.standing(false).unwrap(),
            Some(Standing::Abandoned(None))
        );
    }
}
