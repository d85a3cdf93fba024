//! The promises of the container notifier proposal (KEP-1977) about probes, phase 3: its two example
//! workflows with real processes, and what a crash does to them. Each test quotes the sentence it is
//! about.

use belay_testkit::{
    Handler, Instance, NOTIFICATIONS, Rest, eventually, exec, lines, notification, pod, processes,
    signal, until_file,
};
use serde_json::{Value, json};

/// Long enough that no busy machine lets it end before its time.
const LONG: u32 = 600;

async fn admin() -> anyhow::Result<(&'static Instance, Rest)> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    Ok((instance, admin))
}

fn main_status(notification: &Value) -> &Value {
    &notification["status"]["containers"][0]
}

/// Tries `script` every second.
fn probed(handler: Handler, script: &str) -> Handler {
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
fn counted(tries: &str, script: &str) -> String {
    format!("echo tried >> {tries}; {script}")
}

/// Runs a pod whose first process is `script`, which says in `ready` that it is there, with one
/// notifier `change`.
async fn run(
    admin: &Rest,
    name: &str,
    script: &str,
    ready: &str,
    change: Handler,
) -> anyhow::Result<()> {
    let manifest = pod(name)
        .container("main", ["sh", "-c", script])
        .notifier("change", change)
        .restart_policy("Never")
        .build();
    admin.run(&manifest).await?;
    until_file(ready, |text| !text.is_empty()).await.map(drop)
}

async fn notify(admin: &Rest, name: &str) -> anyhow::Result<Value> {
    let object = notification(name, name, "change").deadline(LONG).build();
    admin.notify(&object).await
}

/// "If the probe detects that the container is stopped, Kubelet sets the Succeed field in
/// `ContainerNotificationStatus` to True."
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_stops_on_sighup_has_taken_it() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let (ready, tries) = (instance.file("stops"), instance.file("stops-tries"));
    // It takes its time, so that it still runs when it is first probed.
    let script = format!(
        "trap 'while [ ! -e {tries} ]; do sleep 0.05; done; exit 0' HUP; echo up > {ready}; \
         while :; do sleep 0.05; done"
    );
    let still_running = counted(&tries, "exit 1");
    let change = probed(signal("SIGHUP").timeout(LONG), &still_running);
    run(&admin, "stops", &script, &ready, change).await?;
    let done = notify(&admin, "stops").await?;
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
    let (instance, admin) = admin().await?;
    let (ready, tries) = (instance.file("stays"), instance.file("stays-tries"));
    let script =
        format!("trap 'echo hup >> {ready}' HUP; echo up > {ready}; while :; do sleep 0.05; done");
    // Long enough for a second try on a busy machine.
    let change = probed(signal("SIGHUP").timeout(8), &counted(&tries, "exit 1"));
    run(&admin, "stays", &script, &ready, change).await?;
    let done = notify(&admin, "stays").await?;
    let main = main_status(&done);
    assert_eq!(main["succeeded"], false, "{done:#}");
    assert_eq!(main["error"]["type"], "HandlerTimeout", "{done:#}");
    let message = main["error"]["message"].as_str().unwrap_or_default();
    assert_eq!(
        message,
        "the probe did not succeed within 8 s; last: the command exited with code 1"
    );
    let tried = lines(&tries);
    assert!(tried >= 2, "tried {tried} times");
    assert_eq!(lines(&ready), 2, "the signal came once");
    // It has stopped: another notification goes through, and nobody has tried the first one's probe.
    admin.run(&pod("meanwhile").idle("main").build()).await?;
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
    let (instance, admin) = admin().await?;
    let (level, tries) = (instance.file("level"), instance.file("level-tries"));
    // "If the probe detects that the log level is not changed yet, Kubelet will retry": it changes
    // only after the first try.
    let change = format!("while [ ! -e {tries} ]; do sleep 0.05; done; level=verbose");
    let check = format!("grep -qx verbose {level}");
    let handler = probed(signal("SIGUSR1").timeout(LONG), &counted(&tries, &check));
    run(&admin, "level", &logger(&level, &change), &level, handler).await?;
    assert_eq!(std::fs::read_to_string(&level)?, "info\n");
    let done = notify(&admin, "level").await?;
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
    let (instance, admin) = admin().await?;
    let (level, tries) = (instance.file("deaf"), instance.file("deaf-tries"));
    let check = format!("grep -qx verbose {level}");
    let handler = probed(signal("SIGUSR1").timeout(8), &counted(&tries, &check));
    run(&admin, "deaf", &logger(&level, ":"), &level, handler).await?;
    let done = notify(&admin, "deaf").await?;
    let main = main_status(&done);
    assert_eq!(main["succeeded"], false, "{done:#}");
    assert_eq!(main["error"]["type"], "HandlerTimeout", "{done:#}");
    assert!(lines(&tries) >= 2);
    Ok(())
}

