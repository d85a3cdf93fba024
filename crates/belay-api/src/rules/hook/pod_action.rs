//! PodActions. Only the controller writes them, so what is checked of their specs is that they are
//! complete; what is checked of statuses is what everybody else relies on.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{unchanged, validate_containers, validate_error};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::names;
use crate::notification::State;
use crate::rules::notification::{
    at_least_one, fixed, immutable_spec, is_final, named, validate_conditions, validate_state,
};
use crate::rules::{Review, Rules, is_unset, object_at};

/// What of a status may not change once it is final.
const FIXED_WHEN_FINAL: [&str; 3] = ["completeTime", "containers", "error"];

/// What of a status is set once.
const SET_ONCE: [&str; 2] = ["startTime", "executor"];

/// What of a container's status is set once.
const SET_ONCE_IN_CONTAINER: [&str; 3] = ["succeed", "startTime", "containerID"];

#[derive(Debug)]
pub(in crate::rules) struct PodActionRules;

impl Rules for PodActionRules {
    fn default(&self, object: &mut Value) {
        if let Some(status) = object_at(object, "status")
            && is_unset(status.get("state"))
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
        let spec = Cursor::new(object).get("spec");
        let hook = spec.get("hook");
        let mut errors = Errors::new();
        for field in ["name", "uid"] {
            required(&hook.get(field), &mut errors);
        }
        named(&spec.get("podName"), names::dns_subdomain, &mut errors);
        for field in [
            "podUID",
            "nodeName",
            "containers",
            "actionTimeoutSeconds",
            "deadlineSeconds",
        ] {
            required(&spec.get(field), &mut errors);
        }
        validate_containers(&spec.get("containers"), &mut errors);
        super::action::validate_fields(&spec, &mut errors);
        at_least_one(&spec.get("deadlineSeconds"), &mut errors);
        errors.into()
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
        let containers = old.get("containers").items();
        let before: BTreeMap<_, _> = containers
            .map(|container| (container.get("name").str(), container))
            .collect();
        for container in new.get("containers").items() {
            if let Some(before) = before.get(container.get("name").str()) {
                unchanged(&container, before, &SET_ONCE_IN_CONTAINER, &mut errors);
            }
        }
        if is_final(&old) {
            fixed(&new, &old, &FIXED_WHEN_FINAL, &mut errors);
        }
        errors.into()
    }
}

fn required(at: &Cursor<'_>, errors: &mut Errors) {
    if at.is_empty() {
        errors.push(FieldError::required(at.path(), ""));
    }
}

/// What holds for a status by itself.
fn validate_shape(status: &Cursor<'_>, errors: &mut Errors) {
    let state = status.get("state");
    validate_state(&state, errors);
    let containers = status.get("containers");
    let mut seen = BTreeSet::new();
    for container in containers.items() {
        let name = container.get("name");
        if name.is_empty() {
            errors.push(FieldError::required(name.path(), ""));
        } else if !seen.insert(name.str()) {
            errors.push(FieldError::duplicate(name.path(), name.str()));
        }
        let (succeed, error) = (container.get("succeed"), container.get("error"));
        validate_error(&error, errors);
        if succeed.bool() == Some(false) && !error.is_set() {
            let detail = "a container in which the action failed says why";
            errors.push(FieldError::required(error.path(), detail));
        }
        if state.str() == "Succeeded" && !succeed.is_true() {
            let detail = "every container has succeeded when the state is Succeeded";
            errors.push(FieldError::invalid(succeed.path(), succeed.owned(), detail));
        }
    }
    if state.str() == "Succeeded" && !containers.is_set() {
        let detail = "every container has succeeded when the state is Succeeded";
        errors.push(FieldError::required(containers.path(), detail));
    }
    validate_error(&status.get("error"), errors);
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
        || containers
            .items()
            .any(|container| container.get("error").is_set());
    if state.str() == "Failed" && !explained {
        let detail = "a failed action says why, here or in a container";
        errors.push(FieldError::required(status.get("error").path(), detail));
    }
}
