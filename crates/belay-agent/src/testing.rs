//! A context for tests of single parts, with a server that says what the test wants.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};

use belay_api::gates::FeatureGates;
use belay_runtime::ProcessRuntime;
use http::{Request, Response};
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
use crate::pods::Table;

/// What the server does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// The connection breaks.
    Broken,
    Answer(u16, Value),
}

/// Answers in this order and keeps what it was asked, as `METHOD path`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    replies: Arc<Mutex<VecDeque<Reply>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Script {
    pub(crate) fn new(replies: impl IntoIterator<Item = Reply>) -> Self {
        let script = Script::default();
        script.replies.lock().unwrap().extend(replies);
        script
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn client(&self) -> Client {
        let script = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let asked = format!("{} {}", request.method(), request.uri().path());
            script.asked.lock().unwrap().push(asked);
            let reply = script.replies.lock().unwrap().pop_front();
            async move {
                match reply {
                    None | Some(Reply::Broken) => Err(std::io::Error::other("broken")),
                    Some(Reply::Answer(code, body)) => Ok(Response::builder()
                        .status(code)
                        .body(Body::from(body.to_string().into_bytes()))
                        .unwrap()),
                }
            }
        });
        Client::new(service, "default")
    }
}

/// A context on `dir` that speaks to `script`.
pub(crate) fn context(dir: &Path, script: &Script) -> Arc<Context> {
    let runtime = ProcessRuntime::open(&dir.join("runtime")).unwrap();
    Arc::new(Context {
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
    })
}
