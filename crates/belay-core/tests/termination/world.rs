//! A node with a clock of its own: a runtime that remembers execs, an agent that can be killed, and the plainest possible driver.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use belay_core::termination::{
    Cause, Effect, Event, Hook, HookResult, HookTrace, News, Plan, Record, Termination, begin,
    resume,
};

use crate::actor::Actor;

pub(crate) const BOOT: &str = "boot-1";
/// Machines are never started at 0, so that nothing works by accident.
pub(crate) const START: i64 = 1_000_000;

/// When the agent dies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Death {
    /// At a time, counted from the beginning.
    At(i64),
    /// When it has carried out so many effects.
    After(usize),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Crash {
    pub(crate) death: Death,
    /// How long no agent is there.
    pub(crate) away: i64,
    /// Whether the newest record did not reach the disk, if nothing waited for it.
    pub(crate) record_lost: bool,
    /// Whether the machine boots, too.
    pub(crate) reboot: bool,
}

#[derive(Debug, Clone)]
enum Happening {
    Exit(String),
    HookEnd(String),
    Answer(Event),
    Shrink(i64),
    Die,
    Return,
}

/// A hook as the runtime knows it.
#[derive(Debug, Clone)]
struct Run {
    ends: Option<i64>,
    ended: Option<HookResult>,
}

pub(crate) struct World {
    pub(crate) actors: Vec<Actor>,
    pub(crate) grace: Duration,
    pub(crate) cause: Cause,
    pub(crate) sleep_enabled: bool,
    crash: Option<Crash>,

    pub(crate) now: i64,
    machine: Option<Termination>,
    queue: BTreeMap<(i64, usize), Happening>,
    order: usize,
    carried: usize,
    durable: Option<Record>,
    /// Written, and not known to be on disk.
    written: Option<Record>,
    hooks: BTreeMap<String, Run>,
    asked_grace: Option<Duration>,
    boots: u32,

    pub(crate) exited: BTreeMap<String, i64>,
    pub(crate) hook_starts: BTreeMap<String, u32>,
    pub(crate) returned: Option<i64>,
    pub(crate) begun_again: bool,
    /// Every effect carried out but notices and records, with its time from the beginning.
    pub(crate) log: Vec<String>,
    /// Every notice.
    pub(crate) told: Vec<String>,
    pub(crate) effects: Vec<(i64, Effect)>,
}

pub(crate) fn pod(grace: u64, actors: Vec<Actor>) -> World {
    World {
        actors,
        grace: Duration::from_millis(grace),
        cause: Cause::PodDeleted,
        sleep_enabled: true,
        crash: None,
        now: START,
        machine: None,
        queue: BTreeMap::new(),
        order: 0,
        carried: 0,
        durable: None,
        written: None,
        hooks: BTreeMap::new(),
        asked_grace: None,
        boots: 1,
        exited: BTreeMap::new(),
        hook_starts: BTreeMap::new(),
        returned: None,
        begun_again: false,
        log: Vec::new(),
        told: Vec::new(),
        effects: Vec::new(),
    }
}

impl World {
    /// Somebody asks for another grace at a time, counted from the beginning.
    pub(crate) fn grace_at(mut self, at: i64, grace: i64) -> Self {
        self.put(START + at, Happening::Shrink(grace));
        self
    }
    pub(crate) fn crash(mut self, at: i64, away: i64) -> Self {
        self.crash = Some(Crash {
            death: Death::At(at),
            away,
            record_lost: false,
            reboot: false,
        });
        self
    }
    pub(crate) fn crash_with(mut self, crash: Crash) -> Self {
        self.crash = Some(crash);
        self
    }
    pub(crate) fn machine(&self) -> &Termination {
        self.machine.as_ref().expect("the agent is alive")
    }
    /// Times of exits, counted from the beginning.
    pub(crate) fn gone(&self, name: &str) -> i64 {
        self.exited[name] - START
    }

    fn put(&mut self, at: i64, happening: Happening) {
        self.order += 1;
        self.queue.insert((at, self.order), happening);
    }

    pub(crate) fn plan(&self) -> Plan {
        Plan {
            pod_uid: "pod".to_owned(),
            pod_name: (String::new(), String::new()),
            boot_id: self.boot(),
            cause: self.cause,
            grace: self.grace,
            sleep_enabled: self.sleep_enabled,
            containers: self.actors.iter().map(Actor::container).collect(),
            running: self.running(),
            counted: BTreeSet::new(),
        }
    }

    fn boot(&self) -> String {
        format!("boot-{}", self.boots)
    }

