//! Twenty `kill -9` of the server under 32 concurrent writers. What was acknowledged is there,
//! once, with the revision that was acknowledged; revisions never go back; a watcher that resumes
//! where it was cut off sees every event once, in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use belay_testkit::{
    CONFIG_MAPS, Instance, Rest, eventually,
    rest::{config_map, name, revision},
};
use serde_json::Value;
use tokio::task::JoinSet;

const WRITERS: usize = 32;
const KILLS: usize = 20;
/// Written between two kills, at least, so that every kill meets writers at work.
const WRITES_PER_LIFE: u64 = 200;

/// What the writers were promised.
#[derive(Default)]
struct Promises {
    /// Objects that were acknowledged as created, with the acknowledged revision.
    created: Mutex<BTreeMap<String, u64>>,
    /// Per writer, the highest value acknowledged for its counter and the highest one asked for.
    counters: Mutex<BTreeMap<usize, (u64, u64)>>,
    highest: AtomicU64,
    acknowledged: AtomicU64,
}

impl Promises {
    fn acknowledge(&self, revision: u64) {
        self.highest.fetch_max(revision, Ordering::SeqCst);
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }
}

/// Writes until told to stop or cut off: a new object, then its counter by compare-and-swap.
async fn write(
    writer: usize,
    life: usize,
    rest: Rest,
    promises: Arc<Promises>,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let counter = format!("counter-{writer}");
    let mut last = 0;
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        let object = config_map(&format!("w{writer}-{life}-{number}"), "by", "a writer");
        let Ok(reply) = rest.post(CONFIG_MAPS, &object).await else {
            return Ok(());
        };
        let created = reply.ok()?;
        let at = revision(&created);
        assert!(
            at > last,
            "a writer's own revisions grow: {at} after {last}"
        );
        last = at;
        promises.acknowledge(at);
        let twice = promises
            .created
            .lock()
            .expect("no panic")
            .insert(name(&created).into(), at);
        assert_eq!(twice, None);

        let path = format!("{CONFIG_MAPS}/{counter}");
        let Ok(reply) = rest.get(&path).await else {
            return Ok(());
        };
        let mut current = reply.ok()?;
        let value = counter_value(&current) + 1;
        current["data"]["value"] = value.to_string().into();
        promises
            .counters
            .lock()
            .expect("no panic")
            .entry(writer)
            .or_default()
            .1 = value;
        let Ok(reply) = rest.put(&path, &current).await else {
            return Ok(());
        };
        let at = revision(&reply.ok()?);
        assert!(
            at > last,
            "a writer's own revisions grow: {at} after {last}"
        );
        last = at;
        promises.acknowledge(at);
        promises
            .counters
            .lock()
            .expect("no panic")
            .entry(writer)
            .or_default()
            .0 = value;
    }
    Ok(())
}

