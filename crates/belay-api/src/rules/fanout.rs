//! Notifications. The CRD carries the same rules for stock servers; see [`crate::fanout`].

use serde_json::{Value, json};

use super::notification::{
    at_least_one, fixed, immutable_spec, is_final, set_once, validate_common, validate_conditions,
    validate_error, validate_state,
};
use super::selector::validate_selector;
use super::{Review, Rules, object_at, set_default};
use crate::fanout::{NotificationErrorType, PodSelectionPolicy};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::not_negative;
use crate::notification::State;

/// How many there are of each.
const COUNTS: [&str; 3] = ["targetCount", "succeededCount", "failedCount"];

/// What of a status may not change once the Notification is final.
const FIXED_WHEN_FINAL: [&str; 4] = ["completeTime", "succeededCount", "failedCount", "error"];

#[derive(Debug)]
pub(super) struct NotificationRules;

impl Rules for NotificationRules {
    fn default(&self, object: &mut Value) {
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
            set_default(spec, "policy", PodSelectionPolicy::default().as_str());
            set_default(spec, "parallelism", 0);
        }
        if let Some(status) = object_at(object, "status") {
            set_default(status, "state", State::New.as_str());
            for count in COUNTS {
                set_default(status, count, 0);
            }
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        if let Some(object) = object.as_object_mut() {
            let new = json!({
                "state": State::New, "targetCount": 0, "succeededCount": 0, "failedCount": 0,
            });
            object.insert("status".to_owned(), new);
        }
    }

    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        let spec = Cursor::new(object).get("spec");
        let mut review = Review::from(validate_spec(&spec));
        let all_pods = spec.get("policy").str() == PodSelectionPolicy::AllPods.as_str();
        if all_pods && spec.get("ttlSecondsAfterFinished").is_set() {
            review.warnings.push(
                "spec.ttlSecondsAfterFinished: has no effect with the policy AllPods, which never finishes"
                    .to_owned(),
            );
        }
        let parallelism = spec.get("parallelism");
        if let Some(number) = parallelism.int().filter(|number| *number < 0) {
            review.warnings.push(format!(
                "spec.parallelism: {number} is negative, so this fails at once; 0 means all pods at once"
            ));
        }
        review
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &FeatureGates) -> Review {
        immutable_spec(new, old).into()
    }

    fn validate_status(&self, new: &Value, old: &Value) -> Review {
        let policy = Cursor::new(new).get("spec").get("policy").str().to_owned();
        let (new, old) = (
            Cursor::new(new).get("status"),
            Cursor::new(old).get("status"),
        );
        let mut errors = Errors::new();
        validate_shape(&new, &policy, &mut errors);
        let (now, before) = (new.get("startTime"), old.get("startTime"));
        if before.is_set() && now.value() != before.value() {
            errors.push(set_once(now.path(), before.str(), &now));
        }
        if is_final(&old) {
            fixed(&new, &old, &FIXED_WHEN_FINAL, &mut errors);
        }
        errors.into()
    }
}

fn validate_spec(spec: &Cursor<'_>) -> Errors {
    let mut errors = Errors::new();
    let selector = spec.get("selector");
    if selector.is_set() {
        validate_selector(&selector, &mut errors);
    } else {
        let detail = "say which pods to notify; {} selects every pod of the namespace";
        errors.push(FieldError::required(selector.path(), detail));
    }
    let policy = spec.get("policy");
    let known = PodSelectionPolicy::ALL.map(PodSelectionPolicy::as_str);
    if !known.contains(&policy.str()) {
        errors.push(FieldError::not_supported(
            policy.path(),
            policy.str(),
            &known,
        ));
    }
    validate_common(spec, &mut errors);
    at_least_one(&spec.get("maxFailures"), &mut errors);
    errors
}

/// What holds for a status by itself.
fn validate_shape(status: &Cursor<'_>, policy: &str, errors: &mut Errors) {
    let state = status.get("state");
    validate_state(&state, errors);
    let known = NotificationErrorType::ALL.map(NotificationErrorType::as_str);
    validate_error(&status.get("error"), &known, errors);
    validate_conditions(&status.get("conditions"), errors);
    let settled = status.get("settled");
    let counts = COUNTS.map(|count| status.get(count));
    for count in counts
        .iter()
        .chain(&[settled.get("succeededCount"), settled.get("failedCount")])
    {
        if let Some(number) = count.int().filter(|number| *number < 0) {
            errors.push(not_negative(count.path(), number));
        }
    }

    let complete = status.get("completeTime");
    let all_pods = policy == PodSelectionPolicy::AllPods.as_str();
    if all_pods && complete.is_set() {
        let detail = "is never set with the policy AllPods";
        errors.push(FieldError::forbidden(complete.path(), detail));
    }
    match (is_final(status), complete.is_set()) {
        (true, false) if !all_pods => {
            let detail = format!("must be set when the state is {}", state.str());
            errors.push(FieldError::required(complete.path(), detail));
        }
        (false, true) => {
            let detail = "may not be set while the state is New";
            errors.push(FieldError::forbidden(complete.path(), detail));
        }
        (true | false, _) => {}
    }
    let failed = status.get("failedCount");
    let failures = failed.int().unwrap_or(0);
    if state.str() == "Failed" && failures == 0 && !status.get("error").is_set() {
        let detail = "a failed notification says why, here or by failedCount";
        errors.push(FieldError::required(status.get("error").path(), detail));
    }
    if state.str() == "Succeeded" && failures > 0 {
        let detail = "nothing has failed when the state is Succeeded";
        errors.push(FieldError::invalid(failed.path(), failures, detail));
    }
}

#[cfg(test)]
mod tests;
