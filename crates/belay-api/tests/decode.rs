//! Decoding: what is accepted, what is refused, and in which words.

use belay_api::decode::{self, DecodeError, Decoded, FieldValidation, MAX_DEPTH};
use belay_api::schema::{self, Schema};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn kind(name: &str) -> &'static Schema {
    schema::of(name).expect("a known kind")
}

fn decode(name: &str, text: &str) -> Result<Decoded, DecodeError> {
    decode::decode(text.as_bytes(), kind(name), FieldValidation::Warn)
}

fn accepted(name: &str, text: &str) -> Value {
    let decoded = decode(name, text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(decoded.warnings, Vec::<String>::new(), "{text}");
    decoded.value
}

fn warnings(name: &str, text: &str) -> Vec<String> {
    decode(name, text)
        .unwrap_or_else(|error| panic!("{text}: {error}"))
        .warnings
}

fn refused(name: &str, text: &str) -> String {
    decode(name, text).expect_err(text).to_string()
}

#[test]
fn what_a_user_wrote_is_kept() {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "db", "labels": {"app": "db"}, "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "mysql",
                "image": "mysql",
                "args": [],
                "env": [{"name": "EMPTY", "value": ""}],
                "stopSignal": "SIGUSR1",
                "resources": {"limits": {"cpu": "0.50", "memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"port": "web"}, "periodSeconds": 5},
                "readinessProbe": {"httpGet": {"port": 8080}},
                "notifiers": [{
                    "name": "lock",
                    "handler": {"exec": {"command": ["lock.sh"]}},
                    "timeoutSeconds": 10
                }]
            }]
        }
    });
    assert_eq!(accepted("Pod", &pod.to_string()), pod);
}

#[test]
fn unknown_and_duplicate_fields_are_named_in_the_order_they_come() {
    let text = r#"{"spec": {"foo": 1, "foo": 2, "nodeName": "a", "nodeName": "b",
        "containers": [{"name": "a", "Image": "x"}, {"name": "b", "env": [{"nam": "X"}]}]},
        "metadata": {"labels": {"a": "1", "a": "2"}}}"#;
    let problems = [
        r#"unknown field "spec.foo""#,
        r#"duplicate field "spec.nodeName""#,
        r#"unknown field "spec.containers[0].Image""#,
        r#"unknown field "spec.containers[1].env[0].nam""#,
        r#"duplicate field "metadata.labels.a""#,
    ];
    let decoded = decode("Pod", text).expect("accepted with warnings");
    assert_eq!(decoded.warnings, problems);
    let pruned = json!({
        "spec": {"nodeName": "b", "containers": [{"name": "a"}, {"name": "b", "env": [{}]}]},
        "metadata": {"labels": {"a": "2"}}
    });
    assert_eq!(decoded.value, pruned);

    let strict = decode::decode(text.as_bytes(), kind("Pod"), FieldValidation::Strict);
    let message = strict.expect_err("strict").to_string();
    assert_eq!(
        message,
        format!("strict decoding error: {}", problems.join(", "))
    );

    let ignored = decode::decode(text.as_bytes(), kind("Pod"), FieldValidation::Ignore);
    assert_eq!(
        ignored,
        Ok(Decoded {
            value: pruned,
            warnings: Vec::new()
        })
    );
}

#[test]
fn a_strict_reading_of_what_is_right_is_no_error() {
    let text = br#"{"metadata": {"name": "a"}}"#;
    let decoded = decode::decode(text, kind("ConfigMap"), FieldValidation::Strict);
    assert!(decoded.is_ok());
}

