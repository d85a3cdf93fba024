//! Who may do what: fixed rules for the identities of this server.
//!
//! Role-based rules ([`crate::rbac`]) are a second source beside [`allows`]: what either gives is
//! given. [`Api::may`] asks both.
//!
//! Two questions are asked. [`allows`] needs only the request. [`allows_object`] needs the object
//! that is touched, because a node may act on its own things only.

use belay_api::pod::{Pod, Reference, ReferenceKind};
use belay_api::rbac::{Access, PolicyRule};
use belay_store::Entry;
use serde_json::Value;

use crate::api::Api;
use crate::identity::{Identity, Role};
use crate::object::{Meta, meta_str, name};
use crate::route::Verb;

/// A request in the words of authorisation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) who: &'a Identity,
    pub(crate) verb: Verb,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    /// The `fieldSelector` of a list or watch, as exact requirements.
    pub(crate) fields: &'a [(String, String)],
}

/// A right as a rule gives it, whether or not a request stands for it: `notify`, `bind`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
}

const NODE_LEASES: &str = "kube-node-lease";

/// Paths that are open to everybody with credentials: what is served, and whether it is well.
pub(crate) const OPEN_PATHS: [&str; 12] = [
    "/",
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
];

impl Ask<'_> {
    /// The refusal, in Kubernetes' words.
    pub(crate) fn refusal(&self) -> String {
        self.right().refusal(self.who)
    }

    /// What a role would have to give for this request.
    fn right(&self) -> Right<'_> {
        // A list of one name is about that name; a namespace is in itself.
        let selected = || {
            let named = |(field, _): &&(String, String)| field == "metadata.name";
            self.fields
                .iter()
                .find(named)
                .map(|(_, name)| name.as_str())
        };
        let reads_many = matches!(self.verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
        let name = self.name.or_else(|| selected().filter(|_| reads_many));
        let namespace = match (self.group, self.resource) {
            ("", "namespaces") => self.name,
            _ => self.namespace,
        };
        Right {
            verb: self.verb.as_str(),
            group: self.group,
            resource: self.resource,
            subresource: self.subresource,
            namespace,
            name,
        }
    }

    fn selects(&self, field: &str, value: &str) -> bool {
        self.fields.iter().any(|(f, v)| f == field && v == value)
    }
}

impl Right<'_> {
    fn access(&self) -> Access<'_> {
        Access::Resource {
            verb: self.verb,
            group: self.group,
            resource: self.resource,
            subresource: self.subresource,
            name: self.name,
        }
    }

    /// The refusal, in Kubernetes' words.
    pub(crate) fn refusal(&self, who: &Identity) -> String {
        let what = match self.subresource {
            Some(sub) => format!("{}/{sub}", self.resource),
            None => self.resource.to_owned(),
        };
        let scope = match self.namespace {
            Some(ns) => format!("in the namespace {ns:?}"),
            None => "at the cluster scope".to_owned(),
        };
        let object = self.name.map(|n| format!(" {n:?}")).unwrap_or_default();
        let (user, verb, group) = (&who.name, self.verb, self.group);
        let dot = if group.is_empty() { "" } else { "." };
        let resource = self.resource;
        format!(
            "{resource}{dot}{group}{object} is forbidden: User {user:?} cannot {verb} resource \
             {what:?} in API group {group:?} {scope}"
        )
    }
}

impl Api {
    /// Whether a request is allowed, by the fixed rules or by a role.
    pub(crate) fn may_ask(&self, ask: &Ask<'_>) -> bool {
        if allows(ask) || self.reads_for_its_pods(ask) {
            return true;
        }
        let right = ask.right();
        self.rbac
            .allows(&self.store, ask.who, right.namespace, &right.access())
    }

    /// Whether somebody has a right, by the fixed rules or by a role.
    pub(crate) fn may(&self, who: &Identity, right: &Right<'_>) -> bool {
        let fixed = match Verb::named(right.verb) {
            Some(verb) => {
                let ask = Ask {
                    who,
                    verb,
                    group: right.group,
                    resource: right.resource,
                    subresource: right.subresource,
                    namespace: right.namespace,
                    name: right.name,
                    fields: &[],
                };
                allows(&ask) || self.reads_for_its_pods(&ask)
            }
            None => who.role() == Role::Admin,
        };
        fixed
            || self
                .rbac
                .allows(&self.store, who, right.namespace, &right.access())
    }

