//! A restarted agent goes on with what the journal holds.

use std::collections::BTreeSet;

use super::{
    Did, Doing, Effect, End, Hook, HookEnd, Leg, Record, Sending, Stage, Termination, machine::Out,
};
use crate::clock::LocalMillis;

/// Goes on with a recorded termination.
///
/// `running` are the incarnations that run now, as the runtime tells. What the record says of time
/// stays: nobody gets his grace again. Under another boot nothing runs any more, and the
/// termination is over.
pub fn resume(
    record: Record,
    boot_id: &str,
    running: &BTreeSet<String>,
    now: LocalMillis,
) -> (Termination, Vec<Effect>) {
    let mut termination = Termination { record };
    if termination.is_over() {
        return (termination, vec![Effect::Done]);
    }
    let before = termination.record.clone();
    let mut out = termination.out();
    let same_boot = termination.record.boot_id == boot_id;
    for leg in &mut termination.record.legs {
        if leg.is_finished() {
            continue;
        }
        if same_boot {
            let running = running.contains(&leg.container.id);
            leg.resume(running, now, &mut out);
        } else {
            leg.reboot(now);
        }
    }
    termination.finish(Some(&before), out, now)
}

impl Leg {
    /// Times of another boot cannot be compared, so nothing is said about how long it took.
    fn reboot(&mut self, now: LocalMillis) {
        self.stray_hook = false;
        if matches!(self.stage, Stage::Over { .. }) {
            return;
        }
        self.log(Did::Resume, now);
        self.stage = Stage::Over { end: End::Reboot };
    }

    /// Asks for the hook, unless its time is over and it is cancelled unasked.
    fn find_hook(&mut self, since: LocalMillis, now: LocalMillis, out: &mut Out) {
        self.stage = Stage::Hook {
            since,
            doing: Doing::Finding,
        };
        if now < self.grace_ends() {
            out.push(Effect::FindHook {
                container: self.container.name.clone(),
                attempt: self.container.hook_attempt(),
            });
        }
    }

    fn resume(&mut self, running: bool, now: LocalMillis, out: &mut Out) {
        // An agent that crashes again and again must not fill its journal with that.
        if self.steps.last().map(|step| &step.did) != Some(&Did::Resume) {
            self.log(Did::Resume, now);
        }
        // Requests and connections ended with the process that made them.
        let traceable = self.container.hook == Some(Hook::Exec);
        if self.stray_hook {
            self.stray_hook = false;
            if traceable {
                self.cancel_hook(out);
            }
        }
        match self.stage {
            Stage::Hook { since, doing } => match (doing, running) {
                (Doing::Sleeping { .. }, true) => {}
                (Doing::Sleeping { until }, false) => {
                    // It may have slept to its end before the container went.
                    if now < until.min(self.grace_ends()) {
                        self.cut_hook(since, doing, HookEnd::ContainerExited, now, out);
                    }
                    self.end(End::Itself, now, out);
                }
                (Doing::Running | Doing::Finding, false) => {
                    if traceable {
                        self.cut_hook(since, doing, HookEnd::ContainerExited, now, out);
                    }
                    self.end(End::Itself, now, out);
                }
                (Doing::Running | Doing::Finding, true) => {
                    if traceable {
                        self.find_hook(since, now, out);
                    } else {
                        self.hook_lost(since, now, out);
                    }
                }
            },
            Stage::Turn { .. } if running => {}
            Stage::Turn { .. } => self.end(End::Itself, now, out),
            Stage::Signalled { asked, sending } => match (sending, running) {
                (Sending::Sent, true) => {}
                (Sending::Asked { failures } | Sending::Failed { failures, .. }, true) => {
                    // It may have been sent. A second signal does less harm than none. Whoever may
                    // have had none gets the time that follows one, even if it is late.
                    let late = self.kill_at(asked) <= now;
                    self.send(if late { now } else { asked }, failures, out);
                }
                (Sending::Sent | Sending::Asked { .. }, false) => {
                    self.end(End::StopSignal, now, out);
                }
                (Sending::Failed { .. }, false) => self.end(End::Itself, now, out),
            },
            // Half a tree may be left, whatever became of its first process.
            Stage::Killing { since, .. } => {
                self.stage = Stage::Killing {
                    since,
                    exited: !running,
                };
                out.push(Effect::Kill {
                    container: self.container.name.clone(),
                });
            }
            Stage::Over { .. } => {}
        }
    }
}
