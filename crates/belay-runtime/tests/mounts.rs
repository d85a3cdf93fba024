//! Mounts of the process runtime, on real processes. Root only: mounting takes it.

#![allow(clippy::unwrap_used)]

mod fixture;

use std::fs;
use std::path::Path;

use belay_action::{Outcome, Report};
use belay_runtime::*;
use fixture::*;

fn skipped() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        belay_testkit::skip::skip("only root can mount");
    }
    !root
}

fn mount(host: &Path, container: &Path, read_only: bool) -> Mount {
    Mount {
        host_path: host.to_owned(),
        container_path: container.to_owned(),
        read_only,
        propagation: Propagation::None,
    }
}

/// What a container and the host see at one path.
fn places(bench: &Bench) -> (std::path::PathBuf, std::path::PathBuf) {
    let (volume, seen) = (bench.path("volume"), bench.path("seen"));
    fs::create_dir(&volume).unwrap();
    fs::create_dir(&seen).unwrap();
    fs::write(volume.join("file"), "volume\n").unwrap();
    fs::write(seen.join("file"), "host\n").unwrap();
    (volume, seen)
}

async fn run(target: &dyn belay_action::Target, script: &str) -> Report {
    let mut running = target
        .start(&exec(&unique_seconds(), script, LONG))
        .await
        .unwrap();
    soon(running.wait()).await.unwrap()
}

#[tokio::test]
async fn a_container_and_its_execs_see_what_the_host_does_not() {
    if skipped() {
        return;
    }
    let mut bench = Bench::new();
    let (volume, seen) = places(&bench);
    let mut config = bench.sh(&format!(
        "cat {0}/file; echo mine > {0}/written; exec sleep 1000",
        seen.display()
    ));
    config.mounts = vec![mount(&volume, &seen, false)];
    let id = bench.runtime.start(&config).await.unwrap();
    until("the container has written", || {
        exists(&volume.join("written"))
    })
    .await;
    assert_eq!(bench.log(), ["stdout F volume"]);
    assert_eq!(fs::read_to_string(seen.join("file")).unwrap(), "host\n");
    assert!(!exists(&seen.join("written")));
    // Also after another agent has taken over.
    for _ in 0..2 {
        let target = bench.runtime.target(&id).await.unwrap();
        let report = run(&*target, &format!("cat {}/file", seen.display())).await;
        assert_eq!(report.outcome, Outcome::Succeeded);
        assert_eq!(report.output, "volume\n");
        bench.reopen();
    }
    bench.runtime.kill_tree(&id).await.unwrap();
    soon(bench.runtime.wait(&id)).await.unwrap();
    bench.runtime.remove(&id).await.unwrap();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.contains(&*seen.to_string_lossy()), "{table}");
}

#[tokio::test]
async fn a_read_only_mount_is_read_only_and_files_can_be_mounted() {
    if skipped() {
        return;
    }
    let bench = Bench::new();
    let (volume, seen) = places(&bench);
    let other = bench.path("other");
    fs::write(&other, "other\n").unwrap();
    let mut config = bench.sh(&format!(
        "cat {0}/file; echo x > {0}/new || echo refused; cat {0}/inner; true",
        seen.display()
    ));
    // One in the other, given the wrong way round.
    fs::write(volume.join("inner"), "").unwrap();
    fs::write(seen.join("inner"), "").unwrap();
    config.mounts = vec![
        mount(&other, &seen.join("inner"), true),
        mount(&volume, &seen, true),
    ];
    let id = bench.runtime.start(&config).await.unwrap();
    let exit = soon(bench.runtime.wait(&id)).await.unwrap();
    assert_eq!(exit.code, 0);
    let log = bench.log();
    let said: Vec<&str> = log
        .iter()
        .filter_map(|line| line.strip_prefix("stdout F "))
        .collect();
    assert_eq!(said, ["volume", "refused", "other"]);
    assert!(!exists(&volume.join("new")));
}

#[tokio::test]
async fn a_mount_that_hides_the_other_sources_does_not_disturb_them() {
    if skipped() {
        return;
    }
    let bench = Bench::new();
    let (volume, seen) = places(&bench);
    let root = bench.root.path();
    // Over everything, the runtime's own directory included.
    let cover = tempfile::tempdir().unwrap();
    fs::create_dir(cover.path().join("seen")).unwrap();
    let mut config = bench.config(&["/bin/cat"]);
    config.args = vec![seen.join("file").display().to_string()];
    config.working_dir = None;
    config.mounts = vec![
        mount(cover.path(), root, false),
        mount(&volume, &seen, false),
    ];
    let id = bench.runtime.start(&config).await.unwrap();
    let exit = soon(bench.runtime.wait(&id)).await.unwrap();
    assert_eq!(
        (exit.code, bench.log()),
        (0, vec!["stdout F volume".to_owned()])
    );
}

#[tokio::test]
async fn what_cannot_be_mounted_is_a_mistake_in_the_configuration() {
    if skipped() {
        return;
    }
    let bench = Bench::new();
    let (volume, _) = places(&bench);
    let mut config = bench.config(&["true"]);
    config.mounts = vec![mount(&volume, Path::new("/no/such/place"), false)];
    let Err(RuntimeError::StartFailed { reason, message }) = bench.runtime.start(&config).await
    else {
        panic!("it was started");
    };
    assert_eq!(reason, "InvalidConfig");
    assert!(
        message.contains("create it, or use --runtime cri"),
        "{message}"
    );
    assert_eq!(bench.runtime.list().await.unwrap().states.len(), 0);
}

#[tokio::test]
async fn groups_and_the_loss_of_new_privileges_reach_the_process() {
    if skipped() {
        return;
    }
    let bench = Bench::new();
    let mut config = bench.sh("id -G; grep NoNewPrivs /proc/self/status");
    (config.user, config.group) = (Some(1234), Some(1235));
    config.working_dir = None;
    config.security = Security {
        supplemental_groups: vec![7, 8],
        no_new_privileges: true,
        ..Security::default()
    };
    let id = bench.runtime.start(&config).await.unwrap();
    soon(bench.runtime.wait(&id)).await.unwrap();
    assert_eq!(
        bench.log(),
        ["stdout F 1235 7 8", "stdout F NoNewPrivs:\t1"]
    );
}
