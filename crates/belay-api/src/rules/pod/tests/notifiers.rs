//! Notifiers in a container's field and in the pod's annotation.

use super::*;
use crate::pod::NOTIFIERS_ANNOTATION;

fn notifiers(notifiers: Value) -> Value {
    container(json!({ "notifiers": notifiers }))
}

fn exec(name: &str) -> Value {
    json!({"name": name, "handler": {"exec": {"command": ["x"]}}, "timeoutSeconds": 5})
}

fn with(mut notifier: Value, extra: Value) -> Value {
    merge(&mut notifier, extra);
    notifier
}

/// A pod whose notifiers are in the annotation, and those of container `c` in the field.
fn annotated(annotation: &str, field: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "n",
                        "annotations": {NOTIFIERS_ANNOTATION: annotation}},
           "spec": container(json!({ "notifiers": field }))})
}

#[test]
fn a_name_is_a_label_key_unique_in_its_container() {
    for name in ["lock", "example.com/flush", "A_b.c-1"] {
        check(notifiers(json!([exec(name)])), &[]);
    }
    check_starts(
        notifiers(json!([
            exec(""),
            exec("a b"),
            exec("a/b/c"),
            exec("lock"),
            exec("lock")
        ])),
        &[
            "spec.containers[0].notifiers[0].name: Required value",
            "spec.containers[0].notifiers[1].name: Invalid value: \"a b\": name part must consist of",
            "spec.containers[0].notifiers[2].name: Invalid value: \"a/b/c\": a valid label key must",
            "spec.containers[0].notifiers[4].name: Duplicate value: \"lock\"",
        ],
    );
    let two = json!({"containers": [
        {"name": "a", "image": "i", "notifiers": [exec("lock")]},
        {"name": "b", "image": "i", "notifiers": [exec("lock")]}]});
    check(two, &[]);
}

#[test]
fn the_prefix_k8s_io_is_reserved() {
    check(
        notifiers(json!([exec("k8s.io/quiesce"), exec("sub.k8s.io/fine")])),
        &[
            "spec.containers[0].notifiers[0].name: Invalid value: \"k8s.io/quiesce\": names with the prefix `k8s.io/` are reserved; use another prefix or none",
        ],
    );
}

#[test]
fn a_handler_is_exactly_one_of_exec_and_signal() {
    let handler = |handler: Value| notifiers(json!([{"name": "n", "handler": handler}]));
    check(handler(json!({"signal": "SIGHUP"})), &[]);
    check(
        notifiers(json!([{"name": "n"}])),
        &["spec.containers[0].notifiers[0].handler: Required value"],
    );
    check(
        handler(json!({})),
        &[
            "spec.containers[0].notifiers[0].handler: Required value: must specify a handler type: exec or signal",
        ],
    );
    check(
        handler(json!({"exec": {"command": ["a"]}, "signal": "SIGHUP"})),
        &[
            "spec.containers[0].notifiers[0].handler.signal: Forbidden: may not specify more than 1 handler type",
        ],
    );
    check(
        handler(json!({"exec": {}})),
        &["spec.containers[0].notifiers[0].handler.exec.command: Required value"],
    );
    check_starts(
        handler(json!({"signal": "HUP"})),
        &[
            "spec.containers[0].notifiers[0].handler.signal: Unsupported value: \"HUP\": supported values: \"SIGABRT\"",
        ],
    );
}

#[test]
fn a_timeout_is_at_least_a_second() {
    for seconds in [0, -1] {
        let expected = format!(
            "spec.containers[0].notifiers[0].timeoutSeconds: Invalid value: {seconds}: must be greater than or equal to 1"
        );
        check(
            notifiers(json!([with(
                exec("n"),
                json!({ "timeoutSeconds": seconds })
            )])),
            &[&expected],
        );
    }
}

#[test]
fn an_exec_handler_without_a_timeout_gets_a_warning_and_one_second() {
    let silent = json!([{"name": "n", "handler": {"exec": {"command": ["x"]}}}]);
    assert_eq!(
        review(notifiers(silent.clone())).warnings,
        [
            "spec.containers[0].notifiers[0].timeoutSeconds: not set for an exec handler, which is then stopped after 1 second"
        ]
    );
    let mut pod = json!({ "spec": notifiers(silent.clone()) });
    PodRules.default(&mut pod);
    assert_eq!(
        pod["spec"]["containers"][0]["notifiers"][0]["timeoutSeconds"],
        1
    );

    assert!(review(notifiers(json!([exec("n")]))).warnings.is_empty());
    let signal = json!([{"name": "n", "handler": {"signal": "SIGHUP"}}]);
    assert!(review(notifiers(signal)).warnings.is_empty());

    let text = json!({ "c": silent }).to_string();
    assert_eq!(
        review_pod(annotated(&text, json!([]))).warnings,
        [
            "metadata.annotations[apps.k8s.io/notifiers][c][0].timeoutSeconds: not set for an exec handler, which is then stopped after 1 second"
        ]
    );
}

