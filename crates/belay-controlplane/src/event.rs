//! Events about what was done for an object.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tracing::debug;

/// The object that an event is about.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    pub(crate) api_version: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

/// Who tells, and doing what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct By {
    pub(crate) controller: &'static str,
    pub(crate) action: &'static str,
}

/// Records an event. One that cannot be written is no reason to do again what it tells of, so its
/// failure is only logged.
pub(crate) async fn record(
    client: &Client,
    about: &About<'_>,
    by: &By,
    kind: &str,
    reason: &str,
    note: &str,
) {
    let api: Api<Event> = Api::namespaced(client.clone(), about.namespace);
    let event = event(about, by, kind, reason, note, Timestamp::now());
    let written = match serde_json::from_value(event) {
        Ok(event) => api.create(&PostParams::default(), &event).await.map(|_| ()),
        Err(error) => Err(kube::Error::SerdeError(error)),
    };
    if let Err(error) = written {
        debug!(%error, reason, name = about.name, "event not recorded");
    }
}

fn event(
    about: &About<'_>,
    by: &By,
    kind: &str,
    reason: &str,
    note: &str,
    now: Timestamp,
) -> Value {
    let seconds = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        // As upstream names events: the object, and the time in hex.
        "metadata": {
            "name": format!("{}.{:x}", about.name, now.as_nanosecond()),
            "namespace": about.namespace,
        },
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "type": kind,
        "reason": reason,
        "message": note,
        "action": by.action,
        "source": {"component": format!("belay-{}", by.controller)},
        "reportingComponent": format!("belay.dev/{}", by.controller),
        "reportingInstance": "belay",
        "firstTimestamp": seconds,
        "lastTimestamp": seconds,
        "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        "count": 1,
    })
}
