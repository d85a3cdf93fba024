//! Between the objects and the machine: what is read of a Notification and its children, and what
//! is written into them.

use std::num::NonZeroUsize;
use std::time::Duration;

use belay_api::fanout::{
    FINALIZER, MAX_TARGET_BYTES, MAX_TARGETS, Notification, NotificationError,
    NotificationErrorType, NotificationStatus, OWNER_LABEL, PodSelectionPolicy, Settled,
};
use belay_api::notification::{
    Condition, DEFAULT_DEADLINE_SECONDS, PodNotification, PodNotificationSpec, State,
};
use belay_api::reasons;
use belay_api::selector::LabelSelector;
use belay_core::fanout::{self, Fanout, Memory, Outcome, Policy, Rule, Target, child_name};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::{Resource as _, ResourceExt as _};

use crate::deadline::{SHORTEST, is_over};
use crate::objects;
use crate::release::Held;

/// What the Notification asks for. A negative parallelism is [`selector`]'s to refuse.
pub(super) fn rule(object: &Notification) -> Rule {
    let limit = |number: i32| usize::try_from(number).ok().and_then(NonZeroUsize::new);
    Rule {
        policy: match object.spec.policy {
            PodSelectionPolicy::AllPods => Policy::AllPods,
            PodSelectionPolicy::PreExistingPods => Policy::PreExistingPods,
        },
        parallelism: limit(object.spec.parallelism),
        max_failures: object.spec.max_failures.and_then(limit),
    }
}

/// Why a Notification fails before anybody is notified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) type_: NotificationErrorType,
    pub(super) message: String,
}

/// The selector, or why it cannot be carried out.
pub(super) fn selector(object: &Notification) -> Result<LabelSelector, Refusal> {
    if object.spec.parallelism < 0 {
        return Err(Refusal {
            type_: NotificationErrorType::InvalidParallelism,
            message: format!(
                "parallelism is {}; create another Notification with 0 for all pods at once, or with a limit",
                object.spec.parallelism
            ),
        });
    }
    let invalid = |error: &dyn std::fmt::Display| Refusal {
        type_: NotificationErrorType::InvalidSelector,
        message: format!("selector: {error}; nothing was run"),
    };
    let selector = LabelSelector::try_from(&object.spec.selector).map_err(|it| invalid(&it))?;
    // With `AllPods` no server is asked.
    if object.spec.policy == PodSelectionPolicy::PreExistingPods {
        objects::asked_for(&selector).map_err(|it| invalid(&it))?;
    }
    Ok(selector)
}

/// Why a Notification fails whose pods were not to be had in its own time.
pub(super) fn never_listed(object: &Notification, error: &kube::Error) -> Refusal {
    Refusal {
        type_: NotificationErrorType::Expired,
        message: format!(
            "its pods could not be listed within {} s: {error}; nothing was run",
            object.spec.deadline_seconds.unwrap_or_default()
        ),
    }
}

/// Whether so many pods are too many for one status.
pub(super) fn too_many(targets: &[Target]) -> Option<Refusal> {
    let bytes: usize = targets.iter().map(|t| t.name.len() + t.uid.len() + 4).sum();
    (targets.len() > MAX_TARGETS || bytes > MAX_TARGET_BYTES).then(|| Refusal {
        type_: NotificationErrorType::TooManyPods,
        message: format!(
            "the selector matches {} pods, and one Notification keeps track of at most {MAX_TARGETS}, or {MAX_TARGET_BYTES} bytes of their names; nothing was run. Divide them by another label",
            targets.len()
        ),
    })
}

/// The machine's memory, as the status keeps it.
pub(super) fn memory(status: &NotificationStatus) -> Memory {
    let count = |number: i32| usize::try_from(number).unwrap_or(0);
    let settled = status.settled.clone().unwrap_or_default();
    Memory {
        targets: count(status.target_count),
        succeeded: count(status.succeeded_count),
        failed: count(status.failed_count),
        pending: status
            .pending
            .iter()
            .filter_map(|entry| {
                let (name, uid) = entry.split_once('/')?;
                Some(Target {
                    name: name.to_owned(),
                    uid: uid.to_owned(),
                })
            })
            .collect(),
        settled: fanout::Settled {
            succeeded: count(settled.succeeded_count),
            failed: count(settled.failed_count),
            uids: settled.pod_uids.into_iter().collect(),
        },
    }
}

