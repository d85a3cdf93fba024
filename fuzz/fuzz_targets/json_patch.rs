#![no_main]

use belay_api::decode::{self, FieldValidation, MAX_DEPTH};
use belay_api::schema;
use belay_patch::{json_patch, merge_patch};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fn depth(value: &Value) -> usize {
    match value {
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fuzz_target!(|text: &str| {
    let Some((doc, patch)) = text.split_once('\n') else {
        return;
    };
    let (Ok(doc), Ok(patch)) = (
        serde_json::from_str::<Value>(doc),
        serde_json::from_str::<Value>(patch),
    ) else {
        return;
    };
    let limit = depth(&doc).max(MAX_DEPTH);
    let schema = schema::of("Pod").expect("a known kind");

    let mut patched = doc.clone();
    if json_patch(&mut patched, &patch).is_ok() {
        assert!(depth(&patched) <= limit);
        let _ = decode::check(&mut patched, schema, FieldValidation::Warn);
    }
    let mut merged = doc;
    if merge_patch(&mut merged, &patch).is_ok() {
        assert!(depth(&merged) <= limit);
        let _ = decode::check(&mut merged, schema, FieldValidation::Warn);
    }
});
