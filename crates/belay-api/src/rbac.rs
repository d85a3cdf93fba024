//! Role-based rules: what a rule allows, and whether rules cover others. Pure.
//!
//! The meaning is upstream's: rules only ever add, a rule without resource names is about all of
//! them, and a request that has no name (a creation, a list) is never allowed by a rule that has
//! some.

use serde::{Deserialize, Serialize};

/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// What may be asked of whom; the resource that stands for the notifiers that pods declare. It has
/// no objects: it is there to be named in rules.
pub const NOTIFIERS: &str = "notifiers";
/// The verb that triggers a notifier.
pub const NOTIFY: &str = "notify";
/// The actions of hooks, whose names a role can name to allow running them.
pub const HOOK_ACTIONS: &str = "hookactions";
/// The right to run an action by creating a hook.
pub const RUN: &str = "run";

const ALL: &str = "*";

/// How many single rights of one rule are compared. A rule that means more is taken as not covered:
/// nobody writes such a rule, and comparing it could keep a server busy for ever.
const COMPARED: usize = 100_000;

/// One rule of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "list", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(
        rename = "nonResourceURLs",
        deserialize_with = "list",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub non_resource_urls: Vec<String>,
    #[serde(deserialize_with = "list")]
    pub verbs: Vec<String>,
}

/// Go writes an empty list as null where it has to write something.
fn list<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// What somebody wants to do, as far as rules look at it. In which namespace is not the rule's to
/// say: a binding gives its role's rules in its namespace, or everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access<'a> {
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: Option<&'a str>,
        name: Option<&'a str>,
    },
    /// A path that is no resource: `/metrics`.
    Path { verb: &'a str, path: &'a str },
}

impl PolicyRule {
    /// A rule about resources.
    #[must_use]
    pub fn on(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Self {
        Self {
            api_groups: owned(groups),
            resources: owned(resources),
            verbs: owned(verbs),
            ..Self::default()
        }
    }

    /// A rule about paths.
    #[must_use]
    pub fn on_paths(paths: &[&str], verbs: &[&str]) -> Self {
        Self {
            non_resource_urls: owned(paths),
            verbs: owned(verbs),
            ..Self::default()
        }
    }

    /// The same rule about these names only.
    #[must_use]
    pub fn named(mut self, names: &[&str]) -> Self {
        self.resource_names = owned(names);
        self
    }

    #[must_use]
    pub fn allows(&self, access: &Access<'_>) -> bool {
        match *access {
            Access::Resource {
                verb,
                group,
                resource,
                subresource,
                name,
            } => {
                has(&self.verbs, verb)
                    && has(&self.api_groups, group)
                    && self.about(resource, subresource)
                    && self.names(name)
            }
            Access::Path { verb, path } => {
                has(&self.verbs, verb) && self.non_resource_urls.iter().any(|own| spans(own, path))
            }
        }
    }

    fn about(&self, resource: &str, subresource: Option<&str>) -> bool {
        self.resources.iter().any(|own| match subresource {
            _ if own == ALL => true,
            None => own == resource,
            Some(sub) => own
                .split_once('/')
                .is_some_and(|(own, own_sub)| own_sub == sub && (own == resource || own == ALL)),
        })
    }

    fn names(&self, name: Option<&str>) -> bool {
        self.resource_names.is_empty()
            || name.is_some_and(|name| self.resource_names.iter().any(|own| own == name))
    }

    /// Whether this rule alone gives all that `other`, which has one of each, gives.
    fn covers(&self, other: &Single<'_>) -> bool {
        match *other {
            Single::Resource {
                verb,
                group,
                resource,
                name,
            } => {
                let (resource, subresource) = match resource.split_once('/') {
                    Some((resource, sub)) => (resource, Some(sub)),
                    None => (resource, None),
                };
                has(&self.verbs, verb)
                    && has(&self.api_groups, group)
                    && self.about(resource, subresource)
                    && self.names(name)
            }
            Single::Path { verb, path } => {
                has(&self.verbs, verb) && self.non_resource_urls.iter().any(|own| spans(own, path))
            }
        }
    }

    fn singles(&self) -> impl Iterator<Item = Single<'_>> {
        let names: Vec<Option<&str>> = if self.resource_names.is_empty() {
            vec![None]
        } else {
            let names = self.resource_names.iter();
            names.map(|name| Some(name.as_str())).collect()
        };
        let on_resources = self.api_groups.iter().flat_map(move |group| {
            let names = names.clone();
            self.resources.iter().flat_map(move |resource| {
                let names = names.clone();
                self.verbs.iter().flat_map(move |verb| {
                    let names = names.clone();
                    names.into_iter().map(move |name| Single::Resource {
                        verb,
                        group,
                        resource,
                        name,
                    })
                })
            })
        });
        let on_paths = self.non_resource_urls.iter().flat_map(move |path| {
            self.verbs
                .iter()
                .map(move |verb| Single::Path { verb, path })
        });
        on_resources.chain(on_paths)
    }

