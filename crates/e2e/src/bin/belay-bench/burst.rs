//! A thousand notifications at once on one node, beside the same commands run raw.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use belay_testkit::{
    CONFIG_MAPS, Instance, NOTIFICATIONS, Rest, exec, notification, pod, rest::config_map,
};
use tokio::task::JoinSet;

use crate::{delivery::Ends, raw};

const COUNT: usize = 1_000;
const CLIENTS: usize = 32;
/// As many as an agent runs at once.
const AT_ONCE: usize = 16;

const WORK: [(&str, &[&str]); 2] = [("true", &["true"]), ("sleep 0.1", &["sleep", "0.1"])];

pub(crate) async fn measure() -> anyhow::Result<String> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
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

        let writes_alone = writes_alone(&instance, command[0]).await?;

        let writes_before = status_writes(&admin).await?;
        let ends = Ends::watch(&admin).await?;
        let notifier = command[0];
        let waiting: Vec<_> = (0..COUNT)
            .map(|number| ends.of(&format!("{notifier}-{number}")))
            .collect();
        let begin = Instant::now();
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let rest = instance.admin().await?;
            clients.spawn(async move {
                for number in (client..COUNT).step_by(CLIENTS) {
                    let name = format!("{notifier}-{number}");
                    let object = notification(&name, "burst", notifier).deadline(600).build();
                    rest.post(NOTIFICATIONS, &object).await?.ok()?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        let mut last = begin;
        let mut failed = 0;
        for end in waiting {
            let (at, state) = end.await.context("the watch ended")?;
            last = last.max(at);
            failed += usize::from(state != "Succeeded");
        }
        let took = last - begin;
        let writes = status_writes(&admin).await? - writes_before;
        let ratio = took.as_secs_f64() / raw.as_secs_f64();
        let with_writes = took.as_secs_f64() / (raw + writes_alone).as_secs_f64();
        rows.push_str(&format!(
            "| `{label}` | {:.2} s | {:.2} s | {:.2} s | {ratio:.2} | {with_writes:.2} | {:.2} | \
             {failed} |\n",
            raw.as_secs_f64(),
            writes_alone.as_secs_f64(),
            took.as_secs_f64(),
            writes as f64 / COUNT as f64,
        ));
    }
    Ok(format!(
        "## A thousand at once\n\n\
         {COUNT} PodNotifications created by {CLIENTS} clients for one node, from the first \
         request to the last final state (*notified*), beside the same commands run directly on \
         the same runtime (*raw*), {AT_ONCE} at a time in both cases. The raw run writes nothing; \
         the other one makes {} writes durable, and its clients share the machine's cores. What \
         those writes alone take from as many clients is the second column. Target: at most 1.15 \
         times the raw work, two status writes each, no failure.\n\n\
         | command | raw | its writes alone | notified | to raw | to raw and writes | status writes \
         each | failed |\n|---|---|---|---|---|---|---|---|\n{rows}",
        COUNT * 3,
    ))
}

/// As many durable writes as the notifications make, and nothing else.
async fn writes_alone(instance: &Instance, tag: &str) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (rest, tag) = (instance.admin().await?, tag.to_owned());
        clients.spawn(async move {
            for number in (client..COUNT * 3).step_by(CLIENTS) {
                let object = config_map(&format!("{tag}-{number}"), "value", "x");
                rest.post(CONFIG_MAPS, &object).await?.ok()?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    Ok(begin.elapsed())
}

/// Successful status writes so far, from the server's own metrics.
async fn status_writes(rest: &Rest) -> anyhow::Result<u64> {
    let metrics = rest.get("/metrics").await?.text();
    let mut sum = 0.0;
    for line in metrics.lines() {
        let counted = line.starts_with("apiserver_request_total{")
            && line.contains("resource=\"podnotifications\"")
            && line.contains("subresource=\"status\"")
            && line.contains("code=\"200\"")
            && !line.contains("verb=\"get\"");
        if counted {
            let value = line
                .rsplit(' ')
                .next()
                .context("a metric without a value")?;
            sum += value.parse::<f64>()?;
        }
    }
    Ok(sum as u64)
}
