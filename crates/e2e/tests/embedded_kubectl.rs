//! The daily work with a stock kubectl.

use std::os::unix::fs::PermissionsExt;

use anyhow::Context;
use belay_testkit::{
    Instance, Kubectl, PODS, eventually, exec, kubectl::Ended, notification, pod, until_file,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

/// The shared instance and its kubectl, or the end of the test when there is no kubectl.
macro_rules! kubectl {
    () => {{
        let instance = Instance::shared().await?;
        match Kubectl::of(instance) {
            Some(kubectl) => (instance, kubectl),
            None => return Ok(()),
        }
    }};
}

fn assert_ok(ended: &Ended) {
    assert!(ended.success, "{}{}", ended.stdout, ended.stderr);
}

async fn json_of(kubectl: &Kubectl, arguments: &[&str]) -> anyhow::Result<Value> {
    let mut arguments = arguments.to_vec();
    arguments.extend(["-o", "json"]);
    Ok(serde_json::from_str(&kubectl.ok(&arguments).await?)?)
}

/// Creates a pod and waits with kubectl until it is ready.
async fn ready_pod(kubectl: &Kubectl, manifest: &Value) -> anyhow::Result<()> {
    assert_ok(
        &kubectl
            .with_object(&["create", "-f", "-"], manifest)
            .await?,
    );
    let name = manifest["metadata"]["name"].as_str().context("a name")?;
    kubectl
        .ok(&[
            "wait",
            "--for=condition=Ready",
            &format!("pod/{name}"),
            "--timeout=120s",
        ])
        .await
        .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn api_resources_and_versions_are_discovered() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let resources = kubectl.ok(&["api-resources"]).await?;
    for (name, short, kind) in [
        ("pods", "po", "Pod"),
        ("nodes", "no", "Node"),
        ("namespaces", "ns", "Namespace"),
        ("events", "ev", "Event"),
        ("configmaps", "cm", "ConfigMap"),
        ("leases", "", "Lease"),
        ("podnotifications", "pn", "PodNotification"),
    ] {
        let line = resources
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        let line = line.with_context(|| format!("{name} is not in {resources}"))?;
        assert!(line.contains(short) && line.ends_with(kind), "{line}");
    }
    let versions = kubectl.ok(&["api-versions"]).await?;
    for version in ["v1", "apps.k8s.io/v1alpha1", "coordination.k8s.io/v1"] {
        assert!(versions.lines().any(|line| line == version), "{versions}");
    }
    let version = kubectl.ok(&["version"]).await?;
    assert!(version.contains("Server Version: v1."), "{version}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn create_get_and_delete_a_config_map() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    kubectl
        .ok(&["create", "configmap", "daily", "--from-literal=colour=blue"])
        .await?;
    let twice = kubectl
        .fails(&["create", "configmap", "daily", "--from-literal=a=b"])
        .await?;
    assert!(twice.contains("already exists"), "{twice}");
    let table = kubectl.ok(&["get", "configmap", "daily"]).await?;
    assert!(
        table.starts_with("NAME ") && table.contains("DATA"),
        "{table}"
    );
    assert!(
        kubectl
            .ok(&["get", "cm/daily", "-o", "yaml"])
            .await?
            .contains("colour: blue")
    );
    let path = ["get", "cm", "daily", "-o", "jsonpath={.data.colour}"];
    assert_eq!(kubectl.ok(&path).await?, "blue");
    assert!(
        kubectl
            .ok(&["delete", "cm", "daily"])
            .await?
            .contains("deleted")
    );
    let gone = kubectl.fails(&["get", "cm", "daily"]).await?;
    assert!(
        gone.contains("NotFound") && gone.contains("daily"),
        "{gone}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_creates_then_is_unchanged_then_configures_and_prunes_a_field() -> anyhow::Result<()>
{
    let (_, kubectl) = kubectl!();
    let apply = ["apply", "-f", "-"];
    let mut map = belay_testkit::rest::config_map("applied", "colour", "blue");
    map["data"]["shape"] = "round".into();
    let said = kubectl.with_object(&apply, &map).await?;
    assert_ok(&said);
    assert!(
        said.stdout.contains("configmap/applied created"),
        "{}",
        said.stdout
    );
    let said = kubectl.with_object(&apply, &map).await?;
    assert!(
        said.stdout.contains("configmap/applied unchanged"),
        "{}",
        said.stdout
    );

    // Somebody else's field stays, ours that is gone from the manifest goes.
    kubectl
        .ok(&[
            "patch",
            "cm",
            "applied",
            "--type=merge",
            "-p",
            r#"{"data":{"other":"kept"}}"#,
        ])
        .await?;
    map["data"] = json!({ "colour": "green" });
    let said = kubectl.with_object(&apply, &map).await?;
    assert!(
        said.stdout.contains("configmap/applied configured"),
        "{}",
        said.stdout
    );
    let stored = json_of(&kubectl, &["get", "cm", "applied"]).await?;
    assert_eq!(
        stored["data"],
        json!({ "colour": "green", "other": "kept" })
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_of_a_pod_is_a_strategic_merge() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let mut manifest = pod("strategic")
        .label("app", "one")
        .idle("first")
        .notifier("lock", exec(["true"]).timeout(1))
        .idle("second")
        .build();
    let apply = ["apply", "-f", "-"];
    assert_ok(&kubectl.with_object(&apply, &manifest).await?);
    let said = kubectl.with_object(&apply, &manifest).await?;
    assert!(
        said.stdout.contains("unchanged"),
        "{}{}",
        said.stdout,
        said.stderr
    );
    manifest["metadata"]["labels"]["app"] = "two".into();
    manifest["spec"]["containers"][1]["image"] = "other".into();
    let said = kubectl.with_object(&apply, &manifest).await?;
    assert!(
        said.stdout.contains("configured"),
        "{}{}",
        said.stdout,
        said.stderr
    );
    let stored = json_of(&kubectl, &["get", "pod", "strategic"]).await?;
    assert_eq!(stored["metadata"]["labels"]["app"], "two");
    assert_eq!(stored["spec"]["containers"][0]["image"], "none");
    assert_eq!(stored["spec"]["containers"][1]["image"], "other");
    assert_eq!(
        stored["spec"]["containers"][0]["notifiers"][0]["name"],
        "lock"
    );

    // What may not change is refused in Kubernetes' words.
    manifest["spec"]["containers"][0]["command"] = json!(["false"]);
    let refused = kubectl.with_object(&apply, &manifest).await?;
    assert!(!refused.success);
    assert!(
        refused
            .stderr
            .contains("pod updates may not change fields other than")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_shown_as_tables() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    ready_pod(
        &kubectl,
        &pod("shown").label("show", "me").idle("main").build(),
    )
    .await?;
    let table = kubectl.ok(&["get", "pods", "-l", "show=me"]).await?;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    );
    assert_eq!(
        lines[1].split_whitespace().take(4).collect::<Vec<_>>(),
        ["shown", "1/1", "Running", "0"]
    );
    let wide = kubectl
        .ok(&["get", "pods", "-l", "show=me", "-o", "wide"])
        .await?;
    assert!(wide.contains("NODE") && wide.contains("n1"), "{wide}");
    let all = kubectl
        .ok(&["get", "pods", "-A", "--show-labels", "-l", "show=me"])
        .await?;
    assert!(
        all.contains("NAMESPACE") && all.contains("show=me"),
        "{all}"
    );
    let named = kubectl
        .ok(&["get", "pods", "-l", "show=me", "-o", "name"])
        .await?;
    assert_eq!(named, "pod/shown\n");
    let none = kubectl.run(&["get", "pods", "-l", "show=nothing"]).await?;
    assert!(
        none.stderr.contains("No resources found"),
        "{}",
        none.stderr
    );
    let nodes = kubectl.ok(&["get", "nodes"]).await?;
    let node = nodes.lines().nth(1).unwrap_or_default();
    assert!(node.starts_with("n1 ") && node.contains("Ready"), "{nodes}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_are_shown_with_their_own_columns() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let manifest = pod("columns")
        .idle("main")
        .notifier("lock", exec(["true"]).timeout(30))
        .build();
    ready_pod(&kubectl, &manifest).await?;
    let object = notification("columns", "columns", "lock").build();
    assert_ok(&kubectl.with_object(&["apply", "-f", "-"], &object).await?);
    kubectl
        .ok(&[
            "wait",
            "pn/columns",
            "--for=jsonpath={.status.state}=Succeeded",
            "--timeout=120s",
        ])
        .await?;
    let table = kubectl.ok(&["get", "pn", "columns"]).await?;
    assert!(
        table.contains("Succeeded") && table.contains("lock"),
        "{table}"
    );
    let described = kubectl.ok(&["describe", "pn", "columns"]).await?;
    assert!(
        described.contains("Succeeded") && described.contains("columns"),
        "{described}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn describe_shows_a_pod_with_its_events() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    ready_pod(&kubectl, &pod("described").idle("main").build()).await?;
    let text = eventually("the events of the pod", async || {
        let text = kubectl.ok(&["describe", "pod", "described"]).await?;
        Ok(text.contains("Started").then_some(text))
    })
    .await?;
    for part in [
        "Name:",
        "described",
        "Node:",
        "n1",
        "Status:",
        "Running",
        "Events:",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let node = kubectl.ok(&["describe", "node", "n1"]).await?;
    assert!(
        node.contains("Ready") && node.contains("described"),
        "{node}"
    );
    let events = kubectl.ok(&["events", "--for", "pod/described"]).await?;
    assert!(events.contains("Started"), "{events}");
    let events = kubectl.ok(&["get", "events"]).await?;
    assert!(events.contains("described"), "{events}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_and_annotations_are_set_and_removed() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    kubectl
        .ok(&["create", "cm", "labelled", "--from-literal=a=b"])
        .await?;
    kubectl
        .ok(&["label", "cm", "labelled", "tier=web", "zone=a"])
        .await?;
    let clash = kubectl
        .fails(&["label", "cm", "labelled", "tier=db"])
        .await?;
    assert!(clash.contains("--overwrite"), "{clash}");
    kubectl
        .ok(&["label", "cm", "labelled", "tier=db", "--overwrite"])
        .await?;
    kubectl.ok(&["label", "cm", "labelled", "zone-"]).await?;
    kubectl
        .ok(&["annotate", "cm", "labelled", "note=once upon a time"])
        .await?;
    let stored = json_of(&kubectl, &["get", "cm", "labelled"]).await?;
    assert_eq!(stored["metadata"]["labels"], json!({ "tier": "db" }));
    assert_eq!(
        stored["metadata"]["annotations"]["note"],
        "once upon a time"
    );
    for (selector, found) in [
        ("tier=db", 1),
        ("tier in (web,db)", 1),
        ("tier!=db,tier", 0),
        ("!tier,zone", 0),
    ] {
        let list = json_of(&kubectl, &["get", "cm", "-l", selector]).await?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let mine = items
            .iter()
            .filter(|item| item["metadata"]["name"] == "labelled")
            .count();
        assert_eq!(mine, found, "{selector}");
    }
    let wrong = kubectl
        .fails(&["label", "cm", "labelled", "tier=a b"])
        .await?;
    assert!(wrong.contains("a b"), "{wrong}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_of_all_three_types_apply() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    kubectl
        .ok(&["create", "cm", "patched", "--from-literal=a=1"])
        .await?;
    let json_patch = r#"[{"op":"add","path":"/data/b","value":"2"}]"#;
    kubectl
        .ok(&["patch", "cm", "patched", "--type=json", "-p", json_patch])
        .await?;
    let merge = r#"{"data":{"a":null,"c":"3"}}"#;
    kubectl
        .ok(&["patch", "cm", "patched", "--type=merge", "-p", merge])
        .await?;
    let strategic = r#"{"metadata":{"labels":{"by":"strategic"}}}"#;
    kubectl
        .ok(&[
            "patch",
            "cm",
            "patched",
            "--type=strategic",
            "-p",
            strategic,
        ])
        .await?;
    let stored = json_of(&kubectl, &["get", "cm", "patched"]).await?;
    assert_eq!(stored["data"], json!({ "b": "2", "c": "3" }));
    assert_eq!(stored["metadata"]["labels"]["by"], "strategic");
    let said = kubectl
        .ok(&["patch", "cm", "patched", "--type=merge", "-p", "{}"])
        .await?;
    assert!(said.contains("no change"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn edit_saves_what_the_editor_left() -> anyhow::Result<()> {
    let (instance, kubectl) = kubectl!();
    kubectl
        .ok(&["create", "cm", "edited", "--from-literal=colour=blue"])
        .await?;
    let editor = instance.file("editor.sh");
    std::fs::write(
        &editor,
        "#!/bin/sh\nsed -i 's/colour: blue/colour: red/' \"$1\"\n",
    )?;
    std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755))?;
    let environment = [("KUBE_EDITOR", editor.as_str())];
    let said = kubectl
        .run_with_env(&["edit", "cm", "edited"], &environment)
        .await?;
    assert_ok(&said);
    assert!(said.stdout.contains("edited"), "{}", said.stdout);
    let path = ["get", "cm", "edited", "-o", "jsonpath={.data.colour}"];
    assert_eq!(kubectl.ok(&path).await?, "red");
    let unchanged = kubectl
        .run_with_env(&["edit", "cm", "edited"], &environment)
        .await?;
    assert!(
        unchanged.stderr.contains("no changes"),
        "{}{}",
        unchanged.stdout,
        unchanged.stderr
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn replace_needs_the_current_version() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    kubectl
        .ok(&["create", "cm", "replaced", "--from-literal=a=1"])
        .await?;
    let old = json_of(&kubectl, &["get", "cm", "replaced"]).await?;
    let mut new = old.clone();
    new["data"]["a"] = "2".into();
    assert_ok(&kubectl.with_object(&["replace", "-f", "-"], &new).await?);
    let stale = kubectl.with_object(&["replace", "-f", "-"], &old).await?;
    assert!(!stale.success);
    assert!(
        stale.stderr.contains("Conflict") || stale.stderr.contains("modified"),
        "{stale:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_deleted_with_its_grace_period() -> anyhow::Result<()> {
    let (instance, kubectl) = kubectl!();
    let file = instance.file("grace");
    let script = format!(
        "trap 'echo stopping >> {file}; exit 0' TERM; echo ready >> {file}; \
         while :; do sleep 3600 & wait; done"
    );
    let manifest = pod("graceful")
        .container("main", ["sh", "-c", &script])
        .grace(60)
        .build();
    ready_pod(&kubectl, &manifest).await?;
    until_file(&file, |text| text.contains("ready")).await?;
    kubectl.ok(&["delete", "pod", "graceful"]).await?;
    let text = std::fs::read_to_string(&file)?;
    assert_eq!(text.lines().collect::<Vec<_>>(), ["ready", "stopping"]);
    assert!(
        kubectl
            .fails(&["get", "pod", "graceful"])
            .await?
            .contains("NotFound")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_does_not_listen_is_killed_at_the_end_of_its_grace() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let script = "trap '' TERM; while :; do sleep 81000.1; done";
    let manifest = pod("stubborn")
        .container("main", ["sh", "-c", script])
        .grace(3600)
        .build();
    ready_pod(&kubectl, &manifest).await?;
    kubectl
        .ok(&["delete", "pod", "stubborn", "--grace-period=1"])
        .await?;
    assert!(belay_testkit::processes::with_command("81000.1").is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_now_and_delete_force_do_not_wait() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let script = "trap '' TERM; while :; do sleep 82000.1; done";
    for (name, flags) in [
        ("now", &["--now"][..]),
        ("forced", &["--force", "--grace-period=0"]),
    ] {
        let manifest = pod(name)
            .container("main", ["sh", "-c", script])
            .grace(3600)
            .build();
        ready_pod(&kubectl, &manifest).await?;
        let mut arguments = vec!["delete", "pod", name];
        arguments.extend(flags);
        kubectl.ok(&arguments).await?;
        assert!(
            kubectl
                .fails(&["get", "pod", name])
                .await?
                .contains("NotFound")
        );
    }
    eventually("the end of both containers", async || {
        Ok(belay_testkit::processes::with_command("82000.1")
            .is_empty()
            .then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grace_period_can_be_shortened_while_the_pod_stops() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let script = "trap '' TERM; while :; do sleep 83000.1; done";
    let manifest = pod("impatient")
        .container("main", ["sh", "-c", script])
        .grace(3600)
        .build();
    ready_pod(&kubectl, &manifest).await?;
    kubectl
        .ok(&["delete", "pod", "impatient", "--wait=false"])
        .await?;
    let stopping = json_of(&kubectl, &["get", "pod", "impatient"]).await?;
    assert!(stopping["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(stopping["metadata"]["deletionGracePeriodSeconds"], 3600);
    let table = kubectl.ok(&["get", "pod", "impatient"]).await?;
    assert!(table.contains("Terminating"), "{table}");
    kubectl
        .ok(&["delete", "pod", "impatient", "--grace-period=1"])
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finalizer_keeps_an_object_until_it_is_removed() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let mut map = belay_testkit::rest::config_map("finalized", "a", "b");
    map["metadata"]["finalizers"] = json!(["example.com/hold"]);
    assert_ok(&kubectl.with_object(&["create", "-f", "-"], &map).await?);
    kubectl
        .ok(&["delete", "cm", "finalized", "--wait=false"])
        .await?;
    let held = json_of(&kubectl, &["get", "cm", "finalized"]).await?;
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    kubectl
        .ok(&["patch", "cm", "finalized", "--type=merge", "-p", patch])
        .await?;
    kubectl
        .ok(&["wait", "--for=delete", "cm/finalized", "--timeout=60s"])
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_shows_changes_as_they_happen() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    kubectl
        .ok(&["create", "cm", "watched", "--from-literal=a=1"])
        .await?;
    let arguments = [
        "get",
        "cm",
        "watched",
        "-w",
        "--output-watch-events",
        "-o",
        "json",
    ];
    let mut watching = kubectl.start(&arguments)?;
    let output = watching.stdout.take().context("no output")?;
    let mut text = String::new();
    let mut lines = BufReader::new(output).lines();
    let mut until = async |what: &str| -> anyhow::Result<()> {
        while !text.contains(what) {
            let line = tokio::time::timeout(std::time::Duration::from_secs(90), lines.next_line());
            text.push_str(&line.await??.context("the watch ended")?);
            text.push('\n');
        }
        Ok(())
    };
    until("ADDED").await?;
    kubectl
        .ok(&[
            "patch",
            "cm",
            "watched",
            "--type=merge",
            "-p",
            r#"{"data":{"a":"2"}}"#,
        ])
        .await?;
    until("MODIFIED").await?;
    kubectl.ok(&["delete", "cm", "watched"]).await?;
    until("DELETED").await?;
    watching.kill().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_understands_conditions_jsonpaths_and_deletion() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let manifest = pod("awaited").idle("main").build();
    assert_ok(
        &kubectl
            .with_object(&["create", "-f", "-"], &manifest)
            .await?,
    );
    kubectl
        .ok(&[
            "wait",
            "pod/awaited",
            "--for=condition=Ready",
            "--timeout=120s",
        ])
        .await?;
    let path = "--for=jsonpath={.status.phase}=Running";
    kubectl
        .ok(&["wait", "pod/awaited", path, "--timeout=120s"])
        .await?;
    kubectl
        .ok(&["delete", "pod", "awaited", "--wait=false"])
        .await?;
    kubectl
        .ok(&["wait", "pod/awaited", "--for=delete", "--timeout=120s"])
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_read_followed_and_cut() -> anyhow::Result<()> {
    let (instance, kubectl) = kubectl!();
    let gate = instance.file("log-gate");
    let script = format!(
        "echo one; echo two >&2; echo three; while [ ! -e {gate} ]; do sleep 0.05; done; echo four"
    );
    let manifest = pod("talks")
        .container("main", ["sh", "-c", &script])
        .restart_policy("Never")
        .build();
    ready_pod(&kubectl, &manifest).await?;
    eventually("three lines", async || {
        let text = kubectl.ok(&["logs", "talks"]).await?;
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        Ok((lines == ["one", "three", "two"]).then_some(()))
    })
    .await?;
    assert_eq!(
        kubectl
            .ok(&["logs", "talks", "--tail=1"])
            .await?
            .lines()
            .count(),
        1
    );
    let stamped = kubectl.ok(&["logs", "talks", "--timestamps"]).await?;
    assert!(
        stamped
            .lines()
            .all(|line| line.contains('T') && line.contains('Z')),
        "{stamped}"
    );
    assert_eq!(
        kubectl
            .ok(&["logs", "talks", "--limit-bytes=2"])
            .await?
            .len(),
        2
    );

    let following = kubectl.start(&["logs", "-f", "talks"])?;
    std::fs::write(&gate, "")?;
    let patience = std::time::Duration::from_secs(90);
    let ended = tokio::time::timeout(patience, following.wait_with_output())
        .await
        .context("the followed log did not end with its container")??;
    assert!(String::from_utf8_lossy(&ended.stdout).ends_with("four\n"));

    let wrong = kubectl.fails(&["logs", "talks", "-c", "nobody"]).await?;
    assert!(wrong.contains("nobody"), "{wrong}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_the_previous_container_are_kept() -> anyhow::Result<()> {
    let (instance, kubectl) = kubectl!();
    let mark = instance.file("second-life");
    let script = format!(
        "if [ -e {mark} ]; then echo second; while :; do sleep 3600 & wait; done; \
         else touch {mark}; echo first; exit 3; fi"
    );
    let manifest = pod("reborn")
        .container("main", ["sh", "-c", &script])
        .build();
    assert_ok(
        &kubectl
            .with_object(&["create", "-f", "-"], &manifest)
            .await?,
    );
    let restarted = "--for=jsonpath={.status.containerStatuses[0].restartCount}=1";
    kubectl
        .ok(&["wait", "pod/reborn", restarted, "--timeout=120s"])
        .await?;
    assert_eq!(
        kubectl.ok(&["logs", "reborn", "--previous"]).await?,
        "first\n"
    );
    eventually("the second life's words", async || {
        Ok((kubectl.ok(&["logs", "reborn"]).await? == "second\n").then_some(()))
    })
    .await?;
    let status = json_of(&kubectl, &["get", "pod", "reborn"]).await?;
    let last = &status["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 3);
    assert_eq!(last["reason"], "Error");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_changes_nothing() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let map = belay_testkit::rest::config_map("tried", "a", "b");
    let said = kubectl
        .with_object(&["apply", "--dry-run=server", "-f", "-"], &map)
        .await?;
    assert_ok(&said);
    assert!(
        said.stdout.contains("created (server dry run)"),
        "{}",
        said.stdout
    );
    assert!(
        kubectl
            .fails(&["get", "cm", "tried"])
            .await?
            .contains("NotFound")
    );
    assert_ok(&kubectl.with_object(&["create", "-f", "-"], &map).await?);
    kubectl
        .ok(&["delete", "cm", "tried", "--dry-run=server"])
        .await?;
    kubectl
        .ok(&["label", "cm", "tried", "x=y", "--dry-run=server"])
        .await?;
    let stored = json_of(&kubectl, &["get", "cm", "tried"]).await?;
    assert_eq!(stored["metadata"]["labels"], Value::Null);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_are_refused_warned_about_or_dropped() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let object = |name: &str| {
        let mut pod = pod(name).idle("main").build();
        pod["spec"]["containers"][0]["notifer"] = json!([]);
        pod
    };
    let create = |mode: &'static str| ["create", mode, "-f", "-"];
    let strict = kubectl
        .with_object(&create("--validate=strict"), &object("strict"))
        .await?;
    assert!(!strict.success);
    assert!(
        strict
            .stderr
            .contains("unknown field \"spec.containers[0].notifer\""),
        "{strict:?}"
    );
    let warned = kubectl
        .with_object(&create("--validate=warn"), &object("warned"))
        .await?;
    assert_ok(&warned);
    assert!(
        warned.stderr.contains("Warning: unknown field"),
        "{}",
        warned.stderr
    );
    let ignored = kubectl
        .with_object(&create("--validate=ignore"), &object("ignored"))
        .await?;
    assert_ok(&ignored);
    assert!(
        !ignored.stderr.contains("unknown field"),
        "{}",
        ignored.stderr
    );
    let stored = json_of(&kubectl, &["get", "pod", "ignored"]).await?;
    assert_eq!(stored["spec"]["containers"][0]["notifer"], Value::Null);
    // What is neither said nor asked for is the default: strict.
    let plain = kubectl
        .with_object(&["create", "-f", "-"], &object("plain"))
        .await?;
    assert!(!plain.success);
    let twice = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: twice\n  name: twice\n";
    assert!(
        !kubectl
            .with_text(&["create", "-f", "-"], twice)
            .await?
            .success
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_input_is_answered_with_what_to_fix() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let wrong = pod("Wrong_Name").idle("main").build();
    let said = kubectl.with_object(&["create", "-f", "-"], &wrong).await?;
    assert!(!said.success);
    assert!(
        said.stderr
            .contains("metadata.name: Invalid value: \"Wrong_Name\""),
        "{said:?}"
    );
    assert!(said.stderr.contains("RFC 1123"), "{said:?}");

    let empty = pod("empty").build();
    let said = kubectl.with_object(&["create", "-f", "-"], &empty).await?;
    assert!(
        said.stderr.contains("spec.containers: Required value"),
        "{said:?}"
    );

    let wrong = kubectl.fails(&["get", "gadgets"]).await?;
    assert!(
        wrong.contains("the server doesn't have a resource type \"gadgets\""),
        "{wrong}"
    );
    let wrong = kubectl
        .fails(&["get", "pods", "--field-selector", "spec.nothing=1"])
        .await?;
    assert!(wrong.contains("spec.nothing"), "{wrong}");
    let elsewhere = kubectl
        .fails(&["create", "cm", "x", "-n", "nowhere"])
        .await?;
    assert!(
        elsewhere.contains("nowhere") && elsewhere.contains("not found"),
        "{elsewhere}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_comes_and_goes_with_what_is_in_it() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    kubectl.ok(&["create", "namespace", "passing"]).await?;
    kubectl
        .ok(&[
            "create",
            "cm",
            "inside",
            "-n",
            "passing",
            "--from-literal=a=b",
        ])
        .await?;
    let table = kubectl.ok(&["get", "ns", "passing"]).await?;
    assert!(table.contains("Active"), "{table}");
    kubectl
        .ok(&["delete", "namespace", "passing", "--timeout=90s"])
        .await?;
    assert!(
        kubectl
            .fails(&["get", "ns", "passing"])
            .await?
            .contains("NotFound")
    );
    kubectl.ok(&["create", "namespace", "passing"]).await?;
    let list = json_of(&kubectl, &["get", "cm", "-n", "passing"]).await?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(0), "{list}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_chunks() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    kubectl.ok(&["create", "namespace", "many"]).await?;
    for number in 0..7 {
        kubectl
            .ok(&["create", "cm", &format!("m{number}"), "-n", "many"])
            .await?;
    }
    let named = kubectl
        .ok(&["get", "cm", "-n", "many", "--chunk-size=2", "-o", "name"])
        .await?;
    let expected: Vec<_> = (0..7)
        .map(|number| format!("configmap/m{number}"))
        .collect();
    assert_eq!(named.lines().collect::<Vec<_>>(), expected);
    kubectl.ok(&["delete", "cm", "--all", "-n", "many"]).await?;
    assert_eq!(
        kubectl
            .ok(&["get", "cm", "-n", "many", "-o", "name"])
            .await?,
        ""
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_names_are_unique() -> anyhow::Result<()> {
    let (_, kubectl) = kubectl!();
    let mut map = belay_testkit::rest::config_map("", "a", "b");
    map["metadata"] = json!({ "generateName": "made-" });
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let said = kubectl.with_object(&["create", "-f", "-"], &map).await?;
        assert_ok(&said);
        assert!(
            said.stdout.starts_with("configmap/made-"),
            "{}",
            said.stdout
        );
        names.insert(said.stdout);
    }
    assert_eq!(names.len(), 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_cannot_start_says_why() -> anyhow::Result<()> {
    let (instance, kubectl) = kubectl!();
    let manifest = pod("cannot")
        .container("main", ["/nonexistent/program"])
        .build();
    assert_ok(
        &kubectl
            .with_object(&["create", "-f", "-"], &manifest)
            .await?,
    );
    let admin = instance.admin().await?;
    let message = admin
        .until(&format!("{PODS}/cannot"), "a reason", |pod| {
            let state = &pod["status"]["containerStatuses"][0]["state"];
            ["waiting", "terminated"]
                .iter()
                .find_map(|kind| state[*kind]["message"].as_str())
                .map(str::to_owned)
        })
        .await?;
    assert!(
        message.contains("/nonexistent/program") || message.contains("back-off"),
        "{message}"
    );
    Ok(())
}
