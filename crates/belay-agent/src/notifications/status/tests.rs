use super::*;
use crate::notifications::errand::Errand as _;
use belay_core::delivery::Outcome;
use serde_json::{Value, json};

const AUTHOR: Author<'static> = Author {
    executor: "n1",
    runtime: "process",
};

// `json!` literals read better without a borrow.
#[allow(clippy::needless_pass_by_value)]
fn object(status: Value) -> PodNotification {
    serde_json::from_value(json!({
        "apiVersion": "apps.k8s.io/v1alpha1",
        "kind": "PodNotification",
        "metadata": {"name": "n", "namespace": "ns", "uid": "u"},
        "spec": {"podName": "db", "notifier": "lock"},
        "status": status,
    }))
    .unwrap()
}

fn handlers() -> Handlers {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "db"},
        "spec": {"containers": [
            {"name": "main", "notifiers": [{"name": "lock", "handler": {"exec": {"command": ["x"]}}}]},
            {"name": "side", "notifiers": [{"name": "lock", "handler": {"signal": "SIGHUP"}}]},
        ]},
    }))
    .unwrap();
    Handlers::of(&pod, "192.0.2.7", "lock").unwrap()
}

fn record(outcomes: &[(&str, bool, Verdict)]) -> Record {
    Record {
        pod_uid: "p".into(),
        entries: outcomes
            .iter()
            .map(|(name, traceable, verdict)| {
                let mut entry = Entry::planned(Some(format!("c-{name}")), *traceable);
                entry.outcome = Some(Outcome {
                    started: Some(1_000),
                    output: "out".into(),
                    signal_handled: (!*traceable).then_some(false),
                    ..Outcome::unstarted(verdict.clone(), 2_000)
                });
                ((*name).to_owned(), entry)
            })
            .collect(),
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(5).unwrap()
}

#[test]
fn what_an_object_says_to_a_node() {
    let view = |status: Value| AUTHOR.view(&object(status), &handlers());
    assert_eq!(view(json!({})), View::Unclaimed);
    assert_eq!(
        view(json!({"nodeName": "n1", "podUID": "p"})),
        View::Unclaimed
    );
    assert_eq!(view(json!({"executor": "n2"})), View::Foreign);
    assert_eq!(
        view(json!({"state": "Failed", "completeTime": "2030-01-01T00:00:00Z"})),
        View::Final
    );
    let claim = json!({"executor": "n1", "podUID": "p", "containers": [
        {"name": "main", "containerID": "process://c1", "attempts": 2},
        {"name": "side", "containerID": "process://c2", "attempts": 1},
        {"name": "away"},
    ]});
    let View::Ours(record) = view(claim) else {
        panic!("the claim is ours")
    };
    assert_eq!(record.pod_uid, "p");
    assert_eq!(record.entries["main"].attempt, 2);
    assert_eq!(record.entries["main"].container_id.as_deref(), Some("c1"));
    assert!(record.entries["main"].traceable && !record.entries["side"].traceable);
    assert_eq!(record.entries["away"].container_id, None);
}

#[test]
fn an_object_that_is_being_deleted_says_so_with_its_claim() {
    let mut object = object(json!({"executor": "n1", "podUID": "p"}));
    object.metadata.deletion_timestamp = Some(Time(now()));
    assert!(matches!(
        AUTHOR.view(&object, &handlers()),
        View::Deleting(Some(_))
    ));
    object.status = None;
    assert_eq!(AUTHOR.view(&object, &handlers()), View::Deleting(None));
}

#[test]
fn a_claim_that_is_read_back_is_the_record_that_was_claimed() {
    let mut record = record(&[
        ("main", true, Verdict::Succeeded),
        ("side", false, Verdict::Succeeded),
    ]);
    for entry in record.entries.values_mut() {
        entry.outcome = None;
    }
    let status = AUTHOR.claimed(&PodNotificationStatus::default(), &record, now());
    assert_eq!(status.executor.as_deref(), Some("n1"));
    let mut object = object(json!({}));
    object.status = Some(status);
    assert_eq!(AUTHOR.view(&object, &handlers()), View::Ours(record));
}

#[test]
fn a_result_tells_what_happened_in_each_container() {
    let record = record(&[
        ("main", true, Verdict::Exited { code: 3 }),
        ("side", false, Verdict::Succeeded),
    ]);
    let status = AUTHOR.concluded(
        &PodNotificationStatus::default(),
        &Conclusion::Ran(record),
        &handlers(),
        now(),
    );
    assert_eq!(status.state, State::Failed);
    assert!(status.complete_time.is_some());
    assert_eq!(
        status.error.as_ref().unwrap().type_,
        ErrorType::HandlerFailed
    );
    let [main, side] = &status.containers[..] else {
        panic!("two containers")
    };
    assert_eq!(
        (main.exit_code, main.succeeded, main.attempts),
        (Some(3), Some(false), Some(1))
    );
    assert_eq!(main.output.as_deref(), Some("out"));
    assert_eq!(main.container_id.as_deref(), Some("process://c-main"));
    assert_eq!(
        (side.succeeded, side.signal.as_deref()),
        (Some(true), Some("SIGHUP"))
    );
    let condition = &status.conditions[0];
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("SignalHandled", "False")
    );
}

