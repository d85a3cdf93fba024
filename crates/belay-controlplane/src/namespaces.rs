//! Empties namespaces that are being deleted, then lets them go.
//!
//! # Expected flow
//!
//! A deletion leaves the namespace `Terminating` with the finalizer `kubernetes`. Everything in it
//! is deleted, kind by kind as discovery lists them; what goes slowly (pods with a grace period,
//! objects with finalizers) is waited for. When nothing is left the finalizer is taken away, and
//! the server removes the namespace, with what a closed feature gate hides in it: discovery does not
//! list that, and nobody but the server can see it.
//!
//! # Guarantees
//!
//! Every step may be repeated. Nothing new can appear in the meantime: the server refuses to create
//! in a namespace that terminates. Somebody else may let it go first, and make another of its name:
//! each round begins with a look whether it is still the one whose deletion began, and what lets it
//! go carries its UID.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt as _;
use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long to wait before looking again at what is still there.
const AGAIN: Duration = Duration::from_secs(1);

/// Collects terminating namespaces until `shutdown`.
pub async fn run(client: Client, shutdown: CancellationToken) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut events = watcher(namespaces, watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    // One task per namespace, so that one that never becomes empty holds up no other. Dropping the
    // set ends them.
    let mut collecting = JoinSet::new();
    let mut uids = HashSet::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(done) = collecting.join_next() => {
                if let Ok(uid) = done {
                    uids.remove(&uid);
                }
            }
            event = events.next() => match event {
                Some(Ok(namespace)) if is_waiting(&namespace) => {
                    let (name, uid) = (namespace.name_any(), namespace.uid().unwrap_or_default());
                    if uids.insert(uid.clone()) {
                        let client = client.clone();
                        collecting.spawn(async move {
                            collect(&client, &name, &uid).await;
                            uid
                        });
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => tracing::debug!(%error, "watching namespaces"),
                None => return,
            },
        }
    }
}

fn is_waiting(namespace: &Namespace) -> bool {
    let held = namespace.spec.as_ref().and_then(|s| s.finalizers.as_ref());
    namespace.metadata.deletion_timestamp.is_some() && held.is_some_and(|f| !f.is_empty())
}

