//! All loops against a server that holds, beside others, objects that types here cannot hold.

#![allow(clippy::needless_pass_by_value)] // `json!` reads best as the argument itself

use http::{Method, Response};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::Controllers;
use crate::testing::{Server, drive, failure, for_a_while, list, reply};

/// What the server holds, and the statuses and children that were written.
#[derive(Default)]
struct Shelf {
    podnotifications: Vec<Value>,
    notifications: Vec<Value>,
    pods: Vec<Value>,
    leases: Vec<Value>,
    log: Vec<String>,
}

impl Shelf {
    fn shelf(&mut self, plural: &str) -> Option<&mut Vec<Value>> {
        match plural {
            "podnotifications" => Some(&mut self.podnotifications),
            "notifications" => Some(&mut self.notifications),
            "pods" => Some(&mut self.pods),
            "leases" => Some(&mut self.leases),
            _ => None,
        }
    }
}

impl Server for Shelf {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: Value) -> Response<Body> {
        let parts: Vec<&str> = path.trim_end_matches("/status").split('/').collect();
        let (last, before) = (parts[parts.len() - 1], parts[parts.len() - 2]);
        if method == Method::POST {
            self.log
                .push(format!("create {last} {}", body["spec"]["podName"]));
            return reply(201, &body);
        }
        if let Some(all) = self.shelf(last) {
            // Selected is what has no node, by assignment; what has one is there for the others.
            let unresolved = query.contains("nodeName%3D");
            let items: Vec<Value> = all
                .iter()
                .filter(|item| !unresolved || item["status"]["nodeName"].is_null())
                .cloned()
                .collect();
            return reply(200, &list(&items));
        }
        let one = self
            .shelf(before)
            .and_then(|all| all.iter_mut().find(|item| item["metadata"]["name"] == last));
        let Some(one) = one else {
            return match before {
                "podactions" | "executionhooks" => reply(200, &list(&[])),
                _ if last == "executionhooks" || last == "podactions" => reply(200, &list(&[])),
                _ => failure(404, "NotFound"),
            };
        };
        if method == Method::PUT {
            // What the server holds it keeps.
            one["status"] = body["status"].clone();
            let one = one.clone();
            self.log
                .push(format!("{before} {last} {}", one["status"]["state"]));
            return reply(200, &one);
        }
        reply(200, one)
    }

    fn log(&self) -> &[String] {
        &self.log
    }
}

fn object(kind: &str, name: &str, age: i64, spec: Value) -> Value {
    let created = Timestamp::now() - jiff::SignedDuration::from_secs(age);
    let created = created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": kind, "spec": spec,
        "metadata": {"namespace": "ns", "name": name, "uid": format!("u-{name}"),
            "resourceVersion": "7", "creationTimestamp": created}})
}

/// As it is read from a server after its creator sent a time that no type here can hold.
fn managed(mut object: Value) -> Value {
    object["metadata"]["managedFields"] = json!([{"manager": "m", "operation": "Update",
        "apiVersion": "apps.k8s.io/v1alpha1", "time": "9999-12-31T00:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {}}]);
    object
}

/// A server that lists, and has always forgotten of which version it did.
#[derive(Default)]
struct Forgetful {
    /// The lists that were asked for.
    log: Vec<String>,
}

impl Server for Forgetful {
    fn answer(&mut self, _: &Method, path: &str, _: &str, _: Value) -> Response<Body> {
        self.log.push(path.to_owned());
        reply(200, &list(&[]))
    }

    fn watch(&mut self, _: &str) -> Option<Response<Body>> {
        Some(failure(410, "Expired"))
    }

    fn log(&self) -> &[String] {
        &self.log
    }
}

#[tokio::test(start_paused = true)]
async fn where_a_watch_cannot_start_at_a_version_everything_is_listed_anew() {
    let watch = |client, stop: CancellationToken| async move {
        let mut events = watch_all::<Pod>(&client, watcher::Config::default());
        let all = async { while events.next().await.is_some() {} };
        tokio::select! {
            () = all => {}
            () = stop.cancelled() => {}
        }
    };
    let done = drive(watch, Forgetful::default(), for_a_while()).await;
    let lists = done.log.len();
    // Ever less often.
    assert!((2..10).contains(&lists), "{lists}");
}

#[tokio::test(start_paused = true)]
async fn one_object_that_cannot_be_read_leaves_all_others_their_controllers() {
    let asks = |more: Value| {
        let mut spec = json!({"podName": "db", "notifier": "work"});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        spec
    };
    let mut shelf = Shelf {
        podnotifications: vec![
            object(
                "PodNotification",
                "wide",
                0,
                asks(json!({"ttlSecondsAfterFinished": 3_000_000_000_u64})),
            ),
            object(
                "PodNotification",
                "fresh",
                0,
                asks(json!({"deadlineSeconds": 86400})),
            ),
            managed(object(
                "PodNotification",
                "managed",
                0,
                asks(json!({"deadlineSeconds": 86400})),
            )),
            object("PodNotification", "stale", 500, asks(json!({}))),
        ],
        notifications: vec![
            object(
                "Notification",
                "wide",
                0,
                json!({"selector": {}, "notifier": "work", "parallelism": 99_999_999_999_u64}),
            ),
            managed(object(
                "Notification",
                "all",
                0,
                json!({"selector": {}, "notifier": "work", "policy": "PreExistingPods"}),
            )),
        ],
        pods: vec![managed(object("Pod", "db", 0, json!({})))],
        leases: vec![object(
            "Lease",
            "node",
            0,
            json!({"renewTime": "9999-12-31T00:00:00.000000Z"}),
        )],
        ..Shelf::default()
    };
    shelf.pods[0]["status"] = json!({"phase": "Running"});
    shelf.pods[0]["spec"] = json!({"nodeName": "node", "containers": [{"name": "main"}]});
    shelf.pods[0]["metadata"]["annotations"] = json!({"apps.k8s.io/notifiers":
        r#"{"main": [{"name": "work", "handler": {"signal": "SIGHUP"}}]}"#});
    shelf.podnotifications[3]["status"] = json!({"state": "New", "nodeName": "node"});
    let run = |client, stop| Controllers::new(client).run(stop);
    let expected = [
        "podnotifications fresh \"New\"",
        "podnotifications managed \"New\"",
        "podnotifications stale \"Failed\"",
        "notifications all \"New\"",
        "create podnotifications \"db\"",
    ];
    let done = drive(run, shelf, |shelf| {
        expected
            .iter()
            .all(|line| shelf.log.iter().any(|it| it == line))
    })
    .await;
    let wide = done.log.iter().filter(|line| line.contains("wide"));
    assert_eq!(wide.count(), 0, "{:?}", done.log);
}
