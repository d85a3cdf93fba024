//! The agent beside a kubelet: it runs notifications in containers that somebody else runs.
//!
//! ```text
//!   podnotifications of this node --> one driver each --> Containers (actions)
//!                                          |
//!                                        Lookup:   RecordedPods   what the runtime recorded at the
//!                                          |                      pod's creation, and what runs now
//!                                          '-----  copies         the API's copy of the pod
//! ```
//!
//! It registers nothing, runs and stops no pods, and writes no pod status. Its lease is its own, not
//! the node's: the kubelet that keeps the node's lease knows nothing of this agent.
//!
//! **Invariant:** what is run was declared when the pod was created. Notifiers are taken from the
//! annotation that the kubelet copied to the sandbox; if the API's copy says something else by now,
//! nothing is run.
//!
//! **Invariant:** nothing is claimed before the agent's own lease is there: a claim whose executor
//! cannot be seen to live, or to be lost, would stay for ever.

mod copies;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use belay_api::gates::{Feature, FeatureGates};
use belay_api::hook::PodAction;
use belay_api::lenient::Lenient;
use belay_api::notification::PodNotification;
use belay_api::pod::{NOTIFIERS_ANNOTATION, NotifiersByContainer, Pod, parse_annotation};
use belay_core::delivery::Verdict;
use belay_runtime::{Containers, RecordedPod, RecordedPods};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use copies::{ApiCopy, Copies};

use crate::clock::Clock;
use crate::context::Context;
use crate::events::Recorder;
use crate::journal::Started;
use crate::lease::{self, Lease};
use crate::lookup::{Found, Lookup, LookupError, is_gone};
use crate::metrics::Metrics;
use crate::pods::{ContainerView, PodView};
use crate::{AgentError, finish, notifications, open, patience};

/// Where a pod on the host's network is reached while nobody has said where its node is.
const LOOPBACK: &str = "127.0.0.1";

/// How a companion is set up.
#[derive(Clone)]
pub struct Companion {
    /// Name of the node, as the kubelet has it.
    pub node_name: String,
    /// Where the agent keeps its journal and its audit log.
    pub data_dir: PathBuf,
    /// The way to the API server.
    pub client: Client,
    /// What actions are run in.
    pub containers: Arc<dyn Containers>,
    /// Where pods are looked up; the same runtime.
    pub pods: Arc<dyn RecordedPods>,
    /// Features of this agent.
    pub gates: FeatureGates,
    /// Namespace of the agents' leases.
    pub lease_namespace: String,
    /// How many actions run at once.
    pub max_actions: usize,
    /// What the agent counts.
    pub metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Companion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Companion")
            .field("node_name", &self.node_name)
            .field("data_dir", &self.data_dir)
            .field("gates", &self.gates)
            .field("lease_namespace", &self.lease_namespace)
            .field("max_actions", &self.max_actions)
            .finish_non_exhaustive()
    }
}

/// Runs a companion until `shutdown`.
///
/// # Errors
///
/// When the agent cannot start: its directory or its journal cannot be used. An API server or a
/// runtime that is away is no error.
pub async fn companion(config: Companion, shutdown: CancellationToken) -> Result<(), AgentError> {
    let (journal, audit) = open(&config.data_dir).await?;
    let (events, teller) = Recorder::new();
    let lease = Lease::new(config.lease_namespace, config.node_name.clone());
    let copies = Arc::new(Copies::default());
    let client = patience::bound(config.client);
    let beside = Beside {
        pods: config.pods,
        client: client.clone(),
        copies: Arc::clone(&copies),
        lease_kept: lease.kept(),
    };
    let context = Arc::new(Context {
        node: Some(config.node_name.clone()),
        executor: config.node_name.clone(),
        client,
        runtime: config.containers,
        lookup: Arc::new(beside),
        gates: config.gates,
        clock: Clock::default(),
        journal,
        audit,
        metrics: config.metrics,
        events,
        slots: Arc::new(Semaphore::new(config.max_actions.max(1))),
        status_writes: Context::status_writes(),
    });
    info!(node = config.node_name, "the agent runs beside a kubelet");
    let stop = shutdown.child_token();
    let mut tasks = JoinSet::new();
    tasks.spawn(lease::keep(Arc::clone(&context), lease, stop.clone()));
    tasks.spawn(copies::run(
        copies,
        context.client.clone(),
        config.node_name.clone(),
        stop.clone(),
    ));
    tasks.spawn(teller.run(context.client.clone(), config.node_name, stop.clone()));
    if context.gates.enabled(Feature::ContainerNotifier) {
        tasks.spawn(notifications::run::<PodNotification>(
            Arc::clone(&context),
            stop.clone(),
        ));
    } else {
        info!("the feature gate ContainerNotifier is off: only hooks are run");
    }
    tasks.spawn(notifications::run::<PodAction>(
        Arc::clone(&context),
        stop.clone(),
    ));
    finish(&context, tasks, &stop).await
}