    /// Whether a node reads a ConfigMap or a secret that one of its pods uses: that one by its name,
    /// and no other.
    fn reads_for_its_pods(&self, ask: &Ask<'_>) -> bool {
        let Role::Node(node) = ask.who.role() else {
            return false;
        };
        let reads = matches!(ask.verb, Verb::Get | Verb::List | Verb::Watch);
        let right = ask.right();
        let (Some(kind), Some(namespace), Some(name), None, true) = (
            ReferenceKind::of_resource(ask.resource).filter(|_| ask.group.is_empty()),
            right.namespace,
            right.name,
            ask.subresource,
            reads,
        ) else {
            return false;
        };
        let Some(pods) = self.registry.by_plural("pods") else {
            return false;
        };
        let wanted = Reference {
            kind,
            name: name.to_owned(),
        };
        let node_field = pods.fields.iter().position(|f| f.label == "spec.nodeName");
        let uses = |entry: &Entry<Meta>| {
            let bound = node_field.and_then(|at| entry.meta.fields.get(at));
            bound.is_some_and(|bound| **bound == *node)
                && serde_json::from_slice::<Pod>(&entry.value)
                    .is_ok_and(|pod| pod.references().contains(&wanted))
        };
        let mut found = false;
        let prefix = pods.prefix(Some(namespace));
        self.store.list(&prefix, None, 1, &mut |entry| {
            found = found || uses(entry);
            false
        });
        found
    }

    /// Whether somebody may use a path that is no resource.
    pub(crate) fn may_path(&self, who: &Identity, verb: &str, path: &str) -> bool {
        let access = Access::Path { verb, path };
        match who.role() {
            Role::Admin => true,
            // Scraping metrics is no secret among the server's own.
            Role::Node(_) | Role::Controller | Role::ControlPlane => verb == "get",
            Role::Nobody => {
                let open = PolicyRule::on_paths(&OPEN_PATHS, &["get", "head"]);
                (open.allows(&access) && !who.is_anonymous())
                    || self.rbac.allows(&self.store, who, None, &access)
            }
        }
    }
}

/// Whether the request is allowed as far as the request itself tells.
pub(crate) fn allows(ask: &Ask<'_>) -> bool {
    use Verb::{Create, Delete, Get, List, Patch, Update, Watch};
    match ask.who.role() {
        Role::Admin => true,
        Role::Nobody => false,
        Role::Node(node) => match (ask.resource, ask.subresource, ask.verb) {
            ("nodes", None, Create) => true,
            ("nodes", None | Some("status"), Get | Update | Patch) => ask.name == Some(node),
            ("nodes", None, List | Watch) => ask.selects("metadata.name", node),
            ("leases", None, Create) => ask.namespace == Some(NODE_LEASES),
            ("leases", None, Get | Update | Patch) => {
                ask.namespace == Some(NODE_LEASES) && ask.name == Some(node)
            }
            ("events", None, Create | Patch | Update) => true,
            ("pods", None, List | Watch) => ask.selects("spec.nodeName", node),
            ("podnotifications", None, List | Watch) => ask.selects("status.nodeName", node),
            ("podactions", None, List | Watch) => ask.selects("spec.nodeName", node),
            // Decided by the object: see `allows_object`.
            ("pods", None, Get | Delete) => true,
            ("pods" | "podnotifications" | "podactions", Some("status"), Get | Update | Patch) => {
                true
            }
            ("podnotifications" | "podactions", None, Get) => true,
            _ => false,
        },
        Role::Controller => match (ask.resource, ask.subresource, ask.verb) {
            (
                "podnotifications" | "podactions",
                None,
                Get | List | Watch | Create | Patch | Delete,
            ) => true,
            ("notifications" | "executionhooks", None, Get | List | Watch | Delete) => true,
            ("hookactions", None, Get | List | Watch) => true,
            (
                "podnotifications" | "notifications" | "executionhooks" | "podactions",
                Some("status"),
                Get | Update | Patch,
            ) => true,
            ("pods" | "nodes" | "leases", None, Get | List | Watch) => true,
            ("leases", None, Create | Update | Patch) => ask.namespace == Some("kube-system"),
            ("events", None, Create | Patch) => true,
            _ => false,
        },
        Role::ControlPlane => match (ask.resource, ask.subresource, ask.verb) {
            ("pods", Some("binding"), Create) => true,
            // It makes the pods of daemon sets.
            ("pods", None, Create) => true,
            ("nodes", Some("status"), Patch) => true,
            ("pods" | "daemonsets", Some("status"), Get | Update | Patch) => true,
            ("events", None, Create | Patch) => true,
            ("namespaces", Some("finalize" | "status"), Update | Patch) => true,
            // It collects what a namespace or an owner leaves behind, of every kind.
            (_, None, Get | List | Watch | Patch | Delete | Verb::DeleteCollection) => true,
            _ => false,
        },
    }
}

