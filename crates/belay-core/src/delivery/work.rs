//! What happens while the containers are at work.

use std::collections::BTreeMap;

use super::machine::{Aim, Delivery, Leg, Look, Phase, Step};
use super::{Conclusion, Effect, Entry, MAX_ATTEMPTS, Now, Outcome, Record, Trace, Verdict, View};

impl Delivery {
    /// Enters `Working`: every container gets its first step.
    pub(super) fn work(
        &mut self,
        record: Record,
        look: Look,
        aim: Aim,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
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
                out.push(Effect::Find {
                    container: container.clone(),
                    attempt,
                });
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
        self.phase = Phase::Working {
            pod_uid: record.pod_uid,
            legs,
            aim,
        };
        for container in queued {
            self.ready(&container, now, out);
        }
        self.settle(out);
    }

    /// A container that may start as far as the records go: queue it, unless something speaks
    /// against it.
    fn ready(&mut self, container: &str, now: Now, out: &mut Vec<Effect>) {
        if self.ran_out(container, now) {
            return self.give_up(container, now, out);
        }
        let late = self.late(now);
        let Phase::Working { legs, aim, .. } = &mut self.phase else {
            return;
        };
        let Some(leg) = legs.get_mut(container) else {
            return;
        };
        match unstartable(&leg.entry, *aim, late) {
            Some(verdict) => self.unstarted(container, verdict, now, out),
            None => {
                leg.step = Step::Queued;
                out.push(Effect::Queue {
                    container: container.to_owned(),
                });
            }
        }
    }

