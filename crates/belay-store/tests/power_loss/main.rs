//! The power goes at every sync there is, and what the disk then holds is anybody's guess.
//!
//! Whatever it is: every acknowledged write is there, none twice, none that was never asked for;
//! revisions do not go back; and a watcher that resumes where it stopped misses nothing.

mod medium;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use belay_store::{Expect, Options, Revision, Store, WatchItem, Write, WriteError};
use bytes::Bytes;
use futures::future::join_all;

use medium::{Dice, Medium};

/// One event, as plain data.
type Seen = (Revision, String, Bytes, bool);

/// Every event that ever became visible, in order, beginning with the one after the first revision.
#[derive(Clone, Default)]
struct Truth(Vec<Seen>);

impl Truth {
    fn revision(&self) -> Revision {
        Revision(Revision::FIRST.0 + self.0.len() as u64)
    }

    fn between(&self, after: Revision, upto: Revision) -> &[Seen] {
        let index = |revision: Revision| (revision.0 - Revision::FIRST.0) as usize;
        &self.0[index(after.max(Revision::FIRST))..index(upto)]
    }

    fn forget_after(&mut self, revision: Revision) {
        self.0.retain(|(modified, ..)| *modified <= revision);
    }

    fn live_at(&self, revision: Revision) -> BTreeMap<String, (Revision, Bytes)> {
        let mut live = BTreeMap::new();
        for (modified, key, value, deleted) in self.between(Revision::FIRST, revision) {
            match deleted {
                true => live.remove(key),
                false => live.insert(key.clone(), (*modified, value.clone())),
            };
        }
        live
    }
}

/// All that a store shows.
struct Shown {
    revision: Revision,
    compacted: Revision,
    live: BTreeMap<String, (Revision, Bytes)>,
    history: Vec<Seen>,
}

fn options(history_events: usize) -> Options<()> {
    Options {
        history_events,
        ..Options::new(|_: &str, _: &[u8]| ())
    }
}

async fn events(store: &Store<()>, after: Revision, upto: Revision) -> Vec<Seen> {
    let mut watch = store.watch("", after).expect("retained");
    let mut events = Vec::new();
    while watch.seen() < upto {
        if let WatchItem::Event(event) = watch.next().await.expect("retained") {
            let key = event.entry.key.to_string();
            events.push((
                event.revision,
                key,
                event.entry.value.clone(),
                event.deleted,
            ));
        }
    }
    events
}

async fn shown(store: &Store<()>) -> Shown {
    let page = store.list("", None, 0, &mut |_| true);
    let entries = page.entries.iter();
    let live = entries
        .map(|entry| (entry.key.to_string(), (entry.modified, entry.value.clone())))
        .collect();
    let compacted = store.stats().compacted;
    let history = match page.revision {
        Revision::FIRST => Vec::new(),
        revision => events(store, compacted, revision).await,
    };
    Shown {
        revision: page.revision,
        compacted,
        live,
        history,
    }
}

impl Shown {
    fn assert_true(&self, truth: &Truth, floor: Revision, what: &str) {
        assert!(
            self.revision >= floor,
            "{what}: back at {} behind {floor}",
            self.revision
        );
        assert!(
            self.revision <= truth.revision(),
            "{what}: {} came from nowhere",
            self.revision
        );
        assert!(
            self.live == truth.live_at(self.revision),
            "{what}: entries differ"
        );
        let history = truth.between(self.compacted, self.revision);
        assert!(self.history == history, "{what}: history differs");
    }
}

