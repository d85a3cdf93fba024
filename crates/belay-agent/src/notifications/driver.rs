//! Carries out what the delivery machine decides, for one notification.
//!
//! The machine is asked about everything; the driver only turns effects into futures and their ends
//! into events. It holds no facts of its own but the newest copy of the object.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use belay_action::{AttemptId, ContainerId, Running};
use belay_api::notification::{DEFAULT_DEADLINE_SECONDS, PodNotification, PodNotificationStatus};
use belay_api::reasons;
use belay_core::delivery::{
    Conclusion, Delivery, Effect, Entry, Event, Facts, Phase, Record, View, attempt_id, open,
};
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::action::{self, Came, Sight};
use super::handler::{Handler, Handlers, outlook};
use super::status::Author;
use super::write::{self, Written};
use crate::audit::Line;
use crate::context::Context;
use crate::crash;
use crate::journal::Started;
use crate::metrics::OutcomeLabel;

/// What the watch tells about the object.
#[derive(Debug)]
pub(crate) enum Notice {
    Seen(Box<PodNotification>),
    Gone,
}

/// How long a journal write that was refused waits.
const JOURNAL_RETRY: Duration = Duration::from_secs(1);

/// The end of a future.
enum Happening {
    Claimed(Written),
    Reported(Written),
    Journalled {
        seq: u32,
        error: Option<String>,
        complete: bool,
    },
    Found {
        container: String,
        attempt: u32,
        sight: Sight,
    },
    Slot {
        container: String,
        permit: OwnedSemaphorePermit,
    },
    Came {
        container: String,
        attempt: u32,
        came: Came,
    },
}

/// The way of one notification's records into the journal, one write at a time.
#[derive(Default)]
struct Lane {
    busy: bool,
    next: Option<(u32, Record)>,
}

pub(crate) struct Driver {
    context: Arc<Context>,
    /// Names, the deadline, and the record as the machine has it.
    about: Started,
    object: Option<Box<PodNotification>>,
    handlers: Handlers,
    happenings: FuturesUnordered<BoxFuture<'static, Happening>>,
    lane: Lane,
    forget: Option<Option<Record>>,
    cancels: HashMap<String, CancellationToken>,
    found: HashMap<String, Box<dyn Running>>,
    permits: HashMap<String, OwnedSemaphorePermit>,
    concluded: Option<Conclusion>,
    met: Instant,
}

/// Names of a notification and its deadline, from the object.
pub(crate) fn about(object: &PodNotification) -> Started {
    let created = object
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(0, |time| time.0.as_second());
    let seconds = i64::from(object.spec.deadline_seconds);
    let seconds = if seconds > 0 {
        seconds
    } else {
        i64::from(DEFAULT_DEADLINE_SECONDS)
    };
    let pod_uid = object
        .status
        .as_ref()
        .and_then(|status| status.pod_uid.clone());
    Started {
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        notifier: object.spec.notifier.clone(),
        pod_name: object.spec.pod_name.clone(),
        deadline: created.saturating_add(seconds).saturating_mul(1000),
        record: Record {
            pod_uid: pod_uid.unwrap_or_default(),
            entries: BTreeMap::new(),
        },
    }
}

impl Driver {
    /// A driver for an object, or for what the journal knows of one that is gone.
    pub(crate) fn new(
        context: Arc<Context>,
        about: Started,
        object: Option<Box<PodNotification>>,
    ) -> Self {
        Driver {
            context,
            about,
            object,
            handlers: Handlers::default(),
            happenings: FuturesUnordered::new(),
            lane: Lane::default(),
            forget: None,
            cancels: HashMap::new(),
            found: HashMap::new(),
            permits: HashMap::new(),
            concluded: None,
            met: Instant::now(),
        }
    }

