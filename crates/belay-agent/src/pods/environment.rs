//! A container's environment: what it names itself, and what it takes from the pod, from its
//! resources, from ConfigMaps and from secrets.

use std::collections::BTreeMap;

use belay_api::pod::{
    Container, EnvFromSource, EnvVarSource, KeySelector, ObjectSource, Pod, Reference,
    ReferenceKind, ResourceFieldSelector,
};
use belay_api::quantity::Quantity;

use super::config::Node;
use super::expand::expand;
use super::objects::{Found, Known, Object};
use super::waiting::Waiting;

/// The environment in the order in which it is made: everything of `envFrom`, then `env`, in which
/// a later variable sees all earlier ones. The last of a name wins, in the place of the first.
pub(crate) fn environment(
    pod: &Pod,
    container: &Container,
    node: Node<'_>,
    found: &Found,
) -> Result<Environment, Waiting> {
    let mut env = Environment::default();
    for from in &container.env_from {
        whole(from, found, &mut env)?;
    }
    for variable in &container.env {
        // As the kubelet reads it: a value that is not empty comes before a source.
        let written = variable.value.as_deref().unwrap_or_default();
        let value = match &variable.value_from {
            Some(source) if written.is_empty() => {
                referenced(pod, container, &variable.name, source, node, found)?
            }
            _ => Some(expand(written, &env.known)),
        };
        if let Some(value) = value {
            env.set(&variable.name, value);
        }
    }
    Ok(env)
}

/// Variables in order, and by name.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    order: Vec<String>,
    pub(crate) known: BTreeMap<String, String>,
}

impl Environment {
    fn set(&mut self, name: &str, value: String) {
        if self.known.insert(name.to_owned(), value).is_none() {
            self.order.push(name.to_owned());
        }
    }

    pub(crate) fn into_pairs(mut self) -> Vec<(String, String)> {
        self.order
            .into_iter()
            .filter_map(|name| self.known.remove_entry(&name))
            .collect()
    }
}

/// An object that the environment needs. `None` if it is not there and need not be.
fn object<'a>(
    reference: &Reference,
    optional: Option<bool>,
    found: &'a Found,
) -> Result<Option<&'a Object>, Waiting> {
    let Reference { kind, name } = reference;
    match found.get(reference) {
        Some(Known::Found(object)) => Ok(Some(object)),
        Some(Known::Missing) if optional == Some(true) => Ok(None),
        Some(Known::Missing) => Err(Waiting::config(format!("{kind} \"{name}\" not found"))),
        Some(Known::Unread(Some(problem))) => Err(Waiting::config(format!(
            "cannot read {kind} \"{name}\": {problem}"
        ))),
        Some(Known::Unread(None)) | None => Err(Waiting::creating()),
    }
}

fn reference(kind: ReferenceKind, name: Option<&String>) -> Reference {
    let name = name.cloned().unwrap_or_default();
    Reference { kind, name }
}

/// All of an object's keys.
fn whole(from: &EnvFromSource, found: &Found, env: &mut Environment) -> Result<(), Waiting> {
    let sources = [
        (ReferenceKind::ConfigMap, &from.config_map_ref),
        (ReferenceKind::Secret, &from.secret_ref),
    ];
    let prefix = from.prefix.as_deref().unwrap_or_default();
    for (kind, source) in sources {
        let Some(ObjectSource { name, optional, .. }) = source else {
            continue;
        };
        let reference = reference(kind, name.as_ref());
        for (key, value) in object(&reference, *optional, found)?
            .into_iter()
            .flat_map(|object| &object.data)
        {
            env.set(&format!("{prefix}{key}"), text(&reference, key, value)?);
        }
    }
    Ok(())
}

/// A value as a process can have it.
fn text(reference: &Reference, key: &str, value: &[u8]) -> Result<String, Waiting> {
    let text = std::str::from_utf8(value).ok();
    match text.filter(|text| !text.contains('\0')) {
        Some(text) => Ok(text.to_owned()),
        None => Err(Waiting::config(format!(
            "key {key} in {} \"{}\" is not text, which an environment variable has to be; mount it as a file",
            reference.kind, reference.name
        ))),
    }
}

/// The value of one key. `None` if it is not there and need not be.
fn key(
    pod: &Pod,
    kind: ReferenceKind,
    selector: &KeySelector,
    found: &Found,
) -> Result<Option<String>, Waiting> {
    let reference = reference(kind, selector.name.as_ref());
    let Some(object) = object(&reference, selector.optional, found)? else {
        return Ok(None);
    };
    let key = selector.key.as_deref().unwrap_or_default();
    match object.data.get(key) {
        Some(value) => text(&reference, key, value).map(Some),
        None if selector.optional == Some(true) => Ok(None),
        None => {
            let kind = match kind {
                ReferenceKind::ConfigMap => "ConfigMap",
                ReferenceKind::Secret => "Secret",
            };
            Err(Waiting::config(format!(
                "couldn't find key {key} in {kind} {}/{}",
                pod.namespace(),
                reference.name
            )))
        }
    }
}

