//! The driver against a server that answers from a script: a claim that lands between its read and
//! its write is a race that a real server cannot be made to show on demand.

use std::sync::{Arc, Mutex};

use belay_api::notification::PodNotification;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::testing::dated;

/// The one object the server holds, what the next write meets, and what was seen.
struct Script {
    object: Value,
    /// Taken by the next write, which then finds this object and a conflict.
    claim_meanwhile: Option<Value>,
}

fn reply(status: StatusCode, body: &Value) -> Response<Body> {
    Response::builder()
        .status(status)
        .body(Body::from(body.to_string().into_bytes()))
        .unwrap()
}

fn server(script: Script) -> (Client, mpsc::UnboundedReceiver<(Method, String, Value)>) {
    let (seen, receiver) = mpsc::unbounded_channel();
    let script = Arc::new(Mutex::new(script));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, script) = (seen.clone(), script.clone());
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            if parts.method == Method::GET {
                if parts.uri.query().unwrap_or_default().contains("watch=true") {
                    std::future::pending::<()>().await;
                }
                let object = script.lock().unwrap().object.clone();
                if path.ends_with("/podnotifications/pn") {
                    return Ok::<_, std::io::Error>(reply(StatusCode::OK, &object));
                }
                // Both selectors say something of the state.
                let open = parts
                    .uri
                    .query()
                    .unwrap_or_default()
                    .contains("state%3DNew");
                let selected = (object["status"]["state"] == "New") == open;
                let items = match path.ends_with("/podnotifications") && selected {
                    true => json!([object]),
                    false => json!([]),
                };
                let list = json!({
                    "apiVersion": "v1", "kind": "List", "items": items,
                    "metadata": {"resourceVersion": "1"},
                });
                return Ok(reply(StatusCode::OK, &list));
            }
            let bytes = body.collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&bytes).unwrap();
            seen.send((parts.method, path, body.clone())).unwrap();
            let mut script = script.lock().unwrap();
            if let Some(claimed) = script.claim_meanwhile.take() {
                script.object = claimed;
                let status = json!({"kind": "Status", "status": "Failure", "code": 409,
                    "message": "changed", "reason": "Conflict"});
                return Ok(reply(StatusCode::CONFLICT, &status));
            }
            Ok(reply(StatusCode::OK, &body))
        }
    });
    (Client::new(service, "default"), receiver)
}

