//! How long an agent waits for an answer of the API server.
//!
//! A connection may die without a word: whoever waits on it would wait for ever, and with it a lease
//! or a result. So every request has a limit, but for those that are meant to last: watches, followed
//! logs, upgrades. One that is given up closes its connection, and the next gets another.

use std::time::Duration;

use http::{Request, Response, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::{Client, Error};
use tower::service_fn;

/// For a request and the whole of its answer.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", LIMIT.as_secs())]
struct NoAnswer;

/// The same client, with a limit on all that is not meant to last.
pub(crate) fn bound(client: Client) -> Client {
    within(client, LIMIT)
}

fn within(client: Client, limit: Duration) -> Client {
    let namespace = client.default_namespace().to_owned();
    let bounded = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            if lasts(&request) {
                return client.send(request).await;
            }
            let answer = async {
                let (parts, body) = client.send(request).await?.into_parts();
                let body = body.collect().await?.to_bytes();
                Ok(Response::from_parts(parts, Body::from(body.to_vec())))
            };
            let late = |_| Err(Error::Service(Box::new(NoAnswer)));
            tokio::time::timeout(limit, answer)
                .await
                .unwrap_or_else(late)
        }
    });
    Client::new(bounded, namespace)
}

/// Whether the answer to a request may take as long as it likes.
fn lasts(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let asks = form_urlencoded::parse(query.as_bytes())
        .any(|(name, value)| matches!(&*name, "watch" | "follow") && value == "true");
    asks || request.headers().contains_key(header::UPGRADE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Namespace;
    use kube::{Api, Config};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    fn request(uri: &str) -> Request<Body> {
        Request::get(uri).body(Body::empty()).unwrap()
    }

    #[test]
    fn watches_followed_logs_and_upgrades_last() {
        for uri in [
            "/api/v1/pods?a=b&watch=true",
            "/log?follow=true&container=c",
        ] {
            assert!(lasts(&request(uri)), "{uri}");
        }
        for uri in ["/api/v1/pods", "/api/v1/pods?watch=false", "/watch?x=true"] {
            assert!(!lasts(&request(uri)), "{uri}");
        }
        let mut exec = request("/exec");
        let protocol = header::HeaderValue::from_static("websocket");
        exec.headers_mut().insert(header::UPGRADE, protocol);
        assert!(lasts(&exec));
    }

    /// The first connection swallows everything, or dies in the middle of an answer.
    async fn answered_on_another_connection(begun: &'static str) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut dead, _) = listener.accept().await.unwrap();
            let _ = dead.read(&mut [0; 4096]).await.unwrap();
            dead.write_all(begun.as_bytes()).await.unwrap();
            let (mut alive, _) = listener.accept().await.unwrap();
            let _ = alive.read(&mut [0; 4096]).await.unwrap();
            let body = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"a"}}"#;
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
            alive.write_all(answer.as_bytes()).await.unwrap();
            std::future::pending::<()>().await;
            drop(dead);
        });
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let late = within(client.clone(), Duration::from_millis(300));
        let api: Api<Namespace> = Api::all(late);
        let error = api.get("a").await.unwrap_err().to_string();
        assert!(error.contains("did not answer"), "{error}");
        // The same pool of connections, and more time than it takes.
        let api: Api<Namespace> = Api::all(within(client, Duration::from_secs(60)));
        api.get("a").await.unwrap();
    }

    #[tokio::test]
    async fn a_connection_that_swallows_requests_is_left_for_another() {
        answered_on_another_connection("").await;
    }

    #[tokio::test]
    async fn an_answer_that_is_never_finished_is_none() {
        answered_on_another_connection("HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{").await;
    }
}
