//! Watchers that do not read cost bounded memory, and the others do not notice them.

use std::collections::BTreeSet;

use anyhow::Context;
use belay_testkit::{
    CONFIG_MAPS, Instance,
    processes::anonymous_kib,
    rest::{config_map, revision},
};
use tokio::task::JoinSet;

const STALLED: usize = 20;
const WRITES: usize = 20_000;
const WRITERS: usize = 16;
/// If every stalled watcher had its own copies, this would be needed many times over.
const VALUE: usize = 1024;
/// Well above what the history and the allocator keep, well below one copy per watcher.
const MAY_GROW_KIB: u64 = 192 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn twenty_stalled_watchers_cost_bounded_memory_and_others_see_everything()
-> anyhow::Result<()> {
    let instance = Instance::server().start().await?;
    let admin = instance.admin().await?;
    let value = "v".repeat(VALUE);
    for writer in 0..WRITERS {
        let object = config_map(&format!("busy-{writer}"), "value", &value);
        admin.post(CONFIG_MAPS, &object).await?.ok()?;
    }
    let from = revision(&admin.get(CONFIG_MAPS).await?.ok()?);
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={from}");

    let mut stalled = Vec::new();
    for _ in 0..STALLED {
        // A connection each: what one client does not read must not be another's excuse.
        stalled.push(instance.admin().await?.watch(&path).await?);
    }
    let mut reading = instance.admin().await?.watch(&path).await?;
    let reader = tokio::spawn(async move {
        let mut seen = Vec::with_capacity(WRITES);
        while seen.len() < WRITES {
            let event = reading
                .next()
                .await
                .context("the reading watcher was cut off")?;
            anyhow::ensure!(event["type"] == "MODIFIED", "unexpected: {event}");
            seen.push(revision(&event["object"]));
        }
        anyhow::Ok(seen)
    });

    let before = anonymous_kib(instance.pid()?).context("no memory figure")?;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let rest = instance.admin().await?;
        let value = value.clone();
        writers.spawn(async move {
            let mut acknowledged = Vec::new();
            for number in 0..WRITES / WRITERS {
                let object = config_map(&format!("busy-{writer}"), &format!("k{number}"), &value);
                let path = format!("{CONFIG_MAPS}/busy-{writer}");
                acknowledged.push(revision(&rest.put(&path, &object).await?.ok()?));
            }
            anyhow::Ok(acknowledged)
        });
    }
    let mut acknowledged = BTreeSet::new();
    while let Some(ended) = writers.join_next().await {
        acknowledged.extend(ended??);
    }
    let seen = reader.await??;
    assert!(seen.is_sorted(), "in order");
    assert_eq!(
        seen.into_iter().collect::<BTreeSet<_>>(),
        acknowledged,
        "every one, once"
    );

    let after = anonymous_kib(instance.pid()?).context("no memory figure")?;
    assert!(
        after < before + MAY_GROW_KIB,
        "{before} KiB before, {after} KiB after {WRITES} writes with {STALLED} stalled watchers"
    );
    println!("{before} KiB before, {after} KiB after");

    // One that starts to read again gets events without a gap, or is told that it is too late.
    let mut late = stalled.pop().context("there are some")?;
    let mut last = from;
    while let Some(event) = late.next().await {
        if event["type"] == "ERROR" {
            assert_eq!(event["object"]["code"], 410, "{event}");
            break;
        }
        let at = revision(&event["object"]);
        assert!(acknowledged.contains(&at), "{at} was never acknowledged");
        assert_eq!(
            acknowledged.range(last + 1..at).next(),
            None,
            "a gap before {at}"
        );
        last = at;
        if Some(&at) == acknowledged.last() {
            break;
        }
    }
    Ok(())
}
