//! The machine: states, events, effects. The prose is in the module above.

use std::collections::BTreeMap;

use super::{Conclusion, Entry, MAX_ATTEMPTS, Outcome, Record, Verdict};
use crate::clock::ServerMillis;

/// The object as it was last read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum View {
    /// Assigned to this node, and nobody has claimed it.
    Unclaimed,
    /// Claimed by this node; the claim as the object tells it.
    Ours(Record),
    /// Claimed by another executor.
    Foreign,
    /// It has its result.
    Final,
    /// Being deleted and held back by a finalizer; with our claim, if there is one.
    Deleting(Option<Record>),
    /// No such object, or another one of the same name.
    Gone,
}

/// What a fresh claim would be for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outlook {
    /// These containers declare the notifier.
    Run(Record),
    /// The pod cannot be notified.
    Refuse(Verdict),
    /// No container declares it.
    NothingDeclared,
}

/// All that is known when a notification is first met by this process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Facts {
    /// The object.
    pub view: View,
    /// The journal's record.
    pub journal: Option<Record>,
    /// What the pod would allow now.
    pub outlook: Outlook,
    /// The deadline by the server's clock.
    pub deadline: ServerMillis,
}

/// What the runtime knows of an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Trace {
    /// It provably was not started.
    NeverStarted,
    /// It runs; the driver holds on to it.
    Running,
    /// It ended, with this outcome.
    Ended(Outcome),
    /// It was started, or may have been, and is gone without a trace.
    Lost,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// The server acknowledged the claim.
    Claimed,
    /// The server refused the claim; the object as read afterwards.
    ClaimRefused(View),
    /// The journal has everything up to this write on disk.
    Journalled {
        /// The write.
        seq: u32,
    },
    /// The journal could not take the write.
    JournalFailed {
        /// The write.
        seq: u32,
        /// Why.
        message: String,
    },
    /// What the runtime knows of an attempt.
    Found {
        /// The container.
        container: String,
        /// The attempt asked about.
        attempt: u32,
        /// The answer.
        trace: Trace,
        /// Whether the incarnation of the record is the one that runs now.
        same_incarnation: bool,
    },
    /// One of the node's slots is free for this container.
    Slot {
        /// The container.
        container: String,
    },
    /// A running attempt ended, or could not be started.
    Ended {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
        /// What it came to.
        outcome: Outcome,
    },
    /// The object changed.
    Seen(View),
    /// Time has passed.
    Tick,
    /// The server acknowledged the result.
    Reported,
    /// The server refused the result; the object as read afterwards.
    ReportRefused(View),
}

/// What is to be done. Every effect that asks for an answer names the event that brings it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Write the claim, conditional on the version last read: `Claimed` or `ClaimRefused`.
    Claim(Record),
    /// Make the journal say this: `Journalled` or `JournalFailed`. A later one replaces an earlier.
    Journal {
        /// Counts the writes.
        seq: u32,
        /// The whole record.
        record: Record,
    },
    /// Ask the runtime: `Found`.
    Find {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
    },
    /// Wait for a slot: `Slot`.
    Queue {
        /// The container.
        container: String,
    },
    /// Start the action now: `Ended`, or `Found` with `Lost`.
    Start {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
    },
    /// Wait for an attempt that was found running: `Ended`, or `Found` with `Lost`.
    Follow {
        /// The container.
        container: String,
        /// The attempt.
        attempt: u32,
    },
    /// Kill the attempt; its `Ended` follows.
    Cancel {
        /// The container.
        container: String,
    },
    /// One line in the audit log.
    Audit {
        /// The container.
        container: String,
        /// Its entry, with the outcome.
        entry: Entry,
    },
    /// Write the result, conditional on the version last read: `Reported` or `ReportRefused`.
    Report(Conclusion),
    /// Drop the journal entry and the runtime's records of these attempts.
    Forget(Option<Record>),
}

/// What is wanted of the actions, now that the object is as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Aim {
    /// Run them and report.
    Deliver,
    /// Kill them and report.
    Cancel,
    /// Kill them; nobody is left to report to.
    Withdraw,
    /// Start nothing more, let run what runs, do not report.
    Abandon,
}

