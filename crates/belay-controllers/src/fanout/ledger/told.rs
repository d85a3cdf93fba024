//! What the watches tell the ledger.

use std::collections::HashSet;

use belay_api::fanout::Notification;
use belay_api::notification::PodNotification;
use belay_core::fanout::Target;
use kube::ResourceExt as _;
use tokio::time::Instant;
use tracing::warn;

use super::Ledger;
use super::entry::Entry;
use crate::fanout::pods::{PodFacts, Pods};
use crate::fanout::record;

impl Ledger {
    // What the watch of Notifications tells.

    pub(in crate::fanout) fn notifications_listing(&mut self) {
        self.notifications_listing.clear();
    }

    pub(in crate::fanout) fn notification_listed(&mut self, object: Notification, now: Instant) {
        self.notifications_listing
            .insert(object.uid().unwrap_or_default());
        self.notification_applied(object, now);
    }

    /// The list is complete. Returns those that are gone.
    pub(in crate::fanout) fn notifications_listed(&mut self) -> Vec<String> {
        let listed = std::mem::take(&mut self.notifications_listing);
        let gone: Vec<String> = self
            .entries
            .keys()
            .filter(|uid| !listed.contains(*uid))
            .cloned()
            .collect();
        for uid in &gone {
            self.notification_gone(uid);
        }
        gone
    }

    pub(in crate::fanout) fn notification_applied(&mut self, object: Notification, now: Instant) {
        let uid = object.uid().unwrap_or_default();
        if object.metadata.deletion_timestamp.is_some() {
            // Nobody else is notified, and its children may go when they have to.
            self.end(&uid);
            return;
        }
        match self.entries.get_mut(&uid) {
            Some(Entry::Final) => {}
            Some(Entry::New { object: known, .. }) => **known = object,
            Some(Entry::Active(active)) => active.told(object),
            None if object.state().is_final() => {
                self.finish(&object);
                self.entries.insert(uid, Entry::Final);
            }
            None => {
                let started = object
                    .status
                    .as_ref()
                    .is_some_and(|s| s.start_time.is_some());
                if started && self.children_known {
                    // Somebody else has begun with it, and its children are not known here.
                    warn!(uid, "was begun by somebody else");
                    self.confused = true;
                } else if started {
                    self.resume(uid, object);
                } else {
                    let new = Entry::New {
                        object: Box::new(object),
                        busy: false,
                    };
                    self.entries.insert(uid.clone(), new);
                    self.begin(&uid, now);
                }
            }
        }
    }

    pub(in crate::fanout) fn notification_gone(&mut self, uid: &str) {
        self.end(uid);
        self.entries.remove(uid);
    }

    // What the watch of children tells.

    pub(in crate::fanout) fn children_listing(&mut self) {
        self.listing.clear();
    }

    pub(in crate::fanout) fn child_listed(&mut self, object: &PodNotification, now: Instant) {
        if let Some(child) = self.child(object) {
            let listed = self.listing.entry(child.owner).or_default();
            listed.insert(child.target.uid);
        }
        self.child_applied(object, now);
    }

    pub(in crate::fanout) fn children_listed(&mut self, now: Instant) {
        self.children_known = true;
        let listing = std::mem::take(&mut self.listing);
        let nobody = HashSet::new();
        let uids: Vec<String> = self.entries.keys().cloned().collect();
        for uid in uids {
            let listed = listing.get(&uid).unwrap_or(&nobody);
            if let Some(Entry::Active(active)) = self.entries.get_mut(&uid) {
                if active.loading {
                    active.loading = false;
                    active.fanout.loaded();
                    active.dirty = true;
                    self.tell_pods(&uid);
                } else {
                    for gone in active.fanout.missing(listed) {
                        self.child_is_gone(&uid, &gone);
                    }
                }
            }
            self.begin(&uid, now);
            self.pump(&uid, now);
        }
    }

    pub(in crate::fanout) fn child_applied(&mut self, object: &PodNotification, now: Instant) {
        let Some(child) = self.child(object) else {
            return;
        };
        match self.entries.get_mut(&child.owner) {
            Some(Entry::Active(active)) => {
                let fanout = &mut active.fanout;
                fanout.child_seen(&child.target, child.outcome, child.terminating);
                active.dirty = true;
                self.pump(&child.owner, now);
            }
            // Its Notification has ended, or is gone: nothing has to be remembered. But who waits
            // for it to be gone takes that for the end of its handler.
            Some(Entry::Final) | None if child.terminating && child.held && !child.claimed => {
                let namespace = object.namespace().unwrap_or_default();
                self.releases.push_back((namespace, object.name_any()));
            }
            Some(Entry::Final | Entry::New { .. }) | None => {}
        }
    }

