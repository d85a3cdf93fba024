//! One container on its way out.

use std::time::Duration;

use super::grace::{after, between, shrunk};
use super::machine::Out;
use super::signal::retry_pause;
use super::{
    Cause, Container, Did, Doing, Effect, End, FLOOR, Hook, HookEnd, HookResult, HookTrace,
    KillReason, Leg, News, Notice, Sending, Skipped, Stage, Step,
};
use crate::clock::LocalMillis;

impl Leg {
    /// A container that is to end from now on.
    pub(super) fn new(container: Container, grace: Duration, now: LocalMillis) -> Self {
        Leg {
            container,
            began: now,
            grace,
            stage: Stage::Over {
                end: End::NotRunning,
            },
            stray_hook: false,
            steps: Vec::new(),
        }
    }

    /// Whether the container runs no more, or nothing more can be done about it.
    pub(super) fn has_ended(&self) -> bool {
        match self.stage {
            Stage::Hook { .. } | Stage::Turn { .. } | Stage::Signalled { .. } => false,
            Stage::Killing { exited, .. } => exited,
            Stage::Over { .. } => true,
        }
    }

    /// Whether nothing of it is left to wait for, its hook included.
    pub(super) fn is_finished(&self) -> bool {
        matches!(self.stage, Stage::Over { .. }) && !self.stray_hook
    }

    /// When its grace is over.
    pub(super) fn grace_ends(&self) -> LocalMillis {
        after(self.began, self.grace)
    }

    /// When a container is killed whose stop signal was due at `asked`.
    ///
    /// What came before the signal was not the container's doing, so after it there is always time
    /// to react. Without anything before it the grace is the grace.
    pub(super) fn kill_at(&self, asked: LocalMillis) -> LocalMillis {
        let end = self.grace_ends();
        if asked > self.began {
            end.max(after(asked, FLOOR))
        } else {
            end
        }
    }

    /// When it is killed at the latest.
    pub(super) fn latest(&self) -> Option<LocalMillis> {
        match self.stage {
            Stage::Hook { .. } | Stage::Turn { .. } => Some(after(self.grace_ends(), FLOOR)),
            Stage::Signalled { asked, .. } => Some(self.kill_at(asked)),
            Stage::Killing { since, .. } => Some(since),
            Stage::Over { .. } => None,
        }
    }

    pub(super) fn next_wake(&self) -> Option<LocalMillis> {
        match self.stage {
            Stage::Hook { doing, .. } => match doing {
                Doing::Sleeping { until } => Some(until.min(self.grace_ends())),
                Doing::Running | Doing::Finding => Some(self.grace_ends()),
            },
            Stage::Turn { .. } => Some(self.grace_ends()),
            Stage::Signalled { asked, sending } => match sending {
                Sending::Failed { retry, .. } => Some(retry.min(self.kill_at(asked))),
                Sending::Asked { .. } | Sending::Sent => Some(self.kill_at(asked)),
            },
            Stage::Killing { .. } | Stage::Over { .. } => None,
        }
    }

    pub(super) fn log(&mut self, did: Did, now: LocalMillis) {
        self.steps.push(Step { at: now, did });
    }

    pub(super) fn log_begin(&mut self, cause: Cause, now: LocalMillis) {
        let grace = self.grace;
        self.log(Did::Begin { cause, grace }, now);
    }

    pub(super) fn tell(&self, notice: Notice, out: &mut Out) {
        out.push(Effect::Tell {
            container: self.container.name.clone(),
            notice,
        });
    }

    /// The first step: its hook, if it has one that may run.
    pub(super) fn start(
        &mut self,
        cause: Cause,
        running: bool,
        sleep_enabled: bool,
        now: LocalMillis,
        out: &mut Out,
    ) {
        self.log_begin(cause, now);
        if !running {
            return self.end(End::NotRunning, now, out);
        }
        self.tell(Notice::Stopping { cause }, out);
        let hook = match self.container.hook {
            None => return self.after_hook(now, out),
            Some(_) if self.grace.is_zero() => Err(Skipped::NoGrace),
            Some(Hook::Sleep { .. }) if !sleep_enabled => Err(Skipped::GateOff),
            Some(Hook::Sleep { time }) => Ok(Doing::Sleeping {
                until: after(now, time),
            }),
            Some(Hook::Exec | Hook::HttpGet | Hook::TcpSocket) => Ok(Doing::Running),
        };
        match hook {
            Err(why) => {
                self.log(Did::SkipHook { why }, now);
                self.after_hook(now, out);
            }
            Ok(doing) => {
                self.log(Did::StartHook, now);
                self.stage = Stage::Hook { since: now, doing };
                if doing == Doing::Running {
                    self.run_hook(out);
                }
            }
        }
    }

