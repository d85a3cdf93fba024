//! A server on a directory of its own, and requests to it.

use std::collections::BTreeMap;

use belay_api::gates::FeatureGates;
use belay_server::{Config, Identity, Server};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};

pub(crate) struct Harness {
    pub(crate) server: Server,
    pub(crate) dir: tempfile::TempDir,
}

/// A client with an identity.
pub(crate) struct Client(pub(crate) kube::Client);

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: StatusCode,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

impl Harness {
    pub(crate) async fn start() -> Self {
        Self::with_gates(FeatureGates::default()).await
    }

    pub(crate) async fn with_gates(gates: FeatureGates) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = open(dir.path(), gates).await;
        Self { server, dir }
    }

    /// Closes the server and opens it again on the same data.
    pub(crate) async fn reopen(self, gates: FeatureGates) -> Self {
        let Self { server, dir } = self;
        let stop = tokio_util::sync::CancellationToken::new();
        stop.cancel();
        server.serve(stop).await.unwrap();
        drop(server);
        let server = open(dir.path(), gates).await;
        Self { server, dir }
    }

    pub(crate) fn admin(&self) -> Client {
        self.of(Identity::admin())
    }

    pub(crate) fn of(&self, identity: Identity) -> Client {
        Client(self.server.connect(identity))
    }
}

async fn open(dir: &std::path::Path, gates: FeatureGates) -> Server {
    let listen = "127.0.0.1:0".parse().unwrap();
    let config = Config {
        data_dir: dir.to_owned(),
        listen,
        gates,
        tls_names: vec![],
    };
    // An in-memory connection of the server before may hold it a moment longer.
    for _ in 0..200 {
        match Server::open(config.clone()).await {
            Ok(server) => return server,
            Err(belay_server::ServerError::InUse { .. }) => {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the data directory stays locked");
}

impl Client {
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self
            .0
            .send(request.body(Body::from(body)).unwrap())
            .await
            .unwrap();
        let code = response.status();
        let warnings = response
            .headers()
            .get_all("warning")
            .iter()
            .map(|v| v.to_str().unwrap().to_owned())
            .collect();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
        Answer {
            code,
            body,
            warnings,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], Vec::new()).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.json("POST", path, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Answer {
        self.json("PUT", path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], Vec::new()).await
    }

    pub(crate) async fn patch(&self, path: &str, style: &str, body: &Value) -> Answer {
        let content_type = format!("application/{style}+json");
        let headers = [("content-type", content_type.as_str())];
        self.send("PATCH", path, &headers, body.to_string().into_bytes())
            .await
    }

    async fn json(&self, method: &str, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.send(method, path, &headers, body.to_string().into_bytes())
            .await
    }
}

impl Answer {
    /// The answer's object; fails the test with the server's message if it was refused.
    pub(crate) fn ok(self) -> Value {
        assert!(self.code.is_success(), "{}: {}", self.code, self.body);
        self.body
    }

    pub(crate) fn refused(&self, code: u16, reason: &str) -> &str {
        assert_eq!(self.code.as_u16(), code, "{}", self.body);
        assert_eq!(self.body["reason"], reason, "{}", self.body);
        assert_eq!(self.body["kind"], "Status");
        assert_eq!(self.body["code"], code);
        self.body["message"].as_str().unwrap()
    }
}

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(crate) const NOTIFICATIONS: &str =
    "/apis/apps.k8s.io/v1alpha1/namespaces/default/podnotifications";

pub(crate) fn map(name: &str, data: &[(&str, &str)]) -> Value {
    let data: BTreeMap<_, _> = data.iter().copied().collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{
            "name": "main",
            "image": "none",
            "command": ["sleep", "1000"],
            "notifiers": [{"name": "reload", "handler": {"signal": "SIGHUP"}}],
        }]},
    })
}

pub(crate) fn notification(name: &str, pod: &str, notifier: &str) -> Value {
    json!({
        "apiVersion": "apps.k8s.io/v1alpha1",
        "kind": "PodNotification",
        "metadata": {"name": name},
        "spec": {"podName": pod, "notifier": notifier},
    })
}

/// Binds a pod to a node and reports it as running there.
pub(crate) async fn run_pod(client: &Client, name: &str, node: &str) {
    let binding = json!({"target": {"kind": "Node", "name": node}});
    client
        .post(&format!("{PODS}/{name}/binding"), &binding)
        .await
        .ok();
    let status = json!({"status": {"phase": "Running"}});
    client
        .patch(&format!("{PODS}/{name}/status"), "merge-patch", &status)
        .await
        .ok();
}
