//! In which containers a hook runs its action, and where it cannot. Pure.

use std::collections::{BTreeMap, BTreeSet};

use belay_api::hook::{HookError, HookErrorType, PodContainerNames};
use belay_api::pod::{Pod, RestartPolicy};

/// One container of a hook.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub(super) pod: String,
    /// `None`: there is no such pod.
    pub(super) pod_uid: Option<String>,
    /// Empty where a pod was named that does not exist, and no container of it.
    pub(super) container: String,
    /// The node that the pod is on, or why nothing can be run.
    pub(super) node: Result<String, HookError>,
}

/// The containers that are named, in the order of their names.
pub(super) fn by_name(named: &[PodContainerNames], pods: &BTreeMap<String, Pod>) -> Vec<Target> {
    let mut targets = Vec::new();
    for PodContainerNames {
        pod_name,
        container_names,
    } in named
    {
        let pod = pods.get(pod_name);
        let wanted: BTreeSet<&str> = container_names.iter().map(String::as_str).collect();
        match pod {
            Some(pod) if wanted.is_empty() => {
                let all = containers(pod).map(|container| target(pod, container));
                targets.extend(all);
            }
            Some(pod) => targets.extend(wanted.into_iter().map(|name| target(pod, name))),
            None => {
                let missing = |container: &str| Target {
                    pod: pod_name.clone(),
                    pod_uid: None,
                    container: container.to_owned(),
                    node: Err(HookError::new(
                        HookErrorType::PodNotFound,
                        format!(
                            "pod {pod_name:?} does not exist in this namespace; nothing was run"
                        ),
                    )),
                };
                if wanted.is_empty() {
                    targets.push(missing(""));
                }
                targets.extend(wanted.into_iter().map(missing));
            }
        }
    }
    targets
}

/// The containers of the pods that were selected. Those that have ended, or are being deleted, are
/// not meant: a selector says what should run, not what ran.
pub(super) fn by_label<'a>(
    wanted: &[String],
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Vec<Target> {
    let meant = |pod: &&Pod| !pod.is_terminating() && !has_ended(pod);
    let of_pod = |pod: &'a Pod| {
        let chosen = containers(pod)
            .filter(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name));
        chosen.map(|name| target(pod, name)).collect::<Vec<_>>()
    };
    pods.into_iter().filter(meant).flat_map(of_pod).collect()
}

/// The containers of a pod that are meant to go on running: its own, and its sidecars.
fn containers(pod: &Pod) -> impl Iterator<Item = &str> {
    let sidecars = pod
        .spec
        .init_containers
        .iter()
        .filter(|container| container.restart_policy == Some(RestartPolicy::Always));
    sidecars
        .chain(&pod.spec.containers)
        .map(|container| container.name.as_str())
}

fn has_ended(pod: &Pod) -> bool {
    matches!(pod.phase(), "Succeeded" | "Failed")
}

fn target(pod: &Pod, container: &str) -> Target {
    Target {
        pod: pod.name().to_owned(),
        pod_uid: Some(pod.uid().to_owned()),
        container: container.to_owned(),
        node: node(pod, container),
    }
}

/// The node of a pod that this container may run on.
fn node(pod: &Pod, container: &str) -> Result<String, HookError> {
    let name = pod.name();
    if !containers(pod).any(|other| other == container) {
        let message = format!(
            "pod {name:?} has no container {container:?} that goes on running; nothing was run"
        );
        return Err(HookError::new(HookErrorType::ContainerNotFound, message));
    }
    place(pod)
}

