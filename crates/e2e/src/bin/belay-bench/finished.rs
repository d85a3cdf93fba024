//! Whether a new notification is slower when very many have ended before it.

use std::time::{Duration, Instant};

use anyhow::Context;
use belay_testkit::{Instance, NOTIFICATIONS, Rest, notification, processes};

use crate::{
    burst::Load,
    clients::Clients,
    delivery::{Ends, POD, workload},
    samples::{Samples, ms},
    scaled,
};

const FINISHED: usize = 100_000;
/// How many of them the node's agent has delivered; the others were final when they were created.
const DELIVERED: usize = 10_000;
const ROUNDS: usize = 400;
/// How often an agent's list is asked for.
const LISTS: usize = 50;
/// More than this is slower, and not noise.
const TOLERANCE: f64 = 1.1;

/// What was measured with one number of finished notifications in the store.
struct Figures {
    signals: Samples,
    execs: Samples,
    lists: Samples,
    anonymous_kib: u64,
}

pub(crate) async fn measure() -> anyhow::Result<String> {
    let (finished, delivered) = (scaled(FINISHED)?, scaled(DELIVERED)?);
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    admin.run(&workload().build()).await?;
    let none = figures(&instance, &admin, "none").await?;

    let clients = Clients::connect(&instance.kubeconfig()).await?;
    let load = Load::put(&admin, &clients, POD, "signal", delivered).await?;
    anyhow::ensure!(load.failed == 0, "{} failed", load.failed);
    clients
        .each(finished - delivered, |rest, number| async move {
            let object = notification(&format!("gone-{number}"), "no-such-pod", "signal");
            let created = rest.post(NOTIFICATIONS, &object.build()).await?.ok()?;
            let state = &created["status"]["state"];
            anyhow::ensure!(state == "Failed", "not final at once: {state}");
            Ok(())
        })
        .await?;
    // What the loading left to do is not to be measured.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let many = figures(&instance, &admin, "many").await?;

    instance.stop().await?;
    let begin = Instant::now();
    instance.start_again().await?;
    let restart = begin.elapsed();

    let ratio = |of: fn(&Figures) -> &Samples| {
        of(&many).p50().as_secs_f64() / of(&none).p50().as_secs_f64()
    };
    let row = |what: &str, of: fn(&Figures) -> &Samples, target: bool| {
        let ratio = ratio(of);
        let met = match (target, ratio <= TOLERANCE) {
            (false, _) => "",
            (true, true) => "yes",
            (true, false) => "no",
        };
        format!(
            "| {what} | {} | {} | {ratio:.2} | {met} |\n",
            ms(of(&none).p50()),
            ms(of(&many).p50()),
        )
    };
    let mib = |figures: &Figures| figures.anonymous_kib as f64 / 1024.0;
    Ok(format!(
        "## After {finished} finished notifications\n\n\
         `belay up` with none and with {finished} finished PodNotifications in its store: \
         {delivered} delivered by its node, the others final when they were created (their pod \
         does not exist). New ones are timed from the answer to the create request until a watcher \
         holds the final state, {} rounds of each. Target: not slower, which is at most \
         {TOLERANCE} times the p50 here. The list is what an agent reads when it starts (here in one page); it \
         holds what was delivered on its node, so it grows with that. `belay up` on the full store \
         was ready {:.2} s after its start.\n\n\
         | what | none | {finished} | ratio | met |\n|---|---|---|---|---|\n{}{}{}\
         | RssAnon | {:.1} MiB | {:.1} MiB | {:.2} | |\n",
        none.signals.len(),
        restart.as_secs_f64(),
        row("signal, p50", |f| &f.signals, true),
        row("exec `true`, p50", |f| &f.execs, true),
        row("list of one agent, p50", |f| &f.lists, false),
        mib(&none),
        mib(&many),
        mib(&many) / mib(&none),
    ))
}

async fn figures(instance: &Instance, admin: &Rest, tag: &str) -> anyhow::Result<Figures> {
    let ends = Ends::watch(admin).await?;
    let (mut signals, mut execs, mut lists) =
        (Samples::default(), Samples::default(), Samples::default());
    for round in 0..ROUNDS {
        let name = |kind: &str| format!("{tag}-{kind}{round}");
        signals.push(ends.notify(admin, &name("s"), "signal").await?);
        execs.push(ends.notify(admin, &name("e"), "exec").await?);
    }
    let list = format!(
        "/apis/apps.k8s.io/v1alpha1/podnotifications?fieldSelector=status.nodeName%3D{}",
        belay_testkit::instance::NODE
    );
    for _ in 0..LISTS {
        let begin = Instant::now();
        let reply = admin.get(&list).await?;
        lists.push(begin.elapsed());
        anyhow::ensure!(reply.status.is_success(), "{}", reply.text());
    }
    let anonymous_kib = processes::anonymous_kib(instance.pid()?).context("no memory figure")?;
    Ok(Figures {
        signals,
        execs,
        lists,
        anonymous_kib,
    })
}
