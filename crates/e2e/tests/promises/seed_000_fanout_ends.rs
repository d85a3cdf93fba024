//! The promises of the container notifier proposal (KEP-1977) about how a `Notification` ends: when it
//! is complete, what cancels it, what is left of it. Each test quotes the sentence that it keeps, and
//! runs on the stage that the file including this one gives.

use anyhow::Context as _;
use belay_testkit::{
    FANOUTS, NOTIFICATIONS, eventually, exec, fanout, lines, notification, pod, processes, signal,
    until_file,
};
use serde_json::Value;

use crate::seed_000_fanout::{
    carry_out, children, counts, ended, member, run_all, sorted_lines, until_fanout, waiting,
};

/// "CompleteTime ... is set when all PodNotifications have been completed": not while one runs.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_complete_when_the_last_of_its_pods_is_and_not_before() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let (file, slow) = (stage.file("last"), stage.file("last-slow"));
    run_all(
        &stage,
        vec![
            member("last", "last-1", &file),
            member("last", "last-2", &file),
            waiting("last", "last-3", &slow),
        ],
    )
    .await?;
    let object = fanout("last", ("group", "last"), "work").build();
    admin.post(FANOUTS, &object).await?.ok()?;
    until_file(&slow, |text| !text.is_empty()).await?;
    let running = until_fanout(admin, "last", "the first two", |object| {
        (counts(object) == (2, 0)).then(|| object.clone())
    })
    .await?;
    assert_eq!(running["status"]["state"], "New", "{running:#}");
    assert_eq!(
        running["status"]["completeTime"],
        Value::Null,
        "{running:#}"
    );
    assert!(running["status"]["startTime"].is_string(), "{running:#}");
    std::fs::write(format!("{slow}.go"), "")?;
    let done = ended(admin, "last").await?;
    assert_eq!(counts(&done), (3, 0), "{done:#}");
    assert!(done["status"]["completeTime"].is_string(), "{done:#}");
    Ok(())
}

/// "Example Workflow to Change Log Verbosity": the signal of the notifier reaches the first process of
/// every pod, and the probe sees in every pod that its log level has changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_with_a_probe_makes_every_pod_verbose() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let names = ["loud-1", "loud-2", "loud-3"];
    let level = |name: &str| stage.file(&format!("{name}.level"));
    let pods = names.map(|name| {
        let level = level(name);
        let script = format!(
            "level=info; trap level=verbose USR1; while :; do echo $level > {level}.new; \
             mv {level}.new {level}; sleep 0.05; done"
        );
        let probe = serde_json::json!({
            "exec": {"command": ["grep", "-qx", "verbose", level]},
            "periodSeconds": 1, "timeoutSeconds": 30,
        });
        pod(name)
            .label("group", "loud")
            .container("main", ["sh", "-c", &script])
            .notifier(
                "verbose",
                signal("SIGUSR1").timeout(600).with("probe", probe),
            )
    });
    run_all(&stage, pods.into()).await?;
    for name in names {
        until_file(&level(name), |text| text == "info\n").await?;
    }
    let done = carry_out(admin, &fanout("loud", ("group", "loud"), "verbose").build()).await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(counts(&done), (3, 0), "{done:#}");
    for name in names {
        assert_eq!(std::fs::read_to_string(level(name))?, "verbose\n", "{name}");
    }
    for child in children(admin, "loud").await? {
        let main = &child["status"]["containers"][0];
        assert_eq!(main["succeeded"], true, "{child:#}");
        assert_eq!(main["signal"], "SIGUSR1", "{child:#}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_max_failures_nobody_else_is_notified() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("budget");
    let pods = (0..6).map(|number| {
        let script = format!("echo {number} >> {file}; exit 3");
        pod(&format!("budget-{number}"))
            .label("group", "budget")
            .idle("main")
            .notifier("work", exec(["sh", "-c", &script]).timeout(60))
    });
    run_all(&stage, pods.collect()).await?;
    let object = fanout("budget", ("group", "budget"), "work")
        .parallelism(1)
        .spec("maxFailures", 2);
    let done = carry_out(admin, &object.build()).await?;
    assert_eq!(done["status"]["state"], "Failed");
    assert_eq!(counts(&done), (0, 2), "{done:#}");
    assert_eq!(done["status"]["error"]["type"], "TooManyFailures");
    assert_eq!(done["status"]["pending"].as_array().map(Vec::len), Some(4));
    assert_eq!(lines(&file), 2);
    Ok(())
}

/// Deleting the Notification cancels: its children go, and what runs is killed.
#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_notification_cancels_what_runs_and_starts_nothing_more() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("cancel");
    let pods = (0..4).map(|number| waiting("cancel", &format!("cancel-{number}"), &file));
    run_all(&stage, pods.collect()).await?;
    let object = fanout("cancel", ("group", "cancel"), "work").parallelism(2);
    admin.post(FANOUTS, &object.build()).await?.ok()?;
    until_file(&file, |text| text.lines().count() == 2).await?;
    admin.delete(&format!("{FANOUTS}/cancel")).await?.ok()?;
    eventually("its children to be gone", async || {
        Ok(children(admin, "cancel").await?.is_empty().then_some(()))
    })
    .await?;
    eventually("what ran to be dead", async || {
        Ok(processes::with_command(&format!("{file}.go"))
            .is_empty()
            .then_some(()))
    })
    .await?;
    // Whoever still ran would now end by itself, and say so.
    std::fs::write(format!("{file}.go"), "")?;
    let probe = member("cancel", "cancel-probe", &stage.file("cancel-probe"));
    run_all(&stage, vec![probe]).await?;
    assert_eq!(lines(&file), 2, "nobody else was notified");
    assert_eq!(lines(&format!("{file}.ended")), 0, "what ran was killed");
    Ok(())
}

