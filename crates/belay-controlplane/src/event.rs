//! Events about what was done for an object.

use belay_api::reasons::{event_message, event_name};
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
            "name": event_name(about.name, &format!("{:x}", now.as_nanosecond())),
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
        "message": event_message(note.to_owned()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_name_and_a_message_that_fit_whatever_it_is_about() {
        let name = "p".repeat(253);
        let about = About {
            api_version: "v1",
            kind: "Pod",
            namespace: "n",
            name: &name,
            uid: "u",
        };
        let by = By {
            controller: "binder",
            action: "Binding",
        };
        let note = "m".repeat(5000);
        let event = event(&about, &by, "Warning", "Odd", &note, Timestamp::UNIX_EPOCH);
        let length = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).map(str::len);
        assert_eq!(length("/metadata/name"), Some(253));
        assert_eq!(length("/message"), Some(1024));
        assert_eq!(length("/involvedObject/name"), Some(253));
    }
}
