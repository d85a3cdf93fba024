//! Durable creates: 32 clients at once, and a steady trickle.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use belay_testkit::{CONFIG_MAPS, Instance, Rest, processes, rest::config_map};
use tokio::task::JoinSet;

use crate::{
    raw,
    samples::{Samples, ms},
};

const CLIENTS: usize = 32;
const CREATES: usize = 20_000;
const VALUE: usize = 1024;
const TRICKLE_PER_SECOND: u32 = 200;
const TRICKLE: u32 = 2_000;

pub(crate) async fn measure() -> anyhow::Result<String> {
    let instance = Instance::server().start().await?;
    let value = "v".repeat(VALUE);
    let pid = instance.pid()?;

    let ticks = processes::cpu_ticks(pid).context("no CPU time")?;
    let begin = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (rest, next, value) = (instance.admin().await?, Arc::clone(&next), value.clone());
        clients.spawn(async move {
            let mut samples = Samples::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= CREATES {
                    return anyhow::Ok(samples);
                }
                samples.push(create(&rest, &format!("busy-{number}"), &value).await?);
            }
        });
    }
    let mut busy = Samples::default();
    while let Some(ended) = clients.join_next().await {
        busy.extend(ended??);
    }
    let took = begin.elapsed();
    let ticks = processes::cpu_ticks(pid).context("no CPU time")? - ticks;
    // Linux counts in hundredths of a second for user space, whatever its own clock does.
    let cpu_each = Duration::from_millis(ticks * 10) / u32::try_from(CREATES)?;

    let rest = instance.admin().await?;
    let single = alone(&rest, "alone", &value, 500).await?;
    let mut trickle = JoinSet::new();
    let mut clock = tokio::time::interval(Duration::from_secs(1) / TRICKLE_PER_SECOND);
    for number in 0..TRICKLE {
        clock.tick().await;
        let (rest, value) = (rest.clone(), value.clone());
        trickle.spawn(async move { create(&rest, &format!("trickle-{number}"), &value).await });
    }
    let mut steady = Samples::default();
    while let Some(ended) = trickle.join_next().await {
        steady.push(ended??);
    }
    let disk = raw::durable_appends(instance.dir(), VALUE, 500)?;

    Ok(format!(
        "## Durable creates\n\n\
         {CREATES} config maps of {VALUE} bytes over HTTPS, each acknowledged after it is on disk. \
         The comparison with kube-apiserver and etcd comes with the tests on a real Kubernetes; \
         until then the figures stand beside what the disk itself takes to make one append durable.\n\n\
         | what | figure |\n|---|---|\n\
         | CPU of the server per create, {CLIENTS} clients | {} |\n\
         | throughput, {CLIENTS} clients | {:.0} creates/s |\n\
         | latency, {CLIENTS} clients | p50 {}, p99 {} |\n\
         | latency at {TRICKLE_PER_SECOND} creates/s | p50 {}, p99 {} |\n\
         | latency, one client alone | p50 {}, p99 {} |\n\
         | raw: append {VALUE} bytes and fdatasync | p50 {}, p99 {} |\n",
        ms(cpu_each),
        CREATES as f64 / took.as_secs_f64(),
        ms(busy.p50()),
        ms(busy.p99()),
        ms(steady.p50()),
        ms(steady.p99()),
        ms(single.p50()),
        ms(single.p99()),
        ms(disk.p50()),
        ms(disk.p99()),
    ))
}

async fn create(rest: &Rest, name: &str, value: &str) -> anyhow::Result<Duration> {
    let object = config_map(name, "value", value);
    let begin = Instant::now();
    rest.post(CONFIG_MAPS, &object).await?.ok()?;
    Ok(begin.elapsed())
}

/// One durable create after the other.
pub(crate) async fn alone(
    rest: &Rest,
    prefix: &str,
    value: &str,
    count: usize,
) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    for number in 0..count {
        samples.push(create(rest, &format!("{prefix}-{number}"), value).await?);
    }
    Ok(samples)
}
