//! Between a PodNotification's status and the delivery machine. Pure.

use std::collections::BTreeMap;

use belay_api::CONTROLLER;
use belay_api::notification::{
    Condition, ContainerNotificationStatus, ErrorType, PodNotification, PodNotificationError,
    PodNotificationStatus, State,
};
use belay_api::reasons;
use belay_api::signal::Signal;
use belay_core::delivery::{Conclusion, Entry, Record, Verdict, View};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::handler::Handlers;

/// What `--executor=controller` does not promise.
const WITHOUT_AGENT: &str = "run by the controller over pods/exec, without an agent on the node: a command that times out or is cancelled may go on running; when the connection breaks the outcome is not known (Interrupted) and nothing is repeated; signals cannot be sent; notifiers are those of the API's copy of the pod";

/// Who writes, and in which form container IDs stand in a status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Author<'a> {
    /// The executor of its claims, whichever process of it writes.
    pub(crate) executor: &'a str,
    /// The runtime's name, the scheme of container IDs.
    pub(crate) runtime: &'a str,
}

impl Author<'_> {
    pub(super) fn status_id(&self, id: &str) -> String {
        format!("{}://{id}", self.runtime)
    }

    pub(super) fn plain_id<'b>(&self, id: &'b str) -> &'b str {
        id.strip_prefix(self.runtime)
            .and_then(|rest| rest.strip_prefix("://"))
            .unwrap_or(id)
    }

    /// What the object says to this executor.
    pub(crate) fn view(&self, object: &PodNotification, handlers: &Handlers) -> View {
        let unset = PodNotificationStatus::default();
        let status = object.status.as_ref().unwrap_or(&unset);
        let claim = || self.claim(status, handlers);
        if status.state.is_final() {
            return View::Final;
        }
        match status.executor.as_deref() {
            Some(executor) if executor != self.executor => View::Foreign,
            executor => {
                let ours = executor.is_some();
                if object.metadata.deletion_timestamp.is_some() {
                    View::Deleting(ours.then(claim))
                } else if ours {
                    View::Ours(claim())
                } else {
                    View::Unclaimed
                }
            }
        }
    }

    fn claim(&self, status: &PodNotificationStatus, handlers: &Handlers) -> Record {
        Record {
            pod_uid: status.pod_uid.clone().unwrap_or_default(),
            entries: status
                .containers
                .iter()
                .map(|container| {
                    let id = container
                        .container_id
                        .as_deref()
                        .map(|id| self.plain_id(id).to_owned());
                    let mut entry = handlers.planned(&container.name, id);
                    let attempts = container.attempts.and_then(|n| u32::try_from(n).ok());
                    entry.attempt = attempts.unwrap_or(1).max(1);
                    (container.name.clone(), entry)
                })
                .collect(),
        }
    }

    /// The status that claims.
    pub(crate) fn claimed(
        &self,
        before: &PodNotificationStatus,
        record: &Record,
        now: Timestamp,
    ) -> PodNotificationStatus {
        let mut status = PodNotificationStatus {
            state: State::New,
            executor: Some(self.executor.to_owned()),
            pod_uid: before
                .pod_uid
                .clone()
                .or_else(|| Some(record.pod_uid.clone())),
            start_time: Some(Time(now)),
            containers: record
                .entries
                .iter()
                .map(|(name, entry)| ContainerNotificationStatus {
                    name: name.clone(),
                    container_id: entry.container_id.as_deref().map(|id| self.status_id(id)),
                    attempts: entry.container_id.is_some().then(|| attempts(entry)),
                    ..ContainerNotificationStatus::default()
                })
                .collect(),
            ..before.clone()
        };
        guarantees(*self, &mut status.conditions, WITHOUT_AGENT, now);
        status
    }

    /// The status that ends.
    pub(crate) fn concluded(
        &self,
        before: &PodNotificationStatus,
        conclusion: &Conclusion,
        handlers: &Handlers,
        now: Timestamp,
    ) -> PodNotificationStatus {
        let error = conclusion
            .error()
            .and_then(|(kind, message)| error(kind, message, now));
        let mut status = PodNotificationStatus {
            state: if conclusion.succeeded() {
                State::Succeeded
            } else {
                State::Failed
            },
            complete_time: Some(Time(now)),
            error,
            ..before.clone()
        };
        match conclusion {
            Conclusion::Ran(record) => {
                status.executor = Some(self.executor.to_owned());
                status.pod_uid = before
                    .pod_uid
                    .clone()
                    .or_else(|| Some(record.pod_uid.clone()));
                status.containers = record
                    .entries
                    .iter()
                    .map(|(name, entry)| self.container(name, entry, handlers, now))
                    .collect();
                guarantees(*self, &mut status.conditions, WITHOUT_AGENT, now);
                if let Some(condition) = signal_handled(record, now) {
                    put_condition(&mut status.conditions, condition);
                }
            }
            Conclusion::Refused(_) => {}
            Conclusion::NothingDeclared => put_condition(
                &mut status.conditions,
                condition(
                    reasons::NOTIFIER_FOUND,
                    "False",
                    reasons::NOT_DECLARED,
                    "no container of the pod declares this notifier",
                    now,
                ),
            ),
        }
        status
    }

    fn container(
        &self,
        name: &str,
        entry: &Entry,
        handlers: &Handlers,
        now: Timestamp,
    ) -> ContainerNotificationStatus {
        let time = |millis: i64| Timestamp::from_millisecond(millis).ok().map(Time);
        let outcome = entry.outcome.as_ref();
        let verdict = outcome.map(|outcome| &outcome.verdict);
        let finished = outcome.and_then(|outcome| time(outcome.finished));
        ContainerNotificationStatus {
            name: name.to_owned(),
            container_id: entry.container_id.as_deref().map(|id| self.status_id(id)),
            start_time: outcome.and_then(|outcome| outcome.started).and_then(time),
            complete_time: finished.clone(),
            succeeded: verdict.map(Verdict::succeeded),
            error: verdict.and_then(|verdict| {
                let at = finished.map_or(now, |time| time.0);
                error(verdict.error_type()?, verdict.message(), at)
            }),
            exit_code: exit_code(verdict, entry, handlers.signal(name)),
            signal: verdict
                .and_then(Verdict::signal)
                .map(signal_name)
                .or_else(|| {
                    handlers
                        .signal(name)
                        .filter(|_| entry.attempt > 0)
                        .map(|s| s.to_string())
                }),
            output: outcome
                .map(|outcome| outcome.output.clone())
                .filter(|text| !text.is_empty()),
            attempts: Some(attempts(entry)),
        }
    }
}

