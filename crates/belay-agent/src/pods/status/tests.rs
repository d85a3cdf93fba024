use super::*;
use crate::pods::waiting::Waiting;
use belay_api::pod::PodCondition;
use belay_core::probing::{Before, Probing, Rule, Rules};
use belay_runtime::{Exit, ExitReason};
use serde_json::json;
use std::time::Duration;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(policy: &str, init: &[&str], main: &[&str]) -> Pod {
    let list = |names: &[&str]| {
        names
            .iter()
            .map(|n| json!({"name": n, "image": "img"}))
            .collect::<Vec<_>>()
    };
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 2},
        "spec": {"restartPolicy": policy, "initContainers": list(init), "containers": list(main)},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }))
    .unwrap()
}

fn instance(count: u32, code: Option<i32>) -> Instance {
    Instance {
        started: at(10),
        image_id: "sha256:1".into(),
        exit: code.map(|code| Exit {
            code,
            signal: None,
            started: at(10),
            finished: at(20),
            reason: if code == 0 {
                ExitReason::Completed
            } else {
                ExitReason::Error
            },
        }),
        ..Instance::test(&format!("c{count}"), count)
    }
}

/// Name, number of the newest incarnation, its exit code.
type Known<'a> = (&'a str, u32, Option<i32>);

fn known(list: &[Known<'_>]) -> BTreeMap<String, Tracked> {
    list.iter()
        .map(|(name, count, code)| {
            let mut tracked = Tracked::default();
            for n in 0..*count {
                tracked.started(instance(n, Some(1)));
            }
            tracked.started(instance(*count, *code));
            ((*name).to_owned(), tracked)
        })
        .collect()
}

fn node<'a>() -> Node<'a> {
    Node {
        address: "192.0.2.7",
        pod_address: Some("10.88.0.3"),
        runtime: "process",
        gates: FeatureGates::default(),
    }
}

fn build(pod: &Pod, tracked: &BTreeMap<String, Tracked>, over: bool) -> PodStatus {
    let plan = super::super::plan::plan(pod, tracked, at(1_000));
    let before = pod.status.clone().unwrap_or_default();
    let over = if over { Over::Stopped } else { Over::No };
    status(pod, &before, tracked, &plan, node(), over, at(1_000))
}

#[test]
fn the_phase_follows_from_policy_and_containers() {
    let table = [
        ("Always", Vec::<Known<'_>>::new(), "Pending"),
        ("Always", vec![("a", 0, None)], "Pending"),
        ("Always", vec![("a", 0, None), ("b", 0, None)], "Running"),
        (
            "Always",
            vec![("a", 0, Some(0)), ("b", 0, Some(0))],
            "Running",
        ),
        (
            "OnFailure",
            vec![("a", 0, Some(0)), ("b", 0, Some(0))],
            "Succeeded",
        ),
        (
            "OnFailure",
            vec![("a", 0, Some(0)), ("b", 0, Some(1))],
            "Running",
        ),
        (
            "OnFailure",
            vec![("a", 0, Some(0)), ("b", 0, None)],
            "Running",
        ),
        (
            "Never",
            vec![("a", 0, Some(0)), ("b", 0, Some(0))],
            "Succeeded",
        ),
        (
            "Never",
            vec![("a", 0, Some(1)), ("b", 0, Some(0))],
            "Failed",
        ),
        ("Never", vec![("a", 0, Some(1)), ("b", 0, None)], "Running"),
        ("Never", vec![("a", 0, Some(1))], "Pending"),
        ("Always", vec![("a", 3, None), ("b", 1, Some(9))], "Running"),
    ];
    for (policy, containers, expected) in table {
        let status = build(&pod(policy, &[], &["a", "b"]), &known(&containers), false);
        assert_eq!(
            status.phase.as_deref(),
            Some(expected),
            "{policy} {containers:?}"
        );
    }
}

#[test]
fn a_failed_init_container_fails_the_pod_only_if_it_is_never_restarted() {
    for (policy, expected) in [
        ("Never", "Failed"),
        ("OnFailure", "Pending"),
        ("Always", "Pending"),
    ] {
        let status = build(
            &pod(policy, &["i"], &["a"]),
            &known(&[("i", 0, Some(1))]),
            false,
        );
        assert_eq!(status.phase.as_deref(), Some(expected), "{policy}");
    }
}

#[test]
fn a_stopped_pod_has_ended_whatever_its_policy() {
    for (code, expected) in [(0, "Succeeded"), (143, "Failed")] {
        let status = build(
            &pod("Always", &[], &["a"]),
            &known(&[("a", 0, Some(code))]),
            true,
        );
        assert_eq!(status.phase.as_deref(), Some(expected));
        let state = status.container_statuses.unwrap()[0].state.clone().unwrap();
        assert_eq!(state.terminated.unwrap().exit_code, code);
    }
}

#[test]
fn a_phase_that_was_final_stays() {
    let mut pod = pod("Always", &[], &["a"]);
    pod.status.as_mut().unwrap().phase = Some("Failed".into());
    assert_eq!(
        build(&pod, &known(&[("a", 0, None)]), false)
            .phase
            .as_deref(),
        Some("Failed")
    );
}

#[test]
fn a_running_pod_reports_like_a_kubelet() {
    let status = build(
        &pod("Always", &[], &["a"]),
        &known(&[("a", 2, None)]),
        false,
    );
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert!(container.ready && container.started == Some(true));
    assert_eq!(container.restart_count, 2);
    assert_eq!(container.container_id.as_deref(), Some("process://c2"));
    assert_eq!(container.stop_signal.as_deref(), Some("SIGTERM"));
    let last = container
        .last_state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (1, Some("Error")));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(container.image_id, "sha256:1");
    assert_eq!(status.pod_ip.as_deref(), Some("10.88.0.3"));
    assert_eq!(status.host_ip.as_deref(), Some("192.0.2.7"));
    let conditions = status.conditions.unwrap();
    let all: Vec<_> = conditions
        .iter()
        .map(|c| (c.type_.as_str(), c.status.as_str()))
        .collect();
    assert_eq!(
        all,
        [
            ("PodReadyToStartContainers", "True"),
            ("PodScheduled", "True"),
            ("Initialized", "True"),
            ("ContainersReady", "True"),
            ("Ready", "True")
        ]
    );
}

#[test]
fn a_container_in_back_off_waits_and_its_end_is_the_last_state() {
    let pod = pod("Always", &[], &["a"]);
    let tracked = known(&[("a", 1, Some(3))]);
    let mut plan = super::super::plan::plan(&pod, &tracked, at(1_000));
    plan.waiting
        .insert("a".into(), Waiting::crash_loop("back-off 10s".into()));
    let status = status(
        &pod,
        &PodStatus::default(),
        &tracked,
        &plan,
        node(),
        Over::No,
        at(1_000),
    );
    let container = &status.container_statuses.unwrap()[0];
    let waiting = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
    let last = container
        .last_state
        .as_ref()
        .unwrap()
        .terminated
        .as_ref()
        .unwrap();
    assert_eq!(last.exit_code, 3);
    assert!(!container.ready);
}

fn not_runnable() -> BTreeMap<String, Tracked> {
    let failed = FailedStart {
        waiting: Waiting {
            reason: "RunContainerError",
            message: "no such file".into(),
        },
        at: at(900),
        until: at(2_000),
        then: Some((at(901), Waiting::crash_loop("back-off 10s".into()))),
        crash: true,
        config: false,
        image: "img".into(),
    };
    let tracked = Tracked {
        failed_start: Some(failed),
        ..Tracked::default()
    };
    [("a".to_owned(), tracked)].into()
}

#[test]
fn a_container_that_could_not_be_run_is_one_that_ended_with_128() {
    let tracked = not_runnable();
    for (policy, phase) in [
        ("Always", "Running"),
        ("OnFailure", "Running"),
        ("Never", "Failed"),
    ] {
        let status = build(&pod(policy, &[], &["a"]), &tracked, false);
        assert_eq!(status.phase.as_deref(), Some(phase), "{policy}");
        let container = serde_json::to_value(&status.container_statuses.unwrap()[0]).unwrap();
        let ended = if policy == "Never" {
            &container["state"]["terminated"]
        } else {
            let reason = &container["state"]["waiting"]["reason"];
            assert_eq!(reason, "CrashLoopBackOff", "{policy}");
            &container["lastState"]["terminated"]
        };
        assert_eq!(
            *ended,
            json!({
                "exitCode": 128, "reason": "StartError", "message": "no such file",
                "startedAt": "1970-01-01T00:00:00Z", "finishedAt": "1970-01-01T00:15:00Z",
            })
        );
    }
}

#[test]
fn what_was_told_of_a_pod_that_has_ended_stays_when_the_agent_knows_nothing_of_it() {
    let mut pod = pod("Never", &[], &["a"]);
    let told = build(&pod, &not_runnable(), false);
    pod.status = Some(told.clone());
    assert_eq!(build(&pod, &BTreeMap::new(), false), told);
}

#[test]
fn a_condition_that_did_not_change_keeps_its_time_and_others_conditions_stay() {
    let mut pod = pod("Always", &[], &["a"]);
    pod.status.as_mut().unwrap().conditions = Some(vec![PodCondition {
        type_: "example.com/gate".into(),
        status: "True".into(),
        ..PodCondition::default()
    }]);
    let tracked = known(&[("a", 0, None)]);
    let first = build(&pod, &tracked, false);
    let plan = super::super::plan::plan(&pod, &tracked, at(2_000));
    let second = status(&pod, &first, &tracked, &plan, node(), Over::No, at(2_000));
    assert_eq!(first, second);
    assert_eq!(second.conditions.unwrap().len(), 6);
}

#[test]
fn with_the_gate_off_the_stop_signal_is_ignored_and_not_shown() {
    let container: Container =
        serde_json::from_value(json!({"name": "a", "stopSignal": "SIGUSR1"})).unwrap();
    let off = FeatureGates::default().with(Feature::ContainerStopSignals, false);
    assert_eq!(
        stop_signal(&container, Some("SIGQUIT"), FeatureGates::default()),
        Signal::USR1
    );
    assert_eq!(stop_signal(&container, None, off), Signal::TERM);
    assert_eq!(
        stop_signal(&container, Some("SIGQUIT"), off).name(),
        "SIGQUIT",
        "an image is not the spec"
    );
    let tracked = known(&[("a", 0, None)]);
    let node = Node {
        gates: off,
        ..node()
    };
    let plan = Plan {
        initialized: true,
        ..Plan::default()
    };
    let of = pod("Always", &[], &["a"]);
    let status = container_status(&of, &container, &tracked, &plan, node, Over::No);
    assert_eq!(status.stop_signal, None);
}

#[test]
fn init_containers_are_ready_when_done_and_the_others_wait() {
    let status = build(
        &pod("Always", &["i", "j"], &["a"]),
        &known(&[("i", 0, Some(0))]),
        false,
    );
    let init = status.init_container_statuses.unwrap();
    assert!(init[0].ready && !init[1].ready);
    let main = &status.container_statuses.unwrap()[0];
    let waiting = main.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("PodInitializing"));
    let conditions = status.conditions.unwrap();
    let initialized = conditions
        .iter()
        .find(|c| c.type_ == "Initialized")
        .unwrap();
    assert_eq!(
        initialized.message.as_deref(),
        Some("containers with incomplete status: [j]")
    );
}

