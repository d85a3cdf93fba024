//! What is told of a delivery: audit log, metrics, events.

use std::time::Duration;

use belay_api::reasons;
use belay_core::delivery::{Conclusion, Entry, attempt_id};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::Driver;
use crate::audit::{Asked, Line};
use crate::metrics::OutcomeLabel;
use crate::notifications::errand::Errand;

impl<E: Errand> Driver<E> {
    pub(super) fn audit(&self, container: &str, entry: &Entry) {
        let Some(outcome) = &entry.outcome else {
            return;
        };
        let time = |millis: i64| Timestamp::from_millisecond(millis).ok();
        let about = &self.about;
        let label = outcome.verdict.label();
        let metadata = self.object.as_ref().map(|object| object.meta());
        let owners = metadata.and_then(|it| it.owner_references.as_ref());
        let owner = owners.and_then(|it| it.iter().find(|owner| owner.controller == Some(true)));
        self.context.audit.write(&Line {
            time: Timestamp::now(),
            namespace: &about.namespace,
            asked: match &about.notifier {
                Some(notifier) => Asked::Notification {
                    notification: &about.name,
                    notification_uid: &about.uid,
                    notifier,
                },
                None => Asked::Action {
                    pod_action: &about.name,
                    pod_action_uid: &about.uid,
                },
            },
            created: metadata
                .and_then(|it| it.creation_timestamp.as_ref())
                .map(|time| time.0),
            part_of: owner.map(|owner| format!("{}/{}", owner.name, owner.uid)),
            executor: &self.context.executor,
            pod: &about.pod_name,
            pod_uid: &about.record.pod_uid,
            container,
            container_id: entry.container_id.as_deref(),
            attempt: (entry.attempt > 0).then(|| attempt_id(&about.uid, container, entry.attempt)),
            outcome: label,
            message: outcome.verdict.message(),
            started: outcome.started.and_then(time),
            finished: time(outcome.finished),
        });
        let metrics = &self.context.metrics;
        metrics
            .outcomes
            .get_or_create(&OutcomeLabel { outcome: label })
            .inc();
        if let Some(started) = outcome.started {
            let millis = outcome.finished.saturating_sub(started).max(0);
            metrics
                .action
                .observe(Duration::from_millis(millis.unsigned_abs()).as_secs_f64());
        }
    }

    /// The result is on the server: what is left is to tell.
    pub(super) fn reported(&self) {
        self.context
            .metrics
            .delivery
            .observe(self.met.elapsed().as_secs_f64());
        let events = &self.context.events;
        match &self.concluded {
            Some(Conclusion::NothingDeclared) => events.warning(
                self.reference(),
                reasons::NOT_DECLARED,
                format!(
                    "no container of pod {} declares notifier {}; nothing was run",
                    self.about.pod_name,
                    self.about.notifier.as_deref().unwrap_or_default()
                ),
            ),
            Some(Conclusion::Ran(record)) => {
                for (container, entry) in &record.entries {
                    let handled = entry
                        .outcome
                        .as_ref()
                        .and_then(|outcome| outcome.signal_handled);
                    if handled == Some(false) {
                        let signal = self.handlers.signal(container);
                        let signal = signal.map_or_else(String::new, |signal| format!(" {signal}"));
                        events.warning(
                            self.reference(),
                            reasons::SIGNAL_NOT_HANDLED,
                            format!("the first process of container {container} had no handler for the signal{signal}"),
                        );
                    }
                }
            }
            Some(Conclusion::Refused(_)) | None => {}
        }
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(format!("{}/{}", belay_api::GROUP, belay_api::VERSION)),
            kind: Some(E::KIND.to_owned()),
            name: Some(self.about.name.clone()),
            namespace: Some(self.about.namespace.clone()),
            uid: Some(self.about.uid.clone()),
            ..ObjectReference::default()
        }
    }
}