/// Looks pods up in the runtime and in the API.
struct Beside {
    pods: Arc<dyn RecordedPods>,
    client: Client,
    copies: Arc<Copies>,
    lease_kept: watch::Receiver<bool>,
}

#[async_trait]
impl Lookup for Beside {
    async fn ready(&self) {
        // The sender lives as long as the task that keeps the lease.
        let _ = self.lease_kept.clone().wait_for(|kept| *kept).await;
    }

    async fn find(&self, about: &Started) -> Result<Found, LookupError> {
        let failed = |error: &dyn std::error::Error| LookupError {
            pod: about.pod_name.clone(),
            message: causes(error),
        };
        let uid = &about.record.pod_uid;
        let recorded = self
            .pods
            .recorded_pod(uid)
            .await
            .map_err(|error| failed(&error))?;
        let copy = match self.copies.get(uid) {
            Some(copy) => Some(copy),
            // The watch may not have brought it yet.
            None => {
                let api: Api<Lenient<Pod>> = Api::namespaced(self.client.clone(), &about.namespace);
                let pod = api.get(&about.pod_name).await;
                match pod.and_then(|pod| Ok(pod.read()?)) {
                    Ok(pod) => Some(pod)
                        .filter(|pod| pod.uid() == uid)
                        .map(|pod| ApiCopy::of(&pod)),
                    Err(error) if is_gone(&error, &about.pod_name) => None,
                    Err(error) => return Err(failed(&error)),
                }
            }
        };
        Ok(judge(about, recorded, copy.as_ref()))
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// What the runtime's record and the API's copy of a pod come to.
fn judge(about: &Started, recorded: Option<RecordedPod>, copy: Option<&ApiCopy>) -> Found {
    let Some(copy) = copy else {
        return Found::Refused(Verdict::PodNotFound);
    };
    let Some(recorded) = recorded else {
        // The kubelet has not made its sandbox yet, or has removed it.
        return Found::Refused(if copy.deleted.is_some() {
            Verdict::PodTerminating
        } else {
            Verdict::ContainerNotRunning
        });
    };
    // The UID comes from the notification's status; names are what it was asked for.
    if recorded.namespace != about.namespace || recorded.name != about.pod_name {
        return Found::Refused(Verdict::PodNotFound);
    }
    let declared = recorded.annotations.get(NOTIFIERS_ANNOTATION);
    // What a hook runs is not the pod's to declare.
    if about.notifier.is_some()
        && !same_notifiers(declared.map(String::as_str), copy.annotation.as_deref())
    {
        return Found::Refused(Verdict::Forbidden {
            message: format!(
                "the annotation {NOTIFIERS_ANNOTATION} of pod {:?} was changed after the pod was created; nothing was run. Create the pod again to use its new notifiers",
                recorded.name
            ),
        });
    }
    let mut pod = Pod::default();
    pod.metadata.name = Some(recorded.name.clone());
    pod.metadata.namespace = Some(recorded.namespace.clone());
    pod.metadata.uid = Some(recorded.uid.clone());
    pod.metadata.deletion_timestamp = copy.deleted.map(Time);
    pod.metadata.annotations =
        declared.map(|text| [(NOTIFIERS_ANNOTATION.to_owned(), text.clone())].into());
    pod.spec.clone_from(&copy.spec);
    let address = match (recorded.address, &copy.host) {
        (Some(address), _) => address.to_string(),
        (None, Some(host)) => host.clone(),
        (None, None) => LOOPBACK.to_owned(),
    };
    let containers = recorded
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
    Found::Pod(Arc::new(PodView {
        pod: Arc::new(pod),
        address,
        containers,
    }))
}

/// Whether two values of the annotation declare the same, whatever they look like.
fn same_notifiers(recorded: Option<&str>, copy: Option<&str>) -> bool {
    let read = |text: Option<&str>| -> Option<NotifiersByContainer> {
        let mut notifiers = parse_annotation(text.unwrap_or("{}")).ok()?;
        notifiers.retain(|_, list| !list.is_empty());
        for list in notifiers.values_mut() {
            list.sort_by(|a, b| a.name.cmp(&b.name));
        }
        Some(notifiers)
    };
    match (read(recorded), read(copy)) {
        (Some(recorded), Some(copy)) => recorded == copy,
        // What nobody can read declares nothing; at least it is the same nothing.
        (None, None) => recorded == copy,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

#[cfg(test)]
mod tests;
