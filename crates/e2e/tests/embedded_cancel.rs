//! "Cancelled" is said when it is true: what a Notification ran is dead by then.

use std::process::Stdio;

use anyhow::Context as _;
use belay_testkit::{
    FANOUTS, Instance, NOTIFICATIONS, Rest, eventually, exec, fanout, pod, processes, until_file,
};
use serde_json::Value;

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
