//! What is sent, what is filled in, and what is said about it.

use super::*;
use crate::gates::Feature;

/// A good daemon set, with `change` made to it.
fn set(change: impl FnOnce(&mut Value)) -> Value {
    let mut set = json!({
        "metadata": {"name": "d", "namespace": "n"},
        "spec": {
            "selector": {"matchLabels": {"app": "d"}},
            "template": {
                "metadata": {"labels": {"app": "d"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    change(&mut set);
    set
}

fn container(set: &mut Value) -> &mut Value {
    &mut set["spec"]["template"]["spec"]["containers"][0]
}

fn create(mut set: Value, gates: &FeatureGates) -> (Value, Vec<String>) {
    DaemonSetRules.drop_disabled(&mut set, None, gates);
    DaemonSetRules.default(&mut set);
    DaemonSetRules.prepare_create(&mut set);
    let errors = DaemonSetRules.validate_create(&set, gates).errors;
    (set, errors.iter().map(ToString::to_string).collect())
}

fn update(mut new: Value, old: &Value, gates: &FeatureGates) -> (Value, Vec<String>) {
    DaemonSetRules.drop_disabled(&mut new, Some(old), gates);
    DaemonSetRules.default(&mut new);
    let errors = DaemonSetRules.validate_update(&new, old, gates).errors;
    (new, errors.iter().map(ToString::to_string).collect())
}

fn check(change: impl FnOnce(&mut Value), expected: &[&str]) {
    let (_, errors) = create(set(change), &FeatureGates::default());
    assert_eq!(errors, expected);
}

fn off(feature: Feature) -> FeatureGates {
    FeatureGates::default().with(feature, false)
}

#[test]
fn what_is_left_out_is_filled_in_as_upstream_does() {
    let (made, errors) = create(set(|_| {}), &FeatureGates::default());
    assert_eq!(errors, [""; 0]);
    let spec = &made["spec"];
    assert_eq!(
        spec["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}})
    );
    assert_eq!(spec["revisionHistoryLimit"], 10);
    let pod = &spec["template"]["spec"];
    assert_eq!(pod["restartPolicy"], "Always");
    assert_eq!(pod["terminationGracePeriodSeconds"], 30);
    assert_eq!(pod["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(pod["enableServiceLinks"], Value::Null, "left to the pods");
    assert_eq!(made["status"]["desiredNumberScheduled"], 0);
    let mut again = made.clone();
    DaemonSetRules.default(&mut again);
    assert_eq!(again, made, "once is enough");
    let (made, _) = create(
        set(|set| set["spec"]["updateStrategy"] = json!({"type": "OnDelete"})),
        &FeatureGates::default(),
    );
    assert_eq!(made["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
}

#[test]
fn the_selector_is_required_and_matches_the_template() {
    check(
        |set| set["spec"]["selector"] = Value::Null,
        &[
            "spec.template.metadata.labels: Invalid value: {\"app\":\"d\"}: `selector` does not match template `labels`",
        ],
    );
    check(
        |set| set["spec"]["selector"] = json!({}),
        &["spec.selector: Invalid value: {}: empty selector is invalid for daemonset"],
    );
    check(
        |set| set["spec"]["template"]["metadata"]["labels"]["app"] = "other".into(),
        &[
            "spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template `labels`",
        ],
    );
    check(
        |set| {
            set["spec"]["selector"] =
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["d"]}]});
        },
        &[],
    );
}

#[test]
fn what_a_template_leaves_out_is_warned_about_when_the_template_changes() {
    let reload = json!([{"name": "reload", "handler": {"exec": {"command": ["x"]}}}]);
    let sent = set(|set| {
        set["spec"]["template"]["spec"]["containers"][0]["notifiers"] = reload;
    });
    let mut stored = sent.clone();
    DaemonSetRules.default(&mut stored);
    let warned = |sent: &Value, old| DaemonSetRules.warnings_before_default(sent, old).len();
    assert_eq!(warned(&sent, None), 1);
    assert_eq!(warned(&sent, Some(&stored)), 0, "it says the same again");
    let without = set(|_| {});
    assert_eq!(warned(&sent, Some(&without)), 1);
    assert_eq!(warned(&without, Some(&stored)), 0);
}

#[test]
fn the_update_strategy_is_one_of_two_and_takes_a_number_or_a_share() {
    let rolling = |value: Value| {
        move |set: &mut Value| {
            set["spec"]["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": value}});
        }
    };
    let at = "spec.updateStrategy.rollingUpdate.maxUnavailable";
    check(rolling(json!(3)), &[]);
    check(rolling(json!("30%")), &[]);
    check(rolling(json!("100%")), &[]);
    let zero = format!("{at}: Required value: cannot be 0 when maxSurge is 0");
    check(rolling(json!(0)), &[&zero]);
    check(rolling(json!("0%")), &[&zero]);
    let negative = format!("{at}: Invalid value: -1: must be greater than or equal to 0");
    check(rolling(json!(-1)), &[&negative]);
    let more = format!("{at}: Invalid value: \"101%\": must not be greater than 100%");
    check(rolling(json!("101%")), &[&more]);
    for wrong in ["half", "%", "+5%", "-5%", "5"] {
        let (_, errors) = create(set(rolling(json!(wrong))), &FeatureGates::default());
        assert_eq!(errors.len(), 2, "{wrong}: {errors:?}");
        assert!(errors[0].contains("a valid percent string"), "{errors:?}");
        assert_eq!(errors[1], zero);
    }
    check(
        |set| {
            set["spec"]["updateStrategy"] =
                json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
        },
        &[
            "spec.updateStrategy.rollingUpdate.maxSurge: Forbidden: is not supported by this server: a node runs one pod of a daemon set at a time; use maxUnavailable",
        ],
    );
    check(
        |set| set["spec"]["updateStrategy"] = json!({"type": "Recreate"}),
        &[
            "spec.updateStrategy.type: Unsupported value: \"Recreate\": supported values: \"RollingUpdate\", \"OnDelete\"",
        ],
    );
}

#[test]
fn the_template_has_the_rules_of_a_pod_and_those_of_a_daemon() {
    check(
        |set| set["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure".into(),
        &[
            "spec.template.spec.restartPolicy: Unsupported value: \"OnFailure\": supported values: \"Always\"",
        ],
    );
    check(
        |set| set["spec"]["template"]["spec"]["activeDeadlineSeconds"] = 5.into(),
        &[
            "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in DaemonSet is not Supported",
        ],
    );
    check(
        |set| set["spec"]["template"]["spec"]["containers"] = json!([]),
        &["spec.template.spec.containers: Required value"],
    );
    check(
        |set| set["spec"]["minReadySeconds"] = (-1).into(),
        &["spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0"],
    );
    for (change, field) in [
        (
            json!({"stopSignal": "SIGNOT"}),
            "spec.template.spec.containers[0].stopSignal",
        ),
        (
            json!({"notifiers": [{"name": "n"}]}),
            "spec.template.spec.containers[0].notifiers[0].handler",
        ),
        (
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}),
            "spec.template.spec.containers[0].lifecycle.preStop.sleep",
        ),
    ] {
        let changed = set(|set| {
            let fields = container(set).as_object_mut().unwrap();
            fields.extend(change.as_object().unwrap().clone());
        });
        let (_, errors) = create(changed, &FeatureGates::default());
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].starts_with(field), "{errors:?}");
    }
}

#[test]
fn the_selector_does_not_change_and_the_template_may() {
    let (old, _) = create(set(|_| {}), &FeatureGates::default());
    let mut new = old.clone();
    container(&mut new)["image"] = "other".into();
    container(&mut new)["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 3}}});
    assert_eq!(update(new, &old, &FeatureGates::default()).1, [""; 0]);
    let mut new = old.clone();
    new["spec"]["selector"]["matchLabels"] = json!({"app": "e"});
    new["spec"]["template"]["metadata"]["labels"] = json!({"app": "e"});
    assert_eq!(
        update(new, &old, &FeatureGates::default()).1,
        ["spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"e\"}}: field is immutable"]
    );
}

#[test]
fn a_gate_that_is_off_drops_or_refuses_what_the_template_did_not_have() {
    let sleep = json!({"preStop": {"sleep": {"seconds": 3}}});
    let notifiers = json!([{"name": "n", "handler": {"signal": "SIGHUP"}, "timeoutSeconds": 1}]);
    for (field, value, feature) in [
        ("lifecycle", sleep, Feature::PodLifecycleSleepAction),
        ("notifiers", notifiers, Feature::ContainerNotifier),
    ] {
        let with = set(|set| container(set)[field] = value.clone());
        let (mut made, errors) = create(with.clone(), &off(feature));
        assert_eq!(errors, [""; 0]);
        assert_eq!(container(&mut made)[field], Value::Null, "dropped");
        let mut added = made.clone();
        container(&mut added)[field] = value.clone();
        let (mut next, _) = update(added, &made, &off(feature));
        assert_eq!(container(&mut next)[field], Value::Null, "dropped");

        let (mut old, _) = create(with, &FeatureGates::default());
        container(&mut old)["image"] = "older".into();
        let mut new = old.clone();
        container(&mut new)["image"] = "newer".into();
        let (mut next, errors) = update(new, &old, &off(feature));
        assert_eq!(errors, [""; 0]);
        assert_eq!(container(&mut next)[field], value, "kept");
    }

    let gates = off(Feature::ContainerStopSignals);
    let refusal = "spec.template.spec.containers[0].stopSignal: Forbidden: may not be set while the feature gate ContainerStopSignals is off";
    let with = set(|set| container(set)["stopSignal"] = "SIGUSR1".into());
    assert_eq!(create(with.clone(), &gates).1, [refusal]);
    let (without, _) = create(set(|_| {}), &gates);
    let mut added = without.clone();
    container(&mut added)["stopSignal"] = "SIGUSR1".into();
    assert_eq!(update(added, &without, &gates).1, [refusal]);
    let (old, _) = create(with, &FeatureGates::default());
    let mut new = old.clone();
    container(&mut new)["stopSignal"] = "SIGUSR2".into();
    assert_eq!(update(new, &old, &gates).1, [""; 0], "it had one before");
}

#[test]
fn the_annotation_of_a_template_is_held_to_the_same_rules() {
    let annotated = set(|set| {
        set["spec"]["template"]["metadata"]["annotations"] =
            json!({"apps.k8s.io/notifiers": "{\"absent\": []}"});
    });
    let (_, errors) = create(annotated, &FeatureGates::default());
    assert_eq!(errors.len(), 1, "{errors:?}");
    let field = "spec.template.metadata.annotations[apps.k8s.io/notifiers][absent]";
    assert!(errors[0].starts_with(field), "{errors:?}");
}

#[test]
fn a_count_in_a_status_is_not_negative() {
    let status = json!({"status": {"numberReady": -1}});
    let errors = DaemonSetRules.validate_status(&status, &status).errors;
    assert_eq!(
        errors[0].to_string(),
        "status.numberReady: Invalid value: -1: must be greater than or equal to 0"
    );
}
