//! One notification after the other: signal and exec, beside two durable writes and the raw act.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::Context;
use belay_api::signal::Signal;
use belay_testkit::{
    CONFIG_MAPS, Instance, NOTIFICATIONS, PodBuilder, Rest, exec, notification, pod,
    rest::{config_map, name, revision},
    signal,
};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    raw,
    samples::{Samples, ms},
};

const ROUNDS: usize = 400;
/// Name of the pod that is notified.
pub(crate) const POD: &str = "measured";

pub(crate) async fn measure() -> anyhow::Result<String> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    admin.run(&workload().build()).await?;
    let ends = Ends::watch(&admin).await?;
    let container = raw::Container::start().await?;
    let hup: Signal = "SIGHUP".parse().context("SIGHUP is a signal")?;
    admin
        .post(CONFIG_MAPS, &config_map("pairs", "value", "0"))
        .await?
        .ok()?;

    let (mut signals, mut execs) = (Samples::default(), Samples::default());
    let (mut raw_signals, mut raw_execs) = (Samples::default(), Samples::default());
    let mut pairs = Samples::default();
    // All five in turn, so that a noisy moment hits all of them alike.
    for round in 0..ROUNDS {
        signals.push(ends.notify(&admin, &format!("s{round}"), "signal").await?);
        raw_signals.push(container.signal(hup).await?);
        execs.push(ends.notify(&admin, &format!("e{round}"), "exec").await?);
        raw_execs.push(container.exec(&["true"]).await?);
        pairs.push(two_writes(&admin, round).await?);
    }
    container.stop().await?;

    let row = |name: &str, measured: &Samples, raw: &Samples, allowance: u64| {
        let budget = pairs.p50() + raw.p50() + Duration::from_millis(allowance);
        format!(
            "| {name} | {} | {} | {} | {} | {} |\n",
            ms(measured.p50()),
            ms(measured.p99()),
            ms(raw.p50()),
            ms(budget),
            if measured.p50() <= budget {
                "yes"
            } else {
                "no"
            },
        )
    };
    Ok(format!(
        "## One notification\n\n\
         From the answer to the create request until a watcher holds the final state; {} rounds \
         of each, one after the other. Two durable writes through the same API, in the same \
         rounds: p50 {}, p99 {}. The target is those two writes, the raw act on the same runtime, \
         and 2 ms (signal) or 3 ms (exec).\n\n\
         | handler | p50 | p99 | raw act p50 | target p50 | met |\n|---|---|---|---|---|---|\n{}{}",
        signals.len(),
        ms(pairs.p50()),
        ms(pairs.p99()),
        row("signal", &signals, &raw_signals, 2),
        row("exec `true`", &execs, &raw_execs, 3),
    ))
}

/// The pod that is notified.
pub(crate) fn workload() -> PodBuilder {
    pod(POD)
        .container("main", ["sh", "-c", raw::IDLE])
        .notifier("signal", signal("SIGHUP").timeout(30))
        .notifier("exec", exec(["true"]).timeout(30))
}

/// Two updates of one object, each acknowledged after it is on disk.
pub(crate) async fn two_writes(rest: &Rest, round: usize) -> anyhow::Result<Duration> {
    let path = format!("{CONFIG_MAPS}/pairs");
    let begin = Instant::now();
    for half in 0..2 {
        let object = config_map("pairs", "value", &format!("{round}-{half}"));
        rest.put(&path, &object).await?.ok()?;
    }
    Ok(begin.elapsed())
}

type Waiting = Arc<Mutex<HashMap<String, oneshot::Sender<(Instant, String)>>>>;

/// Sees notifications end through one watch.
pub(crate) struct Ends {
    waiting: Waiting,
    /// Ends with it.
    _watch: JoinSet<()>,
}

impl Ends {
    pub(crate) async fn watch(rest: &Rest) -> anyhow::Result<Self> {
        // Only the revision is of interest, however many there are.
        let newest = rest.get(&format!("{NOTIFICATIONS}?limit=1")).await?.ok()?;
        let mut from = revision(&newest);
        let waiting = Waiting::default();
        let (told, rest) = (Arc::clone(&waiting), rest.clone());
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            // A server ends a watch that it finds too slow; what comes after is in the next one.
            while let Ok(mut watch) = rest
                .watch(&format!(
                    "{NOTIFICATIONS}?watch=true&resourceVersion={from}"
                ))
                .await
            {
                while let Some(event) = watch.next().await {
                    let (at, object) = (Instant::now(), &event["object"]);
                    if event["type"] == "ERROR" {
                        eprintln!("the watch of notifications is of no use any more: {object}");
                        return told.lock().expect("no panic").clear();
                    }
                    from = revision(object);
                    let state = object["status"]["state"].as_str().unwrap_or("New");
                    if state != "New" {
                        let waiter = told.lock().expect("no panic").remove(name(object));
                        if let Some(waiter) = waiter {
                            // Whoever waited may have given up.
                            let _ = waiter.send((at, state.to_owned()));
                        }
                    }
                }
                eprintln!("the watch of notifications ended after {from}; it goes on from there");
            }
            told.lock().expect("no panic").clear();
        });
        Ok(Self {
            waiting,
            _watch: reader,
        })
    }

    /// Tells when the notification of that name has ended; ask before it is created.
    pub(crate) fn of(&self, name: &str) -> oneshot::Receiver<(Instant, String)> {
        let (sender, receiver) = oneshot::channel();
        self.waiting
            .lock()
            .expect("no panic")
            .insert(name.to_owned(), sender);
        receiver
    }

    /// How long a notification of [`POD`] takes to succeed, once it is created.
    pub(crate) async fn notify(
        &self,
        rest: &Rest,
        name: &str,
        notifier: &str,
    ) -> anyhow::Result<Duration> {
        let end = self.of(name);
        let object = notification(name, POD, notifier).build();
        rest.post(NOTIFICATIONS, &object).await?.ok()?;
        let created = Instant::now();
        let (ended, state) = end.await.context("the watch ended")?;
        anyhow::ensure!(state == "Succeeded", "{name} {state}");
        rest.delete(&format!("{NOTIFICATIONS}/{name}"))
            .await?
            .ok()?;
        Ok(ended.saturating_duration_since(created))
    }
}
