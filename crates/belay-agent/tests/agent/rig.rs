//! A server and an agent in this process, on a directory of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belay_agent::{AgentError, Config};
use belay_api::gates::FeatureGates;
use belay_api::notification::PodNotification;
use belay_api::pod::Pod;
use belay_runtime::{ContainerStatus, PodRuntime, ProcessRuntime};
use belay_server::{Identity, Server};
use belay_testkit::reaper::Reaper;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Generous: a busy machine must not fail a test.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    /// Ends all containers, also when the test is killed; comes before the directory, by which it
    /// knows them.
    _reaper: Reaper,
    pub(crate) dir: tempfile::TempDir,
    server: Server,
    serving: CancellationToken,
    pub(crate) admin: Client,
    agent: Option<(CancellationToken, JoinHandle<Result<(), AgentError>>)>,
    gates: FeatureGates,
    runtime: Box<OpenRuntime>,
}

/// Opens the runtime on a directory.
type OpenRuntime = dyn Fn(&Path) -> Arc<dyn PodRuntime> + Send + Sync;

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::with_gates(FeatureGates::default()).await
    }

    pub(crate) async fn with_gates(gates: FeatureGates) -> Self {
        Self::with(
            gates,
            Box::new(|dir| Arc::new(ProcessRuntime::open(dir).unwrap())),
        )
        .await
    }

    /// On a runtime of the test's own, which is one of processes inside.
    pub(crate) async fn with_runtime(
        runtime: impl Fn(&Path) -> Arc<dyn PodRuntime> + Send + Sync + 'static,
    ) -> Self {
        Self::with(FeatureGates::default(), Box::new(runtime)).await
    }

    async fn with(gates: FeatureGates, runtime: Box<OpenRuntime>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let reaper = Reaper::watch(dir.path()).unwrap();
        let config = belay_server::Config {
            data_dir: dir.path().join("server"),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            gates: FeatureGates::default(),
            tls_names: Vec::new(),
        };
        let server = Server::open(config).await.unwrap();
        let admin = server.connect(Identity::admin());
        let serving = CancellationToken::new();
        let (running, token) = (server.clone(), serving.clone());
        tokio::spawn(async move { running.serve(token).await });
        let mut rig = Rig {
            _reaper: reaper,
            dir,
            server,
            serving,
            admin,
            agent: None,
            gates,
            runtime,
        };
        rig.start_agent().await;
        rig
    }

    pub(crate) fn agent_dir(&self) -> PathBuf {
        self.dir.path().join("agent")
    }

    pub(crate) async fn start_agent(&mut self) {
        let dir = self.agent_dir();
        let runtime = (self.runtime)(&dir.join("runtime"));
        let config = Config {
            node_name: "n1".to_owned(),
            data_dir: dir,
            client: self.server.connect(Identity::node("n1")),
            runtime,
            gates: self.gates,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            server_ca_pem: self.server.ca_pem(),
            max_actions: 16,
            node_address: Ipv4Addr::LOCALHOST.into(),
        };
        let token = CancellationToken::new();
        let task = tokio::spawn(belay_agent::run(config, token.clone()));
        self.agent = Some((token, task));
    }

    /// Ends the agent; containers stay.
    pub(crate) async fn stop_agent(&mut self) {
        let (token, task) = self.agent.take().unwrap();
        token.cancel();
        task.await.unwrap().unwrap();
    }

    /// Waits for the end of all containers that there are.
    pub(crate) async fn containers_ended(&self) {
        let runtime = ProcessRuntime::open(&self.agent_dir().join("runtime")).unwrap();
        until("all containers to end", async || {
            let listed = runtime.list().await.unwrap().states;
            let mut states = listed.iter().map(|one| &one.status);
            let ended = states.all(|one| matches!(one, ContainerStatus::Exited(_)));
            ended.then_some(())
        })
        .await;
    }

    /// Removes all pods, so that no process is left, then ends everything.
    pub(crate) async fn end(mut self) {
        if self.agent.is_none() {
            self.start_agent().await;
        }
        let pods = self.pods();
        for pod in pods.list(&kube::api::ListParams::default()).await.unwrap() {
            let now = DeleteParams::default().grace_period(0);
            let _ = pods.delete(pod.name(), &now).await;
        }
        let runtime = ProcessRuntime::open(&self.agent_dir().join("runtime")).unwrap();
        until("all containers to be gone", async || {
            let listed = runtime.list().await.unwrap();
            listed.states.is_empty().then_some(())
        })
        .await;
        self.stop_agent().await;
        self.serving.cancel();
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), "default")
    }

    /// Upstream's type, which has logs.
    pub(crate) fn upstream_pods(&self) -> Api<k8s_openapi::api::core::v1::Pod> {
        Api::namespaced(self.admin.clone(), "default")
    }

    pub(crate) fn notifications(&self) -> Api<PodNotification> {
        Api::namespaced(self.admin.clone(), "default")
    }

    pub(crate) async fn create_pod(&self, name: &str, spec: Value) -> Pod {
        let mut value = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        });
        value["spec"]["nodeName"] = json!("n1");
        let pod: Pod = serde_json::from_value(value).unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap()
    }

    /// Waits until the pod is as wanted.
    pub(crate) async fn pod(&self, name: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let pods = self.pods();
        let wanted = &wanted;
        until(&format!("pod {name} {what}"), async || {
            pods.get_opt(name).await.unwrap().filter(|pod| wanted(pod))
        })
        .await
    }

    pub(crate) async fn run_pod(&self, name: &str, spec: Value) -> Pod {
        self.create_pod(name, spec).await;
        self.pod(name, "to run", |pod| pod.phase() == "Running")
            .await
    }

    pub(crate) async fn notify(&self, name: &str, spec: Value) -> PodNotification {
        let object = serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
            "metadata": {"name": name, "namespace": "default"},
            "spec": spec,
        }))
        .unwrap();
        self.notifications()
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    /// Waits for the end of a notification and returns it as JSON.
    pub(crate) async fn finished(&self, name: &str) -> Value {
        let notifications = self.notifications();
        let object = until(&format!("the end of notification {name}"), async || {
            notifications
                .get_opt(name)
                .await
                .unwrap()
                .filter(|object| object.state().is_final())
        })
        .await;
        serde_json::to_value(object).unwrap()
    }

    pub(crate) async fn events(&self) -> Vec<String> {
        let events: Api<k8s_openapi::api::core::v1::Event> =
            Api::namespaced(self.admin.clone(), "default");
        let list = events
            .list(&kube::api::ListParams::default())
            .await
            .unwrap();
        list.into_iter().filter_map(|event| event.reason).collect()
    }
}

/// The agent of a test that failed starts nothing anew while the reaper ends what runs.
impl Drop for Rig {
    fn drop(&mut self) {
        if let Some((token, _)) = &self.agent {
            token.cancel();
        }
    }
}

/// Asks until there is an answer.
pub(crate) async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let started = tokio::time::Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "waited too long for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn until_lines(path: &Path, count: usize) {
    until(
        &format!("{count} lines in {}", path.display()),
        async || {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            (text.lines().count() >= count).then_some(())
        },
    )
    .await;
}

/// A spec with one container that sleeps and has these notifiers.
pub(crate) fn idle(notifiers: Value) -> Value {
    json!({
        "terminationGracePeriodSeconds": 5,
        "containers": [{
            "name": "main", "image": "none", "command": ["sleep", "1000"], "notifiers": notifiers,
        }],
    })
}

pub(crate) fn exec(name: &str, script: &str, timeout: u32) -> Value {
    json!({
        "name": name, "timeoutSeconds": timeout,
        "handler": {"exec": {"command": ["/bin/sh", "-c", script]}},
    })
}