    /// A shorter grace, counted from `start`, the beginning of the pod's end; what follows from it
    /// is settled afterwards.
    pub(super) fn shrink(&mut self, start: LocalMillis, asked: Duration, now: LocalMillis) {
        // 0 is more than "over": it forbids what a hook's end would still allow.
        let own = if asked.is_zero() {
            Duration::ZERO
        } else {
            between(self.began, after(start, asked))
        };
        let grace = shrunk(self.grace, own);
        match self.stage {
            Stage::Hook { .. } | Stage::Turn { .. } | Stage::Signalled { .. } => {
                if grace < self.grace {
                    self.grace = grace;
                    self.log(Did::ShrinkGrace { grace }, now);
                }
            }
            Stage::Killing { .. } | Stage::Over { .. } => {}
        }
    }

    /// Something happened to the container.
    pub(super) fn hear(&mut self, news: News, now: LocalMillis, out: &mut Out) {
        // One arm per stage and news, none left out: a new one must be thought about everywhere.
        match (&mut self.stage, news) {
            (&mut Stage::Hook { since, doing }, News::Exited) => {
                self.cut_hook(since, doing, HookEnd::ContainerExited, now, out);
                self.end(End::Itself, now, out);
            }
            (&mut Stage::Hook { since, doing }, News::HookEnded(result)) => match doing {
                Doing::Running | Doing::Finding => self.hook_ended(since, result, now, out),
                Doing::Sleeping { .. } => {}
            },
            (Stage::Hook { since, doing }, News::HookFound(trace)) => match (*doing, trace) {
                (Doing::Finding, HookTrace::NeverStarted) => {
                    *doing = Doing::Running;
                    // Too late, it is cancelled below and never starts.
                    if now < self.grace_ends() {
                        self.run_hook(out);
                    }
                }
                (Doing::Finding, HookTrace::Running) => *doing = Doing::Running,
                (Doing::Running | Doing::Finding, HookTrace::Ended(result)) => {
                    let since = *since;
                    self.hook_ended(since, result, now, out);
                }
                (Doing::Running | Doing::Finding, HookTrace::Lost) => {
                    let since = *since;
                    self.hook_lost(since, now, out);
                }
                (Doing::Running, HookTrace::NeverStarted | HookTrace::Running)
                | (Doing::Sleeping { .. }, _) => {}
            },
            (Stage::Hook { .. }, News::SignalSent | News::SignalFailed { .. }) => {}
            (Stage::Hook { .. }, News::Killed { .. }) => {}

            (Stage::Turn { .. }, News::Exited) => self.end(End::Itself, now, out),
            (Stage::Turn { .. }, News::SignalSent | News::SignalFailed { .. }) => {}
            (Stage::Turn { .. }, News::Killed { .. }) => {}

            (Stage::Signalled { sending, .. }, News::Exited) => {
                let end = match sending {
                    Sending::Asked { .. } | Sending::Sent => End::StopSignal,
                    Sending::Failed { .. } => End::Itself,
                };
                self.end(end, now, out);
            }
            (Stage::Signalled { asked, sending }, News::SignalSent) => match *sending {
                Sending::Asked { .. } | Sending::Failed { .. } => {
                    *sending = Sending::Sent;
                    let asked = *asked;
                    self.signal_sent(asked, now, out);
                }
                Sending::Sent => {}
            },
            (Stage::Signalled { sending, .. }, News::SignalFailed { message }) => match *sending {
                Sending::Asked { failures } => {
                    *sending = Sending::Failed {
                        failures: failures.saturating_add(1),
                        retry: after(now, retry_pause(failures)),
                    };
                    if failures == 0 {
                        self.signal_failed(message, now, out);
                    }
                }
                Sending::Failed { .. } | Sending::Sent => {}
            },
            (Stage::Signalled { .. }, News::Killed { .. }) => {}

            (Stage::Killing { exited, .. }, News::Exited) => *exited = true,
            (Stage::Killing { .. }, News::SignalSent | News::SignalFailed { .. }) => {}
            (Stage::Killing { .. }, News::Killed { survivors }) => {
                self.tell_survivors(&survivors, out);
                self.end(End::Killed { survivors }, now, out);
            }

            (Stage::Over { end }, News::SignalSent) => match end {
                End::StopSignal => self.signal_sent_late(now, out),
                End::NotRunning | End::Itself | End::Killed { .. } | End::Reboot => {}
            },
            (
                Stage::Over { .. },
                News::Exited | News::SignalFailed { .. } | News::Killed { .. },
            ) => {}

            // A hook that was cancelled is dead at last.
            (
                Stage::Turn { .. }
                | Stage::Signalled { .. }
                | Stage::Killing { .. }
                | Stage::Over { .. },
                News::HookEnded(result) | News::HookFound(HookTrace::Ended(result)),
            ) => self.stray_ended(&result, out),
            (
                Stage::Turn { .. }
                | Stage::Signalled { .. }
                | Stage::Killing { .. }
                | Stage::Over { .. },
                News::HookFound(HookTrace::NeverStarted | HookTrace::Lost),
            ) => self.stray_hook = false,
            (
                Stage::Turn { .. }
                | Stage::Signalled { .. }
                | Stage::Killing { .. }
                | Stage::Over { .. },
                News::HookFound(HookTrace::Running),
            ) => {}
        }
    }

