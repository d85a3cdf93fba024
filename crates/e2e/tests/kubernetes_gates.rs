//! The feature gate on a real Kubernetes: the stock server keeps on serving what is stored; Belay's
//! roles do not act while it is off, and go on when it is on again.

use std::time::Duration;

use belay_testkit::{
    Cluster, FANOUTS, NOTIFICATIONS, PODS, Rest, Stage, eventually, exec, fanout, lines,
    notification, pod, processes, until_file,
};
use http::Method;
use serde_json::{Value, json};

const OFF: &str = "--feature-gates=ContainerNotifier=false";

/// Starts the roles anew with or without the gate, and waits until no other ones are left.
async fn switch(cluster: &Cluster, on: bool) -> anyhow::Result<()> {
    let admin = cluster.admin().await?;
    let kubectl = cluster.kubectl();
    for role in ["daemonsets/belay-agent", "deployments/belay-controller"] {
        let path = format!("/apis/apps/v1/namespaces/belay-system/{role}");
        let object = admin.get(&path).await?.ok()?;
        let arguments = &object["spec"]["template"]["spec"]["containers"][0]["args"];
        let mut arguments: Vec<Value> = arguments.as_array().cloned().unwrap_or_default();
        arguments.retain(|argument| argument != OFF);
        if !on {
            arguments.push(OFF.into());
        }
        let patch = json!([{"op": "replace", "value": arguments,
            "path": "/spec/template/spec/containers/0/args"}]);
        let headers = [("content-type", "application/json-patch+json")];
        let body = serde_json::to_vec(&patch)?;
        let patched = admin.send(Method::PATCH, &path, &headers, body).await?;
        patched.ok()?;
        let rollout = ["-n", "belay-system", "rollout", "status", role];
        kubectl
            .ok(&[&rollout[..], &["--timeout=170s"]].concat())
            .await?;
    }
    // A rollout is over before the last of the old ones has ended.
    let pods = "/api/v1/namespaces/belay-system/pods";
    belay_testkit::eventually("the old ones to end", async || {
        let list = admin.get(pods).await?.ok()?;
        let mut pods = list["items"].as_array().into_iter().flatten();
        Ok(pods
            .all(|pod| {
                let arguments = pod["spec"]["containers"][0]["args"].as_array();
                arguments.is_some_and(|all| all.iter().any(|one| one == OFF) != on)
            })
            .then_some(()))
    })
    .await
}

/// Which container runs in the pod, and how often it was restarted.
fn incarnation(pod: &Value) -> (Value, Value) {
    let status = &pod["status"]["containerStatuses"][0];
    assert!(status["state"]["running"].is_object(), "{pod:#}");
    (
        status["containerID"].clone(),
        status["restartCount"].clone(),
    )
}

async fn state(admin: &Rest, name: &str) -> anyhow::Result<Value> {
    let object = admin.get(&format!("{NOTIFICATIONS}/{name}")).await?.ok()?;
    Ok(object["status"]["state"].clone())
}

/// A Notification of the pods with this label in its namespace, and with it each of its children,
/// which has a finalizer.
async fn carry_out(admin: &Rest, namespace: &str, name: &str, app: &str) -> anyhow::Result<()> {
    let all = format!("/apis/apps.k8s.io/v1alpha1/namespaces/{namespace}/notifications");
    let mut object = fanout(name, ("app", app), "count").build();
    object["metadata"]["namespace"] = json!(namespace);
    admin.post(&all, &object).await?.ok()?;
    let path = format!("{all}/{name}");
    let complete = |object: &Value| object["status"]["completeTime"].is_string().then_some(());
    admin.until(&path, "the end", complete).await?;
    let children = all_children(admin, name).await?;
    assert_eq!(children.len(), 1, "{children:?}");
    let held = &children[0]["metadata"]["finalizers"];
    assert_eq!(*held, json!(["apps.k8s.io/notification"]));
    Ok(())
}

async fn all_children(admin: &Rest, name: &str) -> anyhow::Result<Vec<Value>> {
    let all = "/apis/apps.k8s.io/v1alpha1/podnotifications";
    let list = admin.get(all).await?.ok()?;
    let of = |child: &&Value| child["metadata"]["ownerReferences"][0]["name"] == name;
    let items = list["items"].as_array().into_iter().flatten();
    Ok(items.filter(of).cloned().collect())
}

