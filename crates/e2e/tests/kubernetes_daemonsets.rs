//! Daemon sets that a real Kubernetes was asked about get the same answers from the embedded server:
//! the same defaults, the same refusals, the same table, the same object in protobuf.

use anyhow::Context as _;
use belay_testkit::{Cluster, Instance, PODS, Reply, Rest};
use http::Method;
use serde_json::{Value, json};

const SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const IMAGINED: &str = "/apis/apps/v1/namespaces/default/daemonsets?dryRun=All";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A good daemon set with another value at a place.
fn with(pointer: &str, value: Value) -> Value {
    let mut set = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": "d" },
        "spec": {
            "selector": { "matchLabels": { "app": "d" } },
            "template": {
                "metadata": { "labels": { "app": "d" } },
                "spec": {
                    "nodeSelector": { "nobody": "has-it" },
                    "containers": [{ "name": "main", "image": "none" }],
                },
            },
        },
    });
    let (parent, field) = pointer.rsplit_once('/').unwrap_or_default();
    if let Some(parent) = set.pointer_mut(parent) {
        parent[field] = value;
    }
    set
}

fn sets() -> Vec<Value> {
    let rolling = |value: Value| {
        let strategy = json!({ "type": "RollingUpdate", "rollingUpdate": value });
        with("/spec/updateStrategy", strategy)
    };
    let container = "/spec/template/spec/containers/0";
    vec![
        with("/metadata/name", json!("d")),
        with("/spec/selector", Value::Null),
        with("/spec/selector", json!({})),
        with(
            "/spec/selector",
            json!({ "matchLabels": { "app": "other" } }),
        ),
        with(
            "/spec/selector",
            json!({ "matchExpressions": [{ "key": "app", "operator": "Exists" }] }),
        ),
        with(
            "/spec/template/metadata/labels",
            json!({ "app": "d", "a b": "c d" }),
        ),
        with("/spec/template/spec/restartPolicy", json!("Never")),
        with("/spec/template/spec/activeDeadlineSeconds", json!(5)),
        with("/spec/template/spec/containers", json!([])),
        with("/spec/minReadySeconds", json!(-1)),
        with("/spec/revisionHistoryLimit", json!(-1)),
        with("/spec/revisionHistoryLimit", Value::Null),
        with("/spec/updateStrategy", Value::Null),
        with("/spec/updateStrategy", json!({ "type": "OnDelete" })),
        rolling(json!({ "maxUnavailable": 2 })),
        rolling(json!({ "maxUnavailable": "25%" })),
        rolling(json!({ "maxUnavailable": "101%" })),
        rolling(json!({ "maxUnavailable": "half" })),
        rolling(json!({ "maxUnavailable": -1 })),
        rolling(json!({ "maxUnavailable": 0 })),
        rolling(json!({ "maxUnavailable": "0%" })),
        with(
            &format!("{container}/lifecycle"),
            json!({ "preStop": { "sleep": { "seconds": 31 } } }),
        ),
        with(
            &format!("{container}/lifecycle"),
            json!({ "preStop": { "sleep": { "seconds": 5 } } }),
        ),
    ]
}

