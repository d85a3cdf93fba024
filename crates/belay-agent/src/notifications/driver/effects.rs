//! Effects that become futures.

use std::sync::Arc;
use std::time::Duration;

use belay_action::{AttemptId, ContainerId, Incarnation};
use belay_core::delivery::{Conclusion, Delivery, Phase, Record, Trace, attempt_id};
use futures::future::FutureExt as _;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Driver, Happening};
use crate::clock::boot_millis;
use crate::context::Context;
use crate::crash;
use crate::journal::Started;
use crate::notifications::action::{self, Came, Sight};
use crate::notifications::errand::Errand;
use crate::notifications::verify::{self, Verification};
use crate::notifications::write::{self, Written};

/// How long a journal write that was refused waits.
const JOURNAL_RETRY: Duration = Duration::from_secs(1);

/// How long the outcomes may wait for the journal while their report is on its way.
const UNHURRIED: Duration = Duration::from_millis(200);

/// The last outcomes need the journal only if the report does not land soon: until they are
/// forgotten the runtime knows them too. Signals it does not know, so theirs are written at once.
fn unhurried(record: &Record) -> Duration {
    let kept = record.entries.values().all(|entry| entry.traceable);
    if kept && !crash::chosen(crash::RESULT_JOURNALLED) {
        UNHURRIED
    } else {
        Duration::ZERO
    }
}

impl<E: Errand> Driver<E> {
    pub(super) fn claim(&mut self, record: &Record) {
        let Some(mut object) = self.object.clone() else {
            return;
        };
        object.claim(self.author(), record, self.context.clock.server_time());
        let write = self.put(object);
        self.happenings
            .push(async move { Happening::Claimed(write.await) }.boxed());
    }

