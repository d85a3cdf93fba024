//! What the execution hook proposal promises, on the embedded server, and what only it can be made to
//! show: an agent that is away, and many containers.

use belay_testkit::{HOOK_ACTIONS, HOOKS, Instance, Stage, hook, hook_action, hooked, pod, shell};
use serde_json::Value;

#[path = "promises/seed_001.rs"]
mod seed_001;
#[path = "promises/seed_001_ends.rs"]
mod seed_001_ends;
#[path = "promises/seed_001_retries.rs"]
mod seed_001_retries;
#[path = "promises/seed_001_snapshot.rs"]
mod seed_001_snapshot;

async fn stage() -> anyhow::Result<Option<Stage>> {
    Stage::embedded().await
}

/// Nobody is there to run it: the hook ends all the same, and nothing runs later.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_agent_is_away_the_hook_expires() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    instance.start_agent("n1", &[]).await?;
    let admin = instance.admin().await?;
    admin.run(&pod("p").idle("main").build()).await?;
    instance.kill9_agent("n1").await?;
    let ran = instance.file("ran");
    let action = hook_action("a", &shell(&format!("echo ran >> {ran}")), 30);
    admin.post(HOOK_ACTIONS, &action).await?.ok()?;
    let asked = hook("h", "a").pod("p", &[]).spec("deadlineSeconds", 3);
    let done = admin.run_hook(&asked.build()).await?;
    let main = hooked(&done, "p", "main");
    assert_eq!(main["error"]["errorType"], "Expired", "{done:#}");
    assert_eq!(main["timestamp"], Value::Null, "{done:#}");
    instance.start_agent("n1", &[]).await?;
    let asked = hook("next", "a").pod("p", &[]);
    let next = admin.run_hook(&asked.build()).await?;
    assert_eq!(next["status"]["actionSucceed"], true, "{next:#}");
    assert_eq!(belay_testkit::lines(&ran), 1, "the first one never ran");
    Ok(())
}

/// One hook over many containers is one status, and few writes of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_a_hook_over_a_thousand_containers_is_written_once_a_second_and_stays_small()
-> anyhow::Result<()> {
    const PODS: usize = 20;
    const CONTAINERS: usize = 50;
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    for number in 0..PODS {
        let mut manifest = pod(&format!("many-{number}")).label("app", "many");
        for container in 0..CONTAINERS {
            manifest = manifest.idle(&format!("c{container}"));
        }
        admin
            .post(belay_testkit::PODS, &manifest.build())
            .await?
            .ok()?;
        admin.running(&format!("many-{number}")).await?;
    }
    // It says as much as a command can, and fails.
    let script = "head -c 4096 /dev/zero | tr '\\0' x; exit 9";
    let action = hook_action("much", &shell(script), 1);
    admin.post(HOOK_ACTIONS, &action).await?.ok()?;
    let mut watch = admin.watch(&format!("{HOOKS}?watch=1")).await?;
    let asked = hook("much", "much").labelled(("app", "many"), &[]);
    let asked = asked.spec("deadlineSeconds", seed_001::LONG);
    let began = std::time::Instant::now();
    admin.post(HOOKS, &asked.build()).await?.ok()?;
    let mut writes = 0;
    let done = loop {
        let Some(event) = watch.next().await else {
            anyhow::bail!("the watch ended");
        };
        let object = &event["object"];
        if object["status"].is_object() {
            writes += 1;
        }
        if object["status"]["actionSucceed"].is_boolean() {
            break object.clone();
        }
    };
    let seconds = began.elapsed().as_secs();
    assert!(writes <= seconds + 3, "{writes} writes in {seconds} s");
    let statuses = done["status"]["hookStatuses"].as_array();
    assert_eq!(statuses.map(Vec::len), Some(PODS * CONTAINERS));
    assert_eq!(done["status"]["failedCount"], PODS * CONTAINERS);
    let started = |it: &&Value| it["timestamp"].is_i64();
    let started = statuses.into_iter().flatten().filter(started).count();
    assert_eq!(started, PODS * CONTAINERS, "it was run everywhere");
    let size = done["status"].to_string().len();
    assert!(size < 1024 * 1024, "{size} bytes");
    Ok(())
}
