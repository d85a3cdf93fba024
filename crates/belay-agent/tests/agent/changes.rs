//! The image of a container that runs is changed: another takes its place.

use belay_api::pod::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::rig::{Rig, until, until_lines};

/// A container that writes down that it is up, its hook and its signal, and ends well. While the file
/// `gate` is not there its hook does not end.
fn spec(rig: &Rig, policy: &str) -> Value {
    let heard = rig.dir.path().join("heard").display().to_string();
    let gate = rig.dir.path().join("gate").display().to_string();
    let script = format!(
        "trap 'echo term >> {heard}; exit 0' TERM; echo up >> {heard}; while :; do sleep 0.05; done"
    );
    let hook = format!("echo hook >> {heard}; while ! test -e {gate}; do sleep 0.05; done");
    json!({
        "restartPolicy": policy,
        "terminationGracePeriodSeconds": 600,
        "containers": [
            {"name": "main", "image": "one", "command": ["/bin/sh", "-c", script],
             "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", hook]}}}},
            {"name": "other", "image": "one", "command": ["sleep", "1000"]},
        ],
    })
}

async fn set_image(rig: &Rig, image: &str) {
    let patch = json!({"spec": {"containers": [{"name": "main", "image": image}]}});
    let params = PatchParams::default();
    let pods = rig.pods();
    pods.patch("p", &params, &Patch::Strategic(patch))
        .await
        .unwrap();
}

fn statuses(pod: &Pod) -> Value {
    serde_json::to_value(&pod.status.as_ref().unwrap().container_statuses).unwrap()
}

async fn replaced(rig: &Rig) -> Value {
    let pod = rig.pod("p", "to run with another image", |pod| {
        let main = &statuses(pod)[0];
        main["restartCount"] == 1 && main["state"]["running"].is_object()
    });
    let pod = pod.await;
    assert_eq!(pod.phase(), "Running");
    statuses(&pod)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_image_changes_is_stopped_as_it_should_and_started_again() {
    for policy in ["Never", "Always"] {
        let rig = Rig::start().await;
        let (heard, gate) = (rig.dir.path().join("heard"), rig.dir.path().join("gate"));
        std::fs::write(&gate, "").unwrap();
        let before = statuses(&rig.run_pod("p", spec(&rig, policy)).await);
        until_lines(&heard, 1).await;
        set_image(&rig, "two").await;
        let after = replaced(&rig).await;
        until_lines(&heard, 4).await;
        let said = std::fs::read_to_string(&heard).unwrap();
        assert_eq!(said, "up\nhook\nterm\nup\n", "{policy}");
        assert_eq!(after[0]["image"], "two");
        assert_eq!(after[0]["lastState"]["terminated"]["exitCode"], 0);
        assert_eq!(after[1], before[1], "the other is left alone");
        let events: kube::Api<k8s_openapi::api::core::v1::Event> =
            kube::Api::namespaced(rig.admin.clone(), "default");
        until("the event", async || {
            let all = events.list(&kube::api::ListParams::default()).await;
            let wanted = "Container main definition changed, will be restarted";
            let mut all = all.unwrap().into_iter();
            all.any(|one| {
                one.reason.as_deref() == Some("Killing") && one.message.as_deref() == Some(wanted)
            })
            .then_some(())
        })
        .await;
        rig.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_started_again_goes_on_with_the_change() {
    let mut rig = Rig::start().await;
    let (heard, gate) = (rig.dir.path().join("heard"), rig.dir.path().join("gate"));
    rig.run_pod("p", spec(&rig, "Never")).await;
    until_lines(&heard, 1).await;
    // Changed while there is no agent.
    rig.stop_agent().await;
    set_image(&rig, "two").await;
    rig.start_agent().await;
    until_lines(&heard, 2).await;
    // And the agent goes while the container ends.
    rig.stop_agent().await;
    std::fs::write(&gate, "").unwrap();
    rig.start_agent().await;
    replaced(&rig).await;
    until_lines(&heard, 4).await;
    let said = std::fs::read_to_string(&heard).unwrap();
    assert_eq!(said, "up\nhook\nterm\nup\n");
    rig.end().await;
}
