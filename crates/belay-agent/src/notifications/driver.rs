//! Carries out what the delivery machine decides, for one notification.
//!
//! The machine is asked about everything; the driver only turns effects into futures and their ends
//! into events. It holds no facts of its own but the newest copy of the object.

mod effects;
mod told;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use belay_action::Running;
use belay_api::notification::{DEFAULT_DEADLINE_SECONDS, PodNotification};
use belay_core::delivery::{
    Conclusion, Delivery, Effect, Event, Facts, Phase, Record, Trace, Verdict, View, open,
};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::action::{Came, Sight};
use super::handler::{Handlers, outlook};
use super::status::Author;
use super::write::Written;
use crate::context::Context;
use crate::crash;
use crate::journal::Started;
use crate::lookup::Found;

/// What the watch tells about the object.
#[derive(Debug)]
pub(crate) enum Notice {
    Seen(Box<PodNotification>),
    Gone,
}

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
    /// Cancelled when nothing needs to be written any more.
    over: CancellationToken,
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
    /// Why nothing can be started where no handler is known.
    refusal: Verdict,
    met: Instant,
}

/// Pauses between two tries to look a pod up.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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
            refusal: Verdict::PodNotFound,
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
        let opened = tokio::select! {
            () = shutdown.cancelled() => None,
            found = self.look_up() => Some(self.open(&found)),
        };
        let Some((mut delivery, effects)) = opened else {
            return;
        };
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
            executor: &self.context.executor,
            runtime: self.context.runtime.name(),
        }
    }

    fn view(&self) -> View {
        match &self.object {
            Some(object) => self.author().view(object, &self.handlers),
            None => View::Gone,
        }
    }

    /// Looks the pod up. As long as that cannot be done it is tried again, until nothing could start
    /// any more.
    async fn look_up(&mut self) -> Found {
        if self.about.record.pod_uid.is_empty()
            && let Some(journal) = self.context.journal.notification(&self.about.uid)
        {
            self.about.record.pod_uid = journal.record.pod_uid;
        }
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.context.lookup.find(&self.about).await {
                Ok(found) => return found,
                Err(error) => error,
            };
            if self.now() >= self.about.deadline {
                return Found::Refused(Verdict::Runtime {
                    message: error.to_string(),
                });
            }
            warn!(namespace = self.about.namespace, name = self.about.name, %error, "trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn open(&mut self, found: &Found) -> (Delivery, Vec<Effect>) {
        let journal = self.context.journal.notification(&self.about.uid);
        let handlers = match found {
            Found::Pod(view) => Handlers::of(&view.pod, &view.address, &self.about.notifier),
            Found::Refused(verdict) => {
                self.refusal = verdict.clone();
                Ok(Handlers::default())
            }
        };
        let outlook = outlook(found, &handlers);
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
                        trace: Trace::Lost,
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
                    self.lane.over.cancel();
                    self.forget = Some(record);
                }
            }
        }
        // A slot that the machine did not use goes to the next in the queue.
        self.permits.clear();
    }
}

/// Versions of one object grow; one that is no number tells nothing.
fn version(object: &PodNotification) -> Option<u64> {
    object.metadata.resource_version.as_ref()?.parse().ok()
}