/// The word of a container's probes, as if it had been reported so.
fn probed(
    mut tracked: BTreeMap<String, Tracked>,
    name: &str,
    before: Before,
) -> BTreeMap<String, Tracked> {
    let rule = Rule {
        initial_delay: Duration::ZERO,
        period: Duration::from_secs(1),
        success_threshold: 1,
        failure_threshold: 1,
    };
    let rules = Rules {
        startup: Some(rule),
        liveness: None,
        readiness: Some(rule),
    };
    tracked.get_mut(name).unwrap().probing = Some(Probing::new(rules, 0, before));
    tracked
}

#[test]
fn probes_decide_what_has_started_and_what_is_ready() {
    for (started, ready, expected) in [
        (false, false, (false, false, "False")),
        (false, true, (false, false, "False")),
        (true, false, (true, false, "False")),
        (true, true, (true, true, "True")),
    ] {
        let tracked = known(&[("a", 0, None), ("b", 0, None)]);
        let tracked = probed(tracked, "b", Before { started, ready });
        let status = build(&pod("Always", &[], &["a", "b"]), &tracked, false);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let of = &status.container_statuses.as_ref().unwrap()[1];
        let conditions = status.conditions.as_ref().unwrap();
        let condition = conditions.iter().find(|c| c.type_ == "Ready").unwrap();
        let found = (of.started.unwrap(), of.ready, condition.status.as_str());
        assert_eq!(found, expected);
    }
}

