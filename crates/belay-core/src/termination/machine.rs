//! The machine: the pod as a whole. What one container does is in `leg`, `hook` and `signal`; the
//! prose is in the module above.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Container, Early, Effect, Event, Leg, News, Plan, Record, Role};
use crate::clock::LocalMillis;

/// One termination under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Termination {
    pub(super) record: Record,
}

/// What one step brings about.
#[derive(Debug)]
pub(super) struct Out {
    pub(super) effects: Vec<Effect>,
    pub(super) counted: BTreeSet<Early>,
}

impl Out {
    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Counts a sleep that ended early, unless one of this pod was counted for the same reason.
    pub(super) fn count(&mut self, reason: Early) {
        if self.counted.insert(reason) {
            self.push(Effect::SleepEndedEarly { reason });
        }
    }
}

/// Begins to stop a pod, or one container.
///
/// `under_way` are terminations of single containers of this pod that are not over. They are taken
/// over: what was done is not done again, and nobody's grace grows. Their entries in the journal
/// can go when the first record of this one is on disk.
pub fn begin(
    plan: Plan,
    under_way: Vec<Termination>,
    now: LocalMillis,
) -> (Termination, Vec<Effect>) {
    let mut out = Out {
        effects: Vec::new(),
        counted: plan.counted,
    };
    let mut known: Vec<Leg> = Vec::new();
    for earlier in under_way {
        out.counted.extend(&earlier.record.counted);
        known.extend(earlier.record.legs);
    }
    let mut legs = Vec::with_capacity(plan.containers.len());
    for container in plan.containers {
        let leg = match known
            .iter()
            .position(|leg| leg.container.id == container.id)
        {
            Some(index) => {
                let mut leg = known.swap_remove(index);
                leg.container.role = container.role;
                leg.log_begin(plan.cause, now);
                leg.shrink(now, plan.grace, now);
                leg
            }
            None => {
                let running = plan.running.contains(&container.id);
                let mut leg = Leg::new(container, plan.grace, now);
                leg.start(plan.cause, running, plan.sleep_enabled, now, &mut out);
                leg
            }
        };
        legs.push(leg);
    }
    let termination = Termination {
        record: Record {
            pod_uid: plan.pod_uid,
            pod_name: plan.pod_name,
            boot_id: plan.boot_id,
            cause: plan.cause,
            began: now,
            legs,
            counted: BTreeSet::new(),
        },
    };
    termination.finish(None, out, now)
}

impl Termination {
    /// What is recorded of it now.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The part of one container.
    pub fn leg(&self, container: &str) -> Option<&Leg> {
        self.record
            .legs
            .iter()
            .find(|leg| leg.container.name == container)
    }

    /// Whether nothing is left to do.
    pub fn is_over(&self) -> bool {
        self.record.legs.iter().all(Leg::is_finished)
    }

    /// When to send the next [`Event::Tick`], if nothing happens before.
    pub fn next_wake(&self) -> Option<LocalMillis> {
        self.record.legs.iter().filter_map(Leg::next_wake).min()
    }

    /// When the last container is dead at the latest, as far as this machine decides.
    pub fn deadline(&self) -> Option<LocalMillis> {
        self.record.legs.iter().filter_map(Leg::latest).max()
    }

    /// One step. Events that mean nothing in the present state change nothing.
    pub fn next(mut self, event: Event, now: LocalMillis) -> (Termination, Vec<Effect>) {
        if self.is_over() {
            return self.afterwards(event, now);
        }
        let before = self.record.clone();
        let mut out = self.out();
        match event {
            Event::Of { container, news } => {
                if let Some(leg) = self.leg_mut(&container) {
                    leg.hear(news, now, &mut out);
                }
            }
            Event::GraceChanged { grace } => {
                // From the beginning of this termination, as the API server counts: a container
                // whose own end began earlier has to be gone at the same moment.
                for leg in &mut self.record.legs {
                    leg.shrink(self.record.began, grace, now);
                }
            }
            Event::Tick => {}
        }
        self.finish(Some(&before), out, now)
    }

    /// Over is over; only that a signal was sent is still told when it is known too late.
    fn afterwards(mut self, event: Event, now: LocalMillis) -> (Termination, Vec<Effect>) {
        let mut out = self.out();
        if let Event::Of {
            container,
            news: News::SignalSent,
        } = event
            && let Some(leg) = self.leg_mut(&container)
        {
            leg.hear(News::SignalSent, now, &mut out);
        }
        self.record.counted = out.counted;
        (self, out.effects)
    }

    fn leg_mut(&mut self, container: &str) -> Option<&mut Leg> {
        let legs = &mut self.record.legs;
        legs.iter_mut().find(|leg| leg.container.name == container)
    }

    /// Takes in a container that runs since after the beginning: its start was under way then.
    ///
    /// It is none too late for what is left of the pod's `grace`, which counts from the beginning
    /// of this termination, and gets no more than that.
    pub fn join(
        mut self,
        container: Container,
        grace: Duration,
        sleep_enabled: bool,
        now: LocalMillis,
    ) -> (Termination, Vec<Effect>) {
        let before = self.record.clone();
        let mut out = self.out();
        let mut leg = Leg::new(container, grace, self.record.began);
        leg.start(self.record.cause, true, sleep_enabled, now, &mut out);
        // An incarnation before it has ended, or this one could not have been started.
        match self.leg_mut(&leg.container.name) {
            Some(old) => *old = leg,
            None => self.record.legs.push(leg),
        }
        self.finish(Some(&before), out, now)
    }

    /// An empty answer that knows what was counted.
    pub(super) fn out(&mut self) -> Out {
        Out {
            effects: Vec::new(),
            counted: std::mem::take(&mut self.record.counted),
        }
    }

    /// Lets time and order have their effect, and writes down what changed since `before`.
    pub(super) fn finish(
        mut self,
        before: Option<&Record>,
        mut out: Out,
        now: LocalMillis,
    ) -> (Termination, Vec<Effect>) {
        // Nothing in here ends a container, so what one sees of the others stays true.
        let turns: Vec<bool> = (0..self.record.legs.len())
            .map(|index| self.has_turn(index))
            .collect();
        for (leg, turn) in self.record.legs.iter_mut().zip(turns) {
            leg.settle(turn, now, &mut out);
        }
        self.record.counted = out.counted;
        if before != Some(&self.record) {
            out.effects.insert(0, Effect::Journal(self.record.clone()));
        }
        if self.is_over() {
            out.effects.push(Effect::Done);
        }
        (self, out.effects)
    }

    /// Whether everything has ended that the container at `index` serves.
    fn has_turn(&self, index: usize) -> bool {
        self.record
            .legs
            .iter()
            .enumerate()
            .filter(|(other, leg)| *other > index || leg.container.role == Role::Main)
            .filter(|(other, _)| *other != index)
            .all(|(_, leg)| leg.has_ended())
    }
}
