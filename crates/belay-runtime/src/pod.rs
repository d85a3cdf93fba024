//! The agent's port: running the containers of pods.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use belay_action::ContainerId;
use belay_shim::record::RecordError;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::error;

use crate::{Containers, Sessions};

/// A pod as its runtime has to know it before any of its containers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodConfig {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub hostname: String,
    pub labels: BTreeMap<String, String>,
    /// Recorded with the sandbox: nobody can change them afterwards.
    pub annotations: BTreeMap<String, String>,
    /// Where the logs of its containers go.
    pub log_dir: PathBuf,
    pub host_network: bool,
    pub host_pid: bool,
    pub host_ipc: bool,
    /// Whether its containers see each other's processes.
    pub share_processes: bool,
    /// How names are resolved; `None` is as on the node.
    pub dns: Option<Dns>,
    /// Ports of the node that lead to the pod, where the runtime's network can do that.
    pub ports: Vec<HostPort>,
}

/// What is in a pod's `/etc/resolv.conf`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

/// A port of the node that leads to one of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    pub protocol: Protocol,
    pub container_port: u16,
    pub host_port: u16,
    /// The address on the node; empty is every.
    pub host_ip: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

/// Where the containers of a pod run: what they share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Empty where a runtime has no such thing.
    pub id: String,
    pub pod_namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
    /// Counts the sandboxes of one pod.
    pub attempt: u32,
    /// One that is not ready is dead with all its containers, and another takes its place.
    pub ready: bool,
    /// The pod's own address; `None` on the host's network.
    pub address: Option<IpAddr>,
}

/// When an image is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    Always,
    IfNotPresent,
    Never,
}

/// An image that can be run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// As a status shows it; empty where images are not used.
    pub id: String,
    /// The signal that it wants to be stopped with, as it is written there.
    pub stop_signal: Option<String>,
    /// Who a container runs as that does not say so itself.
    pub user: ImageUser,
}

/// The user of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageUser {
    Id(u32),
    /// One that is known by its name, in the image only.
    Name(String),
}

/// An image that names none runs as root.
impl Default for ImageUser {
    fn default() -> Self {
        ImageUser::Id(0)
    }
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("\"{image}\" is not the name of an image: {problem}")]
    InvalidName { image: String, problem: String },
    #[error(
        "the image \"{image}\" is not on this node, and must not be pulled (imagePullPolicy: Never)"
    )]
    NeverPull { image: String },
    #[error("cannot pull the image \"{image}\": {problem}")]
    Pull { image: String, problem: String },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// A directory or file of the host that a container sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    pub host_path: PathBuf,
    pub container_path: PathBuf,
    pub read_only: bool,
    pub propagation: Propagation,
}

/// Which mounts that are made later are seen on the other side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    #[default]
    None,
    HostToContainer,
    Bidirectional,
}

/// What a container may use. `None` is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// What it asked for, in thousandths of a CPU.
    pub cpu_request: Option<u64>,
    pub cpu_limit: Option<u64>,
    /// In bytes.
    pub memory_limit: Option<u64>,
}

/// What a container may do beyond, or not even, what its user may.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Security {
    pub privileged: bool,
    pub read_only_root: bool,
    pub no_new_privileges: bool,
    /// Without `CAP_`.
    pub add_capabilities: Vec<String>,
    pub drop_capabilities: Vec<String>,
    pub supplemental_groups: Vec<u32>,
    pub seccomp: Seccomp,
}

/// Which system calls a container may make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seccomp {
    /// Nobody has said anything: all, as with a kubelet.
    #[default]
    Unset,
    Unconfined,
    RuntimeDefault,
    /// As a file of the node says.
    Localhost(PathBuf),
}

/// What to run, and for which pod. Kept with the container, so that it can be adopted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerConfig {
    pub pod_namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
    /// The sandbox that it belongs to.
    pub sandbox: String,
    pub name: String,
    pub restart_count: u32,
    /// As the pod's spec names it.
    pub image: String,
    /// As [`PodRuntime::image`] answered.
    pub image_id: String,
    /// Instead of the image's own entry point, unless empty.
    pub command: Vec<String>,
    /// Instead of the image's own arguments, unless both are empty.
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: Option<PathBuf>,
    pub user: Option<u32>,
    pub group: Option<u32>,
    pub mounts: Vec<Mount>,
    pub resources: Resources,
    pub security: Security,
    /// The signal of the pod's spec, for runtimes that stop containers themselves.
    pub stop_signal: Option<String>,
    pub stdin: bool,
    pub tty: bool,
    /// Where its output goes, in the log format of the CRI. Directories are made as needed. The
    /// file is rotated when it has grown too long.
    pub log_path: PathBuf,
}

