//! The conditions of a pod, in the kubelet's words.

use belay_api::pod::{ContainerStatus, Pod, PodCondition, PodStatus};
use belay_api::reasons;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

use super::whole_seconds;

/// Those that this agent writes.
pub(crate) const OWN_CONDITIONS: [&str; 5] = [
    reasons::POD_READY_TO_START_CONTAINERS,
    reasons::POD_SCHEDULED,
    reasons::INITIALIZED,
    reasons::CONTAINERS_READY,
    reasons::READY,
];

/// What they follow from, besides the statuses of the containers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) phase: &'a str,
    /// Whether the pod's sandbox is there.
    pub(super) sandboxed: bool,
    /// Whether all init containers are done.
    pub(super) initialized: bool,
}

/// Whether a condition holds, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Verdict {
    holds: bool,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn new(holds: bool, reason: &'static str) -> Self {
        Verdict {
            holds,
            reason,
            message: String::new(),
        }
    }

    fn no(reason: &'static str, message: String) -> Self {
        Verdict {
            holds: false,
            reason,
            message,
        }
    }
}

/// Statuses of init containers and of the others.
type Statuses<'a> = (Option<&'a [ContainerStatus]>, Option<&'a [ContainerStatus]>);

pub(super) fn conditions(
    pod: &Pod,
    before: &PodStatus,
    facts: Facts<'_>,
    statuses: Statuses<'_>,
    now: Timestamp,
) -> Vec<PodCondition> {
    let ended = matches!(facts.phase, "Succeeded" | "Failed");
    let ready = containers_ready(pod, facts, statuses);
    let gates = readiness_gates(pod, before);
    let all_ready = if ready.holds && !gates.is_empty() {
        Verdict::no("ReadinessGatesNotReady", gates)
    } else {
        ready.clone()
    };
    let mut list = Vec::new();
    for (kind, verdict) in [
        (
            reasons::POD_READY_TO_START_CONTAINERS,
            Verdict::new(facts.sandboxed && !ended, ""),
        ),
        (reasons::POD_SCHEDULED, Verdict::new(true, "")),
        (reasons::INITIALIZED, initialized(pod, facts, statuses)),
        (reasons::CONTAINERS_READY, ready),
        (reasons::READY, all_ready),
    ] {
        list.push(condition(pod, before, kind, verdict, now));
    }
    // Conditions that others wrote stay.
    let known: Vec<String> = list.iter().map(|c| c.type_.clone()).collect();
    let others = pod
        .status
        .iter()
        .filter_map(|status| status.conditions.as_ref())
        .flatten();
    list.extend(
        others
            .filter(|condition| !known.contains(&condition.type_))
            .cloned(),
    );
    list
}

fn containers_ready(pod: &Pod, facts: Facts<'_>, (init, main): Statuses<'_>) -> Verdict {
    match facts.phase {
        "Succeeded" => return Verdict::new(false, "PodCompleted"),
        "Failed" => return Verdict::new(false, "PodFailed"),
        _ => {}
    }
    // Those that only prepare have done their part.
    let declared = pod.spec.init_containers.iter();
    let sidecars = declared
        .zip(init.unwrap_or_default())
        .filter(|(declared, _)| declared.is_sidecar());
    let unready: Vec<&str> = sidecars
        .map(|(_, status)| status)
        .chain(main.unwrap_or_default())
        .filter(|status| !status.ready)
        .map(|status| status.name.as_str())
        .collect();
    if unready.is_empty() {
        return Verdict::new(true, "");
    }
    let names = unready.join(" ");
    Verdict::no(
        "ContainersNotReady",
        format!("containers with unready status: [{names}]"),
    )
}

fn initialized(pod: &Pod, facts: Facts<'_>, (init, _): Statuses<'_>) -> Verdict {
    if facts.phase == "Succeeded" {
        return Verdict::new(true, "PodCompleted");
    }
    if facts.initialized {
        return Verdict::new(true, "");
    }
    let declared = pod.spec.init_containers.iter();
    let names: Vec<&str> = declared
        .zip(init.unwrap_or_default())
        .filter(|(declared, status)| {
            let up = declared.is_sidecar() && status.started == Some(true);
            !up && !status.ready
        })
        .map(|(declared, _)| declared.name.as_str())
        .collect();
    let names = names.join(" ");
    Verdict::no(
        "ContainersNotInitialized",
        format!("containers with incomplete status: [{names}]"),
    )
}

/// What keeps a pod from being ready whose containers all are: conditions that somebody else sets.
/// Empty if there is nothing.
fn readiness_gates(pod: &Pod, before: &PodStatus) -> String {
    let gates = pod.spec.other.get("readinessGates");
    let gates = gates.and_then(Value::as_array).into_iter().flatten();
    let kinds = gates.filter_map(|gate| gate.get("conditionType")?.as_str());
    // Others write them to the object; what this agent reported has them as they were.
    let current = pod.status.as_ref().unwrap_or(before);
    let missing: Vec<String> = kinds
        .filter_map(|kind| {
            let mut conditions = current.conditions.iter().flatten();
            match conditions.find(|condition| condition.type_ == kind) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate \"{kind}\" does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{kind}\" is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    missing.join(", ")
}

fn condition(
    pod: &Pod,
    before: &PodStatus,
    kind: &str,
    verdict: Verdict,
    now: Timestamp,
) -> PodCondition {
    let status = if verdict.holds { "True" } else { "False" };
    let same = before
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == kind && condition.status == status);
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: (!verdict.reason.is_empty()).then(|| verdict.reason.to_owned()),
        message: (!verdict.message.is_empty()).then_some(verdict.message),
        last_transition_time: same
            .and_then(|condition| condition.last_transition_time.clone())
            .or(Some(Time(whole_seconds(now)))),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    }
}
