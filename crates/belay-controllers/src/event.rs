//! Events about the product's objects.

use belay_api::reasons;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::{Resource, ResourceExt as _};

/// An event about an object; a warning, unless it tells of a success.
pub(crate) fn about<K>(object: &K, reason: &str, message: String, now: Timestamp) -> Event
where
    K: Resource<DynamicType = ()>,
{
    let mut reference: ObjectReference = object.object_ref(&());
    reference.resource_version = None;
    let type_ = match reason {
        reasons::NOTIFICATION_SUCCEEDED => "Normal",
        _ => "Warning",
    };
    Event {
        metadata: ObjectMeta {
            // As upstream names events: the object, and the time in hex.
            name: Some(format!("{}.{:x}", object.name_any(), now.as_nanosecond())),
            namespace: object.namespace(),
            ..ObjectMeta::default()
        },
        involved_object: reference,
        type_: Some(type_.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(message),
        action: Some("Notifying".to_owned()),
        source: Some(EventSource {
            component: Some("belay-controller".to_owned()),
            host: None,
        }),
        reporting_component: Some("apps.k8s.io/belay-controller".to_owned()),
        reporting_instance: Some("belay-controller".to_owned()),
        event_time: Some(MicroTime(now)),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}
