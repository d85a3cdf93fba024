//! The promises of the container notifier proposal (KEP-1977) about probes, phase 3: its two example
//! workflows with real processes. Each test quotes the sentence it is about, and runs on the stage
//! that the file including this one gives.

use belay_testkit::{Handler, Stage, exec, lines, notification, pod, signal, until_file};
use serde_json::{Value, json};

/// Long enough that no busy machine lets it end before its time.
pub(crate) const LONG: u32 = 600;
/// Waited for, and long enough for a second try on a busy machine.
const OVER: u32 = 30;

pub(crate) fn main_status(notification: &Value) -> &Value {
    &notification["status"]["containers"][0]
}

/// Tries `script` every second.
pub(crate) fn probed(handler: Handler, script: &str) -> Handler {
    handler.with(
        "probe",
        json!({
            "exec": { "command": ["sh", "-c", script] },
            "periodSeconds": 1,
            "timeoutSeconds": 30,
        }),
    )
}

/// Tries that leave a line each, then ask `script`.
pub(crate) fn counted(tries: &str, script: &str) -> String {
    format!("echo tried >> {tries}; {script}")
}

/// Runs a pod whose first process is `script`, which says in `ready` that it is there, with one
/// notifier `change`.
async fn run(
    stage: &Stage,
    name: &str,
    script: &str,
    ready: &str,
    change: Handler,
) -> anyhow::Result<()> {
    let manifest = pod(name)
        .container("main", ["sh", "-c", script])
        .notifier("change", change)
        .restart_policy("Never");
    stage.run(manifest).await?;
    until_file(ready, |text| !text.is_empty()).await.map(drop)
}

async fn notify(stage: &Stage, name: &str) -> anyhow::Result<Value> {
    let object = notification(name, name, "change").deadline(LONG).build();
    stage.admin().notify(&object).await
}

/// "If the probe detects that the container is stopped, Kubelet sets the Succeed field in
/// `ContainerNotificationStatus` to True."
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_stops_on_sighup_has_taken_it() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let (ready, tries) = (stage.file("stops"), stage.file("stops-tries"));
    // It takes its time, so that it still runs when it is first probed.
    let script = format!(
        "trap 'while [ ! -e {tries} ]; do sleep 0.05; done; exit 0' HUP; echo up > {ready}; \
         while :; do sleep 0.05; done"
    );
    let still_running = counted(&tries, "exit 1");
    let change = probed(signal("SIGHUP").timeout(LONG), &still_running);
    run(&stage, "stops", &script, &ready, change).await?;
    let done = notify(&stage, "stops").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(main_status(&done)["signal"], "SIGHUP");
    assert!(lines(&tries) >= 1, "it was probed while it ran");
    Ok(())
}

/// "If the container is still running, Kubelet will retry probes periodically until it times out.
/// When that happens, it stops retrying and sets the `ContainerNotificationStatus` Succeed field to
/// False."
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_goes_on_running_after_sighup_has_failed_in_the_end() -> anyhow::Result<()>
{
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let (ready, tries) = (stage.file("stays"), stage.file("stays-tries"));
    let script =
        format!("trap 'echo hup >> {ready}' HUP; echo up > {ready}; while :; do sleep 0.05; done");
    let change = probed(signal("SIGHUP").timeout(OVER), &counted(&tries, "exit 1"));
    run(&stage, "stays", &script, &ready, change).await?;
    let done = notify(&stage, "stays").await?;
    let main = main_status(&done);
    assert_eq!(main["succeeded"], false, "{done:#}");
    assert_eq!(main["error"]["type"], "HandlerTimeout", "{done:#}");
    let message = main["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(
        message,
        format!("the probe did not succeed within {OVER} s; last: the command exited with code 1")
    );
    let tried = lines(&tries);
    assert!(tried >= 2, "tried {tried} times");
    assert_eq!(lines(&ready), 2, "the signal came once");
    // It has stopped: more than a period later nobody has tried again.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(lines(&tries), tried);
    Ok(())
}

/// A process that writes its log level to a file, and changes it on SIGUSR1 if it is told how.
fn logger(level: &str, on_signal: &str) -> String {
    format!(
        "level=info; trap '{on_signal}' USR1; while :; do \
         echo $level > {level}.new; mv {level}.new {level}; sleep 0.05; done"
    )
}

