//! What happens on a node: its pods and their end, and the notifications they declare.
//!
//! ```text
//!            API server (kube::Client)
//!     ^ lease, node   | pods        | podnotifications      ^ events
//!     |               v             v                       |
//!   node           pods          notifications           events
//!                 one worker      one driver per
//!                 per pod         notification --- machine in belay-core
//!                    |                |        \
//!                    v                v         '--> journal, audit log
//!                 PodRuntime  ---  Target (actions)
//!                    |
//!          logs, sessions  <---  listener: logs and exec for the server, metrics, health
//! ```
//!
//! That is the agent that *is* the node ([`run`]). Beside a kubelet ([`companion`]) there are only the
//! notifications, a lease and the events: pods are looked up in the runtime and compared with the
//! API's copy (see [`lookup`]). Where no agent may be installed the controller runs the same
//! deliveries over `pods/exec` ([`executor`]).
//!
//! Long-running tasks: the node's object, its lease, the teller of events, the listener, the pods
//! with a worker each, the notifications with a driver each. All end when the token given to [`run`]
//! is cancelled; containers and running actions are left as they are and found again, sessions of
//! `kubectl exec` are killed.
//!
//! **Invariant:** the API server may be away at any time. Containers of pods that the agent has read
//! are restarted and stopped on time, actions run to their end, and what came of them is reported
//! when the server is back.
//!
//! **Invariant:** the agent speaks to the API through `kube::Client` only, as the identity it was
//! given; it reads nothing but its own node's pods and notifications.

mod audit;
mod clock;
mod companion;
mod context;
mod crash;
mod dated;
mod events;
mod executor;
mod journal;
mod lease;
mod listener;
mod logs;
mod lookup;
mod metrics;
mod node;
mod notifications;
mod patience;
mod pods;
mod reconnect;
mod sessions;
#[cfg(test)]
mod testing;
mod watching;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belay_api::gates::{Feature, FeatureGates};
use belay_api::hook::PodAction;
use belay_api::notification::PodNotification;
use belay_api::reasons;
use belay_runtime::PodRuntime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use companion::{Companion, companion};
pub use executor::{Executor, executor};
pub use listener::ListenError;
pub use metrics::Metrics;

use audit::Audit;
use clock::Clock;
use context::{Context, Host};
use events::Recorder;
use journal::Journal;
use lease::Lease;
use listener::Listener;
use pods::Table;
use pods::objects::Objects;

/// How many actions run at once on a node, unless told otherwise.
pub const DEFAULT_MAX_ACTIONS: usize = 16;

/// How an agent is set up.
#[derive(Clone)]
pub struct Config {
    /// Name of the node.
    pub node_name: String,
    /// Where the agent keeps its journal, its certificate, logs and its audit log.
    pub data_dir: PathBuf,
    /// The way to the API server, with the node's identity.
    pub client: kube::Client,
    /// What runs the containers.
    pub runtime: Arc<dyn PodRuntime>,
    /// Features of this agent.
    pub gates: FeatureGates,
    /// Where the agent listens; port 0 takes any free one.
    pub listen: SocketAddr,
    /// CA that signs the server's client certificate.
    pub server_ca_pem: String,
    /// How many actions run at once.
    pub max_actions: usize,
    /// Address of the node, as the server reaches it.
    pub node_address: IpAddr,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("node_name", &self.node_name)
            .field("data_dir", &self.data_dir)
            .field("gates", &self.gates)
            .field("listen", &self.listen)
            .field("max_actions", &self.max_actions)
            .field("node_address", &self.node_address)
            .finish_non_exhaustive()
    }
}

