//! Deliveries through the real server, from the creation of the object to its result.

use belay_api::gates::{Feature, FeatureGates};
use kube::api::{DeleteParams, Patch, PatchParams, WatchEvent};
use serde_json::{Value, json};

use crate::rig::{Rig, exec, idle, until, until_lines};

fn main_status(done: &Value) -> &Value {
    &done["status"]["containers"][0]
}

fn ask(notifier: &str) -> Value {
    json!({"podName": "p", "notifier": notifier})
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_end_as_they_end_and_the_result_tells() {
    let rig = Rig::start().await;
    let notifiers = json!([
        exec("good", "echo fine; echo also >&2", 10),
        exec("bad", "echo broken; exit 3", 10),
        exec("slow", "echo begun; sleep 60", 10),
        exec("suicide", "kill -KILL $$", 10),
        {"name": "missing", "handler": {"exec": {"command": ["/no/such/program"]}}, "timeoutSeconds": 10},
        {"name": "quiet", "output": "None", "timeoutSeconds": 10,
         "handler": {"exec": {"command": ["/bin/echo", "secret"]}}},
    ]);
    rig.run_pod("p", idle(notifiers)).await;
    for name in ["good", "bad", "slow", "suicide", "missing", "quiet"] {
        rig.notify(name, ask(name)).await;
    }

    let good = rig.finished("good").await;
    assert_eq!(good["status"]["state"], "Succeeded", "{good:#}");
    let main = main_status(&good);
    assert_eq!(
        (&main["succeeded"], &main["attempts"], &main["exitCode"]),
        (&json!(true), &json!(1), &json!(0))
    );
    assert_eq!(main["output"], "fine\nalso\n", "{good:#}");
    assert!(
        main["containerID"]
            .as_str()
            .unwrap()
            .starts_with("process://")
    );
    assert_eq!(good["status"]["executor"], "n1");
    assert!(good["status"]["completeTime"].is_string() && good["status"]["startTime"].is_string());

    let bad = rig.finished("bad").await;
    assert_eq!(bad["status"]["state"], "Failed");
    assert_eq!(main_status(&bad)["exitCode"], 3);
    assert_eq!(main_status(&bad)["error"]["type"], "HandlerFailed");
    assert_eq!(main_status(&bad)["output"], "broken\n");

    let slow = rig.finished("slow").await;
    assert_eq!(
        main_status(&slow)["error"]["type"],
        "HandlerTimeout",
        "{slow:#}"
    );
    assert_eq!(main_status(&slow)["output"], "begun\n");

    let suicide = rig.finished("suicide").await;
    assert_eq!(main_status(&suicide)["signal"], "SIGKILL", "{suicide:#}");
    assert_eq!(main_status(&suicide)["error"]["type"], "HandlerFailed");

    let missing = rig.finished("missing").await;
    assert_eq!(
        main_status(&missing)["error"]["type"],
        "HandlerFailed",
        "{missing:#}"
    );

    let quiet = rig.finished("quiet").await;
    assert_eq!(quiet["status"]["state"], "Succeeded");
    assert!(main_status(&quiet)["output"].is_null(), "{quiet:#}");

    let audit = std::fs::read_to_string(rig.agent_dir().join("agent-audit.jsonl")).unwrap();
    let lines: Vec<Value> = audit
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 6);
    assert!(
        lines
            .iter()
            .any(|line| line["notification"] == "bad" && line["outcome"] == "HandlerFailed")
    );
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_reaches_the_first_process_and_an_unhandled_one_is_said() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let script = format!(
        "trap 'echo hup >> {0}' HUP; echo up >> {0}; while :; do sleep 0.05; done",
        heard.display()
    );
    let spec = json!({"containers": [{
        "name": "main", "image": "none", "command": ["/bin/sh", "-c", script],
        "notifiers": [
            {"name": "reload", "handler": {"signal": "SIGHUP"}},
            {"name": "winch", "handler": {"signal": "SIGWINCH"}},
        ],
    }], "terminationGracePeriodSeconds": 1});
    rig.run_pod("p", spec).await;
    // The trap is set a moment after the start.
    until_lines(&heard, 1).await;
    rig.notify("reload", ask("reload")).await;
    let done = rig.finished("reload").await;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(main_status(&done)["signal"], "SIGHUP");
    let condition = &done["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("SignalHandled"), &json!("True"))
    );
    until_lines(&heard, 2).await;

    rig.notify("winch", ask("winch")).await;
    let winch = rig.finished("winch").await;
    let condition = &winch["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("SignalHandled"), &json!("False"))
    );
    until("the warning", async || {
        rig.events()
            .await
            .contains(&"SignalNotHandled".to_owned())
            .then_some(())
    })
    .await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_container_that_declares_the_notifier_runs_it_and_all_must_succeed() {
    let rig = Rig::start().await;
    let container = |name: &str, notifiers: Value| json!({"name": name, "image": "none", "command": ["sleep", "1000"], "notifiers": notifiers});
    let spec = json!({"terminationGracePeriodSeconds": 5, "containers": [
        container("a", json!([exec("both", "exit 0", 5), exec("mixed", "exit 0", 5)])),
        container("b", json!([exec("both", "exit 0", 5), exec("mixed", "exit 1", 5)])),
        container("c", json!([])),
    ]});
    rig.run_pod("p", spec).await;
    rig.notify("both", ask("both")).await;
    rig.notify("mixed", ask("mixed")).await;
    let both = rig.finished("both").await;
    assert_eq!(both["status"]["state"], "Succeeded", "{both:#}");
    assert_eq!(both["status"]["containers"].as_array().unwrap().len(), 2);
    let mixed = rig.finished("mixed").await;
    assert_eq!(mixed["status"]["state"], "Failed");
    assert_eq!(mixed["status"]["containers"][0]["succeeded"], true);
    assert_eq!(mixed["status"]["containers"][1]["exitCode"], 1);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_reports_the_real_outcome_of_what_it_left() {
    let mut rig = Rig::start().await;
    let (runs, gate) = (rig.dir.path().join("runs"), rig.dir.path().join("gate"));
    let script = format!(
        "echo run >> {}; while ! test -e {}; do sleep 0.05; done; echo out; exit 7",
        runs.display(),
        gate.display()
    );
    rig.run_pod("p", idle(json!([exec("work", &script, 100)])))
        .await;
    rig.notify("n", ask("work")).await;
    until_lines(&runs, 1).await;
    for _ in 0..2 {
        rig.stop_agent().await;
        rig.start_agent().await;
    }
    std::fs::write(&gate, "").unwrap();
    let done = rig.finished("n").await;
    assert_eq!(main_status(&done)["exitCode"], 7, "{done:#}");
    assert_eq!(main_status(&done)["output"], "out\n");
    assert_eq!(main_status(&done)["attempts"], 1);
    assert_eq!(std::fs::read_to_string(&runs).unwrap().lines().count(), 1);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_slots_full_and_a_queue_behind_them_are_resolved_after_a_restart() {
    let mut rig = Rig::start().await;
    let (runs, gate) = (rig.dir.path().join("runs"), rig.dir.path().join("gate"));
    let script = format!(
        "echo run >> {}; while ! test -e {}; do sleep 0.2; done",
        runs.display(),
        gate.display()
    );
    rig.run_pod("p", idle(json!([exec("work", &script, 100)])))
        .await;
    for n in 0..40 {
        rig.notify(&format!("n{n}"), ask("work")).await;
    }
    // As many run as there are slots.
    until_lines(&runs, 16).await;
    rig.stop_agent().await;
    std::fs::write(&gate, "").unwrap();
    rig.start_agent().await;
    for n in 0..40 {
        let done = rig.finished(&format!("n{n}")).await;
        assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
        assert_eq!(main_status(&done)["attempts"], 1, "{done:#}");
    }
    assert_eq!(std::fs::read_to_string(&runs).unwrap().lines().count(), 40);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_notification_kills_its_action() {
    let rig = Rig::start().await;
    let runs = rig.dir.path().join("runs");
    let script = format!("echo $$ >> {}; exec sleep 1000", runs.display());
    rig.run_pod("p", idle(json!([exec("work", &script, 100)])))
        .await;
    rig.notify("n", ask("work")).await;
    until_lines(&runs, 1).await;
    let pid = std::fs::read_to_string(&runs).unwrap().trim().to_owned();
    rig.notifications()
        .delete("n", &DeleteParams::default())
        .await
        .unwrap();
    until("the end of the process", async || {
        (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    })
    .await;
    let audit = rig.agent_dir().join("agent-audit.jsonl");
    until("the audit line", async || {
        let text = std::fs::read_to_string(&audit).unwrap();
        text.contains("\"outcome\":\"Cancelled\"").then_some(())
    })
    .await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notifier_that_this_agent_cannot_honour_is_refused_not_half_done() {
    let rig = Rig::start().await;
    let runs = rig.dir.path().join("runs");
    let touch = format!("echo run >> {}", runs.display());
    let mut lock = exec("lock", &touch, 5);
    lock["undo"] = json!("unlock");
    rig.run_pod("p", idle(json!([lock, exec("unlock", "exit 0", 5)])))
        .await;
    rig.notify("n", ask("lock")).await;
    let done = rig.finished("n").await;
    assert_eq!(done["status"]["error"]["type"], "RuntimeError", "{done:#}");
    assert!(!runs.exists());
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_gate_off_the_agent_does_not_act() {
    let gates = FeatureGates::default().with(Feature::ContainerNotifier, false);
    let rig = Rig::with_gates(gates).await;
    let runs = rig.dir.path().join("runs");
    let touch = format!("echo run >> {}", runs.display());
    rig.run_pod("p", idle(json!([exec("work", &touch, 5)])))
        .await;
    rig.notify("n", ask("work")).await;
    // One that acts claims at once; this one meanwhile runs another pod, and lets it go.
    rig.run_pod("q", idle(json!([]))).await;
    let now = DeleteParams::default().grace_period(1);
    rig.pods().delete("q", &now).await.unwrap();
    until("the other pod to be gone", async || {
        let found = rig.pods().get_opt("q").await.unwrap();
        found.is_none().then_some(())
    })
    .await;
    let object = rig.notifications().get("n").await.unwrap();
    assert!(!object.state().is_final());
    assert!(object.status.unwrap().executor.is_none());
    assert!(!runs.exists());
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_notification_is_two_status_writes() {
    let rig = Rig::start().await;
    rig.run_pod("p", idle(json!([exec("work", "exit 0", 5)])))
        .await;
    let created = rig.notify("n", ask("work")).await;
    let first = created.metadata.resource_version.unwrap();
    rig.finished("n").await;
    // A third write would not take longer than another notification.
    rig.notify("m", ask("work")).await;
    rig.finished("m").await;
    let last = json!({"metadata": {"labels": {"last": "yes"}}});
    let (api, only) = (rig.notifications(), PatchParams::default());
    api.patch("n", &only, &Patch::Merge(last)).await.unwrap();
    let params = kube::api::WatchParams::default().fields("metadata.name=n");
    let stream = api.watch(&params, &first).await.unwrap();
    let mut stream = std::pin::pin!(stream);
    let mut seen = 0;
    loop {
        let event = futures::StreamExt::next(&mut stream).await;
        let WatchEvent::Modified(object) = event.unwrap().unwrap() else {
            continue;
        };
        if object.metadata.labels.is_some() {
            break;
        }
        seen += 1;
    }
    assert_eq!(seen, 2);
    rig.end().await;
}