    /// Delivers. Ends when nothing is left to do, or at `shutdown`, which leaves everything to the
    /// next process.
    pub(crate) async fn run(
        mut self,
        mut notices: mpsc::UnboundedReceiver<Notice>,
        shutdown: CancellationToken,
    ) {
        let (mut delivery, effects) = self.open();
        self.carry_out(&delivery, effects);
        let mut ticking = true;
        loop {
            if delivery.is_over() && self.forgotten() {
                return;
            }
            let deadline = self.context.clock.until(delivery.deadline());
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                Some(notice) = notices.recv() => self.noticed(notice),
                Some(happening) = self.happenings.next() => self.happened(happening),
                () = tokio::time::sleep(deadline), if ticking => {
                    // The estimate of the server's clock may have moved meanwhile.
                    ticking = self.now() < delivery.deadline();
                    Some(Event::Tick)
                }
            };
            let Some(event) = event else { continue };
            let before_start = matches!(delivery.phase(), Phase::Claiming { .. });
            let (next, effects) = delivery.next(event, self.now());
            delivery = next;
            if before_start && !matches!(delivery.phase(), Phase::Claiming { .. }) {
                debug!(
                    namespace = self.about.namespace,
                    name = self.about.name,
                    "claimed"
                );
            }
            self.carry_out(&delivery, effects);
        }
    }

    fn now(&self) -> i64 {
        self.context.clock.server_now()
    }

    fn author(&self) -> Author<'_> {
        Author {
            node: &self.context.node_name,
            runtime: self.context.runtime.name(),
        }
    }

    fn view(&self) -> View {
        match &self.object {
            Some(object) => self.author().view(object, &self.handlers),
            None => View::Gone,
        }
    }

    fn open(&mut self) -> (Delivery, Vec<Effect>) {
        let journal = self.context.journal.notification(&self.about.uid);
        if self.about.record.pod_uid.is_empty()
            && let Some(journal) = &journal
        {
            self.about
                .record
                .pod_uid
                .clone_from(&journal.record.pod_uid);
        }
        let view = self.context.pods.get(&self.about.record.pod_uid);
        let handlers = match &view {
            Some(view) => Handlers::of(&view.pod, &self.about.notifier),
            None => Ok(Handlers::default()),
        };
        let outlook = outlook(view.as_deref(), &handlers);
        self.handlers = handlers.unwrap_or_default();
        let facts = Facts {
            view: self.view(),
            journal: journal.map(|journal| journal.record),
            outlook,
            deadline: self.about.deadline,
        };
        let (delivery, effects) = open(facts, self.now());
        if effects
            .iter()
            .any(|effect| matches!(effect, Effect::Claim(_)))
        {
            crash::at(crash::BEFORE_CLAIM);
        }
        (delivery, effects)
    }

    /// Takes in what the watch says, unless an answer has already told more.
    fn noticed(&mut self, notice: Notice) -> Option<Event> {
        match notice {
            Notice::Gone => self.object = None,
            Notice::Seen(object) => {
                let held = self.object.as_ref().and_then(|object| version(object));
                match (version(&object), held) {
                    (Some(new), Some(held)) if new <= held => return None,
                    _ => self.object = Some(object),
                }
            }
        }
        Some(Event::Seen(self.view()))
    }

    fn happened(&mut self, happening: Happening) -> Option<Event> {
        match happening {
            Happening::Claimed(Written::Landed(object)) => {
                self.object = Some(object);
                Some(Event::Claimed)
            }
            Happening::Claimed(Written::Refused(object)) => {
                self.object = object;
                Some(Event::ClaimRefused(self.view()))
            }
            Happening::Reported(Written::Landed(object)) => {
                crash::at(crash::AFTER_RESULT);
                self.object = Some(object);
                self.reported();
                Some(Event::Reported)
            }
            Happening::Reported(Written::Refused(object)) => {
                self.object = object;
                Some(Event::ReportRefused(self.view()))
            }
            Happening::Journalled {
                seq,
                error,
                complete,
            } => {
                self.lane.busy = false;
                self.write_journal();
                if let Some(message) = error {
                    return Some(Event::JournalFailed { seq, message });
                }
                if complete {
                    crash::at(crash::RESULT_JOURNALLED);
                }
                Some(Event::Journalled { seq })
            }
            Happening::Found {
                container,
                attempt,
                sight,
            } => {
                if let Some(running) = sight.running {
                    self.found.insert(container.clone(), running);
                }
                let (trace, same_incarnation) = (sight.trace, sight.same_incarnation);
                Some(Event::Found {
                    container,
                    attempt,
                    trace,
                    same_incarnation,
                })
            }
            Happening::Slot { container, permit } => {
                self.permits.insert(container.clone(), permit);
                Some(Event::Slot { container })
            }
            Happening::Came {
                container,
                attempt,
                came,
            } => {
                self.cancels.remove(&container);
                Some(match came {
                    Came::Refused(verdict) => Event::Refused {
                        container,
                        attempt,
                        verdict,
                    },
                    Came::Ended(outcome) => Event::Ended {
                        container,
                        attempt,
                        outcome,
                    },
                    Came::Lost { same_incarnation } => Event::Found {
                        container,
                        attempt,
                        trace: belay_core::delivery::Trace::Lost,
                        same_incarnation,
                    },
                })
            }
        }
    }

    fn carry_out(&mut self, delivery: &Delivery, effects: Vec<Effect>) {
        if let Some(record) = delivery.record() {
            self.about.record = record;
        }
        for effect in effects {
            match effect {
                Effect::Claim(record) => self.claim(&record),
                Effect::Journal { seq, record } => {
                    self.lane.next = Some((seq, record));
                    self.write_journal();
                }
                Effect::Find { container, attempt } => self.find(container, attempt),
                Effect::Queue { container } => self.queue(container),
                Effect::Start { container, attempt } => self.start(container, attempt),
                Effect::Follow { container, attempt } => self.follow(container, attempt),
                Effect::Cancel { container } => {
                    if let Some(cancel) = self.cancels.get(&container) {
                        cancel.cancel();
                    }
                }
                Effect::Audit { container, entry } => self.audit(&container, &entry),
                Effect::Report(conclusion) => self.report(conclusion),
                Effect::Forget(record) => {
                    self.lane.next = None;
                    self.forget = Some(record);
                }
            }
        }
        // A slot that the machine did not use goes to the next in the queue.
        self.permits.clear();
    }

    fn claim(&mut self, record: &Record) {
        let Some(mut object) = self.object.clone() else {
            return;
        };
        let before = object.status.clone().unwrap_or_default();
        object.status = Some(self.author().claimed(&before, record, Timestamp::now()));
        let context = Arc::clone(&self.context);
        self.happenings
            .push(async move { Happening::Claimed(write::put(&context, &object).await) }.boxed());
    }

    fn report(&mut self, conclusion: Conclusion) {
        let Some(mut object) = self.object.clone() else {
            // The object is gone; the answer is the same as a server's would be.
            let gone = async { Happening::Reported(Written::Refused(None)) };
            return self.happenings.push(gone.boxed());
        };
        let before: PodNotificationStatus = object.status.clone().unwrap_or_default();
        let now = Timestamp::now();
        object.status = Some(
            self.author()
                .concluded(&before, &conclusion, &self.handlers, now),
        );
        self.concluded = Some(conclusion);
        let context = Arc::clone(&self.context);
        self.happenings
            .push(async move { Happening::Reported(write::put(&context, &object).await) }.boxed());
    }

    fn write_journal(&mut self) {
        if self.lane.busy {
            return;
        }
        let Some((seq, record)) = self.lane.next.take() else {
            return;
        };
        self.lane.busy = true;
        let context = Arc::clone(&self.context);
        let complete = record.entries.values().all(|entry| entry.outcome.is_some());
        let started = Started {
            record,
            ..self.about.clone()
        };
        let write = async move {
            let error = match context.journal.put_notification(&started).await {
                Ok(()) => None,
                Err(error) => {
                    warn!(uid = started.uid, %error, "the journal refused a notification");
                    tokio::time::sleep(JOURNAL_RETRY).await;
                    Some(error.to_string())
                }
            };
            Happening::Journalled {
                seq,
                error,
                complete,
            }
        };
        self.happenings.push(write.boxed());
    }

    /// Removes what is kept on the node, once nothing is on its way any more. Returns whether that
    /// has been arranged.
    fn forgotten(&mut self) -> bool {
        if self.lane.busy {
            return false;
        }
        if let Some(record) = self.forget.take() {
            let (context, uid) = (Arc::clone(&self.context), self.about.uid.clone());
            tokio::spawn(forget(context, uid, record));
        }
        true
    }

    fn ids(&self, container: &str, attempt: u32) -> Option<(ContainerId, AttemptId)> {
        let id = self.container_id(container)?;
        let attempt = attempt_id(&self.about.uid, container, attempt);
        match (ContainerId::new(&id), AttemptId::new(&attempt)) {
            (Ok(id), Ok(attempt)) => Some((id, attempt)),
            (Err(error), _) | (_, Err(error)) => {
                warn!(%error, "a record names what cannot be an ID");
                None
            }
        }
    }

    /// The incarnation that the record names; the machine never changes it once it is claimed.
    fn container_id(&self, container: &str) -> Option<String> {
        self.about
            .record
            .entries
            .get(container)
            .and_then(|entry| entry.container_id.clone())
    }

    fn find(&mut self, container: String, attempt: u32) {
        let context = Arc::clone(&self.context);
        let Some((id, attempt_id)) = self.ids(&container, attempt) else {
            let sight = Sight {
                trace: belay_core::delivery::Trace::Lost,
                same_incarnation: false,
                running: None,
            };
            let lost = async move {
                Happening::Found {
                    container,
                    attempt,
                    sight,
                }
            };
            return self.happenings.push(lost.boxed());
        };
        let handler = self.handlers.get(&container).cloned();
        let traceable = self
            .about
            .record
            .entries
            .get(&container)
            .is_none_or(|e| e.traceable);
        let find = async move {
            let sight = action::find(&context, &id, &attempt_id, handler.as_ref(), traceable).await;
            Happening::Found {
                container,
                attempt,
                sight,
            }
        };
        self.happenings.push(find.boxed());
    }

    fn queue(&mut self, container: String) {
        let slots = Arc::clone(&self.context.slots);
        let counted = Counted::new(&self.context.metrics.queued);
        let queue = async move {
            let _counted = counted;
            match slots.acquire_owned().await {
                Ok(permit) => Happening::Slot { container, permit },
                // The slots are never closed.
                Err(_) => std::future::pending().await,
            }
        };
        self.happenings.push(queue.boxed());
    }

    fn start(&mut self, container: String, attempt: u32) {
        crash::at(crash::AFTER_CLAIM);
        let permit = self.permits.remove(&container);
        let handler = self.handlers.get(&container).cloned();
        let (Some((id, attempt_id)), Some(handler)) = (self.ids(&container, attempt), handler)
        else {
            let came = Came::Refused(belay_core::delivery::Verdict::PodNotFound);
            let refused = async move {
                Happening::Came {
                    container,
                    attempt,
                    came,
                }
            };
            return self.happenings.push(refused.boxed());
        };
        let context = Arc::clone(&self.context);
        let cancel = CancellationToken::new();
        self.cancels.insert(container.clone(), cancel.clone());
        let run = async move {
            let _counted = Counted::new(&context.metrics.running);
            let came = action::run(&context, &id, &attempt_id, &handler, cancel).await;
            drop(permit);
            Happening::Came {
                container,
                attempt,
                came,
            }
        };
        // On a task of its own: a shutdown of the driver must not tear a start in two.
        self.spawn(run);
    }

    fn follow(&mut self, container: String, attempt: u32) {
        let cancel = CancellationToken::new();
        self.cancels.insert(container.clone(), cancel.clone());
        let context = Arc::clone(&self.context);
        let running = self.found.remove(&container);
        let handler: Option<Handler> = self.handlers.get(&container).cloned();
        let ids = self.ids(&container, attempt);
        info!(
            namespace = self.about.namespace,
            name = self.about.name,
            container,
            "followed after a restart"
        );
        let follow = async move {
            // It counts against the slots as far as they reach; it runs already in any case.
            let permit = Arc::clone(&context.slots).try_acquire_owned().ok();
            let came = match (ids, running) {
                (Some((id, attempt_id)), Some(running)) => {
                    match context.runtime.target(&id).await {
                        Ok(target) => {
                            let handler = handler.as_ref();
                            action::follow(&context, &target, running, &attempt_id, handler, cancel)
                                .await
                        }
                        Err(error) => {
                            warn!(container = %id, %error, "cannot be followed");
                            Came::Lost {
                                same_incarnation: false,
                            }
                        }
                    }
                }
                (None, _) | (_, None) => Came::Lost {
                    same_incarnation: false,
                },
            };
            drop(permit);
            Happening::Came {
                container,
                attempt,
                came,
            }
        };
        self.spawn(follow);
    }

    fn spawn(&mut self, future: impl Future<Output = Happening> + Send + 'static) {
        let task = tokio::spawn(future);
        let joined = async move {
            match task.await {
                Ok(happening) => happening,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The runtime is going down.
                Err(_) => std::future::pending().await,
            }
        };
        self.happenings.push(joined.boxed());
    }

    fn audit(&self, container: &str, entry: &Entry) {
        let Some(outcome) = &entry.outcome else {
            return;
        };
        let time = |millis: i64| Timestamp::from_millisecond(millis).ok();
        let about = &self.about;
        let label = outcome.verdict.label();
        self.context.audit.write(&Line {
            time: Timestamp::now(),
            namespace: &about.namespace,
            notification: &about.name,
            notification_uid: &about.uid,
            notifier: &about.notifier,
            pod: &about.pod_name,
            pod_uid: &about.record.pod_uid,
            container,
            container_id: entry.container_id.as_deref(),
            attempt: (entry.attempt > 0).then(|| attempt_id(&about.uid, container, entry.attempt)),
            outcome: label,
            message: outcome.verdict.message(),
            started: outcome.started.and_then(time),
            finished: time(outcome.finished),
        });
        let metrics = &self.context.metrics;
        metrics
            .outcomes
            .get_or_create(&OutcomeLabel { outcome: label })
            .inc();
        if let Some(started) = outcome.started {
            let millis = outcome.finished.saturating_sub(started).max(0);
            metrics
                .action
                .observe(Duration::from_millis(millis.unsigned_abs()).as_secs_f64());
        }
    }

    /// The result is on the server: what is left is to tell.
    fn reported(&self) {
        self.context
            .metrics
            .delivery
            .observe(self.met.elapsed().as_secs_f64());
        let events = &self.context.events;
        match &self.concluded {
            Some(Conclusion::NothingDeclared) => events.warning(
                self.reference(),
                reasons::NOT_DECLARED,
                format!(
                    "no container of pod {} declares notifier {}; nothing was run",
                    self.about.pod_name, self.about.notifier
                ),
            ),
            Some(Conclusion::Ran(record)) => {
                for (container, entry) in &record.entries {
                    let handled = entry
                        .outcome
                        .as_ref()
                        .and_then(|outcome| outcome.signal_handled);
                    if handled == Some(false) {
                        let signal = self.handlers.signal(container);
                        let signal = signal.map_or_else(String::new, |signal| format!(" {signal}"));
                        events.warning(
                            self.reference(),
                            reasons::SIGNAL_NOT_HANDLED,
                            format!("the first process of container {container} had no handler for the signal{signal}"),
                        );
                    }
                }
            }
            Some(Conclusion::Refused(_)) | None => {}
        }
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(format!("{}/{}", belay_api::GROUP, belay_api::VERSION)),
            kind: Some("PodNotification".to_owned()),
            name: Some(self.about.name.clone()),
            namespace: Some(self.about.namespace.clone()),
            uid: Some(self.about.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

/// Counts in a gauge for as long as it lives.
struct Counted(Gauge);

impl Counted {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Counted(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Versions of one object grow; one that is no number tells nothing.
fn version(object: &PodNotification) -> Option<u64> {
    object.metadata.resource_version.as_ref()?.parse().ok()
}

async fn forget(context: Arc<Context>, uid: String, record: Option<Record>) {
    let entries = record.map(|record| record.entries).unwrap_or_default();
    for (container, entry) in entries.iter().filter(|(_, entry)| entry.traceable) {
        let Some(Ok(id)) = entry.container_id.as_ref().map(ContainerId::new) else {
            continue;
        };
        // A container that is gone took its records with it.
        let Ok(target) = context.runtime.target(&id).await else {
            continue;
        };
        for attempt in 1..=entry.attempt {
            if let Ok(attempt) = AttemptId::new(attempt_id(&uid, container, attempt)) {
                target.forget(&attempt).await;
            }
        }
    }
    context.journal.forget_notification(&uid).await;
}
