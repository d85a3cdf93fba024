//! Deleting.

use belay_api::gates::{Feature, FeatureGates};
use serde_json::json;

use crate::harness::{Harness, MAPS, NOTIFICATIONS, PODS, map, notification, pod, run_pod};

#[tokio::test]
async fn a_running_pod_is_marked_first_and_gone_when_its_agent_says_so() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(PODS, &pod("p")).await.ok();
    run_pod(&c, "p", "n1").await;
    let path = format!("{PODS}/p");
    let tried = c.delete(&format!("{path}?dryRun=All")).await.ok();
    assert_eq!(tried["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(tried["metadata"]["deletionTimestamp"].is_string());
    let there = c.get(&path).await.ok();
    assert!(there["metadata"]["deletionTimestamp"].is_null());
    let marked = c.delete(&path).await.ok();
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let uid = marked["metadata"]["uid"].as_str().unwrap();
    c.get(&path).await.ok();
    let wrong = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}});
    let answer = c
        .send("DELETE", &path, &[], wrong.to_string().into_bytes())
        .await;
    answer.refused(409, "Conflict");
    let right = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    c.send("DELETE", &path, &[], right.to_string().into_bytes())
        .await
        .ok();
    c.get(&path).await.refused(404, "NotFound");
}

#[tokio::test]
async fn a_null_in_the_options_says_nothing() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(MAPS, &map("a", &[])).await.ok();
    let options = json!({"dryRun": null, "preconditions": null, "gracePeriodSeconds": null,
        "propagationPolicy": null, "orphanDependents": null});
    let path = format!("{MAPS}/a");
    c.send("DELETE", &path, &[], options.to_string().into_bytes())
        .await
        .ok();
    c.get(&path).await.refused(404, "NotFound");
}

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_taken_away() {
    let h = Harness::start().await;
    let c = h.admin();
    let mut held = map("a", &[]);
    held["metadata"]["finalizers"] = json!(["example.com/one", "example.com/two"]);
    c.post(MAPS, &held).await.ok();
    let path = format!("{MAPS}/a");
    c.delete(&path).await.ok();
    let marked = c.get(&path).await.ok();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let one = json!({"metadata": {"finalizers": ["example.com/two"]}});
    c.patch(&path, "merge-patch", &one).await.ok();
    c.get(&path).await.ok();
    let none = json!({"metadata": {"finalizers": null}});
    c.patch(&path, "merge-patch", &none).await.ok();
    c.get(&path).await.refused(404, "NotFound");
}

#[tokio::test]
async fn a_collection_is_deleted_by_its_selector() {
    let h = Harness::start().await;
    let c = h.admin();
    for name in ["a", "b"] {
        let mut object = map(name, &[]);
        object["metadata"]["labels"] = json!({"app": name});
        c.post(MAPS, &object).await.ok();
    }
    c.delete(&format!("{MAPS}?labelSelector=app%3Da"))
        .await
        .ok();
    c.get(&format!("{MAPS}/a")).await.refused(404, "NotFound");
    c.get(&format!("{MAPS}/b")).await.ok();
}

#[tokio::test]
async fn nothing_deletes_all_namespaces_or_what_is_in_all_of_them() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post("/api/v1/namespaces", &json!({"metadata": {"name": "x"}}))
        .await
        .ok();
    c.post(PODS, &pod("p")).await.ok();
    for path in [
        "/api/v1/namespaces",
        "/api/v1/namespaces/",
        "/api/v1/pods",
        "/apis/apps.k8s.io/v1alpha1/podnotifications?dryRun=All",
    ] {
        c.delete(path).await.refused(405, "MethodNotAllowed");
    }
    let namespace = c.get("/api/v1/namespaces/x").await.ok();
    assert_eq!(namespace["status"]["phase"], "Active");
    c.get(&format!("{PODS}/p")).await.ok();
    c.delete("/api/v1/nodes").await.ok();
    let resources = c.get("/api/v1").await.ok();
    let verbs = |name: &str| {
        let list = resources["resources"].as_array().unwrap();
        let resource = list.iter().find(|resource| resource["name"] == name);
        resource.unwrap()["verbs"].to_string()
    };
    assert!(!verbs("namespaces").contains("deletecollection"));
    assert!(verbs("pods").contains("deletecollection"));
}

#[tokio::test]
async fn a_namespace_takes_nothing_new_while_it_goes_and_the_first_ones_never_go() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post("/api/v1/namespaces", &json!({"metadata": {"name": "x"}}))
        .await
        .ok();
    let going = c.delete("/api/v1/namespaces/x").await.ok();
    assert_eq!(going["status"]["phase"], "Terminating");
    let refused = c
        .post("/api/v1/namespaces/x/configmaps", &map("a", &[]))
        .await;
    assert!(
        refused
            .refused(403, "Forbidden")
            .contains("being terminated")
    );
    let mut done = c.get("/api/v1/namespaces/x").await.ok();
    done["spec"]["finalizers"] = json!([]);
    c.put("/api/v1/namespaces/x/finalize", &done).await.ok();
    c.get("/api/v1/namespaces/x").await.refused(404, "NotFound");
    c.delete("/api/v1/namespaces/default")
        .await
        .refused(403, "Forbidden");
}

