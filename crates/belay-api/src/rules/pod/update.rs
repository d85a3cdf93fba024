//! What of a pod's spec may change, and how upstream says that the rest may not.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Errors, spec};
use crate::field::{Cursor, FieldError, Path};
use crate::metadata::names;

const MAY_CHANGE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Fields of the spec that have rules of their own below.
const CHECKED_APART: [&str; 3] = ["activeDeadlineSeconds", "tolerations", "schedulingGates"];

const SELECTOR: &str = "nodeSelector";

/// Fields whose zero value means the same as leaving them out. Elsewhere zero is a value: a
/// `runAsUser` of 0 is root.
const ZERO_IS_ABSENT: [&str; 9] = [
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "stdin",
    "stdinOnce",
    "tty",
    "readOnly",
    "initialDelaySeconds",
    "hostPort",
];

/// Maps, as opposed to objects whose presence alone says something.
const MAPS: [&str; 6] = [
    "nodeSelector",
    "limits",
    "requests",
    "resources",
    "overhead",
    "matchLabels",
];

/// Fields that hold quantities, which are equal when they are worth the same.
const QUANTITIES: [&str; 4] = ["limits", "requests", "overhead", "sizeLimit"];

pub(super) fn validate(new: &Cursor<'_>, old: &Cursor<'_>, errors: &mut Errors) {
    for list in ["containers", "initContainers"] {
        let (now, before) = (new.get(list), old.get(list));
        if now.list().len() != before.list().len() {
            let detail = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(now.path(), detail));
            return;
        }
    }
    if !active_deadline(new, old, errors) {
        return;
    }
    added_tolerations(new, old, errors);
    removed_scheduling_gates(new, old, errors);

    let gated = !old.get("schedulingGates").is_empty();
    if gated {
        extended_selector(&new.get(SELECTOR), &old.get(SELECTOR), errors);
    }
    let mut changed = Vec::new();
    compare_spec(new, old, gated, &mut changed);
    if !changed.is_empty() {
        let detail = format!(
            "pod updates may not change fields other than {MAY_CHANGE}\nchanged here: {}",
            changed.join(", ")
        );
        errors.push(FieldError::forbidden(new.path(), detail));
    }
}

/// A deadline may appear, and may come nearer. False when nothing further is worth saying.
fn active_deadline(new: &Cursor<'_>, old: &Cursor<'_>, errors: &mut Errors) -> bool {
    const FIELD: &str = "activeDeadlineSeconds";
    let (now, before) = (new.get(FIELD), old.get(FIELD).int());
    let (detail, goes_on) = match (now.int(), before) {
        (Some(seconds), _) if !(0..=i64::from(i32::MAX)).contains(&seconds) => {
            (names::between(0, i64::from(i32::MAX)), false)
        }
        (Some(seconds), Some(before)) if before < seconds => (
            "must be less than or equal to previous value".to_owned(),
            false,
        ),
        (None, Some(_)) => (
            "must not update from a positive integer to nil value".to_owned(),
            true,
        ),
        _ => return true,
    };
    errors.push(FieldError::invalid(now.path(), now.owned(), detail));
    goes_on
}

fn added_tolerations(new: &Cursor<'_>, old: &Cursor<'_>, errors: &mut Errors) {
    let (now, before) = (new.get("tolerations"), old.get("tolerations"));
    let without_seconds = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Some(toleration) = toleration.as_object_mut() {
            toleration.remove("tolerationSeconds");
        }
        toleration.to_string()
    };
    let kept: BTreeSet<_> = now.list().iter().map(without_seconds).collect();
    let all_kept = before
        .list()
        .iter()
        .all(|toleration| kept.contains(&without_seconds(toleration)));
    if all_kept {
        spec::tolerations(&now, errors);
    } else {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(now.path(), detail));
    }
}

