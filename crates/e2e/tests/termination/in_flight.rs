//! What the agent itself waits for when it is killed with `kill -9`: a sidecar's turn, the answer to a
//! request. On the runtime that the file including this one gives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use belay_testkit::{Instance, eventually, pod};
use serde_json::json;
use tokio::net::TcpListener;

use crate::on_runtime;
use crate::scripts::{LONG, Work, delete, event_about, gone, times_of_signal};

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_sidecar_waits_its_turn_comes_in_order_and_within_the_same_grace()
-> anyhow::Result<()> {
    const AWAY: Duration = Duration::from_secs(3);
    let mut instance = on_runtime(Instance::up()).await?.start().await?;
    let work = Work::new(&instance);
    let heard = &work.heard;
    let side = format!(
        "trap 'echo side term >> {heard}; exit 0' TERM; echo side up >> {heard}; \
         while :; do sleep 0.05; done"
    );
    let main = format!(
        "trap 'echo main term >> {heard}' TERM; echo main up >> {heard}; \
         while ! grep -q 'main term' {heard} || ! test -e {}; do sleep 0.05; done; \
         echo main ends >> {heard}",
        work.gate
    );
    // It runs at once, when the beginning of the end is on disk.
    let hook = json!({ "exec": { "command": ["sh", "-c", format!("echo side hook >> {heard}")] } });
    let served = pod("p")
        .sidecar("side", ["sh", "-c", &side])
        .container_field("lifecycle", json!({ "preStop": hook }))
        .container("main", ["sh", "-c", &main])
        .grace(LONG);
    let admin = instance.admin().await?;
    admin.run(&work.build(served)).await?;
    for line in ["side up", "main up"] {
        work.until(line).await?;
    }
    delete(&admin).await;
    for line in ["side hook", "main term"] {
        work.until(line).await?;
    }
    // One that comes back to it, and one that comes back to what that one has left.
    for _ in 0..2 {
        instance.kill9().await?;
        tokio::time::sleep(AWAY / 2).await;
        instance.start_again().await?;
    }
    work.let_container_end()?;
    work.until("side term").await?;
    gone(&instance).await?;
    let heard = work.heard();
    assert!(heard.ends_with("main ends\nside term\n"), "{heard}");
    for once in ["side hook", "side term"] {
        assert_eq!(heard.matches(once).count(), 1, "{heard}");
    }
    let (after, left) = times_of_signal(&instance, "side").await?;
    assert!(after >= AWAY, "{after:?} {left:?}");
    assert_eq!(after + left, Duration::from_secs(LONG.into()));
    Ok(())
}

/// A server that takes every connection and answers nobody: where it listens, and how many it took.
async fn silent() -> anyhow::Result<(u16, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    Ok((port, taken))
}

/// Whether it was heard is not known: it is not sent again.
#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_hook_s_request_is_not_answered_it_is_lost_and_the_signal_comes()
-> anyhow::Result<()> {
    let mut instance = on_runtime(Instance::up()).await?.start().await?;
    let work = Work::new(&instance);
    let (port, taken) = silent().await?;
    let admin = instance.admin().await?;
    let get = json!({ "httpGet": { "host": "127.0.0.1", "port": port, "path": "/bye" } });
    work.run(&admin, &get).await?;
    delete(&admin).await;
    eventually("the request", async || {
        Ok((taken.load(Ordering::SeqCst) > 0).then_some(()))
    })
    .await?;
    instance.kill9().await?;
    instance.start_again().await?;
    work.until("term").await?;
    work.let_container_end()?;
    gone(&instance).await?;
    assert_eq!(work.heard(), "up\nterm\n");
    event_about(
        &instance,
        "FailedPreStopHook",
        "PreStopHook of container main was interrupted together with the agent; it is not run again",
    )
    .await?;
    assert_eq!(taken.load(Ordering::SeqCst), 1);
    Ok(())
}