/// Deleting the Notification cancels, also while its children are being created: those of which nobody
/// knew yet run nothing and stay no longer than the others.
#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_notification_cancels_what_is_being_created() -> anyhow::Result<()> {
    /// More than are created at once.
    const PODS: usize = 24;
    const MOST_ROUNDS: usize = 40;
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("flight");
    let pods = (0..PODS).map(|number| waiting("flight", &format!("flight-{number}"), &file));
    run_all(&stage, pods.collect()).await?;
    let mut rounds = 0;
    let mut was_cut = false;
    while !was_cut {
        let round = rounds;
        rounds += 1;
        anyhow::ensure!(rounds <= MOST_ROUNDS, "no creation was cut");
        let name = format!("flight-{round}");
        let created = fanout(&name, ("group", "flight"), "work").build();
        let revision = admin.post(FANOUTS, &created).await?.ok()?;
        let revision = revision["metadata"]["resourceVersion"].as_str();
        let revision = revision.context("a version")?;
        // The first child is there; the others are on their way.
        let path = format!("{NOTIFICATIONS}?watch=1&resourceVersion={revision}");
        let mut watch = admin.watch(&path).await?;
        let of = |event: &Value| {
            event["object"]["metadata"]["ownerReferences"][0]["name"] == name.as_str()
        };
        while !of(&watch.next().await.context("an event")?) {}
        admin.delete(&format!("{FANOUTS}/{name}")).await?.ok()?;
        eventually("its children to be gone", async || {
            Ok(children(admin, &name).await?.is_empty().then_some(()))
        })
        .await?;
        // Everybody who was created before this one, which is about nobody, has been told by then.
        let mark = format!("{name}-mark");
        let about_nobody = notification(&mark, "nobody-at-all", "work").build();
        admin.post(NOTIFICATIONS, &about_nobody).await?.ok()?;
        let mut created = 1;
        loop {
            let event = watch.next().await.context("an event")?;
            if event["object"]["metadata"]["name"] == mark.as_str() {
                break;
            }
            created += usize::from(of(&event) && event["type"] == "ADDED");
        }
        println!("round {round}: {created} of {PODS} were created");
        was_cut = created < PODS;
    }
    eventually("what ran to be dead", async || {
        Ok(processes::with_command(&format!("{file}.go"))
            .is_empty()
            .then_some(()))
    })
    .await?;
    let ran = lines(&file);
    // Whoever still ran would now end by itself, and say so.
    std::fs::write(format!("{file}.go"), "")?;
    let other = stage.file("flight-other");
    run_all(&stage, vec![member("flight-other", "flight-other", &other)]).await?;
    let object = fanout("flight-other", ("group", "flight-other"), "work");
    carry_out(admin, &object.build()).await?;
    assert_eq!(lines(&file), ran, "nobody was notified later");
    assert_eq!(lines(&format!("{file}.ended")), 0, "what ran was killed");
    for round in 0..rounds {
        let late = children(admin, &format!("flight-{round}")).await?;
        assert!(late.is_empty(), "{late:?}");
    }
    Ok(())
}

/// A child is cancelled by deleting it, and is neither forgotten nor made again.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_is_deleted_counts_as_failed_and_the_rest_goes_on() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("child");
    let pods = (0..3).map(|number| waiting("child", &format!("child-{number}"), &file));
    run_all(&stage, pods.collect()).await?;
    let object = fanout("child", ("group", "child"), "work").parallelism(1);
    admin.post(FANOUTS, &object.build()).await?.ok()?;
    until_file(&file, |text| text.lines().count() == 1).await?;
    let child = children(admin, "child").await?.remove(0);
    let name = child["metadata"]["name"].as_str().context("a name")?;
    admin
        .delete(&format!("{NOTIFICATIONS}/{name}"))
        .await?
        .ok()?;
    until_file(&file, |text| text.lines().count() == 2).await?;
    std::fs::write(format!("{file}.go"), "")?;
    let done = ended(admin, "child").await?;
    assert_eq!(counts(&done), (2, 1), "{done:#}");
    assert_eq!(sorted_lines(&file), ["child-0", "child-1", "child-2"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_notification_is_collected_with_its_children_after_its_time()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("ttl");
    run_all(&stage, vec![member("ttl", "ttl", &file)]).await?;
    let object = fanout("ttl", ("group", "ttl"), "work").spec("ttlSecondsAfterFinished", 1);
    admin.post(FANOUTS, &object.build()).await?.ok()?;
    eventually("both to be gone", async || {
        let gone = admin.get(&format!("{FANOUTS}/ttl")).await?.status == 404;
        Ok((gone && children(admin, "ttl").await?.is_empty()).then_some(()))
    })
    .await?;
    assert_eq!(lines(&file), 1, "it had run");
    Ok(())
}
