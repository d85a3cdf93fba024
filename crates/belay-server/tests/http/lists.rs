//! Lists: selection, paging, tables, discovery.

use serde_json::{Value, json};

use crate::harness::{Harness, MAPS, NOTIFICATIONS, PODS, map, notification, pod, run_pod};

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap();
    items
        .iter()
        .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn labels_and_fields_select() {
    let h = Harness::start().await;
    let c = h.admin();
    for name in ["a", "b", "c"] {
        c.post(PODS, &pod(name)).await.ok();
    }
    run_pod(&c, "b", "n1").await;
    for (query, expected) in [
        ("labelSelector=app%3Da", vec!["a"]),
        ("labelSelector=app%20in%20(a,c)", vec!["a", "c"]),
        ("labelSelector=app!%3Da", vec!["b", "c"]),
        ("fieldSelector=spec.nodeName%3Dn1", vec!["b"]),
        ("fieldSelector=spec.nodeName%3D", vec!["a", "c"]),
        ("fieldSelector=metadata.name%3Dc", vec!["c"]),
        (
            "fieldSelector=status.phase!%3DRunning&labelSelector=app%3Db",
            vec![],
        ),
    ] {
        assert_eq!(
            names(&c.get(&format!("{PODS}?{query}")).await.ok()),
            expected,
            "{query}"
        );
    }
    let answer = c.get(&format!("{PODS}?fieldSelector=spec.image%3Dx")).await;
    assert!(
        answer
            .refused(400, "BadRequest")
            .contains("field label not supported")
    );
}

#[tokio::test]
async fn pages_show_one_state_even_when_objects_come_and_go_between_them() {
    let h = Harness::start().await;
    let c = h.admin();
    for i in 0..10 {
        c.post(MAPS, &map(&format!("m{i}"), &[])).await.ok();
    }
    let first = c.get(&format!("{MAPS}?limit=3")).await.ok();
    assert_eq!(names(&first), ["m0", "m1", "m2"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 7);
    c.delete(&format!("{MAPS}/m5")).await.ok();
    c.post(MAPS, &map("m55", &[])).await.ok();
    c.patch(
        &format!("{MAPS}/m7"),
        "merge-patch",
        &json!({"data": {"new": "1"}}),
    )
    .await
    .ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = c
        .get(&format!("{MAPS}?limit=20&continue={token}"))
        .await
        .ok();
    assert_eq!(names(&rest), ["m3", "m4", "m5", "m6", "m7", "m8", "m9"]);
    assert_eq!(
        rest["items"][4].get("data").and_then(|d| d.get("new")),
        None,
        "m7 is the old one"
    );
    assert_eq!(
        rest["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    let forged = "eyJydiI6MSwiYWZ0ZXIiOiIvY29yZS9zZWNyZXRzLyJ9";
    c.get(&format!("{MAPS}?limit=2&continue={forged}"))
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn a_page_is_of_its_state_however_much_has_happened_since() {
    let h = Harness::start().await;
    let c = h.admin();
    for name in ["a", "b", "c"] {
        c.post(MAPS, &map(name, &[("k", "0")])).await.ok();
    }
    let first = c.get(&format!("{MAPS}?limit=1")).await.ok();
    for i in 0..1000 {
        let patch = json!({"data": {"k": i.to_string()}});
        c.patch(&format!("{MAPS}/c"), "merge-patch", &patch)
            .await
            .ok();
    }
    c.delete(&format!("{MAPS}/b")).await.ok();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = c.get(&format!("{MAPS}?continue={token}")).await.ok();
    assert_eq!(names(&rest), ["b", "c"]);
    assert_eq!(rest["items"][1]["data"]["k"], "0");
}

#[tokio::test]
async fn an_exact_old_revision_can_be_listed_while_it_is_remembered() {
    let h = Harness::start().await;
    let c = h.admin();
    let made = c.post(MAPS, &map("a", &[])).await.ok();
    let rv = made["metadata"]["resourceVersion"].as_str().unwrap();
    c.post(MAPS, &map("b", &[])).await.ok();
    let query = format!("{MAPS}?resourceVersion={rv}&resourceVersionMatch=Exact");
    assert_eq!(names(&c.get(&query).await.ok()), ["a"]);
    let future = format!("{MAPS}?resourceVersion=999999&resourceVersionMatch=Exact");
    c.get(&future).await.refused(504, "Timeout");
    let newer = format!("{MAPS}?resourceVersion=999999");
    c.get(&newer).await.refused(504, "Timeout");
}

#[tokio::test]
async fn what_is_not_said_to_be_true_is_selected_as_false() {
    let h = Harness::start().await;
    let c = h.admin();
    let nodes = "/api/v1/nodes";
    let node = json!({"metadata": {"name": "n"}});
    c.post(nodes, &node).await.ok();
    let select = async |path: &str, selector: &str| {
        let selector = selector.replace('=', "%3D");
        let list = c
            .get(&format!("{path}?fieldSelector={selector}"))
            .await
            .ok();
        names(&list).join(" ")
    };
    assert_eq!(select(nodes, "spec.unschedulable=false").await, "n");
    assert_eq!(select(nodes, "spec.unschedulable=true").await, "");
    let cordon = json!({"spec": {"unschedulable": true}});
    let path = format!("{nodes}/n");
    c.patch(&path, "merge-patch", &cordon).await.ok();
    assert_eq!(select(nodes, "spec.unschedulable=false").await, "");
    assert_eq!(select(nodes, "spec.unschedulable=true").await, "n");
    c.post(PODS, &pod("p")).await.ok();
    assert_eq!(select(PODS, "spec.hostNetwork=false").await, "p");
    assert_eq!(select(PODS, "spec.hostNetwork!=true").await, "p");
}

#[tokio::test]
async fn tables_have_the_columns_of_their_kind() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(PODS, &pod("p")).await.ok();
    c.post(NOTIFICATIONS, &notification("n", "nowhere", "reload"))
        .await
        .ok();
    let accept = [(
        "accept",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    )];
    let table = c.send("GET", PODS, &accept, vec![]).await.ok();
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["rows"][0]["cells"][1], "0/1");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let table = c.send("GET", NOTIFICATIONS, &accept, vec![]).await.ok();
    let cells = &table["rows"][0]["cells"];
    assert_eq!(
        (&cells[3], &cells[6]),
        (&"Failed".into(), &"PodNotFound".into())
    );
}

#[tokio::test]
async fn discovery_and_openapi_describe_what_is_served() {
    let h = Harness::start().await;
    let c = h.admin();
    let groups = c.get("/apis").await.ok();
    let group_names: Vec<&str> = groups["groups"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|g| g["name"].as_str())
        .collect();
    assert_eq!(
        group_names,
        [
            "apps",
            "apps.k8s.io",
            "authentication.k8s.io",
            "authorization.k8s.io",
            "coordination.k8s.io",
            "rbac.authorization.k8s.io",
        ]
    );
    let resources = c.get("/apis/apps.k8s.io/v1alpha1").await.ok();
    assert_eq!(resources["resources"][0]["shortNames"], json!(["pn"]));
    let index = c.get("/openapi/v3").await.ok();
    let url = index["paths"]["api/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    let doc = c.get(url).await.ok();
    let container = &doc["components"]["schemas"]["io.k8s.api.core.v1.Container"]["properties"];
    assert!(container["notifiers"].is_object() && container["stopSignal"].is_object());
    let containers =
        &doc["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
}
