//! A watcher that does not read costs nobody anything, and is told when it comes back.

use belay_store::{Expect, Options, Revision, Store, WatchError, WatchItem, Write};
use bytes::Bytes;
use tokio::sync::watch;

const EVENTS: u64 = 2_000;
const HISTORY_BYTES: usize = 256 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn one_stalled_watcher_neither_holds_memory_nor_others() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        history_bytes: HISTORY_BYTES,
        min_free_bytes: 0,
        ..Options::new(|_: &str, _: &[u8]| ())
    };
    let store = Store::open(&dir.path().join("store"), options).unwrap();
    let mut stalled = store.watch("", store.revision()).unwrap();
    let (seen, mut slowest): (Vec<_>, Vec<_>) = (0..20).map(|_| watch::channel(0_u64)).unzip();
    let keeping_up: Vec<_> = seen
        .into_iter()
        .map(|seen| {
            let mut watch = store.watch("", store.revision()).unwrap();
            tokio::spawn(async move {
                for expected in 2..EVENTS + 2 {
                    match watch.next().await {
                        Ok(WatchItem::Event(event)) => {
                            assert_eq!(event.revision.0, expected);
                            seen.send_replace(expected);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            })
        })
        .collect();
    // Far more than the history holds, and never more at once than it holds.
    for _ in 0..EVENTS / 20 {
        let writes = (0..20).map(|number| {
            let encode = |_| Bytes::from(vec![b'x'; 1000]);
            store.write(Write::put(format!("key/{number}"), Expect::Any, encode))
        });
        for answer in futures::future::join_all(writes).await {
            answer.unwrap();
        }
        assert!(store.stats().history_bytes <= HISTORY_BYTES);
        for watcher in &mut slowest {
            let all = |seen: &u64| *seen >= store.revision().0;
            watcher
                .wait_for(all)
                .await
                .expect("a watcher who reads is not cut off");
        }
    }
    for task in keeping_up {
        task.await.expect("the others saw everything");
    }
    let compacted = store.stats().compacted;
    let told = stalled.next().await.unwrap_err();
    assert_eq!(
        told,
        WatchError::Lagged {
            seen: Revision::FIRST,
            compacted
        }
    );
    let mut again = store.watch("", store.revision()).unwrap();
    store
        .write(Write::delete("key/0", Expect::Any))
        .await
        .unwrap();
    assert!(matches!(again.next().await, Ok(WatchItem::Event(event)) if event.deleted));
}

#[tokio::test]
async fn the_newest_event_is_kept_however_large_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        history_bytes: 100,
        min_free_bytes: 0,
        ..Options::new(|_: &str, _: &[u8]| ())
    };
    let store = Store::open(&dir.path().join("store"), options).unwrap();
    let mut watch = store.watch("", store.revision()).unwrap();
    for _ in 0..3 {
        let encode = |_| Bytes::from(vec![b'x'; 5000]);
        store
            .write(Write::put("large", Expect::Any, encode))
            .await
            .unwrap();
        assert!(matches!(watch.next().await, Ok(WatchItem::Event(_))));
    }
}
