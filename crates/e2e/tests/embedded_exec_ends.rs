//! How an exec ends when it does not want to: by its timeout or by being cancelled, with
//! everything it started, in bounded memory, whatever it does with its output.

use belay_testkit::{
    Instance, NOTIFICATIONS, Rest, eventually, exec, lines, notification, pod, processes,
};
use serde_json::Value;

/// Waited for, and long enough for a script to begin on a busy machine.
const SHORT: u32 = 10;

async fn admin() -> anyhow::Result<(&'static Instance, Rest)> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    Ok((instance, admin))
}

/// Runs `script` as the notifier of a fresh pod and returns its container's status.
async fn run(name: &str, script: &str, timeout: u32) -> anyhow::Result<Value> {
    let (_, admin) = admin().await?;
    let manifest = pod(name)
        .idle("main")
        .notifier("work", exec(["sh", "-c", script]).timeout(timeout))
        .build();
    admin.run(&manifest).await?;
    let done = admin
        .notify(&notification(name, name, "work").deadline(600).build())
        .await?;
    Ok(done["status"]["containers"][0].clone())
}

/// Every process of the action has this somewhere in its command line.
fn alive(marker: &str) -> Vec<String> {
    processes::with_command(marker)
        .into_iter()
        .map(|process| process.command)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn grandchildren_in_sessions_of_their_own_are_dead_when_the_timeout_is_reported()
-> anyhow::Result<()> {
    let mark = processes::unique_seconds();
    let script = format!("setsid sh -c 'setsid sleep {mark} & sleep {mark}' & sleep {mark}");
    let ended = run("setsid", &script, SHORT).await?;
    assert_eq!(ended["error"]["type"], "HandlerTimeout", "{ended}");
    assert_eq!(alive(&mark), Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn daemons_that_drop_their_environment_and_parent_are_dead_too() -> anyhow::Result<()> {
    let mark = processes::unique_seconds();
    let script = format!(
        "(setsid env -i /bin/sh -c '(sleep {mark} &) ; sleep {mark}' \
         </dev/null >/dev/null 2>&1 &) ; sleep {mark}"
    );
    let ended = run("daemon", &script, SHORT).await?;
    assert_eq!(ended["error"]["type"], "HandlerTimeout", "{ended}");
    assert_eq!(alive(&mark), Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_ignores_every_signal_it_can_is_dead_too() -> anyhow::Result<()> {
    let mark = processes::unique_seconds();
    let script =
        format!("trap '' TERM HUP INT QUIT USR1 USR2 ALRM; while :; do sleep {mark}; done");
    let ended = run("deaf", &script, SHORT).await?;
    assert_eq!(ended["error"]["type"], "HandlerTimeout", "{ended}");
    assert_eq!(alive(&mark), Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_keeps_making_new_sessions_is_dead_too() -> anyhow::Result<()> {
    let (instance, _) = admin().await?;
    let (file, made) = (instance.file("respawn.sh"), instance.file("respawned"));
    let again = format!("echo made >> {made}; sleep 0.02; setsid sh {file} &\n");
    std::fs::write(&file, again)?;
    let mark = processes::unique_seconds();
    let ended = run("respawn", &format!("sh {file} & sleep {mark}"), SHORT).await?;
    assert_eq!(ended["error"]["type"], "HandlerTimeout", "{ended}");
    // The next one is a process of another number; that none is made shows that all are dead.
    let before = lines(&made);
    assert!(before >= 2, "it made {before}");
    assert_eq!(alive(&file), Vec::<String>::new());
    let other = run("respawn-other", "exit 0", 60).await?;
    assert_eq!(other["succeeded"], true, "{other}");
    assert_eq!(lines(&made), before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_is_over_with_its_first_process_though_another_holds_the_output_open()
-> anyhow::Result<()> {
    // The bound of the wait is far below the handler's timeout: it cannot have waited for it.
    let mark = processes::unique_seconds();
    let script = format!("echo said; sleep {mark} & exit 0");
    let ended = run("held", &script, 3600).await?;
    assert_eq!(ended["succeeded"], true, "{ended}");
    assert!(
        ended["output"]
            .as_str()
            .is_some_and(|text| text.contains("said")),
        "{ended}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_is_reported_though_the_output_is_held_open() -> anyhow::Result<()> {
    let mark = processes::unique_seconds();
    let script = format!("echo said; setsid sleep {mark} & sleep {mark}");
    let ended = run("held-late", &script, SHORT).await?;
    assert_eq!(ended["error"]["type"], "HandlerTimeout", "{ended}");
    assert!(
        ended["output"]
            .as_str()
            .is_some_and(|text| text.contains("said")),
        "{ended}"
    );
    assert_eq!(alive(&mark), Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_mebibytes_of_output_cost_no_memory_and_the_tail_is_kept() -> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let script = "head -c 104857600 /dev/zero | tr '\\0' x; echo; echo the end";
    let manifest = pod("loud")
        .idle("main")
        .notifier("work", exec(["sh", "-c", script]).timeout(300))
        .build();
    admin.run(&manifest).await?;
    let before = processes::anonymous_kib(instance.pid()?).unwrap_or_default();
    let object = notification("loud", "loud", "work").deadline(600).build();
    admin.post(NOTIFICATIONS, &object).await?.ok()?;
    let mut highest_shim = 0;
    let done = eventually("its end", async || {
        for shim in processes::with_program_under(instance.dir()) {
            highest_shim = highest_shim.max(processes::private_kib(shim.pid).unwrap_or_default());
        }
        let now = admin.get(&format!("{NOTIFICATIONS}/loud")).await?.ok()?;
        Ok((now["status"]["state"] != "New").then_some(now))
    })
    .await?;
    let main = &done["status"]["containers"][0];
    assert_eq!(main["succeeded"], true, "{done:#}");
    let output = main["output"].as_str().unwrap_or_default();
    assert!(
        output.ends_with("the end\n") && output.len() <= 4096,
        "{} bytes",
        output.len()
    );
    let after = processes::anonymous_kib(instance.pid()?).unwrap_or_default();
    assert!(
        after < before + 32 * 1024,
        "{before} KiB before, {after} KiB after"
    );
    assert!(
        highest_shim < 4 * 1024,
        "a shim had {highest_shim} KiB of its own"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_output_does_not_keep_the_timeout_away() -> anyhow::Result<()> {
    let mark = processes::unique_seconds();
    let ended = run("endless", &format!("yes {mark}"), SHORT).await?;
    assert_eq!(ended["error"]["type"], "HandlerTimeout", "{ended}");
    assert_eq!(alive(&mark), Vec::<String>::new());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_is_no_text_is_kept_as_far_as_it_is() -> anyhow::Result<()> {
    let ended = run("bytes", "printf 'a\\377\\376b\\000c'", 60).await?;
    assert_eq!(ended["succeeded"], true, "{ended}");
    let output = ended["output"].as_str().unwrap_or_default();
    assert!(
        output.starts_with('a') && output.ends_with('c'),
        "{output:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_not_stored_when_the_notifier_says_so() -> anyhow::Result<()> {
    let (_, admin) = admin().await?;
    let handler = exec(["echo", "secret"]).timeout(60).with("output", "None");
    admin
        .run(&pod("quiet").idle("main").notifier("work", handler).build())
        .await?;
    let done = admin
        .notify(&notification("quiet", "quiet", "work").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert!(!done.to_string().contains("secret"), "{done:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_killed_by_a_signal_says_which() -> anyhow::Result<()> {
    let ended = run("segv", "kill -SEGV $$", 60).await?;
    assert_eq!(ended["error"]["type"], "HandlerFailed", "{ended}");
    let signal = &ended["signal"];
    assert!(signal == 11 || signal == "SIGSEGV", "{ended}");
    Ok(())
}
