//! Pods that the embedded server's node runs on a real containerd, every version that is installed.

#[path = "kubectl/rotation.rs"]
mod rotation;

use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::containerd::{Containerd, Installation};
use belay_testkit::ends::{delete, gone, reports, told, until_told};
use belay_testkit::image::QUITTER;
use belay_testkit::rest::Watch;
use belay_testkit::{
    CONFIG_MAPS, Instance, Kubectl, PODS, PodBuilder, Rest, Stage, eventually, pod, until_file,
};
use serde_json::{Value, json};
use tokio::time::timeout;

/// No status takes this long to come.
const PATIENCE: Duration = Duration::from_secs(90);

/// A pod with everything: an init container that prepares, a sidecar, and one that uses both.
fn whole(stage: &Stage, name: &str) -> PodBuilder {
    let file = stage.file(&format!("{name}-heard"));
    let say = |word: &str| format!("echo {word} >> {file}");
    let init = json!([
        {"name": "prepare", "image": "none", "command": ["sh", "-c", say("prepare")]},
        {"name": "beside", "image": "none", "restartPolicy": "Always",
         "command": ["sh", "-c", format!("{}; exec sleep 3600", say("beside"))]},
    ]);
    pod(name)
        .container("main", ["sh", "-c", &reports(&file, &["TERM"])])
        .container_field("env", json!([{"name": "WHO", "value": name}]))
        .spec("initContainers", init)
        // Not for ever: the sidecar does not hear its signal.
        .grace(10)
}

/// A status without what is different on every runtime: addresses, identities, times.
fn comparable(mut status: Value) -> Value {
    if let Some(fields) = status.as_object_mut() {
        for field in ["podIP", "podIPs", "startTime"] {
            fields.remove(field);
        }
    }
    for list in ["initContainerStatuses", "containerStatuses"] {
        for container in status[list].as_array_mut().into_iter().flatten() {
            if let Some(fields) = container.as_object_mut() {
                for field in ["containerID", "imageID", "image", "volumeMounts"] {
                    fields.remove(field);
                }
            }
            for state in ["running", "terminated"] {
                if let Some(state) = container["state"][state].as_object_mut() {
                    for field in ["startedAt", "finishedAt", "containerID"] {
                        state.remove(field);
                    }
                }
            }
        }
    }
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = condition.as_object_mut() {
            fields.remove("lastTransitionTime");
        }
    }
    status
}

