//! The lease by which others see that this agent lives: the node's own, or the companion's.
//!
//! It is renewed every [`EVERY`]; whatever fails is tried again, for ever. Every answer about the
//! lease also carries the server's `Date`, from which the agent learns the server's clock.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::Error;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::clock::boot_millis;
use crate::context::Context;

/// How often the lease is renewed.
const EVERY: Duration = Duration::from_secs(10);
/// How long a lease is good for; who waits longer may think its holder lost.
const SECONDS: i32 = 40;
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Samples of the server's clock right after the start, and their distance. Together they cover a
/// second, so that the estimate is good to this distance within it.
const FIRST_SAMPLES: (u32, Duration) = (9, Duration::from_millis(121));

/// Where nodes keep theirs.
pub(crate) const NODES: &str = "kube-node-lease";

/// Which lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) namespace: String,
    pub(crate) name: String,
    kept: watch::Sender<bool>,
}

impl Lease {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Lease {
            namespace: namespace.into(),
            name: name.into(),
            kept: watch::Sender::new(false),
        }
    }

    /// Turns true when the lease has been renewed for the first time.
    pub(crate) fn kept(&self) -> watch::Receiver<bool> {
        self.kept.subscribe()
    }

    fn collection(&self) -> String {
        let namespace = &self.namespace;
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }
}

/// Keeps a lease, and with it the estimate of the server's clock. Runs until `shutdown`.
pub(crate) async fn keep(context: Arc<Context>, lease: Lease, shutdown: CancellationToken) {
    let work = async {
        let mut samples = 0;
        let mut complained = false;
        loop {
            if let Err(error) = renew(&context, &lease).await {
                let (namespace, name) = (&lease.namespace, &lease.name);
                if std::mem::replace(&mut complained, true) {
                    debug!(namespace, name, %error, "its lease could not be renewed; trying again");
                } else {
                    warn!(namespace, name, %error, "its lease could not be renewed; trying again");
                }
                tokio::time::sleep(RETRY).await;
                continue;
            }
            complained = false;
            lease.kept.send_replace(true);
            while samples < FIRST_SAMPLES.0 {
                tokio::time::sleep(FIRST_SAMPLES.1).await;
                // Only the answer's date matters.
                let _ = ask(&context, Method::GET, &lease.path(), None).await;
                samples += 1;
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// Why the lease was not renewed.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("{0}")]
    Client(#[from] Error),
    #[error("cannot build the request: {0}")]
    Request(#[from] http::Error),
    #[error("the server answered {code}: {message}")]
    Refused { code: u16, message: String },
}

async fn renew(context: &Context, lease: &Lease) -> Result<(), LeaseError> {
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(Timestamp::now());
    let spec = json!({
        "holderIdentity": lease.name,
        "leaseDurationSeconds": SECONDS,
        "renewTime": now,
    });
    let patch = json!({ "spec": spec });
    let (code, message) = ask(context, Method::PATCH, &lease.path(), Some(&patch)).await?;
    if code != 404 {
        return accepted(code, message);
    }
    let object = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": lease.name, "namespace": lease.namespace},
        "spec": spec,
    });
    let (code, message) = ask(context, Method::POST, &lease.collection(), Some(&object)).await?;
    accepted(code, message)
}

fn accepted(code: u16, message: String) -> Result<(), LeaseError> {
    if (200..300).contains(&code) {
        Ok(())
    } else {
        Err(LeaseError::Refused { code, message })
    }
}

/// One request whose answer's `Date` is taken note of. Returns the status and, of a refusal, the
/// beginning of the body.
async fn ask(
    context: &Context,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(u16, String), LeaseError> {
    let content_type = if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::CONTENT_TYPE, content_type)
        .body(Body::from(
            body.map(Value::to_string).unwrap_or_default().into_bytes(),
        ))?;
    let sent = boot_millis();
    let answer = context.client.send(request).await?;
    if let Some(date) = answer
        .headers()
        .get(header::DATE)
        .and_then(|date| date.to_str().ok())
    {
        context.clock.observe(sent, date);
    }
    let code = answer.status().as_u16();
    // The body is read to its end, so that the connection can be used again.
    let body = answer
        .into_body()
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let message = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
    Ok((code, message))
}
