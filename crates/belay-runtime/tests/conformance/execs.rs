//! Execs: as whom, outcome, output, deadline, cancel, leftovers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_action::{Found, Outcome, TargetError};

use crate::bench::*;
use crate::fixture::{LONG, attempt, exec, soon, unique_seconds, until, with_argument};

/// Waited for, and long enough for a script to begin on a busy machine.
const SHORT: Duration = Duration::from_secs(8);

#[tokio::test]
async fn an_exec_is_the_containers_user_with_its_environment_and_directory() {
    on_each(async |bench| {
        let mut config = bench.config(&["sleep", "1000000"]);
        if rustix::process::geteuid().is_root() {
            (config.user, config.group) = (Some(1000), Some(2000));
        }
        config.working_dir = Some("/tmp".into());
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        let target = bench.runtime.target(&id).await.unwrap();
        let script = "id -u; id -g; pwd; echo $GREETING; echo $BELAY_ATTEMPT_ID; \
                      echo $BELAY_CONTAINER_ID; cat";
        let report = run(&target, "a1", script).await;
        assert_eq!(report.outcome, Outcome::Succeeded);
        if config.user.is_some() {
            assert_eq!(
                report.output,
                format!("1000\n2000\n/tmp\nhello\na1\n{id}\n")
            );
        }
        assert!(report.started <= report.finished);
        assert_eq!(target.incarnation().pod_uid, bench.pod.uid);
        assert_eq!(target.incarnation().container, config.name);
    })
    .await;
}

#[tokio::test]
async fn root_in_a_container_has_no_more_capabilities_in_an_exec_than_in_the_container() {
    on_each_containerd(async |bench| {
        let script = "grep Cap /proc/1/status > /tmp/first; echo ready; exec sleep 1000000";
        let mut config = bench.sh(script);
        config.security.drop_capabilities = vec!["CHOWN".into(), "NET_RAW".into()];
        let id = soon(bench.runtime.start(&config)).await.unwrap();
        let target = bench.runtime.target(&id).await.unwrap();
        logged(&config, "stdout F ready").await;
        let script = "grep Cap /proc/self/status | diff - /tmp/first && grep CapBnd /tmp/first";
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
    on_each(async |bench| {
        let (id, target) = bench.sleeper().await;
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
        let target = bench.runtime.target(&id).await.unwrap();
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
        let now = Instant::now();
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
        let (_, target) = bench.sleeper().await;
        for (name, command, words) in [
            ("missing", vec!["no-such-command"], "not found"),
            ("absent", vec!["/no/such/file"], "/no/such/file"),
            ("plain", vec!["/etc"], "/etc"),
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
        let raw = run(&target, "raw", r"printf 'a\000\377b'").await;
        assert_eq!(raw.output, "a\0\u{fffd}b");
    })
    .await;
}

#[tokio::test]
async fn a_timeout_kills_sessions_daemons_and_orphans_and_nothing_else() {
    on_each(async |bench| {
        let mark = unique_seconds();
        let (id, _) = bench
            .start(&format!("sleep {mark} & exec sleep 1000000"))
            .await;
        let target = bench.runtime.target(&id).await.unwrap();
        let sleeps = || with_argument(&mark);
        until("the container's own child runs", || sleeps().len() == 1).await;
        let own = sleeps();
        // A child; a session of its own; a double fork; one that has lost the marks but not the
        // session; one that has lost the marks in a session of its own, below its parent.
        let script = format!(
            "sleep {mark} & setsid sleep {mark} & (setsid sh -c 'sleep {mark} & sleep {mark}' &) ; \
             (env -i /bin/sleep {mark} &) ; setsid sh -c 'env -i /bin/sleep {mark}; true' & \
             trap '' TERM; echo said; wait; sleep {mark}"
        );
        let mut running = target.start(&exec("a1", &script, SHORT)).await.unwrap();
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::TimedOut);
        assert_eq!(report.survivors, Vec::<String>::new());
        assert_eq!(report.output, "said\n");
        assert_eq!(
            sleeps(),
            own,
            "the container's own child lives, nothing else"
        );
        assert!(bench.is_running(&id).await);
        assert_eq!(found_ended(&target, "a1").await, report);
        // One who never stops writing is ended as well.
        let mut running = target.start(&exec("yes", "yes", SHORT)).await.unwrap();
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::TimedOut);
        assert!(report.output.ends_with("y\n") && report.output.len() <= 4096);
    })
    .await;
}

#[tokio::test]
async fn a_command_that_drops_its_environment_is_killed_as_any_other() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let moment = Duration::from_millis(300);
        for (name, timeout, outcome) in [
            ("late", moment, Outcome::TimedOut),
            ("cancelled", LONG, Outcome::Cancelled),
        ] {
            let mark = unique_seconds();
            let mut request = exec(name, "", timeout);
            request.command = ["/bin/env", "-i", "/bin/sleep", &mark]
                .map(str::to_owned)
                .to_vec();
            let mut running = target.start(&request).await.unwrap();
            if timeout == LONG {
                until("it runs", || !with_argument(&mark).is_empty()).await;
                running.cancel().await;
            }
            let report = soon(running.wait()).await.unwrap();
            assert_eq!(report.outcome, outcome);
            assert_eq!(report.survivors, Vec::<String>::new());
            assert_eq!(with_argument(&mark), [0; 0]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_cancel_kills_everything_and_comes_too_late_for_an_end() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let mark = unique_seconds();
        let script = format!("trap '' TERM; setsid sleep {mark} & sleep {mark}; :");
        let mut running = target.start(&exec("a1", &script, LONG)).await.unwrap();
        until("both run", || with_argument(&mark).len() == 2).await;
        running.cancel().await;
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Cancelled);
        assert_eq!(with_argument(&mark), [0; 0]);
        let mut running = target.start(&exec("a2", "exit 3", LONG)).await.unwrap();
        let report = soon(running.wait()).await.unwrap();
        running.cancel().await;
        assert_eq!(running.wait().await.unwrap(), report);
        assert_eq!(report.outcome, Outcome::Exited { code: 3 });
    })
    .await;
}

