//! What holds for the metadata of every object, whatever its kind.
//!
//! The server calls these for all kinds; [`crate::rules`] adds what a kind has of its own.

pub mod names;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::field::{Cursor, Errors, FieldError, Path};
use names::Problems;

/// All annotations of an object together, keys and values.
pub const ANNOTATIONS_LIMIT_BYTES: usize = 256 * 1024;

/// The message for a field that may not change.
pub(crate) const IMMUTABLE: &str = "field is immutable";

/// The form that a kind's names have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// Most kinds.
    DnsSubdomain,
    /// Namespaces.
    DnsLabel,
    /// Kinds whose names need only fit into a URL.
    PathSegment,
}

impl NameRule {
    /// What is wrong with a name, in Kubernetes' words.
    #[must_use]
    pub fn problems(self, name: &str) -> Problems {
        match self {
            Self::DnsSubdomain => names::dns_subdomain(name),
            Self::DnsLabel => names::dns_label(name),
            Self::PathSegment => names::path_segment(name),
        }
    }

    /// What is wrong with a `generateName`, to which characters will be appended: a dash at its
    /// end is fine.
    fn prefix_problems(self, prefix: &str) -> Problems {
        match prefix.strip_suffix('-') {
            Some(rest) if !rest.is_empty() => self.problems(rest),
            _ => self.problems(prefix),
        }
    }
}

/// Checks the metadata of a new object, whose name has been generated already if it was to be.
#[must_use]
pub fn validate_create(object: &Value, rule: NameRule, namespaced: bool) -> Errors {
    let meta = Cursor::new(object).get("metadata");
    let mut errors = Errors::new();

    let generate = meta.get("generateName");
    if !generate.str().is_empty() {
        let problems = rule.prefix_problems(generate.str());
        extend_invalid(&mut errors, generate.path(), generate.str(), problems);
    }
    let name = meta.get("name");
    if name.str().is_empty() {
        let detail = "name or generateName is required";
        errors.push(FieldError::required(name.path(), detail));
    } else {
        extend_invalid(
            &mut errors,
            name.path(),
            name.str(),
            rule.problems(name.str()),
        );
    }

    let namespace = meta.get("namespace");
    match (namespaced, namespace.str()) {
        (true, "") => errors.push(FieldError::required(namespace.path(), "")),
        (true, name) => {
            extend_invalid(&mut errors, namespace.path(), name, names::dns_label(name));
        }
        (false, "") => {}
        (false, _) => {
            let detail = "not allowed on this type";
            errors.push(FieldError::forbidden(namespace.path(), detail));
        }
    }
    if let Some(generation) = meta
        .get("generation")
        .int()
        .filter(|generation| *generation < 0)
    {
        errors.push(not_negative(meta.get("generation").path(), generation));
    }
    validate_always(&meta, &mut errors);
    validate_finalizers(&meta.get("finalizers"), &mut errors);
    errors
}

/// Checks the metadata of a changed object against what it was.
///
/// What the server itself fills in when a client leaves it out (uid, times of creation and
/// deletion, namespace) may be absent in `new`.
#[must_use]
pub fn validate_update(new: &Value, old: &Value) -> Errors {
    let new = Cursor::new(new).get("metadata");
    let old = Cursor::new(old).get("metadata");
    let mut errors = Errors::new();
    if old.get("deletionTimestamp").is_set() {
        no_new_finalizers(&new.get("finalizers"), &old.get("finalizers"), &mut errors);
    }
    let name = new.get("name");
    if name.str() != old.get("name").str() {
        errors.push(FieldError::invalid(name.path(), name.str(), IMMUTABLE));
    }
    for field in [
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let (now, before) = (new.get(field), old.get(field));
        if now.is_set() && now.value() != before.value() {
            errors.push(FieldError::invalid(now.path(), now.owned(), IMMUTABLE));
        }
    }
    validate_always(&new, &mut errors);
    validate_finalizers(&new.get("finalizers"), &mut errors);
    errors
}

fn validate_always(meta: &Cursor<'_>, errors: &mut Errors) {
    validate_labels(&meta.get("labels"), errors);
    validate_annotations(&meta.get("annotations"), errors);
    validate_owner_references(&meta.get("ownerReferences"), errors);
}

/// Checks a map of labels, also where it is a selector.
pub(crate) fn validate_labels(labels: &Cursor<'_>, errors: &mut Errors) {
    for (key, value) in labels.entries() {
        extend_invalid(errors, labels.path(), key, names::label_key(key));
        // Upstream names the map, not the entry, and so does this.
        extend_invalid(
            errors,
            labels.path(),
            value.str(),
            names::label_value(value.str()),
        );
    }
}

