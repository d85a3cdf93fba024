//! Terminations on a runtime that does not do as it is told.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use belay_action::Target;
use belay_core::termination::Did;
use belay_runtime::{
    ContainerConfig, ContainerState, Containers, Exit, Image, ImageError, Listed, PodConfig,
    PodRuntime, Pull, RuntimeError, Sandbox, Session, SessionError, SessionRequest, Sessions,
    Streams,
};
use serde_json::{Value, json};

use super::*;
use crate::node::Health;
use crate::pods::Table;
use crate::pods::objects::Objects;
use crate::pods::tracked::{Instance, running};
use crate::testing::fake::Fake;
use crate::testing::{Script, context};

/// Generous: a busy machine must not fail a test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A runtime without any container. It hangs or refuses as often as it is told to.
#[derive(Default)]
pub(in crate::pods) struct Stubborn {
    /// Nobody is ever found to send a signal to.
    hangs: bool,
    refusals: AtomicU32,
    /// What the first kills leave.
    survivors: Mutex<VecDeque<String>>,
    killed: Mutex<Vec<String>>,
    /// What removals come to before it refuses all.
    pub(in crate::pods) removals: Mutex<VecDeque<Result<(), RuntimeError>>>,
    /// Whom everything is done to.
    target: Option<Arc<Fake>>,
}

impl Stubborn {
    /// With one container, which does as it is told.
    pub(in crate::pods) fn with(fake: Fake) -> Self {
        Stubborn {
            target: Some(Arc::new(fake)),
            ..Stubborn::default()
        }
    }
}

#[async_trait]
impl Containers for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }

    async fn is_running(&self, _: &ContainerId) -> Result<bool, RuntimeError> {
        Ok(true)
    }

    async fn target(&self, _: &ContainerId) -> Result<Arc<dyn Target>, RuntimeError> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let target = self.target.clone().ok_or_else(refused)?;
        Ok(target)
    }
}

#[async_trait]
impl Sessions for Stubborn {
    async fn open(
        &self,
        _: &ContainerId,
        _: &SessionRequest,
    ) -> Result<(Session, Streams), SessionError> {
        Err(refused().into())
    }
}

#[async_trait]
impl PodRuntime for Stubborn {
    async fn sandbox(&self, _: &PodConfig) -> Result<Sandbox, RuntimeError> {
        Err(refused())
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        Err(refused())
    }

    async fn stop_sandboxes(&self, _: &str) -> Result<(), RuntimeError> {
        Err(refused())
    }

    async fn remove_sandboxes(&self, _: &str) -> Result<(), RuntimeError> {
        Err(refused())
    }

    async fn image(&self, _: &str, _: Pull) -> Result<Image, ImageError> {
        Err(refused().into())
    }

    async fn start(&self, _: &ContainerConfig) -> Result<ContainerId, RuntimeError> {
        Err(refused())
    }

    async fn list(&self) -> Result<Listed, RuntimeError> {
        Err(refused())
    }

    async fn state(&self, _: &ContainerId) -> Result<ContainerState, RuntimeError> {
        Err(refused())
    }

    async fn wait(&self, _: &ContainerId) -> Result<Exit, RuntimeError> {
        Err(refused())
    }

    async fn kill_tree(&self, id: &ContainerId) -> Result<Vec<String>, RuntimeError> {
        let refuses = |left: u32| left.checked_sub(1);
        let order = Ordering::SeqCst;
        if self.refusals.fetch_update(order, order, refuses).is_ok() {
            return Err(refused());
        }
        self.killed.lock().unwrap().push(id.to_string());
        let survivor = self.survivors.lock().unwrap().pop_front();
        Ok(survivor.into_iter().collect())
    }

    async fn bound_logs(&self) -> Result<(), RuntimeError> {
        Err(refused())
    }

    async fn remove(&self, _: &ContainerId) -> Result<(), RuntimeError> {
        let removal = self.removals.lock().unwrap().pop_front();
        removal.unwrap_or_else(|| Err(refused()))
    }
}