    fn count(&self) -> usize {
        let names = self.resource_names.len().max(1);
        let of = |list: &Vec<String>| list.len();
        of(&self.api_groups)
            .saturating_mul(of(&self.resources))
            .saturating_mul(names)
            .saturating_add(of(&self.non_resource_urls))
            .saturating_mul(of(&self.verbs))
    }
}

/// One right: one verb on one resource of one group, for all names or for one.
#[derive(Clone, Copy, Debug)]
enum Single<'a> {
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        name: Option<&'a str>,
    },
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

impl std::fmt::Display for Single<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Resource {
                verb,
                group,
                resource,
                name: None,
            } => write!(
                f,
                "{{APIGroups:[{group:?}], Resources:[{resource:?}], Verbs:[{verb:?}]}}"
            ),
            Self::Resource {
                verb,
                group,
                resource,
                name: Some(name),
            } => write!(
                f,
                "{{APIGroups:[{group:?}], Resources:[{resource:?}], ResourceNames:[{name:?}], \
                 Verbs:[{verb:?}]}}"
            ),
            Self::Path { verb, path } => {
                write!(f, "{{NonResourceURLs:[{path:?}], Verbs:[{verb:?}]}}")
            }
        }
    }
}

/// What `wanted` gives and `held` does not, in upstream's words; at most `limit` of it.
#[must_use]
pub fn missing(held: &[PolicyRule], wanted: &[PolicyRule], limit: usize) -> Vec<String> {
    let mut missing = Vec::new();
    for rule in wanted {
        if rule.count() > COMPARED {
            // Its own size is the only reason; who holds everything still does.
            let everything = [
                PolicyRule::on(&[ALL], &[ALL], &[ALL]),
                PolicyRule::on_paths(&[ALL], &[ALL]),
            ];
            if !everything.iter().all(|all| held.contains(all)) {
                missing.push(format!(
                    "a rule of more than {COMPARED} combinations: split it"
                ));
            }
        } else {
            let lacking = rule
                .singles()
                .filter(|single| !held.iter().any(|own| own.covers(single)));
            let room = limit.saturating_sub(missing.len());
            missing.extend(lacking.take(room).map(|single| single.to_string()));
        }
        if missing.len() >= limit {
            break;
        }
    }
    missing
}

fn owned(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|own| own == ALL || own == wanted)
}

