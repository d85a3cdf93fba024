//! The agent beside somebody else who runs the pods. Here that is an agent that is the node and does
//! not deliver notifications; what a CRI runtime would have recorded at a pod's creation is kept by
//! the test.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use belay_action::{ContainerId, Target};
use belay_agent::{AgentError, Companion, Metrics};
use belay_api::gates::{Feature, FeatureGates};
use belay_api::pod::{NOTIFIERS_ANNOTATION, Pod};
use belay_runtime::{
    ContainerStatus, Containers, PodRuntime, ProcessRuntime, RecordedContainer, RecordedPod,
    RecordedPods, RuntimeError,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::rig::{Rig, exec, until, until_lines};

/// Real containers, and the annotations that their pods were created with.
struct Sandboxes {
    runtime: ProcessRuntime,
    recorded: Mutex<HashMap<String, BTreeMap<String, String>>>,
}

#[async_trait]
impl RecordedPods for Sandboxes {
    async fn recorded_pod(&self, uid: &str) -> Result<Option<RecordedPod>, RuntimeError> {
        let Some(annotations) = self.recorded.lock().unwrap().get(uid).cloned() else {
            return Ok(None);
        };
        let mut pod = RecordedPod {
            uid: uid.to_owned(),
            namespace: String::new(),
            name: String::new(),
            annotations,
            address: None,
            containers: BTreeMap::new(),
        };
        for state in self.runtime.list().await?.states {
            if state.config.pod_uid != uid {
                continue;
            }
            pod.namespace.clone_from(&state.config.pod_namespace);
            pod.name.clone_from(&state.config.pod_name);
            let container = RecordedContainer {
                id: state.id,
                restart_count: state.config.restart_count,
                running: matches!(state.status, ContainerStatus::Running { .. }),
            };
            let newest = pod
                .containers
                .get(&state.config.name)
                .is_none_or(|other| other.restart_count < container.restart_count);
            if newest {
                pod.containers.insert(state.config.name, container);
            }
        }
        Ok(Some(pod))
    }
}

/// Real containers, behind a runtime that is away for the next so many questions, as one is while it
/// is restarted.
struct Restarting {
    runtime: ProcessRuntime,
    away: Arc<AtomicUsize>,
}

#[async_trait]
impl Containers for Restarting {
    fn name(&self) -> &str {
        self.runtime.name()
    }

    async fn is_running(&self, id: &ContainerId) -> Result<bool, RuntimeError> {
        self.runtime.is_running(id).await
    }

    async fn target(&self, id: &ContainerId) -> Result<Arc<dyn Target>, RuntimeError> {
        let fewer = |left: usize| left.checked_sub(1);
        let order = Ordering::SeqCst;
        if self.away.fetch_update(order, order, fewer).is_ok() {
            return Err(RuntimeError::Away {
                what: "look a container up",
                problem: "it is being restarted".to_owned(),
            });
        }
        self.runtime.target(id).await
    }
}

struct Beside {
    rig: Rig,
    away: Arc<AtomicUsize>,
    sandboxes: Arc<Sandboxes>,
    gates: FeatureGates,
    metrics: Arc<Metrics>,
    agent: Option<(CancellationToken, JoinHandle<Result<(), AgentError>>)>,
}

impl Beside {
    async fn start(gates: FeatureGates) -> Self {
        let off = FeatureGates::default().with(Feature::ContainerNotifier, false);
        let rig = Rig::with_gates(off).await;
        let namespace = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "belay-system"},
        }))
        .unwrap();
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(rig.admin.clone());
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let runtime = ProcessRuntime::open(&rig.agent_dir().join("runtime")).unwrap();
        let sandboxes = Arc::new(Sandboxes {
            runtime,
            recorded: Mutex::default(),
        });
        let mut beside = Beside {
            rig,
            away: Arc::default(),
            sandboxes,
            gates,
            metrics: Arc::new(Metrics::new(gates)),
            agent: None,
        };
        beside.start_companion();
        beside
    }

    fn dir(&self) -> PathBuf {
        self.rig.dir.path().join("companion")
    }

    fn start_companion(&mut self) {
        let runtime = ProcessRuntime::open(&self.rig.agent_dir().join("runtime")).unwrap();
        let config = Companion {
            node_name: "n1".to_owned(),
            data_dir: self.dir(),
            client: self.rig.admin.clone(),
            containers: Arc::new(Restarting {
                runtime,
                away: Arc::clone(&self.away),
            }),
            pods: Arc::clone(&self.sandboxes) as _,
            gates: self.gates,
            lease_namespace: "belay-system".to_owned(),
            max_actions: 16,
            metrics: Arc::clone(&self.metrics),
        };
        let token = CancellationToken::new();
        let task = tokio::spawn(belay_agent::companion(config, token.clone()));
        self.agent = Some((token, task));
    }

    async fn stop_companion(&mut self) {
        let (token, task) = self.agent.take().unwrap();
        token.cancel();
        task.await.unwrap().unwrap();
    }

    /// Runs a pod whose annotation declares these notifiers; returns it as created. The runtime
    /// records `recorded` of it, as a kubelet would the annotations it was given.
    async fn run_pod(&self, declared: &Value, recorded: &Value) -> Pod {
        let pod = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "default", "annotations": {
                NOTIFIERS_ANNOTATION: json!({"main": declared}).to_string(),
            }},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 5, "containers": [
                {"name": "main", "image": "none", "command": ["sleep", "1000"]},
            ]},
        }))
        .unwrap();
        let pods = self.rig.pods();
        let created: Pod = pods.create(&PostParams::default(), &pod).await.unwrap();
        let text = json!({"main": recorded}).to_string();
        self.sandboxes.recorded.lock().unwrap().insert(
            created.uid().to_owned(),
            [(NOTIFIERS_ANNOTATION.to_owned(), text)].into(),
        );
        self.rig
            .pod("p", "to run", |pod| pod.phase() == "Running")
            .await
    }

    async fn end(mut self) {
        self.stop_companion().await;
        self.rig.end().await;
    }
}

