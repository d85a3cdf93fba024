//! "Cancelled" is said when it is true: what a Notification ran is dead by then. And what else bounds
//! a Notification: its own deadline, and the pods there are.

use std::process::Stdio;

use anyhow::Context as _;
use belay_testkit::{
    FANOUTS, Instance, NOTIFICATIONS, Rest, eventually, exec, fanout, pod, processes, until_file,
};
use serde_json::{Value, json};

const PODS: usize = 8;

/// Pods whose handler runs until it is killed.
async fn run_pods(admin: &Rest, group: &str, file: &str) -> anyhow::Result<()> {
    let script = format!("echo x >> {file}; while [ ! -e {file}.go ]; do sleep 0.1; done");
    let run = (0..PODS).map(|number| {
        let manifest = pod(&format!("{group}-{number}"))
            .label("group", group)
            .idle("main")
            .notifier("work", exec(["sh", "-c", &script]).timeout(300))
            .build();
        async move { admin.run(&manifest).await }
    });
    futures::future::try_join_all(run).await?;
    Ok(())
}

async fn children(admin: &Rest, group: &str) -> anyhow::Result<Vec<Value>> {
    let list = admin.get(NOTIFICATIONS).await?.ok()?;
    let all = list["items"].as_array().cloned().unwrap_or_default();
    let own = |child: &Value| {
        let pod = child["spec"]["podName"].as_str().unwrap_or_default();
        pod.starts_with(group)
    };
    Ok(all.into_iter().filter(own).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn when_ctrl_c_has_cancelled_nothing_runs_and_every_pod_says_so() -> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let file = instance.file("interrupted");
    run_pods(&admin, "interrupted", &file).await?;
    let child = tokio::process::Command::new(belay_testkit::binary::belay()?)
        .args(["notify", "work", "-l", "group=interrupted"])
        .env("KUBECONFIG", instance.kubeconfig())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    until_file(&file, |text| text.lines().count() == PODS).await?;
    processes::interrupt(child.id().context("it runs")?);
    let ended = child.wait_with_output().await?;
    let alive = processes::with_command(&format!("{file}.go"));
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(
        told.contains("nothing of it runs any more; 0 succeeded, 8 cancelled of 8 pods"),
        "{told}"
    );
    assert!(alive.is_empty(), "{alive:?} after\n{told}");
    let table = String::from_utf8_lossy(&ended.stdout);
    assert!(
        table.contains("cancelled") && !table.contains("no result yet"),
        "{table}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_children_of_a_deleted_notification_are_gone_their_handlers_are_dead()
-> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let file = instance.file("deleted");
    run_pods(&admin, "deleted", &file).await?;
    let object = fanout("deleted", ("group", "deleted"), "work").build();
    admin.post(FANOUTS, &object).await?.ok()?;
    until_file(&file, |text| text.lines().count() == PODS).await?;
    admin.delete(&format!("{FANOUTS}/deleted")).await?.ok()?;
    eventually("its children to be gone", async || {
        Ok(children(&admin, "deleted").await?.is_empty().then_some(()))
    })
    .await?;
    let alive = processes::with_command(&format!("{file}.go"));
    assert!(alive.is_empty(), "{alive:?}");
    Ok(())
}

/// The value of a metric.
fn metric(text: &str, name: &str) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.split(' ').next() == Some(name));
    line?.rsplit(' ').next()?.parse().ok()
}

/// With one pod at a time the second's turn would come when the first has ended, which is too late.
#[tokio::test(flavor = "multi_thread")]
async fn when_a_notifications_time_is_over_the_pods_that_wait_are_left_out_and_counted()
-> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let file = instance.file("late");
    run_pods(&admin, "late", &file).await?;
    let object = fanout("late", ("group", "late"), "work")
        .parallelism(1)
        .spec("deadlineSeconds", 40)
        .build();
    admin.post(FANOUTS, &object).await?.ok()?;
    until_file(&file, |text| text.lines().count() == 1).await?;
    let path = format!("{FANOUTS}/late");
    let stopped = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array().cloned();
        let stopped = conditions.unwrap_or_default().into_iter();
        stopped
            .filter(|condition| condition["type"] == "Stopped")
            .any(|condition| condition["reason"] == "Expired")
    };
    eventually("its time to be over", async || {
        let object = admin.get(&path).await?.ok()?;
        Ok(stopped(&object).then_some(()))
    })
    .await?;
    // The one that runs may end; nobody else is asked.
    std::fs::write(format!("{file}.go"), "")?;
    let done = eventually("its end", async || {
        let object = admin.get(&path).await?.ok()?;
        Ok((object["status"]["state"] != "New").then_some(object))
    })
    .await?;
    let status = &done["status"];
    assert_eq!(status["state"], "Failed", "{status:#}");
    assert_eq!(status["error"]["type"], "Expired", "{status:#}");
    assert_eq!(status["succeededCount"], 1, "{status:#}");
    let left = status["pending"].as_array().map(Vec::len);
    assert_eq!(left, Some(PODS - 1), "{status:#}");
    assert_eq!(belay_testkit::lines(&file), 1);

    // It is counted after it is written.
    let metrics = eventually("the count of its end", async || {
        let metrics = admin.get("/metrics").await?.text();
        let counted = metric(&metrics, "belay_fanouts_total{outcome=\"Failed\"}") == Some(1.0);
        Ok(counted.then_some(metrics))
    })
    .await?;
    let value = |name: &str| metric(&metrics, name);
    assert_eq!(value("belay_fanout_children_total"), Some(1.0), "{metrics}");
    assert_eq!(
        value("belay_fanout_duration_seconds_count"),
        Some(1.0),
        "{metrics}"
    );
    assert_eq!(metrics.matches("# EOF").count(), 1, "{metrics}");
    assert_eq!(
        metrics.matches("# TYPE kubernetes_feature_enabled").count(),
        1
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_pods_what_ended_goes_with_its_pod_and_stays_counted() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let quick = |name: &str| {
        pod(name)
            .label("group", "quick")
            .idle("main")
            .notifier("work", exec(["true"]).timeout(60))
            .grace(0)
            .build()
    };
    let object = fanout("quick", ("group", "quick"), "work").all_pods();
    admin.post(FANOUTS, &object.build()).await?.ok()?;
    let counts = async |admin: &Rest| -> anyhow::Result<Value> {
        let object = admin.get(&format!("{FANOUTS}/quick")).await?.ok()?;
        let status = &object["status"];
        Ok(json!([status["targetCount"], status["succeededCount"]]))
    };
    for name in ["quick-1", "quick-2"] {
        admin.run(&quick(name)).await?;
    }
    eventually("both to be counted", async || {
        Ok((counts(&admin).await? == json!([2, 2])).then_some(()))
    })
    .await?;
    let pods = "/api/v1/namespaces/default/pods";
    admin.delete(&format!("{pods}/quick-1")).await?.ok()?;
    let one_left = async |admin: &Rest| {
        eventually("the child of the pod that is gone to go", async || {
            let left = children(admin, "quick").await?;
            Ok((left.len() == 1 && left[0]["spec"]["podName"] == "quick-2").then_some(()))
        })
        .await
    };
    one_left(&admin).await?;
    assert_eq!(counts(&admin).await?, json!([2, 2]));

    // The counts are not in the memory of a process.
    instance.kill9().await?;
    instance.start_again().await?;
    let admin = instance.admin().await?;
    admin.run(&quick("quick-3")).await?;
    eventually("one more", async || {
        Ok((counts(&admin).await? == json!([3, 3])).then_some(()))
    })
    .await?;
    Ok(())
}