    pub(in crate::fanout) fn child_deleted(&mut self, object: &PodNotification, now: Instant) {
        if let Some(child) = self.child(object) {
            self.child_is_gone(&child.owner, &child.target.uid);
            self.pump(&child.owner, now);
        }
    }

    /// The child that this is. One that triggers something else than its Notification is none:
    /// whoever may trigger one notifier must not decide what came of another.
    fn child(&self, object: &PodNotification) -> Option<record::Child> {
        record::read(object).filter(|child| match self.entries.get(&child.owner) {
            Some(Entry::Active(active)) => active.object.spec.notifier == child.notifier,
            Some(Entry::Final | Entry::New { .. }) | None => true,
        })
    }

    fn child_is_gone(&mut self, owner: &str, pod_uid: &str) {
        if let Some(Entry::Active(active)) = self.entries.get_mut(owner) {
            let namespace = active.object.namespace().unwrap_or_default();
            let exists = self.pods.may_exist(&namespace, pod_uid);
            active.fanout.child_gone(pod_uid, exists);
            active.releasing.remove(pod_uid);
            active.dirty = true;
        }
    }

    // What the watch of pods tells, while somebody wants to know.

    pub(in crate::fanout) fn pods_listing(&mut self) {
        self.pods.listing();
    }

    pub(in crate::fanout) fn pod_listed(&mut self, namespace: &str, facts: PodFacts, now: Instant) {
        self.pods.listed(&facts.target.uid);
        self.pod_applied(namespace, facts, now);
    }

    pub(in crate::fanout) fn pods_listed(&mut self, now: Instant) {
        for (namespace, target) in self.pods.listing_done() {
            self.pod_is_gone(&namespace, &target, now);
        }
        for uid in self.all_open() {
            self.forget_pods(&uid);
            self.pump(&uid, now);
        }
    }

    pub(in crate::fanout) fn pod_applied(
        &mut self,
        namespace: &str,
        facts: PodFacts,
        now: Instant,
    ) {
        for uid in self.open_in(namespace) {
            if let Some(Entry::Active(active)) = self.entries.get_mut(&uid) {
                active.pod(&facts);
            }
            self.pump(&uid, now);
        }
        self.pods.applied(namespace, facts);
    }

    pub(in crate::fanout) fn pod_deleted(
        &mut self,
        namespace: &str,
        target: &Target,
        now: Instant,
    ) {
        self.pods.deleted(namespace, &target.uid);
        self.pod_is_gone(namespace, target, now);
    }

    /// Nobody wants to know of pods any more, or the watch begins anew.
    pub(in crate::fanout) fn pods_unwatched(&mut self) {
        self.pods = Pods::default();
    }

    fn pod_is_gone(&mut self, namespace: &str, target: &Target, now: Instant) {
        for uid in self.open_in(namespace) {
            if let Some(Entry::Active(active)) = self.entries.get_mut(&uid) {
                active.fanout.pod_gone(target);
                active.dirty = true;
            }
            self.pump(&uid, now);
        }
    }

    fn open_in(&self, namespace: &str) -> Vec<String> {
        let open = self.open.get(namespace).into_iter().flatten();
        open.cloned().collect()
    }

    fn all_open(&self) -> Vec<String> {
        self.open.values().flatten().cloned().collect()
    }

    pub(super) fn forget_pods(&mut self, uid: &str) {
        if let Some(Entry::Active(active)) = self.entries.get_mut(uid) {
            let namespace = active.object.namespace().unwrap_or_default();
            let pods = &self.pods;
            active
                .fanout
                .forget_pods(|pod| pods.may_exist(&namespace, pod));
        }
    }

    /// Tells a Notification with `AllPods` of the pods that are known.
    pub(super) fn tell_pods(&mut self, uid: &str) {
        let Some(Entry::Active(active)) = self.entries.get_mut(uid) else {
            return;
        };
        let namespace = active.object.namespace().unwrap_or_default();
        for pod in self.pods.of(&namespace) {
            active.pod(pod);
        }
        if self.pods.is_synced() {
            self.forget_pods(uid);
        }
    }
}