/// The node of a pod that may run something.
pub(super) fn place(pod: &Pod) -> Result<String, HookError> {
    let name = pod.name();
    if pod.is_terminating() {
        let message = format!("pod {name:?} is being deleted; nothing was run");
        return Err(HookError::new(HookErrorType::PodTerminating, message));
    }
    if has_ended(pod) {
        let message = format!("pod {name:?} has ended ({}); nothing was run", pod.phase());
        return Err(HookError::new(HookErrorType::ContainerNotRunning, message));
    }
    pod.spec.node_name.clone().ok_or_else(|| {
        let message = format!("pod {name:?} is on no node yet; nothing was run");
        HookError::new(HookErrorType::ContainerNotRunning, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, change: &Value) -> Pod {
        let mut value = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "ns", "uid": format!("u-{name}")},
            "spec": {
                "nodeName": "n1",
                "initContainers": [
                    {"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
                "containers": [{"name": "main"}, {"name": "log"}],
            },
            "status": {"phase": "Running"},
        });
        merge(&mut value, change);
        serde_json::from_value(value).unwrap()
    }

    fn merge(value: &mut Value, change: &Value) {
        match change {
            Value::Object(fields) => {
                for (name, change) in fields {
                    merge(&mut value[name], change);
                }
            }
            other => *value = other.clone(),
        }
    }

    fn named(pod: &str, containers: &[&str]) -> PodContainerNames {
        PodContainerNames {
            pod_name: pod.to_owned(),
            container_names: containers.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn told(targets: &[Target]) -> Vec<(String, &'static str)> {
        let one = |target: &Target| {
            let came = target
                .node
                .as_ref()
                .map_err(|error| error.error_type.as_str());
            let came = came.map_or_else(|error| error, |_| "runs");
            (format!("{}/{}", target.pod, target.container), came)
        };
        targets.iter().map(one).collect()
    }

    fn expect(targets: &[Target], expected: &[(&str, &'static str)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, came)| ((*name).to_owned(), *came))
            .collect();
        assert_eq!(told(targets), expected);
    }

    #[test]
    fn all_containers_that_go_on_running_are_meant_where_none_is_named() {
        let pods = BTreeMap::from([("db".to_owned(), pod("db", &json!({})))]);
        expect(
            &by_name(&[named("db", &[])], &pods),
            &[
                ("db/proxy", "runs"),
                ("db/main", "runs"),
                ("db/log", "runs"),
            ],
        );
        expect(
            &by_label(&[], pods.values()),
            &[
                ("db/proxy", "runs"),
                ("db/main", "runs"),
                ("db/log", "runs"),
            ],
        );
    }

    #[test]
    fn of_those_that_are_named_each_has_its_place_or_its_error() {
        let pods = BTreeMap::from([("db".to_owned(), pod("db", &json!({})))]);
        let list = [
            named("db", &["main", "main", "setup", "nope"]),
            named("gone", &["a", "b"]),
            named("lost", &[]),
        ];
        expect(
            &by_name(&list, &pods),
            &[
                ("db/main", "runs"),
                ("db/nope", "ContainerNotFound"),
                ("db/setup", "ContainerNotFound"),
                ("gone/a", "PodNotFound"),
                ("gone/b", "PodNotFound"),
                ("lost/", "PodNotFound"),
            ],
        );
    }

    #[test]
    fn a_pod_that_cannot_run_it_says_why() {
        let came = |change: Value| {
            let pods = BTreeMap::from([("p".to_owned(), pod("p", &change))]);
            told(&by_name(&[named("p", &["main"])], &pods))[0].1
        };
        let deleted = json!({"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}});
        assert_eq!(came(deleted), "PodTerminating");
        for phase in ["Succeeded", "Failed"] {
            let ended = json!({"status": {"phase": phase}});
            assert_eq!(came(ended), "ContainerNotRunning");
        }
        let unscheduled = json!({"spec": {"nodeName": null}, "status": {"phase": "Pending"}});
        assert_eq!(came(unscheduled), "ContainerNotRunning");
        let starting = json!({"status": {"phase": "Pending"}});
        assert_eq!(came(starting), "runs", "its node knows better");
    }

    #[test]
    fn a_selector_means_what_should_run_and_only_the_containers_it_lists() {
        let pods = [
            pod("a", &json!({})),
            pod("done", &json!({"status": {"phase": "Succeeded"}})),
            pod(
                "new",
                &json!({"spec": {"nodeName": null}, "status": {"phase": "Pending"}}),
            ),
            pod(
                "going",
                &json!({"metadata": {"deletionTimestamp": "2030-01-01T00:00:00Z"}}),
            ),
        ];
        let wanted = ["log".to_owned(), "other".to_owned()];
        expect(
            &by_label(&wanted, &pods),
            &[("a/log", "runs"), ("new/log", "ContainerNotRunning")],
        );
        expect(&by_label(&["other".to_owned()], &pods), &[]);
    }
}
