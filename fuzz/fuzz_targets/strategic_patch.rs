#![no_main]

use belay_api::decode::{self, FieldValidation};
use belay_api::schema;
use belay_patch::strategic_merge;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

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
    let schema = schema::of("Pod").expect("a known kind");
    if strategic_merge(&mut doc, &patch, schema.node()).is_ok() {
        let _ = decode::check(&mut doc, schema, FieldValidation::Warn);
    }
});
