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
//!
//! The worker itself waits for nothing but the next thing to happen. What may take long or hang (the
//! sandbox, an image, a start, a probe, a hook, a report) is a future among others: it delays neither
//! the pod's end nor its other containers. A start that comes to something after the pod's end has
//! begun is ended with the pod.

mod adoption;
mod changing;
mod ending;
mod launch;
mod post_start;
mod probing;
mod providing;
mod sandbox;
mod starting;
mod stopping;
mod telling;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belay_action::ContainerId;
use belay_api::pod::{Pod, PodStatus};
use belay_core::probing::Kind;
use belay_core::termination::Cause;
use belay_runtime::{ContainerConfig, Exit, RuntimeError, Sandbox, rotation};
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::hook::{Came, PAUSE};
use super::message::{self, Source};
use super::probes::Said;
use super::report::Reported;
use super::status::Over;
use super::terminate::{self, Terminations};
use super::tracked::{Tracked, running};
use super::{Found, plan, volumes};
use crate::context::Host;

use ending::Ending;
use launch::Outcome;
use providing::Tried;
use sandbox::Site;
use telling::BackOff;
pub(crate) use telling::reference;

/// The pod as the API tells it.
#[derive(Debug, Clone)]
pub(crate) enum Desired {
    Known(Arc<Pod>),
    /// It is no longer there; this is what was last known of it.
    Gone(Arc<Pod>),
}

impl Desired {
    pub(crate) fn pod(&self) -> &Arc<Pod> {
        match self {
            Desired::Known(pod) | Desired::Gone(pod) => pod,
        }
    }
}

