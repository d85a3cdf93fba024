//! The one list of kinds served. Handlers know no kind; adding one is adding an entry here.

mod age;
mod daemonsets;
mod hooks;
mod nodes;
mod notifications;
mod plain;
mod podnotifications;
mod pods;
mod roles;

use std::time::Duration;

use belay_api::gates::{Feature, FeatureGates};
use belay_api::metadata::NameRule;
use belay_api::rules::Rules;
use jiff::Timestamp;
use serde_json::Value;

use crate::status::ApiResult;

/// Everything the server knows about a kind.
#[derive(Debug)]
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) singular: &'static str,
    pub(crate) short_names: &'static [&'static str],
    pub(crate) categories: &'static [&'static str],
    pub(crate) namespaced: bool,
    pub(crate) name_rule: NameRule,
    pub(crate) subresources: &'static [&'static str],
    /// Selectable fields besides `metadata.name` and `metadata.namespace`.
    pub(crate) fields: &'static [Field],
    pub(crate) columns: &'static [Column],
    /// The cells of a table row, in the order of `columns`.
    pub(crate) cells: fn(&Value, Timestamp) -> Vec<Value>,
    /// Built-in kinds take strategic merge patches; custom kinds do not, as on a stock server.
    pub(crate) strategic_merge: bool,
    /// Whether `metadata.generation` counts changes of the spec.
    pub(crate) generation: bool,
    /// Whether an update without a resource version overwrites.
    pub(crate) unconditional_update: bool,
    /// The gate without which the kind is not served.
    pub(crate) gate: Option<Feature>,
    /// How long after its last change an object is dropped by itself.
    pub(crate) expires_after: Option<Duration>,
    /// Fields of a new object that the audit log names.
    pub(crate) audited: &'static [&'static str],
    pub(crate) strategy: &'static dyn Strategy,
}

/// A field that selectors may name.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) label: &'static str,
    /// Where it is in the object, as a JSON pointer.
    pub(crate) pointer: &'static str,
    /// What it is compared as where it is absent.
    pub(crate) absent: &'static str,
}

const fn field(label: &'static str, pointer: &'static str) -> Field {
    let absent = "";
    Field {
        label,
        pointer,
        absent,
    }
}

/// A field that is true or false, whether it is there or not.
const fn flag(label: &'static str, pointer: &'static str) -> Field {
    let absent = "false";
    Field {
        label,
        pointer,
        absent,
    }
}

/// A column of `kubectl get`.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) format: &'static str,
    pub(crate) description: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
    pub(crate) priority: i32,
}

pub(crate) const fn column(name: &'static str, priority: i32, description: &'static str) -> Column {
    Column {
        name,
        format: "",
        description,
        priority,
    }
}

/// What a kind does differently from all others.
pub(crate) trait Strategy: Sync + std::fmt::Debug {
    fn rules(&self) -> &'static dyn Rules;

    /// Completes a new, valid object with what only the rest of the store can tell. Returns what
    /// should be said about it as events once it is stored.
    fn on_create(&self, _object: &mut Value, _world: &dyn World) -> Vec<Remark> {
        Vec::new()
    }

    /// What a new object cannot be without: it is created only while that is there and not being
    /// deleted.
    fn needs(&self, _object: &Value) -> Option<Needed> {
        None
    }

    /// The grace period of a deletion, or `None` for a kind that goes at once.
    fn grace(&self, _object: &Value, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// Changes an object whose deletion begins.
    fn on_deletion(&self, _object: &mut Value) {}

    /// Why an object of this name may never be deleted.
    fn forbids_deletion(&self, _name: &str) -> Option<&'static str> {
        None
    }

    /// Whether objects of other kinds are in it, and go with it.
    fn is_place(&self) -> bool {
        false
    }

    /// Whether something besides `metadata.finalizers` keeps a deleted object.
    fn keeps_deleted(&self, _object: &Value) -> bool {
        false
    }

    /// Copies from `sent` to `current` what an update of this subresource may change.
    fn update_subresource(&self, subresource: &str, current: &mut Value, sent: &Value) {
        if let (Some(current), Some(sent)) = (current.as_object_mut(), sent.as_object()) {
            match sent.get(subresource) {
                Some(part) => current.insert(subresource.to_owned(), part.clone()),
                None => current.remove(subresource),
            };
        }
    }

    /// Carries a POST to a subresource out on the object. `None`: this kind has no such action.
    fn act(&self, _subresource: &str, _object: &mut Value, _body: &Value) -> Option<ApiResult<()>> {
        None
    }
}

/// The rest of the store, as a strategy may see it.
pub(crate) trait World {
    fn get(&self, plural: &str, namespace: Option<&str>, name: &str) -> Option<Value>;
    fn now(&self) -> Timestamp;
}

