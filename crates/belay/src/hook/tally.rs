//! What is known of one hook, and what of that is news. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use belay_api::hook::{
    ContainerExecutionHookStatus, ExecutionHook, ExecutionHookStatus, HookError, HookErrorType,
};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

use super::report::{self, Outputs};
use crate::follow::{CONTROLLER, Followed};

/// The hook as it was last seen.
#[derive(Debug)]
pub(super) struct Tally {
    hook: ExecutionHook,
    /// Containers of which it was said that they failed, by pod and name.
    told: BTreeSet<(String, String)>,
    /// Whether the list that the watch began with, or began anew with, has had it.
    listed: bool,
    deleted: bool,
}

impl Tally {
    pub(super) fn new(hook: ExecutionHook) -> Self {
        Self {
            hook,
            told: BTreeSet::new(),
            listed: false,
            deleted: false,
        }
    }

    pub(super) fn name(&self) -> String {
        self.hook.name_any()
    }

    pub(super) fn uid(&self) -> &str {
        self.hook.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn hook(&self) -> &ExecutionHook {
        &self.hook
    }

    pub(super) fn status(&self) -> ExecutionHookStatus {
        self.hook.status.clone().unwrap_or_default()
    }

    /// Whether somebody else deleted it before it had ended.
    pub(super) fn was_deleted(&self) -> bool {
        self.deleted && self.hook.succeeded().is_none()
    }

    /// Takes over what the podactions tell of containers that the hook told nothing final of, which
    /// it no longer does once it is deleted. `at_rest`: nothing of it runs any more, so what had begun
    /// and is not known to have ended was killed.
    pub(super) fn settle(&mut self, outputs: &Outputs<'_>, at_rest: bool) {
        let status = self.hook.status.iter_mut();
        let rows = status.flat_map(|status| &mut status.hook_statuses);
        for row in rows.filter(|row| row.succeed.is_none()) {
            let key = (row.pod_name.as_str(), row.container_name.as_str());
            let known = outputs.get(&key);
            if let Some(known) = known.filter(|known| known.succeed.is_some()) {
                row.succeed = known.succeed;
                row.error.clone_from(&known.error);
                row.attempts = known.attempts.or(row.attempts);
                row.exit_code = known.exit_code;
                continue;
            }
            let begun = known.is_some_and(|known| known.start_time.is_some());
            if at_rest && (begun || row.timestamp.is_some()) {
                row.succeed = Some(false);
                row.error = Some(HookError::new(
                    HookErrorType::Cancelled,
                    "the hook was deleted",
                ));
            }
        }
    }

    fn containers(&self) -> &[ContainerExecutionHookStatus] {
        let status = self.hook.status.as_ref();
        status
            .map(|status| status.hook_statuses.as_slice())
            .unwrap_or_default()
    }
}

impl Followed for Tally {
    type Event = Event<ExecutionHook>;
    const UNHEARD: &'static str = CONTROLLER;

    fn is_heard(event: &Event<ExecutionHook>) -> bool {
        !matches!(event, Event::Init)
    }

    fn observe(&mut self, event: Event<ExecutionHook>) {
        match event {
            Event::Apply(hook) | Event::InitApply(hook) => {
                if hook.metadata.uid == self.hook.metadata.uid {
                    self.listed = true;
                    self.hook = hook;
                }
            }
            Event::Delete(hook) => {
                self.deleted |= hook.metadata.uid == self.hook.metadata.uid;
            }
            Event::Init => self.listed = false,
            // A deletion that nobody watched.
            Event::InitDone => self.deleted |= !self.listed,
        }
    }

    fn is_over(&self) -> bool {
        self.deleted || self.hook.succeeded().is_some()
    }

    fn acknowledged(&self) -> bool {
        let status = self.hook.status.as_ref();
        status.is_some_and(|status| status.start_time.is_some())
    }

    fn summary(&self) -> String {
        let containers = self.containers();
        let count = |of: &dyn Fn(&ContainerExecutionHookStatus) -> bool| {
            containers.iter().filter(|one| of(one)).count()
        };
        let open = |one: &ContainerExecutionHookStatus| one.succeed.is_none();
        let cancelled = |one: &ContainerExecutionHookStatus| {
            let type_ = one.error.as_ref().map(|error| error.error_type);
            one.succeed == Some(false) && type_ == Some(HookErrorType::Cancelled)
        };
        let mut parts = vec![format!(
            "{} succeeded",
            count(&|one| one.succeed == Some(true))
        )];
        for (number, what) in [
            (
                count(&|one| one.succeed == Some(false) && !cancelled(one)),
                "failed",
            ),
            (count(&cancelled), "cancelled"),
            (
                count(&|one| open(one) && one.error.is_some()),
                "trying again",
            ),
            (
                count(&|one| open(one) && one.error.is_none() && one.timestamp.is_some()),
                "running",
            ),
            (
                count(&|one| open(one) && one.error.is_none() && one.timestamp.is_none()),
                "not started",
            ),
        ] {
            if number > 0 {
                parts.push(format!("{number} {what}"));
            }
        }
        format!("{} of {} containers", parts.join(", "), containers.len())
    }

