//! Roles and their bindings. Who may write them is decided in [`crate::admission`].

use belay_api::metadata::NameRule;
use belay_api::rbac::GROUP;
use jiff::Timestamp;
use serde_json::Value;

use super::{Column, Kind, Plain, age, column, text};

const NAME: Column = Column {
    name: "Name",
    format: "name",
    description: "Its name.",
    priority: 0,
};

const ROLE_COLUMNS: &[Column] = &[NAME, column("Created At", 0, "When it was created.")];

const BINDING_COLUMNS: &[Column] = &[
    NAME,
    column("Role", 0, "The role whose rights it gives."),
    column("Age", 0, "Time since it was created."),
    column("Users", 1, "The users it gives them to."),
    column("Groups", 1, "The groups it gives them to."),
    column(
        "ServiceAccounts",
        1,
        "The service accounts it gives them to.",
    ),
];

fn role_cells(role: &Value, _: Timestamp) -> Vec<Value> {
    vec![
        text(role, "/metadata/name").into(),
        text(role, "/metadata/creationTimestamp").into(),
    ]
}

fn binding_cells(binding: &Value, now: Timestamp) -> Vec<Value> {
    let subjects = |kind: &str| {
        let subjects = binding.get("subjects").and_then(Value::as_array);
        let of_kind = subjects.into_iter().flatten().filter(|s| s["kind"] == kind);
        let names: Vec<String> = of_kind
            .map(|subject| match kind {
                "ServiceAccount" => {
                    format!("{}/{}", text(subject, "/namespace"), text(subject, "/name"))
                }
                _ => text(subject, "/name").to_owned(),
            })
            .collect();
        names.join(", ")
    };
    let (kind, name) = (
        text(binding, "/roleRef/kind"),
        text(binding, "/roleRef/name"),
    );
    vec![
        text(binding, "/metadata/name").into(),
        format!("{kind}/{name}").into(),
        age::of(binding, now),
        subjects("User").into(),
        subjects("Group").into(),
        subjects("ServiceAccount").into(),
    ]
}

pub(super) static ROLES: Kind = Kind {
    group: GROUP,
    version: "v1",
    kind: "Role",
    plural: "roles",
    singular: "role",
    short_names: &[],
    categories: &[],
    namespaced: true,
    name_rule: NameRule::PathSegment,
    subresources: &[],
    fields: &[],
    columns: ROLE_COLUMNS,
    cells: role_cells,
    strategic_merge: true,
    generation: false,
    unconditional_update: true,
    gate: None,
    expires_after: None,
    audited: &[],
    strategy: &Plain(belay_api::rules::ROLE),
};

pub(super) static CLUSTER_ROLES: Kind = Kind {
    kind: "ClusterRole",
    plural: "clusterroles",
    singular: "clusterrole",
    namespaced: false,
    strategy: &Plain(belay_api::rules::CLUSTER_ROLE),
    ..ROLES
};

pub(super) static ROLE_BINDINGS: Kind = Kind {
    kind: "RoleBinding",
    plural: "rolebindings",
    singular: "rolebinding",
    columns: BINDING_COLUMNS,
    cells: binding_cells,
    audited: &["/roleRef/kind", "/roleRef/name"],
    strategy: &Plain(belay_api::rules::ROLE_BINDING),
    ..ROLES
};

pub(super) static CLUSTER_ROLE_BINDINGS: Kind = Kind {
    kind: "ClusterRoleBinding",
    plural: "clusterrolebindings",
    singular: "clusterrolebinding",
    namespaced: false,
    strategy: &Plain(belay_api::rules::CLUSTER_ROLE_BINDING),
    ..ROLE_BINDINGS
};

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_binding_shows_its_role_and_its_subjects_by_kind() {
        let binding = json!({
            "metadata": {"name": "b", "creationTimestamp": "1970-01-01T00:00:00Z"},
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [
                {"kind": "User", "name": "ann"},
                {"kind": "User", "name": "bob"},
                {"kind": "Group", "name": "ops"},
                {"kind": "ServiceAccount", "namespace": "a", "name": "sa"},
            ],
        });
        let cells = binding_cells(&binding, Timestamp::UNIX_EPOCH);
        assert_eq!(cells, ["b", "Role/r", "0s", "ann, bob", "ops", "a/sa"]);
    }
}
