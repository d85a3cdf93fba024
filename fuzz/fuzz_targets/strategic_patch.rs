#![no_main]

use belay_api::decode::{self, FieldValidation, MAX_DEPTH};
use belay_api::schema;
use belay_patch::strategic_merge;
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
    let (Ok(mut doc), Ok(patch)) = (
        serde_json::from_str::<Value>(doc),
        serde_json::from_str::<Value>(patch),
    ) else {
        return;
    };
    let limit = depth(&doc).max(MAX_DEPTH);
    let schema = schema::of("Pod").expect("a known kind");
    if strategic_merge(&mut doc, &patch, schema.node()).is_ok() {
        assert!(depth(&doc) <= limit);
        let _ = decode::check(&mut doc, schema, FieldValidation::Warn);
    }
});
