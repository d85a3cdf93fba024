//! One Notification over the pods of a hundred nodes: the real server with its controllers, and real
//! agents whose runtime acts instantly.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant as Moment},
};

use anyhow::Context;
use belay_agent::{AgentError, Companion, DEFAULT_MAX_ACTIONS, Metrics};
use belay_api::{gates::FeatureGates, pod::NOTIFIERS_ANNOTATION};
use belay_testkit::{
    FANOUTS, Instance, PODS, Rest, eventually_within, fanout, pod, processes,
    rest::{Watch, name, revision},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    clients::{CLIENTS, Clients},
    instant::{CONTAINER, Instant},
    requests::{Writes, open_watches},
    scaled,
};

const PODS_NOTIFIED: usize = 10_000;
const NODES: usize = 100;
const NOTIFIER: &str = "work";
const LABEL: (&str, &str) = ("app", "fleet");
/// A companion watches its notifications, its actions of hooks and the copies of its pods.
const WATCHES_EACH: usize = 3;

pub(crate) async fn measure() -> anyhow::Result<String> {
    let (count, nodes) = (scaled(PODS_NOTIFIED)?, scaled(NODES)?);
    let instance = Instance::server().start().await?;
    let server = instance.pid()?;
    let admin = instance.admin().await?;
    let clients = Clients::connect(&instance.kubeconfig()).await?;
    let notifier = json!({"name": NOTIFIER, "handler": {"exec": {"command": ["true"]}},
                          "timeoutSeconds": 30});
    let notifiers = json!({CONTAINER: [notifier]}).to_string();
    let runtime = Arc::new(Instant::new(notifiers.clone()));
    run_pods(&clients, &runtime, &notifiers, count, nodes).await?;
    let without = own_kib()?;
    let fleet = Fleet::start(&instance, &admin, &runtime, nodes).await?;

    let before = Writes::so_far(&admin).await?;
    let idle = processes::anonymous_kib(server).context("no memory figure")?;
    let highest = Highest::of(server);
    let traffic = Traffic::of_node(&admin, &node(0)).await?;
    let from = revision(&admin.get(FANOUTS).await?.ok()?);
    let path = format!("{FANOUTS}?watch=true&resourceVersion={from}");
    let mut watch = admin.watch(&path).await?;
    let asked = fanout("fleet", LABEL, NOTIFIER).spec("deadlineSeconds", 600);
    let begin = Moment::now();
    admin.post(FANOUTS, &asked.build()).await?.ok()?;
    let status = completed(&mut watch).await?;
    let took = begin.elapsed();
    anyhow::ensure!(
        status["succeededCount"] == count,
        "{} succeeded, {} failed",
        status["succeededCount"],
        status["failedCount"]
    );
    let writes = Writes::so_far(&admin).await?.since(&before);
    // The last event is on its way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let highest = highest.kib().max(idle);
    let settled = processes::anonymous_kib(server).context("no memory figure")?;
    let with = own_kib()?;
    fleet.stop().await?;
    let alone = clients.writes_alone("alone", count * 3).await?;

    let each = |number: u64| number as f64 / count as f64;
    let mib = |kib: u64| kib as f64 / 1024.0;
    let status_writes = writes.of("notifications/status");
    // A status at most once a second, one at the start, one at the end.
    let allowed = took.as_secs() + 3;
    let met = |met: bool| if met { "yes" } else { "no" };
    let of_pods = writes.of("podnotifications") + writes.of("podnotifications/status");
    let all: Vec<String> = writes
        .iter()
        .map(|(what, count)| format!("{count} `{what}`"))
        .collect();
    Ok(format!(
        "## One Notification over {count} pods on {nodes} nodes\n\n\
         `belay server` with its controllers, and {nodes} agents in one process beside it, each \
         with its own identity, connections, watches and journal; their runtime acts instantly. \
         Server, controllers and agents share the machine's cores, and all journals its disk. From \
         the create request until a watcher holds `completeTime`. Beside it what as many durable \
         writes alone take from {CLIENTS} clients. Target: three writes for each pod (its \
         creation, the claim, the result), and at most one of the Notification's status in a \
         second besides those of start and end.\n\n\
         | what | figure | met |\n|---|---|---|\n\
         | total time | {:.2} s ({:.0} pods/s) | |\n\
         | {} durable writes alone | {:.2} s ({:.2} of the total) | |\n\
         | writes of PodNotifications for each pod | {:.2} | {} |\n\
         | writes of the Notification's status | {status_writes} | {} |\n\
         | all writes | {} | |\n\
         | RssAnon of the server: before, highest, 1 s after | {:.1}, {:.1}, {:.1} MiB | |\n\
         | RssAnon of the process with all agents: before their start, at the end | {:.1}, {:.1} \
         MiB | |\n\
         | watch traffic of one agent ({} pods) | {:.1} KiB in {} events | |\n",
        took.as_secs_f64(),
        count as f64 / took.as_secs_f64(),
        count * 3,
        alone.as_secs_f64(),
        alone.as_secs_f64() / took.as_secs_f64(),
        each(of_pods),
        met(of_pods == 3 * count as u64),
        met(status_writes <= allowed),
        all.join(", "),
        mib(idle),
        mib(highest),
        mib(settled),
        mib(without),
        mib(with),
        (0..count).step_by(nodes).count(),
        traffic.bytes() as f64 / 1024.0,
        traffic.events(),
    ))
}

fn own_kib() -> anyhow::Result<u64> {
    processes::anonymous_kib(std::process::id()).context("no memory figure")
}

