//! Telling the server about a pod.

use std::sync::Arc;

use belay_api::pod::{Pod, PodStatus};
use kube::Error;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::context::Host;

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reported {
    Arrived,
    /// There is no such pod any more, or another one of the same name.
    Gone,
    /// To be tried again.
    Failed,
}

fn outcome<T>(result: Result<T, Error>, gone: &[u16], what: &str, pod: &Pod) -> Reported {
    match result {
        Ok(_) => Reported::Arrived,
        Err(Error::Api(status)) if gone.contains(&status.code) => {
            debug!(
                pod = pod.name(),
                uid = pod.uid(),
                code = status.code,
                "{what}: it is gone"
            );
            Reported::Gone
        }
        Err(error) => {
            warn!(pod = pod.name(), namespace = pod.namespace(), %error, "{what} failed; trying again");
            Reported::Failed
        }
    }
}

/// Writes the status of exactly this pod, not of a successor of its name.
pub(crate) async fn status(context: Arc<Host>, pod: Arc<Pod>, status: PodStatus) -> Reported {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), pod.namespace());
    let patch = match patch(&pod, &status) {
        Ok(patch) => patch,
        Err(error) => {
            warn!(pod = pod.name(), %error, "a status cannot be written as JSON");
            return Reported::Failed;
        }
    };
    let written = api
        .patch_status(pod.name(), &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    outcome(written, &[404, 410], "writing its status", &pod)
}

/// A merge patch: lists replace lists, and what may vanish is named.
fn patch(pod: &Pod, status: &PodStatus) -> Result<Value, serde_json::Error> {
    let mut status = serde_json::to_value(status)?;
    if let Some(fields) = status.as_object_mut() {
        for field in ["reason", "message"] {
            fields.entry(field).or_insert(Value::Null);
        }
    }
    Ok(json!({"metadata": {"uid": pod.uid()}, "status": status}))
}

/// Removes the object of a pod whose containers have ended.
pub(crate) async fn delete(context: Arc<Host>, pod: Arc<Pod>) -> Reported {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), pod.namespace());
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: Some(pod.uid().to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    // A conflict is a pod of the same name with another UID.
    outcome(
        api.delete(pod.name(), &params).await,
        &[404, 409, 410],
        "deleting it",
        &pod,
    )
}
