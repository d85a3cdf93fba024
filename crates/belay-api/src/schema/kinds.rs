//! The kinds that have a schema. Adding a built-in kind is one line; custom kinds come from the
//! CRDs of this crate by themselves.

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Binding, ConfigMap, Event, Namespace, Node, Pod, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{DeleteOptions, Status};
use schemars::{JsonSchema, SchemaGenerator};

/// A kind, and where its definition comes from.
pub(super) struct Kind {
    pub(super) kind: String,
    pub(super) group: String,
    pub(super) version: String,
    /// The name of its definition, as in upstream's OpenAPI documents.
    pub(super) definition: String,
    pub(super) source: Source,
}

pub(super) enum Source {
    /// Adds the definition, and all it refers to, to the generator.
    Generated(fn(&mut SchemaGenerator)),
    Custom(Box<CustomResourceDefinition>),
}

impl Kind {
    pub(super) fn is_custom(&self) -> bool {
        matches!(self.source, Source::Custom(_))
    }
}

pub(super) fn all() -> Vec<Kind> {
    let core = "";
    let rbac = crate::rbac::GROUP;
    let (authentication, authorization) = ("authentication.k8s.io", "authorization.k8s.io");
    let mut kinds = vec![
        built_in::<Pod>("Pod", core),
        built_in::<Node>("Node", core),
        built_in::<Namespace>("Namespace", core),
        built_in::<Event>("Event", core),
        built_in::<ConfigMap>("ConfigMap", core),
        built_in::<Secret>("Secret", core),
        built_in::<Binding>("Binding", core),
        built_in::<DaemonSet>("DaemonSet", "apps"),
        built_in::<Lease>("Lease", "coordination.k8s.io"),
        built_in::<Role>("Role", rbac),
        built_in::<ClusterRole>("ClusterRole", rbac),
        built_in::<RoleBinding>("RoleBinding", rbac),
        built_in::<ClusterRoleBinding>("ClusterRoleBinding", rbac),
        built_in::<SelfSubjectReview>("SelfSubjectReview", authentication),
        built_in::<SelfSubjectAccessReview>("SelfSubjectAccessReview", authorization),
        built_in::<SelfSubjectRulesReview>("SelfSubjectRulesReview", authorization),
        built_in::<SubjectAccessReview>("SubjectAccessReview", authorization),
        built_in::<LocalSubjectAccessReview>("LocalSubjectAccessReview", authorization),
        built_in::<DeleteOptions>("DeleteOptions", core),
        built_in::<Status>("Status", core),
    ];
    kinds.extend(crate::crd::crds().into_iter().filter_map(custom));
    kinds
}

fn built_in<T: JsonSchema>(kind: &str, group: &str) -> Kind {
    Kind {
        kind: kind.to_owned(),
        group: group.to_owned(),
        version: "v1".to_owned(),
        definition: T::schema_name().into_owned(),
        source: Source::Generated(|generator| {
            generator.subschema_for::<T>();
        }),
    }
}

/// A CRD names its definition by its group with the labels turned round, as a stock server does.
fn custom(crd: CustomResourceDefinition) -> Option<Kind> {
    let version = crd.spec.versions.iter().find(|version| version.storage)?;
    let reversed: Vec<&str> = crd.spec.group.rsplit('.').collect();
    Some(Kind {
        kind: crd.spec.names.kind.clone(),
        group: crd.spec.group.clone(),
        version: version.name.clone(),
        definition: format!(
            "{}.{}.{}",
            reversed.join("."),
            version.name,
            crd.spec.names.kind
        ),
        source: Source::Custom(Box::new(crd)),
    })
}
