//! Between the object and the decision: what is read of a PodNotification or a PodAction, and how a
//! verdict is written into it.

use std::time::Duration;

use belay_api::hook::{HookError, HookErrorType, PodAction};
use belay_api::notification::{
    DEFAULT_DEADLINE_SECONDS, ErrorType, PodNotification, PodNotificationError, State,
};
use belay_api::reasons;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::decide::{Facts, Progress, Verdict};
use super::tracker::Key;
use crate::event;

impl Facts {
    /// Facts that are due now, whatever the time: for an object that has to be read again.
    pub(super) fn overdue() -> Facts {
        Facts {
            created: Timestamp::MIN,
            deadline: Duration::ZERO,
            progress: Progress::Unclaimed,
        }
    }

    /// Facts of something that has ended.
    pub(crate) fn finished(at: Option<Timestamp>, ttl: Option<Duration>) -> Facts {
        Facts {
            progress: Progress::Finished { at, ttl },
            ..Facts::overdue()
        }
    }
}

/// What an executor claims and ends, and what is ended here when no executor does.
pub trait Expires:
    Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
    + Clone
    + std::fmt::Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    /// What it is called in requests.
    const PLURAL: &'static str;
    /// The fields that select what has no end; `None` where all are read.
    const OPEN: Option<&'static str>;
    /// The fields that select what has ended and is to be collected; `None` where nothing is.
    const COLLECTABLE: Option<&'static str>;

    /// What the decision reads; `None` for an object that no server has stored (no creation time).
    fn facts(&self) -> Option<Facts>;

    /// The object with its end written into it; `None` for a verdict that ends nothing.
    fn ended(&self, verdict: &Verdict, now: Timestamp) -> Option<Self>;

    /// The warning that goes with an end.
    fn warning(&self, now: Timestamp) -> Option<Event>;
}

impl Expires for PodNotification {
    const PLURAL: &'static str = "podnotifications";
    const OPEN: Option<&'static str> = Some("status.state=New");
    // The time to live is set. An object that has just been stored on a stock server may have no
    // state yet; that is no end.
    const COLLECTABLE: Option<&'static str> =
        Some("status.state!=New,status.state!=,spec.ttlSecondsAfterFinished!=");

    fn facts(&self) -> Option<Facts> {
        facts(self)
    }

    fn ended(&self, verdict: &Verdict, now: Timestamp) -> Option<Self> {
        ended(self, verdict, now)
    }

    fn warning(&self, now: Timestamp) -> Option<Event> {
        event(self, now)
    }
}

impl Expires for PodAction {
    const PLURAL: &'static str = "podactions";
    // They go with their hook, so there are never many.
    const OPEN: Option<&'static str> = None;
    const COLLECTABLE: Option<&'static str> = None;

    fn facts(&self) -> Option<Facts> {
        let status = self.status.as_ref();
        let executor = status
            .and_then(|status| status.executor.as_deref())
            .filter(|executor| !executor.is_empty());
        let deadline = Duration::from_secs(self.spec.deadline_seconds.try_into().unwrap_or(0));
        let (progress, deadline) = match executor {
            _ if self.state().is_final() => (
                Progress::Finished {
                    at: None,
                    ttl: None,
                },
                deadline,
            ),
            // What is started at the last moment has all its time.
            Some(executor) => {
                let executor = executor.to_owned();
                let deadline = deadline.saturating_add(self.spec.timeout());
                (Progress::Claimed { executor }, deadline)
            }
            None => (Progress::Unclaimed, deadline),
        };
        Some(Facts {
            created: self.metadata.creation_timestamp.as_ref()?.0,
            deadline,
            progress,
        })
    }

    fn ended(&self, verdict: &Verdict, now: Timestamp) -> Option<Self> {
        let error = match verdict {
            Verdict::Expire => HookError::new(
                HookErrorType::Expired,
                format!(
                    "nobody started it within {} s; nothing was run. Check that the agent of node {:?} runs",
                    self.spec.deadline_seconds, self.spec.node_name
                ),
            ),
            Verdict::Interrupt { executor } => HookError::new(
                HookErrorType::Interrupted,
                format!("{executor:?} started it and has not been heard of since; it may have run"),
            ),
            Verdict::Leave | Verdict::LookAgain { .. } | Verdict::Collect => return None,
        };
        let mut object = self.clone();
        let status = object.status.get_or_insert_default();
        status.state = State::Failed;
        status.complete_time = Some(Time(now));
        for container in &mut status.containers {
            if container.succeed.is_none() {
                container.succeed = Some(false);
                container.error = Some(error.clone());
            }
        }
        status.error = Some(error);
        Some(object)
    }

    fn warning(&self, _: Timestamp) -> Option<Event> {
        // The hook that it is part of tells.
        None
    }
}

/// Names the object.
pub(super) fn key(object: &impl Expires) -> Key {
    Key {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
    }
}

fn facts(object: &PodNotification) -> Option<Facts> {
    let created = object.metadata.creation_timestamp.as_ref()?.0;
    let seconds = match object.spec.deadline_seconds {
        seconds if seconds > 0 => seconds,
        _ => DEFAULT_DEADLINE_SECONDS,
    };
    let status = object.status.as_ref();
    let executor = status
        .and_then(|status| status.executor.as_deref())
        .filter(|executor| !executor.is_empty());
    let progress = if object.state().is_final() {
        Progress::Finished {
            at: status
                .and_then(|status| status.complete_time.as_ref())
                .map(|time| time.0),
            ttl: object
                .spec
                .ttl_seconds_after_finished
                .map(|seconds| Duration::from_secs(seconds.try_into().unwrap_or(0))),
        }
    } else if let Some(executor) = executor {
        Progress::Claimed {
            executor: executor.to_owned(),
        }
    } else {
        Progress::Unclaimed
    };
    Some(Facts {
        created,
        deadline: Duration::from_secs(seconds.try_into().unwrap_or(0)),
        progress,
    })
}

