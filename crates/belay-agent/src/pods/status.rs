//! A pod's status as a kubelet would report it. Pure.

mod conditions;

pub(crate) use conditions::OWN_CONDITIONS;

use std::collections::BTreeMap;

use belay_api::gates::{Feature, FeatureGates};
use belay_api::pod::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, Pod, PodIP, PodStatus, RestartPolicy,
};
use belay_api::reasons;
use belay_api::signal::Signal;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::HostIP;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::images;
use super::plan::{Plan, START_ERROR, START_ERROR_CODE, at_first, exit_code, succeeded};
use super::tracked::{FailedStart, Instance, Tracked};
use super::waiting::Waiting;

/// What the node contributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) address: &'a str,
    /// Where the pod is reached; `None` until its sandbox is there.
    pub(crate) pod_address: Option<&'a str>,
    /// Prefix of container IDs.
    pub(crate) runtime: &'a str,
    pub(crate) gates: FeatureGates,
}

/// Whether the pod has been stopped for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    No,
    Stopped,
    /// Because it ran longer than its `activeDeadlineSeconds`.
    DeadlineExceeded,
}

/// Kubernetes' words for a pod that ran too long.
pub(crate) const DEADLINE_MESSAGE: &str =
    "Pod was active on the node longer than the specified deadline";

/// The signal that stops a container: as far as the gate lets the spec choose it the spec's, else
/// the image's, which is given as it is written there.
pub(crate) fn stop_signal(
    container: &Container,
    image: Option<&str>,
    gates: FeatureGates,
) -> Signal {
    let declared = container.declared_stop_signal();
    declared
        .filter(|_| gates.enabled(Feature::ContainerStopSignals))
        .or_else(|| images::stop_signal(image?))
        .unwrap_or(Signal::TERM)
}

