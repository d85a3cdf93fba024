//! Execs in containers of a real containerd: as whom, outcome, output, deadline, cancel, leftovers.

#![allow(clippy::unwrap_used)]

mod cri;

use std::time::{Duration, Instant};

use belay_action::{Found, Outcome, TargetError};
use belay_runtime::Containers;
use belay_testkit::ContainerSpec;
use cri::*;

const SHORT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn an_exec_is_the_containers_user_with_its_environment_directory_and_capabilities() {
    on_each(async |bench| {
        let container = ContainerSpec {
            environment: vec![("GREETING".into(), "hello world".into())],
            working_dir: "/srv".into(),
            user: Some(1000),
            group: Some(2000),
            ..ContainerSpec::sh("main", "exec sleep 1000000")
        };
        let pod = bench.run(&container).await;
        let target = bench.target(&pod).await;
        let script = "id -u; id -g; pwd; echo $GREETING; echo $BELAY_ATTEMPT_ID; \
                      echo $BELAY_CONTAINER_ID; grep CapEff /proc/self/status | cut -f2";
        let report = run(&target, "a1", script).await;
        assert_eq!(report.outcome, Outcome::Succeeded);
        let expected = format!(
            "1000\n2000\n/srv\nhello world\na1\n{}\n0000000000000000\n",
            pod.id
        );
        assert_eq!(report.output, expected);
        assert!(report.started <= report.finished);
        assert_eq!(target.incarnation().pod_uid, pod.spec.uid);
        assert_eq!(target.incarnation().container, "main");
    })
    .await;
}

#[tokio::test]
async fn root_in_a_container_has_no_more_capabilities_in_an_exec_than_in_the_container() {
    on_each(async |bench| {
        let script = "grep Cap /proc/1/status > /tmp/first; exec sleep 1000000";
        let container = ContainerSpec {
            drop_capabilities: vec!["CHOWN".into(), "NET_RAW".into()],
            ..ContainerSpec::sh("main", script)
        };
        let pod = bench.run(&container).await;
        let target = bench.target(&pod).await;
        let script = "while ! [ -s /tmp/first ]; do sleep 0.1; done; \
                      grep Cap /proc/self/status | diff - /tmp/first && grep CapBnd /tmp/first";
        let report = run(&target, "a1", script).await;
        assert_eq!(report.outcome, Outcome::Succeeded, "{}", report.output);
        // Bit 0 is CAP_CHOWN, bit 13 CAP_NET_RAW.
        let mask = report.output.split_whitespace().last().unwrap();
        let mask = u64::from_str_radix(mask, 16).unwrap();
        assert_eq!(mask & (1 | 1 << 13), 0);
        assert_ne!(mask, 0);
    })
    .await;
}

