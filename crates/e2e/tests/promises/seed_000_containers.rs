//! The promises of the container notifier proposal (KEP-1977) about the containers of one pod: which
//! of them count, when all of them are done, and who acts. Each test quotes the sentence it is about,
//! and runs on the stage that the file including this one gives.

use belay_testkit::{NOTIFICATIONS, PODS, exec, lines, notification, pod, until_file};
use serde_json::Value;

use crate::seed_000::container;

/// "A PodNotification is completed when the action has been executed in all eligible Containers."
#[tokio::test(flavor = "multi_thread")]
async fn it_is_complete_when_the_last_container_is_and_not_before() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let (quick, slow, gate) = (
        stage.file("all-quick"),
        stage.file("all-slow"),
        stage.file("all-gate"),
    );
    let done = format!("echo ran >> {quick}");
    let wait = format!("echo ran >> {slow}; while [ ! -e {gate} ]; do sleep 0.05; done");
    let manifest = pod("all-of-them")
        .idle("quick")
        .notifier("lock", exec(["sh", "-c", &done]).timeout(60))
        .notifier("other", exec(["true"]).timeout(60))
        .idle("slow")
        .notifier("lock", exec(["sh", "-c", &wait]).timeout(600));
    stage.run(manifest).await?;
    let asked = notification("all-of-them", "all-of-them", "lock").build();
    admin.post(NOTIFICATIONS, &asked).await?.ok()?;
    for file in [&quick, &slow] {
        until_file(file, |text| !text.is_empty()).await?;
    }
    // Time enough for the quick one to end and to be told, if that were done.
    let other = notification("all-other", "all-of-them", "other").build();
    let other = admin.notify(&other).await?;
    assert_eq!(other["status"]["state"], "Succeeded", "{other:#}");
    let path = format!("{NOTIFICATIONS}/all-of-them");
    let running = admin.get(&path).await?.ok()?;
    assert_eq!(running["status"]["state"], "New", "{running:#}");
    assert_eq!(running["status"]["completeTime"], Value::Null);

    std::fs::write(&gate, "")?;
    let done = admin.finished("all-of-them").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert!(done["status"]["completeTime"].is_string(), "{done:#}");
    for name in ["quick", "slow"] {
        assert_eq!(container(&done, name)["succeeded"], true, "{done:#}");
    }
    assert_eq!((lines(&quick), lines(&slow)), (1, 1));
    Ok(())
}

/// "A PodNotification is completed when the action has been executed in all eligible Containers": one
/// that has ended cannot execute it, and that is told of this one alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_has_ended_fails_and_the_others_do_their_part() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("half");
    let write = |word: &str| format!("echo {word} >> {file}");
    let manifest = pod("half")
        .container("over", ["true"])
        .notifier("lock", exec(["sh", "-c", &write("over")]).timeout(60))
        .idle("stays")
        .notifier("lock", exec(["sh", "-c", &write("stays")]).timeout(60))
        .restart_policy("Never");
    stage.create(manifest).await?;
    admin
        .until(&format!("{PODS}/half"), "one end", |pod| {
            let statuses = pod["status"]["containerStatuses"].as_array()?;
            let of = |name: &str| statuses.iter().find(|one| one["name"] == name);
            let over = of("over")?["state"]["terminated"].is_object();
            let stays = of("stays")?["state"]["running"].is_object();
            (over && stays && pod["status"]["phase"] == "Running").then_some(())
        })
        .await?;
    let done = admin
        .notify(&notification("half", "half", "lock").build())
        .await?;
    assert_eq!(done["status"]["state"], "Failed", "{done:#}");
    let over = container(&done, "over");
    assert_eq!(over["succeeded"], false, "{done:#}");
    assert_eq!(over["error"]["type"], "ContainerNotRunning", "{done:#}");
    assert_eq!(container(&done, "stays")["succeeded"], true, "{done:#}");
    assert_eq!(std::fs::read_to_string(&file)?, "stays\n");
    Ok(())
}

/// "If it fails or times out, ... sets the Succeed field to False": whoever quiesces learns of it
/// and unquiesces, which succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_lock_that_failed_or_timed_out_unlocking_succeeds() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("unquiesce");
    let unlock = format!("echo unlocked >> {file}");
    for (name, lock, error) in [
        (
            "lock-fails",
            exec(["sh", "-c", "exit 1"]).timeout(60),
            "HandlerFailed",
        ),
        (
            "lock-hangs",
            exec(["sleep", "600"]).timeout(1),
            "HandlerTimeout",
        ),
    ] {
        let manifest = pod(name)
            .idle("mysql")
            .notifier("lockTables", lock)
            .notifier("unlockTables", exec(["sh", "-c", &unlock]).timeout(60));
        stage.run(manifest).await?;
        let locked = admin
            .notify(&notification(name, name, "lockTables").build())
            .await?;
        let mysql = container(&locked, "mysql");
        assert_eq!(mysql["succeeded"], false, "{locked:#}");
        assert_eq!(mysql["error"]["type"], error, "{locked:#}");
        let undo = notification(&format!("{name}-undo"), name, "unlockTables").build();
        let unlocked = admin.notify(&undo).await?;
        assert_eq!(
            container(&unlocked, "mysql")["succeeded"],
            true,
            "{unlocked:#}"
        );
    }
    assert_eq!(lines(&file), 2);
    Ok(())
}

