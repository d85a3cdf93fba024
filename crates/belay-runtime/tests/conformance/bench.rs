//! One runtime with one pod to run containers in.

// Every test file takes what it needs.
#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belay_action::{ContainerId, Found, Report, Target};
use belay_runtime::{
    ContainerConfig, ContainerStatus, CriRuntime, Mount, PodConfig, PodRuntime, ProcessRuntime,
    Propagation, Pull, Sandbox,
};
use belay_testkit::containerd::{Containerd, Installation};
use belay_testkit::image::BUSYBOX;
use belay_testkit::reaper::Reaper;

use crate::fixture::{LONG, attempt, exec, soon, until};

/// Runs a test on every runtime there is.
pub async fn on_each(test: impl AsyncFn(&mut Bench)) {
    let mut bench = Bench::on_processes().await;
    test(&mut bench).await;
    bench.finish().await;
    on_each_containerd(test).await;
}

/// Runs a test on every containerd there is, which the whole suite shares.
pub async fn on_each_containerd(test: impl AsyncFn(&mut Bench)) {
    for installation in Installation::each() {
        let containerd = Containerd::shared(&installation).await.unwrap();
        let mut bench = Bench::on_containerd(containerd).await;
        test(&mut bench).await;
        bench.finish().await;
    }
}

/// Runs a test on every containerd there is, one of the test's own.
pub async fn on_own(test: impl AsyncFn(&mut Containerd)) {
    for installation in Installation::each() {
        let mut containerd = Containerd::start(&installation).await.unwrap();
        test(&mut containerd).await;
    }
}

/// A runtime, a pod, and a directory that its containers see as the tests do.
pub struct Bench {
    pub runtime: Arc<dyn PodRuntime>,
    pub pod: PodConfig,
    pub sandbox: Sandbox,
    root: PathBuf,
    /// Where containerd is; `None` for plain processes.
    endpoint: Option<String>,
    /// Of plain processes, which have no containerd that ends them: who does, and their directory.
    _processes: Option<(Reaper, tempfile::TempDir)>,
}

