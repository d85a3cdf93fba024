//! Creating and changing.

use belay_server::Identity;
use serde_json::{Value, json};

use crate::harness::{Harness, MAPS, NOTIFICATIONS, PODS, map, notification, pod, run_pod};

#[tokio::test]
async fn a_created_object_has_what_the_server_adds_and_survives_a_restart() {
    let h = Harness::start().await;
    let made = h.admin().post(MAPS, &map("a", &[("k", "v")])).await.ok();
    for field in ["uid", "creationTimestamp", "resourceVersion"] {
        assert!(made["metadata"][field].is_string(), "{field}: {made}");
    }
    let h = h.reopen(Default::default()).await;
    assert_eq!(h.admin().get(&format!("{MAPS}/a")).await.ok(), made);
}

#[tokio::test]
async fn creating_twice_is_already_exists_and_generated_names_do_not_collide() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(MAPS, &map("a", &[])).await.ok();
    let message = c.post(MAPS, &map("a", &[])).await;
    assert_eq!(
        message.refused(409, "AlreadyExists"),
        "configmaps \"a\" already exists"
    );
    let body = json!({"metadata": {"generateName": "x-"}});
    let first = c.post(MAPS, &body).await.ok();
    let second = c.post(MAPS, &body).await.ok();
    assert_ne!(first["metadata"]["name"], second["metadata"]["name"]);
}

#[tokio::test]
async fn an_object_needs_a_namespace_that_exists() {
    let h = Harness::start().await;
    let answer = h
        .admin()
        .post("/api/v1/namespaces/nowhere/configmaps", &map("a", &[]))
        .await;
    assert!(answer.refused(404, "NotFound").contains("nowhere"));
    let mut lost = map("a", &[]);
    lost["metadata"]["namespace"] = "kube-system".into();
    h.admin().post(MAPS, &lost).await.refused(400, "BadRequest");
}

#[tokio::test]
async fn a_stale_update_is_a_conflict_and_an_unchanged_one_writes_nothing() {
    let h = Harness::start().await;
    let c = h.admin();
    let first = c.post(MAPS, &map("a", &[("k", "1")])).await.ok();
    let path = format!("{MAPS}/a");
    let mut next = first.clone();
    next["data"]["k"] = "2".into();
    let second = c.put(&path, &next).await.ok();
    assert_ne!(
        first["metadata"]["resourceVersion"],
        second["metadata"]["resourceVersion"]
    );
    assert!(
        c.put(&path, &next)
            .await
            .refused(409, "Conflict")
            .contains("has been modified")
    );
    assert_eq!(c.put(&path, &second).await.ok(), second);
}

#[tokio::test]
async fn spec_and_status_are_written_through_different_doors() {
    let h = Harness::start().await;
    let c = h.admin();
    let mut sent = pod("p");
    sent["status"] = json!({"phase": "Running"});
    let made = c.post(PODS, &sent).await.ok();
    assert_eq!(made["status"]["phase"], "Pending");
    let path = format!("{PODS}/p");
    let status = json!({"status": {"phase": "Running"}, "metadata": {"labels": {"x": "y"}}});
    let after = c
        .patch(&format!("{path}/status"), "merge-patch", &status)
        .await
        .ok();
    assert_eq!(after["status"]["phase"], "Running");
    assert_eq!(after["metadata"]["labels"], made["metadata"]["labels"]);
    let patch = json!({"status": {"phase": "Failed"}, "metadata": {"labels": {"x": "y"}}});
    let after = c.patch(&path, "merge-patch", &patch).await.ok();
    assert_eq!(after["status"]["phase"], "Running");
    assert_eq!(after["metadata"]["labels"]["x"], "y");
}

#[tokio::test]
async fn the_three_patch_types_do_what_they_are_for() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(PODS, &pod("p")).await.ok();
    let path = format!("{PODS}/p");
    let json_patch = json!([{"op": "add", "path": "/metadata/labels/a", "value": "1"}]);
    assert_eq!(
        c.patch(&path, "json-patch", &json_patch).await.ok()["metadata"]["labels"]["a"],
        "1"
    );
    let merge = json!({"metadata": {"labels": {"a": null}}});
    let after = c.patch(&path, "merge-patch", &merge).await.ok();
    assert_eq!(after["metadata"]["labels"].get("a"), None);
    // A strategic merge finds the container by its name and keeps the rest of it.
    let strategic = json!({"spec": {"containers": [{"name": "main", "image": "other"}]}});
    let after = c
        .patch(&path, "strategic-merge-patch", &strategic)
        .await
        .ok();
    assert_eq!(after["spec"]["containers"][0]["image"], "other");
    assert_eq!(after["spec"]["containers"][0]["command"][0], "sleep");
    let bad = json!([{"op": "test", "path": "/metadata/name", "value": "q"}]);
    c.patch(&path, "json-patch", &bad)
        .await
        .refused(422, "Invalid");
    let malformed = json!([{"op": "shuffle", "path": "/metadata"}]);
    c.patch(&path, "json-patch", &malformed)
        .await
        .refused(400, "BadRequest");
    c.patch(&path, "apply-patch", &json!({}))
        .await
        .refused(415, "UnsupportedMediaType");
}

