//! Roles, their bindings, and what is wrong with them.

use serde_json::{Value, json};

use super::selector::validate_selector;
use super::{Review, Rules, is_unset};
use crate::field::{Cursor, Errors, FieldError};
use crate::gates::FeatureGates;
use crate::metadata::{extend_invalid, names};
use crate::rbac::GROUP;

/// Roles of a namespace, or of the cluster.
#[derive(Debug)]
pub(super) struct RoleRules {
    pub(super) namespaced: bool,
}

impl Rules for RoleRules {
    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        validate_role(&Cursor::new(object), self.namespaced).into()
    }

    fn validate_update(&self, new: &Value, _: &Value, _: &FeatureGates) -> Review {
        validate_role(&Cursor::new(new), self.namespaced).into()
    }
}

/// Bindings in a namespace, or for the cluster.
#[derive(Debug)]
pub(super) struct BindingRules {
    pub(super) namespaced: bool,
}

impl Rules for BindingRules {
    fn default(&self, object: &mut Value) {
        if let Some(reference) = object.get_mut("roleRef").and_then(Value::as_object_mut) {
            super::set_default(reference, "apiGroup", GROUP);
        }
        let subjects = object.get_mut("subjects").and_then(Value::as_array_mut);
        for subject in subjects.into_iter().flatten() {
            let Some(subject) = subject.as_object_mut() else {
                continue;
            };
            let kind = subject.get("kind").and_then(Value::as_str);
            if matches!(kind, Some("User" | "Group")) && is_unset(subject.get("apiGroup")) {
                subject.insert("apiGroup".to_owned(), GROUP.into());
            }
        }
    }

    fn validate_create(&self, object: &Value, _: &FeatureGates) -> Review {
        validate_binding(&Cursor::new(object), self.namespaced).into()
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &FeatureGates) -> Review {
        let (new, old) = (Cursor::new(new), Cursor::new(old));
        let mut errors = validate_binding(&new, self.namespaced);
        let (now, before) = (new.get("roleRef"), old.get("roleRef"));
        if now.value() != before.value() {
            errors.push(FieldError::invalid(
                now.path(),
                now.owned(),
                "cannot change roleRef",
            ));
        }
        errors.into()
    }
}

fn validate_role(role: &Cursor<'_>, namespaced: bool) -> Errors {
    let mut errors = Errors::new();
    for rule in role.get("rules").items() {
        validate_rule(&rule, namespaced, &mut errors);
    }
    let aggregation = role.get("aggregationRule");
    let selectors = aggregation.get("clusterRoleSelectors");
    if aggregation.is_set() && selectors.is_empty() {
        let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.push(FieldError::required(selectors.path(), detail));
    }
    for selector in selectors.items() {
        validate_selector(&selector, &mut errors);
    }
    errors
}

fn validate_rule(rule: &Cursor<'_>, namespaced: bool, errors: &mut Errors) {
    let required = |field: &str, detail: &str| {
        let field = rule.get(field);
        field
            .is_empty()
            .then(|| FieldError::required(field.path(), detail))
    };
    errors.extend(required("verbs", "verbs must contain at least one value"));
    let urls = rule.get("nonResourceURLs");
    if urls.is_empty() {
        errors.extend(required(
            "apiGroups",
            "resource rules must supply at least one api group",
        ));
        errors.extend(required(
            "resources",
            "resource rules must supply at least one resource",
        ));
        return;
    }
    if namespaced {
        let detail = "namespaced rules cannot apply to non-resource URLs";
        errors.push(FieldError::invalid(urls.path(), urls.owned(), detail));
    }
    let on_resources = ["apiGroups", "resources", "resourceNames"]
        .iter()
        .any(|field| !rule.get(field).is_empty());
    if on_resources {
        let detail = "rules cannot apply to both regular resources and non-resource URLs";
        errors.push(FieldError::invalid(urls.path(), urls.owned(), detail));
    }
}

fn validate_binding(binding: &Cursor<'_>, namespaced: bool) -> Errors {
    let mut errors = Errors::new();
    let reference = binding.get("roleRef");
    one_of(&reference.get("apiGroup"), &[GROUP], &mut errors);
    let kinds: &[&str] = if namespaced {
        &["Role", "ClusterRole"]
    } else {
        &["ClusterRole"]
    };
    one_of(&reference.get("kind"), kinds, &mut errors);
    let name = reference.get("name");
    if name.str().is_empty() {
        errors.push(FieldError::required(name.path(), ""));
    } else {
        let problems = names::path_segment(name.str());
        extend_invalid(&mut errors, name.path(), name.str(), problems);
    }
    for subject in binding.get("subjects").items() {
        validate_subject(&subject, namespaced, &mut errors);
    }
    errors
}

