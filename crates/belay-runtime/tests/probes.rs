//! Probes by exec, in real containers: what a try says, and that nothing of it is left.

#![allow(clippy::unwrap_used)]

mod fixture;

use std::sync::Arc;
use std::time::Duration;

use belay_action::probe::{Cadence, Check, Course, Probe, Probed, Tried, run, tried};
use belay_action::{Found, Target};
use belay_api::signal::Signal;
use fixture::*;
use tokio_util::sync::CancellationToken;

const SHORT: Duration = Duration::from_millis(300);

fn sh(script: &str) -> Probe {
    Probe {
        check: Check::Exec {
            command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        },
        cadence: Cadence {
            initial_delay: Duration::ZERO,
            period: Duration::from_millis(20),
            timeout: LONG,
            success_threshold: 1,
        },
    }
}

fn course() -> Course {
    Course {
        handled: Duration::ZERO,
        now: Duration::ZERO,
        end: LONG,
    }
}

/// Comes so late that one full try decides.
fn late() -> Course {
    Course {
        now: LONG * 2,
        ..course()
    }
}

async fn verify(target: &Arc<dyn Target>, probe: &Probe, course: Course) -> Probed {
    let never = CancellationToken::new();
    soon(run(&**target, probe, &attempt("a1"), course, &never)).await
}

/// The runtime has no record of a try.
async fn assert_forgotten(target: &Arc<dyn Target>) {
    let found = target.find(&attempt("a1.probe")).await.unwrap();
    assert!(matches!(found, Found::NeverStarted), "{found:?}");
}

#[tokio::test]
async fn it_is_tried_until_it_succeeds_and_each_try_is_forgotten() {
    let bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    let probe = sh("echo tried >> tries; test $(wc -l < tries) -ge 3");
    assert_eq!(verify(&target, &probe, course()).await, Probed::Succeeded);
    let tries = std::fs::read_to_string(bench.path("tries")).unwrap();
    assert_eq!(tries.lines().count(), 3);
    assert_forgotten(&target).await;
    assert!(!exists(&bench.exec_dir(&id, "a1.probe")));
}

#[tokio::test]
async fn what_the_last_try_said_is_told() {
    let bench = Bench::new();
    let (_, target) = bench.sleeper().await;
    let missing = Probe {
        check: Check::Exec {
            command: vec!["belay-no-such-command".into()],
        },
        ..sh("")
    };
    for (probe, words) in [
        (sh("exit 3"), "the command exited with code 3"),
        (sh("kill -USR1 $$"), "the command was killed by signal 10"),
        (missing, "the command could not be started: "),
    ] {
        match verify(&target, &probe, late()).await {
            Probed::TimedOut { last: Some(last) } => assert!(last.starts_with(words), "{last}"),
            other => panic!("{other:?}"),
        }
        assert_forgotten(&target).await;
    }
}

#[tokio::test]
async fn a_try_that_outlives_its_timeout_is_dead_with_all_it_started() {
    let bench = Bench::new();
    let (_, target) = bench.sleeper().await;
    let mark = unique_seconds();
    let mut probe = sh(&format!("setsid sleep {mark} & sleep {mark}"));
    probe.cadence.timeout = SHORT;
    let last = Some("the command did not end within 0.3 s".to_owned());
    assert_eq!(
        verify(&target, &probe, late()).await,
        Probed::TimedOut { last }
    );
    assert_eq!(with_argument(&mark), Vec::<i32>::new());
    assert_forgotten(&target).await;
}

#[tokio::test]
async fn a_cancel_kills_the_try_that_is_under_way() {
    let bench = Bench::new();
    let (_, target) = bench.sleeper().await;
    let mark = unique_seconds();
    let probe = sh(&format!("setsid sleep {mark} & sleep {mark}"));
    let cancel = CancellationToken::new();
    let attempt = attempt("a1");
    let probing = run(&*target, &probe, &attempt, course(), &cancel);
    let (probed, ()) = tokio::join!(soon(probing), async {
        until("it runs", || with_argument(&mark).len() == 2).await;
        cancel.cancel();
    });
    assert_eq!(probed, Probed::Cancelled);
    assert_eq!(with_argument(&mark), Vec::<i32>::new());
    assert_forgotten(&target).await;
}

#[tokio::test]
async fn the_end_of_the_container_ends_it() {
    let bench = Bench::new();
    let (_, target) = bench.sleeper().await;
    let probe = sh("echo tried >> tries; exit 1");
    let (probed, ()) = tokio::join!(verify(&target, &probe, course()), async {
        until("it was tried", || exists(&bench.path("tries"))).await;
        target
            .signal("SIGKILL".parse::<Signal>().unwrap())
            .await
            .unwrap();
    });
    assert_eq!(probed, Probed::TargetEnded);
}

#[tokio::test]
async fn a_try_that_a_killed_agent_left_behind_is_ended_first() {
    let mut bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    let mark = unique_seconds();
    let left = exec("a1.probe", &format!("sleep {mark}; true"), LONG);
    drop(target.start(&left).await.unwrap());
    until("it runs", || with_argument(&mark).len() == 1).await;
    bench.reopen();
    let target = belay_runtime::Containers::target(&bench.runtime, &id)
        .await
        .unwrap();
    let probe = sh("exit 0");
    assert_eq!(verify(&target, &probe, course()).await, Probed::Succeeded);
    assert_eq!(with_argument(&mark), Vec::<i32>::new());
    assert_forgotten(&target).await;
}

#[tokio::test]
async fn one_try_tells_what_was_written_and_whether_it_came_to_anything() {
    let bench = Bench::new();
    let (_, target) = bench.sleeper().await;
    let attempt = attempt("a1");
    let one = |script: &str| {
        let check = sh(script).check;
        let (target, attempt) = (Arc::clone(&target), attempt.clone());
        async move {
            let never = CancellationToken::new();
            soon(tried(&*target, &check, &attempt, LONG, never)).await
        }
    };
    assert_eq!(one("echo fine").await, Tried::Succeeded);
    let failed = Tried::Failed {
        message: "the command exited with code 3".to_owned(),
        output: "no\nway\n".to_owned(),
    };
    assert_eq!(one("echo no; echo way >&2; exit 3").await, failed);
    target.signal(Signal::KILL).await.unwrap();
    target.wait().await.unwrap();
    let gone = one("exit 0").await;
    assert!(matches!(gone, Tried::Unknown { .. }), "{gone:?}");
}