#[tokio::test]
async fn a_custom_kind_takes_no_strategic_merge() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(NOTIFICATIONS, &notification("n", "p", "reload"))
        .await
        .ok();
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    let path = format!("{NOTIFICATIONS}/n");
    c.patch(&path, "strategic-merge-patch", &patch)
        .await
        .refused(415, "UnsupportedMediaType");
    c.patch(&path, "merge-patch", &patch).await.ok();
}

#[tokio::test]
async fn a_dry_run_answers_and_stores_nothing() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(&format!("{MAPS}?dryRun=All"), &map("a", &[]))
        .await
        .ok();
    c.get(&format!("{MAPS}/a")).await.refused(404, "NotFound");
    c.post(MAPS, &map("a", &[("k", "1")])).await.ok();
    c.post(&format!("{MAPS}?dryRun=All"), &map("a", &[]))
        .await
        .refused(409, "AlreadyExists");
    let patch = json!({"data": {"k": "2"}});
    let imagined = c
        .patch(&format!("{MAPS}/a?dryRun=All"), "merge-patch", &patch)
        .await
        .ok();
    assert_eq!(imagined["data"]["k"], "2");
    assert_eq!(c.get(&format!("{MAPS}/a")).await.ok()["data"]["k"], "1");
    c.delete(&format!("{MAPS}/a?dryRun=All")).await.ok();
    c.get(&format!("{MAPS}/a")).await.ok();
}

#[tokio::test]
async fn unknown_fields_are_refused_warned_of_or_dropped_as_asked() {
    let h = Harness::start().await;
    let c = h.admin();
    let mut sent = map("a", &[]);
    sent["dataa"] = json!({});
    let strict = c
        .post(&format!("{MAPS}?fieldValidation=Strict"), &sent)
        .await;
    assert!(
        strict
            .refused(400, "BadRequest")
            .contains("unknown field \"dataa\"")
    );
    let warned = c.post(MAPS, &sent).await;
    assert!(warned.warnings[0].contains("unknown field"), "{warned:?}");
    assert_eq!(warned.ok().get("dataa"), None);
    sent["metadata"]["name"] = "b".into();
    let ignored = c
        .post(&format!("{MAPS}?fieldValidation=Ignore"), &sent)
        .await;
    assert!(ignored.warnings.is_empty());
}

#[tokio::test]
async fn an_invalid_object_names_every_field_to_fix() {
    let h = Harness::start().await;
    let answer = h
        .admin()
        .post(
            NOTIFICATIONS,
            &json!({"metadata": {"name": "n"}, "spec": {}}),
        )
        .await;
    answer.refused(422, "Invalid");
    let fields: Vec<&str> = answer.body["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|c| c["field"].as_str())
        .collect();
    assert!(
        fields.contains(&"spec.podName") && fields.contains(&"spec.notifier"),
        "{fields:?}"
    );
}

#[tokio::test]
async fn concurrent_patches_all_land() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(MAPS, &map("a", &[])).await.ok();
    let writes = (0..32).map(|i| {
        let client = h.admin();
        async move {
            let patch = json!({"data": {format!("k{i}"): "v"}});
            client
                .patch(&format!("{MAPS}/a"), "merge-patch", &patch)
                .await
                .ok();
        }
    });
    futures::future::join_all(writes).await;
    let after = c.get(&format!("{MAPS}/a")).await.ok();
    assert_eq!(
        after["data"].as_object().map(serde_json::Map::len),
        Some(32)
    );
}

