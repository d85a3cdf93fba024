//! Agents and shims that are killed, records that are lost, files that somebody spoilt.

#![allow(clippy::unwrap_used)]

mod fixture;

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use belay_action::{AttemptId, ContainerId, Found, Outcome, TargetError};
use belay_runtime::*;
use belay_shim::instance;
use belay_shim::proc::{ATTEMPT_MARK, CONTAINER_MARK, Process};
use belay_shim::record::Record;
use belay_shim::spec::Spec;
use fixture::*;

async fn shim_of(bench: &Bench, id: &ContainerId) -> i32 {
    let pid = bench.runtime.state(id).await.unwrap().pid.unwrap();
    Process::read(i32::try_from(pid).unwrap())
        .unwrap()
        .unwrap()
        .parent
}

/// The shim of an exec whose first process runs.
fn exec_shim(attempt: &str) -> i32 {
    let processes = marked(ATTEMPT_MARK, attempt);
    let first = processes
        .iter()
        .find(|process| process.session == process.pid)
        .unwrap();
    first.parent
}

#[tokio::test]
async fn a_container_whose_shim_is_killed_is_dead_and_its_end_unknown() {
    let bench = Bench::new();
    let id = bench
        .start("setsid sleep 1000 & (setsid sleep 1000 &) & sleep 1000")
        .await;
    let target = bench.runtime.target(&id).await.unwrap();
    let _running = target
        .start(&exec("inside", "setsid sleep 1000 & sleep 1000", LONG))
        .await;
    until("all run", || marked(CONTAINER_MARK, id.as_str()).len() >= 7).await;
    let shim = shim_of(&bench, &id).await;
    let (exit, ()) = tokio::join!(soon(bench.runtime.wait(&id)), kill_9(shim));
    let exit = exit.unwrap();
    assert_eq!(
        (exit.code, exit.reason),
        (137, ExitReason::ContainerStatusUnknown)
    );
    assert!(marked(CONTAINER_MARK, id.as_str()).is_empty());
    soon(target.wait()).await.unwrap();
    // It stays so, for a new agent too.
    let again = ProcessRuntime::open(&bench.path("run")).unwrap();
    let listed = again.list().await.unwrap().states;
    assert_eq!(listed[0].status, ContainerStatus::Exited(exit));
    let error = target
        .start(&exec("late", "true", LONG))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, TargetError::NotRunning { .. }), "{error}");
    again.remove(&id).await.unwrap();
}

#[tokio::test]
async fn the_first_process_dies_with_its_shim_when_nobody_looks() {
    let bench = Bench::new();
    let (id, _) = bench.sleeper().await;
    let pid = i32::try_from(bench.runtime.state(&id).await.unwrap().pid.unwrap()).unwrap();
    kill_9(shim_of(&bench, &id).await).await;
    until("it is dead", || {
        Process::read(pid)
            .unwrap()
            .is_none_or(|process| process.is_dead())
    })
    .await;
}

#[tokio::test]
async fn an_exec_whose_shim_is_killed_is_lost_and_nothing_of_it_lives() {
    let bench = Bench::new();
    let name = &unique("doomed");
    let (id, target) = bench.sleeper().await;
    let script = "setsid sleep 1000 & (setsid sleep 1000 &) & sleep 1000";
    let mut running = target.start(&exec(name, script, LONG)).await.unwrap();
    until("all run", || marked(ATTEMPT_MARK, name).len() >= 4).await;
    kill_9(exec_shim(name)).await;
    let error = soon(running.wait()).await.unwrap_err();
    assert!(matches!(error, TargetError::Lost { .. }), "{error}");
    assert!(marked(ATTEMPT_MARK, name).is_empty());
    for _ in 0..2 {
        assert!(matches!(
            soon(target.find(&attempt(name))).await.unwrap(),
            Found::Lost
        ));
    }
    // The container is untouched, and the record can be dropped.
    assert!(bench.runtime.state(&id).await.unwrap().pid.is_some());
    target.forget(&attempt(name)).await;
    assert!(!exists(&bench.exec_dir(&id, name)));
}

