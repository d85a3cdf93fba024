//! The kinds as CustomResourceDefinitions, for a stock Kubernetes cluster.
//!
//! The rules of [`crate::rules`] are in them as far as a schema and CEL can say them, so that a
//! stock API server refuses by itself what the embedded one refuses.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;
use serde_json::json;

use crate::fanout::Notification;
use crate::hook::{ExecutionHook, HookAction, PodAction};
use crate::notification::{PodNotification, State};

/// What the name of a port looks like, but for two dashes in a row and a dash at either end.
const PORT_NAME: &str = "^[a-z0-9-]*[a-z][a-z0-9-]*$";

/// Every definition that a cluster needs, in the order in which they are listed.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        with_state(PodNotification::crd()),
        with_state(Notification::crd()),
        without_null(ExecutionHook::crd()),
        without_null(HookAction::crd()),
        with_state(PodAction::crd()),
    ]
}

fn with_state(crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut crd = without_null(crd);
    for schema in schemas(&mut crd) {
        // The state reads New from the moment of creation, before anybody wrote a status: a
        // server fills the default in whenever it reads the object.
        if let Some(status) = property(schema, "status") {
            status.default = Some(JSON(json!({"state": State::New})));
        }
    }
    crd
}

fn without_null(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    schemas(&mut crd).for_each(|schema| each(schema, &complete));
    crd
}

fn complete(schema: &mut JSONSchemaProps) {
    // Without `nullable` a server prunes nulls. With it they would be kept, and `has()` in a CEL
    // rule would take them for values.
    schema.nullable = None;
    // Servers of Kubernetes 1.32 to 1.35 drop the format, and would take a number that no reader can
    // hold.
    if schema.format.as_deref() == Some("int32") {
        schema.minimum.get_or_insert(f64::from(i32::MIN));
        schema.maximum.get_or_insert(f64::from(i32::MAX));
    }
    // The type says nothing of its values. All that are numbers or names here are ports.
    if schema.x_kubernetes_int_or_string == Some(true) {
        schema.minimum = Some(1.0);
        schema.maximum = Some(65535.0);
        schema.max_length = Some(15);
        schema.pattern = Some(PORT_NAME.to_owned());
    }
}

fn schemas(crd: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    crd.spec
        .versions
        .iter_mut()
        .filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
}

fn property<'a>(schema: &'a mut JSONSchemaProps, name: &str) -> Option<&'a mut JSONSchemaProps> {
    schema.properties.as_mut()?.get_mut(name)
}

fn each(schema: &mut JSONSchemaProps, change: &impl Fn(&mut JSONSchemaProps)) {
    change(schema);
    let properties = schema.properties.iter_mut();
    for property in properties.flat_map(|properties| properties.values_mut()) {
        each(property, change);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        each(items, change);
    }
}
