//! Kinds with little behaviour of their own: namespaces, events, config maps, secrets, leases.

use std::time::Duration;

use belay_api::metadata::NameRule;
use belay_api::rules::Rules;
use serde_json::{Value, json};

use super::{Column, Kind, Plain, Strategy, age, column, field, or_none, text};

const NAME: Column = Column {
    name: "Name",
    format: "name",
    description: "Name must be unique within a namespace.",
    priority: 0,
};
const AGE: Column = column("Age", 0, "Time since the object was created.");

pub(super) static NAMESPACES: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Namespace",
    plural: "namespaces",
    singular: "namespace",
    short_names: &["ns"],
    categories: &[],
    namespaced: false,
    name_rule: NameRule::DnsLabel,
    subresources: &["status", "finalize"],
    fields: &[field("status.phase", "/status/phase")],
    columns: &[
        NAME,
        column("Status", 0, "The status of the namespace."),
        AGE,
    ],
    cells: |o, now| {
        vec![
            text(o, "/metadata/name").into(),
            text(o, "/status/phase").into(),
            age::of(o, now),
        ]
    },
    strategic_merge: true,
    generation: false,
    unconditional_update: true,
    gate: None,
    expires_after: None,
    audited: &[],
    strategy: &Namespaces,
};

/// A namespace stays, terminating, until what is in it is gone and its finalizer is taken away.
#[derive(Debug)]
struct Namespaces;

impl Strategy for Namespaces {
    fn rules(&self) -> &'static dyn Rules {
        belay_api::rules::NAMESPACE
    }

    fn on_create(&self, object: &mut Value, _world: &dyn super::World) -> Vec<super::Remark> {
        object["spec"] = json!({"finalizers": ["kubernetes"]});
        object["status"] = json!({"phase": "Active"});
        Vec::new()
    }

    fn forbids_deletion(&self, name: &str) -> Option<&'static str> {
        matches!(
            name,
            "default" | "kube-system" | "kube-public" | "kube-node-lease"
        )
        .then_some("this namespace may not be deleted")
    }

    fn on_deletion(&self, object: &mut Value) {
        object["status"]["phase"] = "Terminating".into();
    }

    fn is_place(&self) -> bool {
        true
    }

    fn keeps_deleted(&self, object: &Value) -> bool {
        object
            .pointer("/spec/finalizers")
            .and_then(Value::as_array)
            .is_some_and(|list| !list.is_empty())
    }

    fn update_subresource(&self, subresource: &str, current: &mut Value, sent: &Value) {
        let part = match subresource {
            "finalize" => "spec",
            _ => "status",
        };
        current[part] = sent.get(part).cloned().unwrap_or_else(|| json!({}));
    }
}

pub(super) static CONFIG_MAPS: Kind = Kind {
    group: "",
    version: "v1",
    kind: "ConfigMap",
    plural: "configmaps",
    singular: "configmap",
    short_names: &["cm"],
    categories: &[],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &[],
    fields: &[],
    columns: &[NAME, column("Data", 0, "Number of entries."), AGE],
    cells: |o, now| {
        let entries = |field: &str| {
            o.get(field)
                .and_then(Value::as_object)
                .map_or(0, |m| m.len())
        };
        vec![
            text(o, "/metadata/name").into(),
            (entries("data") + entries("binaryData")).into(),
            age::of(o, now),
        ]
    },
    strategic_merge: true,
    generation: false,
    unconditional_update: true,
    gate: None,
    expires_after: None,
    audited: &[],
    strategy: &Plain(belay_api::rules::CONFIG_MAP),
};

pub(super) static SECRETS: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Secret",
    plural: "secrets",
    singular: "secret",
    short_names: &[],
    categories: &[],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &[],
    fields: &[field("type", "/type")],
    columns: &[
        NAME,
        column("Type", 0, "What the secret is for."),
        column("Data", 0, "Number of entries."),
        AGE,
    ],
    cells: |o, now| {
        let entries = o.get("data").and_then(Value::as_object);
        vec![
            text(o, "/metadata/name").into(),
            text(o, "/type").into(),
            entries.map_or(0, |entries| entries.len()).into(),
            age::of(o, now),
        ]
    },
    strategic_merge: true,
    generation: false,
    unconditional_update: true,
    gate: None,
    expires_after: None,
    audited: &[],
    strategy: &Plain(belay_api::rules::SECRET),
};

