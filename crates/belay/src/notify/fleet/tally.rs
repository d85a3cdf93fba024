//! What is known of one Notification and its children, and how that is told on the way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use belay_api::fanout::{Notification, NotificationStatus};
use belay_api::notification::{ErrorType, PodNotification, State};
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;
use serde_json::Value;

use crate::follow::{CONTROLLER, Followed};
use crate::notify::report;

/// The Notification and its children as they were last seen.
#[derive(Debug)]
pub(super) struct Tally {
    notification: Notification,
    /// By the name of the pod and that of the child.
    children: BTreeMap<(String, String), PodNotification>,
    /// Those that are no longer there.
    gone: BTreeSet<(String, String)>,
    succeeded: usize,
    failed: usize,
    cancelled: usize,
    news: Vec<String>,
    /// Why the children cannot be seen.
    unseen: Option<String>,
    /// Whether the list that the watch began with, or began anew with, has had it.
    listed: bool,
    deleted: bool,
}

impl Tally {
    pub(super) fn new(notification: Notification) -> Self {
        Self {
            notification,
            children: BTreeMap::new(),
            gone: BTreeSet::new(),
            succeeded: 0,
            failed: 0,
            cancelled: 0,
            news: Vec::new(),
            unseen: None,
            listed: false,
            deleted: false,
        }
    }

    pub(super) fn name(&self) -> String {
        self.notification.name_any()
    }

    pub(super) fn uid(&self) -> &str {
        self.notification
            .metadata
            .uid
            .as_deref()
            .unwrap_or_default()
    }

    pub(super) fn notification(&self) -> &Notification {
        &self.notification
    }

    pub(super) fn status(&self) -> NotificationStatus {
        self.notification.status.clone().unwrap_or_default()
    }

    /// In the order of the pods' names.
    pub(super) fn children(&self) -> impl Iterator<Item = &PodNotification> {
        self.children.values()
    }

    /// Whether somebody else deleted the Notification.
    pub(super) fn was_deleted(&self) -> bool {
        self.deleted
    }

    /// What the watch tells of the Notification.
    pub(super) fn own(&mut self, event: Event<Notification>) {
        match event {
            Event::Apply(object) | Event::InitApply(object) => {
                if object.metadata.uid == self.notification.metadata.uid {
                    self.listed = true;
                    self.notification = object;
                }
            }
            Event::Delete(object) => {
                self.deleted |= object.metadata.uid == self.notification.metadata.uid;
            }
            Event::Init => self.listed = false,
            // A deletion that nobody watched.
            Event::InitDone => self.deleted |= !self.listed,
        }
    }

    /// The server does not tell of the children.
    pub(super) fn unseen(&mut self, why: String) {
        if self.unseen.is_none() {
            self.news.push(format!(
                "what becomes of single pods cannot be seen, only how many succeed and fail: {why}"
            ));
            self.unseen = Some(why);
        }
    }

    /// Whether all that is known of the pods is what the Notification counts.
    pub(super) fn only_counted(&self) -> bool {
        self.children.is_empty() && self.unseen.is_some()
    }

    /// What the watch tells of a child. One that is gone stays as it was.
    pub(super) fn child(&mut self, event: Event<PodNotification>) {
        if !matches!(event, Event::Init) {
            self.unseen = None;
        }
        let is_gone = matches!(event, Event::Delete(_));
        let (Event::Apply(object) | Event::InitApply(object) | Event::Delete(object)) = event
        else {
            return;
        };
        let key = (object.spec.pod_name.clone(), object.name_any());
        if is_gone {
            self.gone.insert(key.clone());
        }
        let ended = |child: &PodNotification| child.state().is_final();
        let before = self.children.get(&key).is_some_and(ended);
        if before {
            return;
        }
        match object.state() {
            State::New => {}
            State::Succeeded => self.succeeded += 1,
            State::Failed if was_cancelled(&object) => self.cancelled += 1,
            State::Failed => {
                self.failed += 1;
                self.news
                    .push(format!("{}: {}", key.0, report::failure(&object)));
            }
        }
        self.children.insert(key, object);
    }

