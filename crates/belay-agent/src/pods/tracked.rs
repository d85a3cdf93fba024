//! What a pod's worker knows of a container. Owned and updated by that worker alone.

use belay_action::ContainerId;
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
        self.failed_start = None;
        self.starting = false;
        let dropped = match self.current.replace(instance) {
            None => None,
            Some(old) => self.previous.replace(old),
        };
        dropped.map(|instance| instance.id)
    }
}