/// Says of what no agent runs what is therefore not promised.
pub(super) fn guarantees(
    author: Author<'_>,
    conditions: &mut Vec<Condition>,
    message: &str,
    now: Timestamp,
) {
    let told = |it: &Condition| it.type_ == reasons::FULL_GUARANTEES;
    if author.executor == CONTROLLER && !conditions.iter().any(told) {
        let (kind, reason) = (reasons::FULL_GUARANTEES, reasons::NO_AGENT);
        put_condition(conditions, condition(kind, "False", reason, message, now));
    }
}

/// 0 is worth saying of an exec that succeeded, whatever its probe said; a signal has no exit code.
fn exit_code(verdict: Option<&Verdict>, entry: &Entry, signal: Option<Signal>) -> Option<i32> {
    match verdict? {
        Verdict::Succeeded | Verdict::ProbeTimedOut { .. }
            if entry.traceable && signal.is_none() =>
        {
            Some(0)
        }
        other => other.exit_code(),
    }
}

fn attempts(entry: &Entry) -> i32 {
    i32::try_from(entry.attempt).unwrap_or(i32::MAX)
}

fn error(kind: &str, message: String, at: Timestamp) -> Option<PodNotificationError> {
    let type_: ErrorType = kind.parse().ok()?;
    Some(PodNotificationError::new(type_, message, Time(at)))
}

/// The name of a signal's number; a number that has none is written as it is.
pub(super) fn signal_name(number: i32) -> String {
    Signal::ALL
        .into_iter()
        .find(|signal| signal.number() == number)
        .map_or_else(|| number.to_string(), |signal| signal.to_string())
}

/// The condition of a notification that sent signals, if any was sent.
fn signal_handled(record: &Record, now: Timestamp) -> Option<Condition> {
    let handled: BTreeMap<&str, bool> = record
        .entries
        .iter()
        .filter_map(|(name, entry)| Some((name.as_str(), entry.outcome.as_ref()?.signal_handled?)))
        .collect();
    if handled.is_empty() {
        return None;
    }
    let unhandled: Vec<&str> = handled
        .iter()
        .filter(|(_, handled)| !**handled)
        .map(|(name, _)| *name)
        .collect();
    Some(if unhandled.is_empty() {
        let message = "every process had a handler for the signal";
        condition(
            reasons::SIGNAL_HANDLED,
            "True",
            reasons::HANDLED,
            message,
            now,
        )
    } else {
        let message = format!(
            "the first process of {} had no handler for the signal when it was sent",
            unhandled.join(", ")
        );
        condition(
            reasons::SIGNAL_HANDLED,
            "False",
            reasons::SIGNAL_NOT_HANDLED,
            &message,
            now,
        )
    })
}

fn condition(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> Condition {
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    }
}

fn put_condition(conditions: &mut Vec<Condition>, condition: Condition) {
    conditions.retain(|other| other.type_ != condition.type_);
    conditions.push(condition);
}

#[cfg(test)]
mod tests;
