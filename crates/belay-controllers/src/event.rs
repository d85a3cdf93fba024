//! Events that the controllers tell of notifications and hooks.

use belay_api::reasons::{event_message, event_name};
use belay_api::{CONTROLLER, reasons};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time};
use kube::api::{Api, PostParams};
use kube::{Client, Resource, ResourceExt as _};
use tracing::debug;

/// An event about an object; a warning, unless it tells of a success.
pub(crate) fn about<K>(
    object: &K,
    reason: &str,
    action: &str,
    message: String,
    now: Timestamp,
) -> Event
where
    K: Resource<DynamicType = ()>,
{
    let mut reference: ObjectReference = object.object_ref(&());
    reference.resource_version = None;
    let type_ = match reason {
        reasons::NOTIFICATION_SUCCEEDED | reasons::HOOK_SUCCEEDED => "Normal",
        _ => "Warning",
    };
    Event {
        metadata: ObjectMeta {
            // As upstream names events: the object, and the time in hex.
            name: Some(event_name(
                &object.name_any(),
                &format!("{:x}", now.as_nanosecond()),
            )),
            namespace: object.namespace(),
            ..ObjectMeta::default()
        },
        involved_object: reference,
        type_: Some(type_.to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(event_message(message)),
        action: Some(action.to_owned()),
        source: Some(EventSource {
            component: Some(CONTROLLER.to_owned()),
            host: None,
        }),
        reporting_component: Some(format!("{}/{CONTROLLER}", belay_api::GROUP)),
        reporting_instance: Some(CONTROLLER.to_owned()),
        event_time: Some(MicroTime(now)),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}

/// Writes it. Status is where facts live; an event that cannot be written is not worth a second try.
pub(crate) async fn tell(client: &Client, event: &Event) {
    let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    if let Err(error) = events.create(&PostParams::default(), event).await {
        debug!(%error, about = event.involved_object.name, "event not recorded");
    }
}
