//! Whether a stock cluster has the admission policies that make triggering a right of its own.
//!
//! The embedded server enforces the same rules itself and serves no policies; a server that does not
//! know the kind is taken for one that needs none.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use belay_api::policies;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::Api;
use kube::{Client, ResourceExt as _};
use tracing::warn;

/// How long to wait for a server that does not answer.
const RETRY: Duration = Duration::from_secs(2);

/// Refuses a cluster that is not protected, unless that is `allowed`. Waits for a server that is
/// away.
pub(crate) async fn require(client: &Client, allowed: bool) -> anyhow::Result<()> {
    let faults = loop {
        match look(client).await {
            Ok(faults) => break faults,
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
        "the cluster does not protect triggers: {faults}. Install the policies with `belay manifests | kubectl apply -f -`, or go without them with --allow-unprotected-triggers"
    ))
}

/// What is wrong with the cluster's protection.
async fn look(client: &Client) -> kube::Result<Vec<String>> {
    let group = client
        .list_api_group_resources("admissionregistration.k8s.io/v1")
        .await;
    let served = match group {
        Ok(list) => list
            .resources
            .iter()
            .any(|resource| resource.name == "validatingadmissionpolicies"),
        Err(kube::Error::Api(status)) if status.code == 404 => false,
        Err(error) => return Err(error),
    };
    if !served {
        return Ok(Vec::new());
    }
    let all: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bound: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let (mut found, mut bindings) = (BTreeMap::new(), BTreeMap::new());
    for name in policies::ALL {
        if let Some(policy) = all.get_opt(name).await? {
            found.insert(policy.name_any(), policy);
        }
        if let Some(binding) = bound.get_opt(name).await? {
            bindings.insert(binding.name_any(), binding);
        }
    }
    Ok(faults(&found, &bindings))
}

/// What is missing, or does not refuse what it should.
fn faults(
    found: &BTreeMap<String, ValidatingAdmissionPolicy>,
    bindings: &BTreeMap<String, ValidatingAdmissionPolicyBinding>,
) -> Vec<String> {
    let mut faults = Vec::new();
    for name in policies::ALL {
        match found.get(name) {
            None => {
                faults.push(format!("there is no ValidatingAdmissionPolicy {name}"));
                continue;
            }
            Some(policy) => {
                let on_failure = policy
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.failure_policy.as_deref());
                // Fail is what a policy does that does not say.
                if on_failure.unwrap_or("Fail") != "Fail" {
                    faults.push(format!(
                        "ValidatingAdmissionPolicy {name} does not have failurePolicy Fail"
                    ));
                }
            }
        }
        let binding = bindings.get(name).map(|binding| &binding.spec);
        match binding {
            None => faults.push(format!(
                "there is no ValidatingAdmissionPolicyBinding {name}"
            )),
            Some(spec) => {
                let denies = spec
                    .validation_actions
                    .iter()
                    .any(|action| action == "Deny");
                if !denies || spec.policy_name != name {
                    faults.push(format!(
                        "ValidatingAdmissionPolicyBinding {name} does not deny what policy {name} refuses"
                    ));
                }
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn policy(name: &str, failure: &str) -> (String, ValidatingAdmissionPolicy) {
        let value = json!({"metadata": {"name": name}, "spec": {"failurePolicy": failure}});
        (name.to_owned(), serde_json::from_value(value).unwrap())
    }

    fn binding(
        name: &str,
        policy: &str,
        actions: &Value,
    ) -> (String, ValidatingAdmissionPolicyBinding) {
        let value = json!({"metadata": {"name": name},
            "spec": {"policyName": policy, "validationActions": actions}});
        (name.to_owned(), serde_json::from_value(value).unwrap())
    }

    fn complete() -> (
        BTreeMap<String, ValidatingAdmissionPolicy>,
        BTreeMap<String, ValidatingAdmissionPolicyBinding>,
    ) {
        let policies = policies::ALL.map(|name| policy(name, "Fail")).into();
        let bindings = policies::ALL
            .map(|name| binding(name, name, &json!(["Deny", "Audit"])))
            .into();
        (policies, bindings)
    }

    #[test]
    fn a_cluster_with_all_policies_and_bindings_is_protected() {
        let (policies, bindings) = complete();
        assert!(faults(&policies, &bindings).is_empty());
    }

    #[test]
    fn whatever_is_missing_or_toothless_is_named() {
        assert_eq!(faults(&BTreeMap::new(), &BTreeMap::new()).len(), 3);
        for name in policies::ALL {
            let (mut policies, bindings) = complete();
            policies.remove(name);
            let expected = [format!("there is no ValidatingAdmissionPolicy {name}")];
            assert_eq!(faults(&policies, &bindings), expected);
            policies.extend([policy(name, "Ignore")]);
            let expected = [format!(
                "ValidatingAdmissionPolicy {name} does not have failurePolicy Fail"
            )];
            assert_eq!(faults(&policies, &bindings), expected);

            let (policies, mut bindings) = complete();
            bindings.remove(name);
            let expected = [format!(
                "there is no ValidatingAdmissionPolicyBinding {name}"
            )];
            assert_eq!(faults(&policies, &bindings), expected);
            for toothless in [
                binding(name, name, &json!(["Warn"])),
                binding(name, "another", &json!(["Deny"])),
            ] {
                bindings.extend([toothless]);
                let found = faults(&policies, &bindings);
                assert!(found[0].contains("does not deny"), "{found:?}");
            }
        }
    }
}
