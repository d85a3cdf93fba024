//! Whether a new notification is slower when very many have ended before it.

use std::time::{Duration, Instant};

use anyhow::Context;
use belay_testkit::{Instance, NOTIFICATIONS, Rest, instance::NODE, notification, processes};

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
/// How many of them are made on one side before it is the other's turn.
const BLOCK: usize = 20;
/// Between two notifications. What one leaves to be cleared up when its end is known, on disk among
/// others, would be counted as time of the next.
const PAUSE: Duration = Duration::from_millis(10);
/// Rounds before that, which nobody counts.
const WARM_UP: usize = 50;
/// How often an agent's list is asked for.
const LISTS: usize = 50;
/// More than this is slower, and not noise.
const TOLERANCE: f64 = 1.1;

/// One instance and what was measured on it.
struct Side {
    instance: Instance,
    admin: Rest,
    ends: Ends,
    figures: Figures,
}

#[derive(Default)]
struct Figures {
    signals: Samples,
    execs: Samples,
    lists: Samples,
    anonymous_kib: u64,
}

pub(crate) async fn measure() -> anyhow::Result<String> {
    let (finished, delivered) = (scaled(FINISHED)?, scaled(DELIVERED)?);
    let mut empty = Side::start().await?;
    let full = Instance::up().start().await?;
    fill(&full, finished, delivered).await?;
    let mut full = Side::of(full).await?;
    // What the loading left to do is not to be measured, nor what a first notification costs.
    tokio::time::sleep(Duration::from_secs(5)).await;
    for round in 0..WARM_UP {
        empty.round(&format!("w{round}")).await?;
        full.round(&format!("w{round}")).await?;
    }
    for side in [&mut empty, &mut full] {
        side.figures = Figures::default();
    }
    // In turn, so that a noisy moment hits both alike; and some at a time, so that neither finds the
    // processor's caches full of what the other left there.
    for block in 0..ROUNDS / BLOCK {
        for side in [&mut empty, &mut full] {
            for round in 0..BLOCK {
                side.round(&format!("r{block}-{round}")).await?;
            }
        }
    }
    for _ in 0..LISTS {
        empty.list().await?;
        full.list().await?;
    }
    let none = empty.end()?.1;
    let (mut instance, many) = full.end()?;
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
         Two `belay up`, one with none and one with {finished} finished PodNotifications in its \
         store: \
         {delivered} delivered by its node, the others final when they were created (their pod \
         does not exist). New ones are timed from the answer to the create request until a watcher \
         holds the final state, {} rounds of each, {BLOCK} at a time on both in turn, {} ms apart, so that none is \
         timed with what another left. Target: not slower, which is at most \
         {TOLERANCE} times the p50 here. The list is what an agent reads when it starts (here in one page); it \
         holds what was delivered on its node, so it grows with that. `belay up` on the full store \
         was ready {:.2} s after its start.\n\n\
         | what | none | {finished} | ratio | met |\n|---|---|---|---|---|\n{}{}{}\
         | RssAnon | {:.1} MiB | {:.1} MiB | {:.2} | |\n",
        none.signals.len(),
        PAUSE.as_millis(),
        restart.as_secs_f64(),
        row("signal, p50", |f| &f.signals, true),
        row("exec `true`, p50", |f| &f.execs, true),
        row("list of one agent, p50", |f| &f.lists, false),
        mib(&none),
        mib(&many),
        mib(&many) / mib(&none),
    ))
}

/// Leaves that many finished notifications in the store.
async fn fill(instance: &Instance, finished: usize, delivered: usize) -> anyhow::Result<()> {
    let admin = instance.admin().await?;
    admin.run(&workload().build()).await?;
    // Its trap must be set before the first signal.
    tokio::time::sleep(Duration::from_secs(1)).await;
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
        .await
}

impl Side {
    /// A new instance, with nothing but the pod.
    async fn start() -> anyhow::Result<Self> {
        let instance = Instance::up().start().await?;
        let admin = instance.admin().await?;
        admin.run(&workload().build()).await?;
        Self::of(instance).await
    }

    /// An instance that runs the pod already.
    async fn of(instance: Instance) -> anyhow::Result<Self> {
        let admin = instance.admin().await?;
        Ok(Self {
            ends: Ends::watch(&admin).await?,
            figures: Figures::default(),
            instance,
            admin,
        })
    }

    async fn round(&mut self, name: &str) -> anyhow::Result<()> {
        let (ends, admin) = (&self.ends, &self.admin);
        tokio::time::sleep(PAUSE).await;
        let signal = ends.notify(admin, &format!("{name}-s"), "signal").await?;
        tokio::time::sleep(PAUSE).await;
        let exec = ends.notify(admin, &format!("{name}-e"), "exec").await?;
        self.figures.signals.push(signal);
        self.figures.execs.push(exec);
        Ok(())
    }

    /// What an agent asks for when it starts.
    async fn list(&mut self) -> anyhow::Result<()> {
        let list = format!(
            "/apis/apps.k8s.io/v1alpha1/podnotifications?fieldSelector=status.nodeName%3D{NODE}"
        );
        let begin = Instant::now();
        let reply = self.admin.get(&list).await?;
        self.figures.lists.push(begin.elapsed());
        anyhow::ensure!(reply.status.is_success(), "{}", reply.text());
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<(Instance, Figures)> {
        let kib = processes::anonymous_kib(self.instance.pid()?);
        self.figures.anonymous_kib = kib.context("no memory figure")?;
        Ok((self.instance, self.figures))
    }
}
