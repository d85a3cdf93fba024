//! The executor of a cluster without agents: all notifications, over `pods/exec`.
//!
//! It promises less than an agent. Notifiers are those of the API's copy of the pod; signals fail;
//! a command cannot be killed; an attempt that was interrupted, by a lost connection or by the end
//! of this process, is never repeated. Its journal is the claim in the object and nothing else: what a
//! successor finds claimed may have run, and is `Interrupted`.
//!
//! Only who holds the controller's lease may run it: its name as an executor is the role's, not the
//! process's.

use std::sync::Arc;

use async_trait::async_trait;
use belay_api::CONTROLLER;
use belay_api::gates::{Feature, FeatureGates};
use belay_api::hook::PodAction;
use belay_api::notification::PodNotification;
use belay_core::delivery::Verdict;
use belay_runtime::PodsExec;
use kube::Client;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::audit::Audit;
use crate::clock::Clock;
use crate::context::Context;
use crate::events::Recorder;
use crate::journal::{Journal, Started};
use crate::lookup::{Found, Lookup, LookupError};
use crate::metrics::Metrics;
use crate::pods::{ContainerView, PodView};
use crate::{AgentError, dated, finish, notifications, patience};

/// How an executor is set up.
#[derive(Clone)]
pub struct Executor {
    /// The way to the API server.
    pub client: Client,
    /// Features of this executor.
    pub gates: FeatureGates,
    /// How many actions run at once.
    pub max_actions: usize,
    /// What it counts.
    pub metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor")
            .field("gates", &self.gates)
            .field("max_actions", &self.max_actions)
            .finish_non_exhaustive()
    }
}

/// Runs an executor until `shutdown`.
///
/// # Errors
///
/// When one of its tasks fails.
pub async fn executor(config: Executor, shutdown: CancellationToken) -> Result<(), AgentError> {
    let client = patience::bound(config.client);
    let runtime = PodsExec::new(client.clone());
    let (events, teller) = Recorder::new();
    let context = Arc::new(Context {
        node: None,
        executor: CONTROLLER.to_owned(),
        client,
        runtime: Arc::new(runtime.clone()),
        lookup: Arc::new(Api { runtime }),
        gates: config.gates,
        clock: Clock::default(),
        journal: Journal::in_memory(),
        audit: Audit::Log,
        metrics: config.metrics,
        events,
        slots: Arc::new(Semaphore::new(config.max_actions.max(1))),
        status_writes: Context::status_writes(),
    });
    info!(
        runtime = context.runtime.name(),
        "executes notifications and hooks"
    );
    let stop = shutdown.child_token();
    let mut tasks = JoinSet::new();
    tasks.spawn(dated::keep(Arc::clone(&context), stop.clone()));
    tasks.spawn(teller.run(context.client.clone(), CONTROLLER.to_owned(), stop.clone()));
    if context.gates.enabled(Feature::ContainerNotifier) {
        tasks.spawn(notifications::run::<PodNotification>(
            Arc::clone(&context),
            stop.clone(),
        ));
    }
    tasks.spawn(notifications::run::<PodAction>(
        Arc::clone(&context),
        stop.clone(),
    ));
    finish(&context, tasks, &stop).await
}

/// Looks pods up in the API.
struct Api {
    runtime: PodsExec,
}

#[async_trait]
impl Lookup for Api {
    async fn ready(&self) {}

    async fn find(&self, about: &Started) -> Result<Found, LookupError> {
        let uid = &about.record.pod_uid;
        let found = self
            .runtime
            .pod(&about.namespace, &about.pod_name, uid)
            .await
            .map_err(|error| LookupError {
                pod: about.pod_name.clone(),
                message: error.to_string(),
            })?;
        let Some(found) = found else {
            return Ok(Found::Refused(Verdict::PodNotFound));
        };
        let containers = found
            .containers
            .into_iter()
            .map(|(name, container)| {
                let view = ContainerView {
                    id: container.id,
                    restart_count: container.restart_count,
                    running: container.running,
                    previous: None,
                };
                (name, view)
            })
            .collect();
        let status = found.pod.status.as_ref();
        let address = status.and_then(|status| status.pod_ip.clone());
        Ok(Found::Pod(Arc::new(PodView {
            address: address.unwrap_or_default(),
            pod: Arc::new(found.pod),
            containers,
        })))
    }
}
