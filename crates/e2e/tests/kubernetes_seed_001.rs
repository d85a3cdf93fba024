//! What the execution hook proposal promises, on a real Kubernetes: the kubelet runs the pods, Belay
//! runs as its manifests say.

use belay_testkit::{
    Cluster, HOOKS, POD_ACTIONS, Stage, eventually, hook, hooked, lines, processes, shell,
    until_file,
};
use seed_001::{LONG, action, run};

#[path = "promises/seed_001.rs"]
mod seed_001;
#[path = "promises/seed_001_ends.rs"]
mod seed_001_ends;
#[path = "promises/seed_001_retries.rs"]
mod seed_001_retries;
#[path = "promises/seed_001_snapshot.rs"]
mod seed_001_snapshot;

async fn stage() -> anyhow::Result<Option<Stage>> {
    Stage::kubernetes().await
}

/// One cluster of its own, whose roles can be taken away.
#[tokio::test(flavor = "multi_thread")]
async fn roles_that_are_killed_or_away_lose_nothing_of_a_hook() -> anyhow::Result<()> {
    let Some(cluster) = Cluster::with_belay().await? else {
        return Ok(());
    };
    let stage = Stage::of(&cluster).await?;
    killed_roles_go_on(&cluster, &stage).await?;
    what_is_deleted_while_no_controller_runs_is_counted_and_goes(&cluster, &stage).await
}

/// Controller and agent killed while an action is tried again and again: it goes on, and what
/// succeeded is not run again.
async fn killed_roles_go_on(cluster: &Cluster, stage: &Stage) -> anyhow::Result<()> {
    let admin = stage.admin();
    run(stage, "killed", "killed", &["quick", "stubborn"]).await?;
    let (runs, go) = (stage.file("killed-runs"), stage.file("killed-go"));
    let script = format!("echo $WHO >> {runs}; case $WHO in */stubborn) test -e {go};; esac");
    action(stage, "killed", shell(&script), LONG).await?;
    let asked = hook("killed", "killed").pod("killed", &[]).build();
    admin.post(HOOKS, &asked).await?.ok()?;
    let of = |text: &str, who: &str| text.lines().filter(|line| line.ends_with(who)).count();
    let mut before = 0;
    for role in ["belay agent", "belay controller", "belay agent"] {
        until_file(&runs, |text| {
            of(text, "stubborn") > before + 1 && of(text, "quick") > 0
        })
        .await?;
        // Its success has been told when the hook says so.
        admin
            .until(&format!("{HOOKS}/killed"), "the quick one", |object| {
                (hooked(object, "killed", "quick")["succeed"] == true).then_some(())
            })
            .await?;
        cluster.kill9_role(role)?;
        before = of(&std::fs::read_to_string(&runs)?, "stubborn");
    }
    std::fs::write(&go, "")?;
    let done = admin.hook_ended("killed").await?;
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    let text = std::fs::read_to_string(&runs)?;
    assert_eq!(of(&text, "quick"), 1, "{text}");
    assert!(lines(&runs) > 4, "{text}");
    Ok(())
}

/// Of one hook the PodAction is deleted after its success, another hook is deleted while it runs.
async fn what_is_deleted_while_no_controller_runs_is_counted_and_goes(
    cluster: &Cluster,
    stage: &Stage,
) -> anyhow::Result<()> {
    let admin = stage.admin();
    run(stage, "away", "away", &["main"]).await?;
    let (ran, go) = (stage.file("away-ran"), stage.file("away-go"));
    let script = format!("echo $WHO >> {ran}; while [ ! -e {go} ]; do sleep 0.05; done");
    action(stage, "away", shell(&script), LONG).await?;
    let dropped = stage.file("dropped-ran");
    let script = format!("echo $WHO >> {dropped}; sleep 3600 & wait; true {dropped}");
    action(stage, "dropped", shell(&script), LONG).await?;
    for name in ["away", "dropped"] {
        let asked = hook(name, name).pod("away", &[]).build();
        admin.post(HOOKS, &asked).await?.ok()?;
    }
    until_file(&ran, |text| !text.is_empty()).await?;
    until_file(&dropped, |text| !text.is_empty()).await?;

    let scale = async |replicas: &str| {
        let controller = ["scale", "deployment/belay-controller", replicas];
        let arguments = [&["-n", "belay-system"][..], &controller].concat();
        cluster.kubectl().ok(&arguments).await
    };
    scale("--replicas=0").await?;
    eventually("the controller to be away", async || {
        let mut all = processes::with_command("belay controller").into_iter();
        let none = !all.any(|process| cluster.contains(process.pid));
        Ok(none.then_some(()))
    })
    .await?;
    std::fs::write(&go, "")?;
    let part = admin.pod_actions("away").await?.remove(0);
    let name = part["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{POD_ACTIONS}/{name}");
    admin
        .until(&path, "its success", |part| {
            (part["status"]["state"] == "Succeeded").then_some(())
        })
        .await?;
    admin.delete(&path).await?.ok()?;
    admin.delete(&format!("{HOOKS}/dropped")).await?.ok()?;
    eventually("what runs to be stopped", async || {
        Ok(processes::with_command(&dropped).is_empty().then_some(()))
    })
    .await?;

    scale("--replicas=1").await?;
    let done = admin.hook_ended("away").await?;
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    eventually("what was deleted to go", async || {
        let left = [
            admin.pod_actions("away").await?,
            admin.pod_actions("dropped").await?,
        ];
        Ok(left.iter().all(Vec::is_empty).then_some(()))
    })
    .await?;
    assert_eq!((lines(&ran), lines(&dropped)), (1, 1), "each ran once");
    Ok(())
}
