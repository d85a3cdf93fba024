//! Signals reach the first process of the incarnation, whatever their number.

#![allow(clippy::unwrap_used)]

mod fixture;

use belay_action::{Action, Disposition, Outcome, TargetError, run};
use belay_api::signal::Signal;
use belay_runtime::*;
use fixture::*;
use tokio_util::sync::CancellationToken;

const SIGNALS: [&str; 20] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGTERM",
    "SIGURG",
    "SIGXCPU",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGTSTP",
    "SIGRTMIN",
    "SIGRTMIN+3",
    "SIGRTMIN+15",
    "SIGRTMAX-14",
    "SIGRTMAX",
];

fn signal(name: &str) -> Signal {
    name.parse().unwrap()
}

#[tokio::test]
async fn every_signal_arrives_as_itself() {
    let bench = Bench::new();
    let numbers: Vec<String> = SIGNALS
        .map(|name| signal(name).number().to_string())
        .to_vec();
    let script = format!(
        "for n in {}; do trap \"echo got $n\" $n; done; echo ready; \
         while :; do sleep 1000 & wait; kill -9 $!; done",
        numbers.join(" ")
    );
    let id = bench.start(&script).await;
    let target = bench.runtime.target(&id).await.unwrap();
    until("it is ready", || {
        bench.log().iter().any(|line| line == "stdout F ready")
    })
    .await;
    for (name, number) in SIGNALS.iter().zip(&numbers) {
        let disposition = target.disposition(signal(name)).await.unwrap();
        assert_eq!(disposition, Disposition::Handled, "{name}");
        let action = Action::Signal(signal(name));
        let once = attempt("unused");
        let report = run(&*target, &action, &once, LONG, CancellationToken::new())
            .await
            .unwrap();
        assert_eq!(report.outcome, Outcome::Succeeded);
        let line = format!("stdout F got {number}");
        until(name, || bench.log().contains(&line)).await;
    }
    let log = bench.log();
    assert_eq!(log.len(), SIGNALS.len() + 1, "each of them once: {log:?}");
}

#[tokio::test]
async fn what_a_process_does_on_a_signal_is_read_and_not_guessed() {
    let bench = Bench::new();
    let id = bench
        .start("trap '' HUP; trap 'echo' USR1; echo ready; while :; do sleep 1000; done")
        .await;
    let target = bench.runtime.target(&id).await.unwrap();
    until("it is ready", || bench.log().len() == 1).await;
    for (name, expected) in [
        ("SIGHUP", Disposition::Ignored),
        ("SIGUSR1", Disposition::Handled),
        ("SIGUSR2", Disposition::Default),
        ("SIGKILL", Disposition::Default),
        ("SIGRTMIN+3", Disposition::Default),
    ] {
        assert_eq!(
            target.disposition(signal(name)).await.unwrap(),
            expected,
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_signal_that_is_not_handled_ends_the_container_and_says_so() {
    let bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    target.signal(signal("SIGRTMIN+3")).await.unwrap();
    let exit = soon(bench.runtime.wait(&id)).await.unwrap();
    assert_eq!((exit.code, exit.signal), (128 + 37, Some(37)));
    for result in [
        target.signal(signal("SIGTERM")).await.unwrap_err(),
        target.disposition(signal("SIGTERM")).await.unwrap_err(),
    ] {
        assert!(matches!(result, TargetError::NotRunning { .. }), "{result}");
    }
}

#[tokio::test]
async fn a_signal_goes_to_the_incarnation_it_was_meant_for() {
    let bench = Bench::new();
    let (id, old) = bench.sleeper().await;
    soon(bench.runtime.kill_tree(&id)).await.unwrap();
    soon(bench.runtime.wait(&id)).await.unwrap();
    let (next, _) = bench.sleeper().await;
    let error = old.signal(signal("SIGKILL")).await.unwrap_err();
    assert!(matches!(error, TargetError::NotRunning { .. }), "{error}");
    assert!(bench.runtime.state(&next).await.unwrap().pid.is_some());
}
