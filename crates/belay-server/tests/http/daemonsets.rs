//! Daemon sets as a client sees them; who makes their pods is not part of the server.

use belay_api::gates::FeatureGates;
use belay_server::Identity;
use serde_json::{Value, json};

use crate::harness::{Client, Harness, PODS, pod};

const SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";

fn set(name: &str) -> Value {
    let mut template = pod(name);
    let fields = template.as_object_mut().unwrap();
    fields.remove("apiVersion");
    fields.remove("kind");
    fields["metadata"].as_object_mut().unwrap().remove("name");
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    })
}

async fn strategic(client: &Client, name: &str, patch: &Value) -> crate::harness::Answer {
    let path = format!("{SETS}/{name}");
    client.patch(&path, "strategic-merge-patch", patch).await
}

#[tokio::test]
async fn the_generation_counts_changes_of_the_spec_and_of_nothing_else() {
    let h = Harness::start().await;
    let c = h.admin();
    let made = c.post(SETS, &set("d")).await.ok();
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(made["status"]["numberReady"], 0);
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    let same = strategic(&c, "d", &label).await.ok();
    assert_eq!(same["metadata"]["generation"], 1);
    let status = json!({"status": {"numberReady": 1, "observedGeneration": 1}});
    let path = format!("{SETS}/d/status");
    let counted = c.patch(&path, "merge-patch", &status).await.ok();
    assert_eq!(counted["metadata"]["generation"], 1);
    assert_eq!(counted["status"]["numberReady"], 1);
    // A strategic merge patch finds the container by its name and leaves the rest of it alone.
    let image = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "main", "image": "other"},
    ]}}}});
    let next = strategic(&c, "d", &image).await.ok();
    assert_eq!(next["metadata"]["generation"], 2);
    let container = &next["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "other");
    assert_eq!(container["notifiers"][0]["name"], "reload");
    assert_eq!(next["status"]["numberReady"], 1);
}

#[tokio::test]
async fn what_is_wrong_is_refused_by_field() {
    let h = Harness::start().await;
    let c = h.admin();
    let mut wrong = set("d");
    wrong["spec"]["selector"] = json!({"matchLabels": {"app": "other"}});
    wrong["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
    let answer = c.post(SETS, &wrong).await;
    let message = answer.refused(422, "Invalid");
    for part in [
        "spec.template.metadata.labels: Invalid value",
        "spec.template.spec.restartPolicy: Unsupported value: \"Never\"",
    ] {
        assert!(message.contains(part), "{message}");
    }
    c.post(SETS, &set("d")).await.ok();
    let selector = json!({"spec": {
        "selector": {"matchLabels": {"app": "d", "more": "x"}},
        "template": {"metadata": {"labels": {"more": "x"}}},
    }});
    let answer = strategic(&c, "d", &selector).await;
    let message = answer.refused(422, "Invalid");
    assert!(message.contains("field is immutable"), "{message}");
}

/// KEP-3960: "the handler is silently dropped when a pod created with no handler and feature-gate
/// enabled is updated with handler and feature-gate disabled", "the handler is correctly added when a
/// pod created with no handler and feature-gate disabled is updated with handler and feature-gate
/// enabled". KEP-4960: "the validation fails when the StopSignal is given with the feature gate
/// disabled".
#[tokio::test]
async fn gates_apply_to_the_template() {
    let gates = "ContainerStopSignals=false,PodLifecycleSleepAction=false,ContainerNotifier=false";
    let h = Harness::with_gates(gates.parse().unwrap()).await;
    let c = h.admin();
    let mut sent = set("d");
    let container = &mut sent["spec"]["template"]["spec"]["containers"][0];
    container["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 1}}});
    container["stopSignal"] = "SIGUSR1".into();
    let answer = c.post(SETS, &sent).await;
    let message = answer.refused(422, "Invalid");
    assert!(message.contains("ContainerStopSignals is off"), "{message}");
    let container = &mut sent["spec"]["template"]["spec"]["containers"][0];
    container.as_object_mut().unwrap().remove("stopSignal");
    let made = c.post(SETS, &sent).await.ok();
    let container = &made["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["lifecycle"], Value::Null);
    assert_eq!(container["notifiers"], Value::Null);

    // With the gates on it may be added, and stays when they are off again.
    let h = h.reopen(FeatureGates::default()).await;
    let added = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "main", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}},
    ]}}}});
    let next = strategic(&h.admin(), "d", &added).await.ok();
    let container = &next["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["lifecycle"]["preStop"]["sleep"]["seconds"], 1);
    h.admin().post(SETS, &set("none")).await.ok();
    let h = h.reopen(gates.parse().unwrap()).await;
    let next = strategic(&h.admin(), "none", &added).await.ok();
    let container = &next["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["lifecycle"], Value::Null, "dropped");
    let image = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "main", "image": "other"},
    ]}}}});
    let kept = strategic(&h.admin(), "d", &image).await.ok();
    let container = &kept["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["lifecycle"]["preStop"]["sleep"]["seconds"], 1);
}