/// Where one container is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// The runtime is asked.
    Looking {
        /// Whether the attempt asked about is one the journal does not have yet.
        unrecorded: bool,
    },
    /// A repeated attempt is on its way into the journal.
    Recording {
        /// The write that carries it.
        seq: u32,
    },
    /// Waits for a slot.
    Queued,
    /// Started, or found running.
    Running,
    /// Has its outcome.
    Done,
}

/// One container's part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leg {
    /// What the record says of it.
    pub entry: Entry,
    /// Where it is.
    pub step: Step,
}

/// The intent's way into the journal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Intent {
    /// On its way.
    Pending {
        /// The write.
        seq: u32,
    },
    /// On disk.
    Durable,
    /// Refused.
    Failed {
        /// Why.
        message: String,
    },
}

/// Which attempts have to be looked for before anything is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Look {
    /// None: nothing was claimed before.
    Nothing,
    /// Those the runtime remembers: nothing was claimed as far as the object tells, but the journal
    /// knows the notification (the server may have been set back to a backup).
    Traceable,
    /// All: they were claimed, so they may have been started.
    All,
}

/// The states.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Claim and intent are on their way to disk.
    Claiming {
        /// What is claimed.
        record: Record,
        /// Whether the server has acknowledged the claim.
        claimed: bool,
        /// The journal's side.
        intent: Intent,
        /// What to look for afterwards.
        look: Look,
        /// What is wanted.
        aim: Aim,
    },
    /// The containers are at work.
    Working {
        /// The pod.
        pod_uid: String,
        /// Containers by name.
        legs: BTreeMap<String, Leg>,
        /// What is wanted.
        aim: Aim,
    },
    /// The result is on its way to the server.
    Reporting {
        /// The result.
        conclusion: Conclusion,
        /// What the journal may hold.
        record: Option<Record>,
    },
    /// Nothing is left to do.
    Over,
}

/// One notification's delivery.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Delivery {
    deadline: ServerMillis,
    /// Number of the newest journal write.
    seq: u32,
    phase: Phase,
}

/// Decides what a notification needs, first met or met again after a restart.
pub fn open(facts: Facts, now: ServerMillis) -> (Delivery, Vec<Effect>) {
    let mut delivery = Delivery { deadline: facts.deadline, seq: 0, phase: Phase::Over };
    let mut out = Vec::new();
    delivery.open(facts.view, facts.journal, facts.outlook, now, &mut out);
    (delivery, out)
}

impl Delivery {
    /// The present state.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The deadline by the server's clock.
    pub fn deadline(&self) -> ServerMillis {
        self.deadline
    }

    /// Whether nothing is left to do.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// One step. Events that mean nothing in the present state change nothing.
    pub fn next(mut self, event: Event, now: ServerMillis) -> (Delivery, Vec<Effect>) {
        let mut out = Vec::new();
        self.apply(event, now, &mut out);
        (self, out)
    }

    fn late(&self, now: ServerMillis) -> bool {
        now >= self.deadline
    }

    fn open(
        &mut self,
        view: View,
        journal: Option<Record>,
        outlook: Outlook,
        now: ServerMillis,
        out: &mut Vec<Effect>,
    ) {
        match (view, journal) {
            (View::Unclaimed, journal) => self.open_unclaimed(journal, outlook, now, out),
            (View::Ours(claim), None) => self.write_intent(claim, out),
            (View::Ours(claim), Some(journal)) => {
                let record = claim.merge(&journal);
                if record == journal {
                    self.work(record, Look::All, Aim::Deliver, now, out);
                } else {
                    self.write_intent(record, out);
                }
            }
            (View::Deleting(None), journal) => {
                self.report(Conclusion::Refused(Verdict::Cancelled { survivors: vec![] }), journal, out);
            }
            (View::Deleting(Some(claim)), journal) => {
                let record = match &journal {
                    Some(journal) => claim.merge(journal),
                    None => claim,
                };
                self.work(record, Look::All, Aim::Cancel, now, out);
            }
            (View::Foreign | View::Final, Some(journal)) => {
                self.work(journal, Look::All, Aim::Abandon, now, out);
            }
            (View::Gone, Some(journal)) => self.work(journal, Look::All, Aim::Withdraw, now, out),
            (View::Foreign | View::Final | View::Gone, None) => self.phase = Phase::Over,
        }
    }

