//! Pods that go, come back under the same name, or restart while a fan-out is under way on a real
//! Kubernetes: none is taken for another.

use std::collections::BTreeMap;

use anyhow::Context as _;
use belay_testkit::{
    Cluster, NOTIFICATIONS, PODS, Rest, Stage, eventually_within, exec, notification, pod,
    processes,
};
use serde_json::{Value, json};

use fleet::{
    Incarnation, LONG, PATIENCE, SLOTS, begun, children, complete, counted, delivered_to, fan_out,
    incarnations, let_end, member, pod_of, run_all, runs, settled, told_truly,
};

#[path = "chaos/fleet.rs"]
mod fleet;

const APP: &str = "moving";
const COUNT: usize = 11;
/// So many run, so many wait for a slot of the agent, the others have not been created.
const RUNNING: usize = 2;
const QUEUED: usize = 3;

/// Takes all slots of the agent but [`RUNNING`] with handlers of a pod of this name, until the file
/// that is returned is there.
async fn fill_slots(stage: &Stage, filler: &str) -> anyhow::Result<String> {
    let (file, gate) = (stage.file(filler), stage.file(&format!("{filler}.go")));
    let wait = format!("echo ran >> {file}; while [ ! -e {gate} ]; do sleep 0.2; done");
    let manifest = pod(filler)
        .idle("main")
        .notifier("wait", exec(["sh", "-c", &wait]).timeout(LONG));
    stage.run(manifest).await?;
    for number in 0..SLOTS - RUNNING {
        let object = notification(&format!("{filler}-{number}"), filler, "wait").deadline(LONG);
        let reply = stage.admin().post(NOTIFICATIONS, &object.build()).await?;
        reply.ok()?;
    }
    eventually_within(PATIENCE, "the slots to be taken", async || {
        Ok((belay_testkit::lines(&file) == SLOTS - RUNNING).then_some(()))
    })
    .await?;
    Ok(gate)
}

/// Deletes the pod without waiting for it, and creates one of the same name.
async fn replace(stage: &Stage, pod: &str) -> anyhow::Result<Incarnation> {
    let before = settled(stage, pod).await?;
    delete(stage.admin(), pod).await?;
    let successor = member(stage, APP, pod, &["move"], 0);
    eventually_within(PATIENCE, "the name to be free", async || {
        stage.create(successor.clone()).await.map(Some)
    })
    .await?;
    eventually_within(PATIENCE, "the successor", async || {
        let now = settled(stage, pod).await?;
        Ok((now.uid != before.uid && now.container != before.container).then_some(now))
    })
    .await
}

/// Ends the container of a pod, and waits until its successor runs.
async fn restart(stage: &Stage, pod: &str) -> anyhow::Result<Incarnation> {
    let before = settled(stage, pod).await?;
    let first = processes::with_environment(&format!("HOSTNAME={pod}"))
        .into_iter()
        .find(|process| processes::is_first_in_namespace(process.pid));
    processes::kill(first.context("the container runs")?.pid);
    eventually_within(PATIENCE, &format!("a successor in {pod}"), async || {
        let now = settled(stage, pod).await?;
        Ok((now.container != before.container && now.word != before.word).then_some(now))
    })
    .await
}

/// Without any time to end.
async fn delete(admin: &Rest, pod: &str) -> anyhow::Result<()> {
    let now = json!({"gracePeriodSeconds": 0});
    let reply = admin.delete_with(&format!("{PODS}/{pod}"), &now).await?;
    reply.ok().map(drop)
}

/// With so much time to end, or as much as the pod has.
async fn evict(admin: &Rest, pod: &str, grace: Option<u32>) -> anyhow::Result<()> {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod},
        "deleteOptions": {"gracePeriodSeconds": grace},
    });
    let reply = admin
        .post(&format!("{PODS}/{pod}/eviction"), &eviction)
        .await?;
    reply.ok().map(drop)
}