    /// Children that neither ended nor are known to be gone.
    pub(super) fn unsettled(&self) -> usize {
        let open = self.children.iter();
        open.filter(|(key, child)| !child.state().is_final() && !self.gone.contains(*key))
            .count()
    }

    /// The server has no child any more that could run.
    pub(super) fn none_is_left(&mut self) {
        self.gone.extend(self.children.keys().cloned());
    }

    /// Whether it was deleted before anybody claimed it: nothing was run, nor will be.
    pub(super) fn came_to_nothing(&self, child: &PodNotification) -> bool {
        let key = (child.spec.pod_name.clone(), child.name_any());
        let executor = child.status.as_ref().and_then(|s| s.executor.as_deref());
        self.gone.contains(&key)
            && child.state() == State::New
            && executor.is_none_or(str::is_empty)
    }

    pub(super) fn targets(&self) -> usize {
        self.counted().0
    }

    /// Pods, those that succeeded and those that failed, as the Notification counts them.
    pub(super) fn counted(&self) -> (usize, usize, usize) {
        let number = |count: i32| usize::try_from(count).unwrap_or(0);
        let status = self.status();
        (
            number(status.target_count),
            number(status.succeeded_count),
            number(status.failed_count),
        )
    }

    /// Pods whose turn has not come, or had not when it was cancelled.
    pub(super) fn not_notified(&self) -> usize {
        let nothing = self.children().filter(|child| self.came_to_nothing(child));
        self.targets().saturating_sub(self.children.len()) + nothing.count()
    }

    /// Everything, as it was last seen.
    pub(super) fn objects(&self) -> anyhow::Result<Vec<Value>> {
        let mut objects = vec![serde_json::to_value(&self.notification)?];
        for child in self.children() {
            objects.push(serde_json::to_value(child)?);
        }
        Ok(objects)
    }
}

/// Whether its handler was killed, or never started, because somebody deleted it.
fn was_cancelled(child: &PodNotification) -> bool {
    let status = child.status.as_ref();
    let own = status.and_then(|status| status.error.as_ref());
    let of_containers = status.map(|status| status.containers.iter());
    own.into_iter()
        .chain(
            of_containers
                .into_iter()
                .flatten()
                .filter_map(|c| c.error.as_ref()),
        )
        .any(|error| error.type_ == ErrorType::Cancelled)
}

/// What a watch tells of the Notification, or of a child of it.
pub(super) enum Told {
    Own(Event<Notification>),
    Child(Event<PodNotification>),
    /// Of the children it does not tell, for this reason.
    Unseen(String),
}

impl Followed for Tally {
    type Event = Told;
    const UNHEARD: &'static str = CONTROLLER;

    fn is_heard(event: &Told) -> bool {
        !matches!(event, Told::Own(Event::Init) | Told::Child(Event::Init))
    }

    fn observe(&mut self, event: Told) {
        match event {
            Told::Own(event) => self.own(event),
            Told::Child(event) => self.child(event),
            Told::Unseen(why) => self.unseen(why),
        }
    }

    fn is_over(&self) -> bool {
        self.deleted || self.notification.state().is_final()
    }

    fn acknowledged(&self) -> bool {
        let status = self.notification.status.as_ref();
        status.is_some_and(|status| status.start_time.is_some())
    }

    /// The counts in words.
    fn summary(&self) -> String {
        if self.only_counted() {
            let (targets, succeeded, failed) = self.counted();
            return format!("{succeeded} succeeded, {failed} failed of {targets} pods");
        }
        let ended = self.succeeded + self.failed + self.cancelled;
        let nothing = self.children().filter(|child| self.came_to_nothing(child));
        let running = self.unsettled();
        let unknown = self.children.len() - ended - running - nothing.count();
        let mut parts = vec![format!("{} succeeded", self.succeeded)];
        for (number, what) in [
            (self.failed, "failed"),
            (self.cancelled, "cancelled"),
            (running, "running"),
            (unknown, "without a result"),
            (self.not_notified(), "not notified"),
        ] {
            if number > 0 {
                parts.push(format!("{number} {what}"));
            }
        }
        format!("{} of {} pods", parts.join(", "), self.targets())
    }

