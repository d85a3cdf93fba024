//! HookActions, and the action that a hook and its PodActions took from one.

use serde_json::Value;

use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::hook::DEFAULT_ACTION_TIMEOUT_SECONDS;
use crate::rules::notification::at_least_one;
use crate::rules::{Review, Rules, pod};

#[derive(Debug)]
pub(in crate::rules) struct HookActionRules;

impl Rules for HookActionRules {
    fn default(&self, object: &mut Value) {
        let Some(fields) = object.as_object_mut() else {
            return;
        };
        let timeout = fields.entry("actionTimeoutSeconds").or_insert(Value::Null);
        if timeout.is_null() {
            *timeout = DEFAULT_ACTION_TIMEOUT_SECONDS.into();
        }
        if let Some(action) = fields.get_mut("action").and_then(Value::as_object_mut) {
            pod::default_handler(action);
        }
    }

    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        let mut errors = Errors::new();
        validate_fields(&Cursor::new(object), &mut errors);
        errors.into()
    }

    fn validate_update(&self, new: &Value, _: &Value, gates: &FeatureGates) -> Review {
        self.validate_create(new, gates)
    }
}

/// An action and the time it has.
pub(super) fn validate_fields(at: &Cursor<'_>, errors: &mut Errors) {
    validate_handler(&at.get("action"), errors);
    at_least_one(&at.get("actionTimeoutSeconds"), errors);
}

pub(super) fn validate_handler(action: &Cursor<'_>, errors: &mut Errors) {
    if !action.is_set() {
        let detail = "say what to do: exec, httpGet or tcpSocket";
        errors.push(FieldError::required(action.path(), detail));
        return;
    }
    let sleep = action.get("sleep");
    if sleep.is_set() {
        let detail = "does nothing in a container; use exec, httpGet or tcpSocket";
        errors.push(FieldError::forbidden(sleep.path(), detail));
    }
    for (kind, what) in [("httpGet", "request"), ("tcpSocket", "connection")] {
        let host = action.get(kind).get("host");
        if host.is_set() {
            let detail = format!("may not be set: the {what} goes to the pod");
            errors.push(FieldError::forbidden(host.path(), detail));
        }
    }
    let only_sleep = sleep.is_set()
        && ["exec", "httpGet", "tcpSocket"]
            .iter()
            .all(|kind| !action.get(kind).is_set());
    if !only_sleep {
        pod::hook_handler(action, errors);
    }
}
