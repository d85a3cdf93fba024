//! The audit log: who asked for what and what came of it, one JSON line per request that writes or
//! was refused. Strangers have no more than a line a second together.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;

use crate::identity::{Identity, Role};
use crate::review::Review;
use crate::route::{Resource, Verb};

/// Records that may wait for the disk. A full queue slows requests down rather than losing any.
const WAITING: usize = 4096;

/// How much of a path, of a name in it, of a message or of what an object asks for a line tells, in
/// bytes. No path that means something is longer.
const LONGEST: usize = 2048;

fn shortened(text: &str) -> String {
    match text.floor_char_boundary(LONGEST) {
        end if end < text.len() => format!("{}...", &text[..end]),
        _ => text.to_owned(),
    }
}

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
    /// Whether it was only asked what would come of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) dry_run: bool,
    pub(crate) code: u16,
    /// What a new object asks for, in the words of its kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// How many requests like it, of whoever, came since the last one that has a line.
    #[serde(skip_serializing_if = "is_zero")]
    omitted: u64,
    #[serde(skip)]
    writes: bool,
    /// Whether it says nothing but that somebody of Belay is there.
    #[serde(skip)]
    heartbeat: bool,
}

impl Record {
    pub(crate) fn new(parts: &http::request::Parts) -> Self {
        Self {
            time: Timestamp::now().to_string(),
            user: String::new(),
            acts_as: None,
            verb: "",
            method: shortened(parts.method.as_str()),
            path: shortened(parts.uri.path()),
            group: "",
            resource: "",
            subresource: None,
            namespace: None,
            name: None,
            dry_run: false,
            code: 0,
            about: None,
            message: None,
            omitted: 0,
            writes: false,
            heartbeat: false,
        }
    }

    /// What it is about, and who asks: by now it is known whom the user acts as.
    pub(crate) fn set_resource(&mut self, resource: &Resource, verb: Verb, who: &Identity) {
        self.verb = verb.as_str();
        self.writes = verb.writes();
        self.heartbeat = is_heartbeat(resource, verb) && self.acts_as.is_none() && beats(who);
        self.group = resource.kind.group;
        self.resource = resource.kind.plural;
        self.subresource.clone_from(&resource.subresource);
        self.namespace = resource.namespace.as_deref().map(shortened);
        self.name = resource.name.as_deref().map(shortened);
    }

    /// A question changes nothing; it is worth a line when it was refused.
    pub(crate) fn set_review(&mut self, review: &Review, namespace: Option<&str>) {
        self.verb = Verb::Create.as_str();
        self.group = review.group;
        self.resource = review.plural;
        self.namespace = namespace.map(shortened);
    }

    /// What the new object asks for.
    pub(crate) fn set_about(&mut self, about: Option<&str>) {
        self.about = about.map(shortened);
    }

    /// Why it was refused.
    pub(crate) fn set_message(&mut self, message: &str) {
        self.message = Some(shortened(message));
    }

