//! PodNotifications. The CRD carries the same rules for stock servers; see
//! [`crate::notification`].

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Review, Rules, object_at};
use crate::field::{Cursor, Errors, FieldError, Path};
use crate::gates::FeatureGates;
use crate::metadata::{IMMUTABLE, extend_invalid, names, not_negative};
use crate::notification::{DEFAULT_DEADLINE_SECONDS, ErrorType, State};

const STATES: [&str; 3] = ["New", "Succeeded", "Failed"];

/// What of a status may not change once the notification is final. Conditions may: a hold that a
/// notification took can end long after it.
const FIXED_WHEN_FINAL: [&str; 4] = ["startTime", "completeTime", "containers", "error"];

/// What of a status is set once: the pod, its node, and who claimed the notification.
const SET_ONCE: [&str; 3] = ["nodeName", "podUID", "executor"];

#[derive(Debug)]
pub(super) struct PodNotificationRules;

impl Rules for PodNotificationRules {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            let deadline = spec.entry("deadlineSeconds").or_insert(Value::Null);
            if deadline.is_null() {
                *deadline = DEFAULT_DEADLINE_SECONDS.into();
            }
        }
        if let Some(status) = object_at(object, "status")
            && super::is_unset(status.get("state"))
        {
            status.insert("state".to_owned(), State::New.as_str().into());
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        if let Some(object) = object.as_object_mut() {
            object.insert("status".to_owned(), json!({"state": State::New}));
        }
    }

    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        validate_spec(&Cursor::new(object).get("spec")).into()
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &FeatureGates) -> Review {
        immutable_spec(new, old).into()
    }

    fn validate_status(&self, new: &Value, old: &Value) -> Review {
        let (new, old) = (
            Cursor::new(new).get("status"),
            Cursor::new(old).get("status"),
        );
        let mut errors = Errors::new();
        validate_shape(&new, &mut errors);
        validate_transition(&new, &old, &mut errors);
        errors.into()
    }
}

/// One error for each field of the spec that differs.
pub(super) fn immutable_spec(new: &Value, old: &Value) -> Errors {
    let (new, old) = (Cursor::new(new).get("spec"), Cursor::new(old).get("spec"));
    let fields: BTreeSet<&str> = new
        .object()
        .into_iter()
        .chain(old.object())
        .flat_map(|spec| spec.keys().map(String::as_str))
        .collect();
    let changed = fields
        .into_iter()
        .filter(|field| new.get(field).value() != old.get(field).value())
        .map(|field| FieldError::invalid(new.get(field).path(), new.get(field).owned(), IMMUTABLE));
    changed.collect()
}

fn validate_spec(spec: &Cursor<'_>) -> Errors {
    let mut errors = Errors::new();
    named(&spec.get("podName"), names::dns_subdomain, &mut errors);
    let uid = spec.get("podUID");
    if uid.is_set() && !(1..=128).contains(&uid.str().len()) {
        let detail = "must be the UID of a pod, at most 128 characters";
        errors.push(FieldError::invalid(uid.path(), uid.owned(), detail));
    }
    validate_common(spec, &mut errors);
    errors
}

/// What every notification's spec has: the notifier, a deadline, a time to live.
pub(super) fn validate_common(spec: &Cursor<'_>, errors: &mut Errors) {
    named(&spec.get("notifier"), names::label_key, errors);
    at_least_one(&spec.get("deadlineSeconds"), errors);
    validate_ttl(spec, errors);
}

pub(super) fn validate_ttl(spec: &Cursor<'_>, errors: &mut Errors) {
    let ttl = spec.get("ttlSecondsAfterFinished");
    if let Some(seconds) = ttl.int().filter(|seconds| *seconds < 0) {
        errors.push(not_negative(ttl.path(), seconds));
    }
}

pub(super) fn at_least_one(at: &Cursor<'_>, errors: &mut Errors) {
    if let Some(number) = at.int().filter(|number| *number < 1) {
        let detail = "must be greater than or equal to 1";
        errors.push(FieldError::invalid(at.path(), number, detail));
    }
}

pub(super) fn named(at: &Cursor<'_>, rule: fn(&str) -> names::Problems, errors: &mut Errors) {
    if at.str().is_empty() {
        errors.push(FieldError::required(at.path(), ""));
    } else {
        extend_invalid(errors, at.path(), at.str(), rule(at.str()));
    }
}

