//! The ports of everyone who acts on containers that somebody else may run.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use belay_action::{ContainerId, Target};

use crate::RuntimeError;

/// Containers that exist, as something to act on. All methods may be called concurrently.
#[async_trait]
pub trait Containers: Send + Sync {
    /// The scheme of container IDs in a status: `process`, `containerd`, `cri-o`.
    fn name(&self) -> &str;

    /// Whether the first process of this incarnation runs.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::NotFound`] when the runtime knows no such container (any more); others when
    /// it cannot tell.
    async fn is_running(&self, id: &ContainerId) -> Result<bool, RuntimeError>;

    /// The container as something to act on. Ended ones too: their attempts can still be found.
    async fn target(&self, id: &ContainerId) -> Result<Arc<dyn Target>, RuntimeError>;
}

/// A pod as the runtime recorded it when its sandbox was made, and its containers as they are now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedPod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// As they were at the pod's creation: nobody can change them afterwards.
    pub annotations: BTreeMap<String, String>,
    /// The pod's own address; `None` for a pod on the host's network.
    pub address: Option<IpAddr>,
    /// The newest incarnation of each container, by name.
    pub containers: BTreeMap<String, RecordedContainer>,
}

/// The newest incarnation of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedContainer {
    pub id: ContainerId,
    pub restart_count: u32,
    pub running: bool,
}

/// Pods that somebody else runs, looked up in the runtime itself.
#[async_trait]
pub trait RecordedPods: Send + Sync {
    /// The pod with this UID, or `None` when the runtime has no sandbox of it.
    async fn recorded_pod(&self, uid: &str) -> Result<Option<RecordedPod>, RuntimeError>;
}
