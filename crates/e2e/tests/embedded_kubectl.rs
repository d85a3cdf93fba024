//! The daily work with a stock kubectl, on objects.

use std::os::unix::fs::PermissionsExt;

use anyhow::Context;
use belay_testkit::{Kubectl, exec, kubectl::Ended, notification, pod, rest::config_map};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

fn assert_ok(ended: &Ended) {
    assert!(ended.success, "{}{}", ended.stdout, ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn api_resources_and_versions_are_discovered() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let resources = kubectl.ok(&["api-resources"]).await?;
    for (name, short, kind) in [
        ("pods", "po", "Pod"),
        ("nodes", "no", "Node"),
        ("namespaces", "ns", "Namespace"),
        ("events", "ev", "Event"),
        ("configmaps", "cm", "ConfigMap"),
        ("leases", "", "Lease"),
        ("podnotifications", "pn", "PodNotification"),
        ("executionhooks", "eh", "ExecutionHook"),
        ("hookactions", "ha", "HookAction"),
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

/// The commands that make an object out of their flags send it in kubectl's own choice of format.
#[tokio::test(flavor = "multi_thread")]
async fn objects_are_created_from_flags() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl.ok(&["create", "namespace", "flags"]).await?;
    let flags = [
        "create",
        "configmap",
        "made",
        "-n",
        "flags",
        "--from-literal=colour=blue",
    ];
    kubectl.ok(&flags).await?;
    let made = kubectl.json(&["get", "cm", "made", "-n", "flags"]).await?;
    assert_eq!(made["data"], json!({ "colour": "blue" }));
    let run = [
        "run",
        "ran",
        "-n",
        "flags",
        "--image=none",
        "--restart=Never",
        "--command",
        "--",
    ];
    kubectl.ok(&[&run[..], &["true"]].concat()).await?;
    let ran = kubectl.json(&["get", "pod", "ran", "-n", "flags"]).await?;
    assert_eq!(ran["spec"]["containers"][0]["command"], json!(["true"]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn create_get_and_delete_a_config_map() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let map = config_map("daily", "colour", "blue");
    kubectl.create(&map).await?;
    let twice = kubectl.with_object(&["create", "-f", "-"], &map).await?;
    assert!(
        !twice.success && twice.stderr.contains("already exists"),
        "{twice:?}"
    );
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
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let apply = ["apply", "-f", "-"];
    let mut map = config_map("applied", "colour", "blue");
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
    let stored = kubectl.json(&["get", "cm", "applied"]).await?;
    assert_eq!(
        stored["data"],
        json!({ "colour": "green", "other": "kept" })
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn apply_of_a_pod_is_a_strategic_merge() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
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
    let stored = kubectl.json(&["get", "pod", "strategic"]).await?;
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
async fn labels_and_annotations_are_set_and_removed() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl.create(&config_map("labelled", "a", "b")).await?;
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
    let stored = kubectl.json(&["get", "cm", "labelled"]).await?;
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
        let list = kubectl.json(&["get", "cm", "-l", selector]).await?;
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
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl.create(&config_map("patched", "a", "1")).await?;
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
    let stored = kubectl.json(&["get", "cm", "patched"]).await?;
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
    let Some((instance, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl
        .create(&config_map("edited", "colour", "blue"))
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
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl.create(&config_map("replaced", "a", "1")).await?;
    let old = kubectl.json(&["get", "cm", "replaced"]).await?;
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
async fn a_finalizer_keeps_an_object_until_it_is_removed() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let mut map = config_map("finalized", "a", "b");
    map["metadata"]["finalizers"] = json!(["example.com/hold"]);
    kubectl.create(&map).await?;
    kubectl
        .ok(&["delete", "cm", "finalized", "--wait=false"])
        .await?;
    let held = kubectl.json(&["get", "cm", "finalized"]).await?;
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
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl.create(&config_map("watched", "a", "1")).await?;
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
async fn a_dry_run_changes_nothing() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let map = config_map("tried", "a", "b");
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
    kubectl.create(&map).await?;
    kubectl
        .ok(&["delete", "cm", "tried", "--dry-run=server"])
        .await?;
    kubectl
        .ok(&["label", "cm", "tried", "x=y", "--dry-run=server"])
        .await?;
    let stored = kubectl.json(&["get", "cm", "tried"]).await?;
    assert_eq!(stored["metadata"]["labels"], Value::Null);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_are_refused_warned_about_or_dropped() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
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
    let stored = kubectl.json(&["get", "pod", "ignored"]).await?;
    assert_eq!(stored["spec"]["containers"][0]["notifer"], Value::Null);
    // What is neither said nor asked for is the default: strict.
    let plain = kubectl
        .with_object(&["create", "-f", "-"], &object("plain"))
        .await?;
    assert!(!plain.success);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_input_is_answered_with_what_to_fix() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
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
    let map = config_map("x", "a", "b");
    let elsewhere = kubectl
        .with_object(&["create", "-n", "nowhere", "-f", "-"], &map)
        .await?;
    assert!(!elsewhere.success);
    assert!(
        elsewhere
            .stderr
            .contains("namespaces \"nowhere\" not found"),
        "{elsewhere:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_comes_and_goes_with_what_is_in_it() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl.create(&namespace("passing")).await?;
    let mut inside = config_map("inside", "a", "b");
    inside["metadata"]["namespace"] = "passing".into();
    kubectl.create(&inside).await?;
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
    kubectl.create(&namespace("passing")).await?;
    let list = kubectl.json(&["get", "cm", "-n", "passing"]).await?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(0), "{list}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_chunks() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl.create(&namespace("many")).await?;
    for number in 0..7 {
        let mut map = config_map(&format!("m{number}"), "a", "b");
        map["metadata"]["namespace"] = "many".into();
        kubectl.create(&map).await?;
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
async fn a_list_of_objects_is_created_and_applied_at_once() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let mut items: Vec<_> = (0..2)
        .map(|number| config_map(&format!("listed-{number}"), "a", "b"))
        .collect();
    items.push(notification("listed", "nowhere", "work").build());
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    kubectl.create(&list).await?;
    let applied = kubectl.with_object(&["apply", "-f", "-"], &list).await?;
    assert_ok(&applied);
    assert_eq!(applied.stdout.lines().count(), 3, "{}", applied.stdout);
    // What was printed can be used as input again.
    let printed = kubectl.json(&["get", "cm", "listed-0", "listed-1"]).await?;
    assert_eq!(printed["kind"], "List");
    let deleted = kubectl
        .with_object(&["delete", "-f", "-"], &printed)
        .await?;
    assert_ok(&deleted);
    assert_eq!(deleted.stdout.lines().count(), 2, "{}", deleted.stdout);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_names_are_unique() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let mut map = config_map("", "a", "b");
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
