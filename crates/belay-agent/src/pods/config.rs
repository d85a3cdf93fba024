//! From a container in a pod's spec to what the runtime is asked to run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use belay_api::pod::{Container, EnvVar, Pod};
use belay_runtime::ContainerConfig;
use serde_json::Value;

use super::expand::expand;
use super::waiting::Waiting;

/// What every process gets that does not bring its own.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the node contributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: &'a str,
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

/// Builds the configuration, or says what the user has to change.
pub(crate) fn container_config(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
    node: Node<'_>,
) -> Result<ContainerConfig, Waiting> {
    refuse_unsupported(container)?;
    let env = environment(pod, container, node)?;
    let variables: BTreeMap<String, String> = env.iter().cloned().collect();
    let command: Vec<String> = container
        .command
        .iter()
        .chain(&container.args)
        .map(|part| expand(part, &variables))
        .collect();
    let pod_security = pod.spec.security_context.as_ref();
    let own_security = container.security_context.as_ref();
    let user = own_security
        .and_then(|c| c.run_as_user)
        .or(pod_security.and_then(|c| c.run_as_user));
    let group = own_security
        .and_then(|c| c.run_as_group)
        .or(pod_security.and_then(|c| c.run_as_group));
    Ok(ContainerConfig {
        pod_namespace: pod.namespace().to_owned(),
        pod_name: pod.name().to_owned(),
        pod_uid: pod.uid().to_owned(),
        name: container.name.clone(),
        restart_count,
        image: container.image.clone().unwrap_or_default(),
        command,
        env,
        working_dir: container
            .working_dir
            .as_deref()
            .filter(|dir| !dir.is_empty())
            .map(PathBuf::from),
        user: id("runAsUser", user)?,
        group: id("runAsGroup", group)?,
        log_path: log_path(node.data_dir, pod, &container.name, restart_count),
    })
}

/// What the `process` runtime cannot do is refused in so many words, never left out.
fn refuse_unsupported(container: &Container) -> Result<(), Waiting> {
    let name = &container.name;
    let given = |field: &str| {
        container
            .other
            .get(field)
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty())
    };
    if given("volumeMounts") || given("volumeDevices") {
        return Err(Waiting::config(format!(
            "container \"{name}\" mounts volumes; the process runtime runs on the host's file system and cannot mount them"
        )));
    }
    if given("envFrom") {
        return Err(Waiting::config(format!(
            "container \"{name}\" uses envFrom; this agent takes environment variables from env only"
        )));
    }
    if container.command.is_empty() {
        return Err(Waiting::config(format!(
            "container \"{name}\" has no command; the process runtime does not use images, so it cannot know the image's entrypoint: set command"
        )));
    }
    Ok(())
}

fn id(field: &str, value: Option<i64>) -> Result<Option<u32>, Waiting> {
    value
        .map(u32::try_from)
        .transpose()
        .map_err(|_| Waiting::config(format!("{field} is not a user or group ID")))
}

/// The environment in the order of the spec; a later variable sees the earlier ones.
fn environment(
    pod: &Pod,
    container: &Container,
    node: Node<'_>,
) -> Result<Vec<(String, String)>, Waiting> {
    let mut env: Vec<(String, String)> = Vec::new();
    let mut known = BTreeMap::new();
    for variable in &container.env {
        let value = match &variable.value_from {
            None => expand(variable.value.as_deref().unwrap_or_default(), &known),
            Some(_) => referenced(pod, container, variable, node)?,
        };
        known.insert(variable.name.clone(), value.clone());
        // The last one of a name wins, in the place of the first.
        match env.iter_mut().find(|(name, _)| *name == variable.name) {
            Some(entry) => entry.1 = value,
            None => env.push((variable.name.clone(), value)),
        }
    }
    for (name, value) in [("PATH", PATH), ("HOSTNAME", pod.name()), ("HOME", "/")] {
        if !known.contains_key(name) {
            env.push((name.to_owned(), value.to_owned()));
        }
    }
    Ok(env)
}