/// Long enough for what is not allowed to happen; a busy machine can only make it seem fine.
async fn a_while() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_act_only_while_their_gate_is_on_and_lose_nothing() -> anyhow::Result<()> {
    let Some(cluster) = Cluster::with_belay().await? else {
        return Ok(());
    };
    let stage = Stage::of(&cluster).await?;
    let admin = stage.admin();
    let runs = stage.file("runs");
    let script = format!("echo ran >> {runs}");
    let count = || exec(["sh", "-c", &script]).timeout(60);
    let (began, gate, ended) = (stage.file("began"), stage.file("gate"), stage.file("ended"));
    let wait = format!(
        "echo ran >> {began}; while [ ! -e {gate} ]; do sleep 0.1; done; echo ran >> {ended}; exit 5"
    );
    let hung = stage.file("hung");
    let hang = format!("echo ran >> {hung}; while :; do sleep 0.1; done");
    let manifest = |name: &str| {
        pod(name)
            .label("app", name)
            .idle("main")
            .notifier("count", count())
            .notifier("wait", exec(["sh", "-c", &wait]).timeout(3600))
            .notifier("hang", exec(["sh", "-c", &hang]).timeout(3600))
    };
    let hanging = || processes::with_command(&hung).len();
    let web = incarnation(&stage.run(manifest("web")).await?);
    let untouched = async || -> anyhow::Result<()> {
        let now = incarnation(&admin.get(&format!("{PODS}/web")).await?.ok()?);
        assert_eq!(now, web, "the workload goes on as it was");
        Ok(())
    };
    let before = admin
        .notify(&notification("before", "web", "count").build())
        .await?;
    assert_eq!(before["status"]["state"], "Succeeded", "{before:#}");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going"}});
    admin.post("/api/v1/namespaces", &namespace).await?.ok()?;
    let elsewhere = "/api/v1/namespaces/going/pods";
    let mut there = stage.manifest(manifest("there"));
    there["metadata"]["namespace"] = json!("going");
    eventually("the namespace to take pods", async || {
        admin.post(elsewhere, &there).await?.ok().map(Some)
    })
    .await?;
    let running = |pod: &Value| (pod["status"]["phase"] == "Running").then_some(());
    let path = format!("{elsewhere}/there");
    admin.until(&path, "Running", running).await?;
    carry_out(admin, "going", "elsewhere", "there").await?;
    carry_out(admin, "default", "over", "web").await?;
    let running = notification("running", "web", "wait").deadline(3600);
    admin.post(NOTIFICATIONS, &running.build()).await?.ok()?;
    until_file(&began, |text| !text.is_empty()).await?;
    let cut = fanout("cut", ("app", "web"), "hang").spec("deadlineSeconds", 60);
    admin.post(FANOUTS, &cut.build()).await?.ok()?;
    until_file(&hung, |text| !text.is_empty()).await?;
    assert_eq!(lines(&runs), 3);

    switch(&cluster, false).await?;
    untouched().await?;
    // What is deleted goes, whatever holds it, and a whole namespace too.
    for name in ["over", "cut"] {
        admin.delete(&format!("{FANOUTS}/{name}")).await?.ok()?;
    }
    admin.delete("/api/v1/namespaces/going").await?.ok()?;
    // The last one's handler runs, so it is waited for as long as for a lost executor.
    for name in ["over", "elsewhere", "cut"] {
        eventually("its children to go", async || {
            Ok(all_children(admin, name).await?.is_empty().then_some(()))
        })
        .await?;
    }
    eventually("the namespace to go", async || {
        let gone = admin.get("/api/v1/namespaces/going").await?.status == 404;
        Ok(gone.then_some(()))
    })
    .await?;
    // What ran was left alone, and ends without anybody who could say so.
    assert_eq!(lines(&ended), 0);
    assert_eq!(hanging(), 1, "with the gate off nothing is killed either");
    std::fs::write(&gate, "")?;
    until_file(&ended, |text| !text.is_empty()).await?;
    let stored = admin.get(&format!("{NOTIFICATIONS}/before")).await?.ok()?;
    assert_eq!(stored["status"], before["status"], "what was stored stayed");
    stage.run(manifest("new")).await?;
    let created = [
        notification("long", "web", "count").deadline(3600),
        notification("new", "new", "count").deadline(3600),
        notification("short", "web", "count").deadline(1),
    ];
    for object in created {
        admin.post(NOTIFICATIONS, &object.build()).await?.ok()?;
    }
    let many = fanout("many", ("app", "new"), "count").spec("deadlineSeconds", 3600);
    admin.post(FANOUTS, &many.build()).await?.ok()?;
    a_while().await;
    for name in ["long", "new", "short", "running"] {
        assert_eq!(state(admin, name).await?, "New", "{name}");
    }
    let many = admin.get(&format!("{FANOUTS}/many")).await?.ok()?;
    assert!(many["status"]["startTime"].is_null(), "{many:#}");
    assert_eq!(lines(&runs), 3, "nothing ran");

    switch(&cluster, true).await?;
    untouched().await?;
    for name in ["long", "new"] {
        let done = admin.finished(name).await?;
        assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    }
    // What was deleted meanwhile is killed now.
    eventually("what was cancelled to be dead", async || {
        Ok((hanging() == 0).then_some(()))
    })
    .await?;
    assert_eq!(lines(&hung), 1);
    // Its real end is told, and it was not begun again.
    let done = admin.finished("running").await?;
    assert_eq!(done["status"]["containers"][0]["exitCode"], 5, "{done:#}");
    assert_eq!((lines(&began), lines(&ended)), (1, 1));
    let short = admin.finished("short").await?;
    assert_eq!(short["status"]["error"]["type"], "Expired", "{short:#}");
    let done = admin
        .until(&format!("{FANOUTS}/many"), "the end", |object| {
            let complete = object["status"]["completeTime"].is_string();
            complete.then(|| object.clone())
        })
        .await?;
    assert_eq!(done["status"]["succeededCount"], 1, "{done:#}");
    assert_eq!(lines(&runs), 6, "each of them once");

    switch(&cluster, false).await?;
    untouched().await?;
    let again = notification("again", "web", "count").deadline(3600).build();
    admin.post(NOTIFICATIONS, &again).await?.ok()?;
    a_while().await;
    assert_eq!(state(admin, "again").await?, "New");
    assert_eq!(lines(&runs), 6);
    let list = admin.get(NOTIFICATIONS).await?.ok()?;
    let served = list["items"].as_array().map_or(0, Vec::len);
    assert_eq!(served, 7, "all of them are served, a fan-out's too");
    Ok(())
}