/// Whoever has deleted a Notification and sees none of its PodNotifications relies on it.
#[tokio::test]
async fn a_notification_that_is_gone_or_going_gets_no_more_podnotifications() {
    let h = Harness::start().await;
    let c = h.admin();
    let owners = "/apis/apps.k8s.io/v1alpha1/namespaces/default/notifications";
    let object = json!({"metadata": {"name": "n", "finalizers": ["example.com/held"]},
        "spec": {"selector": {}, "notifier": "lock"}});
    let owner = c.post(owners, &object).await.ok();
    let child = |name: &str, uid: &serde_json::Value| {
        let mut child = notification(name, "p", "lock");
        child["metadata"]["ownerReferences"] = json!([{"kind": "Notification", "name": "n",
            "apiVersion": "apps.k8s.io/v1alpha1", "uid": uid, "controller": true}]);
        child
    };
    let uid = &owner["metadata"]["uid"];
    c.post(NOTIFICATIONS, &child("a", uid)).await.ok();
    let answer = c.post(NOTIFICATIONS, &child("b", &json!("another"))).await;
    answer.refused(403, "Forbidden");
    c.delete(&format!("{owners}/n")).await.ok();
    let answer = c.post(NOTIFICATIONS, &child("b", uid)).await;
    let message = answer.refused(403, "Forbidden");
    assert!(message.contains("gone or being deleted"), "{message}");
    let none = json!({"metadata": {"finalizers": null}});
    c.patch(&format!("{owners}/n"), "merge-patch", &none)
        .await
        .ok();
    let answer = c.post(NOTIFICATIONS, &child("b", uid)).await;
    answer.refused(403, "Forbidden");
}

#[tokio::test]
async fn what_a_gate_hides_goes_with_its_namespace_and_does_not_come_back_with_the_gate() {
    let h = Harness::start().await;
    let c = h.admin();
    let space = json!({"metadata": {"name": "x"}});
    c.post("/api/v1/namespaces", &space).await.ok();
    let inside = "/apis/apps.k8s.io/v1alpha1/namespaces/x/podnotifications";
    let mut held = notification("held", "p", "lock");
    held["metadata"]["finalizers"] = json!(["apps.k8s.io/notification"]);
    c.post(inside, &held).await.ok();
    let elsewhere = notification("elsewhere", "p", "lock");
    c.post(NOTIFICATIONS, &elsewhere).await.ok();
    drop(c);

    let off = FeatureGates::default().with(Feature::ContainerNotifier, false);
    let h = h.reopen(off).await;
    let c = h.admin();
    c.delete("/api/v1/namespaces/x").await.ok();
    let mut going = c.get("/api/v1/namespaces/x").await.ok();
    going["spec"]["finalizers"] = json!([]);
    c.put("/api/v1/namespaces/x/finalize", &going).await.ok();
    drop(c);

    let h = h.reopen(FeatureGates::default()).await;
    let c = h.admin();
    c.post("/api/v1/namespaces", &space).await.ok();
    let list = c.get(inside).await.ok();
    assert_eq!(list["items"], json!([]));
    c.get(&format!("{NOTIFICATIONS}/elsewhere")).await.ok();
}

#[tokio::test]
async fn who_deletes_again_may_change_what_becomes_of_dependents() {
    let h = Harness::start().await;
    let c = h.admin();
    let path = format!("{MAPS}/a");
    let delete = async |policy: &str| c.delete(&format!("{path}{policy}")).await.ok();
    let finalizers = async || c.get(&path).await.ok()["metadata"]["finalizers"].clone();

    c.post(MAPS, &map("a", &[])).await.ok();
    delete("?propagationPolicy=Foreground").await;
    delete("").await;
    assert_eq!(finalizers().await, json!(["foregroundDeletion"]));
    let marked = delete("?propagationPolicy=Orphan").await;
    assert_eq!(marked["metadata"]["finalizers"], json!(["orphan"]));
    assert_eq!(finalizers().await, json!(["orphan"]));
    delete("?propagationPolicy=Foreground").await;
    assert_eq!(finalizers().await, json!(["foregroundDeletion"]));
    delete("?propagationPolicy=Background").await;
    c.get(&path).await.refused(404, "NotFound");

    // What others hold it for is theirs.
    let mut held = map("a", &[]);
    held["metadata"]["finalizers"] = json!(["orphan", "example.com/held"]);
    c.post(MAPS, &held).await.ok();
    delete("?propagationPolicy=Background").await;
    assert_eq!(finalizers().await, json!(["example.com/held"]));
}
