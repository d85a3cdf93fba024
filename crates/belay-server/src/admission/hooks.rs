//! Hooks: what runs a command in containers takes the right to it.

use belay_api::hook::{FINALIZER, HOOK_LABEL};
use belay_api::rbac::{HOOK_ACTIONS, RUN};
use serde_json::Value;

use super::{joins, leaves, refused};
use crate::api::{Api, Call};
use crate::authority::Right;
use crate::identity::Role;
use crate::status::ApiResult;

impl Api {
    pub(super) fn admit_hook(
        &self,
        call: &Call<'_>,
        old: Option<&Value>,
        new: &Value,
    ) -> ApiResult<()> {
        match (call.resource.kind.plural, old) {
            ("executionhooks", None) => self.admit_run(call, new),
            ("hookactions", _) => self.admit_action(call, old, new),
            ("podactions", _) => admit_pod_action(call, old, new),
            _ => Ok(()),
        }
    }

    /// A hook runs the action that it names, which may be another one whenever it is created.
    fn admit_run(&self, call: &Call<'_>, new: &Value) -> ApiResult<()> {
        let kind = call.resource.kind;
        let action = new.pointer("/spec/actionName").and_then(Value::as_str);
        let action = action.unwrap_or_default();
        let right = Right {
            verb: RUN,
            group: belay_api::GROUP,
            resource: HOOK_ACTIONS,
            subresource: None,
            namespace: call.resource.namespace.as_deref(),
            name: Some(action),
        };
        if self.may(call.who, &right) {
            return Ok(());
        }
        let (user, group) = (&call.who.name, belay_api::GROUP);
        let namespace = right.namespace.unwrap_or_default();
        let why = format!(
            "User {user:?} may not run the action {action:?}: needs verb {RUN:?} on resource \
             {HOOK_ACTIONS:?} in API group {group:?}, resource name {action:?}, in the namespace \
             {namespace:?}"
        );
        Err(refused(kind, new, &why))
    }

    /// Who writes an action decides what others run in containers, so it takes the right to run
    /// anything there.
    fn admit_action(&self, call: &Call<'_>, old: Option<&Value>, new: &Value) -> ApiResult<()> {
        let same = |field: &str| old.is_some_and(|old| old.get(field) == new.get(field));
        if same("action") && same("actionTimeoutSeconds") {
            return Ok(());
        }
        let right = Right {
            verb: "create",
            group: "",
            resource: "pods",
            subresource: Some("exec"),
            namespace: call.resource.namespace.as_deref(),
            name: None,
        };
        if self.may(call.who, &right) {
            return Ok(());
        }
        let (user, namespace) = (&call.who.name, right.namespace.unwrap_or_default());
        let why = format!(
            "User {user:?} may not say what hooks run: needs verb \"create\" on resource \
             \"pods/exec\" in API group \"\", in the namespace {namespace:?}"
        );
        Err(refused(call.resource.kind, new, &why))
    }
}

/// Agents run what a podaction says, so only the controllers make one, from a hook whose creator was
/// asked. The administrator may do what the controllers do.
fn admit_pod_action(call: &Call<'_>, old: Option<&Value>, new: &Value) -> ApiResult<()> {
    let others = !matches!(call.who.role(), Role::Controller | Role::Admin);
    let moved =
        || joins(HOOK_LABEL, "ExecutionHook", old, new) || leaves(HOOK_LABEL, FINALIZER, old, new);
    if others && (old.is_none() || moved()) {
        let why = format!(
            "only the controller of Belay may create a podaction, make it part of another hook, or \
             take it out of one that has not told of it (the label {HOOK_LABEL}, an owner of the \
             kind ExecutionHook)"
        );
        return Err(refused(call.resource.kind, new, &why));
    }
    Ok(())
}
