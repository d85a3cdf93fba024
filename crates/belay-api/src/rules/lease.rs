//! Leases.

use serde_json::Value;

use super::{Review, Rules};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::not_negative;

#[derive(Debug)]
pub(super) struct LeaseRules;

impl Rules for LeaseRules {
    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        validate(object).into()
    }

    fn validate_update(&self, new: &Value, _: &Value, _: &FeatureGates) -> Review {
        validate(new).into()
    }
}

fn validate(object: &Value) -> Errors {
    let spec = Cursor::new(object).get("spec");
    let mut errors = Errors::new();
    let duration = spec.get("leaseDurationSeconds");
    if let Some(seconds) = duration.int().filter(|seconds| *seconds <= 0) {
        let detail = "must be greater than 0";
        errors.push(FieldError::invalid(duration.path(), seconds, detail));
    }
    let transitions = spec.get("leaseTransitions");
    if let Some(count) = transitions.int().filter(|count| *count < 0) {
        errors.push(not_negative(transitions.path(), count));
    }
    if !spec.get("preferredHolder").is_empty() && spec.get("strategy").is_empty() {
        errors.push(FieldError::forbidden(
            spec.get("preferredHolder").path(),
            "may only be specified if `strategy` is defined",
        ));
    }
    errors
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_are_positive_and_transitions_not_negative() {
        let review = |spec: Value| {
            let lease = json!({ "spec": spec });
            let errors = LeaseRules
                .validate_create(&lease, &FeatureGates::default())
                .errors;
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(review(json!({"leaseDurationSeconds": 40, "leaseTransitions": 0})).is_empty());
        assert_eq!(
            review(json!({"leaseDurationSeconds": 0, "leaseTransitions": -1})),
            [
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0"
            ]
        );
    }
}