    /// Reads that were allowed are not worth a line; heartbeats of agents and controllers neither.
    fn worth_a_line(&self) -> bool {
        let refused = matches!(self.code, 401 | 403);
        refused || (self.writes && !(self.heartbeat && self.code == 200))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn is_heartbeat(resource: &Resource, verb: Verb) -> bool {
    let renews = matches!(verb, Verb::Update | Verb::Patch);
    let subresource = resource.subresource.as_deref();
    renews
        && matches!(
            (resource.kind.plural, subresource),
            ("leases", None) | ("nodes", Some("status"))
        )
}

/// Whether this is one of those whose heartbeats would bury all else.
fn beats(who: &Identity) -> bool {
    matches!(who.role(), Role::Node(_) | Role::Controller)
}

/// Appends records to a file from a thread of its own.
#[derive(Debug)]
pub(crate) struct Audit {
    records: Option<SyncSender<Record>>,
    writer: Option<JoinHandle<()>>,
}

impl Audit {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        let (records, queue) = sync_channel(WAITING);
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .stack_size(128 * 1024)
            .spawn(move || append(file, &queue))?;
        Ok(Self {
            records: Some(records),
            writer: Some(writer),
        })
    }

    pub(crate) fn write(&self, record: Record) {
        if let (true, Some(records)) = (record.worth_a_line(), &self.records) {
            // The writer ends only with this sender, so sending cannot fail while serving.
            let _ = records.send(record);
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.records = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// How much may wait for a file that cannot be written.
const PENDING_BYTES: usize = 4 << 20;
/// How long until a file that could not be written, or a line that was held back, is tried again, if
/// nothing else comes.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

fn append(file: File, queue: &Receiver<Record>) {
    let mut log = Log::new(file);
    let mut strangers = Strangers::default();
    loop {
        let first = if log.pending.is_empty() && strangers.held_back.is_none() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(AGAIN_AFTER)
        };
        let ended = matches!(first, Err(RecvTimeoutError::Disconnected));
        let now = Instant::now();
        // Not for as long as they come: what is held back or pending has its time, too.
        let records = first.into_iter().chain(queue.try_iter().take(WAITING));
        let lines = records
            .map(Some)
            .chain([None])
            .filter_map(|next| match next {
                Some(record) if record.code == 401 => strangers.refused(record, now),
                Some(record) => Some(record),
                None if ended => strangers.held_back.take(),
                None => strangers.due(now),
            })
            .filter_map(|record| line(&record));
        match log.write(lines) {
            Ok(lost) if lost > 0 => {
                tracing::error!(
                    lost,
                    "the audit log can be written again; lines are missing"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "cannot write the audit log"),
        }
        if ended {
            return;
        }
    }
}

fn line(record: &Record) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(record).ok()?;
    line.push(b'\n');
    Some(line)
}

/// Those who are not known: nobody stops them from asking, and the log has no bound. So one of their
/// refusals is written a second, the latest, and it tells how many were left out before it.
#[derive(Debug, Default)]
struct Strangers {
    quiet_until: Option<Instant>,
    held_back: Option<Record>,
}

impl Strangers {
    /// How long there is no other line after one.
    const QUIET: Duration = Duration::from_secs(1);

    /// One more refusal, and what is to be written now.
    fn refused(&mut self, mut record: Record, now: Instant) -> Option<Record> {
        if let Some(earlier) = self.held_back.take() {
            record.omitted = earlier.omitted + 1;
        }
        self.held_back = Some(record);
        self.due(now)
    }

    /// What was held back, when it is time for it.
    fn due(&mut self, now: Instant) -> Option<Record> {
        if self.quiet_until.is_some_and(|until| now < until) {
            return None;
        }
        let record = self.held_back.take()?;
        self.quiet_until = Some(now + Self::QUIET);
        Some(record)
    }
}

/// Where lines are appended.
trait Storage {
    fn length(&self) -> std::io::Result<u64>;
    fn append(&mut self, lines: &[u8]) -> std::io::Result<()>;
    fn cut(&mut self, length: u64) -> std::io::Result<()>;
}

impl Storage for File {
    fn length(&self) -> std::io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn append(&mut self, lines: &[u8]) -> std::io::Result<()> {
        self.write_all(lines)
    }

    fn cut(&mut self, length: u64) -> std::io::Result<()> {
        self.set_len(length)
    }
}

/// A file of whole lines. What cannot be written, as on a full disk, waits for its turn, and nobody
/// waits for it: requests are what makes room.
struct Log<S> {
    storage: S,
    pending: Vec<u8>,
    lost: u64,
}

impl<S: Storage> Log<S> {
    fn new(storage: S) -> Self {
        Self {
            storage,
            pending: Vec::new(),
            lost: 0,
        }
    }

    /// Writes what is pending and these lines, and says how many lines were lost until then. A line
    /// for which there is no room is lost only if what is pending cannot be written; one that is
    /// longer than all that may be pending waits alone.
    fn write(&mut self, lines: impl Iterator<Item = Vec<u8>>) -> std::io::Result<u64> {
        let mut refused = false;
        for line in lines {
            let full = |log: &Self| {
                !log.pending.is_empty() && log.pending.len() + line.len() > PENDING_BYTES
            };
            if full(self) && !refused {
                refused = self.flush().is_err();
            }
            if full(self) {
                self.lost += 1;
            } else {
                self.pending.extend_from_slice(&line);
            }
        }
        self.flush()?;
        Ok(std::mem::take(&mut self.lost))
    }

    /// Writes what is pending, all of it or nothing.
    fn flush(&mut self) -> std::io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let whole = self.storage.length()?;
        if let Err(error) = self.storage.append(&self.pending) {
            self.storage.cut(whole)?;
            return Err(error);
        }
        self.pending.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that takes so many bytes.
    #[derive(Default)]
    struct Disk {
        bytes: Vec<u8>,
        size: usize,
    }

    impl Storage for Disk {
        fn length(&self) -> std::io::Result<u64> {
            Ok(self.bytes.len() as u64)
        }

        fn append(&mut self, lines: &[u8]) -> std::io::Result<()> {
            let fits = lines.len().min(self.size - self.bytes.len());
            self.bytes.extend_from_slice(&lines[..fits]);
            match fits == lines.len() {
                true => Ok(()),
                false => Err(std::io::ErrorKind::StorageFull.into()),
            }
        }

        fn cut(&mut self, length: u64) -> std::io::Result<()> {
            self.bytes.truncate(usize::try_from(length).unwrap());
            Ok(())
        }
    }

    fn lines<const N: usize>(lines: [&str; N]) -> impl Iterator<Item = Vec<u8>> {
        lines.map(|line| line.as_bytes().to_vec()).into_iter()
    }

    #[test]
    fn a_full_disk_tears_no_line_and_loses_none_that_can_wait() {
        let mut log = Log::new(Disk {
            size: 8,
            ..Disk::default()
        });
        log.write(lines(["one\n"])).unwrap();
        log.write(lines(["second\n"])).unwrap_err();
        log.write(lines(["third\n"])).unwrap_err();
        assert_eq!(log.storage.bytes, b"one\n");
        log.storage.size = 100;
        assert_eq!(log.write(lines([])).unwrap(), 0);
        assert_eq!(log.storage.bytes, b"one\nsecond\nthird\n");
    }

    #[test]
    fn what_waits_for_a_full_disk_is_bounded_and_what_was_lost_is_counted() {
        let mut log = Log::new(Disk::default());
        let line = "x".repeat(PENDING_BYTES / 4);
        for _ in 0..6 {
            log.write(lines([&line])).unwrap_err();
        }
        log.storage.size = 2 * PENDING_BYTES;
        assert_eq!(log.write(lines([])).unwrap(), 2);
        assert_eq!(log.storage.bytes.len(), PENDING_BYTES);
        assert_eq!(log.write(lines([])).unwrap(), 0);
    }

    #[test]
    fn more_lines_at_once_than_may_wait_are_all_written_to_a_disk_that_takes_them() {
        let mut log = Log::new(Disk {
            size: 2 * PENDING_BYTES,
            ..Disk::default()
        });
        let line = "x".repeat(PENDING_BYTES / 4);
        assert_eq!(log.write(lines([&*line; 7])).unwrap(), 0);
        assert_eq!(log.storage.bytes.len(), 7 * line.len());
    }

    #[test]
    fn strangers_get_a_line_a_second_that_counts_the_others() {
        let record = || Record::new(&http::Request::new(()).into_parts().0);
        let (mut strangers, begun) = (Strangers::default(), Instant::now());
        let mut told = Vec::new();
        for i in 0..10_000 {
            let now = begun + Duration::from_millis(i);
            told.extend(strangers.refused(record(), now));
        }
        assert_eq!(told.len(), 10);
        let last = begun + Duration::from_secs(10);
        told.extend(strangers.due(last));
        assert_eq!(
            told.iter().map(|told| told.omitted + 1).sum::<u64>(),
            10_000
        );
        assert!(strangers.due(last + Strangers::QUIET).is_none());
        let alone = strangers.refused(record(), last + Strangers::QUIET);
        assert_eq!(alone.unwrap().omitted, 0);
    }

    #[test]
    fn a_line_of_any_length_is_written_to_a_disk_that_takes_it() {
        let mut log = Log::new(Disk {
            size: 3 * PENDING_BYTES,
            ..Disk::default()
        });
        let long = "x".repeat(PENDING_BYTES + 1);
        assert_eq!(log.write(lines(["a\n", &long, "b\n"])).unwrap(), 0);
        assert_eq!(log.storage.bytes.len(), long.len() + 4);
    }

    #[test]
    fn a_long_path_or_object_makes_no_long_line() {
        let path = format!("/{}", "x".repeat(60_000));
        let request = http::Request::get(path).body(()).unwrap();
        let mut record = Record::new(&request.into_parts().0);
        record.set_about(Some(&"x".repeat(60_000)));
        assert_eq!(record.path.len(), LONGEST + "...".len());
        assert_eq!(record.about.unwrap().len(), LONGEST + "...".len());
        assert_eq!(shortened("/short"), "/short");
    }
}
