//! What the container notifier proposal promises about notifying a pod, on a real Kubernetes: the
//! kubelet runs the pods, Belay runs as its manifests say.

use belay_testkit::{
    NOTIFICATIONS, PODS, Stage, eventually, exec, lines, notification, pod, processes,
};
use serde_json::{Value, json};

#[path = "promises/seed_000.rs"]
mod seed_000;
#[path = "promises/seed_000_containers.rs"]
mod seed_000_containers;
#[path = "promises/seed_000_declares.rs"]
mod seed_000_declares;
#[path = "promises/seed_000_fanout.rs"]
mod seed_000_fanout;
#[path = "promises/seed_000_fanout_ends.rs"]
mod seed_000_fanout_ends;
#[path = "promises/seed_000_network_probes.rs"]
mod seed_000_network_probes;
#[path = "promises/seed_000_probes.rs"]
mod seed_000_probes;

async fn stage() -> anyhow::Result<Option<Stage>> {
    Stage::kubernetes().await
}

/// "Kubelet will watch PodNotification resources for Pods on the node it's running": where nobody
/// watches for a node, nobody else acts for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_a_node_without_an_agent_is_not_notified_by_another() -> anyhow::Result<()> {
    let Some(stage) = stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("nobody-s-node");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "nobody-s"}});
    admin.post("/api/v1/nodes", &node).await?.ok()?;
    let script = format!("echo ran >> {file}");
    let manifest = pod("nobody-s")
        .idle("main")
        .notifier("work", exec(["sh", "-c", &script]).timeout(60))
        .node("nobody-s");
    stage.create(manifest).await?;
    // There is no kubelet to say that it runs.
    let running = json!({"status": {"phase": "Running"}});
    let path = format!("{PODS}/nobody-s/status");
    admin.merge(&path, &running).await?.ok()?;
    let asked = notification("nobody-s", "nobody-s", "work").deadline(30);
    let done = admin.notify(&asked.build()).await?;
    assert_eq!(done["status"]["error"]["type"], "Expired", "{done:#}");
    assert_eq!(done["status"]["nodeName"], "nobody-s", "{done:#}");
    assert_eq!(done["status"]["executor"], Value::Null, "{done:#}");
    assert_eq!(lines(&file), 0);
    // Nobody would ever let it go.
    let now = json!({"gracePeriodSeconds": 0});
    admin
        .delete_with(&format!("{PODS}/nobody-s"), &now)
        .await?
        .ok()?;
    admin.delete("/api/v1/nodes/nobody-s").await?.ok()?;
    Ok(())
}

/// The agent reaches what it has started as a user without any rights, in a session of its own.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_without_rights_leaves_in_another_session_is_dead_when_its_time_is_over()
-> anyhow::Result<()> {
    let Some(stage) = stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let mark = processes::unique_seconds();
    // The time is long enough for a busy machine to start it in.
    let hang = format!("(setsid sleep {mark} &); while :; do sleep 1; done");
    let manifest = pod("unprivileged")
        .idle("main")
        .container_field(
            "securityContext",
            json!({
                "runAsUser": 65534, "runAsGroup": 65534, "runAsNonRoot": true,
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            }),
        )
        .notifier("hang", exec(["sh", "-c", &hang]).timeout(20));
    stage.run(manifest).await?;
    let asked = notification("unprivileged", "unprivileged", "hang").build();
    admin.post(NOTIFICATIONS, &asked).await?.ok()?;
    let orphan = eventually("it to sleep", async || {
        let mut found = processes::with_command(&mark).into_iter();
        Ok(found.find(|process| process.command.starts_with("sleep ")))
    })
    .await?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", orphan.pid))?;
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    assert_eq!(
        of("NSsid:"),
        of("NSpid:"),
        "in a session of its own: {status}"
    );
    assert_eq!(of("CapEff:"), Some("\t0000000000000000"), "{status}");
    assert!(
        of("Uid:").is_some_and(|all| all.starts_with("\t65534\t")),
        "{status}"
    );
    let done = admin.finished("unprivileged").await?;
    assert_eq!(processes::with_command(&mark), [], "{done:#}");
    let main = &done["status"]["containers"][0];
    assert_eq!(main["error"]["type"], "HandlerTimeout", "{done:#}");
    assert_eq!(main["succeeded"], false, "{done:#}");
    Ok(())
}
