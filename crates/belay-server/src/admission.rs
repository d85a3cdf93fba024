//! Rights that an object needs beside the right to write it.
//!
//! | object | what it takes |
//! |---|---|
//! | a notification, a quiesce | `notify` on every notifier it names |
//! | a hook | `run` on the action it names |
//! | an action of hooks | `create` on `pods/exec`, when what it does changes |
//! | a podaction | to be the controller of hooks |
//! | a podnotification that is part of a Notification | to be its controller, which counts it |
//! | a role | its rules, or `escalate` on it |
//! | a binding | the rules of its role, or `bind` on it |
//! | the status of any of Belay's kinds | to be who acts on it: its controller, or an agent |
//!
//! Every way to create or change an object ends here, dry runs too: what is checked is the object
//! as it would be stored, never how it was sent.

mod hooks;

use std::collections::BTreeSet;

use belay_api::fanout::{FINALIZER, OWNER_LABEL};
use belay_api::rbac::{self, NOTIFIERS, NOTIFY, PolicyRule, missing};
use serde_json::Value;

use crate::api::{Api, Call};
use crate::authority::Right;
use crate::identity::{Identity, Role};
use crate::object::{meta_mut, name};
use crate::registry::Kind;
use crate::status::{ApiError, ApiResult};

/// Kinds whose objects trigger notifiers, and where they name them: one, or a list.
const TRIGGERS: [(&str, &str); 3] = [
    ("podnotifications", "/spec/notifier"),
    ("notifications", "/spec/notifier"),
    ("quiesces", "/spec/steps"),
];

/// How many missing rights a refusal lists.
const LISTED: usize = 20;

impl Api {
    /// Whether the caller may turn `old` (nothing, when it creates) into `new`.
    pub(crate) fn admit(&self, call: &Call<'_>, old: Option<&Value>, new: &Value) -> ApiResult<()> {
        let kind = call.resource.kind;
        match (kind.group, kind.plural) {
            (belay_api::GROUP, _) => {
                admit_membership(call, old, new)?;
                self.admit_hook(call, old, new)?;
                self.admit_trigger(call, old, new)
            }
            (rbac::GROUP, "roles" | "clusterroles") => self.admit_role(call, old, new),
            (rbac::GROUP, "rolebindings" | "clusterrolebindings") => {
                self.admit_binding(call, old, new)
            }
            _ => Ok(()),
        }
    }

    /// A notification triggers what it names, so its creator must be allowed to.
    fn admit_trigger(&self, call: &Call<'_>, old: Option<&Value>, new: &Value) -> ApiResult<()> {
        let kind = call.resource.kind;
        let Some((_, pointer)) = TRIGGERS.iter().find(|(plural, _)| *plural == kind.plural) else {
            return Ok(());
        };
        // The controllers act for somebody who was asked when the request was theirs.
        if matches!(call.who.role(), Role::Controller) {
            return Ok(());
        }
        let before = old.map(|old| named(old, pointer)).unwrap_or_default();
        for notifier in named(new, pointer) {
            if before.contains(&notifier) {
                continue;
            }
            let right = Right {
                verb: NOTIFY,
                group: belay_api::GROUP,
                resource: NOTIFIERS,
                subresource: None,
                namespace: call.resource.namespace.as_deref(),
                name: Some(&notifier),
            };
            if !self.may(call.who, &right) {
                let (user, group) = (&call.who.name, belay_api::GROUP);
                let namespace = right.namespace.unwrap_or_default();
                let why = format!(
                    "User {user:?} may not trigger the notifier {notifier:?}: needs verb \
                     {NOTIFY:?} on resource {NOTIFIERS:?} in API group {group:?}, resource name \
                     {notifier:?}, in the namespace {namespace:?}"
                );
                return Err(refused(kind, new, &why));
            }
        }
        Ok(())
    }

