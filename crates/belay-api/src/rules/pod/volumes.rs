//! Volumes and where containers mount them.

use std::collections::{BTreeMap, BTreeSet};

use super::Errors;
use crate::field::{Cursor, FieldError};
use crate::metadata::{extend_invalid, names};
use crate::quantity::Quantity;

const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "scaleIO",
    "projected",
    "csi",
    "ephemeral",
    "image",
];

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// The good volumes of a pod, by name, with the kind of their source.
#[derive(Debug, Default)]
pub(super) struct Volumes<'a>(BTreeMap<&'a str, &'static str>);

impl Volumes<'_> {
    /// The kind of a volume's source.
    pub(super) fn source(&self, name: &str) -> Option<&'static str> {
        self.0.get(name).copied()
    }
}

pub(super) fn validate<'a>(volumes: &Cursor<'a>, errors: &mut Errors) -> Volumes<'a> {
    let mut known = Volumes::default();
    for volume in volumes.items() {
        let before = errors.total();
        let kind = validate_source(&volume, errors);
        let name = volume.get("name");
        if name.is_empty() {
            errors.push(FieldError::required(name.path(), ""));
        } else {
            extend_invalid(
                errors,
                name.path(),
                name.str(),
                names::dns_label(name.str()),
            );
        }
        if known.source(name.str()).is_some() {
            errors.push(FieldError::duplicate(name.path(), name.str()));
        }
        if let Some(kind) = kind
            && errors.total() == before
        {
            known.0.insert(name.str(), kind);
        }
    }
    known
}

fn validate_source(volume: &Cursor<'_>, errors: &mut Errors) -> Option<&'static str> {
    let mut given = SOURCES
        .into_iter()
        .filter(|source| volume.get(source).is_set());
    let Some(kind) = given.next() else {
        errors.push(FieldError::required(
            volume.path(),
            "must specify a volume type",
        ));
        return None;
    };
    let source = volume.get(kind);
    match kind {
        "emptyDir" => size_limit(&source.get("sizeLimit"), errors),
        "hostPath" => host_path(&source, errors),
        "secret" => projected_object(&source, "secretName", errors),
        "configMap" => projected_object(&source, "name", errors),
        "downwardAPI" | "projected" => file_mode(&source.get("defaultMode"), errors),
        "persistentVolumeClaim" => {
            let name = source.get("claimName");
            if name.is_empty() {
                errors.push(FieldError::required(name.path(), ""));
            }
        }
        _ => {}
    }
    for further in given {
        let detail = "may not specify more than 1 volume type";
        errors.push(FieldError::forbidden(volume.get(further).path(), detail));
    }
    Some(kind)
}

fn size_limit(at: &Cursor<'_>, errors: &mut Errors) {
    let Some(text) = at.value().and_then(|value| value.as_str()) else {
        return;
    };
    match text.parse::<Quantity>() {
        Ok(limit) if !limit.is_negative() => {}
        Ok(_) => {
            let detail = "SizeLimit field must be a valid resource quantity";
            errors.push(FieldError::forbidden(at.path(), detail));
        }
        Err(wrong) => errors.push(FieldError::invalid(at.path(), text, wrong.to_string())),
    }
}

fn host_path(source: &Cursor<'_>, errors: &mut Errors) {
    let (path, type_) = (source.get("path"), source.get("type"));
    if path.is_empty() {
        errors.push(FieldError::required(path.path(), ""));
        return;
    }
    no_backsteps(&path, path.str(), errors);
    if !HOST_PATH_TYPES.contains(&type_.str()) {
        errors.push(FieldError::not_supported(
            type_.path(),
            type_.str(),
            &HOST_PATH_TYPES,
        ));
    }
}

/// A secret or a ConfigMap shown as files.
fn projected_object(source: &Cursor<'_>, name: &str, errors: &mut Errors) {
    let name = source.get(name);
    if name.is_empty() {
        errors.push(FieldError::required(name.path(), ""));
    }
    file_mode(&source.get("defaultMode"), errors);
    for item in source.get("items").items() {
        for field in ["key", "path"] {
            let at = item.get(field);
            if at.is_empty() {
                errors.push(FieldError::required(at.path(), ""));
            }
        }
        let path = item.get("path");
        descending(&path, path.str(), errors);
        if path.str().starts_with("..") && !path.str().starts_with("../") {
            let detail = "must not start with '..'";
            errors.push(FieldError::invalid(path.path(), path.str(), detail));
        }
        file_mode(&item.get("mode"), errors);
    }
}

fn file_mode(at: &Cursor<'_>, errors: &mut Errors) {
    if let Some(mode) = at.int().filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(at.path(), mode, detail));
    }
}

