//! Whether very many finished notifications slow a new one on a real Kubernetes, or the takeover by
//! another controller.

use std::time::{Duration, Instant};

use anyhow::Context;
use belay_testkit::{
    Cluster, NOTIFICATIONS, Rest, Stage, eventually_within, notification, processes, rest::name,
};
use serde_json::Value;

use crate::{
    clients::Clients,
    delivery::{Ends, POD, workload},
    samples::{Samples, ms},
    scaled,
};

const FINISHED: usize = 100_000;
const ROUNDS: usize = 200;
/// Rounds before that, which nobody counts.
const WARM_UP: usize = 20;
/// More than this is slower, and not noise.
const TOLERANCE: f64 = 1.1;
/// What the loading may take; the controller writes an end for each.
const PATIENCE: Duration = Duration::from_secs(1800);
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/belay-system/leases/belay-controller";
const CONTROLLERS: &str = "/api/v1/namespaces/belay-system/pods\
    ?labelSelector=app.kubernetes.io%2Fcomponent%3Dcontroller";

/// What was measured with as many as there were.
struct Figures {
    signals: Samples,
    execs: Samples,
    takeover: Duration,
    leader_kib: u64,
}

pub(crate) async fn measure() -> anyhow::Result<String> {
    let finished = scaled(FINISHED)?;
    let title = format!("## After {finished} finished notifications on a real Kubernetes\n\n");
    let Some(cluster) = Cluster::with_belay().await? else {
        return Ok(format!(
            "{title}Not measured: there was no Kubernetes (`cargo xtask bench` builds one).\n"
        ));
    };
    let stage = Stage::of(&cluster).await?;
    stage.run(workload()).await?;
    let none = Figures::measure(&cluster, stage.admin(), "none").await?;
    let begin = Instant::now();
    fill(&cluster, stage.admin(), finished).await?;
    let filled = begin.elapsed();
    // What the loading left to do is not to be measured.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let many = Figures::measure(&cluster, stage.admin(), "many").await?;
    let lease = stage.admin().get(LEASE).await?.ok()?;
    let seconds = &lease["spec"]["leaseDurationSeconds"];

    let row = |what: &str, of: fn(&Figures) -> Duration, target: bool| {
        let ratio = of(&many).as_secs_f64() / of(&none).as_secs_f64();
        let met = match (target, ratio <= TOLERANCE) {
            (false, _) => "",
            (true, true) => "yes",
            (true, false) => "no",
        };
        let [none, many] = [of(&none), of(&many)].map(ms);
        format!("| {what} | {none} | {many} | {ratio:.2} | {met} |\n")
    };
    let mib = |figures: &Figures| figures.leader_kib as f64 / 1024.0;
    Ok(format!(
        "{title}\
         Kubernetes with Belay installed as above, first with no notifications and then, in the same run, \
         with {finished} finished ones (their pod does not exist; creating and ending them took \
         {:.0} s). New ones are timed from the answer to the create request until a watcher holds \
         `Succeeded`, {} rounds of each. Target: not slower, which is at most {TOLERANCE} times the \
         p50. Takeover: from `kill -9` of the leading controller until a notification that was \
         created then has `Succeeded`; the lease is for {seconds} s, and a new leader reads no \
         finished ones.\n\n\
         | what | none | {finished} | ratio | met |\n|---|---|---|---|---|\n{}{}{}\
         | RssAnon of the new leader | {:.1} MiB | {:.1} MiB | {:.2} | |\n",
        filled.as_secs_f64(),
        none.signals.len(),
        row("signal, p50", |f| f.signals.p50(), true),
        row("exec `true`, p50", |f| f.execs.p50(), true),
        row("takeover", |f| f.takeover, false),
        mib(&none),
        mib(&many),
        mib(&many) / mib(&none),
    ))
}

impl Figures {
    async fn measure(cluster: &Cluster, admin: &Rest, tag: &str) -> anyhow::Result<Self> {
        let ends = Ends::watch(admin).await?;
        let (mut signals, mut execs) = (Samples::default(), Samples::default());
        for round in 0..WARM_UP + scaled(ROUNDS)? {
            let [signal, exec] = ["s", "e"].map(|kind| format!("{tag}-{kind}{round}"));
            let signal = ends.notify(admin, &signal, "signal").await?;
            let exec = ends.notify(admin, &exec, "exec").await?;
            if round >= WARM_UP {
                signals.push(signal);
                execs.push(exec);
            }
        }
        let takeover = takeover(cluster, admin, &ends, &format!("{tag}-taken")).await?;
        let leader = leader(cluster, admin).await?.context("nobody leads")?;
        Ok(Figures {
            signals,
            execs,
            takeover,
            leader_kib: processes::anonymous_kib(leader).context("no memory figure")?,
        })
    }
}

/// How long a notification takes that is created when the leader dies.
async fn takeover(
    cluster: &Cluster,
    admin: &Rest,
    ends: &Ends,
    name: &str,
) -> anyhow::Result<Duration> {
    let process = eventually_within(PATIENCE, "two controllers", async || {
        let list = admin.get(CONTROLLERS).await?.ok()?;
        let ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
        let both = items(&list).filter(ready).count() == 2;
        Ok(leader(cluster, admin).await?.filter(|_| both))
    })
    .await?;
    let begin = Instant::now();
    processes::kill(process);
    let end = ends.of(name);
    let object = notification(name, POD, "signal").deadline(3600).build();
    admin.post(NOTIFICATIONS, &object).await?.ok()?;
    let (ended, state) = end.await.context("the watch ended")?;
    anyhow::ensure!(state == "Succeeded", "{name} {state}");
    Ok(ended.saturating_duration_since(begin))
}

/// The process of the controller that holds the lease.
async fn leader(cluster: &Cluster, admin: &Rest) -> anyhow::Result<Option<u32>> {
    let lease = admin.get(LEASE).await?.ok()?;
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
    let list = admin.get(CONTROLLERS).await?.ok()?;
    // An identity begins with the name of its pod.
    let pod = items(&list).map(name).find(|pod| holder.starts_with(pod));
    let found = pod.into_iter().flat_map(|pod| {
        processes::with_environment(&format!("HOSTNAME={pod}"))
            .into_iter()
            .filter(|process| process.command.contains("belay controller"))
            .find(|process| cluster.contains(process.pid))
    });
    Ok(found.map(|process| process.pid).next())
}

/// Leaves that many finished notifications.
async fn fill(cluster: &Cluster, admin: &Rest, finished: usize) -> anyhow::Result<()> {
    let clients = Clients::connect(&cluster.kubeconfig()).await?;
    clients
        .each(finished, |rest, number| async move {
            let object = notification(&format!("gone-{number}"), "no-such-pod", "signal");
            rest.post(NOTIFICATIONS, &object.build()).await?.ok()?;
            Ok(())
        })
        .await?;
    let open = format!("{NOTIFICATIONS}?limit=1&fieldSelector=status.state%3DNew");
    eventually_within(PATIENCE, "all to have ended", async || {
        let list = admin.get(&open).await?.ok()?;
        Ok(items(&list).next().is_none().then_some(()))
    })
    .await
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}