    /// Nobody gives away what they do not have.
    fn admit_role(&self, call: &Call<'_>, old: Option<&Value>, new: &Value) -> ApiResult<()> {
        let kind = call.resource.kind;
        let right = Right {
            verb: "escalate",
            group: kind.group,
            resource: kind.plural,
            subresource: None,
            namespace: call.resource.namespace.as_deref(),
            name: call.resource.name.as_deref(),
        };
        if old.is_some_and(|old| only_for_collection(old, new)) || self.may(call.who, &right) {
            return Ok(());
        }
        let gathers = |role: &Value| {
            let selectors = role.pointer("/aggregationRule/clusterRoleSelectors");
            selectors
                .and_then(Value::as_array)
                .is_some_and(|list| !list.is_empty())
        };
        // What cannot be read cannot be compared.
        let rules = rules(new).ok_or_else(|| refused(kind, new, "its rules are not readable"))?;
        self.holds(call, new, &rules)?;
        if gathers(new) || old.is_some_and(gathers) {
            // It can gather anything.
            let everything = [
                PolicyRule::on(&["*"], &["*"], &["*"]),
                PolicyRule::on_paths(&["*"], &["*"]),
            ];
            let why = "must have cluster-admin privileges to use the aggregationRule";
            self.holds(call, new, &everything)
                .map_err(|_| refused(kind, new, why))?;
        }
        Ok(())
    }

    fn admit_binding(&self, call: &Call<'_>, old: Option<&Value>, new: &Value) -> ApiResult<()> {
        if old.is_some_and(|old| only_for_collection(old, new)) {
            return Ok(());
        }
        let text = |pointer: &str| {
            let text = new.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_default()
        };
        let (ref_kind, ref_name) = (text("/roleRef/kind"), text("/roleRef/name"));
        let plural = match ref_kind {
            "ClusterRole" => "clusterroles",
            _ => "roles",
        };
        let namespace = call.resource.namespace.as_deref();
        let right = Right {
            verb: "bind",
            group: rbac::GROUP,
            resource: plural,
            subresource: None,
            namespace,
            name: Some(ref_name),
        };
        if self.may(call.who, &right) {
            return Ok(());
        }
        let Some(rules) = self
            .rbac
            .rules_of(&self.store, ref_kind, ref_name, namespace)
        else {
            let kind = self.registry.by_plural(plural);
            let kind = kind.ok_or_else(ApiError::no_such_path)?;
            return Err(ApiError::not_found(kind, ref_name));
        };
        self.holds(call, new, &rules)
    }

    /// Whether the caller has every right of `wanted` where the object is.
    fn holds(&self, call: &Call<'_>, object: &Value, wanted: &[PolicyRule]) -> ApiResult<()> {
        if call.who.role() == Role::Admin {
            return Ok(());
        }
        let namespace = call.resource.namespace.as_deref();
        let held = self.rbac.rules_for(&self.store, call.who, namespace);
        let lacking = missing(&held, wanted, LISTED);
        if lacking.is_empty() {
            return Ok(());
        }
        let why = format!(
            "{} is attempting to grant RBAC permissions not currently held:\n{}",
            described(call.who),
            lacking.join("\n")
        );
        Err(refused(call.resource.kind, object, &why))
    }
}

/// That a podnotification is part of a Notification is for the controllers to say: they count it, and
/// it goes with its owner. The administrator may do what the controllers do; whoever runs them as a
/// process of its own has that identity.
fn admit_membership(call: &Call<'_>, old: Option<&Value>, new: &Value) -> ApiResult<()> {
    let kind = call.resource.kind;
    if kind.plural != "podnotifications"
        || matches!(call.who.role(), Role::Controller | Role::Admin)
    {
        return Ok(());
    }
    if joins(OWNER_LABEL, "Notification", old, new) || leaves(OWNER_LABEL, FINALIZER, old, new) {
        let why = format!(
            "only the controller of Belay may make a podnotification part of a Notification, or \
             take one out of it that has not been counted (the label {OWNER_LABEL}, an owner of \
             the kind Notification)"
        );
        return Err(refused(kind, new, &why));
    }
    if old.is_none() && is_named_like_a_child(name(new)) {
        let why = "names that end in a hyphen and sixteen hexadecimal digits are for \
                   podnotifications that are part of a Notification; choose another name";
        return Err(refused(kind, new, why));
    }
    Ok(())
}

