//! The world of the model. Container 0 is the sidecar, container 1 the one it serves.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use belay_core::termination::{
    Cause, Container, Effect, Event, FLOOR, Hook, HookResult, HookTrace, News, Plan, Record, Role,
    Sending, Stage, Termination, begin, resume,
};

const NAMES: [&str; 2] = ["proxy", "app"];
const BOOT: &str = "boot";
const START: i64 = 100_000;
const SECOND: i64 = 1000;
/// No model needs more: grace, floor and absence fit.
const END: i64 = START + 5 * SECOND;
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    /// The agent carries out its next effect.
    Carry,
    /// A container ends, for whatever reason.
    Exit(usize),
    /// A hook ends by itself.
    HookEnd(usize),
    /// An answer arrives.
    SignalSent(usize),
    SignalFailed(usize),
    Killed(usize),
    Cancelled(usize),
    Found(usize),
    /// Somebody shortens the grace to so many seconds.
    Shrink(u8),
    Second,
    /// The agent dies; whether the newest record has reached the disk.
    Die {
        synced: bool,
    },
    Return,
}

/// A hook as the runtime knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Run {
    Never,
    Running,
    Ended,
    /// Nobody remembers it.
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Life {
    hook: Option<Hook>,
    alive: bool,
    run: Run,
    starts: u8,
    /// What the agent waits for.
    signalling: bool,
    killing: bool,
    cancelling: bool,
    finding: bool,
    /// What was done to it.
    signalled: bool,
    killed: bool,
}

/// A termination without its history, which no decision depends on.
#[derive(Debug, Clone)]
struct Bare(Termination);

impl Bare {
    fn state(&self) -> impl Iterator<Item = (&Stage, bool, i64, Duration)> {
        let legs = self.0.record().legs.iter();
        legs.map(|leg| (&leg.stage, leg.stray_hook, leg.began, leg.grace))
    }
}

impl PartialEq for Bare {
    fn eq(&self, other: &Self) -> bool {
        self.state().eq(other.state())
    }
}

impl Hash for Bare {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state().for_each(|leg| leg.hash(state));
    }
}

fn bare(record: &Record) -> Record {
    let mut record = record.clone();
    record.legs.iter_mut().for_each(|leg| leg.steps.clear());
    record
}

#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) struct World {
    now: i64,
    machine: Option<Bare>,
    todo: Vec<Effect>,
    written: Option<Record>,
    durable: Option<Record>,
    lives: [Life; 2],
    /// When the grace ends that everybody was promised.
    grace_ends: i64,
    asked: Option<Duration>,
    /// When the agent came back last.
    back: Option<i64>,
    crashes: u8,
    refusals: u8,
    pub(crate) broken: Option<String>,
}

/// What is told and counted changes nothing in this world.
fn acted(effects: Vec<Effect>) -> Vec<Effect> {
    let quiet =
        |effect: &Effect| matches!(effect, Effect::Tell { .. } | Effect::SleepEndedEarly { .. });
    effects
        .into_iter()
        .filter(|effect| !quiet(effect))
        .map(|effect| match effect {
            Effect::Journal(record) => Effect::Journal(bare(&record)),
            other => other,
        })
        .collect()
}

impl World {
    pub(crate) fn new(hook: Option<Hook>, served: bool, crashes: u8, refusals: u8) -> Self {
        let life = |hook, alive| Life {
            hook,
            alive,
            run: Run::Never,
            starts: 0,
            signalling: false,
            killing: false,
            cancelling: false,
            finding: false,
            killed: false,
            signalled: false,
        };
        let mut world = World {
            now: START,
            machine: None,
            todo: Vec::new(),
            written: None,
            durable: None,
            lives: [life(served.then_some(Hook::Exec), served), life(hook, true)],
            grace_ends: 0,
            asked: None,
            back: None,
            crashes,
            refusals,
            broken: None,
        };
        world.begin();
        world
    }

    pub(crate) fn is_over(&self) -> bool {
        self.machine.as_ref().is_some_and(|m| m.0.is_over()) && self.todo.is_empty()
    }

    pub(crate) fn was_killed(&self) -> bool {
        self.is_over() && self.lives.iter().any(|life| life.killed)
    }

    pub(crate) fn was_obeyed(&self) -> bool {
        self.is_over() && self.lives[1].signalled && self.lives.iter().all(|life| !life.killed)
    }