    fn running(&self) -> BTreeSet<String> {
        self.actors
            .iter()
            .filter(|actor| actor.running && !self.exited.contains_key(&actor.name))
            .map(|actor| format!("{}-1", actor.name))
            .collect()
    }

    fn actor(&self, name: &str) -> Actor {
        let found = self.actors.iter().find(|actor| actor.name == name);
        found.expect("known").clone()
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(mut self) -> Self {
        for actor in self.actors.clone() {
            if let Some(at) = actor.exits_at {
                self.put(START + at, Happening::Exit(actor.name.clone()));
            }
        }
        if let Some(Crash {
            death: Death::At(at),
            ..
        }) = self.crash
        {
            self.put(START + at, Happening::Die);
        }
        let (machine, effects) = begin(self.plan(), Vec::new(), self.now);
        self.machine = Some(machine);
        self.carry_out(effects);
        while let Some((at, happening)) = self.next() {
            assert!(at >= self.now, "time runs forward");
            assert!(at < START + 10_000_000, "it never ends: {:#?}", self.log);
            self.now = at;
            self.happen(happening);
        }
        assert!(self.machine().is_over(), "stuck: {:#?}", self.log);
        self
    }

    fn next(&mut self) -> Option<(i64, Happening)> {
        let wake = self.machine.as_ref().and_then(Termination::next_wake);
        let first = self.queue.keys().next().copied();
        match (first, wake) {
            (Some((at, order)), wake) if wake.is_none_or(|wake| at <= wake) => {
                let happening = self.queue.remove(&(at, order));
                happening.map(|happening| (at, happening))
            }
            (_, Some(wake)) => Some((wake.max(self.now), Happening::Answer(Event::Tick))),
            (_, None) => None,
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Exit(name) => self.exit(&name),
            Happening::HookEnd(name) => {
                let (now, actor) = (self.now, self.actor(&name));
                let run = self.hooks.get_mut(&name).expect("started");
                if run.ended.is_none() && run.ends == Some(now) {
                    let (_, result) = actor.hook_ends.expect("ends");
                    run.ended = Some(result.clone());
                    self.news(&name, News::HookEnded(result));
                }
            }
            Happening::Answer(event) => self.event(event),
            Happening::Shrink(grace) => {
                let grace = Duration::from_millis(grace.unsigned_abs());
                self.asked_grace = Some(grace);
                self.event(Event::GraceChanged { grace });
            }
            Happening::Die => self.die(),
            Happening::Return => self.come_back(),
        }
    }

    fn exit(&mut self, name: &str) {
        if self.exited.contains_key(name) || !self.actor(name).running {
            return;
        }
        self.exited.insert(name.to_owned(), self.now);
        self.line(name, "is gone");
        self.news(name, News::Exited);
    }

    fn line(&mut self, name: &str, what: &str) {
        self.log.push(format!("{} {name} {what}", self.now - START));
    }

    fn news(&mut self, name: &str, news: News) {
        self.event(Event::Of {
            container: name.to_owned(),
            news,
        });
    }

    fn answer(&mut self, container: String, news: News) {
        self.put(self.now, Happening::Answer(Event::Of { container, news }));
    }

    fn event(&mut self, event: Event) {
        let Some(machine) = self.machine.take() else {
            return;
        };
        let graces = graces(machine.record());
        let was_over = machine.is_over();
        let (machine, effects) = machine.next(event, self.now);
        assert!(!was_over || effects.is_empty(), "over is over");
        let grown = graces
            .iter()
            .zip(self::graces(machine.record()))
            .any(|(old, new)| new > *old);
        assert!(!grown, "a grace has grown");
        self.machine = Some(machine);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.effects.push((self.now, effect.clone()));
            self.act(effect);
            self.carried += 1;
            if let Some(Crash {
                death: Death::After(count),
                ..
            }) = self.crash
                && self.carried == count
            {
                return self.die();
            }
        }
    }

