//! Secrets.

use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::config_map::{decoded_len, unchanged_if_immutable};
use super::{Review, Rules, set_default};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::{extend_invalid, names};

/// All values of a secret together.
const LIMIT_BYTES: usize = 1024 * 1024;

/// Whose token a secret of that type is to hold.
const SERVICE_ACCOUNT: &str = "kubernetes.io/service-account.name";

#[derive(Debug)]
pub(super) struct SecretRules;

impl Rules for SecretRules {
    /// `stringData` is a way to write only: it becomes `data`.
    fn default(&self, object: &mut Value) {
        let Some(object) = object.as_object_mut() else {
            return;
        };
        set_default(object, "type", "Opaque");
        let Some(Value::Object(texts)) = object.remove("stringData") else {
            return;
        };
        let data = object.entry("data").or_insert(Value::Null);
        if data.is_null() {
            *data = json!({});
        }
        let Some(data) = data.as_object_mut() else {
            return;
        };
        for (key, text) in texts {
            if let Some(text) = text.as_str() {
                data.insert(key, json!(ByteString(text.as_bytes().to_vec())));
            }
        }
    }

    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        validate(object).into()
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &FeatureGates) -> Review {
        let (now, before) = (Cursor::new(new), Cursor::new(old));
        let mut errors = Errors::new();
        let type_ = now.get("type");
        if type_.str() != before.get("type").str() {
            let detail = "field is immutable";
            errors.push(FieldError::invalid(type_.path(), type_.str(), detail));
        }
        errors.append(unchanged_if_immutable(&now, &before, &["data"]));
        errors.append(validate(new));
        errors.into()
    }
}

fn validate(object: &Value) -> Errors {
    let secret = Cursor::new(object);
    let data = secret.get("data");
    let mut errors = Errors::new();
    let mut size = 0;
    for (key, value) in data.entries() {
        extend_invalid(&mut errors, value.path(), key, names::config_key(key));
        size += decoded_len(value.str());
    }
    if size > LIMIT_BYTES {
        errors.push(FieldError::too_long(data.path(), LIMIT_BYTES));
    }
    let mut required = |at: Cursor<'_>| errors.push(FieldError::required(at.path(), ""));
    match secret.get("type").str() {
        "kubernetes.io/service-account-token" => {
            let name = secret
                .get("metadata")
                .get("annotations")
                .key(SERVICE_ACCOUNT);
            if name.is_empty() {
                required(name);
            }
        }
        "kubernetes.io/dockercfg" => json_at(&data.key(".dockercfg"), &mut errors),
        "kubernetes.io/dockerconfigjson" => json_at(&data.key(".dockerconfigjson"), &mut errors),
        "kubernetes.io/basic-auth" => {
            let (user, password) = (data.key("username"), data.key("password"));
            if !user.is_set() && !password.is_set() {
                required(user);
                required(password);
            }
        }
        "kubernetes.io/ssh-auth" => {
            let key = data.key("ssh-privatekey");
            if key.is_empty() {
                required(key);
            }
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"].map(|key| data.key(key)) {
                if !key.is_set() {
                    required(key);
                }
            }
        }
        _ => {}
    }
    errors
}

/// The credentials of registries are a JSON object.
fn json_at(at: &Cursor<'_>, errors: &mut Errors) {
    let Some(value) = at.value() else {
        return errors.push(FieldError::required(at.path(), ""));
    };
    let bytes: ByteString = serde_json::from_value(value.clone()).unwrap_or_default();
    if let Err(wrong) = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes.0) {
        let redacted = "<secret contents redacted>";
        errors.push(FieldError::invalid(at.path(), redacted, wrong.to_string()));
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests {
    use super::*;

    fn created(secret: Value) -> Vec<String> {
        texts(SecretRules.validate_create(&secret, &FeatureGates::default()))
    }

    fn texts(review: Review) -> Vec<String> {
        review.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn text_becomes_data_and_wins() {
        let mut secret = json!({"data": {"a": "eA==", "b": "eA=="}, "stringData": {"b": "y"}});
        SecretRules.default(&mut secret);
        let expected = json!({"type": "Opaque", "data": {"a": "eA==", "b": "eQ=="}});
        assert_eq!(secret, expected);
        SecretRules.default(&mut secret);
        assert_eq!(secret, expected);
        for rubbish in [json!(null), json!([]), json!({"stringData": 1, "data": []})] {
            SecretRules.default(&mut rubbish.clone());
        }
    }

    #[test]
    fn each_type_has_the_keys_it_needs() {
        let of = |type_: &str, data: Value| created(json!({"type": type_, "data": data}));
        assert!(of("Opaque", json!({"k": "eA=="})).is_empty());
        assert!(of("example.com/own", json!({})).is_empty());
        assert_eq!(
            of("kubernetes.io/tls", json!({"tls.crt": ""})),
            ["data[tls.key]: Required value"]
        );
        assert_eq!(
            of("kubernetes.io/basic-auth", json!({})),
            [
                "data[username]: Required value",
                "data[password]: Required value"
            ]
        );
        assert!(of("kubernetes.io/basic-auth", json!({"password": ""})).is_empty());
        assert_eq!(
            of("kubernetes.io/ssh-auth", json!({"ssh-privatekey": ""})),
            ["data[ssh-privatekey]: Required value"]
        );
        assert_eq!(
            of("kubernetes.io/service-account-token", json!({})),
            ["metadata.annotations[kubernetes.io/service-account.name]: Required value"]
        );
        assert!(of("kubernetes.io/dockercfg", json!({".dockercfg": "e30="})).is_empty());
        let broken = of(
            "kubernetes.io/dockerconfigjson",
            json!({".dockerconfigjson": "eA=="}),
        );
        assert!(
            broken[0].starts_with(
                "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\""
            ),
            "{broken:?}"
        );
    }

    #[test]
    fn keys_are_file_names_and_there_is_a_limit() {
        assert!(created(json!({"data": {"a/b": ""}}))[0].starts_with("data[a/b]: Invalid value"));
        let too_long = "A".repeat(LIMIT_BYTES / 3 * 4 + 8);
        assert_eq!(
            created(json!({"data": {"a": too_long}})),
            ["data: Too long: may not be more than 1048576 bytes"]
        );
    }

    #[test]
    fn the_type_never_changes_nor_does_what_is_immutable() {
        let old = json!({"type": "Opaque", "immutable": true, "data": {"a": "eA=="}});
        let update =
            |new: Value| texts(SecretRules.validate_update(&new, &old, &FeatureGates::default()));
        assert!(update(old.clone()).is_empty());
        assert_eq!(
            update(json!({"type": "x", "data": {"a": "eQ=="}})),
            [
                "type: Invalid value: \"x\": field is immutable",
                "immutable: Forbidden: field is immutable when `immutable` is set",
                "data: Forbidden: field is immutable when `immutable` is set"
            ]
        );
    }
}
