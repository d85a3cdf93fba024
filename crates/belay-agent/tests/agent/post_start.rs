//! `postStart` hooks on the real process runtime.

use crate::rig::{Rig, until_lines};
use crate::terminations::{LONG, delete, event, exec, gone, polite, read, sleep};

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