    /// Everything that is due by now, and whose turn it is.
    pub(super) fn settle(&mut self, turn: bool, now: LocalMillis, out: &mut Out) {
        while self.advance(turn, now, out) {}
    }

    /// One step that needs no news. Returns whether there was one.
    fn advance(&mut self, turn: bool, now: LocalMillis, out: &mut Out) -> bool {
        match self.stage {
            Stage::Hook { since, doing } => {
                if self.grace.is_zero() {
                    self.cut_hook(since, doing, HookEnd::GraceOver, now, out);
                    self.kill(KillReason::NoGrace, now, out);
                    return true;
                }
                let end = self.grace_ends();
                match doing {
                    Doing::Sleeping { until } if until <= end && until <= now => {
                        self.hook_ended(since, HookResult::Succeeded, now, out);
                        true
                    }
                    Doing::Sleeping { .. } | Doing::Running | Doing::Finding if end <= now => {
                        self.cut_hook(since, doing, HookEnd::GraceOver, now, out);
                        self.after_hook(now, out);
                        true
                    }
                    Doing::Sleeping { .. } | Doing::Running | Doing::Finding => false,
                }
            }
            Stage::Turn { since } => {
                if self.grace.is_zero() {
                    self.kill(KillReason::NoGrace, now, out);
                    return true;
                }
                if !turn && now < self.grace_ends() {
                    return false;
                }
                let took = between(since, now);
                if !took.is_zero() {
                    self.log(Did::Wait { served: turn, took }, now);
                }
                self.ask(now, out);
                true
            }
            Stage::Signalled { asked, sending } => {
                if self.grace.is_zero() {
                    self.kill(KillReason::NoGrace, now, out);
                    return true;
                }
                if self.kill_at(asked) <= now {
                    self.kill(KillReason::GraceOver, now, out);
                    return true;
                }
                match sending {
                    Sending::Failed { failures, retry } if retry <= now => {
                        self.send(asked, failures, out);
                        true
                    }
                    Sending::Failed { .. } | Sending::Asked { .. } | Sending::Sent => false,
                }
            }
            Stage::Killing { .. } | Stage::Over { .. } => false,
        }
    }

    pub(super) fn end(&mut self, end: End, now: LocalMillis, out: &mut Out) {
        let took = between(self.began, now);
        let stopped = match &end {
            End::Itself | End::StopSignal => true,
            End::Killed { survivors } => survivors.is_empty(),
            // Nobody stopped it.
            End::NotRunning | End::Reboot => false,
        };
        if stopped {
            let end = end.clone();
            let signal = self.container.signal.clone();
            self.tell(Notice::Stopped { end, signal, took }, out);
        }
        let done = Did::End {
            end: end.clone(),
            took,
        };
        self.log(done, now);
        self.stage = Stage::Over { end };
    }
}
