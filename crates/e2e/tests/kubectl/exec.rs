//! `kubectl exec` with a stock kubectl: streams, exit codes, terminals, and that nothing is left of
//! a command whose user is gone. On the runtime that the file including this one gives.

use std::time::Duration;

use anyhow::Context;
use belay_testkit::processes::unique_seconds;
use belay_testkit::{Instance, Kubectl, Stage, eventually, pod, processes, until_file};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{on_runtime, shared};

/// Far more than anything here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The shared instance with a pod that does nothing.
pub(crate) async fn place(
    name: &str,
) -> anyhow::Result<Option<(&'static Instance, Stage, Kubectl)>> {
    let Some((instance, stage, kubectl)) = shared().await? else {
        return Ok(None);
    };
    let manifest = stage.manifest(pod(name).idle("main"));
    kubectl.ready_pod(&manifest).await?;
    Ok(Some((instance, stage, kubectl)))
}

/// How many processes sleep for that long.
fn sleeping(seconds: &str) -> usize {
    let found = processes::with_command(seconds).into_iter();
    found
        .filter(|process| process.command.starts_with("sleep "))
        .count()
}

async fn until_sleeping(seconds: &str, count: usize) -> anyhow::Result<()> {
    let what = format!("{count} processes that sleep for {seconds}");
    eventually(&what, async || {
        Ok((sleeping(seconds) == count).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_apart_and_the_exit_code_comes_through() -> anyhow::Result<()> {
    let Some((instance, _, kubectl)) = place("plain").await? else {
        return Ok(());
    };
    let script = "echo out; echo err >&2; exit 42";
    let ended = kubectl
        .run(&["exec", "plain", "--", "sh", "-c", script])
        .await?;
    assert_eq!(ended.code, Some(42), "{}", ended.stderr);
    assert_eq!(ended.stdout, "out\n");
    assert_eq!(ended.stderr, "err\ncommand terminated with exit code 42\n");
    // A word with everything that a URL or a shell could break.
    let word = "a b&c=d%20+\"'$HOME\u{e9}";
    let echoed = kubectl
        .ok(&["exec", "plain", "--", "printf", "%s|", word, "", "end"])
        .await?;
    assert_eq!(echoed, format!("{word}||end|"));
    let killed = kubectl
        .run(&["exec", "plain", "--", "sh", "-c", "kill -KILL $$"])
        .await?;
    assert_eq!(killed.code, Some(137), "{}", killed.stderr);
    let quiet = kubectl.run(&["exec", "plain", "--", "true"]).await?;
    assert_eq!((quiet.code, quiet.stdout.as_str()), (Some(0), ""));

    // The line comes a moment after the answer.
    until_file(&instance.file("data/audit.log"), |log| {
        log.lines().any(|line| {
            line.contains("\"verb\":\"create\"")
                && line.contains("\"subresource\":\"exec\"")
                && line.contains("\"code\":101")
                && line.contains("main: sh -c echo out; echo err >&2; exit 42")
        })
    })
    .await
    .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_megabytes_go_through_both_ways_unchanged() -> anyhow::Result<()> {
    let Some((_, _, kubectl)) = place("megabytes").await? else {
        return Ok(());
    };
    let input: Vec<u8> = (0..10_000_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut child = kubectl.start_with_input(&["exec", "-i", "megabytes", "--", "cat"])?;
    let (mut stdin, mut stdout) = (
        child.stdin.take().context("no input")?,
        child.stdout.take().context("no output")?,
    );
    let write = async {
        stdin.write_all(&input).await?;
        drop(stdin);
        anyhow::Ok(())
    };
    let mut output = Vec::new();
    let both =
        async { tokio::try_join!(write, async { Ok(stdout.read_to_end(&mut output).await?) }) };
    tokio::time::timeout(PATIENCE, both).await??;
    assert!(child.wait().await?.success());
    assert!(output == input, "{} bytes came back", output.len());
    // A command that reads nothing ends all the same.
    let ended = kubectl
        .with_text(
            &["exec", "-i", "megabytes", "--", "echo", "done"],
            &"x".repeat(1_000_000),
        )
        .await?;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "done\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_one_with_a_size_that_follows() -> anyhow::Result<()> {
    let Some((_, _, kubectl)) = place("terminal").await? else {
        return Ok(());
    };
    let exec = ["exec", "-it", "terminal", "--", "sh"];
    let mut terminal = kubectl.on_terminal(&exec, 111, 33)?;
    // The size comes a moment after the command; quotes keep the echo from being taken for it.
    terminal
        .type_in(
            "until [ \"$(stty size)\" = '33 1''11' ]; do sleep 0.1; done; \
             tty && stty size && echo $TERM\r",
        )
        .await?;
    terminal.until("33 111").await?;
    terminal.until("xterm").await?;
    assert!(terminal.shown.contains("/dev/pts/"), "{}", terminal.shown);
    terminal.resize(77, 22)?;
    terminal
        .type_in("until [ \"$(stty size)\" = '22 77' ]; do sleep 0.1; done; echo fol''lowed\r")
        .await?;
    terminal.until("followed").await?;
    // Ctrl-C ends what runs in the foreground, and the shell goes on.
    let seconds = unique_seconds();
    terminal.type_in(&format!("sleep {seconds}\r")).await?;
    until_sleeping(&seconds, 1).await?;
    terminal.type_in("\u{3}").await?;
    until_sleeping(&seconds, 0).await?;
    terminal.type_in("echo still he''re; exit 5\r").await?;
    terminal.until("still here").await?;
    assert_eq!(
        terminal.ended().await?.code(),
        Some(5),
        "{}",
        terminal.shown
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_command_whose_user_is_gone() -> anyhow::Result<()> {
    let Some((_, _, kubectl)) = place("left").await? else {
        return Ok(());
    };
    let seconds = unique_seconds();
    let script = format!(
        "trap '' HUP TERM INT; setsid sleep {seconds} & (setsid sleep {seconds} &); echo re''ady; \
         sleep {seconds}"
    );
    let mut plain = kubectl.start(&["exec", "left", "--", "sh", "-c", &script])?;
    until_sleeping(&seconds, 3).await?;
    plain.kill().await?;
    until_sleeping(&seconds, 0).await?;
    let mut asked = kubectl.start(&["exec", "left", "--", "sh", "-c", &script])?;
    until_sleeping(&seconds, 3).await?;
    processes::interrupt(asked.id().context("it ended")?);
    until_sleeping(&seconds, 0).await?;
    asked.wait().await?;

    let exec = ["exec", "-it", "left", "--", "sh", "-c", &script];
    let mut terminal = kubectl.on_terminal(&exec, 80, 24)?;
    terminal.until("ready").await?;
    until_sleeping(&seconds, 3).await?;
    terminal.hang_up().await?;
    until_sleeping(&seconds, 0).await?;

    // One whose user is gone in the middle of a sentence that it does not listen to.
    let mut deaf = kubectl.start_with_input(&["exec", "-i", "left", "--", "sh", "-c", &script])?;
    let mut stdin = deaf.stdin.take().context("no input")?;
    let talk = tokio::spawn(async move {
        let words = vec![b'x'; 1 << 20];
        while stdin.write_all(&words).await.is_ok() {}
    });
    until_sleeping(&seconds, 3).await?;
    deaf.kill().await?;
    talk.await?;
    until_sleeping(&seconds, 0).await?;

    // What a command leaves when it ends by itself is the container's, and ends with it.
    let script = format!("setsid sleep {seconds} > /dev/null 2>&1 &");
    kubectl
        .ok(&["exec", "left", "--", "sh", "-c", &script])
        .await?;
    until_sleeping(&seconds, 1).await?;
    kubectl
        .ok(&["delete", "pod", "left", "--grace-period=1"])
        .await?;
    until_sleeping(&seconds, 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_ends_with_its_container() -> anyhow::Result<()> {
    let Some((_, _, kubectl)) = place("mortal").await? else {
        return Ok(());
    };
    let seconds = unique_seconds();
    let child = kubectl.start(&["exec", "mortal", "--", "sleep", &seconds])?;
    until_sleeping(&seconds, 1).await?;
    kubectl
        .ok(&["delete", "pod", "mortal", "--grace-period=1"])
        .await?;
    let ended = tokio::time::timeout(PATIENCE, child.wait_with_output()).await??;
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(137), "{told}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_at_once_do_not_mix() -> anyhow::Result<()> {
    let Some((_, _, kubectl)) = place("many").await? else {
        return Ok(());
    };
    let mut all = tokio::task::JoinSet::new();
    for number in 0..20 {
        let kubectl = kubectl.clone();
        all.spawn(async move {
            let input = format!("{number}\n").repeat(10_000);
            let script = format!("cat; exit {}", number + 1);
            let exec = ["exec", "-i", "many", "--", "sh", "-c", &script];
            let ended = kubectl.with_text(&exec, &input).await?;
            anyhow::ensure!(ended.code == Some(number + 1), "{number}: {}", ended.stderr);
            anyhow::ensure!(ended.stdout == input, "{number}: other words came back");
            Ok(())
        });
    }
    while let Some(ended) = all.join_next().await {
        ended??;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_run_is_refused_as_on_a_stock_server() -> anyhow::Result<()> {
    let Some((instance, stage, kubectl)) = shared().await? else {
        return Ok(());
    };
    // Who looks for the command says that it is not there.
    let not_there = if instance.is_on_containerd() {
        "exec: \"no-such-command\": executable file not found in $PATH"
    } else {
        "error executing command in container: command \"no-such-command\" was not found"
    };
    let refuses = pod("refuses").idle("main").idle("side").spec(
        "initContainers",
        json!([{"name": "prep", "image": "none", "command": ["true"]}]),
    );
    kubectl.ready_pod(&stage.manifest(refuses)).await?;
    for (arguments, words) in [
        (
            &["exec", "nobody", "--", "true"][..],
            "pods \"nobody\" not found",
        ),
        (
            &["exec", "refuses", "-c", "nobody", "--", "true"],
            "container nobody is not valid for pod refuses",
        ),
        (
            &["exec", "refuses", "-c", "prep", "--", "true"],
            "unable to upgrade connection: container not found (\"prep\")",
        ),
        (
            &["exec", "refuses", "-c", "side", "--", "no-such-command"],
            not_there,
        ),
        (
            &["attach", "refuses", "-c", "main"],
            "pods/attach is not served here: read its output with kubectl logs -f",
        ),
        (
            &["port-forward", "refuses", "18080:80"],
            "pods/portforward is not served here: connect to the pod's address",
        ),
    ] {
        let told = kubectl.fails(arguments).await?;
        assert!(told.contains(words), "{arguments:?}: {told}");
    }
    // kubectl itself takes the first container when none is named.
    let chosen = kubectl.run(&["exec", "refuses", "--", "true"]).await?;
    assert!(chosen.success && chosen.stderr.contains("Defaulted container \"main\""));
    // A kubectl from before WebSockets is told what to do.
    let old = [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")];
    let exec = ["exec", "refuses", "-c", "main", "--", "true"];
    let told = kubectl.run_with_env(&exec, &old).await?;
    assert!(
        !told.success
            && told
                .stderr
                .contains("only WebSockets: use kubectl 1.31 or later"),
        "{}",
        told.stderr
    );

    let over = pod("over")
        .container("main", ["true"])
        .restart_policy("Never");
    kubectl.create(&stage.manifest(over)).await?;
    let done = "--for=jsonpath={.status.phase}=Succeeded";
    kubectl
        .ok(&["wait", "pod/over", done, "--timeout=120s"])
        .await?;
    let told = kubectl.fails(&["exec", "over", "--", "true"]).await?;
    assert!(told.contains("completed pod"), "{told}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_copied_in_and_out() -> anyhow::Result<()> {
    let Some((_, stage, kubectl)) = place("copies").await? else {
        return Ok(());
    };
    let (here, there, back) = (
        stage.file("cp-here"),
        stage.file("cp-there"),
        stage.file("cp-back"),
    );
    let text = "some words\n".repeat(100_000);
    std::fs::write(&here, &text)?;
    let place = format!("copies:{there}");
    kubectl.ok(&["cp", &here, &place]).await?;
    assert!(std::fs::read_to_string(&there)? == text);
    kubectl.ok(&["cp", &place, &back]).await?;
    assert!(std::fs::read_to_string(&back)? == text);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_on_other_nodes_end_with_their_agent_and_their_server() -> anyhow::Result<()> {
    let mut instance = on_runtime(Instance::server()).await?.start().await?;
    let Some(kubectl) = Kubectl::of(&instance) else {
        return Ok(());
    };
    instance.start_agent("far", &[]).await?;
    let stage = Stage::on(&instance).await?;
    let away = pod("away").node("far").idle("main");
    kubectl.ready_pod(&stage.manifest(away)).await?;
    assert_eq!(
        kubectl.ok(&["exec", "away", "--", "echo", "far"]).await?,
        "far\n"
    );
    let seconds = unique_seconds();
    let script = format!("setsid sleep {seconds} & sleep {seconds}");
    let exec = ["exec", "away", "--", "sh", "-c", &script];
    let mut session = kubectl.start(&exec)?;
    until_sleeping(&seconds, 2).await?;
    instance.kill9().await?;
    until_sleeping(&seconds, 0).await?;
    assert!(!session.wait().await?.success());
    instance.start_again().await?;

    let mut session = kubectl.start(&exec)?;
    until_sleeping(&seconds, 2).await?;
    instance.kill9_agent("far").await?;
    // containerd's shim does not miss the agent: there the next one ends what is left.
    if !instance.is_on_containerd() {
        until_sleeping(&seconds, 0).await?;
    }
    assert!(!session.wait().await?.success());
    for command in [&["exec", "away", "--", "true"][..], &["logs", "away"]] {
        let told = kubectl.fails(command).await?;
        assert!(
            told.contains("the agent of node far") && told.contains("is the agent running?"),
            "{told}"
        );
    }
    // The container has outlived its agent, and the next one serves it.
    instance.start_agent("far", &[]).await?;
    eventually("the agent is back", async || {
        let ended = kubectl.run(&["exec", "away", "--", "echo", "back"]).await?;
        Ok((ended.stdout == "back\n").then_some(()))
    })
    .await?;
    until_sleeping(&seconds, 0).await
}