#[test]
fn a_known_mistake_gets_a_hint() {
    assert_eq!(
        warnings("PodNotification", r#"{"spec": {"pod": "db"}}"#),
        [r#"unknown field "spec.pod": use podName"#]
    );
    assert_eq!(
        warnings(
            "ExecutionHook",
            r#"{"spec": {"podSelection": {"podContainerNamesList": [{"containerName": "c"}]}}}"#
        ),
        [
            r#"unknown field "spec.podSelection.podContainerNamesList[0].containerName": use containerNames, a list"#
        ]
    );
    assert_eq!(
        warnings(
            "Pod",
            r#"{"spec": {"containers": [{"notifiers": [{"exec": {}}]}]}}"#
        ),
        [r#"unknown field "spec.containers[0].notifiers[0].exec": an action stands under handler"#]
    );
}

#[test]
fn problems_are_told_once_and_not_without_end() {
    assert_eq!(
        warnings("Pod", r#"{"x": 1, "x": 2, "x": {"x": 3}}"#),
        [r#"unknown field "x""#]
    );
    let many: Map<String, Value> = (0..500).map(|i| (format!("x{i}"), json!(1))).collect();
    assert_eq!(warnings("Pod", &json!(many).to_string()).len(), 100);
}

#[test]
fn what_is_told_stays_small_however_long_the_names_are() {
    let long = "k".repeat(100_000);
    let twice: String = (0..200).map(|i| format!(r#""a{i}":1,"a{i}":1,"#)).collect();
    let text = format!(
        r#"{{"{long}":1,"metadata":{{"managedFields":[{{"fieldsV1":{{"{long}":{{{twice}"z":1}}}}}}]}}}}"#
    );
    let told: usize = warnings("Pod", &text).iter().map(String::len).sum();
    assert!(told < 100 * 600, "{told} bytes");
}

#[test]
fn names_are_case_sensitive_and_odd_ones_are_escaped() {
    assert_eq!(
        warnings("Pod", r#"{"Spec": {}, "a\"\n\u0001": 1}"#),
        [r#"unknown field "Spec""#, r#"unknown field "a\"\n\u0001""#]
    );
}

#[test]
fn a_wrong_type_is_an_error_that_names_the_field() {
    let cases = [
        (r#"[]"#, "the body: expected an object, but got a list"),
        (r#"null"#, "the body: expected an object, but got null"),
        (
            r#""x""#,
            r#"the body: expected an object, but got the string "x""#,
        ),
        (
            r#"{"spec": []}"#,
            "spec: expected an object, but got a list",
        ),
        (
            r#"{"spec": {"containers": {}}}"#,
            "spec.containers: expected a list, but got an object",
        ),
        (
            r#"{"spec": {"containers": [{"name": 1}]}}"#,
            "spec.containers[0].name: expected a string, but got the number 1",
        ),
        (
            r#"{"spec": {"terminationGracePeriodSeconds": "30"}}"#,
            r#"spec.terminationGracePeriodSeconds: expected an integer (64 bits), but got the string "30""#,
        ),
        (
            r#"{"spec": {"terminationGracePeriodSeconds": 1.0}}"#,
            "spec.terminationGracePeriodSeconds: expected an integer (64 bits), but got the number 1.0",
        ),
        (
            r#"{"spec": {"priority": 3000000000}}"#,
            "spec.priority: expected an integer (32 bits), but got the number 3000000000",
        ),
        (
            r#"{"spec": {"hostNetwork": "true"}}"#,
            r#"spec.hostNetwork: expected true or false, but got the string "true""#,
        ),
        (
            r#"{"spec": {"nodeName": true}}"#,
            "spec.nodeName: expected a string, but got true",
        ),
        (
            r#"{"metadata": {"labels": {"a": 1}}}"#,
            "metadata.labels.a: expected a string, but got the number 1",
        ),
        (
            r#"{"metadata": {"creationTimestamp": "yesterday"}}"#,
            r#"metadata.creationTimestamp: expected a time such as "2006-01-02T15:04:05Z", but got the string "yesterday""#,
        ),
        (
            r#"{"spec": {"containers": [{"livenessProbe": {"httpGet": {"port": 1.5}}}]}}"#,
            "spec.containers[0].livenessProbe.httpGet.port: expected an integer (32 bits) or a string, but got the number 1.5",
        ),
        (
            r#"{"spec": {"containers": [{"resources": {"limits": {"cpu": []}}}]}}"#,
            r#"spec.containers[0].resources.limits.cpu: expected a quantity such as "500m" or "2Gi", but got a list"#,
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(refused("Pod", text), expected, "{text}");
    }
    assert_eq!(
        refused("ConfigMap", r#"{"binaryData": {"a": "QQ="}}"#),
        r#"binaryData.a: expected base64, but got the string "QQ=""#
    );
    assert_eq!(
        refused("PodNotification", r#"{"status": {"startTime": "soon"}}"#),
        r#"status.startTime: expected a time such as "2006-01-02T15:04:05Z", but got the string "soon""#
    );
}

/// What typed clients read strictly is stored as they read it, whatever wrapped or padded it.
#[test]
fn a_secret_that_was_sent_with_line_breaks_is_one_that_typed_clients_can_read() {
    let value = accepted(
        "Secret",
        r#"{"data": {"wrapped": "QU\nJD\n", "odd": "QR=="}}"#,
    );
    let expected = json!({"data": {"wrapped": "QUJD", "odd": "QQ=="}});
    assert_eq!(value, expected);
    let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(value).unwrap();
    let data = secret.data.unwrap();
    assert_eq!(
        (&*data["wrapped"].0, &*data["odd"].0),
        (&b"ABC"[..], &b"A"[..])
    );
}

#[test]
fn null_means_absent_for_a_field_and_empty_elsewhere() {
    let value = accepted(
        "Pod",
        r#"{"metadata": {"creationTimestamp": null, "labels": {"a": null}, "finalizers": [null]},
            "spec": {"containers": [null, {"name": "a", "args": null,
                "resources": {"limits": {"cpu": null}}}]}, "status": null}"#,
    );
    let expected = json!({
        "metadata": {"labels": {"a": ""}, "finalizers": [""]},
        "spec": {"containers": [{}, {"name": "a", "resources": {"limits": {"cpu": "0"}}}]}
    });
    assert_eq!(value, expected);
}

#[test]
fn quantities_become_strings_and_times_become_utc() {
    let value = accepted(
        "Pod",
        r#"{"metadata": {"creationTimestamp": "2024-01-01T01:00:00.5+01:00"},
            "spec": {"containers": [{"resources": {"limits": {"cpu": 0.5, "memory": 1024}}}]}}"#,
    );
    let expected = json!({
        "metadata": {"creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"containers": [{"resources": {"limits": {"cpu": "0.5", "memory": "1024"}}}]}
    });
    assert_eq!(value, expected);
    assert_eq!(
        accepted(
            "Lease",
            r#"{"spec": {"renewTime": "2024-01-01T00:00:00Z"}}"#
        ),
        json!({"spec": {"renewTime": "2024-01-01T00:00:00.000000Z"}})
    );
}

#[test]
fn data_without_a_schema_is_kept_to_the_letter() {
    let text = r#"{"metadata": {"managedFields": [{"fieldsV1": {"f:a": {".": null, "x": [1.5, null]}}}]}}"#;
    let value: Value = serde_json::from_str(text).expect("JSON");
    assert_eq!(accepted("Pod", text), value);
}

#[test]
fn what_is_not_json_is_refused_with_its_place() {
    for text in [
        "",
        "{",
        r#"{"a"}"#,
        r#"{"spec": {}} x"#,
        r#"{"metadata": {"name": "\ud800"}}"#,
    ] {
        let message = refused("Pod", text);
        assert!(
            message.starts_with("the body is not valid JSON: ") && message.contains("line 1"),
            "{text}: {message}"
        );
    }
    let invalid = decode::decode(
        b"{\"metadata\": {\"name\": \"\xff\"}}",
        kind("Pod"),
        FieldValidation::Warn,
    );
    assert!(matches!(invalid, Err(DecodeError::Syntax { .. })));
}

#[test]
fn depth_is_limited_the_same_for_bytes_and_for_values() {
    // The value, `metadata`, `managedFields`, its element and `fieldsV1` are five levels.
    let nested = |levels: usize| {
        let inner = (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }));
        json!({"metadata": {"managedFields": [{"fieldsV1": {"a": inner}}]}})
    };
    let mut fits = nested(MAX_DEPTH - 5);
    assert_eq!(accepted("Pod", &fits.to_string()), fits);
    assert!(decode::check(&mut fits, kind("Pod"), FieldValidation::Strict).is_ok());

    let mut too_deep = nested(MAX_DEPTH - 4);
    assert!(matches!(
        decode("Pod", &too_deep.to_string()),
        Err(DecodeError::TooDeep { .. })
    ));
    assert!(matches!(
        decode::check(&mut too_deep, kind("Pod"), FieldValidation::Strict),
        Err(DecodeError::TooDeep { .. })
    ));
    // Far beyond what any stack would bear.
    let text = format!("{}{}", r#"{"metadata":"#, "[".repeat(1_000_000));
    assert!(decode("Pod", &text).is_err());
    let text = format!("{}{}", r#"{"unknown":"#, "[".repeat(1_000_000));
    assert!(decode("Pod", &text).is_err());
}

#[test]
fn a_patched_value_is_held_to_the_same_schema() {
    let mut value = json!({
        "metadata": {"labels": {"a": "1"}, "name": null},
        "spec": {"$patch": "x", "containers": [{"name": "a", "$retainKeys": []}]}
    });
    let warnings = decode::check(&mut value, kind("Pod"), FieldValidation::Warn).expect("fits");
    assert_eq!(
        warnings,
        [
            r#"unknown field "spec.$patch""#,
            r#"unknown field "spec.containers[0].$retainKeys""#
        ]
    );
    let expected =
        json!({"metadata": {"labels": {"a": "1"}}, "spec": {"containers": [{"name": "a"}]}});
    assert_eq!(value, expected);
    let mut wrong = json!({"spec": 1});
    assert!(decode::check(&mut wrong, kind("Pod"), FieldValidation::Ignore).is_err());
}

#[test]
fn field_validation_is_read_from_its_query_parameter() {
    assert_eq!("".parse(), Ok(FieldValidation::Warn));
    assert_eq!("Strict".parse(), Ok(FieldValidation::Strict));
    assert_eq!("Ignore".parse(), Ok(FieldValidation::Ignore));
    assert!("strict".parse::<FieldValidation>().is_err());
}

/// JSON made of the words of the API.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "labels",
        "name",
        "containers",
        "env",
        "ports",
        "resources",
        "limits",
        "cpu",
        "managedFields",
        "fieldsV1",
        "creationTimestamp",
        "hostNetwork",
        "data",
        "binaryData",
        "renewTime",
        "livenessProbe",
        "httpGet",
        "port",
        "notifiers",
        "podName",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::String),
        "[0-9]{4}-[0-1][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{1,9})?(Z|[+-][0-2][0-9]:[0-5][0-9])"
            .prop_map(Value::String),
    ];
    leaf.prop_recursive(8, 64, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((word.clone(), inner), 0..5).prop_map(|fields| {
                Value::Object(fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
            }),
        ]
    })
}

const KINDS: [&str; 12] = [
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for name in KINDS {
            let _ = decode::decode(&bytes, kind(name), FieldValidation::Strict);
        }
    }

    #[test]
    fn bytes_and_values_are_read_alike_and_reading_again_changes_nothing(value in any_json()) {
        for name in KINDS {
            let decoded = decode(name, &value.to_string());
            let mut checked = value.clone();
            let warnings = decode::check(&mut checked, kind(name), FieldValidation::Warn);
            match (decoded, warnings) {
                (Ok(decoded), Ok(mut warnings)) => {
                    prop_assert_eq!(&decoded.value, &checked);
                    let mut told = decoded.warnings;
                    told.sort();
                    warnings.sort();
                    prop_assert_eq!(told, warnings);
                    let again = decode::check(&mut checked, kind(name), FieldValidation::Strict);
                    prop_assert_eq!(again, Ok(Vec::new()));
                    prop_assert_eq!(decoded.value, checked);
                }
                (Err(_), Err(_)) => {}
                (decoded, warnings) => {
                    prop_assert!(false, "{}: {:?} but {:?}", name, decoded, warnings);
                }
            }
        }
    }
}
