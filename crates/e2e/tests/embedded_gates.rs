//! Feature gates: what is off is not there, what was stored stays, what is on again goes on.

use belay_testkit::{
    Instance, NOTIFICATIONS, PODS, eventually, exec, lines, notification, pod, until_file,
};
use serde_json::Value;

const OFF: &str = "--feature-gates=ContainerNotifier=false";

/// Which container runs in the pod, and how often it was restarted.
fn incarnation(pod: &Value) -> (Value, Value) {
    let status = &pod["status"]["containerStatuses"][0];
    (
        status["containerID"].clone(),
        status["restartCount"].clone(),
    )
}

fn declaring(name: &str) -> Value {
    pod(name)
        .idle("main")
        .notifier("lock", exec(["true"]).timeout(30))
        .build()
}

/// "Yes. If it is disabled once it has been enabled, user can no longer leverage the
/// ContainerNotifier feature to request to execute command in a Pod." "If we reenable the feature
/// if it was previously rolled back, user can continue to leverage the ContainerNotifier feature".
#[tokio::test(flavor = "multi_thread")]
async fn notifications_go_away_with_their_gate_and_come_back_with_it() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let before = incarnation(&admin.run(&declaring("before")).await?);
    let done = admin
        .notify(&notification("n1", "before", "lock").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");

    instance.stop().await?;
    instance.start_again_with_args(&[OFF]).await?;
    let admin = instance.admin().await?;
    let now = incarnation(&admin.running("before").await?);
    assert_eq!(now, before, "the workload goes on as it was");
    admin.get(NOTIFICATIONS).await?.refused(404)?;
    let object = notification("n2", "before", "lock").build();
    admin.post(NOTIFICATIONS, &object).await?.refused(404)?;
    let group = admin.get("/apis/apps.k8s.io/v1alpha1").await?;
    let served = group.json()["resources"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert!(
        served.iter().all(|one| one["name"] != "podnotifications"),
        "{served:?}"
    );

    // Dropped on create, kept where the old object had them.
    let created = admin.post(PODS, &declaring("during")).await?.ok()?;
    assert_eq!(created["spec"]["containers"][0]["notifiers"], Value::Null);
    let label = serde_json::json!({ "metadata": { "labels": { "touched": "yes" } } });
    let kept = admin.merge(&format!("{PODS}/before"), &label).await?.ok()?;
    assert_eq!(
        kept["spec"]["containers"][0]["notifiers"][0]["name"],
        "lock"
    );

    instance.stop().await?;
    instance.start_again_with_args(&[]).await?;
    let admin = instance.admin().await?;
    let now = incarnation(&admin.running("before").await?);
    assert_eq!(now, before, "the workload goes on as it was");
    let stored = admin.get(&format!("{NOTIFICATIONS}/n1")).await?.ok()?;
    assert_eq!(stored["status"], done["status"], "what was stored stayed");
    let again = admin
        .notify(&notification("n3", "before", "lock").build())
        .await?;
    assert_eq!(again["status"]["state"], "Succeeded", "{again:#}");

    instance.stop().await?;
    instance.start_again_with_args(&[OFF]).await?;
    let admin = instance.admin().await?;
    admin.get(NOTIFICATIONS).await?.refused(404)?;
    let now = incarnation(&admin.running("before").await?);
    assert_eq!(now, before, "the workload goes on as it was");
    Ok(())
}

/// What nobody has claimed when the gate goes off stays as it is, and is delivered when it is on again.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_new_when_the_gate_goes_off_is_delivered_when_it_is_on_again() -> anyhow::Result<()>
{
    let mut instance = Instance::server().start().await?;
    instance.start_agent("n1", &[]).await?;
    let file = instance.file("runs");
    let manifest = pod("waits")
        .idle("main")
        .notifier(
            "count",
            exec(["sh", "-c", &format!("echo ran >> {file}")]).timeout(60),
        )
        .build();
    let admin = instance.admin().await?;
    let before = incarnation(&admin.run(&manifest).await?);
    // Nobody is there to claim it.
    instance.kill9_agent("n1").await?;
    let object = notification("waits", "waits", "count").deadline(3600);
    let created = admin.post(NOTIFICATIONS, &object.build()).await?.ok()?;

    instance.stop().await?;
    instance.start_again_with_args(&[OFF]).await?;
    instance.start_agent_with_args("n1", &[OFF], &[]).await?;
    let admin = instance.admin().await?;
    // A pod that starts shows that the agent is at work.
    admin.run(&pod("meanwhile").idle("main").build()).await?;
    let now = incarnation(&admin.running("waits").await?);
    assert_eq!(now, before, "the workload goes on as it was");
    assert_eq!(lines(&file), 0, "nothing ran");
    instance.kill9_agent("n1").await?;

    instance.stop().await?;
    instance.start_again_with_args(&[]).await?;
    let path = format!("{NOTIFICATIONS}/waits");
    let stored = instance.admin().await?.get(&path).await?.ok()?;
    assert_eq!(stored["status"], created["status"], "it stayed as it was");
    instance.start_agent("n1", &[]).await?;
    let done = instance.admin().await?.finished("waits").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(lines(&file), 1);
    Ok(())
}

/// What runs when the gate goes off is not killed; its outcome is told when the gate is on again.
#[tokio::test(flavor = "multi_thread")]
async fn what_runs_when_the_gate_goes_off_is_told_when_it_is_on_again() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let (began, gate) = (instance.file("began"), instance.file("gate"));
    let ended = instance.file("ended");
    let script = format!(
        "echo ran >> {began}; while [ ! -e {gate} ]; do sleep 0.05; done; echo ran >> {ended}; exit 5"
    );
    let manifest = pod("runs")
        .idle("main")
        .notifier("work", exec(["sh", "-c", &script]).timeout(600))
        .build();
    let admin = instance.admin().await?;
    let before = incarnation(&admin.run(&manifest).await?);
    let object = notification("runs", "runs", "work").deadline(3600).build();
    admin.post(NOTIFICATIONS, &object).await?.ok()?;
    until_file(&began, |text| !text.is_empty()).await?;
    instance.stop().await?;
    instance.start_again_with_args(&[OFF]).await?;
    std::fs::write(&gate, "")?;
    until_file(&ended, |text| !text.is_empty()).await?;
    instance.stop().await?;
    instance.start_again_with_args(&[]).await?;
    let admin = instance.admin().await?;
    let done = admin.finished("runs").await?;
    assert_eq!(done["status"]["containers"][0]["exitCode"], 5, "{done:#}");
    assert_eq!(incarnation(&admin.running("runs").await?), before);
    assert_eq!(lines(&began), 1, "it ran once");
    Ok(())
}

