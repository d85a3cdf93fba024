//! `kill -9` at every durable step of a hook's way. A file with one line per run proves how often the
//! action ran.
//!
//! A debug build ends itself with SIGKILL at the point that `BELAY_CRASH_AT` names.

use std::os::unix::process::ExitStatusExt as _;

use belay_testkit::{
    HOOK_ACTIONS, HOOKS, Instance, POD_ACTIONS, eventually, hook, hook_action, hooked, lines, pod,
    processes, shell, until_file,
};
use serde_json::Value;

/// Long enough that no busy machine lets it end before its time.
const LONG: u32 = 600;

/// Runs a pod and a hook with this action in it on an instance that ends itself at `point`.
async fn crashed_at(point: &str, script: &str, seconds: u32) -> anyhow::Result<Instance> {
    let mut instance = Instance::up().env("BELAY_CRASH_AT", point).start().await?;
    let script = script.replace("DIR", &instance.file(""));
    begin(&instance, &script, seconds).await?;
    let status = instance.ended().await?;
    assert_eq!(status.signal(), Some(9), "{status}");
    Ok(instance)
}

async fn begin(instance: &Instance, script: &str, seconds: u32) -> anyhow::Result<()> {
    let admin = instance.admin().await?;
    admin.run(&pod("p").idle("main").build()).await?;
    let action = hook_action("a", &shell(script), seconds);
    admin.post(HOOK_ACTIONS, &action).await?.ok()?;
    // The server may be gone before it has answered; the object is there all the same.
    let asked = hook("h", "a").pod("p", &[]).spec("deadlineSeconds", LONG);
    let _ = admin.post(HOOKS, &asked.build()).await;
    Ok(())
}

async fn ended(instance: &Instance) -> anyhow::Result<Value> {
    instance.admin().await?.hook_ended("h").await
}

