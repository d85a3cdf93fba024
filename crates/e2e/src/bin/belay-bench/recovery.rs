//! An agent killed with a hundred actions in flight.

use std::time::Instant;

use anyhow::Context;
use belay_testkit::{Instance, NOTIFICATIONS, eventually, exec, lines, notification, pod};

use crate::{delivery::Ends, raw, samples::ms};

const COUNT: usize = 100;

pub(crate) async fn measure() -> anyhow::Result<String> {
    let mut instance = Instance::server().start().await?;
    let arguments = ["--max-actions", "100"];
    instance
        .start_agent_with_args("n1", &arguments, &[])
        .await?;
    let admin = instance.admin().await?;
    let mut rows = String::new();
    for (case, ends_before_restart) in [
        ("ended while the agent was away", true),
        ("still running", false),
    ] {
        let tag = if ends_before_restart {
            "away"
        } else {
            "running"
        };
        let (counter, gate) = (instance.file(&format!("{tag}-runs")), instance.file(tag));
        let script =
            format!("echo ran >> {counter}; while [ ! -e {gate} ]; do sleep 0.2; done; exit 0");
        let manifest = pod(tag)
            .container("main", ["sh", "-c", raw::IDLE])
            .notifier("work", exec(["sh", "-c", &script]).timeout(600))
            .build();
        admin.run(&manifest).await?;
        let ends = Ends::watch(&admin).await?;
        let waiting: Vec<_> = (0..COUNT)
            .map(|number| ends.of(&format!("{tag}-{number}")))
            .collect();
        for number in 0..COUNT {
            let object = notification(&format!("{tag}-{number}"), tag, "work")
                .deadline(600)
                .build();
            admin.post(NOTIFICATIONS, &object).await?.ok()?;
        }
        eventually("a hundred actions in flight", async || {
            Ok((lines(&counter) == COUNT).then_some(()))
        })
        .await?;
        instance.kill9_agent("n1").await?;
        if ends_before_restart {
            std::fs::write(&gate, "")?;
            // The slowest of them looks at the gate five times a second.
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        }
        let begin = Instant::now();
        instance
            .start_agent_with_args("n1", &arguments, &[])
            .await?;
        if !ends_before_restart {
            std::fs::write(&gate, "")?;
        }
        let mut last = begin;
        for end in waiting {
            let (at, state) = end.await.context("the watch ended")?;
            anyhow::ensure!(state == "Succeeded", "one ended as {state}");
            last = last.max(at);
        }
        let runs = lines(&counter);
        rows.push_str(&format!(
            "| {case} | {} | {runs} of {COUNT} |\n",
            ms(last - begin)
        ));
    }
    Ok(format!(
        "## An agent killed with {COUNT} actions in flight\n\n\
         `kill -9` of the agent's process, then a new one on the same directory; from its start \
         until the last of the {COUNT} has its real outcome. Target: within 2 s, and none runs \
         twice.\n\n\
         | actions | all resolved after | runs |\n|---|---|---|\n{rows}"
    ))
}
