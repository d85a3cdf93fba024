//! Drives terminations: the one way to stop a pod, or one of its containers.
//!
//! [`belay_core::termination`] decides; here is what it decides about. Its answers come back over a
//! channel, its time is the boot's, its record is the journal's.
//!
//! ```text
//!   worker --- begins, exits, shorter graces ---> Terminations --- one machine for the pod,
//!      ^                                           |  ^            or one for each container
//!      '--- is it over? ---------------------------'  |                     that is stopped alone
//!                                effects |            | words
//!                                        v            |
//!                         Scribe (journal), Hands (hooks, signals, SIGKILL), events, metrics
//! ```
//!
//! **Invariant:** nothing here waits for the API server.
//! **Invariant:** what is done is done to the incarnation in the record, never to its successor.

mod draft;
mod hands;
mod meanwhile;
mod scribe;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use belay_action::ContainerId;
use belay_api::gates::Feature;
use belay_api::pod::Pod;
use belay_core::termination::{
    Cause, Early, Effect, End, Event, HookTrace, News, Notice, Record, Stage, Termination, begin,
    resume,
};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};

use draft::{Facts, latecomer, plan};
pub(crate) use draft::{grace, probe_grace};
use hands::{Hands, Word};
pub(crate) use meanwhile::meanwhile;
use scribe::Scribe;

use super::tracked::Tracked;
use super::worker::reference;
use crate::clock::boot_millis;
use crate::context::Host;
use crate::metrics::{CauseLabel, EarlyLabel};

/// Timers stand still while the machine is suspended and the boot's clock does not: nobody sleeps
/// longer than this without looking at it.
const LOOK: Duration = Duration::from_secs(1);

/// What a termination ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    Pod,
    Container(String),
}

impl Scope {
    fn container(&self) -> Option<&str> {
        match self {
            Scope::Pod => None,
            Scope::Container(name) => Some(name),
        }
    }
}

/// A termination and the hand that writes it down.
struct Ongoing {
    machine: Termination,
    scribe: Scribe,
}

/// All terminations of one pod. Owned and driven by its worker.
pub(crate) struct Terminations {
    host: Arc<Host>,
    /// As it was last seen.
    pod: Arc<Pod>,
    ongoing: BTreeMap<Scope, Ongoing>,
    /// What was counted of this pod.
    counted: BTreeSet<Early>,
    hands: Hands,
    words: mpsc::UnboundedReceiver<Word>,
}

/// What [`Terminations::next`] waited for.
pub(crate) enum Moment {
    Word(Word),
    Tick,
}

impl Terminations {
    /// Goes on with what the journal holds of this pod. `running` are the incarnations of it that
    /// run.
    pub(crate) fn resume(host: Arc<Host>, pod: Arc<Pod>, running: &BTreeSet<String>) -> Self {
        let (sender, words) = mpsc::unbounded_channel();
        let mut this = Terminations {
            hands: Hands::new(Arc::clone(&host), Arc::clone(&pod), sender),
            host,
            pod,
            ongoing: BTreeMap::new(),
            counted: BTreeSet::new(),
            words,
        };
        let uid = this.pod.uid().to_owned();
        let whole = this.host.journal.stop(&uid).filter(readable);
        let single = this.host.journal.container_stops(&uid);
        match whole {
            Some(record) => {
                this.go_on(&Scope::Pod, record, running);
                // Taken over by the pod's own.
                let names = single.into_iter().map(|(name, _)| name).collect();
                this.forget(names);
            }
            None => {
                for (name, record) in single.into_iter().filter(|(_, record)| readable(record)) {
                    this.go_on(&Scope::Container(name), record, running);
                }
            }
        }
        this
    }

    fn go_on(&mut self, scope: &Scope, record: Record, running: &BTreeSet<String>) {
        info!(
            pod = self.pod.name(),
            uid = record.pod_uid,
            container = scope.container(),
            "going on with its termination"
        );
        self.counted.extend(&record.counted);
        let container = scope.container().map(str::to_owned);
        let scribe = Scribe::new(self.host.journal.clone(), container);
        let (machine, effects) = resume(record, &self.host.boot_id, running, boot_millis());
        self.add(scope, machine, scribe, effects);
    }

    fn add(&mut self, scope: &Scope, machine: Termination, scribe: Scribe, effects: Vec<Effect>) {
        let ongoing = Ongoing { machine, scribe };
        self.ongoing.insert(scope.clone(), ongoing);
        self.carry_out(scope, effects);
    }

