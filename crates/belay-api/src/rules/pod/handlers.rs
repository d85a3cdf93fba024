//! Lifecycle hooks and probes.

use serde_json::Value;

use super::Errors;
use super::spec::Pod;
use crate::field::{Cursor, FieldError};
use crate::metadata::{extend_invalid, names, not_negative};

const SCHEMES: [&str; 2] = ["HTTP", "HTTPS"];

/// The handlers in the order in which upstream looks for them; the first one found counts.
const LIFECYCLE_HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "sleep"];
/// A HookAction runs without the grace period that bounds a sleep, so it has none.
const HOOK_HANDLERS: [&str; 3] = ["exec", "httpGet", "tcpSocket"];
const PROBE_HANDLERS: [&str; 4] = ["exec", "httpGet", "tcpSocket", "grpc"];

pub(super) fn lifecycle(lifecycle: &Cursor<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    for hook in ["postStart", "preStop"] {
        let hook = lifecycle.get(hook);
        if hook.is_set() {
            handler(&hook, &LIFECYCLE_HANDLERS, pod.grace, errors);
        }
    }
}

/// The action of a HookAction.
pub(in crate::rules) fn hook(at: &Cursor<'_>, errors: &mut Errors) {
    handler(at, &HOOK_HANDLERS, None, errors);
}

/// A liveness, readiness or startup probe.
pub(super) fn container_probe(field: &str, at: &Cursor<'_>, errors: &mut Errors) {
    if !at.is_set() {
        return;
    }
    probe(at, errors);
    if field == "readinessProbe" {
        let grace = at.get("terminationGracePeriodSeconds");
        if grace.is_set() {
            let detail = "must not be set for readinessProbes";
            errors.push(FieldError::invalid(grace.path(), grace.owned(), detail));
        }
    } else {
        let threshold = at.get("successThreshold");
        let value = threshold.int().unwrap_or_default();
        if value != 1 {
            errors.push(FieldError::invalid(threshold.path(), value, "must be 1"));
        }
    }
}

/// What holds for every probe.
pub(super) fn probe(at: &Cursor<'_>, errors: &mut Errors) {
    handler(at, &PROBE_HANDLERS, None, errors);
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        let field = at.get(field);
        if let Some(value) = field.int().filter(|value| *value < 0) {
            errors.push(not_negative(field.path(), value));
        }
    }
    let grace = at.get("terminationGracePeriodSeconds");
    if let Some(value) = grace.int().filter(|value| *value <= 0) {
        errors.push(FieldError::invalid(
            grace.path(),
            value,
            "must be greater than 0",
        ));
    }
}

fn handler(at: &Cursor<'_>, kinds: &[&str], grace: Option<i64>, errors: &mut Errors) {
    let mut given = kinds
        .iter()
        .map(|kind| (*kind, at.get(kind)))
        .filter(|(_, it)| it.is_set());
    match given.next() {
        None => errors.push(FieldError::required(
            at.path(),
            "must specify a handler type",
        )),
        Some(("exec", action)) => exec(&action, errors),
        Some(("httpGet", action)) => http_get(&action, errors),
        Some(("sleep", action)) => sleep(&action, grace, errors),
        Some((_, action)) => port(&action.get("port"), errors),
    }
    for (_, further) in given {
        let detail = "may not specify more than 1 handler type";
        errors.push(FieldError::forbidden(further.path(), detail));
    }
}

pub(super) fn exec(action: &Cursor<'_>, errors: &mut Errors) {
    let command = action.get("command");
    if command.is_empty() {
        errors.push(FieldError::required(command.path(), ""));
    }
}

fn http_get(action: &Cursor<'_>, errors: &mut Errors) {
    let (path, scheme) = (action.get("path"), action.get("scheme"));
    if path.is_empty() {
        errors.push(FieldError::required(path.path(), ""));
    }
    port(&action.get("port"), errors);
    if !SCHEMES.contains(&scheme.str()) {
        errors.push(FieldError::not_supported(
            scheme.path(),
            scheme.str(),
            &SCHEMES,
        ));
    }
    let headers = action.get("httpHeaders");
    for header in headers.items() {
        let name = header.get("name").str();
        extend_invalid(errors, headers.path(), name, names::http_header(name));
    }
}

fn port(port: &Cursor<'_>, errors: &mut Errors) {
    match port.value() {
        Some(Value::String(name)) => {
            extend_invalid(errors, port.path(), name.as_str(), names::port_name(name));
        }
        _ => {
            let number = port.int().unwrap_or_default();
            extend_invalid(errors, port.path(), number, names::port_number(number));
        }
    }
}

/// Equal to the grace period is fine, although the message, which is upstream's, says less.
fn sleep(action: &Cursor<'_>, grace: Option<i64>, errors: &mut Errors) {
    let seconds = action.get("seconds").int().unwrap_or_default();
    let Some(grace) = grace else {
        return;
    };
    if !(0..=grace).contains(&seconds) {
        let detail =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.push(FieldError::invalid(action.path(), seconds, detail));
    }
}
