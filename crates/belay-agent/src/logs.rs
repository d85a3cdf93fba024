//! Containers' logs: read, filtered, followed.

mod line;
mod query;
mod tail;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt as _, AsyncSeekExt as _, BufReader};
use tokio::sync::mpsc;
use tracing::debug;

use crate::context::Host;
use crate::pods::{PodView, config};
use line::{Line, Printer};
pub(crate) use query::LogQuery;

/// How often a followed log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(150);
/// How many pieces of a log may wait for a slow reader.
const PIECES: usize = 16;
/// About how large a piece is.
const PIECE_BYTES: usize = 16 << 10;

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("pod \"{name}\" of namespace \"{namespace}\" does not run on this node")]
    NoPod { namespace: String, name: String },
    #[error("container \"{container}\" is not valid for pod {pod}")]
    NoContainer { container: String, pod: String },
    #[error("container \"{container}\" in pod \"{pod}\" is waiting to start")]
    NotStarted { container: String, pod: String },
    #[error("previous terminated container \"{container}\" in pod \"{pod}\" not found")]
    NoPrevious { container: String, pod: String },
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Which log, and whether it can still grow.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    path: PathBuf,
    pod_uid: String,
    container: String,
    restart_count: u32,
}

/// Finds the log of a container.
pub(crate) fn find(
    context: &Host,
    namespace: &str,
    name: &str,
    container: &str,
    previous: bool,
) -> Result<Source, LogError> {
    let view = context
        .pods
        .named(namespace, name)
        .ok_or_else(|| LogError::NoPod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })?;
    let restart_count = incarnation(&view, container, previous)?;
    Ok(Source {
        path: config::log_path(&context.data_dir, &view.pod, container, restart_count),
        pod_uid: view.pod.uid().to_owned(),
        container: container.to_owned(),
        restart_count,
    })
}

fn incarnation(view: &PodView, container: &str, previous: bool) -> Result<u32, LogError> {
    let (container, pod) = (container.to_owned(), view.pod.name().to_owned());
    if view.pod.container(&container).is_none() {
        return Err(LogError::NoContainer { container, pod });
    }
    match (view.containers.get(&container), previous) {
        (None, false) => Err(LogError::NotStarted { container, pod }),
        (None, true) => Err(LogError::NoPrevious { container, pod }),
        (Some(found), false) => Ok(found.restart_count),
        (Some(found), true) => found
            .previous
            .ok_or(LogError::NoPrevious { container, pod }),
    }
}

impl Source {
    /// Whether nothing will be written to this log any more.
    fn is_complete(&self, context: &Host) -> bool {
        context.pods.get(&self.pod_uid).is_none_or(|view| {
            view.containers
                .get(&self.container)
                .is_none_or(|container| {
                    container.restart_count != self.restart_count || !container.running
                })
        })
    }
}

/// Opens a log and sends what the query asks for, piece by piece. A reader that goes away ends it.
pub(crate) async fn read(
    context: Arc<Host>,
    source: Source,
    query: LogQuery,
    now: Timestamp,
) -> Result<mpsc::Receiver<io::Result<Bytes>>, LogError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| LogError::Io { path, source }
    };
    let mut file = match File::open(&source.path).await {
        Ok(file) => file,
        // The shim makes the file before it starts anything: without one there was nothing to say.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(mpsc::channel(1).1),
        Err(error) => return Err(io(&source.path)(error)),
    };
    if let Some(lines) = query.tail_lines {
        let at = tail::start(&mut file, lines)
            .await
            .map_err(io(&source.path))?;
        file.seek(io::SeekFrom::Start(at))
            .await
            .map_err(io(&source.path))?;
    }
    let (sender, pieces) = mpsc::channel(PIECES);
    tokio::spawn(async move {
        let path = source.path.clone();
        if let Err(error) = pump(&context, &source, &query, now, file, &sender).await {
            debug!(path = %path.display(), %error, "a log could not be read to its end");
            let _ = sender.send(Err(error)).await;
        }
    });
    Ok(pieces)
}

async fn pump(
    context: &Host,
    source: &Source,
    query: &LogQuery,
    now: Timestamp,
    file: File,
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(PIECE_BYTES, file);
    let mut printer = Printer::new(query, now);
    let mut raw = Vec::new();
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    // Whether the log was complete when its end was last met: then the next end is the last.
    let mut complete = false;
    loop {
        let read = reader.read_until(b'\n', &mut raw).await?;
        if raw.ends_with(b"\n") {
            if let Some(line) = Line::parse(&raw) {
                printer.print(&line, &mut piece);
            }
            raw.clear();
            let full = printer.is_full();
            if (piece.len() >= PIECE_BYTES || full)
                && sender
                    .send(Ok(Bytes::from(std::mem::take(&mut piece))))
                    .await
                    .is_err()
            {
                return Ok(());
            }
            if full {
                return Ok(());
            }
            continue;
        }
        if read > 0 {
            // A line that is still being written.
            continue;
        }
        if !piece.is_empty()
            && sender
                .send(Ok(Bytes::from(std::mem::take(&mut piece))))
                .await
                .is_err()
        {
            return Ok(());
        }
        if !query.follow || complete {
            return Ok(());
        }
        complete = source.is_complete(context);
        if complete {
            continue;
        }
        tokio::select! {
            () = sender.closed() => return Ok(()),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

#[cfg(test)]
mod tests;
