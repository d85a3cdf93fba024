use super::*;
use serde_json::{Value, json};

const AUTHOR: Author<'_> = Author {
    executor: "n1",
    runtime: "process",
};

fn now() -> Timestamp {
    "2030-01-01T00:00:30Z".parse().unwrap()
}

fn object(status: &Value) -> PodAction {
    serde_json::from_value(json!({
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodAction",
        "metadata": {"name": "h-1", "namespace": "ns", "uid": "u",
            "creationTimestamp": "2030-01-01T00:00:00Z"},
        "spec": {
            "hook": {"name": "h", "uid": "hu"}, "podName": "db", "podUID": "p",
            "nodeName": "n1", "containers": ["a", "b"],
            "action": {"exec": {"command": ["true"]}},
            "actionTimeoutSeconds": 30, "deadlineSeconds": 60,
        },
        "status": status,
    }))
    .unwrap()
}

fn record() -> Record {
    let entry = |id: &str| Entry::planned(Some(id.to_owned()), true);
    Record {
        pod_uid: "p".into(),
        entries: [("a".to_owned(), entry("c1")), ("b".to_owned(), entry("c2"))].into(),
    }
}

fn failure(code: i32) -> Outcome {
    Outcome {
        started: Some(1),
        output: " no \n".into(),
        ..Outcome::unstarted(Verdict::Exited { code }, 2)
    }
}

#[test]
fn a_claim_is_read_as_it_was_written() {
    let mut action = object(&json!({}));
    let handlers = Handlers::default();
    assert_eq!(action.view(AUTHOR, &handlers), View::Unclaimed);
    action.claim(AUTHOR, &record(), now());
    assert_eq!(action.view(AUTHOR, &handlers), View::Ours(record()));
    let another = Author {
        executor: "n2",
        ..AUTHOR
    };
    assert_eq!(action.view(another, &handlers), View::Foreign);
    action.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(
        action.view(AUTHOR, &handlers),
        View::Deleting(Some(record()))
    );
}

#[test]
fn who_has_no_journal_learns_from_the_status_when_it_began_and_what_is_over() {
    let action = object(&json!({
        "state": "New", "executor": "n1",
        "containers": [
            {"name": "a", "containerID": "process://c1", "attempts": 3,
             "startTime": "2030-01-01T00:00:01.250000Z"},
            {"name": "b", "containerID": "process://c2", "succeed": true, "exitCode": 0},
        ],
    }));
    let View::Ours(claim) = action.view(AUTHOR, &Handlers::default()) else {
        panic!("it is claimed");
    };
    let first = claim.entries["a"].first.unwrap();
    let started: Timestamp = "2030-01-01T00:00:01.25Z".parse().unwrap();
    assert_eq!(first.wall, started.as_millisecond());
    let ago = (wall_millis() - boot_millis()) - (first.wall - first.boot);
    assert!(ago.abs() < 60_000, "as long ago by both clocks: {ago}");
    assert_eq!(claim.entries["a"].attempt, 3);
    let over = claim.entries["b"].outcome.as_ref().unwrap();
    assert_eq!(over.verdict, Verdict::Succeeded);
}

#[test]
fn progress_is_told_when_something_but_the_number_of_attempts_has_changed() {
    let mut action = object(&json!({}));
    let mut record = record();
    action.claim(AUTHOR, &record, now());
    assert!(!action.progress(AUTHOR, &record, now()));
    let entry = record.entries.get_mut("a").unwrap();
    entry.first = Some(First {
        boot: 5,
        wall: 1_250,
    });
    entry.failed = Some(Box::new(failure(3)));
    assert!(action.progress(AUTHOR, &record, now()));
    let told = action.status.clone().unwrap();
    let error = told.containers[0].error.clone().unwrap();
    assert_eq!(error.error_type, HookErrorType::ExecutionFailwithError);
    assert_eq!(error.reason.as_deref(), Some("no"));
    assert_eq!(told.containers[0].succeed, None, "it is still tried");
    assert_eq!(told.containers[1].error, None);

    record.entries.get_mut("a").unwrap().attempt = 9;
    assert!(!action.progress(AUTHOR, &record, now()));
    assert_eq!(action.status, Some(told));
    record.entries.get_mut("a").unwrap().failed = Some(Box::new(failure(4)));
    assert!(action.progress(AUTHOR, &record, now()));
    let told = action.status.unwrap();
    assert_eq!(told.containers[0].attempts, Some(9));
    assert_eq!(told.state, State::New);
}

#[test]
fn the_result_tells_of_each_container() {
    let mut action = object(&json!({}));
    let mut record = record();
    action.claim(AUTHOR, &record, now());
    for (name, verdict) in [
        ("a", Verdict::Succeeded),
        (
            "b",
            Verdict::TimedOut {
                seconds: 1,
                survivors: vec![],
            },
        ),
    ] {
        let entry = record.entries.get_mut(name).unwrap();
        entry.outcome = Some(Outcome::unstarted(verdict, 1));
    }
    let conclusion = Conclusion::Ran(record);
    action.conclude(AUTHOR, &conclusion, &Handlers::default(), now());
    let status = action.status.clone().unwrap();
    assert_eq!(status.state, State::Failed);
    let [a, b] = &status.containers[..] else {
        panic!("two containers");
    };
    assert_eq!((a.succeed, a.exit_code), (Some(true), Some(0)));
    assert_eq!(b.succeed, Some(false));
    let error = b.error.as_ref().unwrap();
    assert_eq!(error.error_type, HookErrorType::ExecutionTimeout);
    assert_eq!(
        error.message.as_deref(),
        Some("the action still ran when its 30 s were over, and was killed"),
        "the time of the action, not of its last attempt"
    );
    assert_eq!(action.view(AUTHOR, &Handlers::default()), View::Final);
}

#[test]
fn an_error_that_was_told_is_told_again_by_who_reads_it() {
    let told = [
        failure(3).verdict,
        Verdict::CheckFailed {
            message: "HTTP 503".into(),
        },
        Verdict::PodNotFound,
        Verdict::PodTerminating,
        Verdict::ContainerNotRunning,
        Verdict::ContainerRestarted { may_have_run: true },
        Verdict::Expired,
        Verdict::Interrupted,
        Verdict::Cancelled { survivors: vec![] },
        Verdict::Runtime {
            message: "away".into(),
        },
        Verdict::Forbidden {
            message: "no".into(),
        },
        Verdict::TimedOut {
            seconds: 0,
            survivors: vec![],
        },
    ];
    for verdict in told {
        let mut record = record();
        let entry = record.entries.get_mut("a").unwrap();
        entry.first = Some(First { boot: 0, wall: 0 });
        entry.outcome = Some(Outcome::unstarted(verdict.clone(), 0));
        let mut action = object(&json!({}));
        action.claim(AUTHOR, &record, now());
        assert!(action.progress(AUTHOR, &record, now()), "{verdict:?}");
        let View::Ours(claim) = action.view(AUTHOR, &Handlers::default()) else {
            panic!("it is claimed");
        };
        let read = claim.entries["a"].outcome.clone().unwrap().verdict;
        assert_eq!(error(&read, "", 30), error(&verdict, "", 30));
    }
}
