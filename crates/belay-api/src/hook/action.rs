//! `HookAction`: what hooks run, named so that many can run it.

// `KubeSchema` repeats the struct inside a function, where `pub` reaches nobody.
#![allow(unreachable_pub)]

use std::time::Duration;

use k8s_openapi::api::core::v1::{ExecAction, HTTPGetAction, Probe, SleepAction, TCPSocketAction};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// How long an action is tried that does not say so.
pub const DEFAULT_ACTION_TIMEOUT_SECONDS: i64 = 30;

/// What a HookAction has beside its metadata: it has no spec.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.k8s.io",
    version = "v1alpha1",
    kind = "HookAction",
    plural = "hookactions",
    shortname = "ha",
    namespaced,
    no_spec,
    derive = "PartialEq",
    doc = "HookAction is an action that ExecutionHooks run in containers. Any number of hooks can refer to it. A hook keeps what the action was when it started: later changes are for later hooks.",
    annotation(
        "api-approved.kubernetes.io",
        "unapproved, implements a design that upstream closed unbuilt"
    ),
    printcolumn(
        name = "Timeout",
        type_ = "integer",
        json_path = ".actionTimeoutSeconds"
    ),
    printcolumn(
        name = "Command",
        type_ = "string",
        json_path = ".action.exec.command",
        priority = "1"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct HookActionFields {
    /// What to do in each container. It must be idempotent: it may run more than once, and is tried
    /// again when it fails. Only the latest result is recorded. Required.
    pub action: Handler,

    /// Seconds after its first start in a container after which the action is not tried again there
    /// and, if it still runs, is stopped. Defaults to 30, at least 1.
    #[serde(default = "default_action_timeout_seconds")]
    #[schemars(range(min = 1))]
    pub action_timeout_seconds: i64,
}

pub(crate) fn default_action_timeout_seconds() -> i64 {
    DEFAULT_ACTION_TIMEOUT_SECONDS
}

/// What to do in a container: exactly one of exec, httpGet and tcpSocket.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("(has(self.exec) ? 1 : 0) + (has(self.httpGet) ? 1 : 0) + (has(self.tcpSocket) ? 1 : 0) == 1").message("must specify exactly one of exec, httpGet and tcpSocket"),
    validation = Rule::new("!has(self.sleep)").message("sleep does nothing in a container; use exec, httpGet or tcpSocket"),
    validation = Rule::new("!has(self.exec) || (has(self.exec.command) && size(self.exec.command) > 0)").message("exec.command is required"),
    validation = Rule::new("!has(self.httpGet) || !has(self.httpGet.host)").message("httpGet.host is forbidden: the request goes to the pod"),
    validation = Rule::new("!has(self.tcpSocket) || !has(self.tcpSocket.host)").message("tcpSocket.host is forbidden: the connection goes to the pod"),
    validation = Rule::new("!has(self.httpGet) || !has(self.httpGet.scheme) || self.httpGet.scheme in ['HTTP', 'HTTPS']").message("httpGet.scheme must be HTTP or HTTPS")
)]
pub struct Handler {
    /// A command to run inside the container. It is not run in a shell. It has succeeded when it
    /// exits with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecAction>,

    /// A request to the address of the pod. It has succeeded when the answer is 200 to 399. `host`
    /// may not be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HTTPGetAction>,

    /// A connection to the address of the pod. It has succeeded when it was made. `host` may not be
    /// set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TCPSocketAction>,

    /// Not allowed here; the lifecycle hooks of a container know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<SleepAction>,
}

/// Why an action cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    #[error("the action must have exactly one of exec, httpGet and tcpSocket")]
    Handler,
}

impl Handler {
    /// The same as a probe that is tried once, which is how it is run. The `sleep` of an action that
    /// no rule has seen is none of them.
    ///
    /// # Errors
    ///
    /// When not exactly one of its kinds is set.
    pub fn probe(&self) -> Result<Probe, ActionError> {
        let one = Probe {
            exec: self.exec.clone(),
            http_get: self.http_get.clone(),
            tcp_socket: self.tcp_socket.clone(),
            ..Probe::default()
        };
        let given = [
            self.exec.is_some(),
            self.http_get.is_some(),
            self.tcp_socket.is_some(),
        ];
        match given.iter().filter(|given| **given).count() {
            1 if self.sleep.is_none() => Ok(one),
            _ => Err(ActionError::Handler),
        }
    }
}

impl HookActionFields {
    /// How long the action is tried in a container, counted from its first start there.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(
            u64::try_from(self.action_timeout_seconds)
                .unwrap_or_default()
                .max(1),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_action_stands_at_the_top_of_its_object() {
        let text = json!({
            "apiVersion": "apps.k8s.io/v1alpha1",
            "kind": "HookAction",
            "metadata": {"name": "action-demo"},
            "action": {"exec": {"command": ["run_quiesce.sh"]}},
            "actionTimeoutSeconds": 10,
        });
        let action: HookAction = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(action.spec.timeout(), Duration::from_secs(10));
        assert_eq!(serde_json::to_value(&action).unwrap(), text);
        let mut bare = text;
        bare.as_object_mut().unwrap().remove("actionTimeoutSeconds");
        let action: HookAction = serde_json::from_value(bare).unwrap();
        assert_eq!(action.spec.timeout(), Duration::from_secs(30));
    }

    #[test]
    fn an_action_has_exactly_one_handler() {
        let handler = |value| serde_json::from_value::<Handler>(value).unwrap().probe();
        for good in [
            json!({"exec": {"command": ["a"]}}),
            json!({"httpGet": {"port": 80}}),
            json!({"tcpSocket": {"port": "web"}}),
        ] {
            handler(good).unwrap();
        }
        for bad in [
            json!({}),
            json!({"sleep": {"seconds": 1}}),
            json!({"exec": {"command": ["a"]}, "sleep": {"seconds": 1}}),
            json!({"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}),
        ] {
            assert_eq!(handler(bad), Err(ActionError::Handler));
        }
    }
}
