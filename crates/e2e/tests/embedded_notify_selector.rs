//! `belay notify -l`: what a platform engineer sees, and what is left behind.

use std::process::{Output, Stdio};

use anyhow::Context as _;
use belay_testkit::{
    FANOUTS, Instance, NOTIFICATIONS, PODS, Rest, eventually, exec, lines, pod, processes,
    until_file,
};
use serde_json::Value;

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs pods `{group}-0` and so on whose `work` is this script, with `$N` their number.
async fn run_pods(admin: &Rest, group: &str, pods: usize, script: &str) -> anyhow::Result<()> {
    let names: Vec<String> = (0..pods)
        .map(|number| format!("{group}-{number}"))
        .collect();
    for (number, name) in names.iter().enumerate() {
        let script = format!("N={number}; {script}");
        let manifest = pod(name)
            .label("group", group)
            .idle("main")
            .notifier("work", exec(["sh", "-c", &script]).timeout(120));
        admin.post(PODS, &manifest.build()).await?.ok()?;
    }
    for name in &names {
        admin.running(name).await?;
    }
    Ok(())
}

async fn of_group(admin: &Rest, path: &str, group: &str) -> anyhow::Result<Vec<Value>> {
    let list = admin.get(path).await?.ok()?;
    let own = |object: &&Value| {
        let pod = object["spec"]["podName"].as_str().unwrap_or_default();
        object["spec"]["selector"]["matchLabels"]["group"] == group
            || pod.starts_with(&format!("{group}-"))
    };
    let items = list["items"].as_array().context("a list")?;
    Ok(items.iter().filter(own).cloned().collect())
}