fn refused() -> RuntimeError {
    RuntimeError::Call {
        what: "do anything",
        problem: "it refuses".to_owned(),
    }
}

pub(in crate::pods) struct Stage {
    /// Removed when the test is over.
    _dir: tempfile::TempDir,
    pub(in crate::pods) host: Arc<Host>,
    pub(in crate::pods) runtime: Arc<Stubborn>,
    pub(in crate::pods) pod: Arc<Pod>,
    pub(in crate::pods) tracked: BTreeMap<String, Tracked>,
}

impl Stage {
    /// A pod whose containers all run, each under an ID like `web-1`.
    pub(in crate::pods) fn new(runtime: Stubborn, containers: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Arc::new(runtime);
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": containers},
        }))
        .unwrap();
        let shared = context(dir.path(), &Script::default());
        let host = Arc::new(Host {
            objects: Objects::new(shared.client.clone()),
            shared,
            cpus: 1,
            memory: 1 << 30,
            node_name: "n1".to_owned(),
            node_address: "127.0.0.1".to_owned(),
            data_dir: dir.path().to_owned(),
            boot_id: "b".to_owned(),
            runtime: Arc::clone(&runtime) as _,
            health: Health::new(),
            pods: Arc::new(Table::default()),
        });
        let tracked = pod
            .spec
            .containers
            .iter()
            .map(|container| {
                let mut tracked = Tracked::default();
                tracked.started(Instance::test(id(&container.name).as_str(), 0));
                (container.name.clone(), tracked)
            })
            .collect();
        Stage {
            _dir: dir,
            host,
            runtime,
            pod: Arc::new(pod),
            tracked,
        }
    }

    pub(in crate::pods) fn terminations(&self) -> Terminations {
        let (host, pod) = (Arc::clone(&self.host), Arc::clone(&self.pod));
        let running = running(&self.tracked);
        Terminations::resume(host, pod, &running)
    }

    fn count(&self, metric: &str) -> String {
        let text = self.host.metrics.text();
        let line = text.lines().find(|line| line.starts_with(metric));
        let value = line.and_then(|line| line.rsplit(' ').next());
        value.unwrap_or("none").to_owned()
    }
}

fn id(container: &str) -> ContainerId {
    ContainerId::new(format!("{container}-1")).unwrap()
}

fn sleeping(name: &str) -> Value {
    json!({"name": name, "lifecycle": {"preStop": {"sleep": {"seconds": 600}}}})
}

/// Drives until the pod's end is over.
async fn over(terminations: &mut Terminations) {
    let driving = async {
        while !terminations.pod_is_over() {
            let moment = terminations.next().await;
            terminations.happened(moment);
        }
    };
    tokio::time::timeout(PATIENCE, driving).await.unwrap();
}

#[tokio::test]
async fn a_runtime_that_refuses_to_kill_is_asked_until_it_has_done_it() {
    let runtime = Stubborn {
        refusals: AtomicU32::new(3),
        ..Stubborn::default()
    };
    let stage = Stage::new(runtime, &json!([{"name": "web"}, {"name": "log"}]));
    let mut terminations = stage.terminations();
    terminations.end_pod(Cause::PodVanished, Duration::ZERO, &stage.tracked);
    over(&mut terminations).await;
    let mut killed = stage.runtime.killed.lock().unwrap().clone();
    killed.sort();
    assert_eq!(killed, ["log-1", "web-1"]);
    let cause = "belay_terminations_total{cause=\"PodVanished\"}";
    assert_eq!(stage.count(cause), "1");
}

#[tokio::test]
async fn a_runtime_that_hangs_or_refuses_at_the_signal_does_not_put_off_the_kill() {
    for hangs in [true, false] {
        let runtime = Stubborn {
            hangs,
            ..Stubborn::default()
        };
        let stage = Stage::new(runtime, &json!([{"name": "web"}]));
        let mut terminations = stage.terminations();
        let grace = Duration::from_millis(300);
        terminations.end_pod(Cause::PodDeleted, grace, &stage.tracked);
        over(&mut terminations).await;
        assert_eq!(*stage.runtime.killed.lock().unwrap(), ["web-1"]);
        terminations.leave().await;
        let record = stage.host.journal.stop("u").unwrap();
        let steps = serde_json::to_string(&record.legs[0].steps).unwrap();
        assert!(steps.contains("kill"), "{steps}");
        assert_eq!(steps.contains("failSignal"), !hangs, "{steps}");
    }
}