fn counter_value(object: &Value) -> u64 {
    object["data"]["value"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// Everything one watcher saw, over all lives of the server.
#[derive(Default)]
struct Seen {
    revisions: Vec<u64>,
    added: BTreeMap<String, u64>,
    last: u64,
}

impl Seen {
    fn take(&mut self, event: &Value) -> anyhow::Result<()> {
        let object = &event["object"];
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => {
                let at = revision(object);
                anyhow::ensure!(at > self.last, "event {at} after {}", self.last);
                self.last = at;
                self.revisions.push(at);
                if event["type"] == "ADDED" {
                    let before = self.added.insert(name(object).to_owned(), at);
                    anyhow::ensure!(before.is_none(), "{} was added twice", name(object));
                }
            }
            Some("BOOKMARK") => self.last = self.last.max(revision(object)),
            _ => anyhow::bail!("an event that should not be there: {event}"),
        }
        Ok(())
    }

    /// Reads until the connection breaks.
    async fn follow(&mut self, rest: &Rest) -> anyhow::Result<()> {
        let path = format!(
            "{CONFIG_MAPS}?watch=true&allowWatchBookmarks=true&resourceVersion={}",
            self.last
        );
        let Ok(mut watch) = rest.watch(&path).await else {
            return Ok(());
        };
        while let Some(event) = watch.next().await {
            self.take(&event)?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_kills_under_32_writers_lose_and_double_nothing() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    let promises = Arc::new(Promises::default());
    let admin = instance.admin().await?;
    for writer in 0..WRITERS {
        let object = config_map(&format!("counter-{writer}"), "value", "0");
        admin.post(CONFIG_MAPS, &object).await?.ok()?;
    }
    let list = admin.get(CONFIG_MAPS).await?.ok()?;
    let mut seen = Seen {
        last: revision(&list),
        ..Seen::default()
    };
    let known: BTreeSet<String> = names(&list);

    for life in 0..KILLS {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let rest = instance.admin().await?;
            let (promises, stop) = (Arc::clone(&promises), Arc::clone(&stop));
            writers.spawn(write(writer, life, rest, promises, stop));
        }
        let watcher = instance.admin().await?;
        let before = promises.acknowledged.load(Ordering::SeqCst);
        {
            let enough = eventually("enough writes", async || {
                let now = promises.acknowledged.load(Ordering::SeqCst);
                Ok((now >= before + WRITES_PER_LIFE).then_some(()))
            });
            tokio::pin!(enough);
            let followed = seen.follow(&watcher);
            tokio::pin!(followed);
            tokio::select! {
                enough = &mut enough => enough?,
                followed = &mut followed => { followed?; anyhow::bail!("the watch ended by itself") }
            }
            // Different lives end at different distances from the last commit.
            tokio::time::sleep(Duration::from_millis(7 * life as u64)).await;
            instance.kill9().await?;
            stop.store(true, Ordering::SeqCst);
            followed.await?;
        }
        while let Some(ended) = writers.join_next().await {
            ended??;
        }
        let highest = promises.highest.load(Ordering::SeqCst);
        instance.start_again().await?;
        let list = instance.admin().await?.get(CONFIG_MAPS).await?.ok()?;
        let now = revision(&list);
        assert!(
            now >= highest,
            "revisions went back from {highest} to {now} in life {life}"
        );
    }

    let admin = instance.admin().await?;
    let list = admin.get(CONFIG_MAPS).await?.ok()?;
    let stored = by_name(&list);
    let created = promises.created.lock().expect("no panic").clone();
    for (name, at) in &created {
        let object = stored
            .get(name)
            .with_context(|| format!("{name} was lost"))?;
        assert_eq!(
            revision(object),
            *at,
            "{name} has another revision than acknowledged"
        );
    }
    for (writer, (acknowledged, asked)) in promises.counters.lock().expect("no panic").iter() {
        let object = &stored[&format!("counter-{writer}")];
        let value = counter_value(object);
        assert!(
            (*acknowledged..=*asked).contains(&value),
            "counter {writer} is {value}; {acknowledged} was acknowledged, {asked} asked for"
        );
    }

    // The watcher catches up once more, up to an object that is made last.
    admin
        .post(CONFIG_MAPS, &config_map("the-end", "a", "b"))
        .await?
        .ok()?;
    let path = format!("{CONFIG_MAPS}?watch=true&resourceVersion={}", seen.last);
    let mut watch = admin.watch(&path).await?;
    while !seen.added.contains_key("the-end") {
        seen.take(&watch.next().await.context("the watch ended early")?)?;
    }
    let unique: BTreeSet<u64> = seen.revisions.iter().copied().collect();
    assert_eq!(unique.len(), seen.revisions.len());
    for (name, at) in &created {
        assert_eq!(seen.added.get(name), Some(at), "the watcher missed {name}");
    }
    let mut expected: BTreeSet<String> = stored.keys().cloned().collect();
    expected.insert("the-end".to_owned());
    let watched: BTreeSet<String> = seen.added.into_keys().chain(known).collect();
    assert_eq!(watched, expected, "what the watcher saw is what is there");
    println!(
        "{} writes were acknowledged over {KILLS} kills",
        created.len()
    );
    Ok(())
}

fn by_name(list: &Value) -> BTreeMap<String, Value> {
    let items = list["items"].as_array().cloned().unwrap_or_default();
    items
        .into_iter()
        .map(|item| (name(&item).to_owned(), item))
        .collect()
}

fn names(list: &Value) -> BTreeSet<String> {
    by_name(list).into_keys().collect()
}
