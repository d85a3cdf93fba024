//! The driver against a server that answers from a script, for the order of its writes and for a
//! fault that a real server cannot be made to show on demand.

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::*;

/// One write the server saw: method, path, body.
type Seen = (Method, String, Value);

fn reply(status: StatusCode, body: &Value) -> Response<Body> {
    Response::builder()
        .status(status)
        .body(Body::from(body.to_string().into_bytes()))
        .unwrap()
}

/// A server with one node and one pod; the first `failures` bindings are answered with 500.
fn server(nodes: Value, failures: usize) -> (Client, mpsc::UnboundedReceiver<Seen>) {
    let (seen, receiver) = mpsc::unbounded_channel();
    let failures = Arc::new(Mutex::new(failures));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, failures, nodes) = (seen.clone(), failures.clone(), nodes.clone());
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            if parts.method == Method::GET {
                if parts.uri.query().unwrap_or_default().contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                let (kind, items) = match path.as_str() {
                    "/api/v1/pods" => (
                        "PodList",
                        json!([{
                            "metadata": {"namespace": "ns", "name": "p", "uid": "u"},
                            "spec": {"containers": []},
                        }]),
                    ),
                    _ => ("NodeList", nodes),
                };
                let list = json!({
                    "apiVersion": "v1", "kind": kind, "items": items,
                    "metadata": {"resourceVersion": "1"},
                });
                return Ok::<_, std::io::Error>(reply(StatusCode::OK, &list));
            }
            let body = body.collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            seen.send((parts.method, path.clone(), body.clone()))
                .unwrap();
            let mut left = failures.lock().unwrap();
            if path.ends_with("/binding") && *left > 0 {
                *left -= 1;
                let status = json!({"kind": "Status", "status": "Failure", "code": 500,
                    "message": "disk", "reason": "InternalError"});
                return Ok(reply(StatusCode::INTERNAL_SERVER_ERROR, &status));
            }
            Ok(reply(StatusCode::CREATED, &body))
        }
    });
    (Client::new(service, "default"), receiver)
}

fn ready_node() -> Value {
    json!([{
        "metadata": {"name": "n"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }])
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_by_uid_and_the_binding_is_recorded_and_tried_again_after_a_fault() {
    let (client, mut seen) = server(ready_node(), 1);
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(client, stop.clone()));
    for _ in 0..2 {
        let (method, path, body) = seen.recv().await.unwrap();
        assert_eq!(method, Method::POST);
        assert_eq!(path, "/api/v1/namespaces/ns/pods/p/binding");
        assert_eq!(body["metadata"]["uid"], "u");
        assert_eq!(body["target"]["name"], "n");
    }
    let (_, path, body) = seen.recv().await.unwrap();
    assert_eq!(path, "/api/v1/namespaces/ns/events");
    assert_eq!(body["reason"], "Scheduled");
    assert_eq!(body["message"], "Successfully assigned ns/p to n");
    stop.cancel();
    task.await.unwrap();
    assert!(seen.try_recv().is_err(), "a bound pod is left alone");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_nowhere_is_told_so_once() {
    let (client, mut seen) = server(json!([]), 0);
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(client, stop.clone()));
    let (method, path, body) = seen.recv().await.unwrap();
    assert_eq!(method, Method::PATCH);
    assert_eq!(path, "/api/v1/namespaces/ns/pods/p/status");
    let condition = &body["status"]["conditions"][0];
    assert_eq!(condition["reason"], "Unschedulable");
    assert_eq!(
        condition["message"],
        "0/0 nodes are available: no nodes have joined."
    );
    let (_, path, body) = seen.recv().await.unwrap();
    assert_eq!(path, "/api/v1/namespaces/ns/events");
    assert_eq!(body["reason"], "FailedScheduling");
    stop.cancel();
    task.await.unwrap();
    assert!(seen.try_recv().is_err());
}
