//! Signals to the first process of a container, by both ways.

#![allow(clippy::unwrap_used)]

mod cri;

use std::sync::Arc;

use belay_action::{Disposition, Target, TargetError};
use belay_api::signal::Signal;
use belay_runtime::Containers;
use belay_testkit::ContainerSpec;
use cri::*;

/// Some of each sort: by name, an alias, the first, middle and last real-time one.
const NAMES: [&str; 14] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGTERM",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGPOLL",
    "SIGRTMIN",
    "SIGRTMIN+5",
    "SIGRTMAX-3",
    "SIGRTMAX",
];

fn signals() -> Vec<Signal> {
    NAMES.iter().map(|name| name.parse().unwrap()).collect()
}

/// Writes the number of every signal of the list into a file.
fn reporter() -> ContainerSpec {
    let traps: String = signals()
        .iter()
        .map(|signal| format!("trap 'echo {0} >> /tmp/got' {0}; ", signal.number()))
        .collect();
    ContainerSpec::sh(
        "main",
        &format!("{traps} trap '' TTOU; touch /tmp/got; while :; do sleep 0.05; done"),
    )
}

/// What the reporter has got, once that many lines are there.
async fn got(target: &Arc<dyn Target>, name: &str, lines: usize) -> Vec<i32> {
    let script =
        format!("while [ $(wc -l < /tmp/got) -lt {lines} ]; do sleep 0.05; done; cat /tmp/got");
    let report = run(target, name, &script).await;
    report
        .output
        .lines()
        .map(|line| line.parse().unwrap())
        .collect()
}

#[tokio::test]
async fn every_sort_of_signal_arrives_as_itself_by_both_ways() {
    on_each(async |bench| {
        let pod = bench.run(&reporter()).await;
        let tasks = bench.target(&pod).await;
        run(
            &tasks,
            "ready",
            "while ! [ -e /tmp/got ]; do sleep 0.05; done",
        )
        .await;
        let pidfd = bench.runtime.without_tasks().target(&pod.id).await.unwrap();
        let mut sent = Vec::new();
        for signal in signals() {
            for (way, target) in [("tasks", &tasks), ("pidfd", &pidfd)] {
                assert_eq!(
                    target.disposition(signal).await.unwrap(),
                    Disposition::Handled
                );
                target.signal(signal).await.unwrap();
                sent.push(signal.number());
                // One after the other: a signal that is pending already is not told twice.
                let name = format!("{}-{way}", sent.len());
                assert_eq!(got(&tasks, &name, sent.len()).await, sent);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_the_first_process_does_on_a_signal_is_told_before_it_is_sent() {
    on_each(async |bench| {
        let pod = bench.run(&reporter()).await;
        let target = bench.target(&pod).await;
        run(
            &target,
            "ready",
            "while ! [ -e /tmp/got ]; do sleep 0.05; done",
        )
        .await;
        for (name, expected) in [
            ("SIGHUP", Disposition::Handled),
            ("SIGTTOU", Disposition::Ignored),
            ("SIGALRM", Disposition::Default),
            ("SIGKILL", Disposition::Default),
            ("SIGRTMAX", Disposition::Handled),
            ("SIGRTMAX-1", Disposition::Default),
        ] {
            let signal = name.parse().unwrap();
            assert_eq!(
                target.disposition(signal).await.unwrap(),
                expected,
                "{name}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_wait_ends_with_the_first_process_and_nobody_is_signalled_after_it() {
    on_each(async |bench| {
        for tasks in [true, false] {
            let (pod, target) = bench.sleeper().await;
            let target = if tasks {
                target
            } else {
                bench.runtime.without_tasks().target(&pod.id).await.unwrap()
            };
            let wait = tokio::spawn({
                let target = Arc::clone(&target);
                async move { target.wait().await }
            });
            // The first process of a PID namespace drops what it does not handle.
            target.signal(Signal::TERM).await.unwrap();
            assert!(bench.runtime.is_running(&pod.id).await.unwrap());
            target.signal(Signal::KILL).await.unwrap();
            soon(wait).await.unwrap().unwrap();
            assert!(!bench.runtime.is_running(&pod.id).await.unwrap());
            let late = target.signal(Signal::HUP).await.unwrap_err();
            assert!(matches!(late, TargetError::NotRunning { .. }), "{late:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn without_tasks_execs_are_refused_and_said_to_be_impossible() {
    on_each(async |bench| {
        let (pod, with) = bench.sleeper().await;
        let capabilities = with.capabilities();
        assert!(capabilities.signal && capabilities.find_attempts && capabilities.kills_tree);
        let without = bench.runtime.without_tasks().target(&pod.id).await.unwrap();
        let capabilities = without.capabilities();
        assert!(capabilities.signal && !capabilities.find_attempts && !capabilities.kills_tree);
        let error = without
            .start(&exec("a1", "true", LONG))
            .await
            .err()
            .unwrap();
        assert!(matches!(error, TargetError::Unsupported { .. }));
        assert!(error.to_string().contains("needs containerd"), "{error}");
        let found = without.find(&attempt("a1")).await.unwrap();
        assert!(matches!(found, belay_action::Found::NeverStarted));
    })
    .await;
}
