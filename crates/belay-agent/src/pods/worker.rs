//! One pod on this node, from its first container to its last trace.
//!
//! # Expected flow
//!
//! A worker looks at what is wanted and at what runs, starts what the [plan](super::plan) says,
//! reports the [status](super::status), and waits until something happens. When the pod is being
//! deleted, or is gone, it [stops](super::stop) the containers, reports the end, deletes the object
//! and removes what is left on disk.
//!
//! # Guarantees
//!
//! Nothing waits for the API server but reports to it: containers are restarted and stopped on time
//! while it is away. The end of a worker by shutdown leaves the containers as they are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belay_action::ContainerId;
use belay_api::pod::{Container, Pod, PodStatus};
use belay_api::reasons;
use belay_runtime::{ContainerState, ContainerStatus as RuntimeStatus, Exit, RuntimeError};
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::report::{self, Reported};
use super::stop::{self, Stopped};
use super::table::{ContainerView, PodView};
use super::tracked::{FailedStart, Instance, Tracked};
use super::waiting::Waiting;
use super::{config, plan, status};
use crate::clock::boot_millis;
use crate::context::Context;
use crate::journal::Stopping;

/// The pod as the API tells it.
#[derive(Debug, Clone)]
pub(crate) struct Desired {
    pub(crate) pod: Arc<Pod>,
    /// It is no longer there; `pod` is what was last known of it.
    pub(crate) gone: bool,
}

/// What a worker waits for.
enum Happening {
    Exited {
        container: String,
        id: ContainerId,
        exit: Result<Exit, RuntimeError>,
    },
    Stopped {
        container: String,
        stopped: Stopped,
    },
    Reported(Reported),
    Deleted(Reported),
}

/// The end of the pod, once it has begun.
struct Ending {
    /// Milliseconds since boot.
    started: i64,
    deadline: watch::Sender<Instant>,
    /// Whether the final status has been reported, or nobody is left to report it to.
    told: bool,
    deleting: bool,
    /// Whether the object has been deleted as far as this node can.
    deleted: bool,
}

/// How long a report that failed waits before it is tried again, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

pub(crate) struct Worker {
    context: Arc<Context>,
    uid: String,
    desired: watch::Receiver<Desired>,
    tracked: BTreeMap<String, Tracked>,
    /// The lowest number for new incarnations where the runtime's records were lost.
    floor: BTreeMap<String, u32>,
    happenings: FuturesUnordered<BoxFuture<'static, Happening>>,
    /// The status reported last, acknowledged or on its way.
    reported: PodStatus,
    reporting: bool,
    /// Whether what was reported last did not arrive.
    owed: bool,
    retry: Duration,
    retry_at: Option<Instant>,
    wake: Option<Timestamp>,
    ending: Option<Ending>,
    /// Containers whose back-off has been told as an event, with the number of the incarnation.
    told_back_off: BTreeMap<String, u32>,
}

impl Worker {
    pub(crate) fn new(
        context: Arc<Context>,
        desired: watch::Receiver<Desired>,
        adopted: Vec<ContainerState>,
    ) -> Self {
        let pod = Arc::clone(&desired.borrow().pod);
        let mut worker = Worker {
            context,
            uid: pod.uid().to_owned(),
            desired,
            tracked: BTreeMap::new(),
            floor: floor(&pod),
            happenings: FuturesUnordered::new(),
            reported: pod.status.clone().unwrap_or_default(),
            reporting: false,
            owed: false,
            retry: RETRY.0,
            retry_at: None,
            wake: None,
            ending: None,
            told_back_off: BTreeMap::new(),
        };
        worker.adopt(adopted);
        let desired = worker.desired.borrow().clone();
        worker.publish(&desired);
        worker
    }

