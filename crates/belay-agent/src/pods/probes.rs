//! Startup, liveness and readiness probes: what a container declares, and one try of it.
//!
//! [`belay_core::probing`] decides when a try is due and what its result means.
//!
//! **Invariant:** when [`Try::run`] has returned, nothing of the try is left running.

use std::time::Duration;

use belay_action::probe::{self, Check, Tried};
use belay_api::pod::{Container, Probe};
use belay_core::probing::{Kind, Rule, Rules};
use belay_core::termination::HookResult;

use super::hook::{self, Came, Place};
use crate::notifications::handler::probe::resolve;

/// The kubelet's limit of an event's message, in bytes.
const MAX_MESSAGE: usize = 1024;

fn field(kind: Kind) -> &'static str {
    match kind {
        Kind::Startup => "startupProbe",
        Kind::Liveness => "livenessProbe",
        Kind::Readiness => "readinessProbe",
    }
}

/// The probe of this kind, if there is one. The error completes the sentence "the probe ...".
pub(crate) fn declared(container: &Container, kind: Kind) -> Option<Result<Probe, String>> {
    let value = container.other.get(field(kind))?;
    if value.is_null() {
        return None;
    }
    let read = serde_json::from_value(value.clone());
    Some(read.map_err(|error| format!("cannot be read: {error}")))
}

/// When each of a container's probes is tried, and how many results in a row count.
pub(crate) fn rules(container: &Container) -> Rules {
    let rule = |kind| {
        let probe = declared(container, kind)?.unwrap_or_default();
        Some(Rule {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        })
    };
    Rules {
        startup: rule(Kind::Startup),
        liveness: rule(Kind::Liveness),
        readiness: rule(Kind::Readiness),
    }
}

/// 0 means the default, as in core.
fn count(given: Option<i32>, default: u32) -> u32 {
    let given = given.and_then(|given| u32::try_from(given).ok());
    given.filter(|given| *given > 0).unwrap_or(default)
}

fn seconds(given: Option<i32>, default: u32) -> Duration {
    Duration::from_secs(count(given, default).into())
}

/// One try.
pub(crate) struct Try {
    place: Place,
    /// What to do and for how long, or why that cannot be done.
    check: Result<(Check, Duration), String>,
    /// Whether an agent before this one may have left a try behind.
    first: bool,
}

/// What a try came to, in the words of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    Succeeded,
    Failed(String),
    /// The runtime could not carry it out.
    Unknown(String),
    /// It was given up, or its container has ended.
    Nothing,
}

impl Try {
    /// A try of a container that is reached at `address`; `None` if it declares no such probe.
    pub(crate) fn new(
        container: &Container,
        kind: Kind,
        address: &str,
        place: Place,
        first: bool,
    ) -> Option<Self> {
        let check = declared(container, kind)?
            .and_then(|probe| resolve(&probe, Some(container), address))
            .map(|probe| (probe.check, probe.cadence.timeout))
            .map_err(|why| format!("the probe {why}"));
        Some(Try {
            place,
            check,
            first,
        })
    }

    pub(crate) async fn run(self) -> Said {
        let (check, timeout) = match &self.check {
            Ok(check) => check,
            Err(why) => return Said::Failed(why.clone()),
        };
        let place = &self.place;
        let tried = match place.runtime.target(&place.id).await {
            Ok(target) => {
                if self.first && matches!(check, Check::Exec { .. }) {
                    probe::clear(&*target, &place.attempt).await;
                }
                let stop = place.cancel.clone();
                probe::tried(&*target, check, &place.attempt, *timeout, stop).await
            }
            Err(error) => Tried::Unknown {
                message: hook::causes(&error),
            },
        };
        let (said, message) = match tried {
            Tried::Succeeded => return Said::Succeeded,
            Tried::Failed { message, output } => {
                let said = Said::Failed(with_output(&message, &output));
                (said, message)
            }
            Tried::Unknown { message } => (Said::Unknown(message.clone()), message),
        };
        // A container takes its probe with it, and that says nothing of its health.
        let came = Came::Ended(HookResult::Failed { message });
        if place.cancel.is_cancelled() || hook::container_ended(place, &came).await {
            return Said::Nothing;
        }
        said
    }
}

