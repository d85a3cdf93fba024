//! Starting a container: once, whatever became of a start before, and ending what a start that was
//! given up has come to.
//!
//! **Invariant:** as long as a container may run or may yet come up, no other of the same name is
//! started in its pod.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belay_action::ContainerId;
use belay_shim::instance::{self, Durable, StartError, StartFailure};
use tokio::time::{Instant, sleep};
use tracing::{error, info};

use super::container::{self, CONFIG, container_spec};
use super::inflight::Start;
use super::launch::{self, Created};
use super::standing::Instance;
use super::talk::Link;
use super::{ProcessRuntime, Settled, Shared};
use crate::blocking::blocking;
use crate::{ContainerConfig, RuntimeError, identity};

/// Between two tries to end a shim.
const SHORT_PAUSE: Duration = Duration::from_millis(2);
const LONG_PAUSE: Duration = Duration::from_secs(1);

impl ProcessRuntime {
    /// Starts a container, unless one of that name runs in the pod or may yet do so.
    pub(super) async fn begin(
        &self,
        config: &ContainerConfig,
    ) -> Result<ContainerId, RuntimeError> {
        let turn = self.shared.turn(config)?;
        self.end_of_others(config).await?;
        let (shared, config) = (Arc::clone(&self.shared), config.clone());
        let (id, dir, stream) = blocking(move || {
            // Also when the caller is gone: until the directory is there, nothing else tells of it.
            let _turn = turn;
            shared.launch_container(&config)
        })
        .await?;
        let said = match Link::from_std(stream) {
            Ok(mut link) => link.first(self.shared.patience.word).await,
            // It is on its way all the same.
            Err(_) => None,
        };
        let instance = Instance::new(dir);
        match said.map(|record| StartError::from_record(&record)) {
            Some(Err(_)) => {
                info!(container = %id, "container started");
                Ok(id)
            }
            Some(Ok(error)) => {
                blocking(move || instance.remove()).await?;
                Err(start_failed(error))
            }
            None => self.unheard(id, instance).await,
        }
    }

    /// The shim of a start was killed, or is stuck on its way up. What it got to is a container only
    /// if it says so.
    async fn unheard(
        &self,
        id: ContainerId,
        instance: Instance,
    ) -> Result<ContainerId, RuntimeError> {
        let settled = match self.load(&id) {
            Ok(container) => self.settle(&container).await,
            Err(error) => Err(error),
        };
        match settled {
            Ok(Settled::Running(_)) => return Ok(id),
            Ok(Settled::Ended(_)) => blocking(move || instance.remove()).await?,
            Err(RuntimeError::NotFound { .. }) => {}
            Err(_) => self.discard(&id).await?,
        }
        Err(RuntimeError::StartFailed {
            reason: StartFailure::System.name(),
            message: "the shim was killed, or got stuck, while it started the container".to_owned(),
        })
    }

    /// Makes sure that no other container of this name runs in the pod or may yet come up: one that
    /// was slow to start may be known to nobody, because its agent has died or has given it up.
    async fn end_of_others(&self, config: &ContainerConfig) -> Result<(), RuntimeError> {
        let (shared, pod) = (Arc::clone(&self.shared), config.pod_uid.clone());
        let found = blocking(move || shared.load_those(|id| shared.mentions(id, &pod))).await?;
        for (id, container) in found {
            let settled = match container {
                Ok(other) if other.config.pod_uid != config.pod_uid => continue,
                Ok(other) if other.config.name != config.name => continue,
                Ok(other) => self.settle(&other).await,
                Err(error) => Err(error),
            };
            match settled {
                Ok(Settled::Running(first)) => {
                    let lives = identity::handle(&first, &self.shared.boot_id);
                    // The end of one that does not live may not be on disk yet.
                    if lives.map_err(RuntimeError::blind())?.is_some() {
                        return Err(RuntimeError::StillRunning { id });
                    }
                }
                Ok(Settled::Ended(_)) | Err(RuntimeError::NotFound { .. }) => {}
                // Whoever it belongs to.
                Err(error @ RuntimeError::Damaged { .. }) => {
                    let error = self.end_damaged(&id, error).await;
                    if error.is_transient() {
                        return Err(error);
                    }
                    error!(container = %id, %error, "what ran of it was killed");
                }
                Err(error) if self.may_run(&id) => return Err(error),
                Err(error) => error!(container = %id, %error, "cannot read a container"),
            }
        }
        Ok(())
    }