#[test]
fn a_sidecar_counts_for_ready_and_holds_up_what_follows_until_it_has_started() {
    let mut pod = pod("Always", &["s", "i"], &["a"]);
    pod.spec.init_containers[0].restart_policy = Some(RestartPolicy::Always);
    let message = |status: &PodStatus, kind: &str| {
        let conditions = status.conditions.as_ref().unwrap();
        let found = conditions.iter().find(|c| c.type_ == kind).unwrap();
        found.message.clone().unwrap_or_default()
    };
    let unstarted = probed(known(&[("s", 0, None)]), "s", Before::default());
    let status = build(&pod, &unstarted, false);
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    assert_eq!(
        message(&status, "Initialized"),
        "containers with incomplete status: [s i]"
    );
    let started = Before {
        started: true,
        ready: false,
    };
    let all = known(&[("s", 0, None), ("i", 0, Some(0)), ("a", 0, None)]);
    let status = build(&pod, &probed(all, "s", started), false);
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(
        message(&status, "Ready"),
        "containers with unready status: [s]"
    );
}

#[test]
fn what_a_probe_ended_has_not_succeeded() {
    let mut tracked = known(&[("a", 0, Some(0))]);
    let pod = pod("OnFailure", &[], &["a"]);
    assert_eq!(build(&pod, &tracked, false).phase.unwrap(), "Succeeded");
    tracked.get_mut("a").unwrap().condemned = true;
    assert_eq!(build(&pod, &tracked, false).phase.unwrap(), "Running");
    let plan = super::super::plan::plan(&pod, &tracked, at(1_000));
    assert_eq!(plan.start, ["a"]);
    assert!(!plan.completed);
}