fn node(number: usize) -> String {
    format!("n{number}")
}

/// Makes pods that run, as far as the API and the runtime can tell; spread evenly over the nodes.
async fn run_pods(
    clients: &Clients,
    runtime: &Arc<Instant>,
    notifiers: &str,
    count: usize,
    nodes: usize,
) -> anyhow::Result<()> {
    let (runtime, notifiers) = (Arc::clone(runtime), notifiers.to_owned());
    let run = move |rest: Rest, number: usize| {
        let (runtime, notifiers) = (Arc::clone(&runtime), notifiers.clone());
        async move {
            let manifest = pod(&format!("p{number}"))
                .label(LABEL.0, LABEL.1)
                .annotation(NOTIFIERS_ANNOTATION, &notifiers)
                .container(CONTAINER, ["sleep", "86400"])
                .node(&node(number % nodes));
            let created = rest.post(PODS, &manifest.build()).await?.ok()?;
            let uid = created["metadata"]["uid"].as_str().context("no UID")?;
            runtime.run(uid, name(&created));
            let path = format!("{PODS}/{}/status", name(&created));
            let running = json!({"status": {"phase": "Running"}});
            rest.merge(&path, &running).await?.ok()?;
            Ok(())
        }
    };
    clients.each(count, run).await
}

/// The state of the only Notification, once it is complete.
async fn completed(watch: &mut Watch) -> anyhow::Result<Value> {
    loop {
        let mut event = watch.next().await.context("the watch ended")?;
        let status = event["object"]["status"].take();
        if status["completeTime"].is_string() {
            return Ok(status);
        }
    }
}

/// Agents of this process.
struct Fleet {
    stop: CancellationToken,
    agents: JoinSet<Result<(), AgentError>>,
    /// Their journals; removed after they have ended.
    dir: tempfile::TempDir,
}

impl Fleet {
    /// Starts an agent on every node, and waits until all watch.
    async fn start(
        instance: &Instance,
        admin: &Rest,
        runtime: &Arc<Instant>,
        nodes: usize,
    ) -> anyhow::Result<Self> {
        let others = open_watches(admin).await?;
        let mut fleet = Self {
            stop: CancellationToken::new(),
            agents: JoinSet::new(),
            dir: tempfile::tempdir()?,
        };
        for number in 0..nodes {
            let name = node(number);
            let identity = instance.node_kubeconfig(&name).await?;
            let client = Rest::from_kubeconfig_text(&identity).await?.client();
            let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
            admin.post("/api/v1/nodes", &object).await?.ok()?;
            let agent = companion(&name, client, runtime, fleet.dir.path());
            fleet
                .agents
                .spawn(belay_agent::companion(agent, fleet.stop.clone()));
        }
        let expected = others + (nodes * WATCHES_EACH) as u64;
        eventually_within(
            Duration::from_secs(300),
            "the agents' watches",
            async || Ok((open_watches(admin).await? >= expected).then_some(())),
        )
        .await?;
        Ok(fleet)
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.agents.join_next().await {
            ended??;
        }
        Ok(())
    }
}

fn companion(name: &str, client: kube::Client, runtime: &Arc<Instant>, dir: &Path) -> Companion {
    let gates = FeatureGates::default();
    Companion {
        node_name: name.to_owned(),
        data_dir: dir.join(name),
        client,
        containers: Arc::clone(runtime) as _,
        pods: Arc::clone(runtime) as _,
        gates,
        // The only one in which the embedded server lets a node keep a lease.
        lease_namespace: "kube-node-lease".to_owned(),
        max_actions: DEFAULT_MAX_ACTIONS,
        metrics: Arc::new(Metrics::new(gates)),
    }
}

/// The most anonymous memory that a process was seen to have.
pub(crate) struct Highest {
    kib: Arc<AtomicU64>,
    /// Ends with it.
    _looking: JoinSet<()>,
}

impl Highest {
    pub(crate) fn of(pid: u32) -> Self {
        let kib = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&kib);
        let mut looking = JoinSet::new();
        looking.spawn(async move {
            loop {
                let now = processes::anonymous_kib(pid).unwrap_or_default();
                seen.fetch_max(now, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Self {
            kib,
            _looking: looking,
        }
    }

    pub(crate) fn kib(&self) -> u64 {
        self.kib.load(Ordering::Relaxed)
    }
}

/// What the watch of one agent's notifications carries, counted by a second watch like it.
struct Traffic {
    bytes: Arc<AtomicU64>,
    events: Arc<AtomicU64>,
    /// Ends with it.
    _reading: JoinSet<()>,
}

impl Traffic {
    async fn of_node(rest: &Rest, node: &str) -> anyhow::Result<Self> {
        let all = "/apis/apps.k8s.io/v1alpha1/podnotifications";
        let from = revision(&rest.get(&format!("{all}?limit=1")).await?.ok()?);
        let path = format!(
            "{all}?watch=true&allowWatchBookmarks=true&resourceVersion={from}\
             &fieldSelector=status.nodeName%3D{node}"
        );
        let mut watch = rest.watch(&path).await?;
        let (bytes, events) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (seen_bytes, seen_events) = (Arc::clone(&bytes), Arc::clone(&events));
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            while let Some(line) = watch.next_line().await {
                seen_bytes.fetch_add(line.len() as u64, Ordering::Relaxed);
                seen_events.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(Self {
            bytes,
            events,
            _reading: reading,
        })
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }
}
