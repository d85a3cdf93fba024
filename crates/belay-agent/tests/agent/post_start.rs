//! `postStart` hooks on the real process runtime.

use belay_api::pod::Pod;
use serde_json::json;

use crate::rig::{Rig, until_lines};
use crate::terminations::{LONG, delete, event, exec, gone, listening, polite, read, sleep};

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_ready_when_its_post_start_hook_is_done() {
    let rig = Rig::start().await;
    let (heard, gate) = (rig.dir.path().join("heard"), rig.dir.path().join("gate"));
    let hook = format!(
        "echo hook >> {}; while ! test -e {}; do sleep 0.05; done",
        heard.display(),
        gate.display()
    );
    let mut spec = polite(&heard, sleep(0), LONG);
    spec["containers"][0]["lifecycle"]["postStart"] = exec(&hook);
    let ready = |pod: &belay_api::pod::Pod| {
        let status = serde_json::to_value(&pod.status).unwrap();
        status["containerStatuses"][0]["ready"] == true
    };
    let pod = rig.run_pod("p", spec).await;
    until_lines(&heard, 2).await;
    assert!(!ready(&pod), "its hook is under way");
    std::fs::write(&gate, "").unwrap();
    rig.pod("p", "to be ready", ready).await;
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    assert_eq!(read(&heard).matches("hook").count(), 1);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_post_start_hook_fails_is_stopped_like_any_other_and_started_again() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let failed = rig.dir.path().join("failed");
    let mut spec = polite(
        &heard,
        exec(&format!("echo hook >> {}", heard.display())),
        LONG,
    );
    // Its process has set its traps when it has written its first line.
    let hook = format!(
        "test -e {0} && exit 0; while ! test -s {1}; do sleep 0.02; done; touch {0}; exit 1",
        failed.display(),
        heard.display()
    );
    spec["containers"][0]["lifecycle"]["postStart"] = exec(&hook);
    rig.create_pod("p", spec).await;
    rig.pod("p", "to be up again", |pod| {
        let status = serde_json::to_value(&pod.status).unwrap();
        let main = &status["containerStatuses"][0];
        main["restartCount"] == 1 && main["ready"] == true
    })
    .await;
    until_lines(&heard, 4).await;
    assert_eq!(read(&heard), "main-up\nhook\nmain-term\nmain-up\n");
    let message = event(&rig, "p", "FailedPostStartHook").await;
    assert!(message.contains("code 1"), "{message}");
    rig.end().await;
}

fn other() -> serde_json::Value {
    json!({"containers": [{"name": "main", "image": "none", "command": ["sleep", "1000"]}]})
}

/// A container whose hook fails the first time, when it is up, and whose `preStop` waits for `gate`.
fn failing_once(name: &str, rig: &Rig) -> serde_json::Value {
    let file = |name: &str| rig.dir.path().join(name).display().to_string();
    let (heard, failed, gate) = (file("heard"), file("failed"), file("gate"));
    let mut container = listening(name, &rig.dir.path().join("heard"), "exit 0");
    let hook = format!(
        "test -e {failed} && {{ echo {name}-hook >> {heard}; exit 0; }}; \
         while ! test -s {heard}; do sleep 0.02; done; touch {failed}; exit 1"
    );
    let held = format!("echo {name}-stops >> {heard}; while ! test -e {gate}; do sleep 0.05; done");
    container["lifecycle"] = json!({"postStart": exec(&hook), "preStop": exec(&held)});
    container
}

fn up(pod: &Pod) -> bool {
    let status = serde_json::to_value(&pod.status).unwrap();
    let main = &status["containerStatuses"][0];
    main["ready"] == true || main["started"] == true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_whose_hook_fails_lets_nobody_start_before_another_has_come_up() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let mut sidecar = failing_once("proxy", &rig);
    sidecar["restartPolicy"] = json!("Always");
    let main = listening("main", &heard, "exit 0");
    let spec = json!({
        "terminationGracePeriodSeconds": LONG, "initContainers": [sidecar], "containers": [main],
    });
    rig.create_pod("p", spec).await;
    until_lines(&heard, 2).await;
    rig.run_pod("other", other()).await;
    std::fs::write(rig.dir.path().join("gate"), "").unwrap();
    rig.pod("p", "to run", |pod| pod.phase() == "Running" && up(pod))
        .await;
    until_lines(&heard, 6).await;
    let said = read(&heard);
    let at = |line: &str| said.lines().position(|one| one == line).unwrap();
    assert!(at("proxy-hook") < at("main-up"), "{said}");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_hook_failed_is_not_up_while_it_is_stopped() {
    let mut rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let main = failing_once("main", &rig);
    let spec = json!({"terminationGracePeriodSeconds": LONG, "containers": [main]});
    rig.create_pod("p", spec).await;
    until_lines(&heard, 2).await;
    for name in ["other", "another"] {
        rig.run_pod(name, other()).await;
        let pod = rig.pods().get("p").await.unwrap();
        assert!(!up(&pod), "{:#?}", pod.status);
        // Nor does another agent take it for that.
        rig.stop_agent().await;
        rig.start_agent().await;
    }
    std::fs::write(rig.dir.path().join("gate"), "").unwrap();
    rig.pod("p", "to be up", up).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_deleted_during_its_hook_does_not_come_up() {
    let rig = Rig::start().await;
    let (heard, gate) = (rig.dir.path().join("heard"), rig.dir.path().join("gate"));
    let held = format!(
        "echo stops >> {}; while ! test -e {}; do sleep 0.05; done",
        heard.display(),
        gate.display()
    );
    let mut spec = polite(&heard, exec(&held), LONG);
    spec["containers"][0]["lifecycle"]["postStart"] = exec("sleep 1000");
    rig.create_pod("p", spec).await;
    until_lines(&heard, 1).await;
    delete(&rig, "p").await;
    until_lines(&heard, 2).await;
    rig.run_pod("other", other()).await;
    let pod = rig.pods().get("p").await.unwrap();
    assert!(!up(&pod), "{:#?}", pod.status);
    std::fs::write(&gate, "").unwrap();
    gone(&rig, "p").await;
    rig.end().await;
}
