//! The store against a plain model of it, under random sequences of everything.

use std::collections::BTreeMap;
use std::time::Duration;

use belay_store::{
    Change, Expect, Options, Revision, Store, WatchError, WatchItem, Write, WriteError,
};
use bytes::Bytes;
use futures::future::join_all;
use proptest::prelude::*;

const KEYS: [&str; 6] = ["a", "a/1", "a/2", "b", "b/1", "c"];

#[derive(Clone, Debug)]
enum Wanted {
    Any,
    Absent,
    Present,
    /// As of what the key held this many revisions ago.
    Back(u64),
}

#[derive(Clone, Debug)]
struct Asked {
    key: usize,
    expect: Wanted,
    also: Option<(usize, bool)>,
    /// `None` deletes; `Some(None)` deletes with a last value.
    put: Option<Option<u8>>,
}

#[derive(Clone, Debug)]
enum Step {
    /// Writes that are asked for at the same time, so they may share a group.
    Writes(Vec<Asked>),
    /// A watch from this many revisions back.
    Watch { back: u64, prefix: usize },
    List {
        prefix: usize,
        after: Option<usize>,
        limit: usize,
    },
    /// Closes and opens again, with room for so much history.
    Reopen { history: usize },
    /// Goes on with a copy.
    Backup,
}

