//! What every task of the agent shares.

use std::path::PathBuf;
use std::sync::Arc;

use belay_api::gates::FeatureGates;
use belay_runtime::PodRuntime;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::clock::Clock;
use crate::events::Recorder;
use crate::journal::Journal;
use crate::metrics::Metrics;
use crate::pods::Table;

/// How many writes of notifications' status are under way at once. Enough to fill the server's
/// groups, few enough not to open a connection per notification.
const STATUS_WRITES: usize = 128;

pub(crate) struct Context {
    pub(crate) node_name: String,
    pub(crate) node_address: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) client: Client,
    pub(crate) runtime: Arc<dyn PodRuntime>,
    pub(crate) gates: FeatureGates,
    pub(crate) clock: Clock,
    pub(crate) boot_id: String,
    pub(crate) journal: Journal,
    pub(crate) audit: Audit,
    pub(crate) metrics: Metrics,
    pub(crate) events: Recorder,
    pub(crate) pods: Table,
    /// Slots for actions.
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) status_writes: Semaphore,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("node_name", &self.node_name)
            .finish_non_exhaustive()
    }
}

impl Context {
    pub(crate) fn status_writes() -> Semaphore {
        Semaphore::new(STATUS_WRITES)
    }

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
