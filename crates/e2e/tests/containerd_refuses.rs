//! Pods on a containerd that answers with errors: they start once it does as it is told, containers
//! end by their signal and grace, other pods never notice, and nothing is left behind.

use anyhow::Context as _;
use belay_testkit::containerd::{Containerd, Installation};
use belay_testkit::ends::{LONG, delete, gone, reports};
use belay_testkit::{
    Doorman, Instance, PODS, PodBuilder, Stage, eventually, pod, processes, until_file,
};
use serde_json::json;

/// What the end of a pod with a command as its hook must ask for at least.
const NEEDED: [&str; 8] = [
    "containerd.services.tasks.v1.Tasks/Exec",
    "containerd.services.tasks.v1.Tasks/Start",
    "containerd.services.tasks.v1.Tasks/Wait",
    "containerd.services.tasks.v1.Tasks/DeleteProcess",
    "runtime.v1.RuntimeService/ContainerStatus",
    "runtime.v1.RuntimeService/RemoveContainer",
    "runtime.v1.RuntimeService/StopPodSandbox",
    "runtime.v1.RuntimeService/RemovePodSandbox",
];

/// What the start of a pod cannot do without.
const BEGIN: [&str; 4] = [
    "runtime.v1.ImageService/ImageStatus",
    "runtime.v1.RuntimeService/CreateContainer",
    "runtime.v1.RuntimeService/RunPodSandbox",
    "runtime.v1.RuntimeService/StartContainer",
];

/// A containerd of the test's own, with somebody in front of it, and a node that knows only him.
struct Rig {
    stage: Stage,
    doorman: Doorman,
    _instance: Instance,
    containerd: Containerd,
}

impl Rig {
    async fn start(installation: Option<Installation>) -> anyhow::Result<Option<Self>> {
        let Some(installation) = installation else {
            return Ok(None);
        };
        let containerd = Containerd::start(&installation).await?;
        let socket = containerd.dir().join("doorman.sock");
        let doorman = Doorman::stand(&socket, &containerd.socket())?;
        let instance = Instance::up().at(&doorman.endpoint()).start().await?;
        Ok(Some(Self {
            stage: Stage::on(&instance).await?,
            doorman,
            _instance: instance,
            containerd,
        }))
    }

    async fn up(&self, pod: PodBuilder, name: &str) -> anyhow::Result<()> {
        self.stage.run(pod).await?;
        until_file(&self.stage.file(name), |text| text.contains("up")).await?;
        Ok(())
    }

    /// A pod that says in a file of its own name that it is up, and what it hears of its end.
    fn talker(&self, name: &str) -> PodBuilder {
        let file = self.stage.file(name);
        let hook = json!({ "exec": { "command": ["sh", "-c", format!("echo hook >> {file}")] } });
        pod(name)
            .container("main", ["sh", "-c", &reports(&file, &["TERM"])])
            .container_field("lifecycle", json!({ "preStop": hook }))
            .grace(LONG)
    }

