//! What a feature gate that is off does to pods.
//!
//! | gate | new pod | pod that used it already |
//! |---|---|---|
//! | `PodLifecycleSleepAction` | sleep handlers are dropped | kept |
//! | `ContainerNotifier` | notifiers are dropped, field and annotation | kept |
//! | `ContainerStopSignals` | refused | kept |
//!
//! Whether a pod used a feature is asked of the pod, not of the container, as upstream does.

use serde_json::{Map, Value};

use super::{CONTAINER_LISTS, Errors};
use crate::field::{Cursor, FieldError};
use crate::gates::{Feature, FeatureGates};
use crate::pod::NOTIFIERS_ANNOTATION;

const HOOKS: [&str; 2] = ["postStart", "preStop"];

pub(super) fn drop_disabled(new: &mut Value, old: Option<&Value>, gates: &FeatureGates) {
    let old = old.map(Cursor::new);
    let used = |in_use: fn(&Cursor<'_>) -> bool| old.as_ref().is_some_and(in_use);
    if !gates.enabled(Feature::PodLifecycleSleepAction) && !used(uses_sleep) {
        drop_sleep(new);
    }
    if !gates.enabled(Feature::ContainerNotifier) && !used(uses_notifiers) {
        drop_notifiers(new);
    }
}

/// Refuses a new pod with a stop signal while stop signals are off: dropping it silently would
/// end a database with SIGTERM where its author asked for something else.
pub(super) fn refuse_disabled(pod: &Cursor<'_>, gates: &FeatureGates, errors: &mut Errors) {
    if gates.enabled(Feature::ContainerStopSignals) {
        return;
    }
    for at in stop_signals(pod) {
        let detail = "may not be set while the feature gate ContainerStopSignals is off";
        errors.push(FieldError::forbidden(at.path(), detail));
    }
}

pub(super) fn uses_stop_signals(pod: &Cursor<'_>) -> bool {
    stop_signals(pod).next().is_some()
}

/// Where a stop signal is set.
fn stop_signals<'a>(pod: &Cursor<'a>) -> impl Iterator<Item = Cursor<'a>> + use<'a> {
    containers(pod)
        .flat_map(|container| {
            [
                container.get("stopSignal"),
                container.get("lifecycle").get("stopSignal"),
            ]
        })
        .filter(Cursor::is_set)
}

fn containers<'a>(pod: &Cursor<'a>) -> impl Iterator<Item = Cursor<'a>> + use<'a> {
    let spec = pod.get("spec");
    CONTAINER_LISTS
        .into_iter()
        .flat_map(move |list| spec.get(list).items())
}

fn uses_sleep(pod: &Cursor<'_>) -> bool {
    containers(pod).any(|container| {
        let lifecycle = container.get("lifecycle");
        HOOKS
            .iter()
            .any(|hook| lifecycle.get(hook).get("sleep").is_set())
    })
}

fn uses_notifiers(pod: &Cursor<'_>) -> bool {
    let annotations = pod.get("metadata").get("annotations");
    annotations.key(NOTIFIERS_ANNOTATION).is_set()
        || containers(pod).any(|container| !container.get("notifiers").is_empty())
}

fn each_container(pod: &mut Value, mut act: impl FnMut(&mut Map<String, Value>)) {
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    for list in CONTAINER_LISTS {
        spec.get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
            .for_each(&mut act);
    }
}

/// Removes sleep handlers, and with them the hooks and lifecycles that hold nothing else.
fn drop_sleep(pod: &mut Value) {
    each_container(pod, |container| {
        let Some(lifecycle) = container
            .get_mut("lifecycle")
            .and_then(Value::as_object_mut)
        else {
            return;
        };
        let mut dropped = false;
        for hook in HOOKS {
            let Some(handler) = lifecycle.get_mut(hook).and_then(Value::as_object_mut) else {
                continue;
            };
            if handler
                .remove("sleep")
                .is_some_and(|sleep| !sleep.is_null())
            {
                dropped = true;
                if handler.is_empty() {
                    lifecycle.remove(hook);
                }
            }
        }
        if dropped && lifecycle.is_empty() {
            container.remove("lifecycle");
        }
    });
}

