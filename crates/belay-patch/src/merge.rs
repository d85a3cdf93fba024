//! Merge patch (RFC 7386).

use belay_api::decode::MAX_DEPTH;
use serde_json::{Map, Value};

use crate::PatchError;
use crate::limits::depth;

/// Merges `patch` into `doc`: objects field by field, null removes, anything else replaces.
///
/// # Errors
///
/// The patch nests too deep.
pub fn merge_patch(doc: &mut Value, patch: &Value) -> Result<(), PatchError> {
    if depth(patch) > MAX_DEPTH {
        return Err(PatchError::TooDeep);
    }
    merge(doc, patch);
    Ok(())
}

fn merge(doc: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *doc = patch.clone();
        return;
    };
    if !doc.is_object() {
        *doc = Value::Object(Map::new());
    }
    let Value::Object(fields) = doc else {
        return;
    };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}
