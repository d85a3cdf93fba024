//! One hook over a thousand containers of plain processes: an action that succeeds at once, and one
//! that fails until its time is over.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use belay_testkit::{
    HOOK_ACTIONS, HOOKS, Instance, POD_ACTIONS, PODS, Rest, eventually_within, hook, hook_action,
    pod, processes, rest::revision, shell,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    burst::AT_ONCE,
    fleet::Highest,
    raw,
    requests::Writes,
    samples::{Samples, ms},
    scaled,
};

const PODS_RUN: usize = 100;
const CONTAINERS_EACH: usize = 10;
const LABEL: (&str, &str) = ("app", "hooked");
/// How long the storm lasts.
const SECONDS: u32 = 30;

pub(crate) async fn measure() -> anyhow::Result<String> {
    let pods = scaled(PODS_RUN)?;
    let count = pods * CONTAINERS_EACH;
    let container = Arc::new(raw::Container::start().await?);
    let raw = container.burst(&["true"], count, AT_ONCE).await?;
    container.stop().await?;

    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    run_pods(&admin, pods).await?;
    let succeeds = json!({"exec": {"command": ["true"]}});
    for (name, handler, seconds) in [
        ("succeeds", succeeds, 300),
        ("fails", shell("exit 1"), SECONDS),
    ] {
        let action = hook_action(name, &handler, seconds);
        admin.post(HOOK_ACTIONS, &action).await?.ok()?;
    }
    let pid = instance.pid()?;
    let idle = memory(pid)?;
    let good = Run::of(&admin, pid, "succeeds").await?;
    anyhow::ensure!(
        good.status["succeededCount"] == count,
        "{} of {count} succeeded",
        good.status["succeededCount"]
    );
    let bad = Run::of(&admin, pid, "fails").await?;
    anyhow::ensure!(
        bad.status["failedCount"] == count,
        "{} of {count} failed",
        bad.status["failedCount"]
    );
    let attempts: u64 = bad.status["hookStatuses"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|container| container["attempts"].as_u64())
        .sum();
    let mib = |kib: u64| format!("{:.1} MiB", kib as f64 / 1024.0);
    let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
    Ok(format!(
        "## One hook over {count} containers\n\n\
         {pods} pods of {CONTAINERS_EACH} containers on `process`, {AT_ONCE} actions at once. The action \
         is `true`, from the creation of the hook to `actionSucceed`, beside {count} times `true` run \
         directly on the same runtime ({AT_ONCE} at a time). The storm is an action that fails at once, \
         tried for {SECONDS} s in each container; its drift is how long after {SECONDS} s since its first \
         start each container's result was seen by a client.\n\n\
         | what | `true` | {SECONDS} s of failures |\n|---|---|---|\n\
         | from creation to `actionSucceed` | {} | {} |\n\
         | the actions alone | {} | |\n\
         | beyond them | {} | |\n\
         | attempts | {count} | {attempts} |\n\
         | writes of the hook's status | {} | {} |\n\
         | writes of PodActions: created, status | {}, {} | {}, {} |\n\
         | size of the hook's status | {:.0} KiB | {:.0} KiB |\n\
         | processor time of `belay up` | {} | {} |\n\
         | RssAnon of `belay up`: before, highest | {}, {} | {}, {} |\n\
         | drift of the deadline, p50, highest | | {}, {} |\n",
        seconds(good.took),
        seconds(bad.took),
        seconds(raw),
        seconds(good.took.saturating_sub(raw)),
        good.writes.of("executionhooks/status"),
        bad.writes.of("executionhooks/status"),
        good.writes.of("podactions"),
        good.writes.of("podactions/status"),
        bad.writes.of("podactions"),
        bad.writes.of("podactions/status"),
        good.status.to_string().len() as f64 / 1024.0,
        bad.status.to_string().len() as f64 / 1024.0,
        seconds(good.cpu),
        seconds(bad.cpu),
        mib(idle),
        mib(good.highest),
        mib(idle),
        mib(bad.highest),
        ms(bad.drift.p50()),
        ms(bad.drift.percentile(100.0)),
    ))
}

