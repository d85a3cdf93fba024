//! The `process` runtime.

mod container;
mod inflight;
mod launch;
mod mounts;
mod session;
mod standing;
mod start;
mod talk;
mod target;

pub(crate) use container::TERM;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belay_action::{ContainerId, Target};
use belay_shim::instance::{self, Ending, Started};
use belay_shim::{proc, spawn};
use tokio::task::JoinSet;
use tracing::warn;

use self::container::Container;
use self::inflight::InFlight;
use self::standing::Standing;
use self::talk::{SILENCE, Talk, Told};
use self::target::ProcessTarget;
use crate::binary;
use crate::blocking::blocking;
use crate::report::timestamp;
use crate::{
    ContainerConfig, ContainerState, ContainerStatus, Containers, Exit, ExitReason, Image,
    ImageError, ImageUser, Listed, PodConfig, PodRuntime, Pull, RuntimeError, Sandbox,
};

/// What Kubernetes shows for a container of which nobody knows how it ended.
const UNKNOWN_CODE: i32 = 137;

/// How long shims are waited for.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// For the first word of one that was just started.
    word: Duration,
    /// For one that is on its way up, or about to go.
    coming: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            word: spawn::PATIENCE + SILENCE,
            coming: Duration::from_secs(20),
        }
    }
}

/// Runs containers as plain processes, each under a shim of its own.
#[derive(Debug, Clone)]
pub struct ProcessRuntime {
    shared: Arc<Shared>,
}

/// What never changes while the runtime is open, and the execs that are being started.
#[derive(Debug)]
struct Shared {
    containers: PathBuf,
    program: PathBuf,
    boot_id: String,
    starts: InFlight,
    patience: Patience,
}

/// The service of systemd that a process with these control groups is in.
fn service(groups: &str) -> Option<&str> {
    let mut units = groups
        .lines()
        .filter_map(|line| line.rsplit('/').next())
        .filter(|unit| unit.ends_with(".service"));
    units.next()
}