    fn heard(&self, name: &str) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(self.stage.file(name))?)
    }

    /// Warnings about a pod.
    async fn warnings(&self, name: &str) -> anyhow::Result<usize> {
        let events = "/api/v1/namespaces/default/events";
        let path = format!("{events}?fieldSelector=involvedObject.name%3D{name},type%3DWarning");
        let list = self.stage.admin().get(&path).await?.ok()?;
        Ok(list["items"].as_array().map_or(0, Vec::len))
    }

    /// That no process of a pod is left, which is known by its file.
    async fn dead(&self, name: &str) -> anyhow::Result<()> {
        let mark = self.stage.file(name);
        eventually(&format!("the end of the processes of {name}"), async || {
            let left = processes::with_command(&mark);
            anyhow::ensure!(left.is_empty(), "{left:?}");
            Ok(Some(()))
        })
        .await
    }

    async fn is_gone(&self, name: &str) -> anyhow::Result<bool> {
        let reply = self.stage.admin().get(&format!("{PODS}/{name}")).await?;
        Ok(reply.status.as_u16() == 404)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_call_of_an_end_is_refused_the_container_ends_and_the_rest_follows()
-> anyhow::Result<()> {
    let Some(rig) = Rig::start(Installation::oldest()).await? else {
        return Ok(());
    };
    rig.up(rig.talker("bystander"), "bystander").await?;
    let before = rig.stage.health("bystander").await?;
    // One end in peace tells what there is to be refused.
    rig.up(rig.talker("peaceful"), "peaceful").await?;
    rig.doorman.called();
    delete(&rig.stage, "peaceful").await?;
    gone(&rig.stage, "peaceful").await?;
    assert_eq!(rig.heard("peaceful")?, "up\nhook\nTERM\n");
    let calls = rig.doorman.called();
    for needed in NEEDED {
        assert!(calls.contains(needed), "{needed} is not in {calls:?}");
    }
    for (number, call) in calls.iter().enumerate() {
        let name = format!("refused-{number}");
        rig.up(rig.talker(&name), &name).await?;
        rig.doorman.turned_away();
        rig.doorman.refuse(call);
        delete(&rig.stage, &name).await?;
        rig.dead(&name).await.context(call.clone())?;
        let heard = rig.heard(&name)?;
        let heard = heard
            .strip_prefix("up\n")
            .and_then(|rest| rest.strip_suffix("TERM\n"));
        // A hook that was not allowed to start has failed, and that holds nothing up.
        assert!(matches!(heard, Some("hook\n" | "")), "{call}: {heard:?}");
        eventually(&format!("{call} to be refused"), async || {
            let refused = rig.doorman.turned_away() > 0;
            Ok((refused || rig.is_gone(&name).await?).then_some(()))
        })
        .await?;
        rig.doorman.let_through();
        gone(&rig.stage, &name).await.context(call.clone())?;
        rig.containerd.pods_left(1).await.context(call.clone())?;
        assert_eq!(rig.stage.health("bystander").await?, before, "{call}");
    }
    delete(&rig.stage, "bystander").await?;
    gone(&rig.stage, "bystander").await?;
    assert_eq!(rig.heard("bystander")?, "up\nhook\nTERM\n");
    rig.containerd.pods_left(0).await?;
    rig.containerd.nothing_astray().await
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_call_of_a_start_is_refused_the_pod_says_so_and_starts_once_when_it_may()
-> anyhow::Result<()> {
    let Some(rig) = Rig::start(Installation::newest()).await? else {
        return Ok(());
    };
    rig.up(rig.talker("bystander"), "bystander").await?;
    let before = rig.stage.health("bystander").await?;
    // One start in peace tells what there is to be refused.
    rig.doorman.called();
    rig.up(rig.talker("peaceful"), "peaceful").await?;
    let calls = rig.doorman.called();
    for needed in BEGIN {
        assert!(calls.contains(needed), "{needed} is not in {calls:?}");
    }
    let mut names = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        let name = format!("refused-{number}");
        rig.doorman.refuse(call);
        rig.stage.create(rig.talker(&name)).await?;
        let needed = BEGIN.contains(&call.as_str());
        eventually(&format!("{call} to be missed"), async || {
            let up = std::fs::exists(rig.stage.file(&name))?;
            anyhow::ensure!(!(up && needed), "it runs without {call}");
            Ok((up || rig.warnings(&name).await? > 0).then_some(()))
        })
        .await?;
        assert_eq!(rig.stage.health("bystander").await?, before, "{call}");
        names.push(name);
    }
    rig.doorman.let_through();
    for (name, call) in names.iter().zip(&calls) {
        let running = rig.stage.admin().running(name).await;
        running.context(call.clone())?;
        until_file(&rig.stage.file(name), |text| text.contains("up")).await?;
    }
    for name in names
        .iter()
        .map(String::as_str)
        .chain(["peaceful", "bystander"])
    {
        delete(&rig.stage, name).await?;
        gone(&rig.stage, name).await?;
        assert_eq!(rig.heard(name)?, "up\nhook\nTERM\n", "{name}");
    }
    rig.containerd.pods_left(0).await?;
    rig.containerd.nothing_astray().await
}

#[tokio::test(flavor = "multi_thread")]
async fn while_everything_is_refused_containers_end_by_signal_and_by_grace() -> anyhow::Result<()> {
    for installation in Installation::each() {
        ends_by_signal_and_by_grace(installation).await?;
    }
    Ok(())
}

async fn ends_by_signal_and_by_grace(installation: Installation) -> anyhow::Result<()> {
    let Some(rig) = Rig::start(Some(installation)).await? else {
        return Ok(());
    };
    let bystander = rig.talker("bystander").probed();
    rig.up(bystander, "bystander").await?;
    rig.up(rig.talker("leaving"), "leaving").await?;
    let file = rig.stage.file("staying");
    let deaf = format!("trap '' TERM; echo up >> {file}; while :; do sleep 0.05; done");
    let staying = pod("staying")
        .container("main", ["sh", "-c", &deaf])
        .grace(1);
    rig.up(staying, "staying").await?;
    let before = rig.stage.health("bystander").await?;

    rig.doorman.refuse_everything();
    delete(&rig.stage, "leaving").await?;
    delete(&rig.stage, "staying").await?;
    rig.dead("leaving").await?;
    rig.dead("staying").await?;
    assert_eq!(rig.heard("leaving")?, "up\nTERM\n");
    assert!(rig.doorman.turned_away() > 0, "nothing was asked for");
    // Their objects do not wait for ever for a runtime that will not forget them.
    gone(&rig.stage, "leaving").await?;
    gone(&rig.stage, "staying").await?;
    assert_eq!(rig.stage.health("bystander").await?, before);

    rig.doorman.let_through();
    rig.containerd.pods_left(1).await?;
    assert_eq!(rig.stage.health("bystander").await?, before);
    delete(&rig.stage, "bystander").await?;
    gone(&rig.stage, "bystander").await?;
    rig.containerd.pods_left(0).await?;
    rig.containerd.nothing_astray().await
}
