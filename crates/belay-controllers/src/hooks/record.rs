//! What is known of one hook, and how it stands in its status. Pure.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use belay_api::hook::{
    ContainerExecutionHookStatus, ExecutionHook, ExecutionHookStatus, FINALIZER, HOOK_LABEL,
    HookError, HookErrorType, HookReference, MAX_CONTAINERS, PodAction, PodActionSpec,
    ResolvedAction,
};
use belay_api::reasons;
use belay_core::fanout::child_name;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::{Resource as _, ResourceExt as _};

use super::select::Target;
use crate::deadline::{SHORTEST, is_over};
use crate::event;
use crate::release::Held;

impl Held for PodAction {
    const FINALIZER: &'static str = FINALIZER;

    fn is_at_rest(&self) -> bool {
        let executor = self.status.as_ref().and_then(|s| s.executor.as_deref());
        self.state().is_final() || executor.is_none_or(str::is_empty)
    }
}

/// The pods, by UID, of which the hook's status tells all that will ever be told.
pub(super) fn recorded(object: &ExecutionHook) -> HashSet<String> {
    let statuses = object.status.iter().flat_map(|it| &it.hook_statuses);
    let (mut over, mut open) = (HashSet::new(), HashSet::new());
    for container in statuses {
        if let Some(uid) = &container.pod_uid {
            let pods = match container.succeed {
                Some(_) => &mut over,
                None => &mut open,
            };
            pods.insert(uid.clone());
        }
    }
    over.retain(|uid| !open.contains(uid));
    over
}

/// Whole seconds, as Kubernetes writes times: what is read back is what was written.
fn whole(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The status of a hook that fails before anything is run.
pub(super) fn refused(error: HookError, now: Timestamp) -> ExecutionHookStatus {
    ExecutionHookStatus {
        action_succeed: Some(false),
        start_time: Some(whole(now)),
        complete_time: Some(whole(now)),
        error: Some(error),
        target_count: Some(0),
        ..ExecutionHookStatus::default()
    }
}

/// The status of a hook that starts: what it runs, and where.
pub(super) fn started(
    action: ResolvedAction,
    targets: &[Target],
    now: Timestamp,
) -> ExecutionHookStatus {
    let statuses = targets.iter().map(|target| ContainerExecutionHookStatus {
        pod_name: target.pod.clone(),
        container_name: target.container.clone(),
        pod_uid: target.pod_uid.clone(),
        succeed: target.node.is_err().then_some(false),
        error: target.node.as_ref().err().cloned(),
        ..ContainerExecutionHookStatus::default()
    });
    let mut status = ExecutionHookStatus {
        hook_statuses: statuses.collect(),
        start_time: Some(whole(now)),
        action: Some(action.clone()),
        ..ExecutionHookStatus::default()
    };
    let many = targets.len() > MAX_CONTAINERS || !status.clone().shorten();
    if many {
        let message = format!(
            "{} containers are selected, and one hook is for at most {MAX_CONTAINERS}, or for as many as their names fit into its status; nothing was run. Divide them into several hooks",
            targets.len()
        );
        let error = HookError::new(HookErrorType::TooManyContainers, message);
        status = refused(error, now);
        status.action = Some(action);
    }
    status
}

/// One pod of a hook.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Part {
    pub(super) pod: String,
    pub(super) pod_uid: String,
    pub(super) containers: Vec<String>,
    /// Where its containers stand in the status.
    places: Vec<usize>,
    /// Whether its PodAction is, or was, there.
    created: bool,
    /// The newest version of it that was seen; one that is no number tells nothing.
    version: u64,
    /// Whether nothing more will come of it.
    over: bool,
}

/// A hook that has started.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    status: ExecutionHookStatus,
    /// By pod UID.
    parts: BTreeMap<String, Part>,
}

impl Progress {
    /// Goes on from what the status says.
    pub(super) fn of(status: ExecutionHookStatus) -> Self {
        let mut parts: BTreeMap<String, Part> = BTreeMap::new();
        for (place, container) in status.hook_statuses.iter().enumerate() {
            let Some(uid) = &container.pod_uid else {
                continue;
            };
            if container.succeed.is_some() {
                continue;
            }
            let part = parts.entry(uid.clone()).or_insert_with(|| Part {
                pod: container.pod_name.clone(),
                pod_uid: uid.clone(),
                containers: Vec::new(),
                places: Vec::new(),
                created: false,
                version: 0,
                over: false,
            });
            part.containers.push(container.container_name.clone());
            part.places.push(place);
        }
        Progress { status, parts }
    }

