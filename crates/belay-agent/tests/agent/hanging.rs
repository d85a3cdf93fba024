//! A runtime whose sandboxes, images or starts hang: what else there is of a pod does not wait, and
//! what comes late is ended. Everything but the hanging is the process runtime's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use belay_action::{ContainerId, Target};
use belay_runtime::{
    ContainerConfig, ContainerState, Containers, Exit, Image, ImageError, Listed, PodConfig,
    PodRuntime, ProcessRuntime, Pull, RuntimeError, Sandbox, Session, SessionError, SessionRequest,
    Sessions, Streams,
};
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::rig::{Rig, until, until_lines};
use crate::terminations::{listening, sh, told};

/// Which calls hang until they are let go on.
#[derive(Debug, Clone, Default)]
struct Gates {
    sandboxes: bool,
    images: bool,
    /// The starts of containers of this name.
    starts: Option<&'static str>,
    /// What the runtime tells of ends.
    ends: bool,
}

struct Hanging {
    inner: ProcessRuntime,
    gates: watch::Receiver<Gates>,
    /// How many lists cannot tell of one container.
    blind: Arc<AtomicU32>,
}

impl Hanging {
    async fn pass(&self, holds: impl Fn(&Gates) -> bool) {
        let mut gates = self.gates.clone();
        // A test that is over lets everything go on.
        let _ = gates.wait_for(|gates| !holds(gates)).await;
    }
}

#[async_trait]
impl Containers for Hanging {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn is_running(&self, id: &ContainerId) -> Result<bool, RuntimeError> {
        self.inner.is_running(id).await
    }

    async fn target(&self, id: &ContainerId) -> Result<Arc<dyn Target>, RuntimeError> {
        self.inner.target(id).await
    }
}

#[async_trait]
impl Sessions for Hanging {
    async fn open(
        &self,
        container: &ContainerId,
        request: &SessionRequest,
    ) -> Result<(Session, Streams), SessionError> {
        self.inner.open(container, request).await
    }
}

#[async_trait]
impl PodRuntime for Hanging {
    async fn sandbox(&self, pod: &PodConfig) -> Result<Sandbox, RuntimeError> {
        self.pass(|gates| gates.sandboxes).await;
        self.inner.sandbox(pod).await
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        self.inner.sandboxes().await
    }

    async fn stop_sandboxes(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        self.inner.stop_sandboxes(pod_uid).await
    }

    async fn remove_sandboxes(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        self.inner.remove_sandboxes(pod_uid).await
    }

    async fn image(&self, image: &str, pull: Pull) -> Result<Image, ImageError> {
        self.pass(|gates| gates.images).await;
        self.inner.image(image, pull).await
    }

    async fn start(&self, config: &ContainerConfig) -> Result<ContainerId, RuntimeError> {
        self.pass(|gates| gates.starts == Some(&config.name)).await;
        self.inner.start(config).await
    }

    async fn list(&self) -> Result<Listed, RuntimeError> {
        let mut listed = self.inner.list().await?;
        let less = |left: u32| left.checked_sub(1);
        let order = Ordering::SeqCst;
        if self.blind.fetch_update(order, order, less).is_ok()
            && let Some(state) = listed.states.pop()
        {
            let error = RuntimeError::Away {
                what: "ask for the state of a container",
                problem: "it does not answer".to_owned(),
            };
            listed.untold.push((state.id, error));
        }
        Ok(listed)
    }

    async fn state(&self, id: &ContainerId) -> Result<ContainerState, RuntimeError> {
        self.inner.state(id).await
    }

    async fn wait(&self, id: &ContainerId) -> Result<Exit, RuntimeError> {
        let exit = self.inner.wait(id).await;
        self.pass(|gates| gates.ends).await;
        exit
    }

    async fn kill_tree(&self, id: &ContainerId) -> Result<Vec<String>, RuntimeError> {
        self.inner.kill_tree(id).await
    }

    async fn bound_logs(&self) -> Result<(), RuntimeError> {
        self.inner.bound_logs().await
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.inner.remove(id).await
    }
}