/// What ends while the server does not serve its kind is not taken for deleted. The gate is the
/// server's only: the agent knows nothing of it.
async fn ends_while_its_kind_is_not_served(agent_restarts: bool) -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    instance.start_agent("n1", &[]).await?;
    let (began, gate) = (instance.file("began"), instance.file("gate"));
    let script = format!("echo ran >> {began}; while [ ! -e {gate} ]; do sleep 0.05; done");
    let manifest = pod("runs")
        .idle("main")
        .notifier("work", exec(["sh", "-c", &script]).timeout(600))
        .build();
    let admin = instance.admin().await?;
    admin.run(&manifest).await?;
    let object = notification("runs", "runs", "work").deadline(3600).build();
    admin.post(NOTIFICATIONS, &object).await?.ok()?;
    until_file(&began, |text| !text.is_empty()).await?;
    instance.stop().await?;
    instance.start_again_with_args(&[OFF]).await?;
    std::fs::write(&gate, "")?;
    eventually("the result to be refused", async || {
        let told = "a status could not be written";
        Ok(instance.log().contains(told).then_some(()))
    })
    .await?;
    if agent_restarts {
        instance.kill9_agent("n1").await?;
    }
    instance.stop().await?;
    instance.start_again_with_args(&[]).await?;
    if agent_restarts {
        instance.start_agent("n1", &[]).await?;
    }
    let done = instance.admin().await?.finished("runs").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(lines(&began), 1, "it ran once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_while_its_kind_is_not_served_is_told_when_it_is_again() -> anyhow::Result<()> {
    ends_while_its_kind_is_not_served(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_its_kind_was_not_served_does_not_run_again_after_a_restart()
-> anyhow::Result<()> {
    ends_while_its_kind_is_not_served(true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_gate_a_new_pod_with_a_stop_signal_is_refused_and_an_old_one_kept()
-> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let manifest = |name: &str| {
        pod(name)
            .idle("main")
            .container_field("stopSignal", "SIGUSR1")
            .build()
    };
    instance.admin().await?.run(&manifest("before")).await?;
    instance.stop().await?;
    instance
        .start_again_with_args(&["--feature-gates=ContainerStopSignals=false"])
        .await?;
    let admin = instance.admin().await?;
    let refusal = admin.post(PODS, &manifest("during")).await?.refused(422)?;
    assert_eq!(
        refusal["details"]["causes"][0]["field"],
        "spec.containers[0].stopSignal"
    );
    let label = serde_json::json!({ "metadata": { "labels": { "touched": "yes" } } });
    let kept = admin.merge(&format!("{PODS}/before"), &label).await?.ok()?;
    assert_eq!(kept["spec"]["containers"][0]["stopSignal"], "SIGUSR1");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_gate_a_sleep_handler_is_dropped_on_create() -> anyhow::Result<()> {
    let instance = Instance::up()
        .gates("PodLifecycleSleepAction=false")
        .start()
        .await?;
    let lifecycle = serde_json::json!({ "preStop": { "sleep": { "seconds": 1 } } });
    let manifest = pod("sleepy")
        .idle("main")
        .container_field("lifecycle", lifecycle)
        .build();
    let stored = instance.admin().await?.post(PODS, &manifest).await?.ok()?;
    // Not even an empty `preStop` is left, which nobody could create.
    let container = &stored["spec"]["containers"][0];
    assert_eq!(container.get("lifecycle"), None, "{container:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_are_a_metric_and_an_unknown_one_is_refused_by_name() -> anyhow::Result<()> {
    let instance = Instance::up()
        .gates("ContainerStopSignals=false")
        .start()
        .await?;
    let metrics = instance.admin().await?.get("/metrics").await?.text();
    let value = |name: &str| {
        metrics
            .lines()
            .find(|line| {
                line.starts_with("kubernetes_feature_enabled")
                    && line.contains(&format!("name=\"{name}\""))
            })
            .and_then(|line| line.rsplit(' ').next())
            .map(str::to_owned)
    };
    assert_eq!(
        value("ContainerStopSignals").as_deref(),
        Some("0"),
        "{metrics}"
    );
    assert_eq!(
        value("ContainerNotifier").as_deref(),
        Some("1"),
        "{metrics}"
    );

    let dir = instance.file("other");
    let wrong = ["up", "--data-dir", &dir, "--feature-gates=NoSuchGate=true"];
    let ended = instance.belay(&wrong).await?;
    assert_eq!(ended.status.code(), Some(2));
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        said.contains("NoSuchGate") && said.contains("ContainerNotifier"),
        "{said}"
    );
    Ok(())
}