    /// The pods that have no PodAction yet.
    pub(super) fn uncreated(&self) -> Vec<Part> {
        let open = |part: &&Part| !part.created && !part.over;
        self.parts.values().filter(open).cloned().collect()
    }

    /// The pods whose PodAction is there and has not ended.
    pub(super) fn under_way(&self) -> Vec<Part> {
        let open = |part: &&Part| part.created && !part.over;
        self.parts.values().filter(open).cloned().collect()
    }

    pub(super) fn created(&mut self, pod_uid: &str) {
        if let Some(part) = self.parts.get_mut(pod_uid) {
            part.created = true;
        }
    }

    /// No PodAction could be made for this pod. Where one was seen all the same, a creation came to
    /// something that nobody answered; what comes of it is told by the PodAction.
    pub(super) fn not_created(&mut self, pod_uid: &str, error: &HookError) {
        if self.parts.get(pod_uid).is_some_and(|part| !part.created) {
            self.fail(pod_uid, error);
        }
    }

    /// Takes in what a PodAction says.
    pub(super) fn seen(&mut self, child: &PodAction) {
        let Some(part) = self.parts.get_mut(&child.spec.pod_uid) else {
            return;
        };
        part.created = true;
        let version = child.resource_version();
        let version = version.and_then(|version| version.parse().ok());
        let version = version.unwrap_or(part.version);
        if version < part.version {
            return;
        }
        part.version = version;
        if child.metadata.deletion_timestamp.is_some()
            && child.is_at_rest()
            && !child.state().is_final()
        {
            // Who would claim it now meets another version, and learns that it is being deleted.
            let message = format!(
                "its PodAction {:?} was deleted before anybody took it up; nothing was run",
                child.name_any()
            );
            let error = HookError::new(HookErrorType::Cancelled, message);
            return self.fail(&child.spec.pod_uid, &error);
        }
        let Some(status) = child.status.as_ref().filter(|_| !part.over) else {
            return;
        };
        for (name, place) in part.containers.iter().zip(&part.places) {
            let Some(container) = self.status.hook_statuses.get_mut(*place) else {
                continue;
            };
            let Some(told) = status.containers.iter().find(|told| told.name == *name) else {
                continue;
            };
            container.timestamp = told.start_time.as_ref().map(|time| time.0.as_second());
            container.succeed = told.succeed;
            container.error.clone_from(&told.error);
            container.container_id.clone_from(&told.container_id);
            container.attempts = told.attempts;
            container.exit_code = told.exit_code;
        }
        let weaker = status
            .conditions
            .iter()
            .find(|it| it.type_ == reasons::FULL_GUARANTEES);
        let known = &mut self.status.conditions;
        if let Some(weaker) = weaker
            && !known.iter().any(|it| it.type_ == weaker.type_)
        {
            known.push(weaker.clone());
        }
        if child.state().is_final() {
            let error = status.error.clone().unwrap_or_else(|| {
                let message = "nobody told what came of it here";
                HookError::new(HookErrorType::Interrupted, message)
            });
            self.fail(&child.spec.pod_uid, &error);
        }
    }

    /// Nothing more will come of this pod: where nothing is known this is the error.
    pub(super) fn fail(&mut self, pod_uid: &str, error: &HookError) {
        let Some(part) = self.parts.get_mut(pod_uid) else {
            return;
        };
        part.over = true;
        for place in &part.places {
            if let Some(container) = self.status.hook_statuses.get_mut(*place)
                && container.succeed.is_none()
            {
                container.succeed = Some(false);
                container.error = Some(error.clone());
            }
        }
    }

    /// Whether the action has ended in all containers.
    pub(super) fn is_over(&self) -> bool {
        self.parts.values().all(|part| part.over)
    }

