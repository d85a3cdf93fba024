//! Looking at processes through /proc, as an operator with `ps` would.

use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, path::Path, process::ExitStatus};

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

/// A live process and its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub command: String,
}

/// A number for `sleep` that no other process sleeps for, whatever else runs on this machine.
pub fn unique_seconds() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}{number:03}", 3_000_000 + std::process::id())
}

/// Every live process whose command line contains `text`; zombies are not alive.
pub fn with_command(text: &str) -> Vec<Process> {
    all()
        .into_iter()
        .filter(|process| process.command.contains(text))
        .collect()
}

/// Every live process whose environment contains the entry `entry` (`NAME=value`).
pub fn with_environment(entry: &str) -> Vec<Process> {
    all()
        .into_iter()
        .filter(|process| {
            fs::read(format!("/proc/{}/environ", process.pid)).is_ok_and(|environment| {
                environment
                    .split(|byte| *byte == 0)
                    .any(|found| found == entry.as_bytes())
            })
        })
        .collect()
}

/// Every live process whose program lies under `dir`.
pub fn with_program_under(dir: &Path) -> Vec<Process> {
    all()
        .into_iter()
        .filter(|process| {
            fs::read_link(format!("/proc/{}/exe", process.pid))
                .is_ok_and(|program| program.starts_with(dir))
        })
        .collect()
}

/// Whether the process is there and not a zombie.
pub fn is_alive(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Ends one process without asking it.
pub fn kill(pid: u32) {
    send(pid, rustix::process::Signal::KILL);
}

/// Does what Ctrl-C does.
pub fn interrupt(pid: u32) {
    send(pid, rustix::process::Signal::INT);
}

/// Interrupts a program once it has said `text` on its standard error. Returns how it ended, and all
/// that it said there.
///
/// # Errors
///
/// When it ends without having said that.
pub async fn interrupt_after(mut child: Child, text: &str) -> anyhow::Result<(ExitStatus, String)> {
    let stderr = child.stderr.take().context("its words go elsewhere")?;
    let mut lines = BufReader::new(stderr).lines();
    let (mut told, mut interrupted) = (String::new(), false);
    while let Some(line) = lines.next_line().await? {
        told.push_str(&line);
        told.push('\n');
        if !interrupted && line.contains(text) {
            interrupted = true;
            interrupt(child.id().context("it has ended")?);
        }
    }
    anyhow::ensure!(interrupted, "it never said {text:?}: {told}");
    Ok((child.wait().await?, told))
}

/// Halts one process where it stands.
pub fn stop(pid: u32) {
    send(pid, rustix::process::Signal::STOP);
}

/// Whether all threads of a process are halted.
pub fn is_halted(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let mut threads = threads.into_iter().flatten().flatten();
    threads.all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        state.starts_with('T')
    })
}

/// Lets a halted process go on.
pub fn go_on(pid: u32) {
    send(pid, rustix::process::Signal::CONT);
}

fn send(pid: u32, signal: rustix::process::Signal) {
    let Some(pid) = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
    else {
        return;
    };
    // Gone already is what was wanted.
    let _ = rustix::process::kill_process(pid, signal);
}

/// The parent's pid.
pub fn parent(pid: u32) -> Option<u32> {
    stat_fields(pid)?.get(1)?.parse().ok()
}

/// Whether `ancestor` is its parent, or its parent's parent, and so on.
pub fn descends_from(pid: u32, ancestor: u32) -> bool {
    std::iter::successors(parent(pid), |pid| parent(*pid)).any(|pid| pid == ancestor)
}

/// The pids of its children.
pub fn children(pid: u32) -> Vec<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|child| child.parse().ok())
        .collect()
}

/// Whether it is the first process of its PID namespace, as a container's is.
pub fn is_first_in_namespace(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    inner.is_some_and(|pids| pids.split_whitespace().last() == Some("1"))
}

/// Resident anonymous memory in KiB.
pub fn anonymous_kib(pid: u32) -> Option<u64> {
    status_kib(pid, "RssAnon:")
}

/// A line of /proc/PID/status that is counted in KiB.
fn status_kib(pid: u32, name: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Memory that only this process has, in KiB.
pub fn private_kib(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let mut sum = 0;
    for line in rollup.lines().filter(|line| line.starts_with("Private_")) {
        sum += line.split_whitespace().nth(1)?.parse::<u64>().ok()?;
    }
    Some(sum)
}

/// User and system time used so far, in clock ticks.
pub fn cpu_ticks(pid: u32) -> Option<u64> {
    let fields = stat_fields(pid)?;
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

fn state(pid: u32) -> Option<char> {
    stat_fields(pid)?.first()?.chars().next()
}

/// The fields of /proc/PID/stat behind the name, which may itself contain blanks and brackets.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn all() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| is_alive(*pid))
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let command = line
                .split(|byte| *byte == 0)
                .map(|part| String::from_utf8_lossy(part))
                .collect::<Vec<_>>()
                .join(" ");
            Some(Process {
                pid,
                command: command.trim_end().to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_itself_is_alive_and_has_memory() {
        let own = std::process::id();
        assert!(is_alive(own));
        assert!(anonymous_kib(own).is_some_and(|kib| kib > 0));
        assert!(private_kib(own).is_some_and(|kib| kib > 0));
        assert!(parent(own).is_some());
    }

    #[test]
    fn a_process_is_found_by_its_environment_and_command() -> anyhow::Result<()> {
        let marker = format!("BELAY_TESTKIT_MARKER={}", std::process::id());
        let mut child = std::process::Command::new("sleep")
            .arg("61.25")
            .env("BELAY_TESTKIT_MARKER", std::process::id().to_string())
            .spawn()?;
        let seen = |found: &[Process]| found.iter().any(|process| process.pid == child.id());
        // Between fork and exec the child still shows its parent's environment.
        while !seen(&with_command("sleep 61.25")) {
            std::thread::yield_now();
        }
        assert!(seen(&with_environment(&marker)));
        kill(child.id());
        child.wait()?;
        assert!(!is_alive(child.id()));
        Ok(())
    }
}
