//! Requests whose answers tell the server's clock: every answer carries the server's `Date`.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, header};
use http_body_util::BodyExt as _;
use kube::Error;
use kube::client::Body;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::clock::boot_millis;
use crate::context::Context;

/// Samples of the server's clock right after the start, and their distance. Together they cover a
/// second, so that the estimate is good to this distance within it.
const FIRST_SAMPLES: (u32, Duration) = (9, Duration::from_millis(121));
/// How often the clock is asked for where nothing else asks the server.
const EVERY: Duration = Duration::from_secs(10);
/// How long a request and its answer may take: a lease that waited longer would soon be over.
const LIMIT: Duration = Duration::from_secs(10);
/// What everybody may read.
const VERSION: &str = "/version";

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("{0}")]
    Client(#[from] Error),
    #[error("cannot build the request: {0}")]
    Request(#[from] http::Error),
    #[error("the server did not answer within {} s", LIMIT.as_secs())]
    Late,
    #[error("the server answered {code}: {message}")]
    Refused { code: u16, message: String },
}

/// Asks often enough for a good estimate; only the answers' dates matter.
pub(crate) async fn first_samples(context: &Context, path: &str) {
    for _ in 0..FIRST_SAMPLES.0 {
        let _ = ask(context, Method::GET, path, None).await;
        tokio::time::sleep(FIRST_SAMPLES.1).await;
    }
}

/// Keeps the estimate of the server's clock where no lease does. Runs until `shutdown`.
pub(crate) async fn keep(context: Arc<Context>, shutdown: CancellationToken) {
    let work = async {
        first_samples(&context, VERSION).await;
        loop {
            tokio::time::sleep(EVERY).await;
            let _ = ask(&context, Method::GET, VERSION, None).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

/// One request whose answer's `Date` is taken note of. Returns the status and, of a refusal, the
/// beginning of the body.
pub(crate) async fn ask(
    context: &Context,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(u16, String), AskError> {
    let answer = asked(context, method, path, body);
    tokio::time::timeout(LIMIT, answer)
        .await
        .unwrap_or(Err(AskError::Late))
}

async fn asked(
    context: &Context,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(u16, String), AskError> {
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
    context.clock.answered();
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