#[test]
fn a_pod_without_a_sandbox_has_no_address_and_is_not_ready_to_start_containers() {
    let pod = pod("Always", &[], &["a"]);
    let plan = super::super::plan::plan(&pod, &BTreeMap::new(), at(1_000));
    let node = Node {
        pod_address: None,
        ..node()
    };
    let none = BTreeMap::new();
    let before = PodStatus::default();
    let first = status(&pod, &before, &none, &plan, node, Over::No, at(1_000));
    assert_eq!((first.pod_ip.clone(), first.pod_ips.clone()), (None, None));
    let conditions = first.conditions.as_ref().unwrap();
    assert_eq!(conditions[0].type_, "PodReadyToStartContainers");
    assert_eq!(
        (conditions[0].status.as_str(), &conditions[0].reason),
        ("False", &None)
    );

    // What was told once stays in the status when the sandbox is gone.
    let before = PodStatus {
        pod_ip: Some("10.88.0.3".into()),
        ..first
    };
    let later = status(&pod, &before, &none, &plan, node, Over::Stopped, at(1_000));
    assert_eq!(later.pod_ip.as_deref(), Some("10.88.0.3"));
}

#[test]
fn a_pod_that_ran_too_long_has_failed_and_says_why_from_then_on() {
    let pod = pod("Never", &[], &["a"]);
    let tracked = known(&[("a", 0, Some(0))]);
    let plan = super::super::plan::plan(&pod, &tracked, at(1_000));
    let before = pod.status.clone().unwrap();
    let over = Over::DeadlineExceeded;
    let failed = status(&pod, &before, &tracked, &plan, node(), over, at(1_000));
    assert_eq!(failed.phase.as_deref(), Some("Failed"));
    assert_eq!(failed.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(failed.message.as_deref(), Some(DEADLINE_MESSAGE));
    let later = status(&pod, &failed, &tracked, &plan, node(), Over::No, at(1_001));
    assert_eq!(later.phase.as_deref(), Some("Failed"));
    assert_eq!(later.reason.as_deref(), Some("DeadlineExceeded"));
}

#[test]
fn a_readiness_gate_keeps_a_pod_unready_until_somebody_sets_its_condition() {
    let mut pod = pod("Always", &[], &["a"]);
    let gate = json!([{"conditionType": "example.com/lb"}]);
    pod.spec.other.insert("readinessGates".into(), gate);
    let ready = |pod: &Pod| {
        let status = build(pod, &known(&[("a", 0, None)]), false);
        let conditions = status.conditions.unwrap();
        let find = |kind: &str| conditions.iter().find(|c| c.type_ == kind).unwrap().clone();
        assert_eq!(find("ContainersReady").status, "True");
        let ready = find("Ready");
        (ready.status, ready.message.unwrap_or_default())
    };
    let (status, message) = ready(&pod);
    assert_eq!(status, "False");
    assert_eq!(
        message,
        "corresponding condition of pod readiness gate \"example.com/lb\" does not exist."
    );
    for (set, expected, part) in [("Unknown", "False", "but Unknown"), ("True", "True", "")] {
        pod.status.as_mut().unwrap().conditions = Some(vec![PodCondition {
            type_: "example.com/lb".into(),
            status: set.into(),
            ..PodCondition::default()
        }]);
        let (status, message) = ready(&pod);
        assert_eq!(status, expected);
        assert!(message.ends_with(part), "{message}");
    }
}
