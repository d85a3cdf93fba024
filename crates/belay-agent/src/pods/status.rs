//! A pod's status as a kubelet would report it. Pure.

use std::collections::BTreeMap;

use belay_api::gates::{Feature, FeatureGates};
use belay_api::pod::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, Pod, PodCondition, PodIP, PodStatus, RestartPolicy,
};
use belay_api::reasons;
use belay_api::signal::Signal;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::HostIP;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{Plan, exit_code, succeeded};
use super::tracked::{Instance, Tracked};

/// What the node contributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) address: &'a str,
    /// Prefix of container IDs.
    pub(crate) runtime: &'a str,
    pub(crate) gates: FeatureGates,
}

/// The signal that stops a container, as far as the gate lets the spec choose it.
pub(crate) fn stop_signal(container: &Container, gates: FeatureGates) -> Signal {
    let declared = container.declared_stop_signal();
    declared
        .filter(|_| gates.enabled(Feature::ContainerStopSignals))
        .unwrap_or(Signal::TERM)
}

/// Builds the status. `before` is the status that the agent reported last, whose times are kept where
/// nothing changed; `over` tells that the pod has been stopped for good.
pub(crate) fn status(
    pod: &Pod,
    before: &PodStatus,
    tracked: &BTreeMap<String, Tracked>,
    plan: &Plan,
    node: Node<'_>,
    over: bool,
    now: Timestamp,
) -> PodStatus {
    let phase = phase(pod, before, tracked, plan, over);
    let statuses = |containers: &[Container], init: bool| {
        let list: Vec<_> = containers
            .iter()
            .map(|container| container_status(container, init, tracked, plan, node, over))
            .collect();
        (!list.is_empty()).then_some(list)
    };
    let init = statuses(&pod.spec.init_containers, true);
    let main = statuses(&pod.spec.containers, false);
    let all = (init.as_deref(), main.as_deref());
    let conditions = conditions(pod, before, phase, plan, all, now);
    let address = node.address.to_owned();
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions),
        init_container_statuses: init,
        container_statuses: main,
        start_time: before.start_time.clone().or(Some(Time(whole_seconds(now)))),
        host_ip: Some(address.clone()),
        host_ips: Some(vec![HostIP {
            ip: address.clone(),
        }]),
        pod_ip: Some(address.clone()),
        pod_ips: Some(vec![PodIP { ip: address }]),
        observed_generation: pod.metadata.generation,
        ..pod.status.clone().unwrap_or_default()
    }
}

/// Times in a status are whole seconds; anything finer would differ from what is read back.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn phase(
    pod: &Pod,
    before: &PodStatus,
    tracked: &BTreeMap<String, Tracked>,
    plan: &Plan,
    over: bool,
) -> &'static str {
    // A pod that has ended stays so.
    match before.phase.as_deref() {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        Some(_) | None => {}
    }
    // A sidecar's end says nothing about the pod's.
    let init = || pod.spec.init_containers.iter().filter(|c| !c.is_sidecar());
    let all = || init().chain(&pod.spec.containers);
    if over {
        let failed = all().any(|c| exit_code(tracked.get(&c.name)).is_some_and(|code| code != 0));
        let ran = pod
            .spec
            .containers
            .iter()
            .all(|c| exit_code(tracked.get(&c.name)).is_some());
        return if failed || !ran {
            "Failed"
        } else {
            "Succeeded"
        };
    }
    let policy = pod.spec.restart_policy();
    let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
    // A pod has not ended while something of it runs.
    let served = sidecars
        .filter_map(|c| tracked.get(&c.name))
        .any(|known| known.running().is_some());
    if !plan.initialized {
        let gave_up = policy == RestartPolicy::Never
            && init().any(|c| exit_code(tracked.get(&c.name)).is_some_and(|code| code != 0));
        return if gave_up && !served {
            "Failed"
        } else {
            "Pending"
        };
    }
    let main = || pod.spec.containers.iter().map(|c| tracked.get(&c.name));
    if main().any(|known| known.is_none_or(|known| known.current.is_none())) {
        return "Pending";
    }
    let runs = served || main().flatten().any(|known| known.running().is_some());
    if runs || policy == RestartPolicy::Always {
        return "Running";
    }
    if main().all(succeeded) {
        "Succeeded"
    } else if policy == RestartPolicy::Never {
        "Failed"
    } else {
        "Running"
    }
}

