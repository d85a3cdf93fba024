use super::*;
use crate::testing::fake::{Done, Fake, ID};
use crate::testing::{Script, with_container};
use belay_action::Outcome as Raw;
use jiff::Timestamp;

fn report(outcome: Raw) -> Report {
    let mut report = Report::new(
        outcome,
        Timestamp::from_second(5).unwrap(),
        Timestamp::from_second(8).unwrap(),
    );
    report.output = "secret".into();
    report.survivors = vec!["7 (dd)".into()];
    report
}

fn handler(output: bool) -> Handler {
    Handler {
        action: Action::Exec {
            command: vec!["x".into()],
        },
        timeout: Duration::from_secs(2),
        until: None,
        output,
        probe: None,
    }
}

#[test]
fn every_end_of_a_process_has_its_verdict() {
    let survivors = vec!["7 (dd)".to_owned()];
    let table = [
        (Raw::Succeeded, Verdict::Succeeded),
        (Raw::Exited { code: 3 }, Verdict::Exited { code: 3 }),
        (Raw::Signaled { signal: 9 }, Verdict::Signaled { signal: 9 }),
        (
            Raw::TimedOut,
            Verdict::TimedOut {
                seconds: 2,
                survivors: survivors.clone(),
            },
        ),
        (Raw::Cancelled, Verdict::Cancelled { survivors }),
        (
            Raw::StartFailed {
                message: "no".into(),
            },
            Verdict::StartFailed {
                message: "no".into(),
            },
        ),
    ];
    for (raw, verdict) in table {
        let outcome = outcome(report(raw), Some(&handler(true)));
        assert_eq!(outcome.verdict, verdict);
        assert_eq!((outcome.started, outcome.finished), (Some(5000), 8000));
        assert_eq!(outcome.output, "secret");
    }
}

#[test]
fn output_that_may_not_be_shown_is_not_kept() {
    assert_eq!(
        outcome(report(Raw::Succeeded), Some(&handler(false))).output,
        ""
    );
}

fn meant() -> Incarnation {
    Fake::default().incarnation
}

fn attempt() -> AttemptId {
    AttemptId::new("u.main.1").unwrap()
}

fn signal() -> Handler {
    Handler {
        action: Action::Signal("SIGHUP".parse().unwrap()),
        ..handler(true)
    }
}

async fn run_in(fake: Fake, handler: &Handler) -> Came {
    let dir = tempfile::tempdir().unwrap();
    let context = with_container(dir.path(), &Script::default(), &Arc::new(fake));
    let cancel = CancellationToken::new();
    run(&context, &meant(), &attempt(), handler, i64::MAX, cancel).await
}

fn verdict(came: Came) -> Verdict {
    match came {
        Came::Refused(verdict) => verdict,
        Came::Ended { outcome, .. } => outcome.verdict,
        Came::Lost { .. } => panic!("it was lost"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_nobody_confirms_may_have_been_delivered_and_killed_nothing() {
    let fake = Fake {
        swallows: true,
        ..Fake::default()
    };
    let verdict = verdict(run_in(fake, &signal()).await);
    assert_eq!(verdict, Verdict::Unconfirmed { seconds: 2 });
    assert!(verdict.message().contains("may have been"), "{verdict:?}");
}

#[tokio::test]
async fn nothing_is_done_in_a_container_that_is_not_the_one_of_the_record() {
    for (pod_uid, container) in [("another", "main"), ("p", "another")] {
        for handler in [handler(true), signal()] {
            let incarnation = Incarnation {
                pod_uid: pod_uid.into(),
                container: container.into(),
                ..meant()
            };
            let fake = Fake {
                incarnation,
                ..Fake::default()
            };
            let verdict = verdict(run_in(fake, &handler).await);
            assert!(matches!(verdict, Verdict::Forbidden { .. }), "{verdict:?}");
        }
        let fake = Fake {
            incarnation: Incarnation {
                pod_uid: pod_uid.into(),
                container: container.into(),
                ..meant()
            },
            ..Fake::default()
        };
        let dir = tempfile::tempdir().unwrap();
        let context = with_container(dir.path(), &Script::default(), &Arc::new(fake));
        let sight = find(&context, &meant(), &attempt(), None, true).await;
        let Trace::Ended(outcome) = sight.trace else {
            panic!("{:?}", sight.trace);
        };
        assert!(matches!(outcome.verdict, Verdict::Forbidden { .. }));
    }
    let verdict = verdict(run_in(Fake::default(), &signal()).await);
    assert_eq!(verdict, Verdict::Succeeded);
}

#[tokio::test(start_paused = true)]
async fn a_container_is_gone_only_when_the_runtime_says_so() {
    let away = || RuntimeError::Away {
        what: "look a container up",
        problem: "it is being restarted".to_owned(),
    };
    let id = ContainerId::new(ID).unwrap();
    let gone = RuntimeError::NotFound { id: id.clone() };
    for (failures, there) in [(vec![away(), away()], true), (vec![away(), gone], false)] {
        let fake = Fake::default();
        fake.failures.lock().unwrap().extend(failures);
        let dir = tempfile::tempdir().unwrap();
        let context = with_container(dir.path(), &Script::default(), &Arc::new(fake));
        assert_eq!(target(&context, &id).await.is_some(), there);
    }
}

#[tokio::test]
async fn an_attempt_that_was_started_here_tells_since_when() {
    let before = boot_millis();
    let came = run_in(Fake::default(), &handler(true)).await;
    let Came::Ended { begun, .. } = came else {
        panic!("it did not end");
    };
    assert!((before..=boot_millis()).contains(&begun.unwrap()));
    let dir = tempfile::tempdir().unwrap();
    let context = with_container(dir.path(), &Script::default(), &Arc::default());
    let target = target(&context, &meant().id).await.unwrap();
    let cancel = CancellationToken::new();
    let found = follow(&context, &target, Box::new(Done), &attempt(), None, cancel).await;
    assert!(matches!(found, Came::Ended { begun: None, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_handler_was_taken_along_only_by_a_container_of_whose_end_is_known() {
    let restarted = Verdict::ContainerRestarted { may_have_run: true };
    let killed = Verdict::Signaled { signal: SIGKILL };
    let blind = || {
        Err(TargetError::Runtime {
            what: "wait for its end".to_owned(),
            source: "too many open files".into(),
        })
    };
    for (waited, verdict) in [
        (Some(Ok(())), restarted),
        (Some(blind()), killed.clone()),
        (None, killed),
    ] {
        let fake = Fake::default();
        *fake.waited.lock().unwrap() = waited;
        let dir = tempfile::tempdir().unwrap();
        let context = with_container(dir.path(), &Script::default(), &Arc::new(fake));
        let report = report(Raw::Signaled { signal: SIGKILL });
        let came = settled(&context, &meant().id, report, Some(&handler(true))).await;
        assert_eq!(came.verdict, verdict);
    }
}
