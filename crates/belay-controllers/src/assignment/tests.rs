//! The decision, and the driver against a server that answers from a script: the embedded server
//! never shows an unresolved notification.

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::testing::{self, Server, drive};

fn object(status: &Value) -> PodNotification {
    serde_json::from_value(json!({
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
        "metadata": {"namespace": "ns", "name": "pn", "uid": "u", "resourceVersion": "7"},
        "spec": {"podName": "db", "notifier": "lock"},
        "status": status,
    }))
    .unwrap()
}

fn pod(annotation: &str, phase: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "db", "namespace": "ns", "uid": "p",
                     "annotations": {"apps.k8s.io/notifiers": annotation}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {"phase": phase},
    }))
    .unwrap()
}

const LOCK: &str = r#"{"main": [{"name": "lock", "handler": {"signal": "SIGHUP"}}]}"#;

#[test]
fn what_a_stock_server_makes_of_a_new_one_is_unresolved_and_nothing_else_is() {
    for status in [json!(null), json!({}), json!({"state": "New"})] {
        assert!(is_unresolved(&object(&status)), "{status}");
    }
    for status in [
        json!({"state": "New", "nodeName": "n"}),
        json!({"state": "New", "executor": "n"}),
        json!({"state": "Failed", "completeTime": "2026-01-01T00:00:00Z"}),
    ] {
        assert!(!is_unresolved(&object(&status)), "{status}");
    }
    let mut going = object(&json!({}));
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        Timestamp::UNIX_EPOCH,
    ));
    assert!(!is_unresolved(&going));
}

#[test]
fn every_resolution_has_its_status_and_what_failed_is_told() {
    let now = Timestamp::UNIX_EPOCH;
    let settle = |pod: Option<&Pod>| settled(&object(&json!({})), pod, now);

    let assigned = settle(Some(&pod(LOCK, "Running")));
    assert_eq!(assigned.status, PodNotificationStatus::assigned("n1", "p"));
    assert_eq!(assigned.warning, None);

    let missing = settle(None);
    assert_eq!(
        missing.status.error.map(|error| error.type_),
        Some(ErrorType::PodNotFound)
    );
    assert_eq!(missing.warning.unwrap().0, "PodNotFound");

    let pending = settle(Some(&pod(LOCK, "Pending")));
    assert_eq!(pending.outcome, "ContainerNotRunning");

    let silent = settle(Some(&pod("{}", "Running")));
    assert!(silent.status.state.is_final() && silent.status.error.is_none());
    assert_eq!(silent.status.conditions[0].type_, "NotifierFound");
    assert_eq!(silent.warning.unwrap().0, "NotDeclared");
}

#[test]
fn an_annotation_that_breaks_a_rule_fails_instead_of_declaring_nothing() {
    for (annotation, said) in [
        ("rubbish", "[apps.k8s.io/notifiers]: must be a JSON object"),
        (
            r#"{"main": [{"name": "lock", "handler": {"signal": "SIGHUPP"}}]}"#,
            "[main][0].handler.signal: unknown signal \"SIGHUPP\"",
        ),
        // The notifier that was asked for is fine, another one is not.
        (
            r#"{"main": [{"name": "lock", "handler": {"signal": "SIGHUP"}},
                         {"name": "b", "handler": {"signal": "SIGHUP"}, "timeoutSeconds": 0}]}"#,
            "[main][1].timeoutSeconds: Invalid value: 0",
        ),
        (
            r#"{"mian": [{"name": "lock", "handler": {"signal": "SIGHUP"}}]}"#,
            "[mian]: Not found",
        ),
    ] {
        let pod = pod(annotation, "Running");
        let settled = settled(&object(&json!({})), Some(&pod), Timestamp::UNIX_EPOCH);
        assert_eq!(settled.outcome, "RuntimeError", "{annotation}");
        let error = settled.status.error.unwrap();
        assert_eq!(error.type_, ErrorType::RuntimeError);
        let message = error.message;
        assert!(
            message.contains(said) && message.contains("nothing was run"),
            "{message}"
        );
        assert_eq!(settled.warning.unwrap().0, "RuntimeError");
    }
}