/// A stopped process takes no orders, and can be told nothing by anybody but the kernel.
#[tokio::test]
async fn a_shim_that_does_not_obey_is_killed_with_what_it_supervises() {
    let bench = Bench::new();
    let name = &unique("stubborn");
    let id = bench.start("sleep 1000").await;
    let target = bench.runtime.target(&id).await.unwrap();
    let mut running = target
        .start(&exec(name, "setsid sleep 1000 & sleep 1000", LONG))
        .await
        .unwrap();
    until("the exec runs", || marked(ATTEMPT_MARK, name).len() >= 3).await;
    stop(exec_shim(name));
    running.cancel().await;
    let error = soon(running.wait()).await.unwrap_err();
    assert!(matches!(error, TargetError::Lost { .. }), "{error}");
    assert!(marked(ATTEMPT_MARK, name).is_empty());

    stop(shim_of(&bench, &id).await);
    assert_eq!(
        soon(bench.runtime.kill_tree(&id)).await.unwrap(),
        Vec::<String>::new()
    );
    assert!(marked(CONTAINER_MARK, id.as_str()).is_empty());
}

fn stop(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
}

#[tokio::test]
async fn a_lost_exec_is_cleared_up_by_whoever_looks_for_it() {
    let mut bench = Bench::new();
    let name = &unique("gone");
    let (id, target) = bench.sleeper().await;
    let script = "setsid sleep 1000 & sleep 1000";
    drop(target.start(&exec(name, script, LONG)).await.unwrap());
    until("all run", || marked(ATTEMPT_MARK, name).len() >= 3).await;
    kill_9(exec_shim(name)).await;
    bench.reopen();
    let target = bench.runtime.target(&id).await.unwrap();
    assert!(matches!(
        soon(target.find(&attempt(name))).await.unwrap(),
        Found::Lost
    ));
    assert!(marked(ATTEMPT_MARK, name).is_empty());
}

#[tokio::test]
async fn an_attempt_that_left_no_directory_never_started() {
    let bench = Bench::new();
    let (_, target) = bench.sleeper().await;
    assert!(matches!(
        target.find(&attempt("what")).await.unwrap(),
        Found::NeverStarted
    ));
}

#[tokio::test]
async fn a_directory_without_a_shim_and_without_the_mark_never_started_and_may_start_again() {
    let bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    // As an agent leaves it that is killed before it starts the shim.
    let dir = bench.exec_dir(&id, "early");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join(instance::LOCK), "").unwrap();
    std::fs::write(dir.join(instance::SPEC), "").unwrap();
    assert!(matches!(
        target.find(&attempt("early")).await.unwrap(),
        Found::NeverStarted
    ));
    let mut running = target.start(&exec("early", "exit 6", LONG)).await.unwrap();
    assert_eq!(
        soon(running.wait()).await.unwrap().outcome,
        Outcome::Exited { code: 6 }
    );
}

#[tokio::test]
async fn a_directory_with_the_mark_and_without_a_shim_is_lost() {
    let bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    let dir = bench.exec_dir(&id, "late");
    std::fs::create_dir_all(&dir).unwrap();
    for file in [instance::LOCK, instance::SPEC, instance::STARTING] {
        std::fs::write(dir.join(file), "").unwrap();
    }
    assert!(matches!(
        target.find(&attempt("late")).await.unwrap(),
        Found::Lost
    ));
    let error = target
        .start(&exec("late", "true", LONG))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, TargetError::Exists { .. }), "{error}");
}

#[tokio::test]
async fn a_shim_on_its_way_up_is_waited_for() {
    let bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    let dir = bench.exec_dir(&id, "coming");
    std::fs::create_dir_all(&dir).unwrap();
    let lock = std::fs::File::create(dir.join(instance::LOCK)).unwrap();
    lock.lock().unwrap();
    let look = attempt("coming");
    let mut found = std::pin::pin!(target.find(&look));
    let early = tokio::time::timeout(Duration::from_millis(100), &mut found).await;
    assert!(early.is_err(), "{early:?}");
    drop(lock);
    assert!(matches!(soon(found).await.unwrap(), Found::NeverStarted));
}

