//! Telling the server about a pod.

use std::sync::Arc;

use belay_api::pod::{Pod, PodStatus};
use kube::Error;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::status::OWN_CONDITIONS;
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
        .patch_status(
            pod.name(),
            &PatchParams::default(),
            &Patch::Strategic(&patch),
        )
        .await;
    outcome(written, &[404, 410], "writing its status", &pod)
}

/// A strategic patch, in which conditions are told apart by their type: those that somebody else
/// writes at the same time stay as they are. Other lists replace lists, and what may vanish is named.
fn patch(pod: &Pod, status: &PodStatus) -> Result<Value, serde_json::Error> {
    let mut status = serde_json::to_value(status)?;
    name_vanishing(&mut status);
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.retain(|condition| {
            let kind = condition["type"].as_str();
            kind.is_some_and(|kind| OWN_CONDITIONS.contains(&kind))
        });
        conditions.iter_mut().for_each(name_vanishing);
    }
    for list in ["podIPs", "hostIPs"] {
        if let Some(list) = status.get_mut(list).and_then(Value::as_array_mut) {
            list.push(json!({"$patch": "replace"}));
        }
    }
    Ok(json!({"metadata": {"uid": pod.uid()}, "status": status}))
}

fn name_vanishing(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        for field in ["reason", "message"] {
            fields.entry(field).or_insert(Value::Null);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use belay_api::pod::{PodCondition, PodIP};

    #[test]
    fn conditions_of_others_are_not_touched_and_what_vanished_is_named() {
        let condition = |kind: &str| PodCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            ..PodCondition::default()
        };
        let status = PodStatus {
            conditions: Some(vec![condition("Ready"), condition("example.com/gate")]),
            pod_ips: Some(vec![PodIP {
                ip: "10.0.0.1".to_owned(),
            }]),
            ..PodStatus::default()
        };
        let patch = patch(&Pod::default(), &status).unwrap();
        let conditions = &patch["status"]["conditions"];
        assert_eq!(conditions.as_array().map(Vec::len), Some(1));
        assert_eq!(conditions[0]["type"], "Ready");
        let named = |value: &Value| value.get("reason") == Some(&Value::Null);
        assert!(named(&conditions[0]) && named(&patch["status"]));
        let addresses = json!([{"ip": "10.0.0.1"}, {"$patch": "replace"}]);
        assert_eq!(patch["status"]["podIPs"], addresses);
        assert!(patch["status"].get("hostIPs").is_none());
    }
}
