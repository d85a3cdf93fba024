//! Events about pods, notifications and the node: told once, counted when repeated.
//!
//! Telling never waits and never fails for the one who tells: events go through a bounded queue to a
//! task of their own, and what does not fit is dropped. A server that is away is told when it is back.
//! Status is where facts live; events are a courtesy.

use std::collections::HashMap;
use std::time::Duration;

use belay_api::reasons::{event_message, event_name};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

const COMPONENT: &str = "belay-agent";
/// How many events may wait to be told.
const QUEUE: usize = 1024;
/// How many told events are remembered for counting.
const REMEMBERED: usize = 1024;
/// The first and the longest pause before a server that is away is told again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How long an event is worth telling.
const WORTH: Duration = Duration::from_secs(600);

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
    /// Runs until `shutdown`; what is left in the queue then is not told.
    pub(crate) async fn run(mut self, client: Client, node: String, shutdown: CancellationToken) {
        let all = async {
            while let Some((tale, at)) = self.tales.recv().await {
                self.tell(&client, &node, &tale, at).await;
            }
        };
        shutdown.run_until_cancelled(all).await;
    }

    /// Tells one, again and again while the server is away.
    async fn tell(&mut self, client: &Client, node: &str, tale: &Tale, at: Timestamp) {
        let namespace = tale.about.namespace.as_deref().unwrap_or("default");
        let api: Api<Event> = Api::namespaced(client.clone(), namespace);
        // It keeps its name, so that nobody reads it twice when only the answer was lost.
        let event = event(tale, node, namespace, at);
        let begin = Instant::now();
        let mut pause = PAUSE.0;
        loop {
            let Err(error) = self.try_to_tell(&api, tale, &event, at).await else {
                return;
            };
            if !passes(&error) || begin.elapsed() >= WORTH {
                warn!(reason = tale.reason, message = tale.message, %error, "an event could not be written");
                return;
            }
            debug!(reason = tale.reason, %error, "an event waits for the server");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    async fn try_to_tell(
        &mut self,
        api: &Api<Event>,
        tale: &Tale,
        event: &Event,
        at: Timestamp,
    ) -> Result<(), Error> {
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
        match api.create(&PostParams::default(), event).await {
            Ok(_) => {}
            // An earlier try came through, and its answer did not.
            Err(Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error),
        }
        if self.told.len() >= REMEMBERED {
            self.told.clear();
        }
        let name = event.metadata.name.clone().unwrap_or_default();
        self.told.insert(key, Told { name, count: 1 });
        Ok(())
    }
}

/// Whether the same may be taken later. A refusal is the server's last word.
fn passes(error: &Error) -> bool {
    match error {
        Error::Api(status) => status.code == 429 || status.code >= 500,
        Error::HyperError(_) | Error::Service(_) | Error::ReadEvents(_) => true,
        _ => false,
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
    use serde_json::Value;

    use crate::testing::{Reply, Script, context};

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

    /// What was asked for in order to tell this.
    async fn asked(replies: impl IntoIterator<Item = Reply>) -> Vec<(String, Value)> {
        let dir = tempfile::tempdir().unwrap();
        let script = Script::new(replies);
        let client = context(dir.path(), &script).client.clone();
        let (recorder, teller) = Recorder::new();
        recorder.normal(ObjectReference::default(), "Started", "it".to_owned());
        drop(recorder);
        teller
            .run(client, "n1".to_owned(), CancellationToken::new())
            .await;
        let asked = script.requests();
        asked
            .into_iter()
            .map(|it| (it.method.to_string(), it.body))
            .collect()
    }

    fn taken() -> Reply {
        Reply::Answer(201, json!({"metadata": {}, "involvedObject": {}}))
    }

    fn refused(code: u16) -> Reply {
        let reason = json!({"kind": "Status", "status": "Failure", "code": code});
        Reply::Answer(code, reason)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_away_is_told_when_it_is_back_and_under_the_same_name() {
        let away = [Reply::Broken, refused(503), refused(429), Reply::Silence];
        let asked = asked(away.into_iter().chain([taken()])).await;
        assert_eq!(asked.len(), 5);
        let name = |n: usize| &asked[n].1["metadata"]["name"];
        assert!(name(0).is_string() && (1..5).all(|n| name(n) == name(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_or_there_already_is_not_told_again() {
        for code in [403, 404, 409, 422] {
            assert_eq!(asked([refused(code), taken()]).await.len(), 1, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_wants_to_hear_of_what_is_long_over() {
        // Broken for ever.
        let asked = asked([]).await;
        assert!(asked.len() > 100 && asked.len() < 200, "{}", asked.len());
    }

    #[tokio::test]
    async fn telling_more_than_the_queue_holds_does_not_wait() {
        let (recorder, _teller) = Recorder::new();
        for n in 0..QUEUE + 10 {
            recorder.normal(ObjectReference::default(), "Started", format!("{n}"));
        }
    }
}
