//! Pods through the real server: started, restarted, stopped, adopted, their logs read.

use std::time::Duration;

use belay_api::pod::Pod;
use kube::api::{DeleteParams, LogParams};
use serde_json::{Value, json};

use crate::rig::{Rig, idle, until, until_lines};

fn shell(script: &str) -> Value {
    json!({"terminationGracePeriodSeconds": 30, "containers": [
        {"name": "main", "image": "none", "command": ["/bin/sh", "-c", script]},
    ]})
}

fn status_of(pod: &Pod) -> Value {
    serde_json::to_value(&pod.status.as_ref().unwrap().container_statuses).unwrap()[0].clone()
}

async fn gone(rig: &Rig, name: &str) {
    until("the pod to be gone", async || {
        rig.pods()
            .get_opt(name)
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_registers_and_a_pod_runs_with_its_status_and_logs() {
    let rig = Rig::start().await;
    let pod = rig
        .run_pod(
            "p",
            shell("echo one; echo two >&2; echo three; exec sleep 1000"),
        )
        .await;
    let status = status_of(&pod);
    assert!(
        status["ready"] == true && status["state"]["running"].is_object(),
        "{status:#}"
    );
    assert_eq!(status["stopSignal"], "SIGTERM");
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(rig.admin.clone());
    let node = until("the node", async || {
        nodes
            .get_opt("n1")
            .await
            .unwrap()
            .filter(|n| n.status.as_ref().is_some_and(|s| s.conditions.is_some()))
    })
    .await;
    assert!(
        node.metadata
            .annotations
            .unwrap()
            .contains_key("apps.k8s.io/serving-cert-sha256")
    );
    let leases: kube::Api<k8s_openapi::api::coordination::v1::Lease> =
        kube::Api::namespaced(rig.admin.clone(), "kube-node-lease");
    assert_eq!(
        leases
            .get("n1")
            .await
            .unwrap()
            .spec
            .unwrap()
            .holder_identity
            .as_deref(),
        Some("n1")
    );

    let pods = rig.upstream_pods();
    let text = until("the log", async || {
        let text = pods.logs("p", &LogParams::default()).await.unwrap();
        (text.lines().count() == 3).then_some(text)
    })
    .await;
    // Two pipes: their order is not promised.
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["one", "three", "two"]);
    let last = LogParams {
        tail_lines: Some(1),
        timestamps: true,
        ..LogParams::default()
    };
    let text = pods.logs("p", &last).await.unwrap();
    assert_eq!(text.lines().count(), 1);
    assert!(text.contains("T") && text.contains("Z "), "{text}");
    let error = pods
        .logs(
            "p",
            &LogParams {
                container: Some("x".into()),
                ..LogParams::default()
            },
        )
        .await
        .unwrap_err();
    assert!(matches!(error, kube::Error::Api(_)), "{error}");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_log_ends_with_its_container() {
    let rig = Rig::start().await;
    let gate = rig.dir.path().join("gate");
    let script = format!(
        "echo first; while ! test -e {}; do sleep 0.05; done; echo last",
        gate.display()
    );
    let mut spec = shell(&script);
    spec["restartPolicy"] = json!("Never");
    rig.run_pod("p", spec).await;
    let pods = rig.upstream_pods();
    let follow = LogParams {
        follow: true,
        ..LogParams::default()
    };
    let mut stream = Box::pin(pods.log_stream("p", &follow).await.unwrap());
    let mut line = String::new();
    futures::AsyncBufReadExt::read_line(&mut stream, &mut line)
        .await
        .unwrap();
    assert_eq!(line, "first\n");
    std::fs::write(&gate, "").unwrap();
    let mut rest = String::new();
    futures::AsyncReadExt::read_to_string(&mut stream, &mut rest)
        .await
        .unwrap();
    assert_eq!(rest, "last\n");
    let pod = rig
        .pod("p", "to end", |pod| pod.phase() == "Succeeded")
        .await;
    assert_eq!(
        status_of(&pod)["state"]["terminated"]["reason"],
        "Completed"
    );
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_ends_is_started_again_and_then_backs_off() {
    let rig = Rig::start().await;
    rig.create_pod("p", shell("echo run $HOSTNAME; exit 4"))
        .await;
    let pod = rig
        .pod("p", "to back off", |pod| {
            pod.status
                .as_ref()
                .is_some_and(|s| s.container_statuses.is_some())
                && status_of(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
        .await;
    let status = status_of(&pod);
    assert_eq!(status["restartCount"], 1, "{status:#}");
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 4);
    let message = status["state"]["waiting"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("back-off 10s restarting failed container=main pod=p_default("),
        "{message}"
    );
    assert_eq!(pod.phase(), "Running");
    let previous = LogParams {
        previous: true,
        ..LogParams::default()
    };
    assert_eq!(
        rig.upstream_pods().logs("p", &previous).await.unwrap(),
        "run p\n"
    );
    until("the event", async || {
        rig.events()
            .await
            .contains(&"BackOff".to_owned())
            .then_some(())
    })
    .await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_waits_and_says_why() {
    let mut rig = Rig::start().await;
    rig.create_pod(
        "missing",
        json!({"containers": [
        {"name": "main", "image": "none", "command": ["/no/such/program"]}]}),
    )
    .await;
    rig.create_pod(
        "nocommand",
        json!({"containers": [{"name": "main", "image": "none"}]}),
    )
    .await;
    for (name, reasons, phase) in [
        // What failed is shown for a second only.
        (
            "missing",
            ["RunContainerError", "CrashLoopBackOff"],
            "Running",
        ),
        ("nocommand", ["CreateContainerConfigError"; 2], "Pending"),
    ] {
        let pod = rig
            .pod(name, "to wait", |pod| {
                pod.status
                    .as_ref()
                    .is_some_and(|s| s.container_statuses.is_some())
                    && reasons
                        .iter()
                        .any(|one| status_of(pod)["state"]["waiting"]["reason"] == *one)
            })
            .await;
        assert_eq!(pod.phase(), phase);
        assert!(
            !status_of(&pod)["state"]["waiting"]["message"]
                .as_str()
                .unwrap()
                .is_empty()
        );
    }
    // What failed is shown first, then that the next try has to wait.
    let pod = rig
        .pod("missing", "to back off", |pod| {
            status_of(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
        .await;
    let status = status_of(&pod);
    let uid = pod.uid();
    let message = status["state"]["waiting"]["message"].as_str().unwrap();
    let end = format!("s restarting failed container=main pod=missing_default({uid})");
    assert!(
        message.starts_with("back-off ") && message.ends_with(&end),
        "{message}"
    );
    let ended = &status["lastState"]["terminated"];
    assert_eq!(ended["reason"], "StartError");
    assert_eq!(ended["exitCode"], 128);
    let message = ended["message"].as_str().unwrap();
    assert!(message.contains("/no/such/program"), "{message}");
    until("both events", async || {
        let events = rig.events().await;
        let told = |reason: &str| events.iter().any(|event| event == reason);
        (told("Failed") && told("BackOff")).then_some(())
    })
    .await;
    let count = |pod: &Pod| status_of(pod)["restartCount"].as_u64();
    let again = |pod: &Pod| count(pod) > Some(0);
    let pod = rig.pod("missing", "to be tried again", again).await;
    // An agent that is started again goes on counting.
    let before = count(&pod);
    rig.stop_agent().await;
    rig.start_agent().await;
    let more = |pod: &Pod| count(pod) > before;
    rig.pod("missing", "to be tried once more", more).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_could_not_be_run_and_is_never_restarted_has_failed_for_good() {
    let mut rig = Rig::start().await;
    let spec = json!({"restartPolicy": "Never", "containers": [
        {"name": "main", "image": "none", "command": ["/no/such/program"]}]});
    rig.create_pod("p", spec).await;
    let failed = |pod: &Pod| pod.phase() == "Failed";
    let before = rig.pod("p", "to fail", failed).await;
    assert_eq!(
        status_of(&before)["state"]["terminated"]["reason"],
        "StartError"
    );
    // An agent that knows nothing of it any more leaves it so.
    rig.stop_agent().await;
    rig.start_agent().await;
    rig.run_pod("next", idle(json!([]))).await;
    let after = rig.pods().get("p").await.unwrap();
    assert_eq!(after.status, before.status);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_run_first_in_order() {
    let rig = Rig::start().await;
    let order = rig.dir.path().join("order");
    let say = |word: &str| format!("echo {word} >> {}", order.display());
    let container = |name: &str, script: String| json!({"name": name, "image": "none", "command": ["/bin/sh", "-c", script]});
    let spec = json!({
        "terminationGracePeriodSeconds": 1,
        "initContainers": [container("i", say("i")), container("j", say("j"))],
        "containers": [container("main", format!("{}; exec sleep 1000", say("main")))],
    });
    rig.run_pod("p", spec).await;
    until_lines(&order, 3).await;
    assert_eq!(std::fs::read_to_string(&order).unwrap(), "i\nj\nmain\n");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pod_gets_its_stop_signal_and_its_grace() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let script = format!(
        "trap 'echo usr1 >> {0}; exit 0' USR1; trap 'echo term >> {0}' TERM; echo up >> {0}; while :; do sleep 0.05; done",
        heard.display()
    );
    let mut spec = shell(&script);
    spec["containers"][0]["stopSignal"] = json!("SIGUSR1");
    let pod = rig.run_pod("p", spec).await;
    assert_eq!(status_of(&pod)["stopSignal"], "SIGUSR1");
    until_lines(&heard, 1).await;
    rig.pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    gone(&rig, "p").await;
    assert_eq!(std::fs::read_to_string(&heard).unwrap(), "up\nusr1\n");
    let logs = rig.agent_dir().join("logs");
    until("its logs to be gone", async || {
        (std::fs::read_dir(&logs).unwrap().count() == 0).then_some(())
    })
    .await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stubborn_container_is_killed_when_its_grace_is_over_and_sooner_when_it_shrinks() {
    let rig = Rig::start().await;
    let up = rig.dir.path().join("up");
    let script = format!(
        "trap '' TERM; echo $$$$ >> {}; while :; do sleep 0.05; done",
        up.display()
    );
    let mut spec = shell(&script);
    spec["terminationGracePeriodSeconds"] = json!(600);
    rig.run_pod("p", spec).await;
    until_lines(&up, 1).await;
    rig.pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(rig.pods().get("p").await.unwrap().is_terminating());
    rig.pods()
        .delete("p", &DeleteParams::default().grace_period(1))
        .await
        .unwrap();
    // Nobody waits for its first grace.
    gone(&rig, "p").await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_force_deleted_pod_leaves_no_process() {
    let rig = Rig::start().await;
    let up = rig.dir.path().join("up");
    let script = format!(
        "trap '' TERM; setsid sleep 987 & echo $$$$ >> {}; while :; do sleep 0.05; done",
        up.display()
    );
    rig.run_pod("p", shell(&script)).await;
    until_lines(&up, 1).await;
    let pid = std::fs::read_to_string(&up).unwrap().trim().to_owned();
    rig.pods()
        .delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    until("the end of its processes", async || {
        (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    })
    .await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_outlive_the_agent_and_are_adopted() {
    let mut rig = Rig::start().await;
    let before = rig.run_pod("p", idle(json!([]))).await;
    rig.create_pod("short", {
        let mut spec = shell("exit 0");
        spec["restartPolicy"] = json!("Never");
        spec
    })
    .await;
    rig.pod("short", "to end", |pod| pod.phase() == "Succeeded")
        .await;
    rig.stop_agent().await;
    rig.start_agent().await;
    let marker = rig.run_pod("marker", idle(json!([]))).await;
    assert!(marker.phase() == "Running");
    let after = rig.pods().get("p").await.unwrap();
    assert_eq!(
        status_of(&before)["containerID"],
        status_of(&after)["containerID"]
    );
    assert_eq!(status_of(&after)["restartCount"], 0);
    assert_eq!(rig.pods().get("short").await.unwrap().phase(), "Succeeded");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_while_the_agent_was_away_is_stopped_on_its_return() {
    let mut rig = Rig::start().await;
    let up = rig.dir.path().join("up");
    rig.run_pod(
        "p",
        shell(&format!("echo $$$$ >> {}; exec sleep 1000", up.display())),
    )
    .await;
    until_lines(&up, 1).await;
    rig.stop_agent().await;
    rig.pods()
        .delete("p", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    let pid = std::fs::read_to_string(&up).unwrap().trim().to_owned();
    assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
    rig.start_agent().await;
    until("the end of its process", async || {
        (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    })
    .await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_goes_on_with_what_is_left_of_the_grace() {
    let mut rig = Rig::start().await;
    let up = rig.dir.path().join("up");
    let script = format!(
        "trap '' TERM; echo up >> {}; while :; do sleep 0.05; done",
        up.display()
    );
    let mut spec = shell(&script);
    spec["terminationGracePeriodSeconds"] = json!(600);
    let pod = rig.run_pod("p", spec).await;
    until_lines(&up, 1).await;
    rig.pods()
        .delete("p", &DeleteParams::default())
        .await
        .unwrap();
    let key = format!("stop/{}", pod.uid());
    until("the event", async || {
        rig.events()
            .await
            .contains(&"Killing".to_owned())
            .then_some(())
    })
    .await;
    rig.stop_agent().await;

    // The ten minutes have all but passed while the agent was away.
    let journal = belay_store::Store::open(
        &rig.agent_dir().join("journal"),
        belay_store::Options::new(|_, _| ()),
    )
    .unwrap();
    let entry = journal.get(&key).unwrap();
    let mut stop: Value = serde_json::from_slice(&entry.value).unwrap();
    for moment in ["/began", "/legs/0/began", "/legs/0/stage/signalled/asked"] {
        let at = stop.pointer_mut(moment).unwrap();
        *at = json!(at.as_i64().unwrap() - 599_000);
    }
    let value = bytes::Bytes::from(stop.to_string());
    let write = belay_store::Write::put(key, belay_store::Expect::Any, move |_| value);
    journal.write(write).await.unwrap();
    journal.shutdown().await;
    drop(journal);

    rig.start_agent().await;
    gone(&rig, "p").await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_ready_when_somebody_opens_its_readiness_gate() {
    let rig = Rig::start().await;
    let mut spec = idle(json!([]));
    spec["readinessGates"] = json!([{"conditionType": "example.com/lb"}]);
    rig.run_pod("p", spec).await;
    let condition = |pod: &belay_api::pod::Pod, kind: &str| {
        let status = serde_json::to_value(&pod.status).unwrap();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|one| one["type"] == kind);
        found.unwrap_or_default()
    };
    let closed = rig
        .pod("p", "to have its containers ready", |pod| {
            condition(pod, "ContainersReady")["status"] == "True"
        })
        .await;
    let ready = condition(&closed, "Ready");
    assert_eq!(ready["reason"], "ReadinessGatesNotReady", "{ready:#}");
    let gate = json!({"status": {"conditions": [{"type": "example.com/lb", "status": "True"}]}});
    let params = kube::api::PatchParams::default();
    let patch = kube::api::Patch::Strategic(&gate);
    rig.pods().patch_status("p", &params, &patch).await.unwrap();
    let open = rig
        .pod("p", "to be ready", |pod| {
            condition(pod, "Ready")["status"] == "True"
        })
        .await;
    assert_eq!(condition(&open, "Ready").get("reason"), None);
    assert_eq!(condition(&open, "example.com/lb")["status"], "True");
    rig.end().await;
}
