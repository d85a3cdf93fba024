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
//! in a namespace that terminates.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt as _;
use http::Request;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
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
    let mut names = HashSet::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(done) = collecting.join_next() => {
                if let Ok(name) = done {
                    names.remove(&name);
                }
            }
            event = events.next() => match event {
                Some(Ok(namespace)) if is_waiting(&namespace) => {
                    let name = namespace.name_any();
                    if names.insert(name.clone()) {
                        let client = client.clone();
                        collecting.spawn(async move {
                            collect(&client, &name).await;
                            name
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
async fn collect(client: &Client, namespace: &str) {
    loop {
        match pass(client, namespace).await {
            Ok(0) => match finalize(client, namespace).await {
                Ok(()) => return tracing::info!(namespace, "namespace is gone"),
                Err(kube::Error::Api(status)) if status.code == 404 => return,
                Err(error) => tracing::warn!(%error, namespace, "cannot finalize namespace"),
            },
            Ok(left) => tracing::debug!(namespace, left, "namespace is not empty yet"),
            Err(error) => tracing::warn!(%error, namespace, "cannot empty namespace"),
        }
        tokio::time::sleep(AGAIN).await;
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

async fn finalize(client: &Client, namespace: &str) -> kube::Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}");
    let mut object = call(client, "GET", &path, &Value::Null).await?;
    object["spec"]["finalizers"] = json!([]);
    call(client, "PUT", &format!("{path}/finalize"), &object).await?;
    Ok(())
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
    use super::*;

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