    /// Runs until the pod has left the node, or `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let desired = self.desired.borrow_and_update().clone();
            let done = if desired.gone || desired.pod.is_terminating() || self.ending.is_some() {
                self.end(&desired).await
            } else {
                self.keep_running(&desired.pod).await;
                false
            };
            if done {
                self.clean_up(&desired.pod).await;
                return;
            }
            self.publish(&desired);
            let timer = earliest(self.wake.map(instant), self.retry_at);
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = self.desired.changed() => if changed.is_err() { return },
                Some(happening) = self.happenings.next() => self.happened(happening, &desired.pod),
                () = sleep_until(timer) => {
                    self.wake = None;
                    self.retry_at = None;
                }
            }
        }
    }

    /// Takes over what the runtime already has of this pod.
    fn adopt(&mut self, adopted: Vec<ContainerState>) {
        let mut found: BTreeMap<String, Vec<Instance>> = BTreeMap::new();
        for state in adopted {
            found
                .entry(state.config.name.clone())
                .or_default()
                .push(state.into());
        }
        for (container, instances) in found {
            let mut tracked = Tracked::default();
            for old in tracked.adopt(instances) {
                self.remove_later(old);
            }
            if let Some(id) = tracked.running().cloned() {
                info!(pod = self.uid, container, %id, "adopted");
                self.wait_for(&container, id);
            }
            self.tracked.insert(container, tracked);
        }
    }

    fn wait_for(&mut self, container: &str, id: ContainerId) {
        let runtime = Arc::clone(&self.context.runtime);
        let container = container.to_owned();
        self.happenings.push(
            async move {
                let exit = runtime.wait(&id).await;
                Happening::Exited {
                    container,
                    id,
                    exit,
                }
            }
            .boxed(),
        );
    }

    /// Forgets an old incarnation in the background; its log goes with it.
    fn remove_later(&self, id: ContainerId) {
        let context = Arc::clone(&self.context);
        tokio::spawn(async move {
            let log = context
                .runtime
                .state(&id)
                .await
                .map(|state| state.config.log_path);
            if let Err(error) = context.runtime.remove(&id).await {
                return debug!(container = %id, %error, "an old incarnation could not be removed");
            }
            if let Ok(log) = log {
                let _ = tokio::fs::remove_file(log).await;
            }
        });
    }

    async fn keep_running(&mut self, pod: &Arc<Pod>) {
        let ended = matches!(self.reported.phase.as_deref(), Some("Succeeded" | "Failed"));
        let problems = self.problems(pod);
        let mut plan = plan::plan(pod, &self.tracked, &problems, Timestamp::now());
        if ended {
            plan.start.clear();
            plan.waiting.clear();
        }
        if !plan.start.is_empty() {
            for container in plan.start.clone() {
                self.start(pod, &container).await;
            }
            plan = plan::plan(pod, &self.tracked, &problems, Timestamp::now());
        }
        self.wake = plan.wake;
        self.tell_back_off(pod, &plan);
        self.publish(&Desired {
            pod: Arc::clone(pod),
            gone: false,
        });
        self.report(pod, &plan, false);
    }

    fn problems(&self, pod: &Pod) -> BTreeMap<String, Waiting> {
        let node = self.config_node();
        pod.spec
            .init_containers
            .iter()
            .chain(&pod.spec.containers)
            .filter_map(|container| {
                let problem = config::container_config(pod, container, 0, node).err()?;
                Some((container.name.clone(), problem))
            })
            .collect()
    }

    fn config_node(&self) -> config::Node<'_> {
        config::Node {
            name: &self.context.node_name,
            address: &self.context.node_address,
            data_dir: &self.context.data_dir,
        }
    }

    async fn start(&mut self, pod: &Pod, name: &str) {
        let Some(container) = pod.container(name) else {
            return;
        };
        let known = self.tracked.get(name).cloned().unwrap_or_default();
        let floor = self.floor.get(name).copied().unwrap_or(0);
        let count = known.next_restart_count().max(floor);
        let config = match config::container_config(pod, container, count, self.config_node()) {
            Ok(config) => config,
            // The plan does not ask for what has a problem.
            Err(problem) => return debug!(container = name, ?problem, "not startable"),
        };
        let about = self.reference(pod, Some(name));
        let result = self.context.runtime.start(&config).await;
        let now = Timestamp::now();
        let ended = known.ended();
        let tracked = self.tracked.entry(name.to_owned()).or_default();
        if let Some(ended) = ended {
            tracked.backoff.restarted(ended, now);
        }
        let id = match result {
            Ok(id) => id,
            Err(error) => {
                let reason = match &error {
                    RuntimeError::StartFailed { .. } => "RunContainerError",
                    _ => "CreateContainerError",
                };
                let message = causes(&error);
                warn!(pod = pod.name(), container = name, message, "cannot start");
                if ended.is_none() {
                    tracked.backoff.restarted(now, now);
                }
                let waiting = Waiting {
                    reason,
                    message: message.clone(),
                };
                tracked.failed_start = Some(FailedStart { waiting, at: now });
                self.context
                    .events
                    .warning(about, reasons::FAILED, format!("Error: {message}"));
                return;
            }
        };
        let started = match self.context.runtime.state(&id).await {
            Ok(ContainerState {
                status: RuntimeStatus::Running { started },
                ..
            }) => started,
            Ok(ContainerState {
                status: RuntimeStatus::Exited(exit),
                ..
            }) => exit.started,
            Err(_) => now,
        };
        let instance = Instance {
            id: id.clone(),
            restart_count: count,
            started,
            exit: None,
        };
        let dropped = tracked.started(instance);
        if count > 0 {
            self.context.metrics.restarts.inc();
        }
        if let Some(dropped) = dropped {
            self.remove_later(dropped);
        }
        let events = &self.context.events;
        events.normal(
            about.clone(),
            reasons::CREATED,
            format!("Created container: {name}"),
        );
        events.normal(about, reasons::STARTED, format!("Started container {name}"));
        self.wait_for(name, id);
    }

    fn happened(&mut self, happening: Happening, pod: &Pod) {
        match happening {
            Happening::Exited {
                container,
                id,
                exit,
            } => self.exited(&container, &id, exit),
            Happening::Stopped { container, stopped } => {
                let about = self.reference(pod, Some(&container));
                if stopped.killed {
                    let message = format!(
                        "Container {container} did not end within its grace period and was killed"
                    );
                    self.context
                        .events
                        .normal(about.clone(), reasons::KILLING, message);
                }
                if !stopped.survivors.is_empty() {
                    let message = format!(
                        "these processes of container {container} could not be killed: {}",
                        stopped.survivors.join(", ")
                    );
                    self.context
                        .events
                        .warning(about, reasons::PROCESSES_SURVIVED, message);
                }
            }
            Happening::Reported(outcome) => {
                self.reporting = false;
                self.answered(outcome, |ending| ending.told = true);
            }
            Happening::Deleted(outcome) => {
                if let Some(ending) = &mut self.ending {
                    ending.deleting = false;
                    ending.deleted = outcome != Reported::Failed;
                }
                self.answered(outcome, |_| {});
            }
        }
    }

    fn answered(&mut self, outcome: Reported, arrived: impl FnOnce(&mut Ending)) {
        match outcome {
            Reported::Arrived => {
                self.owed = false;
                self.retry = RETRY.0;
                if let Some(ending) = &mut self.ending {
                    arrived(ending);
                }
            }
            // The watch tells what became of it; there is nobody to report to.
            Reported::Gone => {
                self.owed = false;
                if let Some(ending) = &mut self.ending {
                    ending.told = true;
                }
            }
            Reported::Failed => {
                self.owed = true;
                self.retry_at = Some(Instant::now() + self.retry);
                self.retry = (self.retry * 2).min(RETRY.1);
            }
        }
    }

    fn exited(&mut self, container: &str, id: &ContainerId, exit: Result<Exit, RuntimeError>) {
        let exit = match exit {
            Ok(exit) => exit,
            Err(error) => {
                warn!(container, %id, %error, "cannot wait for a container; asking again");
                let runtime = Arc::clone(&self.context.runtime);
                let (container, id) = (container.to_owned(), id.clone());
                let again = async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let exit = match runtime.wait(&id).await {
                        // Its records are gone, and so is it.
                        Err(RuntimeError::NotFound { .. }) => Ok(unknown_exit()),
                        other => other,
                    };
                    Happening::Exited {
                        container,
                        id,
                        exit,
                    }
                };
                return self.happenings.push(again.boxed());
            }
        };
        debug!(container, %id, code = exit.code, "ended");
        if let Some(instance) = self
            .tracked
            .get_mut(container)
            .and_then(|t| t.current.as_mut())
            && instance.id == *id
        {
            instance.exit = Some(exit);
        }
    }

    /// One step of the pod's end. Returns whether nothing is left to do.
    async fn end(&mut self, desired: &Desired) -> bool {
        let grace = stop::grace(&desired.pod, desired.gone);
        if self.ending.is_none() {
            self.begin_end(&desired.pod, grace);
        }
        self.wake = None;
        let Some(ending) = &mut self.ending else {
            return false;
        };
        let deadline = deadline(ending.started, grace);
        ending.deadline.send_if_modified(|at| {
            let earlier = deadline < *at;
            *at = deadline.min(*at);
            earlier
        });
        if self
            .tracked
            .values()
            .any(|tracked| tracked.running().is_some())
        {
            let plan = plan::Plan {
                initialized: true,
                ..plan::Plan::default()
            };
            self.report(&desired.pod, &plan, false);
            return false;
        }
        if desired.gone || ending.deleted {
            return true;
        }
        if !ending.told {
            let plan = plan::Plan {
                initialized: true,
                ..plan::Plan::default()
            };
            let told = !self.report(&desired.pod, &plan, true);
            if told && let Some(ending) = &mut self.ending {
                ending.told = true;
            }
        }
        let ready = self
            .ending
            .as_ref()
            .is_some_and(|ending| ending.told && !ending.deleting);
        if ready && self.retry_at.is_none() && !self.reporting {
            if let Some(ending) = &mut self.ending {
                ending.deleting = true;
            }
            let deletion = report::delete(Arc::clone(&self.context), Arc::clone(&desired.pod));
            self.happenings
                .push(deletion.map(Happening::Deleted).boxed());
        }
        false
    }

    /// The pod's end begins: all running containers are stopped at once.
    fn begin_end(&mut self, pod: &Pod, grace: Duration) {
        let now = boot_millis();
        let boot_id = &self.context.boot_id;
        // A restarted agent goes on with what is left of the grace.
        let recorded = self
            .context
            .journal
            .stop(&self.uid)
            .filter(|stop| stop.boot_id == *boot_id && stop.started <= now);
        let started = recorded.as_ref().map_or(now, |stop| stop.started);
        if recorded.is_none() {
            let stop = Stopping {
                boot_id: boot_id.clone(),
                started,
            };
            let (context, uid) = (Arc::clone(&self.context), self.uid.clone());
            // Not waited for: a crash before it is on disk gives the containers their grace again.
            tokio::spawn(async move {
                if let Err(error) = context.journal.put_stop(&uid, &stop).await {
                    warn!(pod = uid, %error, "the start of a termination could not be journalled");
                }
            });
        }
        let deadline = watch::Sender::new(deadline(started, grace));
        let running: Vec<(String, ContainerId)> = self
            .tracked
            .iter()
            .filter_map(|(name, tracked)| Some((name.clone(), tracked.running()?.clone())))
            .collect();
        for (name, id) in running {
            let fallback = Container::default();
            let container = pod.container(&name).unwrap_or(&fallback);
            let signal = status::stop_signal(container, self.context.gates);
            let about = self.reference(pod, Some(&name));
            self.context.events.normal(
                about,
                reasons::KILLING,
                format!("Stopping container {name}"),
            );
            let runtime = Arc::clone(&self.context.runtime);
            let deadline = deadline.subscribe();
            let stopping = async move {
                let stopped = stop::stop(runtime, id, signal, deadline).await;
                Happening::Stopped {
                    container: name,
                    stopped,
                }
            };
            self.happenings.push(stopping.boxed());
        }
        info!(
            pod = pod.name(),
            namespace = pod.namespace(),
            uid = self.uid,
            "stopping"
        );
        // A pod that ended before and has no containers left here has said all it had to say.
        let ended = matches!(self.reported.phase.as_deref(), Some("Succeeded" | "Failed"));
        let told = ended && self.tracked.is_empty();
        self.ending = Some(Ending {
            started,
            deadline,
            told,
            deleting: false,
            deleted: false,
        });
    }

    /// Reports the status if it differs from the one reported last. Returns whether a report is on
    /// its way.
    fn report(&mut self, pod: &Arc<Pod>, plan: &plan::Plan, over: bool) -> bool {
        if self.reporting {
            return true;
        }
        let node = status::Node {
            address: &self.context.node_address,
            runtime: self.context.runtime.name(),
            gates: self.context.gates,
        };
        let status = status::status(
            pod,
            &self.reported,
            &self.tracked,
            plan,
            node,
            over,
            Timestamp::now(),
        );
        if status == self.reported && !self.owed {
            return false;
        }
        if self.retry_at.is_some() {
            return true;
        }
        self.reported = status.clone();
        self.reporting = true;
        let report = report::status(Arc::clone(&self.context), Arc::clone(pod), status);
        self.happenings
            .push(report.map(Happening::Reported).boxed());
        true
    }

    fn tell_back_off(&mut self, pod: &Pod, plan: &plan::Plan) {
        for (container, waiting) in &plan.waiting {
            if waiting.reason != "CrashLoopBackOff" {
                continue;
            }
            let count = self
                .tracked
                .get(container)
                .map_or(0, Tracked::restart_count);
            if self.told_back_off.insert(container.clone(), count) != Some(count) {
                let message = format!(
                    "Back-off restarting failed container {container} in pod {}_{}({})",
                    pod.name(),
                    pod.namespace(),
                    self.uid
                );
                let about = self.reference(pod, Some(container));
                self.context
                    .events
                    .warning(about, reasons::BACK_OFF, message);
            }
        }
    }

    fn publish(&self, desired: &Desired) {
        if desired.gone {
            // Nobody can ask for anything of a pod that is not there.
            return self.context.pods.remove(&self.uid);
        }
        let containers = self
            .tracked
            .iter()
            .filter_map(|(name, tracked)| {
                let current = tracked.current.as_ref()?;
                let view = ContainerView {
                    id: current.id.clone(),
                    restart_count: current.restart_count,
                    running: current.exit.is_none(),
                    previous: tracked
                        .previous
                        .as_ref()
                        .map(|previous| previous.restart_count),
                };
                Some((name.clone(), view))
            })
            .collect();
        self.context.pods.put(
            &self.uid,
            PodView {
                pod: Arc::clone(&desired.pod),
                containers,
            },
        );
    }

    /// Removes every trace of the pod on this node.
    async fn clean_up(self, pod: &Pod) {
        let instances = self
            .tracked
            .into_values()
            .flat_map(|tracked| [tracked.current, tracked.previous])
            .flatten();
        for instance in instances {
            match self.context.runtime.remove(&instance.id).await {
                Ok(()) | Err(RuntimeError::NotFound { .. }) => {}
                Err(error) => warn!(container = %instance.id, %error, "could not be removed"),
            }
        }
        let logs = config::log_dir(
            &self.context.data_dir,
            pod.namespace(),
            pod.name(),
            &self.uid,
        );
        match tokio::fs::remove_dir_all(&logs).await {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => warn!(path = %logs.display(), %error, "logs could not be removed"),
        }
        self.context.journal.forget_stop(&self.uid).await;
        self.context.pods.remove(&self.uid);
        info!(
            pod = pod.name(),
            namespace = pod.namespace(),
            uid = self.uid,
            "has left the node"
        );
    }

    fn reference(&self, pod: &Pod, container: Option<&str>) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name().to_owned()),
            namespace: Some(pod.namespace().to_owned()),
            uid: Some(self.uid.clone()),
            field_path: container.map(|name| format!("spec.containers{{{name}}}")),
            ..ObjectReference::default()
        }
    }
}

/// The next number for each container that the pod's status shows as started before.
fn floor(pod: &Pod) -> BTreeMap<String, u32> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter()
        .chain(main)
        .flatten()
        .filter(|status| status.container_id.is_some())
        .filter_map(|status| {
            Some((
                status.name.clone(),
                u32::try_from(status.restart_count).ok()?.saturating_add(1),
            ))
        })
        .collect()
}

/// The end of a container whose records are gone.
fn unknown_exit() -> Exit {
    let now = Timestamp::now();
    Exit {
        code: 137,
        signal: None,
        started: now,
        finished: now,
        reason: belay_runtime::ExitReason::ContainerStatusUnknown,
    }
}

/// An error with all its causes in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// When the grace of an end that began at `started` is over.
fn deadline(started: i64, grace: Duration) -> Instant {
    let grace = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    let left = started.saturating_add(grace).saturating_sub(boot_millis());
    // Far enough away never comes.
    let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
    Instant::now() + left.min(Duration::from_secs(86_400 * 365))
}

/// The moment of the monotonic clock at which the wall clock will show `at`.
fn instant(at: Timestamp) -> Instant {
    let left = at.duration_since(Timestamp::now());
    Instant::now() + Duration::try_from(left).unwrap_or(Duration::ZERO)
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