fn ask(notifier: &str) -> Value {
    json!({"podName": "p", "notifier": notifier})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_restarted_is_waited_for_until_the_deadline() {
    let beside = Beside::start(FeatureGates::default()).await;
    let rig = &beside.rig;
    let notifiers = json!([exec("good", "echo fine", 10)]);
    beside.run_pod(&notifiers, &notifiers).await;
    beside.away.store(4, Ordering::SeqCst);
    rig.notify("back", ask("good")).await;
    let back = rig.finished("back").await;
    assert_eq!(back["status"]["state"], "Succeeded", "{back:#}");
    assert_eq!(back["status"]["containers"][0]["output"], "fine\n");
    assert_eq!(beside.away.load(Ordering::SeqCst), 0);

    beside.away.store(usize::MAX, Ordering::SeqCst);
    let brief = json!({"podName": "p", "notifier": "good", "deadlineSeconds": 10});
    rig.notify("gone", brief).await;
    let gone = rig.finished("gone").await;
    let error = &gone["status"]["containers"][0]["error"];
    assert_eq!(gone["status"]["state"], "Failed", "{gone:#}");
    let told = error["message"].as_str().unwrap_or_default();
    assert!(
        error["type"] == "RuntimeError" && told.contains("being restarted")
            || error["type"] == "Expired",
        "{gone:#}"
    );
    beside.away.store(0, Ordering::SeqCst);
    beside.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_companion_runs_what_the_sandbox_recorded_and_keeps_a_lease_of_its_own() {
    let beside = Beside::start(FeatureGates::default()).await;
    let rig = &beside.rig;
    let notifiers = json!([
        exec("good", "echo fine", 10),
        exec("bad", "exit 3", 10),
        {"name": "winch", "handler": {"signal": "SIGWINCH"}},
    ]);
    beside.run_pod(&notifiers, &notifiers).await;
    for name in ["good", "bad", "winch"] {
        rig.notify(name, ask(name)).await;
    }
    let good = rig.finished("good").await;
    assert_eq!(good["status"]["state"], "Succeeded", "{good:#}");
    assert_eq!(good["status"]["executor"], "n1");
    assert_eq!(good["status"]["containers"][0]["output"], "fine\n");
    let bad = rig.finished("bad").await;
    assert_eq!(bad["status"]["containers"][0]["exitCode"], 3, "{bad:#}");
    let winch = rig.finished("winch").await;
    assert_eq!(winch["status"]["containers"][0]["signal"], "SIGWINCH");

    let leases: Api<Lease> = Api::namespaced(rig.admin.clone(), "belay-system");
    let lease = leases.get("n1").await.unwrap().spec.unwrap();
    assert_eq!(lease.holder_identity.as_deref(), Some("n1"));
    assert!(
        beside
            .metrics
            .text()
            .contains("belay_action_outcomes_total{outcome=\"HandlerFailed\"} 1")
    );
    beside.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_annotation_is_not_the_recorded_one_is_refused() {
    let beside = Beside::start(FeatureGates::default()).await;
    let runs = beside.rig.dir.path().join("runs");
    let touch = format!("echo run >> {}", runs.display());
    beside
        .run_pod(
            &json!([exec("work", &touch, 5)]),
            &json!([exec("work", "exit 0", 5)]),
        )
        .await;
    beside.rig.notify("n", ask("work")).await;
    let done = beside.rig.finished("n").await;
    assert_eq!(done["status"]["error"]["type"], "Forbidden", "{done:#}");
    let message = done["status"]["error"]["message"].as_str().unwrap();
    assert!(message.contains("was changed after"), "{message}");
    assert!(done["status"]["executor"].is_null());
    assert!(!runs.exists());
    beside.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_companion_reports_the_real_outcome_of_what_it_left() {
    let mut beside = Beside::start(FeatureGates::default()).await;
    let dir = beside.rig.dir.path();
    let (runs, gate) = (dir.join("runs"), dir.join("gate"));
    let script = format!(
        "echo run >> {}; while ! test -e {}; do sleep 0.05; done; echo out; exit 7",
        runs.display(),
        gate.display()
    );
    let notifiers = json!([exec("work", &script, 100)]);
    beside.run_pod(&notifiers, &notifiers).await;
    beside.rig.notify("n", ask("work")).await;
    until_lines(&runs, 1).await;
    beside.stop_companion().await;
    std::fs::write(&gate, "").unwrap();
    beside.start_companion();
    let done = beside.rig.finished("n").await;
    let main = &done["status"]["containers"][0];
    assert_eq!(main["exitCode"], 7, "{done:#}");
    assert_eq!(
        (&main["output"], &main["attempts"]),
        (&json!("out\n"), &json!(1))
    );
    assert_eq!(std::fs::read_to_string(&runs).unwrap().lines().count(), 1);
    beside.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_gate_off_a_companion_stays_up_and_does_nothing() {
    let gates = FeatureGates::default().with(Feature::ContainerNotifier, false);
    let beside = Beside::start(gates).await;
    let notifiers = json!([exec("work", "exit 0", 5)]);
    beside.run_pod(&notifiers, &notifiers).await;
    beside.rig.notify("n", ask("work")).await;
    // One that acts claims at once; this one is seen at work twice before anybody looks.
    let leases: Api<Lease> = Api::namespaced(beside.rig.admin.clone(), "belay-system");
    let renewed = async || {
        let lease = leases.get_opt("n1").await.unwrap();
        lease.and_then(|lease| lease.spec?.renew_time)
    };
    for _ in 0..2 {
        let before = renewed().await;
        until("its lease to be renewed", async || {
            (renewed().await != before).then_some(())
        })
        .await;
    }
    let object = beside.rig.notifications().get("n").await.unwrap();
    assert!(object.status.unwrap().executor.is_none());
    assert!(!beside.agent.as_ref().unwrap().1.is_finished());
    let text = beside.metrics.text();
    assert!(
        text.contains("kubernetes_feature_enabled{name=\"ContainerNotifier\"} 0"),
        "{text}"
    );
    beside.end().await;
}
