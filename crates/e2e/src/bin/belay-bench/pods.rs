//! Pods from their creation to their end: under a real kubelet, under Belay on the same containerd,
//! and under Belay with no runtime at all.

use std::{
    collections::HashMap,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::Context;
use belay_api::signal::Signal;
use belay_testkit::{
    Cluster, ContainerSpec, Instance, Kubelet, PODS, Part, PodSpec, Rest, binary, eventually,
    image, pod, processes,
    rest::{name, revision},
};
use futures::future::try_join_all;
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use tokio::{process::Child, sync::oneshot, task::JoinSet};

use crate::{
    raw,
    samples::{Samples, ms, us},
    scaled,
};

const ROUNDS: usize = 100;
const MANY: usize = 100;
const SIGNALS: usize = 200;
/// Idle means that start-up is over and a few heartbeats have passed.
const IDLE: Duration = Duration::from_secs(30);
/// Ends at once when it is told to.
const SCRIPT: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done";
/// Where a cluster's containerd listens, inside.
const RUNTIME: &str = "unix:///run/containerd/containerd.sock";

pub(crate) async fn measure() -> anyhow::Result<String> {
    let mut page = "## Pods\n\n".to_owned();
    let process = on_processes().await?;
    let own = raw::stops_of_processes(SCRIPT, scaled(ROUNDS)?).await?;
    let Some(mut cluster) = Cluster::start().await? else {
        page.push_str("The kubelet was not measured: there was no Kubernetes.\n");
        return Ok(page);
    };
    let kubelet = under_the_kubelet(&cluster).await?;
    for part in [
        Part::Kubelet,
        Part::Scheduler,
        Part::ControllerManager,
        Part::ApiServer,
        Part::Etcd,
    ] {
        cluster.kill9(part).await?;
    }
    let cri = on_its_containerd(&cluster).await?;
    let own_cri = raw_stops(&cluster).await?;
    page.push_str(&format!(
        "One container, whose program ends at once on SIGTERM. *Ready*: from the create request to \
         the watch event with the condition; *gone*: from the delete request to the watch event of \
         the deletion; {} pods, one after the other. Then {MANY} pods: until all are ready, the \
         memory (RssAnon) of who runs them {} s later, and how long it takes until all are gone that \
         are deleted at once. The kubelet of Kubernetes with its control plane; then, on the same \
         containerd, `belay up`, which is server and agent in one; and `belay up` with no runtime. \
         Targets: half of the kubelet's time to Ready, a fifth of its time to gone.\n\n\
         | who | Ready p50 | p99 | gone p50 | p99 | {MANY} Ready | {MANY} gone | memory, no pods | \
         {MANY} pods |\n|---|---|---|---|---|---|---|---|---|\n{}{}{}\n",
        kubelet.ready.len(),
        IDLE.as_secs(),
        kubelet.row("kubelet"),
        cri.row("Belay on containerd"),
        process.row("Belay on processes"),
    ));
    page.push_str(&format!(
        "To the kubelet's: Ready {}, gone {}. On processes, where nothing is isolated: {} and {}.\n\n",
        judged(cri.ready.p50(), kubelet.ready.p50(), 0.5),
        judged(cri.gone.p50(), kubelet.gone.p50(), 0.2),
        ratio(process.ready.p50(), kubelet.ready.p50()),
        ratio(process.gone.p50(), kubelet.gone.p50()),
    ));
    page.push_str(&format!(
        "The kubelet's whole stack (API server, etcd, controller manager, scheduler, kubelet) had \
         {:.0} MiB; `belay up` is all of it.\n\n",
        kubelet.stack_kib as f64 / 1024.0
    ));
    let row = |what: &str, measured: &Samples, raw: &Samples, allowance: u64| {
        let beyond = measured.p50().saturating_sub(raw.p50());
        let met = if beyond <= Duration::from_millis(allowance) {
            "yes"
        } else {
            "no"
        };
        format!(
            "| {what} | {} | {} | {} | {allowance} ms | {met} |\n",
            ms(measured.p50()),
            ms(raw.p50()),
            ms(beyond),
        )
    };
    page.push_str(&format!(
        "The end of a pod beyond the runtime's own work: *gone* as above, less the same stop asked \
         of the runtime itself without server and agent (signal, end, removal; on containerd also \
         of the sandbox).\n\n\
         | runtime | gone p50 | raw p50 | beyond | target | met |\n|---|---|---|---|---|---|\n{}{}\n",
        row("processes", &process.gone, &own, 10),
        row("containerd", &cri.gone, &own_cri, 50),
    ));
    page.push_str(&signals().await?);
    Ok(page)
}

fn ratio(one: Duration, other: Duration) -> String {
    format!("{:.2}", one.as_secs_f64() / other.as_secs_f64())
}

fn judged(one: Duration, other: Duration, target: f64) -> String {
    let met = one.as_secs_f64() <= target * other.as_secs_f64();
    let told = if met { "met" } else { "missed" };
    format!("{} (target {target}: {told})", ratio(one, other))
}

/// What is told of one way to run pods.
struct Figures {
    ready: Samples,
    gone: Samples,
    all_ready: Duration,
    all_gone: Duration,
    empty_kib: u64,
    full_kib: u64,
    /// With everything that belongs to it.
    stack_kib: u64,
}

impl Figures {
    fn row(&self, who: &str) -> String {
        format!(
            "| {who} | {} | {} | {} | {} | {:.1} s | {:.1} s | {:.1} MiB | {:.1} MiB |\n",
            ms(self.ready.p50()),
            ms(self.ready.p99()),
            ms(self.gone.p50()),
            ms(self.gone.p99()),
            self.all_ready.as_secs_f64(),
            self.all_gone.as_secs_f64(),
            self.empty_kib as f64 / 1024.0,
            self.full_kib as f64 / 1024.0,
        )
    }

    /// Runs the pods through one server; `pids` are of whoever runs them, the agent first.
    async fn of(admin: &Rest, pids: &[u32]) -> anyhow::Result<Self> {
        let memory = |pid: &u32| processes::anonymous_kib(*pid).context("no memory figure");
        let lives = Lives::watch(admin).await?;
        tokio::time::sleep(IDLE).await;
        let agent = pids.first().context("nobody to measure")?;
        let empty_kib = memory(agent)?;
        let (mut ready, mut gone) = (Samples::default(), Samples::default());
        for round in 0..scaled(ROUNDS)? {
            let one = format!("one-{round}");
            ready.push(lives.create(admin, &one).await?);
            gone.push(lives.delete(admin, &one).await?);
        }
        let names: Vec<String> = (0..scaled(MANY)?).map(|n| format!("many-{n}")).collect();
        let begin = Instant::now();
        try_join_all(names.iter().map(|name| lives.create(admin, name))).await?;
        let all_ready = begin.elapsed();
        tokio::time::sleep(IDLE).await;
        let full_kib = memory(agent)?;
        let stack_kib = pids.iter().map(memory).sum::<anyhow::Result<u64>>()?;
        let begin = Instant::now();
        try_join_all(names.iter().map(|name| lives.delete(admin, name))).await?;
        Ok(Self {
            ready,
            gone,
            all_ready,
            all_gone: begin.elapsed(),
            empty_kib,
            full_kib,
            stack_kib,
        })
    }
}

async fn on_processes() -> anyhow::Result<Figures> {
    let instance = Instance::up().start().await?;
    Figures::of(&instance.admin().await?, &[instance.pid()?]).await
}

async fn under_the_kubelet(cluster: &Cluster) -> anyhow::Result<Figures> {
    let parts = [
        Part::Kubelet,
        Part::ApiServer,
        Part::Etcd,
        Part::ControllerManager,
        Part::Scheduler,
    ];
    let pids: Option<Vec<u32>> = parts.iter().map(|part| cluster.pid(*part)).collect();
    Figures::of(&cluster.admin().await?, &pids.context("a part has ended")?).await
}

/// `belay up` inside the cluster, in the kubelet's place.
struct Inside {
    _child: Child,
    pid: u32,
    kubeconfig: PathBuf,
}

impl Inside {
    async fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let dir = cluster.dir().join("belay-up");
        let log = std::fs::File::create(cluster.dir().join("belay-up.log"))?;
        let child = cluster
            .inside(binary::belay()?)
            .arg("up")
            .arg("--data-dir")
            .arg(&dir)
            .args(["--listen", &format!("{}:7443", cluster.address())])
            .args(["--runtime", "cri", "--runtime-endpoint", RUNTIME])
            .args(["--node-name", "n1"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start belay")?;
        let entered = child.id().context("belay has ended")?;
        let kubeconfig = dir.join("kubeconfig");
        eventually("the node", async || {
            let admin = Rest::from_kubeconfig(&kubeconfig).await?;
            let node = admin.get("/api/v1/nodes/n1").await?.ok()?;
            let conditions = node["status"]["conditions"].as_array();
            let ready = conditions.is_some_and(|all| all.iter().any(is_ready));
            Ok(ready.then_some(()))
        })
        .await
        .with_context(|| {
            std::fs::read_to_string(cluster.dir().join("belay-up.log")).unwrap_or_default()
        })?;
        let pid = processes::children(entered).first().copied();
        Ok(Self {
            _child: child,
            pid: pid.context("belay has ended")?,
            kubeconfig,
        })
    }
}

async fn on_its_containerd(cluster: &Cluster) -> anyhow::Result<Figures> {
    let belay = Inside::start(cluster).await?;
    let admin = Rest::from_kubeconfig(&belay.kubeconfig).await?;
    Figures::of(&admin, &[belay.pid]).await
}

/// The same stop asked of that containerd directly.
async fn raw_stops(cluster: &Cluster) -> anyhow::Result<Samples> {
    let socket = cluster.dir().join("node/run/containerd/containerd.sock");
    let group = cluster
        .dir()
        .file_name()
        .context("a directory without a name")?;
    let kubelet = Kubelet::new(&socket, &group.to_string_lossy());
    let mut samples = Samples::default();
    for round in 0..scaled(ROUNDS)? {
        let pod = PodSpec {
            uid: format!("raw-{round}"),
            name: format!("raw-{round}"),
            namespace: "default".into(),
            own_network: true,
            ..PodSpec::default()
        };
        let sandbox = kubelet.run_pod(&pod).await?;
        let id = kubelet
            .run_container(&sandbox, &pod, &ContainerSpec::sh("main", SCRIPT))
            .await?;
        let begin = Instant::now();
        kubelet.stop_container(&id, 30).await?;
        kubelet.remove_container(&id).await?;
        kubelet.remove_pod(&sandbox).await?;
        samples.push(begin.elapsed());
    }
    Ok(samples)
}

fn is_ready(condition: &Value) -> bool {
    condition["type"] == "Ready" && condition["status"] == "True"
}

/// What somebody waits for in the life of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Moment {
    Ready,
    Gone,
}

type Waiting = Arc<Mutex<HashMap<(String, Moment), oneshot::Sender<Instant>>>>;

/// Sees pods become ready and go through one watch.
struct Lives {
    waiting: Waiting,
    /// Ends with it.
    _watch: JoinSet<()>,
}

impl Lives {
    async fn watch(rest: &Rest) -> anyhow::Result<Self> {
        let mut from = revision(&rest.get(&format!("{PODS}?limit=1")).await?.ok()?);
        let waiting = Waiting::default();
        let (told, rest) = (Arc::clone(&waiting), rest.clone());
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            // A server ends a watch that it finds too slow; what comes after is in the next one.
            while let Ok(mut watch) = rest
                .watch(&format!("{PODS}?watch=true&resourceVersion={from}"))
                .await
            {
                while let Some(event) = watch.next().await {
                    let (at, object) = (Instant::now(), &event["object"]);
                    if event["type"] == "ERROR" {
                        eprintln!("the watch of pods is of no use any more: {object}");
                        return told.lock().expect("no panic").clear();
                    }
                    from = revision(object);
                    let conditions = object["status"]["conditions"].as_array();
                    let moment = if event["type"] == "DELETED" {
                        Moment::Gone
                    } else if conditions.is_some_and(|all| all.iter().any(is_ready)) {
                        Moment::Ready
                    } else {
                        continue;
                    };
                    let key = (name(object).to_owned(), moment);
                    let waiter = told.lock().expect("no panic").remove(&key);
                    if let Some(waiter) = waiter {
                        // Whoever waited may have given up.
                        let _ = waiter.send(at);
                    }
                }
                eprintln!("the watch of pods ended after {from}; it goes on from there");
            }
            told.lock().expect("no panic").clear();
        });
        Ok(Self {
            waiting,
            _watch: reader,
        })
    }

    fn of(&self, name: &str, moment: Moment) -> oneshot::Receiver<Instant> {
        let (sender, receiver) = oneshot::channel();
        self.waiting
            .lock()
            .expect("no panic")
            .insert((name.to_owned(), moment), sender);
        receiver
    }

    async fn create(&self, rest: &Rest, name: &str) -> anyhow::Result<Duration> {
        let ready = self.of(name, Moment::Ready);
        let manifest = pod(name)
            .container("main", ["sh", "-c", SCRIPT])
            .container_field("image", image::BUSYBOX)
            .build();
        let begin = Instant::now();
        rest.post(PODS, &manifest).await?.ok()?;
        let ready = ready.await.context("the watch ended")?;
        Ok(ready.saturating_duration_since(begin))
    }

    async fn delete(&self, rest: &Rest, name: &str) -> anyhow::Result<Duration> {
        let gone = self.of(name, Moment::Gone);
        let begin = Instant::now();
        rest.delete(&format!("{PODS}/{name}")).await?.ok()?;
        let gone = gone.await.context("the watch ended")?;
        Ok(gone.saturating_duration_since(begin))
    }
}

