//! What the index keeps of a stored role or binding.

use belay_api::rbac::{GROUP, PolicyRule};
use belay_api::selector::LabelSelector;
use belay_store::Entry;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as ObjectSelector;
use serde::Deserialize;

use crate::object::Meta;

/// A role: of a namespace, or of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RoleName {
    namespace: Option<Box<str>>,
    name: Box<str>,
}

impl RoleName {
    /// The role at a key of the store, if that is what is there.
    pub(super) fn of_key(key: &str) -> Option<Self> {
        match segments(key)? {
            ("roles", Some(namespace), name) => Some(Self {
                namespace: Some(namespace.into()),
                name: name.into(),
            }),
            ("clusterroles", None, name) => Some(Self {
                namespace: None,
                name: name.into(),
            }),
            _ => None,
        }
    }

    /// The role that a binding in `namespace` means.
    pub(super) fn of_reference(kind: &str, name: &str, namespace: Option<&str>) -> Option<Self> {
        let namespace = match (kind, namespace) {
            ("ClusterRole", _) => None,
            ("Role", Some(namespace)) => Some(namespace.into()),
            _ => return None,
        };
        Some(Self {
            namespace,
            name: name.into(),
        })
    }
}

/// Who a binding is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    User(Box<str>),
    Group(Box<str>),
}

#[derive(Debug)]
pub(super) struct Role {
    pub(super) rules: Vec<PolicyRule>,
    /// Which cluster roles it has the rules of, besides its own.
    pub(super) gathers: Vec<LabelSelector>,
    labels: std::collections::BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoredRole {
    rules: Option<Vec<PolicyRule>>,
    aggregation_rule: Option<StoredAggregation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoredAggregation {
    cluster_role_selectors: Option<Vec<ObjectSelector>>,
}

impl Role {
    pub(super) fn read(entry: &Entry<Meta>) -> Option<(RoleName, Self)> {
        let name = RoleName::of_key(&entry.key)?;
        let stored: StoredRole = readable(entry)?;
        let selectors = stored.aggregation_rule.unwrap_or_default();
        let role = Self {
            rules: stored.rules.unwrap_or_default(),
            gathers: selectors
                .cluster_role_selectors
                .iter()
                .flatten()
                .filter_map(|selector| LabelSelector::try_from(selector).ok())
                .collect(),
            labels: entry.meta.labels.clone(),
        };
        Some((name, role))
    }

    /// Whether this role, which aggregates, takes the rules of another.
    pub(super) fn gathers(&self, name: &RoleName, other: &Self) -> bool {
        name.namespace.is_none() && self.gathers.iter().any(|s| s.matches(&other.labels))
    }
}

#[derive(Debug)]
pub(super) struct Binding {
    /// Where it gives its role's rights; nowhere in particular is everywhere.
    pub(super) namespace: Option<Box<str>>,
    pub(super) role: RoleName,
    pub(super) subjects: Vec<Subject>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoredBinding {
    role_ref: StoredReference,
    subjects: Option<Vec<StoredSubject>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StoredReference {
    kind: String,
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StoredSubject {
    kind: String,
    name: String,
    namespace: Option<String>,
}

impl Binding {
    pub(super) fn read(entry: &Entry<Meta>) -> Option<Self> {
        let namespace = match segments(&entry.key)? {
            ("rolebindings", Some(namespace), _) => Some(namespace),
            ("clusterrolebindings", None, _) => None,
            _ => return None,
        };
        let stored: StoredBinding = readable(entry)?;
        let reference = &stored.role_ref;
        let role = RoleName::of_reference(&reference.kind, &reference.name, namespace)?;
        let subjects = stored.subjects.unwrap_or_default();
        Some(Self {
            role,
            subjects: subjects
                .iter()
                .filter_map(|subject| subject.read(namespace))
                .collect(),
            namespace: namespace.map(Into::into),
        })
    }
}

impl StoredSubject {
    fn read(&self, binding: Option<&str>) -> Option<Subject> {
        let own = self.namespace.as_deref().filter(|ns| !ns.is_empty());
        match (self.kind.as_str(), own.or(binding)) {
            ("User", _) => Some(Subject::User(self.name.as_str().into())),
            ("Group", _) => Some(Subject::Group(self.name.as_str().into())),
            ("ServiceAccount", Some(namespace)) => {
                let name = format!("system:serviceaccount:{namespace}:{}", self.name);
                Some(Subject::User(name.into()))
            }
            _ => None,
        }
    }
}

/// Plural, namespace and name of a key of this group.
fn segments(key: &str) -> Option<(&str, Option<&str>, &str)> {
    let rest = key.strip_prefix('/')?.strip_prefix(GROUP)?;
    let mut parts = rest.strip_prefix('/')?.split('/');
    match (parts.next()?, parts.next()?, parts.next()) {
        (plural, name, None) => Some((plural, None, name)),
        (plural, namespace, Some(name)) => Some((plural, Some(namespace), name)),
    }
}

/// An object that cannot be read gives nobody anything.
fn readable<T: for<'a> Deserialize<'a>>(entry: &Entry<Meta>) -> Option<T> {
    match serde_json::from_slice(&entry.value) {
        Ok(read) => Some(read),
        Err(error) => {
            tracing::error!(key = %entry.key, %error, "a role or binding cannot be read");
            None
        }
    }
}
