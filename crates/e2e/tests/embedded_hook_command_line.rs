//! `belay hook` against a running instance: what it prints, how it exits, what it leaves.

use std::process::{Output, Stdio};

use anyhow::Context as _;
use belay_testkit::{Instance, Rest, binary, eventually, lines, pod, processes, until_file};
use serde_json::{Value, json};

const HOOKS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/executionhooks";
const ACTIONS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/hookactions";

fn told(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

async fn action(admin: &Rest, name: &str, script: &str, seconds: i64) -> anyhow::Result<()> {
    let object = json!({
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "HookAction", "metadata": {"name": name},
        "action": {"exec": {"command": ["sh", "-c", script]}}, "actionTimeoutSeconds": seconds,
    });
    admin.post(ACTIONS, &object).await?.ok().map(drop)
}

async fn pods(app: &str) -> anyhow::Result<(&'static Instance, Rest)> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    for number in 0..2 {
        let name = format!("{app}-{number}");
        let manifest = pod(&name).label("app", app).idle("main").idle("side");
        admin.run(&manifest.build()).await?;
    }
    Ok((instance, admin))
}

async fn left(admin: &Rest, action: &str) -> anyhow::Result<usize> {
    let list = admin.get(HOOKS).await?.ok()?;
    let hooks = list["items"].as_array().map(Vec::as_slice);
    let of = |hook: &&Value| hook["spec"]["actionName"] == action;
    Ok(hooks.unwrap_or_default().iter().filter(of).count())
}

#[tokio::test(flavor = "multi_thread")]
async fn run_waits_shows_every_container_and_cleans_up() -> anyhow::Result<()> {
    let (instance, admin) = pods("shows").await?;
    action(&admin, "shows", "echo all is well", 300).await?;
    let ran = instance
        .belay(&["hook", "run", "shows", "-l", "app=shows"])
        .await?;
    assert_eq!(ran.status.code(), Some(0), "{}", told(&ran));
    let out = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(out.matches("succeeded").count(), 5, "{out}");
    assert_eq!(out.matches("all is well").count(), 4, "{out}");
    assert!(out.ends_with("4 succeeded of 4 containers\n"), "{out}");
    let one = [
        "hook",
        "run",
        "shows",
        "pod/shows-0/side",
        "shows-1",
        "-o",
        "json",
    ];
    let ran = instance.belay(&one).await?;
    assert_eq!(ran.status.code(), Some(0), "{}", told(&ran));
    let hook: Value = serde_json::from_slice(&ran.stdout)?;
    assert_eq!(hook["kind"], "ExecutionHook");
    assert_eq!(hook["status"]["actionSucceed"], true);
    assert_eq!(hook["status"]["targetCount"], 3, "{hook:#}");
    let ran = instance
        .belay(&["hook", "run", "shows", "-l", "app=shows", "-c", "main"])
        .await?;
    assert!(told(&ran).contains("2 succeeded of 2 containers"));
    assert_eq!(left(&admin, "shows").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_exits_with_1_and_says_why_and_a_kept_hook_can_be_looked_at() -> anyhow::Result<()>
{
    let (instance, admin) = pods("fails").await?;
    action(&admin, "fails", "echo disk full; exit 3", 7).await?;
    let arguments = [
        "hook",
        "run",
        "fails",
        "pod/fails-0/main",
        "pod/gone",
        "--keep",
    ];
    let ran = instance.belay(&arguments).await?;
    let said = told(&ran);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for word in [
        "ExecutionFailwithError",
        "disk full",
        "PodNotFound",
        "0 succeeded, 2 failed",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let list = admin.get(HOOKS).await?.ok()?;
    let hooks = list["items"].as_array().cloned().unwrap_or_default();
    let kept = hooks
        .iter()
        .find(|hook| hook["spec"]["actionName"] == "fails");
    let name = kept.context("it is kept")?["metadata"]["name"].clone();
    let name = name.as_str().unwrap_or_default();
    let listed = told(&instance.belay(&["hook", "list"]).await?);
    let row = listed.lines().find(|line| line.starts_with(name));
    assert!(row.is_some_and(|row| row.contains("false")), "{listed}");
    let described = told(&instance.belay(&["hook", "describe", name]).await?);
    for word in [
        "Timeline:",
        "exit 3",
        "fails-0",
        "ExecutionFailwithError",
        "disk full",
    ] {
        assert!(described.contains(word), "{word}: {described}");
    }
    let described = told(&instance.belay(&["describe", "pod/fails-0"]).await?);
    assert!(
        described.contains(&format!("eh/{name}: Failed")),
        "{described}"
    );
    let described = told(&instance.belay(&["describe", "ha/fails"]).await?);
    assert!(described.contains("disk full"), "{described}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_matches_exits_with_3_and_a_missing_action_with_1() -> anyhow::Result<()> {
    let (instance, admin) = pods("matches").await?;
    action(&admin, "matches", "true", 300).await?;
    for arguments in [
        &["hook", "run", "matches", "-l", "app=nobody"][..],
        &["hook", "run", "matches", "-l", "app=matches", "-c", "other"],
    ] {
        let ran = instance.belay(arguments).await?;
        assert_eq!(ran.status.code(), Some(3), "{}", told(&ran));
        assert!(told(&ran).contains("NothingSelected"), "{}", told(&ran));
    }
    let ran = instance
        .belay(&["hook", "run", "no-such-action", "matches-0"])
        .await?;
    assert_eq!(ran.status.code(), Some(1), "{}", told(&ran));
    assert!(told(&ran).contains("ActionNotFound"), "{}", told(&ran));
    assert_eq!(left(&admin, "no-such-action").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_cancels_what_runs() -> anyhow::Result<()> {
    let (instance, admin) = pods("stopped").await?;
    let (begun, done) = (instance.file("begun"), instance.file("stopped-pid"));
    let script = format!("echo $$ > {done}; echo begun > {begun}; exec sleep 600");
    action(&admin, "stopped", &script, 600).await?;
    let child = tokio::process::Command::new(binary::belay()?)
        .args(["hook", "run", "stopped", "pod/stopped-0/main"])
        .env("KUBECONFIG", instance.kubeconfig())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    until_file(&begun, |text| !text.is_empty()).await?;
    processes::interrupt(child.id().context("it runs")?);
    let ran = child.wait_with_output().await?;
    assert_eq!(ran.status.code(), Some(1), "{}", told(&ran));
    assert!(told(&ran).contains("interrupted"), "{}", told(&ran));
    assert_eq!(left(&admin, "stopped").await?, 0);
    assert_eq!(lines(&done), 1, "it was not started again");
    let pid: u32 = std::fs::read_to_string(&done)?.trim().parse()?;
    eventually("what ran to be dead", async || {
        Ok((!processes::is_alive(pid)).then_some(()))
    })
    .await
}