    fn open_unclaimed(
        &mut self,
        journal: Option<Record>,
        outlook: Outlook,
        now: ServerMillis,
        out: &mut Vec<Effect>,
    ) {
        let (record, look) = match (outlook, &journal) {
            (Outlook::Run(plan), None) => (plan, Look::Nothing),
            (Outlook::Run(plan), Some(journal)) => (plan.merge(journal), Look::Traceable),
            (Outlook::Refuse(verdict), _) => {
                return self.report(Conclusion::Refused(verdict), journal, out);
            }
            (Outlook::NothingDeclared, _) => {
                return self.report(Conclusion::NothingDeclared, journal, out);
            }
        };
        if record.entries.values().all(|entry| entry.outcome.is_some() || entry.container_id.is_none()) {
            // Nothing is left that could start, so there is nothing to claim.
            return self.work(record, look, Aim::Deliver, now, out);
        }
        if self.late(now) {
            return self.report(Conclusion::Refused(Verdict::Expired), journal, out);
        }
        let seq = self.journal(&record, out);
        out.push(Effect::Claim(record.clone()));
        self.phase = Phase::Claiming {
            record,
            claimed: false,
            intent: Intent::Pending { seq },
            look,
            aim: Aim::Deliver,
        };
    }

    /// The claim is ours already; the journal has to catch up before anything starts.
    fn write_intent(&mut self, record: Record, out: &mut Vec<Effect>) {
        let seq = self.journal(&record, out);
        self.phase = Phase::Claiming {
            record,
            claimed: true,
            intent: Intent::Pending { seq },
            look: Look::All,
            aim: Aim::Deliver,
        };
    }

    fn journal(&mut self, record: &Record, out: &mut Vec<Effect>) -> u32 {
        self.seq += 1;
        out.push(Effect::Journal { seq: self.seq, record: record.clone() });
        self.seq
    }

    fn report(&mut self, conclusion: Conclusion, record: Option<Record>, out: &mut Vec<Effect>) {
        out.push(Effect::Report(conclusion.clone()));
        self.phase = Phase::Reporting { conclusion, record };
    }

    fn finish(&mut self, record: Option<Record>, out: &mut Vec<Effect>) {
        out.push(Effect::Forget(record));
        self.phase = Phase::Over;
    }

