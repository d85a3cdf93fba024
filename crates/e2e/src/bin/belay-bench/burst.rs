//! A thousand notifications at once on one node, beside the same commands run raw.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use belay_testkit::{Instance, NOTIFICATIONS, Rest, exec, notification, pod};

use crate::{
    clients::{CLIENTS, Clients},
    delivery::Ends,
    raw,
    requests::Writes,
};

const COUNT: usize = 1_000;
/// To the raw work.
const TARGET: f64 = 1.15;
/// As many as an agent runs at once.
pub(crate) const AT_ONCE: usize = 16;

const WORK: [(&str, &[&str]); 2] = [("true", &["true"]), ("sleep 0.1", &["sleep", "0.1"])];

pub(crate) async fn measure() -> anyhow::Result<String> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let clients = Clients::connect(&instance.kubeconfig()).await?;
    let manifest = pod("burst")
        .container("main", ["sh", "-c", raw::IDLE])
        .notifier("true", exec(["true"]).timeout(5))
        .notifier("sleep", exec(["sleep", "0.1"]).timeout(5))
        .build();
    admin.run(&manifest).await?;
    let mut rows = String::new();
    for (label, command) in WORK {
        let container = Arc::new(raw::Container::start().await?);
        let raw = container.burst(command, COUNT, AT_ONCE).await?;
        container.stop().await?;

        let writes_alone = clients.writes_alone(command[0], COUNT * 3).await?;
        let load = Load::put(&admin, &clients, "burst", command[0], COUNT).await?;
        let ratio = load.took.as_secs_f64() / raw.as_secs_f64();
        let with_writes = load.took.as_secs_f64() / (raw + writes_alone).as_secs_f64();
        let met = if ratio <= TARGET { "yes" } else { "no" };
        rows.push_str(&format!(
            "| `{label}` | {:.2} s | {:.2} s | {:.2} s | {ratio:.2} | {met} | {with_writes:.2} | \
             {:.2} | {} |\n",
            raw.as_secs_f64(),
            writes_alone.as_secs_f64(),
            load.took.as_secs_f64(),
            load.status_writes as f64 / COUNT as f64,
            load.failed,
        ));
    }
    Ok(format!(
        "## A thousand at once\n\n\
         {COUNT} PodNotifications created by {CLIENTS} clients for one node, from the first \
         request to the last final state (*notified*), beside the same commands run directly on \
         the same runtime (*raw*), {AT_ONCE} at a time in both cases. The raw run writes nothing; \
         the other one makes {} writes durable, and its clients share the machine's cores. What \
         those writes alone take from as many clients is the second column. Target: at most \
         {TARGET} times the raw work, two status writes each, no failure.\n\n\
         | command | raw | its writes alone | notified | to raw | met | to raw and writes | status \
         writes each | failed |\n|---|---|---|---|---|---|---|---|---|\n{rows}",
        COUNT * 3,
    ))
}

/// What many notifications at once came to.
pub(crate) struct Load {
    /// From the first request to the last final state.
    pub(crate) took: Duration,
    pub(crate) failed: usize,
    pub(crate) status_writes: u64,
}

impl Load {
    /// Lets all clients notify one pod, `count` times altogether.
    pub(crate) async fn put(
        admin: &Rest,
        clients: &Clients,
        pod: &'static str,
        notifier: &'static str,
        count: usize,
    ) -> anyhow::Result<Self> {
        let before = Writes::so_far(admin).await?;
        let ends = Ends::watch(admin).await?;
        let named = move |number: usize| format!("{notifier}-{number}");
        let waiting: Vec<_> = (0..count).map(|number| ends.of(&named(number))).collect();
        let begin = Instant::now();
        clients
            .each(count, move |rest, number| async move {
                let object = notification(&named(number), pod, notifier).deadline(600);
                rest.post(NOTIFICATIONS, &object.build()).await?.ok()?;
                Ok(())
            })
            .await?;
        let mut last = begin;
        let mut failed = 0;
        for end in waiting {
            let (at, state) = end.await.context("the watch ended")?;
            last = last.max(at);
            failed += usize::from(state != "Succeeded");
        }
        let writes = Writes::so_far(admin).await?.since(&before);
        Ok(Self {
            took: last - begin,
            failed,
            status_writes: writes.of("podnotifications/status"),
        })
    }
}
