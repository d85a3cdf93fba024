//! Metrics and health of a role that serves nothing else, over plain HTTP.
//!
//! There is nothing secret in them, and nothing can be changed here; who listens beyond the loopback
//! says so with `--listen`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// How long a client may take for its request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many clients are served at once; who scrapes needs one.
const CLIENTS: usize = 64;

/// What a role still lacks to do its work, in words by part. Shared by whoever learns of a part and by
/// the monitor, which tells.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readiness(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl Readiness {
    /// A part is missing.
    pub(crate) fn lacks(&self, part: &'static str, words: impl Into<String>) {
        self.parts().insert(part, words.into());
    }

    /// A part is there.
    pub(crate) fn has(&self, part: &'static str) {
        self.parts().remove(part);
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self) -> (StatusCode, String) {
        let missing: Vec<String> = self.parts().values().cloned().collect();
        if missing.is_empty() {
            return (StatusCode::OK, "ok".to_owned());
        }
        let text = format!("not ready: {}\n", missing.join("; "));
        (StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

/// Gives the metrics as text.
pub(crate) type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

/// A bound listener that has not begun to serve.
pub(crate) struct Monitor {
    listener: TcpListener,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    metrics: Metrics,
    readiness: Readiness,
}

impl Monitor {
    /// Binds the address.
    pub(crate) async fn bind(
        address: SocketAddr,
        metrics: Metrics,
        readiness: Readiness,
    ) -> anyhow::Result<Monitor> {
        let unusable =
            || format!("cannot listen on {address} for metrics; choose another with --listen");
        let listener = TcpListener::bind(address).await.with_context(unusable)?;
        let address = listener.local_addr().with_context(unusable)?;
        Ok(Monitor {
            listener,
            address,
            metrics,
            readiness,
        })
    }

    /// Serves until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        info!("metrics and health on http://{}", self.address);
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.listener.accept(), if connections.len() < CLIENTS => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (metrics, readiness) = (Arc::clone(&self.metrics), self.readiness.clone());
                    connections.spawn(connection(stream, metrics, readiness));
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others have to end first.
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        connections.shutdown().await;
    }
}

async fn connection(stream: TcpStream, metrics: Metrics, readiness: Readiness) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request.method(), request.uri().path(), &metrics, &readiness);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        debug!(%error, "a connection ended with an error");
    }
}

fn answer(
    method: &Method,
    path: &str,
    metrics: &Metrics,
    readiness: &Readiness,
) -> Response<Full<Bytes>> {
    let (status, text) = match (method, path) {
        // A process that answers lives; that it lacks something would not be cured by its restart.
        (&Method::GET, "/healthz" | "/livez") => (StatusCode::OK, "ok".to_owned()),
        (&Method::GET, "/readyz") => readiness.answer(),
        (&Method::GET, "/metrics") => (StatusCode::OK, metrics()),
        (&Method::GET, _) => (
            StatusCode::NOT_FOUND,
            "there are only /metrics, /healthz and /readyz here\n".to_owned(),
        ),
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            "only GET is known here\n".to_owned(),
        ),
    };
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, plain);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn metrics_and_health_are_served_and_nothing_else() {
        let metrics: Metrics = Arc::new(|| "belay_is_leader 1\n".to_owned());
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let readiness = Readiness::default();
        readiness.lacks("runtime", "the runtime does not answer");
        readiness.lacks("lease", "the lease is not renewed");
        let monitor = Monitor::bind(listen, metrics, readiness.clone())
            .await
            .unwrap();
        let address = monitor.address;
        let stop = CancellationToken::new();
        let task = tokio::spawn(monitor.run(stop.clone()));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(
            get(address, "/metrics")
                .await
                .ends_with("belay_is_leader 1\n")
        );
        assert!(get(address, "/secrets").await.starts_with("HTTP/1.1 404"));
        let unready = get(address, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        let words = "not ready: the lease is not renewed; the runtime does not answer\n";
        assert!(unready.ends_with(words), "{unready}");
        readiness.has("lease");
        readiness.has("runtime");
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        readiness.lacks("runtime", "gone");
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        stop.cancel();
        task.await.unwrap();
    }
}
