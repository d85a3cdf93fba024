//! The cluster roles that people expect to be there, and the one binding.
//!
//! They are made when the server starts, and what was taken out of them comes back then, as on a
//! stock server: the annotation `rbac.authorization.kubernetes.io/autoupdate: "false"` leaves one
//! alone. What was added to them stays.

use belay_api::rbac::{GROUP, HOOK_ACTIONS, NOTIFIERS, NOTIFY, PolicyRule, RUN, missing};
use serde_json::{Map, Value, json};

use crate::identity::MASTERS;

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";

const CORE: &[&str] = &[""];
const APPS: &[&str] = &["apps"];
const OWN: &[&str] = &[belay_api::GROUP];
/// The product's kinds.
const OWN_KINDS: &[&str] = &[
    "podnotifications",
    "notifications",
    "quiesces",
    "executionhooks",
    "hookactions",
];

/// Those that the controllers make for themselves, and others only see.
const INTERNAL_KINDS: &[&str] = &["podactions"];

/// A built-in object: the path of its collection, and itself.
#[derive(Debug)]
pub(crate) struct BuiltIn {
    pub(crate) collection: &'static str,
    pub(crate) name: &'static str,
    pub(crate) object: Value,
}

pub(crate) fn all() -> Vec<BuiltIn> {
    let everything = vec![
        PolicyRule::on(&["*"], &["*"], &["*"]),
        PolicyRule::on_paths(&["*"], &["*"]),
    ];
    vec![
        role("cluster-admin", &everything, &[]),
        role("admin", &admin(), &["admin", "edit", "view"]),
        role("edit", &edit(), &["edit", "view"]),
        role("view", &view(), &["view"]),
        BuiltIn {
            collection: "clusterrolebindings",
            name: "cluster-admin",
            object: json!({
                "metadata": metadata("cluster-admin"),
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": MASTERS}],
            }),
        },
    ]
}

/// Reads what is in a namespace, without secrets: they would make it more than reading.
fn view() -> Vec<PolicyRule> {
    let core = [
        "configmaps",
        "events",
        "namespaces",
        "pods",
        "pods/log",
        "pods/status",
        "serviceaccounts",
    ];
    let own: Vec<String> = OWN_KINDS
        .iter()
        .chain(INTERNAL_KINDS)
        .flat_map(|kind| [(*kind).to_owned(), format!("{kind}/status")])
        .collect();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    vec![
        PolicyRule::on(CORE, &core, READ),
        PolicyRule::on(APPS, &["daemonsets", "daemonsets/status"], READ),
        PolicyRule::on(OWN, &own, READ),
    ]
}

/// Runs workloads, and writes notifications; which notifiers they may trigger is said apart.
fn edit() -> Vec<PolicyRule> {
    let core = ["configmaps", "events", "pods", "secrets", "serviceaccounts"];
    let mut rules = view();
    rules.extend([
        PolicyRule::on(CORE, &core, WRITE),
        PolicyRule::on(CORE, &["secrets"], READ),
        PolicyRule::on(CORE, &["pods/exec"], &["create", "get"]),
        PolicyRule::on(APPS, &["daemonsets"], WRITE),
        PolicyRule::on(&["coordination.k8s.io"], &["leases"], READ),
        PolicyRule::on(&["coordination.k8s.io"], &["leases"], WRITE),
        PolicyRule::on(OWN, OWN_KINDS, WRITE),
    ]);
    rules
}

/// Besides running workloads, shares the rights in a namespace with others: also the right to
/// trigger what is declared there, which it could not hand on without having it.
fn admin() -> Vec<PolicyRule> {
    let kinds = ["roles", "rolebindings"];
    let mut rules = edit();
    rules.extend([
        PolicyRule::on(OWN, &[NOTIFIERS], &[NOTIFY]),
        PolicyRule::on(OWN, &[HOOK_ACTIONS], &[RUN]),
        PolicyRule::on(&[GROUP], &kinds, READ),
        PolicyRule::on(&[GROUP], &kinds, WRITE),
        PolicyRule::on(
            &["authorization.k8s.io"],
            &["localsubjectaccessreviews"],
            &["create"],
        ),
    ]);
    rules
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {AUTOUPDATE: "true"},
    })
}

