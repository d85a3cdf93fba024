//! What a store promises to whoever calls it, rule by rule.

use std::sync::Arc;
use std::time::Duration;

use belay_store::{
    Change, Event, Expect, Options, Revision, Store, WatchError, WatchItem, Write, WriteError,
};
use bytes::Bytes;

/// The length of each value is kept beside it, so tests see what `derive` was given.
fn options() -> Options<usize> {
    Options {
        min_free_bytes: 0,
        ..Options::new(|_: &str, value: &[u8]| value.len())
    }
}

fn open(dir: &tempfile::TempDir) -> Store<usize> {
    open_with(dir, options())
}

fn open_with(dir: &tempfile::TempDir, options: Options<usize>) -> Store<usize> {
    Store::open(&dir.path().join("store"), options).expect("open")
}

fn put(key: &str, expect: Expect, value: &'static str) -> Write {
    Write::put(key, expect, move |_| Bytes::from_static(value.as_bytes()))
}

async fn event(watch: &mut belay_store::Watch<usize>) -> Event<usize> {
    match tokio::time::timeout(Duration::from_secs(60), watch.next()).await {
        Ok(Ok(WatchItem::Event(event))) => event,
        other => panic!("expected an event: {other:?}"),
    }
}

#[tokio::test]
async fn a_new_store_stands_at_the_first_revision_and_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    assert_eq!(store.revision(), Revision::FIRST);
    assert!(store.get("a").is_none());
    assert!(store.list("", None, 0, &mut |_| true).entries.is_empty());
}

#[tokio::test]
async fn each_write_gets_the_next_revision_and_its_value_may_carry_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    for expected in 2..5 {
        let write = Write::put("a", Expect::Any, |revision| {
            Bytes::from(revision.to_string())
        });
        let entry = store.write(write).await.unwrap();
        assert_eq!(entry.modified, Revision(expected));
        assert_eq!(entry.created, Revision(2));
        assert_eq!(entry.value, expected.to_string());
        assert_eq!(entry.meta, 1);
        assert_eq!(store.revision(), entry.modified);
        assert!(Arc::ptr_eq(&entry, &store.get("a").unwrap()));
    }
}

#[tokio::test]
async fn expectations_are_checked_and_a_conflict_shows_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let first = store.write(put("a", Expect::Absent, "1")).await.unwrap();
    let refused = [
        put("a", Expect::Absent, "2"),
        put("a", Expect::At(Revision(1)), "2"),
        Write::delete("a", Expect::At(Revision(99))),
    ];
    for write in refused {
        match store.write(write).await {
            Err(WriteError::Conflict {
                key,
                current: Some(current),
            }) => {
                assert_eq!(key, "a");
                assert!(Arc::ptr_eq(&current, &first));
            }
            other => panic!("{other:?}"),
        }
    }
    for write in [
        put("b", Expect::Present, "2"),
        put("b", Expect::At(Revision(2)), "2"),
        Write::delete("b", Expect::Present),
        Write::delete("b", Expect::Any),
        Write::delete("b", Expect::Absent),
    ] {
        let answer = store.write(write).await;
        assert!(
            matches!(&answer, Err(WriteError::Conflict { key, current: None }) if key == "b"),
            "{answer:?}"
        );
    }
    assert_eq!(
        store.revision(),
        Revision(2),
        "a refused write takes no revision"
    );
    store
        .write(put("a", Expect::At(first.modified), "2"))
        .await
        .unwrap();
    store.write(put("a", Expect::Present, "3")).await.unwrap();
}

#[tokio::test]
async fn further_keys_must_hold_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let namespace = store
        .write(put("namespaces/x", Expect::Absent, "{}"))
        .await
        .unwrap();
    let pod = |expect| put("pods/x/a", Expect::Absent, "{}").also("namespaces/x", expect);
    let refused = store.write(pod(Expect::Absent)).await;
    assert!(
        matches!(&refused, Err(WriteError::Conflict { key, current: Some(_) }) if key == "namespaces/x")
    );
    store
        .write(pod(Expect::At(namespace.modified)))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_deletion_returns_a_tombstone_with_the_last_value_or_the_one_given() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut watch = store.watch("", store.revision()).unwrap();
    store.write(put("a", Expect::Absent, "last")).await.unwrap();
    let tombstone = store
        .write(Write::delete("a", Expect::Present))
        .await
        .unwrap();
    assert_eq!(
        (&tombstone.value[..], tombstone.modified),
        (&b"last"[..], Revision(3))
    );
    assert_eq!(tombstone.created, Revision(2));
    assert!(store.get("a").is_none());

    store
        .write(put("a", Expect::Absent, "again"))
        .await
        .unwrap();
    let write = Write {
        change: Change::Delete(Some(Box::new(|revision| {
            Bytes::from(format!("gone at {revision}"))
        }))),
        ..Write::delete("a", Expect::Any)
    };
    let tombstone = store.write(write).await.unwrap();
    assert_eq!(tombstone.value, "gone at 5");
    assert_eq!(tombstone.created, Revision(4));

    let mut seen = Vec::new();
    for _ in 0..4 {
        let event = event(&mut watch).await;
        let previous = event.previous.as_ref().map(|previous| previous.modified.0);
        seen.push((
            event.revision.0,
            event.deleted,
            previous,
            event.entry.value.clone(),
        ));
    }
    assert_eq!(
        seen,
        [
            (2, false, None, Bytes::from_static(b"last")),
            (3, true, Some(2), Bytes::from_static(b"last")),
            (4, false, None, Bytes::from_static(b"again")),
            (5, true, Some(4), Bytes::from_static(b"gone at 5")),
        ]
    );
}