    fn take_news(&mut self, _elapsed: Duration) -> Vec<String> {
        std::mem::take(&mut self.news)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub(in crate::notify::fleet) fn notification(status: &Value) -> Notification {
        serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification",
            "metadata": {"name": "n", "uid": "u"},
            "spec": {"selector": {}, "notifier": "reload", "policy": "PreExistingPods"},
            "status": status,
        }))
        .unwrap()
    }

    pub(in crate::notify::fleet) fn child(pod: &str, status: &Value) -> PodNotification {
        serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
            "metadata": {"name": format!("n-{pod}")},
            "spec": {"podName": pod, "notifier": "reload"},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_summary_counts_every_pod_once_whatever_the_watch_repeats() {
        let mut tally = Tally::new(notification(&json!({"targetCount": 4})));
        tally.child(Event::Apply(child("a", &json!({"state": "New"}))));
        tally.child(Event::Apply(child("b", &json!({"state": "New"}))));
        assert_eq!(
            tally.summary(),
            "0 succeeded, 2 running, 2 not notified of 4 pods"
        );
        for _ in 0..2 {
            tally.child(Event::Apply(child("a", &json!({"state": "Succeeded"}))));
            let failed = json!({"state": "Failed", "error": {"type": "Expired", "message": "late",
                "timestamp": "2026-01-01T00:00:00Z"}});
            tally.child(Event::InitApply(child("b", &failed)));
        }
        tally.child(Event::Delete(child("a", &json!({"state": "New"}))));
        assert_eq!(
            tally.summary(),
            "1 succeeded, 1 failed, 2 not notified of 4 pods"
        );
        assert_eq!(tally.take_news(Duration::ZERO), ["b: Expired: late"]);
    }

    #[test]
    fn what_was_cancelled_is_neither_running_nor_failed_once_it_is_gone() {
        let mut tally = Tally::new(notification(&json!({"targetCount": 4})));
        let claimed = json!({"state": "New", "executor": "n"});
        for (pod, status) in [
            ("killed", &claimed),
            ("unclaimed", &json!({"state": "New"})),
            ("lost", &claimed),
        ] {
            tally.child(Event::Apply(child(pod, status)));
        }
        assert_eq!(tally.unsettled(), 3);
        let cancelled = json!({"state": "Failed", "error": {"type": "Cancelled", "message": "gone",
            "timestamp": "2026-01-01T00:00:00Z"}});
        tally.child(Event::Delete(child("killed", &cancelled)));
        tally.child(Event::Delete(child("unclaimed", &json!({"state": "New"}))));
        assert_eq!(tally.unsettled(), 1);
        tally.none_is_left();
        assert_eq!(
            tally.summary(),
            "0 succeeded, 1 cancelled, 1 without a result, 2 not notified of 4 pods"
        );
        assert!(
            tally.take_news(Duration::ZERO).is_empty(),
            "somebody asked for it"
        );
    }

    #[test]
    fn it_is_over_when_it_is_final_or_gone_and_not_for_a_successor() {
        let mut tally = Tally::new(notification(&json!({})));
        let mut other = notification(&json!({"state": "Succeeded"}));
        other.metadata.uid = Some("other".into());
        tally.own(Event::Apply(other.clone()));
        tally.own(Event::Delete(other));
        assert!(!tally.is_over());
        tally.own(Event::Apply(notification(&json!({"state": "Succeeded"}))));
        assert!(tally.is_over() && !tally.was_deleted());
    }

    #[test]
    fn a_deletion_that_nobody_watched_is_seen_when_the_watch_begins_anew() {
        let mut tally = Tally::new(notification(&json!({})));
        let seen = || Event::InitApply(notification(&json!({})));
        for event in [Event::Init, seen(), Event::InitDone] {
            tally.own(event);
        }
        assert!(!tally.was_deleted());
        // The watch was cut off; meanwhile it went.
        tally.own(Event::Init);
        assert!(!tally.was_deleted());
        tally.own(Event::InitDone);
        assert!(tally.was_deleted());
    }
}