/// What a runtime knows of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerState {
    pub id: ContainerId,
    /// Not everywhere with its command, arguments and environment: those nobody needs any more.
    pub config: ContainerConfig,
    /// The first process, while it runs.
    pub pid: Option<u32>,
    /// The signal that its image wants to be stopped with, as it is written there.
    pub image_stop_signal: Option<String>,
    pub status: ContainerStatus,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerStatus {
    Running { started: Timestamp },
    Exited(Exit),
}

/// The containers that were started and not removed.
#[derive(Debug, Default)]
pub struct Listed {
    pub states: Vec<ContainerState>,
    /// Those that are there, and of which the runtime cannot tell more just now, with its reasons.
    pub untold: Vec<(ContainerId, RuntimeError)>,
}

impl Listed {
    /// Takes in what came of the question for one.
    pub(crate) fn take(&mut self, id: ContainerId, state: Result<ContainerState, RuntimeError>) {
        match state {
            Ok(state) => self.states.push(state),
            Err(RuntimeError::NotFound { .. }) => {}
            Err(error) if error.is_transient() => self.untold.push((id, error)),
            // One that cannot be read must not hide the others.
            Err(error) => error!(container = %id, %error, "cannot tell a container's state"),
        }
    }

    pub(crate) fn sorted(mut self) -> Self {
        self.states.sort_by(|one, other| one.id.cmp(&other.id));
        self
    }
}

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 plus the signal when one ended it.
    pub code: i32,
    pub signal: Option<i32>,
    pub started: Timestamp,
    pub finished: Timestamp,
    pub reason: ExitReason,
}

/// Kubernetes' words for how a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitReason {
    Completed,
    Error,
    /// It used more memory than it may.
    OomKilled,
    /// Its shim is gone, or the machine was restarted: it is dead, and nobody saw it end.
    ContainerStatusUnknown,
}

