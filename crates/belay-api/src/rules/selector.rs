//! Label selectors inside objects, refused as upstream refuses them.

use crate::field::{Cursor, Errors, FieldError};
use crate::metadata::{extend_invalid, names, validate_labels};

pub(super) fn validate_selector(selector: &Cursor<'_>, errors: &mut Errors) {
    validate_labels(&selector.get("matchLabels"), errors);
    for expression in selector.get("matchExpressions").items() {
        let (key, operator, values) = (
            expression.get("key"),
            expression.get("operator"),
            expression.get("values"),
        );
        match operator.str() {
            "In" | "NotIn" if values.list().is_empty() => {
                let detail = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(values.path(), detail));
            }
            "Exists" | "DoesNotExist" if !values.list().is_empty() => {
                let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(values.path(), detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let detail = "not a valid selector operator";
                errors.push(FieldError::invalid(operator.path(), other, detail));
            }
        }
        extend_invalid(errors, key.path(), key.str(), names::label_key(key.str()));
        for value in values.items() {
            let problems = names::label_value(value.str());
            extend_invalid(errors, value.path(), value.str(), problems);
        }
    }
}
