//! A container's `preStop`: run, cancelled, and what its end leads to.

use super::grace::between;
use super::machine::Out;
use super::{Did, Doing, Early, Effect, HookEnd, HookResult, KillReason, Leg, Notice, Role, Stage};
use crate::clock::LocalMillis;

impl Leg {
    pub(super) fn run_hook(&self, out: &mut Out) {
        out.push(Effect::RunHook {
            container: self.container.name.clone(),
            attempt: self.container.hook_attempt(),
            deadline: self.grace_ends(),
        });
    }

    pub(super) fn cancel_hook(&mut self, out: &mut Out) {
        self.stray_hook = true;
        out.push(Effect::CancelHook {
            container: self.container.name.clone(),
            attempt: self.container.hook_attempt(),
        });
    }

    pub(super) fn hook_ended(
        &mut self,
        since: LocalMillis,
        result: HookResult,
        now: LocalMillis,
        out: &mut Out,
    ) {
        let took = between(since, now);
        match &result {
            HookResult::Succeeded => self.tell(Notice::HookSucceeded { took }, out),
            HookResult::Failed { message } => {
                let message = message.clone();
                self.tell(Notice::HookFailed { message }, out);
            }
            HookResult::Killed { survivors } => {
                self.tell(Notice::HookUnfinished { grace: self.grace }, out);
                self.tell_survivors(survivors, out);
            }
        }
        let how = HookEnd::Ended(result);
        self.log(Did::EndHook { how, took }, now);
        self.after_hook(now, out);
    }

    pub(super) fn hook_lost(&mut self, since: LocalMillis, now: LocalMillis, out: &mut Out) {
        self.tell(Notice::HookLost, out);
        let took = between(since, now);
        let how = HookEnd::Lost;
        self.log(Did::EndHook { how, took }, now);
        self.after_hook(now, out);
    }

    /// Ends a hook before it ended itself.
    pub(super) fn cut_hook(
        &mut self,
        since: LocalMillis,
        doing: Doing,
        how: HookEnd,
        now: LocalMillis,
        out: &mut Out,
    ) {
        let exited = how == HookEnd::ContainerExited;
        match doing {
            Doing::Sleeping { .. } if exited => out.count(Early::ContainerExited),
            Doing::Sleeping { .. } => out.count(Early::GraceShortened),
            Doing::Running | Doing::Finding => {
                self.cancel_hook(out);
                if !exited {
                    self.tell(Notice::HookUnfinished { grace: self.grace }, out);
                }
            }
        }
        let took = between(since, now);
        self.log(Did::EndHook { how, took }, now);
    }

    pub(super) fn stray_ended(&mut self, result: &HookResult, out: &mut Out) {
        if !self.stray_hook {
            return;
        }
        self.stray_hook = false;
        match result {
            HookResult::Succeeded | HookResult::Failed { .. } => {}
            HookResult::Killed { survivors } => self.tell_survivors(survivors, out),
        }
    }

    /// The hook is behind it; sidecars wait, the others get their signal, or SIGKILL.
    pub(super) fn after_hook(&mut self, now: LocalMillis, out: &mut Out) {
        if self.grace.is_zero() {
            return self.kill(KillReason::NoGrace, now, out);
        }
        match self.container.role {
            Role::Sidecar => self.stage = Stage::Turn { since: now },
            Role::Main | Role::Init => self.ask(now, out),
        }
    }
}
