//! The words in a patch that are not fields.

use std::collections::HashSet;

use serde_json::{Map, Value};

pub(super) const PATCH: &str = "$patch";
pub(super) const RETAIN_KEYS: &str = "$retainKeys";
pub(super) const DELETE_LIST: &str = "$deleteFromPrimitiveList";
pub(super) const ELEMENT_ORDER: &str = "$setElementOrder";

/// What `$patch` says.
pub(super) enum Directive {
    Replace,
    Delete,
    Merge,
    Unknown(String),
}

impl Directive {
    /// Takes the directive out of an object of the patch.
    pub(super) fn take(patch: &mut Map<String, Value>) -> Option<Self> {
        Some(match patch.remove(PATCH)? {
            Value::String(word) => match &*word {
                "replace" => Self::Replace,
                "delete" => Self::Delete,
                "merge" => Self::Merge,
                _ => Self::Unknown(word),
            },
            other => Self::Unknown(other.to_string()),
        })
    }
}

/// The field a parallel directive such as `$setElementOrder/env` is about: none if `key` is no such
/// directive, some none if it starts like one and names no field.
pub(super) fn field_of<'k>(key: &'k str, prefix: &str) -> Option<Option<&'k str>> {
    let rest = key.strip_prefix(prefix)?;
    Some(rest.strip_prefix('/'))
}

/// Carries out `$retainKeys`. False if it is malformed, or the patch sets a field it does not name.
pub(super) fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> bool {
    let retained = match patch.remove(RETAIN_KEYS) {
        None => return true,
        Some(Value::Array(retained)) => retained,
        Some(_) => return false,
    };
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let named = patch.iter().all(|(key, value)| {
        value.is_null()
            || key.starts_with(DELETE_LIST)
            || key.starts_with(ELEMENT_ORDER)
            || retained.contains(&**key)
    });
    if named {
        original.retain(|key, _| retained.contains(&**key));
    }
    named
}

/// Takes out what has no place in a value that is taken over as it is: objects with a `$patch`.
/// False if the value itself is one.
pub(super) fn remove(value: &mut Value) -> bool {
    match value {
        Value::Object(map) => {
            if map.contains_key(PATCH) {
                return false;
            }
            map.retain(|_, inner| remove(inner));
        }
        Value::Array(list) => list.retain_mut(remove),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    true
}

/// Removes fields that are null, at every level: there is nothing that they could remove.
pub(super) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => map.retain(|_, inner| {
            drop_nulls(inner);
            !inner.is_null()
        }),
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
