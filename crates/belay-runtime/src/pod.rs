//! The agent's port: running the containers of pods.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use belay_action::ContainerId;
use belay_shim::record::RecordError;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Containers;

/// What to run, and for which pod. Kept with the container, so that it can be adopted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerConfig {
    pub pod_namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
    pub name: String,
    pub restart_count: u32,
    pub image: String,
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: Option<PathBuf>,
    pub user: Option<u32>,
    pub group: Option<u32>,
    /// Where its output goes, in the log format of the CRI. Directories are made as needed. The
    /// file grows as the container writes: rotating it is the agent's part.
    pub log_path: PathBuf,
}

/// What a runtime knows of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerState {
    pub id: ContainerId,
    pub config: ContainerConfig,
    /// The first process, while it runs.
    pub pid: Option<u32>,
    pub status: ContainerStatus,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContainerStatus {
    Running { started: Timestamp },
    Exited(Exit),
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
    /// Its shim is gone, or the machine was restarted: it is dead, and nobody saw it end.
    ContainerStatusUnknown,
}

impl ExitReason {
    pub fn as_str(self) -> &'static str {
        match self {
            ExitReason::Completed => "Completed",
            ExitReason::Error => "Error",
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

impl RuntimeError {
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RuntimeError {
        let path = path.to_owned();
        move |source| RuntimeError::Io { what, path, source }
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
#[async_trait]
pub trait PodRuntime: Containers {
    /// Starts a new container; when this returns, its first process has been exec'ed.
    ///
    /// Not cancel-safe: a start that is given up may still happen, and is then in the list.
    async fn start(&self, config: &ContainerConfig) -> Result<ContainerId, RuntimeError>;

    /// Everything that was started and not removed, also by an agent before this one.
    async fn list(&self) -> Result<Vec<ContainerState>, RuntimeError>;

    async fn state(&self, id: &ContainerId) -> Result<ContainerState, RuntimeError>;

    /// Returns when the container has ended and everything that belonged to it has been killed.
    async fn wait(&self, id: &ContainerId) -> Result<Exit, RuntimeError>;

    /// Kills the first process and everything that belongs to the container, execs included.
    /// Returns what could not be killed, as `pid (name)`.
    async fn kill_tree(&self, id: &ContainerId) -> Result<Vec<String>, RuntimeError>;

    /// Forgets a container that has ended, with the records of its attempts. Its log stays.
    async fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError>;
}
