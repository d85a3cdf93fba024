//! ExecutionHooks, HookActions and PodActions. The CRDs carry the same rules for stock servers; see
//! [`crate::hook`].

mod action;
mod pod_action;

use std::collections::BTreeSet;

use serde_json::Value;

pub(super) use action::HookActionRules;
pub(super) use pod_action::PodActionRules;

use super::notification::{
    at_least_one, immutable_spec, named, set_once, validate_conditions, validate_ttl,
};
use super::selector::validate_selector;
use super::{Review, Rules, object_at};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::hook::{HookErrorType, MAX_CONTAINERS};
use crate::metadata::{extend_invalid, names, not_negative};
use crate::notification::DEFAULT_DEADLINE_SECONDS;

/// What of a status may not change once the hook has ended.
const FIXED_WHEN_FINAL: [&str; 3] = ["actionSucceed", "hookStatuses", "error"];

/// What of a status is set once.
const SET_ONCE: [&str; 3] = ["startTime", "completeTime", "action"];

/// How many there are of each.
const COUNTS: [&str; 3] = ["targetCount", "succeededCount", "failedCount"];

#[derive(Debug)]
pub(super) struct ExecutionHookRules;

impl Rules for ExecutionHookRules {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            let deadline = spec.entry("deadlineSeconds").or_insert(Value::Null);
            if deadline.is_null() {
                *deadline = DEFAULT_DEADLINE_SECONDS.into();
            }
        }
        object_at(object, "status");
    }

    fn prepare_create(&self, object: &mut Value) {
        if let Some(object) = object.as_object_mut() {
            object.insert("status".to_owned(), serde_json::json!({}));
        }
    }

    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        let spec = Cursor::new(object).get("spec");
        let mut errors = Errors::new();
        validate_selection(&spec.get("podSelection"), &mut errors);
        named(&spec.get("actionName"), names::dns_subdomain, &mut errors);
        at_least_one(&spec.get("deadlineSeconds"), &mut errors);
        validate_ttl(&spec, &mut errors);
        let mut review = Review::from(errors);
        review.warnings = warnings(&spec.get("podSelection"));
        review
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
        unchanged(&new, &old, &SET_ONCE, &mut errors);
        if old.get("actionSucceed").is_set() {
            let detail = "may not change once the hook has ended";
            for field in FIXED_WHEN_FINAL {
                let (now, before) = (new.get(field), old.get(field));
                if now.value() != before.value() {
                    errors.push(FieldError::invalid(now.path(), now.owned(), detail));
                }
            }
        }
        errors.into()
    }
}

/// What is stored, and fails or does less than its author may think.
fn warnings(selection: &Cursor<'_>) -> Vec<String> {
    let (list, selector) = (
        selection.get("podContainerNamesList"),
        selection.get("podContainerSelector"),
    );
    match (list.is_empty(), selector.is_set()) {
        (true, false) if selection.is_set() => vec![format!(
            "{}: neither podContainerNamesList nor podContainerSelector is set, so this fails at once",
            selection.path()
        )],
        (false, true) => vec![format!(
            "{}: not used, because podContainerNamesList names pods",
            selector.path()
        )],
        _ => Vec::new(),
    }
}

fn validate_selection(selection: &Cursor<'_>, errors: &mut Errors) {
    if !selection.is_set() {
        let detail = "say where to run the action: podContainerNamesList or podContainerSelector";
        errors.push(FieldError::required(selection.path(), detail));
        return;
    }
    let list = selection.get("podContainerNamesList");
    if list.list().len() > MAX_CONTAINERS {
        let count = list.list().len();
        errors.push(FieldError::too_many(list.path(), count, MAX_CONTAINERS));
    }
    let mut seen = BTreeSet::new();
    for entry in list.items() {
        let pod = entry.get("podName");
        named(&pod, names::dns_subdomain, errors);
        if !pod.is_empty() && !seen.insert(pod.str()) {
            errors.push(FieldError::duplicate(pod.path(), pod.str()));
        }
        validate_containers(&entry.get("containerNames"), errors);
    }
    let selector = selection.get("podContainerSelector");
    if selector.is_set() {
        let pods = selector.get("podSelector");
        if pods.is_set() {
            validate_selector(&pods, errors);
        } else {
            let detail = "say which pods; {} selects every pod of the namespace";
            errors.push(FieldError::required(pods.path(), detail));
        }
        validate_containers(&selector.get("containerList"), errors);
    }
}

