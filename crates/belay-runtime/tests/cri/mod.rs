//! Pods on a real containerd, as a kubelet runs them.

// Every test file takes what it needs.
#![allow(dead_code, unreachable_pub, unused_imports)]

#[path = "../fixture/mod.rs"]
mod fixture;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belay_action::{ContainerId, Found, Report, Running, Target};
use belay_runtime::{Containers, CriRuntime};
use belay_shim::proc::Process;
use belay_testkit::containerd::{Containerd, Installation};
use belay_testkit::{ContainerSpec, Kubelet, PodSpec};
pub use fixture::{LONG, attempt, exec, soon, unique_seconds, until, with_argument};

/// Runs a test on every containerd there is, one that the test binary shares.
pub async fn on_each(test: impl AsyncFn(Bench)) {
    for installation in Installation::each() {
        let containerd = Containerd::shared(&installation).await.unwrap();
        test(Bench::new(containerd).await).await;
    }
}

/// Runs a test on every containerd there is, one of the test's own.
pub async fn on_own(test: impl AsyncFn(&mut Containerd)) {
    for installation in Installation::each() {
        let mut containerd = Containerd::start(&installation).await.unwrap();
        test(&mut containerd).await;
    }
}

/// A runtime with a directory of its own.
pub struct Bench {
    pub state: PathBuf,
    pub endpoint: String,
    pub runtime: CriRuntime,
    pub kubelet: Kubelet,
}

impl Bench {
    pub async fn new(containerd: &Containerd) -> Self {
        let state = containerd.dir().join(format!("agent-{}", unique()));
        let endpoint = containerd.endpoint();
        let runtime = CriRuntime::connect(&endpoint, &state).await.unwrap();
        Bench {
            state,
            endpoint,
            runtime,
            kubelet: containerd.kubelet(),
        }
    }

    /// The runtime as a new agent would see it.
    pub async fn reopen(&mut self) {
        self.runtime = CriRuntime::connect(&self.endpoint, &self.state)
            .await
            .unwrap();
    }

    pub fn exec_dir(&self, id: &ContainerId, attempt: &str) -> PathBuf {
        self.state
            .join("cri")
            .join(id.as_str())
            .join("execs")
            .join(attempt)
    }

    /// Runs a pod with one container.
    pub async fn run(&self, container: &ContainerSpec) -> Pod {
        let pod = pod();
        let sandbox = self.kubelet.run_pod(&pod).await.unwrap();
        let id = self
            .kubelet
            .run_container(&sandbox, &pod, container)
            .await
            .unwrap();
        Pod {
            id: ContainerId::new(id).unwrap(),
            sandbox,
            spec: pod,
        }
    }

    /// A pod whose container sleeps, and that container as a target.
    pub async fn sleeper(&self) -> (Pod, Arc<dyn Target>) {
        let pod = self
            .run(&ContainerSpec::sh("main", "exec sleep 1000000"))
            .await;
        let target = self.target(&pod).await;
        (pod, target)
    }

    pub async fn target(&self, pod: &Pod) -> Arc<dyn Target> {
        self.runtime.target(&pod.id).await.unwrap()
    }
}

/// A pod that runs, and its one container.
pub struct Pod {
    pub spec: PodSpec,
    pub sandbox: String,
    pub id: ContainerId,
}

/// A pod of which there is no other.
pub fn pod() -> PodSpec {
    let number = unique();
    PodSpec {
        uid: format!("uid-{number}"),
        name: format!("pod-{number}"),
        namespace: "default".to_owned(),
        ..PodSpec::default()
    }
}

/// Starts a shell script and waits for its end.
pub async fn run(target: &Arc<dyn Target>, id: &str, script: &str) -> Report {
    let mut running = target.start(&exec(id, script, LONG)).await.unwrap();
    soon(running.wait()).await.unwrap()
}

pub async fn found_running(target: &Arc<dyn Target>, id: &str) -> Box<dyn Running> {
    match target.find(&attempt(id)).await.unwrap() {
        Found::Running(running) => running,
        other => panic!("{other:?}"),
    }
}

/// An attempt whose process is gone. containerd may learn of that a moment later than `/proc`.
pub async fn found_ended(target: &Arc<dyn Target>, id: &str) -> Report {
    let found = async {
        loop {
            match target.find(&attempt(id)).await.unwrap() {
                Found::Ended(report) => return report,
                Found::Running(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                other => panic!("{other:?}"),
            }
        }
    };
    soon(found).await
}

/// A number that no other test and no other run uses.
pub fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{number}", std::process::id())
}

/// Whether a process lives.
pub fn lives(pid: i32) -> bool {
    Process::read(pid)
        .unwrap()
        .is_some_and(|process| !process.is_dead())
}
