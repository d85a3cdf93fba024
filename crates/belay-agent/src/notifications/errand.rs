//! What an executor is asked to do in one pod: run a notifier, or an action of a hook.
//!
//! Both are objects of the API with a claim and a result in their status, and both go through the
//! same driver. What differs between them is here.

use std::fmt::Debug;
use std::time::Duration;

use belay_api::notification::PodNotification;
use belay_core::delivery::{Conclusion, Record, View};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::Resource;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::handler::Handlers;
use super::status::Author;
use crate::journal::Started;
use crate::pods::PodView;

pub(crate) trait Errand:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Serialize
    + Send
    + Sync
    + 'static
{
    const KIND: &'static str;
    const PLURAL: &'static str;
    /// Under which key it is in the journal.
    const JOURNAL: &'static str;
    /// The field that names the node it is for.
    const NODE_FIELD: &'static str;

    /// Names and the deadline.
    fn about(&self) -> Started;

    fn is_final(&self) -> bool;

    /// Whether it is settled who is to act on it.
    fn is_assigned(&self) -> bool;

    /// What is to be run in the pod, as far as this executor can do it.
    fn handlers(&self, pod: &PodView) -> Result<Handlers, String>;

    /// How long what failed is tried again; `None`: it is not.
    fn retries(&self) -> Option<Duration>;

    /// What the object says to this executor.
    fn view(&self, author: Author<'_>, handlers: &Handlers) -> View;

    /// Writes the claim into its status.
    fn claim(&mut self, author: Author<'_>, record: &Record, now: Timestamp);

    /// Writes what is under way into its status. False if that says nothing new.
    fn progress(&mut self, author: Author<'_>, record: &Record, now: Timestamp) -> bool;

    /// Writes the result into its status.
    fn conclude(
        &mut self,
        author: Author<'_>,
        conclusion: &Conclusion,
        handlers: &Handlers,
        now: Timestamp,
    );

    /// Leaves out of the result what it can do without, and what may be long.
    fn shorten(&mut self);
}

/// How long a message is at most in a result that was too long for the server.
pub(super) const BRIEF: usize = 200;

/// When nothing is started any more that has not been, by the server's clock.
pub(super) fn deadline(
    object: &impl Resource<DynamicType = ()>,
    seconds: i32,
    default: i32,
) -> i64 {
    let created = object
        .meta()
        .creation_timestamp
        .as_ref()
        .map_or(0, |time| time.0.as_second());
    let seconds = i64::from(if seconds > 0 { seconds } else { default });
    created.saturating_add(seconds).saturating_mul(1000)
}

/// Names of an object, with nothing else known of it.
pub(super) fn named(object: &impl Resource<DynamicType = ()>) -> Started {
    let metadata = object.meta();
    Started {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        notifier: None,
        pod_name: String::new(),
        deadline: 0,
        boot_id: String::new(),
        record: Record {
            pod_uid: String::new(),
            entries: Default::default(),
        },
    }
}

impl Errand for PodNotification {
    const KIND: &'static str = "PodNotification";
    const PLURAL: &'static str = "podnotifications";
    const JOURNAL: &'static str = "notification/";
    const NODE_FIELD: &'static str = "status.nodeName";

    fn about(&self) -> Started {
        let status = self.status.as_ref();
        let default = belay_api::notification::DEFAULT_DEADLINE_SECONDS;
        Started {
            notifier: Some(self.spec.notifier.clone()),
            pod_name: self.spec.pod_name.clone(),
            deadline: deadline(self, self.spec.deadline_seconds, default),
            record: Record {
                pod_uid: status
                    .and_then(|status| status.pod_uid.clone())
                    .unwrap_or_default(),
                entries: Default::default(),
            },
            ..named(self)
        }
    }

    fn is_final(&self) -> bool {
        self.state().is_final()
    }

    fn is_assigned(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(|status| status.node_name.is_some() && status.pod_uid.is_some())
    }

    fn handlers(&self, pod: &PodView) -> Result<Handlers, String> {
        Handlers::of(&pod.pod, &pod.address, &self.spec.notifier)
    }

    fn retries(&self) -> Option<Duration> {
        None
    }

    fn view(&self, author: Author<'_>, handlers: &Handlers) -> View {
        author.view(self, handlers)
    }

    fn claim(&mut self, author: Author<'_>, record: &Record, now: Timestamp) {
        let before = self.status.clone().unwrap_or_default();
        self.status = Some(author.claimed(&before, record, now));
    }

    fn progress(&mut self, _: Author<'_>, _: &Record, _: Timestamp) -> bool {
        false
    }

    fn conclude(
        &mut self,
        author: Author<'_>,
        conclusion: &Conclusion,
        handlers: &Handlers,
        now: Timestamp,
    ) {
        let before = self.status.clone().unwrap_or_default();
        self.status = Some(author.concluded(&before, conclusion, handlers, now));
    }

    fn shorten(&mut self) {
        let Some(status) = &mut self.status else {
            return;
        };
        for container in &mut status.containers {
            container.output = None;
        }
        let errors = status.containers.iter_mut().map(|it| &mut it.error);
        for error in errors.chain([&mut status.error]).flatten() {
            error.shorten(BRIEF);
        }
    }
}
