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