    /// The status as it should be now.
    pub(super) fn status(&self, now: Timestamp) -> ExecutionHookStatus {
        let mut status = self.status.clone();
        let count = |wanted: Option<bool>| {
            let statuses = &self.status.hook_statuses;
            let count = statuses.iter().filter(|it| it.succeed == wanted).count();
            Some(i32::try_from(count).unwrap_or(i32::MAX))
        };
        status.target_count = i32::try_from(status.hook_statuses.len()).ok();
        status.succeeded_count = count(Some(true));
        status.failed_count = count(Some(false));
        if self.is_over() && status.action_succeed.is_none() {
            let statuses = &status.hook_statuses;
            status.action_succeed = Some(statuses.iter().all(|it| it.succeed == Some(true)));
            // The estimate of the server's clock may have become better, and so earlier.
            status.complete_time = status.start_time.clone().max(Some(whole(now)));
        }
        // Names alone fit: that was looked at when the hook started.
        let _ = status.shorten();
        status
    }
}

/// How long after now the action may still be started for the first time; an error when it is too
/// late for that, which tells what stood in the way.
pub(super) fn time_left(
    object: &ExecutionHook,
    now: Timestamp,
    obstacle: Option<&str>,
) -> Result<Duration, HookError> {
    let seconds = object.spec.deadline_seconds;
    let created = object.creation_timestamp().map_or(now, |time| time.0);
    let left =
        SignedDuration::from_secs(seconds.into()).saturating_sub(now.duration_since(created));
    let left = Duration::try_from(left).unwrap_or_default();
    if !is_over(left, seconds) {
        return Ok(left);
    }
    let message = format!("it could not be started within {seconds} s; nothing was run");
    let expired = HookError::new(HookErrorType::Expired, message);
    Err(match obstacle {
        Some(obstacle) => expired.because(obstacle),
        None => expired,
    })
}

/// What a PodAction is called.
pub(super) fn name(object: &ExecutionHook, pod_uid: &str) -> String {
    let uid = object.uid().unwrap_or_default();
    child_name(&object.name_any(), &uid, pod_uid)
}

/// The PodAction of a pod, to be started in the time that is left.
pub(super) fn child(
    object: &ExecutionHook,
    action: &ResolvedAction,
    part: &Part,
    node: &str,
    left: Duration,
) -> PodAction {
    let uid = object.uid().unwrap_or_default();
    let mut child = PodAction::new(
        &name(object, &part.pod_uid),
        PodActionSpec {
            hook: HookReference {
                name: object.name_any(),
                uid: uid.clone(),
            },
            pod_name: part.pod.clone(),
            pod_uid: part.pod_uid.clone(),
            node_name: node.to_owned(),
            containers: part.containers.clone(),
            action: action.action.clone(),
            action_timeout_seconds: action.action_timeout_seconds,
            deadline_seconds: i32::try_from(left.max(SHORTEST).as_secs()).unwrap_or(i32::MAX),
        },
    );
    child.metadata = ObjectMeta {
        namespace: object.namespace(),
        labels: Some([(HOOK_LABEL.to_owned(), uid)].into()),
        owner_references: Some(vec![OwnerReference {
            // Who deletes the hook in the foreground waits for what runs.
            block_owner_deletion: Some(true),
            ..object.controller_owner_ref(&()).unwrap_or_default()
        }]),
        finalizers: Some(vec![FINALIZER.to_owned()]),
        // Those that a new object brings are meant for the definition of its kind.
        annotations: None,
        ..child.metadata
    };
    child
}

/// What is told when a hook has ended.
pub(super) fn ending(
    object: &ExecutionHook,
    status: &ExecutionHookStatus,
    now: Timestamp,
) -> Event {
    let total = status.hook_statuses.len();
    let failed = status
        .hook_statuses
        .iter()
        .filter(|container| container.succeed != Some(true));
    let first = failed.clone().next();
    let why = |error: &HookError| {
        let message = error.message.as_deref().unwrap_or_default();
        format!("{}: {message}", error.error_type)
    };
    let (reason, message) = match (status.action_succeed, &status.error, first) {
        (Some(true), _, _) => (
            reasons::HOOK_SUCCEEDED,
            format!("the action succeeded in {total} containers"),
        ),
        (_, Some(error), _) => (reasons::HOOK_FAILED, why(error)),
        (_, None, Some(first)) => (
            reasons::HOOK_FAILED,
            format!(
                "the action failed in {} of {total} containers; {}/{}: {}",
                failed.count(),
                first.pod_name,
                first.container_name,
                first.error.as_ref().map(why).unwrap_or_default()
            ),
        ),
        (_, None, None) => (reasons::HOOK_FAILED, "the hook failed".to_owned()),
    };
    event::about(object, reason, "Hooking", message, now)
}

#[cfg(test)]
mod tests;