/// "Kubelet will watch PodNotification resources for Pods on the node it's running": the executor
/// and the node are the pod's.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_of_the_pod_is_the_one_that_acts() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let manifest = pod("where")
        .idle("main")
        .notifier("lock", exec(["true"]).timeout(30));
    let running = stage.run(manifest).await?;
    let done = admin
        .notify(&notification("where", "where", "lock").build())
        .await?;
    let status = &done["status"];
    assert_eq!(status["nodeName"], running["spec"]["nodeName"]);
    assert_eq!(status["podUID"], running["metadata"]["uid"]);
    assert!(
        status["executor"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{status}"
    );
    let running_id = &running["status"]["containerStatuses"][0]["containerID"];
    let acted_on = container(&done, "main")["containerID"]
        .as_str()
        .unwrap_or_default();
    assert!(
        running_id
            .as_str()
            .is_some_and(|id| id.ends_with(acted_on) && !acted_on.is_empty()),
        "{running_id} and {acted_on}"
    );
    Ok(())
}

/// "there are 3 commands that need to be executed sequentially to quiesce a mysql database ...:
/// *lockTables*, *flushDisk*, and *fsfreeze*. After the snapshots have been taken, there are 2
/// commands to be executed sequentially to unquiesce it: *fsUnfreeze*, *unlockTables*."
#[tokio::test(flavor = "multi_thread")]
async fn the_quiesce_workflow_runs_its_five_steps_in_the_order_asked_for() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("quiesce");
    let steps = [
        "lockTables",
        "flushDisk",
        "fsfreeze",
        "fsUnfreeze",
        "unlockTables",
    ];
    let mut manifest = pod("mysql").idle("mysql");
    for step in steps {
        let command = format!("echo {step} >> {file}");
        manifest = manifest.notifier(step, exec(["sh", "-c", &command]).timeout(30));
    }
    stage.run(manifest).await?;
    for step in steps {
        let name = format!("mysql-{}", step.to_lowercase());
        let done = admin
            .notify(&notification(&name, "mysql", step).build())
            .await?;
        assert_eq!(
            container(&done, "mysql")["succeeded"],
            true,
            "{step}: {done:#}"
        );
        // "Upper level controller is responsible to delete all `PodNotification` objects it has
        // created after the commands have completed."
        admin
            .delete(&format!("{NOTIFICATIONS}/{name}"))
            .await?
            .ok()?;
    }
    let ran = std::fs::read_to_string(&file)?;
    assert_eq!(ran.lines().collect::<Vec<_>>(), steps);
    Ok(())
}

/// "A PodNotification is completed when the action has been executed in all eligible Containers":
/// a pod that does not run has none.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_not_running_fails_with_its_own_error() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let manifest = pod("ended")
        .container("main", ["true"])
        .notifier("lock", exec(["true"]).timeout(1))
        .restart_policy("Never");
    stage.create(manifest).await?;
    admin
        .until(&format!("{PODS}/ended"), "its end", |pod| {
            (pod["status"]["phase"] == "Succeeded").then_some(())
        })
        .await?;
    let done = admin
        .notify(&notification("ended", "ended", "lock").build())
        .await?;
    assert_eq!(done["status"]["state"], "Failed");
    assert_eq!(done["status"]["error"]["type"], "ContainerNotRunning");
    Ok(())
}

/// "`Succeeded` ... will not be specified if the status of execution is unknown(i.e., in
/// execution)." "updates the `ContainerNotificationStatus` to set the StartTimestamp": a
/// notification is written twice, so a container's own start is told with its end.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_handler_runs_it_is_named_and_its_success_is_not_known() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let gate = stage.file("unknown-gate");
    let wait = format!("while [ ! -e {gate} ]; do sleep 0.05; done");
    let manifest = pod("unknown")
        .idle("main")
        .notifier("wait", exec(["sh", "-c", &wait]).timeout(120));
    stage.run(manifest).await?;
    admin
        .post(
            NOTIFICATIONS,
            &notification("unknown", "unknown", "wait").build(),
        )
        .await?
        .ok()?;
    let running = admin
        .until(&format!("{NOTIFICATIONS}/unknown"), "a start", |object| {
            object["status"]["startTime"]
                .is_string()
                .then(|| object.clone())
        })
        .await?;
    let main = container(&running, "main");
    assert_eq!(main["name"], "main");
    assert_eq!(main["succeeded"], Value::Null);
    assert_eq!(main["completeTime"], Value::Null);
    std::fs::write(&gate, "")?;
    let done = admin.finished("unknown").await?;
    let main = container(&done, "main");
    assert_eq!(main["succeeded"], true);
    assert!(main["startTime"].is_string() && main["completeTime"].is_string());
    Ok(())
}

/// "A `PodNotification` is considered to be successful ... only if the notification have been
/// successfully executed in all qualified containers in the specified `Pod`."
#[tokio::test(flavor = "multi_thread")]
async fn one_failing_container_fails_the_notification_and_the_others_are_recorded()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let manifest = pod("mixed")
        .idle("good")
        .notifier("lock", exec(["true"]).timeout(30))
        .idle("bad")
        .notifier(
            "lock",
            exec(["sh", "-c", "echo no space; exit 7"]).timeout(30),
        );
    stage.run(manifest).await?;
    let done = admin
        .notify(&notification("mixed", "mixed", "lock").build())
        .await?;
    assert_eq!(done["status"]["state"], "Failed");
    assert_eq!(container(&done, "good")["succeeded"], true);
    let bad = container(&done, "bad");
    assert_eq!(bad["succeeded"], false);
    for times in [&done["status"], container(&done, "good"), bad] {
        assert!(times["completeTime"].is_string(), "{done:#}");
    }
    assert_eq!(bad["error"]["type"], "HandlerFailed");
    assert_eq!(bad["exitCode"], 7);
    assert!(
        bad["output"]
            .as_str()
            .is_some_and(|text| text.contains("no space")),
        "{bad}"
    );
    Ok(())
}