/// Empties one namespace and lets it go, however long it takes.
async fn collect(client: &Client, namespace: &str, uid: &str) {
    loop {
        match round(client, namespace, uid).await {
            Ok(Round::Gone) => return tracing::info!(namespace, "namespace is gone"),
            Ok(Round::Left(left)) => {
                tracing::debug!(namespace, left, "namespace is not empty yet");
            }
            Err(error) => tracing::warn!(%error, namespace, "cannot empty namespace"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// What a look at a namespace came to.
enum Round {
    /// It has been let go, here or by somebody else.
    Gone,
    /// So much is still in it.
    Left(usize),
}

async fn round(client: &Client, name: &str, uid: &str) -> kube::Result<Round> {
    let api: Api<Namespace> = Api::all(client.clone());
    let waits = |found: &Namespace| found.uid().as_deref() == Some(uid) && is_waiting(found);
    let Some(mut namespace) = api.get_opt(name).await?.filter(waits) else {
        return Ok(Round::Gone);
    };
    let left = pass(client, name).await?;
    if left > 0 {
        return Ok(Round::Left(left));
    }
    // With the UID it was read with, so that a successor of the name is not what is let go.
    if let Some(spec) = &mut namespace.spec {
        spec.finalizers = Some(Vec::new());
    }
    let path = format!("/api/v1/namespaces/{name}/finalize");
    let body = serde_json::to_value(&namespace).map_err(kube::Error::SerdeError)?;
    match call(client, "PUT", &path, &body).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Round::Gone),
        result => result.map(|_| Round::Gone),
    }
}

/// Deletes everything in the namespace and tells how much is still there.
async fn pass(client: &Client, namespace: &str) -> kube::Result<usize> {
    let mut left = 0;
    for collection in collections(client, namespace).await? {
        call(client, "DELETE", &collection, &Value::Null).await?;
        let list = call(client, "GET", &collection, &Value::Null).await?;
        left += list["items"].as_array().map_or(0, Vec::len);
    }
    Ok(left)
}

/// The paths of all collections a namespace can hold.
async fn collections(client: &Client, namespace: &str) -> kube::Result<Vec<String>> {
    let mut roots = vec!["/api/v1".to_owned()];
    let groups = call(client, "GET", "/apis", &Value::Null).await?;
    for group in groups["groups"].as_array().into_iter().flatten() {
        if let Some(version) = group["preferredVersion"]["groupVersion"].as_str() {
            roots.push(format!("/apis/{version}"));
        }
    }
    let mut paths = Vec::new();
    for root in roots {
        let resources = call(client, "GET", &root, &Value::Null).await?;
        paths.extend(
            namespaced(&resources).map(|plural| format!("{root}/namespaces/{namespace}/{plural}")),
        );
    }
    Ok(paths)
}

/// The namespaced collections of a discovery document that can be deleted.
fn namespaced(resources: &Value) -> impl Iterator<Item = &str> {
    resources["resources"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|resource| {
            let deletable = resource["verbs"]
                .as_array()
                .is_some_and(|v| v.iter().any(|v| v == "deletecollection"));
            let name = resource["name"].as_str()?;
            (resource["namespaced"] == true && deletable && !name.contains('/')).then_some(name)
        })
}

async fn call(client: &Client, method: &str, path: &str, body: &Value) -> kube::Result<Value> {
    let bytes = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(bytes)
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::Response;
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// What a server was asked to change: method and path, body.
    type Changes = Arc<Mutex<Vec<(String, Value)>>>;

    /// A server with this namespace, and the changes it is asked for.
    fn server(namespace: Value) -> (Client, Changes) {
        let changes = Changes::default();
        let seen = Arc::clone(&changes);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (namespace, seen) = (namespace.clone(), Arc::clone(&seen));
            async move {
                let (parts, body) = request.into_parts();
                let path = parts.uri.path();
                let body = body.collect().await.unwrap().to_bytes();
                if parts.method != "GET" {
                    let body = serde_json::from_slice(&body).unwrap_or_default();
                    let change = (format!("{} {path}", parts.method), body);
                    seen.lock().unwrap().push(change);
                }
                let answer = match path {
                    "/api/v1/namespaces/x" => namespace,
                    "/api/v1" => json!({"resources": [{"name": "configmaps", "namespaced": true,
                        "verbs": ["deletecollection"]}]}),
                    _ => json!({"items": []}),
                };
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, std::io::Error>(Response::new(answer))
            }
        });
        (Client::new(service, "default"), changes)
    }

    #[tokio::test]
    async fn a_namespace_that_was_made_anew_keeps_what_is_in_it() {
        let going = "2026-01-01T00:00:00Z";
        let spec = json!({"finalizers": ["kubernetes"]});
        for successor in [
            json!({"metadata": {"name": "x", "uid": "new"}, "spec": spec}),
            json!({"metadata": {"name": "x", "uid": "new", "deletionTimestamp": going}, "spec": spec}),
            json!({"metadata": {"name": "x", "uid": "old"}, "spec": spec}),
        ] {
            let (client, changes) = server(successor);
            collect(&client, "x", "old").await;
            assert_eq!(*changes.lock().unwrap(), []);
        }
    }

    #[tokio::test]
    async fn the_namespace_that_is_let_go_is_the_one_that_was_emptied() {
        let (client, changes) = server(json!({"spec": {"finalizers": ["kubernetes"]}, "metadata":
            {"name": "x", "uid": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        collect(&client, "x", "old").await;
        let changes = changes.lock().unwrap();
        let asked: Vec<&str> = changes.iter().map(|(asked, _)| &**asked).collect();
        let expected = [
            "DELETE /api/v1/namespaces/x/configmaps",
            "PUT /api/v1/namespaces/x/finalize",
        ];
        assert_eq!(asked, expected);
        assert_eq!(changes[1].1["metadata"]["uid"], "old");
        assert_eq!(changes[1].1["spec"]["finalizers"], json!([]));
    }

    #[test]
    fn only_namespaced_collections_that_can_be_deleted_are_emptied() {
        let discovery = json!({"resources": [
            {"name": "nodes", "namespaced": false, "verbs": ["deletecollection"]},
            {"name": "pods", "namespaced": true, "verbs": ["deletecollection", "get"]},
            {"name": "pods/status", "namespaced": true, "verbs": ["deletecollection"]},
            {"name": "bindings", "namespaced": true, "verbs": ["create"]},
        ]});
        assert_eq!(namespaced(&discovery).collect::<Vec<_>>(), ["pods"]);
    }
}
