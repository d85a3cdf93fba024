//! What users are told while a container ends.

use std::time::Duration;

use super::{Cause, End, KillReason};

/// One event about a container.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Notice {
    /// Its end begins.
    Stopping {
        /// Why.
        cause: Cause,
    },
    /// Its hook has ended.
    HookSucceeded {
        /// How long that took.
        took: Duration,
    },
    /// Its hook failed; its end goes on.
    HookFailed {
        /// Why.
        message: String,
    },
    /// Its hook took longer than the grace and was cancelled.
    HookUnfinished {
        /// The grace as it was then.
        grace: Duration,
    },
    /// Its hook is gone without a trace, and is not run again.
    HookLost,
    /// The stop signal is delivered.
    SignalSent {
        /// Its name.
        signal: String,
        /// How long hook, wait and absence of the agent took before it.
        after: Duration,
        /// How long the container has now.
        left: Duration,
    },
    /// The stop signal could not be delivered.
    SignalFailed {
        /// Its name.
        signal: String,
        /// Why.
        message: String,
    },
    /// SIGKILL is needed.
    Killing {
        /// Why.
        why: KillReason,
    },
    /// Processes of the container or of its hook could not be killed.
    Survivors {
        /// As "pid (name)".
        survivors: Vec<String>,
    },
    /// It has ended.
    Stopped {
        /// What ended it.
        end: End,
        /// Its stop signal.
        signal: String,
        /// How long that took since its end began.
        took: Duration,
    },
}

impl Notice {
    /// The event's reason; the kubelet's name where it has one, or had one.
    pub fn reason(&self) -> &'static str {
        match self {
            Notice::Stopping { .. } | Notice::Killing { .. } => "Killing",
            Notice::HookSucceeded { .. } => "PreStopHookSucceeded",
            Notice::HookFailed { .. } | Notice::HookLost => "FailedPreStopHook",
            Notice::HookUnfinished { .. } => "UnfinishedPreStopHook",
            Notice::SignalSent { .. } => "StopSignalSent",
            Notice::SignalFailed { .. } => "FailedStopSignal",
            Notice::Survivors { .. } => "ProcessesSurvived",
            Notice::Stopped { .. } => "Stopped",
        }
    }

    /// Whether the event is a warning.
    pub fn is_warning(&self) -> bool {
        match self {
            Notice::Stopping { .. }
            | Notice::HookSucceeded { .. }
            | Notice::SignalSent { .. }
            | Notice::Killing { .. }
            | Notice::Stopped { .. } => false,
            Notice::HookFailed { .. }
            | Notice::HookUnfinished { .. }
            | Notice::HookLost
            | Notice::SignalFailed { .. }
            | Notice::Survivors { .. } => true,
        }
    }

    /// The event's message; the kubelet's sentence where it has one.
    pub fn message(&self, container: &str) -> String {
        match self {
            Notice::Stopping { cause } => match cause {
                Cause::PodDeleted
                | Cause::PodVanished
                | Cause::PodCompleted
                | Cause::DeadlineExceeded
                | Cause::SandboxChanged => format!("Stopping container {container}"),
                Cause::LivenessProbe { restarts } => probe(container, "liveness", *restarts),
                Cause::StartupProbe { restarts } => probe(container, "startup", *restarts),
                Cause::PostStartFailed => "FailedPostStartHook".to_owned(),
                Cause::DefinitionChanged => {
                    format!("Container {container} definition changed, will be restarted")
                }
            },
            Notice::HookSucceeded { took } => {
                format!(
                    "PreStopHook of container {container} ended after {}",
                    seconds(*took)
                )
            }
            Notice::HookFailed { message } => format!("PreStopHook failed: {message}"),
            Notice::HookUnfinished { grace } => format!(
                "PreStopHook of container {container} did not end within the grace period of {} \
                 and was cancelled",
                seconds(*grace)
            ),
            Notice::HookLost => format!(
                "PreStopHook of container {container} was interrupted together with the agent; it \
                 is not run again"
            ),
            Notice::SignalSent {
                signal,
                after,
                left,
            } => format!(
                "Sent {signal} to container {container} after {}; it has {} before SIGKILL",
                seconds(*after),
                seconds(*left)
            ),
            Notice::SignalFailed { signal, message } => format!(
                "{signal} could not be sent to container {container}, trying again: {message}"
            ),
            Notice::Killing { why } => match why {
                KillReason::GraceOver => format!(
                    "Container {container} did not end within its grace period and was killed"
                ),
                KillReason::NoGrace => {
                    format!("Container {container} was killed at once: its grace period is 0")
                }
            },
            Notice::Survivors { survivors } => format!(
                "these processes of container {container} could not be killed: {}",
                survivors.join(", ")
            ),
            Notice::Stopped { end, signal, took } => {
                let how = match end {
                    End::NotRunning | End::Reboot => "did not run".to_owned(),
                    End::Itself => "ended by itself".to_owned(),
                    End::StopSignal => format!("ended after {signal}"),
                    End::Killed { .. } => "was killed".to_owned(),
                };
                format!(
                    "Container {container} {how}, {} after its stop began",
                    seconds(*took)
                )
            }
        }
    }
}

/// The kubelet's sentence about a failed probe.
fn probe(container: &str, probe: &str, restarts: bool) -> String {
    let then = if restarts { ", will be restarted" } else { "" };
    format!("Container {container} failed {probe} probe{then}")
}

fn seconds(length: Duration) -> String {
    let millis = length.as_millis();
    format!("{}.{:03}s", millis / 1000, millis % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_read_as_the_kubelet_s_where_it_has_one() {
        let stopping = |cause| Notice::Stopping { cause }.message("web");
        assert_eq!(stopping(Cause::PodDeleted), "Stopping container web");
        assert_eq!(
            stopping(Cause::LivenessProbe { restarts: true }),
            "Container web failed liveness probe, will be restarted"
        );
        assert_eq!(
            stopping(Cause::StartupProbe { restarts: false }),
            "Container web failed startup probe"
        );
        assert_eq!(stopping(Cause::PostStartFailed), "FailedPostStartHook");
        assert_eq!(
            stopping(Cause::DefinitionChanged),
            "Container web definition changed, will be restarted"
        );
        let failed = Notice::HookFailed {
            message: "exit code 3".into(),
        };
        assert_eq!(failed.reason(), "FailedPreStopHook");
        assert!(failed.message("web").starts_with("PreStopHook failed"));
    }

    #[test]
    fn the_event_of_a_signal_tells_how_long_it_took_and_what_is_left() {
        let sent = Notice::SignalSent {
            signal: "SIGQUIT".into(),
            after: Duration::from_millis(5007),
            left: Duration::from_millis(24_993),
        };
        assert_eq!(
            sent.message("web"),
            "Sent SIGQUIT to container web after 5.007s; it has 24.993s before SIGKILL"
        );
    }
}
