//! One pod on this node, from its first container to its last trace.
//!
//! # Expected flow
//!
//! A worker looks at what is wanted and at what runs, starts what the [plan](super::plan) says,
//! reports the [status](super::status), and waits until something happens. When the pod is being
//! deleted, or is gone, it [ends](super::terminate) the containers, reports the end, deletes the
//! object and removes what is left on disk.
//!
//! # Guarantees
//!
//! Nothing waits for the API server but reports to it: containers are restarted and stopped on time
//! while it is away. The end of a worker by shutdown leaves the containers as they are.

mod ending;
mod probing;
mod starting;
mod telling;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belay_action::ContainerId;
use belay_api::pod::{Pod, PodStatus};
use belay_core::probing::Kind;
use belay_core::termination::Cause;
use belay_runtime::{ContainerState, Exit, RuntimeError};
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::hook::Came;
use super::probes::Said;
use super::report::Reported;
use super::terminate::{self, Terminations};
use super::tracked::{Instance, Tracked};
use super::waiting::Waiting;
use super::{config, plan};
use crate::context::Host;

pub(crate) use telling::reference;

/// The pod as the API tells it.
#[derive(Debug, Clone)]
pub(crate) enum Desired {
    /// The API has not told yet; this is what the runtime remembers of it. Only for pods whose end
    /// is in the journal.
    Remembered(Arc<Pod>),
    Known(Arc<Pod>),
    /// It is no longer there; this is what was last known of it.
    Gone(Arc<Pod>),
}

impl Desired {
    pub(crate) fn pod(&self) -> &Arc<Pod> {
        match self {
            Desired::Remembered(pod) | Desired::Known(pod) | Desired::Gone(pod) => pod,
        }
    }
}

/// What a worker waits for.
enum Happening {
    Exited {
        container: String,
        id: ContainerId,
        exit: Result<Exit, RuntimeError>,
    },
    /// A `postStart` hook has ended.
    PostStarted {
        container: String,
        id: ContainerId,
        came: Came,
    },
    /// A try of a probe is over.
    Probed {
        container: String,
        id: ContainerId,
        kind: Kind,
        said: Said,
    },
    Reported {
        outcome: Reported,
        /// Whether it was the status of the pod's end.
        over: bool,
    },
    Deleted(Reported),
}

/// The end of the pod, once it has begun.
struct Ending {
    /// The grace that was asked for last.
    asked: Duration,
    /// Whether the final status has been reported, or nobody is left to report it to.
    told: bool,
    deleting: bool,
    /// Whether the object has been deleted as far as this node can.
    deleted: bool,
}

/// How long a report that failed waits before it is tried again, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

pub(crate) struct Worker {
    context: Arc<Host>,
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
    terminations: Terminations,
    /// Cancels the `postStart` hooks that are under way, by container.
    post_starts: BTreeMap<String, CancellationToken>,
    /// Cancels the newest try of each probe, by container.
    tries: BTreeMap<(String, Kind), CancellationToken>,
    /// When the next try is due.
    probe_at: Option<Instant>,
    /// Containers whose back-off has been told as an event, with the number of the incarnation.
    told_back_off: BTreeMap<String, u32>,
}

impl Worker {
    pub(crate) fn new(
        context: Arc<Host>,
        desired: watch::Receiver<Desired>,
        adopted: Vec<ContainerState>,
    ) -> Self {
        let pod = Arc::clone(desired.borrow().pod());
        let (mut tracked, old) = adopt(adopted);
        let stops = context.journal.container_stops(pod.uid());
        probing::condemn(&pod, &mut tracked, &stops);
        let terminations = Terminations::resume(Arc::clone(&context), Arc::clone(&pod), &tracked);
        let mut worker = Worker {
            context,
            terminations,
            uid: pod.uid().to_owned(),
            desired,
            tracked,
            floor: floor(&pod),
            happenings: FuturesUnordered::new(),
            reported: pod.status.clone().unwrap_or_default(),
            reporting: false,
            owed: false,
            retry: RETRY.0,
            retry_at: None,
            wake: None,
            ending: None,
            post_starts: BTreeMap::new(),
            told_back_off: BTreeMap::new(),
            tries: BTreeMap::new(),
            probe_at: None,
        };
        for id in old {
            worker.remove_later(id);
        }
        worker.follow_adopted(&pod);
        let desired = worker.desired.borrow().clone();
        worker.publish(&desired);
        worker
    }

