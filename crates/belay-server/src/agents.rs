//! The agents of nodes, reached over mutual TLS: logs and sessions are theirs to serve.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::api::Api;
use crate::object::meta_str;
use crate::registry::World;
use crate::serve::keep_alive;
use crate::status::{ApiError, ApiResult};

/// Where the agent publishes the SHA-256 of its serving certificate.
pub(crate) const FINGERPRINT: &str = "/metadata/annotations/apps.k8s.io~1serving-cert-sha256";
/// How long an agent may take to answer the telephone.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest refusal that is read.
const LONGEST_REFUSAL: usize = 64 * 1024;

/// Why an agent could not be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error("the node has not published {0}; is its agent running?")]
    NotPublished(&'static str),
    #[error("{0}")]
    Pki(#[from] crate::pki::PkiError),
    #[error("{address}: {source}; is the agent running?")]
    Connect {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Request(#[from] http::Error),
}

impl Api {
    /// The node that a pod runs on.
    pub(crate) fn node_of(&self, pod: &Value) -> ApiResult<Value> {
        let name = pod
            .pointer("/spec/nodeName")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if name.is_empty() {
            return Err(ApiError::bad_request(format!(
                "pod {} does not have a host assigned",
                meta_str(pod, "name")
            )));
        }
        World::get(self, "nodes", None, name)
            .ok_or_else(|| ApiError::bad_gateway(format!("node {name:?} is not registered")))
    }

    /// Sends a request to a node's agent.
    pub(crate) async fn ask_agent(
        &self,
        node: &Value,
        mut request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, AgentError> {
        let address = address(node)?;
        let fingerprint = node
            .pointer(FINGERPRINT)
            .and_then(Value::as_str)
            .ok_or(AgentError::NotPublished("its certificate's fingerprint"))?;
        let tls = tokio_rustls::TlsConnector::from(Arc::new(self.pki.agent_config(fingerprint)?));
        let connect = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            tls.connect(ServerName::from(address.ip()), stream).await
        };
        let connected = tokio::time::timeout(PATIENCE, connect).await;
        let stream = connected
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(|source| AgentError::Connect { address, source })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection to an agent ended");
            }
        });
        let host = http::HeaderValue::from_str(&address.to_string()).map_err(http::Error::from)?;
        request.headers_mut().insert(http::header::HOST, host);
        Ok(sender.send_request(request).await?)
    }
}

fn address(node: &Value) -> Result<SocketAddr, AgentError> {
    let address = node
        .pointer("/status/addresses")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|a| a["type"] == "InternalIP")
        .and_then(|a| a["address"].as_str()?.parse::<IpAddr>().ok())
        .ok_or(AgentError::NotPublished("an InternalIP"))?;
    let port = node
        .pointer("/status/daemonEndpoints/kubeletEndpoint/Port")
        .and_then(Value::as_u64)
        .and_then(|p| u16::try_from(p).ok())
        .ok_or(AgentError::NotPublished("a port"))?;
    Ok((address, port).into())
}

/// What an agent refused, in its own words.
pub(crate) async fn refusal(answer: Response<Incoming>) -> ApiError {
    let status = answer.status();
    let bytes = Limited::new(answer.into_body(), LONGEST_REFUSAL)
        .collect()
        .await
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let message = String::from_utf8_lossy(&bytes).trim().to_owned();
    match status {
        status if status.is_client_error() => ApiError::bad_request(message),
        StatusCode::INTERNAL_SERVER_ERROR => ApiError::internal(message),
        _ => ApiError::bad_gateway(message),
    }
}

/// The container that is meant: the only one when none is named.
pub(crate) fn container(pod: &Value, wanted: Option<&str>) -> ApiResult<String> {
    let names = |field: &str| -> Vec<&str> {
        pod.pointer(field)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|c| c["name"].as_str())
            .collect()
    };
    let own = names("/spec/containers");
    let all = [names("/spec/initContainers"), own.clone()].concat();
    let pod_name = meta_str(pod, "name");
    match (wanted, own.as_slice()) {
        (Some(name), _) if all.contains(&name) => Ok(name.to_owned()),
        (Some(name), _) => Err(ApiError::bad_request(format!(
            "container {name} is not valid for pod {pod_name}"
        ))),
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) => Err(ApiError::bad_request(format!(
            "a container name must be specified for pod {pod_name}, choose one of: [{}]",
            all.join(" ")
        ))),
    }
}