    /// Whoever lives has time left, or is being killed, or there is no agent.
    pub(crate) fn is_in_time(&self) -> bool {
        let floor = i64::try_from(FLOOR.as_millis()).expect("short");
        let latest = self.grace_ends.max(self.back.unwrap_or(0)) + floor;
        self.machine.is_none()
            || !self.todo.is_empty()
            || self.now < latest
            || self.lives.iter().all(|life| !life.alive || life.killing)
    }

    pub(crate) fn actions(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        let here = self.machine.is_some();
        if self.is_over() {
            return acts;
        }
        for (index, life) in self.lives.iter().enumerate() {
            if life.alive {
                acts.push(Act::Exit(index));
            }
            if life.run == Run::Running {
                acts.push(Act::HookEnd(index));
            }
        }
        match (here, self.todo.is_empty()) {
            (false, _) => acts.push(Act::Return),
            (true, false) => acts.push(Act::Carry),
            (true, true) => {
                for (index, life) in self.lives.iter().enumerate() {
                    if life.signalling {
                        acts.push(Act::SignalSent(index));
                        if self.refusals > 0 {
                            acts.push(Act::SignalFailed(index));
                        }
                    }
                    let answers = [
                        (life.killing, Act::Killed(index)),
                        (life.cancelling, Act::Cancelled(index)),
                        (life.finding, Act::Found(index)),
                    ];
                    acts.extend(answers.iter().filter(|(asked, _)| *asked).map(|a| a.1));
                }
                if self.asked.is_none() {
                    acts.extend([Act::Shrink(0), Act::Shrink(1)]);
                }
            }
        }
        if here && self.crashes > 0 {
            acts.push(Act::Die { synced: true });
            if self.written.is_some() {
                acts.push(Act::Die { synced: false });
            }
        }
        if self.now < END && self.todo.is_empty() {
            acts.push(Act::Second);
        }
        acts
    }

    pub(crate) fn act(&mut self, act: Act) {
        match act {
            Act::Carry => {
                let effect = self.todo.remove(0);
                self.carry(effect);
            }
            Act::Exit(index) => {
                self.lives[index].alive = false;
                self.news(index, News::Exited);
            }
            Act::HookEnd(index) => {
                self.lives[index].run = Run::Ended;
                self.news(index, News::HookEnded(HookResult::Succeeded));
            }
            Act::SignalSent(index) => {
                self.lives[index].signalling = false;
                self.news(index, News::SignalSent);
            }
            Act::SignalFailed(index) => {
                self.refusals -= 1;
                self.lives[index].signalling = false;
                let message = "refused".to_owned();
                self.news(index, News::SignalFailed { message });
            }
            Act::Killed(index) => {
                self.lives[index].killing = false;
                if self.lives[index].alive {
                    self.lives[index].killed = true;
                    self.lives[index].alive = false;
                }
                let survivors = Vec::new();
                self.news(index, News::Killed { survivors });
            }
            Act::Cancelled(index) => {
                self.lives[index].cancelling = false;
                self.lives[index].run = Run::Ended;
                let survivors = Vec::new();
                self.news(index, News::HookEnded(HookResult::Killed { survivors }));
            }
            Act::Found(index) => {
                self.lives[index].finding = false;
                let trace = match self.lives[index].run {
                    Run::Never => HookTrace::NeverStarted,
                    Run::Running => HookTrace::Running,
                    Run::Ended => HookTrace::Ended(HookResult::Succeeded),
                    Run::Gone => HookTrace::Lost,
                };
                self.news(index, News::HookFound(trace));
            }
            Act::Shrink(seconds) => {
                let grace = Duration::from_secs(seconds.into());
                self.asked = Some(grace);
                self.ask(grace);
            }
            Act::Second => {
                self.now += SECOND;
                self.event(Event::Tick);
            }
            Act::Die { synced } => {
                if synced {
                    self.sync();
                }
                self.die();
            }
            Act::Return => self.come_back(),
        }
    }