/// Another object of the same namespace that a new one needs.
#[derive(Debug)]
pub(crate) struct Needed {
    pub(crate) plural: &'static str,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// An event the server itself has to tell.
#[derive(Debug)]
pub(crate) struct Remark {
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// A strategy that adds nothing to its rules.
#[derive(Debug)]
pub(crate) struct Plain(pub(crate) &'static dyn Rules);

impl Strategy for Plain {
    fn rules(&self) -> &'static dyn Rules {
        self.0
    }
}

impl Kind {
    /// `apiVersion` of its objects.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `plural.group`, as messages name it.
    pub(crate) fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    pub(crate) fn kind_with_group(&self) -> String {
        if self.group.is_empty() {
            self.kind.to_owned()
        } else {
            format!("{}.{}", self.kind, self.group)
        }
    }

    /// The key prefix of all its objects, or of those in one namespace.
    pub(crate) fn prefix(&self, namespace: Option<&str>) -> String {
        let group = if self.group.is_empty() {
            "core"
        } else {
            self.group
        };
        match namespace {
            Some(ns) => format!("/{group}/{}/{ns}/", self.plural),
            None => format!("/{group}/{}/", self.plural),
        }
    }

    pub(crate) fn key(&self, namespace: Option<&str>, name: &str) -> String {
        format!(
            "{}{name}",
            self.prefix(if self.namespaced { namespace } else { None })
        )
    }

    /// Whether there is a collection of it that one request may delete.
    pub(crate) fn deleted_as_collection(&self) -> bool {
        !self.strategy.is_place()
    }

    pub(crate) fn has_status(&self) -> bool {
        self.subresources.contains(&"status")
    }
}

/// All kinds, in the order discovery shows them.
static KINDS: &[&Kind] = &[
    &plain::NAMESPACES,
    &nodes::NODES,
    &pods::PODS,
    &plain::EVENTS,
    &plain::CONFIG_MAPS,
    &plain::SECRETS,
    &daemonsets::DAEMON_SETS,
    &plain::LEASES,
    &roles::ROLES,
    &roles::ROLE_BINDINGS,
    &roles::CLUSTER_ROLES,
    &roles::CLUSTER_ROLE_BINDINGS,
    &podnotifications::POD_NOTIFICATIONS,
    &notifications::NOTIFICATIONS,
    &hooks::EXECUTION_HOOKS,
    &hooks::HOOK_ACTIONS,
    &hooks::POD_ACTIONS,
];

/// The kinds this server serves, given its gates.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    served: Vec<&'static Kind>,
}

impl Registry {
    pub(crate) fn new(gates: &FeatureGates) -> Self {
        let on = |kind: &&&'static Kind| kind.gate.is_none_or(|gate| gates.enabled(gate));
        Self {
            served: KINDS.iter().filter(on).copied().collect(),
        }
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&'static Kind> {
        self.kinds()
            .find(|k| k.group == group && k.version == version && k.plural == plural)
    }

    pub(crate) fn by_plural(&self, plural: &str) -> Option<&'static Kind> {
        self.kinds().find(|k| k.plural == plural)
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'static Kind> + '_ {
        self.served.iter().copied()
    }

    /// The kinds that a gate hides; their objects stay in the store.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = &'static Kind> + '_ {
        let served = |kind: &&Kind| self.served.iter().any(|one| std::ptr::eq(*one, *kind));
        KINDS.iter().copied().filter(move |kind| !served(kind))
    }

    /// The kind of a stored object, served or not: what a gate hides stays in the store.
    pub(crate) fn of_key(&self, key: &str) -> Option<&'static Kind> {
        let mut parts = key.split('/').skip(1);
        let (group, plural) = (parts.next()?, parts.next()?);
        let group = if group == "core" { "" } else { group };
        KINDS
            .iter()
            .copied()
            .find(|k| k.group == group && k.plural == plural)
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn or_none(text: &str) -> Value {
    if text.is_empty() {
        "<none>".into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_schema_unique_names_and_as_many_cells_as_columns() {
        let mut seen = std::collections::BTreeSet::new();
        for kind in KINDS {
            assert!(belay_api::schema::of(kind.kind).is_some(), "{}", kind.kind);
            for name in [kind.plural, kind.singular]
                .iter()
                .chain(kind.short_names.iter())
            {
                assert!(
                    seen.insert((kind.group, *name)) || kind.plural == *name,
                    "{name}"
                );
            }
            let cells = (kind.cells)(&serde_json::json!({}), Timestamp::UNIX_EPOCH);
            assert_eq!(cells.len(), kind.columns.len(), "{}", kind.kind);
        }
    }

    #[test]
    fn a_key_leads_back_to_its_kind_even_when_the_gate_hides_it() {
        let off: FeatureGates = "ContainerNotifier=false".parse().unwrap();
        let registry = Registry::new(&off);
        assert!(registry.by_plural("podnotifications").is_none());
        let hidden: Vec<&str> = registry.hidden().map(|kind| kind.plural).collect();
        assert_eq!(hidden, ["podnotifications", "notifications"]);
        let key = podnotifications::POD_NOTIFICATIONS.key(Some("a"), "b");
        assert_eq!(
            registry.of_key(&key).map(|k| k.kind),
            Some("PodNotification")
        );
        assert_eq!(
            registry.of_key("/core/pods/default/x").map(|k| k.kind),
            Some("Pod")
        );
    }
}