#[tokio::test]
async fn sleeps_that_end_early_are_counted_once_for_a_pod_and_reason() {
    let stage = Stage::new(
        Stubborn::default(),
        &json!([sleeping("a"), sleeping("b"), sleeping("c"), sleeping("d")]),
    );
    let mut terminations = stage.terminations();
    let grace = Duration::from_secs(600);
    terminations.end_pod(Cause::PodDeleted, grace, &stage.tracked);
    let early = |reason: &str| {
        let metric = format!("sleep_action_terminated_early_total{{reason=\"{reason}\"}}");
        stage.count(&metric)
    };
    for container in ["a", "b"] {
        terminations.exited(container, &id(container));
        assert_eq!(early("container_exited"), "1");
    }
    // Another incarnation's end is nobody's here.
    terminations.exited("c", &id("other"));
    assert!(terminations.stops("c"));
    assert_eq!(early("grace_shortened"), "0");
    terminations.shrink(Duration::ZERO);
    assert_eq!(early("grace_shortened"), "1");
    over(&mut terminations).await;
    let mut killed = stage.runtime.killed.lock().unwrap().clone();
    killed.sort();
    assert_eq!(killed, ["c-1", "d-1"]);
}

#[tokio::test]
async fn the_pod_s_end_takes_over_that_of_a_container_and_its_place_in_the_journal() {
    let stage = Stage::new(Stubborn::default(), &json!([sleeping("a"), {"name": "b"}]));
    let mut terminations = stage.terminations();
    let grace = Duration::from_secs(600);
    let cause = Cause::PostStartFailed;
    terminations.end_container("a", cause, grace, &stage.tracked);
    terminations.end_container("a", cause, grace, &stage.tracked);
    assert!(terminations.stops("a") && !terminations.stops("b"));
    terminations.leave().await;
    let journal = &stage.host.journal;
    assert_eq!(journal.container_stops("u").len(), 1);

    // A successor finds it, and then the pod is deleted.
    let mut terminations = stage.terminations();
    assert!(terminations.stops("a") && terminations.pod_cause().is_none());
    let began = terminations.ongoing.values().next().unwrap();
    let began = began.record().legs[0].began;
    terminations.end_pod(Cause::PodDeleted, grace, &stage.tracked);
    assert_eq!(terminations.pod_cause(), Some(Cause::PodDeleted));
    let whole = terminations.ongoing[&Scope::Pod].record().clone();
    assert_eq!(whole.legs[0].began, began, "nobody gets his grace again");
    let forgotten = async {
        while !journal.container_stops("u").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, forgotten).await.unwrap();
    terminations.shrink(Duration::ZERO);
    over(&mut terminations).await;
    terminations.leave().await;
    assert!(journal.stop("u").is_some());
}

