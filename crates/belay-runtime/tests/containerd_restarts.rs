//! What is known of execs after the agent, containerd or the container was restarted.

#![allow(clippy::unwrap_used)]

mod cri;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belay_action::{Found, Outcome, TargetError};
use belay_runtime::{
    Containers, CriRuntime, RuntimeError, SessionError, SessionRequest, Sessions as _,
};
use belay_testkit::ContainerSpec;
use cri::*;

/// Runs what only an agent's end can leave behind: the first agent is a runtime that is shut down
/// with everything it was doing.
fn with_an_agent_that_dies<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| {
            let agent = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let left = agent.block_on(work());
            agent.shutdown_background();
            left
        });
        agent.join().unwrap()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_follows_what_runs_to_its_real_end() {
    on_each(async |bench| {
        let (pod, _) = bench.sleeper().await;
        let script = "echo before; while ! [ -e /tmp/go ]; do sleep 0.05; done; echo after; exit 7";
        with_an_agent_that_dies(async || {
            let runtime = CriRuntime::connect(&bench.endpoint, &bench.state)
                .await
                .unwrap();
            let target = runtime.target(&pod.id).await.unwrap();
            target.start(&exec("a1", script, LONG)).await.unwrap();
        });
        let target = bench.target(&pod).await;
        let mut running = found_running(&target, "a1").await;
        run(&target, "a2", "touch /tmp/go").await;
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Exited { code: 7 });
        assert_eq!(report.output, "before\nafter\n");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_no_agent_saw_is_found_with_its_output() {
    on_each(async |bench| {
        let (pod, _) = bench.sleeper().await;
        let mark = unique_seconds();
        let script = format!("echo said; sleep {mark}; exit 9");
        with_an_agent_that_dies(async || {
            let runtime = CriRuntime::connect(&bench.endpoint, &bench.state)
                .await
                .unwrap();
            let target = runtime.target(&pod.id).await.unwrap();
            target.start(&exec("a1", &script, LONG)).await.unwrap();
            drop(target.start(&exec("a2", "exit 3", LONG)).await.unwrap());
        });
        until("it sleeps", || !with_argument(&mark).is_empty()).await;
        for pid in with_argument(&mark) {
            // The sleep, not the shell that waits for it.
            if fs::read_to_string(format!("/proc/{pid}/comm"))
                .unwrap()
                .trim()
                == "sleep"
            {
                kill(pid);
            }
        }
        until("it is over", || with_argument(&mark).is_empty()).await;
        let target = bench.target(&pod).await;
        let report = found_ended(&target, "a1").await;
        assert_eq!(report.outcome, Outcome::Exited { code: 9 });
        // The shell adds that its child was killed.
        assert!(report.output.starts_with("said\n"), "{}", report.output);
        assert_eq!(found_ended(&target, "a1").await, report);
        assert_eq!(
            found_ended(&target, "a2").await.outcome,
            Outcome::Exited { code: 3 }
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_passed_while_there_was_no_agent_is_kept_by_the_next() {
    on_each(async |bench| {
        let (pod, _) = bench.sleeper().await;
        let mark = unique_seconds();
        let script = format!("setsid sleep {mark} & sleep {mark}");
        let limit = Duration::from_secs(8);
        with_an_agent_that_dies(async || {
            let runtime = CriRuntime::connect(&bench.endpoint, &bench.state)
                .await
                .unwrap();
            let target = runtime.target(&pod.id).await.unwrap();
            target.start(&exec("a1", &script, limit)).await.unwrap();
            target.start(&exec("a2", &script, limit)).await.unwrap();
        });
        tokio::time::sleep(limit + Duration::from_secs(2)).await;
        assert!(!with_argument(&mark).is_empty(), "nobody killed it");
        // The start of one was never recorded: its deadline is counted from its process.
        fs::remove_file(bench.exec_dir(&pod.id, "a2").join("started")).unwrap();
        let target = bench.target(&pod).await;
        for name in ["a1", "a2"] {
            let mut running = found_running(&target, name).await;
            assert_eq!(
                soon(running.wait()).await.unwrap().outcome,
                Outcome::TimedOut
            );
        }
        assert_eq!(with_argument(&mark), Vec::<i32>::new());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_started_is_told_from_what_is_lost() {
    on_each(async |mut bench| {
        let (pod, target) = bench.sleeper().await;
        let found = target.find(&attempt("unheard-of")).await.unwrap();
        assert!(matches!(found, Found::NeverStarted), "{found:?}");
        run(&target, "a0", "true").await;
        // The agent ended when it had announced the attempt, and again when it was about to start.
        for (name, starting, expected) in [
            ("announced", false, "NeverStarted"),
            ("starting", true, "Lost"),
        ] {
            let dir = bench.exec_dir(&pod.id, name);
            fs::create_dir(&dir).unwrap();
            if starting {
                let from = bench.exec_dir(&pod.id, "a0").join("starting");
                fs::copy(from, dir.join("starting")).unwrap();
            }
            bench.reopen().await;
            let target = bench.target(&pod).await;
            for _ in 0..2 {
                let found = target.find(&attempt(name)).await.unwrap();
                assert_eq!(format!("{found:?}"), expected);
            }
        }
        // What provably never started may be started after all.
        assert_eq!(
            run(&target, "announced", "true").await.outcome,
            Outcome::Succeeded
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_attempt_leaves_nothing_alive() {
    on_each(async |bench| {
        let (pod, _) = bench.sleeper().await;
        let mark = unique_seconds();
        let script = format!("setsid sleep {mark} & sleep {mark}");
        with_an_agent_that_dies(async || {
            let runtime = CriRuntime::connect(&bench.endpoint, &bench.state)
                .await
                .unwrap();
            let target = runtime.target(&pod.id).await.unwrap();
            target.start(&exec("a1", &script, LONG)).await.unwrap();
        });
        until("both run", || with_argument(&mark).len() >= 2).await;
        // Under another name containerd knows nothing of it: as after a start that was cut off.
        let (known, unknown) = (bench.exec_dir(&pod.id, "a1"), bench.exec_dir(&pod.id, "a2"));
        fs::rename(&known, &unknown).unwrap();
        let target = bench.target(&pod).await;
        let found = target.find(&attempt("a2")).await.unwrap();
        assert!(matches!(found, Found::Lost), "{found:?}");
        assert_eq!(with_argument(&mark), Vec::<i32>::new());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_is_killed_while_execs_run_and_their_ends_are_the_real_ones() {
    on_own(async |containerd| {
        let bench = Bench::new(containerd).await;
        let (pod, target) = bench.sleeper().await;
        let script = "while ! [ -e /tmp/go ]; do sleep 0.05; done; echo said; exit 7";
        let mut waits = target.start(&exec("waits", script, LONG)).await.unwrap();
        let mut ends = target
            .start(&exec("ends", "sleep 1; exit 5", LONG))
            .await
            .unwrap();
        let mark = unique_seconds();
        let long = exec(
            "late",
            &format!("setsid sleep {mark} & sleep {mark}"),
            Duration::from_secs(3),
        );
        let mut late = target.start(&long).await.unwrap();
        containerd.kill9().unwrap();
        // The kernel still tells whether it runs; a start fails and says why; a deadline is kept.
        assert!(bench.runtime.is_running(&pod.id).await.unwrap());
        let error = target
            .start(&exec("away", "true", LONG))
            .await
            .err()
            .unwrap();
        assert!(matches!(error, TargetError::Away { .. }), "{error:?}");
        let text = std::error::Error::source(&error).unwrap().to_string();
        assert!(text.contains("cannot be reached"), "{text}");
        assert!(text.contains("is it running?"), "{text}");
        let error = target.find(&attempt("away")).await.unwrap_err();
        assert!(matches!(error, TargetError::Away { .. }), "{error:?}");
        let report = soon(late.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::TimedOut);
        assert_eq!(with_argument(&mark), Vec::<i32>::new());
        containerd.start_again().await.unwrap();
        assert_eq!(
            soon(ends.wait()).await.unwrap().outcome,
            Outcome::Exited { code: 5 }
        );
        let found = target.find(&attempt("away")).await.unwrap();
        assert!(matches!(found, Found::NeverStarted), "{found:?}");
        run(&target, "go", "touch /tmp/go").await;
        let report = soon(waits.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Exited { code: 7 });
        assert_eq!(report.output, "said\n");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_made_in_time_is_not_started_after_its_deadline() {
    on_own(async |containerd| {
        let bench = Bench::new(containerd).await;
        let (pod, target) = bench.sleeper().await;
        // From here on nothing has to be asked about the container.
        run(&target, "before", "true").await;
        containerd.hang().unwrap();
        let latest = Instant::now() + Duration::from_secs(20);
        let asked = tokio::spawn({
            let target = Arc::clone(&target);
            let request = exec("late", "touch /tmp/late", LONG);
            async move { target.start_before(&request, latest).await.err() }
        });
        // There was time left; containerd has been asked to make it, and not to start it.
        let dir = bench.exec_dir(&pod.id, "late");
        until("it is being made", || dir.exists()).await;
        assert!(!dir.join("starting").exists());
        tokio::time::sleep_until(latest.into()).await;
        containerd.go_on().unwrap();
        let late = soon(asked).await.unwrap();
        assert!(
            matches!(late, Some(TargetError::TooLate { .. })),
            "{late:?}"
        );
        let found = target.find(&attempt("late")).await.unwrap();
        assert!(matches!(found, Found::NeverStarted), "{found:?}");
        let untouched = run(&target, "look", "! [ -e /tmp/late ]").await;
        assert_eq!(untouched.outcome, Outcome::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn nothing_reaches_a_containers_successor() {
    on_each(async |bench| {
        let (pod, target) = bench.sleeper().await;
        run(&target, "a1", "true").await;
        let kubelet = &bench.kubelet;
        kubelet.stop_container(pod.id.as_str(), 0).await.unwrap();
        let successor = ContainerSpec {
            attempt: 1,
            ..ContainerSpec::sh(
                "main",
                "trap 'echo > /tmp/hup' HUP; while :; do sleep 0.1; done",
            )
        };
        let successor = kubelet
            .run_container(&pod.sandbox, &pod.spec, &successor)
            .await
            .unwrap();
        let successor = belay_action::ContainerId::new(successor).unwrap();
        assert_ne!(successor, pod.id);
        // The old target, a new one on the old container, and one that may not use tasks.
        let targets = [
            target,
            bench.target(&pod).await,
            bench.runtime.without_tasks().target(&pod.id).await.unwrap(),
        ];
        let hup = belay_api::signal::Signal::HUP;
        for target in &targets {
            for error in [
                target.signal(hup).await.unwrap_err(),
                target.disposition(hup).await.unwrap_err(),
            ] {
                assert!(matches!(error, TargetError::NotRunning { .. }), "{error:?}");
            }
            soon(target.wait()).await.unwrap();
        }
        for target in &targets[..2] {
            let error = target
                .start(&exec("a2", "touch /tmp/exec", LONG))
                .await
                .err();
            assert!(
                matches!(error, Some(TargetError::NotRunning { .. })),
                "{error:?}"
            );
            // The attempts of the old one can still be found, until it is removed.
            assert_eq!(found_ended(target, "a1").await.outcome, Outcome::Succeeded);
        }
        let target = bench.runtime.target(&successor).await.unwrap();
        let found = target.find(&attempt("a1")).await.unwrap();
        assert!(matches!(found, Found::NeverStarted), "{found:?}");
        let untouched = run(&target, "look", "! [ -e /tmp/hup ] && ! [ -e /tmp/exec ]").await;
        assert_eq!(untouched.outcome, Outcome::Succeeded);
        kubelet.remove_container(pod.id.as_str()).await.unwrap();
        let gone = bench.runtime.is_running(&pod.id).await.unwrap_err();
        assert!(matches!(gone, RuntimeError::NotFound { .. }), "{gone:?}");
        // Its records go with the next agent.
        let dir = bench.exec_dir(&pod.id, "a1");
        assert!(dir.exists());
        let kept = bench.exec_dir(&successor, "look");
        CriRuntime::connect(&bench.endpoint, &bench.state)
            .await
            .unwrap();
        until("the old records are removed", || !dir.exists()).await;
        assert!(kept.exists());
    })
    .await;
}

#[tokio::test]
async fn a_runtime_that_is_not_there_or_does_not_answer_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let connect = async |endpoint: &Path| {
        let endpoint = endpoint.display().to_string();
        let state = dir.path().join("state");
        soon(CriRuntime::connect(&endpoint, &state))
            .await
            .unwrap_err()
            .to_string()
    };
    let nobody = connect(&dir.path().join("nobody.sock")).await;
    assert!(nobody.contains("cannot be reached"), "{nobody}");
    let deaf = dir.path().join("deaf.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&deaf).unwrap();
    let silent = connect(&deaf).await;
    assert!(silent.contains("has not answered"), "{silent}");
}

fn kill(pid: i32) {
    let done = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status();
    assert!(done.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_whose_starts_were_given_up_leave_nothing_when_containerd_goes_on() {
    on_own(async |containerd| {
        let bench = Bench::new(containerd).await;
        let (pod, _) = bench.sleeper().await;
        let mark = unique_seconds();
        // Somebody begins a session at any moment, so some are under way when containerd hangs.
        let (opened, given_up) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let enough = Arc::new(AtomicBool::new(false));
        let mut opening = tokio::task::JoinSet::new();
        for number in 0..12 {
            let (runtime, id, mark) = (bench.runtime.clone(), pod.id.clone(), mark.clone());
            let (opened, given_up) = (Arc::clone(&opened), Arc::clone(&given_up));
            let enough = Arc::clone(&enough);
            opening.spawn(async move {
                for round in 0.. {
                    if enough.load(Ordering::SeqCst) {
                        return;
                    }
                    let request = SessionRequest {
                        id: attempt(&format!("given-up-{number}-{round}")),
                        command: ["/bin/sleep", &mark].map(str::to_owned).to_vec(),
                        stdin: false,
                        terminal: None,
                    };
                    match runtime.open(&id, &request).await {
                        Ok(_) => opened.fetch_add(1, Ordering::SeqCst),
                        Err(SessionError::Runtime(_)) => given_up.fetch_add(1, Ordering::SeqCst),
                        Err(error) => panic!("{error}"),
                    };
                }
            });
        }
        until("a session to open", || opened.load(Ordering::SeqCst) > 0).await;
        containerd.hang().unwrap();
        let before = given_up.load(Ordering::SeqCst);
        until("a start to be given up", || {
            given_up.load(Ordering::SeqCst) > before
        })
        .await;
        enough.store(true, Ordering::SeqCst);
        containerd.go_on().unwrap();
        while let Some(ended) = soon(opening.join_next()).await {
            ended.unwrap();
        }
        let sessions = bench.state.join("sessions");
        until("nothing is left", || {
            let empty = fs::read_dir(&sessions).is_ok_and(|mut left| left.next().is_none());
            empty && with_argument(&mark).is_empty()
        })
        .await;
    })
    .await;
}
