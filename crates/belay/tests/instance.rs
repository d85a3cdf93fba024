//! The commands against a real instance: what they print, how they exit, what they leave behind.

#![allow(clippy::unwrap_used)]

use std::process::Output;

use belay_testkit::{Instance, Rest, eventually, exec, pod, processes, signal};
use serde_json::Value;

const NOTIFICATIONS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/podnotifications";

async fn admin() -> anyhow::Result<(&'static Instance, Rest)> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    Ok((instance, admin))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks the exit code and returns what was printed.
fn ended(output: &Output, code: i32) -> (String, String) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(
        output.status.code(),
        Some(code),
        "stdout: {out}\nstderr: {err}"
    );
    (out, err)
}

/// The notifications that exist for a pod.
async fn notifications_of(admin: &Rest, pod: &str) -> anyhow::Result<Vec<Value>> {
    let list = admin.get(NOTIFICATIONS).await?.ok()?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    Ok(items
        .into_iter()
        .filter(|item| item["spec"]["podName"] == pod)
        .collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_prints_results_and_output_and_leaves_nothing() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let manifest = pod("good")
        .idle("main")
        .notifier("status", exec(["sh", "-c", "echo all is well"]).timeout(20))
        .build();
    admin.run(&manifest).await?;
    let (out, err) = ended(&instance.belay(&["notify", "status", "pod/good"]).await?, 0);
    assert!(out.contains("good  main       succeeded  0"), "{out}");
    assert!(out.contains("    all is well\n"), "{out}");
    assert!(err.contains("good: created pn/good-status-"), "{err}");
    assert!(err.contains("good: succeeded"), "{err}");
    assert!(notifications_of(&admin, "good").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_exits_1_when_a_handler_fails_and_3_when_nobody_declares_it() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let manifest = pod("bad")
        .idle("main")
        .notifier("fail", exec(["sh", "-c", "echo why; exit 7"]).timeout(20))
        .build();
    admin.run(&manifest).await?;
    let (out, _) = ended(&instance.belay(&["notify", "fail", "bad"]).await?, 1);
    assert!(out.contains("failed  7"), "{out}");
    assert!(out.contains("HandlerFailed"), "{out}");
    assert!(out.contains("    why\n"), "{out}");

    let (out, err) = ended(&instance.belay(&["notify", "nothing", "bad"]).await?, 3);
    assert!(out.contains("not declared"), "{out}");
    assert!(err.contains("no container of pod bad declares"), "{err}");

    let (out, _) = ended(
        &instance.belay(&["notify", "fail", "no-such-pod"]).await?,
        1,
    );
    assert!(out.contains("PodNotFound"), "{out}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_without_a_handler_is_noted() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let manifest = pod("deaf")
        .container("main", ["sleep", "1000"])
        .notifier("wake", signal("SIGURG"))
        .build();
    admin.run(&manifest).await?;
    let (out, err) = ended(&instance.belay(&["notify", "wake", "deaf"]).await?, 0);
    assert!(out.contains("SIGURG"), "{out}");
    assert!(err.contains("note: deaf: "), "{err}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_what_would_run_and_creates_nothing() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let manifest = pod("dry")
        .idle("main")
        .notifier("touch", exec(["touch", "/nowhere"]).timeout(3))
        .idle("side")
        .build();
    admin.run(&manifest).await?;
    let dry = ["notify", "touch", "dry", "--dry-run"];
    let (out, _) = ended(&instance.belay(&dry).await?, 0);
    assert!(
        out.contains("dry  main       yes          exec touch /nowhere  3s"),
        "{out}"
    );
    assert!(out.contains("dry  side       no"), "{out}");
    let (out, _) = ended(
        &instance
            .belay(&[&dry[..], &["-o", "json"]].concat())
            .await?,
        0,
    );
    let report: Value = serde_json::from_str(&out)?;
    assert_eq!(report["containers"][0]["declares"], true, "{out}");
    assert_eq!(report["containers"][1]["declares"], false, "{out}");
    assert_eq!(report["missingRights"], serde_json::json!([]), "{out}");
    assert_eq!(report["creates"][0]["spec"]["podName"], "dry", "{out}");
    let nothing = ["notify", "nothing", "dry", "--dry-run"];
    ended(&instance.belay(&nothing).await?, 3);
    assert!(notifications_of(&admin, "dry").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_which_rights_are_missing() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let manifest = pod("seen").idle("main").notifier("touch", exec(["true"]));
    admin.run(&manifest.build()).await?;
    let view = serde_json::json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "eve-views"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    admin.post(bindings, &view).await?.ok()?;
    let file = instance.user_kubeconfig("eve", &[]).await?;
    let file = file.display().to_string();
    for target in [&["seen"][..], &["-l", "nothing=matches"]] {
        let asked = ["--kubeconfig", &file, "notify", "touch", "--dry-run"];
        let asked = instance.belay(&[&asked[..], target].concat()).await?;
        let (_, told) = ended(&asked, 1);
        let rule = "missing right: verb \"notify\" on notifiers.apps.k8s.io \"touch\" in namespace default";
        assert!(told.contains(rule), "{target:?}: {told}");
        assert!(told.contains("missing right: verb \"create\" on"), "{told}");
        assert!(!told.contains("\"list\""), "a viewer may list: {told}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_notifications_can_be_listed_and_described() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let manifest = pod("kept")
        .idle("main")
        .notifier("say", exec(["echo", "hello"]).timeout(20))
        .build();
    admin.run(&manifest).await?;
    let json = ["notify", "say", "kept", "--keep", "-o", "json"];
    let (out, _) = ended(&instance.belay(&json).await?, 0);
    let object: Value = serde_json::from_str(&out)?;
    assert_eq!(object["status"]["state"], "Succeeded");
    let name = object["metadata"]["name"].as_str().unwrap();

    let (out, _) = ended(&instance.belay(&["get", "pn", name]).await?, 0);
    assert!(out.starts_with("NAME"), "{out}");
    assert!(out.contains("Succeeded"), "{out}");
    let (out, _) = ended(
        &instance.belay(&["describe", &format!("pn/{name}")]).await?,
        0,
    );
    for part in [
        "Timeline:",
        "created: \"say\" in pod kept",
        "claimed by",
        "    hello",
        "Succeeded",
    ] {
        assert!(out.contains(part), "{part:?} is not in:\n{out}");
    }
    let (out, _) = ended(&instance.belay(&["describe", "pod", "kept"]).await?, 0);
    for part in ["exec echo hello", "event Scheduled", "main: started", name] {
        assert!(out.contains(part), "{part:?} is not in:\n{out}");
    }
    let yaml = ["get", "pods", "kept", "-o", "yaml"];
    let (out, _) = ended(&instance.belay(&yaml).await?, 0);
    assert!(out.contains("name: kept"), "{out}");
    let missing = instance.belay(&["describe", "pn/none"]).await?;
    let (_, err) = ended(&missing, 1);
    assert!(err.contains("not found"), "{err}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_waiting_the_notification_goes_on_by_itself() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let manifest = pod("later")
        .idle("main")
        .notifier("say", exec(["echo", "hello"]).timeout(20))
        .build();
    admin.run(&manifest).await?;
    let (out, _) = ended(
        &instance
            .belay(&["notify", "say", "later", "--no-wait"])
            .await?,
        0,
    );
    let name = out
        .trim()
        .strip_prefix("podnotification.apps.k8s.io/")
        .unwrap();
    let name = name.strip_suffix(" created").unwrap();
    assert_eq!(admin.finished(name).await?["status"]["state"], "Succeeded");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_timeout_ends_the_wait_and_the_action() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let mark = processes::unique_seconds();
    let manifest = pod("slow")
        .idle("main")
        .notifier("hang", exec(["sleep", &mark]).timeout(600))
        .build();
    admin.run(&manifest).await?;
    // Time enough for the start on a busy machine: what had not begun by then would be `Expired`.
    let hang = ["notify", "hang", "slow", "--timeout", "8s"];
    let (out, err) = ended(&instance.belay(&hang).await?, 1);
    assert!(out.contains("no result yet"), "{out}");
    // The handler may still be dying when the command ends.
    assert!(
        err.contains("timed out waiting; the notifications were deleted, which cancels"),
        "{err}"
    );
    assert!(notifications_of(&admin, "slow").await?.is_empty());
    eventually("the end of the action", async || {
        Ok(processes::with_command(&mark).is_empty().then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_deletes_what_was_created_and_cancels_the_action() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let mark = processes::unique_seconds();
    let manifest = pod("interrupted")
        .idle("main")
        .notifier("hang", exec(["sleep", &mark]).timeout(600))
        .build();
    admin.run(&manifest).await?;
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_belay"))
        .args(["notify", "hang", "interrupted"])
        .env("KUBECONFIG", instance.kubeconfig())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    eventually("the start of the action", async || {
        Ok((!processes::with_command(&mark).is_empty()).then_some(()))
    })
    .await?;
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id())?).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await??;
    let (_, err) = ended(&output, 1);
    assert!(
        err.contains("interrupted; the notifications were deleted"),
        "{err}"
    );
    assert!(notifications_of(&admin, "interrupted").await?.is_empty());
    eventually("the end of the action", async || {
        Ok(processes::with_command(&mark).is_empty().then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_on_the_same_directory_is_refused_naming_the_first() -> anyhow::Result<()>
{
    let (instance, _) = admin().await?;
    let dir = instance.data_dir();
    let up = [
        "up",
        "--listen",
        "127.0.0.1:0",
        "--data-dir",
        dir.to_str().unwrap(),
    ];
    let (_, err) = ended(&instance.belay(&up).await?, 1);
    assert!(
        err.contains(&format!("process {}", instance.pid()?)),
        "{err}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_an_instance_leaves_its_containers_and_the_next_one_has_them() -> anyhow::Result<()>
{
    let mut instance = Instance::up().start().await?;
    let mark = processes::unique_seconds();
    let manifest = pod("stays").container("main", ["sleep", &mark]).build();
    instance.admin().await?.run(&manifest).await?;
    let before = processes::with_command(&mark);
    assert_eq!(before.len(), 1);
    let status = instance.stop().await?;
    assert!(status.success(), "{status}: {}", instance.log());
    assert!(
        instance
            .log()
            .contains("belay is ready on https://127.0.0.1:")
    );
    assert!(processes::is_alive(before[0].pid));
    instance.start_again().await?;
    instance.admin().await?.running("stays").await?;
    let after = processes::with_command(&mark);
    assert_eq!(after.len(), 1);
    assert_eq!(after[0].pid, before[0].pid);
    Ok(())
}

/// The tour checks what it shows by itself, a `kill -9` in the middle included.
#[test]
fn the_demo_shows_what_it_says() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_belay"))
        .arg("demo")
        .output()
        .unwrap();
    let (out, _) = ended(&output, 0);
    let named = out
        .split_once("instance in ")
        .and_then(|(_, rest)| rest.split_once(' '));
    let dir = named.unwrap().0;
    assert!(!std::path::Path::new(dir).exists(), "{dir} is left behind");
    assert!(processes::with_environment(&format!("BELAY_DEMO={dir}")).is_empty());
}