impl ProcessRuntime {
    /// Opens the runtime on a directory, which it creates if need be. Containers that an earlier
    /// agent started there go on, and are in the list.
    ///
    /// # Errors
    ///
    /// When the directory cannot be used, or `/proc` is missing.
    pub fn open(dir: &Path) -> Result<Self, RuntimeError> {
        let dir = std::path::absolute(dir).map_err(RuntimeError::io("resolve", dir))?;
        let containers = dir.join("containers");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&containers)
            .map_err(RuntimeError::io("create", &containers))?;
        let program = binary::install(&dir.join("bin"))?;
        let boot_id = proc::boot_id().map_err(RuntimeError::io(
            "read the boot ID from",
            Path::new("/proc"),
        ))?;
        sweep(&containers);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        if let Some(unit) = service(&groups) {
            warn!(
                unit,
                "this is a service of systemd: unless its unit has KillMode=process (and \
                 Delegate=yes), stopping or restarting it kills all containers"
            );
        }
        Ok(ProcessRuntime {
            shared: Arc::new(Shared {
                containers,
                program,
                boot_id,
                starts: InFlight::default(),
                patience: Patience::default(),
            }),
        })
    }

    fn load(&self, id: &ContainerId) -> Result<Container, RuntimeError> {
        Container::load(&self.shared.containers, id, &self.shared.boot_id)?
            .ok_or_else(|| RuntimeError::NotFound { id: id.clone() })
    }

    /// Where a container stands, once it stands anywhere. What was found dead is cleared up.
    async fn settle(&self, container: &Container) -> Result<Settled, RuntimeError> {
        let begin = tokio::time::Instant::now();
        loop {
            let instance = container.instance.clone();
            match instance.standing(container.same_boot)? {
                None => {
                    return Err(RuntimeError::NotFound {
                        id: container.id.clone(),
                    });
                }
                Some(Standing::Running(started)) => return Ok(Settled::Running(started)),
                Some(Standing::Ended(exit)) => return Ok(Settled::Ended(exit)),
                Some(Standing::Failed(_) | Standing::NeverStarted) => {
                    blocking(move || instance.remove()).await?;
                    return Err(RuntimeError::NotFound {
                        id: container.id.clone(),
                    });
                }
                Some(Standing::Abandoned(started)) => {
                    let container = container.clone();
                    blocking(move || container.bury(started.as_ref())).await?;
                }
                Some(Standing::Coming) => {}
            }
            if begin.elapsed() > self.shared.patience.coming {
                return Err(RuntimeError::Silent {
                    dir: container.instance.dir.clone(),
                });
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn state_of(&self, container: Container) -> Result<ContainerState, RuntimeError> {
        let (pid, status) = match self.settle(&container).await? {
            Settled::Running(started) => {
                let started_at = timestamp(started.at);
                (
                    u32::try_from(started.pid).ok(),
                    ContainerStatus::Running {
                        started: started_at,
                    },
                )
            }
            Settled::Ended(exit) => (None, ContainerStatus::Exited(exit_of(&exit))),
        };
        Ok(ContainerState {
            id: container.id,
            config: container.config,
            pid,
            image_stop_signal: None,
            status,
        })
    }
}

/// A container and what could be read of it.
type Loaded = (ContainerId, Result<Container, RuntimeError>);

/// Where a container stands for good, or for now.
enum Settled {
    Running(Started),
    Ended(instance::Exit),
}

#[async_trait]
impl Containers for ProcessRuntime {
    fn name(&self) -> &str {
        "process"
    }

    async fn is_running(&self, id: &ContainerId) -> Result<bool, RuntimeError> {
        let state = self.state(id).await?;
        Ok(matches!(state.status, ContainerStatus::Running { .. }))
    }

    async fn target(&self, id: &ContainerId) -> Result<Arc<dyn Target>, RuntimeError> {
        let container = self.load(id)?;
        let first = match self.settle(&container).await? {
            Settled::Running(started) => Some(started),
            Settled::Ended(_) => None,
        };
        Ok(Arc::new(ProcessTarget::new(
            Arc::clone(&self.shared),
            container,
            first,
        )))
    }
}

#[async_trait]
impl PodRuntime for ProcessRuntime {
    /// There is none: containers share the host.
    async fn sandbox(&self, pod: &PodConfig) -> Result<Sandbox, RuntimeError> {
        Ok(Sandbox {
            pod_namespace: pod.namespace.clone(),
            pod_name: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            ready: true,
            ..Sandbox::default()
        })
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn stop_sandboxes(&self, _pod_uid: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn remove_sandboxes(&self, _pod_uid: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// Images are recorded and not used: containers run as whoever runs the agent.
    async fn image(&self, _image: &str, _pull: Pull) -> Result<Image, ImageError> {
        let user = ImageUser::Id(rustix::process::geteuid().as_raw());
        Ok(Image {
            user,
            ..Image::default()
        })
    }

    async fn start(&self, config: &ContainerConfig) -> Result<ContainerId, RuntimeError> {
        self.begin(config).await
    }

    async fn list(&self) -> Result<Listed, RuntimeError> {
        let shared = Arc::clone(&self.shared);
        let found = blocking(move || shared.load_all()).await?;
        // All at once: one that has to be cleared up takes its time.
        let mut looking = JoinSet::new();
        for (id, container) in found {
            let runtime = self.clone();
            looking.spawn(async move {
                let state = match container {
                    Ok(container) => runtime.state_of(container).await,
                    Err(error) => Err(error),
                };
                match state {
                    Err(error @ RuntimeError::Damaged { .. }) => {
                        let error = runtime.end_damaged(&id, error).await;
                        (id, Err(error))
                    }
                    state => (id, state),
                }
            });
        }
        let mut listed = Listed::default();
        for (id, state) in looking.join_all().await {
            listed.take(id, state);
        }
        Ok(listed.sorted())
    }

    async fn state(&self, id: &ContainerId) -> Result<ContainerState, RuntimeError> {
        self.state_of(self.load(id)?).await
    }

    async fn wait(&self, id: &ContainerId) -> Result<Exit, RuntimeError> {
        let container = self.load(id)?;
        let mut talk = Talk::new(container.instance.clone(), container.same_boot);
        loop {
            match talk.told().await? {
                Told::Ended(exit) => return Ok(exit_of(&exit)),
                Told::Unkillable(_) | Told::FirstEnded => {}
                Told::Failed(_) | Told::NeverStarted | Told::Gone => {
                    return Err(RuntimeError::NotFound { id: id.clone() });
                }
                Told::Abandoned(_) => {
                    if let Settled::Ended(exit) = self.settle(&container).await? {
                        return Ok(exit_of(&exit));
                    }
                }
            }
        }
    }

    async fn kill_tree(&self, id: &ContainerId) -> Result<Vec<String>, RuntimeError> {
        let container = self.load(id)?;
        let mut talk = Talk::new(container.instance.clone(), container.same_boot);
        talk.ask_to_kill().await;
        loop {
            match talk.told().await? {
                Told::Ended(exit) => return Ok(exit.survivors),
                Told::Unkillable(survivors) => return Ok(survivors),
                Told::FirstEnded => {}
                Told::Failed(_) | Told::NeverStarted | Told::Gone => return Ok(Vec::new()),
                Told::Abandoned(_) => {
                    if let Settled::Ended(exit) = self.settle(&container).await? {
                        return Ok(exit.survivors);
                    }
                }
            }
        }
    }

    /// Shims rotate what they write.
    async fn bound_logs(&self) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let container = match self.load(id) {
            Ok(container) => container,
            Err(RuntimeError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        match self.settle(&container).await {
            Ok(Settled::Running(_)) => Err(RuntimeError::StillRunning { id: id.clone() }),
            Ok(Settled::Ended(_)) => blocking(move || container.instance.remove()).await,
            Err(RuntimeError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Shared {
    fn load_all(&self) -> Result<Vec<Loaded>, RuntimeError> {
        self.load_those(|_| true)
    }

    /// The containers whose ID is `wanted`, each as it can be read.
    fn load_those(
        &self,
        wanted: impl Fn(&ContainerId) -> bool,
    ) -> Result<Vec<Loaded>, RuntimeError> {
        let entries =
            fs::read_dir(&self.containers).map_err(RuntimeError::io("list", &self.containers))?;
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(RuntimeError::io("list", &self.containers))?;
            let Some(id) = entry
                .file_name()
                .to_str()
                .and_then(|name| ContainerId::new(name).ok())
            else {
                continue;
            };
            if wanted(&id) {
                let container = Container::load(&self.containers, &id, &self.boot_id);
                found.extend(container.transpose().map(|container| (id, container)));
            }
        }
        Ok(found)
    }
}

/// Removes what an agent left half made or half removed.
fn sweep(containers: &Path) {
    let hidden = |dir: &Path| {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    };
    hidden(containers);
    for entry in fs::read_dir(containers).into_iter().flatten().flatten() {
        hidden(&entry.path().join(instance::EXECS));
    }
}

fn exit_of(exit: &instance::Exit) -> Exit {
    let (code, signal, reason) = match exit.ending {
        Ending::Exited(0) => (0, None, ExitReason::Completed),
        Ending::Exited(code) => (code, None, ExitReason::Error),
        Ending::Signaled(signal) => (128 + signal, Some(signal), ExitReason::Error),
        Ending::TimedOut | Ending::Cancelled => (UNKNOWN_CODE, None, ExitReason::Error),
        Ending::Unknown => (UNKNOWN_CODE, None, ExitReason::ContainerStatusUnknown),
    };
    let (started, finished) = (timestamp(exit.started), timestamp(exit.finished));
    Exit {
        code,
        signal,
        started,
        finished,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_of_systemd_is_known_by_its_control_group() {
        let unified = "0::/system.slice/belay.service\n";
        assert_eq!(service(unified), Some("belay.service"));
        let apart = "5:memory:/a\n1:name=systemd:/system.slice/belay.service\n";
        assert_eq!(service(apart), Some("belay.service"));
        for groups in [
            "",
            "0::/\n",
            "0::/user.slice/user-0.slice/session-1.scope\n",
            "0::/user.slice/user@0.service/app.slice/shell.scope\n",
        ] {
            assert_eq!(service(groups), None, "{groups}");
        }
    }
}