#[test]
fn each_is_under_way_once_at_a_time() {
    let mut queue = Queue::default();
    queue.add(object(&json!({})));
    queue.add(object(&json!({"state": "New"})));
    let now = Instant::now();
    let turn = queue.next(now).unwrap();
    assert!(queue.next(now).is_none());
    queue.add(object(&json!({})));
    assert!(queue.next(now).is_none(), "it is under way");
    let at = now + Duration::from_secs(1);
    queue.later(turn, at);
    queue.add(object(&json!({})));
    assert!(queue.next(now).is_none(), "it waits for another turn");
    assert_eq!(queue.next_timer(), Some(at));
    assert!(queue.next(at).is_some());
    queue.done("u");
    queue.add(object(&json!({})));
    assert!(queue.next(now).is_some());
}

/// The notification and the pod that the server holds, and the conflict that the next write meets.
#[derive(Default)]
struct Script {
    object: Value,
    /// The Notification that it belongs to.
    owner: Option<Value>,
    pod: Option<Value>,
    /// Taken by the next write, which finds this object and a conflict.
    meanwhile: Option<Value>,
}

fn reply(code: u16, body: &Value) -> Response<Body> {
    Response::builder()
        .status(code)
        .body(Body::from(body.to_string().into_bytes()))
        .unwrap()
}

fn refusal(code: u16) -> Response<Body> {
    let body = json!({"kind": "Status", "status": "Failure", "code": code, "message": "no",
                      "reason": if code == 404 { "NotFound" } else { "Conflict" }});
    reply(code, &body)
}

/// A client of that server, what was written to it, and the selector of its watch.
fn server(script: Script) -> (Client, mpsc::UnboundedReceiver<(String, Value)>) {
    let (seen, receiver) = mpsc::unbounded_channel();
    let script = Arc::new(Mutex::new(script));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, script) = (seen.clone(), Arc::clone(&script));
        async move {
            let (parts, body) = request.into_parts();
            let path = parts.uri.path().to_owned();
            let query = parts.uri.query().unwrap_or_default().to_owned();
            if query.contains("watch=true") {
                std::future::pending::<()>().await;
            }
            let bytes = body.collect().await.unwrap().to_bytes();
            let mut script = script.lock().unwrap();
            if parts.method == Method::GET {
                let answer = if path.ends_with("/podnotifications") {
                    assert!(
                        query.contains("fieldSelector=status.state%3DNew%2Cstatus.nodeName%3D"),
                        "{query}"
                    );
                    let list = json!({"apiVersion": "v1", "kind": "List",
                        "items": [script.object], "metadata": {"resourceVersion": "1"}});
                    reply(200, &list)
                } else if path.ends_with("/podnotifications/pn") {
                    reply(200, &script.object)
                } else if path.ends_with("/notifications/n") {
                    let owner = script.owner.as_ref();
                    owner.map_or_else(|| refusal(404), |owner| reply(200, owner))
                } else {
                    script
                        .pod
                        .as_ref()
                        .map_or_else(|| refusal(404), |pod| reply(200, pod))
                };
                return Ok::<_, std::io::Error>(answer);
            }
            let body: Value = serde_json::from_slice(&bytes).unwrap();
            seen.send((path.clone(), body.clone())).unwrap();
            if let Some(object) = script.meanwhile.take() {
                script.object = object;
                return Ok(refusal(409));
            }
            Ok(reply(200, &body))
        }
    });
    (Client::new(service, "default"), receiver)
}

fn wire(status: &Value, version: &str) -> Value {
    let mut value = serde_json::to_value(object(status)).unwrap();
    value["metadata"]["resourceVersion"] = json!(version);
    value
}

/// As many turns as it takes.
async fn settle_at_last(controllers: &Controllers, owners: &Owners, object: PodNotification) {
    let mut turn = Turn {
        object: Box::new(object),
        seen: Instant::now(),
        pause: None,
    };
    loop {
        match settle(controllers, &Clock::default(), owners, turn).await {
            Settling::Done(uid) => return assert_eq!(uid, "u"),
            Settling::Later(again, pause) => {
                tokio::time::sleep(pause).await;
                turn = again;
            }
        }
    }
}