fn container_status(
    container: &Container,
    init: bool,
    tracked: &BTreeMap<String, Tracked>,
    plan: &Plan,
    node: Node<'_>,
    over: bool,
) -> ContainerStatus {
    let name = &container.name;
    let unknown = Tracked::default();
    let known = tracked.get(name).unwrap_or(&unknown);
    let running = known.running().is_some();
    let waiting = plan.waiting.get(name).filter(|_| !running && !over);
    let ended = known
        .current
        .as_ref()
        .filter(|instance| instance.exit.is_some());
    let state = match (&known.current, waiting) {
        (Some(instance), None) => instance_state(instance, node),
        (_, Some(waiting)) => ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some(waiting.reason.to_owned()),
                message: (!waiting.message.is_empty()).then(|| waiting.message.clone()),
            }),
            ..ContainerState::default()
        },
        (None, None) => ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some("ContainerCreating".to_owned()),
                message: None,
            }),
            ..ContainerState::default()
        },
    };
    // While an ended container waits for its restart, its end is the last state.
    let last = match (waiting, ended) {
        (Some(_), Some(instance)) => Some(instance),
        _ => known.previous.as_ref(),
    };
    let stop_signal = node
        .gates
        .enabled(Feature::ContainerStopSignals)
        .then(|| stop_signal(container, node.gates).to_string());
    // An init container is ready when it is done.
    let done = init
        && !container.is_sidecar()
        && state
            .terminated
            .as_ref()
            .is_some_and(|ended| ended.exit_code == 0);
    ContainerStatus {
        name: name.clone(),
        state: Some(state),
        last_state: Some(last.map(|i| instance_state(i, node)).unwrap_or_default()),
        ready: known.is_ready() || done,
        started: Some(known.is_started()),
        restart_count: i32::try_from(known.restart_count()).unwrap_or(i32::MAX),
        image: container.image.clone().unwrap_or_default(),
        image_id: String::new(),
        container_id: known
            .current
            .as_ref()
            .map(|i| format!("{}://{}", node.runtime, i.id)),
        stop_signal,
        ..ContainerStatus::default()
    }
}

fn instance_state(instance: &Instance, node: Node<'_>) -> ContainerState {
    match &instance.exit {
        None => ContainerState {
            running: Some(ContainerStateRunning {
                started_at: Some(Time(whole_seconds(instance.started))),
            }),
            ..ContainerState::default()
        },
        Some(exit) => ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: Some(format!("{}://{}", node.runtime, instance.id)),
                exit_code: exit.code,
                signal: exit.signal,
                reason: Some(exit.reason.as_str().to_owned()),
                message: None,
                started_at: Some(Time(whole_seconds(exit.started))),
                finished_at: Some(Time(whole_seconds(exit.finished))),
            }),
            ..ContainerState::default()
        },
    }
}

fn conditions(
    pod: &Pod,
    before: &PodStatus,
    phase: &str,
    plan: &Plan,
    (init, main): (Option<&[ContainerStatus]>, Option<&[ContainerStatus]>),
    now: Timestamp,
) -> Vec<PodCondition> {
    let ended = phase == "Succeeded" || phase == "Failed";
    let init = || {
        let declared = pod.spec.init_containers.iter();
        declared.zip(init.unwrap_or_default())
    };
    // Those that only prepare have done their part.
    let sidecars = init().filter(|(declared, _)| declared.is_sidecar());
    let unready: Vec<&str> = sidecars
        .map(|(_, status)| status)
        .chain(main.unwrap_or_default())
        .filter(|status| !status.ready)
        .map(|status| status.name.as_str())
        .collect();
    let ready = if ended {
        Err((
            if phase == "Succeeded" {
                "PodCompleted"
            } else {
                "PodFailed"
            },
            String::new(),
        ))
    } else if unready.is_empty() {
        Ok(())
    } else {
        let names = unready.join(" ");
        Err((
            "ContainersNotReady",
            format!("containers with unready status: [{names}]"),
        ))
    };
    let initialized = if plan.initialized {
        Ok(())
    } else {
        let names: Vec<&str> = init()
            .filter(|(declared, status)| {
                let up = declared.is_sidecar() && status.started == Some(true);
                !up && !status.ready
            })
            .map(|(declared, _)| declared.name.as_str())
            .collect();
        let names = names.join(" ");
        Err((
            "ContainersNotInitialized",
            format!("containers with incomplete status: [{names}]"),
        ))
    };
    let mut list = Vec::new();
    for (kind, verdict) in [
        (reasons::POD_SCHEDULED, Ok(())),
        (reasons::INITIALIZED, initialized),
        (reasons::CONTAINERS_READY, ready.clone()),
        (reasons::READY, ready),
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

fn condition(
    pod: &Pod,
    before: &PodStatus,
    kind: &str,
    verdict: Result<(), (&'static str, String)>,
    now: Timestamp,
) -> PodCondition {
    let (status, reason, message) = match verdict {
        Ok(()) => ("True", None, None),
        Err((reason, message)) => (
            "False",
            Some(reason.to_owned()),
            (!message.is_empty()).then_some(message),
        ),
    };
    let same = before
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == kind && condition.status == status);
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason,
        message,
        last_transition_time: same
            .and_then(|condition| condition.last_transition_time.clone())
            .or(Some(Time(whole_seconds(now)))),
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    }
}

#[cfg(test)]
mod tests;