#[tokio::test]
async fn an_exec_outlives_its_agent_and_its_outcome_is_found() {
    let mut bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    let go = bench.path("go");
    let script = format!(
        "echo one; while [ ! -e {} ]; do sleep 0.02; done; echo two; exit 9",
        go.display()
    );
    drop(target.start(&exec("long", &script, LONG)).await.unwrap());
    drop(target);
    bench.reopen();
    let target = bench.runtime.target(&id).await.unwrap();
    let Found::Running(mut running) = target.find(&attempt("long")).await.unwrap() else {
        panic!("it is not running");
    };
    std::fs::write(&go, "").unwrap();
    let report = soon(running.wait()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 9 });
    assert_eq!(report.output, "one\ntwo\n");
}

#[tokio::test]
async fn an_adopted_exec_can_be_cancelled() {
    let mut bench = Bench::new();
    let name = &unique("stuck");
    let (id, target) = bench.sleeper().await;
    drop(target.start(&exec(name, "sleep 1000", LONG)).await.unwrap());
    bench.reopen();
    let target = bench.runtime.target(&id).await.unwrap();
    let Found::Running(mut running) = target.find(&attempt(name)).await.unwrap() else {
        panic!("it is not running");
    };
    running.cancel().await;
    assert_eq!(
        soon(running.wait()).await.unwrap().outcome,
        Outcome::Cancelled
    );
    assert!(marked(ATTEMPT_MARK, name).is_empty());
}

