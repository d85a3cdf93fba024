//! What every task of the agent shares.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use belay_api::gates::FeatureGates;
use belay_runtime::{Containers, PodRuntime};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::clock::Clock;
use crate::events::Recorder;
use crate::journal::Journal;
use crate::lookup::Lookup;
use crate::metrics::Metrics;
use crate::node::Health;
use crate::pods::Table;
use crate::pods::objects::Objects;

/// How many writes of notifications' status are under way at once. Enough to fill the server's
/// groups, few enough not to open a connection per notification.
const STATUS_WRITES: usize = 128;

/// What delivering notifications and actions takes, in every mode.
pub(crate) struct Context {
    /// Who claims: the node, or the controller where there are no agents; whichever process of it
    /// writes.
    pub(crate) executor: String,
    /// The node whose notifications and actions are for this executor; `None`: all are.
    pub(crate) node: Option<String>,
    pub(crate) client: Client,
    /// What actions are run in.
    pub(crate) runtime: Arc<dyn Containers>,
    /// Where a notified pod is looked up.
    pub(crate) lookup: Arc<dyn Lookup>,
    pub(crate) gates: FeatureGates,
    pub(crate) clock: Clock,
    pub(crate) journal: Journal,
    pub(crate) audit: Audit,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Recorder,
    /// Slots for actions.
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) status_writes: Semaphore,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("executor", &self.executor)
            .finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn status_writes() -> Semaphore {
        Semaphore::new(STATUS_WRITES)
    }
}

/// Everything of the [`Context`], and what only an agent needs that is the node itself.
pub(crate) struct Host {
    pub(crate) shared: Arc<Context>,
    pub(crate) node_name: String,
    pub(crate) node_address: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) boot_id: String,
    /// What runs the pods.
    pub(crate) runtime: Arc<dyn PodRuntime>,
    /// Whether that answers.
    pub(crate) health: Health,
    pub(crate) pods: Arc<Table>,
    /// What the pods take data from.
    pub(crate) objects: Arc<Objects>,
    /// What the node has for its pods: CPUs, and memory in bytes.
    pub(crate) cpus: usize,
    pub(crate) memory: u64,
}

impl Deref for Host {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.shared
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// The node, for events.
    pub(crate) fn node_reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.node_name.clone()),
            uid: Some(self.node_name.clone()),
            ..ObjectReference::default()
        }
    }
}