fn object(age_seconds: i64, spec: &Value, status: &Value) -> Value {
    let created = Timestamp::now() - jiff::SignedDuration::from_secs(age_seconds);
    let mut spec = spec.clone();
    spec["podName"] = json!("db");
    spec["notifier"] = json!("lock");
    json!({
        "apiVersion": "apps.k8s.io/v1alpha1",
        "kind": "PodNotification",
        "metadata": {
            "namespace": "ns", "name": "pn", "uid": "u", "resourceVersion": "7",
            "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        },
        "spec": spec,
        "status": status,
    })
}

#[tokio::test]
async fn what_nobody_claimed_in_time_is_ended_with_the_version_that_was_read() {
    let (client, mut seen) = server(Script {
        object: object(
            100,
            &json!({"deadlineSeconds": 60}),
            &json!({"state": "New"}),
        ),
        claim_meanwhile: None,
    });
    let stop = CancellationToken::new();
    let task = tokio::spawn(run::<PodNotification>(
        Controllers::new(client),
        Clock::default(),
        stop.clone(),
    ));
    let (method, path, body) = seen.recv().await.unwrap();
    assert_eq!(method, Method::PUT);
    assert_eq!(
        path,
        "/apis/apps.k8s.io/v1alpha1/namespaces/ns/podnotifications/pn/status"
    );
    assert_eq!(body["metadata"]["resourceVersion"], "7");
    assert_eq!(body["status"]["state"], "Failed");
    assert_eq!(body["status"]["error"]["type"], "Expired");
    let (_, path, body) = seen.recv().await.unwrap();
    assert_eq!(path, "/api/v1/namespaces/ns/events");
    assert_eq!(body["type"], "Warning");
    stop.cancel();
    task.await.unwrap();
    assert!(seen.try_recv().is_err());
}

#[tokio::test]
async fn a_claim_that_lands_between_read_and_write_wins() {
    let spec = json!({"deadlineSeconds": 60});
    let claimed = json!({"state": "New", "nodeName": "n", "executor": "n"});
    let (client, mut seen) = server(Script {
        object: object(100, &spec, &json!({"state": "New", "nodeName": "n"})),
        claim_meanwhile: Some(object(100, &spec, &claimed)),
    });
    let stop = CancellationToken::new();
    let task = tokio::spawn(run::<PodNotification>(
        Controllers::new(client),
        Clock::default(),
        stop.clone(),
    ));
    seen.recv().await.unwrap();
    // Longer than the pause after which it looks again: it then finds the claim and waits for the
    // node, which has not been silent long enough.
    tokio::time::sleep(RETRY * 2).await;
    stop.cancel();
    task.await.unwrap();
    assert!(seen.try_recv().is_err(), "the claim was overwritten");
}

#[tokio::test]
async fn what_asked_to_be_collected_is_deleted_as_it_was_read() {
    let (client, mut seen) = server(Script {
        object: object(
            100,
            &json!({"ttlSecondsAfterFinished": 0}),
            &json!({"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z"}),
        ),
        claim_meanwhile: None,
    });
    let stop = CancellationToken::new();
    let task = tokio::spawn(run::<PodNotification>(
        Controllers::new(client),
        Clock::default(),
        stop.clone(),
    ));
    let (method, path, body) = seen.recv().await.unwrap();
    assert_eq!(method, Method::DELETE);
    assert_eq!(
        path,
        "/apis/apps.k8s.io/v1alpha1/namespaces/ns/podnotifications/pn"
    );
    assert_eq!(
        body["preconditions"],
        json!({"uid": "u", "resourceVersion": "7"})
    );
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_read_any_more_is_left_to_whoever_writes_it() {
    let spec = json!({"deadlineSeconds": 60});
    let (client, _seen) = server(Script {
        object: object(100, &spec, &json!({"state": "New"})),
        claim_meanwhile: None,
    });
    let reads = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&reads);
    // What the list showed has been written since.
    let changed = tower::service_fn(move |request: Request<Body>| {
        let (client, reads) = (client.clone(), Arc::clone(&counted));
        async move {
            if !request.uri().path().ends_with("/pn") {
                return client.send(request).await;
            }
            *reads.lock().unwrap() += 1;
            let wide = json!({"deadlineSeconds": 3_000_000_000_u64});
            let wide = object(100, &wide, &json!({"state": "New"}));
            Ok(reply(StatusCode::OK, &wide))
        }
    });
    let stop = CancellationToken::new();
    let controllers = Controllers::new(Client::new(changed, "default"));
    let task = tokio::spawn(run::<PodNotification>(
        controllers,
        Clock::default(),
        stop.clone(),
    ));
    tokio::time::sleep(Duration::from_secs(60)).await;
    stop.cancel();
    task.await.unwrap();
    assert_eq!(*reads.lock().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn deadlines_count_by_the_servers_clock() {
    // By this machine's clock both are long over; by the server's, one is not.
    for (age, expires) in [(85, false), (100, true)] {
        let (client, mut seen) = server(Script {
            object: object(
                age,
                &json!({"deadlineSeconds": 60}),
                &json!({"state": "New"}),
            ),
            claim_meanwhile: None,
        });
        let behind = dated(client, jiff::SignedDuration::from_secs(-30));
        let stop = CancellationToken::new();
        let clock = Clock::default();
        let controllers = Controllers::new(clock.bind(behind));
        let task = tokio::spawn(run::<PodNotification>(controllers, clock, stop.clone()));
        // Of the paused clock: what is over is written long before it ends.
        let written = tokio::time::timeout(Duration::from_secs(30), seen.recv()).await;
        assert_eq!(written.is_ok(), expires, "{age}: {written:?}");
        if let Ok(Some((_, _, body))) = written {
            let end = body["status"]["completeTime"].as_str().unwrap();
            let end: Timestamp = end.parse().unwrap();
            assert!(
                end < Timestamp::now() - jiff::SignedDuration::from_secs(20),
                "the server's time, too: {end}"
            );
        }
        stop.cancel();
        task.await.unwrap();
    }
}