#[tokio::test]
async fn lists_are_ordered_paged_filtered_and_say_what_remains() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    for key in [
        "pods/b/1", "pods/a/2", "pods/a/1", "pods/a/3", "podsx/a", "nodes/n",
    ] {
        store.write(put(key, Expect::Absent, "{}")).await.unwrap();
    }
    let keys = |prefix: &str, after: Option<&str>, limit, not: &str| {
        let page = store.list(prefix, after, limit, &mut |entry| &*entry.key != not);
        assert_eq!(page.revision, store.revision());
        assert_eq!(page.more, page.remaining > 0);
        let keys: Vec<_> = page
            .entries
            .iter()
            .map(|entry| entry.key.to_string())
            .collect();
        (keys.join(" "), page.remaining)
    };
    assert_eq!(
        keys("pods/", None, 0, ""),
        ("pods/a/1 pods/a/2 pods/a/3 pods/b/1".into(), 0)
    );
    assert_eq!(keys("pods/", None, 2, ""), ("pods/a/1 pods/a/2".into(), 2));
    assert_eq!(
        keys("pods/", Some("pods/a/2"), 2, ""),
        ("pods/a/3 pods/b/1".into(), 0)
    );
    assert_eq!(
        keys("pods/", Some("pods/a/2"), 1, "pods/a/3"),
        ("pods/b/1".into(), 0)
    );
    assert_eq!(keys("pods/a/", None, 1, "pods/a/1"), ("pods/a/2".into(), 1));
    assert_eq!(
        keys("pods/", Some("a"), 1, ""),
        ("pods/a/1".into(), 3),
        "after lies before"
    );
    assert_eq!(
        keys("pods/", Some("z"), 1, ""),
        (String::new(), 0),
        "after lies behind"
    );
    assert_eq!(keys("", None, 1, ""), ("nodes/n".into(), 5));
}

#[tokio::test]
async fn a_watch_sees_history_then_what_happens_only_under_its_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    for key in ["pods/a", "nodes/n", "pods/b"] {
        store.write(put(key, Expect::Absent, "1")).await.unwrap();
    }
    let mut watch = store.watch("pods/", Revision(2)).unwrap();
    assert_eq!(&*event(&mut watch).await.entry.key, "pods/b");
    let writer = store.clone();
    let late = tokio::spawn(async move {
        writer
            .write(put("nodes/n", Expect::Any, "2"))
            .await
            .unwrap();
        writer.write(put("pods/c", Expect::Any, "2")).await.unwrap();
    });
    let shown = event(&mut watch).await;
    assert_eq!((&*shown.entry.key, shown.revision), ("pods/c", Revision(6)));
    late.await.unwrap();
}

#[tokio::test]
async fn a_watch_from_the_future_or_from_before_the_history_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_with(
        &dir,
        Options {
            history_events: 3,
            ..options()
        },
    );
    for _ in 0..5 {
        store.write(put("a", Expect::Any, "1")).await.unwrap();
    }
    assert_eq!(store.stats().compacted, Revision(3));
    assert_eq!(
        store.watch("", Revision(2)).unwrap_err(),
        WatchError::TooOld {
            requested: Revision(2),
            compacted: Revision(3)
        }
    );
    assert_eq!(
        store.watch("", Revision(7)).unwrap_err(),
        WatchError::Future {
            requested: Revision(7),
            current: Revision(6)
        }
    );
    let mut watch = store.watch("", Revision(3)).unwrap();
    assert_eq!(event(&mut watch).await.revision, Revision(4));
}

