//! Events about pods, notifications and the node: told once, counted when repeated.
//!
//! Telling never waits and never fails for the one who tells: events go through a bounded queue to a
//! task of their own, and what does not fit is dropped. Status is where facts live; events are a
//! courtesy.

use std::collections::HashMap;

use belay_api::reasons::{event_message, event_name};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

const COMPONENT: &str = "belay-agent";
/// How many events may wait to be told.
const QUEUE: usize = 1024;
/// How many told events are remembered for counting.
const REMEMBERED: usize = 1024;

/// One thing to tell.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tale {
    pub(crate) about: ObjectReference,
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// The way to the task that tells.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    queue: mpsc::Sender<(Tale, Timestamp)>,
}

impl Recorder {
    pub(crate) fn new() -> (Self, Teller) {
        let (queue, tales) = mpsc::channel(QUEUE);
        (
            Recorder { queue },
            Teller {
                tales,
                told: HashMap::new(),
            },
        )
    }

    pub(crate) fn normal(&self, about: ObjectReference, reason: &'static str, message: String) {
        self.tell(Tale {
            about,
            warning: false,
            reason,
            message,
        });
    }

    pub(crate) fn warning(&self, about: ObjectReference, reason: &'static str, message: String) {
        self.tell(Tale {
            about,
            warning: true,
            reason,
            message,
        });
    }

    fn tell(&self, tale: Tale) {
        if let Err(error) = self.queue.try_send((tale, Timestamp::now())) {
            debug!(%error, "an event was dropped");
        }
    }
}

/// What makes two tales the same event.
type Key = (String, String, &'static str, String);

#[derive(Debug, Clone)]
struct Told {
    name: String,
    count: i32,
}

/// The task that tells.
#[derive(Debug)]
pub(crate) struct Teller {
    tales: mpsc::Receiver<(Tale, Timestamp)>,
    told: HashMap<Key, Told>,
}

impl Teller {
    /// Runs until `shutdown`, then tells what is left in the queue only if that is quick.
    pub(crate) async fn run(mut self, client: Client, node: String, shutdown: CancellationToken) {
        loop {
            let next = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                next = self.tales.recv() => next,
            };
            let Some((tale, at)) = next else { return };
            tokio::select! {
                () = shutdown.cancelled() => return,
                result = self.tell(&client, &node, &tale, at) => {
                    if let Err(error) = result {
                        warn!(reason = tale.reason, message = tale.message, %error, "an event could not be written");
                    }
                }
            }
        }
    }

    async fn tell(
        &mut self,
        client: &Client,
        node: &str,
        tale: &Tale,
        at: Timestamp,
    ) -> Result<(), Error> {
        let namespace = tale
            .about
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        let key = (
            tale.about.uid.clone().unwrap_or_default(),
            tale.about.field_path.clone().unwrap_or_default(),
            tale.reason,
            tale.message.clone(),
        );
        if let Some(told) = self.told.get_mut(&key) {
            let count = told.count + 1;
            let patch = json!({"count": count, "lastTimestamp": Time(at)});
            match api
                .patch(&told.name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
            {
                Ok(_) => {
                    told.count = count;
                    return Ok(());
                }
                // It was deleted meanwhile; tell it anew.
                Err(Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        if self.told.len() >= REMEMBERED {
            self.told.clear();
        }
        let event = event(tale, node, &namespace, at);
        let name = event.metadata.name.clone().unwrap_or_default();
        api.create(&PostParams::default(), &event).await?;
        self.told.insert(key, Told { name, count: 1 });
        Ok(())
    }
}

fn event(tale: &Tale, node: &str, namespace: &str, at: Timestamp) -> Event {
    let about = tale.about.name.as_deref().unwrap_or("unknown");
    // The first hex digits of a random UUID keep names apart.
    let suffix = &uuid::Uuid::new_v4().simple().to_string()[..16];
    Event {
        metadata: ObjectMeta {
            name: Some(event_name(about, suffix)),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: tale.about.clone(),
        reason: Some(tale.reason.to_owned()),
        message: Some(event_message(tale.message.clone())),
        type_: Some(if tale.warning { "Warning" } else { "Normal" }.to_owned()),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node.to_owned()),
        first_timestamp: Some(Time(at)),
        last_timestamp: Some(Time(at)),
        count: Some(1),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_what_about_and_from_where() {
        let tale = Tale {
            about: ObjectReference {
                kind: Some("Pod".into()),
                name: Some("db".into()),
                namespace: Some("ns".into()),
                uid: Some("u".into()),
                ..ObjectReference::default()
            },
            warning: true,
            reason: "BackOff",
            message: "back-off".into(),
        };
        let event = event(&tale, "n1", "ns", Timestamp::UNIX_EPOCH);
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.metadata.namespace.as_deref(), Some("ns"));
        assert!(event.metadata.name.unwrap().starts_with("db."));
        assert_eq!(event.source.unwrap().host.as_deref(), Some("n1"));
    }

    #[tokio::test]
    async fn telling_more_than_the_queue_holds_does_not_wait() {
        let (recorder, _teller) = Recorder::new();
        for n in 0..QUEUE + 10 {
            recorder.normal(ObjectReference::default(), "Started", format!("{n}"));
        }
    }
}