/// What the names end in by which the controller finds again what it has made.
fn is_named_like_a_child(name: &str) -> bool {
    let hash = name.rsplit_once('-').map(|(_, hash)| hash);
    hash.is_some_and(|hash| {
        hash.len() == 16 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// What came of a notification or a hook is said by who saw it, whatever the roles grant: agents and
/// controllers take a status for their own record, and act on it.
pub(crate) fn admit_result(call: &Call<'_>, new: &Value) -> ApiResult<()> {
    let kind = call.resource.kind;
    let acts = matches!(
        call.who.role(),
        Role::Controller | Role::Node(_) | Role::Admin
    );
    if kind.group != belay_api::GROUP || acts {
        return Ok(());
    }
    let why = format!(
        "only Belay's controller and agents may write the status of {}",
        kind.plural
    );
    Err(refused(kind, new, &why))
}

/// Whether `new` belongs to an owner of this kind that `old` does not belong to. The label holds the
/// owner's UID.
fn joins(owner_label: &str, owner: &str, old: Option<&Value>, new: &Value) -> bool {
    let label = |object| label(object, owner_label);
    let (now, before) = (label(new), old.map(label).unwrap_or_default());
    let owned = old.map(|old| owners(old, owner)).unwrap_or_default();
    (!now.is_empty() && now != before) || !owners(new, owner).is_subset(&owned)
}

/// The UIDs of an object's owners of a kind.
fn owners<'a>(object: &'a Value, kind: &str) -> BTreeSet<&'a str> {
    let owners = object.pointer("/metadata/ownerReferences");
    let owners = owners.and_then(Value::as_array).into_iter().flatten();
    owners
        .filter(|one| one["kind"] == kind)
        .map(|one| one["uid"].as_str().unwrap_or_default())
        .collect()
}

/// Whether `new` has lost the label of an owner that has still to count it. Who owns it is no matter:
/// an owner that leaves its children behind takes itself out of them.
fn leaves(owner_label: &str, finalizer: &str, old: Option<&Value>, new: &Value) -> bool {
    let held = |old: &&Value| {
        let finalizers = old.pointer("/metadata/finalizers");
        let mut finalizers = finalizers.and_then(Value::as_array).into_iter().flatten();
        finalizers.any(|one| one == finalizer)
    };
    let held = old.filter(held);
    held.is_some_and(|old| label(old, owner_label) != label(new, owner_label))
}

fn label(object: &Value, name: &str) -> String {
    let labels = object.pointer("/metadata/labels");
    let label = labels.and_then(|labels| labels.get(name)?.as_str());
    label.unwrap_or_default().to_owned()
}

fn refused(kind: &Kind, object: &Value, why: &str) -> ApiError {
    ApiError::forbidden(format!(
        "{} {:?} is forbidden: {why}",
        kind.qualified(),
        name(object)
    ))
}

fn described(who: &Identity) -> String {
    let groups: Vec<String> = who.all_groups().map(|group| format!("{group:?}")).collect();
    format!("user {:?} (groups=[{}])", who.name, groups.join(" "))
}

/// The notifiers at a place. What is no name is no notifier either, and refused by the rules of the
/// kind.
fn named(object: &Value, pointer: &str) -> Vec<String> {
    match object.pointer(pointer) {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(list)) => list
            .iter()
            .filter_map(|item| item.as_str().or_else(|| item.get("notifier")?.as_str()))
            .map(str::to_owned)
            .collect(),
        _ => Vec::new(),
    }
}

fn rules(role: &Value) -> Option<Vec<PolicyRule>> {
    let rules = role.get("rules").cloned().unwrap_or_default();
    let rules: Option<Vec<PolicyRule>> = serde_json::from_value(rules).ok()?;
    Some(rules.unwrap_or_default())
}

