//! The daily work with a stock kubectl, on pods and notifications: looking at them, waiting for
//! them, reading their logs, stopping them.

use anyhow::Context;
use belay_testkit::{Kubectl, PODS, eventually, exec, notification, pod, processes, until_file};

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_shown_as_tables() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl
        .ready_pod(&pod("shown").label("show", "me").idle("main").build())
        .await?;
    let table = kubectl.ok(&["get", "pods", "-l", "show=me"]).await?;
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    );
    assert_eq!(
        lines[1].split_whitespace().take(4).collect::<Vec<_>>(),
        ["shown", "1/1", "Running", "0"]
    );
    let wide = kubectl
        .ok(&["get", "pods", "-l", "show=me", "-o", "wide"])
        .await?;
    assert!(wide.contains("NODE") && wide.contains("n1"), "{wide}");
    let all = kubectl
        .ok(&["get", "pods", "-A", "--show-labels", "-l", "show=me"])
        .await?;
    assert!(
        all.contains("NAMESPACE") && all.contains("show=me"),
        "{all}"
    );
    let named = kubectl
        .ok(&["get", "pods", "-l", "show=me", "-o", "name"])
        .await?;
    assert_eq!(named, "pod/shown\n");
    let none = kubectl.run(&["get", "pods", "-l", "show=nothing"]).await?;
    assert!(
        none.stderr.contains("No resources found"),
        "{}",
        none.stderr
    );
    let nodes = kubectl.ok(&["get", "nodes"]).await?;
    let node = nodes.lines().nth(1).unwrap_or_default();
    assert!(node.starts_with("n1 ") && node.contains("Ready"), "{nodes}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn notifications_are_shown_with_their_own_columns() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let manifest = pod("columns")
        .idle("main")
        .notifier("lock", exec(["true"]).timeout(30))
        .build();
    kubectl.ready_pod(&manifest).await?;
    let object = notification("columns", "columns", "lock").build();
    kubectl.create(&object).await?;
    kubectl
        .ok(&[
            "wait",
            "pn/columns",
            "--for=jsonpath={.status.state}=Succeeded",
            "--timeout=120s",
        ])
        .await?;
    let table = kubectl.ok(&["get", "pn", "columns"]).await?;
    assert!(
        table.contains("Succeeded") && table.contains("lock"),
        "{table}"
    );
    let described = kubectl.ok(&["describe", "pn", "columns"]).await?;
    assert!(
        described.contains("Succeeded") && described.contains("columns"),
        "{described}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn describe_shows_a_pod_with_its_events() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl
        .ready_pod(&pod("described").idle("main").build())
        .await?;
    let text = eventually("the events of the pod", async || {
        let text = kubectl.ok(&["describe", "pod", "described"]).await?;
        Ok(text.contains("Started").then_some(text))
    })
    .await?;
    for part in [
        "Name:",
        "described",
        "Node:",
        "n1",
        "Status:",
        "Running",
        "Events:",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let node = kubectl.ok(&["describe", "node", "n1"]).await?;
    assert!(
        node.contains("Ready") && node.contains("described"),
        "{node}"
    );
    let events = kubectl.ok(&["events", "--for", "pod/described"]).await?;
    assert!(events.contains("Started"), "{events}");
    let events = kubectl.ok(&["get", "events"]).await?;
    assert!(events.contains("described"), "{events}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_deleted_with_its_grace_period() -> anyhow::Result<()> {
    let Some((instance, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let file = instance.file("grace");
    let script = format!(
        "trap 'echo stopping >> {file}; exit 0' TERM; echo ready >> {file}; \
         while :; do sleep 3600 & wait; done"
    );
    let manifest = pod("graceful")
        .container("main", ["sh", "-c", &script])
        .grace(60)
        .build();
    kubectl.ready_pod(&manifest).await?;
    until_file(&file, |text| text.contains("ready")).await?;
    kubectl.ok(&["delete", "pod", "graceful"]).await?;
    let text = std::fs::read_to_string(&file)?;
    assert_eq!(text.lines().collect::<Vec<_>>(), ["ready", "stopping"]);
    assert!(
        kubectl
            .fails(&["get", "pod", "graceful"])
            .await?
            .contains("NotFound")
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_does_not_listen_is_killed_at_the_end_of_its_grace() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let mark = processes::unique_seconds();
    let script = format!("trap '' TERM; while :; do sleep {mark}; done");
    let manifest = pod("stubborn")
        .container("main", ["sh", "-c", &script])
        .grace(3600)
        .build();
    kubectl.ready_pod(&manifest).await?;
    kubectl
        .ok(&["delete", "pod", "stubborn", "--grace-period=1"])
        .await?;
    assert!(processes::with_command(&mark).is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn delete_now_and_delete_force_do_not_wait() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let mark = processes::unique_seconds();
    let script = format!("trap '' TERM; while :; do sleep {mark}; done");
    for (name, flags) in [
        ("now", &["--now"][..]),
        ("forced", &["--force", "--grace-period=0"]),
    ] {
        let manifest = pod(name)
            .container("main", ["sh", "-c", &script])
            .grace(3600)
            .build();
        kubectl.ready_pod(&manifest).await?;
        let mut arguments = vec!["delete", "pod", name];
        arguments.extend(flags);
        kubectl.ok(&arguments).await?;
        assert!(
            kubectl
                .fails(&["get", "pod", name])
                .await?
                .contains("NotFound")
        );
    }
    eventually("the end of both containers", async || {
        Ok(processes::with_command(&mark).is_empty().then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grace_period_can_be_shortened_while_the_pod_stops() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let mark = processes::unique_seconds();
    let script = format!("trap '' TERM; while :; do sleep {mark}; done");
    let manifest = pod("impatient")
        .container("main", ["sh", "-c", &script])
        .grace(3600)
        .build();
    kubectl.ready_pod(&manifest).await?;
    kubectl
        .ok(&["delete", "pod", "impatient", "--wait=false"])
        .await?;
    let stopping = kubectl.json(&["get", "pod", "impatient"]).await?;
    assert!(stopping["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(stopping["metadata"]["deletionGracePeriodSeconds"], 3600);
    let table = kubectl.ok(&["get", "pod", "impatient"]).await?;
    assert!(table.contains("Terminating"), "{table}");
    kubectl
        .ok(&["delete", "pod", "impatient", "--grace-period=1"])
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_understands_conditions_jsonpaths_and_deletion() -> anyhow::Result<()> {
    let Some((_, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let manifest = pod("awaited").idle("main").build();
    kubectl.create(&manifest).await?;
    kubectl
        .ok(&[
            "wait",
            "pod/awaited",
            "--for=condition=Ready",
            "--timeout=120s",
        ])
        .await?;
    let path = "--for=jsonpath={.status.phase}=Running";
    kubectl
        .ok(&["wait", "pod/awaited", path, "--timeout=120s"])
        .await?;
    kubectl
        .ok(&["delete", "pod", "awaited", "--wait=false"])
        .await?;
    kubectl
        .ok(&["wait", "pod/awaited", "--for=delete", "--timeout=120s"])
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_are_read_followed_and_cut() -> anyhow::Result<()> {
    let Some((instance, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let gate = instance.file("log-gate");
    let script = format!(
        "echo one; echo two >&2; echo three; while [ ! -e {gate} ]; do sleep 0.05; done; echo four"
    );
    let manifest = pod("talks")
        .container("main", ["sh", "-c", &script])
        .restart_policy("Never")
        .build();
    kubectl.ready_pod(&manifest).await?;
    eventually("three lines", async || {
        let text = kubectl.ok(&["logs", "talks"]).await?;
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        Ok((lines == ["one", "three", "two"]).then_some(()))
    })
    .await?;
    assert_eq!(
        kubectl
            .ok(&["logs", "talks", "--tail=1"])
            .await?
            .lines()
            .count(),
        1
    );
    let stamped = kubectl.ok(&["logs", "talks", "--timestamps"]).await?;
    assert!(
        stamped
            .lines()
            .all(|line| line.contains('T') && line.contains('Z')),
        "{stamped}"
    );
    assert_eq!(
        kubectl
            .ok(&["logs", "talks", "--limit-bytes=2"])
            .await?
            .len(),
        2
    );

    let following = kubectl.start(&["logs", "-f", "talks"])?;
    std::fs::write(&gate, "")?;
    let patience = std::time::Duration::from_secs(90);
    let ended = tokio::time::timeout(patience, following.wait_with_output())
        .await
        .context("the followed log did not end with its container")??;
    assert!(String::from_utf8_lossy(&ended.stdout).ends_with("four\n"));

    let wrong = kubectl.fails(&["logs", "talks", "-c", "nobody"]).await?;
    assert!(wrong.contains("nobody"), "{wrong}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_the_previous_container_are_kept() -> anyhow::Result<()> {
    let Some((instance, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let mark = instance.file("second-life");
    let script = format!(
        "if [ -e {mark} ]; then echo second; while :; do sleep 3600 & wait; done; \
         else touch {mark}; echo first; exit 3; fi"
    );
    let manifest = pod("reborn")
        .container("main", ["sh", "-c", &script])
        .build();
    kubectl.create(&manifest).await?;
    let restarted = "--for=jsonpath={.status.containerStatuses[0].restartCount}=1";
    kubectl
        .ok(&["wait", "pod/reborn", restarted, "--timeout=120s"])
        .await?;
    assert_eq!(
        kubectl.ok(&["logs", "reborn", "--previous"]).await?,
        "first\n"
    );
    eventually("the second life's words", async || {
        Ok((kubectl.ok(&["logs", "reborn"]).await? == "second\n").then_some(()))
    })
    .await?;
    let status = kubectl.json(&["get", "pod", "reborn"]).await?;
    let last = &status["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 3);
    assert_eq!(last["reason"], "Error");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_cannot_start_says_why() -> anyhow::Result<()> {
    let Some((instance, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let manifest = pod("cannot")
        .container("main", ["/nonexistent/program"])
        .build();
    kubectl.create(&manifest).await?;
    let admin = instance.admin().await?;
    let message = admin
        .until(&format!("{PODS}/cannot"), "a reason", |pod| {
            let state = &pod["status"]["containerStatuses"][0]["state"];
            ["waiting", "terminated"]
                .iter()
                .find_map(|kind| state[*kind]["message"].as_str())
                .map(str::to_owned)
        })
        .await?;
    assert!(
        message.contains("/nonexistent/program") || message.contains("back-off"),
        "{message}"
    );
    Ok(())
}
