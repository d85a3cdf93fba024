//! The life of containers, on real processes.

#![allow(clippy::unwrap_used)]

mod fixture;

use belay_runtime::*;
use belay_shim::proc::{ATTEMPT_MARK, CONTAINER_MARK, Process};
use fixture::*;

#[tokio::test]
async fn a_container_runs_with_its_environment_and_directory_and_its_output_is_logged() {
    let bench = Bench::new();
    let script = "echo $GREETING; pwd; echo oops >&2; printf unfinished";
    let id = bench.start(script).await;
    let exit = soon(bench.runtime.wait(&id)).await.unwrap();
    assert_eq!(
        (exit.code, exit.signal, exit.reason),
        (0, None, ExitReason::Completed)
    );
    assert!(exit.started <= exit.finished);
    let log = bench.log();
    let dir = format!("stdout F {}", bench.root.path().display());
    for line in [
        "stdout F hello",
        &dir,
        "stderr F oops",
        "stdout F unfinished",
    ] {
        assert!(
            log.iter().any(|logged| logged == line),
            "{line:?} is not in {log:?}"
        );
    }
}

#[tokio::test]
async fn how_it_ended_is_told_as_kubernetes_tells_it() {
    let bench = Bench::new();
    for (script, code, signal) in [
        ("exit 3", 3, None),
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
async fn what_cannot_be_started_says_why_and_leaves_nothing() {
    let bench = Bench::new();
    let plain = bench.path("plain");
    std::fs::write(&plain, "not a program").unwrap();
    let mut nowhere = bench.config(&["true"]);
    nowhere.working_dir = Some("/does/not/exist".into());
    let mut nul = bench.config(&["true"]);
    nul.env.push(("A".into(), "\0".into()));
    let cases = [
        (
            bench.config(&["belay-no-such-command"]),
            "CommandNotFound",
            "belay-no-such-command",
        ),
        (
            bench.config(&["/no/such/file"]),
            "CommandNotFound",
            "/no/such/file",
        ),
        (
            bench.config(&[plain.to_str().unwrap()]),
            "CommandNotExecutable",
            "plain",
        ),
        (bench.config(&["/tmp"]), "CommandNotExecutable", "/tmp"),
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
    assert_eq!(bench.runtime.list().await.unwrap(), []);
    let left = std::fs::read_dir(bench.path("run/containers"))
        .unwrap()
        .count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn everything_dies_with_the_first_process() {
    let bench = Bench::new();
    let [stripped, daemon, exec_daemon] = [unique_seconds(), unique_seconds(), unique_seconds()];
    let go = bench.path("go");
    // A grandchild in a session of its own without its mark, and a daemon forked twice.
    let script = format!(
        "setsid env -i sleep {stripped} & (setsid sleep {daemon} & ) & \
         while [ ! -e {} ]; do sleep 0.02; done; exit 7",
        go.display()
    );
    let id = bench.start(&script).await;
    let target = bench.runtime.target(&id).await.unwrap();
    // And what an exec left behind, also without its mark.
    let script = format!("setsid env -i sleep {exec_daemon} >/dev/null 2>&1 </dev/null & exit 0");
    let mut running = target.start(&exec("left", &script, LONG)).await.unwrap();
    soon(running.wait()).await.unwrap();
    let all = [&stripped, &daemon, &exec_daemon];
    until("all run", || {
        all.iter()
            .all(|argument| !with_argument(argument).is_empty())
    })
    .await;
    std::fs::write(&go, "").unwrap();
    let exit = soon(bench.runtime.wait(&id)).await.unwrap();
    assert_eq!(exit.code, 7);
    for argument in all {
        assert!(with_argument(argument).is_empty(), "sleep {argument} lives");
    }
    assert!(marked(CONTAINER_MARK, id.as_str()).is_empty());
}

#[tokio::test]
async fn kill_tree_ends_a_container_that_ignores_everything_else() {
    let bench = Bench::new();
    let script = "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; sleep 1000' & \
                  while :; do sleep 1000; done";
    let id = bench.start(script).await;
    let target = bench.runtime.target(&id).await.unwrap();
    let mut running = target
        .start(&exec("inside", "sleep 1000", LONG))
        .await
        .unwrap();
    until("all run", || marked(CONTAINER_MARK, id.as_str()).len() >= 5).await;
    let none: Vec<String> = vec![];
    assert_eq!(soon(bench.runtime.kill_tree(&id)).await.unwrap(), none);
    assert!(marked(CONTAINER_MARK, id.as_str()).is_empty());
    let exit = soon(bench.runtime.wait(&id)).await.unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    // The exec was killed with it, and says so.
    let report = soon(running.wait()).await.unwrap();
    assert_eq!(
        report.outcome,
        belay_action::Outcome::Signaled { signal: 9 }
    );
    // Killing the dead is nothing.
    assert_eq!(soon(bench.runtime.kill_tree(&id)).await.unwrap(), none);
}

#[tokio::test]
async fn a_running_container_is_not_removed_and_a_removed_one_is_forgotten() {
    let bench = Bench::new();
    let (id, _) = bench.sleeper().await;
    let error = bench.runtime.remove(&id).await.unwrap_err();
    assert!(
        matches!(error, RuntimeError::StillRunning { .. }),
        "{error}"
    );
    soon(bench.runtime.kill_tree(&id)).await.unwrap();
    bench.runtime.remove(&id).await.unwrap();
    bench.runtime.remove(&id).await.unwrap();
    assert_eq!(bench.runtime.list().await.unwrap(), []);
    assert!(!exists(&bench.container_dir(&id)));
    let error = bench.runtime.state(&id).await.unwrap_err();
    assert!(matches!(error, RuntimeError::NotFound { .. }), "{error}");
    assert!(exists(&bench.path("logs/main/0.log")));
}

#[tokio::test]
async fn a_new_agent_adopts_what_runs() {
    let mut bench = Bench::new();
    let go = bench.path("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.02; done; exit 5",
        go.display()
    );
    let id = bench.start(&script).await;
    let before = bench.runtime.state(&id).await.unwrap();
    bench.reopen();
    let listed = bench.runtime.list().await.unwrap();
    assert_eq!(listed, [before]);
    assert!(matches!(listed[0].status, ContainerStatus::Running { .. }));
    let pid = i32::try_from(listed[0].pid.unwrap()).unwrap();
    assert_eq!(
        Process::read(pid).unwrap().session,
        pid,
        "it leads a session of its own"
    );
    std::fs::write(&go, "").unwrap();
    assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap().code, 5);
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
async fn a_container_runs_as_its_user() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root to change users");
        return;
    }
    let bench = Bench::new();
    let mut config = bench.sh("id -u; id -g; id -G");
    (config.user, config.group, config.working_dir) = (Some(65534), Some(65533), None);
    let id = bench.runtime.start(&config).await.unwrap();
    soon(bench.runtime.wait(&id)).await.unwrap();
    assert_eq!(
        bench.log(),
        ["stdout F 65534", "stdout F 65533", "stdout F 65533"]
    );
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
async fn the_agent_has_no_child_left_to_reap() {
    let bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    let mut running = target.start(&exec("one", "true", LONG)).await.unwrap();
    soon(running.wait()).await.unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let state = bench.runtime.state(&id).await.unwrap();
    let first = Process::read(i32::try_from(state.pid.unwrap()).unwrap()).unwrap();
    let shim = Process::read(first.parent).unwrap();
    assert_ne!(shim.parent, own);
    assert_ne!(shim.session, Process::read(own).unwrap().session);
    assert!(marked(ATTEMPT_MARK, "one").is_empty());
}

#[tokio::test]
async fn ten_shims_cost_less_than_400_kib_of_private_memory_each() {
    let bench = Bench::new();
    let mut shims = Vec::new();
    for _ in 0..10 {
        let (id, _) = bench.sleeper().await;
        let state = bench.runtime.state(&id).await.unwrap();
        let first = Process::read(i32::try_from(state.pid.unwrap()).unwrap()).unwrap();
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
