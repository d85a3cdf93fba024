//! Protobuf bodies, as client-go writes them, and as nobody should.
//!
//! The files in `data/protobuf` are pairs: one object, encoded by client-go's own serialisers both
//! as protobuf and as JSON. `*-every-field` sets every field there is, `*-zeros` sets every pointer,
//! list and map to hold a zero, `*-empty` sets nothing.

use std::path::{Path, PathBuf};

use belay_api::decode::{self, FieldValidation};
use belay_api::protobuf::{Envelope, ProtobufError};
use belay_api::schema::{self, Schema};
use proptest::prelude::*;
use serde_json::Value;

const KINDS: [&str; 17] = [
    "Pod",
    "Node",
    "Namespace",
    "Event",
    "ConfigMap",
    "Binding",
    "Lease",
    "DeleteOptions",
    "Role",
    "ClusterRole",
    "RoleBinding",
    "ClusterRoleBinding",
    "SelfSubjectReview",
    "SelfSubjectAccessReview",
    "SelfSubjectRulesReview",
    "SubjectAccessReview",
    "LocalSubjectAccessReview",
];

fn kind(name: &str) -> &'static Schema {
    schema::of(name).unwrap_or_else(|| panic!("no schema for {name}"))
}

/// The pairs, without their extension.
fn pairs() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/protobuf");
    let mut pairs: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("the recorded bodies")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "pb"))
        .map(|path| path.with_extension(""))
        .collect();
    pairs.sort();
    pairs
}

fn bodies() -> Vec<Vec<u8>> {
    let bodies = pairs().into_iter();
    bodies
        .map(|pair| std::fs::read(pair.with_extension("pb")).expect("a body"))
        .collect()
}

fn envelope(raw: &[u8]) -> Vec<u8> {
    let mut body = b"k8s\0\x12".to_vec();
    let mut length = raw.len();
    while length > 0x7f {
        body.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
        length >>= 7;
    }
    body.push(u8::try_from(length).expect("seven bits"));
    body.extend(raw);
    body
}

/// The object in a body that client-go wrote: names, object, two empty strings.
fn object(body: &[u8]) -> &[u8] {
    let rest = &body[4 + 2 + usize::from(body[5]) + 1..body.len() - 4];
    let length = rest.iter().take_while(|byte| **byte & 0x80 != 0).count() + 1;
    &rest[length..]
}

/// Whatever comes of a body under every kind: what is accepted is accepted again, unchanged.
fn check(body: &[u8]) {
    let Ok(envelope) = Envelope::open(body) else {
        return;
    };
    for name in KINDS {
        let Ok(decoded) = envelope.read(kind(name), FieldValidation::Strict) else {
            continue;
        };
        assert!(decoded.warnings.is_empty(), "{:?}", decoded.warnings);
        let mut again = decoded.value.clone();
        let warnings = decode::check(&mut again, kind(name), FieldValidation::Strict);
        assert_eq!(warnings, Ok(Vec::new()));
        assert_eq!(again, decoded.value);
    }
}

#[test]
fn a_body_reads_as_the_same_object_in_json_does() {
    let pairs = pairs();
    assert_eq!(pairs.len(), 60);
    for pair in pairs {
        let body = std::fs::read(pair.with_extension("pb")).unwrap();
        let json = std::fs::read(pair.with_extension("json")).unwrap();
        let envelope = Envelope::open(&body).unwrap();
        let schema = kind(envelope.kind);
        let expected = decode::decode(&json, schema, FieldValidation::Strict).unwrap();
        let actual = envelope.read(schema, FieldValidation::Strict).unwrap();
        assert_eq!(
            serde_json::to_string_pretty(&actual.value).unwrap(),
            serde_json::to_string_pretty(&expected.value).unwrap(),
            "{}",
            pair.display()
        );
        assert_eq!(actual.value["apiVersion"], envelope.api_version);
    }
}

#[test]
fn a_body_cut_short_anywhere_is_refused() {
    for body in bodies() {
        // After the whole typeMeta the envelope is complete again: an object without content.
        let names = 4 + 2 + usize::from(body[5]);
        for length in (0..body.len() - 4).filter(|length| *length != 4 && *length != names) {
            assert!(Envelope::open(&body[..length]).is_err(), "{length}");
        }
    }
}

