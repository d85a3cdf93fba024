//! Notifications and actions of hooks for this executor: one driver for each that is under way.
//!
//! ```text
//!   watch of podnotifications or podactions, those of this node     journal, at the start
//!        |  by UID                                          |
//!        v                                                  v
//!     Driver (one task each)  <--- machine in belay-core ---> claim, journal, actions, result
//! ```
//!
//! What a notification and an action have in common is an [`Errand`]; there is one loop for each kind,
//! and both share the slots.
//!
//! **Invariant:** one driver per UID at a time, and none after its end: a watch that lags may still
//! tell of the claim when the result is long written, and must not start the delivery anew.

mod action;
mod driver;
mod errand;
pub(crate) mod handler;
mod hook;
mod status;
mod verify;
mod write;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::{FuturesUnordered, StreamExt as _};
use kube::runtime::watcher::{self, Event};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use driver::{Driver, Notice};
pub(crate) use errand::Errand;

use crate::context::Context;
use crate::journal::Started;
use crate::watching::{Told, watch_all};

/// How long what a driver failed at waits for another: what made it fail may still be there.
const AGAIN: Duration = Duration::from_secs(10);

/// Delivers everything of a kind until `shutdown`.
pub(crate) async fn run<E: Errand>(context: Arc<Context>, shutdown: CancellationToken) {
    tokio::select! {
        () = shutdown.cancelled() => return,
        _ = futures::future::join(context.lookup.ready(), context.clock.ready()) => {}
    }
    let mut errands = Errands::<E> {
        context: Arc::clone(&context),
        active: HashMap::new(),
        ended: HashSet::new(),
        tasks: JoinSet::new(),
        again: FuturesUnordered::new(),
        listing: HashSet::new(),
        shutdown: shutdown.clone(),
    };
    let mut config = watcher::Config::default();
    if let Some(node) = &context.node {
        config = config.fields(&format!("{}={node}", E::NODE_FIELD));
    }
    let mut events = std::pin::pin!(watch_all::<E>(&context.client, config));
    // Whether it has been told that they are not served.
    let mut missing = false;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            event = events.next() => match event {
                Some(Ok(told)) => {
                    missing = false;
                    errands.told(told);
                }
                Some(Err(error)) if is_missing(&error) => {
                    if !std::mem::replace(&mut missing, true) {
                        warn!("the API server does not serve {}: install Belay with `belay manifests | kubectl apply -f -`; trying again until it does", E::PLURAL);
                    }
                }
                Some(Err(error)) => {
                    warn!(%error, "the watch of {} was interrupted; it is resumed", E::PLURAL);
                }
                None => break,
            },
            Some(ended) = errands.tasks.join_next() => match ended {
                Ok(uid) => errands.over(uid),
                Err(error) => errands.failed(&error),
            },
            Some(uid) = errands.again.next() => errands.take_up_again(&uid),
        }
    }
    while errands.tasks.join_next().await.is_some() {}
}

/// A delivery under way.
struct Active<E> {
    notices: mpsc::UnboundedSender<Notice<E>>,
    about: Started,
    /// As the watch has shown it last, unless it is gone.
    object: Option<Box<E>>,
    task: tokio::task::Id,
    /// Whether the watch has shown its end.
    end_seen: bool,
}

struct Errands<E> {
    context: Arc<Context>,
    active: HashMap<String, Active<E>>,
    /// Ended here, and the watch has not caught up.
    ended: HashSet<String>,
    tasks: JoinSet<String>,
    /// Those whose driver failed: another takes them up.
    again: FuturesUnordered<BoxFuture<'static, String>>,
    /// Seen in the list that is being read.
    listing: HashSet<String>,
    shutdown: CancellationToken,
}

