//! What an idle instance with a hundred pods costs.

use std::time::Duration;

use anyhow::Context;
use belay_testkit::{Instance, PODS, eventually_within, pod, processes};

const PODS_RUN: usize = 100;

pub(crate) async fn measure() -> anyhow::Result<String> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let empty = processes::anonymous_kib(instance.pid()?).context("no memory figure")?;
    for number in 0..PODS_RUN {
        let manifest = pod(&format!("idle-{number}")).container("main", ["sleep", "86400"]);
        admin.post(PODS, &manifest.build()).await?.ok()?;
    }
    eventually_within(
        Duration::from_secs(300),
        "a hundred running pods",
        async || {
            let list = admin.get(PODS).await?.ok()?;
            let items = list["items"].as_array().cloned().unwrap_or_default();
            let running = items
                .iter()
                .filter(|pod| pod["status"]["phase"] == "Running")
                .count();
            Ok((running == PODS_RUN).then_some(()))
        },
    )
    .await?;
    // Idle means that start-up is over and a few heartbeats have passed.
    tokio::time::sleep(Duration::from_secs(30)).await;
    let own = processes::anonymous_kib(instance.pid()?).context("no memory figure")?;
    let shims: Vec<u64> = processes::with_program_under(instance.dir())
        .iter()
        .filter_map(|shim| processes::private_kib(shim.pid))
        .collect();
    anyhow::ensure!(
        shims.len() == PODS_RUN,
        "{} shims for {PODS_RUN} pods",
        shims.len()
    );
    let highest = shims.iter().max().copied().unwrap_or_default();
    let mean = shims.iter().sum::<u64>() / shims.len() as u64;
    Ok(format!(
        "## Memory\n\n\
         `belay up` with {PODS_RUN} pods of one container each, 30 s after the last one ran.\n\n\
         | what | figure | target |\n|---|---|---|\n\
         | RssAnon of `belay up` before the first pod | {:.1} MiB | |\n\
         | RssAnon of `belay up` with {PODS_RUN} pods | {:.1} MiB | under 40 MiB |\n\
         | private memory of a shim | {mean} KiB mean, {highest} KiB highest | under 400 KiB |\n",
        empty as f64 / 1024.0,
        own as f64 / 1024.0,
    ))
}
