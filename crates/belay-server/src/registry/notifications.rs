//! Notifications: their controller does the work, by children of the kind PodNotification.

use belay_api::GROUP;
use belay_api::VERSION;
use belay_api::gates::Feature;
use belay_api::metadata::NameRule;
use serde_json::Value;

use super::{Column, Kind, Plain, age, column, or_none, text};

pub(super) static NOTIFICATIONS: Kind = Kind {
    group: GROUP,
    version: VERSION,
    kind: "Notification",
    plural: "notifications",
    singular: "notification",
    short_names: &["ntf"],
    categories: &["belay"],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &["status"],
    fields: &[],
    columns: &[
        Column {
            name: "Name",
            format: "name",
            description: "Its name.",
            priority: 0,
        },
        column("Notifier", 0, "The notifier that is triggered."),
        column("Policy", 0, "AllPods or PreExistingPods."),
        column("State", 0, "New, Succeeded or Failed."),
        column("Succeeded", 0, "Pods in which it succeeded."),
        column("Failed", 0, "Pods in which it failed."),
        column("Age", 0, "Time since it was created."),
        column("Complete", 1, "Time since the last pod was done."),
        column("Error", 1, "Why it failed as a whole."),
    ],
    cells: |o, now| {
        let count = |pointer: &str| o.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        vec![
            text(o, "/metadata/name").into(),
            text(o, "/spec/notifier").into(),
            text(o, "/spec/policy").into(),
            text(o, "/status/state").into(),
            count("/status/succeededCount").into(),
            count("/status/failedCount").into(),
            age::of(o, now),
            age::since(text(o, "/status/completeTime"), now),
            or_none(text(o, "/status/error/type")),
        ]
    },
    strategic_merge: false,
    generation: true,
    unconditional_update: false,
    gate: Some(Feature::ContainerNotifier),
    expires_after: None,
    audited: &["/spec/selector", "/spec/notifier"],
    strategy: &Plain(belay_api::rules::NOTIFICATION),
};
