//! Between a PodAction, which is a hook's part in one pod, and the delivery machine. Pure.

use std::time::Duration;

use belay_api::hook::{
    ContainerActionStatus, HookError, HookErrorType, PodAction, PodActionStatus,
};
use belay_api::notification::{DEFAULT_DEADLINE_SECONDS, State};
use belay_core::delivery::{Conclusion, Entry, First, Outcome, Record, Verdict, View};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};

use super::errand::{self, Errand};
use super::handler::Handlers;
use super::status::{Author, guarantees, signal_name};
use crate::clock::{boot_millis, wall_millis};
use crate::journal::Started;
use crate::pods::PodView;

/// What `--executor=controller` does not promise.
const WITHOUT_AGENT: &str = "run by the controller over pods/exec, without an agent on the node: a command that outlives its time may go on running; when the connection breaks the command is run again while the one before may still run";

impl Errand for PodAction {
    const KIND: &'static str = "PodAction";
    const PLURAL: &'static str = "podactions";
    const JOURNAL: &'static str = "action/";
    const NODE_FIELD: &'static str = "spec.nodeName";

    fn about(&self) -> Started {
        let spec = &self.spec;
        Started {
            pod_name: spec.pod_name.clone(),
            deadline: errand::deadline(self, spec.deadline_seconds, DEFAULT_DEADLINE_SECONDS),
            record: Record {
                pod_uid: spec.pod_uid.clone(),
                entries: Default::default(),
            },
            ..errand::named(self)
        }
    }

    fn is_final(&self) -> bool {
        self.state().is_final()
    }

    fn is_assigned(&self) -> bool {
        true
    }

    fn handlers(&self, pod: &PodView) -> Result<Handlers, String> {
        Handlers::of_action(&self.spec, pod)
    }

    fn retries(&self) -> Option<Duration> {
        Some(self.spec.timeout())
    }

    fn view(&self, author: Author<'_>, handlers: &Handlers) -> View {
        let unset = PodActionStatus::default();
        let status = self.status.as_ref().unwrap_or(&unset);
        if status.state.is_final() {
            return View::Final;
        }
        match status.executor.as_deref() {
            Some(executor) if executor != author.executor => View::Foreign,
            executor => {
                let claim = executor.map(|_| claim(self, status, author, handlers));
                if self.metadata.deletion_timestamp.is_some() {
                    View::Deleting(claim)
                } else {
                    claim.map_or(View::Unclaimed, View::Ours)
                }
            }
        }
    }

    fn claim(&mut self, author: Author<'_>, record: &Record, now: Timestamp) {
        let status = self.status.get_or_insert_default();
        status.executor = Some(author.executor.to_owned());
        status.start_time = Some(Time(now));
        status.containers = record
            .entries
            .iter()
            .map(|(name, entry)| ContainerActionStatus {
                name: name.clone(),
                container_id: entry.container_id.as_deref().map(|id| author.status_id(id)),
                ..ContainerActionStatus::default()
            })
            .collect();
        guarantees(author, &mut status.conditions, WITHOUT_AGENT, now);
    }

    fn progress(&mut self, author: Author<'_>, record: &Record, now: Timestamp) -> bool {
        let seconds = self.spec.action_timeout_seconds;
        let status = self.status.get_or_insert_default();
        let containers = containers(author, record, seconds, now);
        // How often something was tried is told when there is something else to tell.
        let told = |containers: &[ContainerActionStatus]| -> Vec<_> {
            let one =
                |it: &ContainerActionStatus| (it.start_time.clone(), it.succeed, it.error.clone());
            containers.iter().map(one).collect()
        };
        if told(&containers) == told(&status.containers) {
            return false;
        }
        status.containers = containers;
        true
    }

    fn conclude(
        &mut self,
        author: Author<'_>,
        conclusion: &Conclusion,
        _: &Handlers,
        now: Timestamp,
    ) {
        let seconds = self.spec.action_timeout_seconds;
        let status = self.status.get_or_insert_default();
        status.state = if conclusion.succeeded() {
            State::Succeeded
        } else {
            State::Failed
        };
        status.complete_time = Some(Time(now));
        match conclusion {
            Conclusion::Ran(record) => {
                status.executor = Some(author.executor.to_owned());
                status.containers = containers(author, record, seconds, now);
                guarantees(author, &mut status.conditions, WITHOUT_AGENT, now);
            }
            Conclusion::Refused(verdict) => status.error = error(verdict, "", seconds),
            // An action is for the containers that it names, and it names one at least.
            Conclusion::NothingDeclared => {
                let message = "no container is named";
                status.state = State::Failed;
                status.error = Some(HookError::new(HookErrorType::ContainerNotFound, message));
            }
        }
    }