/// Whether two versions of an object differ only in what decides when it is collected.
fn only_for_collection(old: &Value, new: &Value) -> bool {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        let meta = meta_mut(&mut object);
        for field in ["finalizers", "ownerReferences", "managedFields"] {
            meta.remove(field);
        }
        object
    };
    stripped(old) == stripped(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_notifiers_of_an_object_are_found_wherever_its_kind_names_them() {
        let one = json!({"spec": {"notifier": "reload", "steps": ["a", {"notifier": "b"}, 5]}});
        assert_eq!(named(&one, "/spec/notifier"), ["reload"]);
        assert_eq!(named(&one, "/spec/steps"), ["a", "b"]);
        assert!(named(&json!({}), "/spec/notifier").is_empty());
    }

    #[test]
    fn a_podnotification_joins_by_its_label_or_by_an_owner() {
        let plain = json!({"metadata": {"name": "a", "labels": {"x": "y"},
            "ownerReferences": [{"kind": "ConfigMap", "uid": "u0"}]}});
        let labelled = json!({"metadata": {"labels": {OWNER_LABEL: "u1"}}});
        let owned = json!({"metadata": {"ownerReferences": [
            {"kind": "ConfigMap", "uid": "u0"}, {"kind": "Notification", "uid": "u1"}]}});
        let other = json!({"metadata": {"labels": {OWNER_LABEL: "u2"}}});
        for (old, new, expected) in [
            (None, &plain, false),
            (None, &labelled, true),
            (None, &owned, true),
            (Some(&plain), &labelled, true),
            (Some(&plain), &owned, true),
            (Some(&labelled), &labelled, false),
            (Some(&labelled), &other, true),
            (Some(&labelled), &owned, true),
            (Some(&owned), &owned, false),
            // To leave is allowed: nobody counts it any more.
            (Some(&owned), &plain, false),
            (Some(&labelled), &plain, false),
        ] {
            let joined = joins(OWNER_LABEL, "Notification", old, new);
            assert_eq!(joined, expected, "{old:?} {new}");
        }
    }

    #[test]
    fn owners_are_compared_in_time_that_grows_with_their_number() {
        let owners: Value = (0..50_000)
            .map(|i| json!({"kind": "Notification", "uid": format!("u{i}")}))
            .collect();
        let object = json!({"metadata": {"ownerReferences": owners}});
        assert!(!joins(OWNER_LABEL, "Notification", Some(&object), &object));
    }

    #[test]
    fn what_has_still_to_be_counted_keeps_its_label_and_may_lose_its_owner() {
        let held = json!({"metadata": {"labels": {OWNER_LABEL: "u1"}, "finalizers": [FINALIZER],
            "ownerReferences": [{"kind": "Notification", "uid": "u1"}]}});
        let mut orphaned = held.clone();
        orphaned["metadata"]["ownerReferences"] = json!([]);
        let mut bare = orphaned.clone();
        bare["metadata"]["labels"] = json!({});
        let mut counted = bare.clone();
        counted["metadata"]["finalizers"] = json!([]);
        for (old, new, expected) in [
            (None, &held, false),
            (Some(&held), &held, false),
            (Some(&held), &orphaned, false),
            (Some(&held), &bare, true),
            (Some(&held), &counted, true),
            (Some(&counted), &counted, false),
        ] {
            let left = leaves(OWNER_LABEL, FINALIZER, old, new);
            assert_eq!(left, expected, "{old:?} {new}");
        }
    }

    #[test]
    fn the_names_of_children_are_told_from_others() {
        assert!(is_named_like_a_child("reload-bfe45e90262b0732"));
        for name in [
            "reload",
            "reload-x7k2p",
            "bfe45e90262b0732",
            "reload-bfe45e90262b073",
            "reload-bfe45e90262b07321",
            "reload-bfe45e90262b073g",
            "reload.bfe45e90262b0732",
            "",
        ] {
            assert!(!is_named_like_a_child(name), "{name}");
        }
    }

    #[test]
    fn a_label_is_a_change_that_counts_and_a_finalizer_is_not() {
        let old = json!({"metadata": {"name": "a"}, "rules": []});
        let mut new = old.clone();
        new["metadata"]["finalizers"] = json!(["a/b"]);
        assert!(only_for_collection(&old, &new));
        new["metadata"]["labels"] = json!({"a": "b"});
        assert!(!only_for_collection(&old, &new));
    }
}
