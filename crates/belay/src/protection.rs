//! Whether a stock cluster has the admission policies that make triggering a right of its own.
//!
//! The embedded server enforces the same rules itself and serves no policies. It is known by what no
//! other server says of itself; any other that serves none, because it is too old or was told not to,
//! protects nothing.
//!
//! What is there is compared with what this version prints, in the parts that decide: a policy that
//! somebody emptied, or a binding that leaves a namespace out, has the right name and protects nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use belay_api::rbac::{NOTIFIERS, NOTIFY};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject};
use serde_json::{Map, Value};
use tracing::warn;

use crate::cli::{ClusterArgs, Executor};
use crate::manifests;

/// How long to wait for a server that does not answer.
const RETRY: Duration = Duration::from_secs(2);

const POLICY: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";
/// The parts of a policy that decide what it refuses.
const DECIDING: [&str; 5] = [
    "matchConstraints",
    "matchConditions",
    "paramKind",
    "variables",
    "validations",
];
/// The parts of a binding that can leave requests out.
const NARROWING: [&str; 2] = ["matchResources", "paramRef"];
/// What only words a refusal.
const WORDING: [&str; 3] = ["message", "messageExpression", "reason"];
/// What a server fills in, where it means what leaving it out means.
const DEFAULTS: [(&str, &str); 2] = [("matchPolicy", "Equivalent"), ("scope", "*")];

/// The cluster's policies or bindings by name.
type Found = BTreeMap<String, Value>;

