//! The machine: states and transitions. The prose is in the module above.

use std::collections::BTreeMap;

use super::{
    Conclusion, Effect, Entry, Event, Facts, Now, Outcome, Outlook, Record, Retry, Verdict, View,
};
use crate::clock::{LocalMillis, ServerMillis};

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
    /// Has its slot, and its start is on its way into the journal; only where attempts are repeated.
    Stamping {
        /// The write that carries it.
        seq: u32,
    },
    /// Started, or found running.
    Running,
    /// The attempt failed, and another one follows.
    Waiting {
        /// When, in milliseconds since boot.
        until: LocalMillis,
    },
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
    pub(super) retry: Option<Retry>,
    /// Number of the newest journal write.
    pub(super) seq: u32,
    pub(super) phase: Phase,
}

/// Decides what a notification needs, first met or met again after a restart.
pub fn open(facts: Facts, now: impl Into<Now>) -> (Delivery, Vec<Effect>) {
    let mut delivery = Delivery {
        deadline: facts.deadline,
        retry: facts.retry,
        seq: 0,
        phase: Phase::Over,
    };
    let mut out = Vec::new();
    delivery.open(
        facts.view,
        facts.journal,
        facts.outlook,
        now.into(),
        &mut out,
    );
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

    /// What is recorded of it now: what the claim names, attempts, and outcomes so far.
    pub fn record(&self) -> Option<Record> {
        match &self.phase {
            Phase::Claiming { record, .. } => Some(record.clone()),
            Phase::Working { pod_uid, legs, .. } => Some(super::work::record_of(pod_uid, legs)),
            Phase::Reporting { record, .. } => record.clone(),
            Phase::Over => None,
        }
    }

    /// One step. Events that mean nothing in the present state change nothing.
    pub fn next(mut self, event: Event, now: impl Into<Now>) -> (Delivery, Vec<Effect>) {
        let mut out = Vec::new();
        self.apply(event, now.into(), &mut out);
        (self, out)
    }

    pub(super) fn late(&self, now: Now) -> bool {
        now.server >= self.deadline
    }

    fn open(
        &mut self,
        view: View,
        journal: Option<Record>,
        outlook: Outlook,
        now: Now,
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
                self.report(
                    Conclusion::Refused(Verdict::Cancelled { survivors: vec![] }),
                    journal,
                    out,
                );
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
        now: Now,
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
        if record
            .entries
            .values()
            .all(|entry| entry.outcome.is_some() || entry.container_id.is_none())
        {
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

    pub(super) fn journal(&mut self, record: &Record, out: &mut Vec<Effect>) -> u32 {
        self.seq += 1;
        out.push(Effect::Journal {
            seq: self.seq,
            record: record.clone(),
        });
        self.seq
    }

    pub(super) fn report(
        &mut self,
        conclusion: Conclusion,
        record: Option<Record>,
        out: &mut Vec<Effect>,
    ) {
        out.push(Effect::Report(conclusion.clone()));
        self.phase = Phase::Reporting { conclusion, record };
    }

    pub(super) fn finish(&mut self, record: Option<Record>, out: &mut Vec<Effect>) {
        out.push(Effect::Forget(record));
        self.phase = Phase::Over;
    }

    fn apply(&mut self, event: Event, now: Now, out: &mut Vec<Effect>) {
        // One arm per state and event, none left out: a new event must be thought about everywhere.
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
                | Event::Refused { .. }
                | Event::Ended { .. }
                | Event::Tick
                | Event::Reported
                | Event::ReportRefused(_),
            ) => {}

            (Phase::Working { legs, .. }, Event::Journalled { seq }) => {
                for (container, leg) in legs.iter_mut() {
                    if matches!(leg.step, Step::Recording { seq: pending } if pending <= seq) {
                        leg.step = Step::Queued;
                        out.push(Effect::Queue {
                            container: container.clone(),
                        });
                    }
                }
                self.stamped(seq, now, out);
                self.settle(out);
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
                    let message =
                        format!("the journal of this node cannot take another attempt: {message}");
                    self.unstarted(&container, Verdict::Runtime { message }, now, out);
                }
                self.unstamped(seq, &message, now, out);
                self.settle(out);
            }
            (
                Phase::Working { .. },
                Event::Found {
                    container,
                    attempt,
                    trace,
                    same_incarnation,
                },
            ) => {
                self.found(&container, attempt, trace, same_incarnation, now, out);
                self.settle(out);
            }
            (Phase::Working { .. }, Event::Slot { container }) => {
                self.slot(&container, now, out);
                self.settle(out);
            }
            (
                Phase::Working { legs, .. },
                Event::Ended {
                    container,
                    attempt,
                    outcome,
                },
            ) => {
                let running = legs
                    .get(&container)
                    .is_some_and(|leg| leg.step == Step::Running && leg.entry.attempt == attempt);
                if running {
                    self.came(&container, outcome, now, out);
                    self.settle(out);
                }
            }
            (
                Phase::Working { legs, .. },
                Event::Refused {
                    container,
                    attempt,
                    verdict,
                },
            ) => {
                let running = legs
                    .get(&container)
                    .is_some_and(|leg| leg.step == Step::Running && leg.entry.attempt == attempt);
                if running {
                    self.refused(&container, attempt, verdict, now, out);
                    self.settle(out);
                }
            }
            (Phase::Working { .. }, Event::Seen(view)) => {
                self.turn(&view, now, out);
                self.settle(out);
            }
            (Phase::Working { .. }, Event::Tick) => {
                self.expire(now, out);
                self.retry_on(now, out);
                self.settle(out);
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
                | Event::Refused { .. }
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
                | Event::Refused { .. }
                | Event::Ended { .. }
                | Event::Seen(_)
                | Event::Tick
                | Event::Reported
                | Event::ReportRefused(_),
            ) => {}
        }
    }

    /// Leaves `Claiming` once both sides have answered.
    fn after_claiming(&mut self, now: Now, out: &mut Vec<Effect>) {
        let Phase::Claiming {
            record,
            claimed: true,
            intent,
            look,
            aim,
        } = &self.phase
        else {
            return;
        };
        let (mut record, look, aim) = (record.clone(), *look, *aim);
        match intent {
            Intent::Pending { .. } => return,
            Intent::Durable => {}
            Intent::Failed { message } => {
                let message = format!("the journal of this node cannot take the start: {message}");
                for entry in record
                    .entries
                    .values_mut()
                    .filter(|entry| entry.outcome.is_none())
                {
                    // With a claim of an earlier process an attempt may have been made; it is
                    // looked for below and its outcome, if there is one, wins.
                    if look != Look::All {
                        entry.outcome = Some(Outcome::unstarted(
                            Verdict::Runtime {
                                message: message.clone(),
                            },
                            now.server,
                        ));
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

    fn claim_refused(&mut self, view: View, now: Now, out: &mut Vec<Effect>) {
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
}

impl Aim {
    /// The aim after the object was seen like this. It never goes back to delivering.
    pub(super) fn after(self, view: &View) -> Aim {
        match (self, view) {
            (aim, View::Unclaimed | View::Ours(_)) => aim,
            (Aim::Withdraw, View::Foreign | View::Final | View::Deleting(_) | View::Gone) => {
                Aim::Withdraw
            }
            (Aim::Deliver | Aim::Cancel | Aim::Abandon, View::Gone) => Aim::Withdraw,
            (Aim::Deliver | Aim::Cancel, View::Deleting(_)) => Aim::Cancel,
            (Aim::Abandon, View::Deleting(_)) => Aim::Withdraw,
            (Aim::Deliver | Aim::Abandon, View::Foreign | View::Final) => Aim::Abandon,
            (Aim::Cancel, View::Foreign | View::Final) => Aim::Withdraw,
        }
    }
}