    fn act(&mut self, effect: Effect) {
        match effect {
            Effect::Journal(record) => {
                let text = serde_json::to_string(&record).expect("JSON");
                assert_eq!(serde_json::from_str::<Record>(&text).expect("JSON"), record);
                if let Some(older) = self.written.replace(record) {
                    self.durable = Some(older);
                }
            }
            Effect::RunHook {
                container, attempt, ..
            } => {
                assert_eq!(attempt, format!("{container}-1.prestop"));
                self.line(&container, "hook");
                self.alive(&container);
                // The hook waits for the record.
                if let Some(written) = self.written.take() {
                    self.durable = Some(written);
                }
                if self.hooks.contains_key(&container) {
                    return;
                }
                *self.hook_starts.entry(container.clone()).or_default() += 1;
                let ends = self.actor(&container).hook_ends;
                let ends = ends.map(|(after, _)| self.now + after);
                self.hooks
                    .insert(container.clone(), Run { ends, ended: None });
                if let Some(at) = ends {
                    self.put(at, Happening::HookEnd(container));
                }
            }
            Effect::FindHook { container, .. } => {
                self.line(&container, "find hook");
                let trace = match self.hooks.get(&container) {
                    None => HookTrace::NeverStarted,
                    Some(Run { ended: None, .. }) => HookTrace::Running,
                    Some(Run {
                        ended: Some(result),
                        ..
                    }) => HookTrace::Ended(result.clone()),
                };
                self.answer(container, News::HookFound(trace));
            }
            Effect::CancelHook { container, .. } => {
                self.line(&container, "cancel hook");
                let survivors = Vec::new();
                let killed = HookResult::Killed { survivors };
                let run = self.hooks.entry(container.clone()).or_insert(Run {
                    ends: None,
                    ended: None,
                });
                let result = run.ended.get_or_insert(killed).clone();
                self.answer(container, News::HookEnded(result));
            }
            Effect::Signal { container, signal } => {
                self.line(&container, &signal);
                self.alive(&container);
                let index = self.actors.iter().position(|a| a.name == container);
                let actor = &mut self.actors[index.expect("known")];
                if actor.refusals > 0 {
                    actor.refusals -= 1;
                    let message = "the runtime is away".to_owned();
                    return self.answer(container, News::SignalFailed { message });
                }
                let exits = actor.exits_after;
                self.answer(container.clone(), News::SignalSent);
                if let Some(after) = exits {
                    self.put(self.now + after, Happening::Exit(container));
                }
            }
            Effect::Kill { container } => {
                self.line(&container, "KILL");
                let survivors = self.actor(&container).survivors;
                if survivors.is_empty() {
                    self.put(self.now, Happening::Exit(container.clone()));
                }
                self.answer(container, News::Killed { survivors });
            }
            Effect::Tell { container, notice } => {
                let at = self.now - START;
                let text = notice.message(&container);
                self.told.push(format!("{at} {}: {text}", notice.reason()));
            }
            Effect::SleepEndedEarly { reason } => {
                let at = self.now - START;
                let reason = reason.as_str();
                self.log.push(format!("{at} sleep ended early: {reason}"));
            }
            Effect::Done => self.log.push(format!("{} done", self.now - START)),
        }
    }

    /// Signals and hooks are for the living.
    fn alive(&self, container: &str) {
        let dead = self.exited.contains_key(container) || !self.actor(container).running;
        assert!(!dead, "{container} is gone: {:#?}", self.log);
    }

    fn die(&mut self) {
        let Some(crash) = self.crash.take() else {
            return;
        };
        if self.machine.take().is_none() {
            return;
        }
        self.log
            .push(format!("{} the agent dies", self.now - START));
        if !crash.record_lost
            && let Some(written) = self.written.take()
        {
            self.durable = Some(written);
        }
        self.written = None;
        // What was on its way to the agent is lost, what happens to containers is not.
        self.queue
            .retain(|_, happening| !matches!(happening, Happening::Answer(_)));
        // An HTTP hook ends with the agent.
        for (name, run) in &mut self.hooks {
            let actor = self.actors.iter().find(|actor| actor.name == *name);
            if actor.is_some_and(|actor| actor.hook != Some(Hook::Exec)) {
                run.ends = None;
            }
        }
        if crash.reboot {
            self.boots += 1;
            for actor in &self.actors {
                self.exited.entry(actor.name.clone()).or_insert(self.now);
            }
        }
        self.put(self.now + crash.away, Happening::Return);
    }

    fn come_back(&mut self) {
        self.returned = Some(self.now);
        self.log
            .push(format!("{} the agent is back", self.now - START));
        let (machine, effects) = match self.durable.clone() {
            Some(record) => {
                let before = graces(&record);
                let (machine, effects) = resume(record, &self.boot(), &self.running(), self.now);
                assert_eq!(
                    before,
                    graces(machine.record()),
                    "a restart changes no grace"
                );
                (machine, effects)
            }
            None => {
                self.begun_again = true;
                begin(self.plan(), Vec::new(), self.now)
            }
        };
        self.machine = Some(machine);
        self.carry_out(effects);
        // The pod is seen as it is now.
        if let Some(grace) = self.asked_grace {
            self.event(Event::GraceChanged { grace });
        }
    }
}

/// When each container's grace ends.
fn graces(record: &Record) -> Vec<(i64, Duration)> {
    let legs = record.legs.iter();
    legs.map(|leg| (leg.began, leg.grace)).collect()
}
