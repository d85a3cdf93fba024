//! The agent's audit log: one JSON line for each container's part of a notification or of a hook.
//!
//! Who asked is in the server's audit log, under the UID of the notification, or of the Notification
//! that it is part of; this one says what came of it on the node, also where no object is left to say
//! so.
//!
//! The file is bounded: when it is full it becomes the old one, of which there is one.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use tracing::{error, info};

/// One line.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line<'a> {
    pub(crate) time: Timestamp,
    pub(crate) namespace: &'a str,
    #[serde(flatten)]
    pub(crate) asked: Asked<'a>,
    /// When it was asked for, by the server's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<Timestamp>,
    /// The Notification or the hook that it is part of, as `name/UID`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) part_of: Option<String>,
    /// Who ran it: the node, or the controller where there are no agents.
    pub(crate) executor: &'a str,
    pub(crate) pod: &'a str,
    #[serde(rename = "podUID")]
    pub(crate) pod_uid: &'a str,
    pub(crate) container: &'a str,
    #[serde(rename = "containerID", skip_serializing_if = "Option::is_none")]
    pub(crate) container_id: Option<&'a str>,
    /// The newest attempt; absent when nothing was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<String>,
    pub(crate) outcome: &'static str,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) finished: Option<Timestamp>,
}

/// What was asked for.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Asked<'a> {
    #[serde(rename_all = "camelCase")]
    Notification {
        notification: &'a str,
        notification_uid: &'a str,
        notifier: &'a str,
    },
    #[serde(rename_all = "camelCase")]
    Action {
        pod_action: &'a str,
        pod_action_uid: &'a str,
    },
}

/// How large the file may become; the old one has as much again.
const FULL: u64 = 16 * 1024 * 1024;

/// The open log.
#[derive(Debug)]
pub(crate) enum Audit {
    File(Mutex<Log>),
    /// Among the log lines of a role that has no directory, under the target `belay_audit`.
    Log,
}

/// A file, and how full it is.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
    full: u64,
}

impl Log {
    fn open(path: &Path, full: u64) -> std::io::Result<Self> {
        let file = append_to(path)?;
        Ok(Log {
            path: path.to_owned(),
            bytes: file.metadata()?.len(),
            file,
            full,
        })
    }

    /// Appends a line in one write call.
    fn append(&mut self, line: &[u8]) -> std::io::Result<()> {
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        if self.bytes > 0 && self.bytes.saturating_add(length) > self.full {
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            std::fs::rename(&self.path, old)?;
            self.file = append_to(&self.path)?;
            self.bytes = 0;
        }
        self.file.write_all(line)?;
        self.bytes = self.bytes.saturating_add(length);
        Ok(())
    }
}

fn append_to(path: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

impl Audit {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        Ok(Audit::File(Mutex::new(Log::open(path, FULL)?)))
    }

    /// Appends a line; lines of several tasks never mix.
    pub(crate) fn write(&self, line: &Line<'_>) {
        let mut text = match serde_json::to_vec(line) {
            Ok(text) => text,
            Err(error) => return error!(%error, "an audit line cannot be written as JSON"),
        };
        match self {
            Audit::Log => {
                info!(target: "belay_audit", "{}", String::from_utf8_lossy(&text));
            }
            Audit::File(log) => {
                text.push(b'\n');
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = log.append(&text) {
                    error!(path = %log.path.display(), %error, "cannot append to the audit log");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_becomes_the_old_one_and_there_is_one_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        let mut log = Log::open(&path, 10).unwrap();
        for line in ["aaaa\n", "bbbb\n"] {
            log.append(line.as_bytes()).unwrap();
        }
        assert_eq!(read("audit.jsonl"), "aaaa\nbbbb\n");
        log.append(b"cccc\n").unwrap();
        assert_eq!(read("audit.jsonl.1"), "aaaa\nbbbb\n");
        assert_eq!(read("audit.jsonl"), "cccc\n");
        // What was there counts after a restart, and a line longer than the file is kept whole.
        let mut log = Log::open(&path, 10).unwrap();
        log.append(b"a line longer than ten\n").unwrap();
        assert_eq!(read("audit.jsonl.1"), "cccc\n");
        assert_eq!(read("audit.jsonl"), "a line longer than ten\n");
        log.append(b"d\n").unwrap();
        assert_eq!(read("audit.jsonl"), "d\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