#[tokio::test]
async fn an_exec_is_over_with_its_first_process_and_its_daemons_writes_succeed() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let proof = bench.path("proof");
        let script = format!(
            "(trap 'echo broken > {0}' PIPE; while :; do echo tick || exit; sleep 0.02; \
             [ -e {0}.go ] && echo alive > {0}; done) & echo begun; exit 4",
            proof.display()
        );
        let mut running = target.start(&exec("daemon", &script, LONG)).await.unwrap();
        let report = soon(running.wait()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Exited { code: 4 });
        assert!(report.output.contains("begun\n"), "{:?}", report.output);
        // Forgotten or not, the daemon goes on and its writes succeed.
        target.forget(&attempt("daemon")).await;
        std::fs::write(bench.path("proof.go"), "").unwrap();
        // The file is there a moment before its line is.
        let said = || std::fs::read_to_string(&proof).unwrap_or_default();
        until("the daemon goes on", || !said().is_empty()).await;
        assert_eq!(said(), "alive\n");
    })
    .await;
}

#[tokio::test]
async fn a_start_whose_caller_is_gone_is_found_and_its_deadline_is_kept() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let mark = unique_seconds();
        let request = exec("a1", &format!("sleep {mark}; :"), SHORT);
        {
            let start = target.start(&request);
            let _ = tokio::time::timeout(Duration::from_millis(1), start).await;
        }
        let find = async || match target.find(&attempt("a1")).await.unwrap() {
            Found::Running(running) => running,
            other => panic!("{other:?}"),
        };
        for mut running in [find().await, find().await] {
            let report = soon(running.wait()).await.unwrap();
            assert_eq!(report.outcome, Outcome::TimedOut);
        }
        assert_eq!(with_argument(&mark), [0; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_container_that_ends_takes_its_execs_along_and_takes_no_more() {
    on_each(async |bench| {
        let (id, target) = bench.sleeper().await;
        let request = exec("a1", "sleep 1000000; :", LONG);
        let mut running = target.start(&request).await.unwrap();
        let kill = bench.runtime.kill_tree(&id);
        let (ended, killed) = tokio::join!(soon(running.wait()), kill);
        assert_eq!(killed.unwrap(), Vec::<String>::new());
        match ended {
            Ok(report) => assert_eq!(report.outcome, Outcome::Signaled { signal: 9 }),
            Err(error) => assert!(matches!(error, TargetError::Lost { .. }), "{error:?}"),
        }
        soon(target.wait()).await.unwrap();
        soon(bench.runtime.wait(&id)).await.unwrap();
        for target in [target, bench.runtime.target(&id).await.unwrap()] {
            let late = target.start(&exec("late", "true", LONG)).await.err();
            assert!(
                matches!(late, Some(TargetError::NotRunning { .. })),
                "{late:?}"
            );
            let found = target.find(&attempt("late")).await.unwrap();
            assert!(matches!(found, Found::NeverStarted), "{found:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_hundred_execs_at_once_in_one_container_all_end() {
    on_each(async |bench| {
        let (_, target) = bench.sleeper().await;
        let mut all = tokio::task::JoinSet::new();
        for number in 0..100 {
            let target = Arc::clone(&target);
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