    fn take_news(&mut self, _elapsed: Duration) -> Vec<String> {
        let status = self.status();
        let failed = status.hook_statuses.iter();
        failed
            .filter(|one| one.succeed == Some(false))
            .filter(|one| {
                let key = (one.pod_name.clone(), one.container_name.clone());
                self.told.insert(key)
            })
            .map(|one| format!("{}: {}", report::place(one), report::error(one)))
            .collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use belay_api::hook::PodAction;
    use serde_json::{Value, json};

    pub(in crate::hook) fn hook(status: &Value) -> ExecutionHook {
        serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "ExecutionHook",
            "metadata": {"name": "h", "uid": "u"},
            "spec": {"podSelection": {}, "actionName": "flush"},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_summary_counts_every_container_once_and_a_failure_is_told_once() {
        let error = json!({"errorType": "ExecutionFailwithError", "message": "exit code 3"});
        let mut tally = Tally::new(hook(&json!({})));
        assert!(!tally.acknowledged());
        assert_eq!(tally.summary(), "0 succeeded of 0 containers");
        let status = json!({
            "startTime": "2026-01-01T00:00:00Z",
            "hookStatuses": [
                {"podName": "a", "containerName": "c", "timestamp": 1, "succeed": true},
                {"podName": "b", "containerName": "c", "timestamp": 1, "succeed": false, "error": error},
                {"podName": "d", "containerName": "c", "timestamp": 1, "error": error},
                {"podName": "e", "containerName": "c", "timestamp": 1},
                {"podName": "f", "containerName": "c"},
            ],
        });
        for _ in 0..2 {
            tally.observe(Event::Apply(hook(&status)));
        }
        assert!(tally.acknowledged() && !tally.is_over());
        assert_eq!(
            tally.summary(),
            "1 succeeded, 1 failed, 1 trying again, 1 running, 1 not started of 5 containers"
        );
        assert_eq!(
            tally.take_news(Duration::ZERO),
            ["b/c: ExecutionFailwithError: exit code 3"]
        );
        assert!(tally.take_news(Duration::ZERO).is_empty());
    }

    #[test]
    fn what_was_killed_with_a_deleted_hook_is_not_said_to_run() {
        let rows = ["ended", "killed", "waiting"].map(
            |pod| json!({"podName": pod, "containerName": "c", "timestamp": (pod != "waiting").then_some(1)}),
        );
        let status = json!({"startTime": "2026-01-01T00:00:00Z", "hookStatuses": rows});
        let action: PodAction = serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodAction", "metadata": {},
            "spec": {"hook": {"name": "h", "uid": "u"}, "podName": "ended", "podUID": "p",
                "nodeName": "n", "containers": ["c"], "action": {}, "actionTimeoutSeconds": 1,
                "deadlineSeconds": 1},
            "status": {"containers": [{"name": "c", "succeed": true, "exitCode": 0}]},
        }))
        .unwrap();
        for (at_rest, summary) in [
            (
                false,
                "1 succeeded, 1 running, 1 not started of 3 containers",
            ),
            (
                true,
                "1 succeeded, 1 cancelled, 1 not started of 3 containers",
            ),
        ] {
            let mut tally = Tally::new(hook(&status));
            tally.settle(&report::outputs(std::slice::from_ref(&action)), at_rest);
            assert_eq!(tally.summary(), summary);
        }
    }

    #[test]
    fn it_is_over_when_it_has_ended_or_is_gone_and_not_for_a_successor() {
        let mut tally = Tally::new(hook(&json!({})));
        let mut other = hook(&json!({"actionSucceed": true}));
        other.metadata.uid = Some("other".into());
        tally.observe(Event::Apply(other.clone()));
        tally.observe(Event::Delete(other));
        assert!(!tally.is_over());
        tally.observe(Event::Apply(hook(&json!({"actionSucceed": false}))));
        assert!(tally.is_over() && !tally.was_deleted());
    }

    #[test]
    fn a_deletion_that_nobody_watched_is_seen_when_the_watch_begins_anew() {
        let mut tally = Tally::new(hook(&json!({})));
        let seen = || Event::InitApply(hook(&json!({})));
        for event in [Event::Init, seen(), Event::InitDone] {
            tally.observe(event);
        }
        assert!(!tally.was_deleted());
        // The watch was cut off; meanwhile it went.
        tally.observe(Event::Init);
        assert!(!tally.was_deleted());
        tally.observe(Event::InitDone);
        assert!(tally.was_deleted());
    }
}
