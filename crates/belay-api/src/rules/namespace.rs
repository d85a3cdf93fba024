//! Namespaces.

use serde_json::{Value, json};

use super::{Review, Rules, object_at, set_default};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::{extend_invalid, names};

/// Every namespace carries its own name as this label, so that selectors can name namespaces.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// What the namespace collector takes away when the namespace is empty.
const FINALIZER: &str = "kubernetes";

/// Names that need no prefix.
const STANDARD_FINALIZERS: [&str; 3] = [FINALIZER, "orphan", "foregroundDeletion"];

#[derive(Debug)]
pub(super) struct NamespaceRules;

impl Rules for NamespaceRules {
    fn default(&self, object: &mut Value) {
        let name = Cursor::new(object)
            .get("metadata")
            .get("name")
            .str()
            .to_owned();
        if !name.is_empty()
            && let Some(metadata) = object.get_mut("metadata")
            && let Some(labels) = object_at(metadata, "labels")
        {
            labels.insert(NAME_LABEL.to_owned(), name.into());
        }
        if let Some(status) = object_at(object, "status") {
            set_default(status, "phase", "Active");
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        let Some(object) = object.as_object_mut() else {
            return;
        };
        object.insert("status".to_owned(), json!({"phase": "Active"}));
        let spec = object.entry("spec").or_insert(Value::Null);
        if !spec.is_object() {
            *spec = json!({});
        }
        match spec["finalizers"].as_array_mut() {
            Some(list) if list.iter().any(|finalizer| finalizer == FINALIZER) => {}
            Some(list) => list.push(FINALIZER.into()),
            None => spec["finalizers"] = json!([FINALIZER]),
        }
    }

    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        finalizers(object).into()
    }

    fn validate_update(&self, new: &Value, _: &Value, _: &FeatureGates) -> Review {
        finalizers(new).into()
    }

    fn validate_status(&self, new: &Value, _: &Value) -> Review {
        let namespace = Cursor::new(new);
        let phase = namespace.get("status").get("phase");
        let terminating = namespace.get("metadata").get("deletionTimestamp").is_set();
        let (expected, when) = if terminating {
            ("Terminating", "is not empty")
        } else {
            ("Active", "is empty")
        };
        if phase.str() == expected {
            return Review::default();
        }
        let detail = format!("may only be '{expected}' if `deletionTimestamp` {when}");
        Errors::from(FieldError::invalid(phase.path(), phase.str(), detail)).into()
    }
}

fn finalizers(object: &Value) -> Errors {
    let finalizers = Cursor::new(object).get("spec").get("finalizers");
    let mut errors = Errors::new();
    for finalizer in finalizers.items() {
        let name = finalizer.str();
        extend_invalid(&mut errors, finalizers.path(), name, names::label_key(name));
        if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            errors.push(FieldError::invalid(
                finalizers.path(),
                name,
                "name is neither a standard finalizer name nor is it fully qualified",
            ));
        }
    }
    errors
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests {
    use super::*;

    #[test]
    fn a_new_namespace_is_active_named_by_a_label_and_kept_by_its_finalizer() {
        let mut namespace = json!({"metadata": {"name": "a"}, "status": {"phase": "Terminating"}});
        NamespaceRules.prepare_create(&mut namespace);
        NamespaceRules.default(&mut namespace);
        assert_eq!(
            namespace,
            json!({
                "metadata": {"name": "a", "labels": {NAME_LABEL: "a"}},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"}
            })
        );
        let before = namespace.clone();
        NamespaceRules.default(&mut namespace);
        assert_eq!(namespace, before);
    }

    #[test]
    fn the_phase_follows_the_deletion_timestamp() {
        let review = |namespace: Value| NamespaceRules.validate_status(&namespace, &Value::Null);
        assert_eq!(
            review(json!({"status": {"phase": "Active"}})),
            Review::default()
        );
        assert_eq!(
            review(json!({"status": {"phase": "Terminating"}})).errors[0].to_string(),
            "status.phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
        );
    }

    #[test]
    fn finalizers_are_standard_or_fully_qualified() {
        let errors = finalizers(&json!({"spec": {"finalizers": ["kubernetes", "a/b", "mine"]}}));
        assert_eq!(errors.len(), 1);
        assert!(errors[0].detail.starts_with("name is neither"));
    }
}