/// Builds the status. `before` is the status that the agent reported last, whose times are kept where
/// nothing changed.
pub(crate) fn status(
    pod: &Pod,
    before: &PodStatus,
    tracked: &BTreeMap<String, Tracked>,
    plan: &Plan,
    node: Node<'_>,
    over: Over,
    now: Timestamp,
) -> PodStatus {
    let phase = phase(pod, before, tracked, plan, over);
    let ended = matches!(before.phase.as_deref(), Some("Succeeded" | "Failed"));
    let (reason, message) = if over == Over::DeadlineExceeded {
        let reason = reasons::DEADLINE_EXCEEDED.to_owned();
        (Some(reason), Some(DEADLINE_MESSAGE.to_owned()))
    } else if before.phase.as_deref() == Some(phase) {
        (before.reason.clone(), before.message.clone())
    } else {
        (None, None)
    };
    let statuses = |containers: &[Container], before: Option<&Vec<ContainerStatus>>| {
        let one = |container: &Container| {
            let told = remembered(container, before, tracked).filter(|_| ended);
            told.unwrap_or_else(|| container_status(pod, container, tracked, plan, node, over))
        };
        let list: Vec<_> = containers.iter().map(one).collect();
        (!list.is_empty()).then_some(list)
    };
    let init = statuses(
        &pod.spec.init_containers,
        before.init_container_statuses.as_ref(),
    );
    let main = statuses(&pod.spec.containers, before.container_statuses.as_ref());
    let all = (init.as_deref(), main.as_deref());
    // Of a pod that has ended, or whose end is near, there may be nothing left to start in.
    let sandboxed = node.pod_address.is_some() && over == Over::No;
    let facts = conditions::Facts {
        phase,
        sandboxed,
        initialized: plan.initialized,
    };
    let conditions = conditions::conditions(pod, before, facts, all, now);
    let address = node.address.to_owned();
    // What had an address keeps it in its status when it is gone.
    let own = node.pod_address.map(str::to_owned);
    let own = own.or_else(|| before.pod_ip.clone());
    PodStatus {
        phase: Some(phase.to_owned()),
        reason,
        message,
        conditions: Some(conditions),
        init_container_statuses: init,
        container_statuses: main,
        start_time: before.start_time.clone().or(Some(Time(whole_seconds(now)))),
        host_ip: Some(address.clone()),
        host_ips: Some(vec![HostIP { ip: address }]),
        pod_ips: own.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip: own,
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
    over: Over,
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
    if over == Over::DeadlineExceeded {
        return "Failed";
    }
    if over == Over::Stopped {
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
    let begun = |known: &Tracked| is_tried(known) || known.not_run.is_some();
    if main().any(|known| !known.is_some_and(begun)) {
        return "Pending";
    }
    let runs = served || main().flatten().any(|known| known.running().is_some());
    if runs || policy == RestartPolicy::Always {
        return "Running";
    }
    if main().all(succeeded) {
        "Succeeded"
    } else if policy == RestartPolicy::Never && !main().flatten().any(Tracked::is_condemned) {
        "Failed"
    } else {
        "Running"
    }
}

/// What was told of a container of which nothing is known here any more.
fn remembered(
    container: &Container,
    before: Option<&Vec<ContainerStatus>>,
    tracked: &BTreeMap<String, Tracked>,
) -> Option<ContainerStatus> {
    let mut before = before?.iter();
    let known = tracked.get(&container.name).is_some_and(is_tried);
    let told = before.find(|status| status.name == container.name)?;
    (!known).then(|| told.clone())
}

/// Whether something of it has run, or was to.
fn is_tried(known: &Tracked) -> bool {
    known.current.is_some() || known.start_error().is_some()
}

fn container_status(
    pod: &Pod,
    container: &Container,
    tracked: &BTreeMap<String, Tracked>,
    plan: &Plan,
    node: Node<'_>,
    over: Over,
) -> ContainerStatus {
    let name = &container.name;
    let unknown = Tracked::default();
    let known = tracked.get(name).unwrap_or(&unknown);
    let running = known.running().is_some();
    let waiting = plan
        .waiting
        .get(name)
        .filter(|_| !running && over == Over::No);
    let ended = known
        .current
        .as_ref()
        .filter(|instance| instance.exit.is_some())
        .map(|instance| instance_state(instance, node));
    // One that could not be run came after what is known to have run.
    let ended = known.start_error().map(start_error_state).or(ended);
    let previous = || known.previous.as_ref().map(|one| instance_state(one, node));
    let (state, last) = match (waiting, ended, &known.current) {
        // While an ended container waits for its restart, its end is the last state.
        (Some(waiting), Some(ended), _) => (waiting_state(waiting), Some(ended)),
        (Some(waiting), None, _) => (waiting_state(waiting), previous()),
        (None, Some(ended), _) => (ended, previous()),
        (None, None, Some(instance)) => (instance_state(instance, node), previous()),
        (None, None, None) => (waiting_state(&at_first(pod)), previous()),
    };
    let instance = known.current.as_ref();
    // What its image says is known when it is made.
    let told = instance.is_some() || container.declared_stop_signal().is_some();
    let told = told && node.gates.enabled(Feature::ContainerStopSignals);
    let stop_signal = told.then(|| {
        let image = instance.and_then(|instance| instance.image_stop_signal.as_deref());
        stop_signal(container, image, node.gates).to_string()
    });
    // An init container is ready when it is done.
    let mut init = pod.spec.init_containers.iter();
    let done = init.any(|init| init.name == *name)
        && !container.is_sidecar()
        && state
            .terminated
            .as_ref()
            .is_some_and(|ended| ended.exit_code == 0);
    ContainerStatus {
        name: name.clone(),
        state: Some(state),
        last_state: Some(last.unwrap_or_default()),
        ready: known.is_ready() || done,
        started: Some(known.is_started()),
        restart_count: i32::try_from(known.restart_count()).unwrap_or(i32::MAX),
        image: match &known.current {
            // As long as it is there it is made of what it was made of.
            Some(instance) if waiting.is_none() && !instance.image.is_empty() => {
                instance.image.clone()
            }
            Some(_) | None => container.image.clone().unwrap_or_default(),
        },
        image_id: known
            .current
            .as_ref()
            .map(|instance| instance.image_id.clone())
            .unwrap_or_default(),
        container_id: known
            .current
            .as_ref()
            .map(|i| format!("{}://{}", node.runtime, i.id)),
        stop_signal,
        ..ContainerStatus::default()
    }
}

fn waiting_state(waiting: &Waiting) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(waiting.reason.to_owned()),
            message: (!waiting.message.is_empty()).then(|| waiting.message.clone()),
        }),
        ..ContainerState::default()
    }
}

/// What containerd tells of a container that could not be run: nothing began.
fn start_error_state(failed: &FailedStart) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: START_ERROR_CODE,
            reason: Some(START_ERROR.to_owned()),
            message: Some(failed.waiting.message.clone()),
            started_at: Some(Time(Timestamp::UNIX_EPOCH)),
            finished_at: Some(Time(whole_seconds(failed.at))),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
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
                message: instance.message.clone(),
                started_at: Some(Time(whole_seconds(exit.started))),
                finished_at: Some(Time(whole_seconds(exit.finished))),
            }),
            ..ContainerState::default()
        },
    }
}

#[cfg(test)]
mod tests;