    fn apply(&mut self, event: Event, now: ServerMillis, out: &mut Vec<Effect>) {
        match (&mut self.phase, event) {
            (Phase::Claiming { claimed, .. }, Event::Claimed) => {
                *claimed = true;
                self.after_claiming(now, out);
            }
            (Phase::Claiming { intent, .. }, Event::Journalled { seq }) => {
                if matches!(intent, Intent::Pending { seq: pending } if *pending <= seq) {
                    *intent = Intent::Durable;
                    self.after_claiming(now, out);
                }
            }
            (Phase::Claiming { intent, .. }, Event::JournalFailed { seq, message }) => {
                if matches!(intent, Intent::Pending { seq: pending } if *pending <= seq) {
                    *intent = Intent::Failed { message };
                    self.after_claiming(now, out);
                }
            }
            (Phase::Claiming { .. }, Event::ClaimRefused(view)) => {
                self.claim_refused(view, now, out);
            }
            (Phase::Claiming { aim, .. }, Event::Seen(view)) => {
                *aim = aim.after(&view);
            }
            (
                Phase::Claiming { .. },
                Event::Found { .. }
                | Event::Slot { .. }
                | Event::Ended { .. }
                | Event::Tick
                | Event::Reported
                | Event::ReportRefused(_),
            ) => {}

            (Phase::Working { legs, .. }, Event::Journalled { seq }) => {
                for (container, leg) in legs.iter_mut() {
                    if matches!(leg.step, Step::Recording { seq: pending } if pending <= seq) {
                        leg.step = Step::Queued;
                        out.push(Effect::Queue { container: container.clone() });
                    }
                }
            }
            (Phase::Working { legs, .. }, Event::JournalFailed { seq, message }) => {
                let refused: Vec<String> = legs
                    .iter()
                    .filter(|(_, leg)| {
                        matches!(leg.step, Step::Recording { seq: pending } if pending <= seq)
                    })
                    .map(|(container, _)| container.clone())
                    .collect();
                for container in refused {
                    let message = format!("the journal of this node cannot take another attempt: {message}");
                    self.unstarted(&container, Verdict::Runtime { message }, now, out);
                }
                self.settle(now, out);
            }
            (
                Phase::Working { .. },
                Event::Found { container, attempt, trace, same_incarnation },
            ) => {
                self.found(&container, attempt, trace, same_incarnation, now, out);
                self.settle(now, out);
            }
            (Phase::Working { .. }, Event::Slot { container }) => {
                self.slot(&container, now, out);
                self.settle(now, out);
            }
            (Phase::Working { legs, .. }, Event::Ended { container, attempt, outcome }) => {
                let running = legs
                    .get(&container)
                    .is_some_and(|leg| leg.step == Step::Running && leg.entry.attempt == attempt);
                if running {
                    self.done(&container, outcome, out);
                    self.settle(now, out);
                }
            }
            (Phase::Working { .. }, Event::Seen(view)) => {
                self.turn(&view, now, out);
                self.settle(now, out);
            }
            (Phase::Working { .. }, Event::Tick) => {
                self.expire(now, out);
                self.settle(now, out);
            }
            (
                Phase::Working { .. },
                Event::Claimed | Event::ClaimRefused(_) | Event::Reported | Event::ReportRefused(_),
            ) => {}

            (Phase::Reporting { record, .. }, Event::Reported) => {
                let record = record.take();
                self.finish(record, out);
            }
            (Phase::Reporting { conclusion, record }, Event::ReportRefused(view)) => match view {
                View::Unclaimed | View::Ours(_) | View::Deleting(_) => {
                    out.push(Effect::Report(conclusion.clone()));
                }
                View::Foreign | View::Final | View::Gone => {
                    let record = record.take();
                    self.finish(record, out);
                }
            },
            (
                Phase::Reporting { .. },
                Event::Claimed
                | Event::ClaimRefused(_)
                | Event::Journalled { .. }
                | Event::JournalFailed { .. }
                | Event::Found { .. }
                | Event::Slot { .. }
                | Event::Ended { .. }
                | Event::Seen(_)
                | Event::Tick,
            ) => {}

            (
                Phase::Over,
                Event::Claimed
                | Event::ClaimRefused(_)
                | Event::Journalled { .. }
                | Event::JournalFailed { .. }
                | Event::Found { .. }
                | Event::Slot { .. }
                | Event::Ended { .. }
                | Event::Seen(_)
                | Event::Tick
                | Event::Reported
                | Event::ReportRefused(_),
            ) => {}
        }
    }

    /// Leaves `Claiming` once both sides have answered.
    fn after_claiming(&mut self, now: ServerMillis, out: &mut Vec<Effect>) {
        let Phase::Claiming { record, claimed: true, intent, look, aim } = &self.phase else {
            return;
        };
        let (mut record, look, aim) = (record.clone(), *look, *aim);
        match intent {
            Intent::Pending { .. } => return,
            Intent::Durable => {}
            Intent::Failed { message } => {
                let message = format!("the journal of this node cannot take the start: {message}");
                for entry in record.entries.values_mut().filter(|entry| entry.outcome.is_none()) {
                    // With a claim of an earlier process an attempt may have been made; it is
                    // looked for below and its outcome, if there is one, wins.
                    if look != Look::All {
                        entry.outcome =
                            Some(Outcome::unstarted(Verdict::Runtime { message: message.clone() }, now));
                        entry.attempt = 0;
                    }
                }
                if look == Look::All && !self.late(now) {
                    // Without a journal nothing new may start, and a start is what a look can lead
                    // to. Try the write again (the driver paces it) until nothing could start any
                    // more.
                    self.write_intent(record, out);
                    if let Phase::Claiming { aim: kept, .. } = &mut self.phase {
                        *kept = aim;
                    }
                    return;
                }
            }
        }
        self.work(record, look, aim, now, out);
    }