    /// Runs until the pod has left the node, or `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let desired = self.desired.borrow_and_update().clone();
            self.terminations.see(desired.pod());
            // The first that the API tells of a pod that the runtime remembered.
            if let Desired::Known(pod) = &desired
                && self.reported == PodStatus::default()
            {
                self.reported = pod.status.clone().unwrap_or_default();
            }
            self.probe_at = None;
            if let Desired::Known(pod) = &desired {
                self.probe(pod);
            }
            let done = if self.ends(&desired) {
                self.end(&desired)
            } else {
                self.keep_running(desired.pod()).await;
                false
            };
            if done {
                self.clean_up(desired.pod()).await;
                return;
            }
            self.publish(&desired);
            let timer = earliest(self.wake.map(instant), self.retry_at);
            tokio::select! {
                () = shutdown.cancelled() => return self.terminations.leave().await,
                changed = self.desired.changed() => if changed.is_err() {
                    return self.terminations.leave().await;
                },
                Some(happening) = self.happenings.next() => self.happened(happening, desired.pod()),
                moment = self.terminations.next() => self.terminations.happened(moment),
                () = sleep_until(self.probe_at) => {}
                () = sleep_until(timer) => {
                    self.wake = None;
                    self.retry_at = None;
                }
            }
        }
    }

    /// Follows what the runtime already has of this pod.
    fn follow_adopted(&mut self, pod: &Pod) {
        let running: Vec<(String, ContainerId)> = self
            .tracked
            .iter()
            .filter_map(|(name, tracked)| Some((name.clone(), tracked.running()?.clone())))
            .collect();
        for (container, id) in running {
            info!(pod = self.uid, container, %id, "adopted");
            self.wait_for(&container, id.clone());
            self.find_post_start(pod, &container, id);
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
        // What is being stopped comes to its end before it is started again.
        plan.start.retain(|name| !self.terminations.stops(name));
        if !plan.start.is_empty() {
            for container in plan.start.clone() {
                self.start(pod, &container).await;
            }
            self.probe(pod);
            plan = plan::plan(pod, &self.tracked, &problems, Timestamp::now());
        }
        if plan.completed
            && self.terminations.pod_cause().is_none()
            && self.tracked.values().any(|known| known.running().is_some())
        {
            self.cancel_post_starts();
            let grace = terminate::grace(pod, false);
            let cause = Cause::PodCompleted;
            self.terminations.end_pod(cause, grace, &self.tracked);
        }
        self.wake = plan.wake;
        self.tell_back_off(pod, &plan);
        self.publish(&Desired::Known(Arc::clone(pod)));
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

    fn happened(&mut self, happening: Happening, pod: &Pod) {
        match happening {
            Happening::Exited {
                container,
                id,
                exit,
            } => self.exited(&container, &id, exit),
            Happening::PostStarted {
                container,
                id,
                came,
            } => self.post_started(pod, &container, &id, came),
            Happening::Probed {
                container,
                id,
                kind,
                said,
            } => self.probed(pod, &container, &id, kind, &said),
            Happening::Reported { outcome, over } => {
                self.reporting = false;
                self.answered(outcome, |ending| ending.told |= over);
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
        self.cancel_post_start(container, id);
        self.cancel_probes(container);
        self.terminations.exited(container, id);
    }
}

/// What the runtime already has of a pod, and what is too old to be kept of it.
fn adopt(states: Vec<ContainerState>) -> (BTreeMap<String, Tracked>, Vec<ContainerId>) {
    let mut found: BTreeMap<String, Vec<Instance>> = BTreeMap::new();
    for state in states {
        let name = state.config.name.clone();
        found.entry(name).or_default().push(state.into());
    }
    let mut old = Vec::new();
    let mut adopted = BTreeMap::new();
    for (container, instances) in found {
        let mut tracked = Tracked::default();
        old.extend(tracked.adopt(instances));
        adopted.insert(container, tracked);
    }
    (adopted, old)
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
