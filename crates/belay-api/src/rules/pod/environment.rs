//! Environment variables and where their values come from.

use super::Errors;
use super::spec::Pod;
use crate::field::{Cursor, FieldError};
use crate::metadata::{extend_invalid, names};
use crate::quantity::Quantity;

/// What of a pod an environment variable can show.
const POD_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Further fields that have a name, but that no variable can show.
const OTHER_POD_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "spec.restartPolicy",
    "spec.schedulerName",
    "status.phase",
];

const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

pub(super) fn validate(container: &Cursor<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    for variable in container.get("env").items() {
        let name = variable.get("name");
        if name.is_empty() {
            errors.push(FieldError::required(name.path(), ""));
        } else {
            extend_invalid(errors, name.path(), name.str(), names::env_var(name.str()));
        }
        value_from(&variable, pod, errors);
    }
    let all = container.get("envFrom");
    for from in all.items() {
        let prefix = from.get("prefix");
        if !prefix.is_empty() {
            extend_invalid(
                errors,
                prefix.path(),
                prefix.str(),
                names::env_var(prefix.str()),
            );
        }
        let given: Vec<_> = ["configMapRef", "secretRef"]
            .into_iter()
            .map(|source| from.get(source))
            .filter(Cursor::is_set)
            .collect();
        for source in &given {
            let name = source.get("name");
            if name.is_empty() {
                errors.push(FieldError::required(name.path(), ""));
            } else {
                extend_invalid(
                    errors,
                    name.path(),
                    name.str(),
                    names::dns_subdomain(name.str()),
                );
            }
        }
        // Upstream reports these two at the list.
        match given.len() {
            1 => {}
            0 => {
                let detail = "must specify one of: `configMapRef` or `secretRef`";
                errors.push(FieldError::invalid(all.path(), "", detail));
            }
            _ => {
                let detail = "may not have more than one field specified at a time";
                errors.push(FieldError::invalid(all.path(), "", detail));
            }
        }
    }
}

fn value_from(variable: &Cursor<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let from = variable.get("valueFrom");
    if !from.is_set() {
        return;
    }
    let mut sources = 0;
    let mut source = |field: &str| {
        let at = from.get(field);
        sources += usize::from(at.is_set());
        at
    };
    let (field, resource) = (source("fieldRef"), source("resourceFieldRef"));
    let keys = [source("configMapKeyRef"), source("secretKeyRef")];
    let file = source("fileKeyRef");
    if field.is_set() {
        pod_field(&field, errors);
    }
    if resource.is_set() {
        resource_field(&resource, errors);
    }
    for key in keys.iter().filter(|key| key.is_set()) {
        key_of_object(key, errors);
    }
    if file.is_set() {
        key_of_file(&file, pod, errors);
    }
    let detail = if sources == 0 {
        "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
    } else if !variable.get("value").is_empty() {
        "may not be specified when `value` is not empty"
    } else if sources > 1 {
        "may not have more than one field specified at a time"
    } else {
        return;
    };
    errors.push(FieldError::invalid(from.path(), "", detail));
}

fn pod_field(reference: &Cursor<'_>, errors: &mut Errors) {
    let (version, path) = (reference.get("apiVersion"), reference.get("fieldPath"));
    if version.is_empty() {
        errors.push(FieldError::required(version.path(), ""));
        return;
    }
    if path.is_empty() {
        errors.push(FieldError::required(path.path(), ""));
        return;
    }
    let problem = if version.str() != "v1" {
        format!("unsupported pod version: {}", version.str())
    } else if let Some((map, key)) = subscript(path.str()) {
        match map {
            "metadata.annotations" => {
                let problems = names::label_key(&key.to_lowercase());
                return extend_invalid(errors, reference.path(), key, problems);
            }
            "metadata.labels" => {
                return extend_invalid(errors, reference.path(), key, names::label_key(key));
            }
            _ => format!("field label does not support subscript: {}", path.str()),
        }
    } else if POD_FIELDS.contains(&path.str()) {
        return;
    } else if OTHER_POD_FIELDS.contains(&path.str()) {
        errors.push(FieldError::not_supported(
            path.path(),
            path.str(),
            &POD_FIELDS,
        ));
        return;
    } else {
        format!("field label not supported: {}", path.str())
    };
    let detail = format!("error converting fieldPath: {problem}");
    errors.push(FieldError::invalid(path.path(), path.str(), detail));
}

/// `metadata.labels['app']` in its two parts.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

fn resource_field(reference: &Cursor<'_>, errors: &mut Errors) {
    let resource = reference.get("resource");
    let huge_pages = ["limits.hugepages-", "requests.hugepages-"]
        .iter()
        .any(|prefix| resource.str().starts_with(prefix));
    if resource.is_empty() {
        errors.push(FieldError::required(resource.path(), ""));
    } else if !huge_pages && !RESOURCE_FIELDS.contains(&resource.str()) {
        errors.push(FieldError::not_supported(
            resource.path(),
            resource.str(),
            &RESOURCE_FIELDS,
        ));
    }
    let divisor = reference.get("divisor");
    if let Some(text) = divisor.value().and_then(|value| value.as_str())
        && let Err(wrong) = text.parse::<Quantity>()
    {
        errors.push(FieldError::invalid(divisor.path(), text, wrong.to_string()));
    }
}

fn key_of_object(reference: &Cursor<'_>, errors: &mut Errors) {
    let (name, key) = (reference.get("name"), reference.get("key"));
    extend_invalid(
        errors,
        name.path(),
        name.str(),
        names::dns_subdomain(name.str()),
    );
    if key.is_empty() {
        errors.push(FieldError::required(key.path(), ""));
    } else {
        extend_invalid(errors, key.path(), key.str(), names::config_key(key.str()));
    }
}

fn key_of_file(reference: &Cursor<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    for field in ["key", "path", "volumeName"] {
        let at = reference.get(field);
        if at.is_empty() {
            errors.push(FieldError::required(at.path(), ""));
        }
    }
    let volume = reference.get("volumeName");
    match pod.volumes.source(volume.str()) {
        None => errors.push(FieldError::not_found(volume.path(), volume.str())),
        Some("emptyDir") => {}
        Some(_) => {
            let detail = "referenced volume must be of type emptyDir";
            errors.push(FieldError::invalid(volume.path(), volume.str(), detail));
        }
    }
}
