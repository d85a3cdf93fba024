//! The definitions that everything here is made from: JSON schemas by name, wordy and complete.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::kinds::{Kind, Source};
use crate::pod::ContainerNotifier;

const CONTAINER: &str = "io.k8s.api.core.v1.Container";
const EPHEMERAL_CONTAINER: &str = "io.k8s.api.core.v1.EphemeralContainer";
const CORE: &str = "io.k8s.api.core.v1.";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
pub(super) const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
pub(super) const REF_PREFIX: &str = "#/components/schemas/";

/// The definitions of `kinds` and of all that they refer to, by name.
pub(super) fn definitions<'a>(kinds: impl IntoIterator<Item = &'a Kind>) -> Map<String, Value> {
    let mut generator = generator();
    let mut custom = Vec::new();
    for kind in kinds {
        match &kind.source {
            Source::Generated(generate) => generate(&mut generator),
            Source::Custom(crd) => {
                custom.push((kind, &**crd));
                generator
                    .subschema_for::<k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>();
            }
        }
    }
    if generator.definitions().contains_key(CONTAINER) {
        add_container_fields(&mut generator);
    }
    let mut definitions = generator.take_definitions(false);
    for (kind, crd) in custom {
        let schema = crd
            .spec
            .versions
            .iter()
            .find(|version| version.name == kind.version)
            .and_then(|version| version.schema.as_ref())
            .and_then(|schema| schema.open_api_v3_schema.as_ref())
            .and_then(|schema| serde_json::to_value(schema).ok());
        if let Some(schema) = schema {
            definitions.insert(kind.definition.clone(), whole_object(schema));
        }
    }
    definitions
}

/// References point to where an OpenAPI document keeps its definitions.
fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .into_generator()
}

/// What this product adds to a container: upstream's type does not know these fields. Ephemeral
/// containers have them too, so that a pod which uses them there is told that it may not, rather
/// than losing them as unknown.
fn add_container_fields(generator: &mut SchemaGenerator) {
    let mut notifier = generator.subschema_for::<ContainerNotifier>().to_value();
    let definitions = generator.definitions_mut();
    name_own_definitions(definitions, &mut notifier);
    let fields = json!({
        "notifiers": {
            "description": "Named actions of this container that can be triggered on demand with a \
                PodNotification. Names are unique in the container. Cannot be updated. Not allowed \
                for ephemeral containers, nor for init containers that do not restart.",
            "type": "array",
            "items": notifier,
        },
        "stopSignal": {
            "description": "The signal sent to the container's first process to stop it, for \
                example SIGUSR1. Defaults to the image's own, else to SIGTERM. If \
                lifecycle.stopSignal is set as well, both must be the same. Cannot be updated. Not \
                allowed for ephemeral containers, nor for init containers that do not restart.",
            "type": "string",
        },
    });
    for name in [CONTAINER, EPHEMERAL_CONTAINER] {
        if let Some(Value::Object(properties)) = definitions
            .get_mut(name)
            .and_then(|definition| definition.get_mut("properties"))
            && let Value::Object(fields) = &fields
        {
            properties.extend(fields.clone());
        }
    }
}

/// Gives the product's own types, which call themselves by their bare name, a full one beside the
/// container that they belong to.
fn name_own_definitions(definitions: &mut Map<String, Value>, notifier: &mut Value) {
    let own: Vec<String> = definitions
        .keys()
        .filter(|name| !name.contains('.'))
        .cloned()
        .collect();
    rename_references(notifier);
    for name in own {
        if let Some(mut definition) = definitions.remove(&name) {
            rename_references(&mut definition);
            definitions.insert(format!("{CORE}{name}"), definition);
        }
    }
}

fn rename_references(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                match inner {
                    Value::String(target) if key == "$ref" => {
                        if let Some(name) = target.strip_prefix(REF_PREFIX)
                            && !name.contains('.')
                        {
                            *target = format!("{REF_PREFIX}{CORE}{name}");
                        }
                    }
                    inner => rename_references(inner),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(rename_references),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A CRD's schema leaves out what every object has.
fn whole_object(mut schema: Value) -> Value {
    if let Some(properties) = schema
        .as_object_mut()
        .map(|schema| schema.entry("properties").or_insert_with(|| json!({})))
        .and_then(Value::as_object_mut)
    {
        properties.extend(type_meta());
        properties.insert(
            "metadata".to_owned(),
            json!({
                "description": "Standard object's metadata.",
                "$ref": format!("{REF_PREFIX}{OBJECT_META}"),
            }),
        );
    }
    schema
}

/// `apiVersion` and `kind`, described.
pub(super) fn type_meta() -> Map<String, Value> {
    let mut properties = Map::new();
    properties.insert(
        "apiVersion".to_owned(),
        json!({ "description": "The group and version of this object's kind.", "type": "string" }),
    );
    properties.insert(
        "kind".to_owned(),
        json!({ "description": "What this object is, in CamelCase.", "type": "string" }),
    );
    properties
}
