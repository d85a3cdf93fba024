//! What counts as protected, on the manifests that this version prints, and against servers that
//! answer from a script.

use http::{Request, Response};
use kube::client::Body;
use serde_json::json;

use super::*;

const NAMESPACE: &str = "belay-system";

fn printed(executor: Executor) -> Vec<Value> {
    manifests::printed_policies(NAMESPACE, executor).unwrap()
}

/// What an API server gives back of what it was given: with its defaults.
fn installed(executor: Executor) -> (Found, Found) {
    let (mut policies, mut bindings) = (Found::new(), Found::new());
    for mut object in printed(executor) {
        let name = name(&object).to_owned();
        object["metadata"]["generation"] = json!(1);
        if object["kind"] == POLICY {
            let constraints = &mut object["spec"]["matchConstraints"];
            constraints["matchPolicy"] = json!("Equivalent");
            constraints["objectSelector"] = json!({});
            if constraints["namespaceSelector"].is_null() {
                constraints["namespaceSelector"] = json!({});
            }
            for rule in constraints["resourceRules"].as_array_mut().unwrap() {
                rule["scope"] = json!("*");
            }
            object["status"] = json!({"observedGeneration": 1});
            policies.insert(name, object);
        } else {
            bindings.insert(name, object);
        }
    }
    (policies, bindings)
}

#[test]
fn what_this_version_prints_is_protection_with_a_server_s_defaults_too() {
    for executor in [Executor::Agent, Executor::Controller] {
        let (policies, bindings) = installed(executor);
        assert_eq!(policies.len(), manifests::required(executor).len());
        let none: [&str; 0] = [];
        assert_eq!(faults(&printed(executor), &policies, &bindings), none);
    }
}

#[test]
fn other_words_or_further_actions_are_no_change() {
    let (mut policies, mut bindings) = installed(Executor::Agent);
    for policy in policies.values_mut() {
        policy["spec"]["validations"][0]["message"] = json!("ask ann");
        policy["spec"]["failurePolicy"] = Value::Null;
    }
    for binding in bindings.values_mut() {
        binding["spec"]["validationActions"] = json!(["Audit", "Deny"]);
        let nothing = json!({"matchPolicy": "Equivalent", "namespaceSelector": {}});
        binding["spec"]["matchResources"] = nothing;
    }
    assert!(faults(&printed(Executor::Agent), &policies, &bindings).is_empty());
}

#[test]
fn whatever_is_missing_or_toothless_is_named() {
    let printed = printed(Executor::Agent);
    let none = faults(&printed, &Found::new(), &Found::new());
    assert_eq!(none.len(), 10);
    for name in manifests::required(Executor::Agent) {
        let check = |change: &dyn Fn(&mut Found, &mut Found), expected: &str| {
            let (mut policies, mut bindings) = installed(Executor::Agent);
            change(&mut policies, &mut bindings);
            let found = faults(&printed, &policies, &bindings);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].contains(expected) && found[0].contains(name),
                "{found:?} lacks {expected}"
            );
        };
        let policy = |path: &'static str, value: Value| {
            move |policies: &mut Found, _: &mut Found| {
                *policies.get_mut(*name).unwrap().pointer_mut(path).unwrap() = value.clone();
            }
        };
        let add = |field: &'static str, value: Value| {
            move |policies: &mut Found, bindings: &mut Found| {
                let (kind, field) = field.split_once('.').unwrap();
                let found = if kind == "policy" { policies } else { bindings };
                found.get_mut(*name).unwrap()["spec"][field] = value.clone();
            }
        };
        check(
            &|policies, _| drop(policies.remove(*name)),
            "there is no ValidatingAdmissionPolicy ",
        );
        check(
            &|_, bindings| drop(bindings.remove(*name)),
            "there is no ValidatingAdmissionPolicyBinding",
        );
        check(
            &policy("/spec/failurePolicy", json!("Ignore")),
            "does not have failurePolicy Fail",
        );
        check(
            &policy("/spec/validations", json!([])),
            "was changed (spec.validations)",
        );
        check(
            &policy("/spec/validations/0/expression", json!("true")),
            "was changed (spec.validations)",
        );
        check(
            &policy(
                "/spec/matchConstraints/resourceRules/0/operations",
                json!(["DELETE"]),
            ),
            "was changed (spec.matchConstraints)",
        );
        check(
            &policy(
                "/spec/matchConstraints/objectSelector",
                json!({"matchLabels": {"a": "b"}}),
            ),
            "was changed (spec.matchConstraints)",
        );
        check(
            &policy("/spec/matchConstraints/matchPolicy", json!("Exact")),
            "was changed (spec.matchConstraints)",
        );
        check(
            &add(
                "policy.matchConditions",
                json!([{"name": "no", "expression": "false"}]),
            ),
            "was changed (spec.matchConditions)",
        );
        check(
            &add(
                "policy.paramKind",
                json!({"apiVersion": "v1", "kind": "ConfigMap"}),
            ),
            "was changed (spec.paramKind)",
        );
        check(
            &add("binding.validationActions", json!(["Warn"])),
            "does not deny",
        );
        check(
            &add("binding.policyName", json!("another")),
            "does not deny",
        );
        let elsewhere = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
        check(
            &add("binding.matchResources", elsewhere),
            "was changed (spec.matchResources)",
        );
        check(
            &add("binding.paramRef", json!({"name": "p"})),
            "was changed (spec.paramRef)",
        );
    }
    let (mut policies, bindings) = installed(Executor::Agent);
    let status = policies.get_mut("belay-status").unwrap();
    status["spec"]["variables"][0]["expression"] = json!("true");
    let found = faults(&printed, &policies, &bindings);
    assert!(
        found[0].contains("belay-status was changed (spec.variables)"),
        "{found:?}"
    );
}