/// What a worker waits for.
enum Happening {
    Sandboxed(Result<Sandbox, RuntimeError>),
    /// An attempt to stop the sandbox of a pod that has come to its end is over.
    SandboxStopped(Result<(), RuntimeError>),
    /// A start has come to something.
    Launched {
        container: String,
        /// The image that the spec named.
        image: String,
        outcome: Outcome,
    },
    Exited {
        container: String,
        id: ContainerId,
        exit: Result<Exit, RuntimeError>,
        /// What it left to be read about that.
        message: Option<String>,
    },
    /// What a container left that had ended before this agent came.
    MessageRead {
        container: String,
        id: ContainerId,
        message: Option<String>,
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
    /// A ConfigMap or a secret that the pod uses has changed.
    ObjectsChanged,
    /// An attempt to set the pod's volumes up is over.
    VolumesSetUp(Tried),
    /// It is time for another attempt, unless there was one since that with this number.
    VolumesDue(u32),
    Reported {
        outcome: Reported,
        /// Whether it was the status of the pod's end.
        over: bool,
    },
    /// Nothing of the pod is left in the runtime that was there when this was asked for.
    TornDown {
        round: u32,
    },
    Deleted(Reported),
}

/// How long a report that failed waits before it is tried again, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

pub(crate) struct Worker {
    context: Arc<Host>,
    uid: String,
    desired: watch::Receiver<Desired>,
    /// What the runtime was seen to have of this pod.
    seen: watch::Receiver<Vec<Sandbox>>,
    site: Site,
    /// When a sandbox that could not be made is tried again.
    sandbox_at: Option<Instant>,
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
    provided: providing::Provided,
    terminations: Terminations,
    /// Since when the pod ends, for whatever reason.
    ending_since: Option<Instant>,
    /// Since when nothing but cancelled hooks is left to end.
    hooks_since: Option<Instant>,
    /// Of whose ends the runtime has not told.
    untold: stopping::Untold,
    /// Cancels what is not started yet of the starts under way.
    launches: CancellationToken,
    /// Cancels the `postStart` hooks that are under way, by container.
    post_starts: BTreeMap<String, CancellationToken>,
    /// Cancels the newest try of each probe, by container.
    tries: BTreeMap<(String, Kind), CancellationToken>,
    /// When the next try is due.
    probe_at: Option<Instant>,
    /// Back-offs that have been told as events, by container.
    told_back_off: BTreeMap<String, BackOff>,
}

impl Worker {
    /// Takes over what was `found` of a pod in the runtime, and what has `begun` of its end.
    pub(crate) fn new(
        context: Arc<Host>,
        desired: watch::Receiver<Desired>,
        seen: watch::Receiver<Vec<Sandbox>>,
        found: Found,
        begun: Option<Terminations>,
    ) -> Self {
        let pod = Arc::clone(desired.borrow().pod());
        let (mut tracked, old) = adoption::adopt(&pod, found.containers);
        let stops = context.journal.container_stops(pod.uid());
        probing::condemn(&pod, &mut tracked, &stops);
        let running = running(&tracked);
        let terminations = begun.unwrap_or_else(|| {
            Terminations::resume(Arc::clone(&context), Arc::clone(&pod), &running)
        });
        let mut worker = Worker {
            site: Site::adopt(found.sandboxes, &context.node_address),
            context,
            terminations,
            uid: pod.uid().to_owned(),
            desired,
            seen,
            sandbox_at: None,
            tracked,
            floor: adoption::floor(&pod),
            happenings: FuturesUnordered::new(),
            reported: pod.status.clone().unwrap_or_default(),
            reporting: false,
            owed: false,
            retry: RETRY.0,
            retry_at: None,
            wake: None,
            ending: None,
            ending_since: None,
            hooks_since: None,
            untold: stopping::Untold::default(),
            provided: providing::Provided::default(),
            launches: CancellationToken::new(),
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
        worker.leave_sandbox();
        worker.publish(&desired);
        worker
    }

    /// Runs until the pod has left the node, or `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let desired = self.desired.borrow_and_update().clone();
            let address = self.address().to_owned();
            self.terminations.see(desired.pod(), &address);
            self.probe_at = None;
            if let Desired::Known(pod) = &desired {
                self.probe(pod);
            }
            self.wake = None;
            self.sandbox_at = None;
            let done = match &desired {
                Desired::Known(_) | Desired::Gone(_) if self.ends(&desired) => self.end(&desired),
                Desired::Known(pod) | Desired::Gone(pod) => {
                    self.keep_running(pod);
                    false
                }
            };
            if done {
                let pod = Arc::clone(desired.pod());
                shutdown.run_until_cancelled(self.clean_up(&pod)).await;
                return;
            }
            self.publish(&desired);
            tokio::select! {
                () = shutdown.cancelled() => return self.terminations.leave().await,
                changed = self.desired.changed() => if changed.is_err() {
                    return self.terminations.leave().await;
                },
                Ok(()) = self.seen.changed() => {
                    let seen = self.seen.borrow_and_update().clone();
                    self.looked(desired.pod(), &seen);
                }
                Some(happening) = self.happenings.next() => self.happened(happening, desired.pod()),
                moment = self.terminations.next() => self.terminations.happened(moment),
                () = sleep_until(self.probe_at) => {}
                () = sleep_until(self.sandbox_at) => {}
                () = sleep_until(self.wake.map(instant)) => {}
                () = sleep_until(self.retry_at) => self.retry_at = None,
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
        self.read_messages();
    }

    /// Reads what those have left that ended while no agent was there.
    fn read_messages(&self) {
        for (container, known) in &self.tracked {
            let Some(current) = known.current.as_ref().filter(|one| one.message.is_none()) else {
                continue;
            };
            let Some(code) = current.exit.as_ref().map(|exit| exit.code) else {
                continue;
            };
            let (container, id) = (container.clone(), current.id.clone());
            let messages = current.messages.clone();
            let reading = async move {
                let read = tokio::task::spawn_blocking(move || messages.read(code)).await;
                let message = read.ok().flatten();
                Happening::MessageRead {
                    container,
                    id,
                    message,
                }
            };
            self.happenings.push(reading.boxed());
        }
    }

    fn message_read(&mut self, container: &str, id: &ContainerId, message: Option<String>) {
        let Some(known) = self.tracked.get_mut(container) else {
            return;
        };
        let instances = [&mut known.current, &mut known.previous];
        let mut instances = instances.into_iter().flatten();
        if let Some(instance) = instances.find(|one| one.id == *id) {
            instance.message = message;
        }
    }

    fn wait_for(&mut self, container: &str, id: ContainerId) {
        let waiting = wait(
            Arc::clone(&self.context),
            self.messages(container),
            id.clone(),
        );
        let container = container.to_owned();
        let exited = waiting.map(move |(exit, message)| Happening::Exited {
            container,
            id,
            exit,
            message,
        });
        self.happenings.push(exited.boxed());
    }

    /// Where the newest incarnation leaves its last message.
    fn messages(&self, container: &str) -> Source {
        let known = self.tracked.get(container);
        let current = known.and_then(|known| known.current.as_ref());
        current.map(|one| one.messages.clone()).unwrap_or_default()
    }

    /// Forgets an old incarnation in the background; its files go with it.
    fn remove_later(&self, id: ContainerId) {
        let context = Arc::clone(&self.context);
        let dir = volumes::dir(&self.context.data_dir, &self.uid);
        tokio::spawn(async move {
            let mut pause = PAUSE.0;
            let mut config = None;
            loop {
                match forget(&context, &id, &mut config).await {
                    Ok(()) => break,
                    Err(RuntimeError::Call { .. }) => {}
                    Err(error) if error.is_transient() => {}
                    Err(error) => {
                        return debug!(container = %id, %error, "an old incarnation could not be removed");
                    }
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE.1);
            }
            let Some(config) = config else { return };
            let cleared = tokio::task::spawn_blocking(move || {
                message::forget(&dir, &config);
                rotation::remove(&config.log_path)
            });
            // What stays goes with the pod.
            let _ = cleared.await;
        });
    }

    /// Whether the pod has come to its end, and that is told. It stays so.
    fn has_ended(&self) -> bool {
        matches!(self.reported.phase.as_deref(), Some("Succeeded" | "Failed"))
    }

    fn keep_running(&mut self, pod: &Arc<Pod>) {
        let ended = self.has_ended();
        if !ended {
            self.keep_deadline(pod);
        }
        self.end_left_behind(pod);
        if !ended {
            self.provide(pod);
        }
        let mut plan = plan::plan(pod, &self.tracked, Timestamp::now());
        if ended || self.terminations.pod_cause().is_some() {
            plan.start.clear();
            plan.waiting.clear();
        } else {
            self.replace_outdated(pod);
        }
        // What is being stopped comes to its end before it is started again.
        plan.start.retain(|name| !self.terminations.stops(name));
        // Both are under way from here on, if they are needed.
        if !plan.start.is_empty() && self.is_sandboxed(pod) && self.provided.volumes_ready() {
            for container in std::mem::take(&mut plan.start) {
                self.start(pod, &container);
            }
        }
        let grace = terminate::grace(pod, false);
        if plan.completed
            && self.terminations.pod_cause().is_none()
            && self.tracked.values().any(|known| known.running().is_some())
        {
            self.begin_stop(Cause::PodCompleted, grace);
        }
        self.terminations.end_latecomers(grace, &self.tracked);
        let over = if self.terminations.pod_cause() == Some(Cause::DeadlineExceeded)
            && self.is_stopped(grace)
        {
            Over::DeadlineExceeded
        } else {
            Over::No
        };
        self.wake = earliest_time(self.wake, plan.wake);
        self.tell_back_off(pod, &plan);
        self.publish(&Desired::Known(Arc::clone(pod)));
        self.report(pod, &plan, over);
        self.retire_sandbox();
    }

    fn happened(&mut self, happening: Happening, pod: &Pod) {
        match happening {
            Happening::Sandboxed(answer) => self.sandboxed(pod, answer),
            Happening::SandboxStopped(answer) => self.sandbox_stopped(pod, answer),
            Happening::Launched {
                container,
                image,
                outcome,
            } => self.launched(pod, &container, image, outcome),
            Happening::TornDown { round } => {
                if let Some(ending) = &mut self.ending {
                    ending.torn_down(round);
                }
            }
            Happening::Exited {
                container,
                id,
                exit,
                message,
            } => self.exited(&container, &id, exit, message),
            Happening::MessageRead {
                container,
                id,
                message,
            } => self.message_read(&container, &id, message),
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
            Happening::ObjectsChanged => {
                self.provided.changed();
                self.reconsider();
            }
            Happening::VolumesSetUp(tried) => self.volumes_set_up(pod, tried),
            Happening::VolumesDue(attempt) => self.provided.due(attempt),
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

    fn exited(
        &mut self,
        container: &str,
        id: &ContainerId,
        exit: Result<Exit, RuntimeError>,
        message: Option<String>,
    ) {
        let exit = match exit {
            Ok(exit) => exit,
            Err(error) => {
                warn!(container, %id, %error, "cannot wait for a container; asking again");
                let waiting = wait(
                    Arc::clone(&self.context),
                    self.messages(container),
                    id.clone(),
                );
                let (container, id) = (container.to_owned(), id.clone());
                let again = async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let (exit, message) = waiting.await;
                    let exit = match exit {
                        // Its records are gone, and so is it.
                        Err(RuntimeError::NotFound { .. }) => {
                            let now = Timestamp::now();
                            Ok(unknown_exit(now, now))
                        }
                        other => other,
                    };
                    Happening::Exited {
                        container,
                        id,
                        exit,
                        message,
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
            instance.message = message;
        }
        // Maybe the whole sandbox ended.
        self.site.doubt();
        self.cancel_post_start(container, id);
        self.cancel_probes(container);
        self.terminations.exited(container, id);
    }
}

/// Makes the runtime forget a container, after it has told what it was.
async fn forget(
    context: &Host,
    id: &ContainerId,
    config: &mut Option<ContainerConfig>,
) -> Result<(), RuntimeError> {
    if config.is_none() {
        *config = Some(context.runtime.state(id).await?.config);
    }
    match context.runtime.remove(id).await {
        Err(RuntimeError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

/// Waits for the end of a container, and reads what it left to be read about that.
async fn wait(
    context: Arc<Host>,
    messages: Source,
    id: ContainerId,
) -> (Result<Exit, RuntimeError>, Option<String>) {
    let exit = context.runtime.wait(&id).await;
    let Ok(Exit { code, .. }) = exit else {
        return (exit, None);
    };
    let read = tokio::task::spawn_blocking(move || messages.read(code));
    (exit, read.await.ok().flatten())
}

/// The end of a container of which nobody knows how it was.
fn unknown_exit(started: Timestamp, finished: Timestamp) -> Exit {
    Exit {
        code: 137,
        signal: None,
        started,
        finished,
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

fn earliest_time(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
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
