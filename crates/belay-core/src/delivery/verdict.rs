//! What one container's action came to, and how that reads in a status.

use serde::{Deserialize, Serialize};

/// The end of one container's part of a notification.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub enum Verdict {
    /// The handler ended with 0, or the signal was delivered; and the probe, if there is one,
    /// succeeded.
    Succeeded,
    /// The handler ended with another exit code.
    Exited {
        /// The exit code.
        code: i32,
    },
    /// A signal that Belay did not send ended the handler.
    Signaled {
        /// Its number.
        signal: i32,
    },
    /// The handler outlived its timeout and was killed with all it had started.
    TimedOut {
        /// The timeout, in seconds.
        seconds: u64,
        /// What could not be killed, as "pid (name)".
        survivors: Vec<String>,
    },
    /// The handler outlived its timeout where nothing can kill it.
    LeftRunning {
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// The runtime did not say in time whether it had sent the signal.
    Unconfirmed {
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// A request was not answered in time.
    NoAnswer {
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// The handler did what it should, and its probe did not succeed within the timeout.
    ProbeTimedOut {
        /// The timeout, in seconds.
        seconds: u64,
        /// What the last try said; `None` when there was none.
        last: Option<String>,
    },
    /// The handler could not be started: no such command, not executable.
    StartFailed {
        /// What the runtime said.
        message: String,
    },
    /// A request was not answered as it should be, or a port took no connection.
    CheckFailed {
        /// What came of it.
        message: String,
    },
    /// The pod was gone when the agent came to it.
    PodNotFound,
    /// The pod was being deleted when the agent came to it.
    PodTerminating,
    /// The container was not running.
    ContainerNotRunning,
    /// The incarnation that the claim names is no longer the one that runs.
    ContainerRestarted {
        /// Whether an attempt may have run before.
        may_have_run: bool,
    },
    /// The deadline passed before anything was started.
    Expired,
    /// The attempt is gone without a trace and may have run.
    Interrupted,
    /// The notification was deleted.
    Cancelled {
        /// What could not be killed, as "pid (name)".
        survivors: Vec<String>,
    },
    /// The runtime or the node itself failed.
    Runtime {
        /// What failed.
        message: String,
    },
    /// It may not be run: what the pod declares now is not what it was created with, or the claim
    /// names another pod's container.
    Forbidden {
        /// Why.
        message: String,
    },
}

impl Verdict {
    /// Whether it counts as success.
    pub fn succeeded(&self) -> bool {
        matches!(self, Verdict::Succeeded)
    }

    /// The error type as it stands in a status; `None` for success.
    pub fn error_type(&self) -> Option<&'static str> {
        match self {
            Verdict::Succeeded => None,
            Verdict::Exited { .. }
            | Verdict::Signaled { .. }
            | Verdict::StartFailed { .. }
            | Verdict::CheckFailed { .. } => Some("HandlerFailed"),
            Verdict::TimedOut { .. }
            | Verdict::LeftRunning { .. }
            | Verdict::Unconfirmed { .. }
            | Verdict::NoAnswer { .. }
            | Verdict::ProbeTimedOut { .. } => Some("HandlerTimeout"),
            Verdict::PodNotFound => Some("PodNotFound"),
            Verdict::PodTerminating => Some("PodTerminating"),
            Verdict::ContainerNotRunning => Some("ContainerNotRunning"),
            Verdict::ContainerRestarted { .. } => Some("ContainerRestarted"),
            Verdict::Expired => Some("Expired"),
            Verdict::Interrupted => Some("Interrupted"),
            Verdict::Cancelled { .. } => Some("Cancelled"),
            Verdict::Runtime { .. } => Some("RuntimeError"),
            Verdict::Forbidden { .. } => Some("Forbidden"),
        }
    }

    /// One word for metrics and the audit log.
    pub fn label(&self) -> &'static str {
        self.error_type().unwrap_or("Succeeded")
    }

    /// `exitCode` of the container's status.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Verdict::Exited { code } => Some(*code),
            Verdict::Succeeded
            | Verdict::Signaled { .. }
            | Verdict::TimedOut { .. }
            | Verdict::LeftRunning { .. }
            | Verdict::Unconfirmed { .. }
            | Verdict::NoAnswer { .. }
            | Verdict::ProbeTimedOut { .. }
            | Verdict::StartFailed { .. }
            | Verdict::CheckFailed { .. }
            | Verdict::PodNotFound
            | Verdict::PodTerminating
            | Verdict::ContainerNotRunning
            | Verdict::ContainerRestarted { .. }
            | Verdict::Expired
            | Verdict::Interrupted
            | Verdict::Cancelled { .. }
            | Verdict::Runtime { .. }
            | Verdict::Forbidden { .. } => None,
        }
    }

    /// Number of the signal that ended the handler.
    pub fn signal(&self) -> Option<i32> {
        match self {
            Verdict::Signaled { signal } => Some(*signal),
            Verdict::Succeeded
            | Verdict::Exited { .. }
            | Verdict::TimedOut { .. }
            | Verdict::LeftRunning { .. }
            | Verdict::Unconfirmed { .. }
            | Verdict::NoAnswer { .. }
            | Verdict::ProbeTimedOut { .. }
            | Verdict::StartFailed { .. }
            | Verdict::CheckFailed { .. }
            | Verdict::PodNotFound
            | Verdict::PodTerminating
            | Verdict::ContainerNotRunning
            | Verdict::ContainerRestarted { .. }
            | Verdict::Expired
            | Verdict::Interrupted
            | Verdict::Cancelled { .. }
            | Verdict::Runtime { .. }
            | Verdict::Forbidden { .. } => None,
        }
    }

    /// What happened, for a person.
    pub fn message(&self) -> String {
        match self {
            Verdict::Succeeded => "the handler succeeded".to_owned(),
            Verdict::Exited { code } => format!("the handler exited with code {code}"),
            Verdict::Signaled { signal } => format!("the handler was killed by signal {signal}"),
            Verdict::TimedOut { seconds, survivors } => with_survivors(
                format!("the handler ran longer than its timeout of {seconds} s and was killed"),
                survivors,
            ),
            Verdict::LeftRunning { seconds } => format!(
                "the handler ran longer than its timeout of {seconds} s; it could not be killed and may \
                 still be running"
            ),
            Verdict::Unconfirmed { seconds } => format!(
                "the runtime did not confirm within {seconds} s that the signal was delivered; it may \
                 have been"
            ),
            Verdict::NoAnswer { seconds } => format!("no answer within {seconds} s"),
            Verdict::ProbeTimedOut { seconds, last } => match last {
                Some(last) => {
                    format!("the probe did not succeed within {seconds} s; last: {last}")
                }
                None => format!(
                    "the probe did not succeed within {seconds} s; it was never tried, because its \
                     initial delay is longer than what the handler left of the time"
                ),
            },
            Verdict::StartFailed { message } => {
                format!("the handler could not be started: {message}")
            }
            Verdict::PodNotFound => "the pod no longer exists on its node".to_owned(),
            Verdict::PodTerminating => "the pod is being deleted".to_owned(),
            Verdict::ContainerNotRunning => "the container is not running".to_owned(),
            Verdict::ContainerRestarted { may_have_run: true } => {
                "the container ended or restarted; the handler may have run before".to_owned()
            }
            Verdict::ContainerRestarted {
                may_have_run: false,
            } => "the container ended or restarted before the handler was started".to_owned(),
            Verdict::Expired => "the deadline passed before the handler was started".to_owned(),
            Verdict::Interrupted => {
                "the attempt was interrupted and left no trace; the handler may have run".to_owned()
            }
            Verdict::Cancelled { survivors } => {
                with_survivors("the notification was deleted".to_owned(), survivors)
            }
            Verdict::CheckFailed { message }
            | Verdict::Runtime { message }
            | Verdict::Forbidden { message } => message.clone(),
        }
    }
}

