//! What is done with the gate `ContainerNotifier` off: nothing, but that what is deleted goes.
//!
//! Children carry a finalizer, and without anybody who takes it away, a Notification's children, and
//! the namespace they are in, could never be deleted. A child is let go when it is being deleted, its
//! Notification is gone, going or has ended, and nothing of it runs any more: it has ended, or nobody
//! has claimed it. One that was claimed and has no end is given the time that a lost executor is
//! given; nobody would end it later, because with the gate off nothing is interrupted either.
//!
//! A child whose Notification lives is not let go: it has to be counted there, when the gate is back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use belay_api::fanout::{Notification, OWNER_LABEL};
use belay_api::notification::PodNotification;
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::work::RETRY;
use super::{CONCURRENT, record, timer};
use crate::clock::Clock;
use crate::expiry::decide::{MARGIN, SILENCE};
use crate::release::{Patience, release};
use crate::watching::{self, Events, watch_all};

/// Runs until `shutdown`.
pub(crate) async fn run(client: Client, clock: Clock, shutdown: CancellationToken) {
    let mut notifications: Events<Notification> = watch_all(&client, watcher::Config::default());
    let labelled = watcher::Config::default().labels(OWNER_LABEL);
    let mut children: Events<PodNotification> = watch_all(&client, labelled);
    let mut told = watching::Told::default();
    let mut held = Held::default();
    let slots = Arc::new(Semaphore::new(CONCURRENT));
    let mut releasing = FuturesUnordered::new();
    loop {
        let timer = timer([held.next_look(clock.earliest()), None]);
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(event) = notifications.next() => held.notification(event, &mut told),
            Some(event) = children.next() => held.child(event, &mut told),
            Some(()) = releasing.next() => {}
            () = timer => {}
        }
        for (namespace, name, patience) in held.take_free(clock.earliest()) {
            let (client, slots) = (client.clone(), Arc::clone(&slots));
            releasing.push(release::<PodNotification>(
                client, slots, namespace, name, patience,
            ));
        }
    }
}

/// A child that is being deleted and waits to be let go.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    owner: String,
    /// When it is let go although it was claimed; `None` if nothing of it runs.
    claimed_until: Option<Timestamp>,
}

/// Children that wait, and the Notifications that hold them.
#[derive(Debug, Default)]
struct Held {
    /// Those that go on when the gate is back.
    living: HashSet<String>,
    waiting: HashMap<(String, String), Waiting>,
    /// Whether both are known in full. Nothing is let go before.
    notifications_known: bool,
    children_known: bool,
}

impl Held {
    fn notification(
        &mut self,
        event: watcher::Result<Event<Notification>>,
        told: &mut watching::Told,
    ) {
        match event {
            Ok(Event::Init) => {
                self.living.clear();
                self.notifications_known = false;
            }
            Ok(Event::InitDone) => self.notifications_known = true,
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                let uid = object.uid().unwrap_or_default();
                if object.metadata.deletion_timestamp.is_none() && !object.state().is_final() {
                    self.living.insert(uid);
                } else {
                    self.living.remove(&uid);
                }
            }
            Ok(Event::Delete(object)) => {
                self.living.remove(&object.uid().unwrap_or_default());
            }
            Err(error) => told.interrupted("notifications", &error),
        }
    }

    fn child(&mut self, event: watcher::Result<Event<PodNotification>>, told: &mut watching::Told) {
        match event {
            Ok(Event::Init) => {
                self.waiting.clear();
                self.children_known = false;
            }
            Ok(Event::InitDone) => self.children_known = true,
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                let key = (object.namespace().unwrap_or_default(), object.name_any());
                match waiting(&object) {
                    Some(waiting) => self.waiting.insert(key, waiting),
                    None => self.waiting.remove(&key),
                };
            }
            Ok(Event::Delete(object)) => {
                let key = (object.namespace().unwrap_or_default(), object.name_any());
                self.waiting.remove(&key);
            }
            Err(error) => told.interrupted("podnotifications", &error),
        }
    }

    fn orphans(&self) -> impl Iterator<Item = (&(String, String), &Waiting)> {
        let known = self.notifications_known && self.children_known;
        let all = self.waiting.iter().filter(move |_| known);
        all.filter(|(_, waiting)| !self.living.contains(&waiting.owner))
    }

    /// Those that may go now, and whether a claim is still to be respected. What the server says
    /// about them later is looked at afresh.
    fn take_free(&mut self, now: Timestamp) -> Vec<(String, String, Patience)> {
        let free = self.orphans().filter_map(|(key, waiting)| {
            let patience = match waiting.claimed_until {
                None => Patience::UntilAtRest,
                Some(until) if until <= now => Patience::Over,
                Some(_) => return None,
            };
            Some((key.clone(), patience))
        });
        let free: Vec<_> = free.collect();
        for (key, _) in &free {
            self.waiting.remove(key);
        }
        free.into_iter()
            .map(|((namespace, name), patience)| (namespace, name, patience))
            .collect()
    }

    fn next_look(&self, now: Timestamp) -> Option<Instant> {
        let next = self.orphans().filter_map(|(_, w)| w.claimed_until).min()?;
        let left = next.duration_since(now);
        // A clock that was set is noticed when the timer runs out; not earlier than it should be.
        let left = std::time::Duration::try_from(left).unwrap_or_default();
        Some(Instant::now() + left.max(RETRY))
    }
}

