//! Events about pods, notifications and the node: told once, counted when repeated.
//!
//! Telling never waits and never fails for the one who tells: events go through a bounded queue to a
//! task of their own, and what does not fit is dropped. A server that is away is told when it is back;
//! where it refuses for a while what is told in one namespace, the others' events go on. Status is
//! where facts live; events are a courtesy.

use std::collections::{HashMap, VecDeque};
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
/// How many events may wait to be told, and as many that were refused for a while.
const QUEUE: usize = 1024;
/// How many told events are remembered for counting.
const REMEMBERED: usize = 1024;
/// The first and the longest pause before a server that is away is told again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// How long an event is worth telling, from its own time on.
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
    queue: mpsc::Sender<Heard>,
}

/// What is to be told, since when.
#[derive(Debug)]
struct Heard {
    tale: Tale,
    at: Timestamp,
    since: Instant,
}

impl Recorder {
    pub(crate) fn new() -> (Self, Teller) {
        let (queue, tales) = mpsc::channel(QUEUE);
        (
            Recorder { queue },
            Teller {
                tales,
                told: HashMap::new(),
                refused: HashMap::new(),
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
        let heard = Heard {
            tale,
            at: Timestamp::now(),
            since: Instant::now(),
        };
        if let Err(error) = self.queue.try_send(heard) {
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

/// What is told, under one name: so nobody reads it twice when only the answer was lost.
#[derive(Debug)]
struct Telling {
    heard: Heard,
    event: Event,
}

impl Telling {
    fn namespace(&self) -> &str {
        self.event.metadata.namespace.as_deref().unwrap_or_default()
    }
}

/// What the server does not take now in one namespace. It is asked with one of them at a time.
#[derive(Debug)]
struct Refused {
    waiting: VecDeque<Telling>,
    due: Instant,
    pause: Duration,
}

/// The task that tells.
#[derive(Debug)]
pub(crate) struct Teller {
    tales: mpsc::Receiver<Heard>,
    told: HashMap<Key, Told>,
    /// By namespace; none is empty.
    refused: HashMap<String, Refused>,
}

impl Teller {
    /// Runs until `shutdown`; what is left in the queue then is not told.
    pub(crate) async fn run(mut self, client: Client, node: String, shutdown: CancellationToken) {
        let all = async {
            let mut open = true;
            while open || !self.refused.is_empty() {
                let due = self.refused.values().map(|refused| refused.due).min();
                tokio::select! {
                    heard = self.tales.recv(), if open => match heard {
                        Some(heard) => self.hear(&client, &node, heard).await,
                        None => open = false,
                    },
                    () = sleep_until(due) => self.try_again(&client).await,
                }
            }
        };
        shutdown.run_until_cancelled(all).await;
    }

    /// Tells one, unless others of its namespace have to wait: then it waits behind them.
    async fn hear(&mut self, client: &Client, node: &str, heard: Heard) {
        let namespace = heard.tale.about.namespace.as_deref().unwrap_or("default");
        let event = event(&heard.tale, node, namespace, heard.at);
        let telling = Telling { heard, event };
        let waits = self.refused.contains_key(telling.namespace());
        if waits || !self.tell(client, &telling).await {
            self.put_off(telling);
        }
    }

    fn put_off(&mut self, telling: Telling) {
        let waiting = self.refused.values().map(|refused| refused.waiting.len());
        if waiting.sum::<usize>() >= QUEUE {
            return debug!(reason = telling.heard.tale.reason, "an event was dropped");
        }
        let refused = self.refused.entry(telling.namespace().to_owned());
        let refused = refused.or_insert_with(|| Refused {
            waiting: VecDeque::new(),
            due: Instant::now() + PAUSE.0,
            pause: PAUSE.0,
        });
        refused.waiting.push_back(telling);
    }

    /// Tells one of each namespace whose pause is over. Where it is taken the others are, too.
    async fn try_again(&mut self, client: &Client) {
        let now = Instant::now();
        let refused = self.refused.iter();
        let due = refused.filter(|(_, refused)| refused.due <= now);
        let due: Vec<String> = due.map(|(namespace, _)| namespace.clone()).collect();
        for namespace in due {
            let Some(mut refused) = self.refused.remove(&namespace) else {
                continue;
            };
            if let Some(telling) = refused.waiting.pop_front() {
                if self.tell(client, &telling).await {
                    refused.pause = PAUSE.0;
                    refused.due = now;
                } else {
                    refused.waiting.push_back(telling);
                    refused.pause = (refused.pause * 2).min(PAUSE.1);
                    refused.due = Instant::now() + refused.pause;
                }
            }
            if !refused.waiting.is_empty() {
                self.refused.insert(namespace, refused);
            }
        }
    }

    /// Tells one, again and again while nobody answers. Returns whether it is done with: what the
    /// server refuses may be taken later.
    async fn tell(&mut self, client: &Client, telling: &Telling) -> bool {
        let Telling {
            heard: Heard { tale, at, since },
            event,
        } = telling;
        let api: Api<Event> = Api::namespaced(client.clone(), telling.namespace());
        let mut pause = PAUSE.0;
        loop {
            let Err(error) = self.try_to_tell(&api, tale, event, *at).await else {
                return true;
            };
            if !passes(&error) || since.elapsed() >= WORTH {
                warn!(reason = tale.reason, message = tale.message, %error, "an event could not be written");
                return true;
            }
            debug!(reason = tale.reason, %error, "an event waits for the server");
            if let Error::Api(_) = error {
                return false;
            }
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

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
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

    #[tokio::test(start_paused = true)]
    async fn a_namespace_whose_events_are_refused_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let begin = Instant::now();
        let full = Duration::from_secs(60);
        let script = Script::by(move |asked| {
            let refuses = asked.path.contains("/namespaces/a/") && begin.elapsed() < full;
            if refuses { refused(500) } else { taken() }
        });
        let client = context(dir.path(), &script).client.clone();
        let (recorder, teller) = Recorder::new();
        for (namespace, reason) in [("a", "One"), ("a", "Two"), ("b", "One"), ("b", "Two")] {
            let about = ObjectReference {
                namespace: Some(namespace.to_owned()),
                uid: Some(namespace.to_owned()),
                ..ObjectReference::default()
            };
            recorder.normal(about, reason, "it".to_owned());
        }
        let telling = teller.run(client, "n1".to_owned(), CancellationToken::new());
        let mut telling = std::pin::pin!(telling);
        let told = |namespace: &str| {
            let path = format!("POST /api/v1/namespaces/{namespace}/events");
            let asked = script.asked().into_iter();
            asked.filter(|asked| *asked == path).count()
        };
        let soon = Duration::from_secs(1);
        assert!(tokio::time::timeout(soon, &mut telling).await.is_err());
        assert_eq!(told("b"), 2);
        assert!(tokio::time::timeout(full, &mut telling).await.is_err());
        // It is not asked more often than one that has a single event to take.
        assert!((10..30).contains(&told("a")), "{}", told("a"));
        drop(recorder);
        telling.await;
        let begun = (begin.elapsed(), told("b"));
        assert!(begun.0 < full + PAUSE.1 * 2 && begun.1 == 2, "{begun:?}");
        let asked = script.requests().into_iter();
        let names = asked.map(|asked| asked.body["metadata"]["name"].to_string());
        let names: std::collections::BTreeSet<String> = names.collect();
        assert_eq!(names.len(), 4);
    }

    #[tokio::test]
    async fn telling_more_than_the_queue_holds_does_not_wait() {
        let (recorder, _teller) = Recorder::new();
        for n in 0..QUEUE + 10 {
            recorder.normal(ObjectReference::default(), "Started", format!("{n}"));
        }
    }
}