fn referenced(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    node: Node<'_>,
) -> Result<String, Waiting> {
    let path = variable
        .value_from
        .as_ref()
        .and_then(|source| source.field_ref.as_ref())
        .and_then(|field| field.field_path.as_deref());
    let refuse = |what: &str| {
        Waiting::config(format!(
            "environment variable {} of container \"{}\" {what}; this agent knows value and fieldRef of metadata.name, metadata.namespace, metadata.uid, metadata.labels['...'], metadata.annotations['...'], spec.nodeName, status.hostIP and status.podIP",
            variable.name, container.name
        ))
    };
    let Some(path) = path else {
        return Err(refuse(
            "takes its value from a source that is not supported",
        ));
    };
    let of = |map: &Option<BTreeMap<String, String>>, key: &str| {
        map.as_ref()
            .and_then(|map| map.get(key))
            .cloned()
            .unwrap_or_default()
    };
    match path {
        "metadata.name" => Ok(pod.name().to_owned()),
        "metadata.namespace" => Ok(pod.namespace().to_owned()),
        "metadata.uid" => Ok(pod.uid().to_owned()),
        "spec.nodeName" => Ok(node.name.to_owned()),
        "status.hostIP" | "status.podIP" => Ok(node.address.to_owned()),
        _ => {
            if let Some(key) = subscript(path, "metadata.labels") {
                Ok(of(&pod.metadata.labels, key))
            } else if let Some(key) = subscript(path, "metadata.annotations") {
                Ok(of(&pod.metadata.annotations, key))
            } else {
                Err(refuse(&format!("refers to the field {path}")))
            }
        }
    }
}

/// The key in `base['key']`.
fn subscript<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    path.strip_prefix(base)?
        .strip_prefix("['")?
        .strip_suffix("']")
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
            data_dir: Path::new("/d"),
        };
        container_config(&pod, &pod.spec.containers[0], 3, node)
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
        }))
        .unwrap();
        assert_eq!(
            config.command,
            ["run", "db-x-n1-$(LATER)", "$(NONE)", "$(ALL)"]
        );
        assert_eq!((config.user, config.group), (Some(9), Some(8)));
        assert_eq!(config.working_dir.as_deref(), Some(Path::new("/srv")));
        assert_eq!(config.log_path, Path::new("/d/logs/ns_db_u1/c/3.log"));
        let value = |name: &str| {
            config
                .env
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v.as_str())
        };
        assert_eq!(value("HOSTNAME"), Some("db"));
        assert_eq!(value("PATH"), Some(PATH));
    }

    #[test]
    fn the_last_value_of_a_variable_wins_and_path_is_not_forced() {
        let config = config(json!({
            "name": "c", "command": ["x"],
            "env": [{"name": "PATH", "value": "/a"}, {"name": "B", "value": "$(PATH)"}, {"name": "PATH", "value": "$(PATH):/b"}],
        }))
        .unwrap();
        let paths: Vec<_> = config
            .env
            .iter()
            .filter(|(name, _)| name == "PATH")
            .collect();
        assert_eq!(paths, [&("PATH".to_owned(), "/a:/b".to_owned())]);
        assert!(config.env.contains(&("B".to_owned(), "/a".to_owned())));
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_named() {
        let cases = [
            (json!({"name": "c"}), "has no command"),
            (
                json!({"name": "c", "command": ["x"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
                "mounts volumes",
            ),
            (
                json!({"name": "c", "command": ["x"], "envFrom": [{"configMapRef": {"name": "m"}}]}),
                "envFrom",
            ),
            (
                json!({"name": "c", "command": ["x"], "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
                "not supported",
            ),
            (
                json!({"name": "c", "command": ["x"], "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.foo"}}}]}),
                "spec.foo",
            ),
            (
                json!({"name": "c", "command": ["x"], "securityContext": {"runAsUser": -1}}),
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