#[test]
fn policies_made_for_another_namespace_are_not_these() {
    let (policies, bindings) = installed(Executor::Agent);
    let elsewhere = manifests::printed_policies("elsewhere", Executor::Agent).unwrap();
    assert!(!faults(&elsewhere, &policies, &bindings).is_empty());
}

/// A server with these paths and nothing else.
fn server(paths: &[(&'static str, Value)]) -> Client {
    let paths: BTreeMap<&str, Value> = paths.iter().cloned().collect();
    let service = tower::service_fn(move |request: Request<Body>| {
        let found = paths.get(request.uri().path()).cloned();
        async move {
            let missing = json!({"kind": "Status", "status": "Failure", "code": 404,
                "reason": "NotFound", "message": "not found"});
            let code = if found.is_some() { 200 } else { 404 };
            let body = found.unwrap_or(missing).to_string().into_bytes();
            let answer = Response::builder()
                .status(code)
                .body(Body::from(body))
                .unwrap();
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    Client::new(service, "default")
}

fn version(git: &str) -> Value {
    json!({"major": "1", "minor": "28", "gitVersion": git, "gitCommit": "", "gitTreeState": "",
           "buildDate": "", "goVersion": "", "compiler": "", "platform": ""})
}

fn own(verbs: &[&str]) -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps.k8s.io/v1alpha1",
        "resources": [{"name": "notifiers", "singularName": "", "namespaced": true,
                       "kind": "Notifier", "verbs": verbs}]})
}

const OWN: &str = "/apis/apps.k8s.io/v1alpha1";

#[tokio::test]
async fn a_server_without_policies_is_the_embedded_one_or_refused() {
    let args = |allowed| ClusterArgs {
        lease_namespace: NAMESPACE.to_owned(),
        allow_unprotected_triggers: allowed,
    };
    let definition = [
        "create", "delete", "get", "list", "patch", "update", "watch",
    ];
    for (server, protected) in [
        (
            server(&[("/version", version("v1.36.0")), (OWN, own(&["notify"]))]),
            true,
        ),
        // Its gate is off: it serves nothing of its own.
        (
            server(&[("/version", version("v1.36.0+belay-0.1.0"))]),
            true,
        ),
        // A cluster too old for policies, before and after somebody made a definition of that name.
        (server(&[("/version", version("v1.28.3"))]), false),
        (
            server(&[("/version", version("v1.28.3")), (OWN, own(&definition))]),
            false,
        ),
    ] {
        let checked = require(&server, &args(false), Executor::Agent).await;
        match checked {
            Ok(()) => assert!(protected),
            Err(error) => {
                assert!(!protected, "{error}");
                let said = error.to_string();
                assert!(
                    said.contains("does not serve ValidatingAdmissionPolicies"),
                    "{said}"
                );
            }
        }
        require(&server, &args(true), Executor::Agent)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_server_that_is_busy_or_not_up_yet_is_asked_again() {
    for code in [429, 503] {
        let inner = server(&[("/version", version("v1.36.0+belay-0.1.0"))]);
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let service = tower::service_fn(move |request: Request<Body>| {
            let first = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
            let inner = inner.clone();
            async move {
                if first {
                    let body = json!({"kind": "Status", "status": "Failure", "code": code,
                        "reason": "x", "message": "not now"});
                    let body = Body::from(body.to_string().into_bytes());
                    return Ok(Response::builder().status(code).body(body).unwrap());
                }
                inner.send(request).await
            }
        });
        let args = ClusterArgs {
            lease_namespace: NAMESPACE.to_owned(),
            allow_unprotected_triggers: false,
        };
        let client = Client::new(service, "default");
        require(&client, &args, Executor::Agent).await.unwrap();
    }
}
