//! `kill -9` in the middle of everything: a child process writes and watches and is killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use belay_store::{Expect, Options, Revision, Store, WatchItem, Write};
use bytes::Bytes;

const CHILD_DIR: &str = "BELAY_STORE_TEST_KILL_DIR";
const KILLS: usize = 20;
const WRITERS: usize = 32;
/// The lines the child gets to print before it is killed, so that every run has done something,
/// however slow the machine; beyond that the moment is as good as random.
const LINES_BEFORE_KILL: usize = 150;

fn options() -> Options<()> {
    // A run stops when the pipe is full, long before it outgrows this; all runs together do.
    Options {
        history_events: 5_000,
        min_free_bytes: 0,
        ..Options::new(|_: &str, _: &[u8]| ())
    }
}

fn open(dir: &Path) -> Store<()> {
    Store::open(&dir.join("store"), options()).expect("what a kill leaves can be opened")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("runtime")
}

/// One line, in one write, so that a kill never leaves half of one between two others.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    if out
        .write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .is_err()
    {
        std::process::exit(0);
    }
}

/// The child: writers that say what was acknowledged, and a watcher that says what it sees. Each
/// key counts up, guarded by its revision; now and then it is deleted and begun anew.
#[test]
#[ignore = "the child process of the test below"]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    // The harness has begun a line of its own.
    say("");
    runtime().block_on(async {
        let store = open(Path::new(&dir));
        let watch = store.watch("", store.revision()).expect("watch");
        let watcher = tokio::spawn(watch_and_say(watch));
        for writer in 0..WRITERS {
            let (store, runtime) = (store.clone(), tokio::runtime::Handle::current());
            std::thread::spawn(move || {
                runtime.block_on(write_and_say(store, format!("keys/{writer}")));
            });
        }
        let _ = watcher.await;
    });
}

async fn watch_and_say(mut watch: belay_store::Watch<()>) {
    while let Ok(item) = watch.next().await {
        if let WatchItem::Event(event) = item {
            let value = String::from_utf8_lossy(&event.entry.value);
            say(&format!(
                "SEEN {} {} {value} {}",
                event.revision, event.entry.key, event.deleted
            ));
        }
    }
}

async fn write_and_say(store: Store<()>, key: String) {
    loop {
        let current = store.get(&key);
        let count = current.as_ref().map_or(0, |entry| number(&entry.value));
        let expect = current
            .as_ref()
            .map_or(Expect::Absent, |entry| Expect::At(entry.modified));
        let deletes = count > 0 && count.is_multiple_of(10);
        let write = if deletes {
            Write::delete(key.clone(), expect)
        } else {
            Write::put(key.clone(), expect, move |_| {
                Bytes::from((count + 1).to_string())
            })
        };
        match store.write(write).await {
            Ok(entry) => {
                let value = String::from_utf8_lossy(&entry.value);
                say(&format!("ACK {} {key} {value} {deletes}", entry.modified));
            }
            Err(error) => panic!("nobody else writes {key}: {error}"),
        }
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok())
        .expect("a count")
}

/// What one line of the child says: the event, and whether it was acknowledged or seen.
type Said = (u64, (String, String, bool));

fn parse(line: &str) -> Option<(&str, Said)> {
    let mut words = line.split(' ');
    let kind = words
        .next()
        .filter(|word| matches!(*word, "ACK" | "SEEN"))?;
    let revision = words.next()?.parse().ok()?;
    let (key, value) = (words.next()?.to_owned(), words.next()?.to_owned());
    let deleted = words.next()?.parse().ok()?;
    Some((kind, (revision, (key, value, deleted))))
}

fn spawn(dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args([
            "--exact",
            "child",
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CHILD_DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("child")
}

#[test]
fn twenty_kills_lose_and_double_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut truth: BTreeMap<u64, (String, String, bool)> = BTreeMap::new();
    // A watcher of our own, which resumes after each kill from the last revision it has seen.
    let mut resumed: Vec<Said> = Vec::new();
    let mut newest = Revision::FIRST;
    for kill in 0..KILLS {
        let mut child = spawn(dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said: Vec<_> = lines
            .by_ref()
            .take(LINES_BEFORE_KILL)
            .map(Result::unwrap)
            .collect();
        std::thread::sleep(Duration::from_millis((kill as u64 * 7) % 40));
        child.kill().unwrap();
        child.wait().unwrap();
        // What was printed before the kill is still in the pipe.
        said.extend(lines.map_while(Result::ok));

        let mut acknowledged = 0;
        let mut seen = newest.0;
        for (kind, (revision, event)) in said.iter().filter_map(|line| parse(line)) {
            acknowledged += usize::from(kind == "ACK");
            if kind == "SEEN" {
                assert_eq!(revision, seen + 1, "the watcher saw a gap or a repetition");
                seen = revision;
            }
            let known = truth.entry(revision).or_insert_with(|| event.clone());
            assert_eq!(*known, event, "revision {revision} was two things");
        }
        assert!(acknowledged > 0, "the child wrote something");
        let told = *truth.keys().next_back().unwrap();

        runtime().block_on(async {
            let store = open(dir.path());
            assert!(
                store.revision().0 >= told,
                "revision {told} was told and is gone"
            );
            assert!(store.revision() >= newest, "revisions went back");
            newest = store.revision();
            let from = resumed
                .last()
                .map_or(Revision::FIRST, |(revision, _)| Revision(*revision));
            let mut watch = store.watch("", from).expect("history");
            while watch.seen() < newest {
                let Ok(WatchItem::Event(event)) = watch.next().await else {
                    panic!("history ends")
                };
                let value = String::from_utf8_lossy(&event.entry.value).into_owned();
                let event = (
                    event.revision.0,
                    (event.entry.key.to_string(), value, event.deleted),
                );
                resumed.push(event);
            }
            check_counts(&store, &resumed);
            store.shutdown().await;
        });
        for (expected, (revision, event)) in (Revision::FIRST.0 + 1..).zip(&resumed) {
            assert_eq!(*revision, expected, "every event once and in order");
            if let Some(told) = truth.get(revision) {
                assert_eq!(
                    event, told,
                    "revision {revision} came back as something else"
                );
            }
        }
        // What was not told but is there is there for good.
        truth.extend(resumed.iter().cloned());
    }
}

/// Each key counted up by one at a time, so a write lost or doubled would show as a step missed,
/// and what the store holds is what its history comes to.
fn check_counts(store: &Store<()>, events: &[Said]) {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (revision, (key, value, deleted)) in events {
        let value = number(value.as_bytes());
        let before = counts.get(key.as_str()).copied().unwrap_or(0);
        if *deleted {
            assert_eq!(value, before, "revision {revision} deleted something else");
            counts.remove(key.as_str());
        } else {
            assert_eq!(
                value,
                before + 1,
                "{key} missed or repeated a step at {revision}"
            );
            counts.insert(key, value);
        }
    }
    let page = store.list("", None, 0, &mut |_| true);
    let held: BTreeMap<_, _> = page
        .entries
        .iter()
        .map(|entry| (&*entry.key, number(&entry.value)))
        .collect();
    assert_eq!(held, counts);
}