#[tokio::test]
async fn who_acts_on_a_notification_is_settled_in_the_creating_write() {
    let h = Harness::start().await;
    let c = h.admin();
    let status = |v: Value| v["status"].clone();
    let lost = status(
        c.post(NOTIFICATIONS, &notification("lost", "p", "reload"))
            .await
            .ok(),
    );
    assert_eq!(
        (&lost["state"], &lost["error"]["type"]),
        (&"Failed".into(), &"PodNotFound".into())
    );
    c.post(PODS, &pod("p")).await.ok();
    let early = status(
        c.post(NOTIFICATIONS, &notification("early", "p", "reload"))
            .await
            .ok(),
    );
    assert_eq!(early["error"]["type"], "ContainerNotRunning");
    run_pod(&c, "p", "n1").await;
    let made = c
        .post(NOTIFICATIONS, &notification("good", "p", "reload"))
        .await
        .ok();
    let uid = c.get(&format!("{PODS}/p")).await.ok()["metadata"]["uid"].clone();
    assert_eq!(
        made["status"],
        json!({"state": "New", "nodeName": "n1", "podUID": uid})
    );
    let none = status(
        c.post(NOTIFICATIONS, &notification("none", "p", "unknown"))
            .await
            .ok(),
    );
    assert_eq!(
        (&none["state"], &none["conditions"][0]["type"]),
        (&"Succeeded".into(), &"NotifierFound".into())
    );
    let events = c
        .get("/api/v1/namespaces/default/events?fieldSelector=involvedObject.name=none")
        .await
        .ok();
    assert_eq!(events["items"][0]["type"], "Warning", "{events}");
    c.delete(&format!("{PODS}/p")).await.ok();
    let late = status(
        c.post(NOTIFICATIONS, &notification("late", "p", "reload"))
            .await
            .ok(),
    );
    assert_eq!(late["error"]["type"], "PodTerminating");
}

#[tokio::test]
async fn a_closed_gate_hides_notifications_and_opening_it_shows_them_again() {
    let h = Harness::start().await;
    h.admin()
        .post(NOTIFICATIONS, &notification("n", "p", "reload"))
        .await
        .ok();
    let h = h.reopen("ContainerNotifier=false".parse().unwrap()).await;
    h.admin()
        .get(&format!("{NOTIFICATIONS}/n"))
        .await
        .refused(404, "NotFound");
    let made = h.admin().post(PODS, &pod("p")).await.ok();
    assert_eq!(made["spec"]["containers"][0].get("notifiers"), None);
    let h = h.reopen(Default::default()).await;
    h.admin().get(&format!("{NOTIFICATIONS}/n")).await.ok();
}

const PROTOBUF: [(&str, &str); 1] = [("content-type", "application/vnd.kubernetes.protobuf")];

/// A body as client-go writes it, and the same object in JSON.
fn recorded(name: &str) -> (Vec<u8>, Value) {
    let dir =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../belay-api/tests/data/protobuf");
    let body = std::fs::read(dir.join(format!("{name}.pb"))).unwrap();
    let json = std::fs::read(dir.join(format!("{name}.json"))).unwrap();
    (body, serde_json::from_slice(&json).unwrap())
}

#[tokio::test]
async fn a_typed_client_creates_and_deletes_in_protobuf() {
    let h = Harness::start().await;
    let c = h.admin();
    let (body, _) = recorded("namespace");
    let made = c
        .send("POST", "/api/v1/namespaces", &PROTOBUF, body)
        .await
        .ok();
    assert_eq!(made["metadata"]["name"], "shop");
    assert_eq!(made["status"]["phase"], "Active");

    let (body, json) = recorded("configmap");
    let imagined = format!("{MAPS}?dryRun=All&fieldValidation=Strict");
    c.send("POST", &imagined, &PROTOBUF, body.clone())
        .await
        .ok();
    let path = format!("{MAPS}/settings");
    c.get(&path).await.refused(404, "NotFound");
    let made = c.send("POST", MAPS, &PROTOBUF, body.clone()).await.ok();
    assert_eq!(made["data"], json["data"]);
    assert_eq!(made["binaryData"], json["binaryData"]);
    assert_eq!(made["immutable"], false);
    assert_eq!(made["apiVersion"], "v1");
    c.send("PUT", &path, &PROTOBUF, body).await.ok();

    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let (body, json) = recorded("lease");
    let made = c.send("POST", leases, &PROTOBUF, body).await.ok();
    assert_eq!(made["spec"], json["spec"]);
    let lease = format!("{leases}/leader");
    let (options, _) = recorded("deleteoptions-lease");
    c.send("DELETE", &lease, &PROTOBUF, options).await.ok();
    c.get(&lease).await.ok();
    let (options, _) = recorded("deleteoptions");
    let answer = c.send("DELETE", &lease, &PROTOBUF, options).await;
    assert!(answer.refused(409, "Conflict").contains("9d1f"));
    let (options, _) = recorded("deleteoptions-empty");
    c.send("DELETE", &lease, &PROTOBUF, options).await.ok();
    c.get(&lease).await.refused(404, "NotFound");
}