/// What the status should say, given what it says now.
pub(super) fn status(
    object: &Notification,
    fanout: &Fanout,
    refused: Option<&Refusal>,
    written: &NotificationStatus,
    now: Timestamp,
) -> NotificationStatus {
    // Whole seconds, as Kubernetes writes times: what is read back is what was written.
    let now = Time(Timestamp::from_second(now.as_second()).unwrap_or(now));
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let memory = fanout.memory();
    let settled = Settled {
        succeeded_count: count(memory.settled.succeeded),
        failed_count: count(memory.settled.failed),
        pod_uids: memory.settled.uids.into_iter().collect(),
    };
    let mut status = NotificationStatus {
        target_count: count(memory.targets),
        succeeded_count: count(memory.succeeded),
        failed_count: count(memory.failed),
        start_time: written.start_time.clone().or(Some(now.clone())),
        complete_time: None,
        state: State::New,
        error: written.error.clone(),
        conditions: written.conditions.clone(),
        pending: memory
            .pending
            .iter()
            .map(|target| format!("{}/{}", target.name, target.uid))
            .collect(),
        settled: (settled != Settled::default()).then_some(settled),
    };
    let left = fanout.waiting();
    let stopped = if fanout.stopped() {
        let message = format!(
            "{} pods failed; {left} pods were not notified",
            memory.failed
        );
        Some((
            reasons::TOO_MANY_FAILURES,
            NotificationErrorType::TooManyFailures,
            message,
        ))
    } else if fanout.ran_out_of_time() {
        let message = format!(
            "{left} pods were not notified: their turn had not come within {} s of its creation",
            object.spec.deadline_seconds.unwrap_or_default()
        );
        Some((reasons::EXPIRED, NotificationErrorType::Expired, message))
    } else {
        None
    };
    if let Some((reason, type_, message)) = stopped {
        set(
            &mut status,
            reasons::STOPPED,
            "True",
            reason,
            &message,
            &now,
        );
        status.error.get_or_insert(NotificationError {
            type_,
            message,
            timestamp: now.clone(),
        });
    }
    if object.spec.policy == PodSelectionPolicy::PreExistingPods && refused.is_none() {
        let (value, reason, message) = if memory.targets == 0 {
            (
                "False",
                reasons::NO_PODS,
                "no running pod matches the selector".to_owned(),
            )
        } else {
            let message = format!("{} running pods match the selector", memory.targets);
            ("True", reasons::SELECTED, message)
        };
        set(
            &mut status,
            reasons::PODS_FOUND,
            value,
            reason,
            &message,
            &now,
        );
    }
    if let Some(refusal) = refused {
        status.error.get_or_insert(NotificationError {
            type_: refusal.type_,
            message: refusal.message.clone(),
            timestamp: now.clone(),
        });
    }
    if refused.is_some() || fanout.complete() {
        let well = status.error.is_none() && status.failed_count == 0;
        status.state = if well {
            State::Succeeded
        } else {
            State::Failed
        };
        // The estimate of the server's clock may have become better, and so earlier, since the start.
        status.complete_time = match object.spec.policy {
            PodSelectionPolicy::PreExistingPods => status.start_time.clone().max(Some(now)),
            PodSelectionPolicy::AllPods => None,
        };
    }
    status
}

fn set(
    status: &mut NotificationStatus,
    type_: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: &Time,
) {
    let known = status.conditions.iter().position(|c| c.type_ == type_);
    let since = known
        .map(|at| &status.conditions[at])
        .filter(|condition| condition.status == value)
        .map_or(now, |condition| &condition.last_transition_time)
        .clone();
    let condition = Condition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since,
        observed_generation: None,
    };
    match known {
        Some(at) => status.conditions[at] = condition,
        None => status.conditions.push(condition),
    }
}