fn asked() -> impl Strategy<Value = Asked> {
    let expect = prop_oneof![
        4 => Just(Wanted::Any),
        1 => Just(Wanted::Absent),
        1 => Just(Wanted::Present),
        1 => (0_u64..4).prop_map(Wanted::Back),
    ];
    let put = prop_oneof![
        4 => any::<u8>().prop_map(|value| Some(Some(value))),
        1 => Just(Some(None)),
        1 => Just(None),
    ];
    let also = proptest::option::weighted(0.2, (0..KEYS.len(), any::<bool>()));
    (0..KEYS.len(), expect, also, put).prop_map(|(key, expect, also, put)| Asked {
        key,
        expect,
        also,
        put,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS.len();
    prop_oneof![
        8 => proptest::collection::vec(asked(), 1..8).prop_map(Step::Writes),
        3 => (0_u64..12, key.clone()).prop_map(|(back, prefix)| Step::Watch { back, prefix }),
        2 => (key.clone(), proptest::option::of(key), 0_usize..4)
            .prop_map(|(prefix, after, limit)| Step::List { prefix, after, limit }),
        1 => (1_usize..12).prop_map(|history| Step::Reopen { history }),
        1 => Just(Step::Backup),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Held {
    value: Bytes,
    created: u64,
    modified: u64,
}

/// One event: revision, key, what it shows, what was there before, whether it deleted.
type Happened = (u64, &'static str, Held, Option<Held>, bool);

/// What the store should be.
struct Model {
    live: BTreeMap<&'static str, Held>,
    events: Vec<Happened>,
    revision: u64,
}

impl Model {
    fn expected(&self, key: &'static str, wanted: &Wanted) -> Expect {
        match wanted {
            Wanted::Any => Expect::Any,
            Wanted::Absent => Expect::Absent,
            Wanted::Present => Expect::Present,
            Wanted::Back(back) => {
                let modified = self
                    .live
                    .get(key)
                    .map_or(self.revision, |held| held.modified);
                Expect::At(Revision(modified.saturating_sub(*back)))
            }
        }
    }

    fn holds(&self, key: &str, expect: Expect) -> bool {
        match (expect, self.live.get(key)) {
            (Expect::Any, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => true,
            (Expect::At(revision), Some(held)) => held.modified == revision.0,
            (Expect::Absent, Some(_)) | (Expect::Present | Expect::At(_), None) => false,
        }
    }

    /// What the write comes to, or the key that is in its way.
    fn write(&mut self, asked: &Asked, expect: Expect) -> Result<Held, &'static str> {
        let key = KEYS[asked.key];
        let previous = self.live.get(key).cloned();
        let deletes = !matches!(asked.put, Some(Some(_)));
        if !self.holds(key, expect) || (deletes && previous.is_none()) {
            return Err(key);
        }
        if let Some((also, present)) = asked.also
            && self.live.contains_key(KEYS[also]) != present
        {
            return Err(KEYS[also]);
        }
        self.revision += 1;
        let value = match (asked.put, &previous) {
            (None, Some(previous)) => previous.value.clone(),
            (put, _) => value(put.flatten(), self.revision),
        };
        let created = previous.as_ref().map_or(self.revision, |held| held.created);
        let held = Held {
            value,
            created,
            modified: self.revision,
        };
        match deletes {
            true => self.live.remove(key),
            false => self.live.insert(key, held.clone()),
        };
        self.events
            .push((self.revision, key, held.clone(), previous, deletes));
        Ok(held)
    }
}

fn value(put: Option<u8>, revision: u64) -> Bytes {
    Bytes::from(format!("{put:?} at {revision}"))
}

fn write(asked: &Asked, expect: Expect) -> Write {
    let put = asked.put;
    let encode = move |revision: Revision| value(put.flatten(), revision.0);
    let change = match put {
        Some(Some(_)) => Change::Put(Box::new(encode)),
        Some(None) => Change::Delete(Some(Box::new(encode))),
        None => Change::Delete(None),
    };
    let also = asked.also.map(|(key, present)| {
        (
            KEYS[key].to_owned(),
            if present {
                Expect::Present
            } else {
                Expect::Absent
            },
        )
    });
    Write {
        key: KEYS[asked.key].to_owned(),
        expect,
        also: also.into_iter().collect(),
        change,
        reserve: false,
    }
}

/// What is kept beside each value, to see that it is derived from it wherever it comes from.
type Meta = (String, usize);

fn options(history_events: usize) -> Options<Meta> {
    let derive = |key: &str, value: &[u8]| (key.to_owned(), value.len());
    Options {
        history_events,
        min_free_bytes: 0,
        ..Options::new(derive)
    }
}

fn held(entry: &belay_store::Entry<Meta>) -> Held {
    assert_eq!(entry.meta, (entry.key.to_string(), entry.value.len()));
    Held {
        value: entry.value.clone(),
        created: entry.created.0,
        modified: entry.modified.0,
    }
}

async fn check(steps: Vec<Step>) {
    let dir = tempfile::tempdir().expect("directory");
    let mut path = dir.path().join("store");
    let mut history = 5;
    let mut store = Store::open(&path, options(history)).expect("open");
    let mut model = Model {
        live: BTreeMap::new(),
        events: Vec::new(),
        revision: 1,
    };
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Writes(asked) => check_writes(&store, &mut model, &asked).await,
            Step::Watch { back, prefix } => {
                let after = model.revision.saturating_sub(back);
                check_watch(&store, &model, after, KEYS[prefix]).await;
            }
            Step::List {
                prefix,
                after,
                limit,
            } => {
                check_list(
                    &store,
                    &model,
                    KEYS[prefix],
                    after.map(|key| KEYS[key]),
                    limit,
                );
            }
            Step::Reopen { history: room } => {
                store.shutdown().await;
                history = room;
                store = Store::open(&path, options(history)).expect("open");
            }
            Step::Backup => {
                path = dir.path().join(format!("copy-{number}"));
                store.backup(&path).expect("backup");
                store.shutdown().await;
                store = Store::open(&path, options(history)).expect("open");
            }
        }
        assert_eq!(store.revision().0, model.revision);
        let stats = store.stats();
        assert_eq!(stats.entries, model.live.len());
        assert!(stats.history_events <= history.max(1));
        for key in KEYS {
            assert_eq!(
                store.get(key).map(|entry| held(&entry)),
                model.live.get(key).cloned()
            );
        }
        check_watch(&store, &model, stats.compacted.0, "").await;
    }
}

async fn check_writes(store: &Store<Meta>, model: &mut Model, asked: &[Asked]) {
    let asked: Vec<_> = asked
        .iter()
        .map(|asked| (asked, model.expected(KEYS[asked.key], &asked.expect)))
        .collect();
    // Polled in this order, so queued in this order; grouped as it happens.
    let answers = join_all(
        asked
            .iter()
            .map(|(asked, expect)| store.write(write(asked, *expect))),
    );
    for (answer, (asked, expect)) in answers.await.into_iter().zip(asked) {
        match (answer, model.write(asked, expect)) {
            (Ok(entry), Ok(expected)) => assert_eq!(held(&entry), expected),
            (Err(WriteError::Conflict { key, current }), Err(in_the_way)) => {
                assert_eq!(key, in_the_way);
                assert_eq!(
                    current.map(|entry| held(&entry)),
                    model.live.get(in_the_way).cloned()
                );
            }
            (answer, expected) => panic!("{asked:?}: {answer:?}, expected {expected:?}"),
        }
    }
}

async fn check_watch(store: &Store<Meta>, model: &Model, after: u64, prefix: &str) {
    let compacted = store.stats().compacted;
    let mut watch = match store.watch(prefix, Revision(after)) {
        Ok(watch) => watch,
        Err(error) => {
            let too_old = WatchError::TooOld {
                requested: Revision(after),
                compacted,
            };
            assert_eq!(error, too_old);
            assert!(after < compacted.0);
            return;
        }
    };
    assert!(after >= compacted.0);
    let expected = model
        .events
        .iter()
        .filter(|(revision, key, ..)| *revision > after && key.starts_with(prefix));
    for (revision, key, shown, previous, deleted) in expected {
        let next = tokio::time::timeout(Duration::from_secs(60), watch.next()).await;
        let Ok(Ok(WatchItem::Event(event))) = next else {
            panic!("revision {revision} is missing: {next:?}")
        };
        assert_eq!((event.revision.0, &*event.entry.key), (*revision, *key));
        assert_eq!(
            (held(&event.entry), event.deleted),
            (shown.clone(), *deleted)
        );
        assert_eq!(event.previous.map(|entry| held(&entry)), *previous);
    }
    assert!(
        futures::poll!(std::pin::pin!(watch.next())).is_pending(),
        "nothing more"
    );
}

fn check_list(store: &Store<Meta>, model: &Model, prefix: &str, after: Option<&str>, limit: usize) {
    // Every other value is left out, to see that paging counts what is kept.
    let kept = |held: &Held| held.modified.is_multiple_of(2);
    let page = store.list(prefix, after, limit, &mut |entry| kept(&held(entry)));
    let expected: Vec<_> = model
        .live
        .iter()
        .filter(|(key, held)| {
            key.starts_with(prefix) && after.is_none_or(|after| **key > after) && kept(held)
        })
        .map(|(key, held)| ((*key).to_owned(), held.clone()))
        .collect();
    let limit = if limit == 0 { usize::MAX } else { limit };
    let shown = page
        .entries
        .iter()
        .map(|entry| (entry.key.to_string(), held(entry)));
    let shown: Vec<_> = shown.collect();
    assert_eq!(shown[..], expected[..expected.len().min(limit)]);
    assert_eq!(page.remaining, expected.len() - shown.len());
    assert_eq!(page.more, page.remaining > 0);
    assert_eq!(page.revision.0, model.revision);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_the_model_does(steps in proptest::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("runtime").block_on(check(steps));
    }
}