/// "If the probe detects that the log level inside the container is indeed verbose, Kubelet sets the
/// Succeed field in ContainerNotificationStatus to True."
#[tokio::test(flavor = "multi_thread")]
async fn a_log_level_that_has_changed_is_success() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let (level, tries) = (stage.file("level"), stage.file("level-tries"));
    // "If the probe detects that the log level is not changed yet, Kubelet will retry": it changes
    // only after the first try.
    let change = format!("while [ ! -e {tries} ]; do sleep 0.05; done; level=verbose");
    let check = format!("grep -qx verbose {level}");
    let handler = probed(signal("SIGUSR1").timeout(LONG), &counted(&tries, &check));
    run(&stage, "level", &logger(&level, &change), &level, handler).await?;
    assert_eq!(std::fs::read_to_string(&level)?, "info\n");
    let done = notify(&stage, "level").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(std::fs::read_to_string(&level)?, "verbose\n");
    assert!(lines(&tries) >= 2, "the first try came too early");
    Ok(())
}

/// "If the probe detects that the log level is not changed yet, Kubelet will retry probes
/// periodically until it times out. When that happens, it stops retrying and sets the
/// ContainerNotificationStatus Succeed field to False."
#[tokio::test(flavor = "multi_thread")]
async fn a_log_level_that_never_changes_is_failure() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let (level, tries) = (stage.file("deaf"), stage.file("deaf-tries"));
    let check = format!("grep -qx verbose {level}");
    let handler = probed(signal("SIGUSR1").timeout(OVER), &counted(&tries, &check));
    run(&stage, "deaf", &logger(&level, ":"), &level, handler).await?;
    let done = notify(&stage, "deaf").await?;
    let main = main_status(&done);
    assert_eq!(main["succeeded"], false, "{done:#}");
    assert_eq!(main["error"]["type"], "HandlerTimeout", "{done:#}");
    let tried = lines(&tries);
    assert!(tried >= 2, "tried {tried} times");
    // It has stopped: more than a period later nobody has tried again.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(lines(&tries), tried);
    Ok(())
}

/// "Kubelet will not retry if the ContainerNotifier call fails": a probe does not make up for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_is_not_probed() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let tries = stage.file("failed-tries");
    let handler = probed(
        exec(["sh", "-c", "exit 4"]).timeout(LONG),
        &counted(&tries, "exit 0"),
    );
    let manifest = pod("failed").idle("main").notifier("change", handler);
    stage.run(manifest).await?;
    let done = notify(&stage, "failed").await?;
    assert_eq!(main_status(&done)["error"]["type"], "HandlerFailed");
    assert_eq!(main_status(&done)["exitCode"], 4);
    assert_eq!(lines(&tries), 0);
    Ok(())
}

/// "Add a `Probe` to verify the results": a probe is one of the core's, so it waits as long as it says
/// before the first try, and has to succeed as often in a row as it says.
#[tokio::test(flavor = "multi_thread")]
async fn a_probe_waits_its_initial_delay_and_has_to_succeed_several_times_in_a_row()
-> anyhow::Result<()> {
    const DELAY: u32 = 3;
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let (began, tries) = (stage.file("patient"), stage.file("patient-tries"));
    // The second try fails: the first one counts no more.
    let check = format!("cut -d ' ' -f 1 /proc/uptime >> {tries}; [ $(wc -l < {tries}) -ne 2 ]");
    let handler = exec([
        "sh",
        "-c",
        &format!("cut -d ' ' -f 1 /proc/uptime >> {began}"),
    ]);
    let handler = handler.timeout(LONG).with(
        "probe",
        json!({
            "exec": { "command": ["sh", "-c", check] },
            "initialDelaySeconds": DELAY,
            "periodSeconds": 1,
            "timeoutSeconds": 30,
            "successThreshold": 3,
        }),
    );
    let manifest = pod("patient").idle("main").notifier("change", handler);
    stage.run(manifest).await?;
    let done = notify(&stage, "patient").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!((lines(&began), lines(&tries)), (1, 5));
    let first = |file: &str| -> anyhow::Result<f64> {
        let text = std::fs::read_to_string(file)?;
        Ok(text.lines().next().unwrap_or_default().parse()?)
    };
    // Both are told in hundredths of a second.
    let waited = first(&tries)? - first(&began)? + 0.01;
    assert!(waited >= f64::from(DELAY), "it waited {waited} s");
    Ok(())
}
