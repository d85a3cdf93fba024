//! What a pod's worker knows of a container. Owned and updated by that worker alone.

use std::collections::{BTreeMap, BTreeSet};

use belay_action::ContainerId;
use belay_core::probing::Probing;
use belay_runtime::{ContainerState, ContainerStatus, Exit};
use jiff::Timestamp;

use super::backoff::Backoff;
use super::message::Source;
use super::waiting::{RUN_CONTAINER_ERROR, Waiting};

/// One incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) id: ContainerId,
    pub(crate) restart_count: u32,
    pub(crate) started: Timestamp,
    pub(crate) exit: Option<Exit>,
    /// The sandbox that it is in.
    pub(crate) sandbox: String,
    /// The image that the pod's spec named when it was started.
    pub(crate) image: String,
    /// The image that it was made of, as the runtime names it.
    pub(crate) image_id: String,
    /// The signal that its image wants to be stopped with, as it is written there.
    pub(crate) image_stop_signal: Option<String>,
    /// Where it leaves something to be read about its end, and what was found there.
    pub(crate) messages: Source,
    pub(crate) message: Option<String>,
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
            sandbox: state.config.sandbox,
            image: state.config.image,
            image_id: state.config.image_id,
            image_stop_signal: state.image_stop_signal,
            messages: Source::default(),
            message: None,
        }
    }
}

/// A start that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedStart {
    pub(crate) waiting: Waiting,
    pub(crate) at: Timestamp,
    /// When the next one is due.
    pub(crate) until: Timestamp,
    /// What is shown from some time on instead.
    pub(crate) then: Option<(Timestamp, Waiting)>,
    /// Whether it counts as an end of the container.
    pub(crate) crash: bool,
    /// Whether the configuration could not be made.
    pub(crate) config: bool,
    /// The image that the pod's spec named.
    pub(crate) image: String,
}

impl FailedStart {
    /// Whether the container was made and could not be run. To Kubernetes that is one that ran and
    /// ended.
    pub(crate) fn is_start_error(&self) -> bool {
        self.waiting.reason == RUN_CONTAINER_ERROR
    }

    /// What is shown now, and when that changes.
    pub(crate) fn shown(&self, now: Timestamp) -> (&Waiting, Option<Timestamp>) {
        match &self.then {
            Some((from, then)) if *from <= now => (then, None),
            Some((from, _)) => (&self.waiting, Some(*from)),
            None => (&self.waiting, None),
        }
    }
}