/// How long handlers of a Notification with a deadline of its own may still start; `None` for one
/// that has none: with `AllPods` each child has the whole time.
pub(super) fn time_left(object: &Notification, now: Timestamp) -> Option<Duration> {
    let seconds = match object.spec.policy {
        PodSelectionPolicy::PreExistingPods => object.spec.deadline_seconds?,
        PodSelectionPolicy::AllPods => return None,
    };
    let created = object.creation_timestamp().map_or(now, |time| time.0);
    let left =
        SignedDuration::from_secs(seconds.into()).saturating_sub(now.duration_since(created));
    Some(Duration::try_from(left).unwrap_or_default())
}

/// Whether a child would come too late.
pub(super) fn is_expired(object: &Notification, now: Timestamp) -> bool {
    let whole = object.spec.deadline_seconds.unwrap_or_default();
    time_left(object, now).is_some_and(|left| is_over(left, whole))
}

/// The child of a pod. It has what is left of the Notification's own time, where it has one.
pub(super) fn child(object: &Notification, target: &Target, now: Timestamp) -> PodNotification {
    let own = object
        .spec
        .deadline_seconds
        .unwrap_or(DEFAULT_DEADLINE_SECONDS);
    // What a child is given is cut, and so is the time of its creation: it ends no later than the
    // Notification's own time.
    let deadline_seconds = time_left(object, now).map_or(own, |left| {
        i32::try_from(left.max(SHORTEST).as_secs()).unwrap_or(i32::MAX)
    });
    let uid = object.uid().unwrap_or_default();
    let owner = OwnerReference {
        block_owner_deletion: Some(true),
        ..object.controller_owner_ref(&()).unwrap_or_default()
    };
    let mut child = PodNotification::new(
        &child_name(&object.name_any(), &uid, &target.uid),
        PodNotificationSpec {
            pod_uid: Some(target.uid.clone()),
            deadline_seconds,
            ..PodNotificationSpec::new(&target.name, &object.spec.notifier)
        },
    );
    child.metadata = ObjectMeta {
        namespace: object.namespace(),
        labels: Some([(OWNER_LABEL.to_owned(), uid)].into()),
        owner_references: Some(vec![owner]),
        finalizers: Some(vec![FINALIZER.to_owned()]),
        // Those that a new object brings are meant for the definition of its kind.
        annotations: None,
        ..child.metadata
    };
    child
}

/// A child as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Child {
    pub(super) owner: String,
    pub(super) target: Target,
    pub(super) notifier: String,
    pub(super) outcome: Option<Outcome>,
    /// Whether an executor has claimed it and not said how it ended.
    pub(super) claimed: bool,
    pub(super) terminating: bool,
    /// Whether it waits for us to let it go.
    pub(super) held: bool,
}

impl Held for PodNotification {
    const FINALIZER: &'static str = FINALIZER;

    fn is_at_rest(&self) -> bool {
        let executor = self.status.as_ref().and_then(|s| s.executor.as_deref());
        self.state().is_final() || executor.is_none_or(str::is_empty)
    }
}

/// What is read of a PodNotification; `None` for one that is not a Notification's child.
///
/// Anybody who may create one may say whose child it is. Only the one that [`child`] would have made
/// for this pod is taken for it, and whoever reads it has to compare the notifier besides.
pub(super) fn read(object: &PodNotification) -> Option<Child> {
    let target = Target {
        name: object.spec.pod_name.clone(),
        uid: object.spec.pod_uid.clone()?,
    };
    let owner = object
        .owner_references()
        .iter()
        .find(|owner| owner.kind == "Notification" && owner.controller == Some(true));
    let (owner, is_named_so) = match owner {
        Some(owner) => {
            let name = child_name(&owner.name, &owner.uid, &target.uid);
            (&owner.uid, object.name_any() == name)
        }
        // An owner goes by itself where it leaves its children behind; the label stays.
        None => {
            let owner = object.labels().get(OWNER_LABEL)?;
            let suffix = child_name("", owner, &target.uid);
            (owner, object.name_any().ends_with(&suffix))
        }
    };
    if !is_named_so {
        return None;
    }
    Some(Child {
        owner: owner.clone(),
        target,
        notifier: object.spec.notifier.clone(),
        outcome: match object.state() {
            State::New => None,
            State::Succeeded => Some(Outcome::Succeeded),
            State::Failed => Some(Outcome::Failed),
        },
        claimed: !object.is_at_rest(),
        terminating: object.metadata.deletion_timestamp.is_some(),
        held: object.is_held(),
    })
}