/// A signal through each runtime, beside a bare `kill`.
async fn signals() -> anyhow::Result<String> {
    let hup: Signal = "SIGHUP".parse().context("SIGHUP is a signal")?;
    let count = scaled(SIGNALS)?;
    let process = raw::Container::start().await?;
    let bare = tokio::process::Command::new("sh")
        .args(["-c", raw::IDLE])
        .kill_on_drop(true)
        .spawn()?;
    let pid = bare.id().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw).context("no process")?;
    // Its trap must be set before the first.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let (mut kills, mut through) = (Samples::default(), Samples::default());
    for _ in 0..count {
        let begin = Instant::now();
        kill_process(pid, rustix::process::Signal::HUP)?;
        kills.push(begin.elapsed());
        through.push(process.signal(hup).await?);
    }
    process.stop().await?;
    let row = |what: &str, samples: &Samples| {
        let (half, most) = (us(samples.p50()), us(samples.p99()));
        format!(
            "| {what} | {half} | {most} | {} |\n",
            ratio(samples.p50(), kills.p50())
        )
    };
    let mut rows = row("`kill(2)`", &kills) + &row("processes, by a pidfd", &through);
    for (version, container) in raw::Container::on_every_containerd().await? {
        let (mut as_node, mut by_tasks) = (Samples::default(), Samples::default());
        for _ in 0..count {
            as_node.push(container.signal_as_node(hup).await?);
            by_tasks.push(container.signal(hup).await?);
        }
        container.stop().await?;
        rows += &row(&format!("{version}, by a pidfd (a node)"), &as_node);
        rows += &row(
            &format!("{version}, by its task service (a companion)"),
            &by_tasks,
        );
    }
    Ok(format!(
        "A signal to the first process of a container until the call has returned; the kernel has \
         it then. {count} of each.\n\n| how | p50 | p99 | p50 to `kill(2)` |\n|---|---|---|---|\n{rows}"
    ))
}
