//! Role-based rights of users: roles and bindings, found by subject.
//!
//! ```text
//!  store ──watch──> Index: roles by name, bindings by subject ──> rules of somebody in a namespace
//! ```
//!
//! The index is brought up to the newest visible revision whenever it is asked, by the requests
//! that ask: it reads what its watch has not seen yet, nothing most of the time. So a rule holds
//! from the moment its write is acknowledged, and no task of its own has to keep up.
//!
//! **Invariant:** the fixed rules of [`crate::authority`] are asked first. Nodes, controllers and
//! the administrator never come here for their daily work.

pub(crate) mod defaults;
mod parse;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belay_api::rbac::{Access, GROUP, PolicyRule};
use belay_store::{Entry, Revision, Store, Watch, WatchItem};
use futures::FutureExt as _;

use crate::identity::Identity;
use crate::object::Meta;
use parse::{Binding, Role, RoleName, Subject};

/// All roles and bindings, as of a revision.
#[derive(Debug, Default)]
pub(crate) struct Rbac(Mutex<Index>);

#[derive(Debug, Default)]
struct Index {
    watch: Option<Watch<Meta>>,
    roles: HashMap<RoleName, Role>,
    /// By key in the store, to take back what a changed binding gave.
    bindings: HashMap<Arc<str>, Binding>,
    by_subject: HashMap<Subject, Vec<Arc<str>>>,
}

fn prefix() -> String {
    format!("/{GROUP}/")
}

impl Rbac {
    /// Whether a binding gives `who` this access, in `namespace` or everywhere.
    pub(crate) fn allows(
        &self,
        store: &Store<Meta>,
        who: &Identity,
        namespace: Option<&str>,
        access: &Access<'_>,
    ) -> bool {
        let index = self.current(store);
        index.any_rule(who, namespace, &mut |rule| rule.allows(access))
    }

    /// Every rule that holds for `who` in `namespace`.
    pub(crate) fn rules_for(
        &self,
        store: &Store<Meta>,
        who: &Identity,
        namespace: Option<&str>,
    ) -> Vec<PolicyRule> {
        let mut rules = Vec::new();
        self.current(store).any_rule(who, namespace, &mut |rule| {
            rules.push(rule.clone());
            false
        });
        rules
    }

    /// The rules of the role that a binding in `namespace` refers to; `None` when there is none.
    pub(crate) fn rules_of(
        &self,
        store: &Store<Meta>,
        kind: &str,
        name: &str,
        namespace: Option<&str>,
    ) -> Option<Vec<PolicyRule>> {
        let index = self.current(store);
        let role = RoleName::of_reference(kind, name, namespace)?;
        index.roles.get(&role)?;
        let mut rules = Vec::new();
        index.any_rule_of(&role, &mut |rule| {
            rules.push(rule.clone());
            false
        });
        Some(rules)
    }

    fn current(&self, store: &Store<Meta>) -> MutexGuard<'_, Index> {
        let mut index = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        index.catch_up(store);
        index
    }
}

impl Index {
    fn catch_up(&mut self, store: &Store<Meta>) {
        let newest = store.revision();
        if !self.follow(newest) {
            self.read_all(store);
        }
    }

    /// Takes in what was written since; `false` when that cannot be told any more.
    fn follow(&mut self, newest: Revision) -> bool {
        let Some(mut watch) = self.watch.take() else {
            return false;
        };
        while watch.seen() < newest {
            // Without a budget a watch waits only for what is not there yet.
            let next = tokio::task::coop::unconstrained(watch.next()).now_or_never();
            match next {
                Some(Ok(WatchItem::Event(event))) => {
                    self.forget(&event.entry.key);
                    if !event.deleted {
                        self.learn(&event.entry);
                    }
                }
                Some(Ok(WatchItem::Progress(_))) | None => {}
                Some(Err(_)) => return false,
            }
        }
        self.watch = Some(watch);
        true
    }

    fn read_all(&mut self, store: &Store<Meta>) {
        *self = Self::default();
        let page = store.list(&prefix(), None, 0, &mut |_| true);
        for entry in &page.entries {
            self.learn(entry);
        }
        // Where this fails there is no history; everything is read again next time.
        self.watch = store.watch(&prefix(), page.revision).ok();
    }

    fn learn(&mut self, entry: &Entry<Meta>) {
        if let Some((name, role)) = Role::read(entry) {
            self.roles.insert(name, role);
        } else if let Some(binding) = Binding::read(entry) {
            for subject in &binding.subjects {
                let given = self.by_subject.entry(subject.clone()).or_default();
                given.push(Arc::clone(&entry.key));
            }
            self.bindings.insert(Arc::clone(&entry.key), binding);
        }
    }

