//! Nothing is seen by anybody before it is on disk: storage whose sync waits, or fails, on command.

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::Duration;

use belay_store::{
    Expect, Fatal, Options, Revision, Store, Watch, WatchError, WatchItem, Write, WriteError,
};
use bytes::Bytes;
use futures::poll;
use redb::StorageBackend;
use redb::backends::InMemoryBackend;

/// What the storage does when it is asked to sync or write.
#[derive(Debug, Default)]
struct Orders {
    /// How many syncs may pass; `None` lets all pass.
    permits: Option<usize>,
    /// How many are waiting for a permit.
    waiting: usize,
    /// What every sync answers.
    sync_fails: Option<io::ErrorKind>,
    /// What every write answers.
    write_fails: Option<io::ErrorKind>,
}

#[derive(Clone, Debug, Default)]
struct Control(Arc<(Mutex<Orders>, Condvar)>);

impl Control {
    fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.0.0.lock().expect("orders"));
        self.0.1.notify_all();
    }

    fn hold(&self) {
        self.order(|orders| orders.permits = Some(0));
    }

    fn let_one_pass(&self) {
        self.order(|orders| orders.permits = Some(orders.permits.unwrap_or(0) + 1));
    }

    fn let_all_pass(&self) {
        self.order(|orders| orders.permits = None);
    }

    async fn until_a_sync_waits(&self) {
        while self.0.0.lock().expect("orders").waiting == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

#[derive(Debug)]
struct Disk {
    inner: InMemoryBackend,
    control: Control,
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let (orders, changed) = &*self.control.0;
        let mut orders = orders.lock().expect("orders");
        orders.waiting += 1;
        while orders.permits == Some(0) {
            orders = changed.wait(orders).expect("orders");
        }
        orders.waiting -= 1;
        orders.permits = orders.permits.map(|permits| permits - 1);
        orders.sync_fails.map_or(Ok(()), |kind| Err(kind.into()))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(kind) = self.control.0.0.lock().expect("orders").write_fails {
            return Err(kind.into());
        }
        self.inner.write(offset, data)
    }
}

fn open() -> (Store<()>, Control, std::sync::mpsc::Receiver<String>) {
    let control = Control::default();
    let disk = Disk {
        inner: InMemoryBackend::new(),
        control: control.clone(),
    };
    let (tell, told) = std::sync::mpsc::channel();
    let on_fatal = Arc::new(move |fatal: &Fatal| {
        let _ = tell.send(fatal.to_string());
    });
    let options = Options {
        on_fatal,
        ..Options::new(|_: &str, _: &[u8]| ())
    };
    (
        Store::open_backend(disk, options).expect("open"),
        control,
        told,
    )
}

fn put(key: &str, expect: Expect, value: &'static str) -> Write {
    Write::put(key, expect, move |_| Bytes::from_static(value.as_bytes()))
}