/// What is to be known of a child, if it waits to be let go.
fn waiting(object: &PodNotification) -> Option<Waiting> {
    let child = record::read(object).filter(|child| child.terminating && child.held)?;
    let claimed_until = child.claimed.then(|| {
        let metadata = &object.metadata;
        let time = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
        };
        let seconds = i64::from(object.spec.deadline_seconds.max(0));
        let deadline = time(&metadata.creation_timestamp)
            .checked_add(jiff::SignedDuration::from_secs(seconds))
            .unwrap_or(Timestamp::MAX);
        let silence =
            jiff::SignedDuration::try_from(SILENCE + MARGIN).unwrap_or(jiff::SignedDuration::ZERO);
        deadline
            .max(time(&metadata.deletion_timestamp))
            .checked_add(silence)
            .unwrap_or(Timestamp::MAX)
    });
    Some(Waiting {
        owner: child.owner,
        claimed_until,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::runtime::watcher::Event;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        let base: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        base + jiff::SignedDuration::from_secs(second)
    }

    /// A child of the Notification `n` that was created at 0, with a deadline of a minute, and
    /// deleted 100 seconds later.
    fn child(pod: &str, owner: &str, status: &Value) -> PodNotification {
        serde_json::from_value(json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
            "metadata": {"namespace": "ns",
                "name": belay_core::fanout::child_name("n", owner, pod),
                "creationTimestamp": at(0).to_string(),
                "deletionTimestamp": at(100).to_string(),
                "finalizers": [belay_api::fanout::FINALIZER],
                "ownerReferences": [{"apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification",
                    "name": "n", "uid": owner, "controller": true}]},
            "spec": {"podName": pod, "podUID": pod, "notifier": "work", "deadlineSeconds": 60},
            "status": status,
        }))
        .unwrap()
    }

    fn owner(uid: &str, going: bool) -> Notification {
        let deleted = going.then(|| at(100).to_string());
        serde_json::from_value(
            json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification",
            "metadata": {"namespace": "ns", "name": "n", "uid": uid, "deletionTimestamp": deleted},
            "spec": {"selector": {}, "notifier": "work"}}),
        )
        .unwrap()
    }

    fn known(owners: Vec<Notification>, children: Vec<PodNotification>) -> Held {
        let (mut held, mut told) = (Held::default(), watching::Told::default());
        for child in children {
            held.child(Ok(Event::InitApply(child)), &mut told);
        }
        held.child(Ok(Event::InitDone), &mut told);
        assert!(held.take_free(at(100_000)).is_empty(), "not on a guess");
        for owner in owners {
            held.notification(Ok(Event::InitApply(owner)), &mut told);
        }
        held.notification(Ok(Event::InitDone), &mut told);
        held
    }

    fn free(held: &mut Held, now: i64) -> usize {
        held.take_free(at(now)).len()
    }

    #[test]
    fn a_child_goes_when_its_notification_is_gone_or_going_and_not_before() {
        let mut told = watching::Told::default();
        let ended = json!({"state": "Failed", "executor": "node"});
        for status in [json!({"state": "New"}), ended] {
            let children = vec![child("a", "lives", &status), child("b", "goes", &status)];
            let owners = vec![owner("lives", false), owner("goes", true)];
            let mut held = known(owners, children);
            assert_eq!(free(&mut held, 100), 1);
            assert_eq!(free(&mut held, 100_000), 0, "it has to be counted");
            held.notification(Ok(Event::Delete(owner("lives", false))), &mut told);
            assert_eq!(free(&mut held, 100), 1);
        }
    }

    #[test]
    fn the_children_of_one_that_has_ended_are_counted_and_go() {
        let mut ended = owner("ended", false);
        ended.status = serde_json::from_value(json!({"state": "Succeeded"})).unwrap();
        let mut held = known(
            vec![ended],
            vec![child("a", "ended", &json!({"state": "New"}))],
        );
        assert_eq!(free(&mut held, 100), 1);
    }

    #[test]
    fn a_claim_without_an_end_is_waited_for_as_long_as_a_lost_executor_is() {
        let claimed = json!({"state": "New", "executor": "node"});
        let mut held = known(vec![], vec![child("a", "gone", &claimed)]);
        assert_eq!(free(&mut held, 141), 0, "deleted at 100");
        assert!(held.next_look(at(101)).is_some());
        assert_eq!(
            held.take_free(at(142)).first().map(|free| free.2),
            Some(Patience::Over)
        );
    }

    #[test]
    fn what_is_not_being_deleted_is_left_alone() {
        let mut alive = child("a", "gone", &json!({"state": "New"}));
        alive.metadata.deletion_timestamp = None;
        let mut released = child("b", "gone", &json!({"state": "New"}));
        released.metadata.finalizers = None;
        let mut held = known(vec![], vec![alive, released]);
        assert_eq!(free(&mut held, 100_000), 0);
    }
}