#[tokio::test]
async fn the_deadline_holds_without_an_agent() {
    let mut bench = Bench::new();
    let name = &unique("alone");
    let (id, target) = bench.sleeper().await;
    let request = exec(
        name,
        "setsid sleep 1000 & sleep 1000",
        Duration::from_millis(500),
    );
    drop(target.start(&request).await.unwrap());
    drop(target);
    let exit = bench.exec_dir(&id, name).join(instance::EXIT);
    until("the deadline has passed", || exists(&exit)).await;
    assert!(marked(ATTEMPT_MARK, name).is_empty());
    bench.reopen();
    let target = bench.runtime.target(&id).await.unwrap();
    match target.find(&attempt(name)).await.unwrap() {
        Found::Ended(report) => assert_eq!(report.outcome, Outcome::TimedOut),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn waiting_can_be_given_up_and_taken_up_again() {
    let bench = Bench::new();
    let (_, target) = bench.sleeper().await;
    let go = bench.path("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.02; done; echo done",
        go.display()
    );
    let mut running = target
        .start(&exec("patience", &script, LONG))
        .await
        .unwrap();
    for _ in 0..20 {
        let early = tokio::time::timeout(Duration::from_millis(2), running.wait()).await;
        assert!(early.is_err());
    }
    std::fs::write(&go, "").unwrap();
    assert_eq!(soon(running.wait()).await.unwrap().output, "done\n");
}

/// Not a test of its own: the agent that the next one kills.
#[tokio::test]
#[ignore = "run by agent_killed_in_the_middle_loses_nothing"]
async fn agent_to_be_killed() {
    let dir = std::env::var("BELAY_TEST_DIR").unwrap();
    let dir = Path::new(&dir);
    let runtime = ProcessRuntime::open(&dir.join("run")).unwrap();
    let config = config(dir, &["sleep", "1000"]);
    let id = runtime.start(&config).await.unwrap();
    let target = runtime.target(&id).await.unwrap();
    let script = format!(
        "while [ ! -e {}/go ]; do sleep 0.02; done; exit 3",
        dir.display()
    );
    let mut running = Vec::new();
    for number in 0..20 {
        let request = exec(&format!("k{number}"), &script, LONG);
        running.push(target.start(&request).await.unwrap());
    }
    println!("ready {id}");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn agent_killed_in_the_middle_loses_nothing() {
    let mut bench = Bench::new();
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "agent_to_be_killed", "--ignored", "--nocapture"])
        .env("BELAY_TEST_DIR", bench.root.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(agent.stdout.take().unwrap()).lines();
    let id = lines
        .map(Result::unwrap)
        .find_map(|line| {
            line.rsplit_once("ready ")
                .map(|(_, id)| ContainerId::new(id).unwrap())
        })
        .unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
    bench.reopen();
    let listed = bench.runtime.list().await.unwrap().states;
    assert!(matches!(listed[0].status, ContainerStatus::Running { .. }));
    let target = bench.runtime.target(&id).await.unwrap();
    let mut found = Vec::new();
    for number in 0..20 {
        match target
            .find(&AttemptId::new(format!("k{number}")).unwrap())
            .await
            .unwrap()
        {
            Found::Running(running) => found.push(running),
            other => panic!("{other:?}"),
        }
    }
    std::fs::write(bench.path("go"), "").unwrap();
    for mut running in found {
        assert_eq!(
            soon(running.wait()).await.unwrap().outcome,
            Outcome::Exited { code: 3 }
        );
    }
}

#[tokio::test]
async fn after_a_restart_of_the_machine_everything_is_known_to_be_dead() {
    let mut bench = Bench::new();
    let name = &unique("open");
    let (id, target) = bench.sleeper().await;
    let mut running = target.start(&exec("done", "exit 2", LONG)).await.unwrap();
    soon(running.wait()).await.unwrap();
    drop(target.start(&exec(name, "sleep 1000", LONG)).await.unwrap());
    // The same files on another boot: no shim holds a lock any more.
    kill_9(exec_shim(name)).await;
    kill_9(shim_of(&bench, &id).await).await;
    let dir = bench.container_dir(&id);
    let record = Record::parse(&std::fs::read(dir.join(instance::SPEC)).unwrap()).unwrap();
    let mut spec = Spec::from_record(&record).unwrap();
    spec.boot_id = "another".to_owned();
    std::fs::write(dir.join(instance::SPEC), spec.to_record().encode().unwrap()).unwrap();
    // And one file that the power failure tore.
    std::fs::write(
        bench.exec_dir(&id, name).join(instance::STARTED),
        "belay-sh",
    )
    .unwrap();
    bench.reopen();
    let listed = bench.runtime.list().await.unwrap().states;
    let ContainerStatus::Exited(exit) = &listed[0].status else {
        panic!("{listed:?}")
    };
    assert_eq!(
        (exit.code, exit.reason),
        (137, ExitReason::ContainerStatusUnknown)
    );
    let target = bench.runtime.target(&id).await.unwrap();
    assert!(matches!(
        target.find(&attempt("done")).await.unwrap(),
        Found::Ended(_)
    ));
    assert!(matches!(
        target.find(&attempt(name)).await.unwrap(),
        Found::Lost
    ));
    // One without any trace may have lost its trace with the power.
    assert!(matches!(
        target.find(&attempt("none")).await.unwrap(),
        Found::Lost
    ));
}

#[tokio::test]
async fn an_outcome_that_cannot_be_written_is_told_and_written_when_it_can() {
    let bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    let go = bench.path("go");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.02; done; exit 8",
        go.display()
    );
    let mut running = target.start(&exec("full", &script, LONG)).await.unwrap();
    // As good as a full disk: the file cannot be made.
    let dir = bench.exec_dir(&id, "full");
    std::fs::create_dir(dir.join(".exit.new")).unwrap();
    std::fs::write(&go, "").unwrap();
    let report = soon(running.wait()).await.unwrap();
    assert_eq!(report.outcome, Outcome::Exited { code: 8 });
    assert!(!exists(&dir.join(instance::EXIT)));
    // Another agent is told as well.
    let Found::Running(mut running) = target.find(&attempt("full")).await.unwrap() else {
        panic!("nobody knows of it");
    };
    assert_eq!(soon(running.wait()).await.unwrap(), report);
    std::fs::remove_dir(dir.join(".exit.new")).unwrap();
    until("it is written", || exists(&dir.join(instance::EXIT))).await;
    assert!(matches!(
        target.find(&attempt("full")).await.unwrap(),
        Found::Ended(_)
    ));
}

#[tokio::test]
async fn spoilt_files_are_errors_and_do_not_hide_other_containers() {
    let bench = Bench::new();
    let (good, _) = bench.sleeper().await;
    for file in ["config", instance::SPEC, instance::STARTED, instance::EXIT] {
        let (bad, target) = bench.sleeper().await;
        std::fs::write(bench.container_dir(&bad).join(file), b"\xff\0rubbish").unwrap();
        let error = bench.runtime.state(&bad).await.unwrap_err();
        assert!(
            matches!(error, RuntimeError::Damaged { .. }),
            "{file}: {error}"
        );
        assert!(error.to_string().contains(file), "{error}");
        bench.runtime.wait(&bad).await.unwrap_err();
        let listed = bench.runtime.list().await.unwrap().states;
        assert_eq!(
            listed.iter().map(|state| &state.id).collect::<Vec<_>>(),
            [&good]
        );
        // Of one that nobody can tell of nothing goes on.
        assert!(marked(CONTAINER_MARK, bad.as_str()).is_empty(), "{file}");
        assert!(!exists(&bench.container_dir(&bad)), "{file}");
        drop(target);
    }
    let (id, target) = bench.sleeper().await;
    let mut running = target.start(&exec("x", "true", LONG)).await.unwrap();
    soon(running.wait()).await.unwrap();
    std::fs::write(
        bench.exec_dir(&id, "x").join(instance::EXIT),
        "belay-shim/9\0",
    )
    .unwrap();
    let error = target.find(&attempt("x")).await.unwrap_err();
    assert!(matches!(error, TargetError::Runtime { .. }), "{error}");
}

/// Kills the first shim of an exec of this container that shows up, some time after it did.
fn assassin(container: &ContainerId, delay: Duration) -> std::thread::JoinHandle<()> {
    let container = container.to_string();
    std::thread::spawn(move || {
        let begin = std::time::Instant::now();
        while begin.elapsed() < LONG {
            let shims = marked("BELAY_SHIM_OF", &container);
            if let Some(shim) = shims.iter().find(|process| process.session == process.pid) {
                std::thread::sleep(delay);
                if let Ok(handle) = belay_shim::sys::pidfd_open(shim.pid) {
                    let _ = belay_shim::sys::pidfd_send_signal(handle.as_fd(), 9);
                }
                return;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn whenever_a_shim_is_killed_what_is_found_is_true() {
    let bench = Bench::new();
    let (mut never, mut lost) = (0, 0);
    for round in 0..40u64 {
        let (id, target) = bench.sleeper().await;
        let killer = assassin(&id, Duration::from_micros(round * 150));
        let ran = bench.path(&format!("ran{round}"));
        let name = format!("hit{round}-{}", std::process::id());
        let script = format!("echo > {}; setsid sleep 1000 & sleep 1000", ran.display());
        let started = soon(target.start(&exec(&name, &script, LONG))).await;
        killer.join().unwrap();
        let found = match started {
            Ok(mut running) => match soon(running.wait()).await.unwrap_err() {
                TargetError::Lost { .. } => Found::Lost,
                error => panic!("{error}"),
            },
            Err(_) => soon(target.find(&attempt(&name))).await.unwrap(),
        };
        match found {
            Found::NeverStarted => {
                never += 1;
                assert!(!exists(&ran), "round {round}: it ran");
            }
            Found::Lost => lost += 1,
            other => panic!("{other:?}"),
        }
        assert!(
            marked(ATTEMPT_MARK, &name).is_empty(),
            "round {round}: something lives"
        );
        soon(bench.runtime.kill_tree(&id)).await.unwrap();
    }
    println!("never started: {never}, lost: {lost}");
}