async fn rig(gates: Gates) -> (Rig, watch::Sender<Gates>) {
    blind_rig(gates, &Arc::default()).await
}

async fn blind_rig(gates: Gates, blind: &Arc<AtomicU32>) -> (Rig, watch::Sender<Gates>) {
    let (sender, receiver) = watch::channel(gates);
    let blind = Arc::clone(blind);
    let rig = Rig::with_runtime(move |dir| {
        Arc::new(Hanging {
            inner: ProcessRuntime::open(dir).unwrap(),
            gates: receiver.clone(),
            blind: Arc::clone(&blind),
        })
    });
    (rig.await, sender)
}

/// Two containers that say in a file that they are up, and which signal they got.
fn spec(heard: &str, grace: u32) -> Value {
    let container = |name: &str| {
        let script = format!(
            "trap 'echo {name} term >> {heard}; exit 0' TERM; echo {name} up >> {heard}; \
             while :; do sleep 0.05; done"
        );
        json!({"name": name, "image": "none", "command": ["/bin/sh", "-c", script]})
    };
    json!({
        "terminationGracePeriodSeconds": grace,
        "containers": [container("stuck"), container("free")],
    })
}

async fn gone(rig: &Rig, name: &str) {
    until("the pod to be gone", async || {
        let pod = rig.pods().get_opt(name).await.unwrap();
        pod.is_none().then_some(())
    })
    .await;
}

async fn delete(rig: &Rig, name: &str) {
    let pods = rig.pods();
    pods.delete(name, &DeleteParams::default()).await.unwrap();
}

fn says(heard: &str, line: &str) -> bool {
    let text = std::fs::read_to_string(heard).unwrap_or_default();
    text.lines().any(|found| found == line)
}