#[tokio::test]
async fn a_typed_scheduler_binds_in_protobuf() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(PODS, &pod("db")).await.ok();
    let (body, _) = recorded("binding");
    let path = format!("{PODS}/db/binding");
    c.send("POST", &path, &PROTOBUF, body).await.ok();
    let bound = c.get(&format!("{PODS}/db")).await.ok();
    assert_eq!(bound["spec"]["nodeName"], "n1");
}

#[tokio::test]
async fn protobuf_that_does_not_belong_here_is_refused() {
    let h = Harness::start().await;
    let c = h.admin();
    let (lease, _) = recorded("lease");
    let answer = c.send("POST", MAPS, &PROTOBUF, lease.clone()).await;
    let message = answer.refused(400, "BadRequest");
    assert!(message.contains("coordination.k8s.io/v1"), "{message}");
    let answer = c.send("POST", MAPS, &PROTOBUF, b"{}".to_vec()).await;
    let message = answer.refused(415, "UnsupportedMediaType");
    assert!(message.contains("application/json"), "{message}");
    let half = lease[..lease.len() / 2].to_vec();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let answer = c.send("POST", leases, &PROTOBUF, half).await;
    answer.refused(400, "BadRequest");
    let answer = c
        .send("DELETE", &format!("{leases}/x"), &PROTOBUF, lease)
        .await;
    answer.refused(400, "BadRequest");
    let nothing = b"k8s\0".to_vec();
    let answer = c.send("POST", NOTIFICATIONS, &PROTOBUF, nothing).await;
    answer.refused(415, "UnsupportedMediaType");
}

#[tokio::test]
async fn a_binding_is_for_one_pod_and_not_for_a_successor_of_its_name() {
    let h = Harness::start().await;
    let c = h.admin();
    let made = c.post(PODS, &pod("p")).await.ok();
    let (uid, revision) = (
        &made["metadata"]["uid"],
        &made["metadata"]["resourceVersion"],
    );
    let path = format!("{PODS}/p/binding");
    let binding =
        |metadata: Value| json!({"metadata": metadata, "target": {"kind": "Node", "name": "n"}});
    for foreign in [
        json!({"name": "p", "uid": "another"}),
        json!({"name": "p", "uid": uid, "resourceVersion": "1"}),
    ] {
        let answer = c.post(&path, &binding(foreign)).await;
        let message = answer.refused(409, "Conflict");
        assert!(message.contains("precondition"), "{message}");
    }
    let own = json!({"name": "p", "uid": uid, "resourceVersion": revision});
    c.post(&path, &binding(own)).await.ok();
    let bound = c.get(&format!("{PODS}/p")).await.ok();
    assert_eq!(bound["spec"]["nodeName"], "n");
}

#[tokio::test]
async fn an_object_stays_in_its_namespace() {
    let h = Harness::start().await;
    let c = h.admin();
    let mut made = c.post(MAPS, &map("a", &[])).await.ok();
    let path = format!("{MAPS}/a");
    made["metadata"]["namespace"] = "other".into();
    let answer = c.put(&path, &made).await;
    let message = answer.refused(400, "BadRequest");
    assert!(
        message.contains("does not match the namespace"),
        "{message}"
    );
    made["metadata"]
        .as_object_mut()
        .unwrap()
        .remove("namespace");
    c.put(&path, &made).await.ok();
}

/// Clients give up on an answer with too many headers.
#[tokio::test]
async fn many_warnings_are_told_in_a_few_headers() {
    let h = Harness::start().await;
    let c = h.admin();
    let mut odd = map("a", &[]);
    for field in 0..1000 {
        odd[format!("unknown{field}")] = json!(1);
    }
    let long = "x".repeat(100_000);
    odd[&long] = json!(1);
    let path = format!("{MAPS}?fieldValidation=Warn");
    let answer = c.post(&path, &odd).await;
    assert_eq!(answer.warnings.len(), 16);
    let last = &answer.warnings[15];
    assert!(last.ends_with("further warnings\""), "{last}");
    odd = map("b", &[]);
    odd[&long] = json!(1);
    let answer = c.post(&path, &odd).await;
    assert!(
        answer.warnings[0].len() < 1100,
        "{}",
        answer.warnings[0].len()
    );
    answer.ok();
}

