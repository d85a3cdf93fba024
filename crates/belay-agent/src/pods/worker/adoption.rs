//! What an agent before this one left of a pod.

use std::collections::BTreeMap;

use belay_action::ContainerId;
use belay_api::pod::{ContainerStatus, Pod};
use belay_runtime::ContainerState;

use crate::pods::message::Source;
use crate::pods::plan::START_ERROR;
use crate::pods::tracked::{FailedStart, Instance, Tracked};
use crate::pods::waiting::{RUN_CONTAINER_ERROR, Waiting};

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
    for status in statuses(pod) {
        let failed = start_error(status);
        // A later failure of another kind hides it, but not its number.
        let tried = status.container_id.is_none() && status.restart_count > 0;
        if failed.is_none() && !tried {
            continue;
        }
        let tracked = adopted.entry(status.name.clone()).or_default();
        let number = u32::try_from(status.restart_count).ok();
        let newer = tracked.current.as_ref().map(|one| one.restart_count) >= number;
        // What was told of a pod that has ended stays as it is.
        let ended = matches!(pod.phase(), "Succeeded" | "Failed");
        tracked.not_run = number;
        tracked.failed_start = failed.filter(|_| !newer && !ended);
    }
    (adopted, old)
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().chain(main).flatten()
}

/// The failure to run it that was reported last.
fn start_error(status: &ContainerStatus) -> Option<FailedStart> {
    let states = [&status.state, &status.last_state].into_iter().flatten();
    let mut ends = states.filter_map(|state| state.terminated.as_ref());
    let end = ends.find(|end| end.reason.as_deref() == Some(START_ERROR))?;
    let at = end.finished_at.as_ref()?.0;
    Some(FailedStart {
        waiting: Waiting {
            reason: RUN_CONTAINER_ERROR,
            message: end.message.clone().unwrap_or_default(),
        },
        at,
        until: at,
        then: None,
        crash: true,
        config: false,
        image: status.image.clone(),
    })
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
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "main", "image": "img", "imageID": "", "ready": false,
                "restartCount": count, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": state,
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn what_could_not_be_run_before_goes_on_being_counted() {
        let failed = json!({"terminated": {"exitCode": 128, "reason": "StartError",
                            "message": "no such file", "finishedAt": "2030-01-01T00:00:00Z"}});
        let mut pod = reported(&failed, 3);
        let (adopted, old) = adopt(&pod, Vec::new());
        assert_eq!(old, Vec::new());
        let main = &adopted["main"];
        assert_eq!((main.restart_count(), main.next_restart_count()), (3, 4));
        // That it could not be run is its end, which a restart policy may leave at that.
        let failed = main.start_error().unwrap();
        assert_eq!(failed.waiting.message, "no such file");
        // A failure of another kind hides that, and not the number.
        let (adopted, _) = adopt(&reported(&json!({}), 3), Vec::new());
        assert_eq!(adopted["main"].next_restart_count(), 4);
        // What was told of a pod that has ended is not told anew.
        pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
        let (adopted, _) = adopt(&pod, Vec::new());
        assert!(adopted["main"].start_error().is_none());
    }

    #[test]
    fn what_has_not_been_tried_has_no_number() {
        let (adopted, _) = adopt(&reported(&json!({}), 0), Vec::new());
        assert!(adopted.is_empty());
    }
}
