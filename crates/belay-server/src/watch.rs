//! Watching: a collection's changes as a stream of JSON lines.
//!
//! The stream is pulled by the connection: nothing is queued for a client that does not read. It
//! reads from the store's shared history; one that falls behind the history is told 410 and has to
//! list again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use belay_store::{Entry, Event, Revision, Watch, WatchError, WatchItem};
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::{Api, Body, Call};
use crate::metrics::Watching;
use crate::object::Meta;
use crate::query::Form;
use crate::registry::Kind;
use crate::render;
use crate::select::Selection;
use crate::status::{ApiError, ApiResult};

/// How long a watch without `timeoutSeconds` may last.
const LONGEST: Duration = Duration::from_secs(3600);

impl Api {
    pub(crate) fn watch(&self, call: Call<'_>) -> ApiResult<Response<Body>> {
        let kind = call.resource.kind;
        let prefix = kind.prefix(call.resource.namespace.as_deref());
        let query = call.query;
        let timeout = query
            .number::<u64>("timeoutSeconds")?
            .filter(|s| *s > 0)
            .map_or(LONGEST, |s| Duration::from_secs(s).min(LONGEST));
        let bookmarks = query.flag("allowWatchBookmarks")?;
        let initial = query.flag("sendInitialEvents")?;
        let start = match query.get("resourceVersion") {
            None | Some("0") => None,
            Some(text) => Some(text.parse::<u64>().map(Revision).map_err(|_| {
                ApiError::bad_request(format!("resourceVersion: {text:?} is no resource version"))
            })?),
        };
        // Without a revision to start from, the current state comes first, as additions.
        let mut queued = VecDeque::new();
        let lines = Lines {
            kind,
            form: call.form,
            columns_sent: false,
        };
        let after = match start {
            Some(revision) if !initial => revision,
            _ => {
                let selection = &call.selection;
                let page = self
                    .store
                    .list(&prefix, None, usize::MAX, &mut |e| selection.matches(e));
                queued.extend(page.entries.into_iter().map(Queued::Added));
                if initial && bookmarks {
                    queued.push_back(Queued::Line(lines.bookmark(page.revision, true)));
                }
                page.revision
            }
        };
        let watch = match self.store.watch(&prefix, after) {
            Ok(watch) => watch,
            Err(refused) => return Ok(only(&expired(after, &refused))),
        };
        let state = Stream {
            watch,
            selection: call.selection,
            lines,
            queued,
            bookmarks: bookmarks.then_some(self.bookmark_every),
            next_bookmark: Instant::now() + self.bookmark_every,
            end: Instant::now() + timeout,
            stopping: self.stopping.clone(),
            ended: false,
            _counted: self.metrics.watching(),
        };
        let body = StreamBody::new(stream::unfold(state, |mut state| async move {
            let line = state.next().await?;
            Some((Ok(Frame::data(line)), state))
        }));
        Ok(streaming(body.boxed_unsync()))
    }
}

