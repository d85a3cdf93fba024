//! What the container notifier proposal promises about notifying a pod, on the embedded server.

use belay_testkit::{Instance, NOTIFICATIONS, PODS, Stage, exec, notification, pod};
use serde_json::{Value, json};

#[path = "promises/seed_000.rs"]
mod seed_000;
#[path = "promises/seed_000_containers.rs"]
mod seed_000_containers;

async fn stage() -> anyhow::Result<Option<Stage>> {
    Stage::embedded().await
}

/// "Default to 1 second": that is what is stored, and leaving it out is worth a warning.
#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_that_is_left_out_is_stored_as_one_second_with_a_warning() -> anyhow::Result<()> {
    let admin = Instance::shared().await?.admin().await?;
    let manifest = pod("stored-timeout")
        .idle("main")
        .notifier("hang", exec(["sleep", "60"]));
    let reply = admin.post(PODS, &manifest.build()).await?;
    let warned = reply.warnings();
    assert!(
        warned.iter().any(|text| text.contains("timeoutSeconds")),
        "leaving it out of an exec handler is worth a warning: {warned:?}"
    );
    let stored = reply.ok()?;
    assert_eq!(
        stored["spec"]["containers"][0]["notifiers"][0]["timeoutSeconds"],
        1
    );
    Ok(())
}

/// "Kubelet will watch PodNotification resources for Pods on the node it's running": each agent acts
/// for the pods of its own node, and for no other's.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_agents_each_acts_for_its_own_node() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    for node in ["n1", "n2"] {
        instance.start_agent(node, &[]).await?;
    }
    let admin = instance.admin().await?;
    let file = instance.file("ran");
    for node in ["n1", "n2"] {
        let script = format!("echo {node} >> {file}");
        let manifest = pod(&format!("on-{node}"))
            .idle("main")
            .notifier("work", exec(["sh", "-c", &script]).timeout(60))
            .node(node);
        admin.run(&manifest.build()).await?;
    }
    for node in ["n2", "n1", "n2"] {
        let on = format!("on-{node}");
        let mut object = notification("unnamed", &on, "work").build();
        object["metadata"] = json!({"generateName": "by-node-"});
        let done = admin.notify(&object).await?;
        assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
        assert_eq!(done["status"]["executor"], node, "{done:#}");
        assert_eq!(done["status"]["nodeName"], node, "{done:#}");
    }
    // Without its own agent, what is for a node is not done by the other one.
    instance.kill9_agent("n2").await?;
    let lonely = notification("lonely", "on-n2", "work").deadline(1).build();
    let lonely = admin.notify(&lonely).await?;
    assert_eq!(lonely["status"]["error"]["type"], "Expired", "{lonely:#}");
    assert_eq!(lonely["status"]["executor"], Value::Null, "{lonely:#}");
    assert_eq!(std::fs::read_to_string(&file)?, "n2\nn1\nn2\n");
    Ok(())
}

/// "fails immediately if the specified Pod does not exist"; "completes immediately if no Container in
/// the Pod has the requested ContainerNotifier defined": the answer to the request says so already.
#[tokio::test(flavor = "multi_thread")]
async fn what_reaches_nobody_is_final_in_the_answer_to_its_creation() -> anyhow::Result<()> {
    let admin = Instance::shared().await?.admin().await?;
    let object = notification("at-once", "nowhere", "lock").build();
    let failed = admin.post(NOTIFICATIONS, &object).await?.ok()?;
    assert_eq!(failed["status"]["state"], "Failed", "{failed:#}");
    assert_eq!(failed["status"]["error"]["type"], "PodNotFound");
    admin.run(&pod("says-nothing").idle("main").build()).await?;
    let object = notification("at-once-2", "says-nothing", "lock").build();
    let done = admin.post(NOTIFICATIONS, &object).await?.ok()?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    for one in [&failed, &done] {
        assert!(one["status"]["completeTime"].is_string(), "{one:#}");
    }
    Ok(())
}
