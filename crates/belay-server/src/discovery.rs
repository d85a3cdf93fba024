//! What is served, told the way Kubernetes clients ask for it. All of it comes from the registry.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::registry::{Kind, Registry};
use crate::review::REVIEWS;

/// The Kubernetes version whose behaviour the served kinds follow.
const KUBERNETES_MINOR: &str = "36";

pub(crate) fn version() -> Value {
    let version = env!("CARGO_PKG_VERSION");
    json!({
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "gitVersion": format!("v1.{KUBERNETES_MINOR}.0+belay-{version}"),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, arch()),
    })
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn root(registry: &Registry) -> Value {
    let mut paths: BTreeSet<String> = [
        "/api",
        "/api/v1",
        "/apis",
        "/livez",
        "/metrics",
        "/openapi/v3",
        "/readyz",
        "/version",
    ]
    .map(str::to_owned)
    .into();
    for (group, version) in versions(registry).filter(|(group, _)| !group.is_empty()) {
        paths.insert(format!("/apis/{group}"));
        paths.insert(format!("/apis/{group}/{version}"));
    }
    json!({"paths": paths})
}

/// The groups and versions of everything that is served.
pub(crate) fn versions(
    registry: &Registry,
) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
    let kinds = registry.kinds().map(|k| (k.group, k.version));
    kinds.chain(REVIEWS.iter().map(|r| (r.group, r.version)))
}

pub(crate) fn core_versions() -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [],
    })
}

pub(crate) fn groups(registry: &Registry) -> Value {
    let names: BTreeSet<&str> = versions(registry)
        .map(|(group, _)| group)
        .filter(|g| !g.is_empty())
        .collect();
    let groups: Vec<Value> = names
        .into_iter()
        .filter_map(|name| describe(registry, name))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

pub(crate) fn group(registry: &Registry, name: &str) -> Option<Value> {
    let mut group = describe(registry, name)?;
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Some(group)
}

fn describe(registry: &Registry, name: &str) -> Option<Value> {
    let versions: BTreeSet<&str> = versions(registry)
        .filter(|(group, _)| *group == name)
        .map(|(_, version)| version)
        .collect();
    let listed: Vec<Value> = versions
        .iter()
        .map(|v| json!({"groupVersion": format!("{name}/{v}"), "version": v}))
        .collect();
    let preferred = listed.first()?.clone();
    Some(json!({"name": name, "versions": listed, "preferredVersion": preferred}))
}

pub(crate) fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let kinds: Vec<&Kind> = registry
        .kinds()
        .filter(|k| k.group == group && k.version == version)
        .collect();
    versions(registry).find(|served| *served == (group, version))?;
    let mut resources = Vec::new();
    for kind in &kinds {
        let mut verbs = vec![
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch",
        ];
        verbs.retain(|verb| *verb != "deletecollection" || kind.deleted_as_collection());
        let mut resource = json!({
            "name": kind.plural,
            "singularName": kind.singular,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": verbs,
        });
        if !kind.short_names.is_empty() {
            resource["shortNames"] = json!(kind.short_names);
        }
        if !kind.categories.is_empty() {
            resource["categories"] = json!(kind.categories);
        }
        resources.push(resource);
        for subresource in kind.subresources {
            let (kind_name, verbs) = match *subresource {
                // Known only to be refused with words.
                "attach" | "portforward" => continue,
                "exec" => ("PodExecOptions", json!(["create", "get"])),
                "binding" => ("Binding", json!(["create"])),
                "log" => (kind.kind, json!(["get"])),
                "finalize" => (kind.kind, json!(["update"])),
                _ => (kind.kind, json!(["get", "patch", "update"])),
            };
            resources.push(json!({
                "name": format!("{}/{subresource}", kind.plural),
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind_name,
                "verbs": verbs,
            }));
        }
    }
    for review in REVIEWS
        .iter()
        .filter(|r| (r.group, r.version) == (group, version))
    {
        resources.push(json!({
            "name": review.plural,
            "singularName": review.singular,
            "namespaced": review.namespaced,
            "kind": review.kind,
            "verbs": ["create"],
        }));
    }
    // There are no objects of it, but it is named in roles, and kubectl looks such names up here.
    if group == belay_api::GROUP && version == belay_api::VERSION {
        resources.push(json!({
            "name": belay_api::rbac::NOTIFIERS,
            "singularName": "notifier",
            "namespaced": true,
            "kind": "Notifier",
            "verbs": [belay_api::rbac::NOTIFY],
        }));
    }
    let group_version = match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    }))
}
