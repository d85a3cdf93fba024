//! A thousand execs leave nothing. Alone in its file, because it counts what the process has open.

#![allow(clippy::unwrap_used)]

mod fixture;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_action::{Action, Outcome, run};
use fixture::*;
use tokio_util::sync::CancellationToken;

/// The middle of how long the command itself takes, for comparison.
fn raw() -> Duration {
    let mut latencies: Vec<Duration> = (0..200)
        .map(|_| {
            let begin = Instant::now();
            let output = Command::new("/bin/sh")
                .args(["-c", "echo x"])
                .output()
                .unwrap();
            assert_eq!(output.stdout, b"x\n");
            begin.elapsed()
        })
        .collect();
    latencies.sort_unstable();
    latencies[100]
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Who this process has started, and not seen the end of.
fn children() -> usize {
    let own = i32::try_from(std::process::id()).unwrap();
    let all = belay_shim::proc::snapshot().unwrap();
    all.iter().filter(|process| process.parent == own).count()
}

#[tokio::test]
async fn a_thousand_execs_leave_no_files_processes_or_directories() {
    let bench = Bench::new();
    let (id, target) = bench.sleeper().await;
    let action = Arc::new(Action::Exec {
        command: vec!["/bin/sh".into(), "-c".into(), "echo x".into()],
    });
    let one = async |number: usize| {
        let name = attempt(&format!("n{number}"));
        let cancel = CancellationToken::new();
        let report = run(&*target, &action, &name, LONG, cancel).await.unwrap();
        assert_eq!(
            (report.outcome, report.output.as_str()),
            (Outcome::Succeeded, "x\n")
        );
        target.forget(&name).await;
    };
    one(0).await;
    let raw = raw();
    let before = open_files();
    let children_before = children();
    let begin = Instant::now();
    let mut latencies = Vec::new();
    for number in 1..=1000 {
        let begin = Instant::now();
        one(number).await;
        latencies.push(begin.elapsed());
    }
    latencies.sort_unstable();
    println!(
        "1,000 execs in {:?}, p50 {:?}, p99 {:?}; the command alone p50 {raw:?}",
        begin.elapsed(),
        latencies[500],
        latencies[990]
    );
    assert_eq!(open_files(), before);
    let execs = bench.container_dir(&id).join("execs");
    assert_eq!(std::fs::read_dir(execs).unwrap().count(), 0);
    until("the last shim has ended", || {
        marked("BELAY_SHIM_OF", id.as_str()).is_empty()
    })
    .await;
    // One that has ended is collected a moment later.
    until("no child is left", || children() <= children_before).await;
}
