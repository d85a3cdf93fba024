//! A fan-out over a hundred pods on a real Kubernetes while everything around it dies: every
//! outcome is true, nothing reaches another incarnation, the counts are right.

use std::time::Duration;

use belay_testkit::{
    Cluster, NOTIFICATIONS, PODS, Part, Rest, Stage, eventually_within, exec, lines, pod,
    processes, rest::name,
};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

const FANOUTS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/notifications";
const PATIENCE: Duration = Duration::from_secs(300);

/// Pods that append a line to a file of their own, and take a moment for it.
async fn fleet(stage: &Stage, app: &str, count: usize, seconds: u32) -> anyhow::Result<()> {
    let creations = (0..count).map(|number| {
        let file = stage.file(&format!("{app}-{number}"));
        let script = format!("echo $HOSTNAME >> {file}; sleep {seconds}");
        let manifest = pod(&format!("{app}-{number}"))
            .label("app", app)
            .idle("main")
            .notifier("mark", exec(["sh", "-c", &script]).timeout(120));
        stage.create(manifest)
    });
    futures::stream::iter(creations)
        .buffer_unordered(8)
        .try_collect::<Vec<_>>()
        .await?;
    eventually_within(PATIENCE, "the fleet to run", async || {
        let list = stage
            .admin()
            .get(&format!("{PODS}?labelSelector=app%3D{app}"))
            .await?
            .ok()?;
        let running = items(&list)
            .filter(|pod| pod["status"]["containerStatuses"][0]["ready"] == true)
            .count();
        Ok((running == count).then_some(()))
    })
    .await
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

async fn fan_out(admin: &Rest, app: &str, spec: Value) -> anyhow::Result<()> {
    let mut object = json!({
        "apiVersion": "apps.k8s.io/v1alpha1",
        "kind": "Notification",
        "metadata": {"name": app},
        "spec": {
            "selector": {"matchLabels": {"app": app}},
            "notifier": "mark",
            "policy": "PreExistingPods",
            "deadlineSeconds": 280,
        },
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    admin.post(FANOUTS, &object).await?.ok().map(drop)
}

/// The notifications of a fan-out, by the pod they are for.
async fn children(admin: &Rest, app: &str) -> anyhow::Result<Vec<Value>> {
    let list = admin.get(NOTIFICATIONS).await?.ok()?;
    let of_app = format!("{app}-");
    Ok(items(&list)
        .filter(|child| {
            child["spec"]["podName"]
                .as_str()
                .is_some_and(|pod| pod.starts_with(&of_app))
        })
        .cloned()
        .collect())
}

/// Waits until that many handlers have begun, as their files tell.
async fn begun(stage: &Stage, app: &str, count: usize, wanted: usize) -> anyhow::Result<()> {
    eventually_within(PATIENCE, "handlers to begin", async || {
        let begun = (0..count)
            .filter(|number| lines(&stage.file(&format!("{app}-{number}"))) > 0)
            .count();
        Ok((begun >= wanted).then_some(()))
    })
    .await
}

/// Waits until the fan-out is complete; returns it.
async fn complete(admin: &Rest, app: &str) -> anyhow::Result<Value> {
    eventually_within(PATIENCE, "the fan-out to complete", async || {
        let object = admin.get(&format!("{FANOUTS}/{app}")).await?.ok()?;
        let done = object["status"]["completeTime"].is_string();
        Ok(done.then_some(object))
    })
    .await
}

/// What a status says against what the pod's file says.
fn told_the_truth(stage: &Stage, child: &Value) {
    let pod = child["spec"]["podName"].as_str().unwrap_or_default();
    let ran = lines(&stage.file(pod));
    let container = &child["status"]["containers"][0];
    let attempts = container["attempts"].as_u64().unwrap_or(0);
    match child["status"]["state"].as_str() {
        Some("Succeeded") => {
            assert_eq!(ran as u64, attempts, "{pod}: {child:#}");
        }
        Some("Failed") => {
            let error = container["error"]["type"]
                .as_str()
                .or(child["status"]["error"]["type"].as_str());
            let nothing_ran = matches!(
                error,
                Some("Expired" | "PodNotFound" | "PodTerminating" | "ContainerNotRunning")
            );
            assert!(!nothing_ran || ran == 0, "{pod}: {child:#}");
        }
        state => panic!("{pod} is {state:?}: {child:#}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fan_out_over_a_hundred_pods_survives_the_end_of_every_part() -> anyhow::Result<()> {
    const COUNT: usize = 100;
    let Some(mut cluster) = Cluster::with_belay().await? else {
        return Ok(());
    };
    let stage = Stage::of(&cluster).await?;
    fleet(&stage, "fleet", COUNT, 3).await?;
    fan_out(stage.admin(), "fleet", json!({})).await?;

    begun(&stage, "fleet", COUNT, 10).await?;
    cluster.kill9_role("belay agent")?;
    begun(&stage, "fleet", COUNT, 25).await?;
    cluster.kill9_role("belay controller")?;
    for (wanted, part) in [
        (40, Part::Kubelet),
        (55, Part::Containerd),
        (70, Part::ApiServer),
    ] {
        begun(&stage, "fleet", COUNT, wanted).await?;
        cluster.kill9(part).await?;
        cluster.start_part(part)?;
    }
    cluster.api_server_ready().await?;

    let done = complete(stage.admin(), "fleet").await?;
    let children = children(stage.admin(), "fleet").await?;
    assert_eq!(children.len(), COUNT, "one for each pod");
    for child in &children {
        told_the_truth(&stage, child);
    }
    let succeeded = children
        .iter()
        .filter(|child| child["status"]["state"] == "Succeeded")
        .count();
    assert_eq!(done["status"]["succeededCount"], succeeded, "{done:#}");
    assert_eq!(
        done["status"]["failedCount"].as_u64().unwrap_or(0),
        (COUNT - succeeded) as u64,
        "{done:#}"
    );
    let failed: Vec<_> = children
        .iter()
        .filter(|child| child["status"]["state"] != "Succeeded")
        .collect();
    assert!(failed.is_empty(), "all could be delivered: {failed:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_away_for_a_minute_loses_nothing() -> anyhow::Result<()> {
    const COUNT: usize = 24;
    let Some(mut cluster) = Cluster::with_belay().await? else {
        return Ok(());
    };
    let stage = Stage::of(&cluster).await?;
    fleet(&stage, "away", COUNT, 2).await?;
    fan_out(stage.admin(), "away", json!({})).await?;
    begun(&stage, "away", COUNT, 8).await?;
    cluster.kill9(Part::ApiServer).await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    cluster.start_part(Part::ApiServer)?;
    cluster.api_server_ready().await?;
    let done = complete(stage.admin(), "away").await?;
    assert_eq!(done["status"]["succeededCount"], COUNT, "{done:#}");
    for child in children(stage.admin(), "away").await? {
        told_the_truth(&stage, &child);
        let pod = child["spec"]["podName"].as_str().unwrap_or_default();
        assert_eq!(lines(&stage.file(pod)), 1, "{pod} ran once");
    }
    Ok(())
}

/// Pods that go, come back under the same name, or restart while the fan-out is under way.
#[tokio::test(flavor = "multi_thread")]
async fn pods_that_go_and_come_back_are_other_pods() -> anyhow::Result<()> {
    const COUNT: usize = 12;
    let Some(cluster) = Cluster::with_belay().await? else {
        return Ok(());
    };
    let stage = Stage::of(&cluster).await?;
    let admin = stage.admin();
    fleet(&stage, "moving", COUNT, 4).await?;
    let uid = async |pod: &str| -> anyhow::Result<Value> {
        let pod = admin.get(&format!("{PODS}/{pod}")).await?.ok()?;
        Ok(pod["metadata"]["uid"].clone())
    };
    fan_out(admin, "moving", json!({"parallelism": 3})).await?;
    begun(&stage, "moving", COUNT, 1).await?;

    // Of those whose turn has not come: one is replaced, one evicted, one deleted.
    let waiting: Vec<String> = (0..COUNT)
        .map(|number| format!("moving-{number}"))
        .filter(|pod| lines(&stage.file(pod)) == 0)
        .collect();
    let asked: Vec<String> = children(admin, "moving")
        .await?
        .iter()
        .filter_map(|child| Some(child["spec"]["podName"].as_str()?.to_owned()))
        .collect();
    let mut waiting = waiting.into_iter().filter(|pod| !asked.contains(pod));
    let mut next = || waiting.next().expect("most have not had their turn");
    let (replaced, evicted, deleted) = (next(), next(), next());
    let old = uid(&replaced).await?;
    let now = json!({"gracePeriodSeconds": 0});
    for pod in [&replaced, &deleted] {
        admin
            .delete_with(&format!("{PODS}/{pod}"), &now)
            .await?
            .ok()?;
    }
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": evicted}, "deleteOptions": now,
    });
    admin
        .post(&format!("{PODS}/{evicted}/eviction"), &eviction)
        .await?
        .ok()?;
    let script = format!("echo successor >> {}; true", stage.file(&replaced));
    let successor = pod(&replaced)
        .label("app", "moving")
        .idle("main")
        .notifier("mark", exec(["sh", "-c", &script]).timeout(120));
    eventually_within(PATIENCE, "the name to be free", async || {
        stage.create(successor.clone()).await.map(Some)
    })
    .await?;
    admin.running(&replaced).await?;
    assert_ne!(uid(&replaced).await?, old);

    // Of those that run now: one's container ends in the middle of its handler.
    let running = eventually_within(PATIENCE, "a handler that runs", async || {
        Ok(children(admin, "moving").await?.into_iter().find(|child| {
            let pod = child["spec"]["podName"].as_str().unwrap_or_default();
            child["status"]["state"] == "New"
                && lines(&stage.file(pod)) == 1
                && ![&replaced, &evicted, &deleted].contains(&&pod.to_owned())
        }))
    })
    .await?;
    let interrupted = running["spec"]["podName"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let first = processes::with_environment(&format!("HOSTNAME={interrupted}"))
        .into_iter()
        .find(|process| processes::is_first_in_namespace(process.pid));
    processes::kill(first.expect("the container runs").pid);

    let done = complete(admin, "moving").await?;
    let children = children(admin, "moving").await?;
    for child in &children {
        let pod = child["spec"]["podName"].as_str().unwrap_or_default();
        let state = child["status"]["state"].as_str().unwrap_or_default();
        if [&replaced, &evicted, &deleted].contains(&&pod.to_owned()) {
            assert_eq!(state, "Failed", "{pod}: {child:#}");
            assert_eq!(lines(&stage.file(pod)), 0, "nothing ran in {pod}");
        } else if pod == interrupted {
            assert_eq!(state, "Failed", "{pod}: {child:#}");
            let error = &child["status"]["containers"][0]["error"]["type"];
            assert_eq!(error, "ContainerRestarted", "{child:#}");
        } else {
            assert_eq!(state, "Succeeded", "{pod}: {child:#}");
            assert_eq!(lines(&stage.file(pod)), 1, "{pod} ran once");
        }
    }
    let failed = children
        .iter()
        .filter(|child| child["status"]["state"] == "Failed")
        .count();
    assert_eq!(done["status"]["failedCount"], failed, "{done:#}");
    assert_eq!(done["status"]["succeededCount"], children.len() - failed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_controllers_one_acts_and_the_other_takes_over() -> anyhow::Result<()> {
    let Some(cluster) = Cluster::with_belay().await? else {
        return Ok(());
    };
    let stage = Stage::of(&cluster).await?;
    let admin = stage.admin();
    fleet(&stage, "taken", 1, 0).await?;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/belay-system/leases/belay-controller";
    let holder = async || -> anyhow::Result<String> {
        let lease = admin.get(lease).await?.ok()?;
        let holder = lease["spec"]["holderIdentity"].as_str();
        Ok(holder.unwrap_or_default().to_owned())
    };
    let first = holder().await?;
    let pods = "/api/v1/namespaces/belay-system/pods";
    let replicas = admin
        .get(&format!(
            "{pods}?labelSelector=app.kubernetes.io%2Fcomponent%3Dcontroller"
        ))
        .await?
        .ok()?;
    assert_eq!(items(&replicas).count(), 2, "{replicas:#}");
    let leader = items(&replicas)
        .find(|pod| first.starts_with(name(pod)))
        .map(|pod| name(pod).to_owned());
    let leader = leader.unwrap_or_else(|| panic!("{first:?} is one of them"));

    let begin = std::time::Instant::now();
    admin
        .delete_with(
            &format!("{pods}/{leader}"),
            &json!({"gracePeriodSeconds": 0}),
        )
        .await?
        .ok()?;
    fan_out(admin, "taken", json!({})).await?;
    let done = complete(admin, "taken").await?;
    println!("taken over and delivered after {:?}", begin.elapsed());
    assert_eq!(done["status"]["succeededCount"], 1, "{done:#}");
    assert_ne!(holder().await?, first);
    Ok(())
}