async fn ready(admin: &Rest, name: &str) -> anyhow::Result<Value> {
    eventually(&format!("{name} to be ready"), async || {
        let pod = admin.get(&format!("{PODS}/{name}")).await?.ok()?;
        let conditions = pod["status"]["conditions"].as_array();
        let ready = conditions.is_some_and(|conditions| {
            let mut conditions = conditions.iter();
            conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
        });
        Ok(ready.then_some(pod))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_applied_with_kubectl_shows_the_same_on_containerd_and_as_processes()
-> anyhow::Result<()> {
    let stages = Stage::on_each_containerd().await?;
    let plain = Stage::on(Instance::shared().await?).await?;
    plain.create(whole(&plain, "same")).await?;
    let expected = comparable(ready(plain.admin(), "same").await?["status"].clone());
    for stage in stages {
        stage.create(whole(&stage, "same")).await?;
        let found = ready(stage.admin(), "same").await?;
        let status = &found["status"];
        assert_eq!(comparable(status.clone()), expected, "{status:#}");
        let container = &status["containerStatuses"][0];
        let id = container["containerID"].as_str().unwrap_or_default();
        assert!(id.starts_with("containerd://"), "{container:#}");
        let image = container["imageID"].as_str().unwrap_or_default();
        assert!(image.contains("sha256:"), "{container:#}");
        assert_ne!(status["podIP"], status["hostIP"], "it has its own address");
        let file = stage.file("same-heard");
        until_file(&file, |text| text.contains("up")).await?;
        let heard = std::fs::read_to_string(&file)?;
        assert!(heard.starts_with("prepare\nbeside\n"), "{heard}");
        delete(&stage, "same").await?;
        gone(&stage, "same").await?;
        let heard = std::fs::read_to_string(&file)?;
        assert_eq!(heard, "prepare\nbeside\nup\nTERM\n");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_and_deletes_on_containerd_and_nothing_is_left() -> anyhow::Result<()> {
    for installation in Installation::each() {
        let containerd = Containerd::shared(&installation).await?;
        let mut instance = Instance::up().on(containerd).start().await?;
        let Some(kubectl) = Kubectl::of(&instance) else {
            return Ok(());
        };
        let stage = Stage::on(&instance).await?;
        let manifest = stage.manifest(whole(&stage, "applied"));
        let file = stage.file("applied.json");
        std::fs::write(&file, manifest.to_string())?;
        kubectl.ok(&["apply", "-f", &file]).await?;
        let before = ready(stage.admin(), "applied").await?;
        let uid = before["metadata"]["uid"]
            .as_str()
            .context("a UID")?
            .to_owned();

        // Killed and started again, the agent finds everything as it was.
        instance.kill9().await?;
        instance.start_again().await?;
        let stage = Stage::on(&instance).await?;
        let after = ready(stage.admin(), "applied").await?;
        for list in ["containerStatuses", "initContainerStatuses"] {
            assert_eq!(after["status"][list], before["status"][list]);
        }
        assert_eq!(after["status"]["podIP"], before["status"]["podIP"]);

        delete(&stage, "applied").await?;
        gone(&stage, "applied").await?;
        let mark = stage.file("applied-heard");
        containerd.nothing_left(&[uid], &mark).await?;
    }
    Ok(())
}

/// The reason and message of a waiting container.
async fn waiting(stage: &Stage, name: &str, reason: &str) -> anyhow::Result<String> {
    eventually(&format!("{name} to wait with {reason}"), async || {
        let pod = stage.admin().get(&format!("{PODS}/{name}")).await?.ok()?;
        let state = &pod["status"]["containerStatuses"][0]["state"];
        anyhow::ensure!(state["waiting"]["reason"] == reason, "{state}");
        let message = state["waiting"]["message"].as_str().unwrap_or_default();
        anyhow::ensure!(pod["status"]["phase"] == "Pending", "{pod:#}");
        Ok(Some(message.to_owned()))
    })
    .await
}

/// Why a container waits, one reason after the other, up to this one.
async fn reasons_up_to(watch: &mut Watch, last: &str) -> anyhow::Result<Vec<String>> {
    let mut reasons = Vec::new();
    loop {
        let event = watch.next().await.context("the watch has ended")?;
        let waiting = &event["object"]["status"]["containerStatuses"][0]["state"]["waiting"];
        let reason = waiting["reason"].as_str().unwrap_or_default().to_owned();
        if reason == last {
            return Ok(reasons);
        }
        reasons.push(reason);
    }
}

/// A container that could not be run has ended, and waits for the next try.
async fn no_command(stage: &Stage) -> anyhow::Result<()> {
    let path = format!("{PODS}/no-command");
    let pod = eventually("the back-off", async || {
        let pod = stage.admin().get(&path).await?.ok()?;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        Ok((waiting["reason"] == "CrashLoopBackOff").then_some(pod))
    });
    let pod = pod.await?;
    let container = &pod["status"]["containerStatuses"][0];
    let message = container["state"]["waiting"]["message"].as_str();
    let message = message.unwrap_or_default();
    let end = "s restarting failed container=main pod=no-command_default(";
    assert!(
        message.starts_with("back-off ") && message.contains(end),
        "{message}"
    );
    let ended = &container["lastState"]["terminated"];
    assert_eq!(ended["reason"], "StartError", "{container:#}");
    assert_eq!(ended["exitCode"], 128);
    let message = ended["message"].as_str().unwrap_or_default();
    assert!(message.contains("/no/such/program"), "{message}");
    until_told(stage, "no-command", "Failed", "/no/such/program").await?;
    let back_off = "Back-off restarting failed container main in pod no-command_default(";
    until_told(stage, "no-command", "BackOff", back_off).await?;
    eventually("the next try to be counted", async || {
        let pod = stage.admin().get(&path).await?.ok()?;
        let count = pod["status"]["containerStatuses"][0]["restartCount"].as_u64();
        Ok((count >= Some(1)).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_pods_wait_with_the_usual_reasons_and_messages() -> anyhow::Result<()> {
    for stage in Stage::on_each_containerd().await? {
        let bad = |name: &str, field: &str, value: Value| {
            pod(name).idle("main").container_field(field, value)
        };
        let create = async |pod: PodBuilder| stage.create(pod).await.map(drop);

        create(bad("no-command", "command", json!(["/no/such/program"]))).await?;
        no_command(&stage).await?;
        let watched = format!("{PODS}?watch=true&fieldSelector=metadata.name%3Dno-image");
        let mut watch = stage.admin().watch(&watched).await?;
        create(bad("no-image", "image", json!("127.0.0.1:1/no/such:1"))).await?;
        create(bad("no-name", "image", json!("library/UPPER"))).await?;
        let never = bad("no-pull", "image", json!("127.0.0.1:1/no/such:1"));
        create(never.container_field("imagePullPolicy", "Never")).await?;
        let from = json!([{"configMapRef": {"name": "no-such-map"}}]);
        create(bad("no-map", "envFrom", from)).await?;

        let reasons = timeout(PATIENCE, reasons_up_to(&mut watch, "ImagePullBackOff")).await??;
        assert!(reasons.contains(&"ErrImagePull".to_owned()), "{reasons:?}");
        let message = waiting(&stage, "no-image", "ImagePullBackOff").await?;
        let begin = "Back-off pulling image \"127.0.0.1:1/no/such:1\": ErrImagePull: ";
        assert!(message.starts_with(begin), "{message}");
        let image = "\"127.0.0.1:1/no/such:1\"";
        until_told(
            &stage,
            "no-image",
            "Pulling",
            &format!("Pulling image {image}"),
        )
        .await?;
        let failed = format!("Failed to pull image {image}: ");
        until_told(&stage, "no-image", "Failed", &failed).await?;
        until_told(&stage, "no-image", "Failed", "Error: ErrImagePull").await?;
        let back_off = format!("Back-off pulling image {image}");
        until_told(&stage, "no-image", "BackOff", &back_off).await?;

        let message = waiting(&stage, "no-name", "InvalidImageName").await?;
        assert!(
            message.contains("couldn't parse image name \"library/UPPER\""),
            "{message}"
        );
        let message = waiting(&stage, "no-pull", "ErrImageNeverPull").await?;
        assert!(
            message.ends_with("is not present with pull policy of Never"),
            "{message}"
        );
        let message = waiting(&stage, "no-map", "CreateContainerConfigError").await?;
        assert_eq!(message, "configmap \"no-such-map\" not found");

        // What was missing comes, and the pod runs without anybody touching it.
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                         "metadata": {"name": "no-such-map"}, "data": {"A": "b"}});
        stage.admin().post(CONFIG_MAPS, &map).await?.ok()?;
        ready(stage.admin(), "no-map").await?;
        for name in ["no-image", "no-name", "no-pull", "no-command", "no-map"] {
            delete(&stage, name).await?;
        }
        for name in ["no-image", "no-name", "no-pull", "no-command", "no-map"] {
            gone(&stage, name).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pod_says_of_names_and_of_system_calls_holds_or_is_told_not_to() -> anyhow::Result<()>
{
    for stage in Stage::on_each_containerd().await? {
        let file = stage.file("named");
        let script = format!(
            "(cat /etc/hosts /etc/resolv.conf; grep Seccomp: /proc/self/status; echo all) > {file}; \
             exec sleep 3600"
        );
        let aliases = json!([{"ip": "192.0.2.1", "hostnames": ["one", "two"]}]);
        let named = pod("named")
            .container("main", ["sh", "-c", &script])
            .spec("hostAliases", aliases)
            .spec("dnsPolicy", json!("None"))
            .spec("dnsConfig", json!({"nameservers": ["192.0.2.53"]}))
            .spec(
                "securityContext",
                json!({"seccompProfile": {"type": "RuntimeDefault"}}),
            );
        stage.create(named.grace(1)).await?;
        let known = ready(stage.admin(), "named").await?;
        let address = known["status"]["podIP"].as_str().context("an address")?;
        let told_names = until_file(&file, |text| text.ends_with("all\n")).await?;
        for line in [
            format!("{address}\tnamed"),
            "192.0.2.1\tone\ttwo".to_owned(),
            "nameserver 192.0.2.53".to_owned(),
            "Seccomp:\t2".to_owned(),
        ] {
            assert!(
                told_names.lines().any(|told| told == line),
                "{line}: {told_names}"
            );
        }

        let alone = pod("alone").idle("main").spec("hostUsers", json!(false));
        stage.create(alone).await?;
        let message = waiting(&stage, "alone", "CreateContainerConfigError").await?;
        assert_eq!(message, "hostUsers: false is not supported by this agent");
        let secret = pod("secret")
            .idle("main")
            .container_field("image", json!("127.0.0.1:1/no/such:1"))
            .spec("imagePullSecrets", json!([{"name": "registry"}]));
        stage.create(secret).await?;
        let words = "is pulled without credentials";
        until_told(&stage, "secret", "FailedToRetrieveImagePullSecret", words).await?;
        for name in ["named", "alone", "secret"] {
            delete(&stage, name).await?;
        }
        for name in ["named", "alone", "secret"] {
            gone(&stage, name).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_a_volume_that_is_not_there_waits_and_one_with_an_impossible_probe_restarts()
-> anyhow::Result<()> {
    for stage in Stage::on_each_containerd().await? {
        let probe = json!({"exec": {"command": ["/no/such/probe"]}, "periodSeconds": 1,
                           "failureThreshold": 1});
        let probed = pod("no-health")
            .idle("main")
            .container_field("livenessProbe", probe);
        stage.create(probed).await?;
        // Its volumes replace those of the stage.
        let mut manifest = stage.manifest(pod("no-volume").idle("main"));
        manifest["spec"]["volumes"] = json!([{"name": "files", "configMap": {"name": "none"}}]);
        stage.admin().post(PODS, &manifest).await?.ok()?;

        until_told(&stage, "no-health", "Unhealthy", "Liveness probe ").await?;
        eventually("a restart", async || {
            let pod = stage
                .admin()
                .get(&format!("{PODS}/no-health"))
                .await?
                .ok()?;
            let count = pod["status"]["containerStatuses"][0]["restartCount"].as_i64();
            Ok((count >= Some(1)).then_some(()))
        })
        .await?;
        // Why is told in events, as a kubelet does.
        let message = waiting(&stage, "no-volume", "ContainerCreating").await?;
        assert_eq!(message, "");
        let part = "MountVolume.SetUp failed for volume \"files\" : configmap \"none\" not found";
        until_told(&stage, "no-volume", "FailedMount", part).await?;
        for name in ["no-health", "no-volume"] {
            delete(&stage, name).await?;
            gone(&stage, name).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_two_nodes_on_one_containerd_leave_each_other_alone() -> anyhow::Result<()> {
    let Some(installation) = Installation::of_this_test() else {
        return Ok(());
    };
    let containerd = Containerd::shared(&installation).await?;
    let mut instance = Instance::server().on(containerd).start().await?;
    for node in ["n1", "n2"] {
        instance.start_agent(node, &[]).await?;
    }
    let stage = Stage::on(&instance).await?;
    for node in ["n1", "n2"] {
        let file = stage.file(&format!("{node}-heard"));
        let script = reports(&file, &["TERM"]);
        let pod = pod(node)
            .container("main", ["sh", "-c", &script])
            .grace(600)
            .node(node);
        stage.create(pod).await?;
        until_file(&file, |text| text.contains("up")).await?;
    }
    let before = ready(stage.admin(), "n1").await?;
    // One that comes back looks for what is its own.
    instance.kill9_agent("n2").await?;
    instance.start_agent("n2", &[]).await?;
    delete(&stage, "n2").await?;
    gone(&stage, "n2").await?;
    let after = stage.admin().get(&format!("{PODS}/n1")).await?.ok()?;
    assert_eq!(
        after["status"]["containerStatuses"],
        before["status"]["containerStatuses"]
    );
    assert_eq!(std::fs::read_to_string(stage.file("n1-heard"))?, "up\n");
    delete(&stage, "n1").await?;
    gone(&stage, "n1").await?;
    assert_eq!(
        std::fs::read_to_string(stage.file("n1-heard"))?,
        "up\nTERM\n"
    );
    Ok(())
}

/// Whether a process is in a control group of this pod: a container's, or the one that holds its
/// sandbox.
fn has_processes(uid: &str) -> anyhow::Result<bool> {
    for entry in std::fs::read_dir("/proc")? {
        let groups = std::fs::read_to_string(entry?.path().join("cgroup"));
        if groups.is_ok_and(|groups| groups.contains(uid)) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_has_come_to_its_end_gives_its_sandbox_back_and_keeps_its_logs()
-> anyhow::Result<()> {
    for installation in Installation::each() {
        let containerd = Containerd::shared(&installation).await?;
        let mut instance = Instance::up().on(containerd).start().await?;
        let Some(kubectl) = Kubectl::of(&instance) else {
            return Ok(());
        };
        let stage = Stage::on(&instance).await?;
        let file = stage.file("done-heard");
        let script = format!("echo ran >> {file}; echo said; sleep 0.1; exit 3");
        let prepare = format!("echo prepared >> {file}");
        let init = json!([{"name": "i", "image": "none", "command": ["sh", "-c", prepare]}]);
        let done = pod("done").container("main", ["sh", "-c", &script]);
        let done = done.restart_policy("Never").spec("initContainers", init);
        stage.create(done).await?;
        let path = format!("{PODS}/done");
        let before = eventually("its end", async || {
            let pod = stage.admin().get(&path).await?.ok()?;
            Ok((pod["status"]["phase"] == "Failed").then_some(pod))
        });
        let before = before.await?;
        let uid = before["metadata"]["uid"].as_str().context("a UID")?;
        assert_ne!(before["status"]["podIP"], before["status"]["hostIP"]);
        eventually("its sandbox to be stopped", async || {
            Ok((!has_processes(uid)?).then_some(()))
        })
        .await?;
        assert_eq!(kubectl.ok(&["logs", "done", "-c", "main"]).await?, "said\n");

        // An agent that is started again neither makes another nor starts anything.
        instance.kill9().await?;
        instance.start_again().await?;
        let stage = Stage::on(&instance).await?;
        stage.create(pod("next").idle("main")).await?;
        ready(stage.admin(), "next").await?;
        let after = stage.admin().get(&path).await?.ok()?;
        assert_eq!(after["status"], before["status"]);
        assert_eq!(std::fs::read_to_string(&file)?, "prepared\nran\n");
        assert!(!has_processes(uid)?);
        assert_eq!(told(&stage, "done", "SandboxChanged").await?.len(), 0);
        assert_eq!(kubectl.ok(&["logs", "done", "-c", "main"]).await?, "said\n");
        for name in ["done", "next"] {
            delete(&stage, name).await?;
            gone(&stage, name).await?;
        }
        containerd.nothing_left(&[uid.to_owned()], &file).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_image_takes_the_place_of_what_runs_or_of_what_cannot_be_had() -> anyhow::Result<()>
{
    for stage in Stage::on_each_containerd().await? {
        let Some(kubectl) = stage.kubectl() else {
            return Ok(());
        };
        let file = stage.file("changed-heard");
        let changed = pod("changed")
            .container("main", ["sh", "-c", &reports(&file, &["TERM", "QUIT"])])
            .grace(600)
            .restart_policy("Never");
        stage.create(changed).await?;
        let missing = pod("missing").idle("main");
        let missing = missing.container_field("image", json!("127.0.0.1:1/no/such:1"));
        stage.create(missing).await?;
        until_file(&file, |text| text.contains("up")).await?;
        let before = ready(stage.admin(), "changed").await?;
        waiting(&stage, "missing", "ImagePullBackOff").await?;

        // This one asks to be stopped with SIGQUIT.
        for name in ["pod/changed", "pod/missing"] {
            let image = format!("main={QUITTER}");
            kubectl.ok(&["set", "image", name, &image]).await?;
        }
        let path = format!("{PODS}/changed");
        let after = eventually("the other image", async || {
            let pod = stage.admin().get(&path).await?.ok()?;
            let main = &pod["status"]["containerStatuses"][0];
            let runs = main["restartCount"] == 1 && main["state"]["running"].is_object();
            Ok(runs.then_some(pod))
        });
        let after = after.await?;
        assert_eq!(after["status"]["phase"], "Running");
        let image = |pod: &Value| pod["status"]["containerStatuses"][0]["imageID"].clone();
        assert_ne!(image(&after), image(&before));
        assert_eq!(after["status"]["podIP"], before["status"]["podIP"]);
        let told = "Container main definition changed, will be restarted";
        until_told(&stage, "changed", "Killing", told).await?;
        ready(stage.admin(), "missing").await?;
        until_file(&file, |text| text.matches("up").count() == 2).await?;
        for name in ["changed", "missing"] {
            delete(&stage, name).await?;
            gone(&stage, name).await?;
        }
        assert_eq!(std::fs::read_to_string(&file)?, "up\nTERM\nup\nQUIT\n");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_grows_too_long_is_rotated_and_no_line_of_it_is_missed() -> anyhow::Result<()> {
    for stage in Stage::on_each_containerd().await? {
        rotation::a_long_log_is_rotated_and_read_over_the_boundary(&stage).await?;
    }
    Ok(())
}
