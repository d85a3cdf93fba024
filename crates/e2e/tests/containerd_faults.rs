//! Pods on a containerd that is killed, restarted or hangs, and on sandboxes that die: containers end
//! on time, other pods never notice, and nothing is left behind.

use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::containerd::{Containerd, Installation};
use belay_testkit::ends::{LONG, asked, delete, gone, pre_stop, reports, sent, stopping, told};
use belay_testkit::instance::NODE;
use belay_testkit::{Instance, PODS, PodBuilder, Stage, eventually, pod, processes, until_file};
use serde_json::{Value, json};

/// What every container has between its signal and SIGKILL at least.
const FLOOR: Duration = Duration::from_secs(2);

/// A containerd of the test's own, and a node on it. Of each kind of fault there is a test on the
/// oldest that is installed and one on the newest.
async fn node(
    installation: Option<Installation>,
) -> anyhow::Result<Option<(Containerd, Instance, Stage)>> {
    let Some(installation) = installation else {
        return Ok(None);
    };
    let containerd = Containerd::start(&installation).await?;
    let instance = Instance::up().on(&containerd).start().await?;
    let stage = Stage::on(&instance).await?;
    Ok(Some((containerd, instance, stage)))
}

/// A pod that says in a file of its own name that it is up, and which signal it got.
fn talker(stage: &Stage, name: &str) -> PodBuilder {
    let script = reports(&stage.file(name), &["TERM"]);
    pod(name)
        .container("main", ["sh", "-c", &script])
        .grace(600)
}

/// One that ends only when it is killed.
fn stubborn(stage: &Stage, name: &str) -> PodBuilder {
    let file = stage.file(name);
    let script = format!("trap '' TERM; echo up >> {file}; while :; do sleep 0.05; done");
    pod(name).container("main", ["sh", "-c", &script])
}

async fn up(stage: &Stage, pod: PodBuilder, name: &str) -> anyhow::Result<()> {
    stage.run(pod).await?;
    until_file(&stage.file(name), |text| text.contains("up")).await?;
    Ok(())
}

/// One that is not meant: it goes on, and its probes never fail.
async fn bystander(stage: &Stage) -> anyhow::Result<Value> {
    up(stage, talker(stage, "bystander").probed(), "bystander").await?;
    stage.health("bystander").await
}

