//! Containers' logs: read, filtered, followed.

mod chain;
mod line;
mod query;
mod tail;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belay_api::pod::Pod;
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
    #[error("container \"{container}\" in pod \"{pod}\" is waiting to start: {why}")]
    NotStarted {
        container: String,
        pod: String,
        why: String,
    },
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
    let waits = waiting(&view.pod, &container);
    match (view.containers.get(&container), previous) {
        (None, false) => {
            let why = match waits.unwrap_or("ContainerCreating") {
                "ErrImagePull" => "image can't be pulled",
                "ImagePullBackOff" => "trying and failing to pull image",
                reason => reason,
            };
            let why = why.to_owned();
            Err(LogError::NotStarted {
                container,
                pod,
                why,
            })
        }
        (None, true) => Err(LogError::NoPrevious { container, pod }),
        (Some(found), false) => Ok(found.restart_count),
        // One that has ended and waits for its restart is the one before the next.
        (Some(found), true) if !found.running && waits.is_some() => Ok(found.restart_count),
        (Some(found), true) => found
            .previous
            .ok_or(LogError::NoPrevious { container, pod }),
    }
}

/// What a container waits for, as it was reported.
fn waiting<'a>(pod: &'a Pod, container: &str) -> Option<&'a str> {
    let status = pod.status.as_ref()?;
    let lists = [&status.container_statuses, &status.init_container_statuses];
    let found = lists
        .into_iter()
        .flatten()
        .flatten()
        .find(|status| status.name == container)?;
    found.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
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

/// Opens a log and sends what the query asks for, piece by piece, from the oldest of its files to the
/// newest. A reader that goes away ends it.
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
    let files = open(&source.path, query.tail_lines).await;
    let mut files = files.map_err(io(&source.path))?;
    // The file is made before anything is started: without one there was nothing to say.
    let Some(first) = files.pop_front() else {
        return Ok(mpsc::channel(1).1);
    };
    let (sender, pieces) = mpsc::channel(PIECES);
    tokio::spawn(async move {
        let path = source.path.clone();
        let pumped = pump(&context, &source, &query, now, (first, files), &sender);
        if let Err(error) = pumped.await {
            debug!(path = %path.display(), %error, "a log could not be read to its end");
            let _ = sender.send(Err(error)).await;
        }
    });
    Ok(pieces)
}

/// Opens the files of a log, each where what is asked for begins.
async fn open(path: &Path, tail_lines: Option<u64>) -> io::Result<VecDeque<File>> {
    let path = path.to_owned();
    let files = blocking(move || chain::open(&path)).await?;
    let mut files: VecDeque<File> = files.into_iter().map(File::from_std).collect();
    let Some(mut lines) = tail_lines else {
        return Ok(files);
    };
    for index in (0..files.len()).rev() {
        let file = &mut files[index];
        let tail::Start { at, missing } = tail::start(file, lines).await?;
        file.seek(io::SeekFrom::Start(at)).await?;
        if missing == 0 {
            files.drain(..index);
            break;
        }
        lines = missing;
    }
    Ok(files)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await?
}

async fn pump(
    context: &Host,
    source: &Source,
    query: &LogQuery,
    now: Timestamp,
    (first, mut files): (File, VecDeque<File>),
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(PIECE_BYTES, first);
    let mut printer = Printer::new(query, now);
    let mut raw = Vec::new();
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    // Whether the log was complete when its end was last met: then the next end is the last.
    let mut complete = false;
    // Whether another file had taken the place of this one when its end was last met.
    let mut renamed = false;
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
        if let Some(next) = files.pop_front() {
            raw.clear();
            reader = BufReader::with_capacity(PIECE_BYTES, next);
            continue;
        }
        if !query.follow {
            return Ok(());
        }
        if let Some(next) = successor(&source.path, reader.get_ref()).await? {
            // A last line may have been on its way into the old file when the new one was made.
            if renamed {
                raw.clear();
                reader = BufReader::with_capacity(PIECE_BYTES, next);
                (renamed, complete) = (false, false);
            } else {
                renamed = true;
                tokio::time::sleep(LOOK_EVERY).await;
            }
            continue;
        }
        if complete {
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

/// The file that comes after the open one.
async fn successor(path: &Path, open: &File) -> io::Result<Option<File>> {
    let open = chain::identity(&open.metadata().await?);
    let path = path.to_owned();
    let next = blocking(move || chain::successor(&path, open)).await?;
    Ok(next.map(File::from_std))
}

#[cfg(test)]
mod tests;
