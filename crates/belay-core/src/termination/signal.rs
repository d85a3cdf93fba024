//! A container's stop signal, and SIGKILL.

use std::time::Duration;

use super::grace::between;
use super::machine::Out;
use super::{Did, Effect, KillReason, Leg, Notice, SIGNAL_RETRY, Sending, Stage};
use crate::clock::LocalMillis;

impl Leg {
    /// The stop signal is due.
    pub(super) fn ask(&mut self, now: LocalMillis, out: &mut Out) {
        let signal = self.container.signal.clone();
        self.log(Did::AskSignal { signal }, now);
        self.send(now, 0, out);
    }

    pub(super) fn send(&mut self, asked: LocalMillis, failures: u32, out: &mut Out) {
        self.stage = Stage::Signalled {
            asked,
            sending: Sending::Asked { failures },
        };
        out.push(Effect::Signal {
            container: self.container.name.clone(),
            signal: self.container.signal.clone(),
        });
    }

    pub(super) fn signal_sent(&mut self, asked: LocalMillis, now: LocalMillis, out: &mut Out) {
        let notice = Notice::SignalSent {
            signal: self.container.signal.clone(),
            after: between(self.began, now),
            left: between(now, self.kill_at(asked)),
        };
        self.tell(notice, out);
        self.log(Did::SendSignal, now);
    }

    /// The container has ended of its signal before the runtime said that it was sent.
    pub(super) fn signal_sent_late(&mut self, now: LocalMillis, out: &mut Out) {
        let mut asked = None;
        for step in &self.steps {
            match step.did {
                Did::AskSignal { .. } => asked = Some(step.at),
                Did::SendSignal => return,
                _ => {}
            }
        }
        if let Some(asked) = asked {
            self.signal_sent(asked, now, out);
        }
    }

    pub(super) fn signal_failed(&mut self, message: String, now: LocalMillis, out: &mut Out) {
        let notice = Notice::SignalFailed {
            signal: self.container.signal.clone(),
            message: message.clone(),
        };
        self.tell(notice, out);
        self.log(Did::FailSignal { message }, now);
    }

    pub(super) fn kill(&mut self, why: KillReason, now: LocalMillis, out: &mut Out) {
        self.log(Did::Kill { why }, now);
        self.tell(Notice::Killing { why }, out);
        self.stage = Stage::Killing {
            since: now,
            exited: false,
        };
        out.push(Effect::Kill {
            container: self.container.name.clone(),
        });
    }

    pub(super) fn tell_survivors(&self, survivors: &[String], out: &mut Out) {
        if !survivors.is_empty() {
            let survivors = survivors.to_vec();
            self.tell(Notice::Survivors { survivors }, out);
        }
    }
}

/// How long to wait before a stop signal is tried again.
pub(super) fn retry_pause(failures: u32) -> Duration {
    let (first, longest) = SIGNAL_RETRY;
    first
        .saturating_mul(2u32.saturating_pow(failures))
        .min(longest)
}