    fn claim_refused(&mut self, view: View, now: ServerMillis, out: &mut Vec<Effect>) {
        let Phase::Claiming { record, aim, .. } = &self.phase else {
            return;
        };
        let (record, aim) = (record.clone(), *aim);
        match (view, aim) {
            (View::Unclaimed, Aim::Deliver) => {
                if self.late(now) {
                    self.report(Conclusion::Refused(Verdict::Expired), Some(record), out);
                } else {
                    out.push(Effect::Claim(record));
                }
            }
            (View::Unclaimed, Aim::Cancel) | (View::Deleting(None), _) => {
                let verdict = Verdict::Cancelled { survivors: vec![] };
                self.report(Conclusion::Refused(verdict), Some(record), out);
            }
            (View::Unclaimed, Aim::Withdraw | Aim::Abandon)
            | (View::Foreign | View::Final | View::Gone, _) => self.finish(Some(record), out),
            (View::Ours(claim), aim) => {
                // A claim that an earlier process sent has landed after all.
                self.write_intent(claim.merge(&record), out);
                if let Phase::Claiming { aim: kept, .. } = &mut self.phase {
                    *kept = aim;
                }
            }
            (View::Deleting(Some(claim)), _) => {
                self.work(claim.merge(&record), Look::All, Aim::Cancel, now, out);
            }
        }
    }

    /// Enters `Working`: every container gets its first step.
    fn work(&mut self, record: Record, look: Look, aim: Aim, now: ServerMillis, out: &mut Vec<Effect>) {
        let mut legs = BTreeMap::new();
        for (container, entry) in record.entries {
            let attempt = entry.attempt;
            let looks = match look {
                Look::Nothing => false,
                Look::Traceable => entry.traceable,
                Look::All => true,
            };
            let step = if entry.outcome.is_some() {
                Step::Done
            } else if looks && entry.container_id.is_some() {
                out.push(Effect::Find { container: container.clone(), attempt });
                Step::Looking { unrecorded: false }
            } else {
                Step::Queued
            };
            legs.insert(container, Leg { entry, step });
        }
        let queued: Vec<String> = legs
            .iter()
            .filter(|(_, leg)| leg.step == Step::Queued)
            .map(|(container, _)| container.clone())
            .collect();
        self.phase = Phase::Working { pod_uid: record.pod_uid, legs, aim };
        for container in queued {
            self.ready(&container, now, out);
        }
        self.settle(now, out);
    }

    /// A container that may start as far as the records go: queue it, unless something speaks
    /// against it.
    fn ready(&mut self, container: &str, now: ServerMillis, out: &mut Vec<Effect>) {
        let late = self.late(now);
        let Phase::Working { legs, aim, .. } = &mut self.phase else { return };
        let Some(leg) = legs.get_mut(container) else { return };
        match unstartable(&leg.entry, *aim, late) {
            Some(verdict) => self.unstarted(container, verdict, now, out),
            None => {
                leg.step = Step::Queued;
                out.push(Effect::Queue { container: container.to_owned() });
            }
        }
    }

    fn slot(&mut self, container: &str, now: ServerMillis, out: &mut Vec<Effect>) {
        let late = self.late(now);
        let Phase::Working { legs, aim, .. } = &mut self.phase else { return };
        let Some(leg) = legs.get_mut(container) else { return };
        if leg.step != Step::Queued {
            return;
        }
        match unstartable(&leg.entry, *aim, late) {
            Some(verdict) => self.unstarted(container, verdict, now, out),
            None => {
                leg.step = Step::Running;
                out.push(Effect::Start {
                    container: container.to_owned(),
                    attempt: leg.entry.attempt,
                });
            }
        }
    }

