//! `kubectl logs` with a stock kubectl: every option, and what is said where there is no log. On the
//! runtime that the file including this one gives.

use std::time::Duration;

use anyhow::Context;
use belay_testkit::{PODS, eventually, pod};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use crate::shared;

/// Far more than anything here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn every_option_cuts_what_it_says() -> anyhow::Result<()> {
    let Some((_, stage, kubectl)) = shared().await? else {
        return Ok(());
    };
    let gate = stage.file("options-gate");
    let script = format!(
        "echo old one; echo old two; while [ ! -e {gate} ]; do sleep 0.05; done; \
         printf 'new one\\n\\nnew two\\n'; while :; do sleep 3600 & wait; done"
    );
    let options = pod("options")
        .container("main", ["sh", "-c", &script])
        .container(
            "side",
            [
                "sh",
                "-c",
                "echo aside; while :; do sleep 3600 & wait; done",
            ],
        )
        .spec(
            "initContainers",
            json!([{"name": "prep", "image": "none", "command": ["echo", "prepared"]}]),
        );
    kubectl.ready_pod(&stage.manifest(options)).await?;
    let logs = async |options: &[&str]| {
        let arguments = [&["logs", "options", "-c", "main"], options].concat();
        kubectl.ok(&arguments).await
    };
    eventually("the old words", async || {
        Ok((logs(&[]).await? == "old one\nold two\n").then_some(()))
    })
    .await?;
    // Times are whole seconds in kubectl's words, so the new ones come in a later second.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let between = format!("--since-time={}", jiff::Timestamp::now());
    std::fs::write(&gate, "")?;
    let all = "old one\nold two\nnew one\n\nnew two\n";
    eventually("the new words", async || {
        Ok((logs(&[]).await? == all).then_some(()))
    })
    .await?;
    for (options, expected) in [
        (&["--tail=-1"][..], all),
        (&["--tail=0"], ""),
        (&["--tail=2"], "\nnew two\n"),
        (&["--tail=100"], all),
        (&["--limit-bytes=9"], "old one\no"),
        (&[&between], "new one\n\nnew two\n"),
        (&[&between, "--tail=4"], "new one\n\nnew two\n"),
        (&[&between, "--tail=1"], "new two\n"),
        (&["--since=1h"], all),
        (&["--since-time=2090-01-01T00:00:00Z"], ""),
        (
            &["--since-time=2020-01-01T02:00:00+02:00", "--tail=1"],
            "new two\n",
        ),
    ] {
        assert_eq!(logs(options).await?, expected, "{options:?}");
    }
    let stamped = logs(&["--timestamps", "--tail=1"]).await?;
    let (time, words) = stamped.split_once(' ').context("no time")?;
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{stamped}");
    assert_eq!(words, "new two\n");

    assert_eq!(
        kubectl.ok(&["logs", "options", "-c", "prep"]).await?,
        "prepared\n"
    );
    let everybody = ["logs", "options", "--all-containers", "--prefix"];
    let text = kubectl.ok(&everybody).await?;
    for line in [
        "[pod/options/prep] prepared",
        "[pod/options/side] aside",
        "[pod/options/main] new two",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let chosen = kubectl.run(&["logs", "options", "--tail=1"]).await?;
    assert!(chosen.success && chosen.stderr.contains("Defaulted container \"main\""));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_no_log_it_is_said_why() -> anyhow::Result<()> {
    let Some((_, stage, kubectl)) = shared().await? else {
        return Ok(());
    };
    let gate = stage.file("no-log-gate");
    let script = format!("while [ ! -e {gate} ]; do sleep 0.05; done");
    let waits = pod("waits").idle("main").spec(
        "initContainers",
        json!([{"name": "prep", "image": "none", "command": ["sh", "-c", script]}]),
    );
    kubectl.create(&stage.manifest(waits)).await?;
    let running = "--for=jsonpath={.status.initContainerStatuses[0].state.running}";
    kubectl
        .ok(&["wait", "pod/waits", running, "--timeout=120s"])
        .await?;
    for (arguments, words) in [
        (
            &["logs", "waits", "-c", "main"][..],
            "container \"main\" in pod \"waits\" is waiting to start: PodInitializing",
        ),
        (
            &["logs", "waits", "-c", "prep", "--previous"],
            "previous terminated container \"prep\" in pod \"waits\" not found",
        ),
        (&["logs", "nobody"], "pods \"nobody\" not found"),
        (
            &["logs", "waits", "-c", "nobody"],
            "container nobody is not valid for pod waits",
        ),
    ] {
        let told = kubectl.fails(arguments).await?;
        assert!(told.contains(words), "{arguments:?}: {told}");
    }
    std::fs::write(&gate, "")?;
    // What kubectl does not let through by itself.
    let admin = stage.admin();
    for (query, words) in [
        (
            "tailLines=-1",
            "tailLines: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            "limitBytes=0",
            "limitBytes: Invalid value: 0: must be greater than 0",
        ),
        (
            "sinceSeconds=0",
            "sinceSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "sinceSeconds=1&sinceTime=2030-01-01T00:00:00Z",
            "at most one of `sinceTime` or `sinceSeconds` may be specified",
        ),
    ] {
        let path = format!("{PODS}/waits/log?container=main&{query}");
        let told = admin.get(&path).await?.refused(422)?;
        let message = told["message"].as_str().unwrap_or_default();
        let begin = "PodLogOptions \"waits\" is invalid: ";
        assert!(
            message.starts_with(begin) && message.contains(words),
            "{message}"
        );
    }
    // A pod that is on no node has said nothing.
    let nowhere = pod("nowhere")
        .idle("main")
        .spec("nodeSelector", json!({"there": "is-none"}));
    kubectl.create(&stage.manifest(nowhere)).await?;
    assert_eq!(kubectl.ok(&["logs", "nowhere"]).await?, "");
    let told = kubectl.fails(&["exec", "nowhere", "--", "true"]).await?;
    assert!(
        told.contains("pod nowhere does not have a host assigned"),
        "{told}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_previous_log_of_a_container_in_its_back_off_is_its_last() -> anyhow::Result<()> {
    let Some((_, stage, kubectl)) = shared().await? else {
        return Ok(());
    };
    let crashes = pod("crashes").container("main", ["sh", "-c", "echo last words; exit 1"]);
    kubectl.create(&stage.manifest(crashes)).await?;
    let waiting =
        "--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=CrashLoopBackOff";
    kubectl
        .ok(&["wait", "pod/crashes", waiting, "--timeout=120s"])
        .await?;
    assert_eq!(kubectl.ok(&["logs", "crashes"]).await?, "last words\n");
    assert_eq!(
        kubectl.ok(&["logs", "crashes", "--previous"]).await?,
        "last words\n"
    );

    let over = pod("ended")
        .container("main", ["sh", "-c", "echo only words; exit 1"])
        .restart_policy("Never");
    kubectl.create(&stage.manifest(over)).await?;
    let failed = "--for=jsonpath={.status.phase}=Failed";
    kubectl
        .ok(&["wait", "pod/ended", failed, "--timeout=120s"])
        .await?;
    assert_eq!(kubectl.ok(&["logs", "ended"]).await?, "only words\n");
    let told = kubectl.fails(&["logs", "ended", "--previous"]).await?;
    let words = "previous terminated container \"main\" in pod \"ended\" not found";
    assert!(told.contains(words), "{told}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_log_ends_with_its_container_though_another_follows() -> anyhow::Result<()> {
    let Some((_, stage, kubectl)) = shared().await? else {
        return Ok(());
    };
    let gate = stage.file("follow-gate");
    let script = format!(
        "if [ -e {gate} ]; then echo another life; while :; do sleep 3600 & wait; done; fi; \
         echo before; while [ ! -e {gate} ]; do sleep 0.05; done; echo after; exit 1"
    );
    let followed = pod("followed").container("main", ["sh", "-c", &script]);
    kubectl.ready_pod(&stage.manifest(followed)).await?;
    let mut following = kubectl.start(&["logs", "-f", "followed", "--tail=1"])?;
    let mut lines = BufReader::new(following.stdout.take().context("no output")?);
    let mut line = String::new();
    tokio::time::timeout(PATIENCE, lines.read_line(&mut line)).await??;
    assert_eq!(line, "before\n");
    std::fs::write(&gate, "")?;
    let mut rest = String::new();
    tokio::time::timeout(PATIENCE, lines.read_to_string(&mut rest)).await??;
    assert_eq!(rest, "after\n");
    assert!(following.wait().await?.success());
    let restarted = "--for=jsonpath={.status.containerStatuses[0].restartCount}=1";
    kubectl
        .ok(&["wait", "pod/followed", restarted, "--timeout=120s"])
        .await?;
    assert_eq!(
        kubectl.ok(&["logs", "followed", "--previous"]).await?,
        "before\nafter\n"
    );
    Ok(())
}