#[tokio::test]
async fn outcomes_are_told_apart_and_told_again() {
    on_each(async |mut bench| {
        let (pod, target) = bench.sleeper().await;
        let outcomes = [
            ("zero", "exit 0", Outcome::Succeeded),
            ("code", "exit 42", Outcome::Exited { code: 42 }),
            ("signal", "kill -USR1 $$", Outcome::Signaled { signal: 10 }),
            ("killed", "kill -KILL $$", Outcome::Signaled { signal: 9 }),
        ];
        for (name, script, outcome) in &outcomes {
            let mut running = target.start(&exec(name, script, LONG)).await.unwrap();
            let report = soon(running.wait()).await.unwrap();
            assert_eq!(&report.outcome, outcome);
            assert_eq!(running.wait().await.unwrap(), report);
            assert_eq!(found_ended(&target, name).await, report);
        }
        let again = target.start(&exec("zero", "exit 1", LONG)).await;
        assert!(matches!(again.err(), Some(TargetError::Exists { .. })));
        bench.reopen().await;
        let target = bench.target(&pod).await;
        for (name, _, outcome) in &outcomes {
            assert_eq!(&found_ended(&target, name).await.outcome, outcome);
            target.forget(&attempt(name)).await;
            let found = target.find(&attempt(name)).await.unwrap();
            assert!(matches!(found, Found::NeverStarted), "{found:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_comes_too_late_is_not_started_and_leaves_nothing() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let request = exec("late", "exit 0", LONG);
        let now = std::time::Instant::now();
        let late = target.start_before(&request, now).await.err();
        assert!(
            matches!(late, Some(TargetError::TooLate { .. })),
            "{late:?}"
        );
        let found = target.find(&attempt("late")).await.unwrap();
        assert!(matches!(found, Found::NeverStarted), "{found:?}");
        let mut running = target.start_before(&request, now + LONG).await.unwrap();
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Succeeded);
    })
    .await;
}

#[tokio::test]
async fn a_command_that_cannot_be_started_is_an_outcome_that_says_why() {
    on_each(async |bench| {
        let (pod, target) = bench.sleeper().await;
        for (name, command, words) in [
            (
                "missing",
                vec!["no-such-command"],
                "executable file not found",
            ),
            ("absent", vec!["/no/such/file"], "no such file or directory"),
            ("plain", vec!["/etc/not-executable"], "permission denied"),
            ("empty", vec![], "no command"),
            ("nul", vec!["a\0b"], "NUL"),
        ] {
            let mut request = exec(name, "", LONG);
            request.command = command.iter().map(|word| (*word).to_owned()).collect();
            let mut running = target.start(&request).await.unwrap();
            match soon(running.wait()).await.unwrap().outcome {
                Outcome::StartFailed { message } => {
                    assert!(message.contains(words), "{message}");
                    assert!(!message.contains("OCI runtime"), "{message}");
                }
                other => panic!("{other:?}"),
            }
        }
        let found = found_ended(&target, "missing").await;
        assert!(matches!(found.outcome, Outcome::StartFailed { .. }));
        bench
            .kubelet
            .stop_container(pod.id.as_str(), 0)
            .await
            .unwrap();
        let late = target.start(&exec("late", "true", LONG)).await;
        assert!(matches!(late.err(), Some(TargetError::NotRunning { .. })));
    })
    .await;
}

#[tokio::test]
async fn the_end_of_an_output_of_any_length_is_kept_and_nobody_blocks() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let script = "dd if=/dev/zero bs=1024 count=4096 2>/dev/null | tr '\\0' x; \
                      echo out; sleep 0.2; echo err >&2";
        let report = run(&target, "a1", script).await;
        assert_eq!(report.outcome, Outcome::Succeeded);
        assert_eq!(report.output.len(), belay_action::MAX_OUTPUT);
        assert!(report.output.ends_with("xxout\nerr\n"), "{}", report.output);
    })
    .await;
}

#[tokio::test]
async fn a_timeout_kills_sessions_daemons_and_orphans_and_nothing_else() {
    on_each(async |bench| {
        let mark = unique_seconds();
        let first = format!("sleep {mark} & exec sleep 1000000");
        let pod = bench.run(&ContainerSpec::sh("main", &first)).await;
        let target = bench.target(&pod).await;
        until("the container's own child runs", || {
            with_argument(&mark).len() == 1
        })
        .await;
        let own = with_argument(&mark);
        // A child; a session of its own; a double fork that the first process inherits; one that
        // has lost the marks but not the session; one that has lost the marks in a session of its
        // own, below its parent.
        let script = format!(
            "sleep {mark} & setsid sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark}' &) ; \
             (env -i sleep {mark} &) ; setsid sh -c 'env -i sleep {mark}; true' & \
             trap '' TERM; echo said; wait; sleep {mark}"
        );
        let mut running = target.start(&exec("a1", &script, SHORT)).await.unwrap();
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::TimedOut);
        assert_eq!(report.survivors, Vec::<String>::new());
        assert_eq!(report.output, "said\n");
        assert_eq!(
            with_argument(&mark),
            own,
            "the container's own child lives, and nothing else"
        );
        assert!(bench.runtime.is_running(&pod.id).await.unwrap());
        assert_eq!(found_ended(&target, "a1").await, report);
    })
    .await;
}