    fn shorten(&mut self) {
        let Some(status) = &mut self.status else {
            return;
        };
        for container in &mut status.containers {
            container.output = None;
        }
        let errors = status.containers.iter_mut().map(|it| &mut it.error);
        for error in errors.chain([&mut status.error]).flatten() {
            error.reason = None;
            error.shorten(errand::BRIEF);
        }
    }
}

/// The claim as the object tells it. Who has no journal learns from it when each container's time
/// began.
fn claim(
    object: &PodAction,
    status: &PodActionStatus,
    author: Author<'_>,
    handlers: &Handlers,
) -> Record {
    let ago = wall_millis() - boot_millis();
    let entries = status.containers.iter().map(|container| {
        let id = container.container_id.as_deref();
        let mut entry =
            handlers.planned(&container.name, id.map(|id| author.plain_id(id).to_owned()));
        let attempts = container.attempts.and_then(|n| u32::try_from(n).ok());
        entry.attempt = attempts.unwrap_or(1).max(1);
        entry.first = container.start_time.as_ref().map(|time| {
            let wall = time.0.as_millisecond();
            First {
                boot: wall.saturating_sub(ago),
                wall,
            }
        });
        // What is recorded never runs again.
        entry.outcome = container
            .succeed
            .map(|succeed| recorded(container, succeed));
        (container.name.clone(), entry)
    });
    Record {
        pod_uid: object.spec.pod_uid.clone(),
        entries: entries.collect(),
    }
}

/// The outcome of a container that an earlier process has told of.
fn recorded(container: &ContainerActionStatus, succeed: bool) -> Outcome {
    let verdict = if succeed {
        Verdict::Succeeded
    } else {
        verdict(container)
    };
    let finished = container
        .complete_time
        .as_ref()
        .map_or(0, |time| time.0.as_millisecond());
    let started = container.start_time.as_ref();
    Outcome {
        started: started.map(|time| time.0.as_millisecond()),
        output: container.output.clone().unwrap_or_default(),
        ..Outcome::unstarted(verdict, finished)
    }
}

/// The verdict that an error was written for, as far as its status tells.
fn verdict(container: &ContainerActionStatus) -> Verdict {
    let Some(error) = &container.error else {
        return Verdict::Interrupted;
    };
    let message = error.message.clone().unwrap_or_default();
    match (error.error_type, container.exit_code) {
        (HookErrorType::ExecutionFailwithError, Some(code)) => Verdict::Exited { code },
        (HookErrorType::ExecutionFailwithError, None) => Verdict::CheckFailed { message },
        (HookErrorType::ExecutionTimeout, _) => Verdict::TimedOut {
            seconds: 0,
            survivors: Vec::new(),
        },
        (HookErrorType::PodNotFound, _) => Verdict::PodNotFound,
        (HookErrorType::PodTerminating, _) => Verdict::PodTerminating,
        (HookErrorType::ContainerNotRunning, _) => Verdict::ContainerNotRunning,
        (HookErrorType::ContainerRestarted, _) => Verdict::ContainerRestarted {
            may_have_run: container.start_time.is_some(),
        },
        (HookErrorType::Expired, _) => Verdict::Expired,
        (HookErrorType::Interrupted, _) => Verdict::Interrupted,
        (HookErrorType::Cancelled, _) => Verdict::Cancelled {
            survivors: Vec::new(),
        },
        (HookErrorType::Forbidden, _) => Verdict::Forbidden { message },
        (
            HookErrorType::RuntimeError
            | HookErrorType::ContainerNotFound
            | HookErrorType::ActionNotFound
            | HookErrorType::NothingSelected
            | HookErrorType::InvalidSelector
            | HookErrorType::TooManyContainers,
            _,
        ) => Verdict::Runtime { message },
    }
}

