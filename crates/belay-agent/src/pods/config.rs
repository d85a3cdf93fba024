//! From a container in a pod's spec to what the runtime is asked to run.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use belay_api::pod::{Container, Pod, ResourceRequirements};
use belay_api::quantity::Quantity;
use belay_runtime::{ContainerConfig, Resources};
use serde_json::{Map, Value};

use super::environment::environment;
use super::expand::expand;
use super::objects::Found;
use super::security::{self, Effective};
use super::volumes::{self, Layout, Wanted};
use super::waiting::Waiting;

/// What the node contributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: &'a str,
    /// The pod's own address, or the node's where pods have none.
    pub(crate) pod_address: &'a str,
    pub(crate) cpus: usize,
    /// In bytes.
    pub(crate) memory: u64,
    pub(crate) data_dir: &'a Path,
}

/// Where a container's log lies.
pub(crate) fn log_path(data_dir: &Path, pod: &Pod, container: &str, restart_count: u32) -> PathBuf {
    log_dir(data_dir, pod.namespace(), pod.name(), pod.uid())
        .join(container)
        .join(format!("{restart_count}.log"))
}

/// Where the logs of a pod lie.
pub(crate) fn log_dir(data_dir: &Path, namespace: &str, name: &str, uid: &str) -> PathBuf {
    data_dir
        .join("logs")
        .join(format!("{namespace}_{name}_{uid}"))
}

/// The logs of pods that are not among those `known` by their UIDs.
pub(crate) fn orphaned_logs(data_dir: &Path, known: &HashSet<&str>) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data_dir.join("logs"));
    let entries = entries.into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let name = entry.file_name();
            // Neither a namespace nor a name has a `_`.
            let uid = name.to_str().and_then(|name| name.rsplit('_').next());
            uid.is_some_and(|uid| !known.contains(uid))
        })
        .map(|entry| entry.path())
        .collect()
}

/// A configuration, and what is left to be done before its container can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Draft {
    /// Without mounts, sandbox and image.
    pub(crate) config: ContainerConfig,
    pub(crate) mounts: Vec<Wanted>,
}

/// Builds the configuration, or says what is missing or has to be changed.
pub(crate) fn container_config(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
    node: Node<'_>,
    found: &Found,
) -> Result<Draft, Waiting> {
    let env = environment(pod, container, node, found)?;
    let expanded =
        |parts: &[String]| -> Vec<String> { parts.iter().map(|p| expand(p, &env.known)).collect() };
    let Effective {
        user,
        group,
        security,
    } = security::effective(pod, container, &node.data_dir.join("seccomp"))?;
    let layout = Layout::new(node.data_dir, pod.uid());
    let mounts = volumes::wanted(pod, container, &layout, &env)?;
    let config = ContainerConfig {
        pod_namespace: pod.namespace().to_owned(),
        pod_name: pod.name().to_owned(),
        pod_uid: pod.uid().to_owned(),
        name: container.name.clone(),
        restart_count,
        image: container.image.clone().unwrap_or_default(),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container
            .working_dir
            .as_deref()
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from),
        user,
        group,
        resources: resources(container),
        security,
        stdin: is_true(container, "stdin"),
        tty: is_true(container, "tty"),
        log_path: log_path(node.data_dir, pod, &container.name, restart_count),
        env: env.into_pairs(),
        ..ContainerConfig::default()
    };
    Ok(Draft { config, mounts })
}

fn is_true(container: &Container, field: &str) -> bool {
    container.other.get(field) == Some(&Value::Bool(true))
}

