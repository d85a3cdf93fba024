//! How deep and how large a value is.

use belay_api::decode::MAX_DEPTH;
use serde_json::Value;

/// Levels of objects and lists; 0 for a scalar. Looks no deeper than just beyond the limit, so it
/// cannot be led into endless recursion.
pub(crate) fn depth(value: &Value) -> usize {
    measure(value, MAX_DEPTH + 1).depth
}

pub(crate) struct Measure {
    pub(crate) depth: usize,
    /// About as many bytes as the value takes as JSON.
    pub(crate) bytes: usize,
}

/// Depth and size of `value`, looking at most `levels` deep.
pub(crate) fn measure(value: &Value, levels: usize) -> Measure {
    let (mut depth, mut bytes) = (0, 2);
    let mut add = |inner: &Value| {
        if levels > 0 {
            let inner = measure(inner, levels - 1);
            depth = depth.max(inner.depth);
            bytes += inner.bytes + 1;
        }
    };
    match value {
        Value::Object(map) => {
            map.values().for_each(&mut add);
            bytes += map.keys().map(|key| key.len() + 3).sum::<usize>();
            depth += 1;
        }
        Value::Array(list) => {
            list.iter().for_each(add);
            depth += 1;
        }
        Value::String(text) => bytes += text.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) => bytes += 6,
    }
    Measure { depth, bytes }
}

/// What a value is, for an error.
pub(crate) fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