/// Whether a path of a rule, which may end in a star, is about `path`.
fn spans(own: &str, path: &str) -> bool {
    own == path
        || own
            .strip_suffix('*')
            .is_some_and(|prefix| path.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access<'a>(
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        name: Option<&'a str>,
    ) -> Access<'a> {
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, sub)) => (resource, Some(sub)),
            None => (resource, None),
        };
        Access::Resource {
            verb,
            group,
            resource,
            subresource,
            name,
        }
    }

    #[test]
    fn a_rule_allows_what_it_names_and_nothing_beside_it() {
        let pods = PolicyRule::on(&[""], &["pods"], &["get", "list"]);
        let sub = PolicyRule::on(&[""], &["pods/log"], &["get"]);
        let any_sub = PolicyRule::on(&["*"], &["*/status"], &["patch"]);
        let all = PolicyRule::on(&["*"], &["*"], &["*"]);
        let one = PolicyRule::on(&["apps.k8s.io"], &["notifiers"], &["notify"]).named(&["reload"]);
        for (rule, verb, group, resource, name, expected) in [
            (&pods, "get", "", "pods", Some("a"), true),
            (&pods, "list", "", "pods", None, true),
            (&pods, "watch", "", "pods", None, false),
            (&pods, "get", "apps", "pods", None, false),
            (&pods, "get", "", "pods/log", Some("a"), false),
            (&pods, "get", "", "nodes", None, false),
            (&sub, "get", "", "pods/log", Some("a"), true),
            (&sub, "get", "", "pods", Some("a"), false),
            (&sub, "get", "", "pods/exec", Some("a"), false),
            (&any_sub, "patch", "x", "things/status", None, true),
            (&any_sub, "patch", "x", "things", None, false),
            (&all, "anything", "any", "thing/sub", Some("x"), true),
            (
                &one,
                "notify",
                "apps.k8s.io",
                "notifiers",
                Some("reload"),
                true,
            ),
            (
                &one,
                "notify",
                "apps.k8s.io",
                "notifiers",
                Some("lock"),
                false,
            ),
            (&one, "notify", "apps.k8s.io", "notifiers", None, false),
            (
                &one,
                "get",
                "apps.k8s.io",
                "notifiers",
                Some("reload"),
                false,
            ),
        ] {
            let allowed = rule.allows(&access(verb, group, resource, name));
            assert_eq!(
                allowed, expected,
                "{rule:?} {verb} {group} {resource} {name:?}"
            );
        }
    }

    #[test]
    fn a_null_reads_as_an_empty_list() {
        let read: PolicyRule =
            serde_json::from_str(r#"{"verbs": ["get"], "resourceNames": null}"#).unwrap();
        assert_eq!((read.verbs.len(), read.resource_names.len()), (1, 0));
    }

    #[test]
    fn paths_match_exactly_or_by_a_star_at_their_end() {
        let rule = PolicyRule::on_paths(&["/metrics", "/debug/*"], &["get"]);
        for (path, expected) in [
            ("/metrics", true),
            ("/metrics/x", false),
            ("/debug/pprof", true),
            ("/debug", false),
        ] {
            let allowed = rule.allows(&Access::Path { verb: "get", path });
            assert_eq!(allowed, expected, "{path}");
        }
        assert!(!rule.allows(&access("get", "", "pods", None)));
        let all = PolicyRule::on(&["*"], &["*"], &["*"]);
        assert!(!all.allows(&Access::Path {
            verb: "get",
            path: "/metrics"
        }));
    }

    #[test]
    fn what_is_missing_is_told_right_by_right() {
        let held = [
            PolicyRule::on(&[""], &["pods", "*/log"], &["get", "list"]),
            PolicyRule::on(&["a"], &["b"], &["*"]).named(&["x"]),
        ];
        let lacks = |wanted: PolicyRule| missing(&held, &[wanted], 10).len();
        assert_eq!(lacks(PolicyRule::on(&[""], &["pods"], &["get"])), 0);
        assert_eq!(lacks(PolicyRule::on(&[""], &["pods/log"], &["get"])), 0);
        assert_eq!(lacks(PolicyRule::on(&[""], &["pods/exec"], &["get"])), 1);
        assert_eq!(lacks(PolicyRule::on(&[""], &["pods"], &["*"])), 1);
        assert_eq!(lacks(PolicyRule::on(&["*"], &["pods"], &["get"])), 1);
        assert_eq!(
            lacks(PolicyRule::on(&["a"], &["b"], &["c"])),
            1,
            "all names"
        );
        assert_eq!(
            lacks(PolicyRule::on(&["a"], &["b"], &["c"]).named(&["x"])),
            0
        );
        assert_eq!(
            lacks(PolicyRule::on(&["a"], &["b"], &["c"]).named(&["x", "y"])),
            1
        );
        assert_eq!(lacks(PolicyRule::on_paths(&["/metrics"], &["get"])), 1);
        assert_eq!(
            missing(
                &held,
                &[PolicyRule::on(&["a"], &["b"], &["c"]).named(&["y"])],
                1
            ),
            [r#"{APIGroups:["a"], Resources:["b"], ResourceNames:["y"], Verbs:["c"]}"#]
        );
    }

    #[test]
    fn a_rule_of_a_billion_combinations_is_refused_at_once() {
        let many: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let rule = PolicyRule {
            api_groups: many.clone(),
            resources: many.clone(),
            resource_names: many.clone(),
            verbs: many,
            ..PolicyRule::default()
        };
        let some = [PolicyRule::on(&["*"], &["*"], &["get"])];
        assert_eq!(missing(&some, std::slice::from_ref(&rule), 10).len(), 1);
        let everything = [
            PolicyRule::on(&["*"], &["*"], &["*"]),
            PolicyRule::on_paths(&["*"], &["*"]),
        ];
        assert!(missing(&everything, &[rule], 10).is_empty());
    }
}
