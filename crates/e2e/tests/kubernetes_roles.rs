//! The controller and the companion on a real Kubernetes, as processes of the test.

use std::{fs::File, path::Path, process::Stdio};

use belay_testkit::{
    Cluster, NOTIFICATIONS, PodBuilder, Rest, Stage, binary, eventually, exec, notification, pod,
    signal,
};
use serde_json::Value;
use tokio::process::{Child, Command};

/// A role that ends with the test.
struct Role {
    child: Child,
    log: std::path::PathBuf,
}

impl Role {
    fn start(mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let child = command
            .stdout(Stdio::null())
            .stderr(File::create(log)?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            child,
            log: log.to_owned(),
        })
    }

    fn told(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn controller(cluster: &Cluster, words: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(binary::belay()?);
    command
        .args(["controller", "--lease-namespace=default", "--kubeconfig"])
        .arg(cluster.kubeconfig())
        .args(words)
        .env("NO_PROXY", "*");
    Ok(command)
}

async fn definitions(cluster: &Cluster) -> anyhow::Result<()> {
    let crds = Command::new(binary::belay()?).arg("crds").output().await?;
    let kubectl = cluster.kubectl();
    let applied = kubectl
        .with_text(&["apply", "-f", "-"], &String::from_utf8(crds.stdout)?)
        .await?;
    anyhow::ensure!(applied.success, "{}", applied.stderr);
    let established = "--for=condition=established";
    kubectl
        .ok(&["wait", established, "crd", "--all", "--timeout=60s"])
        .await?;
    Ok(())
}

fn workload() -> PodBuilder {
    let hup = "trap 'echo hup' HUP; while :; do sleep 0.1; done";
    pod("web")
        .container("main", ["sh", "-c", hup])
        .notifier("good", exec(["sh", "-c", "echo fine"]).timeout(20))
        .notifier("bad", exec(["sh", "-c", "exit 3"]).timeout(20))
        .notifier("slow", exec(["sleep", "60"]).timeout(1))
        .notifier("missing", exec(["/no/such/program"]).timeout(20))
        .notifier("reload", signal("SIGHUP").timeout(20))
}

async fn come_of(admin: &Rest, notifier: &str) -> anyhow::Result<Value> {
    let done = admin
        .notify(&notification(notifier, "web", notifier).build())
        .await?;
    Ok(done["status"].clone())
}

fn error(status: &Value) -> (&str, &str) {
    let error = &status["error"];
    (
        error["type"].as_str().unwrap_or_default(),
        error["message"].as_str().unwrap_or_default(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_refuse_a_cluster_without_policies_and_go_without_them_if_told() -> anyhow::Result<()>
{
    let Some(cluster) = Cluster::start().await? else {
        return Ok(());
    };
    definitions(&cluster).await?;
    let refused = controller(&cluster, &[])?.output().await?;
    assert_eq!(refused.status.code(), Some(1));
    let told = String::from_utf8(refused.stderr)?;
    for word in [
        "belay-notify",
        "belay-status",
        "belay-annotation",
        "belay manifests",
        "--allow-unprotected-triggers",
    ] {
        assert!(told.contains(word), "{word} in {told}");
    }

    // With a controller and a companion, everything that the runtime can do.
    let stage = Stage::of(&cluster).await?;
    let admin = stage.admin();
    let unprotected = "--allow-unprotected-triggers";
    let mut leader = Role::start(
        controller(&cluster, &[unprotected])?,
        &cluster.dir().join("controller.log"),
    )?;
    let mut command = cluster.inside(binary::belay()?);
    command
        .args(["agent", "--mode=companion", "--node-name=n1", unprotected])
        .args(["--data-dir=/var/lib/belay", "--lease-namespace=default"])
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig());
    let mut companion = Role::start(command, &cluster.dir().join("companion.log"))?;
    stage.run(workload()).await?;

    let good = come_of(admin, "good").await;
    let good = good
        .map_err(|error| anyhow::anyhow!("{error:#}\n{}\n{}", leader.told(), companion.told()))?;
    assert_eq!(good["state"], "Succeeded", "{good:#}");
    assert_eq!(good["executor"], "n1");
    assert_eq!(good["containers"][0]["output"], "fine\n");
    let id = good["containers"][0]["containerID"].as_str();
    assert!(
        id.is_some_and(|id| id.starts_with("containerd://")),
        "{good:#}"
    );
    let bad = come_of(admin, "bad").await?;
    assert_eq!(bad["containers"][0]["exitCode"], 3, "{bad:#}");
    let slow = come_of(admin, "slow").await?;
    assert_eq!(error(&slow).0, "HandlerTimeout", "{slow:#}");
    assert!(error(&slow).1.contains("was killed"), "{slow:#}");
    let missing = come_of(admin, "missing").await?;
    assert_eq!(error(&missing).0, "HandlerFailed", "{missing:#}");
    let reload = come_of(admin, "reload").await?;
    assert_eq!(reload["state"], "Succeeded", "{reload:#}");
    assert_eq!(reload["containers"][0]["signal"], "SIGHUP");
    eventually(
        "the first process to say that it was signalled",
        async || {
            let log = admin.logs("web", "main").await?;
            Ok(log.lines().any(|line| line == "hup").then_some(()))
        },
    )
    .await?;

    // What nobody can do is settled by the controller, at once.
    let nobody = admin
        .notify(&notification("nobody", "no-such-pod", "good").build())
        .await?;
    assert_eq!(error(&nobody["status"]).0, "PodNotFound", "{nobody:#}");
    let undeclared = come_of(admin, "undeclared").await?;
    assert_eq!(undeclared["state"], "Succeeded", "{undeclared:#}");
    assert_eq!(undeclared["conditions"][0]["type"], "NotifierFound");
    assert_eq!(undeclared["conditions"][0]["status"], "False");
    eventually("the warning", async || {
        let events = admin.get("/api/v1/namespaces/default/events").await?.ok()?;
        Ok(events.to_string().contains("NotDeclared").then_some(()))
    })
    .await?;

    // A changed annotation is refused, whatever it says now.
    let patch = serde_json::json!({"metadata": {"annotations": {"apps.k8s.io/notifiers":
        r#"{"main": [{"name": "evil", "handler": {"exec": {"command": ["id"]}}}]}"#}}});
    admin
        .merge("/api/v1/namespaces/default/pods/web", &patch)
        .await?
        .ok()?;
    let mut asked = 0;
    eventually("the companion to see the change", async || {
        asked += 1;
        let name = format!("evil-{asked}");
        let evil = admin
            .notify(&notification(&name, "web", "evil").build())
            .await?;
        let containers = &evil["status"]["containers"];
        assert!(containers.is_null(), "it ran: {evil:#}");
        Ok((error(&evil["status"]).0 == "Forbidden").then_some(()))
    })
    .await?;

    for role in [&mut leader, &mut companion] {
        assert!(role.child.try_wait()?.is_none(), "{}", role.told());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_without_agents_runs_commands_and_says_what_it_cannot_do() -> anyhow::Result<()>
{
    let Some(cluster) = Cluster::start().await? else {
        return Ok(());
    };
    definitions(&cluster).await?;
    let stage = Stage::of(&cluster).await?;
    let admin = stage.admin();
    let words = ["--executor=controller", "--allow-unprotected-triggers"];
    let log = cluster.dir().join("controller.log");
    let mut leader = Role::start(controller(&cluster, &words)?, &log)?;
    stage.run(workload()).await?;

    let good = come_of(admin, "good").await;
    let good = good.map_err(|error| anyhow::anyhow!("{error:#}\n{}", leader.told()))?;
    assert_eq!(good["state"], "Succeeded", "{good:#}");
    assert_eq!(good["executor"], "belay-controller");
    assert_eq!(good["nodeName"], "n1");
    assert_eq!(good["containers"][0]["output"], "fine\n");
    let bad = come_of(admin, "bad").await?;
    assert_eq!(bad["containers"][0]["exitCode"], 3, "{bad:#}");
    let slow = come_of(admin, "slow").await?;
    assert_eq!(error(&slow).0, "HandlerTimeout", "{slow:#}");
    assert!(error(&slow).1.contains("may still be running"), "{slow:#}");
    let missing = come_of(admin, "missing").await?;
    assert_eq!(error(&missing).0, "HandlerFailed", "{missing:#}");
    let reload = come_of(admin, "reload").await?;
    assert_eq!(error(&reload).0, "RuntimeError", "{reload:#}");
    assert!(
        error(&reload).1.contains("needs Belay's agent"),
        "{reload:#}"
    );

    // Killed in the middle: what it left may have run, and is never repeated.
    let (runs, gate) = (stage.file("runs"), stage.file("gate"));
    let wait = format!("echo run >> {runs}; while ! test -e {gate}; do sleep 0.1; done");
    let held = pod("held")
        .idle("main")
        .notifier("work", exec(["sh", "-c", &wait]).timeout(100));
    stage.run(held).await?;
    let ask = notification("work", "held", "work").build();
    admin.post(NOTIFICATIONS, &ask).await?.ok()?;
    belay_testkit::until_file(&runs, |text| text.lines().count() == 1).await?;
    leader.child.kill().await?;
    let successor = Role::start(
        controller(&cluster, &words)?,
        &cluster.dir().join("second.log"),
    )?;
    let work = admin.finished("work").await;
    let work = work.map_err(|error| anyhow::anyhow!("{error:#}\n{}", successor.told()))?;
    assert_eq!(error(&work["status"]).0, "Interrupted", "{work:#}");
    std::fs::write(&gate, "")?;
    assert_eq!(belay_testkit::lines(&runs), 1);
    Ok(())
}