    pub(super) fn slot(&mut self, container: &str, now: Now, out: &mut Vec<Effect>) {
        let late = self.late(now);
        let ran_out = self.ran_out(container, now);
        let retries = self.retry.is_some();
        let Phase::Working { legs, aim, .. } = &mut self.phase else {
            return;
        };
        let Some(leg) = legs.get_mut(container) else {
            return;
        };
        if leg.step != Step::Queued {
            return;
        }
        if ran_out {
            return self.give_up(container, now, out);
        }
        match unstartable(&leg.entry, *aim, late) {
            Some(verdict) => self.unstarted(container, verdict, now, out),
            None if retries => self.stamp(container, now, out),
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
    pub(super) fn found(
        &mut self,
        container: &str,
        attempt: u32,
        trace: Trace,
        same_incarnation: bool,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let late = self.late(now);
        let retries = self.retry.is_some();
        let Phase::Working { legs, aim, .. } = &mut self.phase else {
            return;
        };
        let aim = *aim;
        let Some(leg) = legs.get_mut(container) else {
            return;
        };
        if leg.entry.attempt != attempt {
            return;
        }
        match (&leg.step, trace) {
            (Step::Looking { .. }, Trace::Ended(outcome)) => {
                self.came(container, outcome, now, out);
            }
            (Step::Looking { .. }, Trace::Running) => {
                leg.step = Step::Running;
                out.push(Effect::Follow {
                    container: container.to_owned(),
                    attempt,
                });
                if matches!(aim, Aim::Cancel | Aim::Withdraw) {
                    out.push(Effect::Cancel {
                        container: container.to_owned(),
                    });
                }
            }
            (Step::Looking { .. }, Trace::NeverStarted)
                if !same_incarnation && aim == Aim::Deliver =>
            {
                let verdict = Verdict::ContainerRestarted {
                    may_have_run: attempt > 1,
                };
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
            (Step::Looking { .. } | Step::Running, Trace::Lost)
                if retries && same_incarnation && aim == Aim::Deliver =>
            {
                let outcome = Outcome::unstarted(Verdict::Interrupted, now.server);
                self.came(container, outcome, now, out);
            }
            (Step::Looking { .. } | Step::Running, Trace::Lost) => {
                if leg.entry.traceable
                    && !retries
                    && leg.step != Step::Running
                    && attempt < MAX_ATTEMPTS
                {
                    // The journal that counted further may be what was lost: ask for the next one.
                    leg.entry.attempt += 1;
                    leg.step = Step::Looking { unrecorded: true };
                    out.push(Effect::Find {
                        container: container.to_owned(),
                        attempt: attempt + 1,
                    });
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
                self.done(container, Outcome::unstarted(verdict, now.server), out);
            }
            // An answer that comes late or twice.
            (Step::Running, Trace::NeverStarted | Trace::Running | Trace::Ended(_))
            | (
                Step::Recording { .. }
                | Step::Queued
                | Step::Stamping { .. }
                | Step::Waiting { .. }
                | Step::Done,
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

    pub(super) fn journal_legs(&mut self, out: &mut Vec<Effect>) {
        if let Phase::Working { pod_uid, legs, .. } = &self.phase {
            let record = record_of(pod_uid, legs);
            self.journal(&record, out);
        }
    }

    /// Takes note of what has become of the object.
    pub(super) fn turn(&mut self, view: &View, now: Now, out: &mut Vec<Effect>) {
        let Phase::Working { legs, aim, .. } = &mut self.phase else {
            return;
        };
        let before = *aim;
        *aim = before.after(view);
        let after = *aim;
        if before == after {
            return;
        }
        let mut ended = Vec::new();
        for (container, leg) in legs.iter() {
            match leg.step {
                Step::Recording { .. }
                | Step::Queued
                | Step::Stamping { .. }
                | Step::Waiting { .. } => ended.push(container.clone()),
                Step::Running => {
                    let kills = |aim| matches!(aim, Aim::Cancel | Aim::Withdraw);
                    if kills(after) && !kills(before) {
                        out.push(Effect::Cancel {
                            container: container.clone(),
                        });
                    }
                }
                Step::Looking { .. } | Step::Done => {}
            }
        }
        for container in ended {
            self.unstarted(&container, lost_under(after), now, out);
        }
    }

    pub(super) fn expire(&mut self, now: Now, out: &mut Vec<Effect>) {
        if !self.late(now) {
            return;
        }
        let Phase::Working { legs, aim, .. } = &self.phase else {
            return;
        };
        let aim = *aim;
        let ended: Vec<(String, Verdict)> = legs
            .iter()
            .filter(|(_, leg)| matches!(leg.step, Step::Queued | Step::Recording { .. }))
            // The time of those who have started is another.
            .filter(|(_, leg)| self.retry.is_none() || leg.entry.first.is_none())
            .filter_map(|(container, leg)| {
                Some((container.clone(), unstartable(&leg.entry, aim, true)?))
            })
            .collect();
        for (container, verdict) in ended {
            self.unstarted(&container, verdict, now, out);
        }
    }

    /// Ends a container whose present attempt was not started.
    pub(super) fn unstarted(
        &mut self,
        container: &str,
        verdict: Verdict,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        if let Phase::Working { legs, .. } = &mut self.phase
            && let Some(leg) = legs.get_mut(container)
        {
            // Who waits for the next attempt has made this one.
            if !matches!(leg.step, Step::Waiting { .. }) {
                leg.entry.attempt = leg.entry.attempt.saturating_sub(1);
            }
        }
        self.done(container, Outcome::unstarted(verdict, now.server), out);
    }

    pub(super) fn done(&mut self, container: &str, outcome: Outcome, out: &mut Vec<Effect>) {
        let Phase::Working { legs, aim, .. } = &mut self.phase else {
            return;
        };
        let Some(leg) = legs.get_mut(container) else {
            return;
        };
        leg.entry.outcome = Some(outcome);
        leg.entry.failed = None;
        leg.step = Step::Done;
        out.push(Effect::Audit {
            container: container.to_owned(),
            entry: leg.entry.clone(),
        });
        if matches!(aim, Aim::Deliver | Aim::Cancel) {
            self.journal_legs(out);
        }
        if self.retry.is_some() {
            out.push(Effect::Progress);
        }
    }

    /// The runtime refused the start of an attempt.
    pub(super) fn refused(
        &mut self,
        container: &str,
        attempt: u32,
        verdict: Verdict,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let verdict = match verdict {
            Verdict::ContainerRestarted { .. } => Verdict::ContainerRestarted {
                may_have_run: attempt > 1,
            },
            Verdict::Expired if self.retry.is_some() => {
                return self.give_up(container, now, out);
            }
            // An earlier attempt was lost, so the handler may have run.
            Verdict::Expired if attempt > 1 => Verdict::Interrupted,
            verdict @ Verdict::Runtime { .. } if self.retry.is_some() => {
                let outcome = Outcome::unstarted(verdict, now.server);
                return self.came(container, outcome, now, out);
            }
            other => other,
        };
        self.unstarted(container, verdict, now, out);
    }

    /// Whether the time of this container is over, which began with its first attempt.
    fn ran_out(&self, container: &str, now: Now) -> bool {
        let Phase::Working { legs, aim, .. } = &self.phase else {
            return false;
        };
        let entry = legs.get(container).map(|leg| &leg.entry);
        *aim == Aim::Deliver
            && self.retry.is_some()
            && entry.is_some_and(|entry| entry.first.is_some() && self.too_late(entry, now))
    }

    /// Leaves `Working` once every container has its outcome.
    pub(super) fn settle(&mut self, out: &mut Vec<Effect>) {
        let Phase::Working { pod_uid, legs, aim } = &self.phase else {
            return;
        };
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

/// Why a planned attempt must not be started; `None`: it may.
///
/// The time of a container that has been started is asked elsewhere: see [`Delivery::ran_out`].
fn unstartable(entry: &Entry, aim: Aim, late: bool) -> Option<Verdict> {
    if aim != Aim::Deliver {
        return Some(lost_under(aim));
    }
    if entry.container_id.is_none() {
        return Some(Verdict::ContainerNotRunning);
    }
    match (late && entry.first.is_none(), entry.attempt > 1) {
        (false, _) => None,
        (true, false) => Some(Verdict::Expired),
        // An earlier attempt was lost, so the handler may have run.
        (true, true) => Some(Verdict::Interrupted),
    }
}

/// What an attempt comes to that is given up under this aim.
pub(super) fn lost_under(aim: Aim) -> Verdict {
    match aim {
        Aim::Cancel | Aim::Withdraw => Verdict::Cancelled { survivors: vec![] },
        Aim::Deliver | Aim::Abandon => Verdict::Interrupted,
    }
}

pub(super) fn record_of(pod_uid: &str, legs: &BTreeMap<String, Leg>) -> Record {
    Record {
        pod_uid: pod_uid.to_owned(),
        entries: legs
            .iter()
            .map(|(name, leg)| (name.clone(), leg.entry.clone()))
            .collect(),
    }
}