    /// Takes note of the pod as it is now, and of where it is reached: hooks are read from it.
    pub(crate) fn see(&mut self, pod: &Arc<Pod>, address: &str) {
        self.pod = Arc::clone(pod);
        self.hands.see(pod, address);
    }

    /// Why the pod ends, if it does.
    pub(crate) fn pod_cause(&self) -> Option<Cause> {
        let whole = self.ongoing.get(&Scope::Pod)?;
        Some(whole.machine.record().cause)
    }

    /// Whether the pod's end has come to its own end.
    pub(crate) fn pod_is_over(&self) -> bool {
        self.ongoing
            .get(&Scope::Pod)
            .is_some_and(|whole| whole.machine.is_over())
    }

    /// Whether this container is being stopped, alone or with its pod.
    pub(crate) fn stops(&self, container: &str) -> bool {
        self.ongoing.values().any(|ongoing| {
            let leg = ongoing.machine.leg(container);
            leg.is_some() && !ongoing.machine.is_over()
        })
    }

    /// Whether the end of this incarnation is anybody's business here.
    fn has(&self, container: &str, id: &ContainerId) -> bool {
        self.ongoing.values().any(|ongoing| {
            let leg = ongoing.machine.leg(container);
            leg.is_some_and(|leg| leg.container.id == id.as_str())
        })
    }

    /// Whether everything of an incarnation has been killed.
    pub(crate) fn is_killed(&self, container: &str, id: &ContainerId) -> bool {
        self.ongoing.values().any(|ongoing| {
            let leg = ongoing.machine.leg(container);
            leg.is_some_and(|leg| {
                let dead = match &leg.stage {
                    Stage::Over { end } => *end == End::Killed { survivors: vec![] },
                    Stage::Hook { .. }
                    | Stage::Turn { .. }
                    | Stage::Signalled { .. }
                    | Stage::Killing { .. } => false,
                };
                dead && leg.container.id == id.as_str()
            })
        })
    }

    /// Ends what runs of a pod that is being ended, and was not there when that began. The grace is
    /// the pod's.
    pub(crate) fn end_latecomers(&mut self, grace: Duration, tracked: &BTreeMap<String, Tracked>) {
        if !self.ongoing.contains_key(&Scope::Pod) {
            return;
        }
        for (name, known) in tracked {
            let Some(instance) = known.current.as_ref().filter(|one| one.exit.is_none()) else {
                continue;
            };
            if self.has(name, &instance.id) {
                continue;
            }
            let container = latecomer(&self.pod, name, instance, self.host.gates);
            info!(pod = self.pod.name(), container = name, id = %instance.id, "comes late; stopping");
            if let Some(whole) = self.ongoing.get_mut(&Scope::Pod) {
                let sleeps = self.host.gates.enabled(Feature::PodLifecycleSleepAction);
                let machine = whole.machine.clone();
                let (machine, effects) = machine.join(container, grace, sleeps, boot_millis());
                whole.machine = machine;
                self.carry_out(&Scope::Pod, effects);
            }
        }
    }

    /// Ends the pod, or those of its containers that are still there.
    ///
    /// Containers that are being stopped already are taken over as they are.
    pub(crate) fn end_pod(
        &mut self,
        cause: Cause,
        grace: Duration,
        tracked: &BTreeMap<String, Tracked>,
    ) {
        let taken_over = std::mem::take(&mut self.ongoing);
        let mut under_way = Vec::new();
        let mut closing = Vec::new();
        let mut scribe = None;
        for (scope, ongoing) in taken_over {
            if !ongoing.machine.is_over() {
                under_way.push(ongoing.machine);
            }
            match scope {
                // One entry, one scribe: an earlier record must not overtake a later one.
                Scope::Pod => scribe = Some(ongoing.scribe),
                Scope::Container(name) => closing.push((name, ongoing.scribe)),
            }
        }
        let scribe = scribe.unwrap_or_else(|| Scribe::new(self.host.journal.clone(), None));
        let (machine, effects) = self.begin(&Scope::Pod, cause, grace, tracked, under_way);
        self.add(&Scope::Pod, machine, scribe, effects);
        let Some(whole) = self.ongoing.get(&Scope::Pod) else {
            return;
        };
        let settled = whole.scribe.settled();
        let (journal, uid) = (self.host.journal.clone(), self.pod.uid().to_owned());
        tokio::spawn(async move {
            settled.await;
            for (container, scribe) in closing {
                scribe.close().await;
                journal.forget_stop(&uid, Some(&container)).await;
            }
        });
    }

