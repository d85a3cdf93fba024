//! The driver against a server that answers from a script, for a fault that a real server cannot be
//! made to show on demand.

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;

/// One write the server saw: method, path, body.
type Seen = (Method, String, Value);

fn reply(status: StatusCode, body: &Value) -> Response<Body> {
    Response::builder()
        .status(status)
        .body(Body::from(body.to_string().into_bytes()))
        .unwrap()
}

fn items(path: &str) -> (&'static str, Value) {
    match path {
        "/apis/apps/v1/daemonsets" => (
            "DaemonSetList",
            json!([{
                "metadata": {"namespace": "ns", "name": "d", "uid": "u", "generation": 1},
                "spec": {
                    "selector": {"matchLabels": {"app": "d"}},
                    "template": {
                        "metadata": {"labels": {"app": "d"}},
                        "spec": {"containers": [{"name": "c", "stopSignal": "SIGUSR1"}]},
                    },
                },
            }]),
        ),
        "/api/v1/nodes" => ("NodeList", json!([{"metadata": {"name": "n"}}])),
        _ => ("PodList", json!([])),
    }
}

/// A server with one node and one daemon set; the first `failures` pods are refused.
fn server(failures: usize) -> (Client, mpsc::UnboundedReceiver<Seen>) {
    let (seen, receiver) = mpsc::unbounded_channel();
    let failures = Arc::new(Mutex::new(failures));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, failures) = (seen.clone(), failures.clone());
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            if parts.method == Method::GET {
                if parts.uri.query().unwrap_or_default().contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                let (kind, items) = items(&path);
                let list = json!({
                    "apiVersion": "v1", "kind": kind, "items": items,
                    "metadata": {"resourceVersion": "1"},
                });
                return Ok::<_, std::io::Error>(reply(StatusCode::OK, &list));
            }
            let body = body.collect().await.unwrap().to_bytes();
            let mut body: Value = serde_json::from_slice(&body).unwrap();
            seen.send((parts.method, path.clone(), body.clone()))
                .unwrap();
            let mut left = failures.lock().unwrap();
            if path.ends_with("/pods") && *left > 0 {
                *left -= 1;
                let status = json!({"kind": "Status", "status": "Failure", "code": 422,
                    "message": "no such signal", "reason": "Invalid"});
                return Ok(reply(StatusCode::UNPROCESSABLE_ENTITY, &status));
            }
            body["metadata"]["uid"] = "made".into();
            Ok(reply(StatusCode::CREATED, &body))
        }
    });
    (Client::new(service, "default"), receiver)
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_refused_is_told_of_and_tried_again_after_a_rest() {
    let (client, mut seen) = server(1);
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(client, stop.clone()));
    let mut writes = Vec::new();
    while writes.len() < 5 {
        writes.push(seen.recv().await.unwrap());
    }
    let paths: Vec<(&Method, &str)> = writes.iter().map(|(m, p, _)| (m, p.as_str())).collect();
    assert_eq!(
        paths,
        [
            (&Method::POST, "/api/v1/namespaces/ns/pods"),
            (&Method::POST, "/api/v1/namespaces/ns/events"),
            (
                &Method::PATCH,
                "/apis/apps/v1/namespaces/ns/daemonsets/d/status"
            ),
            (&Method::POST, "/api/v1/namespaces/ns/pods"),
            (&Method::POST, "/api/v1/namespaces/ns/events"),
        ]
    );
    let (first, second) = (&writes[0].2, &writes[3].2);
    assert_eq!(first["metadata"]["name"], second["metadata"]["name"]);
    assert_eq!(first["spec"]["nodeName"], "n");
    assert_eq!(first["spec"]["containers"][0]["stopSignal"], "SIGUSR1");
    assert_eq!(writes[1].2["reason"], "FailedCreate");
    let told = writes[1].2["message"].as_str().unwrap();
    assert!(told.contains("no such signal"), "{told}");
    let status = &writes[2].2;
    assert_eq!(status["metadata"]["uid"], "u");
    assert_eq!(status["status"]["desiredNumberScheduled"], 1);
    assert_eq!(status["status"]["observedGeneration"], 1);
    assert_eq!(writes[4].2["reason"], "SuccessfulCreate");
    // What was made counts at once, without a watch that tells of it.
    let (_, path, body) = seen.recv().await.unwrap();
    assert!(path.ends_with("/status"), "{path}");
    assert_eq!(body["status"]["desiredNumberScheduled"], 1);
    stop.cancel();
    task.await.unwrap();
    assert!(seen.try_recv().is_err(), "nothing is left to do");
}