    fn forget(&mut self, key: &str) {
        if let Some(name) = RoleName::of_key(key) {
            self.roles.remove(&name);
        }
        let Some(binding) = self.bindings.remove(key) else {
            return;
        };
        for subject in &binding.subjects {
            if let Some(given) = self.by_subject.get_mut(subject) {
                given.retain(|own| &**own != key);
                if given.is_empty() {
                    self.by_subject.remove(subject);
                }
            }
        }
    }

    /// Whether `found` says yes to any rule of `who`; it is asked until it does.
    fn any_rule(
        &self,
        who: &Identity,
        namespace: Option<&str>,
        found: &mut dyn FnMut(&PolicyRule) -> bool,
    ) -> bool {
        let groups = who.all_groups().map(|group| Subject::Group(group.into()));
        let subjects = std::iter::once(Subject::User(who.name.as_str().into())).chain(groups);
        for subject in subjects {
            for key in self.by_subject.get(&subject).into_iter().flatten() {
                let Some(binding) = self.bindings.get(key) else {
                    continue;
                };
                let here = match &binding.namespace {
                    None => true,
                    Some(own) => namespace == Some(own),
                };
                if here && self.any_rule_of(&binding.role, found) {
                    return true;
                }
            }
        }
        false
    }

    fn any_rule_of(&self, name: &RoleName, found: &mut dyn FnMut(&PolicyRule) -> bool) -> bool {
        let Some(role) = self.roles.get(name) else {
            return false;
        };
        role.rules.iter().any(&mut *found)
            || !role.gathers.is_empty()
                && self
                    .roles
                    .iter()
                    .filter(|(other, candidate)| *other != name && role.gathers(other, candidate))
                    .any(|(_, gathered)| gathered.rules.iter().any(&mut *found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_store::{Change, Expect, Options, Write};
    use bytes::Bytes;
    use serde_json::{Value, json};

    use crate::registry::Registry;
    use belay_api::gates::FeatureGates;

    struct World {
        store: Store<Meta>,
        rbac: Rbac,
        _dir: tempfile::TempDir,
    }

    impl World {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let registry = Registry::new(&FeatureGates::default());
            let mut options =
                Options::new(move |key: &str, value: &[u8]| Meta::of(key, value, &registry));
            // Small, so that an index which nobody asked for a while has to read everything again.
            options.history_events = 4;
            let store = Store::open(&dir.path().join("store"), options).unwrap();
            Self {
                store,
                rbac: Rbac::default(),
                _dir: dir,
            }
        }

        async fn put(&self, path: &str, object: &Value) {
            let key = format!("/{path}");
            let bytes = Bytes::from(object.to_string());
            let expect = match self.store.get(&key) {
                Some(entry) => Expect::At(entry.modified),
                None => Expect::Absent,
            };
            let change = Change::Put(Box::new(move |_| bytes));
            self.write(key, expect, change).await;
        }

        async fn delete(&self, path: &str) {
            let key = format!("/{path}");
            let modified = self.store.get(&key).unwrap().modified;
            self.write(key, Expect::At(modified), Change::Delete(None))
                .await;
        }

        async fn write(&self, key: String, expect: Expect, change: Change) {
            let also = Vec::new();
            let write = Write {
                key,
                expect,
                also,
                change,
                reserve: false,
            };
            self.store.write(write).await.unwrap();
        }

        fn gets(&self, who: &Identity, namespace: Option<&str>, resource: &str) -> bool {
            let access = Access::Resource {
                verb: "get",
                group: "",
                resource,
                subresource: None,
                name: Some("x"),
            };
            self.rbac.allows(&self.store, who, namespace, &access)
        }
    }

    const ROLES: &str = "rbac.authorization.k8s.io/roles/a";
    const CLUSTER_ROLES: &str = "rbac.authorization.k8s.io/clusterroles";
    const BINDINGS: &str = "rbac.authorization.k8s.io/rolebindings/a";
    const CLUSTER_BINDINGS: &str = "rbac.authorization.k8s.io/clusterrolebindings";

    fn role(resource: &str) -> Value {
        json!({"rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]})
    }

    fn binding(kind: &str, role: &str, subject: &Value) -> Value {
        json!({"roleRef": {"kind": kind, "name": role}, "subjects": [subject]})
    }

    fn user(name: &str) -> Identity {
        Identity::user(name, &[])
    }

    #[tokio::test]
    async fn a_right_holds_where_its_binding_is_and_ends_with_it() {
        let world = World::new();
        let ann = user("ann");
        let subject = json!({"kind": "User", "name": "ann"});
        assert!(!world.gets(&ann, Some("a"), "pods"));
        world.put(&format!("{ROLES}/r"), &role("pods")).await;
        world
            .put(&format!("{BINDINGS}/b"), &binding("Role", "r", &subject))
            .await;
        assert!(world.gets(&ann, Some("a"), "pods"));
        assert!(!world.gets(&ann, Some("b"), "pods"));
        assert!(!world.gets(&ann, None, "pods"));
        assert!(!world.gets(&ann, Some("a"), "nodes"));
        assert!(!world.gets(&user("bob"), Some("a"), "pods"));
        world.put(&format!("{ROLES}/r"), &role("events")).await;
        assert!(!world.gets(&ann, Some("a"), "pods"), "the role changed");
        assert!(world.gets(&ann, Some("a"), "events"));
        let other = json!({"kind": "User", "name": "bob"});
        world
            .put(&format!("{BINDINGS}/b"), &binding("Role", "r", &other))
            .await;
        assert!(
            !world.gets(&ann, Some("a"), "events"),
            "the subject changed"
        );
        assert!(world.gets(&user("bob"), Some("a"), "events"));
        world.delete(&format!("{BINDINGS}/b")).await;
        assert!(!world.gets(&user("bob"), Some("a"), "events"));
    }

    #[tokio::test]
    async fn cluster_roles_are_bound_everywhere_or_in_a_namespace_and_to_groups() {
        let world = World::new();
        world
            .put(&format!("{CLUSTER_ROLES}/r"), &role("pods"))
            .await;
        let ops = json!({"kind": "Group", "name": "ops"});
        world
            .put(
                &format!("{CLUSTER_BINDINGS}/b"),
                &binding("ClusterRole", "r", &ops),
            )
            .await;
        let member = Identity::user("ann", &["ops".to_owned()]);
        assert!(world.gets(&member, None, "pods"));
        assert!(world.gets(&member, Some("any"), "pods"));
        assert!(
            !world.gets(&user("ops"), None, "pods"),
            "a user is no group"
        );
        let account = json!({"kind": "ServiceAccount", "name": "sa"});
        world
            .put(
                &format!("{BINDINGS}/local"),
                &binding("ClusterRole", "r", &account),
            )
            .await;
        let account = user("system:serviceaccount:a:sa");
        assert!(world.gets(&account, Some("a"), "pods"));
        assert!(!world.gets(&account, Some("b"), "pods"));
        let everybody = json!({"kind": "Group", "name": "system:authenticated"});
        world
            .put(
                &format!("{BINDINGS}/all"),
                &binding("ClusterRole", "r", &everybody),
            )
            .await;
        assert!(world.gets(&user("anyone"), Some("a"), "pods"));
        assert!(!world.gets(&Identity::anonymous(), Some("a"), "pods"));
    }

    #[tokio::test]
    async fn an_aggregated_role_has_what_the_roles_it_selects_have() {
        let world = World::new();
        let gathering = json!({"aggregationRule": {"clusterRoleSelectors": [
            {"matchLabels": {"to": "view"}}]}});
        world
            .put(&format!("{CLUSTER_ROLES}/view"), &gathering)
            .await;
        let mut part = role("pods");
        part["metadata"] = json!({"labels": {"to": "view"}});
        world.put(&format!("{CLUSTER_ROLES}/part"), &part).await;
        let subject = json!({"kind": "User", "name": "ann"});
        world
            .put(
                &format!("{CLUSTER_BINDINGS}/b"),
                &binding("ClusterRole", "view", &subject),
            )
            .await;
        assert!(world.gets(&user("ann"), None, "pods"));
        world
            .put(&format!("{CLUSTER_ROLES}/part"), &role("pods"))
            .await;
        assert!(
            !world.gets(&user("ann"), None, "pods"),
            "no longer labelled"
        );
    }

    #[tokio::test]
    async fn an_index_that_missed_the_history_reads_everything_again() {
        let world = World::new();
        let ann = user("ann");
        assert!(!world.gets(&ann, Some("a"), "pods"));
        let subject = json!({"kind": "User", "name": "ann"});
        world.put(&format!("{ROLES}/r"), &role("pods")).await;
        world
            .put(&format!("{BINDINGS}/b"), &binding("Role", "r", &subject))
            .await;
        for n in 0..20 {
            world
                .put(&format!("core/configmaps/a/{n}"), &json!({}))
                .await;
        }
        assert!(world.gets(&ann, Some("a"), "pods"));
        world.delete(&format!("{ROLES}/r")).await;
        for n in 20..40 {
            world
                .put(&format!("core/configmaps/a/{n}"), &json!({}))
                .await;
        }
        assert!(!world.gets(&ann, Some("a"), "pods"));
    }
}