#[test]
fn an_object_cut_short_in_a_whole_envelope_never_panics() {
    for body in bodies() {
        let object = object(&body);
        // Every place of the small ones, a thousand places of the large ones.
        for length in (0..object.len()).step_by(1 + object.len() / 1000) {
            check(&envelope(&object[..length]));
        }
    }
}

#[test]
fn damage_inside_an_object_names_the_field() {
    // metadata (1) { name (1) = two bytes that are no UTF-8 }
    let body = b"k8s\0\x12\x06\x0a\x04\x0a\x02\xff\xfe";
    let error = Envelope::open(body)
        .unwrap()
        .read(kind("ConfigMap"), FieldValidation::Warn)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the protobuf body cannot be read at metadata.name: a string is not UTF-8"
    );
    assert!(matches!(error, ProtobufError::Damaged { .. }));
}

#[test]
fn a_time_that_json_cannot_hold_is_refused() {
    // metadata (1) { creationTimestamp (8) { seconds (1) = in the year -1 } }
    let mut body = b"k8s\0\x12\x0f\x0a\x0d\x42\x0b\x08".to_vec();
    let mut seconds = (-62_198_755_200_i64).cast_unsigned();
    while seconds > 0x7f {
        body.push(u8::try_from(seconds & 0x7f).unwrap() | 0x80);
        seconds >>= 7;
    }
    body.push(u8::try_from(seconds).unwrap());
    let error = Envelope::open(&body)
        .unwrap()
        .read(kind("ConfigMap"), FieldValidation::Warn)
        .unwrap_err();
    assert!(
        error.to_string().starts_with("metadata.creationTimestamp:"),
        "{error}"
    );
}

#[test]
fn newer_fields_are_skipped_whatever_the_validation() {
    // metadata (1) {}, and a field 900 with three bytes
    let body = b"k8s\0\x12\x08\x0a\x00\xa2\x38\x03abc";
    let decoded = Envelope::open(body)
        .unwrap()
        .read(kind("ConfigMap"), FieldValidation::Strict)
        .unwrap();
    assert_eq!(decoded.value, serde_json::json!({"metadata": {}}));
    assert_eq!(decoded.warnings, Vec::<String>::new());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        check(&bytes);
        check(&envelope(&bytes));
    }

    #[test]
    fn a_real_body_with_changed_bytes_never_panics(
        which in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let bodies = bodies();
        let mut body = which.get(&bodies).clone();
        for (at, byte) in changes {
            *at.get_mut(&mut body) = byte;
        }
        check(&body);
    }
}

#[test]
fn what_comes_out_is_what_the_rules_expect() {
    let body =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/protobuf/pod.pb"))
            .unwrap();
    let envelope = Envelope::open(&body).unwrap();
    let pod = envelope
        .read(kind("Pod"), FieldValidation::Strict)
        .unwrap()
        .value;
    let cases: [(&str, Value); 8] = [
        ("/spec/terminationGracePeriodSeconds", 0.into()),
        ("/spec/volumes/0/emptyDir", serde_json::json!({})),
        (
            "/spec/containers/0/livenessProbe/httpGet/port",
            "web".into(),
        ),
        (
            "/spec/containers/0/readinessProbe/tcpSocket/port",
            3306.into(),
        ),
        ("/spec/containers/0/resources/limits/cpu", "500m".into()),
        ("/spec/ephemeralContainers/0/name", "dbg".into()),
        (
            "/spec/containers/0/lifecycle/preStop/sleep/seconds",
            0.into(),
        ),
        (
            "/metadata/ownerReferences/0/blockOwnerDeletion",
            false.into(),
        ),
    ];
    for (pointer, expected) in cases {
        assert_eq!(pod.pointer(pointer), Some(&expected), "{pointer}");
    }
    assert_eq!(pod.pointer("/metadata/creationTimestamp"), None);
    assert_eq!(
        pod.pointer("/spec/containers/0/livenessProbe/failureThreshold"),
        None
    );
}