fn no_backsteps(at: &Cursor<'_>, path: &str, errors: &mut Errors) {
    if path.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(
            at.path(),
            path,
            "must not contain '..'",
        ));
    }
}

/// A path that stays below where it starts.
fn descending(at: &Cursor<'_>, path: &str, errors: &mut Errors) {
    if path.starts_with('/') {
        errors.push(FieldError::invalid(
            at.path(),
            path,
            "must be a relative path",
        ));
    }
    no_backsteps(at, path, errors);
}

pub(super) fn validate_mounts(container: &Cursor<'_>, volumes: &Volumes<'_>, errors: &mut Errors) {
    let (mounts, devices) = (
        container.get("volumeMounts"),
        container.get("volumeDevices"),
    );
    let privileged = container.get("securityContext").get("privileged").is_true();
    let as_devices: BTreeSet<&str> = devices.items().map(|it| it.get("name").str()).collect();
    let mut taken = BTreeSet::new();
    for mount in mounts.items() {
        let (name, path) = (mount.get("name"), mount.get("mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(name.path(), ""));
        }
        if volumes.source(name.str()).is_none() {
            errors.push(FieldError::not_found(name.path(), name.str()));
        }
        if path.is_empty() {
            errors.push(FieldError::required(path.path(), ""));
        }
        if !taken.insert(path.str()) {
            errors.push(FieldError::invalid(
                path.path(),
                path.str(),
                "must be unique",
            ));
        }
        if as_devices.contains(name.str()) {
            let detail = "must not already exist in volumeDevices";
            errors.push(FieldError::invalid(name.path(), name.str(), detail));
        }
        let (sub, expression) = (mount.get("subPath"), mount.get("subPathExpr"));
        descending(&sub, sub.str(), errors);
        if !expression.is_empty() {
            if !sub.is_empty() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                errors.push(FieldError::invalid(
                    expression.path(),
                    expression.str(),
                    detail,
                ));
            }
            descending(&expression, expression.str(), errors);
        }
        propagation(&mount, privileged, errors);
        recursive_read_only(&mount, errors);
    }
    for device in devices.items() {
        let (name, path) = (device.get("name"), device.get("devicePath"));
        match volumes.source(name.str()) {
            None => errors.push(FieldError::not_found(name.path(), name.str())),
            Some("persistentVolumeClaim" | "ephemeral") => {}
            Some(_) => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(FieldError::invalid(name.path(), name.str(), detail));
            }
        }
        if path.is_empty() {
            errors.push(FieldError::required(path.path(), ""));
        }
    }
}

fn propagation(mount: &Cursor<'_>, privileged: bool, errors: &mut Errors) {
    const MODES: [&str; 3] = ["Bidirectional", "HostToContainer", "None"];
    let mode = mount.get("mountPropagation");
    super::spec::one_of_if_set(&mode, &MODES, errors);
    if mode.str() == "Bidirectional" && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(FieldError::forbidden(mode.path(), detail));
    }
}

fn recursive_read_only(mount: &Cursor<'_>, errors: &mut Errors) {
    const MODES: [&str; 3] = ["Disabled", "Enabled", "IfPossible"];
    let mode = mount.get("recursiveReadOnly");
    super::spec::one_of_if_set(&mode, &MODES, errors);
    if !matches!(mode.str(), "Enabled" | "IfPossible") {
        return;
    }
    if !mount.get("readOnly").is_true() {
        let detail = "may only be specified when readOnly is true";
        errors.push(FieldError::forbidden(mode.path(), detail));
    }
    if !matches!(mount.get("mountPropagation").str(), "" | "None") {
        let detail = "may only be specified when mountPropagation is None or not specified";
        errors.push(FieldError::forbidden(mode.path(), detail));
    }
}
