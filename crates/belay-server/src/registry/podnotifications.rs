//! PodNotifications: who is to act, or that nobody can, is settled in the creating write.
//!
//! Whoever deletes a Notification and then finds none of its PodNotifications left may take it that
//! nothing of it runs or will. So none is created any more from then on, not even one whose creation
//! was already under way.

use belay_api::GROUP;
use belay_api::VERSION;
use belay_api::gates::Feature;
use belay_api::metadata::NameRule;
use belay_api::notification::{ErrorType, PodNotificationStatus};
use belay_api::pod::Pod;
use belay_api::rules::Rules;
use belay_core::resolve::{Declares, PodFacts, Resolution, resolve};
use serde_json::Value;

use super::{Column, Kind, Needed, Remark, Strategy, World, age, column, field, or_none, text};
use crate::object::meta_str;

pub(super) static POD_NOTIFICATIONS: Kind = Kind {
    group: GROUP,
    version: VERSION,
    kind: "PodNotification",
    plural: "podnotifications",
    singular: "podnotification",
    short_names: &["pn"],
    categories: &["belay"],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &["status"],
    fields: &[
        field("spec.podName", "/spec/podName"),
        field(
            "spec.ttlSecondsAfterFinished",
            "/spec/ttlSecondsAfterFinished",
        ),
        field("status.nodeName", "/status/nodeName"),
        field("status.state", "/status/state"),
    ],
    columns: &[
        Column {
            name: "Name",
            format: "name",
            description: "Its name.",
            priority: 0,
        },
        column("Pod", 0, "The pod that is notified."),
        column("Notifier", 0, "The notifier that is triggered."),
        column("State", 0, "New, Succeeded or Failed."),
        column("Age", 0, "Time since it was created."),
        column("Node", 1, "The node that acts."),
        column("Error", 1, "Why it failed."),
    ],
    cells: |o, now| {
        let error = match text(o, "/status/error/type") {
            "" => o
                .pointer("/status/containers")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .map(|c| text(c, "/error/type"))
                .find(|t| !t.is_empty())
                .unwrap_or_default(),
            own => own,
        };
        vec![
            text(o, "/metadata/name").into(),
            text(o, "/spec/podName").into(),
            text(o, "/spec/notifier").into(),
            text(o, "/status/state").into(),
            age::of(o, now),
            or_none(text(o, "/status/nodeName")),
            or_none(error),
        ]
    },
    strategic_merge: false,
    generation: true,
    unconditional_update: false,
    gate: Some(Feature::ContainerNotifier),
    expires_after: None,
    audited: &["/spec/podName", "/spec/notifier"],
    strategy: &PodNotifications,
};

#[derive(Debug)]
struct PodNotifications;

impl Strategy for PodNotifications {
    fn rules(&self) -> &'static dyn Rules {
        belay_api::rules::POD_NOTIFICATION
    }

    fn needs(&self, object: &Value) -> Option<Needed> {
        let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
        let owner = owners
            .iter()
            .find(|owner| owner["kind"] == "Notification" && owner["controller"] == true)?;
        Some(Needed {
            plural: "notifications",
            name: text(owner, "/name").to_owned(),
            uid: text(owner, "/uid").to_owned(),
        })
    }

    fn on_create(&self, object: &mut Value, world: &dyn World) -> Vec<Remark> {
        let namespace = meta_str(object, "namespace").to_owned();
        let pod_name = text(object, "/spec/podName").to_owned();
        let pod_uid = object.pointer("/spec/podUID").and_then(Value::as_str);
        let notifier = text(object, "/spec/notifier").to_owned();
        let pod = world.get("pods", Some(&namespace), &pod_name);
        let declares = pod.as_ref().map(|pod| declares(pod, &notifier));
        let facts = pod.as_ref().map(|pod| PodFacts {
            uid: meta_str(pod, "uid"),
            node: pod.pointer("/spec/nodeName").and_then(Value::as_str),
            phase: text(pod, "/status/phase"),
            terminating: crate::object::is_terminating(pod),
            declares: match &declares {
                Some(Ok(true)) => Declares::Yes,
                Some(Ok(false)) | None => Declares::No,
                Some(Err(problem)) => Declares::Unusable { problem },
            },
        });
        let now = world.now();
        let (status, remarks) = match resolve(&pod_name, pod_uid, &notifier, facts) {
            Resolution::Assign { node, pod_uid } => {
                (PodNotificationStatus::assigned(node, pod_uid), Vec::new())
            }
            Resolution::Failed { error, message } => {
                let type_ = error.parse().unwrap_or(ErrorType::RuntimeError);
                (
                    PodNotificationStatus::refused(type_, message.clone(), now),
                    vec![Remark {
                        warning: true,
                        reason: error,
                        message,
                    }],
                )
            }
            Resolution::NothingDeclared { message } => (
                PodNotificationStatus::nothing_declared(message.clone(), now),
                vec![Remark {
                    warning: true,
                    reason: belay_api::reasons::NOT_DECLARED,
                    message,
                }],
            ),
        };
        object["status"] = serde_json::json!(status);
        remarks
    }
}

/// Whether any container of the pod declares the notifier, as a field or in the annotation; or why
/// nobody can tell, which this server lets no new pod come to.
fn declares(pod: &Value, notifier: &str) -> Result<bool, String> {
    let pod: Pod = serde_json::from_value(pod.clone()).map_err(|error| error.to_string())?;
    pod.declares(notifier).map_err(|error| error.to_string())
}
