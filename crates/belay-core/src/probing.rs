//! Probing: what follows from the results of a container's probes.
//!
//! One machine follows one incarnation of one container. Its rules are the kubelet's.
//!
//! ```text
//!            no startup probe
//!   begin -------------------------.
//!     |                            v          readiness: tries decide Ready, to and fro
//!     '--> startup: tries ----> Started ---->
//!              |     success                  liveness: tries
//!              | failures, in a row                       | failures, in a row
//!              v                                          v
//!            Kill <---------------------------------------'
//! ```
//!
//! # Expected flow
//!
//! ```text
//!   loop {
//!       for kind in probing.due(now) { probing.begin(kind, now); try it, in a task of its own }
//!       wait for an answer, or until probing.next_wake()
//!       match probing.tried(kind, result, now) { ... }
//!   }
//! ```
//!
//! # Edges
//!
//! - *First try.* After the initial delay, which counts from the start of the container, and not
//!   before it has started by the startup probe's word.
//! - *Next try.* A period after the last one began; if that took longer, as soon as it is over.
//! - *Thresholds* count results in a row. A try that came to no result neither counts nor interrupts.
//! - *Ready* is false until the readiness probe says otherwise, and true without one.
//! - *Kill* is said once; then only readiness is probed.
//! - *Termination* of the container, for whatever reason, ends startup and liveness probes, and
//!   leaves readiness alone: who balances load wants to know until the end.
//! - *A restarted agent* gives what it reported last. That holds until a threshold says otherwise.
//!
//! **Invariant:** at most one try of a kind is under way.

use std::time::Duration;

use crate::clock::LocalMillis;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Startup, Kind::Liveness, Kind::Readiness];

    /// As it begins a sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }
}

/// When one probe is tried, and how many results in a row count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    pub initial_delay: Duration,
    pub period: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

/// The probes that a container declares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    pub startup: Option<Rule>,
    pub liveness: Option<Rule>,
    pub readiness: Option<Rule>,
}

impl Rules {
    pub fn is_empty(&self) -> bool {
        self.startup.is_none() && self.liveness.is_none() && self.readiness.is_none()
    }
}

/// What was said of this incarnation before the machine began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Before {
    pub started: bool,
    pub ready: bool,
}

/// What one try came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    Success,
    Failure,
    /// It says nothing about the container: the runtime was not there, or the try was given up.
    Nothing,
}

/// What follows from a try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Started,
    Ready,
    NotReady,
    /// The container is to be stopped because it failed this probe.
    Kill(Kind),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting { due: LocalMillis },
    Trying { since: LocalMillis },
    Over,
}

/// One probe.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    rule: Rule,
    stage: Stage,
    /// The latest result, and how often it came in a row.
    streak: Option<(bool, u32)>,
}

impl Line {
    /// Counts a result. Returns it if it has come often enough.
    fn count(&mut self, success: bool) -> Option<bool> {
        let run = match self.streak {
            Some((last, run)) if last == success => run.saturating_add(1),
            Some(_) | None => 1,
        };
        self.streak = Some((success, run));
        let wanted = if success {
            self.rule.success_threshold
        } else {
            self.rule.failure_threshold
        };
        (run >= wanted).then_some(success)
    }
}

/// The probes of one incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probing {
    startup: Option<Line>,
    liveness: Option<Line>,
    readiness: Option<Line>,
    started: bool,
    ready: bool,
}

impl Probing {
    /// Begins to follow a container that was started at `since`.
    pub fn new(rules: Rules, since: LocalMillis, before: Before) -> Self {
        let line = |rule: Option<Rule>| {
            rule.map(|rule| Line {
                rule,
                stage: Stage::Waiting {
                    due: after(since, rule.initial_delay),
                },
                streak: None,
            })
        };
        let started = rules.startup.is_none() || before.started;
        Probing {
            // What has started stays so.
            startup: line(rules.startup.filter(|_| !started)),
            liveness: line(rules.liveness),
            readiness: line(rules.readiness),
            started,
            ready: rules.readiness.is_none() || before.ready,
        }
    }

    pub fn started(&self) -> bool {
        self.started
    }

    pub fn ready(&self) -> bool {
        self.started && self.ready
    }

    /// The probes to be tried now.
    pub fn due(&self, now: LocalMillis) -> Vec<Kind> {
        let is_due = |kind: &Kind| self.waits_until(*kind).is_some_and(|due| due <= now);
        Kind::ALL.into_iter().filter(is_due).collect()
    }

    /// When the next one is due.
    pub fn next_wake(&self) -> Option<LocalMillis> {
        Kind::ALL
            .into_iter()
            .filter_map(|kind| self.waits_until(kind))
            .min()
    }

    /// A try is under way.
    pub fn begin(&mut self, kind: Kind, now: LocalMillis) {
        if let Some(line) = self.line_mut(kind)
            && matches!(line.stage, Stage::Waiting { .. })
        {
            line.stage = Stage::Trying { since: now };
        }
    }

    /// A try is over.
    pub fn tried(&mut self, kind: Kind, tried: Tried, now: LocalMillis) -> Option<Verdict> {
        let line = self.line_mut(kind)?;
        let since = match line.stage {
            Stage::Trying { since } => since,
            // Nobody waits for it any more.
            Stage::Waiting { .. } | Stage::Over => return None,
        };
        line.stage = Stage::Waiting {
            due: after(since, line.rule.period).max(now),
        };
        let success = match tried {
            Tried::Success => true,
            Tried::Failure => false,
            Tried::Nothing => return None,
        };
        let enough = line.count(success)?;
        match (kind, enough) {
            (Kind::Startup, true) => {
                line.stage = Stage::Over;
                self.started = true;
                Some(Verdict::Started)
            }
            (Kind::Startup | Kind::Liveness, false) => {
                self.stop();
                Some(Verdict::Kill(kind))
            }
            (Kind::Liveness, true) => None,
            (Kind::Readiness, ready) => {
                let changed = std::mem::replace(&mut self.ready, ready) != ready;
                let verdict = if ready {
                    Verdict::Ready
                } else {
                    Verdict::NotReady
                };
                changed.then_some(verdict)
            }
        }
    }

    /// The container is being stopped: nobody needs to find a reason for it.
    pub fn stop(&mut self) {
        for line in [&mut self.startup, &mut self.liveness]
            .into_iter()
            .flatten()
        {
            line.stage = Stage::Over;
        }
    }

    fn line(&self, kind: Kind) -> Option<&Line> {
        match kind {
            Kind::Startup => self.startup.as_ref(),
            Kind::Liveness => self.liveness.as_ref(),
            Kind::Readiness => self.readiness.as_ref(),
        }
    }

    fn line_mut(&mut self, kind: Kind) -> Option<&mut Line> {
        match kind {
            Kind::Startup => self.startup.as_mut(),
            Kind::Liveness => self.liveness.as_mut(),
            Kind::Readiness => self.readiness.as_mut(),
        }
    }

    /// When a probe that waits for nothing but time is to be tried.
    fn waits_until(&self, kind: Kind) -> Option<LocalMillis> {
        let open = match kind {
            Kind::Startup => true,
            Kind::Liveness | Kind::Readiness => self.started,
        };
        match self.line(kind).filter(|_| open)?.stage {
            Stage::Waiting { due } => Some(due),
            Stage::Trying { .. } | Stage::Over => None,
        }
    }
}

fn after(since: LocalMillis, time: Duration) -> LocalMillis {
    since.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests;
