//! A context for tests of single parts, with a server that says what the test wants.

pub(crate) mod fake;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belay_api::gates::FeatureGates;
use belay_runtime::ProcessRuntime;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::audit::Audit;
use crate::clock::Clock;
use crate::context::Context;
use crate::events::Recorder;
use crate::journal::Journal;
use crate::metrics::Metrics;
use crate::patience;
use crate::pods::Table;
use fake::Fake;

/// What the server does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// The connection breaks.
    Broken,
    /// The connection is dead, and nobody says so.
    Silence,
    Answer(u16, Value),
    /// An answer that takes a while.
    Late(Duration, u16, Value),
}

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

type Answering = dyn Fn(&Asked) -> Reply + Send + Sync;

/// A server that answers as told and keeps what it was asked.
#[derive(Clone)]
pub(crate) struct Script {
    answering: Arc<Answering>,
    date: Option<Timestamp>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Default for Script {
    /// Breaks every connection.
    fn default() -> Self {
        Script::new([])
    }
}

impl Script {
    /// Answers in this order, then breaks every connection.
    pub(crate) fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let replies = Mutex::new(VecDeque::from_iter(replies));
        Script::by(move |_| replies.lock().unwrap().pop_front().unwrap_or(Reply::Broken))
    }

    pub(crate) fn by(answering: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Script {
            answering: Arc::new(answering),
            date: None,
            asked: Arc::default(),
        }
    }

    /// Every answer says that it is of this time.
    pub(crate) fn dated(self, date: Timestamp) -> Self {
        Script {
            date: Some(date),
            ..self
        }
    }

    pub(crate) fn answer(&self, asked: &Asked) -> Reply {
        (self.answering)(asked)
    }

    /// What it was asked, as `METHOD path`.
    pub(crate) fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .map(|it| format!("{} {}", it.method, it.path))
            .collect()
    }

    /// All that it was asked.
    pub(crate) fn requests(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The bodies of all writes of a status.
    pub(crate) fn written(&self) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        let written = asked.iter().filter(|it| it.method == Method::PUT);
        written.map(|it| it.body.clone()).collect()
    }

    fn client(&self) -> Client {
        let script = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let script = script.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await.map_err(std::io::Error::other)?;
                let asked = Asked {
                    method: parts.method,
                    path: parts.uri.path().to_owned(),
                    query: parts.uri.query().unwrap_or_default().to_owned(),
                    body: serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
                };
                script.asked.lock().unwrap().push(asked.clone());
                let (code, body) = match script.answer(&asked) {
                    Reply::Broken => return Err(std::io::Error::other("broken")),
                    Reply::Silence => std::future::pending().await,
                    Reply::Answer(code, body) => (code, body),
                    Reply::Late(pause, code, body) => {
                        tokio::time::sleep(pause).await;
                        (code, body)
                    }
                };
                let mut response = Response::builder().status(code);
                if let Some(date) = script.date {
                    let date = jiff::fmt::rfc2822::DateTimePrinter::new()
                        .timestamp_to_rfc9110_string(&date);
                    response = response.header(http::header::DATE, date.unwrap());
                }
                Ok(response
                    .body(Body::from(body.to_string().into_bytes()))
                    .unwrap())
            }
        });
        patience::bound(Client::new(service, "default"))
    }
}

/// A context on `dir` that speaks to `script`.
pub(crate) fn context(dir: &Path, script: &Script) -> Arc<Context> {
    Arc::new(parts(dir, script))
}

/// A context with the container of [`fake`], whose pod is known.
pub(crate) fn with_container(dir: &Path, script: &Script, fake: &Arc<Fake>) -> Arc<Context> {
    Arc::new(Context {
        runtime: Arc::new(fake::Runtime(Arc::clone(fake))),
        lookup: Arc::new(fake::Known),
        ..parts(dir, script)
    })
}

/// What a context is made of.
fn parts(dir: &Path, script: &Script) -> Context {
    let runtime = ProcessRuntime::open(&dir.join("runtime")).unwrap();
    Context {
        executor: "n1".to_owned(),
        node: None,
        client: script.client(),
        runtime: Arc::new(runtime),
        lookup: Arc::new(Table::default()),
        gates: FeatureGates::default(),
        clock: Clock::default(),
        journal: Journal::open(dir).unwrap(),
        audit: Audit::open(&dir.join("audit")).unwrap(),
        metrics: Arc::new(Metrics::new(FeatureGates::default())),
        events: Recorder::new().0,
        slots: Arc::new(Semaphore::new(4)),
        status_writes: Context::status_writes(),
    }
}