fn referenced(
    pod: &Pod,
    container: &Container,
    variable: &str,
    source: &EnvVarSource,
    node: Node<'_>,
    found: &Found,
) -> Result<Option<String>, Waiting> {
    let refuse = |what: &str| {
        Waiting::config(format!(
            "environment variable {variable} of container \"{}\" {what}",
            container.name
        ))
    };
    if let Some(selector) = &source.config_map_key_ref {
        key(pod, ReferenceKind::ConfigMap, selector, found)
    } else if let Some(selector) = &source.secret_key_ref {
        key(pod, ReferenceKind::Secret, selector, found)
    } else if let Some(selector) = &source.resource_field_ref {
        match resource(pod, container, selector, node) {
            Some(value) => Ok(Some(value)),
            None => Err(refuse(&format!(
                "refers to the resource {}; this agent knows requests and limits of cpu and memory",
                selector.resource.as_deref().unwrap_or_default()
            ))),
        }
    } else if let Some(path) = source
        .field_ref
        .as_ref()
        .and_then(|f| f.field_path.as_deref())
    {
        match field(pod, path, node) {
            Some(value) => Ok(Some(value)),
            None => Err(refuse(&format!("refers to the unknown field {path}"))),
        }
    } else {
        Err(refuse(
            "takes its value from a source that is not supported; this agent knows fieldRef, resourceFieldRef, configMapKeyRef and secretKeyRef",
        ))
    }
}

fn field(pod: &Pod, path: &str, node: Node<'_>) -> Option<String> {
    let of = |map: &Option<BTreeMap<String, String>>, key: &str| {
        let value = map.as_ref().and_then(|map| map.get(key));
        value.cloned().unwrap_or_default()
    };
    let value = match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.uid" => pod.uid().to_owned(),
        "spec.nodeName" => node.name.to_owned(),
        "spec.serviceAccountName" => {
            let name = pod.spec.other.get("serviceAccountName");
            name.and_then(|name| name.as_str())
                .unwrap_or_default()
                .to_owned()
        }
        "status.hostIP" | "status.hostIPs" => node.address.to_owned(),
        "status.podIP" | "status.podIPs" => node.pod_address.to_owned(),
        _ => {
            if let Some(key) = subscript(path, "metadata.labels") {
                of(&pod.metadata.labels, key)
            } else {
                of(
                    &pod.metadata.annotations,
                    subscript(path, "metadata.annotations")?,
                )
            }
        }
    };
    Some(value)
}

/// The key in `base['key']`.
fn subscript<'a>(path: &'a str, base: &str) -> Option<&'a str> {
    path.strip_prefix(base)?
        .strip_prefix("['")?
        .strip_suffix("']")
}

/// A quantity in units of the divisor, rounded up. A limit that is not set is all that the node
/// has, a request that is not set is nothing.
fn resource(
    pod: &Pod,
    container: &Container,
    selector: &ResourceFieldSelector,
    node: Node<'_>,
) -> Option<String> {
    let of = match selector.container_name.as_deref() {
        None | Some("") => container,
        Some(name) => pod.container(name)?,
    };
    let (limits, name) = match selector.resource.as_deref()?.split_once('.')? {
        ("limits", name) => (true, name),
        ("requests", name) => (false, name),
        _ => return None,
    };
    let resources = of.resources.as_ref();
    let given = resources
        .and_then(|all| {
            if limits {
                all.limits.as_ref()
            } else {
                all.requests.as_ref()
            }
        })
        .and_then(|all| all.get(name))
        .and_then(|quantity| Quantity::read(quantity).ok())
        .filter(|quantity| !limits || !quantity.is_zero());
    let divisor = selector
        .divisor
        .as_ref()
        .and_then(|divisor| Quantity::read(divisor).ok())
        .filter(|divisor| !divisor.is_zero() && !divisor.is_negative());
    let (amount, unit) = match name {
        "cpu" => {
            let whole = if limits {
                i64::try_from(node.cpus).ok()?.saturating_mul(1000)
            } else {
                0
            };
            (
                given.map_or(whole, Quantity::milli_value),
                divisor.map_or(1000, Quantity::milli_value),
            )
        }
        "memory" => {
            let whole = if limits {
                i64::try_from(node.memory).ok()?
            } else {
                0
            };
            (
                given.map_or(whole, Quantity::value),
                divisor.map_or(1, Quantity::value),
            )
        }
        _ => return None,
    };
    let rounded_up = i128::from(amount).div_euclid(i128::from(unit))
        + i128::from(i128::from(amount).rem_euclid(i128::from(unit)) != 0);
    Some(rounded_up.to_string())
}

#[cfg(test)]
mod tests;
