//! Looking at processes: the demo's own eyes, independent of what is reported.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The variable that marks everything the demo starts, with the demo's directory as its value.
pub(super) const MARK: &str = "BELAY_DEMO";

/// A process of this demo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) command: String,
}

/// Every process that carries the mark of the demo in `dir`, or whose program lies in it (the
/// shims do). A process that has ended and waits to be collected by its parent is none.
pub(super) fn marked(dir: &Path) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id();
    let mut found: Vec<Process> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| u32::try_from(*pid) != Ok(own) && is_marked(*pid, dir))
        .map(|pid| Process {
            pid,
            command: command(pid),
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// Those of them that run this very command line.
pub(super) fn running(dir: &Path, command: &str) -> Vec<Process> {
    let mut found = marked(dir);
    found.retain(|process| process.command == command);
    found
}

fn is_marked(pid: i32, dir: &Path) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    // A zombie has neither program nor environment.
    let in_dir = std::fs::read_link(proc.join("exe")).is_ok_and(|exe| exe.starts_with(dir));
    in_dir || std::fs::read(proc.join("environ")).is_ok_and(|bytes| has_mark(&bytes, dir))
}

fn has_mark(environment: &[u8], dir: &Path) -> bool {
    environment.split(|byte| *byte == 0).any(|variable| {
        let prefix = [MARK.as_bytes(), b"="].concat();
        variable
            .strip_prefix(prefix.as_slice())
            .is_some_and(|value| OsStr::from_bytes(value) == dir.as_os_str())
    })
}

fn command(pid: i32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    words.join(" ")
}

/// Kills everything of the demo in `dir`, again and again until nothing new appears.
pub(super) async fn sweep(dir: &Path) -> anyhow::Result<()> {
    let mut left = marked(dir);
    for _ in 0..100 {
        if left.is_empty() {
            return Ok(());
        }
        for process in &left {
            kill(process.pid, dir);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        left = marked(dir);
    }
    let names: Vec<_> = left
        .iter()
        .map(|process| format!("{} ({})", process.pid, process.command))
        .collect();
    ensure!(left.is_empty(), "could not be killed: {}", names.join(", "));
    Ok(())
}

/// Kills one, through a handle that is checked after it was opened: the number may have passed to
/// another process in between.
fn kill(pid: i32, dir: &Path) {
    let Some(raw) = Pid::from_raw(pid) else {
        return;
    };
    if let Ok(handle) = pidfd_open(raw, PidfdFlags::empty())
        && is_marked(pid, dir)
    {
        // A failure shows in the next look.
        let _ = pidfd_send_signal(handle, Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_a_whole_variable_with_exactly_this_value() {
        let dir = Path::new("/tmp/demo");
        assert!(has_mark(b"A=1\0BELAY_DEMO=/tmp/demo\0B=2", dir));
        assert!(!has_mark(b"BELAY_DEMO=/tmp/demo2\0", dir));
        assert!(!has_mark(b"XBELAY_DEMO=/tmp/demo\0", dir));
        assert!(!has_mark(b"", dir));
    }

    #[tokio::test]
    async fn a_marked_process_is_seen_and_swept_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let spawn = |dir: &Path| {
            std::process::Command::new("sleep")
                .arg("1234")
                .env(MARK, dir)
                .spawn()
                .unwrap()
        };
        let mut ours = spawn(dir.path());
        let mut other = spawn(Path::new("/elsewhere"));
        // Between fork and exec the child is still this test under another number.
        while running(dir.path(), "sleep 1234").is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let seen = running(dir.path(), "sleep 1234");
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].pid.unsigned_abs(), ours.id());
        sweep(dir.path()).await.unwrap();
        assert!(!ours.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