#[test]
fn a_probe_is_a_core_probe_and_fits_into_the_timeout() {
    let probe = |timeout: i64, probe: Value| {
        notifiers(json!([with(
            exec("n"),
            json!({"timeoutSeconds": timeout, "probe": probe})
        )]))
    };
    let exec = json!({"exec": {"command": ["p"]}, "initialDelaySeconds": 2, "periodSeconds": 3});
    assert_eq!(review(probe(5, exec.clone())), Review::default());
    let short = review(probe(4, exec));
    assert!(short.errors.is_empty());
    assert_eq!(
        short.warnings,
        [
            "spec.containers[0].notifiers[0].timeoutSeconds: 4 is shorter than the probe's initial delay plus one period (5 seconds), so the probe may not be tried twice"
        ]
    );
    check(
        probe(20, json!({"periodSeconds": -1})),
        &[
            "spec.containers[0].notifiers[0].probe: Required value: must specify a handler type",
            "spec.containers[0].notifiers[0].probe.periodSeconds: Invalid value: -1: must be greater than or equal to 0",
        ],
    );
    let two = json!({"tcpSocket": {"port": 80}, "grpc": {"port": 70000}, "successThreshold": 3});
    check(
        probe(20, two),
        &[
            "spec.containers[0].notifiers[0].probe.grpc: Forbidden: may not specify more than 1 handler type",
        ],
    );
    check(
        probe(20, json!({"grpc": {"port": 70000}})),
        &[
            "spec.containers[0].notifiers[0].probe.grpc.port: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ],
    );
    check(
        probe(
            20,
            json!({"httpGet": {"port": "Web Port", "scheme": "ftp"}}),
        ),
        &[
            "spec.containers[0].notifiers[0].probe.httpGet.port: Invalid value: \"Web Port\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
            "spec.containers[0].notifiers[0].probe.httpGet.scheme: Unsupported value: \"ftp\": supported values: \"HTTP\", \"HTTPS\"",
        ],
    );
    // A host is the user's business, as in core.
    check(
        probe(20, json!({"httpGet": {"port": "web", "host": "127.0.0.1"}})),
        &[],
    );
    check(
        probe(
            20,
            json!({"tcpSocket": {"port": 80}, "terminationGracePeriodSeconds": 5}),
        ),
        &[
            "spec.containers[0].notifiers[0].probe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for a notifier's probe, which stops no container",
        ],
    );
}

#[test]
fn an_undo_names_another_notifier_of_the_same_container() {
    let pair = |undo: &str| {
        notifiers(json!([
            with(exec("lock"), json!({ "undo": undo })),
            exec("unlock")
        ]))
    };
    check(pair("unlock"), &[]);
    check(
        pair("lock"),
        &[
            "spec.containers[0].notifiers[0].undo: Invalid value: \"lock\": must name another notifier: a notifier cannot undo itself",
        ],
    );
    check(
        pair("thaw"),
        &[
            "spec.containers[0].notifiers[0].undo: Not found: \"thaw\": must name another notifier of the same container",
        ],
    );
    check(
        notifiers(json!([
            with(exec("a"), json!({"undo": "b"})),
            with(exec("b"), json!({"undo": "a"}))
        ])),
        &[
            "spec.containers[0].notifiers[0].undo: Invalid value: \"b\": must name a notifier that holds nothing itself",
            "spec.containers[0].notifiers[1].undo: Invalid value: \"a\": must name a notifier that holds nothing itself",
        ],
    );
}

#[test]
fn a_hold_lasts_from_a_second_to_an_hour() {
    let held = |seconds: i64| {
        notifiers(json!([
            with(
                exec("lock"),
                json!({"undo": "unlock", "maxHoldSeconds": seconds})
            ),
            exec("unlock")
        ]))
    };
    for seconds in [5, 60, 3600] {
        check(held(seconds), &[]);
    }
    for seconds in [0, 3601] {
        let expected = format!(
            "spec.containers[0].notifiers[0].maxHoldSeconds: Invalid value: {seconds}: must be between 1 and 3600, inclusive"
        );
        check(held(seconds), &[&expected]);
    }
    check(
        notifiers(json!([with(exec("n"), json!({"maxHoldSeconds": 5}))])),
        &[
            "spec.containers[0].notifiers[0].maxHoldSeconds: Forbidden: may only be set for a notifier with `undo` or `hold`",
        ],
    );
    assert_eq!(
        review(held(4)).warnings.len(),
        1,
        "shorter than the timeout"
    );
}

#[test]
fn only_a_process_that_says_when_it_holds_can_be_kept() {
    check(
        notifiers(json!([with(
            exec("n"),
            json!({"hold": {"readyLine": "locked"}})
        )])),
        &[],
    );
    let probe = json!({"hold": {}, "timeoutSeconds": 30, "probe": {"exec": {"command": ["p"]}}});
    check(notifiers(json!([with(exec("n"), probe)])), &[]);
    check(
        notifiers(json!([with(exec("n"), json!({"hold": {}})),
                         {"name": "s", "handler": {"signal": "SIGHUP"},
                          "hold": {"readyLine": "a\nb"}}])),
        &[
            "spec.containers[0].notifiers[0].hold.readyLine: Required value: must be set, unless the notifier has a probe that tells when it holds",
            "spec.containers[0].notifiers[1].hold: Forbidden: may only be set for an exec handler: only a process can be kept",
            "spec.containers[0].notifiers[1].hold.readyLine: Invalid value: \"a\\nb\": must be a single line",
        ],
    );
}

#[test]
fn output_is_kept_or_not() {
    for output in ["Tail", "None"] {
        check(
            notifiers(json!([with(exec("n"), json!({ "output": output }))])),
            &[],
        );
    }
    check(
        notifiers(json!([with(exec("n"), json!({"output": "All"}))])),
        &[
            "spec.containers[0].notifiers[0].output: Unsupported value: \"All\": supported values: \"Tail\", \"None\"",
        ],
    );
}

#[test]
fn signals_of_notifiers_on_windows_are_two() {
    let mut spec = notifiers(json!([{"name": "n", "handler": {"signal": "SIGHUP"}}]));
    merge(&mut spec, json!({"os": {"name": "windows"}}));
    check(
        spec,
        &[
            "spec.containers[0].notifiers[0].handler.signal: Unsupported value: \"SIGHUP\": supported values: \"SIGKILL\", \"SIGTERM\"",
        ],
    );
}

mod in_the_annotation {
    use super::*;

    const AT: &str = "metadata.annotations[apps.k8s.io/notifiers]";

    fn said(annotation: &str, field: Value) -> Vec<String> {
        texts(&review_pod(annotated(annotation, field)))
    }

    #[test]
    fn they_are_held_to_the_same_rules() {
        assert!(said(&json!({"c": [exec("lock")]}).to_string(), json!([])).is_empty());
        assert_eq!(
            said(
                &json!({"c": [{"name": "n", "handler": {}}]}).to_string(),
                json!([])
            ),
            [format!(
                "{AT}[c][0].handler: Required value: must specify a handler type: exec or signal"
            )]
        );
    }

    #[test]
    fn what_they_leave_out_is_what_the_field_s_defaults_say() {
        let get = json!({"timeoutSeconds": 20, "probe": {"httpGet": {"port": 80}}});
        let text = json!({"c": [with(exec("n"), get)]}).to_string();
        assert!(said(&text, json!([])).is_empty());
    }

    #[test]
    fn the_text_is_read_strictly() {
        let starts = |annotation: &str, expected: &str| {
            let got = said(annotation, json!([]));
            assert_eq!(got.len(), 1, "{got:?}");
            assert!(
                got[0].starts_with(&format!("{AT}: Invalid value: ")),
                "{}",
                got[0]
            );
            assert!(got[0].contains(expected), "{} lacks {expected}", got[0]);
        };
        starts(
            "nonsense",
            "must be a JSON object from container name to list of notifiers: ",
        );
        starts(
            "[]",
            "must be a JSON object from container name to list of notifiers: ",
        );
        starts(
            r#"{"c": [{"name": "n", "handler": {"signal": "SIGHUP"}, "timeout": 5}]}"#,
            "unknown field \"c[0].timeout\"",
        );
        starts(r#"{"c": [], "c": []}"#, "duplicate field \"c\"");
        starts(
            r#"{"c": [{"name": "n", "handler": {"signal": "HUP"}}]}"#,
            "unknown signal \"HUP\"",
        );
    }

    #[test]
    fn they_belong_to_containers_that_can_have_them() {
        assert_eq!(
            said(&json!({"nobody": [exec("n")]}).to_string(), json!([])),
            [format!("{AT}[nobody]: Not found: \"nobody\"")]
        );
        let text = json!({"i": [exec("n")]}).to_string();
        let mut pod = annotated(&text, json!([]));
        pod["spec"]["initContainers"] = json!([{"name": "i", "image": "i"}]);
        assert_eq!(
            texts(&review_pod(pod.clone())),
            [format!(
                "{AT}[i]: Forbidden: may not be set for init containers without restartPolicy=Always"
            )]
        );
        pod["spec"]["initContainers"][0]["restartPolicy"] = json!("Always");
        assert!(texts(&review_pod(pod)).is_empty());
    }

    #[test]
    fn a_name_is_declared_in_one_of_the_two_forms_only() {
        let text = json!({"c": [exec("lock"), exec("flush")]}).to_string();
        assert_eq!(
            said(&text, json!([exec("lock")])),
            [format!(
                "{AT}[c][0].name: Duplicate value: \"lock\": declared in spec.containers[0].notifiers too"
            )]
        );
    }

    #[test]
    fn an_undo_may_be_in_the_other_form() {
        let text = json!({"c": [exec("unlock")]}).to_string();
        assert!(
            said(
                &text,
                json!([with(exec("lock"), json!({"undo": "unlock"}))])
            )
            .is_empty()
        );
    }
}