/// The spec of what was accepted, or what is wrong with each field of what was refused.
fn answer(reply: &Reply) -> Value {
    let mut body = reply.json();
    if reply.status.is_success() {
        drop_nulls(&mut body["spec"]);
        return body["spec"].take();
    }
    let mut causes = body["details"]["causes"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    causes.sort_by_key(ToString::to_string);
    json!({ "code": body["code"], "causes": causes })
}

/// What a client cannot tell from something that is not there.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            // A Go struct that says nothing.
            if map.get("resources") == Some(&json!({})) {
                map.remove("resources");
            }
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// KEP-3960's lines about a pod that "is updated with handler" are more than any server does: the
/// spec of a pod stays as it is, and both say so in the same words. In a template it changes.
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_a_pod_s_own_handler_cannot_be_patched_as_on_a_real_kubernetes()
-> anyhow::Result<()> {
    let Some(cluster) = Cluster::start().await? else {
        return Ok(());
    };
    let instance = Instance::up().start().await?;
    let (real, own) = (cluster.admin().await?, instance.admin().await?);
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "p" },
        "spec": {
            "nodeSelector": { "nobody": "has-it" },
            "containers": [{ "name": "main", "image": "none" }],
        },
    });
    let set = with("/metadata/name", json!("d"));
    let sleep = json!({ "preStop": { "sleep": { "seconds": 5 } } });
    let spec = json!({ "containers": [{ "name": "main", "lifecycle": sleep }] });
    let strategic = [("content-type", "application/strategic-merge-patch+json")];
    let mut said = Vec::new();
    for server in [&real, &own] {
        server.post(PODS, &pod).await?.ok()?;
        let patch = serde_json::to_vec(&json!({ "spec": spec }))?;
        let path = format!("{PODS}/p");
        let reply = server.send(Method::PATCH, &path, &strategic, patch).await?;
        let refused = reply.refused(422)?;
        let first_line = |text: &Value| {
            let text = text.as_str().unwrap_or_default();
            text.lines().next().unwrap_or_default().to_owned()
        };
        said.push(json!({
            "reason": refused["reason"],
            "message": first_line(&refused["message"]),
            "field": refused["details"]["causes"][0]["field"],
            "cause": refused["details"]["causes"][0]["reason"],
            "causes": refused["details"]["causes"].as_array().map(Vec::len),
        }));
        let stored = server.get(&path).await?.ok()?;
        assert_eq!(stored["spec"]["containers"][0]["lifecycle"], Value::Null);

        server.post(SETS, &set).await?.ok()?;
        let patch = serde_json::to_vec(&json!({ "spec": { "template": { "spec": spec } } }))?;
        let path = format!("{SETS}/d");
        let reply = server.send(Method::PATCH, &path, &strategic, patch).await?;
        let stored = reply.ok()?;
        let container = &stored["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["lifecycle"], sleep);
    }
    assert_eq!(said[0], said[1], "theirs and ours");
    Ok(())
}

async fn columns(server: &Rest) -> anyhow::Result<Vec<Value>> {
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = server.send(Method::GET, SETS, &accept, "").await?.ok()?;
    let columns = table["columnDefinitions"].as_array().context("a table")?;
    let pick = |column: &Value| json!([column["name"], column["priority"]]);
    Ok(columns.iter().map(pick).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_says_what_a_real_kubernetes_says() -> anyhow::Result<()> {
    let Some(cluster) = Cluster::start().await? else {
        return Ok(());
    };
    let instance = Instance::up().start().await?;
    let (real, own) = (cluster.admin().await?, instance.admin().await?);
    let mut differ = Vec::new();
    for set in sets() {
        let theirs = answer(&real.post(IMAGINED, &set).await?);
        let ours = answer(&own.post(IMAGINED, &set).await?);
        if ours != theirs {
            differ.push(format!("{set}\nours: {ours}\ntheirs: {theirs}"));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n\n"));
    assert_eq!(columns(&own).await?, columns(&real).await?);

    let rich = with(
        "/spec/updateStrategy",
        json!({ "rollingUpdate": { "maxUnavailable": "25%" } }),
    );
    let headers = [("content-type", "application/json"), ("accept", PROTOBUF)];
    let body = serde_json::to_vec(&rich)?;
    let encoded = real.send(Method::POST, IMAGINED, &headers, body).await?;
    anyhow::ensure!(encoded.status.is_success(), "{}", encoded.text());
    let headers = [("content-type", PROTOBUF)];
    let ours = own.send(Method::POST, SETS, &headers, encoded.body).await?;
    let theirs = real.post(IMAGINED, &rich).await?;
    assert_eq!(answer(&ours), answer(&theirs), "the same in protobuf");
    Ok(())
}
