//! What containers leave to be read about their end, and agents that come and go.

use belay_api::pod::Pod;
use serde_json::{Value, json};

use crate::rig::Rig;
use crate::terminations::{listening, sh};

fn saying(script: &str) -> Value {
    json!({
        "name": "main", "image": "none", "command": sh(script),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    })
}

fn message(pod: &Pod) -> Value {
    let status = serde_json::to_value(&pod.status).unwrap();
    status["containerStatuses"][0]["state"]["terminated"]["message"].clone()
}

fn has_failed(pod: &Pod) -> bool {
    pod.phase() == "Failed" && message(pod) == "why\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pod_said_that_has_ended_is_still_told_by_the_next_agent() {
    let mut rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let mut sidecar = listening("proxy", &heard, "exit 0");
    sidecar["restartPolicy"] = json!("Always");
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [sidecar], "containers": [saying("echo why; exit 3")],
    });
    rig.create_pod("p", spec).await;
    rig.pod("p", "to fail", has_failed).await;
    // Whatever became of the log.
    rig.stop_agent().await;
    let logs = rig.agent_dir().join("logs");
    std::fs::remove_dir_all(logs).unwrap();
    rig.start_agent().await;
    let other =
        json!({"containers": [{"name": "main", "image": "none", "command": ["sleep", "1000"]}]});
    rig.run_pod("other", other).await;
    let pod = rig.pods().get("p").await.unwrap();
    assert!(has_failed(&pod), "{:#?}", pod.status);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_container_said_that_ended_while_no_agent_was_there_is_read() {
    let mut rig = Rig::start().await;
    let gate = rig.dir.path().join("gate");
    let script = format!(
        "while ! test -e {}; do sleep 0.05; done; echo why; exit 3",
        gate.display()
    );
    let spec = json!({"restartPolicy": "Never", "containers": [saying(&script)]});
    rig.run_pod("p", spec).await;
    rig.stop_agent().await;
    std::fs::write(&gate, "").unwrap();
    rig.containers_ended().await;
    rig.start_agent().await;
    rig.pod("p", "to fail and say why", has_failed).await;
    rig.end().await;
}