fn removed_scheduling_gates(new: &Cursor<'_>, old: &Cursor<'_>, errors: &mut Errors) {
    let before = old.get("schedulingGates");
    let before: BTreeSet<&str> = before.items().map(|it| it.get("name").str()).collect();
    for gate in new.get("schedulingGates").items() {
        let name = gate.get("name");
        if !before.contains(name.str()) {
            let detail = format!(
                "only deletion is allowed, but found new scheduling gate '{}'",
                name.str()
            );
            errors.push(FieldError::forbidden(name.path(), detail));
        }
    }
}

/// A pod that waits to be scheduled may still be told more about where it may go.
fn extended_selector(now: &Cursor<'_>, before: &Cursor<'_>, errors: &mut Errors) {
    let kept = before
        .entries()
        .all(|(key, value)| now.key(key).value() == value.value());
    if !kept {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(FieldError::invalid(now.path(), now.owned(), detail));
    }
}

/// Collects the paths at which the specs differ in what may not change.
fn compare_spec(new: &Cursor<'_>, old: &Cursor<'_>, gated: bool, changed: &mut Vec<String>) {
    let empty = Map::new();
    let (now, before) = (
        new.object().unwrap_or(&empty),
        old.object().unwrap_or(&empty),
    );
    for field in fields(now, before) {
        let path = new.path().child(field);
        let (now, before) = (now.get(field), before.get(field));
        match field {
            _ if CHECKED_APART.contains(&field) => {}
            SELECTOR if gated => {}
            "containers" | "initContainers" => {
                let (now, before) = (without_images(now), without_images(before));
                compare(field, now.as_ref(), before.as_ref(), &path, changed);
            }
            "terminationGracePeriodSeconds" => {
                let was_negative = before.and_then(Value::as_i64).is_some_and(|it| it < 0);
                if !(was_negative && now.and_then(Value::as_i64) == Some(1)) {
                    compare(field, now, before, &path, changed);
                }
            }
            _ => compare(field, now, before, &path, changed),
        }
    }
}

fn without_images(containers: Option<&Value>) -> Option<Value> {
    let mut containers = containers?.clone();
    for container in containers.as_array_mut().into_iter().flatten() {
        if let Some(container) = container.as_object_mut() {
            container.remove("image");
        }
    }
    Some(containers)
}

fn fields<'a>(a: &'a Map<String, Value>, b: &'a Map<String, Value>) -> Vec<&'a str> {
    let mut fields: Vec<_> = a.keys().chain(b.keys()).map(String::as_str).collect();
    fields.sort_unstable();
    fields.dedup();
    fields
}

/// Whether a value says nothing that its absence would not say.
fn says_nothing(field: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty() && MAPS.contains(&field),
        Value::Bool(set) => !set && ZERO_IS_ABSENT.contains(&field),
        Value::Number(number) => number.as_i64() == Some(0) && ZERO_IS_ABSENT.contains(&field),
    }
}

fn compare(
    field: &str,
    new: Option<&Value>,
    old: Option<&Value>,
    path: &Path,
    changed: &mut Vec<String>,
) {
    let new = new.filter(|value| !says_nothing(field, value));
    let old = old.filter(|value| !says_nothing(field, value));
    match (new, old) {
        (None, None) => {}
        (Some(Value::Object(new)), Some(Value::Object(old))) => {
            for key in fields(new, old) {
                // Keys of a map of quantities are data; what they hold is named by the map.
                let (name, path) = if QUANTITIES.contains(&field) {
                    (field, path.key(key))
                } else {
                    (key, path.child(key))
                };
                compare(name, new.get(key), old.get(key), &path, changed);
            }
        }
        (Some(Value::Array(new)), Some(Value::Array(old))) if new.len() == old.len() => {
            for (i, (new, old)) in new.iter().zip(old).enumerate() {
                compare(field, Some(new), Some(old), &path.index(i), changed);
            }
        }
        (Some(Value::String(new)), Some(Value::String(old)))
            if QUANTITIES.contains(&field)
                && crate::quantity::compare(new, old) == Some(std::cmp::Ordering::Equal) => {}
        (new, old) if new == old => {}
        _ => changed.push(format!("`{path}`")),
    }
}