/// What holds for a status by itself.
fn validate_shape(status: &Cursor<'_>, errors: &mut Errors) {
    let state = status.get("state");
    validate_state(&state, errors);
    let known = ErrorType::ALL.map(ErrorType::as_str);
    let mut seen = BTreeSet::new();
    for container in status.get("containers").items() {
        let name = container.get("name");
        if name.str().is_empty() {
            errors.push(FieldError::required(name.path(), ""));
        } else if !seen.insert(name.str()) {
            errors.push(FieldError::duplicate(name.path(), name.str()));
        }
        validate_error(&container.get("error"), &known, errors);
        if state.str() == "Succeeded" && !container.get("succeeded").is_true() {
            let detail = "every container has succeeded when the state is Succeeded";
            let at = container.get("succeeded");
            errors.push(FieldError::invalid(at.path(), at.owned(), detail));
        }
    }
    validate_error(&status.get("error"), &known, errors);
    validate_conditions(&status.get("conditions"), errors);

    let complete = status.get("completeTime");
    match (is_final(status), complete.is_set()) {
        (true, false) => {
            let detail = format!("must be set when the state is {}", state.str());
            errors.push(FieldError::required(complete.path(), detail));
        }
        (false, true) => {
            let detail = "may not be set while the state is New";
            errors.push(FieldError::forbidden(complete.path(), detail));
        }
        (true, true) | (false, false) => {}
    }
    let explained = status.get("error").is_set()
        || status
            .get("containers")
            .items()
            .any(|container| container.get("error").is_set());
    if state.str() == "Failed" && !explained {
        let detail = "a failed notification says why, here or in a container";
        errors.push(FieldError::required(status.get("error").path(), detail));
    }
}

pub(super) fn validate_state(state: &Cursor<'_>, errors: &mut Errors) {
    if !STATES.contains(&state.str()) {
        errors.push(FieldError::not_supported(
            state.path(),
            state.str(),
            &STATES,
        ));
    }
}

pub(super) fn validate_error(error: &Cursor<'_>, known: &[&str], errors: &mut Errors) {
    if !error.is_set() {
        return;
    }
    let type_ = error.get("type");
    if !known.contains(&type_.str()) {
        errors.push(FieldError::not_supported(type_.path(), type_.str(), known));
    }
    if !error.get("timestamp").is_set() {
        errors.push(FieldError::required(error.get("timestamp").path(), ""));
    }
}

pub(super) fn validate_conditions(conditions: &Cursor<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        let (type_, status) = (condition.get("type"), condition.get("status"));
        if type_.str().is_empty() {
            errors.push(FieldError::required(type_.path(), ""));
        } else if !seen.insert(type_.str()) {
            errors.push(FieldError::duplicate(type_.path(), type_.str()));
        }
        let known = ["True", "False", "Unknown"];
        if !known.contains(&status.str()) {
            errors.push(FieldError::not_supported(
                status.path(),
                status.str(),
                &known,
            ));
        }
    }
}

/// What may become of a status.
fn validate_transition(new: &Cursor<'_>, old: &Cursor<'_>, errors: &mut Errors) {
    for field in SET_ONCE {
        let (now, before) = (new.get(field), old.get(field));
        if before.is_set() && now.value() != before.value() {
            errors.push(set_once(now.path(), before.str(), &now));
        }
    }
    if !is_final(old) {
        return;
    }
    fixed(new, old, &FIXED_WHEN_FINAL, errors);
}

/// What may not change once `old` is final: its state, and these fields.
pub(super) fn fixed(new: &Cursor<'_>, old: &Cursor<'_>, fields: &[&str], errors: &mut Errors) {
    let (now, before) = (new.get("state"), old.get("state"));
    if now.str() != before.str() {
        let detail = format!("may not change: {} is final", before.str());
        errors.push(FieldError::invalid(now.path(), now.str(), detail));
    }
    for field in fields {
        let (now, before) = (new.get(field), old.get(field));
        if now.value() != before.value() {
            let detail = "may not change once the state is final";
            errors.push(FieldError::invalid(now.path(), now.owned(), detail));
        }
    }
}

pub(super) fn set_once(path: &Path, before: &str, now: &Cursor<'_>) -> FieldError {
    let detail = format!("may be set once, and is {before:?}");
    FieldError::invalid(path, now.owned(), detail)
}

pub(super) fn is_final(status: &Cursor<'_>) -> bool {
    matches!(status.get("state").str(), "Succeeded" | "Failed")
}
