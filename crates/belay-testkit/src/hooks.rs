//! Builders for hooks and their actions, and waiting for their ends.

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::Rest;

/// Where hooks of the namespace that tests use are found.
pub const HOOKS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/executionhooks";
/// Where their actions are found.
pub const HOOK_ACTIONS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/hookactions";
/// Where what they ask for in single pods is found.
pub const POD_ACTIONS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/podactions";

/// An action that is tried for so many seconds.
pub fn hook_action(name: &str, action: &Value, seconds: u32) -> Value {
    json!({
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "HookAction",
        "metadata": {"name": name},
        "action": action, "actionTimeoutSeconds": seconds,
    })
}

/// A command of a shell, as an action.
pub fn shell(script: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", script]}})
}

/// A hook that runs an action; say where with [`HookBuilder::pod`] or [`HookBuilder::labelled`].
pub fn hook(name: &str, action: &str) -> HookBuilder {
    HookBuilder {
        object: json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "ExecutionHook",
            "metadata": {"name": name},
            "spec": {"podSelection": {}, "actionName": action},
        }),
    }
}

#[derive(Debug, Clone)]
pub struct HookBuilder {
    object: Value,
}

impl HookBuilder {
    /// Names a pod and containers of it; none means all.
    pub fn pod(mut self, pod: &str, containers: &[&str]) -> Self {
        let list = &mut self.object["spec"]["podSelection"]["podContainerNamesList"];
        let mut named = list.as_array().cloned().unwrap_or_default();
        named.push(json!({"podName": pod, "containerNames": containers}));
        *list = json!(named);
        self
    }

    /// Selects pods by a label and of their containers those of these names; none means all.
    pub fn labelled(mut self, label: (&str, &str), containers: &[&str]) -> Self {
        let selector = &mut self.object["spec"]["podSelection"]["podContainerSelector"];
        *selector = json!({
            "podSelector": {"matchLabels": {label.0: label.1}}, "containerList": containers,
        });
        self
    }

    /// Sets any field of the spec.
    pub fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.object["spec"][field] = value.into();
        self
    }

    pub fn build(self) -> Value {
        self.object
    }
}

/// What a hook says of one container.
pub fn hooked<'a>(hook: &'a Value, pod: &str, container: &str) -> &'a Value {
    let statuses = hook["status"]["hookStatuses"].as_array();
    let one = |it: &&Value| it["podName"] == pod && it["containerName"] == container;
    statuses
        .and_then(|statuses| statuses.iter().find(one))
        .unwrap_or(&Value::Null)
}

impl Rest {
    /// Waits until the hook has ended; returns it.
    pub async fn hook_ended(&self, name: &str) -> anyhow::Result<Value> {
        self.until(&format!("{HOOKS}/{name}"), "its end", |hook| {
            hook["status"]["actionSucceed"]
                .is_boolean()
                .then(|| hook.clone())
        })
        .await
    }

    /// Creates the hook and waits until it has ended.
    pub async fn run_hook(&self, hook: &Value) -> anyhow::Result<Value> {
        let created = self.post(HOOKS, hook).await?.ok()?;
        let name = created["metadata"]["name"].as_str().context("no name")?;
        self.hook_ended(name).await
    }

    /// What the hook of this name asks for in single pods.
    pub async fn pod_actions(&self, hook: &str) -> anyhow::Result<Vec<Value>> {
        let list = self.get(POD_ACTIONS).await?.ok()?;
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let of = |one: &Value| one["spec"]["hook"]["name"] == hook;
        Ok(all.into_iter().filter(of).collect())
    }
}