#[tokio::test]
async fn an_object_that_is_wrong_in_many_places_gets_a_short_answer() {
    let h = Harness::start().await;
    let c = h.admin();
    let owners: Value = (0..5000).map(|_| json!({"controller": true})).collect();
    let finalizers: Value = (0..100_000).map(|_| json!("")).collect();
    for (field, wrong) in [("ownerReferences", owners), ("finalizers", finalizers)] {
        let mut object = map("a", &[]);
        object["metadata"][field] = wrong;
        let answer = c.post(MAPS, &object).await;
        let message = answer.refused(422, "Invalid");
        assert!(message.ends_with(" more]"), "{field}");
        let causes = answer.body["details"]["causes"].as_array().unwrap();
        assert_eq!(causes.len(), 101, "{field}");
        let size = answer.body.to_string().len();
        assert!(size < 1 << 20, "{field}: {size}");
    }
}

#[tokio::test]
async fn the_audit_log_leaves_out_heartbeats_and_nothing_else_of_leases_and_nodes() {
    let h = Harness::start().await;
    let (admin, agent) = (h.admin(), h.of(Identity::node("n1")));
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let (lease, node) = (format!("{leases}/n1"), "/api/v1/nodes/n1");
    let named = json!({"metadata": {"name": "n1"}});
    agent.post("/api/v1/nodes", &named).await.ok();
    agent.post(leases, &named).await.ok();
    let renewal = |seconds: u32| json!({"spec": {"leaseDurationSeconds": seconds}});
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let status = format!("{node}/status");
    agent.patch(&lease, "merge-patch", &renewal(1)).await.ok();
    agent.patch(&status, "merge-patch", &ready).await.ok();
    admin.patch(&lease, "merge-patch", &renewal(2)).await.ok();
    admin
        .patch(
            &status,
            "merge-patch",
            &json!({"status": {"conditions": []}}),
        )
        .await
        .ok();
    admin.delete(&lease).await.ok();
    drop((admin, agent));
    // Closing the server waits for the writer of the log.
    let h = h.reopen(Default::default()).await;
    let log = std::fs::read_to_string(h.dir.path().join("audit.log")).unwrap();
    let told: Vec<String> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["resource"] == "leases" || line["resource"] == "nodes")
        .map(|line| {
            let text = |field: &str| line[field].as_str().unwrap().to_owned();
            [text("user"), text("verb"), text("resource")].join(" ")
        })
        .collect();
    let expected = [
        "system:node:n1 create nodes",
        "system:node:n1 create leases",
        "belay:admin patch leases",
        "belay:admin patch nodes",
        "belay:admin delete leases",
    ];
    assert_eq!(told, expected);
}

#[tokio::test]
async fn the_audit_log_tells_a_dry_run_from_the_real_thing() {
    let h = Harness::start().await;
    let c = h.admin();
    let path = format!("{MAPS}/a");
    let data = json!({"data": {"k": "v"}});
    let all = json!({"dryRun": ["All"]}).to_string().into_bytes();
    c.post(&format!("{MAPS}?dryRun=All"), &map("a", &[]))
        .await
        .ok();
    c.post(MAPS, &map("a", &[])).await.ok();
    let dry = format!("{path}?dryRun=All");
    c.patch(&dry, "merge-patch", &data).await.ok();
    c.patch(&path, "merge-patch", &data).await.ok();
    c.delete(&dry).await.ok();
    c.send("DELETE", &path, &[], all.clone()).await.ok();
    c.send("DELETE", MAPS, &[], all).await.ok();
    c.delete(&path).await.ok();
    // A command is run all the same.
    c.post(PODS, &pod("p")).await.ok();
    let exec = format!("{PODS}/p/exec?command=true&dryRun=All");
    assert!(!c.post(&exec, &json!(null)).await.code.is_success());
    drop(c);
    // Closing the server waits for the writer of the log.
    let h = h.reopen(Default::default()).await;
    let log = std::fs::read_to_string(h.dir.path().join("audit.log")).unwrap();
    let told: Vec<(String, Value)> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["resource"] == "configmaps" || line["subresource"] == "exec")
        .map(|line| {
            (
                line["verb"].as_str().unwrap().to_owned(),
                line["dryRun"].clone(),
            )
        })
        .collect();
    let expected = [
        ("create", json!(true)),
        ("create", json!(null)),
        ("patch", json!(true)),
        ("patch", json!(null)),
        ("delete", json!(true)),
        ("delete", json!(true)),
        ("deletecollection", json!(true)),
        ("delete", json!(null)),
        ("create", json!(null)),
    ];
    assert_eq!(told, expected.map(|(verb, dry)| (verb.to_owned(), dry)));
}
