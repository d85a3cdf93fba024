//! The agent's own HTTPS listener: logs and sessions for the server, metrics, health.
//!
//! | path | who may |
//! |---|---|
//! | `/healthz` | anyone |
//! | `/metrics` | a client certificate of the server's CA |
//! | `/containerLogs/NAMESPACE/POD/CONTAINER` | the server itself (`CN=system:belay:server`) |
//! | `/exec/NAMESPACE/POD/CONTAINER` | the same |

mod certificate;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::context::Host;
use crate::logs::{self, LogError, LogQuery};
use crate::sessions::{Sessions, Wanted};
pub(crate) use certificate::{CertificateError, Serving};

/// Who may read logs and run commands.
const SERVER: &str = "system:belay:server";
/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a client that shows no certificate may stay: it can do nothing here but ask how we are.
const STRANGER: Duration = Duration::from_secs(10);
/// How many connections are open at once, sessions and logs that are followed among them. More wait
/// until others end.
const CONNECTIONS: usize = 512;
/// How long sessions may take to be killed when the agent stops.
const FAREWELL: Duration = Duration::from_secs(10);

/// Why the listener could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The serving certificate.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The address.
    #[error("cannot listen on {address}: {source}; choose another address")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The CA of the server.
    #[error("the server's CA certificate cannot be used: {message}")]
    Ca {
        /// Why.
        message: String,
    },
    /// TLS itself.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// A bound listener that has not begun to serve.
pub(crate) struct Listener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    /// Where it listens; the port is known even if 0 was asked for.
    pub(crate) address: SocketAddr,
    /// Of the serving certificate.
    pub(crate) fingerprint: String,
}

