//! What an agent before this one left of a pod.

use std::collections::BTreeMap;

use belay_action::ContainerId;
use belay_api::pod::{ContainerStatus, Pod};
use belay_runtime::ContainerState;

use crate::pods::message::Source;
use crate::pods::plan::START_ERROR;
use crate::pods::tracked::{Instance, Tracked};

/// What the runtime already has of a pod, and what is too old to be kept of it.
pub(super) fn adopt(
    pod: &Pod,
    states: Vec<ContainerState>,
) -> (BTreeMap<String, Tracked>, Vec<ContainerId>) {
    let mut found: BTreeMap<String, Vec<Instance>> = BTreeMap::new();
    for state in states {
        let name = state.config.name.clone();
        let messages = Source::of(pod.container(&name), &state.config);
        let mut instance: Instance = state.into();
        instance.messages = messages;
        instance.message = reported_message(pod, &instance.id);
        found.entry(name).or_default().push(instance);
    }
    let mut old = Vec::new();
    let mut adopted: BTreeMap<String, Tracked> = BTreeMap::new();
    for (container, instances) in found {
        let tracked = adopted.entry(container).or_default();
        old.extend(tracked.adopt(instances));
    }
    // Of what could not be run the runtime keeps nothing.
    for status in statuses(pod).filter(|status| could_not_be_run(status)) {
        let tracked = adopted.entry(status.name.clone()).or_default();
        tracked.not_run = u32::try_from(status.restart_count).ok();
    }
    (adopted, old)
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().chain(main).flatten()
}

fn could_not_be_run(status: &ContainerStatus) -> bool {
    let states = [&status.state, &status.last_state].into_iter().flatten();
    let mut ends = states.filter_map(|state| state.terminated.as_ref());
    ends.any(|end| end.reason.as_deref() == Some(START_ERROR))
}

/// The next number for each container that the pod's status shows as started before.
pub(super) fn floor(pod: &Pod) -> BTreeMap<String, u32> {
    statuses(pod)
        .filter(|status| status.container_id.is_some())
        .filter_map(|status| {
            Some((
                status.name.clone(),
                u32::try_from(status.restart_count).ok()?.saturating_add(1),
            ))
        })
        .collect()
}

/// What was reported of how an incarnation ended.
fn reported_message(pod: &Pod, id: &ContainerId) -> Option<String> {
    let mut ends = statuses(pod)
        .flat_map(|one| [&one.state, &one.last_state])
        .filter_map(|state| state.as_ref()?.terminated.as_ref());
    let reported = ends.find(|end| {
        let reported = end.container_id.as_deref().unwrap_or_default();
        reported
            .split_once("://")
            .is_some_and(|(_, one)| one == id.as_str())
    });
    reported?.message.clone()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reported(state: &serde_json::Value, count: i32) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "main", "image": "img"}]},
            "status": {"containerStatuses": [{
                "name": "main", "image": "img", "imageID": "", "ready": false,
                "restartCount": count, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": state,
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn what_could_not_be_run_before_goes_on_being_counted() {
        let failed = json!({"terminated": {"exitCode": 128, "reason": "StartError"}});
        let (adopted, old) = adopt(&reported(&failed, 3), Vec::new());
        assert_eq!(old, Vec::new());
        assert_eq!(adopted["main"].restart_count(), 3);
        assert_eq!(adopted["main"].next_restart_count(), 4);
    }

    #[test]
    fn what_has_not_been_tried_has_no_number() {
        let (adopted, _) = adopt(&reported(&json!({}), 0), Vec::new());
        assert!(adopted.is_empty());
    }
}
