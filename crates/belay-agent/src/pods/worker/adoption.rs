//! What an agent before this one left of a pod.

use std::collections::BTreeMap;

use belay_action::ContainerId;
use belay_api::pod::Pod;
use belay_runtime::ContainerState;

use crate::pods::message::Source;
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
    let mut adopted = BTreeMap::new();
    for (container, instances) in found {
        let mut tracked = Tracked::default();
        old.extend(tracked.adopt(instances));
        adopted.insert(container, tracked);
    }
    (adopted, old)
}

/// The next number for each container that the pod's status shows as started before.
pub(super) fn floor(pod: &Pod) -> BTreeMap<String, u32> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter()
        .chain(main)
        .flatten()
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
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten();
    let all = init.chain(status.container_statuses.iter().flatten());
    let mut ends = all
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