fn error_of(child: &Value) -> &str {
    let container = &child["status"]["containers"][0]["error"]["type"];
    let whole = &child["status"]["error"]["type"];
    container.as_str().or(whole.as_str()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_go_and_come_back_are_other_pods() -> anyhow::Result<()> {
    let Some(cluster) = Cluster::with_belay().await? else {
        return Ok(());
    };
    let stage = Stage::of(&cluster).await?;
    let admin = stage.admin();
    let_end(&stage, "move", 0)?;
    let names: Vec<String> = (0..COUNT).map(|number| format!("{APP}-{number}")).collect();
    let pods = names
        .iter()
        .map(|pod| member(&stage, APP, pod, &["move"], 0));
    run_all(&stage, pods.collect()).await?;
    let filler = fill_slots(&stage, "filler").await?;
    let who = incarnations(&stage, APP).await?;
    fan_out(&stage, APP, "move", RUNNING + QUEUED).await?;
    begun(&stage, "move", RUNNING).await?;
    let claimed = eventually_within(PATIENCE, "claims", async || {
        let mut children = children(admin, "move").await?;
        children.retain(|child| child["status"]["startTime"].is_string());
        Ok((children.len() == RUNNING + QUEUED).then_some(children))
    })
    .await?;

    // Who is where; nothing of it changes before something is done to them.
    let claimed: Vec<&str> = claimed.iter().map(pod_of).collect();
    let (running, queued): (Vec<&str>, Vec<&str>) = claimed
        .into_iter()
        .partition(|pod| runs(&stage, "move", pod) > 0);
    assert_eq!((running.len(), queued.len()), (RUNNING, QUEUED));
    let mut waiting = names.iter().map(String::as_str);
    let mut waiting = || {
        waiting
            .find(|pod| !running.contains(pod) && !queued.contains(pod))
            .context("most have not had their turn")
    };
    let (replaced, evicted, deleted, restarted) = (waiting()?, waiting()?, waiting()?, waiting()?);
    // One after the other, those first whose turn is farthest away.
    let mut successors = BTreeMap::new();
    successors.insert(replaced, replace(&stage, replaced).await?);
    evict(admin, evicted, Some(0)).await?;
    delete(admin, deleted).await?;
    let reborn = restart(&stage, restarted).await?;
    let [queued_replaced, queued_restarted, ..] = queued[..] else {
        anyhow::bail!("too few are queued");
    };
    successors.insert(queued_replaced, replace(&stage, queued_replaced).await?);
    restart(&stage, queued_restarted).await?;
    let [running_replaced, running_restarted] = running[..] else {
        anyhow::bail!("too few run");
    };
    successors.insert(running_replaced, replace(&stage, running_replaced).await?);
    restart(&stage, running_restarted).await?;
    // A container that is being stopped runs for a moment more; nobody's handler may end in it.
    let hit = [
        queued_replaced,
        queued_restarted,
        running_replaced,
        running_restarted,
    ];
    eventually_within(PATIENCE, "those that were hit to end", async || {
        let children = children(admin, "move").await?;
        let ended = |child: &&Value| child["status"]["completeTime"].is_string();
        let ended = children
            .iter()
            .filter(ended)
            .filter(|child| hit.contains(&pod_of(child)));
        Ok((ended.count() == hit.len()).then_some(()))
    })
    .await?;
    let_end(&stage, "move", COUNT)?;
    std::fs::write(filler, "")?;

    let done = complete(admin, "move").await?;
    let children = children(admin, "move").await?;
    counted(&done, &children, COUNT);
    for child in &children {
        let pod = pod_of(child);
        let before = who.get(pod).context("a pod of the fleet")?;
        let (state, error) = (&child["status"]["state"], error_of(child));
        let count = runs(&stage, "move", pod);
        println!("{pod}: {state} {error:?}, ran {count} times");
        assert_eq!(child["spec"]["podUID"], json!(before.uid), "{child:#}");
        if [replaced, evicted, deleted].contains(&pod) {
            assert_eq!((error, count), ("PodNotFound", 0), "{child:#}");
        } else if pod == queued_replaced {
            // The kubelet ends its container when it comes to it. If a slot is free before that, the
            // handler begins in the container that it was meant for, and ends with it.
            let expected = [
                "PodNotFound",
                "PodTerminating",
                "ContainerNotRunning",
                "ContainerRestarted",
            ];
            assert!(expected.contains(&error), "{child:#}");
            if count > 0 {
                assert_eq!((error, count), ("ContainerRestarted", 1), "{child:#}");
                delivered_to(&stage, "move", child, before);
            }
        } else if pod == queued_restarted {
            assert_eq!((error, count), ("ContainerRestarted", 0), "{child:#}");
        } else if [running_replaced, running_restarted].contains(&pod) {
            assert_eq!((error, count), ("ContainerRestarted", 1), "{child:#}");
            delivered_to(&stage, "move", child, before);
        } else {
            told_truly(child, 0);
            assert_eq!(count, 1, "{child:#}");
            // What restarts before its turn is notified as what it is then.
            let who = if pod == restarted { &reborn } else { before };
            delivered_to(&stage, "move", child, who);
        }
    }
    assert_eq!(done["status"]["failedCount"], 7, "{done:#}");
    // The successors run, untouched: they can be notified by whoever means them.
    for (pod, successor) in successors {
        assert_eq!(settled(&stage, pod).await?, successor);
    }
    pods_that_have_time_to_end_do_what_they_were_asked(&stage).await
}

/// A pod that is deleted or evicted with a grace lives on for a while: what it was asked before that is
/// done, and nothing that it is asked later.
async fn pods_that_have_time_to_end_do_what_they_were_asked(stage: &Stage) -> anyhow::Result<()> {
    const LEAVING: &str = "leaving";
    const COUNT: usize = RUNNING + 2;
    let admin = stage.admin();
    let_end(stage, "leave", 0)?;
    let names: Vec<String> = (0..COUNT)
        .map(|number| format!("{LEAVING}-{number}"))
        .collect();
    // The first process of a container hears no SIGTERM, so each of them takes all its grace.
    let pods = names
        .iter()
        .map(|pod| member(stage, LEAVING, pod, &["leave"], 0).grace(LONG));
    run_all(stage, pods.collect()).await?;
    let filler = fill_slots(stage, "another-filler").await?;
    let who = incarnations(stage, LEAVING).await?;
    // Two run, one waits for a slot, and one has not had its turn.
    fan_out(stage, LEAVING, "leave", RUNNING + 1).await?;
    begun(stage, "leave", RUNNING).await?;
    let claimed = eventually_within(PATIENCE, "claims", async || {
        let mut children = children(admin, "leave").await?;
        children.retain(|child| child["status"]["startTime"].is_string());
        Ok((children.len() == RUNNING + 1).then_some(children))
    })
    .await?;
    let claimed: Vec<&str> = claimed.iter().map(pod_of).collect();
    let (running, queued): (Vec<&str>, Vec<&str>) = claimed
        .into_iter()
        .partition(|pod| runs(stage, "leave", pod) > 0);
    let ([deleted, evicted], [queued]) = (&running[..], &queued[..]) else {
        anyhow::bail!("{running:?} run, {queued:?} wait");
    };
    evict(admin, evicted, None).await?;
    for pod in names.iter().filter(|pod| pod != evicted) {
        admin.delete(&format!("{PODS}/{pod}")).await?.ok()?;
    }
    for pod in &names {
        let leaves = |pod: &Value| {
            pod["metadata"]["deletionTimestamp"]
                .is_string()
                .then_some(())
        };
        admin
            .until(&format!("{PODS}/{pod}"), "its deletion", leaves)
            .await?;
    }
    for pod in [deleted, evicted] {
        let asked = notification(&format!("{pod}-late"), pod, "leave").build();
        let late = admin.notify(&asked).await?;
        assert_eq!(error_of(&late), "PodTerminating", "{late:#}");
        assert_eq!(late["status"]["containers"], Value::Null, "{late:#}");
    }
    let_end(stage, "leave", COUNT)?;

    let done = complete(admin, "leave").await?;
    let children = children(admin, "leave").await?;
    counted(&done, &children, COUNT);
    for child in &children {
        let pod = pod_of(child);
        let (error, count) = (error_of(child), runs(stage, "leave", pod));
        println!("{pod}: {error:?}, ran {count} times");
        if [*deleted, *evicted, *queued].contains(&pod) {
            told_truly(child, 0);
            assert_eq!(count, 1, "{child:#}");
            delivered_to(
                stage,
                "leave",
                child,
                who.get(pod).context("a pod that leaves")?,
            );
        } else {
            assert_eq!((error, count), ("PodTerminating", 0), "{child:#}");
        }
    }
    std::fs::write(filler, "")?;
    // Nobody waits for the rest of an hour.
    for pod in &names {
        delete(admin, pod).await?;
    }
    Ok(())
}