fn with_survivors(mut text: String, survivors: &[String]) -> String {
    if !survivors.is_empty() {
        text.push_str("; these processes could not be killed: ");
        text.push_str(&survivors.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_type_a_message_and_at_most_one_number() {
        let all = [
            Verdict::Exited { code: 3 },
            Verdict::Signaled { signal: 9 },
            Verdict::TimedOut {
                seconds: 1,
                survivors: vec![],
            },
            Verdict::LeftRunning { seconds: 1 },
            Verdict::Unconfirmed { seconds: 1 },
            Verdict::NoAnswer { seconds: 1 },
            Verdict::ProbeTimedOut {
                seconds: 1,
                last: None,
            },
            Verdict::StartFailed {
                message: "no such file".into(),
            },
            Verdict::CheckFailed {
                message: "HTTP 503".into(),
            },
            Verdict::PodNotFound,
            Verdict::PodTerminating,
            Verdict::ContainerNotRunning,
            Verdict::ContainerRestarted { may_have_run: true },
            Verdict::ContainerRestarted {
                may_have_run: false,
            },
            Verdict::Expired,
            Verdict::Interrupted,
            Verdict::Cancelled { survivors: vec![] },
            Verdict::Runtime {
                message: "journal is full".into(),
            },
            Verdict::Forbidden {
                message: "the annotation was changed".into(),
            },
        ];
        for verdict in all {
            assert!(!verdict.succeeded(), "{verdict:?}");
            assert!(verdict.error_type().is_some(), "{verdict:?}");
            assert!(!verdict.message().is_empty(), "{verdict:?}");
            assert!(
                verdict.exit_code().is_none() || verdict.signal().is_none(),
                "{verdict:?}"
            );
        }
        assert_eq!(Verdict::Succeeded.error_type(), None);
    }

    #[test]
    fn a_probe_that_timed_out_is_a_timeout_that_tells_what_it_said_last() {
        let verdict = Verdict::ProbeTimedOut {
            seconds: 5,
            last: Some("HTTP 503".into()),
        };
        assert_eq!(verdict.error_type(), Some("HandlerTimeout"));
        assert_eq!(
            verdict.message(),
            "the probe did not succeed within 5 s; last: HTTP 503"
        );
    }

    #[test]
    fn a_timeout_names_what_could_not_be_killed() {
        let verdict = Verdict::TimedOut {
            seconds: 2,
            survivors: vec!["17 (dd)".into(), "18 (sync)".into()],
        };
        assert_eq!(verdict.error_type(), Some("HandlerTimeout"));
        assert!(
            verdict
                .message()
                .ends_with("could not be killed: 17 (dd), 18 (sync)")
        );
    }
}
