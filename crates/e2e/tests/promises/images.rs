//! What KEP-4960 and KEP-3960 promise about images, on the stage that the file including this one
//! gives: one whose containers are made of images.

use std::time::Duration;

use anyhow::Context as _;
use belay_api::signal::Signal;
use belay_testkit::ends::{LONG, delete, gone, pre_stop, run, sent, told};
use belay_testkit::image::{self, Image};
use belay_testkit::{Instance, PodBuilder, Stage, pod};
use serde_json::{Value, json};

use super::seed_002::{effective, reports_any, stopped};

/// A pod of three containers: the signal in spec and image, in the image alone, in neither.
fn of_all_kinds(name: &str, files: &[String; 3]) -> PodBuilder {
    pod(name)
        .grace(LONG)
        .container("spec", ["sh", "-c", &reports_any(&files[0])])
        .container_field("image", image::QUITTER)
        .container_field("stopSignal", "SIGINT")
        .container("image", ["sh", "-c", &reports_any(&files[1])])
        .container_field("image", image::QUITTER)
        .container("neither", ["sh", "-c", &reports_any(&files[2])])
}

fn shown(pod: &Value) -> [Value; 3] {
    ["spec", "image", "neither"].map(|name| effective(pod, name).clone())
}

/// "The order of priority for the different stop signals would look like this: `StopSignal from
/// Container Spec > STOPSIGNAL from container image > Default value of SIGTERM`"
#[tokio::test(flavor = "multi_thread")]
async fn kep_4960_e2e_the_spec_beats_the_image_and_the_image_beats_sigterm() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let files = ["spec", "image", "neither"].map(|name| stage.file(&format!("of-{name}")));
    let manifest = of_all_kinds("priority", &files);
    let (running, heard) = stopped(&stage, "priority", manifest, &files).await?;
    assert_eq!(heard, ["up\n2\n", "up\n3\n", "up\n15\n"]);
    let signals = ["SIGINT", "SIGQUIT", "SIGTERM"];
    assert_eq!(shown(&running), signals.map(|signal| json!(signal)));
    for (container, signal) in ["spec", "image", "neither"].into_iter().zip(signals) {
        assert_eq!(sent(&stage, "priority", container).await?.signal, signal);
    }
    Ok(())
}

/// "If you're running an older version of the kubelet with a newer version of the container runtime":
/// "use the stop signal defined in the container image or default to SIGTERM". So does an agent that
/// was told to.
#[tokio::test(flavor = "multi_thread")]
async fn kep_4960_e2e_an_agent_with_its_gate_off_leaves_it_to_the_image() -> anyhow::Result<()> {
    let Some(containerd) = super::containerd().await? else {
        return Ok(());
    };
    let mut instance = Instance::server().on(containerd).start().await?;
    let off = "--feature-gates=ContainerStopSignals=false";
    instance.start_agent_with_args("off", &[off], &[]).await?;
    let stage = Stage::on(&instance).await?;
    let files = ["spec", "image", "neither"].map(|name| stage.file(&format!("off-{name}")));
    let manifest = of_all_kinds("gate-off", &files);
    let (running, heard) = stopped(&stage, "gate-off", manifest, &files).await?;
    assert_eq!(heard, ["up\n3\n", "up\n3\n", "up\n15\n"]);
    assert_eq!(shown(&running), [Value::Null, Value::Null, Value::Null]);
    Ok(())
}

/// The runtime is told of the signal when a container is made, so whoever else stops that container
/// through it (an operator, another agent) sends the right one: where the runtime knows of signals,
/// since 2.3, and where the agent does.
#[tokio::test(flavor = "multi_thread")]
async fn kep_4960_e2e_the_runtime_itself_stops_a_container_with_the_signal_it_was_told()
-> anyhow::Result<()> {
    let Some(containerd) = super::containerd().await? else {
        return Ok(());
    };
    let knows = containerd.installation().version()? >= (2, 3);
    let mut instance = Instance::server().on(containerd).start().await?;
    let off = "--feature-gates=ContainerStopSignals=false";
    instance.start_agent("told-on", &[]).await?;
    instance
        .start_agent_with_args("told-off", &[off], &[])
        .await?;
    let stage = Stage::on(&instance).await?;
    let kubelet = containerd.kubelet();
    for (node, on) in [("told-on", true), ("told-off", false)] {
        for (signal, number) in [("SIGUSR1", 10), ("SIGRTMIN+3", 37)] {
            let name = format!("{node}-{number}");
            let file = stage.file(&name);
            let manifest = pod(&name)
                .node(node)
                .restart_policy("Never")
                .container("main", ["sh", "-c", &reports_any(&file)])
                .container_field("stopSignal", signal)
                .grace(LONG);
            let running = run(&stage, manifest, &file).await?;
            let shown = effective(&running, "main");
            assert_eq!(*shown, json!(on.then_some(signal)), "{name}: {running:#}");
            let id = running["status"]["containerStatuses"][0]["containerID"].as_str();
            let id = id.and_then(|id| id.strip_prefix("containerd://"));
            let id = id.with_context(|| format!("no ID: {running:#}"))?;
            // What it shows of itself is what the pod's status shows.
            let (signal, number) = if on && knows {
                (signal, number)
            } else {
                ("SIGTERM", 15)
            };
            let told = signal.parse::<Signal>()?.cri_number();
            let field = kubelet.stop_signal(id).await?;
            assert_eq!(field, if knows { told } else { 0 }, "{name}");
            kubelet.stop_container(id, LONG.into()).await?;
            let heard = std::fs::read_to_string(&file)?;
            assert_eq!(heard, format!("up\n{number}\n"), "{name}");
            delete(&stage, &name).await?;
            gone(&stage, &name).await?;
        }
    }
    Ok(())
}

/// "I want to do it without needing a sleep binary in my image."
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_e2e_no_sleep_binary_is_needed_in_the_image() -> anyhow::Result<()> {
    let (Some(containerd), Some(stage)) = (super::containerd().await?, super::stage().await?)
    else {
        return Ok(());
    };
    containerd.import(Image::bare()?).await?;
    let bare = |name: &str, hook: Value| {
        pod(name)
            .container("main", ["/busybox", "tail", "-f", "/dev/null"])
            .container_field("image", image::BARE)
            .container_field("stopSignal", "SIGKILL")
            .container_field("lifecycle", hook)
            .grace(LONG)
    };
    let exec = json!({ "preStop": { "exec": { "command": ["sleep", "1"] } } });
    for (name, hook) in [("bare-sleeps", pre_stop(1)), ("bare-execs", exec)] {
        stage.run(bare(name, hook)).await?;
        delete(&stage, name).await?;
        gone(&stage, name).await?;
        sent(&stage, name, "main").await?;
    }
    let slept = sent(&stage, "bare-sleeps", "main").await?;
    assert!(slept.after >= Duration::from_secs(1), "{slept:?}");
    let failed = told(&stage, "bare-sleeps", "FailedPreStopHook").await?;
    assert!(failed.is_empty(), "{failed:?}");
    let failed = told(&stage, "bare-execs", "FailedPreStopHook").await?;
    assert_eq!(failed.len(), 1, "that is why: {failed:?}");
    Ok(())
}