/// How a command failed, and the end of what it wrote, as far as that fits into an event.
fn with_output(message: &str, output: &str) -> String {
    let output = output.trim_end();
    if output.is_empty() {
        return message.to_owned();
    }
    // Room for the beginning of the sentence.
    let room = MAX_MESSAGE.saturating_sub(message.len() + 64);
    let from = output.ceil_char_boundary(output.len().saturating_sub(room));
    format!("{message}: {}", &output[from..])
}

/// What an event tells of a try; `None` when there is nothing to tell.
pub(crate) fn complaint(kind: Kind, said: &Said) -> Option<String> {
    let mut text = match said {
        Said::Succeeded | Said::Nothing => return None,
        Said::Failed(why) => format!("{} probe failed: {why}", kind.as_str()),
        Said::Unknown(why) => format!("{} probe errored: {why}", kind.as_str()),
    };
    text.truncate(text.floor_char_boundary(MAX_MESSAGE));
    Some(text)
}

/// The `terminationGracePeriodSeconds` of a probe.
pub(crate) fn grace_seconds(container: &Container, kind: Kind) -> Option<i64> {
    let probe = declared(container, kind)?.ok()?;
    probe.termination_grace_period_seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn container(value: Value) -> Container {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_is_left_out_is_as_in_core() {
        let exec = json!({"exec": {"command": ["x"]}});
        let declares = container(json!({
            "name": "c",
            "livenessProbe": exec,
            "readinessProbe": {
                "exec": {"command": ["x"]}, "initialDelaySeconds": 4, "periodSeconds": 5,
                "successThreshold": 6, "failureThreshold": 7,
            },
            "startupProbe": null,
        }));
        let default = Rule {
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(10),
            success_threshold: 1,
            failure_threshold: 3,
        };
        let given = Rule {
            initial_delay: Duration::from_secs(4),
            period: Duration::from_secs(5),
            success_threshold: 6,
            failure_threshold: 7,
        };
        let expected = Rules {
            startup: None,
            liveness: Some(default),
            readiness: Some(given),
        };
        assert_eq!(rules(&declares), expected);
        assert!(rules(&Container::default()).is_empty());
    }

    #[test]
    fn a_probe_that_cannot_be_read_is_there_all_the_same() {
        let astray = container(json!({"name": "c", "livenessProbe": {"exec": 3}}));
        assert!(rules(&astray).liveness.is_some());
        let why = declared(&astray, Kind::Liveness).unwrap().unwrap_err();
        assert!(why.starts_with("cannot be read"), "{why}");
    }

    #[test]
    fn an_event_has_the_end_of_the_output_and_at_most_a_kilobyte() {
        let said = Said::Failed(with_output("the command exited with code 1", "no file\n"));
        assert_eq!(
            complaint(Kind::Liveness, &said).unwrap(),
            "Liveness probe failed: the command exited with code 1: no file"
        );
        let long = format!("{}END", "ä".repeat(3000));
        let said = Said::Failed(with_output("the command exited with code 1", &long));
        let text = complaint(Kind::Readiness, &said).unwrap();
        assert!(text.len() <= MAX_MESSAGE && text.len() > 900, "{text}");
        assert!(text.ends_with("äEND"), "{text}");
        let endless = Said::Failed("é".repeat(4000));
        let text = complaint(Kind::Startup, &endless).unwrap();
        assert!(text.len() <= MAX_MESSAGE, "{}", text.len());
        for quiet in [Said::Succeeded, Said::Nothing] {
            assert_eq!(complaint(Kind::Startup, &quiet), None);
        }
    }
}
