//! Security contexts, as far as they can be wrong by themselves.

use super::spec::one_of_if_set;
use super::{CONTAINER_LISTS, Errors};
use crate::field::{Cursor, FieldError};
use crate::metadata::{extend_invalid, names};

const SECCOMP: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

pub(super) fn validate_pod(spec: &Cursor<'_>, errors: &mut Errors) {
    let context = spec.get("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(&context.get(field), errors);
    }
    context
        .get("supplementalGroups")
        .items()
        .for_each(|group| id(&group, errors));
    let share = spec.get("shareProcessNamespace");
    if share.is_true() && spec.get("hostPID").is_true() {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(share.path(), true, detail));
    }
    let change = context.get("fsGroupChangePolicy");
    one_of_if_set(&change, &["OnRootMismatch", "Always"], errors);
    seccomp(&context.get("seccompProfile"), errors);
}

pub(super) fn validate_container(context: &Cursor<'_>, errors: &mut Errors) {
    for field in ["runAsUser", "runAsGroup"] {
        id(&context.get(field), errors);
    }
    one_of_if_set(&context.get("procMount"), &["Default", "Unmasked"], errors);
    seccomp(&context.get("seccompProfile"), errors);
    if context.get("allowPrivilegeEscalation").bool() == Some(false) {
        if context.get("privileged").is_true() {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(context.path(), context.owned(), detail));
        }
        let added = context.get("capabilities").get("add");
        if added
            .list()
            .iter()
            .any(|capability| capability == "CAP_SYS_ADMIN")
        {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(context.path(), context.owned(), detail));
        }
    }
}

/// What Windows has no notion of, in the pod's security context and in the spec itself.
const NOT_ON_WINDOWS_PODS: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
];
const NOT_ON_WINDOWS: [&str; 4] = ["hostUsers", "hostPID", "hostIPC", "shareProcessNamespace"];
const NOT_ON_WINDOWS_CONTAINERS: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// The security contexts of all containers.
fn contexts<'a>(spec: &Cursor<'a>) -> impl Iterator<Item = Cursor<'a>> + use<'a> {
    let spec = spec.clone();
    CONTAINER_LISTS
        .into_iter()
        .flat_map(move |list| spec.get(list).items())
        .map(|container| container.get("securityContext"))
}

pub(super) fn validate_linux(spec: &Cursor<'_>, errors: &mut Errors) {
    for context in contexts(spec).chain([spec.get("securityContext")]) {
        let options = context.get("windowsOptions");
        if options.is_set() {
            let detail = "windows options cannot be set for a linux pod";
            errors.push(FieldError::forbidden(options.path(), detail));
        }
    }
}

pub(super) fn validate_windows(spec: &Cursor<'_>, errors: &mut Errors) {
    let mut refuse = |at: &Cursor<'_>, fields: &[&str]| {
        for at in fields.iter().map(|field| at.get(field)) {
            let off = at.bool() == Some(false) && at.path().to_string().starts_with("spec.host");
            if at.is_set() && !off {
                errors.push(FieldError::forbidden(
                    at.path(),
                    "cannot be set for a windows pod",
                ));
            }
        }
    };
    refuse(spec, &NOT_ON_WINDOWS);
    refuse(&spec.get("securityContext"), &NOT_ON_WINDOWS_PODS);
    for context in contexts(spec) {
        refuse(&context, &NOT_ON_WINDOWS_CONTAINERS);
    }
}

fn id(at: &Cursor<'_>, errors: &mut Errors) {
    if let Some(id) = at.int() {
        extend_invalid(errors, at.path(), id, names::user_or_group_id(id));
    }
}

fn seccomp(profile: &Cursor<'_>, errors: &mut Errors) {
    if !profile.is_set() {
        return;
    }
    let (type_, local) = (profile.get("type"), profile.get("localhostProfile"));
    match type_.str() {
        "" => errors.push(FieldError::required(
            type_.path(),
            "type is required when seccompProfile is set",
        )),
        "Localhost" => {
            if local.is_empty() {
                let detail = "must be set when seccomp type is Localhost";
                errors.push(FieldError::required(local.path(), detail));
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if local.is_set() {
                let detail = "can only be set when seccomp type is Localhost";
                errors.push(FieldError::invalid(local.path(), local.str(), detail));
            }
        }
        other => errors.push(FieldError::not_supported(type_.path(), other, &SECCOMP)),
    }
}
