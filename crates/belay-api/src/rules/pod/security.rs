//! Security contexts, as far as they can be wrong by themselves.

use super::Errors;
use super::spec::one_of_if_set;
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