fn validate_subject(subject: &Cursor<'_>, namespaced: bool, errors: &mut Errors) {
    let (name, group) = (subject.get("name"), subject.get("apiGroup"));
    if name.str().is_empty() {
        errors.push(FieldError::required(name.path(), ""));
    }
    match subject.get("kind").str() {
        "ServiceAccount" => {
            if !name.str().is_empty() {
                let problems = names::dns_subdomain(name.str());
                extend_invalid(errors, name.path(), name.str(), problems);
            }
            one_of(&group, &[""], errors);
            let namespace = subject.get("namespace");
            if !namespaced && namespace.str().is_empty() {
                errors.push(FieldError::required(namespace.path(), ""));
            }
        }
        "User" | "Group" => one_of(&group, &[GROUP], errors),
        _ => one_of(
            &subject.get("kind"),
            &["ServiceAccount", "User", "Group"],
            errors,
        ),
    }
}

fn one_of(field: &Cursor<'_>, supported: &[&str], errors: &mut Errors) {
    if !supported.contains(&field.str()) {
        let sent = json!(field.str());
        errors.push(FieldError::not_supported(field.path(), sent, supported));
    }
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests {
    use super::*;

    fn texts(review: Review) -> Vec<String> {
        review.errors.iter().map(ToString::to_string).collect()
    }

    fn role(namespaced: bool, role: Value) -> Vec<String> {
        texts(RoleRules { namespaced }.validate_create(&role, &FeatureGates::default()))
    }

    fn binding(namespaced: bool, mut binding: Value) -> Vec<String> {
        let rules = BindingRules { namespaced };
        rules.default(&mut binding);
        texts(rules.validate_create(&binding, &FeatureGates::default()))
    }

    #[test]
    fn a_rule_has_verbs_and_is_about_resources_or_about_paths() {
        let good = json!({"rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": ["a"]},
        ]});
        assert!(role(true, good.clone()).is_empty());
        assert!(role(false, good).is_empty());
        assert!(role(true, json!({})).is_empty(), "a role may be empty");
        assert_eq!(
            role(true, json!({"rules": [{}]})),
            [
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[0].resources: Required value: resource rules must supply at least one resource",
            ]
        );
        let paths = json!({"rules": [{"nonResourceURLs": ["/x"], "verbs": ["get"]}]});
        assert!(role(false, paths.clone()).is_empty());
        assert!(role(true, paths)[0].contains("namespaced rules cannot apply"));
        let both =
            json!({"rules": [{"nonResourceURLs": ["/x"], "resources": ["a"], "verbs": ["get"]}]});
        assert!(role(false, both)[0].contains("both regular resources and non-resource URLs"));
    }

    #[test]
    fn an_aggregated_role_says_which_it_gathers() {
        let one = |rule: Value| role(false, json!({"aggregationRule": rule}));
        assert!(one(json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})).is_empty());
        assert!(one(json!({}))[0].contains("at least one clusterRoleSelector"));
        let wrong = json!({"clusterRoleSelectors": [
            {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}]});
        assert!(one(wrong)[0].starts_with(
            "aggregationRule.clusterRoleSelectors[0].matchExpressions[0].operator: Invalid"
        ));
    }

    #[test]
    fn a_binding_names_a_role_and_subjects_of_known_kinds() {
        let to = |subject: Value| json!({"roleRef": {"kind": "ClusterRole", "name": "view"}, "subjects": [subject]});
        for good in [
            json!({"kind": "User", "name": "ann"}),
            json!({"kind": "Group", "name": "ops", "apiGroup": GROUP}),
            json!({"kind": "ServiceAccount", "name": "sa", "namespace": "default"}),
        ] {
            assert!(binding(false, to(good.clone())).is_empty(), "{good}");
        }
        let account = json!({"kind": "ServiceAccount", "name": "sa"});
        assert!(binding(true, to(account.clone())).is_empty());
        assert_eq!(
            binding(false, to(account)),
            ["subjects[0].namespace: Required value"]
        );
        assert!(
            binding(true, to(json!({"kind": "Robot", "name": "x"})))[0]
                .starts_with("subjects[0].kind: Unsupported value: \"Robot\"")
        );
        assert!(
            binding(true, to(json!({"kind": "User"})))[0]
                .starts_with("subjects[0].name: Required value")
        );
        let local = json!({"roleRef": {"kind": "Role", "name": "a"}});
        assert!(binding(true, local.clone()).is_empty());
        assert!(binding(false, local)[0].starts_with("roleRef.kind: Unsupported value"));
        let without = json!({"roleRef": {"kind": "Role"}});
        assert_eq!(binding(true, without), ["roleRef.name: Required value"]);
    }

    #[test]
    fn the_role_of_a_binding_stays() {
        let old = json!({"roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "a"}});
        let new = json!({"roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "b"}});
        let rules = BindingRules { namespaced: true };
        let update =
            |new: &Value| texts(rules.validate_update(new, &old, &FeatureGates::default()));
        assert!(update(&old).is_empty());
        assert!(
            update(&new)[0].ends_with("cannot change roleRef"),
            "{:?}",
            update(&new)
        );
    }
}
