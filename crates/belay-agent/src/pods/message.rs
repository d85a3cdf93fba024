//! What a container leaves to be read about its end.
//!
//! In a container of its own it writes into a file that is mounted at `terminationMessagePath`; where
//! the spec says so, the end of its log stands in for an empty one after a failure. The limits are
//! the kubelet's.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use belay_api::pod::Container;
use belay_runtime::{ContainerConfig, Mount, Propagation};
use serde_json::Value;

use super::contents;

/// How much of the file is read: its end.
const LONGEST: u64 = 4096;
/// How much of a log stands in for it.
const LOG_BYTES: usize = 2048;
const LOG_LINES: usize = 80;

/// Where a container's message and log are found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Source {
    file: Option<PathBuf>,
    /// Only if it may stand in.
    log: Option<PathBuf>,
}

impl Source {
    pub(crate) fn of(container: Option<&Container>, config: &ContainerConfig) -> Self {
        let Some(container) = container else {
            return Source::default();
        };
        let path = path(container);
        let mount = config.mounts.iter().find(|one| one.container_path == path);
        let policy = container.other.get("terminationMessagePolicy");
        let falls_back = policy.and_then(Value::as_str) == Some("FallbackToLogsOnError");
        Source {
            file: mount.map(|mount| mount.host_path.clone()),
            log: falls_back.then(|| config.log_path.clone()),
        }
    }

    /// The message of a container that ended with `code`; blocks.
    pub(crate) fn read(&self, code: i32) -> Option<String> {
        let written = self.file.as_deref().and_then(|file| {
            let text = contents::tail(file, LONGEST).ok()?;
            Some(String::from_utf8_lossy(&text).into_owned())
        });
        let written = written.filter(|text| !text.is_empty());
        let failed = code != 0;
        let log = self.log.as_deref().filter(|_| failed);
        written.or_else(|| last_words(log?).filter(|text| !text.is_empty()))
    }
}

/// Where the container writes it; a relative path begins at its root.
fn path(container: &Container) -> PathBuf {
    let given = container.other.get("terminationMessagePath");
    let given = given.and_then(Value::as_str).filter(|p| !p.is_empty());
    Path::new("/").join(given.unwrap_or("/dev/termination-log"))
}

/// Makes the file for a container that is about to be started, in the pod's directory; blocks.
pub(crate) fn mount(
    dir: &Path,
    container: &Container,
    config: &ContainerConfig,
) -> io::Result<Mount> {
    let file = file(dir, config);
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    let mode = 0o666;
    let made = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&file)?;
    // Whoever it runs as may write, whatever the agent's mask is.
    made.set_permissions(fs::Permissions::from_mode(mode))?;
    Ok(Mount {
        host_path: file,
        container_path: path(container),
        read_only: false,
        propagation: Propagation::None,
    })
}

/// Where a container's message is, in the pod's directory.
fn file(dir: &Path, config: &ContainerConfig) -> PathBuf {
    let dir = dir.join("messages").join(&config.name);
    dir.join(config.restart_count.to_string())
}

/// Removes the file of a container that could not be run; blocks.
pub(crate) fn forget(dir: &Path, config: &ContainerConfig) {
    // What stays goes with the pod.
    let _ = fs::remove_file(file(dir, config));
}

/// The end of a log in the CRI's format, without what is not the container's own.
fn last_words(log: &Path) -> Option<String> {
    let mut file = fs::File::open(log).ok()?;
    let end = file.seek(SeekFrom::End(0)).ok()?;
    // Every line has a time and two words before it.
    let from = end.saturating_sub(4 * u64::try_from(LOG_BYTES).ok()?);
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut text = Vec::new();
    file.take(end - from).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> = text.lines().collect();
    // The first may be cut, and has lost what is not the container's own. If there is no other it is
    // better than nothing.
    let mut said = String::new();
    if from > 0 && !lines.is_empty() {
        let cut = lines.remove(0);
        if lines.is_empty() {
            said.push_str(cut);
        }
    }
    let skipped = lines.len().saturating_sub(LOG_LINES);
    for line in &lines[skipped..] {
        let mut parts = line.splitn(4, ' ');
        let (flag, content) = (parts.nth(2), parts.next().unwrap_or_default());
        said.push_str(content);
        // "P" is a part of a line.
        if flag == Some("F") {
            said.push('\n');
        }
    }
    let from = said.ceil_char_boundary(said.len().saturating_sub(LOG_BYTES));
    Some(said[from..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn container(policy: &str) -> Container {
        serde_json::from_value(json!({"name": "c", "terminationMessagePolicy": policy})).unwrap()
    }

    #[test]
    fn the_file_comes_first_and_the_log_only_where_it_may_after_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = ContainerConfig {
            name: "c".into(),
            log_path: dir.path().join("0.log"),
            ..ContainerConfig::default()
        };
        let log = "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P two \n\
                   2026-01-01T00:00:00Z stderr F three\n";
        fs::write(&config.log_path, log).unwrap();
        let file = container("File");
        let made = mount(dir.path(), &file, &config).unwrap();
        assert_eq!(made.container_path, Path::new("/dev/termination-log"));
        let message = made.host_path.clone();
        config.mounts.push(made);
        let falling = container("FallbackToLogsOnError");
        let read = |container: &Container, code| Source::of(Some(container), &config).read(code);
        assert_eq!(read(&file, 1), None);
        assert_eq!(read(&falling, 0), None);
        assert_eq!(read(&falling, 1).as_deref(), Some("one\ntwo three\n"));
        fs::write(&message, "disk is full").unwrap();
        for container in [&file, &falling] {
            assert_eq!(read(container, 1).as_deref(), Some("disk is full"));
        }
        assert_eq!(Source::of(None, &config).read(1), None);
    }

    #[test]
    fn of_a_long_message_the_end_is_told_also_at_a_relative_path() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = ContainerConfig::default();
        let container = json!({"name": "c", "terminationMessagePath": "tmp/last-words"});
        let container: Container = serde_json::from_value(container).unwrap();
        let made = mount(dir.path(), &container, &config).unwrap();
        assert_eq!(made.container_path, Path::new("/tmp/last-words"));
        fs::write(&made.host_path, "x".repeat(4997) + "end").unwrap();
        config.mounts.push(made);
        let read = Source::of(Some(&container), &config).read(0).unwrap();
        assert_eq!(read, "x".repeat(4093) + "end");
    }

    #[test]
    fn of_a_long_log_the_end_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let line = |n: usize| format!("2026-01-01T00:00:00Z stdout F line {n}\n");
        fs::write(&log, (0..5000).map(line).collect::<String>()).unwrap();
        let said = last_words(&log).unwrap();
        assert!(said.len() <= LOG_BYTES && said.lines().count() <= LOG_LINES);
        assert!(said.ends_with("line 4999\n"), "{said}");
        let long = format!(
            "2026-01-01T00:00:00Z stderr F {} the end\n",
            "x".repeat(9000)
        );
        fs::write(&log, long).unwrap();
        let said = last_words(&log).unwrap();
        assert!(
            said.len() == LOG_BYTES && said.ends_with("xx the end"),
            "{said}"
        );
    }
}
