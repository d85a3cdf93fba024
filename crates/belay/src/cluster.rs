//! The roles of a stock cluster: the controller, and the agent beside a kubelet.
//!
//! ```text
//!   belay controller --- election --- controllers      (one of several replicas acts)
//!                                  '- executor, over pods/exec, where there are no agents
//!   belay agent --mode=companion ---- notifications of its node, CRI runtime
//!   both: monitor (metrics, health), and no start without the admission policies
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belay_api::CONTROLLER;
use belay_api::gates::{Feature, FeatureGates};
use belay_controllers::Controllers;
use belay_controllers::election::{self, Candidate, Mandate};
use belay_core::election::Times;
use belay_runtime::CriRuntime;
use kube::Client;
use tokio_util::sync::CancellationToken;

use crate::cli::{AgentArgs, ClusterArgs, ControllerArgs, Executor, Global};
use crate::connect;
use crate::exit::{Exit, usage};
use crate::format;
use crate::monitor::{Monitor, Readiness};
use crate::place;
use crate::protection;
use crate::roles::Roles;
use crate::runtime;
use crate::signals::Interrupts;

/// How long to wait for a container runtime that does not answer.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);
/// How often a role looks whether what it needs is still there; kubelets ask as often.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the API server may take to say that it is there.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

// Parts of a role's readiness.
const POLICIES: &str = "policies";
const RUNTIME: &str = "runtime";
const LEASE: &str = "lease";
const SERVER: &str = "server";
const UNCHECKED: &str = "whether the cluster has Belay's admission policies has not been checked yet: the API server has not answered";

/// `belay controller`.
pub(crate) async fn controller(global: &Global, args: ControllerArgs) -> anyhow::Result<Exit> {
    let interrupts = Interrupts::listen()?;
    let gates = args.gates.feature_gates;
    let metrics = Arc::new(belay_controllers::Metrics::new(gates));
    let deliveries = Arc::new(belay_agent::Metrics::of_deliveries());
    let executes = args.executor == Executor::Controller;
    let shown = (Arc::clone(&metrics), Arc::clone(&deliveries));
    let text = move || {
        let (own, deliveries) = (shown.0.text(), &shown.1);
        match own.strip_suffix("# EOF\n") {
            Some(own) if executes => format!("{own}{}", deliveries.text()),
            _ => own,
        }
    };
    let readiness = Readiness::default();
    readiness.lacks(POLICIES, UNCHECKED);
    let monitor = Monitor::bind(args.listen, Arc::new(text), readiness.clone()).await?;
    let (client, server) = connect(global).await?;
    let address = monitor.address;
    let mut roles = Roles::default();
    let stop = roles.stop.clone();
    roles.add("monitor", async move {
        monitor.run(stop).await;
        Ok(())
    });
    // A pod's name outlives its containers, and a process must not take the lease of the one before
    // it for its own.
    let identity = args.identity.unwrap_or_else(place::default_node_name);
    let identity = format!("{identity}_{}", uuid::Uuid::new_v4());
    let mandate = Mandate::default();
    let leading = mandate.bind(client.clone());
    let candidate = Candidate {
        client: client.clone(),
        namespace: args.cluster.lease_namespace.clone(),
        name: CONTROLLER.to_owned(),
        identity,
        times: Times::default(),
        mandate,
        metrics: Arc::clone(&metrics),
    };
    let controllers = Controllers {
        client: leading.clone(),
        metrics,
        namespace: args.cluster.lease_namespace.clone(),
        hook_ttl: args.hooks.hook_ttl,
    };
    let executor = executes.then(|| belay_agent::Executor {
        client: leading,
        gates,
        max_actions: belay_agent::DEFAULT_MAX_ACTIONS,
        metrics: deliveries,
    });
    let stop = roles.stop.clone();
    roles.add("controllers", async move {
        if starts(&client, &args.cluster, args.executor, &stop).await? {
            readiness.has(POLICIES);
            tokio::spawn(
                stop.clone()
                    .run_until_cancelled_owned(reaching(client, readiness)),
            );
            let work = move |token| lead(controllers.clone(), executor.clone(), gates, token);
            election::run(candidate, work, stop).await;
        }
        Ok(())
    });
    let announce = async move {
        format::out(&format!(
            "belay controller: server {server}, metrics http://{address}/metrics\n"
        ))
    };
    roles.run(&interrupts, announce).await
}

/// What the replica does that acts.
async fn lead(
    controllers: Controllers,
    executor: Option<belay_agent::Executor>,
    gates: FeatureGates,
    token: CancellationToken,
) {
    let executing = async {
        if let Some(executor) = executor {
            let failed = belay_agent::executor(executor, token.clone()).await.err();
            // It fails only by a fault of the program; the process must not look alive without it.
            assert!(failed.is_none(), "the executor failed: {failed:?}");
        }
    };
    let controlling = async {
        if gates.enabled(Feature::ContainerNotifier) {
            controllers.run(token.clone()).await;
        } else {
            tracing::info!(
                "the feature gate ContainerNotifier is off: hooks are carried out, and deleted notifications are let go"
            );
            controllers.run_gated(token.clone()).await;
        }
    };
    futures::join!(Box::pin(controlling), executing);
}