async fn until_said(heard: &str, line: &str) {
    until(line, async || says(heard, line).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_hangs_delays_neither_the_other_containers_nor_the_end() {
    let starts = Some("stuck");
    let (rig, gates) = rig(Gates {
        starts,
        ..Gates::default()
    })
    .await;
    let heard = rig.dir.path().join("heard").display().to_string();
    rig.create_pod("p", spec(&heard, 10)).await;
    until_said(&heard, "free up").await;
    let pod = rig
        .pod("p", "to show what runs", |pod| {
            let status = serde_json::to_value(&pod.status).unwrap();
            status["containerStatuses"][1]["ready"] == true
        })
        .await;
    let status = serde_json::to_value(&pod.status).unwrap();
    let waiting = &status["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["reason"], "ContainerCreating", "{status:#}");
    assert_eq!(status["phase"], "Pending");

    delete(&rig, "p").await;
    until_said(&heard, "free term").await;
    gone(&rig, "p").await;
    assert!(!says(&heard, "stuck up"), "its start hangs");

    // It comes after everybody stopped waiting for it: it is killed, and forgotten.
    gates.send_replace(Gates::default());
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_up_while_its_pod_ends_is_ended_as_its_spec_says() {
    let starts = Some("stuck");
    let (rig, gates) = rig(Gates {
        starts,
        ..Gates::default()
    })
    .await;
    let heard = rig.dir.path().join("heard").display().to_string();
    let mut spec = spec(&heard, 600);
    // It is ready for its signal when its hook is over.
    let hook = format!(
        "while ! grep -q 'stuck up' {heard}; do sleep 0.05; done; echo stuck hook >> {heard}"
    );
    spec["containers"][0]["lifecycle"] =
        json!({"preStop": {"exec": {"command": ["/bin/sh", "-c", hook]}}});
    rig.create_pod("p", spec).await;
    until_said(&heard, "free up").await;
    delete(&rig, "p").await;
    until_said(&heard, "free term").await;
    gates.send_replace(Gates::default());
    gone(&rig, "p").await;
    let text = std::fs::read_to_string(&heard).unwrap();
    assert_eq!(
        text,
        "free up\nfree term\nstuck up\nstuck hook\nstuck term\n"
    );
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_waits_for_its_image_or_its_sandbox_ends_without_it() {
    for held in [
        Gates {
            images: true,
            ..Gates::default()
        },
        Gates {
            sandboxes: true,
            ..Gates::default()
        },
    ] {
        let (rig, gates) = rig(held.clone()).await;
        let heard = rig.dir.path().join("heard").display().to_string();
        rig.create_pod("p", spec(&heard, 1)).await;
        rig.pod("p", "to be seen", |pod| {
            let status = serde_json::to_value(&pod.status).unwrap();
            status["containerStatuses"][0]["state"]["waiting"].is_object()
        })
        .await;
        delete(&rig, "p").await;
        gone(&rig, "p").await;
        assert!(!std::path::Path::new(&heard).exists(), "{held:?}");
        // Nothing is started that nobody wants any more.
        gates.send_replace(Gates::default());
        rig.run_pod("other", spec(&heard, 1)).await;
        until_lines(std::path::Path::new(&heard), 2).await;
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_there_too_long_fails_and_its_containers_end_as_they_should() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard").display().to_string();
    let mut spec = spec(&heard, 600);
    spec["activeDeadlineSeconds"] = json!(600);
    rig.create_pod("p", spec).await;
    for name in ["stuck", "free"] {
        until_said(&heard, &format!("{name} up")).await;
    }
    let nearer = Patch::Merge(json!({"spec": {"activeDeadlineSeconds": 1}}));
    let only = PatchParams::default();
    rig.pods().patch("p", &only, &nearer).await.unwrap();
    let pod = rig.pod("p", "to fail", |pod| pod.phase() == "Failed").await;
    let status = serde_json::to_value(&pod.status).unwrap();
    assert_eq!(status["reason"], "DeadlineExceeded", "{status:#}");
    assert_eq!(
        status["message"],
        "Pod was active on the node longer than the specified deadline"
    );
    for name in ["stuck", "free"] {
        assert!(says(&heard, &format!("{name} term")), "{status:#}");
    }
    for container in status["containerStatuses"].as_array().unwrap() {
        assert!(
            container["state"]["terminated"].is_object(),
            "{container:#}"
        );
    }
    until("the event", async || {
        let events = rig.events().await;
        events
            .contains(&"DeadlineExceeded".to_owned())
            .then_some(())
    })
    .await;
    // It stays until somebody deletes it.
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_killed_is_ended_once_however_late_the_runtime_tells_of_it() {
    let held = Gates {
        ends: true,
        ..Gates::default()
    };
    let (rig, gates) = rig(held).await;
    let heard = rig.dir.path().join("heard").display().to_string();
    let script = format!("trap '' TERM; echo up >> {heard}; while :; do sleep 0.05; done");
    let spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "one", "command": sh(&script)}],
    });
    rig.run_pod("p", spec).await;
    until_lines(std::path::Path::new(&heard), 1).await;
    let patch = json!({"spec": {"containers": [{"name": "main", "image": "two"}]}});
    let patch = kube::api::Patch::Strategic(patch);
    let pods = rig.pods();
    let params = kube::api::PatchParams::default();
    pods.patch("p", &params, &patch).await.unwrap();
    until("it to be killed", async || {
        let told = told(&rig, "p", "Killing").await;
        told.iter().any(|m| m.contains("was killed")).then_some(())
    })
    .await;
    // Its end is looked at again and again while others live.
    let other =
        json!({"containers": [{"name": "main", "image": "none", "command": ["sleep", "1000"]}]});
    rig.run_pod("other", other).await;
    gates.send_replace(Gates::default());
    until_lines(std::path::Path::new(&heard), 2).await;
    let told = told(&rig, "p", "Killing").await;
    let changed = told.iter().filter(|m| m.contains("definition changed"));
    assert_eq!(changed.count(), 1, "{told:?}");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_s_turn_comes_when_those_it_serves_have_ended_also_before_the_runtime_tells_how()
{
    let held = Gates {
        ends: true,
        ..Gates::default()
    };
    let (rig, gates) = rig(held).await;
    let heard = rig.dir.path().join("heard");
    let mut sidecar = listening("proxy", &heard, "exit 0");
    sidecar["restartPolicy"] = json!("Always");
    let spec = json!({
        "terminationGracePeriodSeconds": 600,
        "initContainers": [sidecar],
        "containers": [listening("main", &heard, "exit 0")],
    });
    rig.run_pod("p", spec).await;
    until_lines(&heard, 2).await;
    delete(&rig, "p").await;
    until_said(&heard.display().to_string(), "proxy-term").await;
    gates.send_replace(Gates::default());
    gone(&rig, "p").await;
    assert!(
        told(&rig, "p", "Killing")
            .await
            .iter()
            .all(|m| !m.contains("was killed"))
    );
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_of_which_the_runtime_cannot_tell_for_a_moment_is_adopted_all_the_same() {
    let blind = Arc::default();
    let (mut rig, _gates) = blind_rig(Gates::default(), &blind).await;
    let heard = rig.dir.path().join("heard");
    let mut main = listening("main", &heard, "exit 0");
    let hook = format!("echo hook >> {}", heard.display());
    main["lifecycle"] = json!({"preStop": {"exec": {"command": sh(&hook)}}});
    let spec = json!({"terminationGracePeriodSeconds": 600, "containers": [main]});
    let id = |pod: &belay_api::pod::Pod| {
        let status = serde_json::to_value(&pod.status).unwrap();
        status["containerStatuses"][0]["containerID"].clone()
    };
    let before = id(&rig.run_pod("p", spec).await);
    until_lines(&heard, 1).await;
    rig.stop_agent().await;
    blind.store(2, Ordering::SeqCst);
    rig.start_agent().await;
    let other =
        json!({"containers": [{"name": "main", "image": "none", "command": ["sleep", "1000"]}]});
    rig.run_pod("other", other).await;
    assert_eq!(blind.load(Ordering::SeqCst), 0);
    let pod = rig.pods().get("p").await.unwrap();
    assert_eq!(id(&pod), before, "there is no second one");
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    let said = std::fs::read_to_string(&heard).unwrap();
    assert_eq!(said, "main-up\nhook\nmain-term\n");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_grace_no_clock_can_count_ends_at_its_deadline_like_any_other() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard").display().to_string();
    let mut spec = spec(&heard, 1);
    spec["terminationGracePeriodSeconds"] = json!(i64::MAX);
    spec["activeDeadlineSeconds"] = json!(2);
    rig.create_pod("p", spec).await;
    rig.pod("p", "to fail", |pod| pod.phase() == "Failed").await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_was_killed_is_told_to_have_been_where_the_runtime_does_not_tell_of_ends() {
    let held = Gates {
        ends: true,
        ..Gates::default()
    };
    let (rig, gates) = rig(held).await;
    let heard = rig.dir.path().join("heard");
    let deaf = format!(
        "trap '' TERM; echo deaf-up >> {}; while :; do sleep 0.05; done",
        heard.display()
    );
    let pods = [
        ("obeys", 600, listening("main", &heard, "exit 0")),
        (
            "deaf",
            1,
            json!({"name": "main", "image": "none", "command": sh(&deaf)}),
        ),
    ];
    for (name, grace, container) in pods {
        let spec = json!({
            "terminationGracePeriodSeconds": grace, "activeDeadlineSeconds": 600,
            "containers": [container],
        });
        rig.run_pod(name, spec).await;
    }
    until_lines(&heard, 2).await;
    let nearer = Patch::Merge(json!({"spec": {"activeDeadlineSeconds": 1}}));
    for (name, reason, signal) in [
        ("obeys", "ContainerStatusUnknown", Value::Null),
        ("deaf", "Error", json!(9)),
    ] {
        let only = PatchParams::default();
        rig.pods().patch(name, &only, &nearer).await.unwrap();
        let pod = rig
            .pod(name, "to fail", |pod| pod.phase() == "Failed")
            .await;
        let status = serde_json::to_value(&pod.status).unwrap();
        let end = &status["containerStatuses"][0]["state"]["terminated"];
        assert_eq!(end["reason"], reason, "{status:#}");
        assert_eq!((&end["exitCode"], &end["signal"]), (&json!(137), &signal));
    }
    gates.send_replace(Gates::default());
    rig.end().await;
}
