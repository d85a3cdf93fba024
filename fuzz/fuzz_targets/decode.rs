#![no_main]

use belay_api::decode::{self, FieldValidation};
use belay_api::schema;
use libfuzzer_sys::fuzz_target;

const KINDS: [&str; 9] = [
    "Pod",
    "Node",
    "Namespace",
    "Event",
    "ConfigMap",
    "Lease",
    "Binding",
    "DeleteOptions",
    "PodNotification",
    "ExecutionHook",
    "HookAction",
    "PodAction",
];

fuzz_target!(|body: &[u8]| {
    for kind in KINDS {
        let schema = schema::of(kind).expect("a known kind");
        let Ok(decoded) = decode::decode(body, schema, FieldValidation::Warn) else {
            continue;
        };
        let mut again = decoded.value.clone();
        let warnings = decode::check(&mut again, schema, FieldValidation::Strict);
        assert_eq!(
            warnings,
            Ok(Vec::new()),
            "what was accepted is accepted again"
        );
        assert_eq!(again, decoded.value, "and does not change");
    }
});