/// Refuses a cluster that is not protected, unless that is allowed. Waits for a server that is away.
pub(crate) async fn require(
    client: &Client,
    args: &ClusterArgs,
    executor: Executor,
) -> anyhow::Result<()> {
    let (namespace, allowed) = (&args.lease_namespace, args.allow_unprotected_triggers);
    let printed = manifests::printed_policies(namespace, executor)?;
    let faults = loop {
        match look(client, &printed).await {
            Ok(faults) => break faults,
            // A server that is busy, or not up yet, has not answered.
            Err(kube::Error::Api(status)) if status.code == 429 || status.code >= 500 => {
                warn!(error = %status, "the API server cannot answer now; trying again");
                tokio::time::sleep(RETRY).await;
            }
            Err(error @ kube::Error::Api(_)) => {
                if allowed {
                    warn!(%error, "whether the cluster has Belay's admission policies cannot be read; going on as told");
                    return Ok(());
                }
                return Err(anyhow::Error::new(error)).context(
                    "cannot read whether the cluster has Belay's admission policies: this role needs to get validatingadmissionpolicies and validatingadmissionpolicybindings (`belay manifests | kubectl apply -f -` grants it)",
                );
            }
            Err(error) => {
                warn!(%error, "the API server does not answer; trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    if faults.is_empty() {
        return Ok(());
    }
    let faults = faults.join("; ");
    if allowed {
        warn!("the cluster does not protect triggers: {faults}; going on as told");
        return Ok(());
    }
    Err(anyhow!(
        "the cluster does not protect triggers: {faults}. Install the policies of this version with `belay manifests -n {namespace} | kubectl apply -f -`, or go without them with --allow-unprotected-triggers"
    ))
}

/// What is wrong with the cluster's protection.
async fn look(client: &Client, printed: &[Value]) -> kube::Result<Vec<String>> {
    if is_embedded(client).await? {
        return Ok(Vec::new());
    }
    if !serves_policies(client).await? {
        return Ok(vec![
            "its API server does not serve ValidatingAdmissionPolicies (admissionregistration.k8s.io/v1, Kubernetes 1.30 or later)".to_owned(),
        ]);
    }
    let kinds = [
        (POLICY, ApiResource::erase::<ValidatingAdmissionPolicy>(&())),
        (
            BINDING,
            ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&()),
        ),
    ];
    let mut found = [Found::new(), Found::new()];
    for ((kind, resource), found) in kinds.iter().zip(&mut found) {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
        for name in printed.iter().filter(|it| it["kind"] == *kind).map(name) {
            if let Some(object) = api.get_opt(name).await? {
                found.insert(name.to_owned(), object.data);
            }
        }
    }
    let [policies, bindings] = found;
    Ok(faults(printed, &policies, &bindings))
}

/// Whether this is Belay's own server. Its discovery lists `notifiers`, a resource without objects
/// whose verb no definition can have; with its gate off it still has its own version.
async fn is_embedded(client: &Client) -> kube::Result<bool> {
    let own = format!("{}/{}", belay_api::GROUP, belay_api::VERSION);
    let listed = match client.list_api_group_resources(&own).await {
        Ok(list) => list
            .resources
            .iter()
            .any(|it| it.name == NOTIFIERS && it.verbs.iter().any(|verb| verb == NOTIFY)),
        Err(kube::Error::Api(status)) if status.code == 404 => false,
        Err(error) => return Err(error),
    };
    Ok(listed
        || client
            .apiserver_version()
            .await?
            .git_version
            .contains("+belay-"))
}

async fn serves_policies(client: &Client) -> kube::Result<bool> {
    let group = client
        .list_api_group_resources("admissionregistration.k8s.io/v1")
        .await;
    match group {
        Ok(list) => Ok(list
            .resources
            .iter()
            .any(|resource| resource.name == "validatingadmissionpolicies")),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// What is missing, or does not refuse what it should.
fn faults(printed: &[Value], policies: &Found, bindings: &Found) -> Vec<String> {
    let mut faults = Vec::new();
    for wanted in printed {
        let (name, kind) = (name(wanted), wanted["kind"].as_str().unwrap_or_default());
        let found = match kind {
            POLICY => policies.get(name),
            _ => bindings.get(name),
        };
        let Some(found) = found else {
            faults.push(format!("there is no {kind} {name}"));
            continue;
        };
        let (is, should) = (&found["spec"], &wanted["spec"]);
        faults.extend(match kind {
            POLICY => policy_faults(name, is, should),
            _ => binding_fault(name, is),
        });
    }
    faults
}

fn policy_faults(name: &str, is: &Value, should: &Value) -> Option<String> {
    // Fail is what a policy does that does not say.
    if is["failurePolicy"].as_str().unwrap_or("Fail") != "Fail" {
        return Some(format!("{POLICY} {name} does not have failurePolicy Fail"));
    }
    let part = changed(&DECIDING, is, should)?;
    Some(format!(
        "{POLICY} {name} was changed (spec.{part}): apply the manifests of this version again"
    ))
}

fn binding_fault(name: &str, is: &Value) -> Option<String> {
    let actions = is["validationActions"].as_array();
    let denies = actions.is_some_and(|actions| actions.iter().any(|it| it == "Deny"));
    if !denies || is["policyName"] != name {
        return Some(format!(
            "{BINDING} {name} does not deny what policy {name} refuses"
        ));
    }
    let part = changed(&NARROWING, is, &Value::Null)?;
    Some(format!(
        "{BINDING} {name} was changed (spec.{part}) and leaves requests out: apply the manifests of this version again"
    ))
}

/// The first of these parts that does not say what it should.
fn changed<'a>(parts: &[&'a str], is: &Value, should: &Value) -> Option<&'a str> {
    let differs = |part: &&&str| normal(&is[**part]) != normal(&should[**part]);
    parts.iter().find(differs).copied()
}

/// A value without what makes no difference: nothing, empty, worded otherwise, or filled in by the
/// server.
fn normal(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) => {
            let items: Vec<Value> = items.iter().filter_map(normal).collect();
            (!items.is_empty()).then_some(Value::Array(items))
        }
        Value::Object(fields) => {
            let counts = |(key, value): &(&String, &Value)| {
                !WORDING.contains(&key.as_str())
                    && !DEFAULTS
                        .iter()
                        .any(|(field, it)| key == field && value == it)
            };
            let kept = fields.iter().filter(counts);
            let fields: Map<String, Value> = kept
                .filter_map(|(key, value)| Some((key.clone(), normal(value)?)))
                .collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Some(value.clone()),
    }
}

#[cfg(test)]
mod tests;
