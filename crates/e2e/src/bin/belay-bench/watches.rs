//! How long an event takes to a hundred watchers, with and without one that does not read.

use std::{sync::Arc, time::Instant};

use belay_testkit::{
    CONFIG_MAPS, Instance,
    rest::{config_map, revision},
};
use tokio::{sync::Barrier, task::JoinSet};

use crate::samples::{Samples, ms};

const WATCHERS: usize = 100;
const WRITES: u32 = 500;
const PER_SECOND: u32 = 50;
/// A stalled watcher's buffers fill up after some hundred of these.
const VALUE: usize = 16 * 1024;

pub(crate) async fn measure() -> anyhow::Result<String> {
    let none = lag(0).await?;
    let one = lag(1).await?;
    let row = |name: &str, samples: &Samples| {
        format!(
            "| {name} | {} | {} |\n",
            ms(samples.p50()),
            ms(samples.p99())
        )
    };
    Ok(format!(
        "## Watch lag\n\n\
         {WATCHERS} watchers with a connection each, {PER_SECOND} writes a second of {} KiB; from \
         sending a write to having read its event. The clients share the machine's cores with the \
         server, and the writing itself is part of the figure. Target: unchanged by a watcher that \
         does not read.\n\n\
         | watchers | p50 | p99 |\n|---|---|---|\n{}{}",
        VALUE / 1024,
        row("all read", &none),
        row("one of them does not", &one),
    ))
}

async fn lag(stalled: usize) -> anyhow::Result<Samples> {
    let instance = Instance::server().start().await?;
    let admin = instance.admin().await?;
    let value = "v".repeat(VALUE);
    admin
        .post(CONFIG_MAPS, &config_map("lag", "value", &value))
        .await?
        .ok()?;
    let from = revision(&admin.get(CONFIG_MAPS).await?.ok()?);
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={from}");
    let mut not_reading = Vec::new();
    for _ in 0..stalled {
        not_reading.push(instance.admin().await?.watch(&path).await?);
    }
    let origin = Instant::now();
    let readers = WATCHERS - stalled;
    let ready = Arc::new(Barrier::new(readers + 1));
    let mut watchers = JoinSet::new();
    for _ in 0..readers {
        let mut watch = instance.admin().await?.watch(&path).await?;
        let ready = Arc::clone(&ready);
        watchers.spawn(async move {
            ready.wait().await;
            let mut samples = Samples::default();
            for _ in 0..WRITES {
                let line = watch
                    .next_line()
                    .await
                    .ok_or_else(|| anyhow::anyhow!("cut off"))?;
                let now = origin.elapsed();
                samples.push(now.saturating_sub(sent_at(&line)?));
            }
            anyhow::Ok(samples)
        });
    }
    ready.wait().await;
    let mut clock = tokio::time::interval(std::time::Duration::from_secs(1) / PER_SECOND);
    for _ in 0..WRITES {
        clock.tick().await;
        let mut object = config_map("lag", "value", &value);
        object["data"]["sent"] = format!("@{}@", origin.elapsed().as_nanos()).into();
        admin
            .put(&format!("{CONFIG_MAPS}/lag"), &object)
            .await?
            .ok()?;
    }
    let mut samples = Samples::default();
    while let Some(ended) = watchers.join_next().await {
        samples.extend(ended??);
    }
    Ok(samples)
}

/// The time that the writer put between two signs that occur nowhere else.
fn sent_at(line: &str) -> anyhow::Result<std::time::Duration> {
    let nanos = line
        .split('@')
        .nth(1)
        .ok_or_else(|| anyhow::anyhow!("no time in {line}"))?;
    Ok(std::time::Duration::from_nanos(nanos.parse()?))
}