impl<E: Errand> Errands<E> {
    fn told(&mut self, told: Told<E>) {
        match told {
            Told::Event(event) => self.event(event),
            // What goes on with it goes on as it was read before.
            Told::Unreadable(uid) => {
                self.listing.insert(uid);
            }
            Told::Gone(uid) => {
                self.gone(&uid);
                // What an agent before this one left of it.
                let left = self.context.journal.started(E::JOURNAL, &uid);
                if let Some(started) = left.filter(|_| !self.active.contains_key(&uid)) {
                    self.spawn(started, None, true);
                }
            }
        }
    }

    fn event(&mut self, event: Event<E>) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(object) => {
                self.listing.insert(uid(&object).to_owned());
                self.seen(object);
            }
            Event::InitDone => self.listed(),
            Event::Apply(object) => self.seen(object),
            Event::Delete(object) => self.gone(uid(&object)),
        }
    }

    fn seen(&mut self, object: E) {
        let uid = uid(&object).to_owned();
        let is_final = object.is_final();
        if let Some(active) = self.active.get_mut(&uid) {
            active.end_seen |= is_final;
            active.object = Some(Box::new(object.clone()));
            // A driver that has just ended needs no notice.
            let _ = active.notices.send(Notice::Seen(Box::new(object)));
            return;
        }
        if self.ended.contains(&uid) {
            if is_final {
                self.ended.remove(&uid);
            }
            return;
        }
        // Who is to act on it has not been settled yet.
        if !is_final && !object.is_assigned() {
            return;
        }
        // What is final concerns this executor only if something of it is left here.
        if is_final && self.context.journal.started(E::JOURNAL, &uid).is_none() {
            return;
        }
        let about = object.about();
        self.spawn(about, Some(Box::new(object)), is_final);
    }

    fn gone(&mut self, uid: &str) {
        self.ended.remove(uid);
        if let Some(active) = self.active.get_mut(uid) {
            active.end_seen = true;
            active.object = None;
            let _ = active.notices.send(Notice::Gone);
        }
    }

    /// A complete list has been read: what is not in it is gone.
    fn listed(&mut self) {
        let missing: Vec<String> = self
            .active
            .keys()
            .chain(&self.ended)
            .filter(|uid| !self.listing.contains(*uid))
            .cloned()
            .collect();
        for uid in missing {
            self.gone(&uid);
        }
        for started in self.context.journal.all_started(E::JOURNAL) {
            let known = self.listing.contains(&started.uid)
                || self.active.contains_key(&started.uid)
                || self.ended.contains(&started.uid);
            if !known {
                self.spawn(started, None, true);
            }
        }
    }

    fn spawn(&mut self, about: Started, object: Option<Box<E>>, end_seen: bool) {
        let uid = about.uid.clone();
        let (notices, inbox) = mpsc::unbounded_channel();
        let driver = Driver::new(Arc::clone(&self.context), about.clone(), object.clone());
        let (name, shutdown) = (uid.clone(), self.shutdown.clone());
        let task = self.tasks.spawn(async move {
            driver.run(inbox, shutdown).await;
            name
        });
        let active = Active {
            notices,
            about,
            object,
            task: task.id(),
            end_seen,
        };
        self.active.insert(uid, active);
    }

    fn over(&mut self, uid: String) {
        if self
            .active
            .remove(&uid)
            .is_some_and(|active| !active.end_seen)
        {
            self.ended.insert(uid);
        }
    }

    /// A driver has panicked. What it did is in the runtime and in the journal; another goes on.
    fn failed(&mut self, error: &JoinError) {
        let mut active = self.active.iter();
        let Some((uid, _)) = active.find(|(_, active)| active.task == error.id()) else {
            return;
        };
        error!(uid, %error, "a delivery failed; it is taken up anew");
        let uid = uid.clone();
        let pause = tokio::time::sleep(AGAIN);
        self.again.push(pause.map(|()| uid).boxed());
    }

    fn take_up_again(&mut self, uid: &str) {
        if let Some(active) = self.active.remove(uid) {
            self.spawn(active.about, active.object, active.end_seen);
        }
    }
}