fn containers(
    author: Author<'_>,
    record: &Record,
    seconds: i64,
    now: Timestamp,
) -> Vec<ContainerActionStatus> {
    let one = |(name, entry): (&String, &Entry)| {
        let time = |millis: i64| Timestamp::from_millisecond(millis).ok();
        let newest = entry.outcome.as_ref().or(entry.failed.as_deref());
        let verdict = newest.map(|newest| &newest.verdict);
        let tried = entry.first.is_some() || entry.outcome.is_some();
        ContainerActionStatus {
            name: name.clone(),
            container_id: entry.container_id.as_deref().map(|id| author.status_id(id)),
            start_time: entry
                .first
                .and_then(|first| time(first.wall))
                .map(MicroTime),
            complete_time: entry
                .outcome
                .as_ref()
                .map(|outcome| Time(time(outcome.finished).unwrap_or(now))),
            succeed: entry.outcome.as_ref().map(|it| it.verdict.succeeded()),
            error: newest.and_then(|newest| error(&newest.verdict, &newest.output, seconds)),
            attempts: tried.then(|| i32::try_from(entry.attempt).unwrap_or(i32::MAX)),
            exit_code: match verdict {
                Some(Verdict::Succeeded) if entry.traceable => Some(0),
                other => other.and_then(Verdict::exit_code),
            },
            signal: verdict.and_then(Verdict::signal).map(signal_name),
            output: newest
                .map(|newest| newest.output.clone())
                .filter(|text| !text.is_empty()),
        }
    };
    record.entries.iter().map(one).collect()
}

/// How a failure reads in the status of a hook; `None` for success.
fn error(verdict: &Verdict, output: &str, seconds: i64) -> Option<HookError> {
    let killed = |how: &str| format!("the action still ran when its {seconds} s were over{how}");
    let (type_, message) = match verdict {
        Verdict::Succeeded => return None,
        Verdict::TimedOut { survivors, .. } if survivors.is_empty() => {
            (HookErrorType::ExecutionTimeout, killed(", and was killed"))
        }
        Verdict::TimedOut { survivors, .. } => (
            HookErrorType::ExecutionTimeout,
            killed(&format!(
                ", and was killed; these processes could not be killed: {}",
                survivors.join(", ")
            )),
        ),
        Verdict::LeftRunning { .. } => (
            HookErrorType::ExecutionTimeout,
            killed("; it could not be killed and may still be running"),
        ),
        Verdict::NoAnswer { .. } => (
            HookErrorType::ExecutionTimeout,
            format!("no answer within the {seconds} s of the action"),
        ),
        // No action of a hook sends a signal.
        Verdict::Unconfirmed { .. } => (HookErrorType::ExecutionTimeout, verdict.message()),
        Verdict::Exited { code } => (
            HookErrorType::ExecutionFailwithError,
            format!("the command exited with code {code}"),
        ),
        Verdict::Signaled { signal } => (
            HookErrorType::ExecutionFailwithError,
            format!("the command was killed by {}", signal_name(*signal)),
        ),
        Verdict::StartFailed { message } => (
            HookErrorType::ExecutionFailwithError,
            format!("the command could not be started: {message}"),
        ),
        Verdict::CheckFailed { message } => {
            (HookErrorType::ExecutionFailwithError, message.clone())
        }
        Verdict::ProbeTimedOut { .. } => (HookErrorType::ExecutionTimeout, verdict.message()),
        Verdict::PodNotFound => (HookErrorType::PodNotFound, verdict.message()),
        Verdict::PodTerminating => (HookErrorType::PodTerminating, verdict.message()),
        Verdict::ContainerNotRunning => (HookErrorType::ContainerNotRunning, verdict.message()),
        Verdict::ContainerRestarted { may_have_run } => (
            HookErrorType::ContainerRestarted,
            if *may_have_run {
                "the container ended or restarted; the action may have run before"
            } else {
                "the container ended or restarted before the action was started"
            }
            .to_owned(),
        ),
        Verdict::Expired => (
            HookErrorType::Expired,
            "the deadline passed before the action was started".to_owned(),
        ),
        Verdict::Interrupted => (
            HookErrorType::Interrupted,
            "the attempt was interrupted and left no trace; the action may have run".to_owned(),
        ),
        Verdict::Cancelled { .. } => (
            HookErrorType::Cancelled,
            verdict.message().replacen("notification", "hook", 1),
        ),
        Verdict::Runtime { message } => (HookErrorType::RuntimeError, message.clone()),
        Verdict::Forbidden { message } => (HookErrorType::Forbidden, message.clone()),
    };
    let error = HookError::new(type_, message);
    let said = output.trim();
    Some(if said.is_empty() {
        error
    } else {
        error.because(last(said))
    })
}

/// How much of what a command wrote stands beside its error: the end of it, which tells most.
const SAID: usize = 1000;

fn last(text: &str) -> &str {
    let from = text.len().saturating_sub(SAID);
    &text[text.ceil_char_boundary(from)..]
}

#[cfg(test)]
mod tests;
