//! Carries out what the delivery machine decides, for one notification or action.
//!
//! The machine is asked about everything; the driver only turns effects into futures and their ends
//! into events. It holds no facts of its own but the newest copy of the object.

mod effects;
mod told;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use belay_action::Running;
use belay_core::delivery::{
    Conclusion, Delivery, Effect, Event, Facts, Now, Phase, Record, Retry, Trace, Verdict, View,
    open,
};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::action::{Came, Sight};
use super::errand::Errand;
use super::handler::{Handlers, outlook};
use super::status::Author;
use super::write::Written;
use crate::clock::{boot_id, boot_millis, wall_millis};
use crate::context::Context;
use crate::crash;
use crate::journal::Started;
use crate::lookup::Found;

/// What the watch tells about the object.
#[derive(Debug)]
pub(crate) enum Notice<E> {
    Seen(Box<E>),
    Gone,
}

/// The end of a future.
enum Happening<E> {
    Claimed(Written<E>),
    Progressed(Written<E>),
    Reported(Written<E>),
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

/// The way of what is under way to the server: at most one write a second.
struct Pace {
    /// Whether there may be something to tell.
    wanted: bool,
    busy: bool,
    not_before: Instant,
    /// The result, which waits for a write that is under way.
    result: Option<Conclusion>,
}

/// Writes that the server would not take.
#[derive(Default)]
struct Denials {
    /// In a row.
    count: u32,
    /// Whether the result is told in as few words as possible: it may be too long for the server.
    brief: bool,
}

impl Denials {
    /// How long the next write waits.
    fn pause(&self) -> Duration {
        const FIRST: Duration = Duration::from_millis(50);
        const LONGEST: Duration = Duration::from_secs(30);
        match self.count.checked_sub(1) {
            None => Duration::ZERO,
            Some(doubled) => FIRST.saturating_mul(1 << doubled.min(20)).min(LONGEST),
        }
    }
}

/// How long after a write of a status the next one waits.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

pub(crate) struct Driver<E> {
    context: Arc<Context>,
    /// Names, the deadline, and the record as the machine has it.
    about: Started,
    object: Option<Box<E>>,
    handlers: Handlers,
    retry: Option<Retry>,
    happenings: FuturesUnordered<BoxFuture<'static, Happening<E>>>,
    pace: Pace,
    denials: Denials,
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

impl<E: Errand> Driver<E> {
    /// A driver for an object, or for what the journal knows of one that is gone.
    pub(crate) fn new(context: Arc<Context>, about: Started, object: Option<Box<E>>) -> Self {
        let retries = object.as_ref().and_then(|object| object.retries());
        Driver {
            context,
            about: Started {
                boot_id: boot_id(),
                ..about
            },
            retry: retries.map(Retry::within),
            pace: Pace {
                wanted: false,
                busy: false,
                not_before: Instant::now(),
                result: None,
            },
            object,
            handlers: Handlers::default(),
            denials: Denials::default(),
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
        mut notices: mpsc::UnboundedReceiver<Notice<E>>,
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
        loop {
            if delivery.is_over() && !self.lane.busy {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = self.forgotten() => {}
                }
                return;
            }
            let pause = delivery.pause(self.moment());
            let telling = self.pace.wanted && !self.pace.busy;
            let event = tokio::select! {
                () = shutdown.cancelled() => return,
                Some(notice) = notices.recv() => self.noticed(notice),
                Some(happening) = self.happenings.next() => self.happened(happening),
                () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {
                    Some(Event::Tick)
                }
                () = tokio::time::sleep_until(self.pace.not_before), if telling => {
                    self.progress(&delivery);
                    None
                }
            };
            let Some(event) = event else { continue };
            let before_start = matches!(delivery.phase(), Phase::Claiming { .. });
            let (next, effects) = delivery.next(event, self.moment());
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

    fn moment(&self) -> Now {
        Now {
            server: self.now(),
            boot: boot_millis(),
            wall: wall_millis(),
        }
    }

    fn author(&self) -> Author<'_> {
        Author {
            executor: &self.context.executor,
            runtime: self.context.runtime.name(),
        }
    }

    fn view(&self) -> View {
        match &self.object {
            Some(object) => object.view(self.author(), &self.handlers),
            None => View::Gone,
        }
    }

    /// Looks the pod up. As long as that cannot be done it is tried again, until nothing could start
    /// any more.
    async fn look_up(&mut self) -> Found {
        if self.about.record.pod_uid.is_empty()
            && let Some(journal) = self.journal()
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

    fn journal(&self) -> Option<Started> {
        let uid = &self.about.uid;
        let mut journal = self.context.journal.started(E::JOURNAL, uid)?;
        if journal.boot_id != self.about.boot_id {
            // What another boot counted is over.
            for entry in journal.record.entries.values_mut() {
                if let Some(first) = &mut entry.first {
                    first.boot = i64::MIN;
                }
            }
        }
        Some(journal)
    }

    fn open(&mut self, found: &Found) -> (Delivery, Vec<Effect>) {
        let journal = self.journal();
        let handlers = match (found, &self.object) {
            (Found::Pod(view), Some(object)) => object.handlers(view),
            // Nothing is started of what is gone.
            (Found::Pod(_), None) => Ok(Handlers::default()),
            (Found::Refused(verdict), _) => {
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
            retry: self.retry,
        };
        let (delivery, effects) = open(facts, self.moment());
        if effects
            .iter()
            .any(|effect| matches!(effect, Effect::Claim(_)))
        {
            crash::at(crash::BEFORE_CLAIM);
        }
        (delivery, effects)
    }

    /// Takes in what the watch says, unless an answer has already told more.
    fn noticed(&mut self, notice: Notice<E>) -> Option<Event> {
        match notice {
            Notice::Gone => self.object = None,
            Notice::Seen(object) => {
                let held = self.object.as_deref().and_then(version);
                match (version(&*object), held) {
                    (Some(new), Some(held)) if new <= held => return None,
                    _ => self.object = Some(object),
                }
            }
        }
        Some(Event::Seen(self.view()))
    }

    fn happened(&mut self, happening: Happening<E>) -> Option<Event> {
        match happening {
            Happening::Claimed(written) => {
                if !self.wrote(written) {
                    return Some(Event::ClaimRefused(self.view()));
                }
                self.pace.not_before = Instant::now() + BETWEEN_WRITES;
                Some(Event::Claimed)
            }
            Happening::Progressed(written) => {
                self.wrote(written);
                self.pace.busy = false;
                self.pace.not_before = Instant::now() + BETWEEN_WRITES;
                if let Some(conclusion) = self.pace.result.take() {
                    self.report(conclusion);
                }
                Some(Event::Seen(self.view()))
            }
            Happening::Reported(written) => {
                if let Written::Denied { code, .. } = &written {
                    self.denials.brief |= matches!(code, 413 | 422);
                }
                if !self.wrote(written) {
                    return Some(Event::ReportRefused(self.view()));
                }
                crash::at(crash::AFTER_RESULT);
                self.reported();
                Some(Event::Reported)
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
                    Came::Ended { outcome, .. } => Event::Ended {
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

    /// Takes note of what became of a write. Whether it landed.
    fn wrote(&mut self, written: Written<E>) -> bool {
        match written {
            Written::Landed(object) => {
                self.object = Some(object);
                self.denials.count = 0;
                true
            }
            Written::Refused(object) => {
                self.object = object;
                false
            }
            Written::Denied { object, .. } => {
                self.object = Some(object);
                self.denials.count = self.denials.count.saturating_add(1);
                false
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
                Effect::Progress => self.pace.wanted = true,
                Effect::Discard { container, attempt } => self.discard(&container, attempt),
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
        self.permits
            .retain(|container, _| delivery.holds_slot(container));
    }
}

/// Versions of one object grow; one that is no number tells nothing.
fn version(object: &impl Errand) -> Option<u64> {
    object.meta().resource_version.as_ref()?.parse().ok()
}