    /// Whether a container has a shim, as far as can be seen.
    fn may_run(&self, id: &ContainerId) -> bool {
        match instance::is_abandoned(&self.shared.dir(id)) {
            Ok(abandoned) => !abandoned,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Ends a container of which nobody can tell for good: it must not live on unknown. Returns
    /// `damage`, or why it may still live.
    pub(super) async fn end_damaged(&self, id: &ContainerId, damage: RuntimeError) -> RuntimeError {
        match self.discard(id).await {
            Ok(()) => damage,
            Err(error) => error,
        }
    }

    /// Ends whatever there is of a container and forgets it. Nothing but its ID needs to be known.
    ///
    /// When this fails, it is still there.
    async fn discard(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let instance = Instance::new(self.shared.dir(id));
        let begin = Instant::now();
        let mut pause = SHORT_PAUSE;
        loop {
            let (of, id) = (instance.clone(), id.clone());
            if blocking(move || container::discard(&of, &id)).await? {
                return Ok(());
            }
            if begin.elapsed() > self.shared.patience.coming {
                return Err(RuntimeError::Silent { dir: instance.dir });
            }
            instance.kill_shim().await;
            sleep(pause).await;
            pause = (pause * 2).min(LONG_PAUSE);
        }
    }
}

impl Shared {
    fn dir(&self, id: &ContainerId) -> PathBuf {
        self.containers.join(id.as_str())
    }

    /// The right to start a container of this name in its pod, which one has at a time.
    fn turn(&self, config: &ContainerConfig) -> Result<Start, RuntimeError> {
        // No such directory is ever made.
        let name = format!(".turn/{}/{}", config.pod_uid, config.name);
        let turn = self.starts.begin(self.containers.join(name));
        turn.ok_or_else(|| {
            let busy = io::ErrorKind::ResourceBusy.into();
            RuntimeError::io("start a second container at a time in", &self.containers)(busy)
        })
    }

    /// Whether a container's configuration may be of this pod. Cheaper than reading all of it.
    fn mentions(&self, id: &ContainerId, pod: &str) -> bool {
        match fs::read_to_string(self.dir(id).join(CONFIG)) {
            Ok(config) => config.contains(pod),
            Err(_) => true,
        }
    }

    fn launch_container(
        &self,
        config: &ContainerConfig,
    ) -> Result<(ContainerId, PathBuf, UnixStream), RuntimeError> {
        let name = uuid::Uuid::new_v4().simple().to_string();
        let dir = self.containers.join(&name);
        let id = ContainerId::new(name).map_err(|error| RuntimeError::Damaged {
            path: dir.clone(),
            source: error.into(),
        })?;
        let spec = container_spec(config, &id, &self.boot_id)?;
        if let Some(logs) = config.log_path.parent() {
            fs::create_dir_all(logs).map_err(RuntimeError::io("create", logs))?;
        }
        let bytes = spec
            .to_record()
            .encode()
            .map_err(|error| RuntimeError::StartFailed {
                reason: "InvalidConfig",
                message: error.to_string(),
            })?;
        let json = serde_json::to_vec(config).map_err(|error| RuntimeError::StartFailed {
            reason: "InvalidConfig",
            message: error.to_string(),
        })?;
        let created = launch::create(&dir, &bytes, &[(CONFIG, &json)], Durable::Yes)
            .map_err(RuntimeError::io("create", &dir))?;
        let Created::Locked(lock) = created else {
            return Err(RuntimeError::io("create", &dir)(
                std::io::ErrorKind::AlreadyExists.into(),
            ));
        };
        let execs = dir.join(instance::EXECS);
        let launched =
            fs::create_dir(&execs).and_then(|()| launch::launch(&self.program, &dir, &spec, &lock));
        match launched {
            Ok(stream) => Ok((id, dir, stream)),
            Err(error) => {
                let failed = RuntimeError::io("start a shim in", &dir)(error);
                Instance::new(dir).remove()?;
                Err(failed)
            }
        }
    }
}

fn start_failed(error: StartError) -> RuntimeError {
    RuntimeError::StartFailed {
        reason: error.failure.name(),
        message: error.message,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use belay_shim::kill;
    use belay_shim::proc::{self, CONTAINER_MARK, Membership};
    use belay_testkit::reaper::Reaper;
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;
    use crate::process::Patience;
    use crate::{Containers as _, PodRuntime as _};

    const LONG: Duration = Duration::from_secs(60);

    /// A runtime whose shims can be made to wait.
    struct Bench {
        _reaper: Reaper,
        root: tempfile::TempDir,
        runtime: ProcessRuntime,
    }

    impl Bench {
        fn new(patience: Patience) -> Self {
            let root = tempfile::tempdir().unwrap();
            let reaper = Reaper::watch(root.path()).unwrap();
            let mut runtime = ProcessRuntime::open(&root.path().join("run")).unwrap();
            Arc::get_mut(&mut runtime.shared).unwrap().patience = patience;
            Bench {
                _reaper: reaper,
                root,
                runtime,
            }
        }

        /// A container that does not start before somebody reads its log.
        fn slow(&self) -> (ContainerConfig, PathBuf) {
            let log = self.root.path().join("log");
            pipe(&log);
            (self.config("log"), log)
        }

        fn config(&self, log: &str) -> ContainerConfig {
            ContainerConfig {
                pod_uid: "0b1f-uid".into(),
                name: "main".into(),
                command: vec!["sleep".into(), "1000".into()],
                log_path: self.root.path().join(log),
                ..ContainerConfig::default()
            }
        }

        fn ids(&self) -> Vec<ContainerId> {
            let entries = fs::read_dir(&self.runtime.shared.containers).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names
                .filter_map(|name| ContainerId::new(name).ok())
                .collect()
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            for id in self.ids() {
                let rule = Membership {
                    marks: vec![(CONTAINER_MARK, id.to_string())],
                    ..Membership::default()
                };
                let _ = kill::kill_members(&rule, kill::PATIENCE, &mut || ());
            }
        }
    }

    /// Whoever opens it for writing waits until somebody reads it.
    fn pipe(path: &Path) {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }

    async fn read(path: PathBuf) -> File {
        let opened = blocking(move || File::open(&path).map_err(RuntimeError::io("open", &path)));
        opened.await.unwrap()
    }

    fn runs(id: &ContainerId) -> bool {
        let all = proc::snapshot().unwrap();
        all.iter().any(|process| {
            let environment = proc::environment(process.pid).unwrap();
            !process.is_dead() && proc::has_variable(&environment, CONTAINER_MARK, id.as_str())
        })
    }

    async fn until(what: &str, mut holds: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < LONG, "waited in vain until {what}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_start_that_takes_long_is_not_overtaken_by_another() {
        let bench = Bench::new(Patience {
            coming: Duration::from_millis(300),
            ..Patience::default()
        });
        let (slow, log) = bench.slow();
        let launched = bench.runtime.shared.launch_container(&slow).unwrap();
        let id = launched.0.clone();
        // Its agent dies, and the next one knows nothing of it.
        drop(launched);
        let listed = bench.runtime.list().await.unwrap();
        assert_eq!((listed.states.len(), &listed.untold[0].0), (0, &id));
        let again = bench.config("again");
        let error = bench.runtime.start(&again).await.unwrap_err();
        assert!(matches!(error, RuntimeError::Silent { .. }), "{error}");
        assert_eq!(bench.ids(), std::slice::from_ref(&id));

        let other = ContainerConfig {
            name: "other".into(),
            ..again.clone()
        };
        let other = bench.runtime.start(&other).await.unwrap();
        let _log = read(log).await;
        until("it runs", || runs(&id)).await;
        let waiting = async {
            while !matches!(bench.runtime.is_running(&id).await, Ok(true)) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, waiting).await.unwrap();
        match bench.runtime.start(&again).await {
            Err(RuntimeError::StillRunning { id: running }) => assert_eq!(running, id),
            started => panic!("{started:?}"),
        }
        // One that has ended is not in the way.
        for id in [&id, &other] {
            bench.runtime.kill_tree(id).await.unwrap();
            bench.runtime.wait(id).await.unwrap();
        }
        let next = bench.runtime.start(&again).await.unwrap();
        bench.runtime.kill_tree(&next).await.unwrap();
    }

    #[tokio::test]
    async fn one_whose_configuration_cannot_be_read_is_untold_and_may_be_the_one_to_be_started() {
        let bench = Bench::new(Patience::default());
        let config = bench.config("log");
        let id = bench.runtime.start(&config).await.unwrap();
        let file = bench.runtime.shared.dir(&id).join(CONFIG);
        fs::rename(&file, file.with_extension("away")).unwrap();
        fs::create_dir(&file).unwrap();
        let listed = bench.runtime.list().await.unwrap();
        assert_eq!((listed.states.len(), &listed.untold[0].0), (0, &id));
        let error = bench.runtime.start(&config).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        fs::remove_dir(&file).unwrap();
        fs::rename(file.with_extension("away"), &file).unwrap();
        bench.runtime.kill_tree(&id).await.unwrap();
    }

    #[tokio::test]
    async fn a_start_that_is_given_up_leaves_nothing_that_runs() {
        let bench = Bench::new(Patience {
            word: Duration::from_secs(3),
            coming: Duration::from_millis(300),
        });
        let (slow, log) = bench.slow();
        let runtime = bench.runtime.clone();
        let starting = tokio::spawn(async move { runtime.start(&slow).await });
        until("it is on its way", || !bench.ids().is_empty()).await;
        let id = bench.ids().remove(0);
        // Its shim gets no further than to its first process.
        pipe(&bench.runtime.shared.dir(&id).join(".started.new"));
        let _log = read(log).await;
        until("it runs", || runs(&id)).await;
        let error = starting.await.unwrap().unwrap_err();
        assert!(matches!(error, RuntimeError::StartFailed { .. }), "{error}");
        assert!(!runs(&id));
        assert_eq!(bench.ids(), []);
    }
}