/// "Kubelet will not retry if the ContainerNotifier call fails": a probe does not make up for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_fails_is_not_probed() -> anyhow::Result<()> {
    let (instance, admin) = admin().await?;
    let tries = instance.file("failed-tries");
    let handler = probed(
        exec(["sh", "-c", "exit 4"]).timeout(LONG),
        &counted(&tries, "exit 0"),
    );
    let manifest = pod("failed").idle("main").notifier("change", handler);
    admin.run(&manifest.build()).await?;
    let done = notify(&admin, "failed").await?;
    assert_eq!(main_status(&done)["error"]["type"], "HandlerFailed");
    assert_eq!(main_status(&done)["exitCode"], 4);
    assert_eq!(lines(&tries), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_probing_the_command_has_run_once_and_the_probe_decides() -> anyhow::Result<()>
{
    for level in ["verbose", "info"] {
        let mut instance = Instance::up().start().await?;
        let admin = instance.admin().await?;
        let file = |name: &str| instance.file(name);
        let (runs, tries, state) = (file("runs"), file("tries"), file("state"));
        let run = format!("echo ran >> {runs}; echo out");
        let probe = counted(&tries, &format!("grep -qx verbose {state}"));
        // In one case it must outlast everything, in the other it must end.
        let timeout = if level == "verbose" { LONG } else { 15 };
        let handler = probed(exec(["sh", "-c", &run]).timeout(timeout), &probe);
        let manifest = pod("p").idle("main").notifier("change", handler);
        admin.run(&manifest.build()).await?;
        let object = notification("n", "p", "change").deadline(LONG).build();
        admin.post(NOTIFICATIONS, &object).await?.ok()?;
        until_file(&tries, |text| !text.is_empty()).await?;
        instance.kill9().await?;
        std::fs::write(&state, format!("{level}\n"))?;
        instance.start_again().await?;
        let done = instance.admin().await?.finished("n").await?;
        let main = main_status(&done);
        assert_eq!(main["succeeded"], level == "verbose", "{done:#}");
        if level == "info" {
            assert_eq!(main["error"]["type"], "HandlerTimeout", "{done:#}");
        }
        assert_eq!(main["output"], "out\n");
        assert_eq!(main["attempts"], 1);
        assert_eq!(lines(&runs), 1, "the handler ran exactly once");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_a_try_nothing_of_it_is_left_in_the_end() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let (tries, gate) = (instance.file("tries"), instance.file("gate"));
    // A try that hangs until the gate is open, and leaves something behind.
    let probe = format!(
        "echo tried >> {tries}; [ -e {gate} ] && exit 0; setsid sleep 81000.1 & sleep 81000.2"
    );
    let probe = json!({
        "exec": { "command": ["sh", "-c", probe] },
        "periodSeconds": 1,
        "timeoutSeconds": LONG,
    });
    let handler = exec(["true"]).timeout(LONG).with("probe", probe);
    let manifest = pod("p").idle("main").notifier("change", handler);
    admin.run(&manifest.build()).await?;
    let object = notification("n", "p", "change").deadline(LONG).build();
    admin.post(NOTIFICATIONS, &object).await?.ok()?;
    eventually("a try that hangs", async || {
        let sleeping = processes::with_command("81000.")
            .into_iter()
            .filter(|process| process.command.starts_with("sleep "));
        Ok((sleeping.count() == 2).then_some(()))
    })
    .await?;
    instance.kill9().await?;
    std::fs::write(&gate, "")?;
    instance.start_again().await?;
    let done = instance.admin().await?.finished("n").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(processes::with_command("81000."), []);
    assert_eq!(lines(&tries), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_probing_a_signal_is_sent_again_and_then_probed() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let file = |name: &str| instance.file(name);
    let (ready, tries, gate) = (file("ready"), file("tries"), file("gate"));
    let script =
        format!("trap 'echo hup >> {ready}' HUP; echo up > {ready}; while :; do sleep 0.05; done");
    let probe = counted(&tries, &format!("[ -e {gate} ]"));
    let handler = probed(signal("SIGHUP").timeout(LONG), &probe);
    run(&admin, "p", &script, &ready, handler).await?;
    let object = notification("n", "p", "change").deadline(LONG).build();
    admin.post(NOTIFICATIONS, &object).await?.ok()?;
    until_file(&tries, |text| !text.is_empty()).await?;
    until_file(&ready, |text| text.contains("hup")).await?;
    instance.kill9().await?;
    std::fs::write(&gate, "")?;
    instance.start_again().await?;
    let done = instance.admin().await?.finished("n").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(main_status(&done)["attempts"], 2, "{done:#}");
    until_file(&ready, |text| text.lines().count() == 3).await?;
    Ok(())
}