    /// Ends one container, unless it is being stopped already.
    pub(crate) fn end_container(
        &mut self,
        container: &str,
        cause: Cause,
        grace: Duration,
        tracked: &BTreeMap<String, Tracked>,
    ) {
        if self.stops(container) {
            return;
        }
        let scope = Scope::Container(container.to_owned());
        let scribe = Scribe::new(self.host.journal.clone(), Some(container.to_owned()));
        let (machine, effects) = self.begin(&scope, cause, grace, tracked, Vec::new());
        self.add(&scope, machine, scribe, effects);
    }

    fn begin(
        &self,
        scope: &Scope,
        cause: Cause,
        grace: Duration,
        tracked: &BTreeMap<String, Tracked>,
        under_way: Vec<Termination>,
    ) -> (Termination, Vec<Effect>) {
        let facts = Facts {
            uid: self.pod.uid(),
            boot_id: &self.host.boot_id,
            gates: self.host.gates,
            tracked,
            counted: &self.counted,
        };
        let plan = match scope {
            Scope::Pod => plan(&self.pod, &facts, cause, grace, |_| true),
            Scope::Container(only) => plan(&self.pod, &facts, cause, grace, |name| name == only),
        };
        info!(
            pod = self.pod.name(),
            namespace = self.pod.namespace(),
            uid = plan.pod_uid,
            container = scope.container(),
            cause = cause.as_str(),
            "stopping"
        );
        let label = CauseLabel {
            cause: cause.as_str(),
        };
        self.host.metrics.terminations.get_or_create(&label).inc();
        begin(plan, under_way, boot_millis())
    }

    /// Somebody asks for this grace for the pod.
    pub(crate) fn shrink(&mut self, grace: Duration) {
        self.step(&Scope::Pod, Event::GraceChanged { grace });
    }

    /// An incarnation has ended.
    pub(crate) fn exited(&mut self, container: &str, id: &ContainerId) {
        self.hear(Word {
            container: container.to_owned(),
            id: id.as_str().to_owned(),
            news: News::Exited,
        });
    }

    /// Waits for the next thing to happen. Nothing is lost when it is given up.
    pub(crate) async fn next(&mut self) -> Moment {
        let machines = self.ongoing.values().map(|ongoing| &ongoing.machine);
        let wake = machines.filter_map(Termination::next_wake).min();
        let tick = async {
            let Some(wake) = wake else {
                return std::future::pending().await;
            };
            let left = wake.saturating_sub(boot_millis());
            let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
            tokio::time::sleep(left.min(LOOK)).await;
        };
        tokio::select! {
            biased;
            // The sender is in the hands, so there is always one.
            Some(word) = self.words.recv() => Moment::Word(word),
            () = tick => Moment::Tick,
        }
    }

    /// Takes in what [`Terminations::next`] returned.
    pub(crate) fn happened(&mut self, moment: Moment) {
        match moment {
            Moment::Word(word) => self.hear(word),
            Moment::Tick => {
                let scopes: Vec<Scope> = self.ongoing.keys().cloned().collect();
                for scope in scopes {
                    self.step(&scope, Event::Tick);
                }
            }
        }
    }

    fn hear(&mut self, word: Word) {
        let Word {
            container,
            id,
            news,
        } = word;
        let found = self.ongoing.iter().find_map(|(scope, ongoing)| {
            let leg = ongoing.machine.leg(&container)?;
            (leg.container.id == id).then(|| (scope.clone(), leg.container.hook_attempt()))
        });
        if let Some((scope, attempt)) = found {
            match &news {
                News::HookEnded(_) | News::HookFound(_) => {
                    if !matches!(news, News::HookFound(HookTrace::Running)) {
                        self.hands.hook_is_over(&attempt);
                    }
                }
                News::Exited
                | News::SignalSent
                | News::SignalFailed { .. }
                | News::Killed { .. } => {}
            }
            self.step(&scope, Event::Of { container, news });
        }
    }

