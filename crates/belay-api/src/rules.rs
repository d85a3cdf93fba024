//! What the server does to an object of a kind before it is stored.
//!
//! ```text
//! create:  drop_disabled -> warnings_before_default -> default -> prepare_create
//!          -> (name) -> metadata::validate_create + validate_create
//! update:  drop_disabled(old) -> warnings_before_default(old) -> default
//!          -> metadata::validate_update + validate_update
//! status:  metadata::validate_update + validate_status
//! ```
//!
//! **Invariants:** rules are pure and total: they look at nothing but their arguments and never
//! panic, whatever JSON they are given. They say nothing about metadata that holds for every
//! kind; that is [`crate::metadata`]'s.

mod config_map;
mod daemon_set;
mod event;
mod fanout;
mod hook;
mod lease;
mod namespace;
mod node;
mod notification;
mod pod;
mod rbac;
mod secret;
mod selector;

use serde_json::Value;

pub(crate) use pod::annotation_errors;

use crate::field::Errors;
use crate::gates::FeatureGates;

/// What is to be said about an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Review {
    /// Reasons to refuse it.
    pub errors: Errors,
    /// Things its author should know; it is stored all the same.
    pub warnings: Vec<String>,
}

impl From<Errors> for Review {
    fn from(errors: Errors) -> Self {
        Self {
            errors,
            warnings: Vec::new(),
        }
    }
}

/// The rules of one kind. See the module for the order in which they apply.
pub trait Rules: Send + Sync + std::fmt::Debug {
    /// Warnings that depend on what the client left out, and so must be taken from the object as
    /// it was sent, before [`Rules::default`]. In an update they are about what changes.
    fn warnings_before_default(&self, _sent: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Fills in what was left out. Idempotent: stored objects pass through it unchanged.
    fn default(&self, _object: &mut Value) {}

    /// Resets what a client may not choose in a new object.
    fn prepare_create(&self, _object: &mut Value) {}

    /// Removes the use of features that are off, unless the object used them before.
    fn drop_disabled(&self, _new: &mut Value, _old: Option<&Value>, _gates: &FeatureGates) {}

    fn validate_create(&self, object: &Value, gates: &FeatureGates) -> Review;

    fn validate_update(&self, new: &Value, old: &Value, gates: &FeatureGates) -> Review;

    /// Checks a write to the status subresource, which changes status alone.
    fn validate_status(&self, _new: &Value, _old: &Value) -> Review {
        Review::default()
    }
}

pub const POD: &dyn Rules = &pod::PodRules;
pub const POD_NOTIFICATION: &dyn Rules = &notification::PodNotificationRules;
pub const NOTIFICATION: &dyn Rules = &fanout::NotificationRules;
pub const EXECUTION_HOOK: &dyn Rules = &hook::ExecutionHookRules;
pub const HOOK_ACTION: &dyn Rules = &hook::HookActionRules;
pub const POD_ACTION: &dyn Rules = &hook::PodActionRules;
pub const NAMESPACE: &dyn Rules = &namespace::NamespaceRules;
pub const NODE: &dyn Rules = &node::NodeRules;
pub const EVENT: &dyn Rules = &event::EventRules;
pub const CONFIG_MAP: &dyn Rules = &config_map::ConfigMapRules;
pub const SECRET: &dyn Rules = &secret::SecretRules;
pub const DAEMON_SET: &dyn Rules = &daemon_set::DaemonSetRules;
pub const LEASE: &dyn Rules = &lease::LeaseRules;
pub const ROLE: &dyn Rules = &rbac::RoleRules { namespaced: true };
pub const CLUSTER_ROLE: &dyn Rules = &rbac::RoleRules { namespaced: false };
pub const ROLE_BINDING: &dyn Rules = &rbac::BindingRules { namespaced: true };
pub const CLUSTER_ROLE_BINDING: &dyn Rules = &rbac::BindingRules { namespaced: false };

/// The object at a key, made if it is absent; `None` where something else is.
pub(crate) fn object_at<'a>(
    parent: &'a mut Value,
    key: &str,
) -> Option<&'a mut serde_json::Map<String, Value>> {
    let parent = parent.as_object_mut()?;
    let child = parent.entry(key).or_insert(Value::Null);
    if child.is_null() {
        *child = Value::Object(serde_json::Map::new());
    }
    child.as_object_mut()
}

/// Whether a field is unset as Go sees it: absent, null, `""` or 0.
pub(crate) fn is_unset(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(_) => false,
    }
}

/// Sets a field that is unset.
pub(crate) fn set_default(
    object: &mut serde_json::Map<String, Value>,
    field: &str,
    value: impl Into<Value>,
) {
    if is_unset(object.get(field)) {
        object.insert(field.to_owned(), value.into());
    }
}
