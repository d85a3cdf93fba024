//! Volumes of pods on the `process` runtime, with a stock kubectl. Root only: mounting takes it.

use std::fs;

use belay_testkit::instance::NODE;
use belay_testkit::skip::skip;
use belay_testkit::{Instance, Kubectl, eventually, lines, pod, until_file};
use serde_json::{Value, json};
use volumes::{Place, mounted};

mod volumes;

async fn place() -> anyhow::Result<Option<Place<'static>>> {
    if !rustix::process::geteuid().is_root() {
        skip("volumes of the process runtime: only root can mount");
        return Ok(None);
    }
    Ok(Place::on(Instance::shared().await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_reads_what_kubectl_made() -> anyhow::Result<()> {
    match place().await? {
        Some(place) => volumes::a_pod_reads_what_kubectl_made(&place).await,
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_waited_for() -> anyhow::Result<()> {
    match place().await? {
        Some(place) => volumes::what_is_missing_is_waited_for(&place).await,
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_path_has_to_be_what_it_is_taken_for() -> anyhow::Result<()> {
    match place().await? {
        Some(place) => volumes::a_host_path_has_to_be_what_it_is_taken_for(&place).await,
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_notifiers_see_the_containers_volumes() -> anyhow::Result<()> {
    match place().await? {
        Some(place) => volumes::probes_and_notifiers_see_the_containers_volumes(&place).await,
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_the_host_does_not_have_is_a_mistake_in_the_spec() -> anyhow::Result<()> {
    let Some(place) = place().await? else {
        return Ok(());
    };
    let manifest = pod("nowhere")
        .idle("main")
        .container_field(
            "volumeMounts",
            json!([{"name": "v", "mountPath": "/no/such/place"}]),
        )
        .spec("volumes", json!([{"name": "v", "emptyDir": {}}]))
        .build();
    place.kubectl.create(&manifest).await?;
    eventually("the reason", async || {
        let pod = place.kubectl.json(&["get", "pod", "nowhere"]).await?;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        let message = waiting["message"].as_str().unwrap_or_default();
        let told = message.contains("/no/such/place") && message.contains("create it");
        Ok((told && waiting["reason"] == "CreateContainerConfigError").then_some(()))
    })
    .await?;
    place.delete("nowhere").await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_pod_is_refused_in_kubernetes_words() -> anyhow::Result<()> {
    let Some(place) = place().await? else {
        return Ok(());
    };
    let refused = async |field: &str, value: Value, spec: Value, words: &str| {
        let mut manifest = pod("bad")
            .idle("main")
            .container_field(field, value)
            .build();
        for (field, value) in spec.as_object().into_iter().flatten() {
            manifest["spec"][field] = value.clone();
        }
        let ended = place
            .kubectl
            .with_object(&["create", "-f", "-"], &manifest)
            .await?;
        assert!(
            !ended.success && ended.stderr.contains(words),
            "{}",
            ended.stderr
        );
        anyhow::Ok(())
    };
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {}}]});
    refused(
        "volumeMounts",
        json!([{"name": "x", "mountPath": "/x"}]),
        volumes.clone(),
        "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
    )
    .await?;
    refused(
        "volumeMounts",
        json!([{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "/x"}]),
        volumes,
        "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/x\": must be unique",
    )
    .await?;
    refused(
        "env",
        json!([]),
        json!({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]}),
        "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
    )
    .await?;
    refused(
        "resources",
        json!({"requests": {"memory": "-1"}}),
        json!({}),
        "must be greater than or equal to 0",
    )
    .await?;
    refused(
        "resources",
        json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
        json!({}),
        "must be less than or equal to cpu limit",
    )
    .await
}

/// The server and an agent apart, so that one can be away without the other.
async fn apart() -> anyhow::Result<Option<(Instance, Kubectl)>> {
    if !rustix::process::geteuid().is_root() {
        skip("volumes of the process runtime: only root can mount");
        return Ok(None);
    }
    let mut instance = Instance::server().start().await?;
    instance.start_agent(NODE, &[]).await?;
    Ok(Kubectl::of(&instance).map(|kubectl| (instance, kubectl)))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_while_it_sets_up_goes_on_and_leaves_nothing() -> anyhow::Result<()>
{
    let Some((mut instance, kubectl)) = apart().await? else {
        return Ok(());
    };
    let agent = instance.dir().join(NODE);
    let (mount, out) = (instance.file("mnt"), instance.file("out"));
    fs::create_dir(&mount)?;
    let script = format!("cat {mount}/k >> {out}; exec sleep 1000");
    let manifest = pod("p")
        .container("main", ["sh", "-c", &script])
        .container_field("volumeMounts", json!([{"name": "m", "mountPath": mount}]))
        .spec(
            "volumes",
            json!([{"name": "e", "emptyDir": {"medium": "Memory"}}, {"name": "d", "emptyDir": {}},
                   {"name": "m", "configMap": {"name": "m"}}]),
        )
        .build();
    kubectl.create(&manifest).await?;
    let uid = eventually("the first volumes", async || {
        let pod = kubectl.json(&["get", "pod", "p"]).await?;
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let volumes = agent.join("pods").join(uid).join("volumes/emptyDir");
        let there = volumes.join("d").exists() && !mounted(&volumes.join("e"))?.is_empty();
        Ok(there.then(|| uid.to_owned()))
    })
    .await?;
    instance.kill9_agent(NODE).await?;
    let dir = agent.join("pods").join(&uid);
    // What an agent in the middle of a write leaves.
    let half = dir.join("volumes/configMap/m/..2026_half");
    fs::create_dir_all(&half)?;
    fs::write(half.join("k"), "ha")?;
    kubectl
        .ok(&["create", "configmap", "m", "--from-literal=k=whole"])
        .await?;
    instance.start_agent(NODE, &[]).await?;
    until_file(&out, |text| text == "whole").await?;
    assert!(!half.exists());
    assert_eq!(mounted(&dir)?.len(), 1, "mounted once");
    // The pod goes while the agent is away: its volumes go when it is back.
    instance.kill9_agent(NODE).await?;
    kubectl
        .ok(&["delete", "pod", "p", "--force", "--grace-period=0"])
        .await?;
    instance.start_agent(NODE, &[]).await?;
    eventually("the volumes to be gone", async || {
        Ok((!dir.exists() && mounted(&dir)?.is_empty()).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_started_again_with_what_is_known_while_the_server_is_away()
-> anyhow::Result<()> {
    let Some((mut instance, kubectl)) = apart().await? else {
        return Ok(());
    };
    let (mount, out) = (instance.file("mnt"), instance.file("out"));
    fs::create_dir(&mount)?;
    kubectl
        .ok(&["create", "configmap", "m", "--from-literal=k=v"])
        .await?;
    // Two dollars are one to Kubernetes.
    let script = format!("echo $K-$(cat {mount}/k)-$$$$ >> {out}; exec sleep 1000");
    let manifest = pod("p")
        .container("main", ["sh", "-c", &script])
        .container_field("volumeMounts", json!([{"name": "m", "mountPath": mount}]))
        .container_field(
            "env",
            json!([{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]),
        )
        .spec(
            "volumes",
            json!([{"name": "m", "configMap": {"name": "m"}}]),
        )
        .build();
    kubectl.ready_pod(&manifest).await?;
    let first = until_file(&out, |text| text.lines().count() == 1).await?;
    let pid = first
        .trim()
        .rsplit('-')
        .next()
        .unwrap_or_default()
        .to_owned();
    instance.kill9().await?;
    let killed = std::process::Command::new("kill")
        .args(["-9", &pid])
        .status()?;
    assert!(killed.success());
    let both = until_file(&out, |_| lines(&out) == 2).await?;
    for line in both.lines() {
        assert!(line.starts_with("v-v-"), "{both}");
    }
    Ok(())
}
