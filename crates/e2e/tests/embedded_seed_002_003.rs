//! What the proposals about stop signals (KEP-4960) and about the sleep action (KEP-3960) promise,
//! on the embedded server with plain processes. `promises/termination.md` has all their lines, each
//! with its tests.

use belay_testkit::{Instance, Kubectl, PODS, Stage, eventually, pod};
use serde_json::{Value, json};

#[path = "promises/hooks.rs"]
mod hooks;
#[path = "promises/seed_002.rs"]
mod seed_002;
#[path = "promises/seed_003.rs"]
mod seed_003;

use belay_testkit::ends::{
    LONG, delete, delete_within, gone, pre_stop, run, sent, sleeper, stopping,
};

const SETS: &str = "/apis/apps/v1/namespaces/default/daemonsets";
const SLEEP_OFF: &str = "--feature-gates=PodLifecycleSleepAction=false";

async fn stage() -> anyhow::Result<Option<Stage>> {
    Stage::embedded().await
}

/// "Test that the validation passes when given a proper string value representing a standard stop
/// signal": all 65, by the server itself; what is no signal is refused with all that are.
#[tokio::test(flavor = "multi_thread")]
async fn kep_4960_all_names_of_signals_pass_and_nothing_else_does() -> anyhow::Result<()> {
    let admin = Instance::shared().await?.admin().await?;
    let create = async |signal: Value| {
        let mut manifest = pod("imagined").idle("main").build();
        manifest["spec"]["containers"][0]["stopSignal"] = signal;
        admin.post(&format!("{PODS}?dryRun=All"), &manifest).await
    };
    let all = belay_api::signal::Signal::ALL;
    assert_eq!(all.len(), 65);
    for signal in all {
        let stored = create(json!(signal.name())).await?.ok()?;
        let container = &stored["spec"]["containers"][0];
        assert_eq!(container["stopSignal"], signal.name());
    }
    for wrong in ["TERM", "sigterm", "SIGRTMIN+16", "SIGRTMAX-15", "9"] {
        let refused = create(json!(wrong)).await?.refused(422)?;
        let cause = &refused["details"]["causes"][0];
        assert_eq!(cause["field"], "spec.containers[0].stopSignal");
        let message = cause["message"].as_str().unwrap_or_default();
        let named = message.matches("\"SIG").count();
        assert!(named >= 65, "{message}");
    }
    // "Test that the validation fails when given a non string value for StopSignal"
    for wrong in [json!(15), json!(true), json!([])] {
        let refused = create(wrong).await?.refused(400)?;
        let message = refused["message"].as_str().unwrap_or_default();
        assert!(message.contains("stopSignal"), "{message}");
    }
    Ok(())
}

fn set(name: &str, lifecycle: &Value) -> Value {
    let manifest = pod("template")
        .idle("main")
        .container_field("lifecycle", lifecycle.clone())
        .grace(LONG)
        .build();
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": manifest["spec"] },
        },
    })
}

/// The pod that a set has on the only node, once it is of the set's present template.
async fn made_of(instance: &Instance, name: &str, lifecycle: &Value) -> anyhow::Result<Value> {
    let admin = instance.admin().await?;
    let what = format!("a pod of {name} with the lifecycle {lifecycle}");
    eventually(&what, async || {
        let path = format!("{PODS}?labelSelector=app%3D{name}");
        let list = admin.get(&path).await?.ok()?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let found = items.into_iter().find(|pod| {
            let own = &pod["spec"]["containers"][0]["lifecycle"];
            own == lifecycle && pod["status"]["phase"] == "Running"
        });
        Ok(found)
    })
    .await
}