/// Whether the server has no such kind, as before the installation of the definitions.
fn is_missing(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchError(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}

fn uid(object: &impl Errand) -> &str {
    object.meta().uid.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fake::{Fake, Start};
    use crate::testing::{Asked, Reply, Script, context, with_container};
    use belay_api::notification::PodNotification;
    use jiff::{SignedDuration, Timestamp};
    use serde_json::Value;
    use serde_json::json;
    use std::sync::Mutex;

    fn object(state: &str) -> PodNotification {
        let mut value = json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
            "metadata": {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "5"},
            "spec": {"podName": "db", "notifier": "lock"},
            "status": {"state": state, "nodeName": "n1", "executor": "n1", "podUID": "p"},
        });
        if state != "New" {
            value["status"]["completeTime"] = json!("2030-01-01T00:00:00Z");
        }
        serde_json::from_value(value).unwrap()
    }

    /// Nobody has claimed it, and there is time.
    fn unclaimed() -> Value {
        let mut value = serde_json::to_value(object("New")).unwrap();
        value["metadata"]["creationTimestamp"] = json!("2999-01-01T00:00:00Z");
        let status = value["status"].as_object_mut().unwrap();
        status.remove("executor");
        value
    }

    fn notifications(dir: &std::path::Path) -> Errands<PodNotification> {
        Errands {
            context: context(dir, &Script::default()),
            active: HashMap::new(),
            ended: HashSet::new(),
            tasks: JoinSet::new(),
            again: FuturesUnordered::new(),
            listing: HashSet::new(),
            shutdown: CancellationToken::new(),
        }
    }

    #[tokio::test]
    async fn a_watch_that_lags_behind_the_result_does_not_start_the_delivery_anew() {
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = notifications(dir.path());
        notifications.event(Event::Apply(object("New")));
        assert_eq!(notifications.active.len(), 1);
        // The delivery ends here, and the watch still tells of the claim.
        notifications.over("u".to_owned());
        notifications.event(Event::Apply(object("New")));
        assert!(notifications.active.is_empty());
        // Then of the result, and that is that.
        notifications.event(Event::Apply(object("Succeeded")));
        assert!(notifications.active.is_empty() && notifications.ended.is_empty());
    }

    #[tokio::test]
    async fn a_list_that_lags_does_not_start_it_anew_either_and_one_that_lacks_it_ends_the_memory()
    {
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = notifications(dir.path());
        notifications.event(Event::Apply(object("New")));
        notifications.over("u".to_owned());
        notifications.event(Event::Init);
        notifications.event(Event::InitApply(object("New")));
        notifications.event(Event::InitDone);
        assert!(notifications.active.is_empty() && notifications.ended.len() == 1);
        notifications.event(Event::Init);
        notifications.event(Event::InitDone);
        assert!(notifications.ended.is_empty());
    }

    #[tokio::test]
    async fn what_nobody_has_assigned_is_left_until_somebody_has() {
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = notifications(dir.path());
        let mut unassigned = object("New");
        unassigned.status = None;
        notifications.event(Event::Apply(unassigned));
        assert!(notifications.active.is_empty());
        notifications.event(Event::Apply(object("New")));
        assert_eq!(notifications.active.len(), 1);
    }

    #[tokio::test]
    async fn what_is_final_and_left_nothing_here_is_none_of_this_node_s_business() {
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = notifications(dir.path());
        notifications.event(Event::Apply(object("Failed")));
        assert!(notifications.active.is_empty());
    }

    #[tokio::test]
    async fn what_the_journal_has_and_the_list_lacks_is_cleaned_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = notifications(dir.path());
        let started = object("New").about();
        notifications
            .context
            .journal
            .put_started(PodNotification::JOURNAL, &started)
            .await
            .unwrap();
        notifications.event(Event::Init);
        notifications.event(Event::InitDone);
        assert_eq!(notifications.active.len(), 1);
        let uid = notifications.tasks.join_next().await.unwrap().unwrap();
        assert_eq!(uid, "u");
        let left = &notifications.context.journal;
        assert!(left.started(PodNotification::JOURNAL, "u").is_none());
    }

    /// A server that has one object and takes every status, versions counted.
    fn serving(object: Value) -> Script {
        let object = Mutex::new(object);
        Script::by(move |asked: &Asked| {
            let mut object = object.lock().unwrap();
            if asked.method == http::Method::PUT {
                let version = object["metadata"]["resourceVersion"].as_str().unwrap();
                let next: u64 = version.parse::<u64>().unwrap() + 1;
                object["status"] = asked.body["status"].clone();
                object["metadata"]["resourceVersion"] = json!(next.to_string());
                return Reply::Answer(200, object.clone());
            }
            match asked.path.as_str() {
                "/version" => Reply::Late(Duration::from_millis(300), 200, json!({})),
                _ if asked.query.contains("watch=true") => Reply::Silence,
                path if path.ends_with("/n") => Reply::Answer(200, object.clone()),
                _ => Reply::Answer(
                    200,
                    json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotificationList",
                        "metadata": {"resourceVersion": "9"}, "items": [object.clone()]}),
                ),
            }
        })
    }

    #[tokio::test]
    async fn nothing_is_decided_before_the_server_has_told_its_time() {
        // To the node's own clock the first is ten minutes too late, and the second fresh.
        for (off, first) in [(-600, "New"), (600, "Failed")] {
            let now = Timestamp::now() + SignedDuration::from_secs(off);
            let created = match off {
                ..0 => now - SignedDuration::from_secs(5),
                _ => Timestamp::now(),
            };
            let mut value = unclaimed();
            value["metadata"]["creationTimestamp"] = json!(created.strftime("%FT%TZ").to_string());
            let script = serving(value).dated(now);
            let dir = tempfile::tempdir().unwrap();
            let context = with_container(dir.path(), &script, &Arc::default());
            let stop = CancellationToken::new();
            let work = tokio::spawn(run::<PodNotification>(Arc::clone(&context), stop.clone()));
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(script.asked(), Vec::<String>::new());
            let asking = tokio::spawn(crate::dated::keep(context, stop.clone()));
            while script.written().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let status = script.written()[0]["status"].clone();
            assert_eq!(status["state"], first, "{off}: {status:#}");
            let told = [&status["completeTime"], &status["startTime"]];
            let told = told.iter().find_map(|time| time.as_str()).unwrap();
            let told = told.parse::<Timestamp>().unwrap().duration_since(now);
            assert!(told.abs() < SignedDuration::from_mins(2), "{off}: {told}");
            stop.cancel();
            work.await.unwrap();
            asking.await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_a_driver_failed_at_is_taken_up_by_another() {
        let dir = tempfile::tempdir().unwrap();
        let fake = Arc::new(Fake::default());
        fake.starts.lock().unwrap().push_back(Start::Panics);
        let script = serving(unclaimed());
        let mut notifications = Errands {
            context: with_container(dir.path(), &script, &fake),
            ..notifications(&dir.path().join("other"))
        };
        notifications.event(Event::Apply(serde_json::from_value(unclaimed()).unwrap()));
        let panicked = notifications.tasks.join_next().await.unwrap();
        notifications.failed(&panicked.unwrap_err());
        tokio::time::pause();
        let uid = notifications.again.next().await.unwrap();
        tokio::time::resume();
        notifications.take_up_again(&uid);
        let ended = notifications.tasks.join_next().await.unwrap();
        notifications.over(ended.unwrap());
        assert!(notifications.active.is_empty());
        let written = script.written();
        assert_eq!(written.last().unwrap()["status"]["state"], "Succeeded");
    }

    #[tokio::test]
    async fn what_cannot_be_read_any_more_is_still_there_until_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = notifications(dir.path());
        notifications.told(Told::Event(Event::Apply(object("New"))));
        for gone in [false, true] {
            notifications.told(Told::Event(Event::Init));
            notifications.told(Told::Unreadable("u".to_owned()));
            notifications.told(Told::Event(Event::InitDone));
            if gone {
                notifications.told(Told::Gone("u".to_owned()));
            }
            assert_eq!(notifications.active["u"].end_seen, gone);
        }
    }

    #[tokio::test]
    async fn of_what_can_never_be_read_nothing_is_left_when_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = notifications(dir.path());
        let journal = notifications.context.journal.clone();
        let started = object("New").about();
        let put = journal.put_started(PodNotification::JOURNAL, &started);
        put.await.unwrap();
        notifications.told(Told::Event(Event::Init));
        notifications.told(Told::Unreadable("u".to_owned()));
        notifications.told(Told::Event(Event::InitDone));
        assert!(notifications.active.is_empty());
        notifications.told(Told::Gone("u".to_owned()));
        let uid = notifications.tasks.join_next().await.unwrap().unwrap();
        assert_eq!(uid, "u");
        let left = journal.started(PodNotification::JOURNAL, "u");
        assert!(left.is_none());
    }

    #[tokio::test]
    async fn what_is_being_forgotten_is_not_taken_for_interrupted() {
        let dir = tempfile::tempdir().unwrap();
        let fake = Arc::new(Fake {
            forgets: tokio::sync::Semaphore::new(0),
            ..Fake::default()
        });
        let script = serving(unclaimed());
        let mut notifications = Errands {
            context: with_container(dir.path(), &script, &fake),
            ..notifications(&dir.path().join("other"))
        };
        notifications.event(Event::Apply(serde_json::from_value(unclaimed()).unwrap()));
        fake.forgetting.notified().await;
        for _ in 0..2 {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            while let Some(ended) = notifications.tasks.try_join_next() {
                notifications.over(ended.unwrap());
            }
            notifications.event(Event::Apply(object("Succeeded")));
        }
        fake.forgets.add_permits(100);
        while let Some(ended) = notifications.tasks.join_next().await {
            notifications.over(ended.unwrap());
        }
        assert!(notifications.active.is_empty() && notifications.ended.is_empty());
        let audit = std::fs::read_to_string(dir.path().join("audit")).unwrap();
        assert_eq!(audit.lines().count(), 1, "{audit}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_that_the_server_does_not_take_is_offered_ever_more_rarely() {
        let value = unclaimed();
        let refusal = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
            "message": "refused", "reason": "Forbidden",
        });
        let of_server = value.clone();
        let script = Script::by(move |asked| match asked.method {
            http::Method::PUT => Reply::Answer(403, refusal.clone()),
            _ => Reply::Answer(200, of_server.clone()),
        });
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = Errands {
            context: with_container(dir.path(), &script, &Arc::default()),
            ..notifications(&dir.path().join("other"))
        };
        notifications.event(Event::Apply(serde_json::from_value(value).unwrap()));
        tokio::time::sleep(Duration::from_secs(10)).await;
        let written = script.written().len();
        assert!((3..=10).contains(&written), "{written}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_that_is_too_long_for_the_server_is_told_in_fewer_words() {
        let value = unclaimed();
        let taking = serving(value.clone());
        let script = Script::by(move |asked| {
            let output = &asked.body["status"]["containers"][0]["output"];
            if output.is_null() {
                return taking.answer(asked);
            }
            let refusal = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "code": 422, "message": "Too long", "reason": "Invalid"});
            Reply::Answer(422, refusal)
        });
        let dir = tempfile::tempdir().unwrap();
        let mut notifications = Errands {
            context: with_container(dir.path(), &script, &Arc::default()),
            ..notifications(&dir.path().join("other"))
        };
        notifications.event(Event::Apply(serde_json::from_value(value).unwrap()));
        notifications.tasks.join_next().await.unwrap().unwrap();
        let written = script.written();
        let states = written
            .iter()
            .map(|it| it["status"]["state"].as_str().unwrap());
        assert_eq!(
            states.collect::<Vec<_>>(),
            ["New", "Succeeded", "Succeeded"]
        );
    }
}
