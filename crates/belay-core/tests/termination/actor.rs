//! Containers that behave as they are told.

use std::time::Duration;

use belay_core::termination::{Container, Hook, HookResult, Role};

/// How a container and its hook behave. Times in milliseconds.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) hook: Option<Hook>,
    pub(crate) signal: String,
    pub(crate) running: bool,
    /// After how long the hook ends by itself, and how; it hangs if not set.
    pub(crate) hook_ends: Option<(i64, HookResult)>,
    /// How long after the stop signal it exits; it ignores the signal if not set.
    pub(crate) exits_after: Option<i64>,
    /// When it exits without being asked, counted from the beginning.
    pub(crate) exits_at: Option<i64>,
    /// How often the runtime refuses its signal.
    pub(crate) refusals: u32,
    pub(crate) survivors: Vec<String>,
}

pub(crate) fn main(name: &str) -> Actor {
    Actor {
        name: name.to_owned(),
        role: Role::Main,
        hook: None,
        signal: "SIGTERM".to_owned(),
        running: true,
        hook_ends: None,
        exits_after: None,
        exits_at: None,
        refusals: 0,
        survivors: Vec::new(),
    }
}

pub(crate) fn sidecar(name: &str) -> Actor {
    Actor {
        role: Role::Sidecar,
        ..main(name)
    }
}

pub(crate) fn init(name: &str) -> Actor {
    Actor {
        role: Role::Init,
        ..main(name)
    }
}

impl Actor {
    pub(crate) fn sleep(mut self, millis: u64) -> Self {
        self.hook = Some(Hook::Sleep {
            time: Duration::from_millis(millis),
        });
        self
    }
    /// An exec hook that hangs.
    pub(crate) fn exec(mut self) -> Self {
        self.hook = Some(Hook::Exec);
        self
    }
    pub(crate) fn http(mut self) -> Self {
        self.hook = Some(Hook::HttpGet);
        self
    }
    pub(crate) fn hook_ends(mut self, after: i64) -> Self {
        self.hook_ends = Some((after, HookResult::Succeeded));
        self
    }
    pub(crate) fn hook_fails(mut self, after: i64, message: &str) -> Self {
        let message = message.to_owned();
        self.hook_ends = Some((after, HookResult::Failed { message }));
        self
    }
    pub(crate) fn signal(mut self, signal: &str) -> Self {
        self.signal = signal.to_owned();
        self
    }
    pub(crate) fn exits_after(mut self, millis: i64) -> Self {
        self.exits_after = Some(millis);
        self
    }
    pub(crate) fn exits_at(mut self, millis: i64) -> Self {
        self.exits_at = Some(millis);
        self
    }
    pub(crate) fn refused(mut self, times: u32) -> Self {
        self.refusals = times;
        self
    }
    pub(crate) fn survived_by(mut self, survivors: &[&str]) -> Self {
        self.survivors = survivors.iter().map(|&s| s.to_owned()).collect();
        self
    }
    pub(crate) fn not_running(mut self) -> Self {
        self.running = false;
        self
    }

    pub(crate) fn container(&self) -> Container {
        Container {
            name: self.name.clone(),
            id: format!("{}-1", self.name),
            role: self.role,
            hook: self.hook,
            signal: self.signal.clone(),
        }
    }
}
