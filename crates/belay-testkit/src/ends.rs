//! What tests about the end of pods are told with: containers that write down what they
//! hear, and the events that say what was done when.

use std::time::Duration;

use anyhow::Context as _;

use serde_json::{Value, json};

use crate::{EVENTS, PODS, PodBuilder, Stage, eventually, pod, until_file};

/// Longer than any test waits, in seconds: what ends before it has been ended.
pub const LONG: u32 = 600;

/// Says in `file` that it is up and which of `signals` it got, and ends on the first of them.
pub fn reports(file: &str, signals: &[&str]) -> String {
    format!(
        "for s in {}; do trap \"echo $s >> {file}; exit 0\" $s; done; echo up >> {file}; \
         while :; do sleep 0.05; done",
        signals.join(" ")
    )
}

/// A pod that reports SIGTERM, whose container has this `preStop`.
pub fn sleeper(name: &str, file: &str, seconds: i64, grace: u32) -> PodBuilder {
    pod(name)
        .container("main", ["sh", "-c", &reports(file, &["TERM"])])
        .container_field("lifecycle", pre_stop(seconds))
        .grace(grace)
}

/// A lifecycle with a sleep.
pub fn pre_stop(seconds: i64) -> Value {
    json!({ "preStop": { "sleep": { "seconds": seconds } } })
}

/// Runs a pod whose container says `up` in a file.
pub async fn run(stage: &Stage, pod: PodBuilder, file: &str) -> anyhow::Result<Value> {
    let running = stage.run(pod).await?;
    until_file(file, |text| text.contains("up")).await?;
    Ok(running)
}

/// Deletes with the pod's own grace.
pub async fn delete(stage: &Stage, name: &str) -> anyhow::Result<()> {
    let path = format!("{PODS}/{name}");
    stage.admin().delete(&path).await?.ok().map(drop)
}

/// Deletes with a grace of the request's own; a second time it can only be shorter.
pub async fn delete_within(stage: &Stage, name: &str, grace: u32) -> anyhow::Result<()> {
    let options = json!({ "gracePeriodSeconds": grace });
    let path = format!("{PODS}/{name}");
    let reply = stage.admin().delete_with(&path, &options).await?;
    reply.ok().map(drop)
}

/// Waits until the object is gone.
pub async fn gone(stage: &Stage, name: &str) -> anyhow::Result<()> {
    eventually(&format!("the end of {name}"), async || {
        let reply = stage.admin().get(&format!("{PODS}/{name}")).await?;
        Ok((reply.status.as_u16() == 404).then_some(()))
    })
    .await
}

/// What was told about a pod, known by its name or UID, under a reason.
pub async fn told(stage: &Stage, pod: &str, reason: &str) -> anyhow::Result<Vec<String>> {
    let list = stage.admin().get(EVENTS).await?.ok()?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let about = |event: &&Value| {
        let object = &event["involvedObject"];
        (object["name"] == pod || object["uid"] == pod) && event["reason"] == reason
    };
    let messages = items.iter().filter(about);
    Ok(messages
        .filter_map(|event| event["message"].as_str().map(str::to_owned))
        .collect())
}

/// Waits until something with `part` in it was told about a pod under a reason; returns all of it.
pub async fn until_told(
    stage: &Stage,
    pod: &str,
    reason: &str,
    part: &str,
) -> anyhow::Result<String> {
    eventually(&format!("{reason} of {pod}: {part}"), async || {
        let told = told(stage, pod, reason).await?;
        let found = told.iter().find(|one| one.contains(part)).cloned();
        anyhow::ensure!(found.is_some(), "{told:?}");
        Ok(found)
    })
    .await
}

/// Waits until the end of the pod's containers has begun: hooks run from then on.
pub async fn stopping(stage: &Stage, pod: &str) -> anyhow::Result<()> {
    eventually(&format!("the beginning of the end of {pod}"), async || {
        Ok((!told(stage, pod, "Killing").await?.is_empty()).then_some(()))
    })
    .await
}

/// Makes sure that a [`sleeper`] that is gone was asked to stop, not just killed. It has said so; or
/// it had no time to on a machine that stood still, and then it is told that its grace was over first.
pub async fn asked(stage: &Stage, pod: &str, file: &str) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file)?;
    if text == "up\nTERM\n" {
        return Ok(());
    }
    anyhow::ensure!(text == "up\n", "{pod}: {text}");
    eventually(&format!("why {pod} did not say TERM"), async || {
        let told = told(stage, pod, "Killing").await?;
        let late = |message: &String| message.contains("did not end within its grace period");
        Ok(told.iter().any(late).then_some(()))
    })
    .await
}

/// A stop signal that was sent.
#[derive(Debug)]
pub struct Sent {
    pub signal: String,
    /// How long it took from the beginning of the end to the signal.
    pub after: Duration,
    /// What was left then.
    pub left: Duration,
}

/// Waits for the event about a container's stop signal, which has the times of the agent's own
/// record, to the millisecond: "Sent SIGTERM to container main after 5.007s; it has 24.993s before
/// SIGKILL".
pub async fn sent(stage: &Stage, pod: &str, container: &str) -> anyhow::Result<Sent> {
    let about = format!(" to container {container} after ");
    let message = eventually(
        &format!("the stop signal of {pod}/{container}"),
        async || {
            let told = told(stage, pod, "StopSignalSent").await?;
            Ok(told.into_iter().find(|message| message.contains(&about)))
        },
    )
    .await?;
    let words: Vec<&str> = message.split_whitespace().collect();
    let seconds = |word: &str| {
        let number = word.trim_end_matches(';').strip_suffix('s')?;
        number
            .replace('.', "")
            .parse()
            .ok()
            .map(Duration::from_millis)
    };
    let mut times = words.iter().filter_map(|word| seconds(word));
    let times = times.next().zip(times.next());
    let (after, left) = times.with_context(|| message.clone())?;
    let signal = words.get(1).context("no signal")?;
    Ok(Sent {
        signal: (*signal).to_owned(),
        after,
        left,
    })
}
