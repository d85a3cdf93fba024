//! The program's own commands against a running instance: what they print and how they exit.

use belay_testkit::{Instance, NOTIFICATIONS, Rest, exec, pod, signal};
use serde_json::Value;

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn belay(instance: &Instance, arguments: &[&str]) -> anyhow::Result<Ran> {
    let output = instance.belay(arguments).await?;
    Ok(Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

async fn with_pod(name: &str) -> anyhow::Result<(&'static Instance, Rest)> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let manifest = pod(name)
        .container(
            "main",
            [
                "sh",
                "-c",
                "trap : HUP; while :; do sleep 3600 & wait; done",
            ],
        )
        .notifier("good", exec(["echo", "all is well"]).timeout(30))
        .notifier(
            "bad",
            exec(["sh", "-c", "echo no space left; exit 4"]).timeout(30),
        )
        .notifier("slow", exec(["sleep", "600"]).timeout(1))
        .notifier("reload", signal("SIGHUP").timeout(30))
        .build();
    admin.run(&manifest).await?;
    Ok((instance, admin))
}

fn left(list: &Value, pod: &str) -> usize {
    let items = list["items"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    items
        .iter()
        .filter(|item| item["spec"]["podName"] == pod)
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_waits_shows_the_result_and_cleans_up() -> anyhow::Result<()> {
    let (instance, admin) = with_pod("shows").await?;
    let ran = belay(instance, &["notify", "good", "pod/shows"]).await?;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(
        ran.stdout.contains("main") && ran.stdout.contains("all is well"),
        "{}",
        ran.stdout
    );
    let ran = belay(instance, &["notify", "reload", "shows"]).await?;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(left(&admin.get(NOTIFICATIONS).await?.ok()?, "shows"), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_exits_with_1_when_a_handler_failed() -> anyhow::Result<()> {
    let (instance, _) = with_pod("fails").await?;
    let ran = belay(instance, &["notify", "bad", "pod/fails"]).await?;
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(
        said.contains("HandlerFailed") && said.contains("no space left"),
        "{said}"
    );
    let ran = belay(instance, &["notify", "slow", "pod/fails"]).await?;
    assert_eq!(ran.code, Some(1));
    assert!(format!("{}{}", ran.stdout, ran.stderr).contains("HandlerTimeout"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_exits_with_3_when_nothing_declares_it() -> anyhow::Result<()> {
    let (instance, admin) = with_pod("silent").await?;
    let ran = belay(instance, &["notify", "nothing", "pod/silent"]).await?;
    assert_eq!(ran.code, Some(3), "{}{}", ran.stdout, ran.stderr);
    assert!(format!("{}{}", ran.stdout, ran.stderr).contains("nothing"));
    assert_eq!(left(&admin.get(NOTIFICATIONS).await?.ok()?, "silent"), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn notify_says_what_is_wrong_with_the_way_it_was_called() -> anyhow::Result<()> {
    let (instance, _) = with_pod("usage").await?;
    for arguments in [
        &["notify"][..],
        &["notify", "good"],
        &["notify", "good", "deployment/usage"],
        &["notify", "good", "pod/usage", "--timeout", "soon"],
        &["notify", "good", "pod/usage", "-l", "app=x"],
        &["nonsense"],
    ] {
        let ran = belay(instance, arguments).await?;
        assert_eq!(
            ran.code,
            Some(2),
            "{arguments:?}: {}{}",
            ran.stdout,
            ran.stderr
        );
        assert!(!ran.stderr.trim().is_empty(), "{arguments:?}");
        assert!(
            !ran.stderr.contains("panicked"),
            "{arguments:?}: {}",
            ran.stderr
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_tells_what_would_run_and_runs_nothing() -> anyhow::Result<()> {
    let (instance, admin) = with_pod("tried").await?;
    let ran = belay(instance, &["notify", "good", "pod/tried", "--dry-run"]).await?;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("echo"), "{}", ran.stdout);
    assert_eq!(left(&admin.get(NOTIFICATIONS).await?.ok()?, "tried"), 0);
    let ran = belay(instance, &["notify", "nothing", "pod/tried", "--dry-run"]).await?;
    assert_eq!(ran.code, Some(3), "{}{}", ran.stdout, ran.stderr);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_notifications_are_listed_and_described_with_a_timeline() -> anyhow::Result<()> {
    let (instance, admin) = with_pod("kept").await?;
    let ran = belay(
        instance,
        &["notify", "good", "pod/kept", "--keep", "-o", "json"],
    )
    .await?;
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let printed: Value = serde_json::from_str(&ran.stdout)?;
    let one = if printed["items"].is_array() {
        &printed["items"][0]
    } else {
        &printed
    };
    assert_eq!(one["status"]["state"], "Succeeded", "{printed:#}");
    assert_eq!(left(&admin.get(NOTIFICATIONS).await?.ok()?, "kept"), 1);
    let name = one["metadata"]["name"].as_str().unwrap_or_default();
    let listed = belay(instance, &["get", "pn"]).await?;
    assert!(listed.stdout.contains(name) && listed.stdout.contains("Succeeded"));
    let described = belay(instance, &["describe", &format!("pn/{name}")]).await?;
    assert_eq!(described.code, Some(0), "{}", described.stderr);
    assert!(
        described.stdout.contains("Timeline"),
        "{}",
        described.stdout
    );
    let described = belay(instance, &["describe", "pod/kept"]).await?;
    assert!(
        described.stdout.contains("Timeline"),
        "{}",
        described.stdout
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_server_the_next_step_is_named() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let missing = instance.file("no-such-kubeconfig");
    let ran = belay(instance, &["get", "pods", "--kubeconfig", &missing]).await?;
    assert_ne!(ran.code, Some(0));
    assert!(ran.stderr.contains(&missing), "{}", ran.stderr);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn definitions_for_a_stock_cluster_are_printed() -> anyhow::Result<()> {
    let ran = belay(Instance::shared().await?, &["crds"]).await?;
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains("kind: CustomResourceDefinition"));
    assert!(ran.stdout.contains("podnotifications.apps.k8s.io"));
    assert!(ran.stdout.contains("api-approved.kubernetes.io"));
    Ok(())
}