/// Leaves a line, and succeeds when it has failed once.
const SECOND: &str = "echo ran >> DIR/runs; test \"$(wc -l < DIR/runs)\" -ge 2";
/// Leaves a line, and succeeds.
const FIRST: &str = "echo ran >> DIR/runs";

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_anything_ran_it_runs_after_the_restart() -> anyhow::Result<()> {
    for point in ["agent.before-claim", "agent.after-claim"] {
        let mut instance = crashed_at(point, FIRST, LONG).await?;
        assert_eq!(lines(&instance.file("runs")), 0, "{point}");
        instance.start_again().await?;
        let done = ended(&instance).await?;
        assert_eq!(done["status"]["actionSucceed"], true, "{point}: {done:#}");
        assert_eq!(lines(&instance.file("runs")), 1, "{point}");
        assert_eq!(hooked(&done, "p", "main")["attempts"], 1, "{point}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_or_after_it_succeeded_it_is_not_run_again() -> anyhow::Result<()> {
    for point in [
        "agent.started",
        "agent.ended",
        "agent.result-journalled",
        "agent.after-result",
    ] {
        let mut instance = crashed_at(point, FIRST, LONG).await?;
        until_file(&instance.file("runs"), |text| !text.is_empty()).await?;
        instance.start_again().await?;
        let done = ended(&instance).await?;
        assert_eq!(done["status"]["actionSucceed"], true, "{point}: {done:#}");
        assert_eq!(lines(&instance.file("runs")), 1, "{point}: it ran once");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_a_failure_it_is_tried_again_after_the_restart() -> anyhow::Result<()> {
    for point in ["agent.started", "agent.ended"] {
        let mut instance = crashed_at(point, SECOND, LONG).await?;
        until_file(&instance.file("runs"), |text| !text.is_empty()).await?;
        instance.start_again().await?;
        let done = ended(&instance).await?;
        assert_eq!(done["status"]["actionSucceed"], true, "{point}: {done:#}");
        let main = hooked(&done, "p", "main");
        assert_eq!(main["attempts"], 2, "{point}: {done:#}");
        assert_eq!(lines(&instance.file("runs")), 2, "{point}");
    }
    Ok(())
}

/// The time counts from the first start: it goes on while nobody is there.
#[tokio::test(flavor = "multi_thread")]
async fn when_its_time_is_over_during_an_outage_it_is_not_tried_again() -> anyhow::Result<()> {
    const SECONDS: u64 = 8;
    let mut instance = Instance::up().start().await?;
    let runs = instance.file("runs");
    let script = format!("echo ran >> {runs}; exit 4");
    begin(&instance, &script, u32::try_from(SECONDS)?).await?;
    until_file(&runs, |text| !text.is_empty()).await?;
    // From before the first line on it cannot be longer than that.
    let began = std::time::Instant::now();
    instance.kill9().await?;
    let over = std::time::Duration::from_secs(SECONDS);
    tokio::time::sleep(over.saturating_sub(began.elapsed())).await;
    // The last attempt outlives the agent that made it, and has written its line by now.
    let before = lines(&runs);
    instance.start_again().await?;
    let done = ended(&instance).await?;
    assert_eq!(done["status"]["actionSucceed"], false, "{done:#}");
    let main = hooked(&done, "p", "main");
    assert_eq!(
        main["error"]["errorType"], "ExecutionFailwithError",
        "{done:#}"
    );
    assert_eq!(main["error"]["message"], "the command exited with code 4");
    assert_eq!(lines(&runs), before, "nothing was tried after its time");
    Ok(())
}

/// The server, and with it the controller, is killed while the agent goes on.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_of_it_while_the_controller_is_away_is_not_lost() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    instance.start_agent("n1", &[]).await?;
    let (runs, go, ok) = (
        instance.file("runs"),
        instance.file("go"),
        instance.file("ok"),
    );
    let script = format!("echo ran >> {runs}; test -e {go} && echo ok >> {ok}");
    begin(&instance, &script, LONG).await?;
    until_file(&runs, |text| !text.is_empty()).await?;
    instance.kill9().await?;
    let before = lines(&runs);
    until_file(&runs, |text| text.lines().count() > before).await?;
    std::fs::write(&go, "")?;
    until_file(&ok, |text| !text.is_empty()).await?;
    let before = lines(&runs);
    instance.start_again().await?;
    let done = ended(&instance).await?;
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    assert_eq!((lines(&runs), lines(&ok)), (before, 1), "it succeeded once");
    let actions = instance.admin().await?.get(POD_ACTIONS).await?.ok()?;
    assert_eq!(actions["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}

/// The action succeeds while the server, and with it the controller, is away. Before anybody can tell
/// of that, its PodAction is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_success_that_nobody_has_told_of_outlives_the_deletion_of_its_podaction()
-> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    instance.start_agent("n1", &[]).await?;
    let (runs, go, ok) = (
        instance.file("runs"),
        instance.file("go"),
        instance.file("ok"),
    );
    let script =
        format!("echo ran >> {runs}; while [ ! -e {go} ]; do sleep 0.05; done; echo ok >> {ok}");
    begin(&instance, &script, LONG).await?;
    until_file(&runs, |text| !text.is_empty()).await?;
    instance.kill9().await?;
    std::fs::write(&go, "")?;
    until_file(&ok, |text| !text.is_empty()).await?;
    instance.kill9_agent("n1").await?;
    instance.start_again().await?;
    let admin = instance.admin().await?;
    let parts = admin.pod_actions("h").await?;
    let name = parts[0]["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{POD_ACTIONS}/{name}");
    admin.delete(&path).await?.ok()?;
    let held = admin.get(&path).await?.ok()?;
    assert!(
        held["metadata"]["deletionTimestamp"].is_string(),
        "{held:#}"
    );
    instance.start_agent("n1", &[]).await?;
    let done = ended(&instance).await?;
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    eventually("it to go, now that it is counted", async || {
        Ok((admin.get(&path).await?.status == 404).then_some(()))
    })
    .await?;
    assert_eq!((lines(&runs), lines(&ok)), (1, 1), "it ran once");
    Ok(())
}

/// A hook that is deleted right after a restart: a controller that has not seen its work lets it go.
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_is_deleted_after_a_restart_goes_with_what_runs_of_it() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    instance.start_agent("n1", &[]).await?;
    let runs = instance.file("runs");
    let script = format!("echo ran >> {runs}; sleep 3600 & wait; true {runs}");
    begin(&instance, &script, LONG).await?;
    until_file(&runs, |text| !text.is_empty()).await?;
    instance.kill9().await?;
    instance.start_again().await?;
    let admin = instance.admin().await?;
    admin.delete(&format!("{HOOKS}/h")).await?.ok()?;
    eventually("its PodAction to go", async || {
        Ok(admin.pod_actions("h").await?.is_empty().then_some(()))
    })
    .await?;
    assert!(
        processes::with_command(&runs).is_empty(),
        "nothing of it is left"
    );
    assert_eq!(lines(&runs), 1);
    Ok(())
}