fn ended(object: &PodNotification, verdict: &Verdict, now: Timestamp) -> Option<PodNotification> {
    let (type_, message) = match verdict {
        Verdict::Expire => (
            ErrorType::Expired,
            format!(
                "nobody claimed it within {} s; nothing was run. Check that the agent of node {:?} runs",
                object.spec.deadline_seconds,
                object
                    .status
                    .as_ref()
                    .and_then(|status| status.node_name.as_deref())
                    .unwrap_or("(none)"),
            ),
        ),
        Verdict::Interrupt { executor } => (
            ErrorType::Interrupted,
            format!("{executor:?} claimed it and is not heard of any more; it may have run"),
        ),
        Verdict::Leave | Verdict::LookAgain { .. } | Verdict::Collect => return None,
    };
    let error = PodNotificationError::new(type_, message, Time(now));
    let mut object = object.clone();
    let status = object.status.get_or_insert_default();
    status.state = State::Failed;
    status.complete_time = Some(Time(now));
    for container in &mut status.containers {
        // `succeeded` stays unset: whether it did is what nobody knows.
        if container.succeeded.is_none() && container.error.is_none() {
            container.error = Some(error.clone());
        }
    }
    status.error = Some(error);
    Some(object)
}

fn event(object: &PodNotification, now: Timestamp) -> Option<Event> {
    let error = object.status.as_ref()?.error.as_ref()?;
    let message = format!("{}: {}", error.type_, error.message);
    let reason = reasons::NOTIFICATION_FAILED;
    Some(event::about(object, reason, "Expiring", message, now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object(status: &Value) -> PodNotification {
        serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "PodNotification",
            "metadata": {
                "namespace": "ns", "name": "pn", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"podName": "db", "notifier": "lock", "deadlineSeconds": 30},
            "status": status,
        }))
        .unwrap()
    }

    fn progress(status: &Value) -> Progress {
        facts(&object(status)).unwrap().progress
    }

    #[test]
    fn the_executor_makes_the_claim_and_the_node_name_alone_does_not() {
        assert_eq!(progress(&json!({"state": "New"})), Progress::Unclaimed);
        assert_eq!(
            progress(&json!({"state": "New", "nodeName": "n", "executor": ""})),
            Progress::Unclaimed
        );
        assert_eq!(
            progress(&json!({"state": "New", "nodeName": "n", "executor": "e"})),
            Progress::Claimed {
                executor: "e".into()
            }
        );
    }

    #[test]
    fn a_final_state_is_finished_whoever_claimed_it() {
        let status = json!({
            "state": "Failed", "executor": "n", "completeTime": "2026-01-01T00:00:05Z",
        });
        assert_eq!(
            progress(&status),
            Progress::Finished {
                at: Some("2026-01-01T00:00:05Z".parse().unwrap()),
                ttl: None
            }
        );
    }

    #[test]
    fn an_object_that_was_never_stored_is_not_judged() {
        let mut object = object(&json!({}));
        object.metadata.creation_timestamp = None;
        assert_eq!(facts(&object), None);
    }

    #[test]
    fn an_interrupted_one_says_that_it_may_have_run_and_keeps_the_results_there_are() {
        let object = object(&json!({
            "state": "New", "nodeName": "n", "executor": "n",
            "containers": [
                {"name": "done", "succeeded": true},
                {"name": "running", "containerID": "process://1"},
            ],
        }));
        let now = "2026-01-01T00:02:00Z".parse().unwrap();
        let verdict = Verdict::Interrupt {
            executor: "n".into(),
        };
        let ended = ended(&object, &verdict, now).unwrap();
        assert_eq!(ended.metadata.resource_version.as_deref(), Some("7"));
        let status = ended.status.as_ref().unwrap();
        assert_eq!(status.state, State::Failed);
        assert_eq!(status.complete_time, Some(Time(now)));
        let error = status.error.as_ref().unwrap();
        assert_eq!(error.type_, ErrorType::Interrupted);
        assert!(
            error.message.ends_with("it may have run"),
            "{}",
            error.message
        );
        assert_eq!(status.containers[0].error, None);
        assert_eq!(status.containers[1].succeeded, None);
        assert_eq!(
            status.containers[1].error.as_ref().map(|e| e.type_),
            Some(ErrorType::Interrupted)
        );
        let event = event(&ended, now).unwrap();
        assert_eq!(
            event.involved_object.kind.as_deref(),
            Some("PodNotification")
        );
        assert_eq!(event.reason.as_deref(), Some("NotificationFailed"));
    }

    #[test]
    fn an_expired_one_says_that_nothing_was_run() {
        let object = object(&json!({"state": "New", "nodeName": "n"}));
        let now = "2026-01-01T00:02:00Z".parse().unwrap();
        let ended = ended(&object, &Verdict::Expire, now).unwrap();
        let error = ended.status.unwrap().error.unwrap();
        assert_eq!(error.type_, ErrorType::Expired);
        assert_eq!(
            error.message,
            "nobody claimed it within 30 s; nothing was run. Check that the agent of node \"n\" runs"
        );
    }
}
