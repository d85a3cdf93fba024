//! What the container notifier proposal promises about notifying a pod, on the embedded server.

use belay_testkit::{Instance, PODS, Stage, exec, pod};

#[path = "promises/seed_000.rs"]
mod seed_000;

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
