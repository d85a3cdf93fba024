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
use belay_action::{AttemptId, ExecRequest, Outcome, Target};
use belay_api::signal::Signal;
use belay_runtime::{ContainerConfig, Containers as _, PodRuntime, ProcessRuntime};
use tokio::task::JoinSet;

use crate::samples::Samples;

/// A container that does nothing but handle SIGHUP, on a runtime of its own.
pub(crate) struct Container {
    runtime: ProcessRuntime,
    target: Arc<dyn Target>,
    next: AtomicUsize,
    /// Removed last.
    _dir: tempfile::TempDir,
}

/// What [`Container`] and the pods of the measurements run.
pub(crate) const IDLE: &str = "trap : HUP; while :; do sleep 3600 & wait; done";

impl Container {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let runtime = ProcessRuntime::open(&dir.path().join("runtime"))?;
        let config = ContainerConfig {
            pod_namespace: "default".into(),
            pod_name: "raw".into(),
            pod_uid: "raw".into(),
            name: "main".into(),
            restart_count: 0,
            image: "none".into(),
            command: ["sh", "-c", IDLE].map(String::from).to_vec(),
            env: Vec::new(),
            working_dir: None,
            user: None,
            group: None,
            log_path: dir.path().join("log"),
        };
        let id = runtime.start(&config).await?;
        let target = runtime.target(&id).await?;
        Ok(Self {
            runtime,
            target,
            next: AtomicUsize::new(0),
            _dir: dir,
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
        let id = self.target.incarnation().id.clone();
        self.runtime.kill_tree(&id).await?;
        Ok(())
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
