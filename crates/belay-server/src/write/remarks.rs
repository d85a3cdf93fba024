//! Events that the server itself has to tell about what was just created.

use belay_api::reasons::{event_message, event_name};
use belay_store::{Change, Entry, Expect, Write};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{Api, Call, parse};
use crate::object::{Meta, encode, meta_str, name, seconds};
use crate::registry::{Kind, Remark};

impl Api {
    /// Events about an object that was just created. Losing one loses no fact: status has it all.
    pub(super) async fn remark(&self, call: &Call<'_>, entry: &Entry<Meta>, remarks: Vec<Remark>) {
        let Some(kind) = self.registry.by_plural("events") else {
            return;
        };
        for remark in remarks {
            let Ok(object) = parse(entry) else { return };
            let event = event_about(call.resource.kind, &object, &remark, Timestamp::now());
            let key = kind.key(Some(meta_str(&object, "namespace")), name(&event));
            let write = Write {
                key,
                expect: Expect::Absent,
                also: Vec::new(),
                change: Change::Put(encode(event, &self.mark)),
                reserve: false,
            };
            if let Err(error) = self.store.write(write).await {
                tracing::warn!(%error, "could not record an event");
            }
        }
    }
}

fn event_about(kind: &Kind, object: &Value, remark: &Remark, now: Timestamp) -> Value {
    let at = seconds(now);
    let namespace = meta_str(object, "namespace");
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": event_name(name(object), &format!("{:x}", uuid::Uuid::new_v4().as_u128() >> 64)),
            "namespace": namespace,
            "uid": uuid::Uuid::new_v4().to_string(),
            "creationTimestamp": at,
        },
        "involvedObject": {
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "namespace": namespace,
            "name": name(object),
            "uid": meta_str(object, "uid"),
            "resourceVersion": meta_str(object, "resourceVersion"),
        },
        "type": if remark.warning { "Warning" } else { "Normal" },
        "reason": remark.reason,
        "message": event_message(remark.message.clone()),
        "source": {"component": "belay-server"},
        "reportingComponent": "belay-server",
        "reportingInstance": "",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_a_name_and_a_message_that_fit_whatever_it_is_about() {
        let kind = crate::registry::Registry::new(&Default::default());
        let kind = kind.by_plural("pods").unwrap();
        let object = json!({"metadata": {"name": "p".repeat(253), "namespace": "n"}});
        let remark = Remark {
            warning: true,
            reason: "Odd",
            message: "m".repeat(5000),
        };
        let event = event_about(kind, &object, &remark, Timestamp::now());
        assert_eq!(name(&event).len(), 253);
        assert_eq!(event["message"].as_str().map(str::len), Some(1024));
        assert_eq!(event["involvedObject"]["name"], object["metadata"]["name"]);
    }
}
