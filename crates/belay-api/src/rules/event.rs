//! Events of the core group, which upstream checks loosely for old clients' sake.

use serde_json::Value;

use super::{Review, Rules};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::{extend_invalid, names};

const REASON_LIMIT: usize = 128;
const ACTION_LIMIT: usize = 128;
const INSTANCE_LIMIT: usize = 128;
const NOTE_LIMIT: usize = 1024;

#[derive(Debug)]
pub(super) struct EventRules;

impl Rules for EventRules {
    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        validate(object).into()
    }

    fn validate_update(&self, new: &Value, _: &Value, _: &FeatureGates) -> Review {
        validate(new).into()
    }
}

/// An event with an `eventTime` is of the new kind and has to be complete; one without need only
/// be in the namespace of what it is about.
fn validate(object: &Value) -> Errors {
    let event = Cursor::new(object);
    let namespace = event.get("metadata").get("namespace").str();
    let about = event.get("involvedObject").get("namespace");
    let mut errors = Errors::new();
    let fits = if event.get("eventTime").is_set() {
        complete(&event, &mut errors);
        !about.str().is_empty() || matches!(namespace, "default" | "kube-system")
    } else if about.str().is_empty() {
        matches!(namespace, "" | "default")
    } else {
        about.str() == namespace
    };
    if !fits {
        let detail = "does not match event.namespace";
        errors.push(FieldError::invalid(about.path(), about.str(), detail));
    }
    errors
}

fn complete(event: &Cursor<'_>, errors: &mut Errors) {
    let reporter = event.get("reportingComponent");
    if reporter.str().is_empty() {
        errors.push(FieldError::required(reporter.path(), ""));
    }
    extend_invalid(
        errors,
        reporter.path(),
        reporter.str(),
        names::label_key(reporter.str()),
    );
    for (field, limit, required) in [
        ("reportingInstance", INSTANCE_LIMIT, true),
        ("action", ACTION_LIMIT, true),
        ("reason", REASON_LIMIT, true),
        ("message", NOTE_LIMIT, false),
    ] {
        let at = event.get(field);
        if required && at.str().is_empty() {
            errors.push(FieldError::required(at.path(), ""));
        }
        if at.str().len() > limit {
            let detail = format!("can have at most {limit} characters");
            errors.push(FieldError::invalid(at.path(), "", detail));
        }
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests {
    use super::*;
    use serde_json::json;

    fn created(event: Value) -> Vec<String> {
        let review = EventRules.validate_create(&event, &FeatureGates::default());
        review.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_event_lives_where_its_object_does() {
        let event = |namespace: &str, about: &str| {
            created(json!({"metadata": {"namespace": namespace},
                           "involvedObject": {"namespace": about}}))
        };
        assert!(event("a", "a").is_empty());
        assert!(event("default", "").is_empty(), "about a node");
        assert_eq!(
            event("a", "b"),
            ["involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"]
        );
        assert_eq!(event("a", "").len(), 1);
    }

    #[test]
    fn an_event_with_a_time_of_its_own_is_complete() {
        let event = json!({
            "metadata": {"namespace": "a"}, "involvedObject": {"namespace": "a"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingComponent": "belay.example/agent",
            "reportingInstance": "node-1", "action": "Notify", "reason": "NotificationSucceeded",
            "message": "ok"
        });
        assert!(created(event.clone()).is_empty());
        let mut long = event;
        long["reason"] = "x".repeat(129).into();
        long["action"] = Value::Null;
        assert_eq!(
            created(long),
            [
                "action: Required value",
                "reason: Invalid value: \"\": can have at most 128 characters"
            ]
        );
    }
}
