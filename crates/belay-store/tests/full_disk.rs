//! A disk that really fills up: a small file system of its own, in a child process.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use belay_store::{Expect, Options, Store, Write, WriteError};
use bytes::Bytes;

const CHILD_DIR: &str = "BELAY_STORE_TEST_FULL_DIR";
const VALUE: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn puts_are_refused_before_the_disk_is_full_and_accepted_again_once_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let me = std::env::current_exe().unwrap();
    let script = "mount -t tmpfs -o size=16m tmpfs \"$1\" || exit 77; shift; exec \"$@\"";
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(dir.path())
        .arg(me)
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir.path())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return skip(&format!("unshare cannot be run: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || text.contains("unshare failed") {
        let why = text.lines().next().unwrap_or_default();
        return skip(&format!(
            "no file system of its own can be mounted here: {why}"
        ));
    }
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{text}"
    );
}

/// As all tests of the project say that they did nothing.
fn skip(why: &str) {
    let test = std::thread::current();
    println!("SKIPPED: {}: {why}", test.name().unwrap_or("unnamed"));
}

fn options() -> Options<()> {
    Options {
        history_bytes: 1 << 20,
        min_free_bytes: 4 << 20,
        ..Options::new(|_: &str, _: &[u8]| ())
    }
}

async fn put(store: &Store<()>, key: &str) -> Result<(), WriteError<()>> {
    let encode = |_| Bytes::from(vec![b'x'; VALUE]);
    store
        .write(Write::put(key, Expect::Any, encode))
        .await
        .map(drop)
}

/// Puts until the disk is nearly full, and says how many there was room for.
async fn fill(store: &Store<()>) -> usize {
    for number in 0..1000 {
        match put(store, &format!("key/{number}")).await {
            Ok(()) => {}
            Err(WriteError::Full { path, free, needed }) => {
                assert!(free < needed && free > 0, "{free} of {needed}");
                assert!(path.ends_with("store"));
                return number;
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("a disk of 16 MiB took a thousand values of 64 KiB");
}

#[test]
#[ignore = "the child process of the test above"]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let path = Path::new(&dir).join("store");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = Store::open(&path, options()).unwrap();
        let room = fill(&store).await;
        assert!(room > 50, "only {room} values fit");
        // What is there is there, and what was refused left no trace.
        assert_eq!(store.stats().entries, room);
        // What must be written before something can be deleted still is.
        let mark = |reserve, size| Write {
            reserve,
            ..Write::put("key/0", Expect::Present, move |_| vec![b'm'; size].into())
        };
        let refused = store.write(mark(false, VALUE)).await.unwrap_err();
        assert!(matches!(refused, WriteError::Full { .. }), "{refused}");
        store
            .write(mark(true, VALUE))
            .await
            .expect("marking works on a full disk");
        // Where only a little fits, what is large is refused before it is too late.
        let refused = store.write(mark(true, 3 << 20)).await.unwrap_err();
        assert!(matches!(refused, WriteError::Full { .. }), "{refused}");
        for number in 0..room {
            let delete = Write::delete(format!("key/{number}"), Expect::Present);
            store
                .write(delete)
                .await
                .expect("deleting works on a full disk");
        }
        // Room is given back bit by bit, and a little of it waits for the next write.
        let begun = Instant::now();
        let mut again = fill(&store).await;
        while again <= room / 2 {
            assert!(
                begun.elapsed() < PATIENCE,
                "deleting {room} values made room for {again}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
            again = fill(&store).await;
        }
        store.shutdown().await;
        let store = Store::open(&path, options()).unwrap();
        assert!(store.stats().entries >= again);
    });
}
