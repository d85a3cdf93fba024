//! The life of containers, on real processes: what is theirs beyond the conformance suite.

#![allow(clippy::unwrap_used)]

mod fixture;

use belay_runtime::*;
use belay_shim::proc::{ATTEMPT_MARK, Process};
use fixture::*;

#[tokio::test]
async fn a_signal_that_ended_it_is_told_as_kubernetes_tells_it() {
    let bench = Bench::new();
    for (script, code, signal) in [
        ("kill -TERM $$", 143, Some(15)),
        ("kill -9 $$", 137, Some(9)),
    ] {
        let id = bench.start(script).await;
        let exit = soon(bench.runtime.wait(&id)).await.unwrap();
        assert_eq!(
            (exit.code, exit.signal, exit.reason),
            (code, signal, ExitReason::Error)
        );
        // Asked again, and by state, it is the same.
        assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap(), exit);
        let state = bench.runtime.state(&id).await.unwrap();
        assert_eq!(state.status, ContainerStatus::Exited(exit));
        assert_eq!(state.pid, None);
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_not_started_and_leaves_nothing() {
    let bench = Bench::new();
    let mut nowhere = bench.config(&["true"]);
    nowhere.working_dir = Some("/does/not/exist".into());
    let mut nul = bench.config(&["true"]);
    nul.env.push(("A".into(), "\0".into()));
    let cases = [
        (nowhere, "BadWorkingDirectory", "/does/not/exist"),
        (bench.config(&[]), "InvalidConfig", "no command"),
        (nul, "InvalidConfig", "\"A\""),
    ];
    for (config, expected, word) in cases {
        match bench.runtime.start(&config).await {
            Err(RuntimeError::StartFailed { reason, message }) => {
                assert_eq!(reason, expected, "{message}");
                assert!(message.contains(word), "{message:?} does not name {word:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bench.runtime.list().await.unwrap().states, []);
    let left = std::fs::read_dir(bench.path("run/containers"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_directory_deeper_than_a_socket_address_is_no_obstacle() {
    let root = tempfile::tempdir().unwrap();
    let deep = root
        .path()
        .join("d".repeat(90))
        .join("e".repeat(90))
        .join("run");
    let runtime = ProcessRuntime::open(&deep).unwrap();
    let config = config(root.path(), &["sleep", "1000"]);
    let id = runtime.start(&config).await.unwrap();
    let runtime = ProcessRuntime::open(&deep).unwrap();
    soon(runtime.kill_tree(&id)).await.unwrap();
    assert_eq!(soon(runtime.wait(&id)).await.unwrap().signal, Some(9));
}

#[tokio::test]
async fn a_new_process_has_no_signals_blocked_or_ignored_and_no_files_of_ours() {
    let bench = Bench::new();
    let script = "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls -l /proc/self/fd | wc -l";
    let id = bench.start(script).await;
    soon(bench.runtime.wait(&id)).await.unwrap();
    let log = bench.log();
    for mask in &log[..2] {
        assert!(mask.ends_with("0000000000000000"), "{log:?}");
    }
    // A heading, the three standard ones, and the directory that is being listed.
    assert_eq!(log[2], "stdout F 5");
}

#[tokio::test]
async fn a_workload_may_open_as_many_files_as_before_the_agent_asked_for_more() {
    let limit = || rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let found = limit();
    let lower = rustix::process::Rlimit {
        current: Some(1000),
        ..found
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, lower).unwrap();
    belay_runtime::raise_open_files();
    assert_eq!(limit().current, limit().maximum);
    let bench = Bench::new();
    let id = bench.start("ulimit -Sn; ulimit -Hn").await;
    soon(bench.runtime.wait(&id)).await.unwrap();
    let most = limit().maximum.unwrap();
    assert_eq!(
        bench.log(),
        ["stdout F 1000".to_owned(), format!("stdout F {most}")]
    );
}

#[tokio::test]
async fn the_agent_has_no_child_left_to_reap() {
    let bench = Bench::new();
    let name = &unique("one");
    let (id, target) = bench.sleeper().await;
    let mut running = target.start(&exec(name, "true", LONG)).await.unwrap();
    soon(running.wait()).await.unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let state = bench.runtime.state(&id).await.unwrap();
    let first = Process::read(i32::try_from(state.pid.unwrap()).unwrap())
        .unwrap()
        .unwrap();
    let shim = Process::read(first.parent).unwrap().unwrap();
    assert_ne!(shim.parent, own);
    assert_ne!(shim.session, Process::read(own).unwrap().unwrap().session);
    assert!(marked(ATTEMPT_MARK, name).is_empty());
}

#[tokio::test]
async fn ten_shims_cost_less_than_400_kib_of_private_memory_each() {
    let bench = Bench::new();
    let mut shims = Vec::new();
    for _ in 0..10 {
        let (id, _) = bench.sleeper().await;
        let state = bench.runtime.state(&id).await.unwrap();
        let first = Process::read(i32::try_from(state.pid.unwrap()).unwrap())
            .unwrap()
            .unwrap();
        shims.push(first.parent);
    }
    for shim in shims {
        let rollup = std::fs::read_to_string(format!("/proc/{shim}/smaps_rollup")).unwrap();
        let private: u64 = rollup
            .lines()
            .filter(|line| line.starts_with("Private_"))
            .map(|line| {
                line.split_whitespace()
                    .nth(1)
                    .unwrap()
                    .parse::<u64>()
                    .unwrap()
            })
            .sum();
        println!("shim {shim}: {private} KiB private");
        assert!(private < 400, "{rollup}");
    }
}
