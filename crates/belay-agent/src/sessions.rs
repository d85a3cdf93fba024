//! Commands with somebody at the other end: `kubectl exec`, as the API server passes it on.
//!
//! ```text
//!   request ──> options, container, handshake ──> 101 ──> drive: channels <──> streams of a Session
//!                 refused with words                        │
//!                                                           '─> status on channel 3, close
//! ```
//!
//! Everything that can be said without starting anything is said before the connection is upgraded:
//! kubectl tries again with the protocol before WebSockets when its first try is refused, and shows
//! what the second was told. So that protocol is refused last of all.
//!
//! **Invariant:** a session whose client is gone is killed with all it started, and so are all when
//! the agent stops.

mod channels;
mod drive;
mod handshake;
mod options;
mod status;

use std::sync::Arc;

use belay_action::{AttemptId, ContainerId};
use http::StatusCode;
use hyper::upgrade::OnUpgrade;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::context::Host;
pub(crate) use handshake::Accepted;
use options::Options;

/// The sessions under way.
#[derive(Debug, Clone)]
pub(crate) struct Sessions {
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// A request that is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refusal {
    fn bad_request(message: impl Into<String>) -> Self {
        Refusal {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
        }
    }
}

/// Which container a session is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) container: &'a str,
}

impl Sessions {
    /// None yet; they are killed when `stop` is cancelled.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Sessions {
            tasks: TaskTracker::new(),
            stop,
        }
    }

    /// Waits until all are over. Called when they were told to stop.
    pub(crate) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Answers a request. The session itself goes on by itself, once the connection is upgraded; it
    /// keeps the connection's slot.
    pub(crate) fn begin(
        &self,
        context: &Arc<Host>,
        wanted: Wanted<'_>,
        parts: &http::request::Parts,
        upgrade: OnUpgrade,
        slot: Arc<OwnedSemaphorePermit>,
    ) -> Result<Accepted, Refusal> {
        let options = Options::parse(parts.uri.query().unwrap_or_default())?;
        let container = find(context, wanted)?;
        let accepted = handshake::accept(&parts.headers)?;
        let id = format!("session-{}", uuid::Uuid::new_v4().simple());
        let id = AttemptId::new(id).map_err(|error| Refusal {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            message: error.to_string(),
        })?;
        let driver = drive::Driver {
            context: Arc::clone(context),
            container,
            name: wanted.container.to_owned(),
            id,
            options,
            protocol: accepted.protocol,
            stop: self.stop.clone(),
        };
        self.tasks.spawn(async move {
            match upgrade.await {
                Ok(connection) => driver.run(connection).await,
                Err(error) => debug!(%error, "a session came to nothing"),
            }
            drop(slot);
        });
        Ok(accepted)
    }
}

/// The container, if it runs; refused in the words of a kubelet.
fn find(context: &Host, wanted: Wanted<'_>) -> Result<ContainerId, Refusal> {
    let view = context.pods.named(wanted.namespace, wanted.pod);
    let Some(view) = view else {
        return Err(Refusal {
            status: StatusCode::NOT_FOUND,
            message: "pod does not exist".to_owned(),
        });
    };
    let running = view.running(wanted.container).cloned();
    running.ok_or_else(|| Refusal {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        message: format!("container not found ({:?})", wanted.container),
    })
}
