//! What has ended costs a new notification nothing: neither its agent nor its controllers are told of
//! it, or ask for it, again. Counted in bytes and requests, not in time.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context as _;
use belay_testkit::{Instance, NOTIFICATIONS, Rest, eventually, notification, pod, signal};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// Final when they were created, because there is no such pod.
const REFUSED: usize = 3000;
/// Delivered by the agent.
const DELIVERED: usize = 200;
/// More than a new notification and some heartbeats are, far less than all that have ended.
const A_FEW: u64 = 64 * 1024;

/// A way to the server that counts what comes back on it.
struct Counted {
    address: SocketAddr,
    received: Arc<AtomicU64>,
}

impl Counted {
    async fn to(server: String) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, received) = (listener.local_addr()?, Arc::<AtomicU64>::default());
        let count = Arc::clone(&received);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (server, count) = (server.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let far = TcpStream::connect(server).await?;
                    let (mut near_read, mut near_write) = near.into_split();
                    let (mut far_read, mut far_write) = far.into_split();
                    let there = tokio::io::copy(&mut near_read, &mut far_write);
                    let back = async {
                        let mut buffer = vec![0; 64 * 1024];
                        loop {
                            let length = far_read.read(&mut buffer).await?;
                            if length == 0 {
                                return std::io::Result::Ok(());
                            }
                            count.fetch_add(length as u64, Ordering::SeqCst);
                            near_write
                                .write_all(buffer.get(..length).unwrap_or_default())
                                .await?;
                        }
                    };
                    // One direction that ends, ends both.
                    tokio::select! {
                        ended = there => ended.map(drop),
                        ended = back => ended,
                    }
                });
            }
        });
        Ok(Self { address, received })
    }

    fn so_far(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }
}

/// Requests for notifications that the server has answered so far, by verb and part.
async fn requests(admin: &Rest) -> anyhow::Result<BTreeMap<String, u64>> {
    let metrics = admin.get("/metrics").await?.text();
    let mut counts = BTreeMap::new();
    for line in metrics.lines() {
        let own = line.starts_with("apiserver_request_total{")
            && line.contains("resource=\"podnotifications\"");
        let Some((labels, value)) = line.rsplit_once(' ').filter(|_| own) else {
            continue;
        };
        let label = |name: &str| {
            let (_, rest) = labels.split_once(&format!("{name}=\""))?;
            rest.split_once('"').map(|(value, _)| value.to_owned())
        };
        let what = [label("verb"), label("subresource")].map(Option::unwrap_or_default);
        *counts.entry(what.join(" ")).or_default() += value.parse::<u64>()?;
    }
    Ok(counts)
}

/// What one more notification comes to: bytes that the agent received, and requests by their kind.
async fn one_more(
    admin: &Rest,
    way: &Counted,
    name: &str,
) -> anyhow::Result<(u64, BTreeMap<String, u64>)> {
    let (bytes, before) = (way.so_far(), requests(admin).await?);
    let created = notification(name, "p", "poke").build();
    let mut watch = admin
        .watch(&format!(
            "{NOTIFICATIONS}?watch=true&fieldSelector=metadata.name%3D{name}"
        ))
        .await?;
    admin.post(NOTIFICATIONS, &created).await?.ok()?;
    // Asking for it again and again would be counted too.
    loop {
        let event = watch.next().await.context("the watch ended")?;
        if event["object"]["status"]["state"] == "Succeeded" {
            break;
        }
        assert_ne!(event["object"]["status"]["state"], "Failed", "{event:#}");
    }
    let mut after = requests(admin).await?;
    for (what, count) in &mut after {
        *count -= before.get(what).copied().unwrap_or(0);
    }
    after.retain(|_, count| *count > 0);
    Ok((way.so_far() - bytes, after))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_is_neither_sent_nor_read_again_for_a_new_one() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    let admin = instance.admin().await?;
    let server = Rest::address(&instance.kubeconfig()).await?;
    let way = Counted::to(server.clone()).await?;
    let kubeconfig = instance.node_kubeconfig("n1").await?;
    let redirected = kubeconfig.replace(&server, &way.address.to_string());
    assert_ne!(redirected, kubeconfig, "the agent goes the counted way");
    std::fs::write(instance.dir().join("n1.kubeconfig"), redirected)?;
    instance.start_agent("n1", &[]).await?;
    let script = "trap : HUP; while :; do sleep 3600 & wait; done";
    let manifest = pod("p")
        .container("main", ["sh", "-c", script])
        .notifier("poke", signal("SIGHUP").timeout(60));
    admin.run(&manifest.build()).await?;
    let (alone, asked) = one_more(&admin, &way, "first").await?;

    let many = (0..REFUSED + DELIVERED).map(|number| {
        let pod = if number < DELIVERED {
            "p"
        } else {
            "no-such-pod"
        };
        let object = notification(&format!("old-{number}"), pod, "poke").build();
        let admin = admin.clone();
        async move { admin.post(NOTIFICATIONS, &object).await?.ok() }
    });
    let _: Vec<Value> = futures::stream::iter(many)
        .buffer_unordered(32)
        .try_collect()
        .await?;
    let size = eventually("all of them to end", async || {
        let reply = admin.get(NOTIFICATIONS).await?;
        let size = reply.body.len() as u64;
        let list = reply.ok()?;
        let items = list["items"].as_array().context("a list")?;
        let open = items.iter().any(|one| one["status"]["state"] == "New");
        Ok((!open && items.len() == REFUSED + DELIVERED + 1).then_some(size))
    })
    .await?;
    assert!(size > 16 * A_FEW, "all that have ended are {size} bytes");

    let (among_many, asked_then) = one_more(&admin, &way, "last").await?;
    println!(
        "the agent received {alone} bytes alone, {among_many} among {size} bytes of ended ones"
    );
    // A conflict may repeat one of them; reading what has ended would take a list, or thousands.
    let all = |asked: &BTreeMap<String, u64>| asked.values().sum::<u64>();
    assert!(
        all(&asked_then) <= 2 * all(&asked),
        "{asked_then:?}, and alone {asked:?}"
    );
    assert!(
        !asked_then.keys().any(|what| what.starts_with("list")),
        "{asked_then:?}"
    );
    assert!(among_many < A_FEW, "the agent received {among_many} bytes");

    // What an agent asks for at its start has nothing of what was never its own.
    let own = "/apis/apps.k8s.io/v1alpha1/podnotifications?fieldSelector=status.nodeName%3Dn1";
    let list = admin.get(own).await?.ok()?;
    let items = list["items"].as_array().context("a list")?;
    assert_eq!(items.len(), DELIVERED + 2);
    assert!(items.iter().all(|one| one["spec"]["podName"] == "p"));
    let from = &list["metadata"]["resourceVersion"];
    let from = from.as_str().context("a version")?;
    let mut watch = admin
        .watch(&format!("{own}&watch=true&resourceVersion={from}"))
        .await?;
    let object = notification("newest", "p", "poke").build();
    admin.post(NOTIFICATIONS, &object).await?.ok()?;
    let event = watch.next().await.context("the watch ended")?;
    assert_eq!(event["object"]["metadata"]["name"], "newest", "{event:#}");
    Ok(())
}