fn role(name: &'static str, rules: &[PolicyRule], gathers: &[&str]) -> BuiltIn {
    let mut object = json!({"metadata": metadata(name), "rules": rules});
    if !gathers.is_empty() {
        let selectors: Vec<Value> = gathers
            .iter()
            .map(|to| json!({"matchLabels": {format!("{AGGREGATE_TO}{to}"): "true"}}))
            .collect();
        object["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
    }
    BuiltIn {
        collection: "clusterroles",
        name,
        object,
    }
}

/// `stored` with everything of `wanted` that it lacks; `None` when it lacks nothing.
pub(crate) fn completed(stored: &Value, wanted: &Value) -> Option<Value> {
    let pointer = format!("/metadata/annotations/{}", AUTOUPDATE.replace('/', "~1"));
    if stored.pointer(&pointer).and_then(Value::as_str) == Some("false") {
        return None;
    }
    let mut next = stored.clone();
    let fields = next.as_object_mut()?;
    let rules = |object: &Value| -> Vec<PolicyRule> {
        let rules = object.get("rules").cloned().unwrap_or_default();
        serde_json::from_value(rules).unwrap_or_default()
    };
    let held = rules(stored);
    for rule in rules(wanted) {
        if !missing(&held, std::slice::from_ref(&rule), 1).is_empty() {
            push(fields, "rules", json!(rule));
        }
    }
    for subject in wanted["subjects"].as_array().into_iter().flatten() {
        let same = |own: &Value| own["kind"] == subject["kind"] && own["name"] == subject["name"];
        let there = stored["subjects"].as_array();
        if !there.is_some_and(|list| list.iter().any(same)) {
            push(fields, "subjects", subject.clone());
        }
    }
    let selectors = "/aggregationRule/clusterRoleSelectors";
    for selector in wanted
        .pointer(selectors)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let there = stored.pointer(selectors).and_then(Value::as_array);
        if !there.is_some_and(|list| list.contains(selector)) {
            let rule = fields.entry("aggregationRule").or_insert(Value::Null);
            if rule.is_null() {
                *rule = json!({});
            }
            if let Some(rule) = rule.as_object_mut() {
                push(rule, "clusterRoleSelectors", selector.clone());
            }
        }
    }
    (next != *stored).then_some(next)
}

fn push(object: &mut Map<String, Value>, field: &str, value: Value) {
    let list = object.entry(field).or_insert(Value::Null);
    if !list.is_array() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        list.push(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_api::rbac::Access;

    fn allows(rules: &[PolicyRule], verb: &str, group: &str, resource: &str) -> bool {
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, sub)) => (resource, Some(sub)),
            None => (resource, None),
        };
        let access = Access::Resource {
            verb,
            group,
            resource,
            subresource,
            name: Some("x"),
        };
        rules.iter().any(|rule| rule.allows(&access))
    }

    #[test]
    fn each_role_may_what_it_says_and_no_more() {
        let own = belay_api::GROUP;
        for (verb, group, resource, by_view, by_edit, by_admin) in [
            ("get", "", "pods", true, true, true),
            ("get", "", "pods/log", true, true, true),
            ("list", own, "podnotifications", true, true, true),
            ("get", "", "secrets", false, true, true),
            ("create", "", "pods", false, true, true),
            ("get", "apps", "daemonsets", true, true, true),
            ("create", "apps", "daemonsets", false, true, true),
            ("patch", "apps", "daemonsets/status", false, false, false),
            ("create", "", "pods/exec", false, true, true),
            ("notify", own, "notifiers", false, false, true),
            ("create", own, "podnotifications", false, true, true),
            ("run", own, "hookactions", false, false, true),
            ("create", own, "executionhooks", false, true, true),
            ("update", own, "hookactions", false, true, true),
            ("watch", own, "podactions", true, true, true),
            ("create", own, "podactions", false, false, false),
            ("patch", own, "executionhooks/status", false, false, false),
            ("create", GROUP, "rolebindings", false, false, true),
            ("escalate", GROUP, "roles", false, false, false),
            ("bind", GROUP, "clusterroles", false, false, false),
            ("impersonate", "", "users", false, false, false),
            (
                "update",
                own,
                "podnotifications/status",
                false,
                false,
                false,
            ),
            ("patch", "", "pods/status", false, false, false),
            ("create", "", "pods/binding", false, false, false),
            ("create", "", "nodes", false, false, false),
            ("create", "", "namespaces", false, false, false),
            ("get", GROUP, "clusterroles", false, false, false),
        ] {
            let may = |rules: &[PolicyRule]| allows(rules, verb, group, resource);
            assert_eq!(
                (may(&view()), may(&edit()), may(&admin())),
                (by_view, by_edit, by_admin),
                "{verb} {group} {resource}"
            );
        }
    }

    #[test]
    fn what_was_taken_out_comes_back_and_what_was_added_stays() {
        let view = all().into_iter().find(|one| one.name == "view").unwrap();
        let wanted = view.object;
        assert_eq!(completed(&wanted, &wanted), None);
        let mut stored = wanted.clone();
        let extra = json!({"apiGroups": ["x"], "resources": ["y"], "verbs": ["z"]});
        stored["rules"] = json!([extra]);
        stored["aggregationRule"] = Value::Null;
        let next = completed(&stored, &wanted).unwrap();
        let rules = next["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 1 + wanted["rules"].as_array().unwrap().len());
        assert_eq!(rules[0], extra);
        assert_eq!(completed(&next, &wanted), None, "once is enough");
        stored["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        assert_eq!(completed(&stored, &wanted), None);
    }

    #[test]
    fn the_binding_of_the_administrators_keeps_its_group() {
        let binding = all()
            .into_iter()
            .find(|one| one.collection == "clusterrolebindings");
        let wanted = binding.unwrap().object;
        let mut stored = wanted.clone();
        stored["subjects"] = json!([{"kind": "User", "name": "ann"}]);
        let next = completed(&stored, &wanted).unwrap();
        assert_eq!(next["subjects"].as_array().unwrap().len(), 2);
    }
}