/// Some writes at once: new keys, updates, deletions, and some that are bound to conflict. What
/// was acknowledged, in the order of revisions.
async fn burst(store: &Store<()>, dice: &mut Dice, most: usize) -> Vec<Seen> {
    let writes = (0..1 + dice.below(most)).map(|_| {
        let key = format!("pods/{}", dice.below(12));
        let expect = match dice.below(6) {
            0 => Expect::Absent,
            1 => Expect::Present,
            2 => Expect::At(Revision(
                store.revision().0.saturating_sub(dice.below(20) as u64),
            )),
            _ => Expect::Any,
        };
        let deletes = dice.below(5) == 0;
        let write = if deletes {
            Write::delete(key, expect)
        } else {
            let filling = "x".repeat(dice.below(3000));
            Write::put(key, expect, move |revision| {
                Bytes::from(format!("{revision}{filling}"))
            })
        };
        async move { (store.write(write).await, deletes) }
    });
    let mut acknowledged = Vec::new();
    for (answer, deleted) in join_all(writes).await {
        match answer {
            Ok(entry) => {
                let key = entry.key.to_string();
                acknowledged.push((entry.modified, key, entry.value.clone(), deleted));
            }
            Err(WriteError::Conflict { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    acknowledged.sort_by_key(|(revision, ..)| *revision);
    acknowledged
}

/// Crashes at every sync of a run, in several ways each, and compares what comes back with what
/// was visible at that moment and with what the run came to.
fn crash_at_every_sync(seed: u64, history_events: usize, bursts: usize, most: usize) {
    const WAYS: usize = 5;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("rt");
    runtime.block_on(async {
        let medium = Medium::default();
        let store = Store::open_backend(medium.clone(), options(history_events)).expect("open");
        let recovered = Arc::new(Mutex::new(Vec::new()));
        let (crashes, running) = (Arc::clone(&recovered), store.clone());
        let mut dice = Dice::new(seed);
        medium.at_sync(move |unsynced| {
            let floor = running.revision();
            for _ in 0..WAYS {
                let image = unsynced.survivor(&mut dice);
                crashes
                    .lock()
                    .expect("crashes")
                    .push((floor, reopen(image, history_events)));
            }
        });

        let mut dice = Dice::new(!seed);
        let mut truth = Truth::default();
        for _ in 0..bursts {
            truth.0.extend(burst(&store, &mut dice, most).await);
            assert_eq!(
                truth.revision(),
                store.revision(),
                "each revision was acknowledged once"
            );
        }
        store.shutdown().await;
        // The closing of the engine crashed as well.
        let recovered = recovered.lock().expect("crashes");
        assert!(
            recovered.len() >= WAYS * bursts / 2,
            "there were syncs to crash at"
        );
        for (number, (floor, shown)) in recovered.iter().enumerate() {
            let what = format!("seed {seed}, crash {number}, {floor} acknowledged");
            shown.assert_true(&truth, *floor, &what);
        }
        let further = recovered
            .iter()
            .filter(|(floor, shown)| shown.revision > *floor)
            .count();
        assert!(further > 0, "some unacknowledged group made it whole");
    });
}

/// What a store shows that finds `image` on its disk. Opened on a thread of its own, because the
/// caller is one of a store.
fn reopen(image: Vec<u8>, history_events: usize) -> Shown {
    let recover = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("rt");
        runtime.block_on(async {
            let store = Store::open_backend(Medium::holding(image), options(history_events))
                .expect("what a power loss leaves can be opened");
            let before = shown(&store).await;
            let write = Write::put("next", Expect::Any, |_| Bytes::new());
            let next = store.write(write).await.expect("and written to").modified;
            assert_eq!(next, before.revision.next());
            store.shutdown().await;
            before
        })
    };
    std::thread::spawn(recover).join().expect("recovery")
}

#[test]
fn nothing_acknowledged_is_lost_at_any_sync() {
    for seed in 1..=3 {
        crash_at_every_sync(seed, 100_000, 25, 8);
    }
}

#[test]
fn nothing_acknowledged_is_lost_while_the_log_is_compacted() {
    for seed in 11..=12 {
        crash_at_every_sync(seed, 10, 30, 60);
    }
}

/// A store that loses power or is killed again and again, at a random sync each time, also while it
/// recovers, and a client that watches all along and resumes from the last revision it has seen.
#[test]
fn a_watcher_that_resumes_after_each_crash_sees_every_event_once_and_in_order() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("rt");
    runtime.block_on(async {
        let mut dice = Dice::new(77);
        let mut truth = Truth::default();
        let mut watched: Vec<Seen> = Vec::new();
        let mut medium = Medium::default();
        let store = Store::open_backend(medium.clone(), options(100_000)).expect("open");
        store.shutdown().await;
        let mut floor = Revision::FIRST;
        for crash in 0..40 {
            let left = Arc::new(Mutex::new(None));
            let running: Arc<OnceLock<Store<()>>> = Arc::default();
            let mut syncs = dice.below(25);
            let (at_crash, store_at_crash, mut fate) =
                (Arc::clone(&left), Arc::clone(&running), dice.clone());
            medium.at_sync(move |unsynced| {
                if syncs == 0 {
                    let visible = store_at_crash.get().map_or(floor, Store::revision);
                    let left = match fate.below(3) {
                        0 => unsynced.after_kill(),
                        _ => Medium::holding(unsynced.survivor(&mut fate)),
                    };
                    at_crash
                        .lock()
                        .expect("crash")
                        .get_or_insert((visible, left));
                }
                syncs = syncs.saturating_sub(1);
            });

            let store = Store::open_backend(medium.clone(), options(100_000)).expect("open");
            let opened = shown(&store).await;
            // What was on its way when the power went may have arrived, whole; the rest is gone.
            opened.assert_true(&truth, floor, &format!("after crash {crash}"));
            truth.forget_after(opened.revision);
            let _ = running.set(store.clone());

            while left.lock().expect("crash").is_none() {
                truth.0.extend(burst(&store, &mut dice, 6).await);
                let seen = watched
                    .last()
                    .map_or(Revision::FIRST, |(revision, ..)| *revision);
                watched.extend(events(&store, seen, store.revision()).await);
            }
            store.shutdown().await;
            let (visible, survivor) = left.lock().expect("crash").take().expect("crashed");
            // Whatever the watcher saw after the crash it saw in a world that is gone.
            watched.retain(|(revision, ..)| *revision <= visible);
            floor = visible;
            medium = survivor;
        }
        assert!(
            truth.revision() > Revision(200),
            "{} is not much",
            truth.revision()
        );
        let seen = watched
            .last()
            .map_or(Revision::FIRST, |(revision, ..)| *revision);
        assert_eq!(watched, truth.between(Revision::FIRST, seen));
    });
}