/// `belay agent --mode=companion`.
pub(crate) async fn companion(global: &Global, args: AgentArgs) -> anyhow::Result<Exit> {
    let node_name = args.node_name.unwrap_or_else(place::default_node_name);
    if node_name == CONTROLLER {
        return Err(usage(format!(
            "a node cannot be called {CONTROLLER}: that is the name of the controller's lease"
        )));
    }
    let interrupts = Interrupts::listen()?;
    let gates = args.gates.feature_gates;
    let metrics = Arc::new(belay_agent::Metrics::new(gates));
    let shown = Arc::clone(&metrics);
    let endpoint = args.runtime_endpoint;
    let endpoint = endpoint.unwrap_or_else(|| runtime::CONTAINERD.to_owned());
    let lease = format!(
        "the agent's lease {}/{node_name} is not renewed",
        args.cluster.lease_namespace
    );
    let readiness = Readiness::default();
    readiness.lacks(POLICIES, UNCHECKED);
    readiness.lacks(
        RUNTIME,
        format!("the container runtime at {endpoint} has not been reached"),
    );
    readiness.lacks(LEASE, lease.clone());
    let text = Arc::new(move || shown.text());
    let monitor = Monitor::bind(args.listen, text, readiness.clone()).await?;
    let (client, server) = connect(global).await?;
    let data_dir = place::prepare_data_dir(&args.data_dir)?;
    let address = monitor.address;
    let mut roles = Roles::default();
    let stop = roles.stop.clone();
    roles.add("monitor", async move {
        monitor.run(stop).await;
        Ok(())
    });
    let (stop, name) = (roles.stop.clone(), node_name.clone());
    roles.add("agent", async move {
        if !starts(&client, &args.cluster, Executor::Agent, &stop).await? {
            return Ok(());
        }
        readiness.has(POLICIES);
        let runtime = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            runtime = cri(&endpoint, &data_dir, &readiness) => Arc::new(runtime),
        };
        let watched = beside(Arc::clone(&runtime), Arc::clone(&metrics), lease, readiness);
        tokio::spawn(stop.clone().run_until_cancelled_owned(watched));
        let config = belay_agent::Companion {
            node_name: name,
            data_dir,
            client,
            containers: Arc::clone(&runtime) as _,
            pods: runtime,
            gates,
            lease_namespace: args.cluster.lease_namespace,
            max_actions: usize::from(args.max_actions),
            metrics,
        };
        belay_agent::companion(config, stop)
            .await
            .map_err(Into::into)
    });
    let announce = async move {
        format::out(&format!(
            "belay agent: beside the kubelet of node {node_name}, server {server}, metrics http://{address}/metrics\n"
        ))
    };
    roles.run(&interrupts, announce).await
}

async fn connect(global: &Global) -> anyhow::Result<(Client, String)> {
    let config = connect::role_config(global).await?;
    let server = config.cluster_url.to_string();
    Ok((connect::client(config)?, server))
}

/// Whether the role acts: not when it is told to stop before. Refuses a cluster that is not
/// protected.
async fn starts(
    client: &Client,
    args: &ClusterArgs,
    executor: Executor,
    stop: &CancellationToken,
) -> anyhow::Result<bool> {
    tokio::select! {
        () = stop.cancelled() => Ok(false),
        checked = protection::require(client, args, executor) => {
            checked.map(|()| true)
        }
    }
}

/// The container runtime behind its socket, waited for until it answers: at boot it may come later.
async fn cri(endpoint: &str, state_dir: &Path, readiness: &Readiness) -> CriRuntime {
    let mut complained = false;
    loop {
        match CriRuntime::connect(endpoint, state_dir).await {
            Ok(runtime) => return runtime,
            Err(error) => {
                let error = anyhow::Error::new(error);
                let words = format!("{error:#} (the socket is chosen with --runtime-endpoint)");
                if !std::mem::replace(&mut complained, true) {
                    tracing::warn!("{words}; trying again");
                }
                readiness.lacks(RUNTIME, words);
                tokio::time::sleep(RUNTIME_RETRY).await;
            }
        }
    }
}

/// Keeps up what a companion says of its readiness.
async fn beside(
    runtime: Arc<CriRuntime>,
    metrics: Arc<belay_agent::Metrics>,
    lease: String,
    readiness: Readiness,
) {
    loop {
        match runtime.answers().await {
            Ok(()) => readiness.has(RUNTIME),
            Err(error) => readiness.lacks(RUNTIME, format!("{:#}", anyhow::Error::new(error))),
        }
        if metrics.lease_is_kept() {
            readiness.has(LEASE);
        } else {
            readiness.lacks(LEASE, lease.clone());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Keeps up whether a controller reaches the API server, standby or not.
async fn reaching(client: Client, readiness: Readiness) {
    loop {
        match tokio::time::timeout(ANSWER_WITHIN, client.apiserver_version()).await {
            Ok(Ok(_)) => readiness.has(SERVER),
            Ok(Err(error)) => {
                readiness.lacks(SERVER, format!("the API server cannot be reached: {error}"));
            }
            Err(_) => readiness.lacks(SERVER, "the API server does not answer"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