    fn begin(&mut self) {
        self.grace_ends = self.now + 2 * SECOND;
        let roles = [Role::Sidecar, Role::Main];
        let container = |index: usize| Container {
            name: NAMES[index].to_owned(),
            id: NAMES[index].to_owned(),
            role: roles[index],
            hook: self.lives[index].hook,
            signal: "SIGTERM".to_owned(),
        };
        let plan = Plan {
            pod_uid: "pod".to_owned(),
            pod_name: (String::new(), String::new()),
            boot_id: BOOT.to_owned(),
            cause: Cause::PodDeleted,
            grace: GRACE,
            sleep_enabled: true,
            containers: (0..2).map(container).collect(),
            running: self.running(),
            counted: BTreeSet::new(),
        };
        let (machine, effects) = begin(plan, Vec::new(), self.now);
        self.machine = Some(Bare(machine));
        self.todo = acted(effects);
    }

    fn running(&self) -> BTreeSet<String> {
        let alive = (0..2).filter(|index| self.lives[*index].alive);
        alive.map(|index| NAMES[index].to_owned()).collect()
    }

    fn ask(&mut self, grace: Duration) {
        let start = self.machine.as_ref().map_or(0, |m| m.0.record().began);
        let millis = i64::try_from(grace.as_millis()).expect("short");
        self.grace_ends = self.grace_ends.min((start + millis).max(self.now));
        self.event(Event::GraceChanged { grace });
    }

    fn news(&mut self, index: usize, news: News) {
        let container = NAMES[index].to_owned();
        self.event(Event::Of { container, news });
    }

    fn event(&mut self, event: Event) {
        if let Some(Bare(machine)) = self.machine.take() {
            let (machine, effects) = machine.next(event, self.now);
            self.machine = Some(Bare(machine));
            self.todo.extend(acted(effects));
        }
    }

    fn sync(&mut self) {
        if let Some(written) = self.written.take() {
            self.durable = Some(written);
        }
    }

    fn carry(&mut self, effect: Effect) {
        let of = |container: &str| usize::from(container == NAMES[1]);
        match effect {
            Effect::Journal(record) => {
                self.sync();
                self.written = Some(bare(&record));
            }
            Effect::RunHook { container, .. } => {
                self.sync();
                let life = &mut self.lives[of(&container)];
                // The driver drops what was cancelled before it could start.
                if life.run == Run::Never && life.alive && !life.cancelling {
                    life.run = Run::Running;
                    life.starts += 1;
                    if life.starts > 1 {
                        self.broken = Some("a hook ran twice".to_owned());
                    }
                }
            }
            Effect::FindHook { container, .. } => self.lives[of(&container)].finding = true,
            Effect::CancelHook { container, .. } => self.lives[of(&container)].cancelling = true,
            Effect::Signal { container, .. } => self.signal(of(&container)),
            Effect::Kill { container } => self.lives[of(&container)].killing = true,
            Effect::Tell { .. } | Effect::SleepEndedEarly { .. } => {}
            Effect::Done => {
                if self.lives.iter().any(|life| life.alive) {
                    self.broken = Some("done, and somebody lives".to_owned());
                }
                let hooks = self.lives.iter().any(|life| life.run == Run::Running);
                if hooks {
                    self.broken = Some("done, and a hook lives".to_owned());
                }
            }
        }
    }

    fn signal(&mut self, index: usize) {
        let stage = self
            .durable
            .as_ref()
            .map(|record| &record.legs[index].stage);
        if matches!(
            stage,
            Some(Stage::Signalled {
                sending: Sending::Sent,
                ..
            })
        ) {
            self.broken = Some("a confirmed signal is repeated".to_owned());
        }
        if index == 0 && self.lives[1].alive && self.now < self.grace_ends {
            self.broken = Some("the sidecar was too early".to_owned());
        }
        self.lives[index].signalling = true;
        self.lives[index].signalled = true;
    }

    fn die(&mut self) {
        self.crashes -= 1;
        self.machine = None;
        self.todo.clear();
        self.written = None;
        for life in &mut self.lives {
            life.signalling = false;
            life.killing = false;
            life.cancelling = false;
            life.finding = false;
            if life.run == Run::Running && life.hook != Some(Hook::Exec) {
                life.run = Run::Gone;
            }
        }
    }

    fn come_back(&mut self) {
        self.back = Some(self.now);
        match self.durable.clone() {
            Some(record) => {
                let (machine, effects) = resume(record, BOOT, &self.running(), self.now);
                self.machine = Some(Bare(machine));
                self.todo = acted(effects);
            }
            None => self.begin(),
        }
        if let Some(grace) = self.asked {
            self.ask(grace);
        }
    }
}