/// Why an agent could not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The data directory.
    #[error("cannot use the data directory {}: {source}", path.display())]
    DataDir {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The journal.
    #[error("cannot open the agent's journal: {0}")]
    Journal(#[from] belay_store::OpenError),
    /// The listener.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A task that must not end did.
    #[error("a task of the agent failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Runs an agent until `shutdown`.
///
/// # Errors
///
/// When the agent cannot start: its directory, its journal or its address cannot be used. An API
/// server that is away is no error.
pub async fn run(config: Config, shutdown: CancellationToken) -> Result<(), AgentError> {
    let (journal, audit) = open(&config.data_dir).await?;
    let names = vec![config.node_name.clone(), config.node_address.to_string()];
    let listener = Listener::bind(
        config.listen,
        &config.data_dir,
        names,
        &config.server_ca_pem,
    )
    .await?;
    let (events, teller) = Recorder::new();
    let facts = node::Facts {
        name: config.node_name.clone(),
        address: config.node_address,
        port: listener.address.port(),
        fingerprint: listener.fingerprint.clone(),
        runtime: config.runtime.name().to_owned(),
        machine: node::Machine::read(),
    };
    let pods = Arc::new(Table::default());
    let shared = Arc::new(Context {
        node: Some(config.node_name.clone()),
        executor: config.node_name.clone(),
        client: patience::bound(config.client),
        runtime: Arc::clone(&config.runtime) as _,
        lookup: Arc::clone(&pods) as _,
        gates: config.gates,
        clock: Clock::default(),
        journal,
        audit,
        metrics: Arc::new(Metrics::new(config.gates)),
        events,
        slots: Arc::new(Semaphore::new(config.max_actions.max(1))),
        status_writes: Context::status_writes(),
    });
    let context = Arc::new(Host {
        objects: Objects::new(shared.client.clone()),
        cpus: facts.machine.cpus,
        memory: facts.machine.memory_kib.saturating_mul(1024),
        shared: Arc::clone(&shared),
        node_address: config.node_address.to_string(),
        node_name: config.node_name,
        data_dir: config.data_dir,
        boot_id: clock::boot_id(),
        runtime: config.runtime,
        health: node::Health::new(),
        pods,
    });
    info!(node = context.node_name, address = %listener.address, "the agent runs");
    context.events.normal(
        context.node_reference(),
        reasons::STARTING,
        "Starting the Belay agent.".to_owned(),
    );

    let stop = shutdown.child_token();
    let lease = Lease::new(lease::NODES, context.node_name.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(node::keep_object(Arc::clone(&context), facts, stop.clone()));
    tasks.spawn(lease::keep(Arc::clone(&shared), lease, stop.clone()));
    tasks.spawn(teller.run(
        context.client.clone(),
        context.node_name.clone(),
        stop.clone(),
    ));
    tasks.spawn(listener.run(Arc::clone(&context), stop.clone()));
    tasks.spawn(pods::run(Arc::clone(&context), stop.clone()));
    if context.gates.enabled(Feature::ContainerNotifier) {
        tasks.spawn(notifications::run::<PodNotification>(
            Arc::clone(&shared),
            stop.clone(),
        ));
    }
    tasks.spawn(notifications::run::<PodAction>(
        Arc::clone(&shared),
        stop.clone(),
    ));
    finish(&shared, tasks, &stop).await
}

/// Makes the data directory and opens what is kept in it.
async fn open(dir: &Path) -> Result<(Journal, Audit), AgentError> {
    let data_dir = |source| AgentError::DataDir {
        path: dir.to_owned(),
        source,
    };
    tokio::fs::create_dir_all(dir).await.map_err(data_dir)?;
    let path = dir.to_owned();
    let journal = tokio::task::spawn_blocking(move || Journal::open(&path)).await??;
    let audit = Audit::open(&dir.join("agent-audit.jsonl")).map_err(data_dir)?;
    Ok((journal, audit))
}

/// Waits for the tasks. One that ends takes the others down: an agent that does half of its work
/// looks healthy.
async fn finish(
    context: &Context,
    mut tasks: JoinSet<()>,
    stop: &CancellationToken,
) -> Result<(), AgentError> {
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        stop.cancel();
        if let Err(error) = ended {
            result = Err(error.into());
        }
    }
    context.journal.shutdown().await;
    result
}