pub(super) static LEASES: Kind = Kind {
    group: "coordination.k8s.io",
    version: "v1",
    kind: "Lease",
    plural: "leases",
    singular: "lease",
    short_names: &[],
    categories: &[],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &[],
    fields: &[],
    columns: &[NAME, column("Holder", 0, "Who holds the lease."), AGE],
    cells: |o, now| {
        vec![
            text(o, "/metadata/name").into(),
            text(o, "/spec/holderIdentity").into(),
            age::of(o, now),
        ]
    },
    strategic_merge: true,
    generation: false,
    unconditional_update: false,
    gate: None,
    expires_after: None,
    audited: &[],
    strategy: &Plain(belay_api::rules::LEASE),
};

pub(super) static EVENTS: Kind = Kind {
    group: "",
    version: "v1",
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    categories: &[],
    namespaced: true,
    name_rule: NameRule::DnsSubdomain,
    subresources: &[],
    fields: &[
        field("involvedObject.kind", "/involvedObject/kind"),
        field("involvedObject.namespace", "/involvedObject/namespace"),
        field("involvedObject.name", "/involvedObject/name"),
        field("involvedObject.uid", "/involvedObject/uid"),
        field("involvedObject.apiVersion", "/involvedObject/apiVersion"),
        field(
            "involvedObject.resourceVersion",
            "/involvedObject/resourceVersion",
        ),
        field("involvedObject.fieldPath", "/involvedObject/fieldPath"),
        field("reason", "/reason"),
        field("reportingComponent", "/reportingComponent"),
        field("source", "/source/component"),
        field("type", "/type"),
    ],
    columns: &[
        column("Last Seen", 0, "Time since it was last seen."),
        column("Type", 0, "Normal or Warning."),
        column("Reason", 0, "Why, for machines."),
        column("Object", 0, "What it is about."),
        column("Subobject", 1, "The part of the object it is about."),
        column("Source", 1, "Who reports it."),
        column("Message", 0, "What happened."),
        column("First Seen", 1, "Time since it was first seen."),
        column("Count", 1, "How often it was seen."),
        Column {
            name: "Name",
            format: "name",
            description: "The event's name.",
            priority: 1,
        },
    ],
    cells: |o, now| {
        let first_of = |pointers: &[&str]| {
            pointers
                .iter()
                .map(|p| text(o, p))
                .find(|t| !t.is_empty())
                .unwrap_or_default()
                .to_owned()
        };
        let last = first_of(&["/series/lastObservedTime", "/lastTimestamp", "/eventTime"]);
        let first = first_of(&["/firstTimestamp", "/eventTime"]);
        let source = first_of(&["/source/component", "/reportingComponent"]);
        let host = text(o, "/source/host");
        let object = format!(
            "{}/{}",
            text(o, "/involvedObject/kind").to_lowercase(),
            text(o, "/involvedObject/name")
        );
        vec![
            age::since(&last, now),
            text(o, "/type").into(),
            text(o, "/reason").into(),
            object.into(),
            text(o, "/involvedObject/fieldPath").into(),
            if host.is_empty() {
                source.into()
            } else {
                format!("{source}, {host}").into()
            },
            text(o, "/message").trim().into(),
            age::since(&first, now),
            o.get("count").cloned().unwrap_or_else(|| 1.into()),
            or_none(text(o, "/metadata/name")),
        ]
    },
    strategic_merge: true,
    generation: false,
    unconditional_update: true,
    gate: None,
    expires_after: Some(Duration::from_secs(3600)),
    audited: &[],
    strategy: &Plain(belay_api::rules::EVENT),
};