    /// The table of a restart; also of an attempt that got lost under a living agent.
    fn found(
        &mut self,
        container: &str,
        attempt: u32,
        trace: Trace,
        same_incarnation: bool,
        now: ServerMillis,
        out: &mut Vec<Effect>,
    ) {
        let late = self.late(now);
        let Phase::Working { legs, aim, .. } = &mut self.phase else { return };
        let aim = *aim;
        let Some(leg) = legs.get_mut(container) else { return };
        if leg.entry.attempt != attempt {
            return;
        }
        match (&leg.step, trace) {
            (Step::Looking { .. }, Trace::Ended(outcome)) => self.done(container, outcome, out),
            (Step::Looking { .. }, Trace::Running) => {
                leg.step = Step::Running;
                out.push(Effect::Follow { container: container.to_owned(), attempt });
                if matches!(aim, Aim::Cancel | Aim::Withdraw) {
                    out.push(Effect::Cancel { container: container.to_owned() });
                }
            }
            (Step::Looking { .. }, Trace::NeverStarted) if !same_incarnation && aim == Aim::Deliver => {
                let verdict = Verdict::ContainerRestarted { may_have_run: attempt > 1 };
                self.unstarted(container, verdict, now, out);
            }
            (Step::Looking { unrecorded: false }, Trace::NeverStarted) => {
                self.ready(container, now, out);
            }
            (Step::Looking { unrecorded: true }, Trace::NeverStarted) => {
                match unstartable(&leg.entry, aim, late) {
                    Some(verdict) => self.unstarted(container, verdict, now, out),
                    None => self.record_attempt(container, out),
                }
            }
            (Step::Looking { .. } | Step::Running, Trace::Lost) => {
                if leg.entry.traceable && leg.step != Step::Running && attempt < MAX_ATTEMPTS {
                    // The journal that counted further may be what was lost: ask for the next one.
                    leg.entry.attempt += 1;
                    leg.step = Step::Looking { unrecorded: true };
                    out.push(Effect::Find { container: container.to_owned(), attempt: attempt + 1 });
                    return;
                }
                let verdict = if aim != Aim::Deliver {
                    lost_under(aim)
                } else if !same_incarnation {
                    Verdict::ContainerRestarted { may_have_run: true }
                } else if late || attempt >= MAX_ATTEMPTS {
                    Verdict::Interrupted
                } else {
                    leg.entry.attempt += 1;
                    return self.record_attempt(container, out);
                };
                self.done(container, Outcome::unstarted(verdict, now), out);
            }
            // An answer that comes late or twice.
            (Step::Running, Trace::NeverStarted | Trace::Running | Trace::Ended(_))
            | (
                Step::Recording { .. } | Step::Queued | Step::Done,
                Trace::NeverStarted | Trace::Running | Trace::Ended(_) | Trace::Lost,
            ) => {}
        }
    }

    /// Journals the attempt that the leg now carries; it is queued when that is on disk.
    fn record_attempt(&mut self, container: &str, out: &mut Vec<Effect>) {
        let seq = self.seq + 1;
        if let Phase::Working { legs, .. } = &mut self.phase
            && let Some(leg) = legs.get_mut(container)
        {
            leg.step = Step::Recording { seq };
        }
        self.journal_legs(out);
    }

    fn journal_legs(&mut self, out: &mut Vec<Effect>) {
        if let Phase::Working { pod_uid, legs, .. } = &self.phase {
            let record = record_of(pod_uid, legs);
            self.journal(&record, out);
        }
    }

    /// Takes note of what has become of the object.
    fn turn(&mut self, view: &View, now: ServerMillis, out: &mut Vec<Effect>) {
        let Phase::Working { legs, aim, .. } = &mut self.phase else { return };
        let before = *aim;
        *aim = before.after(view);
        let after = *aim;
        if before == after {
            return;
        }
        let mut ended = Vec::new();
        for (container, leg) in legs.iter() {
            match leg.step {
                Step::Recording { .. } | Step::Queued => ended.push(container.clone()),
                Step::Running => {
                    let kills = |aim| matches!(aim, Aim::Cancel | Aim::Withdraw);
                    if kills(after) && !kills(before) {
                        out.push(Effect::Cancel { container: container.clone() });
                    }
                }
                Step::Looking { .. } | Step::Done => {}
            }
        }
        for container in ended {
            self.unstarted(&container, lost_under(after), now, out);
        }
    }

