//! What a store leaves on disk: its file, made small again by compaction, and copies of it.

use std::path::Path;
use std::time::Duration;

use belay_store::{Event, Expect, Options, Revision, Store, WatchItem, Write};
use bytes::Bytes;

fn options() -> Options<usize> {
    Options {
        min_free_bytes: 0,
        ..Options::new(|_: &str, value: &[u8]| value.len())
    }
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
async fn a_backup_is_a_store_with_the_same_content_history_and_revision() {
    let dir = tempfile::tempdir().unwrap();
    let limits = || Options {
        history_events: 4,
        ..options()
    };
    let store = open_with(&dir, limits());
    for (key, value) in [("a", "1"), ("b", "1"), ("c", "1"), ("a", "2"), ("d", "1")] {
        store.write(put(key, Expect::Any, value)).await.unwrap();
    }
    store.write(Write::delete("b", Expect::Any)).await.unwrap();
    store.write(put("c", Expect::Any, "22")).await.unwrap();

    let copy = dir.path().join("copy");
    assert_eq!(store.backup(&copy).unwrap(), store.revision());
    let refused = store.backup(&copy).unwrap_err();
    assert!(refused.to_string().contains("exists already"), "{refused}");
    store.write(put("later", Expect::Any, "1")).await.unwrap();

    let restored = Store::open(&copy, limits()).unwrap();
    assert_eq!(restored.revision(), Revision(8));
    let contents = |store: &Store<usize>| {
        let page = store.list("", None, 0, &mut |entry| &*entry.key != "later");
        let seen = page.entries.iter().map(|entry| {
            (
                entry.key.to_string(),
                entry.value.clone(),
                entry.created,
                entry.modified,
            )
        });
        seen.collect::<Vec<_>>()
    };
    assert_eq!(contents(&restored), contents(&store));
    let mut watch = restored.watch("", Revision(4)).unwrap();
    for (revision, previous) in [(5, Some(2)), (6, None), (7, Some(3)), (8, Some(4))] {
        let event = event(&mut watch).await;
        assert_eq!(event.revision, Revision(revision));
        assert_eq!(event.previous.map(|entry| entry.modified.0), previous);
    }
    assert_eq!(
        restored
            .write(put("x", Expect::Any, "1"))
            .await
            .unwrap()
            .modified,
        Revision(9)
    );
    assert!(only_the_owner_reads(&copy) && only_the_owner_reads(&dir.path().join("store")));
}

fn only_the_owner_reads(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).expect("made").permissions().mode() & 0o777 == 0o600
}

#[tokio::test]
async fn compaction_keeps_the_file_small_and_reopening_exact() {
    let dir = tempfile::tempdir().unwrap();
    let limits = || Options {
        history_events: 10,
        ..options()
    };
    let store = open_with(&dir, limits());
    store
        .write(put("untouched", Expect::Any, "1"))
        .await
        .unwrap();
    let value: &'static str = Box::leak("x".repeat(2000).into_boxed_str());
    for _ in 0..60 {
        let writes = (0..50).map(|_| store.write(put("busy", Expect::Any, value)));
        for answer in futures::future::join_all(writes).await {
            answer.unwrap();
        }
    }
    assert_eq!(store.stats().history_events, 10);
    store.shutdown().await;
    let size = std::fs::metadata(dir.path().join("store")).unwrap().len();
    assert!(
        size < 3000 * 2000,
        "{size} bytes for a few records of 2000 bytes"
    );

    let store = open_with(&dir, limits());
    assert_eq!(store.revision(), Revision(3002));
    assert_eq!(store.stats().compacted, Revision(2992));
    assert_eq!(store.get("untouched").unwrap().modified, Revision(2));
    assert_eq!(store.get("busy").unwrap().modified, Revision(3002));
}
