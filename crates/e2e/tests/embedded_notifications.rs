//! How notifications are delivered, beyond what the proposal promises: claims, queues, signals
//! that nobody handles, pods that are going.

use belay_testkit::{
    Instance, NOTIFICATIONS, PODS, Rest, exec, lines, notification, pod, signal, until_file,
};
use serde_json::json;

/// Status writes of notifications that the server has accepted so far.
async fn status_writes(admin: &Rest) -> anyhow::Result<u64> {
    let metrics = admin.get("/metrics").await?.text();
    let written = metrics.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains("resource=\"podnotifications\"")
            && line.contains("subresource=\"status\"")
            && !line.contains("verb=\"get\"")
    });
    Ok(written
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_is_written_twice_whatever_the_number_of_containers() -> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let mut manifest = pod("many");
    for number in 0..5 {
        manifest = manifest
            .idle(&format!("c{number}"))
            .notifier("work", exec(["sleep", "0.2"]).timeout(60));
    }
    admin.run(&manifest.build()).await?;
    let before = status_writes(&admin).await?;
    let done = admin
        .notify(&notification("many", "many", "work").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(
        done["status"]["containers"].as_array().map(Vec::len),
        Some(5)
    );
    assert_eq!(status_writes(&admin).await? - before, 2);
    Ok(())
}

/// How many handlers an agent runs at once.
const SLOTS: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn no_more_run_at_once_than_there_are_slots() -> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let file = instance.file("at-once");
    // Each says how many of its kind are there when it starts.
    let script =
        format!("ls {file} | wc -l >> {file}.seen; touch {file}/$$; sleep 0.2; rm {file}/$$");
    std::fs::create_dir(&file)?;
    let manifest = pod("queue")
        .idle("main")
        .notifier("work", exec(["sh", "-c", &script]).timeout(600))
        .build();
    admin.run(&manifest).await?;
    for number in 0..10 * SLOTS {
        let object = notification(&format!("queue-{number}"), "queue", "work");
        admin.post(NOTIFICATIONS, &object.build()).await?.ok()?;
    }
    for number in 0..10 * SLOTS {
        let done = admin.finished(&format!("queue-{number}")).await?;
        assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    }
    let seen = std::fs::read_to_string(format!("{file}.seen"))?;
    assert_eq!(seen.lines().count(), 10 * SLOTS);
    let most = seen
        .lines()
        .filter_map(|line| line.trim().parse::<usize>().ok())
        .max();
    assert!(
        most < Some(SLOTS),
        "at most sixteen run at once: {most:?} others were seen"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_free_slot_does_not_count_against_the_timeout() -> anyhow::Result<()> {
    const TIMEOUT: u32 = 10;
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let (began, gate) = (instance.file("began"), instance.file("gate"));
    let hold = format!("echo ran >> {began}; while [ ! -e {gate} ]; do sleep 0.2; done");
    let manifest = pod("full")
        .idle("main")
        .notifier("hold", exec(["sh", "-c", &hold]).timeout(600))
        .notifier("work", exec(["true"]).timeout(TIMEOUT))
        .build();
    admin.run(&manifest).await?;
    for number in 0..SLOTS {
        let object = notification(&format!("hold-{number}"), "full", "hold");
        admin.post(NOTIFICATIONS, &object.build()).await?.ok()?;
    }
    until_file(&began, |text| text.lines().count() == SLOTS).await?;
    let object = notification("work", "full", "work").build();
    admin.post(NOTIFICATIONS, &object).await?.ok()?;
    let path = format!("{NOTIFICATIONS}/work");
    admin
        .until(&path, "a claim", |object| {
            object["status"]["startTime"].is_string().then_some(())
        })
        .await?;
    // Longer than it may take once it runs.
    tokio::time::sleep(std::time::Duration::from_secs(u64::from(TIMEOUT) + 2)).await;
    let still = admin.get(&path).await?.ok()?;
    assert_eq!(still["status"]["state"], "New", "{still:#}");
    std::fs::write(&gate, "")?;
    let done = admin.finished("work").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_being_deleted_is_not_notified() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let script = "trap '' TERM; while :; do sleep 3600 & wait; done";
    let manifest = pod("going")
        .container("main", ["sh", "-c", script])
        .notifier("work", exec(["true"]).timeout(30))
        .grace(3600)
        .build();
    admin.run(&manifest).await?;
    admin.delete(&format!("{PODS}/going")).await?.ok()?;
    let done = admin
        .notify(&notification("going", "going", "work").build())
        .await?;
    assert_eq!(done["status"]["state"], "Failed");
    assert_eq!(done["status"]["error"]["type"], "PodTerminating");
    let options = json!({ "gracePeriodSeconds": 0 });
    admin
        .delete_with(&format!("{PODS}/going"), &options)
        .await?
        .ok()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn notifiers_may_be_declared_in_an_annotation() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let counter = instance.file("annotated");
    let declared = json!({
        "main": [{
            "name": "work",
            "timeoutSeconds": 30,
            "handler": { "exec": { "command": ["sh", "-c", format!("echo ran >> {counter}")] } },
        }],
    });
    let manifest = pod("annotated")
        .idle("main")
        .annotation("apps.k8s.io/notifiers", &declared.to_string());
    admin.run(&manifest.build()).await?;
    let done = admin
        .notify(&notification("annotated", "annotated", "work").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(lines(&counter), 1);
    let patch = json!({ "metadata": { "annotations": { "apps.k8s.io/notifiers": null } } });
    admin
        .merge(&format!("{PODS}/annotated"), &patch)
        .await?
        .refused(422)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_ends_takes_its_running_action_with_it() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let (counter, end) = (instance.file("mortal-runs"), instance.file("mortal-end"));
    let main = format!("while [ ! -e {end} ]; do sleep 0.05; done; exit 1");
    let mark = belay_testkit::processes::unique_seconds();
    let work = format!("echo ran >> {counter}; sleep {mark}");
    let manifest = pod("mortal")
        .container("main", ["sh", "-c", &main])
        .notifier("work", exec(["sh", "-c", &work]).timeout(600))
        .restart_policy("Never")
        .build();
    admin.run(&manifest).await?;
    let object = notification("mortal", "mortal", "work")
        .deadline(600)
        .build();
    admin.post(NOTIFICATIONS, &object).await?.ok()?;
    until_file(&counter, |text| !text.is_empty()).await?;
    std::fs::write(&end, "")?;
    let done = admin.finished("mortal").await?;
    assert_eq!(done["status"]["state"], "Failed", "{done:#}");
    assert!(belay_testkit::processes::with_command(&mark).is_empty());
    assert_eq!(lines(&counter), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_final_cannot_be_changed_any_more() -> anyhow::Result<()> {
    let admin = Instance::shared().await?.admin().await?;
    let done = admin
        .notify(&notification("final", "nowhere", "work").build())
        .await?;
    let path = format!("{NOTIFICATIONS}/final/status");
    for status in [
        json!({ "state": "New", "completeTime": null, "error": null }),
        json!({ "state": "Succeeded", "error": null }),
    ] {
        admin
            .merge(&path, &json!({ "status": status }))
            .await?
            .refused(422)?;
    }
    assert_eq!(admin.finished("final").await?["status"], done["status"]);
    Ok(())
}

/// A container that ends takes its execs with it. That is not the handler's own failure, and it must
/// not read like one.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_dies_with_its_container_is_not_called_failed() -> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let began = instance.file("began");
    let manifest = pod("fragile")
        .idle("main")
        .notifier(
            "work",
            exec(["sh", "-c", &format!("echo x > {began}; sleep 600")]).timeout(600),
        )
        .notifier("crash", signal("SIGKILL"))
        .build();
    admin.run(&manifest).await?;
    let work = notification("work", "fragile", "work").build();
    admin.post(NOTIFICATIONS, &work).await?.ok()?;
    until_file(&began, |text| !text.is_empty()).await?;
    admin
        .notify(&notification("crash", "fragile", "crash").build())
        .await?;
    let done = admin.finished("work").await?;
    assert_eq!(done["status"]["state"], "Failed", "{done:#}");
    let error = &done["status"]["containers"][0]["error"];
    assert_eq!(error["type"], "ContainerRestarted", "{done:#}");
    Ok(())
}
