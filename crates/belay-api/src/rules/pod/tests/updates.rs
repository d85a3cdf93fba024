//! What may change in a pod, by its owner and by its agent.

use super::*;
use crate::pod::NOTIFIERS_ANNOTATION;

const OTHERS: &str = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\nchanged here: ";

fn stored() -> Value {
    let mut pod = json!({"metadata": {"name": "p", "namespace": "n", "annotations": {}}, "spec": {
        "containers": [{"name": "c", "image": "i",
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            "notifiers": [{"name": "lock", "handler": {"exec": {"command": ["l"]}}}]}],
        "initContainers": [{"name": "s", "image": "i", "restartPolicy": "Always"}],
        "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute"}]
    }});
    PodRules.default(&mut pod);
    pod
}

fn update(change: impl FnOnce(&mut Value)) -> Vec<String> {
    update_from(stored(), change)
}

fn update_from(old: Value, change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut new = old.clone();
    change(&mut new);
    PodRules.default(&mut new);
    texts(&PodRules.validate_update(&new, &old, &FeatureGates::default()))
}

fn nothing() -> Vec<String> {
    Vec::new()
}

#[test]
fn images_deadlines_and_tolerations_may_change() {
    assert_eq!(update(|_| {}), nothing());
    assert_eq!(
        update(|pod| {
            pod["spec"]["containers"][0]["image"] = json!("j");
            pod["spec"]["initContainers"][0]["image"] = json!("j");
            pod["spec"]["activeDeadlineSeconds"] = json!(5);
            let tolerations = pod["spec"]["tolerations"].as_array_mut().unwrap();
            tolerations[0]["tolerationSeconds"] = json!(5);
            tolerations.push(json!({"key": "b", "operator": "Exists"}));
            pod["metadata"]["labels"] = json!({"a": "b"});
        }),
        nothing()
    );
}

#[test]
fn everything_else_may_not_and_the_message_says_what_changed() {
    assert_eq!(
        update(|pod| {
            pod["spec"]["containers"][0]["command"] = json!(["x"]);
            pod["spec"]["containers"][0]["notifiers"][0]["timeoutSeconds"] = json!(9);
            pod["spec"]["nodeName"] = json!("node");
        }),
        [format!(
            "{OTHERS}`spec.containers[0].command`, `spec.containers[0].notifiers[0].timeoutSeconds`, `spec.nodeName`"
        )]
    );
    assert_eq!(
        update(|pod| pod["spec"]["containers"][0]["stopSignal"] = json!("SIGINT")),
        [format!("{OTHERS}`spec.containers[0].stopSignal`")]
    );
}

#[test]
fn what_means_the_same_is_no_change() {
    assert_eq!(
        update(|pod| {
            pod["spec"]["hostNetwork"] = json!(false);
            pod["spec"]["nodeSelector"] = json!({});
            pod["spec"]["containers"][0]["args"] = json!([]);
            pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("1024Mi");
        }),
        nothing()
    );
    assert_eq!(
        update(|pod| pod["spec"]["containers"][0]["securityContext"] = json!({"runAsUser": 0})),
        [format!("{OTHERS}`spec.containers[0].securityContext`")],
        "root is not the same as nobody in particular"
    );
}

#[test]
fn containers_are_neither_added_nor_removed() {
    assert_eq!(
        update(|pod| {
            let containers = pod["spec"]["containers"].as_array_mut().unwrap();
            containers.push(json!({"name": "d", "image": "i"}));
        }),
        ["spec.containers: Forbidden: pod updates may not add or remove containers"]
    );
}

#[test]
fn a_deadline_only_comes_nearer() {
    let with = |seconds: i64| {
        let mut pod = stored();
        pod["spec"]["activeDeadlineSeconds"] = json!(seconds);
        pod
    };
    let to = |seconds: Value| {
        update_from(with(10), move |pod| {
            pod["spec"]["activeDeadlineSeconds"] = seconds;
        })
    };
    assert_eq!(to(json!(9)), nothing());
    assert_eq!(
        to(json!(11)),
        [
            "spec.activeDeadlineSeconds: Invalid value: 11: must be less than or equal to previous value"
        ]
    );
    assert_eq!(
        to(Value::Null),
        [
            "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value"
        ]
    );
}

