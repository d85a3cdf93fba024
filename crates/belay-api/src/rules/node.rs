//! Nodes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Review, Rules, object_at};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::{extend_invalid, names, not_negative};
use crate::quantity::Quantity;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

#[derive(Debug)]
pub(super) struct NodeRules;

impl Rules for NodeRules {
    fn default(&self, object: &mut Value) {
        let Some(status) = object.get_mut("status") else {
            return;
        };
        let capacity = status.get("capacity").cloned();
        let allocatable = status
            .get("allocatable")
            .is_some_and(|value| !value.is_null());
        if let (Some(capacity @ Value::Object(_)), false) = (capacity, allocatable) {
            status["allocatable"] = capacity;
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object_at(object, "spec");
        object_at(object, "status");
    }

    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        validate(&Cursor::new(object)).into()
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &FeatureGates) -> Review {
        let (new, old) = (Cursor::new(new), Cursor::new(old));
        let mut errors = validate(&new);
        addresses(&new.get("status").get("addresses"), &mut errors);
        for (field, name) in [("podCIDRs", "podCIDR"), ("providerID", "providerID")] {
            let (now, before) = (new.get("spec").get(field), old.get("spec").get(field));
            if !before.is_empty() && now.value() != before.value() {
                let detail =
                    format!("node updates may not change {name} except from \"\" to valid");
                errors.push(FieldError::forbidden(now.path(), detail));
            }
        }
        errors.into()
    }

    fn validate_status(&self, new: &Value, _: &Value) -> Review {
        let status = Cursor::new(new).get("status");
        let mut errors = Errors::new();
        resources(&status, &mut errors);
        addresses(&status.get("addresses"), &mut errors);
        errors.into()
    }
}

fn validate(node: &Cursor<'_>) -> Errors {
    let mut errors = Errors::new();
    taints(&node.get("spec").get("taints"), &mut errors);
    resources(&node.get("status"), &mut errors);
    errors
}

fn taints(taints: &Cursor<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for taint in taints.items() {
        let (key, value, effect) = (taint.get("key"), taint.get("value"), taint.get("effect"));
        extend_invalid(errors, key.path(), key.str(), names::label_key(key.str()));
        let problems = names::label_value(value.str());
        if !problems.is_empty() {
            errors.push(FieldError::invalid(
                value.path(),
                value.str(),
                problems.join(";"),
            ));
        }
        if effect.str().is_empty() {
            errors.push(FieldError::required(effect.path(), ""));
        } else if !EFFECTS.contains(&effect.str()) {
            errors.push(FieldError::not_supported(
                effect.path(),
                effect.str(),
                &EFFECTS,
            ));
        }
        if !seen.insert((effect.str(), key.str())) {
            let mut error = FieldError::duplicate(taint.path(), taint.owned());
            "taints must be unique by key and effect pair".clone_into(&mut error.detail);
            errors.push(error);
        }
    }
}

fn resources(status: &Cursor<'_>, errors: &mut Errors) {
    for field in ["capacity", "allocatable"] {
        for (name, value) in status.get(field).entries() {
            // Upstream spells these paths with a dot.
            let path = status.get(field).path().child(name);
            match value.str().parse::<Quantity>() {
                Err(wrong) => {
                    errors.push(FieldError::invalid(&path, value.owned(), wrong.to_string()));
                }
                Ok(quantity) if quantity.is_negative() => {
                    let mut error = not_negative(&path, 0);
                    error.kind = crate::field::ErrorKind::Invalid(value.owned());
                    errors.push(error);
                }
                Ok(_) => {}
            }
        }
    }
}

fn addresses(addresses: &Cursor<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for address in addresses.items() {
        if !seen.insert((address.get("type").str(), address.get("address").str())) {
            errors.push(FieldError::duplicate(address.path(), address.owned()));
        }
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests {
    use super::*;
    use serde_json::json;

    fn created(node: Value) -> Vec<String> {
        let review = NodeRules.validate_create(&node, &FeatureGates::default());
        review.errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn allocatable_is_capacity_unless_said_otherwise() {
        let mut node = json!({"status": {"capacity": {"cpu": "2"}}});
        NodeRules.default(&mut node);
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "2"}));
    }

    #[test]
    fn taints_have_a_key_and_an_effect_and_are_unique() {
        assert_eq!(
            created(json!({"spec": {"taints": [
                {"key": "a", "effect": "NoSchedule"},
                {"key": "a", "effect": "NoSchedule"},
                {"key": "b", "effect": "Sometimes"},
                {"key": "c"}
            ]}})),
            [
                "spec.taints[1]: Duplicate value: {\"effect\":\"NoSchedule\",\"key\":\"a\"}: taints must be unique by key and effect pair",
                "spec.taints[2].effect: Unsupported value: \"Sometimes\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
                "spec.taints[3].effect: Required value"
            ]
        );
    }

    #[test]
    fn resources_are_quantities() {
        assert_eq!(
            created(json!({"status": {"capacity": {"cpu": "2", "memory": "1Gi"}}})).len(),
            0
        );
        assert_eq!(
            created(json!({"status": {"capacity": {"cpu": "-1"}}})),
            ["status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0"]
        );
        assert!(
            created(json!({"status": {"capacity": {"cpu": "x"}}}))[0].contains("quantities must")
        );
    }

    #[test]
    fn addresses_are_compared_in_time_that_grows_with_their_number() {
        let addresses: Value = (0..50_000)
            .map(|i| json!({"type": "Hostname", "address": format!("a{i}")}))
            .collect();
        let node = json!({"status": {"addresses": addresses}});
        assert!(NodeRules.validate_status(&node, &node).errors.is_empty());
    }

    #[test]
    fn a_provider_id_is_set_once_and_addresses_are_unique() {
        let old = json!({"spec": {"providerID": "a"}});
        let new = json!({"spec": {"providerID": "b"},
                         "status": {"addresses": [{"type": "Hostname", "address": "a"},
                                                  {"type": "Hostname", "address": "a"}]}});
        let errors = NodeRules
            .validate_update(&new, &old, &FeatureGates::default())
            .errors;
        assert_eq!(errors.len(), 2);
        assert_eq!(errors[0].field, "status.addresses[1]");
        assert_eq!(
            errors[1].to_string(),
            "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid"
        );
    }
}
