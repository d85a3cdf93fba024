//! What to say about fields that people are known to write and that do not exist.

/// Kind, path without list indices, and what the author probably meant.
const HINTS: &[(&str, &str, &str)] = &[
    ("Pod", "spec.notifiers", "notifiers belong to a container"),
    (
        "Pod",
        "spec.stopSignal",
        "stopSignal belongs to a container",
    ),
    ("Pod", "spec.containers.notifier", "use notifiers, a list"),
    (
        "Pod",
        "spec.containers.terminationGracePeriodSeconds",
        "use spec.terminationGracePeriodSeconds",
    ),
    (
        "Pod",
        "spec.containers.notifiers.exec",
        "an action stands under handler",
    ),
    (
        "Pod",
        "spec.containers.notifiers.signal",
        "an action stands under handler",
    ),
    ("PodNotification", "spec.pod", "use podName"),
    ("PodNotification", "spec.notifierName", "use notifier"),
    (
        "PodNotification",
        "spec.timeoutSeconds",
        "use deadlineSeconds; the time an action may take is the notifier's timeoutSeconds",
    ),
    // The examples of the seed, which its own types do not have.
    ("HookAction", "Action", "use action"),
    (
        "HookAction",
        "spec",
        "there is no spec: action and actionTimeoutSeconds stand beside metadata",
    ),
    (
        "HookAction",
        "action.actionTimeoutSeconds",
        "actionTimeoutSeconds stands beside action, not in it",
    ),
    ("HookAction", "timeoutSeconds", "use actionTimeoutSeconds"),
    (
        "ExecutionHook",
        "spec.podContainerNamesList",
        "use podSelection.podContainerNamesList",
    ),
    (
        "ExecutionHook",
        "spec.podContainerSelector",
        "use podSelection.podContainerSelector",
    ),
    ("ExecutionHook", "spec.hookActionName", "use actionName"),
    ("ExecutionHook", "spec.action", "use actionName"),
    (
        "ExecutionHook",
        "spec.podSelection.podContainerNamesList.containerName",
        "use containerNames, a list",
    ),
    (
        "ExecutionHook",
        "spec.podSelection.podContainerNamesList.containerList",
        "use containerNames",
    ),
    (
        "ExecutionHook",
        "spec.podSelection.podContainerSelector.containerNames",
        "use containerList",
    ),
    (
        "ExecutionHook",
        "spec.podSelection.podContainerSelector.matchLabels",
        "labels stand under podSelector",
    ),
    (
        "ExecutionHook",
        "spec.actionTimeoutSeconds",
        "actionTimeoutSeconds belongs to the HookAction",
    ),
];

/// A hint for the unknown field at `path` of `kind`.
pub(super) fn hint(kind: &str, path: &str) -> Option<&'static str> {
    HINTS
        .iter()
        .find(|(of, field, _)| *of == kind && same_but_for_indices(path, field))
        .map(|(.., hint)| *hint)
}

fn same_but_for_indices(path: &str, field: &str) -> bool {
    let mut inside = false;
    path.chars()
        .filter(|c| {
            let was_inside = inside;
            inside = match c {
                '[' => true,
                ']' => false,
                _ => inside,
            };
            !was_inside && !inside
        })
        .eq(field.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_do_not_matter_to_a_hint() {
        assert!(hint("Pod", "spec.containers[12].notifiers[0].exec").is_some());
        assert!(hint("Pod", "spec.containers[0].exec").is_none());
        assert!(hint("Node", "spec.notifiers").is_none());
    }
}
