//! The node's own object and its lease.
//!
//! # Expected flow
//!
//! The node is created, or brought up to date if it is there; its status is written at once and then
//! every [`STATUS_EVERY`]; its lease is renewed every [`LEASE_EVERY`]. Whatever fails is tried again,
//! for ever: a node without an API server goes on running what it runs.
//!
//! Every answer about the lease also carries the server's `Date`, from which the agent learns the
//! server's clock.

mod facts;

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Error;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::clock::boot_millis;
use crate::context::Context;
pub(crate) use facts::{Facts, Machine};

/// How often the lease is renewed.
const LEASE_EVERY: Duration = Duration::from_secs(10);
/// How long a lease is good for; who waits longer may think the node lost.
const LEASE_SECONDS: i32 = 40;
/// How often an unchanged status is written.
const STATUS_EVERY: Duration = Duration::from_secs(300);
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Samples of the server's clock right after the start, and their distance. Together they cover a
/// second, so that the estimate is good to this distance within it.
const FIRST_SAMPLES: (u32, Duration) = (9, Duration::from_millis(121));

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

/// Keeps the node's object. Runs until `shutdown`.
pub(crate) async fn keep_object(context: Arc<Context>, facts: Facts, shutdown: CancellationToken) {
    let api: Api<Node> = Api::all(context.client.clone());
    let work = async {
        let mut ready_since = Timestamp::now();
        let mut registered = false;
        loop {
            let pause = match write(&api, &facts, &mut ready_since, &mut registered).await {
                Ok(()) => STATUS_EVERY,
                Err(error) => {
                    warn!(node = facts.name, %error, "the node's object could not be written; trying again");
                    registered = false;
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

async fn write(
    api: &Api<Node>,
    facts: &Facts,
    ready_since: &mut Timestamp,
    registered: &mut bool,
) -> Result<(), Error> {
    if !*registered {
        match api.get_opt(&facts.name).await? {
            Some(node) => {
                if let Some(since) = facts::ready_since(&node) {
                    *ready_since = since;
                }
                let params = PatchParams::default();
                api.patch(&facts.name, &params, &Patch::Merge(&facts.metadata_patch()))
                    .await?;
            }
            None => {
                let node = serde_json::from_value(facts.object()).map_err(Error::SerdeError)?;
                match api.create(&PostParams::default(), &node).await {
                    Ok(_) => {}
                    // Somebody was faster; the next round patches it.
                    Err(Error::Api(status)) if status.code == 409 => {
                        return Err(Error::Api(status));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        info!(node = facts.name, "the node is registered");
    }
    let status = facts.status_patch(*ready_since, Timestamp::now());
    match api
        .patch_status(&facts.name, &PatchParams::default(), &Patch::Merge(&status))
        .await
    {
        Ok(_) => {
            *registered = true;
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Keeps the lease, and with it the estimate of the server's clock. Runs until `shutdown`.
pub(crate) async fn keep_lease(context: Arc<Context>, shutdown: CancellationToken) {
    let work = async {
        let mut samples = 0;
        loop {
            if let Err(error) = renew(&context).await {
                debug!(%error, "the node's lease could not be renewed; trying again");
                tokio::time::sleep(RETRY).await;
                continue;
            }
            while samples < FIRST_SAMPLES.0 {
                tokio::time::sleep(FIRST_SAMPLES.1).await;
                // Only the answer's date matters.
                let path = format!("{LEASES}/{}", context.node_name);
                let _ = ask(&context, Method::GET, &path, None).await;
                samples += 1;
            }
            tokio::time::sleep(LEASE_EVERY).await;
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

async fn renew(context: &Context) -> Result<(), LeaseError> {
    let name = &context.node_name;
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(Timestamp::now());
    let spec = json!({
        "holderIdentity": name,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": now,
    });
    let patch = json!({ "spec": spec });
    let (code, message) = ask(
        context,
        Method::PATCH,
        &format!("{LEASES}/{name}"),
        Some(&patch),
    )
    .await?;
    if code != 404 {
        return accepted(code, message);
    }
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": spec,
    });
    let (code, message) = ask(context, Method::POST, LEASES, Some(&lease)).await?;
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