/// That no process of a pod is left, which is known by its file.
async fn dead(stage: &Stage, name: &str) -> anyhow::Result<()> {
    let mark = format!("{} ", stage.file(name));
    eventually(&format!("the end of the processes of {name}"), async || {
        let left = processes::with_command(mark.trim());
        anyhow::ensure!(left.is_empty(), "{left:?}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_containerd_hangs_containers_end_on_time_and_the_rest_follows() -> anyhow::Result<()>
{
    let Some((containerd, _instance, stage)) = node(Installation::newest()).await? else {
        return Ok(());
    };
    up(&stage, talker(&stage, "leaving").grace(600), "leaving").await?;
    up(&stage, stubborn(&stage, "staying").grace(1), "staying").await?;
    // One whose hook runs and does not end, and one whose hook cannot be started.
    let endless = |name: &str, grace: u32| {
        let file = stage.file(&format!("{name}-hook"));
        let script = format!("echo hook >> {file}; while :; do sleep 0.05; done");
        let hook = json!({ "preStop": { "exec": { "command": ["sh", "-c", script] } } });
        talker(&stage, name)
            .container_field("lifecycle", hook)
            .grace(grace)
    };
    up(&stage, endless("hooked", 10), "hooked").await?;
    up(&stage, endless("blocked", 3), "blocked").await?;
    let before = bystander(&stage).await?;

    delete(&stage, "hooked").await?;
    until_file(&stage.file("hooked-hook"), |text| !text.is_empty()).await?;
    containerd.hang()?;
    stage.create(talker(&stage, "coming")).await?;
    for name in ["leaving", "staying", "blocked"] {
        delete(&stage, name).await?;
    }
    for name in ["leaving", "staying", "blocked", "hooked"] {
        dead(&stage, name).await?;
    }
    for (name, grace) in [("hooked", 10), ("blocked", 3)] {
        let sent = sent(&stage, name, "main").await?;
        assert!(sent.after >= Duration::from_secs(grace), "{name}: {sent:?}");
        assert!(sent.left <= FLOOR, "{name}: {sent:?}");
        asked(&stage, name, &stage.file(name)).await?;
    }
    assert!(!std::fs::exists(stage.file("blocked-hook"))?, "it hangs");
    assert_eq!(
        std::fs::read_to_string(stage.file("leaving"))?,
        "up\nTERM\n"
    );
    // Their objects do not wait for ever for a runtime that does not come to forget them.
    for name in ["leaving", "staying", "blocked", "hooked"] {
        gone(&stage, name).await?;
    }
    assert_eq!(stage.health("bystander").await?, before);
    let coming = stage.admin().get(&format!("{PODS}/coming")).await?.ok()?;
    assert_eq!(coming["status"]["phase"], "Pending", "{coming:#}");

    containerd.go_on()?;
    until_file(&stage.file("coming"), |text| text.contains("up")).await?;
    assert_eq!(stage.health("bystander").await?, before);
    containerd.pods_left(2).await?;
    for name in ["bystander", "coming"] {
        delete(&stage, name).await?;
        gone(&stage, name).await?;
        assert_eq!(std::fs::read_to_string(stage.file(name))?, "up\nTERM\n");
    }
    assert!(
        !std::fs::exists(stage.file("blocked-hook"))?,
        "its time is over"
    );
    containerd.pods_left(0).await?;
    containerd.nothing_astray().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_containerd_is_away_is_not_ready_until_it_is_back() -> anyhow::Result<()> {
    let Some((mut containerd, _instance, stage)) = node(Installation::newest()).await? else {
        return Ok(());
    };
    let ready = async |status: &str| {
        eventually(&format!("Ready to be {status}"), async || {
            let node = stage.admin().get(&format!("/api/v1/nodes/{NODE}")).await?;
            let ready = node.ok()?["status"]["conditions"][0].clone();
            Ok((ready["type"] == "Ready" && ready["status"] == status).then_some(ready))
        })
        .await
    };
    ready("True").await?;
    containerd.kill9()?;
    let silent = ready("False").await?;
    assert_eq!(silent["reason"], "RuntimeNotReady", "{silent:#}");
    let message = silent["message"].as_str().unwrap_or_default();
    assert!(
        message.starts_with("the runtime has not answered for 30 s: ")
            && message.contains("cannot be reached"),
        "{message}"
    );
    // Nothing is sent to where it could not be run.
    stage.create(talker(&stage, "later")).await?;
    eventually("later to find no node", async || {
        let later = stage.admin().get(&format!("{PODS}/later")).await?.ok()?;
        anyhow::ensure!(later["spec"]["nodeName"].is_null(), "{later:#}");
        let conditions = later["status"]["conditions"].as_array();
        let refused = |one: &Value| one["type"] == "PodScheduled" && one["status"] == "False";
        Ok(conditions
            .is_some_and(|all| all.iter().any(refused))
            .then_some(()))
    })
    .await?;
    containerd.start_again().await?;
    ready("True").await?;
    until_file(&stage.file("later"), |text| text.contains("up")).await?;
    delete(&stage, "later").await?;
    gone(&stage, "later").await?;
    containerd.pods_left(0).await?;
    containerd.nothing_astray().await
}

/// Signal, kill and wait need no runtime, also for an agent that has never seen the container.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_while_containerd_hangs_ends_what_it_began() -> anyhow::Result<()>
{
    let Some((containerd, mut instance, stage)) = node(Installation::oldest()).await? else {
        return Ok(());
    };
    // One to be signalled when it has slept, with a neighbour that waits for that, and one to be
    // killed.
    let side = reports(&stage.file("side"), &["TERM"]);
    let sleeping = talker(&stage, "sleeping")
        .container_field("lifecycle", pre_stop(5))
        .sidecar("side", ["sh", "-c", &side])
        .grace(LONG);
    up(&stage, sleeping, "sleeping").await?;
    until_file(&stage.file("side"), |text| text.contains("up")).await?;
    up(&stage, stubborn(&stage, "staying").grace(5), "staying").await?;
    let before = bystander(&stage).await?;
    for name in ["sleeping", "staying"] {
        delete(&stage, name).await?;
        stopping(&stage, name).await?;
    }
    sent(&stage, "staying", "main").await?;
    instance.kill9().await?;
    containerd.hang()?;
    instance.start_again().await?;
    let stage = Stage::on(&instance).await?;
    dead(&stage, "sleeping").await?;
    dead(&stage, "side").await?;
    dead(&stage, "staying").await?;
    for name in ["sleeping", "side"] {
        assert_eq!(std::fs::read_to_string(stage.file(name))?, "up\nTERM\n");
    }
    assert_eq!(sent(&stage, "sleeping", "main").await?.signal, "SIGTERM");

    containerd.go_on()?;
    for name in ["sleeping", "staying"] {
        gone(&stage, name).await?;
    }
    assert_eq!(stage.health("bystander").await?, before);
    containerd.pods_left(1).await?;
    delete(&stage, "bystander").await?;
    gone(&stage, "bystander").await?;
    containerd.pods_left(0).await?;
    containerd.nothing_astray().await
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_is_killed_while_pods_run_start_and_end() -> anyhow::Result<()> {
    let Some((mut containerd, mut instance, stage)) = node(Installation::oldest()).await? else {
        return Ok(());
    };
    up(&stage, talker(&stage, "leaving").grace(600), "leaving").await?;
    let before = bystander(&stage).await?;
    for round in 0..2 {
        let name = format!("coming-{round}");
        stage.create(talker(&stage, &name)).await?;
        containerd.kill9()?;
        if round == 0 {
            delete(&stage, "leaving").await?;
            dead(&stage, "leaving").await?;
        } else {
            // The agent at the same time.
            instance.kill9().await?;
        }
        containerd.start_again().await?;
        if round == 1 {
            instance.start_again().await?;
        }
        let stage = Stage::on(&instance).await?;
        until_file(&stage.file(&name), |text| text.contains("up")).await?;
        assert_eq!(std::fs::read_to_string(stage.file(&name))?, "up\n", "once");
    }
    let stage = Stage::on(&instance).await?;
    gone(&stage, "leaving").await?;
    assert_eq!(
        std::fs::read_to_string(stage.file("leaving"))?,
        "up\nTERM\n"
    );
    assert_eq!(stage.health("bystander").await?, before);
    for name in ["bystander", "coming-0", "coming-1"] {
        delete(&stage, name).await?;
        gone(&stage, name).await?;
    }
    // What it had given to a sandbox that it did not know yet is its own loss.
    containerd.pods_left(0).await
}

/// The first process of a pod's sandbox.
fn pause(uid: &str) -> Option<u32> {
    let sleeping = processes::with_command("2147483647").into_iter();
    let of_pod = |pid: u32| {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
        groups.is_ok_and(|groups| groups.contains(uid))
    };
    sleeping.map(|process| process.pid).find(|pid| of_pod(*pid))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_sandbox_dies_begins_anew_in_another() -> anyhow::Result<()> {
    for installation in Installation::each() {
        begins_anew_in_another_sandbox(installation).await?;
    }
    Ok(())
}

async fn begins_anew_in_another_sandbox(installation: Installation) -> anyhow::Result<()> {
    let Some((containerd, _instance, stage)) = node(Some(installation)).await? else {
        return Ok(());
    };
    let file = stage.file("phoenix");
    let prepare = format!("echo prepare >> {file}");
    let init = json!([{"name": "prepare", "image": "none", "command": ["sh", "-c", prepare]}]);
    let phoenix = talker(&stage, "phoenix").spec("initContainers", init);
    up(&stage, phoenix, "phoenix").await?;
    up(
        &stage,
        talker(&stage, "mortal").restart_policy("Never"),
        "mortal",
    )
    .await?;
    for name in ["phoenix", "mortal"] {
        let pod = stage.admin().get(&format!("{PODS}/{name}")).await?.ok()?;
        let uid = pod["metadata"]["uid"].as_str().context("a UID")?;
        processes::kill(pause(uid).context("its sandbox has a process")?);
    }
    until_file(&file, |text| text.matches("up").count() == 2).await?;
    assert_eq!(
        std::fs::read_to_string(&file)?,
        "prepare\nup\nTERM\nprepare\nup\n"
    );
    let changed = told(&stage, "phoenix", "SandboxChanged").await?;
    assert_eq!(
        changed,
        ["Pod sandbox changed, it will be killed and re-created."]
    );
    eventually("the mortal to have ended", async || {
        let pod = stage.admin().get(&format!("{PODS}/mortal")).await?.ok()?;
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        Ok(matches!(phase, "Succeeded" | "Failed").then_some(()))
    })
    .await?;
    // Whoever began it anew would have done so before the node has run another pod.
    up(&stage, talker(&stage, "later"), "later").await?;
    assert_eq!(std::fs::read_to_string(stage.file("mortal"))?, "up\nTERM\n");
    for name in ["phoenix", "mortal", "later"] {
        delete(&stage, name).await?;
        gone(&stage, name).await?;
    }
    containerd.pods_left(0).await?;
    containerd.nothing_astray().await
}
