//! Durable creates: 32 clients at once, and a steady trickle.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use belay_testkit::{CONFIG_MAPS, Cluster, Instance, Part, Rest, processes, rest::config_map};
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

/// What one server showed.
struct Figures {
    cpu_each: Duration,
    per_second: f64,
    busy: Samples,
    steady: Samples,
    single: Samples,
}

pub(crate) async fn measure() -> anyhow::Result<String> {
    let instance = Instance::server().start().await?;
    let ours = drive(&instance.kubeconfig(), &[instance.pid()?]).await?;
    let disk = raw::durable_appends(instance.dir(), VALUE, 500)?;
    drop(instance);
    let theirs = match Cluster::start().await? {
        Some(mut cluster) => {
            // Only what a create needs, so that nothing else takes the cores.
            for part in [Part::Kubelet, Part::ControllerManager, Part::Scheduler] {
                cluster.kill9(part).await?;
            }
            let pid = |part| cluster.pid(part).context("a part has ended");
            let pids = [pid(Part::ApiServer)?, pid(Part::Etcd)?];
            Some(drive(&cluster.kubeconfig(), &pids).await?)
        }
        None => None,
    };
    let row = |what: &str, told: fn(&Figures) -> String| {
        let beside = theirs.as_ref().map_or("not measured".to_owned(), told);
        format!("| {what} | {} | {beside} |\n", told(&ours))
    };
    let share = theirs.as_ref().map_or_else(String::new, |theirs| {
        format!(
            " A create costs {:.2} of their CPU (target: a tenth).",
            ours.cpu_each.as_secs_f64() / theirs.cpu_each.as_secs_f64()
        )
    });
    Ok(format!(
        "## Durable creates\n\n\
         {CREATES} config maps of {VALUE} bytes over HTTPS, each acknowledged after it is on disk; \
         the same clients against kube-apiserver and etcd, with nothing else of Kubernetes \
         running.{share} One append of {VALUE} bytes and fdatasync on the same disk: {}.\n\n\
         | what | belay server | kube-apiserver + etcd |\n|---|---|---|\n{}{}{}{}{}",
        pair(&disk),
        row(&format!("CPU per create, {CLIENTS} clients"), |f| ms(
            f.cpu_each
        )),
        row(&format!("throughput, {CLIENTS} clients"), |f| format!(
            "{:.0} creates/s",
            f.per_second
        )),
        row(&format!("latency, {CLIENTS} clients"), |f| pair(&f.busy)),
        row(&format!("latency at {TRICKLE_PER_SECOND} creates/s"), |f| {
            pair(&f.steady)
        }),
        row("latency, one client alone", |f| pair(&f.single)),
    ))
}

fn pair(samples: &Samples) -> String {
    format!("p50 {}, p99 {}", ms(samples.p50()), ms(samples.p99()))
}

/// The three loads against the server of a kubeconfig, whose processes are `pids`.
async fn drive(kubeconfig: &Path, pids: &[u32]) -> anyhow::Result<Figures> {
    let value = "v".repeat(VALUE);
    let ticks = || -> anyhow::Result<u64> {
        let each = pids.iter().map(|pid| processes::cpu_ticks(*pid));
        each.sum::<Option<u64>>().context("no CPU time")
    };
    let before = ticks()?;
    let begin = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let rest = Rest::from_kubeconfig(kubeconfig).await?;
        let (next, value) = (Arc::clone(&next), value.clone());
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
    // Linux counts in hundredths of a second for user space, whatever its own clock does.
    let cpu_each = Duration::from_millis((ticks()? - before) * 10) / u32::try_from(CREATES)?;

    let rest = Rest::from_kubeconfig(kubeconfig).await?;
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
    Ok(Figures {
        cpu_each,
        per_second: CREATES as f64 / took.as_secs_f64(),
        busy,
        steady,
        single,
    })
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