/// What of a container's requests and limits a runtime can make true. Nothing is no limit, as with
/// the kubelet.
fn resources(container: &Container) -> Resources {
    let none = ResourceRequirements::default();
    let all = container.resources.as_ref().unwrap_or(&none);
    let amount = |of: Option<&Map<String, Value>>, name: &str, count: fn(Quantity) -> i64| {
        let quantity = Quantity::read(of?.get(name)?).ok()?;
        u64::try_from(count(quantity)).ok().filter(|n| *n > 0)
    };
    Resources {
        cpu_request: amount(all.requests.as_ref(), "cpu", Quantity::milli_value),
        cpu_limit: amount(all.limits.as_ref(), "cpu", Quantity::milli_value),
        memory_limit: amount(all.limits.as_ref(), "memory", Quantity::value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // `json!` literals read better without a borrow.
    #[allow(clippy::needless_pass_by_value)]
    fn config(container: Value) -> Result<ContainerConfig, Waiting> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "db", "namespace": "ns", "uid": "u1", "labels": {"app": "x"}},
            "spec": {"containers": [container], "securityContext": {"runAsUser": 7, "runAsGroup": 8}},
        }))
        .unwrap();
        let node = Node {
            name: "n1",
            address: "192.0.2.7",
            pod_address: "10.0.0.3",
            cpus: 4,
            memory: 1 << 30,
            data_dir: Path::new("/d"),
        };
        let draft = container_config(&pod, &pod.spec.containers[0], 3, node, &Found::new())?;
        Ok(draft.config)
    }

    #[test]
    fn command_args_and_environment_are_expanded_in_order() {
        let config = config(json!({
            "name": "c", "image": "i", "command": ["run", "$(ALL)"], "args": ["$(NONE)", "$$(ALL)"],
            "env": [
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                {"name": "ALL", "value": "$(NAME)-$(APP)-$(NODE)-$(LATER)"},
                {"name": "LATER", "value": "l"},
            ],
            "securityContext": {"runAsUser": 9},
            "workingDir": "/srv",
            "stdin": true,
        }))
        .unwrap();
        assert_eq!(config.command, ["run", "db-x-n1-$(LATER)"]);
        assert_eq!(config.args, ["$(NONE)", "$(ALL)"]);
        assert_eq!((config.user, config.group), (Some(9), Some(8)));
        assert_eq!(config.working_dir.as_deref(), Some(Path::new("/srv")));
        assert_eq!(config.log_path, Path::new("/d/logs/ns_db_u1/c/3.log"));
        assert!(config.stdin && !config.tty);
    }

    #[test]
    fn logs_of_pods_that_nobody_knows_are_orphans() {
        let dir = tempfile::tempdir().unwrap();
        for uid in ["u1", "u2"] {
            std::fs::create_dir_all(log_dir(dir.path(), "ns", "p", uid)).unwrap();
        }
        let orphans = orphaned_logs(dir.path(), &["u1"].into());
        assert_eq!(orphans, [log_dir(dir.path(), "ns", "p", "u2")]);
        assert!(orphaned_logs(&dir.path().join("none"), &HashSet::new()).is_empty());
    }

    #[test]
    fn requests_and_limits_are_counted_and_nothing_is_no_limit() {
        let of = |resources: Value| {
            config(json!({"name": "c", "resources": resources}))
                .unwrap()
                .resources
        };
        let all = json!({"requests": {"cpu": "250m", "memory": "1Gi"},
                         "limits": {"cpu": 1.5, "memory": "64Mi"}});
        let expected = Resources {
            cpu_request: Some(250),
            cpu_limit: Some(1500),
            memory_limit: Some(64 << 20),
        };
        assert_eq!(of(all), expected);
        for none in [
            json!({}),
            json!({"limits": {"cpu": "0", "memory": 0}}),
            json!({"limits": {"cpu": "rubbish", "memory": "-1"}, "requests": {"cpu": []}}),
        ] {
            assert_eq!(of(none.clone()), Resources::default(), "{none}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_named() {
        let cases = [
            (
                json!({"name": "c", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.foo"}}}]}),
                "spec.foo",
            ),
            (
                json!({"name": "c", "securityContext": {"runAsUser": -1}}),
                "runAsUser",
            ),
        ];
        for (container, part) in cases {
            let waiting = config(container).unwrap_err();
            assert_eq!(waiting.reason, "CreateContainerConfigError");
            assert!(waiting.message.contains(part), "{}", waiting.message);
        }
    }
}