/// Whether the request is allowed on this object, as it is stored (or is to be created).
pub(crate) fn allows_object(ask: &Ask<'_>, object: &Value) -> bool {
    let Role::Node(node) = ask.who.role() else {
        return true;
    };
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    match ask.resource {
        "pods" | "podactions" => text("/spec/nodeName") == Some(node),
        "podnotifications" => text("/status/nodeName") == Some(node),
        "nodes" => name(object) == node,
        "leases" => name(object) == node && meta_str(object, "namespace") == NODE_LEASES,
        _ => true,
    }
}

/// Whether the request may turn `old` (nothing, when it creates) into `new`.
///
/// A node describes itself, but does not decide what is sent to it: the labels others select by and
/// the taints that keep pods away are not its own to change. Nor does it decide when it goes: with
/// an owner that does not exist it would be collected, and could come back without them.
pub(crate) fn allows_change(ask: &Ask<'_>, old: Option<&Value>, new: &Value) -> bool {
    let (Role::Node(_), "nodes") = (ask.who.role(), ask.resource) else {
        return true;
    };
    let part = |object: &Value, pointer: &str| object.pointer(pointer).cloned().unwrap_or_default();
    let taints = "/spec/taints";
    if old.is_some_and(|old| part(old, taints) != part(new, taints)) {
        return false;
    }
    let owners = |object: &Value| part(object, "/metadata/ownerReferences");
    let none = |owners: &Value| owners.as_array().is_none_or(Vec::is_empty);
    let (had, has) = (old.map(owners).unwrap_or_default(), owners(new));
    if had != has && !(none(&had) && none(&has)) {
        return false;
    }
    let (before, after) = (
        old.map(|old| part(old, "/metadata/labels"))
            .unwrap_or_default(),
        part(new, "/metadata/labels"),
    );
    let keys = [&before, &after]
        .into_iter()
        .filter_map(Value::as_object)
        .flat_map(|m| m.keys());
    keys.filter(|key| before.get(*key) != after.get(*key))
        .all(|key| own_label(key))
}

