//! The life of containers.

use belay_action::Outcome;
use belay_runtime::*;
use belay_shim::proc::Process;

use crate::bench::*;
use crate::fixture::{LONG, exec, soon, unique_seconds, until, with_argument};

#[tokio::test]
async fn a_container_runs_with_its_environment_and_directory_and_its_output_is_logged() {
    on_each(async |bench| {
        let script = "echo $GREETING; pwd; echo oops >&2; printf unfinished";
        let (id, config) = bench.start(script).await;
        let exit = soon(bench.runtime.wait(&id)).await.unwrap();
        let ended = (exit.code, exit.signal, exit.reason);
        assert_eq!(ended, (0, None, ExitReason::Completed));
        assert!(exit.started <= exit.finished);
        let dir = format!(
            "stdout F {}",
            config.working_dir.as_ref().unwrap().display()
        );
        let last = if bench.is_isolated() {
            "stdout P unfinished"
        } else {
            "stdout F unfinished"
        };
        for line in ["stdout F hello", &dir, "stderr F oops", last] {
            logged(&config, line).await;
        }
    })
    .await;
}

#[tokio::test]
async fn how_it_ended_is_told_as_kubernetes_tells_it() {
    on_each(async |bench| {
        for (script, code, signal) in [("exit 3", 3, None), ("exit 143", 143, None)] {
            let (id, _) = bench.start(script).await;
            let exit = soon(bench.runtime.wait(&id)).await.unwrap();
            // A runtime may take a high exit code for a signal: there is no telling them apart.
            let told = exit.signal.filter(|_| code < 128);
            assert_eq!(
                (exit.code, told, exit.reason),
                (code, signal, ExitReason::Error)
            );
            // Asked again, and by state, it is the same.
            assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap(), exit);
            let state = bench.runtime.state(&id).await.unwrap();
            assert_eq!(state.status, ContainerStatus::Exited(exit));
            assert_eq!(state.pid, None);
        }
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_started_says_why_and_leaves_nothing() {
    on_each(async |bench| {
        let plain = bench.path("plain");
        std::fs::write(&plain, "not a program").unwrap();
        let cases = [
            ("belay-no-such-command", "CommandNotFound"),
            ("/no/such/file", "CommandNotFound"),
            (plain.to_str().unwrap(), "CommandNotExecutable"),
            ("/tmp", "CommandNotExecutable"),
        ];
        for (command, expected) in cases {
            match soon(bench.runtime.start(&bench.config(&[command]))).await {
                Err(RuntimeError::StartFailed { reason, message }) => {
                    assert_eq!(reason, expected, "{message}");
                    assert!(
                        message.contains(command),
                        "{message:?} does not name {command:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(bench.runtime.list().await.unwrap().states, []);
    })
    .await;
}

#[tokio::test]
async fn everything_dies_with_the_first_process() {
    on_each(async |bench| {
        let [stripped, daemon, exec_daemon] = [(); 3].map(|()| unique_seconds());
        let go = bench.path("go");
        // A grandchild in a session of its own without its mark, and a daemon forked twice.
        let script = format!(
            "setsid env -i /bin/sleep {stripped} & (setsid sleep {daemon} & ) & \
             while [ ! -e {} ]; do sleep 0.02; done; exit 7",
            go.display()
        );
        let (id, _) = bench.start(&script).await;
        let target = bench.runtime.target(&id).await.unwrap();
        // And what an exec left behind, also without its mark.
        let script =
            format!("setsid env -i /bin/sleep {exec_daemon} >/dev/null 2>&1 </dev/null & exit 0");
        run(&target, "left", &script).await;
        let all = [&stripped, &daemon, &exec_daemon];
        until("all run", || {
            all.iter().all(|one| !with_argument(one).is_empty())
        })
        .await;
        std::fs::write(&go, "").unwrap();
        assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap().code, 7);
        for argument in all {
            assert_eq!(with_argument(argument), [0; 0], "sleep {argument} lives");
        }
    })
    .await;
}

#[tokio::test]
async fn kill_tree_ends_a_container_that_ignores_everything_else() {
    on_each(async |bench| {
        let mark = unique_seconds();
        let script = format!(
            "trap '' TERM INT HUP; setsid sh -c 'trap \"\" TERM; sleep {mark}; :' & \
             (setsid env -i /bin/sleep {mark} &) & while :; do sleep {mark}; done"
        );
        let (id, _) = bench.start(&script).await;
        let target = bench.runtime.target(&id).await.unwrap();
        let request = exec(
            "inside",
            &format!("setsid sleep {mark} & sleep {mark}; :"),
            LONG,
        );
        let mut running = target.start(&request).await.unwrap();
        until("all run", || with_argument(&mark).len() >= 5).await;
        let none: Vec<String> = vec![];
        assert_eq!(soon(bench.runtime.kill_tree(&id)).await.unwrap(), none);
        assert_eq!(with_argument(&mark), [0; 0]);
        let exit = soon(bench.runtime.wait(&id)).await.unwrap();
        assert_eq!((exit.code, exit.signal), (137, Some(9)));
        // The exec was killed with it, and says so.
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Signaled { signal: 9 });
        // Killing the dead is nothing.
        assert_eq!(soon(bench.runtime.kill_tree(&id)).await.unwrap(), none);
    })
    .await;
}

#[tokio::test]
async fn a_running_container_is_not_removed_and_a_removed_one_is_forgotten() {
    on_each(async |bench| {
        let (id, config) = bench.start("echo said; sleep 1000000; :").await;
        logged(&config, "stdout F said").await;
        let error = bench.runtime.remove(&id).await.unwrap_err();
        assert!(
            matches!(error, RuntimeError::StillRunning { .. }),
            "{error}"
        );
        soon(bench.runtime.kill_tree(&id)).await.unwrap();
        soon(bench.runtime.remove(&id)).await.unwrap();
        soon(bench.runtime.remove(&id)).await.unwrap();
        assert_eq!(bench.runtime.list().await.unwrap().states, []);
        let error = bench.runtime.state(&id).await.unwrap_err();
        assert!(matches!(error, RuntimeError::NotFound { .. }), "{error}");
        assert_eq!(log(&config), ["stdout F said"]);
    })
    .await;
}

#[tokio::test]
async fn a_new_agent_adopts_what_runs() {
    on_each(async |bench| {
        let image = image(bench).await;
        let go = bench.path("go");
        let script = format!(
            "while [ ! -e {} ]; do sleep 0.02; done; exit 5",
            go.display()
        );
        let config = ContainerConfig {
            image_id: image.id,
            restart_count: 3,
            stop_signal: Some("SIGUSR1".into()),
            resources: Resources {
                cpu_request: Some(10),
                ..Resources::default()
            },
            ..bench.sh(&script)
        };
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        let before = bench.runtime.state(&id).await.unwrap();
        let mut kept = config;
        if bench.is_isolated() {
            // Who lists containers is not told of what may be secret.
            (kept.command, kept.env) = (Vec::new(), Vec::new());
        }
        assert_eq!(before.config, kept);
        bench.reopen().await;
        let listed = bench.runtime.list().await.unwrap().states;
        assert_eq!(listed, std::slice::from_ref(&before));
        assert!(matches!(before.status, ContainerStatus::Running { .. }));
        let pid = i32::try_from(before.pid.unwrap()).unwrap();
        let session = Process::read(pid).unwrap().unwrap().session;
        assert_eq!(session, pid, "it leads a session of its own");
        let again = soon(bench.runtime.sandbox(&bench.pod)).await.unwrap();
        assert_eq!(again, bench.sandbox);
        std::fs::write(&go, "").unwrap();
        assert_eq!(soon(bench.runtime.wait(&id)).await.unwrap().code, 5);
    })
    .await;
}

#[tokio::test]
async fn a_container_runs_as_its_user() {
    if !rustix::process::geteuid().is_root() {
        return belay_testkit::skip::skip("changing users needs root");
    }
    on_each(async |bench| {
        let config = ContainerConfig {
            user: Some(65534),
            group: Some(65533),
            working_dir: None,
            ..bench.sh("id -u; id -g; id -G")
        };
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        soon(bench.runtime.wait(&id)).await.unwrap();
        logged(&config, "stdout F 65534").await;
        until("all is logged", || log(&config).len() == 3).await;
        let all = ["stdout F 65534", "stdout F 65533", "stdout F 65533"];
        assert_eq!(log(&config), all);
    })
    .await;
}
