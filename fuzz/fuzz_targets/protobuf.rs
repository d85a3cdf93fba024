#![no_main]

use belay_api::decode::{self, FieldValidation};
use belay_api::protobuf::Envelope;
use belay_api::schema;
use libfuzzer_sys::fuzz_target;

const KINDS: [&str; 8] = [
    "Pod",
    "Node",
    "Namespace",
    "Event",
    "ConfigMap",
    "Binding",
    "Lease",
    "DeleteOptions",
];

fuzz_target!(|body: &[u8]| {
    let Ok(envelope) = Envelope::open(body) else {
        return;
    };
    for kind in KINDS {
        let schema = schema::of(kind).expect("a known kind");
        let Ok(decoded) = envelope.read(schema, FieldValidation::Strict) else {
            continue;
        };
        assert_eq!(
            decoded.warnings,
            Vec::<String>::new(),
            "the table has no field that the schema lacks"
        );
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
