//! Pods that are still to be made: the template in another object. A [`Cursor`] on a template reads
//! like one on a pod, so the rules are the pod's own, with errors that name the template's fields.
//!
//! Unlike a pod a template may change, also in what its handlers do. A gate that is off therefore
//! compares with the template as it was.

use serde_json::Value;

use super::{Errors, defaults, gates, notifiers, signals, spec};
use crate::field::{Cursor, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::{validate_annotations, validate_labels};

pub(in crate::rules) fn warnings_before_default(template: &Cursor<'_>) -> Vec<String> {
    notifiers::warnings_before_default(template)
}

pub(in crate::rules) fn default(template: &mut Value) {
    defaults::default_template(template);
}

pub(in crate::rules) fn drop_disabled(
    new: &mut Value,
    old: Option<&Value>,
    features: &FeatureGates,
) {
    gates::drop_disabled(new, old, features);
}

/// Refuses what a gate that is off refuses in a new pod, unless the template had it before.
pub(in crate::rules) fn refuse_disabled(
    new: &Cursor<'_>,
    old: Option<&Cursor<'_>>,
    features: &FeatureGates,
    errors: &mut Errors,
) {
    if !old.is_some_and(gates::uses_stop_signals) {
        gates::refuse_disabled(new, features, errors);
    }
}

pub(in crate::rules) fn validate(template: &Cursor<'_>, errors: &mut Errors) {
    // Upstream leaves `metadata` out of these two paths, and so does this.
    let without = |field: &str| {
        let value = template.get("metadata").get(field).value();
        Cursor::at(template.path().child(field), value)
    };
    validate_labels(&without("labels"), errors);
    validate_annotations(&without("annotations"), errors);
    super::validate(template, errors);
    let ephemeral = template.get("spec").get("ephemeralContainers");
    if !ephemeral.is_empty() {
        let detail = "ephemeral containers not allowed in pod template";
        errors.push(FieldError::forbidden(ephemeral.path(), detail));
    }
}

pub(in crate::rules) fn warnings(template: &Cursor<'_>) -> Vec<String> {
    let mut warnings = signals::warnings(template);
    warnings.extend(notifiers::warnings(template));
    warnings
}

/// The one restart policy that a template of pods without an end may have.
pub(in crate::rules) fn restarts_always(template: &Cursor<'_>, errors: &mut Errors) {
    let policy = template.get("spec").get("restartPolicy");
    // One that no pod may have is refused already.
    if spec::RESTART_POLICIES.contains(&policy.str()) && policy.str() != "Always" {
        errors.push(FieldError::not_supported(
            policy.path(),
            policy.str(),
            &["Always"],
        ));
    }
}
