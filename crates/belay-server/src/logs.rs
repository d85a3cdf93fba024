//! `pods/log`: passed on to the agent of the pod's node over mutual TLS.

use std::sync::Arc;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::api::{Api, Body, Call, parse};
use crate::object::meta_str;
use crate::query::Query;
use crate::registry::World;
use crate::status::{ApiError, ApiResult};

/// Where the agent publishes the SHA-256 of its serving certificate.
pub(crate) const FINGERPRINT: &str = "/metadata/annotations/apps.k8s.io~1serving-cert-sha256";
const PASSED_ON: [&str; 7] = [
    "follow",
    "previous",
    "tailLines",
    "sinceSeconds",
    "sinceTime",
    "timestamps",
    "limitBytes",
];

impl Api {
    pub(crate) async fn log(&self, call: &Call<'_>) -> ApiResult<Response<Body>> {
        let pod = parse(&*self.get(call)?)?;
        let container = container(&pod, call.query.get("container"))?;
        let node_name = pod
            .pointer("/spec/nodeName")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if node_name.is_empty() {
            let name = call.name();
            return Err(ApiError::bad_request(format!(
                "pod {name} does not have a host assigned"
            )));
        }
        let node = self.get_node(node_name)?;
        let path = format!(
            "/containerLogs/{}/{}/{container}?{}",
            meta_str(&pod, "namespace"),
            call.name(),
            passed_on(call.query),
        );
        let answer = self.ask_agent(&node, &path).await.map_err(|error| {
            ApiError::bad_gateway(format!(
                "cannot get logs from the agent of node {node_name}: {error}"
            ))
        })?;
        let (parts, body) = answer.into_parts();
        let body = body.map_err(std::io::Error::other).boxed_unsync();
        if parts.status == StatusCode::OK {
            let mut response = Response::new(body);
            let plain = http::HeaderValue::from_static("text/plain");
            response
                .headers_mut()
                .insert(http::header::CONTENT_TYPE, plain);
            return Ok(response);
        }
        let bytes = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        let message = String::from_utf8_lossy(&bytes).trim().to_owned();
        Err(if parts.status.is_client_error() {
            ApiError::bad_request(message)
        } else {
            ApiError::bad_gateway(message)
        })
    }

    fn get_node(&self, name: &str) -> ApiResult<Value> {
        World::get(self, "nodes", None, name)
            .ok_or_else(|| ApiError::bad_gateway(format!("node {name:?} is not registered")))
    }

    async fn ask_agent(
        &self,
        node: &Value,
        path: &str,
    ) -> Result<Response<hyper::body::Incoming>, AgentError> {
        let address = node
            .pointer("/status/addresses")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .find(|a| a["type"] == "InternalIP")
            .and_then(|a| a["address"].as_str()?.parse::<std::net::IpAddr>().ok())
            .ok_or(AgentError::NotPublished("an InternalIP"))?;
        let port = node
            .pointer("/status/daemonEndpoints/kubeletEndpoint/Port")
            .and_then(Value::as_u64)
            .and_then(|p| u16::try_from(p).ok())
            .ok_or(AgentError::NotPublished("a port"))?;
        let fingerprint = node
            .pointer(FINGERPRINT)
            .and_then(Value::as_str)
            .ok_or(AgentError::NotPublished("its certificate's fingerprint"))?;
        let tls = tokio_rustls::TlsConnector::from(Arc::new(self.pki.agent_config(fingerprint)?));
        let failed = |source| AgentError::Connect {
            address: (address, port).into(),
            source,
        };
        let stream = TcpStream::connect((address, port)).await.map_err(failed)?;
        let stream = tls
            .connect(ServerName::from(address), stream)
            .await
            .map_err(failed)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to an agent ended");
            }
        });
        let request = Request::get(path)
            .header(http::header::HOST, format!("{address}:{port}"))
            .body(Empty::<bytes::Bytes>::new())?;
        Ok(sender.send_request(request).await?)
    }
}

/// The options of the request that the agent has to know.
fn passed_on(query: &Query) -> String {
    let mut out = form_urlencoded::Serializer::new(String::new());
    for name in PASSED_ON {
        if let Some(value) = query.get(name) {
            out.append_pair(name, value);
        }
    }
    out.finish()
}

#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error("the node has not published {0}; is its agent running?")]
    NotPublished(&'static str),
    #[error("{0}")]
    Pki(#[from] crate::pki::PkiError),
    #[error("{address}: {source}")]
    Connect {
        address: std::net::SocketAddr,
        source: std::io::Error,
    },
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Request(#[from] http::Error),
}

/// The container whose log is meant: the only one when none is named.
fn container(pod: &Value, wanted: Option<&str>) -> ApiResult<String> {
    let names = |field: &str| -> Vec<&str> {
        pod.pointer(field)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|c| c["name"].as_str())
            .collect()
    };
    let own = names("/spec/containers");
    let init = names("/spec/initContainers");
    let pod_name = meta_str(pod, "name");
    match wanted {
        Some(name) if own.contains(&name) || init.contains(&name) => Ok(name.to_owned()),
        Some(name) => Err(ApiError::bad_request(format!(
            "container {name} is not valid for pod {pod_name}"
        ))),
        None => match own.as_slice() {
            [only] => Ok((*only).to_owned()),
            many => Err(ApiError::bad_request(format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{}]",
                many.join(" ")
            ))),
        },
    }
}