    fn step(&mut self, scope: &Scope, event: Event) {
        let Some(ongoing) = self.ongoing.get_mut(scope) else {
            return;
        };
        debug!(pod = self.pod.name(), ?scope, ?event, "termination");
        let (machine, effects) = ongoing.machine.clone().next(event, boot_millis());
        ongoing.machine = machine;
        self.carry_out(scope, effects);
    }

    fn carry_out(&mut self, scope: &Scope, effects: Vec<Effect>) {
        for effect in effects {
            let Some(ongoing) = self.ongoing.get(scope) else {
                return;
            };
            // What the journal could not name was not taken from it, and what is planned has names
            // from the runtime.
            let incarnation = |container: &str| {
                let leg = ongoing.machine.leg(container)?;
                ContainerId::new(&leg.container.id).ok()
            };
            match effect {
                Effect::Journal(record) => ongoing.scribe.write(record),
                Effect::RunHook {
                    container,
                    attempt,
                    deadline,
                } => {
                    if let Some(id) = incarnation(&container) {
                        let settled = ongoing.scribe.settled();
                        self.hands
                            .run_hook(container, id, &attempt, deadline, settled);
                    }
                }
                Effect::FindHook { container, attempt } => {
                    if let Some(id) = incarnation(&container) {
                        self.hands.find_hook(container, id, &attempt);
                    }
                }
                Effect::CancelHook { container, attempt } => {
                    if let Some(id) = incarnation(&container) {
                        self.hands.cancel_hook(container, id, &attempt);
                    }
                }
                Effect::Signal { container, signal } => {
                    if let Some(id) = incarnation(&container) {
                        self.hands.signal(container, id, &signal);
                    }
                }
                Effect::Kill { container } => {
                    if let Some(id) = incarnation(&container) {
                        self.hands.kill(container, id);
                    }
                }
                Effect::Tell { container, notice } => self.tell(&container, &notice),
                Effect::SleepEndedEarly { reason } => {
                    self.counted.insert(reason);
                    let label = EarlyLabel {
                        reason: reason.as_str(),
                    };
                    self.host.metrics.early_sleeps.get_or_create(&label).inc();
                }
                Effect::Done => self.done(scope),
            }
        }
    }

    fn tell(&self, container: &str, notice: &Notice) {
        // Of one that only the journal knows nothing can be told but to the log.
        if self.pod.name().is_empty() {
            let message = notice.message(container);
            return info!(pod = self.pod.uid(), container, message, "termination");
        }
        let about = reference(&self.pod, Some(container));
        let message = notice.message(container);
        let events = &self.host.events;
        if notice.is_warning() {
            warn!(pod = self.pod.name(), container, message, "termination");
            events.warning(about, notice.reason(), message);
        } else {
            events.normal(about, notice.reason(), message);
        }
    }

    /// The pod's own is kept until the pod has left; a container may be started again.
    fn done(&mut self, scope: &Scope) {
        let Some(ongoing) = self.ongoing.get(scope) else {
            return;
        };
        match serde_json::to_string(ongoing.machine.record()) {
            Ok(record) => info!(pod = self.pod.name(), record, "stopped"),
            Err(error) => warn!(%error, "a record cannot be written as JSON"),
        }
        if let Scope::Container(name) = scope
            && let Some(ongoing) = self.ongoing.remove(scope)
        {
            let (journal, uid) = (self.host.journal.clone(), self.pod.uid().to_owned());
            let name = name.clone();
            tokio::spawn(async move {
                ongoing.scribe.close().await;
                journal.forget_stop(&uid, Some(&name)).await;
            });
        }
    }

    fn forget(&self, containers: Vec<String>) {
        let (journal, uid) = (self.host.journal.clone(), self.pod.uid().to_owned());
        tokio::spawn(async move {
            for container in containers {
                journal.forget_stop(&uid, Some(&container)).await;
            }
        });
    }

    /// Ends the driving, not the terminations: a successor goes on with them.
    pub(crate) async fn leave(self) {
        for ongoing in self.ongoing.into_values() {
            ongoing.scribe.close().await;
        }
    }
}

/// Whether everything in a record can be acted upon.
fn readable(record: &Record) -> bool {
    let good = record
        .legs
        .iter()
        .all(|leg| ContainerId::new(&leg.container.id).is_ok());
    if !good {
        warn!(
            pod = record.pod_uid,
            "a termination in the journal names what is no container; it counts as lost"
        );
    }
    good
}

#[cfg(test)]
mod tests;