impl Bench {
    async fn on_processes() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let reaper = Reaper::watch(&root).unwrap();
        Bench::new(root, None, Some((reaper, dir))).await
    }

    pub async fn on_containerd(containerd: &Containerd) -> Self {
        let root = containerd.dir().join(format!("bench-{}", unique()));
        std::fs::create_dir_all(&root).unwrap();
        Bench::new(root, Some(containerd.endpoint()), None).await
    }

    async fn new(
        root: PathBuf,
        endpoint: Option<String>,
        processes: Option<(Reaper, tempfile::TempDir)>,
    ) -> Self {
        let number = unique();
        let pod = PodConfig {
            namespace: "default".into(),
            name: format!("pod-{number}"),
            uid: format!("uid-{number}"),
            hostname: "conformer".into(),
            labels: [("app".to_owned(), "x".to_owned())].into(),
            annotations: [("note".to_owned(), "{\"ä\":1}".to_owned())].into(),
            log_dir: root.join("logs"),
            host_network: true,
            ..PodConfig::default()
        };
        let runtime = open(&root, endpoint.as_deref()).await;
        let sandbox = soon(runtime.sandbox(&pod)).await.unwrap();
        Bench {
            runtime,
            pod,
            sandbox,
            root,
            endpoint,
            _processes: processes,
        }
    }

    /// The runtime as a new agent would see it.
    pub async fn reopen(&mut self) {
        self.runtime = self.again().await;
    }

    /// Another agent beside this one.
    pub async fn again(&self) -> Arc<dyn PodRuntime> {
        open(&self.root, self.endpoint.as_deref()).await
    }

    /// Somebody beside whoever runs the pods, where there can be one.
    pub async fn companion(&self) -> Option<CriRuntime> {
        let endpoint = self.endpoint.as_deref()?;
        let dir = self.root.join("companion");
        Some(CriRuntime::connect(endpoint, &dir).await.unwrap())
    }

    /// Whether containers have their own image, users and processes.
    pub fn is_isolated(&self) -> bool {
        self.endpoint.is_some()
    }

    /// A pod beside the bench's own.
    pub fn other_pod(&self) -> PodConfig {
        let number = unique();
        PodConfig {
            name: format!("other-{number}"),
            uid: format!("other-{number}"),
            ..self.pod.clone()
        }
    }

    /// A file that containers and tests know by the same path.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A container of a name of its own that runs a command.
    pub fn config(&self, command: &[&str]) -> ContainerConfig {
        let name = format!("c{}", unique());
        let mounts = vec![Mount {
            host_path: self.root.clone(),
            container_path: self.root.clone(),
            read_only: false,
            propagation: Propagation::None,
        }];
        ContainerConfig {
            pod_namespace: self.pod.namespace.clone(),
            pod_name: self.pod.name.clone(),
            pod_uid: self.pod.uid.clone(),
            sandbox: self.sandbox.id.clone(),
            log_path: self.root.join(format!("logs/{name}/0.log")),
            name,
            image: BUSYBOX.into(),
            command: command.iter().map(|arg| (*arg).to_owned()).collect(),
            env: vec![("GREETING".into(), "hello".into())],
            working_dir: Some(self.root.clone()),
            mounts: if self.is_isolated() { mounts } else { vec![] },
            ..ContainerConfig::default()
        }
    }

    pub fn sh(&self, script: &str) -> ContainerConfig {
        self.config(&["/bin/sh", "-c", script])
    }

    pub async fn start(&self, script: &str) -> (ContainerId, ContainerConfig) {
        let config = self.sh(script);
        let id = soon(self.runtime.start(&config)).await.unwrap();
        (id, config)
    }

    /// A container that sleeps, as a target.
    pub async fn sleeper(&self) -> (ContainerId, Arc<dyn Target>) {
        let config = self.config(&["sleep", "1000000"]);
        let id = soon(self.runtime.start(&config)).await.unwrap();
        let target = self.runtime.target(&id).await.unwrap();
        (id, target)
    }

    pub async fn is_running(&self, id: &ContainerId) -> bool {
        let state = self.runtime.state(id).await.unwrap();
        matches!(state.status, ContainerStatus::Running { .. })
    }

    /// Removes the sandboxes of a pod whose containers were killed. containerd refuses while it is
    /// about to learn of that end; agents ask again, too.
    pub async fn remove_sandboxes(&self, uid: &str) {
        soon(async {
            while self.runtime.remove_sandboxes(uid).await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        })
        .await;
    }

    /// Ends everything, and makes sure that nothing is left.
    pub async fn finish(&mut self) {
        let runtime = &self.runtime;
        for state in runtime.list().await.unwrap().states {
            let left = soon(runtime.kill_tree(&state.id)).await.unwrap();
            assert_eq!(left, Vec::<String>::new());
            soon(runtime.wait(&state.id)).await.unwrap();
            soon(runtime.remove(&state.id)).await.unwrap();
        }
        self.remove_sandboxes(&self.pod.uid).await;
        assert_eq!(runtime.list().await.unwrap().states, []);
        assert_eq!(runtime.sandboxes().await.unwrap(), []);
    }
}

async fn open(root: &std::path::Path, endpoint: Option<&str>) -> Arc<dyn PodRuntime> {
    let dir = root.join("run");
    match endpoint {
        None => Arc::new(ProcessRuntime::open(&dir).unwrap()),
        Some(endpoint) => {
            let node = root.file_name().unwrap().to_string_lossy();
            // As whoever chooses a node's runtime does.
            let opened = if dir.join("cri").exists() {
                CriRuntime::for_node_again(endpoint, &dir, &node, "containerd").await
            } else {
                CriRuntime::for_node(endpoint, &dir, &node).await
            };
            Arc::new(opened.unwrap())
        }
    }
}

/// The lines of a container's log without their times.
pub fn log(config: &ContainerConfig) -> Vec<String> {
    let log = std::fs::read_to_string(&config.log_path).unwrap_or_default();
    log.lines()
        .map(|line| line.split_once(' ').unwrap().1.to_owned())
        .collect()
}

/// Waits for a line in a container's log.
pub async fn logged(config: &ContainerConfig, line: &str) {
    until(&format!("{line:?} is logged"), || {
        log(config).iter().any(|logged| logged == line)
    })
    .await;
}

/// Starts a shell script and waits for its end.
pub async fn run(target: &Arc<dyn Target>, id: &str, script: &str) -> Report {
    let mut running = target.start(&exec(id, script, LONG)).await.unwrap();
    soon(running.wait()).await.unwrap()
}

/// An attempt whose process is gone. The runtime may learn of that a moment later than `/proc`.
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

/// Makes sure that the image of the tests is there.
pub async fn image(bench: &Bench) -> belay_runtime::Image {
    bench.runtime.image(BUSYBOX, Pull::Never).await.unwrap()
}

/// A number that no other test and no other run uses.
pub fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}-{number}", std::process::id())
}