pub(crate) fn validate_annotations(annotations: &Cursor<'_>, errors: &mut Errors) {
    let mut size = 0;
    for (key, value) in annotations.entries() {
        // Upstream lets the case of annotation keys pass.
        let problems = names::label_key(&key.to_lowercase());
        extend_invalid(errors, annotations.path(), key, problems);
        size += key.len() + value.str().len();
    }
    if size > ANNOTATIONS_LIMIT_BYTES {
        errors.push(FieldError::too_long(
            annotations.path(),
            ANNOTATIONS_LIMIT_BYTES,
        ));
    }
}

fn validate_owner_references(references: &Cursor<'_>, errors: &mut Errors) {
    // Upstream reports the list, without an index.
    let at = references.path();
    let mut controller: Option<String> = None;
    for reference in references.items() {
        let (api_version, kind) = (
            reference.get("apiVersion").str(),
            reference.get("kind").str(),
        );
        if api_version
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .is_empty()
        {
            let detail = "version must not be empty";
            errors.push(FieldError::invalid(
                &at.child("apiVersion"),
                api_version,
                detail,
            ));
        }
        for field in ["kind", "name", "uid"] {
            if reference.get(field).str().is_empty() {
                errors.push(FieldError::invalid(
                    &at.child(field),
                    "",
                    "must not be empty",
                ));
            }
        }
        if (api_version, kind) == ("v1", "Event") {
            let detail = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(at, reference.owned(), detail));
        }
        if reference.get("controller").is_true() {
            let this = brief(kind, reference.get("name").str());
            match &controller {
                None => controller = Some(this),
                Some(first) => {
                    let detail = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                    );
                    // Upstream shows the whole list, once for each of them.
                    errors.push(FieldError::invalid(at, reference.owned(), detail));
                }
            }
        }
    }
}

/// An owner as one error after another names it. What is longer is no name, and said to be none by
/// an error of its own.
fn brief(kind: &str, name: &str) -> String {
    const LONGEST: usize = 512;
    let mut text = format!("{kind}/{name}");
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str("...");
    }
    text
}

fn validate_finalizers(finalizers: &Cursor<'_>, errors: &mut Errors) {
    let mut seen = Vec::new();
    for finalizer in finalizers.items() {
        let name = finalizer.str();
        extend_invalid(errors, finalizers.path(), name, names::label_key(name));
        seen.push(name);
    }
    if seen.contains(&"orphan") && seen.contains(&"foregroundDeletion") {
        let detail = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid(
            finalizers.path(),
            finalizers.owned(),
            detail,
        ));
    }
}

fn no_new_finalizers(finalizers: &Cursor<'_>, old: &Cursor<'_>, errors: &mut Errors) {
    let old: BTreeSet<&str> = old.items().map(|name| name.str()).collect();
    let new: BTreeSet<&str> = finalizers.items().map(|name| name.str()).collect();
    let added: Vec<_> = new.difference(&old).collect();
    if added.is_empty() {
        return;
    }
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
    );
    errors.push(FieldError::forbidden(finalizers.path(), detail));
}

/// One `Invalid value` for each problem.
pub(crate) fn extend_invalid(
    errors: &mut Errors,
    path: &Path,
    value: impl Into<Value>,
    problems: Problems,
) {
    if problems.is_empty() {
        return;
    }
    let value = value.into();
    errors.extend(
        problems
            .into_iter()
            .map(|problem| FieldError::invalid(path, value.clone(), problem)),
    );
}