    fn expire(&mut self, now: ServerMillis, out: &mut Vec<Effect>) {
        if !self.late(now) {
            return;
        }
        let Phase::Working { legs, aim, .. } = &self.phase else { return };
        let aim = *aim;
        let ended: Vec<(String, Verdict)> = legs
            .iter()
            .filter(|(_, leg)| matches!(leg.step, Step::Queued | Step::Recording { .. }))
            .filter_map(|(container, leg)| Some((container.clone(), unstartable(&leg.entry, aim, true)?)))
            .collect();
        for (container, verdict) in ended {
            self.unstarted(&container, verdict, now, out);
        }
    }

    /// Ends a container whose present attempt was not started.
    fn unstarted(&mut self, container: &str, verdict: Verdict, now: ServerMillis, out: &mut Vec<Effect>) {
        if let Phase::Working { legs, .. } = &mut self.phase
            && let Some(leg) = legs.get_mut(container)
        {
            leg.entry.attempt = leg.entry.attempt.saturating_sub(1);
        }
        self.done(container, Outcome::unstarted(verdict, now), out);
    }

    fn done(&mut self, container: &str, outcome: Outcome, out: &mut Vec<Effect>) {
        let Phase::Working { legs, aim, .. } = &mut self.phase else { return };
        let Some(leg) = legs.get_mut(container) else { return };
        leg.entry.outcome = Some(outcome);
        leg.step = Step::Done;
        out.push(Effect::Audit { container: container.to_owned(), entry: leg.entry.clone() });
        if matches!(aim, Aim::Deliver | Aim::Cancel) {
            self.journal_legs(out);
        }
    }

    /// Leaves `Working` once every container has its outcome.
    fn settle(&mut self, _now: ServerMillis, out: &mut Vec<Effect>) {
        let Phase::Working { pod_uid, legs, aim } = &self.phase else { return };
        if legs.values().any(|leg| leg.step != Step::Done) {
            return;
        }
        let record = record_of(pod_uid, legs);
        match aim {
            Aim::Deliver | Aim::Cancel => {
                self.report(Conclusion::Ran(record.clone()), Some(record), out);
            }
            Aim::Withdraw | Aim::Abandon => self.finish(Some(record), out),
        }
    }
}

impl Aim {
    /// The aim after the object was seen like this. It never goes back to delivering.
    fn after(self, view: &View) -> Aim {
        match (self, view) {
            (aim, View::Unclaimed | View::Ours(_)) => aim,
            (Aim::Withdraw, View::Foreign | View::Final | View::Deleting(_) | View::Gone) => Aim::Withdraw,
            (Aim::Deliver | Aim::Cancel | Aim::Abandon, View::Gone) => Aim::Withdraw,
            (Aim::Deliver | Aim::Cancel, View::Deleting(_)) => Aim::Cancel,
            (Aim::Abandon, View::Deleting(_)) => Aim::Withdraw,
            (Aim::Deliver | Aim::Abandon, View::Foreign | View::Final) => Aim::Abandon,
            (Aim::Cancel, View::Foreign | View::Final) => Aim::Withdraw,
        }
    }
}

/// Why a planned attempt must not be started; `None`: it may.
fn unstartable(entry: &Entry, aim: Aim, late: bool) -> Option<Verdict> {
    if aim != Aim::Deliver {
        return Some(lost_under(aim));
    }
    if entry.container_id.is_none() {
        return Some(Verdict::ContainerNotRunning);
    }
    match (late, entry.attempt > 1) {
        (false, _) => None,
        (true, false) => Some(Verdict::Expired),
        // An earlier attempt was lost, so the handler may have run.
        (true, true) => Some(Verdict::Interrupted),
    }
}

/// What an attempt comes to that is given up under this aim.
fn lost_under(aim: Aim) -> Verdict {
    match aim {
        Aim::Cancel | Aim::Withdraw => Verdict::Cancelled { survivors: vec![] },
        Aim::Deliver | Aim::Abandon => Verdict::Interrupted,
    }
}

fn record_of(pod_uid: &str, legs: &BTreeMap<String, Leg>) -> Record {
    Record {
        pod_uid: pod_uid.to_owned(),
        entries: legs.iter().map(|(name, leg)| (name.clone(), leg.entry.clone())).collect(),
    }
}