/// A runtime that has not told of an end yet lets the container seem to run.
#[tokio::test]
async fn an_incarnation_has_one_end_however_late_its_runtime_tells_of_it() {
    let stage = Stage::new(Stubborn::default(), &json!([sleeping("a")]));
    let mut terminations = stage.terminations();
    let cause = Cause::DefinitionChanged;
    let end = |terminations: &mut Terminations| {
        terminations.end_container("a", cause, Duration::ZERO, &stage.tracked)
    };
    assert!(end(&mut terminations));
    let ended = async {
        while terminations.stops("a") {
            let moment = terminations.next().await;
            terminations.happened(moment);
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.unwrap();
    assert!(!end(&mut terminations) && terminations.is_killed("a", &id("a")));
    let metric = "belay_terminations_total{cause=\"DefinitionChanged\"}";
    assert_eq!(stage.count(metric), "1");

    // Nor has it one with its pod: no hook, and nobody is counted.
    terminations.end_pod(Cause::PodDeleted, Duration::from_secs(600), &stage.tracked);
    assert!(terminations.pod_is_over() && terminations.is_killed("a", &id("a")));
    assert_eq!(
        stage.count("belay_terminations_total{cause=\"PodDeleted\"}"),
        "none"
    );
    assert_eq!(stage.runtime.killed.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn that_a_container_is_to_come_back_is_kept_until_it_has() {
    for (cause, kept) in [
        (Cause::LivenessProbe { restarts: true }, true),
        (Cause::LivenessProbe { restarts: false }, false),
        (Cause::PostStartFailed, false),
    ] {
        let stage = Stage::new(Stubborn::default(), &json!([{"name": "a"}]));
        let journal = &stage.host.journal;
        let mut terminations = stage.terminations();
        terminations.end_container("a", cause, Duration::from_secs(600), &stage.tracked);
        terminations.exited("a", &id("a"));
        assert!(!terminations.stops("a"));
        terminations.leave().await;
        let found = journal.container_stops("u").len();
        assert_eq!(found, usize::from(kept), "{cause:?}");
        // A successor finds it, and it stays.
        let terminations = stage.terminations();
        assert!(!terminations.stops("a"));
        terminations.leave().await;
        assert_eq!(journal.container_stops("u").len(), found, "{cause:?}");
        let mut terminations = stage.terminations();
        // This one has come back as little as if nobody had seen it.
        terminations.came_back("a", &id("a"));
        assert_eq!(terminations.ongoing.len(), found, "{cause:?}");
        terminations.came_back("a", &ContainerId::new("a-2").unwrap());
        assert!(terminations.ongoing.is_empty());
        terminations.leave().await;
        assert_eq!(journal.container_stops("u").len(), 0, "{cause:?}");
    }
}

#[tokio::test]
async fn that_the_signal_was_sent_is_told_also_after_the_end_that_it_brought_about() {
    let stage = Stage::new(Stubborn::default(), &json!([{"name": "a"}]));
    let mut terminations = stage.terminations();
    let grace = Duration::from_secs(600);
    let cause = Cause::LivenessProbe { restarts: true };
    terminations.end_container("a", cause, grace, &stage.tracked);
    let sent = |terminations: &Terminations| {
        let leg = terminations.ongoing.values().next()?.leg("a")?;
        let sent = leg.steps.iter().filter(|step| step.did == Did::SendSignal);
        Some(sent.count())
    };
    terminations.exited("a", &id("a"));
    assert!(!terminations.stops("a"));
    assert_eq!(sent(&terminations), Some(0));
    for _ in 0..2 {
        terminations.hear(Word {
            container: "a".to_owned(),
            id: "a-1".to_owned(),
            news: News::SignalSent,
        });
        assert_eq!(sent(&terminations), Some(1));
    }
    // An end that is over holds nothing up, and is not begun again.
    assert!(!terminations.stops("a") && terminations.pod_cause().is_none());
    assert!(!terminations.end_container("a", cause, grace, &stage.tracked));
    terminations.came_back("a", &ContainerId::new("a-2").unwrap());
    assert_eq!(sent(&terminations), None);
}

#[tokio::test]
async fn what_a_sweep_leaves_is_swept_again() {
    let runtime = Stubborn {
        survivors: Mutex::new(["7 (dd)".to_owned()].into()),
        ..Stubborn::default()
    };
    let stage = Stage::new(runtime, &json!([{"name": "web"}]));
    let mut terminations = stage.terminations();
    for _ in 0..2 {
        // Whoever asks again while one is under way begins no other.
        terminations.sweep("web", &id("web"));
    }
    let swept = async {
        while !terminations.is_killed("web", &id("web")) {
            let moment = terminations.next().await;
            terminations.happened(moment);
        }
    };
    tokio::time::timeout(PATIENCE, swept).await.unwrap();
    assert_eq!(*stage.runtime.killed.lock().unwrap(), ["web-1", "web-1"]);
}
