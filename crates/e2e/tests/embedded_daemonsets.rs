//! Daemon sets on three nodes with a stock kubectl: one pod on each node that should have one,
//! replaced one at a time, whatever is killed in between.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use belay_testkit::{EVENTS, Instance, Kubectl, PODS, Rest, eventually, pod};
use serde_json::{Value, json};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";

/// A daemon set of pods that do nothing, labelled with its name.
fn set(name: &str) -> Value {
    let spec = pod("template").idle("main").build()["spec"].take();
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": spec },
        },
    })
}

/// The same set with another template.
fn changed(set: &Value, version: &str) -> Value {
    let mut next = set.clone();
    next["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{ "name": "VERSION", "value": version }]);
    next
}

/// A server with three nodes that are Ready.
async fn three_nodes() -> anyhow::Result<Instance> {
    let mut instance = Instance::server().start().await?;
    for node in NODES {
        instance.start_agent(node, &[]).await?;
    }
    let admin = instance.admin().await?;
    eventually("three nodes", async || {
        let list = admin.get("/api/v1/nodes").await?.ok()?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let ready = items.iter().filter(|node| is_ready(node)).count();
        Ok((ready == NODES.len()).then_some(()))
    })
    .await?;
    Ok(instance)
}

fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|list| {
        list.iter()
            .any(|it| it["type"] == "Ready" && it["status"] == "True")
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

async fn pods(admin: &Rest, name: &str) -> anyhow::Result<Vec<Value>> {
    let path = format!("{PODS}?labelSelector=app%3D{name}");
    let list = admin.get(&path).await?.ok()?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Waits until exactly these nodes have a pod of the set, each one that is Ready; returns their UIDs
/// by node.
async fn settled(
    admin: &Rest,
    name: &str,
    nodes: &[&str],
) -> anyhow::Result<BTreeMap<String, String>> {
    eventually(&format!("pods of {name} on {nodes:?}"), async || {
        let pods = pods(admin, name).await?;
        let calm = pods
            .iter()
            .all(|pod| is_ready(pod) && pod["metadata"]["deletionTimestamp"].is_null());
        let by_node: BTreeMap<String, String> = pods
            .iter()
            .map(|pod| {
                (
                    text(&pod["spec"]["nodeName"]),
                    text(&pod["metadata"]["uid"]),
                )
            })
            .collect();
        let wanted: BTreeSet<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        let there: BTreeSet<String> = by_node.keys().cloned().collect();
        Ok((calm && pods.len() == nodes.len() && there == wanted).then_some(by_node))
    })
    .await
}

async fn apply(kubectl: &Kubectl, object: &Value) -> anyhow::Result<()> {
    let said = kubectl.with_object(&["apply", "-f", "-"], object).await?;
    anyhow::ensure!(said.success, "{}{}", said.stdout, said.stderr);
    Ok(())
}

async fn rolled_out(kubectl: &Kubectl, name: &str) -> anyhow::Result<String> {
    let set = format!("ds/{name}");
    kubectl
        .ok(&["rollout", "status", &set, "--timeout=150s"])
        .await
}

fn version(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]["env"][0]["value"]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_that_matches_runs_one_pod_and_follows_its_labels() -> anyhow::Result<()> {
    let instance = three_nodes().await?;
    let Some(kubectl) = Kubectl::of(&instance) else {
        return Ok(());
    };
    let admin = instance.admin().await?;
    apply(&kubectl, &set("all")).await?;
    let said = rolled_out(&kubectl, "all").await?;
    assert!(said.contains("successfully rolled out"), "{said}");
    settled(&admin, "all", &NODES).await?;
    let table = kubectl.ok(&["get", "ds", "all"]).await?;
    let (head, row) = table.split_once('\n').context("a table")?;
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let names = "NAME DESIRED CURRENT READY UP-TO-DATE AVAILABLE NODE SELECTOR AGE";
    assert_eq!(words(head).join(" "), names);
    assert_eq!(words(row)[..7], ["all", "3", "3", "3", "3", "3", "<none>"]);
    let all = kubectl.ok(&["get", "all"]).await?;
    assert!(all.contains("daemonset.apps/all"), "{all}");
    let described = kubectl.ok(&["describe", "ds", "all"]).await?;
    assert!(described.contains("SuccessfulCreate"), "{described}");

    let mut edge = set("edge");
    edge["spec"]["template"]["spec"]["nodeSelector"] = json!({ "role": "edge" });
    apply(&kubectl, &edge).await?;
    let observed = format!("{SETS}/edge");
    admin
        .until(&observed, "a first look", |set| {
            (set["status"]["observedGeneration"] == 1).then_some(())
        })
        .await?;
    settled(&admin, "edge", &[]).await?;
    kubectl.ok(&["label", "node", "n2", "role=edge"]).await?;
    let first = settled(&admin, "edge", &["n2"]).await?;
    kubectl.ok(&["label", "node", "n3", "role=edge"]).await?;
    let second = settled(&admin, "edge", &["n2", "n3"]).await?;
    assert_eq!(first["n2"], second["n2"], "the first is left alone");
    kubectl.ok(&["label", "node", "n2", "role-"]).await?;
    let third = settled(&admin, "edge", &["n3"]).await?;
    assert_eq!(second["n3"], third["n3"]);
    // A pod that somebody deletes comes back.
    let name = text(&pods(&admin, "edge").await?[0]["metadata"]["name"]);
    kubectl.ok(&["delete", "pod", &name]).await?;
    let fourth = settled(&admin, "edge", &["n3"]).await?;
    assert_ne!(third["n3"], fourth["n3"]);
    Ok(())
}

/// What the set asks of nodes may change as well as what nodes say of themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_set_follows_its_own_node_selector_and_ends_pods_as_their_spec_says() -> anyhow::Result<()>
{
    let instance = three_nodes().await?;
    let Some(kubectl) = Kubectl::of(&instance) else {
        return Ok(());
    };
    let admin = instance.admin().await?;
    let heard = instance.file("heard");
    let script = format!(
        "trap 'echo $NODE >> {heard}; exit 0' USR1; echo up >> {heard}.$UID; \
         while :; do sleep 0.05; done"
    );
    let field = |name: &str, path: &str| {
        let from = json!({ "fieldRef": { "fieldPath": path } });
        json!({ "name": name, "valueFrom": from })
    };
    let selecting = |selector: Value| {
        let mut set = set("d");
        let spec = &mut set["spec"]["template"]["spec"];
        spec["nodeSelector"] = selector;
        spec["terminationGracePeriodSeconds"] = json!(600);
        let container = &mut spec["containers"][0];
        container["command"] = json!(["sh", "-c", script]);
        container["stopSignal"] = json!("SIGUSR1");
        container["env"] = json!([field("NODE", "spec.nodeName"), field("UID", "metadata.uid")]);
        // Ready is who can hear the signal.
        let can_hear = json!(["sh", "-c", format!("test -e {heard}.$UID")]);
        container["readinessProbe"] =
            json!({ "exec": { "command": can_hear }, "periodSeconds": 1 });
        set
    };
    for (node, label) in [("n1", "role=edge"), ("n2", "role=edge"), ("n2", "zone=a")] {
        kubectl.ok(&["label", "node", node, label]).await?;
    }
    kubectl.ok(&["label", "node", "n3", "zone=a"]).await?;
    apply(&kubectl, &selecting(json!({ "role": "edge" }))).await?;
    let edge = settled(&admin, "d", &["n1", "n2"]).await?;

    // One node has to let go, one gets its first pod, one a new one.
    apply(&kubectl, &selecting(json!({ "zone": "a" }))).await?;
    rolled_out(&kubectl, "d").await?;
    let zone = settled(&admin, "d", &["n2", "n3"]).await?;
    assert_ne!(edge["n2"], zone["n2"], "of the new template");
    // A label with another value is another label.
    let relabel = ["label", "node", "n3", "zone=b", "--overwrite"];
    kubectl.ok(&relabel).await?;
    let rest = settled(&admin, "d", &["n2"]).await?;
    assert_eq!(zone["n2"], rest["n2"]);
    let both = json!({ "zone": "a", "role": "core" });
    apply(&kubectl, &selecting(both)).await?;
    settled(&admin, "d", &[]).await?;
    apply(&kubectl, &selecting(Value::Null)).await?;
    settled(&admin, "d", &NODES).await?;
    kubectl.ok(&["delete", "ds", "d"]).await?;
    settled(&admin, "d", &[]).await?;
    // Whatever sent them away: every one of them was stopped with its own signal, and once.
    let heard = std::fs::read_to_string(&heard)?;
    let ends = |node: &str| heard.lines().filter(|line| *line == node).count();
    assert_eq!(NODES.map(ends), [2, 3, 2], "{heard}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_waits_for_a_ready_node_that_matches_its_selector() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    let Some(kubectl) = Kubectl::of(&instance) else {
        return Ok(());
    };
    instance.start_agent("n1", &[]).await?;
    let admin = instance.admin().await?;
    let manifest = pod("p")
        .idle("main")
        .spec("nodeSelector", json!({ "disk": "ssd" }));
    admin.post(PODS, &manifest.build()).await?.ok()?;
    let path = format!("{PODS}/p");
    let unscheduled = |pod: &Value| -> Option<String> {
        let conditions = pod["status"]["conditions"].as_array()?;
        let scheduled = conditions.iter().find(|it| it["type"] == "PodScheduled")?;
        (scheduled["status"] == "False").then(|| text(&scheduled["message"]))
    };
    let didnt = "0/1 nodes are available: 1 node(s) didn't match Pod's node selector.";
    let refused = |pod: &Value| (unscheduled(pod)? == didnt).then_some(());
    admin.until(&path, "the refusal", refused).await?;
    // Nor is it taken by one that matches and is not there.
    let absent = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": "absent", "labels": { "disk": "ssd" } },
    });
    admin.post("/api/v1/nodes", &absent).await?.ok()?;
    let none = "0/2 nodes are available: 1 node(s) were not ready, 1 node(s) didn't match Pod's node selector.";
    let refused = |pod: &Value| (unscheduled(pod)? == none).then_some(());
    admin.until(&path, "the other refusal", refused).await?;
    kubectl.ok(&["label", "node", "n1", "disk=ssd"]).await?;
    let running = admin.running("p").await?;
    assert_eq!(running["spec"]["nodeName"], "n1");
    // What is bound stays, whatever becomes of the label.
    kubectl.ok(&["label", "node", "n1", "disk-"]).await?;
    admin.run(&pod("later").idle("main").build()).await?;
    let still = admin.running("p").await?;
    assert_eq!(still["metadata"]["uid"], running["metadata"]["uid"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_template_replaces_one_pod_at_a_time() -> anyhow::Result<()> {
    let instance = three_nodes().await?;
    let Some(kubectl) = Kubectl::of(&instance) else {
        return Ok(());
    };
    let admin = instance.admin().await?;
    let first = changed(&set("d"), "one");
    apply(&kubectl, &first).await?;
    let before = settled(&admin, "d", &NODES).await?;

    // What a watch shows is what was, revision by revision.
    let list = admin.get(PODS).await?.ok()?;
    let revision = text(&list["metadata"]["resourceVersion"]);
    let mut ready: BTreeMap<String, bool> =
        before.values().map(|uid| (uid.clone(), true)).collect();
    let path = format!("{PODS}?watch=true&labelSelector=app%3Dd&resourceVersion={revision}");
    let mut watch = admin.watch(&path).await?;
    apply(&kubectl, &changed(&first, "two")).await?;
    let all_new = |ready: &BTreeMap<String, bool>| {
        let is_new = |uid: &String| before.values().all(|old| old != uid);
        ready.len() == NODES.len() && ready.iter().all(|(uid, ready)| *ready && is_new(uid))
    };
    while !all_new(&ready) {
        let event = watch.next().await.context("the watch ended")?;
        let pod = &event["object"];
        let uid = text(&pod["metadata"]["uid"]);
        if event["type"] == "DELETED" {
            ready.remove(&uid);
        } else {
            let leaving = !pod["metadata"]["deletionTimestamp"].is_null();
            ready.insert(uid, is_ready(pod) && !leaving);
        }
        let available = ready.values().filter(|ready| **ready).count();
        assert!(available >= 2, "only {available} left: {event:#}");
        assert!(ready.len() <= NODES.len(), "a node has two: {event:#}");
    }
    rolled_out(&kubectl, "d").await?;
    settled(&admin, "d", &NODES).await?;
    for pod in pods(&admin, "d").await? {
        assert_eq!(version(&pod), "two");
    }

    // Left behind by its set, and taken over by a set of the same name and template.
    let before = settled(&admin, "d", &NODES).await?;
    kubectl
        .ok(&["delete", "ds", "d", "--cascade=orphan"])
        .await?;
    let free = pods(&admin, "d").await?;
    let owners = |pod: &Value| pod["metadata"]["ownerReferences"].as_array().map(Vec::len);
    let owned = free.iter().filter_map(owners).sum::<usize>();
    assert_eq!((free.len(), owned), (NODES.len(), 0), "{free:#?}");
    apply(&kubectl, &changed(&first, "two")).await?;
    rolled_out(&kubectl, "d").await?;
    assert_eq!(settled(&admin, "d", &NODES).await?, before);

    kubectl.ok(&["delete", "ds", "d"]).await?;
    settled(&admin, "d", &[]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_in_the_middle_of_a_rollout_ends_it_right() -> anyhow::Result<()> {
    let mut instance = three_nodes().await?;
    let Some(kubectl) = Kubectl::of(&instance) else {
        return Ok(());
    };
    let admin = instance.admin().await?;
    let first = changed(&set("d"), "one");
    apply(&kubectl, &first).await?;
    settled(&admin, "d", &NODES).await?;
    for round in ["two", "three"] {
        apply(&kubectl, &changed(&first, round)).await?;
        eventually("a first new pod", async || {
            let pods = pods(&instance.admin().await?, "d").await?;
            Ok(pods.iter().any(|pod| version(pod) == round).then_some(()))
        })
        .await?;
        instance.kill9().await?;
        instance.start_again().await?;
        rolled_out(&kubectl, "d").await?;
        let admin = instance.admin().await?;
        settled(&admin, "d", &NODES).await?;
        for pod in pods(&admin, "d").await? {
            assert_eq!(version(&pod), round, "{pod:#}");
        }
    }
    kubectl
        .ok(&["delete", "ds", "d", "--cascade=foreground"])
        .await?;
    let admin = instance.admin().await?;
    assert_eq!(pods(&admin, "d").await?, [Value::Null; 0], "pods go first");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_that_are_off_apply_to_templates_and_to_pods_made_of_them() -> anyhow::Result<()> {
    const OFF: &str = "--feature-gates=ContainerStopSignals=false,PodLifecycleSleepAction=false";
    let mut instance = Instance::up().arg(OFF).start().await?;
    let Some(kubectl) = Kubectl::of(&instance) else {
        return Ok(());
    };
    let with = |name: &str, field: &str, value: Value| {
        let mut set = set(name);
        set["spec"]["template"]["spec"]["containers"][0][field] = value;
        set
    };
    let signal = with("signal", "stopSignal", json!("SIGUSR1"));
    let refused = kubectl.with_object(&["apply", "-f", "-"], &signal).await?;
    assert!(!refused.success);
    let field = "spec.template.spec.containers[0].stopSignal: Forbidden";
    assert!(refused.stderr.contains(field), "{}", refused.stderr);
    let sleep = json!({ "preStop": { "sleep": { "seconds": 1 } } });
    apply(&kubectl, &with("sleep", "lifecycle", sleep.clone())).await?;
    let admin = instance.admin().await?;
    settled(&admin, "sleep", &["n1"]).await?;
    let made = &pods(&admin, "sleep").await?[0];
    assert_eq!(made["spec"]["containers"][0]["lifecycle"], Value::Null);

    // With the gates on both are there, and the handler of a template may be changed.
    instance.stop().await?;
    instance.start_again_with_args(&[]).await?;
    apply(&kubectl, &signal).await?;
    apply(&kubectl, &with("sleep", "lifecycle", sleep.clone())).await?;
    rolled_out(&kubectl, "sleep").await?;
    rolled_out(&kubectl, "signal").await?;
    let admin = instance.admin().await?;
    settled(&admin, "sleep", &["n1"]).await?;
    let made = &pods(&admin, "sleep").await?[0];
    let hook = &made["spec"]["containers"][0]["lifecycle"]["preStop"];
    assert_eq!(hook["sleep"]["seconds"], 1);
    let before = settled(&admin, "signal", &["n1"]).await?;

    // Off again: the template and its pod keep the signal; a new pod with one is refused, and said
    // to be.
    instance.stop().await?;
    instance.start_again_with_args(&[OFF]).await?;
    let admin = instance.admin().await?;
    assert_eq!(settled(&admin, "signal", &["n1"]).await?, before);
    let name = text(&pods(&admin, "signal").await?[0]["metadata"]["name"]);
    kubectl.ok(&["delete", "pod", &name]).await?;
    eventually("the refusal", async || {
        let list = admin.get(EVENTS).await?.ok()?;
        let events = list["items"].as_array().cloned().unwrap_or_default();
        let told = events.iter().any(|event| {
            event["reason"] == "FailedCreate" && text(&event["message"]).contains("stopSignal")
        });
        Ok(told.then_some(()))
    })
    .await?;
    assert_eq!(pods(&admin, "signal").await?, [Value::Null; 0]);
    instance.stop().await?;
    instance.start_again_with_args(&[]).await?;
    settled(&instance.admin().await?, "signal", &["n1"]).await?;
    Ok(())
}
