//! An HTTP request as the kubelet's probes make it: every one on a connection of its own, without
//! trust in any certificate, following redirects on the same host only.

use std::sync::Arc;

use http::header::{ACCEPT, CONNECTION, HOST, LOCATION, USER_AGENT as USER_AGENT_HEADER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use super::check::{USER_AGENT, authority, causes, connect};
use super::redirect::{self, Place};

/// How much of an answer is read before the connection is closed on it.
const MAX_BODY: usize = 10 * 1024;
/// As many requests one try makes at most.
const MAX_REQUESTS: usize = 10;
/// How many characters of what a container says are shown.
const LONGEST_SHOWN: usize = 200;

/// An HTTP request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGet {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Path and query.
    pub path: String,
    /// Sent with every request; one name may come several times. An empty `User-Agent` or `Accept`
    /// takes the default away.
    pub headers: Vec<(String, String)>,
}

/// What an answer says, as far as it matters.
#[derive(Debug)]
struct Answer {
    code: StatusCode,
    location: Option<String>,
}

/// Succeeds on a code from 200 to 399, redirects followed.
pub(super) async fn get(request: &HttpGet) -> Result<(), String> {
    let headers = headers(&request.headers)?;
    let mut place = Place {
        tls: request.tls,
        host: request.host.clone(),
        port: request.port,
        path: redirect::path(&request.path)
            .ok_or_else(|| format!("{:?} is no path", request.path))?,
    };
    for _ in 0..MAX_REQUESTS {
        let answer = ask(&place, &headers).await?;
        match onward(&place, &answer)? {
            Some(next) if next.host.eq_ignore_ascii_case(&request.host) => place = next,
            // Another host is not the container's: that it sends there is its answer.
            Some(_) | None => {
                let code = answer.code.as_u16();
                return if (200..400).contains(&code) {
                    Ok(())
                } else {
                    Err(format!("HTTP {code}"))
                };
            }
        }
    }
    Err(format!("stopped after {MAX_REQUESTS} redirects"))
}

/// Where an answer sends to, if it is a redirect.
fn onward(place: &Place, answer: &Answer) -> Result<Option<Place>, String> {
    let redirects = matches!(
        answer.code,
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let location = answer.location.as_ref().filter(|_| redirects);
    let Some(location) = location else {
        return Ok(None);
    };
    redirect::follow(place, location).map(Some).ok_or_else(|| {
        let shown: String = location.chars().take(LONGEST_SHOWN).collect();
        format!("redirected to {shown:?}, which is no HTTP address")
    })
}

fn headers(given: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            (Ok(name), Ok(value)) => headers.append(name, value),
            (Err(_), _) | (_, Err(_)) => {
                return Err(format!("the header {name:?} cannot be sent"));
            }
        };
    }
    for (name, default) in [(USER_AGENT_HEADER, USER_AGENT), (ACCEPT, "*/*")] {
        match headers.get(&name) {
            None => {
                headers.insert(name, HeaderValue::from_static(default));
            }
            Some(value) if value.is_empty() => {
                headers.remove(name);
            }
            Some(_) => {}
        }
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(headers)
}

async fn ask(place: &Place, headers: &HeaderMap) -> Result<Answer, String> {
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = place.path.clone().into();
    *request.headers_mut() = headers.clone();
    if !headers.contains_key(HOST) {
        let host = HeaderValue::try_from(authority(&place.host, place.port))
            .map_err(|_| format!("{:?} is no host", place.host))?;
        request.headers_mut().insert(HOST, host);
    }
    let stream = connect(&place.host, place.port).await?;
    if place.tls {
        let name = ServerName::try_from(place.host.clone())
            .map_err(|_| format!("{:?} is no host", place.host))?;
        let connector = connector().map_err(|error| format!("no TLS: {error}"))?;
        let stream = connector.connect(name, stream).await;
        exchange(stream.map_err(|error| format!("no TLS: {error}"))?, request).await
    } else {
        exchange(stream, request).await
    }
}

/// What the message of a request begins with that was taken and not answered.
pub const NO_ANSWER: &str = "no HTTP answer";

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<Answer, String> {
    let broken = |error: hyper::Error| format!("{NO_ANSWER}: {}", causes(&error));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let answer = sender.send_request(request).await.map_err(broken)?;
    let (head, mut body) = answer.into_parts();
    let mut read = 0;
    while read < MAX_BODY
        && let Some(frame) = body.frame().await
    {
        let frame = frame.map_err(broken)?;
        read += frame.data_ref().map_or(0, Bytes::len);
    }
    Ok(Answer {
        code: head.status,
        location: head
            .headers
            .get(LOCATION)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
    })
}

fn connector() -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Trust in everyone. Containers have certificates of their own making, and a probe asks whether
/// they answer, not who they are. Signatures are not checked either: whoever could forge one could
/// as well show another certificate.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
