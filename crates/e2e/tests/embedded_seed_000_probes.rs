//! What the container notifier proposal promises about probes, on the embedded server, and what a
//! crash in the middle of one comes to.

use belay_testkit::{
    Instance, NOTIFICATIONS, Stage, eventually, exec, lines, notification, pod, processes, signal,
    until_file,
};
use seed_000_probes::{LONG, counted, main_status, probed};
use serde_json::json;

#[path = "promises/seed_000_network_probes.rs"]
mod seed_000_network_probes;
#[path = "promises/seed_000_probes.rs"]
mod seed_000_probes;

async fn stage() -> anyhow::Result<Option<Stage>> {
    Stage::embedded().await
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
    let mark = processes::unique_seconds();
    let probe = format!(
        "echo tried >> {tries}; [ -e {gate} ] && exit 0; setsid sleep {mark} & sleep {mark}"
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
        let sleeping = processes::with_command(&mark)
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
    assert_eq!(processes::with_command(&mark), []);
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
    let manifest = pod("p")
        .container("main", ["sh", "-c", &script])
        .notifier("change", handler);
    admin.run(&manifest.build()).await?;
    until_file(&ready, |text| !text.is_empty()).await?;
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