#[tokio::test]
async fn a_quiet_watch_is_told_how_far_the_store_has_come() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let watch = store.watch("pods/", store.revision()).unwrap();
    let mut watch = watch.progress_every(Duration::from_millis(5));
    store.write(put("nodes/n", Expect::Any, "1")).await.unwrap();
    let latest = store
        .write(put("nodes/n", Expect::Any, "2"))
        .await
        .unwrap()
        .modified;
    loop {
        match watch.next().await.unwrap() {
            WatchItem::Progress(revision) if revision == latest => break,
            WatchItem::Progress(revision) => assert!(revision < latest),
            WatchItem::Event(event) => panic!("{event:?}"),
        }
    }
    assert_eq!(watch.seen(), latest);
}

#[tokio::test]
async fn everything_is_there_after_reopening_and_revisions_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    store.write(put("a", Expect::Absent, "1")).await.unwrap();
    store.write(put("b", Expect::Absent, "1")).await.unwrap();
    store.write(put("a", Expect::Present, "22")).await.unwrap();
    store
        .write(Write::delete("b", Expect::Present))
        .await
        .unwrap();
    store.shutdown().await;

    let store = open(&dir);
    let a = store.get("a").unwrap();
    assert_eq!(
        (a.created, a.modified, a.meta),
        (Revision(2), Revision(4), 2)
    );
    assert!(store.get("b").is_none());
    assert_eq!(store.revision(), Revision(5));
    let mut watch = store.watch("", Revision(1)).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let event = event(&mut watch).await;
        seen.push((
            event.revision.0,
            event.deleted,
            event.previous.map(|entry| entry.modified.0),
        ));
    }
    assert_eq!(
        seen,
        [
            (2, false, None),
            (3, false, None),
            (4, false, Some(2)),
            (5, true, Some(3))
        ]
    );
    assert_eq!(
        store
            .write(put("c", Expect::Any, "1"))
            .await
            .unwrap()
            .modified,
        Revision(6)
    );
}

#[tokio::test]
async fn after_shutdown_reading_works_writing_does_not_and_watches_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut watch = store.watch("", store.revision()).unwrap();
    store.write(put("a", Expect::Any, "1")).await.unwrap();
    store.shutdown().await;
    store.shutdown().await;
    assert!(store.get("a").is_some());
    assert!(matches!(
        store.write(put("a", Expect::Any, "2")).await,
        Err(WriteError::Closed)
    ));
    assert_eq!(
        event(&mut watch).await.revision,
        Revision(2),
        "what was visible is delivered"
    );
    assert_eq!(watch.next().await.unwrap_err(), WatchError::Closed);
}

#[tokio::test]
async fn writes_that_are_queued_at_shutdown_are_finished() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let writes: Vec<_> = (0..50)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                store
                    .write(put(&format!("k{number}"), Expect::Absent, "1"))
                    .await
            })
        })
        .collect();
    tokio::task::yield_now().await;
    store.shutdown().await;
    let mut done = 0;
    for write in writes {
        match write.await.unwrap() {
            Ok(_) => done += 1,
            Err(WriteError::Closed) => {}
            Err(other) => panic!("{other}"),
        }
    }
    let store = open(&dir);
    assert_eq!(store.stats().entries, done);
}

#[tokio::test]
async fn a_nearly_full_disk_refuses_puts_with_the_figures_and_allows_deletes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    store.write(put("a", Expect::Any, "1")).await.unwrap();
    store.shutdown().await;

    let store = open_with(
        &dir,
        Options {
            min_free_bytes: 1 << 62,
            ..options()
        },
    );
    match store.write(put("a", Expect::Any, "2")).await {
        Err(error @ WriteError::Full { free, needed, .. }) => {
            assert!(free < needed);
            let text = error.to_string();
            for part in [
                "store",
                &free.to_string(),
                &needed.to_string(),
                "free some space",
            ] {
                assert!(text.contains(part), "{text}");
            }
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.revision(), Revision(2));
    store
        .write(Write::delete("a", Expect::Present))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_panicking_encode_ends_the_store_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let on_fatal =
        Arc::new(move |fatal: &belay_store::Fatal| tell.send(fatal.to_string()).unwrap());
    let store = open_with(
        &dir,
        Options {
            on_fatal,
            ..options()
        },
    );
    store.write(put("a", Expect::Any, "1")).await.unwrap();
    let write = Write::put("b", Expect::Any, |_| panic!("cannot encode"));
    assert!(matches!(store.write(write).await, Err(WriteError::Closed)));
    assert!(told.recv().unwrap().contains("cannot encode"));
    assert!(matches!(
        store.write(put("c", Expect::Any, "1")).await,
        Err(WriteError::Closed)
    ));
    store.shutdown().await;
    assert_eq!(open(&dir).revision(), Revision(2));
}
