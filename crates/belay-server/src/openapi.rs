//! OpenAPI v3, made from the registry and the schemas on demand: clients ask rarely, so nothing of
//! it is kept in memory.

use std::collections::BTreeSet;

use belay_api::schema;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::discovery::versions;
use crate::registry::{Kind, Registry};
use crate::review::REVIEWS;

/// The old OpenAPI document, with nothing in it but its version ("swagger", field 1: "2.0").
///
/// kubectl asks for it when version 3 does not know a kind, only to report that this failed. With
/// an empty document it says what is wrong: that there is no such kind.
pub(crate) const EMPTY_V2: &[u8] = b"\x0a\x032.0";
/// The one form kubectl reads it in.
pub(crate) const V2_CONTENT_TYPE: &str =
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

pub(crate) fn index(registry: &Registry) -> Value {
    let versions: BTreeSet<(&str, &str)> = versions(registry).collect();
    let mut paths = Map::new();
    for (group, version) in versions {
        let path = match group {
            "" => format!("api/{version}"),
            group => format!("apis/{group}/{version}"),
        };
        // Clients cache a document under its hash, so the hash is that of the document itself.
        let seed = document(registry, group, version)
            .unwrap_or_default()
            .to_string();
        let hash: String = Sha256::digest(seed)
            .iter()
            .take(16)
            .map(|b| format!("{b:02X}"))
            .collect();
        let url = format!("/openapi/v3/{path}?hash={hash}");
        paths.insert(path, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

pub(crate) fn document(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let kinds: Vec<&Kind> = registry
        .kinds()
        .filter(|k| k.group == group && k.version == version)
        .collect();
    versions(registry).find(|served| *served == (group, version))?;
    let mut paths = Map::new();
    for kind in &kinds {
        let base = match group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        let collection = if kind.namespaced {
            format!("{base}/namespaces/{{namespace}}/{}", kind.plural)
        } else {
            format!("{base}/{}", kind.plural)
        };
        let object = format!("{collection}/{{name}}");
        if kind.namespaced {
            paths.insert(
                format!("{base}/{}", kind.plural),
                json!({"get": operation(kind, "list", &[])}),
            );
        }
        paths.insert(
            collection,
            json!({
                "get": operation(kind, "list", &["labelSelector", "fieldSelector", "limit", "continue", "watch"]),
                "post": operation(kind, "post", &["dryRun", "fieldManager", "fieldValidation"]),
                "delete": operation(kind, "deletecollection", &["dryRun", "labelSelector"]),
            }),
        );
        let write = ["dryRun", "fieldManager", "fieldValidation"];
        paths.insert(
            object.clone(),
            json!({
                "get": operation(kind, "get", &[]),
                "put": operation(kind, "put", &write),
                "patch": operation(kind, "patch", &write),
                "delete": operation(kind, "delete", &["dryRun", "gracePeriodSeconds"]),
            }),
        );
        for subresource in kind.subresources.iter().filter(|s| **s == "status") {
            paths.insert(
                format!("{object}/{subresource}"),
                json!({
                    "get": operation(kind, "get", &[]),
                    "put": operation(kind, "put", &write),
                    "patch": operation(kind, "patch", &write),
                }),
            );
        }
    }
    let reviews = REVIEWS
        .iter()
        .filter(|r| (r.group, r.version) == (group, version));
    for review in reviews.clone() {
        let base = format!("/apis/{group}/{version}");
        let path = if review.namespaced {
            format!("{base}/namespaces/{{namespace}}/{}", review.plural)
        } else {
            format!("{base}/{}", review.plural)
        };
        let gvk = (review.group, review.version, review.kind);
        let parameters = ["dryRun", "fieldManager", "fieldValidation"];
        paths.insert(
            path,
            json!({"post": operation_of(gvk, "post", &parameters)}),
        );
    }
    let names: Vec<&str> = kinds
        .iter()
        .map(|k| k.kind)
        .chain(reviews.map(|r| r.kind))
        .collect();
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Belay", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": schema::components(&names)},
    }))
}

fn operation(kind: &Kind, action: &str, parameters: &[&str]) -> Value {
    let gvk = (kind.group, kind.version, kind.kind);
    let mut operation = operation_of(gvk, action, parameters);
    if action == "patch" {
        operation["requestBody"] = patch_body(kind);
    }
    operation
}

fn operation_of(
    (group, version, kind): (&str, &str, &str),
    action: &str,
    parameters: &[&str],
) -> Value {
    let parameters: Vec<Value> = parameters
        .iter()
        .map(|name| {
            let of = match *name {
                "limit" | "gracePeriodSeconds" => "integer",
                "watch" => "boolean",
                _ => "string",
            };
            json!({"name": name, "in": "query", "schema": {"type": of, "uniqueItems": true}})
        })
        .collect();
    json!({
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
    })
}

/// The patch types a kind takes. kubectl calculates a strategic merge patch from these schemas only
/// where it finds that type here; otherwise it uses the types it was built with, which do not know
/// the fields that are ours.
fn patch_body(kind: &Kind) -> Value {
    let mut content = Map::new();
    let patch = json!({"schema": {"type": "object"}});
    for style in [
        "application/json-patch+json",
        "application/merge-patch+json",
    ] {
        content.insert(style.to_owned(), patch.clone());
    }
    if kind.strategic_merge {
        content.insert("application/strategic-merge-patch+json".to_owned(), patch);
    }
    json!({"content": content, "required": true})
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_api::gates::FeatureGates;

    #[test]
    fn every_kind_offers_field_validation_on_patch_so_that_kubectl_validates_on_the_server() {
        let registry = Registry::new(&FeatureGates::default());
        for kind in registry.kinds() {
            let doc = document(&registry, kind.group, kind.version).unwrap();
            let found = doc["paths"].as_object().unwrap().values().any(|path| {
                let patch = &path["patch"];
                patch["x-kubernetes-group-version-kind"]["kind"] == kind.kind
                    && patch["parameters"]
                        .as_array()
                        .is_some_and(|p| p.iter().any(|p| p["name"] == "fieldValidation"))
            });
            assert!(found, "{}", kind.kind);
        }
    }

    #[test]
    fn no_reference_dangles() {
        fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(map) => {
                    for (key, value) in map {
                        match (key.as_str(), value.as_str()) {
                            ("$ref", Some(text)) => found.push(text),
                            _ => references(value, found),
                        }
                    }
                }
                Value::Array(list) => list.iter().for_each(|v| references(v, found)),
                _ => {}
            }
        }
        let registry = Registry::new(&FeatureGates::default());
        let doc = document(&registry, "", "v1").unwrap();
        let mut found = Vec::new();
        references(&doc, &mut found);
        assert!(found.len() > 50);
        for reference in found {
            let name = reference
                .strip_prefix("#/components/schemas/")
                .expect(reference);
            assert!(doc["components"]["schemas"].get(name).is_some(), "{name}");
        }
    }
}