#[tokio::test]
async fn its_controller_makes_pods_and_counts_and_nothing_more() {
    let h = Harness::start().await;
    h.admin().post(SETS, &set("d")).await.ok();
    let controller = h.of(Identity::controlplane());
    controller.post(PODS, &pod("p")).await.ok();
    let status = json!({"status": {"numberReady": 1}});
    let path = format!("{SETS}/d/status");
    controller.patch(&path, "merge-patch", &status).await.ok();
    controller
        .post(SETS, &set("e"))
        .await
        .refused(403, "Forbidden");
}

/// What a typed Go client sends: `kubectl` with protobuf, operators.
#[tokio::test]
async fn a_body_in_protobuf_is_the_same_object() {
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![number << 3 | 2, u8::try_from(content.len()).unwrap()];
        bytes.extend(content);
        bytes
    }
    let label = field(1, &[field(1, b"app"), field(2, b"d")].concat());
    let labels = field(11, &[field(1, b"app"), field(2, b"d")].concat());
    let container = field(2, &[field(1, b"main"), field(2, b"none")].concat());
    let template = field(2, &[field(1, &labels), field(2, &container)].concat());
    let share = field(1, &[&[0x08, 0x01][..], &field(3, b"50%")].concat());
    let strategy = field(3, &[field(1, b"RollingUpdate"), field(2, &share)].concat());
    let ready_seconds = [4 << 3, 7];
    let spec = [field(1, &label), template, strategy, ready_seconds.to_vec()].concat();
    let object = [field(1, &field(1, b"d")), field(2, &spec)].concat();
    let types = [field(1, b"apps/v1"), field(2, b"DaemonSet")].concat();
    let body = [b"k8s\0".to_vec(), field(1, &types), field(2, &object)].concat();
    let h = Harness::start().await;
    let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
    let made = h.admin().send("POST", SETS, &headers, body).await.ok();
    let spec = &made["spec"];
    assert_eq!(spec["selector"], json!({"matchLabels": {"app": "d"}}));
    assert_eq!(spec["minReadySeconds"], 7);
    let rolling = &spec["updateStrategy"]["rollingUpdate"];
    assert_eq!(rolling["maxUnavailable"], "50%");
    let container = &spec["template"]["spec"]["containers"][0];
    assert_eq!(
        (&container["name"], &container["image"]),
        (&json!("main"), &json!("none"))
    );
}

#[tokio::test]
async fn a_notifier_that_a_patch_adds_is_warned_about_like_one_at_creation() {
    let h = Harness::start().await;
    let c = h.admin();
    let made = c.post(SETS, &set("d")).await;
    assert_eq!(made.warnings.len(), 0, "{made:?}");
    let add = json!({"spec": {"template": {"spec": {"containers": [{
        "name": "main",
        "notifiers": [{"name": "flush", "handler": {"exec": {"command": ["flush"]}}}],
    }]}}}});
    let added = strategic(&c, "d", &add).await;
    assert_eq!(added.warnings.len(), 1, "{added:?}");
    let warning = &added.warnings[0];
    assert!(warning.contains("timeoutSeconds: not set"), "{warning}");
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    let labelled = strategic(&c, "d", &label).await;
    assert_eq!(labelled.warnings.len(), 0, "{labelled:?}");
    labelled.ok();
}
