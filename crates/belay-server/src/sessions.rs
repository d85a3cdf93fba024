//! `pods/exec`: the connection is handed through to the agent of the pod's node.
//!
//! ```text
//!   kubectl ──TLS, WebSocket──> server ──mutual TLS, the same bytes──> agent ──> runtime
//!            who may? which pod, container, node?             channels, streams, exit code
//! ```
//!
//! The server does not look into the connection: the handshake is the agent's answer. Who may open
//! one needs `create` on `pods/exec` whatever the method is: a WebSocket begins with a GET.
//!
//! **Invariant:** when either side is gone, or the server stops, so is the other; the agent then
//! kills what it ran.

use http::{HeaderName, Request, Response, StatusCode, header};
use http_body_util::Empty;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::agents::{container, refusal};
use crate::api::{Answer, Api, Call, full, parse};
use crate::object::{meta_str, name};
use crate::query::Query;
use crate::status::{ApiError, ApiResult};

/// What a handshake consists of, on the way there and back.
const HANDSHAKE: [HeaderName; 7] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_ACCEPT,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_VERSION,
];
/// How much of a command the audit log keeps.
const LONGEST_COMMAND: usize = 1024;

/// Subresources that are connections: their method says nothing of what is done.
pub(crate) fn is_connection(subresource: Option<&str>) -> bool {
    matches!(subresource, Some("exec" | "attach" | "portforward"))
}

/// Why a connection that a stock server knows is not served here.
pub(crate) fn unserved(subresource: &str) -> ApiError {
    let instead = if subresource == "attach" {
        "read its output with kubectl logs -f, and run a command in it with kubectl exec"
    } else {
        "connect to the pod's address (kubectl get pod -o wide) from the node"
    };
    ApiError::unserved(format!("pods/{subresource} is not served here: {instead}"))
}

impl Api {
    pub(crate) async fn exec(
        &self,
        call: &Call<'_>,
        upgrade: Option<OnUpgrade>,
    ) -> ApiResult<Answer> {
        let pod = parse(&*self.get(call)?)?;
        let container = container(&pod, call.query.get("container"))?;
        let query = options(call.query)?;
        let node = self.node_of(&pod)?;
        let path = format!(
            "/exec/{}/{}/{container}?{query}",
            meta_str(&pod, "namespace"),
            call.name(),
        );
        let mut request = Request::get(path)
            .body(Empty::new())
            .map_err(|error| ApiError::internal(error.to_string()))?;
        copy_handshake(call.headers, request.headers_mut());
        let answer = self.ask_agent(&node, request).await.map_err(|error| {
            let node = name(&node);
            ApiError::bad_gateway(format!("cannot reach the agent of node {node}: {error}"))
        })?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(answer).await);
        }
        let upgrade =
            upgrade.ok_or_else(|| ApiError::bad_request("this connection cannot be upgraded"))?;
        let mut response = Response::new(full(""));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        copy_handshake(answer.headers(), response.headers_mut());
        let theirs = hyper::upgrade::on(answer);
        let stopping = self.stopping.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = hand_through(upgrade, theirs) => {}
            }
        });
        let mut command = call.query.all("command").collect::<Vec<_>>().join(" ");
        if let Some((cut, _)) = command.char_indices().nth(LONGEST_COMMAND) {
            command.truncate(cut);
        }
        Ok(Answer {
            response,
            about: Some(format!("{container}: {command}")),
            name: None,
        })
    }
}

/// Copies between the client and the agent until one of them is gone.
async fn hand_through(client: OnUpgrade, agent: OnUpgrade) {
    let (client, agent) = match tokio::try_join!(client, agent) {
        Ok(both) => both,
        Err(error) => return tracing::debug!(%error, "a session came to nothing"),
    };
    let (mut client, mut agent) = (TokioIo::new(client), TokioIo::new(agent));
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut agent).await {
        tracing::debug!(%error, "a session's connection broke");
    }
}

fn copy_handshake(from: &http::HeaderMap, to: &mut http::HeaderMap) {
    for name in &HANDSHAKE {
        for value in from.get_all(name) {
            to.append(name, value.clone());
        }
    }
}

/// The options, as the agent reads them.
fn options(query: &Query) -> ApiResult<String> {
    let mut out = form_urlencoded::Serializer::new(String::new());
    for word in query.all("command") {
        out.append_pair("command", word);
    }
    for flag in ["stdin", "stdout", "stderr", "tty"] {
        if query.flag(flag)? {
            out.append_pair(flag, "true");
        }
    }
    Ok(out.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_reach_the_agent_as_they_were_meant() {
        let query = Query::parse(Some(
            "command=sh&command=-c&command=echo%20a%26b&command=&stdin=1&tty=false&stdout=true",
        ));
        assert_eq!(
            options(&query).unwrap(),
            "command=sh&command=-c&command=echo+a%26b&command=&stdin=true&stdout=true"
        );
        assert!(options(&Query::parse(Some("stdin=perhaps"))).is_err());
    }
}
