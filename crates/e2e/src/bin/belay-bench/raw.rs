//! The same work without Belay's server and agent: the runtime driven directly, the disk driven
//! directly.

use std::{
    fs::File,
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use belay_action::{AttemptId, ContainerId, ExecRequest, Outcome, Target};
use belay_api::signal::Signal;
use belay_runtime::{ContainerConfig, Containers as _, CriRuntime, PodRuntime, ProcessRuntime};
use belay_testkit::{ContainerSpec, Containerd, PodSpec, containerd::Installation};
use tokio::task::JoinSet;

use crate::samples::Samples;

/// A container that does nothing but handle SIGHUP, on a runtime of its own.
pub(crate) struct Container {
    target: Arc<dyn Target>,
    /// The same, signalled as whoever runs the pods does it, who asks no runtime for that.
    as_node: Arc<dyn Target>,
    next: AtomicUsize,
    home: Home,
}

/// What it runs on; removed after everything that uses it.
enum Home {
    Process {
        runtime: ProcessRuntime,
        _dir: tempfile::TempDir,
    },
    Containerd(Containerd),
}

/// What [`Container`] and the pods of the measurements run. A signal makes it do nothing: one that
/// started a process for each of thousands would be what is measured in the end.
pub(crate) const IDLE: &str = "trap : HUP; sleep 86400 & while :; do wait $!; done";

impl Container {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let runtime = ProcessRuntime::open(&dir.path().join("runtime"))?;
        let id = runtime.start(&config(dir.path(), IDLE)).await?;
        let target = runtime.target(&id).await?;
        Ok(Self {
            as_node: Arc::clone(&target),
            target,
            next: AtomicUsize::new(0),
            home: Home::Process { runtime, _dir: dir },
        })
    }

    /// The same on a containerd that nobody else uses, driven through its task service: the one that
    /// clusters of tests have, where there is one.
    pub(crate) async fn on_containerd() -> anyhow::Result<Self> {
        let mut all = Installation::all().map_err(anyhow::Error::msg)?;
        // What was given comes after what the machine has.
        let installation = all.pop().context("no containerd")?;
        Self::on(Containerd::start(&installation).await?).await
    }

    /// The same on each containerd that can be used here, with its name and version.
    pub(crate) async fn on_every_containerd() -> anyhow::Result<Vec<(String, Self)>> {
        let mut every = Vec::new();
        for installation in Installation::all().map_err(anyhow::Error::msg)? {
            let containerd = Containerd::start(&installation).await?;
            let version = containerd.kubelet().version().await?;
            every.push((format!("containerd {version}"), Self::on(containerd).await?));
        }
        Ok(every)
    }

    async fn on(containerd: Containerd) -> anyhow::Result<Self> {
        let pod = PodSpec {
            uid: "raw".into(),
            name: "raw".into(),
            namespace: "default".into(),
            ..PodSpec::default()
        };
        let kubelet = containerd.kubelet();
        let sandbox = kubelet.run_pod(&pod).await?;
        let id = kubelet
            .run_container(&sandbox, &pod, &ContainerSpec::sh("main", IDLE))
            .await?;
        let dir = containerd.dir().join("raw");
        let runtime = CriRuntime::connect(&containerd.endpoint(), &dir).await?;
        let id = ContainerId::new(id)?;
        let target = runtime.target(&id).await?;
        Ok(Self {
            target,
            as_node: runtime.without_tasks().target(&id).await?,
            next: AtomicUsize::new(0),
            home: Home::Containerd(containerd),
        })
    }

    /// Runs a command to its end, and forgets it.
    pub(crate) async fn exec(&self, command: &[&str]) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let attempt = AttemptId::new(format!("raw-{number}"))?;
        let request = ExecRequest {
            attempt: attempt.clone(),
            command: command.iter().map(|part| (*part).to_owned()).collect(),
            timeout: Duration::from_secs(60),
        };
        let mut running = self.target.start(&request).await?;
        let report = running.wait().await?;
        let took = begin.elapsed();
        anyhow::ensure!(report.outcome == Outcome::Succeeded, "{:?}", report.outcome);
        self.target.forget(&attempt).await;
        Ok(took)
    }

    pub(crate) async fn signal(&self, signal: Signal) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        self.target.signal(signal).await?;
        Ok(begin.elapsed())
    }

    pub(crate) async fn signal_as_node(&self, signal: Signal) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        self.as_node.signal(signal).await?;
        Ok(begin.elapsed())
    }

    /// Runs a command `count` times, at most `at_once` of them at the same time.
    pub(crate) async fn burst(
        self: &Arc<Self>,
        command: &'static [&'static str],
        count: usize,
        at_once: usize,
    ) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        let left = Arc::new(AtomicUsize::new(count));
        let mut workers = JoinSet::new();
        for _ in 0..at_once {
            let (container, left) = (Arc::clone(self), Arc::clone(&left));
            workers.spawn(async move {
                let take = |left: usize| left.checked_sub(1);
                while left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
                    .is_ok()
                {
                    container.exec(command).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = workers.join_next().await {
            ended??;
        }
        Ok(begin.elapsed())
    }

    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        let id = &self.target.incarnation().id;
        match &self.home {
            Home::Process { runtime, .. } => {
                runtime.kill_tree(id).await?;
            }
            Home::Containerd(containerd) => {
                containerd.kubelet().stop_container(id.as_str(), 0).await?;
            }
        }
        Ok(())
    }
}

/// What it takes to stop a container that ends on SIGTERM, on the process runtime: signal, end,
/// removal.
pub(crate) async fn stops_of_processes(script: &str, count: usize) -> anyhow::Result<Samples> {
    let dir = tempfile::tempdir()?;
    let runtime = ProcessRuntime::open(&dir.path().join("runtime"))?;
    let term: Signal = "SIGTERM".parse().context("SIGTERM is a signal")?;
    let mut samples = Samples::default();
    for number in 0..count {
        let ready = dir.path().join(format!("ready-{number}"));
        let script = format!("trap 'exit 0' TERM; : > {}; {script}", ready.display());
        let id = runtime.start(&config(dir.path(), &script)).await?;
        belay_testkit::until_file(&ready.display().to_string(), |_| true).await?;
        let target = runtime.target(&id).await?;
        let begin = Instant::now();
        target.signal(term).await?;
        runtime.wait(&id).await?;
        runtime.remove(&id).await?;
        samples.push(begin.elapsed());
    }
    Ok(samples)
}

/// A container of the process runtime that runs a shell script.
fn config(dir: &Path, script: &str) -> ContainerConfig {
    ContainerConfig {
        pod_namespace: "default".into(),
        pod_name: "raw".into(),
        pod_uid: "raw".into(),
        name: "main".into(),
        image: "none".into(),
        command: ["sh", "-c", script].map(String::from).to_vec(),
        log_path: dir.join("log"),
        ..ContainerConfig::default()
    }
}

/// What it costs to append `bytes` bytes to a file and to have them on disk.
pub(crate) fn durable_appends(dir: &Path, bytes: usize, count: usize) -> anyhow::Result<Samples> {
    let path = dir.join("raw-appends");
    let mut file = File::create(&path).context("cannot create a file to append to")?;
    let chunk = vec![b'x'; bytes];
    let mut samples = Samples::default();
    for _ in 0..count {
        let begin = Instant::now();
        file.write_all(&chunk)?;
        file.sync_data()?;
        samples.push(begin.elapsed());
    }
    Ok(samples)
}
