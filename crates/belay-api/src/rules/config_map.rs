//! ConfigMaps.

use serde_json::Value;

use super::{Review, Rules};
use crate::field::{Cursor, Errors, FieldError, Path};
use crate::gates::FeatureGates;
use crate::metadata::{extend_invalid, names};

/// All values of a ConfigMap together.
const LIMIT_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
pub(super) struct ConfigMapRules;

impl Rules for ConfigMapRules {
    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        validate(object).into()
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &FeatureGates) -> Review {
        let mut errors = unchanged_if_immutable(
            &Cursor::new(new),
            &Cursor::new(old),
            &["data", "binaryData"],
        );
        errors.append(validate(new));
        errors.into()
    }
}

fn validate(object: &Value) -> Errors {
    let map = Cursor::new(object);
    let (data, binary) = (map.get("data"), map.get("binaryData"));
    let mut errors = Errors::new();
    let mut size = 0;
    for (key, value) in data.entries() {
        extend_invalid(&mut errors, value.path(), key, names::config_key(key));
        if binary.key(key).is_set() {
            let detail = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(value.path(), key, detail));
        }
        size += value.str().len();
    }
    for (key, value) in binary.entries() {
        extend_invalid(&mut errors, value.path(), key, names::config_key(key));
        size += decoded_len(value.str());
    }
    if size > LIMIT_BYTES {
        // The whole object is too long, no field of it.
        errors.push(FieldError::too_long(&Path::root(), LIMIT_BYTES));
    }
    errors
}

/// How many bytes a base64 text stands for.
pub(super) fn decoded_len(base64: &str) -> usize {
    let digits = base64.trim_end_matches('=').len();
    digits * 3 / 4
}

/// What is wrong with a change of these fields of an object that said it would never change.
pub(super) fn unchanged_if_immutable(
    new: &Cursor<'_>,
    old: &Cursor<'_>,
    fields: &[&str],
) -> Errors {
    const DETAIL: &str = "field is immutable when `immutable` is set";
    let mut errors = Errors::new();
    if !old.get("immutable").is_true() {
        return errors;
    }
    if !new.get("immutable").is_true() {
        errors.push(FieldError::forbidden(new.get("immutable").path(), DETAIL));
    }
    for field in fields {
        let (now, before) = (new.get(field), old.get(field));
        let same = now.is_empty() && before.is_empty() || now.value() == before.value();
        if !same {
            errors.push(FieldError::forbidden(now.path(), DETAIL));
        }
    }
    errors
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests {
    use super::*;
    use serde_json::json;

    fn created(map: Value) -> Vec<String> {
        texts(ConfigMapRules.validate_create(&map, &FeatureGates::default()))
    }

    fn texts(review: Review) -> Vec<String> {
        review.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn keys_are_file_names_and_occur_once() {
        assert!(created(json!({"data": {"my.cnf": "x"}, "binaryData": {"b": "AAAA"}})).is_empty());
        assert!(
            created(json!({"data": {"a/b": "x"}}))[0]
                .starts_with("data[a/b]: Invalid value: \"a/b\": a valid config key must consist")
        );
        assert_eq!(
            created(json!({"data": {"a": "x"}, "binaryData": {"a": ""}})),
            ["data[a]: Invalid value: \"a\": duplicate of key present in binaryData"]
        );
    }

    #[test]
    fn a_map_holds_at_most_a_mebibyte() {
        let full = "x".repeat(LIMIT_BYTES);
        assert!(created(json!({"data": {"a": full}})).is_empty());
        assert_eq!(
            created(json!({"data": {"a": full, "b": "x"}})),
            ["<nil>: Too long: may not be more than 1048576 bytes"]
        );
    }

    #[test]
    fn an_immutable_map_stays_as_it_is() {
        let old = json!({"immutable": true, "data": {"a": "x"}});
        let update = |new: Value| {
            texts(ConfigMapRules.validate_update(&new, &old, &FeatureGates::default()))
        };
        assert!(update(old.clone()).is_empty());
        assert_eq!(
            update(json!({"data": {"a": "y"}})),
            [
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set"
            ]
        );
    }
}
