//! OpenAPI v3 `components/schemas`, as `kubectl` reads them: for `explain`, for client-side
//! validation, and for the patch that `apply` works out.

use serde_json::{Map, Value, json};

use super::kinds::{self, Kind};
use super::patch_table;
use super::source::{self, LIST_META, REF_PREFIX};

/// The schemas of `kinds` and of all they refer to, by name, with descriptions.
///
/// A kind with `List` at its end is the list of that kind. A kind that has no schema adds nothing.
/// The document is made anew by each call, because it is large and rarely asked for.
pub fn components(kinds: &[&str]) -> Map<String, Value> {
    let known = kinds::all();
    let single = |name: &str| known.iter().find(|kind| kind.kind == name);
    let mut wanted: Vec<&Kind> = Vec::new();
    let mut lists: Vec<&Kind> = Vec::new();
    for name in kinds {
        if let Some(kind) = single(name) {
            wanted.push(kind);
        } else if let Some(kind) = name.strip_suffix("List").and_then(single) {
            wanted.push(kind);
            lists.push(kind);
        }
    }

    let mut definitions = source::definitions(wanted.iter().copied());
    for (name, definition) in &mut definitions {
        publish(name, definition);
    }
    for kind in wanted {
        if let Some(Value::Object(definition)) = definitions.get_mut(&kind.definition) {
            definition.insert(
                "x-kubernetes-group-version-kind".to_owned(),
                json!([group_version_kind(kind, &kind.kind)]),
            );
        }
    }
    if !lists.is_empty() {
        definitions.entry(LIST_META).or_insert_with(list_meta);
    }
    for kind in lists {
        definitions.insert(format!("{}List", kind.definition), list_of(kind));
    }
    definitions
}

fn group_version_kind(kind: &Kind, name: &str) -> Value {
    json!({ "group": kind.group, "version": kind.version, "kind": name })
}

/// Rewrites one definition from how the types describe themselves to how a stock server does.
fn publish(name: &str, definition: &mut Value) {
    match name {
        "io.k8s.apimachinery.pkg.api.resource.Quantity" => {
            replace_body(
                definition,
                json!({ "oneOf": [{"type": "string"}, {"type": "number"}] }),
            );
        }
        "io.k8s.apimachinery.pkg.util.intstr.IntOrString" => replace_body(
            definition,
            json!({ "format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}] }),
        ),
        _ => {
            if let Some(Value::Object(properties)) = definition.get_mut("properties") {
                for (field, schema) in properties {
                    add_patch_metadata(name, field, schema);
                }
            }
            plain(definition);
        }
    }
}

fn replace_body(definition: &mut Value, mut body: Value) {
    if let Some(description) = definition.get_mut("description") {
        body["description"] = description.take();
    }
    *definition = body;
}

fn add_patch_metadata(definition: &str, field: &str, schema: &mut Value) {
    let (Some(merge), Value::Object(schema)) = (patch_table::merge(definition, field), schema)
    else {
        return;
    };
    let strategy = if merge.retain_keys {
        "merge,retainKeys"
    } else {
        "merge"
    };
    schema.insert("x-kubernetes-patch-strategy".to_owned(), strategy.into());
    if let Some(key) = merge.key {
        schema.insert("x-kubernetes-patch-merge-key".to_owned(), key.into());
    }
}

/// OpenAPI 3.0 knows neither a list of types, nor `const`, nor `true` as a schema, nor anything
/// beside a `$ref`.
fn plain(schema: &mut Value) {
    match schema {
        Value::Bool(_) => *schema = json!({}),
        Value::Object(map) => {
            plain_object(map);
            for word in ["properties", "patternProperties"] {
                if let Some(Value::Object(schemas)) = map.get_mut(word) {
                    schemas.values_mut().for_each(plain);
                }
            }
            for word in ["items", "not"] {
                if let Some(inner) = map.get_mut(word) {
                    plain(inner);
                }
            }
            if let Some(inner @ Value::Object(_)) = map.get_mut("additionalProperties") {
                plain(inner);
            }
            for word in ["allOf", "anyOf", "oneOf"] {
                if let Some(Value::Array(schemas)) = map.get_mut(word) {
                    schemas.iter_mut().for_each(plain);
                }
            }
        }
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
    }
}

fn plain_object(map: &mut Map<String, Value>) {
    if map.len() > 1
        && let Some(target) = map.remove("$ref")
    {
        map.insert("allOf".to_owned(), json!([{ "$ref": target }]));
    }
    if map.contains_key("properties") && map.get("additionalProperties") == Some(&Value::Bool(true))
    {
        // A window carries unknown fields along; the API does not.
        map.remove("additionalProperties");
    }
    if let Some(value) = map.remove("const") {
        map.insert("enum".to_owned(), json!([value]));
    }
    if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true))
        && !map.contains_key("oneOf")
    {
        map.insert(
            "oneOf".to_owned(),
            json!([{"type": "integer"}, {"type": "string"}]),
        );
    }
    if let Some(Value::Array(types)) = map.get("type") {
        let nullable = types.iter().any(|ty| ty == "null");
        let first = types.iter().find(|ty| *ty != "null").cloned();
        match first {
            Some(ty) => map.insert("type".to_owned(), ty),
            None => map.remove("type"),
        };
        if nullable {
            map.insert("nullable".to_owned(), true.into());
        }
    }
    for word in ["anyOf", "oneOf"] {
        let Some(Value::Array(parts)) = map.get_mut(word) else {
            continue;
        };
        let before = parts.len();
        parts.retain(|part| part.get("type").and_then(Value::as_str) != Some("null"));
        if parts.len() == before {
            continue;
        }
        if let [_] = parts.as_slice() {
            let only = map.remove(word).unwrap_or_default();
            map.insert("allOf".to_owned(), only);
        }
        map.insert("nullable".to_owned(), true.into());
    }
}