/// Waits until nothing of the group's notifications is left.
async fn nothing_is_left(admin: &Rest, group: &str) -> anyhow::Result<()> {
    eventually("everything to be deleted", async || {
        let left = of_group(admin, FANOUTS, group).await?.len()
            + of_group(admin, NOTIFICATIONS, group).await?.len();
        Ok((left == 0).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn identical_outputs_are_grouped_with_their_pods_and_nothing_is_left_behind()
-> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    run_pods(
        &admin,
        "grouped",
        4,
        "if [ $N = 2 ]; then echo no space; exit 3; fi; echo reloaded",
    )
    .await?;
    let silent = pod("grouped-silent").label("group", "grouped").idle("main");
    admin.run(&silent.build()).await?;
    let ended = instance
        .belay(&[
            "notify",
            "work",
            "-l",
            "group=grouped",
            "--parallelism",
            "2",
        ])
        .await?;
    let said = stdout(&ended);
    assert_eq!(ended.status.code(), Some(1), "{said}{}", stderr(&ended));
    let wanted = [
        "1     main       failed        3            HandlerFailed",
        "    | no space\n    grouped-2\n",
        "1     -          not declared",
        "3     main       succeeded     0",
        "    | reloaded\n    grouped-0, grouped-1, grouped-3\n",
        "MATCHED  SUCCEEDED  FAILED  NO RESULT  NOT DECLARED  NOT NOTIFIED\n5        3          1       0          1             0",
    ];
    for text in wanted {
        assert!(said.contains(text), "{text:?} in {said}");
    }
    let told = stderr(&ended);
    assert!(
        told.contains("grouped-2: HandlerFailed: container \"main\""),
        "{told}"
    );
    assert!(told.contains("in grouped-silent"), "{told}");
    nothing_is_left(&admin, "grouped").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_are_there_as_json_and_stay_when_they_are_to_be_kept() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    run_pods(&admin, "kept", 2, "echo hello").await?;
    let ended = instance
        .belay(&["notify", "work", "-l", "group=kept", "--keep", "-o", "json"])
        .await?;
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    let list: Value = serde_json::from_str(&stdout(&ended))?;
    let items = list["items"].as_array().context("a list")?;
    assert_eq!(items[0]["kind"], "Notification");
    assert_eq!(items[0]["status"]["succeededCount"], 2);
    assert_eq!(items.len(), 3);
    assert!(
        items[1..]
            .iter()
            .all(|child| child["status"]["containers"][0]["output"] == "hello\n"),
        "{list:#}"
    );
    let name = items[0]["metadata"]["name"].as_str().context("a name")?;
    let got = stdout(&instance.belay(&["get", "ntf", name]).await?);
    assert!(
        got.contains("PreExistingPods") && got.contains("Succeeded"),
        "{got}"
    );
    let described = stdout(
        &instance
            .belay(&["describe", &format!("ntf/{name}")])
            .await?,
    );
    for text in [
        "Selector:",
        "group=kept",
        "kept-0: Succeeded",
        "2 selected, 2 succeeded",
    ] {
        assert!(described.contains(text), "{text:?} in {described}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rehearsal_says_what_would_run_where_and_creates_nothing() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    run_pods(&admin, "rehearsed", 2, "echo hello").await?;
    let silent = pod("rehearsed-silent")
        .label("group", "rehearsed")
        .idle("main");
    admin.run(&silent.build()).await?;
    let pending = pod("rehearsed-pending")
        .label("group", "rehearsed")
        .idle("main")
        .node("no-such-node");
    admin.post(PODS, &pending.build()).await?.ok()?;
    let ended = instance
        .belay(&["notify", "work", "-l", "group=rehearsed", "--dry-run"])
        .await?;
    let (said, told) = (stdout(&ended), stderr(&ended));
    assert_eq!(ended.status.code(), Some(0), "{said}{told}");
    for (pod, declares) in [
        ("rehearsed-0", "yes"),
        ("rehearsed-1", "yes"),
        ("rehearsed-silent", "no"),
    ] {
        let row = said.lines().find(|line| line.starts_with(pod));
        assert!(
            row.is_some_and(|row| row.contains(declares)),
            "{pod}: {said}"
        );
    }
    assert!(
        told.contains("pod rehearsed-pending is Pending; it would not be notified"),
        "{told}"
    );
    assert!(of_group(&admin, FANOUTS, "rehearsed").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_matched_and_nobody_declares_it_exit_with_3() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let silent = pod("lonely-0").label("group", "lonely").idle("main");
    admin.run(&silent.build()).await?;
    for (selector, words) in [
        ("group=no-such", "no running pod matches"),
        (
            "group=lonely",
            "no container declares the notifier \"work\"",
        ),
    ] {
        for dry in [false, true] {
            let mut arguments = vec!["notify", "work", "-l", selector];
            if dry {
                arguments.push("--dry-run");
            }
            let ended = instance.belay(&arguments).await?;
            let told = stderr(&ended);
            assert_eq!(ended.status.code(), Some(3), "{selector} {dry}: {told}");
            assert!(told.contains(words), "{selector} {dry}: {told}");
        }
    }
    nothing_is_left(&admin, "lonely").await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_waited_for_goes_on_by_itself() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let file = instance.file("unwaited");
    run_pods(&admin, "unwaited", 1, &format!("echo $N >> {file}")).await?;
    let ended = instance
        .belay(&[
            "notify",
            "work",
            "-l",
            "group=unwaited",
            "--policy",
            "AllPods",
            "--no-wait",
        ])
        .await?;
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    assert!(stdout(&ended).starts_with("notification.apps.k8s.io/notify-work-"));
    until_file(&file, |text| text.lines().count() == 1).await?;
    let one = of_group(&admin, FANOUTS, "unwaited").await?.remove(0);
    assert_eq!(one["spec"]["policy"], "AllPods");
    let name = one["metadata"]["name"].as_str().context("a name")?;
    admin.delete(&format!("{FANOUTS}/{name}")).await?.ok()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_cancels_what_runs_and_says_what_had_run() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let file = instance.file("stopped");
    // The first ends; the second would run for minutes.
    let script = format!("echo $N >> {file}; [ $N = 0 ] || sleep 300; echo $N >> {file}.ended");
    run_pods(&admin, "stopped", 3, &script).await?;
    let child = tokio::process::Command::new(belay_testkit::binary::belay()?)
        .args([
            "notify",
            "work",
            "-l",
            "group=stopped",
            "--parallelism",
            "1",
        ])
        .env("KUBECONFIG", instance.kubeconfig())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    until_file(&file, |text| text.lines().count() == 2).await?;
    // What it tells is what it has seen so far.
    let seen = "1 succeeded, 1 running, 1 not notified of 3 pods";
    let (ended, told) = processes::interrupt_after(child, seen).await?;
    assert_eq!(ended.code(), Some(1), "{told}");
    for text in [
        "interrupted: 1 succeeded, 1 running, 1 not notified of 3 pods; cancelling",
        "is deleted and nothing of it runs any more",
    ] {
        assert!(told.contains(text), "{text:?} in {told}");
    }
    nothing_is_left(&admin, "stopped").await?;
    assert_eq!(lines(&format!("{file}.ended")), 1, "the other was killed");
    assert_eq!(lines(&file), 2, "the third was not notified");
    Ok(())
}
