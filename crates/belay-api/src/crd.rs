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
use crate::notification::{PodNotification, State};

/// Every definition that a cluster needs, in the order in which they are listed.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    [PodNotification::crd(), Notification::crd()]
        .map(with_state)
        .to_vec()
}

fn with_state(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for schema in schemas(&mut crd) {
        // The state reads New from the moment of creation, before anybody wrote a status: a
        // server fills the default in whenever it reads the object.
        if let Some(status) = property(schema, "status") {
            status.default = Some(JSON(json!({"state": State::New})));
        }
        forbid_null(schema);
    }
    crd
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

/// Without `nullable` a server prunes nulls. With it they would be kept, and `has()` in a CEL rule
/// would take them for values.
fn forbid_null(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
        .for_each(forbid_null);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        forbid_null(items);
    }
}
