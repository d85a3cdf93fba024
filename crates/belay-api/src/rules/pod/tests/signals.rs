//! Stop signals, in both of their places.

use super::*;
use crate::signal::Signal;

#[test]
fn both_places_take_every_signal_without_an_os_name() {
    for signal in Signal::ALL {
        let name = signal.name();
        check(container(json!({ "stopSignal": name })), &[]);
        check(container(json!({"lifecycle": { "stopSignal": name }})), &[]);
    }
}

#[test]
fn an_unknown_signal_is_refused_with_the_whole_list() {
    let got = texts(&review(container(json!({"stopSignal": "TERM"}))));
    assert_eq!(got.len(), 1);
    assert!(got[0].starts_with(
        "spec.containers[0].stopSignal: Unsupported value: \"TERM\": supported values: \"SIGABRT\", \"SIGALRM\", "
    ));
    assert_eq!(got[0].matches("\"SIG").count(), 65);
    check_starts(
        container(json!({"lifecycle": {"stopSignal": "SIGRTMIN+16"}})),
        &["spec.containers[0].lifecycle.stopSignal: Unsupported value: \"SIGRTMIN+16\""],
    );
}

#[test]
fn windows_knows_two() {
    let windows = |signal: &str| {
        let mut spec = container(json!({ "stopSignal": signal }));
        merge(&mut spec, json!({"os": {"name": "windows"}}));
        spec
    };
    check(windows("SIGTERM"), &[]);
    check(windows("SIGKILL"), &[]);
    check(
        windows("SIGHUP"),
        &[
            "spec.containers[0].stopSignal: Unsupported value: \"SIGHUP\": supported values: \"SIGKILL\", \"SIGTERM\"",
        ],
    );
}

#[test]
fn the_two_places_agree() {
    let both = |here: &str, there: &str| {
        container(json!({"stopSignal": here, "lifecycle": { "stopSignal": there }}))
    };
    check(both("SIGINT", "SIGINT"), &[]);
    check(both("SIGCLD", "SIGCHLD"), &[]);
    check(
        both("SIGINT", "SIGTERM"),
        &[
            "spec.containers[0].stopSignal: Invalid value: \"SIGINT\": must be the same as lifecycle.stopSignal, which is SIGTERM; leave one of the two out",
        ],
    );
}

#[test]
fn signals_that_stop_nothing_get_a_warning() {
    for signal in ["SIGSTOP", "SIGCONT", "SIGCHLD", "SIGURG", "SIGWINCH"] {
        let review = review(container(json!({ "stopSignal": signal })));
        assert!(review.errors.is_empty());
        assert_eq!(review.warnings.len(), 1, "{signal}");
        assert!(review.warnings[0].starts_with("spec.containers[0].stopSignal: "));
    }
    let usual = super::review(container(json!({"stopSignal": "SIGINT"})));
    assert!(usual.warnings.is_empty());
}