fn list_of(kind: &Kind) -> Value {
    let mut properties = source::type_meta();
    properties.insert(
        "metadata".to_owned(),
        json!({
            "description": "Standard list metadata.",
            "allOf": [{ "$ref": format!("{REF_PREFIX}{LIST_META}") }],
            "default": {},
        }),
    );
    properties.insert(
        "items".to_owned(),
        json!({
            "description": "The objects of this page of the list.",
            "type": "array",
            "items": { "$ref": format!("{REF_PREFIX}{}", kind.definition) },
        }),
    );
    let name = format!("{}List", kind.kind);
    json!({
        "description": format!("{name} is a list of {} objects.", kind.kind),
        "type": "object",
        "properties": properties,
        "required": ["items"],
        "x-kubernetes-group-version-kind": [group_version_kind(kind, &name)],
    })
}

fn list_meta() -> Value {
    json!({
        "description": "What a list says of itself.",
        "type": "object",
        "properties": {
            "continue": {
                "description": "Set when there is more: pass it back to get the next page.",
                "type": "string",
            },
            "remainingItemCount": {
                "description": "How many objects follow this page, where that is known.",
                "type": "integer",
                "format": "int64",
            },
            "resourceVersion": {
                "description": "The state the list was read at; a watch can go on from here.",
                "type": "string",
            },
            "selfLink": { "description": "No longer set.", "type": "string" },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    assert_eq!(
                        map.len(),
                        1,
                        "nothing may stand beside a reference: {value}"
                    );
                    found.push(target.clone());
                }
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let components = components(&["Pod", "PodList", "PodNotification", "PodNotificationList"]);
        let mut found = Vec::new();
        components
            .values()
            .for_each(|schema| references(schema, &mut found));
        assert!(found.len() > 100);
        for target in found {
            let name = target.strip_prefix(REF_PREFIX).expect("a component");
            assert!(components.contains_key(name), "{target}");
        }
    }

    #[test]
    fn kinds_carry_their_group_version_kind_and_lists_their_patch_metadata() {
        let components = components(&["Pod", "PodList", "Lease"]);
        let pod = &components["io.k8s.api.core.v1.Pod"];
        assert_eq!(
            pod["x-kubernetes-group-version-kind"],
            json!([{"group": "", "version": "v1", "kind": "Pod"}])
        );
        assert_eq!(
            components["io.k8s.api.core.v1.PodList"]["x-kubernetes-group-version-kind"][0]["kind"],
            "PodList"
        );
        let volumes = &components["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"];
        assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
        assert_eq!(volumes["x-kubernetes-patch-merge-key"], "name");
        let finalizers = &components["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"]
            ["finalizers"];
        assert_eq!(finalizers["x-kubernetes-patch-strategy"], "merge");
        assert!(finalizers.get("x-kubernetes-patch-merge-key").is_none());
    }

    #[test]
    fn our_fields_stand_on_the_container_with_a_description() {
        const CONTAINER_NOTIFIER: &str = "io.k8s.api.core.v1.ContainerNotifier";
        let components = components(&["Pod"]);
        let container = &components["io.k8s.api.core.v1.Container"]["properties"];
        assert!(container["stopSignal"]["description"].is_string());
        assert_eq!(
            container["notifiers"]["items"]["$ref"],
            format!("{REF_PREFIX}{CONTAINER_NOTIFIER}")
        );
        let notifier = &components[CONTAINER_NOTIFIER];
        assert!(notifier["properties"]["handler"].is_object());
        assert!(notifier.get("additionalProperties").is_none());
        assert!(components.keys().all(|name| name.starts_with("io.k8s.")));
    }

    #[test]
    fn no_word_of_a_later_json_schema_is_left() {
        fn check(value: &Value, path: &str) {
            match value {
                Value::Object(map) => {
                    // A property may be called like a keyword; a keyword has these types.
                    assert!(
                        !map.get("type").is_some_and(Value::is_array),
                        "{path}: {value}"
                    );
                    for (key, inner) in map {
                        check(inner, &format!("{path}/{key}"));
                    }
                }
                Value::Array(list) => list.iter().for_each(|inner| check(inner, path)),
                _ => {}
            }
        }
        let names: Vec<String> = kinds::all().into_iter().map(|kind| kind.kind).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for (name, schema) in components(&names) {
            check(&schema, &name);
        }
    }

    #[test]
    fn an_unknown_kind_adds_nothing() {
        assert!(components(&["Nonsense", "NonsenseList"]).is_empty());
    }
}
