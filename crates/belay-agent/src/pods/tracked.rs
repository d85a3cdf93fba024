//! What a pod's worker knows of a container. Owned and updated by that worker alone.

use belay_action::ContainerId;
use belay_core::probing::Probing;
use belay_runtime::{ContainerState, ContainerStatus, Exit};
use jiff::Timestamp;

use super::backoff::Backoff;
use super::waiting::Waiting;

/// One incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) id: ContainerId,
    pub(crate) restart_count: u32,
    pub(crate) started: Timestamp,
    pub(crate) exit: Option<Exit>,
}

impl From<ContainerState> for Instance {
    fn from(state: ContainerState) -> Self {
        let (started, exit) = match state.status {
            ContainerStatus::Running { started } => (started, None),
            ContainerStatus::Exited(exit) => (exit.started, Some(exit)),
        };
        Instance {
            id: state.id,
            restart_count: state.config.restart_count,
            started,
            exit,
        }
    }
}

/// A start that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedStart {
    pub(crate) waiting: Waiting,
    pub(crate) at: Timestamp,
}

/// One container of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tracked {
    /// The newest incarnation.
    pub(crate) current: Option<Instance>,
    /// The one before it, for `lastState` and `logs --previous`.
    pub(crate) previous: Option<Instance>,
    /// Why the newest attempt to start one failed.
    pub(crate) failed_start: Option<FailedStart>,
    pub(crate) backoff: Backoff,
    /// Whether the `postStart` hook of the newest incarnation is under way.
    pub(crate) starting: bool,
    /// What the probes of the newest incarnation say; `None` if it has none.
    pub(crate) probing: Option<Probing>,
    /// Whether a probe has ended the newest incarnation, which is a failure with any exit code.
    pub(crate) condemned: bool,
    /// Whether an incarnation before the newest one had come up.
    pub(crate) came_up: bool,
}

impl Tracked {
    /// Takes over incarnations that the runtime knows, in any order. Returns those that are too old
    /// to be kept.
    pub(crate) fn adopt(&mut self, mut found: Vec<Instance>) -> Vec<ContainerId> {
        found.sort_by_key(|instance| (instance.restart_count, instance.started));
        self.current = found.pop();
        self.previous = found.pop();
        found.into_iter().map(|instance| instance.id).collect()
    }

    /// The ID of the incarnation that runs.
    pub(crate) fn running(&self) -> Option<&ContainerId> {
        self.current
            .as_ref()
            .filter(|instance| instance.exit.is_none())
            .map(|instance| &instance.id)
    }

    /// Whether it runs and its `postStart` hook is done.
    pub(crate) fn is_up(&self) -> bool {
        self.running().is_some() && !self.starting
    }

    /// Whether it is up, also by the word of its startup probe.
    pub(crate) fn is_started(&self) -> bool {
        self.is_up() && self.probing.as_ref().is_none_or(Probing::started)
    }

    /// Whether it has started, also by the word of its readiness probe.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_started() && self.probing.as_ref().is_none_or(Probing::ready)
    }

    /// Whether an incarnation of it has ever come up, whatever became of it.
    pub(crate) fn has_been_up(&self) -> bool {
        let newest = self.current.is_some()
            && !self.starting
            && self.probing.as_ref().is_none_or(Probing::started);
        self.came_up || newest
    }

    /// How often it was started again.
    pub(crate) fn restart_count(&self) -> u32 {
        self.current
            .as_ref()
            .map_or(0, |instance| instance.restart_count)
    }

    /// The number that the next incarnation gets.
    pub(crate) fn next_restart_count(&self) -> u32 {
        self.current
            .as_ref()
            .map_or(0, |instance| instance.restart_count.saturating_add(1))
    }

    /// When it last ended or failed to start.
    pub(crate) fn ended(&self) -> Option<Timestamp> {
        let exited = self
            .current
            .as_ref()
            .and_then(|instance| instance.exit.as_ref());
        let failed = self.failed_start.as_ref().map(|failed| failed.at);
        failed.max(exited.map(|exit| exit.finished))
    }

    /// A new incarnation runs. Returns the one that is no longer kept.
    pub(crate) fn started(&mut self, instance: Instance) -> Option<ContainerId> {
        self.came_up = self.has_been_up();
        self.failed_start = None;
        self.starting = false;
        self.probing = None;
        self.condemned = false;
        let dropped = match self.current.replace(instance) {
            None => None,
            Some(old) => self.previous.replace(old),
        };
        dropped.map(|instance| instance.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_core::probing::{Before, Rule, Rules};
    use std::time::Duration;

    fn instance(count: u32) -> Instance {
        Instance {
            id: ContainerId::new(format!("c{count}")).unwrap(),
            restart_count: count,
            started: Timestamp::UNIX_EPOCH,
            exit: None,
        }
    }

    fn startup(started: bool) -> Option<Probing> {
        let rules = Rules {
            startup: Some(Rule {
                initial_delay: Duration::ZERO,
                period: Duration::from_secs(1),
                success_threshold: 1,
                failure_threshold: 1,
            }),
            ..Rules::default()
        };
        let ready = started;
        Some(Probing::new(rules, 0, Before { started, ready }))
    }

    #[test]
    fn what_has_come_up_once_has_been_up_and_what_never_did_has_not() {
        let mut tracked = Tracked::default();
        assert!(!tracked.has_been_up());
        tracked.started(instance(0));
        tracked.probing = startup(false);
        assert!(!tracked.has_been_up());
        tracked.started(instance(1));
        tracked.probing = startup(false);
        assert!(!tracked.has_been_up(), "its first never came up");
        tracked.probing = startup(true);
        assert!(tracked.has_been_up() && tracked.is_ready());
        tracked.started(instance(2));
        tracked.probing = startup(false);
        assert!(tracked.has_been_up() && !tracked.is_started());
    }

    #[test]
    fn a_new_incarnation_has_a_new_life() {
        let mut tracked = Tracked::default();
        tracked.started(instance(0));
        tracked.probing = startup(true);
        tracked.condemned = true;
        tracked.started(instance(1));
        assert!(!tracked.condemned && tracked.probing.is_none());
    }
}
