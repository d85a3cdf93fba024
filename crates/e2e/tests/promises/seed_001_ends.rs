//! A hook always ends, with a clear error for each container, whatever becomes of its pods. Runs on
//! the stage that the file including this one gives.

use belay_testkit::{
    HOOK_ACTIONS, HOOKS, POD_ACTIONS, PODS, Stage, eventually, hook, hook_action, hooked, lines,
    pod, processes, shell, until_file,
};
use serde_json::{Value, json};

use crate::seed_001::{LONG, action, run};

/// Creates a hook whose action never succeeds, and waits until it has been tried in the pod.
async fn trying(stage: &Stage, name: &str) -> anyhow::Result<String> {
    let tries = stage.file(&format!("{name}-tries"));
    let script = format!("echo $HOSTNAME >> {tries}; exit 1");
    action(stage, name, shell(&script), LONG).await?;
    let asked = hook(name, name).pod(name, &["main"]).build();
    stage.admin().post(HOOKS, &asked).await?.ok()?;
    until_file(&tries, |text| !text.is_empty()).await?;
    Ok(tries)
}

fn assert_failed(hook: &Value, pod: &str, error: &str) {
    let main = hooked(hook, pod, "main");
    assert_eq!(hook["status"]["actionSucceed"], false, "{hook:#}");
    assert_eq!(main["succeed"], false, "{hook:#}");
    assert_eq!(main["error"]["errorType"], error, "{hook:#}");
    let message = main["error"]["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty(), "{hook:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_deleted_and_made_again_is_not_the_one_that_was_meant() -> anyhow::Result<()>
{
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    run(&stage, "remade", "remade", &["main"]).await?;
    trying(&stage, "remade").await?;
    let path = format!("{PODS}/remade");
    let now = json!({"gracePeriodSeconds": 0});
    admin.delete_with(&path, &now).await?.ok()?;
    eventually("the pod to go", async || {
        Ok((admin.get(&path).await?.status == 404).then_some(()))
    })
    .await?;
    let fresh = stage.file("fresh");
    let main = format!("touch {fresh}; while :; do sleep 3600 & wait; done");
    let successor = pod("remade").container("main", ["sh", "-c", &main]);
    stage.run(successor).await?;
    let done = admin.hook_ended("remade").await?;
    assert_failed(&done, "remade", "ContainerRestarted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_restarts_ends_it_and_its_successor_is_left_alone() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let die = stage.file("restarted-die");
    let main = format!("rm -f {die}; while [ ! -e {die} ]; do sleep 0.1; done");
    stage
        .run(pod("restarted").container("main", ["sh", "-c", &main]))
        .await?;
    let tries = trying(&stage, "restarted").await?;
    std::fs::write(&die, "")?;
    let done = admin.hook_ended("restarted").await?;
    assert_failed(&done, "restarted", "ContainerRestarted");
    let before = lines(&tries);
    // Another hook goes to the successor.
    admin
        .until(&format!("{PODS}/restarted"), "a restart", |pod| {
            let main = &pod["status"]["containerStatuses"][0];
            let again = main["restartCount"].as_u64() >= Some(1);
            (again && main["state"]["running"].is_object()).then_some(())
        })
        .await?;
    action(&stage, "restarted-true", shell("true"), LONG).await?;
    let after = hook("restarted-after", "restarted-true").pod("restarted", &[]);
    let after = admin.run_hook(&after.build()).await?;
    assert_eq!(after["status"]["actionSucceed"], true, "{after:#}");
    assert_eq!(lines(&tries), before, "nothing was tried in the successor");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_do_not_run_are_told_of_at_once() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    // Nobody can take it.
    let nowhere = pod("unscheduled")
        .idle("main")
        .spec("nodeSelector", json!({"no-such": "node"}));
    stage.create(nowhere).await?;
    let ended = pod("completed")
        .container("main", ["true"])
        .restart_policy("Never");
    stage.create(ended).await?;
    admin
        .until(&format!("{PODS}/completed"), "its end", |pod| {
            (pod["status"]["phase"] == "Succeeded").then_some(())
        })
        .await?;
    stage
        .create(pod("looping").container("main", ["false"]))
        .await?;
    admin
        .until(&format!("{PODS}/looping"), "two failures", |pod| {
            let main = &pod["status"]["containerStatuses"][0];
            let waits = main["state"]["waiting"].is_object();
            (waits && main["restartCount"].as_u64() >= Some(1)).then_some(())
        })
        .await?;
    run(&stage, "steady", "steady", &["main"]).await?;
    action(&stage, "unrun", shell("true"), LONG).await?;
    let asked = hook("unrun", "unrun")
        .pod("unscheduled", &["main"])
        .pod("completed", &["main"])
        .pod("looping", &["main"])
        .pod("steady", &["main", "no-such-container"]);
    let done = admin.run_hook(&asked.build()).await?;
    for name in ["unscheduled", "completed", "looping"] {
        assert_failed(&done, name, "ContainerNotRunning");
        assert_eq!(hooked(&done, name, "main")["timestamp"], Value::Null);
    }
    assert_eq!(hooked(&done, "steady", "main")["succeed"], true, "{done:#}");
    let unknown = hooked(&done, "steady", "no-such-container");
    assert_eq!(
        unknown["error"]["errorType"], "ContainerNotFound",
        "{done:#}"
    );
    for name in ["unscheduled", "looping"] {
        let now = json!({"gracePeriodSeconds": 0});
        let path = format!("{PODS}/{name}");
        admin.delete_with(&path, &now).await?.ok()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_being_deleted_is_told_of_at_once() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let main = "trap '' TERM; while :; do sleep 3600 & wait; done";
    let manifest = pod("leaving")
        .label("group", "leaving")
        .container("main", ["sh", "-c", main])
        .grace(300);
    stage.run(manifest).await?;
    action(&stage, "leaving", shell("true"), LONG).await?;
    let path = format!("{PODS}/leaving");
    admin.delete(&path).await?.ok()?;
    let named = hook("leaving", "leaving").pod("leaving", &["main"]);
    let done = admin.run_hook(&named.build()).await?;
    assert_failed(&done, "leaving", "PodTerminating");
    let selected = hook("left", "leaving").labelled(("group", "leaving"), &[]);
    let done = admin.run_hook(&selected.build()).await?;
    let error = &done["status"]["error"];
    assert_eq!(error["errorType"], "NothingSelected", "{done:#}");
    let now = json!({"gracePeriodSeconds": 0});
    admin.delete_with(&path, &now).await?.ok()?;
    Ok(())
}

/// A PodAction is gone when what came of it stands in the hook, and is not made again.
#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_deletes_of_a_hook_is_stopped_and_counted_and_the_rest_goes_on()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    for name in ["cut-1", "cut-2"] {
        run(&stage, name, "cut", &["main"]).await?;
    }
    let (ran, go) = (stage.file("cut-ran"), stage.file("cut-go"));
    let script = format!("echo $WHO >> {ran}; while [ ! -e {go} ]; do sleep 0.05; done");
    action(&stage, "cut", shell(&script), LONG).await?;
    let asked = hook("cut", "cut").labelled(("group", "cut"), &[]);
    admin.post(HOOKS, &asked.build()).await?.ok()?;
    until_file(&ran, |text| text.lines().count() == 2).await?;
    let parts = admin.pod_actions("cut").await?;
    let part = parts.iter().find(|part| part["spec"]["podName"] == "cut-2");
    let name = part.map_or(&Value::Null, |part| &part["metadata"]["name"]);
    let path = format!("{POD_ACTIONS}/{}", name.as_str().unwrap_or_default());
    admin.delete(&path).await?.ok()?;
    eventually("it to go", async || {
        Ok((admin.get(&path).await?.status == 404).then_some(()))
    })
    .await?;
    let told = admin.get(&format!("{HOOKS}/cut")).await?.ok()?;
    let error = &hooked(&told, "cut-2", "main")["error"];
    assert_eq!(error["errorType"], "Cancelled", "{told:#}");
    assert_eq!(told["status"]["actionSucceed"], Value::Null, "{told:#}");
    std::fs::write(&go, "")?;
    let done = admin.hook_ended("cut").await?;
    assert_eq!(hooked(&done, "cut-1", "main")["succeed"], true, "{done:#}");
    assert_failed(&done, "cut-2", "Cancelled");
    assert_eq!(lines(&ran), 2, "each ran once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_goes_with_the_hooks_that_run_in_it() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let there = |path: &str| path.replace("/default/", "/doomed/");
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "doomed"}});
    admin.post("/api/v1/namespaces", &namespace).await?.ok()?;
    let manifest = stage.manifest(pod("doomed").idle("main"));
    // On a real Kubernetes its service account comes a moment later.
    eventually("the pod to be taken", async || {
        admin.post(&there(PODS), &manifest).await?.ok().map(Some)
    })
    .await?;
    let running = |pod: &Value| (pod["status"]["phase"] == "Running").then_some(());
    let path = format!("{}/doomed", there(PODS));
    admin.until(&path, "a running pod", running).await?;
    let ran = stage.file("doomed-ran");
    let script = format!("echo ran >> {ran}; sleep 3600 & wait; true {ran}");
    let action = hook_action("doomed", &shell(&script), LONG);
    admin.post(&there(HOOK_ACTIONS), &action).await?.ok()?;
    let asked = hook("doomed", "doomed").pod("doomed", &[]).build();
    admin.post(&there(HOOKS), &asked).await?.ok()?;
    until_file(&ran, |text| !text.is_empty()).await?;
    let path = "/api/v1/namespaces/doomed";
    admin.delete(path).await?.ok()?;
    eventually("the namespace to go", async || {
        Ok((admin.get(path).await?.status == 404).then_some(()))
    })
    .await?;
    assert!(
        processes::with_command(&ran).is_empty(),
        "nothing of it is left"
    );
    assert_eq!(lines(&ran), 1);
    Ok(())
}