#[test]
fn a_handler_that_a_signal_ended_names_it() {
    let record = record(&[("main", true, Verdict::Signaled { signal: 9 })]);
    let conclusion = Conclusion::Ran(record);
    let status = AUTHOR.concluded(
        &PodNotificationStatus::default(),
        &conclusion,
        &handlers(),
        now(),
    );
    assert_eq!(status.containers[0].signal.as_deref(), Some("SIGKILL"));
    assert_eq!(status.containers[0].exit_code, None);
}

#[test]
fn a_notifier_that_nobody_declares_succeeds_with_a_condition() {
    let status = AUTHOR.concluded(
        &PodNotificationStatus::default(),
        &Conclusion::NothingDeclared,
        &Handlers::default(),
        now(),
    );
    assert_eq!(status.state, State::Succeeded);
    assert!(status.containers.is_empty());
    let condition = &status.conditions[0];
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("NotifierFound", "False")
    );
}

#[test]
fn every_error_of_the_machine_is_one_of_the_api() {
    for verdict in [
        Verdict::Exited { code: 1 },
        Verdict::TimedOut {
            seconds: 1,
            survivors: vec![],
        },
        Verdict::PodNotFound,
        Verdict::PodTerminating,
        Verdict::ContainerNotRunning,
        Verdict::ContainerRestarted { may_have_run: true },
        Verdict::Expired,
        Verdict::Interrupted,
        Verdict::Cancelled { survivors: vec![] },
        Verdict::Runtime {
            message: String::new(),
        },
    ] {
        let name = verdict.error_type().unwrap();
        assert!(error(name, String::new(), now()).is_some(), "{name}");
    }
}

#[test]
fn what_no_agent_runs_says_what_is_not_promised_from_its_claim_on() {
    let told = |status: &PodNotificationStatus| -> Vec<(String, String)> {
        let conditions = status.conditions.iter();
        let weaker = conditions.filter(|it| it.type_ == reasons::FULL_GUARANTEES);
        weaker
            .map(|it| (it.status.clone(), it.reason.clone()))
            .collect()
    };
    let remote = Author {
        executor: CONTROLLER,
        runtime: "pods-exec",
    };
    let record = record(&[("main", true, Verdict::Succeeded)]);
    let before = PodNotificationStatus::default();
    let claimed = remote.claimed(&before, &record, now());
    let expected = [("False".to_owned(), reasons::NO_AGENT.to_owned())];
    assert_eq!(told(&claimed), expected);
    let ran = Conclusion::Ran(record.clone());
    let concluded = remote.concluded(&claimed, &ran, &handlers(), now());
    assert_eq!(told(&concluded), expected, "once");
    // A claim of an earlier version did not say it.
    let concluded = remote.concluded(&before, &ran, &handlers(), now());
    assert_eq!(told(&concluded), expected);
    assert!(told(&AUTHOR.claimed(&before, &record, now())).is_empty());
}

#[test]
fn a_message_of_any_length_fits_into_a_status() {
    let message = "\u{e9}".repeat(50_000);
    let failed = Verdict::CheckFailed { message };
    let conclusion = Conclusion::Ran(record(&[("main", true, failed)]));
    let before = PodNotificationStatus::default();
    let status = AUTHOR.concluded(&before, &conclusion, &handlers(), now());
    let own = status.error.unwrap().message;
    let of_container = status.containers[0].error.clone().unwrap().message;
    for message in [own, of_container] {
        assert!((1000..=1024).contains(&message.len()), "{}", message.len());
    }
}

#[test]
fn a_result_in_few_words_has_no_output_and_short_messages() {
    let message = "m".repeat(1000);
    let conclusion = Conclusion::Ran(record(&[("main", true, Verdict::CheckFailed { message })]));
    let mut object = object(json!({}));
    object.conclude(AUTHOR, &conclusion, &handlers(), now());
    object.shorten();
    let status = object.status.unwrap();
    assert_eq!(status.containers[0].output, None);
    let own = status.error.unwrap().message;
    let of_container = status.containers[0].error.clone().unwrap().message;
    assert_eq!((own.len(), of_container.len()), (200, 200));
}