#[tokio::test]
async fn a_cancel_kills_everything_and_comes_too_late_for_an_end() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let mark = unique_seconds();
        let script = format!("setsid sleep {mark} & sleep {mark}");
        let mut running = target.start(&exec("a1", &script, LONG)).await.unwrap();
        until("both run", || with_argument(&mark).len() == 2).await;
        running.cancel().await;
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Cancelled);
        assert_eq!(with_argument(&mark), Vec::<i32>::new());
        let mut running = target.start(&exec("a2", "exit 3", LONG)).await.unwrap();
        let report = soon(running.wait()).await.unwrap();
        running.cancel().await;
        assert_eq!(running.wait().await.unwrap(), report);
        assert_eq!(report.outcome, Outcome::Exited { code: 3 });
    })
    .await;
}

#[tokio::test]
async fn an_exec_that_ended_leaves_its_daemons_alone_and_their_output_unbroken() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let script = "(while echo noise; do sleep 0.05; done; echo broken > /tmp/broken) & \
                      echo $! > /tmp/pid; echo done";
        let begin = Instant::now();
        let report = run(&target, "a1", script).await;
        assert_eq!(report.outcome, Outcome::Succeeded);
        assert!(report.output.contains("done"), "{}", report.output);
        // Not a matter of speed: a daemon that holds the pipe would hold a reader of it for ever.
        assert!(begin.elapsed() < LONG);
        let script = "sleep 1; kill -0 $(cat /tmp/pid) && ! [ -e /tmp/broken ]";
        let report = run(&target, "a2", script).await;
        assert_eq!(report.outcome, Outcome::Succeeded, "the daemon lives on");
    })
    .await;
}

#[tokio::test]
async fn a_start_whose_caller_is_gone_is_found_and_its_deadline_is_kept() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let mark = unique_seconds();
        let request = exec("a1", &format!("sleep {mark}"), SHORT);
        {
            let start = target.start(&request);
            let _ = tokio::time::timeout(Duration::from_millis(1), start).await;
        }
        let mut running = match target.find(&attempt("a1")).await.unwrap() {
            Found::Running(running) => running,
            other => panic!("{other:?}"),
        };
        let mut second = found_running(&target, "a1").await;
        drop(target);
        assert_eq!(
            soon(running.wait()).await.unwrap().outcome,
            Outcome::TimedOut
        );
        assert_eq!(
            soon(second.wait()).await.unwrap().outcome,
            Outcome::TimedOut
        );
        assert_eq!(with_argument(&mark), Vec::<i32>::new());
    })
    .await;
}

#[tokio::test]
async fn a_container_that_ends_takes_its_execs_along() {
    on_each(async |bench| {
        let (pod, target) = bench.sleeper().await;
        let mut running = target
            .start(&exec("a1", "sleep 1000000", LONG))
            .await
            .unwrap();
        let stop = bench.kubelet.stop_container(pod.id.as_str(), 0);
        let (ended, stopped) = tokio::join!(soon(running.wait()), stop);
        stopped.unwrap();
        match ended {
            Ok(report) => assert_eq!(report.outcome, Outcome::Signaled { signal: 9 }),
            Err(error) => assert!(matches!(error, TargetError::Lost { .. }), "{error:?}"),
        }
        soon(target.wait()).await.unwrap();
        assert!(!bench.runtime.is_running(&pod.id).await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_hundred_execs_at_once_in_one_container_all_end() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let mut all = tokio::task::JoinSet::new();
        for number in 0..100 {
            let target = std::sync::Arc::clone(&target);
            all.spawn(async move {
                let script = format!("echo {number}; exit {}", number % 7);
                let request = exec(&format!("a{number}"), &script, LONG);
                let mut running = target.start(&request).await.unwrap();
                (number, soon(running.wait()).await.unwrap())
            });
        }
        while let Some(done) = all.join_next().await {
            let (number, report) = done.unwrap();
            assert_eq!(report.output, format!("{number}\n"));
            let expected = match number % 7 {
                0 => Outcome::Succeeded,
                code => Outcome::Exited { code },
            };
            assert_eq!(report.outcome, expected);
        }
    })
    .await;
}
