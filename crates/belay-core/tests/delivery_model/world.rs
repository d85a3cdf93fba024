//! The world around the machine: what is durable, what is on its way, and what really happened.

mod truth;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use belay_core::delivery::{
    Conclusion, Delivery, Effect, Entry, Event, Facts, Outcome, Outlook, Record, Retry, Trace,
    Verdict, View, attempt_id, open,
};

/// The deadline; before it the clock shows 0, after it 10.
const DEADLINE: i64 = 10;

/// How often each fault may happen, so that the number of states stays finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Limits {
    pub(crate) crashes: u8,
    pub(crate) restarts: u8,
    pub(crate) shim_kills: u8,
    pub(crate) journal_losses: u8,
    pub(crate) deletions: u8,
    pub(crate) rivals: u8,
    /// Whether a finalizer holds a deleted object back.
    pub(crate) finalizer: bool,
    /// How often an action fails; where that is not never, it is tried again.
    pub(crate) failures: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Ending {
    Ours(Conclusion),
    Controllers,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Object {
    version: u8,
    claim: Option<Record>,
    foreign: bool,
    ending: Option<Ending>,
    deleting: bool,
    gone: bool,
}

impl Object {
    fn view(&self) -> View {
        if self.gone {
            View::Gone
        } else if self.ending.is_some() {
            View::Final
        } else if self.foreign {
            View::Foreign
        } else if self.deleting {
            View::Deleting(self.claim.clone())
        } else {
            self.claim.clone().map_or(View::Unclaimed, View::Ours)
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Attempt {
    Running,
    Ended(Outcome),
    Lost,
}

/// A request on its way to the server. It outlives the agent that sent it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Request {
    /// Which life of the agent sent it.
    life: u8,
    /// The version it is conditional on.
    version: u8,
    body: Body,
}

/// Ordered by its text only, so that it can stand in a set.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Body {
    Claim,
    Report,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Agent {
    delivery: Delivery,
    /// The version of the object that it has read last.
    read: u8,
    /// The newest journal write that is not on disk yet.
    unsynced: Option<(u32, Record)>,
    /// Containers that wait for a slot.
    queue: BTreeSet<String>,
    mail: Vec<Event>,
}

/// One thing that can happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    Start,
    Crash,
    Land(Request),
    Sync,
    Mail(Event),
    Slot(String),
    ActionEnds(String),
    ActionFails(String),
    Tick,
    ShimDies(String),
    ContainerRestarts(String),
    TimePasses,
    Delete,
    RivalClaims,
    ControllerEnds,
    LoseJournal,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    limits: Limits,
    /// Whether what failed is tried again.
    pub(crate) retries: bool,
    containers: BTreeMap<String, bool>,
    object: Object,
    journal: Option<Record>,
    attempts: BTreeMap<(String, u32), Attempt>,
    incarnation: BTreeMap<String, u8>,
    requests: BTreeSet<Request>,
    /// What the requests of an agent's life carried.
    sent: BTreeMap<Request, Sent>,
    late: bool,
    life: u8,
    agent: Option<Agent>,
    /// What really happened: starts per container, and whether one ran to its end.
    runs: BTreeMap<String, u32>,
    ran_out: BTreeSet<String>,
    succeeded: BTreeSet<String>,
    recorded: BTreeSet<String>,
    claim_landed: bool,
    followed: bool,
    broken_start: Option<&'static str>,
    broken_result: Option<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Sent {
    Claim(Record),
    Report(Conclusion),
}

fn ended(verdict: Verdict) -> Outcome {
    Outcome {
        started: Some(1),
        ..Outcome::unstarted(verdict, 2)
    }
}

impl World {
    pub(crate) fn new(containers: &[(&str, bool)], limits: Limits) -> Self {
        World {
            limits,
            retries: limits.failures > 0,
            containers: containers
                .iter()
                .map(|(name, traceable)| ((*name).to_owned(), *traceable))
                .collect(),
            object: Object::default(),
            journal: None,
            attempts: BTreeMap::new(),
            incarnation: containers
                .iter()
                .map(|(name, _)| ((*name).to_owned(), 1))
                .collect(),
            requests: BTreeSet::new(),
            sent: BTreeMap::new(),
            late: false,
            life: 0,
            agent: None,
            runs: BTreeMap::new(),
            ran_out: BTreeSet::new(),
            succeeded: BTreeSet::new(),
            recorded: BTreeSet::new(),
            claim_landed: false,
            followed: false,
            broken_start: None,
            broken_result: None,
        }
    }

    pub(crate) fn broken_start(&self) -> Option<&'static str> {
        self.broken_start
    }

    pub(crate) fn broken_result(&self) -> Option<&'static str> {
        self.broken_result
    }

    pub(crate) fn has_succeeded(&self) -> bool {
        matches!(&self.object.ending, Some(Ending::Ours(conclusion)) if conclusion.succeeded())
    }

    pub(crate) fn was_followed(&self) -> bool {
        self.followed
    }

    /// The object has its end, and nothing of the delivery is left on the node.
    pub(crate) fn is_resolved(&self) -> bool {
        let object = &self.object;
        let ended = object.ending.is_some() || object.foreign || object.gone;
        ended
            && self.journal.is_none()
            && !self
                .attempts
                .values()
                .any(|attempt| *attempt == Attempt::Running)
            && self
                .agent
                .as_ref()
                .is_some_and(|agent| agent.delivery.is_over())
    }

    pub(crate) fn actions(&self) -> Vec<Act> {
        let mut acts = Vec::new();
        acts.extend(self.requests.iter().cloned().map(Act::Land));
        match &self.agent {
            None => {
                acts.push(Act::Start);
                if self.limits.journal_losses > 0 && self.journal.is_some() {
                    acts.push(Act::LoseJournal);
                }
            }
            Some(agent) => {
                if agent.unsynced.is_some() {
                    acts.push(Act::Sync);
                }
                acts.extend(agent.mail.iter().cloned().map(Act::Mail));
                acts.extend(agent.queue.iter().cloned().map(Act::Slot));
                if self.limits.crashes > 0 {
                    acts.push(Act::Crash);
                }
                if self.retries && agent.delivery.pause(self.now().into()) == Some(Duration::ZERO) {
                    acts.push(Act::Tick);
                }
            }
        }
        for ((container, _), attempt) in &self.attempts {
            if *attempt == Attempt::Running {
                acts.push(Act::ActionEnds(container.clone()));
                if self.limits.failures > 0 {
                    acts.push(Act::ActionFails(container.clone()));
                }
                if self.limits.shim_kills > 0 {
                    acts.push(Act::ShimDies(container.clone()));
                }
            }
        }
        if self.limits.restarts > 0 {
            acts.extend(self.containers.keys().cloned().map(Act::ContainerRestarts));
        }
        if !self.late {
            acts.push(Act::TimePasses);
        } else if self.object.ending.is_none() && !self.object.gone && !self.object.foreign {
            // Also while the agent lives: the controller may only have lost sight of it.
            acts.push(Act::ControllerEnds);
        }
        if self.limits.deletions > 0 && !self.object.gone {
            acts.push(Act::Delete);
        }
        if self.limits.rivals > 0 && self.object.view() == View::Unclaimed {
            acts.push(Act::RivalClaims);
        }
        acts
    }

    pub(crate) fn act(&mut self, act: Act) {
        match act {
            Act::Start => self.start(),
            Act::Crash => {
                self.limits.crashes -= 1;
                self.agent = None;
            }
            Act::Land(request) => self.land(&request),
            Act::Sync => {
                if let Some((seq, record)) =
                    self.agent.as_mut().and_then(|agent| agent.unsynced.take())
                {
                    for (container, entry) in &record.entries {
                        if entry.outcome.is_some() {
                            self.recorded.insert(container.clone());
                        }
                    }
                    self.journal = Some(record);
                    self.mail(Event::Journalled { seq });
                }
            }
            Act::Mail(event) => {
                if let Some(agent) = &mut self.agent
                    && let Some(at) = agent.mail.iter().position(|mail| *mail == event)
                {
                    agent.mail.remove(at);
                }
                self.feed(event);
            }
            Act::Slot(container) => {
                if let Some(agent) = &mut self.agent {
                    agent.queue.remove(&container);
                }
                self.feed(Event::Slot { container });
            }
            Act::ActionEnds(container) => {
                self.end_running(&container, Attempt::Ended(ended(Verdict::Succeeded)));
            }
            Act::ActionFails(container) => {
                self.limits.failures -= 1;
                self.end_running(
                    &container,
                    Attempt::Ended(ended(Verdict::Exited { code: 1 })),
                );
            }
            Act::Tick => self.feed(Event::Tick),
            Act::ShimDies(container) => {
                self.limits.shim_kills -= 1;
                self.end_running(&container, Attempt::Lost);
            }
            Act::ContainerRestarts(container) => {
                self.limits.restarts -= 1;
                self.end_running(
                    &container,
                    Attempt::Ended(ended(Verdict::Signaled { signal: 9 })),
                );
                if let Some(incarnation) = self.incarnation.get_mut(&container) {
                    *incarnation += 1;
                }
            }
            Act::TimePasses => {
                self.late = true;
                self.mail(Event::Tick);
            }
            Act::Delete => {
                self.limits.deletions -= 1;
                self.object.version += 1;
                if self.limits.finalizer {
                    self.object.deleting = true;
                } else {
                    self.object.gone = true;
                }
                self.mail(Event::Seen(self.object.view()));
            }
            Act::RivalClaims => {
                self.limits.rivals -= 1;
                self.object.version += 1;
                self.object.foreign = true;
                self.mail(Event::Seen(View::Foreign));
            }
            Act::ControllerEnds => {
                self.object.version += 1;
                self.object.ending = Some(Ending::Controllers);
                self.mail(Event::Seen(View::Final));
            }
            Act::LoseJournal => {
                self.limits.journal_losses -= 1;
                self.journal = None;
                self.recorded.clear();
            }
        }
    }

    fn now(&self) -> i64 {
        if self.late { DEADLINE } else { 0 }
    }

    fn mail(&mut self, event: Event) {
        if let Some(agent) = &mut self.agent
            && !agent.delivery.is_over()
            && !agent.mail.contains(&event)
        {
            agent.mail.push(event);
        }
    }

    fn plan(&self) -> Record {
        Record {
            pod_uid: "p".into(),
            entries: self
                .containers
                .iter()
                .map(|(name, traceable)| {
                    (
                        name.clone(),
                        Entry::planned(Some(self.id(name)), *traceable),
                    )
                })
                .collect(),
        }
    }

    fn id(&self, container: &str) -> String {
        format!("{container}{}", self.incarnation[container])
    }

    fn start(&mut self) {
        self.life += 1;
        let facts = Facts {
            view: self.object.view(),
            journal: self.journal.clone(),
            outlook: Outlook::Run(self.plan()),
            deadline: DEADLINE,
            // Pauses are over at once; the time is over when everything is late.
            retry: self.retries.then_some(Retry {
                timeout: Duration::from_millis(DEADLINE.unsigned_abs()),
                first_pause: Duration::ZERO,
                longest_pause: Duration::ZERO,
            }),
        };
        let (delivery, effects) = open(facts, self.now());
        self.agent = Some(Agent {
            delivery,
            read: self.object.version,
            unsynced: None,
            queue: BTreeSet::new(),
            mail: Vec::new(),
        });
        self.carry_out(effects);
    }

    fn feed(&mut self, event: Event) {
        let now = self.now();
        if let Some(agent) = &mut self.agent {
            let (delivery, effects) = agent.delivery.clone().next(event, now);
            agent.delivery = delivery;
            if agent.delivery.is_over() {
                agent.mail.clear();
                agent.queue.clear();
            }
            self.carry_out(effects);
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let life = self.life;
            match effect {
                Effect::Claim(record) => self.send(Body::Claim, Sent::Claim(record), life),
                Effect::Report(conclusion) => {
                    self.send(Body::Report, Sent::Report(conclusion), life);
                }
                Effect::Journal { seq, record } => {
                    if let Some(agent) = &mut self.agent {
                        agent.unsynced = Some((seq, record));
                    }
                }
                Effect::Find { container, attempt } => {
                    let trace = self.trace(&container, attempt);
                    let same_incarnation = self.same_incarnation(&container);
                    self.mail(Event::Found {
                        container,
                        attempt,
                        trace,
                        same_incarnation,
                    });
                }
                Effect::Queue { container } => {
                    if let Some(agent) = &mut self.agent {
                        agent.queue.insert(container);
                    }
                }
                Effect::Start { container, attempt } => self.start_action(container, attempt),
                Effect::Follow { container, attempt } => {
                    self.followed = true;
                    // It may have ended since it was found.
                    match self.attempts.get(&(container.clone(), attempt)) {
                        Some(Attempt::Ended(outcome)) => {
                            let outcome = outcome.clone();
                            self.mail(Event::Ended {
                                container,
                                attempt,
                                outcome,
                            });
                        }
                        Some(Attempt::Lost) | None => {
                            let same_incarnation = self.same_incarnation(&container);
                            self.mail(Event::Found {
                                container,
                                attempt,
                                trace: Trace::Lost,
                                same_incarnation,
                            });
                        }
                        Some(Attempt::Running) => {}
                    }
                }
                Effect::Cancel { container } => {
                    let outcome = ended(Verdict::Cancelled { survivors: vec![] });
                    self.end_running(&container, Attempt::Ended(outcome));
                }
                Effect::Discard { container, attempt } => {
                    self.attempts.remove(&(container, attempt));
                }
                Effect::Audit { .. } | Effect::Progress => {}
                Effect::Forget(_) => {
                    self.journal = None;
                    if let Some(agent) = &mut self.agent {
                        agent.unsynced = None;
                    }
                    self.attempts
                        .retain(|_, attempt| *attempt == Attempt::Running);
                }
            }
        }
    }

    fn send(&mut self, body: Body, sent: Sent, life: u8) {
        let Some(agent) = &self.agent else { return };
        let request = Request {
            life,
            version: agent.read,
            body,
        };
        self.sent.insert(request.clone(), sent);
        self.requests.insert(request);
    }

    /// A request reaches the server; the answer goes to the agent if it still lives.
    fn land(&mut self, request: &Request) {
        self.requests.remove(request);
        let Some(sent) = self.sent.remove(request) else {
            return;
        };
        let fits = request.version == self.object.version
            && !matches!(self.object.view(), View::Gone | View::Final | View::Foreign);
        let answer = match (fits, sent) {
            (true, Sent::Claim(record)) => {
                self.object.version += 1;
                self.object.claim = Some(record);
                self.claim_landed = true;
                Event::Claimed
            }
            (true, Sent::Report(conclusion)) => {
                self.check_result(&conclusion);
                self.object.version += 1;
                self.object.ending = Some(Ending::Ours(conclusion));
                Event::Reported
            }
            (false, Sent::Claim(_)) => Event::ClaimRefused(self.object.view()),
            (false, Sent::Report(_)) => Event::ReportRefused(self.object.view()),
        };
        if request.life == self.life {
            let version = self.object.version;
            if let Some(agent) = &mut self.agent {
                agent.read = version;
            }
            self.mail(answer);
        }
    }

    fn trace(&self, container: &str, attempt: u32) -> Trace {
        if !self.containers[container] {
            return Trace::Lost;
        }
        match self.attempts.get(&(container.to_owned(), attempt)) {
            None => Trace::NeverStarted,
            Some(Attempt::Running) => Trace::Running,
            Some(Attempt::Ended(outcome)) => Trace::Ended(outcome.clone()),
            Some(Attempt::Lost) => Trace::Lost,
        }
    }

    fn same_incarnation(&self, container: &str) -> bool {
        let recorded = match self.agent.as_ref().map(|agent| agent.delivery.phase()) {
            Some(belay_core::delivery::Phase::Working { legs, .. }) => legs
                .get(container)
                .and_then(|leg| leg.entry.container_id.clone()),
            Some(_) | None => None,
        };
        recorded == Some(self.id(container))
    }

    fn start_action(&mut self, container: String, attempt: u32) {
        if !self.same_incarnation(&container) {
            // The runtime pins a start to its incarnation and refuses it.
            let verdict = Verdict::ContainerRestarted {
                may_have_run: false,
            };
            return self.mail(Event::Refused {
                container,
                attempt,
                verdict,
            });
        }
        let broken = self.judge_start(&container, attempt);
        self.broken_start = self.broken_start.or(broken);
        *self.runs.entry(container.clone()).or_default() += 1;
        if self.containers[&container] {
            assert_eq!(
                attempt_id("u", &container, attempt),
                format!("u.{container}.{attempt}")
            );
            self.attempts.insert((container, attempt), Attempt::Running);
        } else {
            self.ran_out.insert(container.clone());
            let fails = self.limits.failures > 0;
            let verdict = if fails {
                self.limits.failures -= 1;
                Verdict::CheckFailed {
                    message: "503".into(),
                }
            } else {
                self.succeeded.insert(container.clone());
                Verdict::Succeeded
            };
            self.mail(Event::Ended {
                container,
                attempt,
                outcome: ended(verdict),
            });
        }
    }

    fn end_running(&mut self, container: &str, end: Attempt) {
        let running = self
            .attempts
            .iter()
            .find(|((name, _), attempt)| name == container && **attempt == Attempt::Running)
            .map(|(key, _)| key.clone());
        let Some((container, attempt)) = running else {
            return;
        };
        let same_incarnation = self.same_incarnation(&container);
        let event = match &end {
            Attempt::Ended(outcome) => Event::Ended {
                container: container.clone(),
                attempt,
                outcome: outcome.clone(),
            },
            Attempt::Running | Attempt::Lost => Event::Found {
                container: container.clone(),
                attempt,
                trace: Trace::Lost,
                same_incarnation,
            },
        };
        if let Attempt::Ended(outcome) = &end {
            self.ran_out.insert(container.clone());
            if outcome.verdict.succeeded() {
                self.succeeded.insert(container.clone());
            }
        }
        self.attempts.insert((container, attempt), end);
        self.mail(event);
    }
}
