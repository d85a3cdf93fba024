//! Signals reach the first process of the incarnation they were meant for, as what they are.

use belay_action::{Action, Disposition, Outcome, TargetError};
use belay_api::signal::Signal;
use belay_runtime::*;
use tokio_util::sync::CancellationToken;

use crate::bench::*;
use crate::fixture::{LONG, attempt, soon};

/// Some of each sort: by name, an alias, the first, middle and last real-time ones.
const SIGNALS: [&str; 21] = [
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
    "SIGPOLL",
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

/// Reports the number of every signal of the list.
fn reporter() -> String {
    let numbers = SIGNALS.map(|name| signal(name).number().to_string());
    format!(
        "for n in {}; do trap \"echo got $n\" $n; done; trap '' TTOU; echo ready; \
         while :; do sleep 1000000 & wait; kill -9 $!; done",
        numbers.join(" ")
    )
}

#[tokio::test]
async fn every_signal_arrives_as_itself_by_every_way() {
    on_each(async |bench| {
        let (id, config) = bench.start(&reporter()).await;
        logged(&config, "stdout F ready").await;
        let mut targets = vec![bench.runtime.target(&id).await.unwrap()];
        // A companion takes another way.
        if let Some(companion) = bench.companion().await {
            targets.push(companion.target(&id).await.unwrap());
        }
        let mut expected = vec!["stdout F ready".to_owned()];
        for name in SIGNALS {
            for target in &targets {
                let disposition = target.disposition(signal(name)).await.unwrap();
                assert_eq!(disposition, Disposition::Handled, "{name}");
                let action = Action::Signal(signal(name));
                let once = attempt("unused");
                let cancel = CancellationToken::new();
                let report = belay_action::run(&**target, &action, &once, LONG, cancel);
                assert_eq!(report.await.unwrap().outcome, Outcome::Succeeded);
                expected.push(format!("stdout F got {}", signal(name).number()));
                // One after the other: a signal that is pending already is not told twice.
                crate::fixture::until(name, || log(&config) == expected).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_process_does_on_a_signal_is_read_and_not_guessed() {
    on_each(async |bench| {
        let (id, config) = bench.start(&reporter()).await;
        let target = bench.runtime.target(&id).await.unwrap();
        logged(&config, "stdout F ready").await;
        for (name, expected) in [
            ("SIGHUP", Disposition::Handled),
            ("SIGTTOU", Disposition::Ignored),
            ("SIGSYS", Disposition::Default),
            ("SIGKILL", Disposition::Default),
            ("SIGRTMAX", Disposition::Handled),
            ("SIGRTMAX-1", Disposition::Default),
        ] {
            let told = target.disposition(signal(name)).await.unwrap();
            assert_eq!(told, expected, "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_signal_that_is_not_handled_ends_whom_the_kernel_lets_it_end() {
    on_each(async |bench| {
        let (id, target) = bench.sleeper().await;
        target.signal(signal("SIGRTMIN+3")).await.unwrap();
        if bench.is_isolated() {
            // The first process of a PID namespace drops what it does not handle.
            assert!(bench.is_running(&id).await);
            target.signal(Signal::KILL).await.unwrap();
        }
        let number = if bench.is_isolated() { 9 } else { 37 };
        soon(target.wait()).await.unwrap();
        let exit = soon(bench.runtime.wait(&id)).await.unwrap();
        assert_eq!((exit.code, exit.signal), (128 + number, Some(number)));
    })
    .await;
}

#[tokio::test]
async fn a_signal_goes_to_the_incarnation_it_was_meant_for() {
    on_each(async |bench| {
        let config = bench.config(&["sleep", "1000000"]);
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        let old = bench.runtime.target(&id).await.unwrap();
        soon(bench.runtime.kill_tree(&id)).await.unwrap();
        soon(bench.runtime.wait(&id)).await.unwrap();
        let next = ContainerConfig {
            restart_count: 1,
            ..config
        };
        let next = soon(bench.runtime.start(&next)).await.unwrap();
        for target in [old, bench.runtime.target(&id).await.unwrap()] {
            for error in [
                target.signal(Signal::KILL).await.unwrap_err(),
                target.disposition(Signal::KILL).await.unwrap_err(),
            ] {
                assert!(matches!(error, TargetError::NotRunning { .. }), "{error}");
            }
        }
        assert!(bench.is_running(&next).await);
    })
    .await;
}