async fn assert_sees_nothing(store: &Store<()>, watch: &mut Watch<()>, at: Revision) {
    assert_eq!(store.revision(), at);
    assert!(store.list("new", None, 0, &mut |_| true).entries.is_empty());
    assert!(store.get("new").is_none());
    let mut next = Box::pin(watch.next());
    assert!(poll!(&mut next).is_pending());
    assert!(matches!(
        store.watch("", at.next()),
        Err(WatchError::Future { .. })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_invisible_and_unanswered_until_its_sync_returns() {
    let (store, control, _) = open();
    let mut watch = store.watch("", store.revision()).unwrap();
    control.hold();
    let mut write = Box::pin(store.write(put("new", Expect::Absent, "1")));
    assert!(poll!(&mut write).is_pending());
    control.until_a_sync_waits().await;
    assert_sees_nothing(&store, &mut watch, Revision::FIRST).await;
    assert!(poll!(&mut write).is_pending());
    control.let_all_pass();
    let entry = write.await.unwrap();
    assert!(
        Arc::ptr_eq(&entry, &store.get("new").unwrap()),
        "visible when it is answered"
    );
    assert!(matches!(watch.next().await, Ok(WatchItem::Event(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_queued_during_a_sync_becomes_one_group_that_is_seen_all_at_once() {
    let (store, control, _) = open();
    control.hold();
    let mut first = Box::pin(store.write(put("old", Expect::Absent, "1")));
    assert!(poll!(&mut first).is_pending());
    control.until_a_sync_waits().await;
    let mut others: Vec<_> = (0..20)
        .map(|number| Box::pin(store.write(put(&format!("new/{number}"), Expect::Absent, "1"))))
        .collect();
    for other in &mut others {
        assert!(poll!(other).is_pending());
    }
    control.let_one_pass();
    first.await.unwrap();
    control.until_a_sync_waits().await;
    let mut watch = store.watch("new/", store.revision()).unwrap();
    assert_sees_nothing(&store, &mut watch, Revision(2)).await;
    control.let_one_pass();
    let entry = others.remove(0).await.unwrap();
    assert_eq!(entry.modified, Revision(3));
    assert_eq!(store.revision(), Revision(22), "one sync carried them all");
    for (number, other) in others.into_iter().enumerate() {
        assert_eq!(other.await.unwrap().modified, Revision(number as u64 + 4));
    }
    control.let_all_pass();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_with_a_pending_write_waits_for_that_write_and_others_do_not() {
    let (store, control, _) = open();
    store.write(put("old", Expect::Absent, "1")).await.unwrap();
    control.hold();
    let mut first = Box::pin(store.write(put("other", Expect::Absent, "1")));
    assert!(poll!(&mut first).is_pending());
    control.until_a_sync_waits().await;

    let mut wins = Box::pin(store.write(put("new", Expect::Absent, "mine")));
    let mut loses = Box::pin(store.write(put("new", Expect::Absent, "yours")));
    let mut deletes = Box::pin(store.write(Write::delete("old", Expect::Present)));
    let mut misses = Box::pin(store.write(put("old", Expect::Present, "2")));
    let mut also = Box::pin(store.write(put("x", Expect::Any, "1").also("new", Expect::Absent)));
    let mut plain = Box::pin(store.write(put("nowhere", Expect::Present, "1")));
    for write in [
        &mut wins,
        &mut loses,
        &mut deletes,
        &mut misses,
        &mut also,
        &mut plain,
    ] {
        assert!(poll!(write).is_pending());
    }
    control.let_one_pass();
    first.await.unwrap();
    control.until_a_sync_waits().await;

    let told = plain.await;
    assert!(
        matches!(told, Err(WriteError::Conflict { current: None, .. })),
        "visible to all"
    );
    for write in [&mut wins, &mut loses, &mut deletes, &mut misses, &mut also] {
        assert!(
            poll!(write).is_pending(),
            "it would tell of what may yet fail"
        );
    }
    assert!(store.get("new").is_none() && store.get("old").is_some());
    control.let_all_pass();

    let won = wins.await.unwrap();
    for refused in [loses.await, also.await] {
        match refused {
            Err(WriteError::Conflict {
                key,
                current: Some(current),
            }) => {
                assert_eq!(key, "new");
                assert!(Arc::ptr_eq(&current, &won));
            }
            other => panic!("{other:?}"),
        }
    }
    deletes.await.unwrap();
    assert!(matches!(
        misses.await,
        Err(WriteError::Conflict { current: None, .. })
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_ends_the_store_and_shows_nothing_of_the_group() {
    let (store, control, told) = open();
    store.write(put("old", Expect::Absent, "1")).await.unwrap();
    let mut watch = store.watch("", store.revision()).unwrap();
    control.hold();
    let mut write = Box::pin(store.write(put("new", Expect::Absent, "1")));
    assert!(poll!(&mut write).is_pending());
    control.until_a_sync_waits().await;
    let mut loses = Box::pin(store.write(put("new", Expect::Absent, "2")));
    assert!(poll!(&mut loses).is_pending());
    control.order(|orders| orders.sync_fails = Some(io::ErrorKind::Other));
    control.let_all_pass();
    assert!(matches!(write.await, Err(WriteError::Closed)));
    assert!(matches!(loses.await, Err(WriteError::Closed)));
    assert!(told.recv().unwrap().contains("revisions 3 to 3"));
    store.shutdown().await;
    assert_eq!(store.revision(), Revision(2));
    assert!(store.get("new").is_none() && store.get("old").is_some());
    assert_eq!(watch.next().await.unwrap_err(), WatchError::Closed);
    assert!(matches!(
        store.write(put("x", Expect::Any, "1")).await,
        Err(WriteError::Closed)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_up_within_a_group_is_named_as_such() {
    let (store, control, told) = open();
    control.order(|orders| orders.write_fails = Some(io::ErrorKind::StorageFull));
    let refused = store.write(put("new", Expect::Absent, "1")).await;
    assert!(matches!(refused, Err(WriteError::Closed)));
    let text = told.recv().unwrap();
    assert!(
        text.contains("is full") && text.contains("Free some space"),
        "{text}"
    );
    assert!(store.get("new").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_caller_gave_up_still_happens_once_queued() {
    let (store, control, _) = open();
    control.hold();
    let mut write = Box::pin(store.write(put("new", Expect::Absent, "1")));
    assert!(matches!(poll!(&mut write), Poll::Pending));
    control.until_a_sync_waits().await;
    drop(write);
    let mut watch = store.watch("", store.revision()).unwrap();
    control.let_all_pass();
    assert!(matches!(watch.next().await, Ok(WatchItem::Event(_))));
    assert!(store.get("new").is_some());
}