impl Listener {
    pub(crate) async fn bind(
        address: SocketAddr,
        data_dir: &Path,
        names: Vec<String>,
        server_ca_pem: &str,
    ) -> Result<Self, ListenError> {
        let serving = Serving::load_or_make(data_dir, names)?;
        let fingerprint = serving.fingerprint();
        let config = tls(serving, server_ca_pem)?;
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| ListenError::Bind { address, source })?;
        let address = listener
            .local_addr()
            .map_err(|source| ListenError::Bind { address, source })?;
        Ok(Listener {
            listener,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            address,
            fingerprint,
        })
    }

    /// Serves until `shutdown`.
    pub(crate) async fn run(self, context: Arc<Host>, shutdown: CancellationToken) {
        let mut connections = JoinSet::new();
        let sessions = Sessions::new(shutdown.clone());
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let next = async {
                let slot = Arc::clone(&slots).acquire_owned().await?;
                Ok::<_, AcquireError>((Arc::new(slot), self.listener.accept().await))
            };
            let next = tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                next = next => next,
            };
            // Nobody closes the slots.
            let Ok((slot, accepted)) = next else { break };
            match accepted {
                Ok((stream, peer)) => {
                    let (acceptor, context) = (self.acceptor.clone(), Arc::clone(&context));
                    let sessions = sessions.clone();
                    connections.spawn(async move {
                        let served = connection(acceptor, context, sessions, stream, slot);
                        if let Err(error) = served.await {
                            debug!(%peer, %error, "a connection ended with an error");
                        }
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: others have to end first.
                    warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        // Log streams may be endless; they end with the agent.
        connections.shutdown().await;
        if tokio::time::timeout(FAREWELL, sessions.finish())
            .await
            .is_err()
        {
            warn!("some sessions did not end in time");
        }
    }
}

fn tls(serving: Serving, server_ca_pem: &str) -> Result<ServerConfig, ListenError> {
    let ca = |message: String| ListenError::Ca { message };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(server_ca_pem.as_bytes()) {
        let certificate = certificate.map_err(|error| ca(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| ca(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(ca("there is no certificate in it".to_owned()));
    }
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| ca(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![serving.certificate], serving.key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Who is at the other end, as far as a verified certificate tells.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Peer {
    Unknown,
    Certified { common_name: String },
}

fn peer(certificates: Option<&[CertificateDer<'_>]>) -> Peer {
    let Some(certificate) = certificates.and_then(<[_]>::first) else {
        return Peer::Unknown;
    };
    let common_name = x509_parser::parse_x509_certificate(certificate)
        .ok()
        .and_then(|(_, parsed)| {
            let mut names = parsed.subject().iter_common_name();
            let name = names
                .next()
                .and_then(|name| name.as_str().ok().map(str::to_owned));
            // Two names are no name.
            names.next().is_none().then_some(name).flatten()
        })
        .unwrap_or_default();
    Peer::Certified { common_name }
}

async fn connection(
    acceptor: TlsAcceptor,
    context: Arc<Host>,
    sessions: Sessions,
    stream: TcpStream,
    slot: Arc<OwnedSemaphorePermit>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    let stream = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await??;
    let peer = peer(stream.get_ref().1.peer_certificates());
    let patience = match &peer {
        Peer::Unknown => STRANGER,
        Peer::Certified { .. } => Duration::MAX,
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let (context, sessions) = (Arc::clone(&context), sessions.clone());
        let (peer, slot) = (peer.clone(), slot.clone());
        async move { Ok::<_, Infallible>(answer(context, &sessions, &peer, request, slot).await) }
    });
    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let served = server.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::time::timeout(patience, served).await?
}

/// Has the kernel notice a server that is gone without a word.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

type Answer = Response<BoxBody<Bytes, io::Error>>;

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into())
        .map_err(|never| match never {})
        .boxed();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, plain);
    answer
}

async fn answer(
    context: Arc<Host>,
    sessions: &Sessions,
    peer: &Peer,
    mut request: Request<Incoming>,
    slot: Arc<OwnedSemaphorePermit>,
) -> Answer {
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, _) = request.into_parts();
    let path = parts.uri.path();
    if parts.method != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is known here\n");
    }
    match path {
        "/healthz" => return text(StatusCode::OK, "ok"),
        "/metrics" => {
            return match peer {
                Peer::Certified { .. } => text(StatusCode::OK, context.metrics.text()),
                Peer::Unknown => text(StatusCode::UNAUTHORIZED, "a client certificate is needed\n"),
            };
        }
        _ => {}
    }
    let (what, rest) = path
        .strip_prefix('/')
        .and_then(|path| path.split_once('/'))
        .unwrap_or_default();
    if !matches!(what, "containerLogs" | "exec") {
        return text(StatusCode::NOT_FOUND, "there is nothing here\n");
    }
    match peer {
        Peer::Unknown => return text(StatusCode::UNAUTHORIZED, "a client certificate is needed\n"),
        Peer::Certified { common_name } if common_name != SERVER => {
            return text(
                StatusCode::FORBIDDEN,
                "only the API server may read logs and run commands here\n",
            );
        }
        Peer::Certified { .. } => {}
    }
    let words: Vec<&str> = rest.split('/').collect();
    let [namespace, pod, container] = words[..] else {
        return text(
            StatusCode::NOT_FOUND,
            format!("expected /{what}/NAMESPACE/POD/CONTAINER\n"),
        );
    };
    if what == "exec" {
        let wanted = Wanted {
            namespace,
            pod,
            container,
        };
        return match sessions.begin(&context, wanted, &parts, upgrade, slot) {
            Ok(accepted) => {
                let mut answer = text(StatusCode::SWITCHING_PROTOCOLS, "");
                answer.headers_mut().clear();
                answer.headers_mut().extend(accepted.headers());
                answer
            }
            Err(refusal) => text(refusal.status, refusal.message),
        };
    }
    let query = match LogQuery::parse(parts.uri.query().unwrap_or_default()) {
        Ok(query) => query,
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    log(context, namespace, pod, container, query).await
}

async fn log(
    context: Arc<Host>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: LogQuery,
) -> Answer {
    let opened = match logs::find(&context, namespace, pod, container, query.previous) {
        Ok(source) => logs::read(context, source, query, Timestamp::now()).await,
        Err(error) => Err(error),
    };
    match opened {
        Ok(mut pieces) => {
            let stream = futures::stream::poll_fn(move |cx| pieces.poll_recv(cx));
            let frames = futures::stream::StreamExt::map(stream, |piece| piece.map(Frame::data));
            let mut answer = Response::new(StreamBody::new(frames).boxed());
            let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
            answer.headers_mut().insert(header::CONTENT_TYPE, plain);
            answer
        }
        Err(error) => {
            let status = match &error {
                LogError::NoPod { .. } => StatusCode::NOT_FOUND,
                LogError::NoContainer { .. }
                | LogError::NotStarted { .. }
                | LogError::NoPrevious { .. } => StatusCode::BAD_REQUEST,
                LogError::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            };
            text(status, error.to_string())
        }
    }
}