    /// Writes the status of an object, after a pause if the server has not taken the last one.
    fn put(&self, object: Box<E>) -> impl Future<Output = Written<E>> + Send + use<E> {
        let context = Arc::clone(&self.context);
        let pause = self.denials.pause();
        async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            write::put(&context, &*object).await
        }
    }

    /// Tells what is under way, if that is something new.
    pub(super) fn progress(&mut self, delivery: &Delivery) {
        self.pace.wanted = false;
        if !matches!(delivery.phase(), Phase::Working { .. }) {
            return;
        }
        let Some(mut object) = self.object.clone() else {
            return;
        };
        let now = self.context.clock.server_time();
        if !object.progress(self.author(), &self.about.record, now) {
            return;
        }
        self.pace.busy = true;
        let write = self.put(object);
        self.happenings
            .push(async move { Happening::Progressed(write.await) }.boxed());
    }

    pub(super) fn report(&mut self, conclusion: Conclusion) {
        if self.pace.busy {
            self.pace.result = Some(conclusion);
            return;
        }
        let Some(mut object) = self.object.clone() else {
            // The object is gone; the answer is the same as a server's would be.
            let gone = async { Happening::Reported(Written::Refused(None)) };
            return self.happenings.push(gone.boxed());
        };
        let now = self.context.clock.server_time();
        object.conclude(self.author(), &conclusion, &self.handlers, now);
        if self.denials.brief {
            object.shorten();
        }
        self.concluded = Some(conclusion);
        let write = self.put(object);
        self.happenings
            .push(async move { Happening::Reported(write.await) }.boxed());
    }

    /// Drops the runtime's record of an attempt that has a successor.
    pub(super) fn discard(&self, container: &str, attempt: u32) {
        let traceable = self.handlers.traceable(container);
        if let Some((id, attempt)) = self.ids(container, attempt).filter(|_| traceable) {
            let context = Arc::clone(&self.context);
            tokio::spawn(async move {
                if let Ok(target) = context.runtime.target(&id.id).await {
                    target.forget(&attempt).await;
                }
            });
        }
    }

    pub(super) fn write_journal(&mut self) {
        if self.lane.busy {
            return;
        }
        let Some((seq, record)) = self.lane.next.take() else {
            return;
        };
        self.lane.busy = true;
        let complete = record.entries.values().all(|entry| entry.outcome.is_some());
        let delay = if complete {
            unhurried(&record)
        } else {
            Duration::ZERO
        };
        let context = Arc::clone(&self.context);
        let over = self.lane.over.clone();
        let started = Started {
            record,
            ..self.about.clone()
        };
        let write = async move {
            if !delay.is_zero() && tokio::time::timeout(delay, over.cancelled()).await.is_ok() {
                return Happening::Journalled {
                    seq,
                    error: None,
                    complete: false,
                };
            }
            let error = match context.journal.put_started(E::JOURNAL, &started).await {
                Ok(()) => None,
                Err(error) => {
                    warn!(uid = started.uid, %error, "the journal refused an entry");
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

    /// Removes what is kept on the node; asked for when nothing is on its way any more. Given up, it
    /// goes on by itself.
    pub(super) async fn forgotten(&mut self) {
        if let Some(record) = self.forget.take() {
            let (context, uid) = (Arc::clone(&self.context), self.about.uid.clone());
            if let Err(error) = tokio::spawn(forget(context, E::JOURNAL, uid, record)).await {
                warn!(%error, "records of a delivery stay");
            }
        }
    }

    /// The incarnation that the record names, and the attempt.
    fn ids(&self, container: &str, attempt: u32) -> Option<(Incarnation, AttemptId)> {
        let id = self.container_id(container)?;
        let attempt = attempt_id(&self.about.uid, container, attempt);
        match (ContainerId::new(&id), AttemptId::new(&attempt)) {
            (Ok(id), Ok(attempt)) => {
                let incarnation = Incarnation {
                    pod_uid: self.about.record.pod_uid.clone(),
                    container: container.to_owned(),
                    id,
                };
                Some((incarnation, attempt))
            }
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

    /// Whether the record says that a probe decides after this container's handler.
    fn probed(&self, container: &str) -> bool {
        let entry = self.about.record.entries.get(container);
        entry.is_some_and(|entry| entry.probed)
    }

    pub(super) fn find(&mut self, container: String, attempt: u32) {
        let context = Arc::clone(&self.context);
        let Some((id, attempt_id)) = self.ids(&container, attempt) else {
            let sight = Sight {
                trace: Trace::Lost,
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
        let unknown_probe = handler.is_none() && self.probed(&container);
        let find = async move {
            let mut sight =
                action::find(&context, &id, &attempt_id, handler.as_ref(), traceable).await;
            if let Trace::Ended(outcome) = sight.trace {
                sight.trace = Trace::Ended(verify::unverified(unknown_probe, outcome));
            }
            Happening::Found {
                container,
                attempt,
                sight,
            }
        };
        self.happenings.push(find.boxed());
    }

    pub(super) fn queue(&mut self, container: String) {
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

    pub(super) fn start(&mut self, container: String, attempt: u32) {
        crash::at(crash::AFTER_CLAIM);
        let permit = self.permits.remove(&container);
        let until = self.until(&container);
        let handler = self.handlers.get(&container).cloned();
        let (Some((id, attempt_id)), Some(mut handler)) = (self.ids(&container, attempt), handler)
        else {
            let came = Came::Refused(self.refusal.clone());
            let refused = async move {
                Happening::Came {
                    container,
                    attempt,
                    came,
                }
            };
            return self.happenings.push(refused.boxed());
        };
        let held = Held {
            _permit: permit,
            _counted: Some(Counted::new(&self.context.metrics.running)),
        };
        let verification = self.verification(&container, &id.id, &attempt_id);
        let (context, cancel) = (Arc::clone(&self.context), verification.cancel.clone());
        self.context.metrics.attempts.inc();
        handler.until = until;
        let deadline = match until {
            // Whose time runs has another deadline: its end.
            Some(until) => self
                .now()
                .saturating_add(until.saturating_sub(boot_millis())),
            None => self.about.deadline,
        };
        let run = async move {
            action::run(&context, &id, &attempt_id, &handler, deadline, cancel).await
        };
        self.act(container, attempt, held, run, verification);
    }

    /// When the time of this container's attempts is over, in milliseconds since boot.
    fn until(&self, container: &str) -> Option<i64> {
        let first = self.about.record.entries.get(container)?.first?;
        Some(self.retry?.end(first))
    }

    fn verification(
        &mut self,
        container: &str,
        id: &ContainerId,
        attempt: &AttemptId,
    ) -> Verification {
        let cancel = CancellationToken::new();
        self.cancels.insert(container.to_owned(), cancel.clone());
        Verification {
            context: Arc::clone(&self.context),
            id: id.clone(),
            attempt: attempt.clone(),
            handler: self.handlers.get(container).cloned(),
            probed: self.probed(container),
            cancel,
        }
    }

    pub(super) fn follow(&mut self, container: String, attempt: u32) {
        let running = self.found.remove(&container);
        info!(
            namespace = self.about.namespace,
            name = self.about.name,
            container,
            "followed after a restart"
        );
        let (Some((id, attempt_id)), Some(running)) = (self.ids(&container, attempt), running)
        else {
            let came = Came::Lost {
                same_incarnation: false,
            };
            let lost = async move {
                Happening::Came {
                    container,
                    attempt,
                    came,
                }
            };
            return self.happenings.push(lost.boxed());
        };
        let held = Held {
            // It counts against the slots as far as they reach; it runs already in any case.
            _permit: Arc::clone(&self.context.slots).try_acquire_owned().ok(),
            _counted: None,
        };
        let verification = self.verification(&container, &id.id, &attempt_id);
        let (context, cancel) = (Arc::clone(&self.context), verification.cancel.clone());
        let handler = verification.handler.clone();
        let follow = async move {
            let Some(target) = action::target(&context, &id.id).await else {
                return Came::Lost {
                    same_incarnation: false,
                };
            };
            let handler = handler.as_ref();
            action::follow(&context, &target, running, &attempt_id, handler, cancel).await
        };
        self.act(container, attempt, held, follow, verification);
    }

    /// Carries an action out, then lets its probe decide.
    ///
    /// The action is on a task of its own: a shutdown of the driver must not tear a start in two.
    /// The probe ends with the driver.
    fn act(
        &mut self,
        container: String,
        attempt: u32,
        held: Held,
        action: impl Future<Output = Came> + Send + 'static,
        verification: Verification,
    ) {
        let task = tokio::spawn(action);
        let joined = async move {
            let came = match task.await {
                Ok(came) => came,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The runtime is going down.
                Err(_) => std::future::pending().await,
            };
            let came = verification.of(came).await;
            drop(held);
            Happening::Came {
                container,
                attempt,
                came,
            }
        };
        self.happenings.push(joined.boxed());
    }
}

/// What an action has for as long as it goes on.
struct Held {
    _permit: Option<OwnedSemaphorePermit>,
    _counted: Option<Counted>,
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

/// The journal first: who finds it looks for attempts, and would take those that the runtime has
/// forgotten for interrupted.
async fn forget(context: Arc<Context>, kind: &'static str, uid: String, record: Option<Record>) {
    context.journal.forget_started(kind, &uid).await;
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
}