fn drop_notifiers(pod: &mut Value) {
    each_container(pod, |container| {
        container.remove("notifiers");
    });
    let annotations = pod
        .get_mut("metadata")
        .and_then(|metadata| metadata.get_mut("annotations"))
        .and_then(Value::as_object_mut);
    if let Some(annotations) = annotations {
        annotations.remove(NOTIFIERS_ANNOTATION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn off(feature: Feature) -> FeatureGates {
        FeatureGates::default().with(feature, false)
    }

    fn with_sleep() -> Value {
        json!({"spec": {"containers": [
            {"name": "a", "lifecycle": {"preStop": {"sleep": {"seconds": 5}}}},
            {"name": "b", "lifecycle": {"preStop": {"sleep": {"seconds": 5}}, "stopSignal": "SIGINT"}}
        ]}})
    }

    fn with_notifiers() -> Value {
        json!({"metadata": {"annotations": {NOTIFIERS_ANNOTATION: "{}", "keep": "me"}},
               "spec": {"containers": [{"name": "a", "notifiers": [{"name": "n"}]}]}})
    }

    #[test]
    fn nothing_is_dropped_while_the_gates_are_on() {
        for mut pod in [with_sleep(), with_notifiers()] {
            let before = pod.clone();
            drop_disabled(&mut pod, None, &FeatureGates::default());
            assert_eq!(pod, before);
        }
    }

    /// `version_skew.json`: a new pod while the gate is off loses the field.
    #[test]
    fn sleep_is_dropped_on_create_and_what_it_leaves_empty_goes_too() {
        let mut pod = with_sleep();
        drop_disabled(&mut pod, None, &off(Feature::PodLifecycleSleepAction));
        assert_eq!(
            pod["spec"]["containers"],
            json!([{"name": "a"}, {"name": "b", "lifecycle": {"stopSignal": "SIGINT"}}])
        );
    }

    /// `version_skew.json`: an existing pod keeps its hook.
    #[test]
    fn a_pod_that_used_a_feature_keeps_it() {
        for (pod, feature) in [
            (with_sleep(), Feature::PodLifecycleSleepAction),
            (with_notifiers(), Feature::ContainerNotifier),
        ] {
            let mut new = pod.clone();
            drop_disabled(&mut new, Some(&pod), &off(feature));
            assert_eq!(new, pod);

            let mut new = pod.clone();
            let without = json!({"spec": {"containers": [{"name": "a"}]}});
            drop_disabled(&mut new, Some(&without), &off(feature));
            assert_ne!(new, pod, "the old one did not use it");
        }
    }

    #[test]
    fn notifiers_are_dropped_on_create_from_the_field_and_the_annotation() {
        let mut pod = with_notifiers();
        drop_disabled(&mut pod, None, &off(Feature::ContainerNotifier));
        assert_eq!(
            pod,
            json!({"metadata": {"annotations": {"keep": "me"}},
                   "spec": {"containers": [{"name": "a"}]}})
        );
    }

    #[test]
    fn a_new_pod_with_a_stop_signal_is_refused_while_stop_signals_are_off() {
        let pod = json!({"spec": {"containers": [{"stopSignal": "SIGINT"},
                                                 {"lifecycle": {"stopSignal": "SIGINT"}}]}});
        let mut errors = Errors::new();
        refuse_disabled(&Cursor::new(&pod), &FeatureGates::default(), &mut errors);
        assert!(errors.is_empty());
        let gates = off(Feature::ContainerStopSignals);
        refuse_disabled(&Cursor::new(&pod), &gates, &mut errors);
        let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "spec.containers[0].stopSignal",
                "spec.containers[1].lifecycle.stopSignal"
            ]
        );
        let mut kept = pod.clone();
        drop_disabled(&mut kept, Some(&pod), &gates);
        assert_eq!(kept, pod);
    }
}
