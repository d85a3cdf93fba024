//! Deleting.

use serde_json::json;

use crate::harness::{Harness, MAPS, PODS, map, pod, run_pod};

#[tokio::test]
async fn a_running_pod_is_marked_first_and_gone_when_its_agent_says_so() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(PODS, &pod("p")).await.ok();
    run_pod(&c, "p", "n1").await;
    let path = format!("{PODS}/p");
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