async fn run_pods(admin: &Rest, pods: usize) -> anyhow::Result<()> {
    for number in 0..pods {
        let mut manifest = pod(&format!("hooked-{number}")).label(LABEL.0, LABEL.1);
        for container in 0..CONTAINERS_EACH {
            manifest = manifest.container(&format!("c{container}"), ["sleep", "86400"]);
        }
        admin.post(PODS, &manifest.build()).await?.ok()?;
    }
    let limit = Duration::from_secs(600);
    eventually_within(limit, "all pods to run", async || {
        let list = admin.get(PODS).await?.ok()?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let ready = |pod: &&Value| {
            let statuses = pod["status"]["containerStatuses"].as_array();
            let running = |status: &Value| status["state"]["running"].is_object();
            statuses.is_some_and(|all| all.len() == CONTAINERS_EACH && all.iter().all(running))
        };
        Ok((items.iter().filter(ready).count() == pods).then_some(()))
    })
    .await?;
    // Start-up is over and a few heartbeats have passed.
    tokio::time::sleep(Duration::from_secs(10)).await;
    Ok(())
}

fn memory(pid: u32) -> anyhow::Result<u64> {
    processes::anonymous_kib(pid).context("no memory figure")
}

/// What one hook came to.
struct Run {
    took: Duration,
    status: Value,
    writes: Writes,
    cpu: Duration,
    highest: u64,
    drift: Samples,
}

impl Run {
    /// Runs a hook with this action in all containers.
    async fn of(admin: &Rest, pid: u32, action: &str) -> anyhow::Result<Self> {
        let from = revision(&admin.get(HOOKS).await?.ok()?);
        let path = format!("{HOOKS}?watch=true&resourceVersion={from}");
        let mut watch = admin.watch(&path).await?;
        let path = format!("{POD_ACTIONS}?watch=true&resourceVersion={from}");
        let mut actions = admin.watch(&path).await?;
        let drift = Arc::new(Mutex::new(Samples::default()));
        let told = Arc::clone(&drift);
        let mut reading = JoinSet::new();
        reading.spawn(async move {
            while let Some(event) = actions.next().await {
                let status = &event["object"]["status"];
                if event["type"] == "DELETED" || !status["completeTime"].is_string() {
                    continue;
                }
                let now = jiff::Timestamp::now();
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                for container in status["containers"].as_array().into_iter().flatten() {
                    let first = container["startTime"].as_str();
                    let first: Option<jiff::Timestamp> = first.and_then(|at| at.parse().ok());
                    let took = first.map(|first| now.duration_since(first));
                    let took = took.and_then(|took| Duration::try_from(took).ok());
                    let time = Duration::from_secs(u64::from(SECONDS));
                    told.push(took.unwrap_or_default().saturating_sub(time));
                }
            }
        });
        let before = Writes::so_far(admin).await?;
        let ticks = processes::cpu_ticks(pid).context("no processor time")?;
        let highest = Highest::of(pid);
        let begin = Instant::now();
        let asked = hook(action, action).labelled(LABEL, &[]);
        let asked = asked.spec("deadlineSeconds", 300);
        admin.post(HOOKS, &asked.build()).await?.ok()?;
        let status = loop {
            let event = watch.next().await.context("the watch ended")?;
            let status = &event["object"]["status"];
            if status["actionSucceed"].is_boolean() {
                break status.clone();
            }
        };
        let took = begin.elapsed();
        // The last event is on its way.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ticks = processes::cpu_ticks(pid).context("no processor time")? - ticks;
        let writes = Writes::so_far(admin).await?.since(&before);
        let highest = highest.kib().max(memory(pid)?);
        drop(reading);
        let drift = drift.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Self {
            took,
            status,
            writes,
            // A tick is a hundredth of a second on every Linux there is.
            cpu: Duration::from_millis(ticks * 10),
            highest,
            drift,
        })
    }
}
