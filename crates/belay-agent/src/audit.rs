//! The agent's audit log: one JSON line for each container's part of a notification.
//!
//! Who asked is in the server's audit log; this one says what came of it on the node, also where no
//! object is left to say so.

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
    pub(crate) notification: &'a str,
    pub(crate) notification_uid: &'a str,
    pub(crate) notifier: &'a str,
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

/// The open log.
#[derive(Debug)]
pub(crate) enum Audit {
    File {
        path: PathBuf,
        file: Mutex<File>,
    },
    /// Among the log lines of a role that has no directory, under the target `belay_audit`.
    Log,
}

impl Audit {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        Ok(Audit::File {
            path: path.to_owned(),
            file: Mutex::new(file),
        })
    }

    /// Appends a line. One write call, so lines of several tasks never mix.
    pub(crate) fn write(&self, line: &Line<'_>) {
        let mut text = match serde_json::to_vec(line) {
            Ok(text) => text,
            Err(error) => return error!(%error, "an audit line cannot be written as JSON"),
        };
        match self {
            Audit::Log => {
                info!(target: "belay_audit", "{}", String::from_utf8_lossy(&text));
            }
            Audit::File { path, file } => {
                text.push(b'\n');
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = file.write_all(&text) {
                    error!(path = %path.display(), %error, "cannot append to the audit log");
                }
            }
        }
    }
}
