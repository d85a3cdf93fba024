//! Connections: TLS from outside, in-memory pipes from inside. Both end in [`Api::handle`].

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::service::service_fn;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use kube::client::Body as KubeBody;
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceBuilder;

use crate::api::{Api, Body, json};
use crate::identity::Identity;
use crate::status::ApiError;

/// The largest request body, as on a stock server.
const LARGEST_BODY: usize = 3 * 1024 * 1024;
/// How long a client may take to send its headers, its body, or to finish a TLS handshake.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long open requests may take to finish when the server stops.
const FAREWELL: Duration = Duration::from_secs(5);
/// Connections that may be open at once; more wait in the listener's queue.
const CONNECTIONS: usize = 4096;
/// Bytes in flight in an in-memory connection, each way.
const PIPE: usize = 64 * 1024;

/// Accepts connections until `shutdown`.
pub(crate) async fn listen(
    api: Arc<Api>,
    listener: TcpListener,
    tls: TlsAcceptor,
    shutdown: CancellationToken,
) {
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS));
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &slots) => accepted,
        };
        let (stream, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, most likely: wait for some to come back.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (api, tls, watcher) = (Arc::clone(&api), tls.clone(), graceful.watcher());
        tokio::spawn(async move {
            let _slot = slot;
            let stream = match tokio::time::timeout(PATIENCE, tls.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => return tracing::debug!("TLS handshake took too long"),
            };
            let identity = stream
                .get_ref()
                .1
                .peer_certificates()
                .and_then(|chain| chain.first())
                .and_then(|certificate| Identity::from_certificate(certificate));
            let service = service_fn(move |request| {
                let (api, identity) = (Arc::clone(&api), identity.clone());
                async move { Ok::<_, io::Error>(answer(&api, identity.as_ref(), request).await) }
            });
            let mut server = auto::Builder::new(TokioExecutor::new());
            server
                .http1()
                .timer(TokioTimer::new())
                .header_read_timeout(PATIENCE);
            server
                .http2()
                .timer(TokioTimer::new())
                .keep_alive_interval(PATIENCE);
            let connection = server.serve_connection_with_upgrades(TokioIo::new(stream), service);
            if let Err(error) = watcher.watch(connection.into_owned()).await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    api.stopping.cancel();
    if tokio::time::timeout(FAREWELL, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::info!("some connections did not end in time");
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<tokio::sync::Semaphore>,
) -> io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    Ok((stream, slot))
}

/// Has the kernel notice a peer that is gone without a word, however quiet the connection is.
pub(crate) fn keep_alive(stream: &tokio::net::TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PATIENCE)?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

async fn answer(
    api: &Api,
    identity: Option<&Identity>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let refuse = |error: &ApiError| json(error.code, error.status().to_string());
    // A stranger's body is not worth reading: nothing that is open to strangers takes one, and
    // thousands of them would fill the memory.
    let who = api.authenticate(identity, &parts.headers);
    if !who.is_ok_and(|who| !who.is_anonymous()) {
        return api.handle(identity, &parts, Bytes::new()).await;
    }
    let collected =
        tokio::time::timeout(PATIENCE, Limited::new(body, LARGEST_BODY).collect()).await;
    let body = match collected {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return refuse(&ApiError::too_large(LARGEST_BODY));
        }
        Ok(Err(error)) => {
            return refuse(&ApiError::bad_request(format!(
                "cannot read the body: {error}"
            )));
        }
        Err(_) => {
            return refuse(&ApiError::timeout(
                "the request body did not arrive in time",
            ));
        }
    };
    api.handle(identity, &parts, body).await
}

/// A client whose every connection is an in-memory pipe that carries `identity`.
pub(crate) fn connect(api: Arc<Api>, identity: Identity) -> kube::Client {
    let connector = InMemory { api, identity };
    let client: HttpClient<InMemory, KubeBody> =
        HttpClient::builder(TokioExecutor::new()).build(connector);
    let base = Uri::from_static("http://belay.internal/");
    let service = ServiceBuilder::new()
        .layer(kube::client::middleware::BaseUriLayer::new(base))
        .map_response(|response: Response<Incoming>| response)
        .service(client);
    kube::Client::new(service, "default")
}

#[derive(Debug, Clone)]
struct InMemory {
    api: Arc<Api>,
    identity: Identity,
}

impl tower::Service<Uri> for InMemory {
    type Response = Pipe;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Pipe>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let (api, identity) = (Arc::clone(&self.api), self.identity.clone());
        Box::pin(async move {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let (api, identity) = (Arc::clone(&api), identity.clone());
                    async move { Ok::<_, io::Error>(answer(&api, Some(&identity), request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(ours), service)
                    .with_upgrades();
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "in-memory connection ended");
                }
            });
            Ok(Pipe(TokioIo::new(theirs)))
        })
    }
}

/// The client's end of an in-memory connection.
#[derive(Debug)]
struct Pipe(TokioIo<DuplexStream>);

impl Connection for Pipe {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl Write for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
