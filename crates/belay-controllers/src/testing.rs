//! A server that answers from a script, for tests of the loops.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What a test makes of requests.
pub(crate) trait Server: Default + Send + 'static {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: Value) -> Response<Body>;

    /// How the start of a watch is answered; as if the watch had ended soon if by nothing.
    fn watch(&mut self, _path: &str) -> Option<Response<Body>> {
        None
    }

    /// What was asked, to be shown where a test waits in vain.
    fn log(&self) -> &[String];
}

pub(crate) fn reply(status: u16, body: &Value) -> Response<Body> {
    Response::builder()
        .status(StatusCode::from_u16(status).unwrap())
        .body(Body::from(body.to_string().into_bytes()))
        .unwrap()
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "message": reason, "reason": reason})
}

pub(crate) fn failure(code: u16, reason: &str) -> Response<Body> {
    reply(code, &status(code, reason))
}

pub(crate) fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items,
        "metadata": {"resourceVersion": "1"}})
}

/// The server as a client sees it whose clock is so much behind the server's.
pub(crate) fn dated(client: Client, ahead: SignedDuration) -> Client {
    let dated = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let mut answer = client.send(request).await?;
            let date = Timestamp::now() + ahead;
            let date = date.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            answer.headers_mut().insert("date", date.parse().unwrap());
            Ok::<_, kube::Error>(answer)
        }
    });
    Client::new(dated, "ns")
}

/// Runs a loop against the server until something holds of it, which may be changed on the way.
/// Watches tell nothing but that they have ended: what the loop knows, it knows from lists and
/// answers.
pub(crate) async fn drive<S: Server, R>(
    run: impl Fn(Client, CancellationToken) -> R,
    script: S,
    mut until: impl FnMut(&mut S) -> bool,
) -> S
where
    R: Future<Output = ()> + Send + 'static,
{
    let script = Arc::new(Mutex::new(script));
    let shared = Arc::clone(&script);
    let service = tower::service_fn(move |request: Request<Body>| {
        let script = Arc::clone(&shared);
        async move {
            let (parts, body) = request.into_parts();
            let query = parts.uri.query().unwrap_or_default().to_owned();
            if query.contains("watch=true") {
                // A watch that the server ends soon, so that everything is listed again.
                tokio::time::sleep(Duration::from_millis(50)).await;
                let answer = script.lock().unwrap().watch(parts.uri.path());
                if let Some(answer) = answer {
                    return Ok::<_, std::io::Error>(answer);
                }
                let expired = json!({"type": "ERROR", "object": status(410, "Expired")});
                return Ok(reply(200, &expired));
            }
            let bytes = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or_default();
            let mut script = script.lock().unwrap();
            Ok(script.answer(&parts.method, parts.uri.path(), &query, body))
        }
    });
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(Client::new(service, "ns"), stop.clone()));
    let started = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        // By the paused clock, which runs as fast as there is nothing to do.
        let late = started.elapsed() > Duration::from_secs(3600);
        assert!(!late, "{:?}", script.lock().unwrap().log());
        if until(&mut script.lock().unwrap()) {
            break;
        }
    }
    stop.cancel();
    task.await.unwrap();
    std::mem::take(&mut *script.lock().unwrap())
}

/// Ten seconds of the paused clock.
pub(crate) fn for_a_while<S>() -> impl FnMut(&mut S) -> bool {
    let until = Instant::now() + Duration::from_secs(10);
    move |_| Instant::now() > until
}