#[tokio::test]
async fn a_new_one_gets_its_node_and_pod_in_a_write_conditional_on_what_was_seen() {
    let (client, mut seen) = server(Script {
        object: wire(&json!({"state": "New"}), "7"),
        pod: serde_json::to_value(pod(LOCK, "Running")).ok(),
        ..Script::default()
    });
    let stop = CancellationToken::new();
    let task = tokio::spawn(run(
        Controllers::new(client),
        Clock::default(),
        stop.clone(),
    ));
    let (path, body) = seen.recv().await.unwrap();
    assert!(path.ends_with("/ns/podnotifications/pn/status"), "{path}");
    assert_eq!(body["metadata"]["resourceVersion"], "7");
    assert_eq!(
        body["status"],
        json!({"state": "New", "nodeName": "n1", "podUID": "p"})
    );
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn a_missing_pod_ends_it_with_a_warning() {
    let (client, mut seen) = server(Script {
        object: wire(&json!({"state": "New"}), "7"),
        pod: None,
        ..Script::default()
    });
    let stop = CancellationToken::new();
    let controllers = Controllers::new(client);
    let metrics = Arc::clone(&controllers.metrics);
    let task = tokio::spawn(run(controllers, Clock::default(), stop.clone()));
    let (_, body) = seen.recv().await.unwrap();
    assert_eq!(body["status"]["state"], "Failed");
    assert_eq!(body["status"]["error"]["type"], "PodNotFound");
    let (path, event) = seen.recv().await.unwrap();
    assert_eq!(path, "/api/v1/namespaces/ns/events");
    assert_eq!(event["reason"], "PodNotFound");
    assert!(
        metrics
            .text()
            .contains("belay_assignments_total{outcome=\"PodNotFound\"} 1")
    );
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn an_end_is_written_in_the_servers_time() {
    let (client, mut seen) = server(Script {
        object: wire(&json!({"state": "New"}), "7"),
        ..Script::default()
    });
    let stop = CancellationToken::new();
    let clock = Clock::default();
    let client = clock.bind(testing::dated(client, jiff::SignedDuration::from_secs(30)));
    let task = tokio::spawn(run(Controllers::new(client), clock, stop.clone()));
    let (_, body) = seen.recv().await.unwrap();
    let end = body["status"]["completeTime"].as_str().unwrap();
    let end: Timestamp = end.parse().unwrap();
    let ahead = end.duration_since(Timestamp::now()).as_secs();
    assert!((20..40).contains(&ahead), "{end}");
    stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn one_that_changed_meanwhile_is_looked_at_afresh_and_left_if_it_is_settled() {
    for (meanwhile, writes) in [
        (wire(&json!({"state": "New"}), "8"), Some("8")),
        (
            wire(&json!({"state": "New", "nodeName": "other"}), "8"),
            None,
        ),
    ] {
        let (client, mut seen) = server(Script {
            object: wire(&json!({"state": "New"}), "7"),
            pod: serde_json::to_value(pod(LOCK, "Running")).ok(),
            meanwhile: Some(meanwhile),
            ..Script::default()
        });
        let controllers = Controllers::new(client);
        let owners = Owners::default();
        settle_at_last(&controllers, &owners, object(&json!({}))).await;
        drop(controllers);
        let mut versions = Vec::new();
        while let Some((_, body)) = seen.recv().await {
            versions.push(body["metadata"]["resourceVersion"].clone());
        }
        let expected: Vec<Value> = [Some("7"), writes]
            .into_iter()
            .flatten()
            .map(Value::from)
            .collect();
        assert_eq!(versions, expected);
    }
}

#[tokio::test]
async fn a_child_is_assigned_only_if_its_notification_was_there_after_it() {
    let owner = |metadata: &Value| {
        let mut owner = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "n", "namespace": "ns"}});
        for (field, value) in metadata.as_object().unwrap() {
            owner["metadata"][field] = value.clone();
        }
        Some(owner)
    };
    let going = json!({"uid": "n1", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    for (owner, assigned) in [
        (owner(&json!({"uid": "n1"})), true),
        (owner(&json!({"uid": "its successor"})), false),
        (owner(&going), false),
        (None, false),
    ] {
        let mut child = object(&json!({}));
        child.metadata.owner_references = serde_json::from_value(json!([{"kind": "Notification",
            "apiVersion": "apps.k8s.io/v1alpha1", "name": "n", "uid": "n1", "controller": true}]))
        .unwrap();
        let (client, mut seen) = server(Script {
            object: serde_json::to_value(&child).unwrap(),
            pod: serde_json::to_value(pod(LOCK, "Running")).ok(),
            owner: owner.clone(),
            ..Script::default()
        });
        let (controllers, owners) = (Controllers::new(client), Owners::default());
        settle_at_last(&controllers, &owners, child).await;
        let (_, body) = seen.recv().await.unwrap();
        let error = &body["status"]["error"]["type"];
        if assigned {
            assert_eq!(body["status"]["nodeName"], "n1", "{owner:?}");
        } else {
            assert_eq!(error, "Cancelled", "{owner:?}: {body}");
            assert_eq!(body["status"]["nodeName"], Value::Null);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_question_for_a_notification_is_good_for_the_children_seen_before_it() {
    let mut child = object(&json!({}));
    child.metadata.owner_references = serde_json::from_value(json!([{"kind": "Notification",
        "apiVersion": "apps.k8s.io/v1alpha1", "name": "n", "uid": "n1", "controller": true}]))
    .unwrap();
    let there = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "n", "namespace": "ns", "uid": "n1"}});
    let (client, _seen) = server(Script {
        owner: Some(there),
        ..Script::default()
    });
    let controllers = Controllers::new(client);
    let nowhere = Controllers::new(server(Script::default()).0);
    let owners = Owners::default();
    let before = Instant::now();
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(owners.alive(&controllers, &child, before).await.unwrap());
    // It has gone since. Who was seen before the question is covered by its answer, nobody else.
    let alive = owners.alive(&nowhere, &child, before).await.unwrap();
    assert!(alive);
    let alive = owners.alive(&nowhere, &child, Instant::now()).await;
    assert!(!alive.unwrap());
}

/// A server that refuses every status in the namespace `bad`.
#[derive(Default)]
struct Refusing {
    objects: Vec<Value>,
    /// Until when it can write nothing at all.
    broken_until: Option<Instant>,
    assigned: Vec<String>,
    refused: Vec<String>,
}

impl Server for Refusing {
    fn answer(&mut self, method: &Method, path: &str, _: &str, body: Value) -> Response<Body> {
        if method == Method::PUT {
            let name = body["metadata"]["name"].as_str().unwrap().to_owned();
            if path.contains("/bad/") {
                self.refused.push(name);
                return testing::failure(403, "Forbidden");
            }
            if self
                .broken_until
                .is_some_and(|until| Instant::now() < until)
            {
                self.refused.push(name);
                return testing::failure(500, "InternalError");
            }
            self.assigned.push(name);
            return reply(200, &body);
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let known = self
            .objects
            .iter()
            .find(|it| it["metadata"]["name"] == name);
        match known {
            Some(object) => reply(200, object),
            None if name == "podnotifications" => reply(200, &testing::list(&self.objects)),
            None if method == Method::POST => reply(201, &body),
            None => refusal(404),
        }
    }

    fn log(&self) -> &[String] {
        &self.refused
    }
}

fn in_namespace(namespace: &str, name: &str) -> Value {
    let mut object = wire(&json!({"state": "New"}), "7");
    object["metadata"]["namespace"] = json!(namespace);
    object["metadata"]["uid"] = json!(format!("u-{name}"));
    object["metadata"]["name"] = json!(name);
    object
}

#[tokio::test(start_paused = true)]
async fn when_the_server_works_again_nobody_waits_for_long() {
    let started = Instant::now();
    let server = Refusing {
        objects: vec![in_namespace("good", "good")],
        broken_until: Some(started + Duration::from_secs(26)),
        ..Refusing::default()
    };
    let run = |client, stop| run(Controllers::new(client), Clock::default(), stop);
    let done = drive(run, server, |server| !server.assigned.is_empty()).await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(32), "{took:?}");
    assert!(done.refused.len() < 20, "{}", done.refused.len());
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_written_does_not_hold_up_the_others() {
    let mut objects: Vec<Value> = (0..CONCURRENT + 8)
        .map(|n| in_namespace("bad", &format!("bad-{n}")))
        .collect();
    objects.push(in_namespace("good", "good"));
    let started = Instant::now();
    let server = Refusing {
        objects,
        ..Refusing::default()
    };
    let run = |client, stop| run(Controllers::new(client), Clock::default(), stop);
    let done = drive(run, server, |server| !server.assigned.is_empty()).await;
    assert_eq!(done.assigned, ["good"]);
    assert!(started.elapsed() < Duration::from_secs(5));

    // Those that are refused are tried again, ever less often.
    let until = Instant::now() + Duration::from_secs(120);
    let done = drive(run, done, |_| Instant::now() > until).await;
    let tries = done.refused.iter().filter(|name| *name == "bad-0").count();
    assert!((5..25).contains(&tries), "{tries}");
}
