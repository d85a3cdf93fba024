//! How containers on a real containerd ended, as their pods' status tells it: for want of memory, and
//! with last words.

use std::path::Path;

use belay_testkit::ends::{delete, gone};
use belay_testkit::skip::skip;
use belay_testkit::{PODS, Stage, eventually, pod};
use serde_json::{Value, json};

/// Why memory cannot be limited here, if it cannot.
fn no_memory_limits() -> Option<String> {
    let groups = Path::new("/sys/fs/cgroup");
    let controllers = std::fs::read_to_string(groups.join("cgroup.controllers"));
    let unified = controllers.is_ok_and(|all| all.split_whitespace().any(|one| one == "memory"));
    let own = groups.join("memory/memory.limit_in_bytes").exists();
    (!unified && !own).then(|| "control groups without the memory controller".to_owned())
}

/// How a container ended last, once it has.
async fn last_end(stage: &Stage, pod: &str, container: &str) -> anyhow::Result<Value> {
    eventually(&format!("the end of {pod}/{container}"), async || {
        let pod = stage.admin().get(&format!("{PODS}/{pod}")).await?.ok()?;
        let statuses = pod["status"]["containerStatuses"].as_array();
        let mut statuses = statuses.into_iter().flatten();
        let status = statuses.find(|status| status["name"] == container);
        let end = status.map(|status| status["lastState"]["terminated"].clone());
        Ok(end.filter(Value::is_object))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_wants_more_memory_than_it_may_have_is_shown_as_oom_killed()
-> anyhow::Result<()> {
    if let Some(missing) = no_memory_limits() {
        skip(&missing);
        return Ok(());
    }
    for stage in Stage::on_each_containerd().await? {
        // Four times what it may have, and no more: the machine is not its victim.
        let greedy = "exec dd if=/dev/zero of=/dev/null bs=256M count=1";
        let limits = json!({ "limits": { "memory": "64Mi" } });
        let manifest = pod("greedy")
            .container("main", ["sh", "-c", greedy])
            .container_field("resources", limits)
            .idle("beside");
        stage.create(manifest).await?;
        let end = last_end(&stage, "greedy", "main").await?;
        assert_eq!(end["reason"], "OOMKilled", "{end:#}");
        assert_eq!(end["exitCode"], 137, "{end:#}");
        eventually("its neighbour to run", async || {
            let pod = stage.admin().get(&format!("{PODS}/greedy")).await?.ok()?;
            let beside = &pod["status"]["containerStatuses"][1];
            assert_eq!(beside["restartCount"], 0, "{beside:#}");
            Ok(beside["state"]["running"].is_object().then_some(()))
        })
        .await?;
        delete(&stage, "greedy").await?;
        gone(&stage, "greedy").await?;
    }
    Ok(())
}

/// What a container says, where its message is expected, and what is shown of it.
struct Speaker {
    name: &'static str,
    script: &'static str,
    fields: Value,
    message: Value,
}

#[tokio::test(flavor = "multi_thread")]
async fn last_words_are_read_from_the_file_or_where_the_spec_says_so_from_the_log()
-> anyhow::Result<()> {
    let falls_back = json!({ "terminationMessagePolicy": "FallbackToLogsOnError" });
    let speaker = |name, script, fields: &Value, message: Value| Speaker {
        name,
        script,
        fields: fields.clone(),
        message,
    };
    let speakers = [
        speaker(
            "file",
            "echo aloud; printf written > /dev/termination-log; exit 3",
            &json!({}),
            json!("written"),
        ),
        speaker(
            "own-path",
            "printf elsewhere > /tmp/last; exit 0",
            &json!({ "terminationMessagePath": "/tmp/last" }),
            json!("elsewhere"),
        ),
        speaker(
            "file-only",
            "echo aloud; exit 3",
            &json!({ "terminationMessagePolicy": "File" }),
            Value::Null,
        ),
        speaker(
            "fallback",
            "echo aloud; echo again; exit 3",
            &falls_back,
            json!("aloud\nagain\n"),
        ),
        speaker(
            "both",
            "echo aloud; printf written > /dev/termination-log; exit 3",
            &falls_back,
            json!("written"),
        ),
        speaker("content", "echo aloud; exit 0", &falls_back, Value::Null),
    ];
    for stage in Stage::on_each_containerd().await? {
        let mut manifest = pod("speakers");
        for speaker in &speakers {
            manifest = manifest.container(speaker.name, ["sh", "-c", speaker.script]);
            for (field, value) in speaker.fields.as_object().into_iter().flatten() {
                manifest = manifest.container_field(field, value.clone());
            }
        }
        stage.create(manifest).await?;
        for Speaker { name, message, .. } in &speakers {
            let end = last_end(&stage, "speakers", name).await?;
            assert_eq!(end["message"], *message, "{name}: {end:#}");
        }
        delete(&stage, "speakers").await?;
        gone(&stage, "speakers").await?;
    }
    Ok(())
}