impl ExitReason {
    pub fn as_str(self) -> &'static str {
        match self {
            ExitReason::Completed => "Completed",
            ExitReason::Error => "Error",
            ExitReason::OomKilled => "OOMKilled",
            ExitReason::ContainerStatusUnknown => "ContainerStatusUnknown",
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a runtime did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The container's own fault: nothing of it has run.
    #[error("{message}")]
    StartFailed {
        /// One word: `CommandNotFound`, `CommandNotExecutable`, `BadWorkingDirectory`, `BadUser`,
        /// `SystemError`, `InvalidConfig`.
        reason: &'static str,
        message: String,
    },
    #[error("there is no container {id}")]
    NotFound { id: ContainerId },
    #[error("container {id} is running; stop it first")]
    StillRunning { id: ContainerId },
    /// A shim is there, and does not come to anything.
    #[error("the shim in {} does not answer; `ps` shows it as belay-shim", dir.display())]
    Silent { dir: PathBuf },
    #[error("cannot use {}: {source}; the runtime wrote it, and somebody changed it", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A CRI runtime or the API server refuses.
    #[error("cannot {what}: {problem}")]
    Call { what: &'static str, problem: String },
    /// A CRI runtime cannot be reached or does not answer; it may be back in a moment.
    #[error("cannot {what}: {problem}")]
    Away { what: &'static str, problem: String },
    /// The first process of a container cannot be seen.
    #[error(
        "process {pid} of container {id} cannot be seen: run the agent in the host's PID namespace \
         (hostPID: true)"
    )]
    Unseen { id: ContainerId, pid: u32 },
    #[error("cannot {what} {}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A question that is asked of a CRI runtime again and again.
pub(crate) const ASK_STATE: &str = "ask for the state of a container";

impl RuntimeError {
    /// Whether the same question may be answered when it is asked again. A runtime that is busy may
    /// refuse to tell a state; what it refuses to do, and what it tells badly, is no better a moment
    /// later.
    pub fn is_transient(&self) -> bool {
        match self {
            RuntimeError::Away { .. } | RuntimeError::Silent { .. } | RuntimeError::Io { .. } => {
                true
            }
            RuntimeError::Call { what, .. } => *what == ASK_STATE,
            RuntimeError::StartFailed { .. }
            | RuntimeError::NotFound { .. }
            | RuntimeError::StillRunning { .. }
            | RuntimeError::Damaged { .. }
            | RuntimeError::Unseen { .. } => false,
        }
    }

    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RuntimeError {
        let path = path.to_owned();
        move |source| RuntimeError::Io { what, path, source }
    }

    /// Of a look at processes.
    pub(crate) fn blind() -> impl FnOnce(io::Error) -> RuntimeError {
        RuntimeError::io("look at the processes in", Path::new("/proc"))
    }

    pub(crate) fn damaged(path: &Path) -> impl FnOnce(RecordError) -> RuntimeError {
        let path = path.to_owned();
        move |source| RuntimeError::Damaged {
            path,
            source: source.into(),
        }
    }
}

/// Runs containers. All methods may be called concurrently, and none is undone by being dropped.
///
/// The order for a pod: its sandbox, then for each container the image and a start; at the end
/// every container has ended and is removed, then its sandboxes. The sandboxes of a pod that has come
/// to its end are stopped before somebody wants it to be removed.
#[async_trait]
pub trait PodRuntime: Containers + Sessions {
    /// Finds the pod's newest sandbox if it is ready, or makes one.
    async fn sandbox(&self, pod: &PodConfig) -> Result<Sandbox, RuntimeError>;

    /// Every sandbox that was made and not removed, also by an agent before this one; several of a
    /// pod if one died. Sandboxes that Belay did not make are not in it.
    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError>;

    /// Ends all sandboxes of a pod whose containers have ended, and gives back what they took: the
    /// pod's address, the process that held them. They and their containers stay known. None is no
    /// error.
    async fn stop_sandboxes(&self, pod_uid: &str) -> Result<(), RuntimeError>;

    /// Ends and forgets all sandboxes of a pod, with whatever is left in them. None is no error.
    async fn remove_sandboxes(&self, pod_uid: &str) -> Result<(), RuntimeError>;

    /// Makes sure that an image can be run.
    async fn image(&self, image: &str, pull: Pull) -> Result<Image, ImageError>;

    /// Starts a new container; when this returns, its first process has been exec'ed.
    ///
    /// Not cancel-safe: a start that is given up may still happen, and is then in the list.
    async fn start(&self, config: &ContainerConfig) -> Result<ContainerId, RuntimeError>;

    /// Everything that was started and not removed, also by an agent before this one. What nobody
    /// will ever be able to tell of is not in it.
    async fn list(&self) -> Result<Listed, RuntimeError>;

    async fn state(&self, id: &ContainerId) -> Result<ContainerState, RuntimeError>;

    /// Returns when the container has ended and everything that belonged to it has been killed.
    async fn wait(&self, id: &ContainerId) -> Result<Exit, RuntimeError>;

    /// Kills the first process and everything that belongs to the container, execs included.
    /// Returns what could not be killed, as `pid (name)`.
    async fn kill_tree(&self, id: &ContainerId) -> Result<Vec<String>, RuntimeError>;

    /// Rotates the logs that have grown too long, as [`rotation`](crate::rotation) says, where
    /// whoever writes them does not do that himself. To be called from time to time.
    async fn bound_logs(&self) -> Result<(), RuntimeError>;

    /// Forgets a container that has ended, with the records of its attempts. Its log stays.
    async fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(what: &'static str) -> RuntimeError {
        RuntimeError::Call {
            what,
            problem: "no".to_owned(),
        }
    }

    #[test]
    fn whoever_cannot_be_told_of_for_good_is_left_out_and_the_others_are_waited_for() {
        let damaged = RuntimeError::Damaged {
            path: "somewhere".into(),
            source: "nonsense".into(),
        };
        let away = RuntimeError::Away {
            what: ASK_STATE,
            problem: "silence".to_owned(),
        };
        let errors = [damaged, call("stop a container"), call(ASK_STATE), away];
        let mut listed = Listed::default();
        for (number, error) in errors.into_iter().enumerate() {
            let id = ContainerId::new(format!("c{number}")).unwrap();
            listed.take(id, Err(error));
        }
        let untold = listed.untold.iter().map(|(id, _)| id.as_str());
        assert_eq!(untold.collect::<Vec<_>>(), ["c2", "c3"]);
    }
}
