//! Small views onto JSON objects, and how an object becomes the bytes that are stored.

use std::collections::BTreeMap;

use belay_store::{Encode, Revision};
use bytes::Bytes;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::registry::{Field, Registry};

/// What selectors look at, kept beside each stored object so that lists and watches parse nothing.
#[derive(Debug, Default)]
pub(crate) struct Meta {
    pub(crate) labels: BTreeMap<String, String>,
    /// Selectable fields in the order of the kind's registry entry.
    pub(crate) fields: Box<[Box<str>]>,
}

impl Meta {
    pub(crate) fn of(key: &str, value: &[u8], registry: &Registry) -> Self {
        let Some(kind) = registry.of_key(key) else {
            return Self::default();
        };
        let Ok(object) = serde_json::from_slice::<Value>(value) else {
            return Self::default();
        };
        let labels = object
            .pointer("/metadata/labels")
            .and_then(Value::as_object)
            .map(|labels| {
                labels
                    .iter()
                    .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())))
                    .collect()
            })
            .unwrap_or_default();
        let fields = kind
            .fields
            .iter()
            .map(|field| compared(&object, field))
            .collect();
        Self { labels, fields }
    }
}

/// A field as a selector compares it.
fn compared(object: &Value, field: &Field) -> Box<str> {
    match object.pointer(field.pointer) {
        None | Some(Value::Null) => field.absent.into(),
        Some(Value::String(text)) => text.as_str().into(),
        Some(other) => other.to_string().into(),
    }
}

pub(crate) fn meta(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata").and_then(Value::as_object)
}

pub(crate) fn meta_str<'a>(object: &'a Value, field: &str) -> &'a str {
    meta(object)
        .and_then(|m| m.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(crate) fn name(object: &Value) -> &str {
    meta_str(object, "name")
}

/// The object's `metadata`, made when it is missing or is no object.
pub(crate) fn meta_mut(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    let metadata = &mut object["metadata"];
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    metadata.as_object_mut().expect("made an object above")
}

pub(crate) fn has_finalizers(object: &Value) -> bool {
    object
        .pointer("/metadata/finalizers")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty())
}

pub(crate) fn is_terminating(object: &Value) -> bool {
    !meta_str(object, "deletionTimestamp").is_empty()
}

/// A time as Kubernetes writes it: whole seconds, UTC.
pub(crate) fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) fn parse_time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

/// Serialises an object so that it will carry the revision it gets.
///
/// The expensive part happens here, on the caller's thread; the committer only splices the number
/// in. The mark cannot be forged: it is random for each process, and quotes inside strings are
/// escaped.
pub(crate) fn encode(mut object: Value, mark: &RevisionMark) -> Encode {
    meta_mut(&mut object).insert("resourceVersion".into(), mark.0.as_str().into());
    let text = object.to_string();
    let needle = format!("\"resourceVersion\":\"{}\"", mark.0);
    Box::new(move |revision: Revision| match text.find(&needle) {
        Some(at) => {
            let digits = at + "\"resourceVersion\":\"".len();
            let mut out = Vec::with_capacity(text.len());
            out.extend_from_slice(&text.as_bytes()[..digits]);
            out.extend_from_slice(revision.to_string().as_bytes());
            out.extend_from_slice(&text.as_bytes()[at + needle.len() - 1..]);
            Bytes::from(out)
        }
        None => Bytes::from(text),
    })
}

/// The placeholder for a revision that is not known yet.
#[derive(Debug)]
pub(crate) struct RevisionMark(String);

impl RevisionMark {
    pub(crate) fn random() -> Self {
        Self(uuid::Uuid::new_v4().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_encoded_object_carries_its_own_revision_and_nobody_elses() {
        let mark = RevisionMark::random();
        let object = json!({
            "involvedObject": {"resourceVersion": "7"},
            "metadata": {"name": "a", "resourceVersion": "old"},
            "note": "\"resourceVersion\":\"x\"",
        });
        let bytes = encode(object.clone(), &mark)(Revision(42));
        let back: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(back["metadata"]["resourceVersion"], "42");
        assert_eq!(back["involvedObject"], object["involvedObject"]);
        assert_eq!(back["note"], object["note"]);
    }
}