/// Labels that a node may give itself: its own description, and whatever no Kubernetes domain claims.
fn own_label(key: &str) -> bool {
    const OWN: [&str; 8] = [
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "node.kubernetes.io/windows-build",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "beta.kubernetes.io/os",
    ];
    let Some((domain, _)) = key.split_once('/') else {
        return true;
    };
    let within = |parent: &str| {
        domain == parent
            || domain
                .strip_suffix(parent)
                .is_some_and(|rest| rest.ends_with('.'))
    };
    OWN.contains(&key)
        || within("kubelet.kubernetes.io")
        || (domain == "node.kubernetes.io")
        || !(within("kubernetes.io") || within("k8s.io"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ask<'a>(
        who: &'a Identity,
        verb: Verb,
        resource: &'a str,
        subresource: Option<&'a str>,
        name: Option<&'a str>,
        fields: &'a [(String, String)],
    ) -> Ask<'a> {
        let namespace = match resource {
            "nodes" => None,
            "leases" => Some(NODE_LEASES),
            _ => Some("default"),
        };
        Ask {
            who,
            verb,
            group: "",
            resource,
            subresource,
            namespace,
            name,
            fields,
        }
    }

    #[test]
    fn a_node_may_write_only_its_own_node_lease_and_statuses() {
        let who = Identity::node("n1");
        let no = &[][..];
        for (verb, resource, sub, name, expected) in [
            (Verb::Update, "nodes", Some("status"), "n1", true),
            (Verb::Update, "nodes", Some("status"), "n2", false),
            (Verb::Patch, "leases", None, "n1", true),
            (Verb::Patch, "leases", None, "n2", false),
            (Verb::Delete, "nodes", None, "n1", false),
            (Verb::Update, "pods", None, "a", false),
            (Verb::Create, "pods", None, "a", false),
            (Verb::Create, "podnotifications", None, "a", false),
            (Verb::Update, "podnotifications", None, "a", false),
            (Verb::Create, "podactions", None, "a", false),
            (Verb::Update, "podactions", None, "a", false),
            (Verb::Create, "executionhooks", None, "a", false),
            (Verb::Get, "hookactions", None, "a", false),
            (Verb::Get, "configmaps", None, "a", false),
            (Verb::Create, "namespaces", None, "a", false),
        ] {
            let allowed = allows(&ask(&who, verb, resource, sub, Some(name), no));
            assert_eq!(allowed, expected, "{verb:?} {resource} {sub:?} {name}");
        }
    }

    #[test]
    fn a_node_lists_only_what_is_bound_to_it() {
        let who = Identity::node("n1");
        let own = [("spec.nodeName".to_owned(), "n1".to_owned())];
        let other = [("spec.nodeName".to_owned(), "n2".to_owned())];
        assert!(allows(&ask(&who, Verb::Watch, "pods", None, None, &own)));
        assert!(!allows(&ask(&who, Verb::Watch, "pods", None, None, &other)));
        assert!(!allows(&ask(&who, Verb::List, "pods", None, None, &[])));
    }

    #[test]
    fn a_node_touches_only_objects_that_are_its_own() {
        let who = Identity::node("n1");
        let touch = |resource, object: &Value| {
            allows_object(
                &ask(&who, Verb::Update, resource, Some("status"), Some("x"), &[]),
                object,
            )
        };
        assert!(touch("pods", &json!({"spec": {"nodeName": "n1"}})));
        assert!(!touch("pods", &json!({"spec": {"nodeName": "n2"}})));
        assert!(!touch("pods", &json!({"spec": {}})));
        assert!(!touch(
            "podnotifications",
            &json!({"status": {"nodeName": "n2"}})
        ));
        assert!(touch("podactions", &json!({"spec": {"nodeName": "n1"}})));
        assert!(!touch("podactions", &json!({"spec": {"nodeName": "n2"}})));
    }

    #[test]
    fn strangers_may_do_nothing() {
        let who = Identity::anonymous();
        for verb in [
            Verb::Get,
            Verb::List,
            Verb::Watch,
            Verb::Create,
            Verb::Delete,
        ] {
            assert!(!allows(&ask(&who, verb, "pods", None, Some("a"), &[])));
        }
    }

    #[test]
    fn a_node_describes_itself_and_does_not_choose_its_work() {
        let who = Identity::node("n1");
        let may = |old: Option<Value>, new: Value| {
            allows_change(
                &ask(&who, Verb::Update, "nodes", None, Some("n1"), &[]),
                old.as_ref(),
                &new,
            )
        };
        let labels = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
        assert!(may(None, labels("kubernetes.io/hostname")));
        assert!(may(None, labels("example.com/rack")));
        assert!(may(Some(labels("a")), labels("b")));
        for key in [
            "node-role.kubernetes.io/control-plane",
            "node-restriction.kubernetes.io/secure",
            "kubernetes.io/anything",
            "sub.k8s.io/x",
        ] {
            assert!(!may(None, labels(key)), "{key}");
            assert!(!may(Some(json!({})), labels(key)), "{key}");
            assert!(!may(Some(labels(key)), json!({})), "{key}");
            assert!(may(Some(labels(key)), labels(key)), "{key} stays");
        }
        let tainted = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
        assert!(may(None, tainted.clone()));
        assert!(!may(Some(tainted.clone()), json!({})));
        assert!(!may(Some(json!({})), tainted));
    }

    #[test]
    fn a_node_belongs_to_nobody_of_its_own_choice() {
        let who = Identity::node("n1");
        let may = |old: Option<Value>, new: Value| {
            [None, Some("status")].map(|subresource| {
                let ask = ask(&who, Verb::Patch, "nodes", subresource, Some("n1"), &[]);
                allows_change(&ask, old.as_ref(), &new)
            })
        };
        let owned = |uid: &str| json!({"metadata": {"ownerReferences": [{"uid": uid}]}});
        let free = json!({"metadata": {"ownerReferences": []}});
        assert_eq!(may(None, owned("a")), [false; 2]);
        assert_eq!(may(Some(json!({})), owned("a")), [false; 2]);
        assert_eq!(may(Some(owned("a")), owned("b")), [false; 2]);
        assert_eq!(may(Some(owned("a")), json!({})), [false; 2]);
        assert_eq!(may(Some(owned("a")), owned("a")), [true; 2]);
        assert_eq!(may(Some(json!({})), free.clone()), [true; 2]);
        assert_eq!(may(None, free), [true; 2]);
    }
}
