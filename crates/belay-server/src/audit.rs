//! The audit log: who asked for what and what came of it, one JSON line per request that writes or
//! was refused.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use jiff::Timestamp;
use serde::Serialize;

use crate::review::Review;
use crate::route::{Resource, Verb};

/// Lines that may wait for the disk. A full queue slows requests down rather than losing lines.
const WAITING: usize = 4096;

/// One request, as the audit log and the metrics see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    time: String,
    pub(crate) user: String,
    /// Whom the user impersonates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) acts_as: Option<String>,
    pub(crate) verb: &'static str,
    method: String,
    path: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) group: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) resource: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) subresource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) code: u16,
    /// What a new object asks for, in the words of its kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) about: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    #[serde(skip)]
    writes: bool,
}

impl Record {
    pub(crate) fn new(parts: &http::request::Parts) -> Self {
        Self {
            time: Timestamp::now().to_string(),
            user: String::new(),
            acts_as: None,
            verb: "",
            method: parts.method.to_string(),
            path: parts.uri.path().to_owned(),
            group: "",
            resource: "",
            subresource: None,
            namespace: None,
            name: None,
            code: 0,
            about: None,
            message: None,
            writes: false,
        }
    }

    pub(crate) fn set_resource(&mut self, resource: &Resource, verb: Verb) {
        self.verb = verb.as_str();
        self.writes = verb.writes();
        self.group = resource.kind.group;
        self.resource = resource.kind.plural;
        self.subresource.clone_from(&resource.subresource);
        self.namespace.clone_from(&resource.namespace);
        self.name.clone_from(&resource.name);
    }

    /// A question changes nothing; it is worth a line when it was refused.
    pub(crate) fn set_review(&mut self, review: &Review, namespace: Option<&str>) {
        self.verb = Verb::Create.as_str();
        self.group = review.group;
        self.resource = review.plural;
        self.namespace = namespace.map(str::to_owned);
    }

    /// Reads that were allowed are not worth a line; heartbeats neither.
    fn worth_a_line(&self) -> bool {
        let refused = matches!(self.code, 401 | 403);
        let heartbeat = self.code == 200
            && (self.resource == "leases"
                || (self.resource == "nodes" && self.subresource.is_some()));
        refused || (self.writes && !heartbeat)
    }
}

/// Appends records to a file from a thread of its own.
#[derive(Debug)]
pub(crate) struct Audit {
    lines: Option<SyncSender<Vec<u8>>>,
    writer: Option<JoinHandle<()>>,
}

impl Audit {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        let (lines, queue) = sync_channel(WAITING);
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .stack_size(128 * 1024)
            .spawn(move || append(file, &queue))?;
        Ok(Self {
            lines: Some(lines),
            writer: Some(writer),
        })
    }

    pub(crate) fn write(&self, record: &Record) {
        if !record.worth_a_line() {
            return;
        }
        let (Some(lines), Ok(mut line)) = (&self.lines, serde_json::to_vec(record)) else {
            return;
        };
        line.push(b'\n');
        // The writer ends only with this sender, so sending cannot fail while serving.
        let _ = lines.send(line);
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn append(mut file: File, queue: &Receiver<Vec<u8>>) {
    while let Ok(mut batch) = queue.recv() {
        while let Ok(more) = queue.try_recv() {
            batch.extend(more);
        }
        if let Err(error) = file.write_all(&batch) {
            tracing::error!(%error, "cannot write the audit log");
        }
    }
}