pub(crate) fn not_negative(path: &Path, value: i64) -> FieldError {
    FieldError::invalid(path, value, "must be greater than or equal to 0")
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself
mod tests {
    use super::*;
    use serde_json::json;

    fn created(metadata: Value, rule: NameRule, namespaced: bool) -> Vec<String> {
        texts(&validate_create(
            &json!({ "metadata": metadata }),
            rule,
            namespaced,
        ))
    }

    fn updated(new: Value, old: Value) -> Vec<String> {
        texts(&validate_update(
            &json!({"metadata": new}),
            &json!({"metadata": old}),
        ))
    }

    fn texts(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    fn pod(extra: Value) -> Vec<String> {
        let mut metadata = json!({"name": "a", "namespace": "b"});
        metadata
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        created(metadata, NameRule::DnsSubdomain, true)
    }

    #[test]
    fn a_name_and_a_namespace_are_required_and_have_their_form() {
        assert_eq!(
            created(json!({}), NameRule::DnsSubdomain, true),
            [
                "metadata.name: Required value: name or generateName is required",
                "metadata.namespace: Required value"
            ]
        );
        assert_eq!(
            created(
                json!({"name": "a", "namespace": "b"}),
                NameRule::DnsLabel,
                false
            ),
            ["metadata.namespace: Forbidden: not allowed on this type"]
        );
        assert_eq!(
            created(json!({"name": "a.b"}), NameRule::DnsLabel, false),
            ["metadata.name: Invalid value: \"a.b\": must not contain dots"]
        );
        assert!(pod(json!({"generateName": "x-"})).is_empty());
        assert!(
            pod(json!({"generateName": "X-"}))[0].starts_with("metadata.generateName: Invalid")
        );
    }

    #[test]
    fn labels_annotations_and_finalizers_have_their_form() {
        assert!(pod(json!({"labels": {"app": "x", "a/b": ""}})).is_empty());
        assert!(
            pod(json!({"labels": {"a b": "x"}}))[0]
                .starts_with("metadata.labels: Invalid value: \"a b\": name part must consist of")
        );
        assert!(pod(json!({"labels": {"a": "x y"}}))[0].starts_with(
            "metadata.labels: Invalid value: \"x y\": a valid label must be an empty string"
        ));
        assert!(pod(json!({"annotations": {"A.example.com/x": "anything at all\n"}})).is_empty());
        let large = "x".repeat(ANNOTATIONS_LIMIT_BYTES);
        assert_eq!(
            pod(json!({"annotations": {"a": large}})),
            ["metadata.annotations: Too long: may not be more than 262144 bytes"]
        );
        assert_eq!(pod(json!({"finalizers": ["a b"]})).len(), 1);
        assert_eq!(
            pod(json!({"finalizers": ["orphan", "foregroundDeletion"]})),
            [
                "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion cannot be both set"
            ]
        );
    }

    #[test]
    fn owner_references_are_complete_and_name_one_controller() {
        let owner = |name: &str, controller: bool| {
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": "1",
                   "controller": controller})
        };
        assert!(pod(json!({"ownerReferences": [owner("a", true), owner("b", false)]})).is_empty());
        let two = pod(json!({"ownerReferences": [owner("a", true), owner("b", true)]}));
        assert!(two[0].ends_with(
            "Only one reference can have Controller set to true. Found \"true\" in references for DaemonSet/a and DaemonSet/b"
        ));
        assert_eq!(pod(json!({"ownerReferences": [{}]})).len(), 4);
        let event = json!({"apiVersion": "v1", "kind": "Event", "name": "a", "uid": "1"});
        assert!(pod(json!({"ownerReferences": [event]}))[0].contains("disallowed"));
    }

    #[test]
    fn a_long_list_of_controllers_is_not_repeated_for_each_of_them() {
        let name = "x".repeat(100_000);
        let owners: Value = (0..300)
            .map(|_| json!({"name": name, "controller": true}))
            .collect();
        let size = owners.to_string().len();
        let object =
            json!({"metadata": {"name": "a", "namespace": "b", "ownerReferences": owners}});
        let errors = validate_create(&object, NameRule::DnsSubdomain, true);
        assert_eq!(errors.len(), Errors::MOST);
        assert_eq!(errors.total(), 300 * 3 + 299);
        let told: usize = errors.iter().map(|error| error.to_string().len()).sum();
        assert!(told < size, "{told} bytes about {size}");
    }

    #[test]
    fn identity_may_not_change() {
        let old = json!({"name": "a", "namespace": "n", "uid": "1", "creationTimestamp": "t"});
        assert!(updated(json!({"name": "a"}), old.clone()).is_empty());
        assert!(updated(old.clone(), old.clone()).is_empty());
        let other = json!({"name": "b", "namespace": "m", "uid": "2", "creationTimestamp": "u",
                           "deletionTimestamp": "v"});
        assert_eq!(
            updated(other, old),
            [
                "metadata.name: Invalid value: \"b\": field is immutable",
                "metadata.namespace: Invalid value: \"m\": field is immutable",
                "metadata.uid: Invalid value: \"2\": field is immutable",
                "metadata.creationTimestamp: Invalid value: \"u\": field is immutable",
                "metadata.deletionTimestamp: Invalid value: \"v\": field is immutable"
            ]
        );
    }

    #[test]
    fn finalizers_are_compared_in_time_that_grows_with_their_number() {
        let many: Value = (0..50_000).map(|i| json!(format!("x/f{i}"))).collect();
        let going = json!({"name": "a", "deletionTimestamp": "t", "finalizers": many});
        assert!(updated(going.clone(), going).is_empty());
    }

    #[test]
    fn what_is_being_deleted_gets_no_new_finalizers() {
        let old = json!({"name": "a", "deletionTimestamp": "t", "finalizers": ["x/a", "x/b"]});
        assert!(updated(json!({"name": "a", "finalizers": ["x/b"]}), old.clone()).is_empty());
        assert_eq!(
            updated(json!({"name": "a", "finalizers": ["x/c"]}), old),
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers [\"x/c\"]"
            ]
        );
    }
}
