//! Pods on a containerd that is killed or hangs, and with agents that are killed.

#![allow(clippy::unwrap_used, unreachable_pub)]

#[path = "conformance/bench.rs"]
mod bench;
mod fixture;

use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_action::{ContainerId, Found, Outcome};
use belay_api::signal::Signal;
use belay_runtime::*;
use belay_testkit::containerd::{Containerd, Installation};
use belay_testkit::skip::skip;
use bench::*;
use fixture::{LONG, exec, soon, unique_seconds, until, with_argument};

/// Whether the kernel tells how a process ended to others than its parent: since Linux 6.15.
fn kernel_tells() -> bool {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let handle = belay_shim::sys::pidfd_open(i32::try_from(child.id()).unwrap()).unwrap();
    child.wait().unwrap();
    belay_shim::sys::pidfd_exit(std::os::fd::AsFd::as_fd(&handle)).is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_is_killed_and_nobody_notices() {
    on_own(async |containerd| {
        let mut bench = Bench::on_containerd(containerd).await;
        let go = bench.path("go");
        let script = format!(
            "while [ ! -e {} ]; do sleep 0.02; done; exit 5",
            go.display()
        );
        let (id, _) = bench.start(&script).await;
        let (lasting, target) = bench.sleeper().await;
        let wait = |id: &ContainerId| {
            let (runtime, id) = (Arc::clone(&bench.runtime), id.clone());
            tokio::spawn(async move { soon(runtime.wait(&id)).await })
        };
        let (ends, stays) = (wait(&id), wait(&lasting));
        assert!(bench.is_running(&id).await);
        containerd.kill9().unwrap();
        // It ends while there is nobody to see it.
        std::fs::write(&go, "").unwrap();
        assert!(bench.runtime.is_running(&lasting).await.unwrap());
        let error = soon(bench.runtime.list()).await.unwrap_err();
        assert!(matches!(error, RuntimeError::Away { .. }), "{error}");
        let error = soon(bench.runtime.sandbox(&bench.other_pod()))
            .await
            .unwrap_err();
        assert!(matches!(error, RuntimeError::Away { .. }), "{error}");
        let error = soon(bench.runtime.start(&bench.sh("true")))
            .await
            .unwrap_err();
        assert!(matches!(error, RuntimeError::Away { .. }), "{error}");
        containerd.start_again().await.unwrap();
        let ended = ends.await.unwrap().unwrap();
        // containerd 2 forgets how it ended.
        if kernel_tells() || ended.reason != ExitReason::ContainerStatusUnknown {
            assert_eq!((ended.code, ended.reason), (5, ExitReason::Error));
        }
        assert!(bench.is_running(&lasting).await);
        // What is to be ended is ended, whether it is there or not.
        containerd.kill9().unwrap();
        target.signal(Signal::KILL).await.unwrap();
        soon(target.wait()).await.unwrap();
        let none: Vec<String> = vec![];
        assert_eq!(soon(bench.runtime.kill_tree(&lasting)).await.unwrap(), none);
        containerd.start_again().await.unwrap();
        assert_eq!(stays.await.unwrap().unwrap().code, 137);
        bench.finish().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_hangs_and_containers_are_ended_in_time() {
    on_own(async |containerd| {
        let mut bench = Bench::on_containerd(containerd).await;
        let mark = unique_seconds();
        let script = format!(
            "trap 'echo got; touch {}' HUP; (setsid sleep {mark} &); echo ready; while :; do sleep 0.05; done",
            bench.path("got").display()
        );
        let (id, config) = bench.start(&script).await;
        let (obedient, said) = bench
            .start("trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done")
            .await;
        logged(&said, "stdout F ready").await;
        logged(&config, "stdout F ready").await;
        until("its daemon runs", || with_argument(&mark).len() == 1).await;
        let target = bench.runtime.target(&id).await.unwrap();
        let wait = |id: &ContainerId| {
            let (runtime, id) = (Arc::clone(&bench.runtime), id.clone());
            tokio::spawn(async move { soon(runtime.wait(&id)).await.unwrap() })
        };
        let (waiting, obeying) = (wait(&id), wait(&obedient));
        let listens = bench.runtime.target(&obedient).await.unwrap();
        containerd.hang().unwrap();
        // None of these may need an answer: an answer would never come.
        target.signal(Signal::HUP).await.unwrap();
        until("the signal arrives", || bench.path("got").exists()).await;
        let again = bench.runtime.target(&id).await.unwrap();
        assert!(bench.runtime.is_running(&id).await.unwrap());
        assert_eq!(soon(bench.runtime.kill_tree(&id)).await.unwrap(), Vec::<String>::new());
        soon(again.wait()).await.unwrap();
        assert_eq!(with_argument(&mark), [0; 0]);
        listens.signal(Signal::TERM).await.unwrap();
        if kernel_tells() {
            assert_eq!(obeying.await.unwrap().code, 3);
            containerd.go_on().unwrap();
        } else {
            containerd.go_on().unwrap();
            assert_eq!(obeying.await.unwrap().code, 3);
        }
        assert_eq!(waiting.await.unwrap().code, 137);
        bench.finish().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_command_is_told_by_the_kernel_while_containerd_hangs() {
    if !kernel_tells() {
        return skip("the kernel tells how a process ended only to its parent, before Linux 6.15");
    }
    on_own(async |containerd| {
        let mut bench = Bench::on_containerd(containerd).await;
        let (_, target) = bench.sleeper().await;
        let (up, go) = (bench.path("up"), bench.path("go"));
        let script = format!(
            "touch {}; while [ ! -e {} ]; do sleep 0.02; done; exit 5",
            up.display(),
            go.display()
        );
        let request = exec("lasting", &script, LONG * 10);
        let mut running = target.start(&request).await.unwrap();
        until("it runs", || up.exists()).await;
        containerd.hang().unwrap();
        std::fs::write(&go, "").unwrap();
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Exited { code: 5 });
        containerd.go_on().unwrap();
        bench.finish().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_to_a_containerd_that_hangs_follows_a_command_that_runs() {
    if !kernel_tells() {
        return skip("the kernel tells how a process ended only to its parent, before Linux 6.15");
    }
    on_own(async |containerd| {
        let mut bench = Bench::on_containerd(containerd).await;
        let (id, _) = bench.sleeper().await;
        let (up, go) = (bench.path("up"), bench.path("go"));
        let script = format!(
            "touch {}; while [ ! -e {} ]; do sleep 0.02; done; exit 5",
            up.display(),
            go.display()
        );
        let request = exec("lasting", &script, LONG * 10);
        // An agent that dies with everything it was doing.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let agent = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                agent.block_on(async {
                    let target = bench.again().await.target(&id).await.unwrap();
                    target.start(&request).await.unwrap();
                });
                agent.shutdown_background();
            });
        });
        until("it runs", || up.exists()).await;
        containerd.hang().unwrap();
        bench.reopen().await;
        let target = bench.runtime.target(&id).await.unwrap();
        let found = soon(target.find(&request.attempt)).await.unwrap();
        let Found::Running(mut running) = found else {
            panic!("{found:?}");
        };
        std::fs::write(&go, "").unwrap();
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Exited { code: 5 });
        containerd.go_on().unwrap();
        bench.finish().await;
    })
    .await;
}

/// Whoever has used it before knows what runs there, whether it answers or not.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_to_a_containerd_that_hangs_can_end_what_runs() {
    on_own(async |containerd| {
        let mut bench = Bench::on_containerd(containerd).await;
        let (id, _) = bench.sleeper().await;
        let (ended, _) = bench.sleeper().await;
        for id in [&id, &ended] {
            assert!(bench.runtime.is_running(id).await.unwrap());
        }
        containerd.hang().unwrap();
        bench.reopen().await;
        assert!(bench.runtime.is_running(&id).await.unwrap());
        let target = bench.runtime.target(&id).await.unwrap();
        target.signal(Signal::KILL).await.unwrap();
        soon(target.wait()).await.unwrap();
        soon(bench.runtime.kill_tree(&ended)).await.unwrap();
        // Nobody who could be asked knows more than that it has ended.
        assert!(!soon(bench.runtime.is_running(&ended)).await.unwrap());
        containerd.go_on().unwrap();
        for id in [&id, &ended] {
            assert_eq!(soon(bench.runtime.wait(id)).await.unwrap().code, 137);
        }
        bench.finish().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whenever_containerd_is_killed_during_a_start_there_is_one_container_in_the_end() {
    on_own(async |containerd| {
        let mut bench = Bench::on_containerd(containerd).await;
        for round in 0..6_u64 {
            let mark = unique_seconds();
            let config = bench.config(&["sleep", &mark]);
            let starting = tokio::spawn({
                let (runtime, config) = (Arc::clone(&bench.runtime), config.clone());
                async move { runtime.start(&config).await }
            });
            tokio::time::sleep(Duration::from_millis(round * 20)).await;
            containerd.kill9().unwrap();
            let first = soon(starting).await.unwrap();
            containerd.start_again().await.unwrap();
            if round % 2 == 0 {
                // A new agent lists before it starts anything.
                bench.reopen().await;
                soon(bench.runtime.list()).await.unwrap();
            }
            let begin = Instant::now();
            let id = loop {
                match soon(bench.runtime.start(&config)).await {
                    Ok(id) => break id,
                    Err(error) => assert!(begin.elapsed() < LONG, "{error}"),
                }
            };
            if let Ok(first) = first {
                assert_eq!(first, id, "what was started is found");
            }
            until("it runs", || !with_argument(&mark).is_empty()).await;
            assert_eq!(with_argument(&mark).len(), 1, "round {round}");
            let listed = bench.runtime.list().await.unwrap().states;
            let same = listed.iter().filter(|one| one.config.name == config.name);
            assert_eq!(same.map(|one| &one.id).collect::<Vec<_>>(), [&id]);
        }
        bench.finish().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whenever_an_agent_is_killed_the_next_one_goes_on_with_what_there_is() {
    for installation in Installation::each() {
        let containerd = Containerd::shared(&installation).await.unwrap();
        let mut bench = Bench::on_containerd(containerd).await;
        for round in 0..5_u64 {
            let other = bench.other_pod();
            let mark = unique_seconds();
            let mut config = ContainerConfig {
                pod_uid: other.uid.clone(),
                pod_name: other.name.clone(),
                ..bench.config(&["sleep", &mark])
            };
            // An agent that dies with everything it was doing.
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let agent = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap();
                    agent.block_on(async {
                        let runtime = bench.again().await;
                        let work = async {
                            config.sandbox = runtime.sandbox(&other).await.unwrap().id;
                            runtime.start(&config).await.unwrap();
                        };
                        let limit = Duration::from_millis(30 + round * 60);
                        let _ = tokio::time::timeout(limit, work).await;
                    });
                    agent.shutdown_background();
                });
            });
            bench.reopen().await;
            let sandbox = soon(bench.runtime.sandbox(&other)).await.unwrap();
            soon(bench.runtime.list()).await.unwrap();
            config.sandbox = sandbox.id.clone();
            let id = soon(bench.runtime.start(&config)).await.unwrap();
            until("it runs", || !with_argument(&mark).is_empty()).await;
            assert_eq!(with_argument(&mark).len(), 1, "round {round}");
            let all = bench.runtime.sandboxes().await.unwrap();
            let ready = all
                .iter()
                .filter(|one| one.pod_uid == other.uid && one.ready);
            assert_eq!(ready.collect::<Vec<_>>(), [&sandbox]);
            assert!(bench.is_running(&id).await);
            soon(bench.runtime.remove_sandboxes(&other.uid))
                .await
                .unwrap();
            assert_eq!(with_argument(&mark), [0; 0]);
        }
        bench.finish().await;
    }
}