/// The incarnations that run.
pub(crate) fn running(all: &BTreeMap<String, Tracked>) -> BTreeSet<String> {
    let ids = all.values().filter_map(Tracked::running);
    ids.map(|id| id.as_str().to_owned()).collect()
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
    /// The number of the newest incarnation that was made and could not be run.
    pub(crate) not_run: Option<u32>,
    pub(crate) backoff: Backoff,
    /// That of fetching its image.
    pub(crate) pulls: Backoff,
    /// Whether a start is under way. There is no second one until it has come to something.
    pub(crate) launching: bool,
    /// Whether the newest incarnation was in a sandbox that is gone: nothing that it prepared is
    /// there any more.
    pub(crate) elsewhere: bool,
    /// Whether the newest incarnation has a `postStart` hook that has not succeeded: it is under way,
    /// or it failed or was cut short, and the container is not up and will not be.
    pub(crate) starting: bool,
    /// What the probes of the newest incarnation say; `None` if it has none.
    pub(crate) probing: Option<Probing>,
    /// Whether the newest incarnation has been ended so that another takes its place, because of a
    /// probe or of a changed definition: neither its exit code nor the restart policy matters.
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
        !self.elsewhere && (self.came_up || newest)
    }

    /// The failure to run it, if that is the last that is known of it.
    pub(crate) fn start_error(&self) -> Option<&FailedStart> {
        let failed = self.failed_start.as_ref();
        failed.filter(|failed| failed.is_start_error())
    }

    /// The number of the newest incarnation, whether it could be run or not.
    fn newest(&self) -> Option<u32> {
        let ran = self.current.as_ref().map(|one| one.restart_count);
        ran.max(self.not_run)
    }

    /// How often it was started again.
    pub(crate) fn restart_count(&self) -> u32 {
        self.newest().unwrap_or(0)
    }

    /// The number that the next incarnation gets.
    pub(crate) fn next_restart_count(&self) -> u32 {
        self.newest().map_or(0, |number| number.saturating_add(1))
    }

    /// When it last ended, or failed to start by its own fault.
    pub(crate) fn ended(&self) -> Option<Timestamp> {
        let exited = self
            .current
            .as_ref()
            .and_then(|instance| instance.exit.as_ref());
        let failed = self.failed_start.as_ref().filter(|failed| failed.crash);
        let failed = failed.map(|failed| failed.at);
        failed.max(exited.map(|exit| exit.finished))
    }

    /// What failed so far does not count any more.
    pub(crate) fn forgive(&mut self) {
        self.failed_start = None;
        self.backoff = Backoff::default();
        self.pulls = Backoff::default();
    }

    /// Its pod goes on in another sandbox.
    pub(crate) fn moved(&mut self) {
        self.elsewhere = self.current.is_some();
        self.came_up = false;
    }

    /// Whether another incarnation is to take the place of the newest, and has not been tried.
    pub(crate) fn is_condemned(&self) -> bool {
        self.condemned && self.start_error().is_none()
    }

    /// Whether its newest incarnation was made of another image than this. Of one that was recorded
    /// without an image nobody knows.
    pub(crate) fn is_outdated(&self, image: &str) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|one| !one.image.is_empty() && one.image != image)
    }

    /// A new incarnation runs. Returns the one that is no longer kept.
    pub(crate) fn started(&mut self, instance: Instance) -> Option<ContainerId> {
        self.came_up = self.has_been_up();
        self.failed_start = None;
        self.pulls = Backoff::default();
        self.launching = false;
        self.elsewhere = false;
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
impl Instance {
    /// One that has run since the beginning of time.
    pub(crate) fn test(id: &str, restart_count: u32) -> Self {
        Instance {
            id: ContainerId::new(id).unwrap(),
            restart_count,
            started: Timestamp::UNIX_EPOCH,
            exit: None,
            sandbox: String::new(),
            image: String::new(),
            image_id: String::new(),
            image_stop_signal: None,
            messages: Source::default(),
            message: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_core::probing::{Before, Rule, Rules};
    use std::time::Duration;

    fn instance(count: u32) -> Instance {
        Instance::test(&format!("c{count}"), count)
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
    fn what_ended_before_its_hook_had_succeeded_never_came_up() {
        let mut tracked = Tracked::default();
        tracked.started(instance(0));
        tracked.starting = true;
        tracked.started(instance(1));
        assert!(!tracked.came_up && tracked.is_ready());
    }

    #[test]
    fn what_came_up_in_a_sandbox_that_is_gone_has_not_been_up() {
        let mut tracked = Tracked::default();
        tracked.started(instance(0));
        tracked.moved();
        assert!(!tracked.has_been_up());
        tracked.started(instance(1));
        assert!(tracked.has_been_up() && !tracked.elsewhere);
        let mut never = Tracked::default();
        never.moved();
        assert!(!never.elsewhere, "nothing of it was anywhere");
    }

    #[test]
    fn a_failed_start_may_change_its_word_with_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let waiting = Waiting {
            reason: "ErrImagePull",
            message: "no route".into(),
        };
        let then = Waiting::pull_back_off("x", &waiting);
        let failed = FailedStart {
            waiting: waiting.clone(),
            at: at(10),
            until: at(20),
            then: Some((at(11), then.clone())),
            crash: false,
            config: false,
            image: String::new(),
        };
        assert_eq!(failed.shown(at(10)), (&waiting, Some(at(11))));
        assert_eq!(failed.shown(at(11)), (&then, None));
        assert_eq!(
            then.message,
            "Back-off pulling image \"x\": ErrImagePull: no route"
        );
    }

    #[test]
    fn what_could_not_be_run_has_a_number_too() {
        let mut tracked = Tracked::default();
        assert_eq!(
            (tracked.restart_count(), tracked.next_restart_count()),
            (0, 0)
        );
        tracked.not_run = Some(0);
        assert_eq!(
            (tracked.restart_count(), tracked.next_restart_count()),
            (0, 1)
        );
        tracked.started(instance(1));
        assert_eq!(
            (tracked.restart_count(), tracked.next_restart_count()),
            (1, 2)
        );
        tracked.not_run = Some(2);
        assert_eq!(
            (tracked.restart_count(), tracked.next_restart_count()),
            (2, 3)
        );
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