/// "Test the handler is silently dropped when a pod created with no handler and feature-gate enabled
/// is updated with handler and feature-gate disabled." "Test the handler is correctly added when a
/// pod created with no handler and feature-gate disabled is updated with handler and feature-gate
/// enabled." Where a real object can be updated so: in a template, whose pods follow.
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_a_template_s_handler_is_updated_as_the_gate_says() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let Some(kubectl) = Kubectl::of(&instance) else {
        return Ok(());
    };
    let apply = async |lifecycle: &Value| -> anyhow::Result<Value> {
        let object = set("d", lifecycle);
        let arguments = ["apply", "-f", "-", "-o", "json"];
        let said = kubectl.with_object(&arguments, &object).await?;
        anyhow::ensure!(said.success, "{}", said.stderr);
        assert_eq!(said.stderr, "", "silently");
        let stored: Value = serde_json::from_str(&said.stdout)?;
        Ok(stored["spec"]["template"]["spec"]["containers"][0]["lifecycle"].clone())
    };
    let (none, sleep) = (Value::Null, pre_stop(1));
    apply(&none).await?;
    let first = made_of(&instance, "d", &none).await?;

    instance.stop().await?;
    instance.start_again_with_args(&[SLEEP_OFF]).await?;
    assert_eq!(apply(&sleep).await?, none);
    let admin = instance.admin().await?;
    let path = format!("{SETS}/d");
    let observed =
        |set: &Value| set["status"]["observedGeneration"] == set["metadata"]["generation"];
    admin
        .until(&path, "the controller's look", |set| {
            observed(set).then_some(())
        })
        .await?;
    let still = made_of(&instance, "d", &none).await?;
    assert_eq!(still["metadata"]["uid"], first["metadata"]["uid"]);

    instance.stop().await?;
    instance.start_again_with_args(&[]).await?;
    assert_eq!(apply(&sleep).await?, sleep);
    let next = made_of(&instance, "d", &sleep).await?;
    assert_ne!(next["metadata"]["uid"], first["metadata"]["uid"]);
    // It is carried out as well as declared.
    let name = next["metadata"]["name"].as_str().unwrap_or_default();
    let stage = Stage::on(&instance).await?;
    kubectl.ok(&["delete", "ds", "d"]).await?;
    gone(&stage, name).await?;
    let uid = next["metadata"]["uid"].as_str().unwrap_or_default();
    let sent = sent(&stage, uid, "main").await?;
    assert!(sent.after.as_secs() >= 1, "{sent:?}");
    Ok(())
}

/// "sleep_action_terminated_early_total(counts the number of Pods got terminated before sleep action
/// finishes)": a pod once for each reason, however many of its containers slept.
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_pods_whose_sleep_ended_early_are_counted_by_reason() -> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let stage = Stage::on(&instance).await?;
    let counted = async |reason: &str| -> anyhow::Result<u64> {
        let metrics = instance.agent_metrics("n1").await?;
        let label = format!("reason=\"{reason}\"");
        let line = metrics.lines().find(|line| {
            line.starts_with("sleep_action_terminated_early_total") && line.contains(&label)
        });
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
        Ok(value.unwrap_or(0))
    };
    let exits =
        |file: &str| format!("echo up >> {file}; while ! test -e {file}.gate; do sleep 0.05; done");

    // Slept to its end: not counted.
    let file = stage.file("whole");
    run(&stage, sleeper("whole", &file, 1, LONG), &file).await?;
    delete(&stage, "whole").await?;
    gone(&stage, "whole").await?;
    assert_eq!(counted("container_exited").await?, 0);
    assert_eq!(counted("grace_shortened").await?, 0);

    // Two containers exit, two are cut short: one pod, two reasons.
    let files = ["a", "b"].map(|name| stage.file(name));
    let mut manifest = pod("early").grace(LONG);
    for (name, file) in ["a", "b"].iter().zip(&files) {
        manifest = manifest
            .container(name, ["sh", "-c", &exits(file)])
            .container_field("lifecycle", pre_stop(LONG.into()));
    }
    for name in ["c", "d"] {
        manifest = manifest
            .idle(name)
            .container_field("lifecycle", pre_stop(LONG.into()));
    }
    run(&stage, manifest, &files[1]).await?;
    delete(&stage, "early").await?;
    stopping(&stage, "early").await?;
    for file in &files {
        std::fs::write(format!("{file}.gate"), "")?;
    }
    eventually("their exits", async || {
        let pod = stage.admin().get(&format!("{PODS}/early")).await?.ok()?;
        let statuses = pod["status"]["containerStatuses"].as_array().cloned();
        let ended = statuses.unwrap_or_default().into_iter();
        let ended = ended.filter(|status| status["state"]["terminated"].is_object());
        Ok((ended.count() == 2).then_some(()))
    })
    .await?;
    assert_eq!(counted("container_exited").await?, 1);
    delete_within(&stage, "early", 1).await?;
    gone(&stage, "early").await?;
    assert_eq!(counted("container_exited").await?, 1);
    assert_eq!(counted("grace_shortened").await?, 1);
    Ok(())
}