fn streaming(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

/// A watch that cannot begin where it was to. A stock server says that in the stream, and clients
/// list again only where they find it there: an answer with the code 410 they take for a request
/// that failed, and repeat it for ever.
fn only(error: &ApiError) -> Response<Body> {
    streaming(
        Full::new(Lines::error(error))
            .map_err(|never| match never {})
            .boxed_unsync(),
    )
}

fn expired(after: Revision, refused: &WatchError) -> ApiError {
    match refused {
        // The client has seen what is not here: this data is older, say from a backup. Only
        // "expired" makes every client list again.
        WatchError::Future { .. } => ApiError::expired(format!(
            "resource version {after} is newer than anything here; list again"
        )),
        WatchError::TooOld { .. } | WatchError::Lagged { .. } | WatchError::Closed => {
            too_old(after)
        }
    }
}

fn too_old(after: Revision) -> ApiError {
    ApiError::expired(format!(
        "too old resource version: {after}; list again to get a newer one"
    ))
}

/// What is still to be sent before the next change.
enum Queued {
    /// An object that was there when the watch began. What the client has not read yet is held as the
    /// store holds it, not once more for each watch.
    Added(Arc<Entry<Meta>>),
    Line(Bytes),
}

struct Stream {
    watch: Watch<Meta>,
    selection: Selection,
    lines: Lines,
    queued: VecDeque<Queued>,
    bookmarks: Option<Duration>,
    next_bookmark: Instant,
    end: Instant,
    stopping: tokio_util::sync::CancellationToken,
    ended: bool,
    _counted: Watching,
}

impl Stream {
    /// The next line, or `None` when the watch is over.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.queued.pop_front() {
                Some(Queued::Added(entry)) => {
                    return Some(self.lines.object("ADDED", &entry.value));
                }
                Some(Queued::Line(line)) => return Some(line),
                None => {}
            }
            if self.ended {
                return None;
            }
            let bookmark_at = if self.bookmarks.is_some() {
                self.next_bookmark
            } else {
                self.end
            };
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => self.finish(),
                () = tokio::time::sleep_until(self.end) => self.finish(),
                item = self.watch.next() => match item {
                    Ok(WatchItem::Event(event)) => {
                        if let Some(line) = self.lines.event(&event, &self.selection) {
                            return Some(line);
                        }
                    }
                    Ok(WatchItem::Progress(_)) => {}
                    Err(_) => {
                        self.ended = true;
                        return Some(Lines::error(&too_old(self.watch.seen())));
                    }
                },
                () = tokio::time::sleep_until(bookmark_at), if self.bookmarks.is_some() => {
                    self.next_bookmark = Instant::now() + self.bookmarks.unwrap_or(LONGEST);
                    return Some(self.bookmark());
                }
            }
        }
    }

    /// A watch that ends in time says how far it came, so that its successor misses nothing.
    fn finish(&mut self) {
        self.ended = true;
        if self.bookmarks.is_some() {
            let line = Queued::Line(self.bookmark());
            self.queued.push_back(line);
        }
    }

    /// How far this watch came, which is also past what happened elsewhere: a quiet watch would
    /// else be told to resume where history is long gone.
    fn bookmark(&self) -> Bytes {
        self.lines.bookmark(self.watch.seen(), false)
    }
}

/// Renders events in the form the client asked for.
struct Lines {
    kind: &'static Kind,
    form: Form,
    /// Column definitions are sent once per watch.
    columns_sent: bool,
}

impl Lines {
    /// What a change means to someone who sees only what matches the selection.
    fn event(&mut self, event: &Event<Meta>, selection: &Selection) -> Option<Bytes> {
        let before = event
            .previous
            .as_ref()
            .is_some_and(|p| selection.matches(p));
        let now = !event.deleted && selection.matches(&event.entry);
        let kind = match (before, now) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return None,
        };
        Some(self.object(kind, &event.entry.value))
    }

    fn object(&mut self, kind: &str, object: &Bytes) -> Bytes {
        if self.form == Form::Json {
            let mut line = Vec::with_capacity(object.len() + 32);
            line.extend_from_slice(b"{\"type\":\"");
            line.extend_from_slice(kind.as_bytes());
            line.extend_from_slice(b"\",\"object\":");
            line.extend_from_slice(object);
            line.extend_from_slice(b"}\n");
            return line.into();
        }
        let value: Value = serde_json::from_slice(object).unwrap_or_default();
        let rendered = match self.form {
            Form::Table => {
                let with_columns = !std::mem::replace(&mut self.columns_sent, true);
                let rows = [render::row(
                    self.kind,
                    &value,
                    render::Include::Metadata,
                    Timestamp::now(),
                )];
                render::table(self.kind, &rows, &json!({}), with_columns)
            }
            Form::Metadata | Form::Json => render::metadata_only(&value),
        };
        line(&json!({"type": kind, "object": rendered}))
    }

    fn bookmark(&self, revision: Revision, initial_end: bool) -> Bytes {
        let mut metadata =
            json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.form {
            Form::Table => render::table(self.kind, &[], &metadata, false),
            Form::Metadata => render::metadata_only(&json!({"metadata": metadata})),
            Form::Json => json!({
                "kind": self.kind.kind,
                "apiVersion": self.kind.api_version(),
                "metadata": metadata,
            }),
        };
        line(&json!({"type": "BOOKMARK", "object": object}))
    }

    fn error(error: &ApiError) -> Bytes {
        line(&json!({"type": "ERROR", "object": error.status()}))
    }
}

fn line(value: &Value) -> Bytes {
    let mut text = value.to_string();
    text.push('\n');
    text.into()
}
