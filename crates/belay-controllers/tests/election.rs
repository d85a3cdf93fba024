//! Replicas that want one lease, on a real server.

#![allow(clippy::unwrap_used)] // a test that cannot go on stops

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belay_api::gates::FeatureGates;
use belay_controllers::Metrics;
use belay_controllers::election::{self, Candidate, Mandate};
use belay_core::election::Times;
use belay_server::{Identity, Server};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const NAMESPACE: &str = "default";
/// Far apart, so that a busy machine cannot bring them together.
const TIMES: Times = Times {
    lease: 20_000,
    renew: 12_000,
    retry: 400,
};
const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    _dir: tempfile::TempDir,
    server: Server,
    serving: CancellationToken,
    /// What the replicas' work did, in order.
    diary: Arc<Mutex<Vec<String>>>,
}

struct Replica {
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// Whether its requests get nowhere.
    cut_off: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl Rig {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = belay_server::Config {
            data_dir: dir.path().join("server"),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            gates: FeatureGates::default(),
            tls_names: Vec::new(),
        };
        let server = Server::open(config).await.unwrap();
        let serving = CancellationToken::new();
        let (running, token) = (server.clone(), serving.clone());
        tokio::spawn(async move { running.serve(token).await });
        Rig {
            _dir: dir,
            server,
            serving,
            diary: Arc::default(),
        }
    }

    fn replica(&self, name: &str) -> Replica {
        let cut_off = Arc::new(AtomicBool::new(false));
        let inner = self.server.connect(Identity::admin());
        let network = Arc::clone(&cut_off);
        let service = tower::service_fn(move |request| {
            let (inner, network) = (inner.clone(), Arc::clone(&network));
            async move {
                if network.load(Ordering::SeqCst) {
                    std::future::pending::<()>().await;
                }
                inner.send(request).await
            }
        });
        let metrics = Arc::new(Metrics::new(FeatureGates::default()));
        let candidate = Candidate {
            client: Client::new(service, NAMESPACE),
            namespace: NAMESPACE.to_owned(),
            name: "belay-controller".to_owned(),
            identity: name.to_owned(),
            times: TIMES,
            mandate: Mandate::default(),
            metrics: Arc::clone(&metrics),
        };
        let diary = Arc::clone(&self.diary);
        let name = name.to_owned();
        let work = move |token: CancellationToken| {
            let (diary, name) = (Arc::clone(&diary), name.clone());
            async move {
                diary.lock().unwrap().push(format!("{name} begins"));
                token.cancelled().await;
                diary.lock().unwrap().push(format!("{name} ends"));
            }
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(election::run(candidate, work, stop.clone()));
        Replica {
            stop,
            task,
            cut_off,
            metrics,
        }
    }

    async fn until(&self, line: &str) {
        let started = tokio::time::Instant::now();
        while !self.diary.lock().unwrap().iter().any(|seen| seen == line) {
            assert!(started.elapsed() < PATIENCE, "waited too long for {line:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn diary(&self) -> Vec<String> {
        self.diary.lock().unwrap().clone()
    }

    async fn lease(&self) -> Lease {
        let api: Api<Lease> = Api::namespaced(self.server.connect(Identity::admin()), NAMESPACE);
        api.get("belay-controller").await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_acts_and_after_a_clean_end_the_lease_is_free_for_the_next() {
    let rig = Rig::start().await;
    let first = rig.replica("a");
    rig.until("a begins").await;
    let second = rig.replica("b");
    // Several renewals later it is still the only one.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(rig.diary(), ["a begins"]);
    assert!(first.metrics.text().contains("belay_is_leader 1"));
    assert!(second.metrics.text().contains("belay_is_leader 0"));
    let renewed = rig.lease().await.spec.unwrap();
    assert_eq!(renewed.holder_identity.as_deref(), Some("a"));
    assert!(renewed.renew_time > renewed.acquire_time);

    first.stop.cancel();
    first.task.await.unwrap();
    // Free, or taken already; in no case still its own.
    let holder = rig.lease().await.spec.unwrap().holder_identity;
    assert!(matches!(holder.as_deref(), Some("" | "b")), "{holder:?}");
    rig.until("b begins").await;
    assert_eq!(rig.diary(), ["a begins", "a ends", "b begins"]);
    assert_eq!(rig.lease().await.spec.unwrap().lease_transitions, Some(1));
    second.stop.cancel();
    second.task.await.unwrap();
    assert_eq!(
        rig.lease().await.spec.unwrap().holder_identity.as_deref(),
        Some("")
    );
    rig.serving.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_cut_off_ends_its_work_before_the_next_one_begins() {
    let rig = Rig::start().await;
    let first = rig.replica("a");
    rig.until("a begins").await;
    let second = rig.replica("b");
    first.cut_off.store(true, Ordering::SeqCst);
    rig.until("b begins").await;
    assert_eq!(rig.diary(), ["a begins", "a ends", "b begins"]);
    // Back on the network it finds that it leads no more, and waits.
    first.cut_off.store(false, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(rig.diary().len(), 3, "{:?}", rig.diary());
    for replica in [first, second] {
        replica.stop.cancel();
        replica.task.await.unwrap();
    }
    rig.serving.cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_killed_is_followed_by_the_next() {
    let rig = Rig::start().await;
    let first = rig.replica("a");
    rig.until("a begins").await;
    first.task.abort();
    let second = rig.replica("b");
    rig.until("b begins").await;
    second.stop.cancel();
    second.task.await.unwrap();
    rig.serving.cancel();
}