#[test]
fn tolerations_are_only_added() {
    assert_eq!(
        update(|pod| pod["spec"]["tolerations"][0]["key"] = json!("z")),
        [
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
        ]
    );
}

#[test]
fn a_negative_grace_period_of_old_may_become_one() {
    let mut old = stored();
    old["spec"]["terminationGracePeriodSeconds"] = json!(-3);
    assert_eq!(
        update_from(old, |_| {}),
        nothing(),
        "defaulting makes it one"
    );
    assert_eq!(
        update(|pod| pod["spec"]["terminationGracePeriodSeconds"] = json!(1)),
        [format!("{OTHERS}`spec.terminationGracePeriodSeconds`")]
    );
}

#[test]
fn scheduling_gates_are_only_removed() {
    let mut gated = stored();
    gated["spec"]["schedulingGates"] = json!([{"name": "a"}]);
    assert_eq!(
        update_from(gated, |pod| pod["spec"]["schedulingGates"] = json!([])),
        nothing()
    );
    assert_eq!(
        update(|pod| pod["spec"]["schedulingGates"] = json!([{"name": "b"}])),
        [
            "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'b'"
        ]
    );
}

#[test]
fn a_pod_that_waits_for_gates_may_be_told_more_about_its_node() {
    let mut gated = stored();
    gated["spec"]["schedulingGates"] = json!([{"name": "a"}]);
    gated["spec"]["nodeSelector"] = json!({"disk": "fast"});
    let to =
        |selector: Value| update_from(gated.clone(), |pod| pod["spec"]["nodeSelector"] = selector);
    assert_eq!(to(json!({"disk": "fast", "zone": "a"})), nothing());
    assert_eq!(
        to(json!({"disk": "slow"})),
        [
            "spec.nodeSelector: Invalid value: {\"disk\":\"slow\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        ]
    );
}

#[test]
fn the_notifiers_annotation_is_fixed_at_creation() {
    let declare = |name: &str| {
        json!(format!(
            r#"{{"c": [{{"name": "{name}", "handler": {{"signal": "SIGHUP"}}}}]}}"#
        ))
    };
    let mut declared = stored();
    declared["metadata"]["annotations"][NOTIFIERS_ANNOTATION] = declare("flush");
    let added = update(|pod| {
        pod["metadata"]["annotations"][NOTIFIERS_ANNOTATION] = declare("flush");
    });
    assert!(added[0].ends_with(": field is immutable"), "{added:?}");
    assert_eq!(update_from(declared.clone(), |_| {}), nothing());
    for change in [declare("other"), Value::Null] {
        let got = update_from(declared.clone(), |pod| {
            pod["metadata"]["annotations"][NOTIFIERS_ANNOTATION] = change;
        });
        assert_eq!(got.len(), 1, "{got:?}");
        assert!(got[0].starts_with("metadata.annotations[apps.k8s.io/notifiers]: Invalid value: "));
        assert!(got[0].ends_with(": field is immutable"));
    }
}

mod status {
    use super::*;

    fn report(policy: &str, before: Value, now: Value) -> Vec<String> {
        let pod = |status: Value| {
            json!({"spec": {"restartPolicy": policy, "containers": [{"name": "c"}],
                            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]},
                   "status": status})
        };
        texts(&PodRules.validate_status(&pod(now), &pod(before)))
    }

    fn container(state: Value) -> Value {
        json!({"containerStatuses": [{"name": "c", "state": state}]})
    }

    #[test]
    fn a_container_that_ended_for_good_stays_ended() {
        let running = container(json!({"running": {}}));
        let failed = container(json!({"terminated": {"exitCode": 1}}));
        let done = container(json!({"terminated": {"exitCode": 0}}));
        for (policy, before, allowed) in [
            ("Always", &done, true),
            ("OnFailure", &failed, true),
            ("OnFailure", &done, false),
            ("Never", &failed, false),
        ] {
            let got = report(policy, before.clone(), running.clone());
            assert_eq!(got.is_empty(), allowed, "{policy}: {got:?}");
        }
        assert_eq!(
            report("Never", failed, running),
            [
                "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"
            ]
        );
    }

    #[test]
    fn many_statuses_are_judged_in_time_that_grows_with_their_number() {
        let many = |state: Value, names: &dyn Fn(usize) -> String| {
            let one = |i| json!({"name": names(i), "state": state, "restartCount": 0});
            json!({"initContainerStatuses": (0..20_000).map(one).collect::<Value>()})
        };
        let (different, equal) = (|i| format!("c{i}"), |_| "c".to_owned());
        let done = json!({"terminated": {"exitCode": 0}});
        for names in [&different as &dyn Fn(usize) -> String, &equal] {
            let before = many(done.clone(), names);
            assert_eq!(report("Never", before.clone(), before.clone()), nothing());
            let now = many(json!({"running": {}}), names);
            let pod = |status: Value| json!({"spec": {"restartPolicy": "Never"}, "status": status});
            let review = PodRules.validate_status(&pod(now), &pod(before));
            assert_eq!(review.errors.total(), 20_000);
        }
    }

    #[test]
    fn an_init_container_may_begin_anew_after_an_end_that_its_status_tells_of() {
        let status = |list: &str, name: &str, state: Value, last: &str, restarts: u32| {
            let last = json!({"terminated": {"exitCode": 0, "containerID": last}});
            json!({list: [{"name": name, "state": state, "lastState": last, "restartCount": restarts}]})
        };
        let ended = json!({"terminated": {"exitCode": 0, "containerID": "one"}});
        let waiting = json!({"waiting": {"reason": "PodInitializing"}});
        for (policy, last, restarts, allowed) in [
            ("OnFailure", "one", 0, true),
            ("Never", "one", 0, true),
            // Several ends may come between two reports.
            ("OnFailure", "two", 2, true),
            ("OnFailure", "none", 0, false),
        ] {
            let list = "initContainerStatuses";
            let before = status(list, "i", ended.clone(), "none", 0);
            let now = status(list, "i", waiting.clone(), last, restarts);
            let got = report(policy, before, now);
            assert_eq!(got.is_empty(), allowed, "{policy} {last}: {got:?}");
        }
        let list = "containerStatuses";
        let before = status(list, "c", ended, "none", 0);
        let got = report("OnFailure", before, status(list, "c", waiting, "one", 1));
        assert_eq!(
            got.len(),
            1,
            "its own containers have done what they had to"
        );
    }

    #[test]
    fn sidecars_restart_whatever_the_policy() {
        let sidecar =
            |state: Value| json!({"initContainerStatuses": [{"name": "s", "state": state}]});
        let ended = sidecar(json!({"terminated": {"exitCode": 0}}));
        assert_eq!(
            report("Never", ended, sidecar(json!({"running": {}}))),
            nothing()
        );
    }

    #[test]
    fn the_quality_of_service_stays_and_phases_and_signals_are_known() {
        assert_eq!(
            report(
                "Always",
                json!({"qosClass": "Burstable", "phase": "Pending"}),
                json!({"qosClass": "Guaranteed", "phase": "Odd"})
            ),
            [
                "status.phase: Unsupported value: \"Odd\": supported values: \"Pending\", \"Running\", \"Succeeded\", \"Failed\", \"Unknown\"",
                "status.qosClass: Invalid value: \"Guaranteed\": field is immutable"
            ]
        );
        let stopped = |signal: &str| {
            report(
                "Always",
                json!({}),
                json!({"containerStatuses": [{"name": "c", "stopSignal": signal}]}),
            )
        };
        assert_eq!(stopped("SIGTERM"), nothing());
        assert_eq!(stopped("TERM").len(), 1);
    }
}