/// Names of containers, each once.
fn validate_containers(list: &Cursor<'_>, errors: &mut Errors) {
    let limit = crate::hook::MAX_CONTAINERS_OF_POD;
    if list.list().len() > limit {
        errors.push(FieldError::too_many(list.path(), list.list().len(), limit));
        return;
    }
    let mut seen = BTreeSet::new();
    for name in list.items() {
        let problems = names::dns_label(name.str());
        extend_invalid(errors, name.path(), name.str(), problems);
        if !seen.insert(name.str()) {
            errors.push(FieldError::duplicate(name.path(), name.str()));
        }
    }
}

/// What holds for a status by itself.
fn validate_shape(status: &Cursor<'_>, errors: &mut Errors) {
    let (succeed, complete) = (status.get("actionSucceed"), status.get("completeTime"));
    match (succeed.is_set(), complete.is_set()) {
        (true, false) => {
            let detail = "must be set when actionSucceed is";
            errors.push(FieldError::required(complete.path(), detail));
        }
        (false, true) => {
            let detail = "may not be set while actionSucceed is not";
            errors.push(FieldError::forbidden(complete.path(), detail));
        }
        (true, true) | (false, false) => {}
    }
    let containers = status.get("hookStatuses");
    if containers.list().len() > MAX_CONTAINERS {
        let count = containers.list().len();
        errors.push(FieldError::too_many(
            containers.path(),
            count,
            MAX_CONTAINERS,
        ));
    }
    for container in containers.items() {
        for field in ["podName", "containerName"] {
            let name = container.get(field);
            if !name.is_set() || (field == "podName" && name.is_empty()) {
                errors.push(FieldError::required(name.path(), ""));
            }
        }
        validate_error(&container.get("error"), errors);
        let one = container.get("succeed");
        if succeed.is_set() && !one.is_set() {
            let detail = "must be set when actionSucceed is";
            errors.push(FieldError::required(one.path(), detail));
        } else if succeed.is_true() && !one.is_true() {
            let detail = "every container has succeeded when actionSucceed is true";
            errors.push(FieldError::invalid(one.path(), one.owned(), detail));
        }
    }
    if succeed.is_true() && !containers.is_set() {
        let detail = "every container has succeeded when actionSucceed is true";
        errors.push(FieldError::required(containers.path(), detail));
    }
    let explained = status.get("error").is_set()
        || containers
            .items()
            .any(|container| container.get("error").is_set());
    if succeed.bool() == Some(false) && !explained {
        let detail = "a failed hook says why, here or in a container";
        errors.push(FieldError::required(status.get("error").path(), detail));
    }
    validate_error(&status.get("error"), errors);
    validate_conditions(&status.get("conditions"), errors);
    for count in COUNTS {
        let count = status.get(count);
        if let Some(number) = count.int().filter(|number| *number < 0) {
            errors.push(not_negative(count.path(), number));
        }
    }
    let action = status.get("action");
    if action.is_set() {
        action::validate_fields(&action, errors);
    }
}

fn validate_error(error: &Cursor<'_>, errors: &mut Errors) {
    let type_ = error.get("errorType");
    let known = HookErrorType::ALL.map(HookErrorType::as_str);
    if error.is_set() && !known.contains(&type_.str()) {
        errors.push(FieldError::not_supported(type_.path(), type_.str(), &known));
    }
}

/// Fields that stay as they are once they are set.
fn unchanged(new: &Cursor<'_>, old: &Cursor<'_>, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        let (now, before) = (new.get(field), old.get(field));
        if before.is_set() && now.value() != before.value() {
            errors.push(set_once(now.path(), before.str(), &now));
        }
    }
}

#[cfg(test)]
mod tests;
