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
mod interim;
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
pub(crate) use interim::Interim;
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

/// All terminations of one pod. Owned and driven by its worker.
pub(crate) struct Terminations {
    host: Arc<Host>,
    /// As it was last seen.
    pod: Arc<Pod>,
    /// Also those that are over, until another takes the place: what came of a signal may be told
    /// after the end that it brought about.
    ongoing: BTreeMap<Scope, Termination>,
    /// Who writes them down. They stay when what they wrote of is over: a container's next end has
    /// the same place in the journal.
    scribes: BTreeMap<Scope, Scribe>,
    /// How incarnations ended whose end is over. None has a second one.
    ended: BTreeMap<String, End>,
    /// Incarnations of which everything that was left has been looked for, and killed.
    swept: BTreeMap<String, Sweep>,
    /// What was counted of this pod.
    counted: BTreeSet<Early>,
    hands: Hands,
    words: mpsc::UnboundedReceiver<Word>,
}

/// How far killing what an incarnation left is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sweep {
    UnderWay,
    /// Nothing of it runs.
    Done,
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
            scribes: BTreeMap::new(),
            ended: BTreeMap::new(),
            swept: BTreeMap::new(),
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
                for (name, _) in single {
                    this.scribe(&Scope::Container(name)).forget();
                }
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
        // One that is over needs no more writing, and is forgotten one day.
        self.scribe(scope);
        let (machine, effects) = resume(record, &self.host.boot_id, running, boot_millis());
        self.add(scope, machine, effects);
    }

    fn add(&mut self, scope: &Scope, machine: Termination, effects: Vec<Effect>) {
        self.ongoing.insert(scope.clone(), machine);
        self.watch(scope);
        self.carry_out(scope, effects);
    }

    /// Waits for the end of all incarnations that are being ended, whatever the runtime tells of
    /// them and when.
    fn watch(&mut self, scope: &Scope) {
        let legs = self
            .ongoing
            .get(scope)
            .map(|machine| &machine.record().legs);
        for leg in legs.into_iter().flatten() {
            let over = matches!(leg.stage, Stage::Over { .. });
            if let Ok(id) = ContainerId::new(&leg.container.id)
                && !over
            {
                self.hands.watch(leg.container.name.clone(), id);
            }
        }
    }

    fn scribe(&mut self, scope: &Scope) -> &Scribe {
        let begin = || {
            let uid = self.pod.uid().to_owned();
            let container = scope.container().map(str::to_owned);
            Scribe::new(self.host.journal.clone(), uid, container)
        };
        self.scribes.entry(scope.clone()).or_insert_with(begin)
    }

    /// Takes note of the pod as it is now, and of where it is reached: hooks are read from it.
    pub(crate) fn see(&mut self, pod: &Arc<Pod>, address: &str) {
        self.pod = Arc::clone(pod);
        self.hands.see(pod, address);
    }

    /// Why the pod ends, if it does.
    pub(crate) fn pod_cause(&self) -> Option<Cause> {
        let whole = self.ongoing.get(&Scope::Pod)?;
        Some(whole.record().cause)
    }

    /// Whether the pod's end has come to its own end.
    pub(crate) fn pod_is_over(&self) -> bool {
        self.ongoing
            .get(&Scope::Pod)
            .is_some_and(Termination::is_over)
    }

    /// Whether the pod's containers have ended, and all that keeps its end from being over is a hook
    /// that was cancelled: nobody has told yet that it is dead.
    pub(crate) fn only_hooks_are_left(&self) -> bool {
        self.ongoing.get(&Scope::Pod).is_some_and(|machine| {
            let mut legs = machine.record().legs.iter();
            !machine.is_over() && legs.all(|leg| matches!(leg.stage, Stage::Over { .. }))
        })
    }

    /// Waits until the pod's end is over, its hooks included.
    pub(crate) async fn outlast_hooks(&mut self) {
        while self.only_hooks_are_left() {
            let moment = self.next().await;
            self.happened(moment);
        }
    }

    /// Whether this container is being stopped, alone or with its pod.
    pub(crate) fn stops(&self, container: &str) -> bool {
        self.ongoing
            .values()
            .any(|machine| machine.leg(container).is_some() && !machine.is_over())
    }

    /// Whether the end of this incarnation is anybody's business here.
    fn has(&self, container: &str, id: &ContainerId) -> bool {
        self.ongoing.values().any(|machine| {
            let leg = machine.leg(container);
            leg.is_some_and(|leg| leg.container.id == id.as_str())
        })
    }

    /// How an incarnation ended, if its end is over.
    pub(crate) fn end_of(&self, container: &str, id: &ContainerId) -> Option<&End> {
        let of_legs = || {
            let mut legs = self
                .ongoing
                .values()
                .filter_map(|machine| machine.leg(container));
            let leg = legs.find(|leg| leg.container.id == id.as_str())?;
            match &leg.stage {
                Stage::Over { end } => Some(end),
                Stage::Hook { .. }
                | Stage::Turn { .. }
                | Stage::Signalled { .. }
                | Stage::Killing { .. } => None,
            }
        };
        self.ended.get(id.as_str()).or_else(of_legs)
    }

    /// Whether nothing more is done to end an incarnation.
    pub(crate) fn has_ended(&self, container: &str, id: &ContainerId) -> bool {
        self.end_of(container, id).is_some()
    }

    /// Whether everything of an incarnation has been killed.
    pub(crate) fn is_killed(&self, container: &str, id: &ContainerId) -> bool {
        let swept = self.swept.get(id.as_str()) == Some(&Sweep::Done);
        swept || self.end_of(container, id) == Some(&End::Killed { survivors: vec![] })
    }

    /// Kills what is left of an incarnation that has ended, until nothing is.
    pub(crate) fn sweep(&mut self, container: &str, id: &ContainerId) {
        let name = id.as_str().to_owned();
        if self.swept.contains_key(&name) {
            return;
        }
        self.swept.insert(name, Sweep::UnderWay);
        self.hands.sweep(container.to_owned(), id.clone());
    }

    /// This incarnation of a container has come up: that it was to come is remembered no longer.
    pub(crate) fn came_back(&mut self, container: &str, id: &ContainerId) {
        let scope = Scope::Container(container.to_owned());
        if let Some(machine) = self.ongoing.get(&scope) {
            let leg = machine.leg(container);
            // One that was found, and is being ended, is no other.
            if leg.is_some_and(|leg| leg.container.id == id.as_str()) {
                return;
            }
            if machine.is_over() {
                self.ongoing.remove(&scope);
            }
        }
        if let Some(scribe) = self.scribes.get(&scope) {
            scribe.forget();
        }
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
                let before = whole.clone();
                let (machine, effects) = before.join(container, grace, sleeps, boot_millis());
                *whole = machine;
                self.watch(&Scope::Pod);
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
        let taken_over = std::mem::take(&mut self.ongoing).into_values();
        let under_way = taken_over.filter(|machine| !machine.is_over()).collect();
        let (machine, effects) = self.begin(&Scope::Pod, cause, grace, tracked, under_way);
        self.add(&Scope::Pod, machine, effects);
        // What was written of single containers is in the pod's own record now.
        let settled = self.scribe(&Scope::Pod).settled();
        let all = std::mem::take(&mut self.scribes);
        let (whole, single) = all.into_iter().partition(|(scope, _)| *scope == Scope::Pod);
        self.scribes = whole;
        let single: BTreeMap<Scope, Scribe> = single;
        tokio::spawn(async move {
            settled.await;
            for scribe in single.into_values() {
                scribe.forget();
                scribe.close().await;
            }
        });
    }

    /// Ends one container, unless that is under way or done already. Returns whether it begins now.
    ///
    /// The runtime may tell of an end some time after it; until then the container seems to run.
    pub(crate) fn end_container(
        &mut self,
        container: &str,
        cause: Cause,
        grace: Duration,
        tracked: &BTreeMap<String, Tracked>,
    ) -> bool {
        let current = tracked.get(container).and_then(|one| one.current.as_ref());
        let done = current.is_some_and(|one| self.ended.contains_key(one.id.as_str()));
        if done || self.stops(container) {
            return false;
        }
        let scope = Scope::Container(container.to_owned());
        let (machine, effects) = self.begin(&scope, cause, grace, tracked, Vec::new());
        self.add(&scope, machine, effects);
        true
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
        let mut plan = match scope {
            Scope::Pod => plan(&self.pod, &facts, cause, grace, |_| true),
            Scope::Container(only) => plan(&self.pod, &facts, cause, grace, |name| name == only),
        };
        // A dead one has neither a hook nor a signal any more, also when its runtime has not told.
        plan.running.retain(|id| match self.ended.get(id) {
            Some(End::Killed { survivors }) => !survivors.is_empty(),
            Some(End::NotRunning | End::Itself | End::StopSignal | End::Reboot) => false,
            None => true,
        });
        // Where nothing runs there is nothing that anybody would want to know.
        if !plan.running.is_empty() {
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
        }
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
        let machines = self.ongoing.values();
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
        if let News::Killed { survivors } = &news
            && survivors.is_empty()
        {
            self.swept.insert(id.clone(), Sweep::Done);
        }
        let found = self.ongoing.iter().find_map(|(scope, machine)| {
            let leg = machine.leg(&container)?;
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
        let (machine, effects) = ongoing.clone().next(event, boot_millis());
        *ongoing = machine;
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
                let leg = ongoing.leg(container)?;
                ContainerId::new(&leg.container.id).ok()
            };
            match effect {
                Effect::Journal(record) => self.scribe(scope).write(record),
                Effect::RunHook {
                    container,
                    attempt,
                    deadline,
                } => {
                    if let Some(id) = incarnation(&container) {
                        let settled = self.scribe(scope).settled();
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
                        let settled = self.scribe(scope).settled();
                        self.hands.signal(container, id, &signal, settled);
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

    /// The pod's own is kept until the pod has left, that of a container until it is started again or
    /// ended once more. That it is to be started, whatever its exit code says, is also kept in the
    /// journal until it is.
    fn done(&mut self, scope: &Scope) {
        let Some(machine) = self.ongoing.get(scope) else {
            return;
        };
        let record = machine.record().clone();
        match serde_json::to_string(&record) {
            Ok(record) => info!(pod = self.pod.name(), record, "stopped"),
            Err(error) => warn!(%error, "a record cannot be written as JSON"),
        }
        for leg in record.legs {
            if let Stage::Over { end } = leg.stage {
                self.ended.entry(leg.container.id).or_insert(end);
            }
        }
        if matches!(scope, Scope::Container(_)) && !record.cause.restarts() {
            self.scribe(scope).forget();
        }
    }

    /// Ends the driving, not the terminations: a successor goes on with them.
    pub(crate) async fn leave(self) {
        for scribe in self.scribes.into_values() {
            scribe.close().await;
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
pub(super) mod tests;
