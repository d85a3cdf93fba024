//! Execs of the process runtime: what is its own beyond the conformance suite.

#![allow(clippy::unwrap_used)]

mod fixture;

use std::time::Duration;

use belay_action::{Found, Outcome};
use belay_runtime::*;
use belay_shim::proc::{ATTEMPT_MARK, Process};
use fixture::*;

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_fork_storm_is_killed() {
    let bench = Bench::new();
    let (_, target) = bench.sleeper().await;
    // Every process starts another in a new session and ends: there is always a new one, after a
    // moment or at once.
    for (name, moment) in [("storm", "sleep 0.01;"), ("hurricane", "")] {
        let name = &unique(name);
        let script = format!(
            "S='{moment} setsid /bin/sh -c \"$S\" &'; export S; \
             for i in 1 2 3; do setsid /bin/sh -c \"$S\" & done; sleep 1000"
        );
        let mut running = target.start(&exec(name, &script, SHORT)).await.unwrap();
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(
            (report.outcome, report.survivors),
            (Outcome::TimedOut, vec![]),
            "{name}"
        );
        assert!(marked(ATTEMPT_MARK, name).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn an_exec_is_over_with_its_first_process_though_a_daemon_holds_its_output() {
    let bench = Bench::new();
    let name = &unique("daemon");
    let (id, target) = bench.sleeper().await;
    let proof = bench.path("proof");
    let script = format!(
        "(trap 'echo broken > {0}' PIPE; while :; do echo tick || exit; sleep 0.02; \
         [ -e {0}.go ] && echo alive > {0}; done) & echo begun; exit 4",
        proof.display()
    );
    let mut running = target.start(&exec(name, &script, LONG)).await.unwrap();
    let report = soon(running.wait()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 4 });
    assert!(report.output.contains("begun\n"), "{:?}", report.output);
    // Forgotten or not, the daemon goes on and its writes succeed.
    target.forget(&attempt(name)).await;
    assert!(!exists(&bench.exec_dir(&id, name)));
    std::fs::write(bench.path("proof.go"), "").unwrap();
    // The file is there a moment before its line is.
    let said = || std::fs::read_to_string(&proof).unwrap_or_default();
    until("the daemon goes on", || !said().is_empty()).await;
    assert_eq!(said(), "alive\n");
    assert!(!marked(ATTEMPT_MARK, name).is_empty());
    // It ends with the container, and its shim with it.
    soon(bench.runtime.kill_tree(&id)).await.unwrap();
    assert!(marked(ATTEMPT_MARK, name).is_empty());
    until("its shim ends", || {
        marked("BELAY_SHIM_OF", id.as_str()).is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_hundred_mebibytes_of_output_take_no_memory() {
    let bench = Bench::new();
    let name = &unique("big");
    let (_, target) = bench.sleeper().await;
    // The daemon keeps the shim there to be looked at.
    let script = "head -c 104857600 /dev/zero | tr '\\0' x; echo end; sleep 1000 &";
    let mut running = target.start(&exec(name, script, LONG)).await.unwrap();
    let report = soon(running.wait()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Succeeded);
    assert_eq!(report.output.len(), 4096);
    assert!(report.output.ends_with("xend\n"));
    let shim = marked(ATTEMPT_MARK, name)[0].parent;
    let status = std::fs::read_to_string(format!("/proc/{shim}/status")).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    println!("peak of the shim: {peak} KiB");
    assert!(peak < 4096, "{peak} KiB");
}

#[tokio::test]
async fn a_start_that_was_given_up_is_not_called_never_started() {
    let bench = Bench::new();
    let (_, target) = bench.sleeper().await;
    for round in 0..20 {
        let name = unique(&format!("given-up{round}"));
        let request = exec(&name, "exit 5", LONG);
        // Polled once: the work has been handed to another thread, and nobody waits for it.
        let start = tokio::time::timeout(Duration::ZERO, target.start(&request));
        assert!(start.await.is_err());
        match soon(target.find(&attempt(&name))).await.unwrap() {
            Found::Running(mut running) => {
                let report = soon(running.wait()).await.unwrap();
                assert_eq!(report.outcome, Outcome::Exited { code: 5 });
            }
            Found::Ended(report) => assert_eq!(report.outcome, Outcome::Exited { code: 5 }),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_that_races_with_the_end_of_its_container_does_not_outlive_it() {
    for round in 0..20 {
        let bench = Bench::new();
        let (id, target) = bench.sleeper().await;
        let name = format!("race{round}-{}", std::process::id());
        let request = exec(&name, "setsid sleep 1000 & sleep 1000", LONG);
        let (started, killed) = tokio::join!(target.start(&request), bench.runtime.kill_tree(&id));
        assert!(killed.unwrap().is_empty());
        soon(bench.runtime.wait(&id)).await.unwrap();
        if let Ok(mut running) = started {
            let report = soon(running.wait()).await.unwrap();
            assert_eq!(report.outcome, Outcome::Signaled { signal: 9 });
        }
        assert!(marked(ATTEMPT_MARK, &name).is_empty(), "round {round}");
    }
}

#[tokio::test]
async fn the_end_of_the_first_process_is_seen_by_its_target() {
    let bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    let pid = i32::try_from(bench.runtime.state(&id).await.unwrap().pid.unwrap()).unwrap();
    let (ended, ()) = tokio::join!(soon(target.wait()), kill_9(pid));
    ended.unwrap();
    until("it is reaped", || {
        Process::read(pid)
            .unwrap()
            .is_none_or(|process| process.is_dead())
    })
    .await;
}
