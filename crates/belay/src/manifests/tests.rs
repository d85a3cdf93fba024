//! What is printed is what Kubernetes understands, and gives nobody more than they use.

use std::collections::BTreeMap;

use belay_api::rbac::{Access, PolicyRule};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::*;

fn objects(executor: Executor) -> Vec<Value> {
    let text = text("belay-system", "example.com/belay:1", executor).unwrap();
    text.split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

/// Reads an object as its type and back: what the type does not know would be lost.
fn read<T: DeserializeOwned + serde::Serialize>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone())
        .unwrap_or_else(|error| panic!("{error}: {object:#}"));
    assert_eq!(serde_json::to_value(typed).unwrap(), *object);
}

fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    objects
        .iter()
        .find(|o| o["kind"] == kind && o["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn rules(objects: &[Value], name: &str) -> Vec<PolicyRule> {
    let of_name = |o: &&Value| {
        matches!(o["kind"].as_str(), Some("ClusterRole" | "Role")) && o["metadata"]["name"] == name
    };
    let roles = objects.iter().filter(of_name);
    roles
        .flat_map(|role| serde_json::from_value::<Vec<PolicyRule>>(role["rules"].clone()).unwrap())
        .collect()
}

fn may(rules: &[PolicyRule], verb: &str, group: &str, resource: &str) -> bool {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub)),
        None => (resource, None),
    };
    let access = Access::Resource {
        verb,
        group,
        resource,
        subresource,
        name: None,
    };
    rules.iter().any(|rule| rule.allows(&access))
}

#[test]
fn every_object_is_one_that_kubernetes_knows_field_by_field() {
    for executor in [Executor::Agent, Executor::Controller] {
        for object in objects(executor) {
            match object["kind"].as_str().unwrap() {
                "Namespace" => read::<Namespace>(&object),
                "ServiceAccount" => read::<ServiceAccount>(&object),
                "ClusterRole" => read::<ClusterRole>(&object),
                "ClusterRoleBinding" => read::<ClusterRoleBinding>(&object),
                "Role" => read::<Role>(&object),
                "RoleBinding" => read::<RoleBinding>(&object),
                "ValidatingAdmissionPolicy" => read::<ValidatingAdmissionPolicy>(&object),
                "ValidatingAdmissionPolicyBinding" => {
                    read::<ValidatingAdmissionPolicyBinding>(&object);
                }
                "DaemonSet" => read::<DaemonSet>(&object),
                "Deployment" => read::<Deployment>(&object),
                "CustomResourceDefinition" => {}
                other => panic!("{other} is not expected"),
            }
        }
    }
}

#[test]
fn nothing_is_printed_twice_and_no_blank_is_left() {
    for executor in [Executor::Agent, Executor::Controller] {
        let mut seen = BTreeMap::new();
        for object in objects(executor) {
            let place = (
                object["kind"].to_string(),
                object["metadata"]["namespace"].to_string(),
                object["metadata"]["name"].to_string(),
            );
            *seen.entry(place).or_insert(0) += 1;
        }
        assert!(seen.values().all(|count| *count == 1), "{seen:?}");
        let text = text("other", "i", executor).unwrap();
        assert!(!text.contains("${"), "{text}");
        assert!(
            !text.contains("belay-system"),
            "the namespace can be chosen"
        );
    }
}

#[test]
fn the_policies_are_there_bound_and_closed_when_in_doubt() {
    for executor in [Executor::Agent, Executor::Controller] {
        let objects = objects(executor);
        for name in required(executor) {
            let policy = named(&objects, "ValidatingAdmissionPolicy", name);
            assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{name}");
            let binding = named(&objects, "ValidatingAdmissionPolicyBinding", name);
            assert_eq!(binding["spec"]["policyName"], *name);
            assert_eq!(binding["spec"]["validationActions"][0], "Deny");
            assert!(binding["spec"].get("matchResources").is_none(), "{name}");
        }
    }
}

#[test]
fn with_agents_nobody_may_exec() {
    for object in objects(Executor::Agent) {
        let kind = object["kind"].as_str();
        if matches!(kind, Some("Role" | "ClusterRole")) {
            let rules: Vec<PolicyRule> = serde_json::from_value(object["rules"].clone()).unwrap();
            for verb in ["create", "get"] {
                let name = &object["metadata"]["name"];
                assert!(!may(&rules, verb, "", "pods/exec"), "{name}");
            }
        }
    }
    let without_agents = objects(Executor::Controller);
    assert!(may(
        &rules(&without_agents, "belay-executor"),
        "create",
        "",
        "pods/exec"
    ));
    assert!(without_agents.iter().all(|o| o["kind"] != "DaemonSet"));
    assert!(
        !text("a", "b", Executor::Controller)
            .unwrap()
            .contains("name: belay-agent")
    );
}

#[test]
fn each_role_has_what_it_uses_and_no_more() {
    let objects = objects(Executor::Agent);
    let own = belay_api::GROUP;
    let (agent, controller) = (
        rules(&objects, "belay-agent"),
        rules(&objects, "belay-controller"),
    );
    let (view, edit, admin) = (
        rules(&objects, "belay-view"),
        rules(&objects, "belay-edit"),
        rules(&objects, "belay-admin"),
    );
    for (verb, group, resource, by_agent, by_controller) in [
        ("watch", own, "podnotifications", true, true),
        ("patch", own, "podnotifications/status", true, true),
        ("create", own, "podnotifications", false, true),
        ("delete", own, "podnotifications", false, true),
        ("update", own, "podnotifications", false, false),
        ("patch", own, "notifications/status", false, true),
        ("create", own, "notifications", false, false),
        ("patch", own, "notifications", false, false),
        ("notify", own, "notifiers", false, true),
        ("watch", own, "podactions", true, true),
        ("patch", own, "podactions/status", true, true),
        ("create", own, "podactions", false, true),
        ("update", own, "podactions", false, false),
        ("watch", own, "executionhooks", false, true),
        ("patch", own, "executionhooks/status", false, true),
        ("delete", own, "executionhooks", false, true),
        ("create", own, "executionhooks", false, false),
        ("watch", own, "hookactions", false, true),
        ("create", own, "hookactions", false, false),
        ("run", own, "hookactions", false, false),
        ("watch", "", "pods", true, true),
        ("patch", "", "pods", false, false),
        ("patch", "", "pods/status", false, false),
        ("get", "", "secrets", false, false),
        ("get", "", "nodes", false, false),
        ("create", "", "events", true, true),
        ("watch", "coordination.k8s.io", "leases", false, true),
        ("create", "coordination.k8s.io", "leases", true, true),
        // The controller's is by the name of its own; the agents' are by the policy belay-lease.
        ("update", "coordination.k8s.io", "leases", true, false),
        ("delete", "coordination.k8s.io", "leases", false, false),
        ("impersonate", "", "users", false, false),
        (
            "create",
            "rbac.authorization.k8s.io",
            "rolebindings",
            false,
            false,
        ),
    ] {
        assert_eq!(
            (
                may(&agent, verb, group, resource),
                may(&controller, verb, group, resource)
            ),
            (by_agent, by_controller),
            "{verb} {resource}"
        );
    }
    for (verb, resource, by_view, by_edit, by_admin) in [
        ("get", "podnotifications", true, false, false),
        ("list", "notifications", true, false, false),
        ("create", "podnotifications", false, true, false),
        ("delete", "notifications", false, true, false),
        ("notify", "notifiers", false, false, true),
        ("patch", "podnotifications/status", false, false, false),
        ("list", "executionhooks", true, false, false),
        ("get", "podactions", true, false, false),
        ("create", "executionhooks", false, true, false),
        ("update", "hookactions", false, true, false),
        ("create", "podactions", false, false, false),
        ("run", "hookactions", false, false, true),
        ("patch", "executionhooks/status", false, false, false),
    ] {
        assert_eq!(
            (
                may(&view, verb, own, resource),
                may(&edit, verb, own, resource),
                may(&admin, verb, own, resource)
            ),
            (by_view, by_edit, by_admin),
            "{verb} {resource}"
        );
    }
    // Nobody gets all there is of anything.
    let all = |rule: &PolicyRule| {
        let stars = [&rule.verbs, &rule.resources, &rule.api_groups];
        stars.iter().any(|list| list.iter().any(|one| one == "*"))
    };
    for rules in [&agent, &controller, &view, &edit, &admin] {
        assert!(!rules.iter().any(all));
    }
}

/// The seed lists `get`, `list` and `watch` on pods, and `create` on `pods/exec` for a controller that
/// runs commands itself. It is older than the WebSockets by which that is asked for now: their
/// upgrade is a GET, so that a server wants `get` besides.
#[test]
fn the_controller_has_of_pods_what_the_design_lists_and_no_more() {
    let of_pods = |executor| {
        let objects = objects(executor);
        let mut found = BTreeMap::new();
        for role in ["belay-controller", "belay-executor"] {
            for rule in rules(&objects, role) {
                let pods = rule.resources.iter().filter(|it| it.starts_with("pods"));
                for resource in pods {
                    assert_eq!(rule.api_groups, [""]);
                    found.insert(resource.clone(), rule.verbs.join(","));
                }
            }
        }
        found
    };
    let read = ("pods".to_owned(), "get,list,watch".to_owned());
    let exec = ("pods/exec".to_owned(), "create,get".to_owned());
    assert_eq!(of_pods(Executor::Agent), [read.clone()].into());
    assert_eq!(of_pods(Executor::Controller), [read, exec].into());
}

#[test]
fn the_controller_writes_no_lease_but_its_own() {
    for executor in [Executor::Agent, Executor::Controller] {
        let rules = rules(&objects(executor), "belay-controller");
        for (name, allowed) in [(belay_api::CONTROLLER, true), ("node-1", false)] {
            for verb in ["update", "patch"] {
                let access = Access::Resource {
                    verb,
                    group: "coordination.k8s.io",
                    resource: "leases",
                    subresource: None,
                    name: Some(name),
                };
                let may = rules.iter().any(|rule| rule.allows(&access));
                assert_eq!(may, allowed, "{verb} {name}");
            }
        }
    }
}

#[test]
fn each_role_may_read_the_policies_it_needs() {
    for executor in [Executor::Agent, Executor::Controller] {
        let objects = objects(executor);
        for name in required(executor) {
            let access = Access::Resource {
                verb: "get",
                group: "admissionregistration.k8s.io",
                resource: "validatingadmissionpolicybindings",
                subresource: None,
                name: Some(name),
            };
            for role in ["belay-controller", "belay-agent"] {
                if role == "belay-agent" && executor == Executor::Controller {
                    continue;
                }
                let rules = rules(&objects, role);
                assert!(
                    rules.iter().any(|rule| rule.allows(&access)),
                    "{role} {name}"
                );
            }
        }
    }
}

#[test]
fn what_could_break_out_of_a_template_is_refused() {
    for (namespace, image) in [
        ("a b", "i"),
        ("A", "i"),
        ("", "i"),
        ("a", ""),
        ("a", "i\nkind: Pod"),
        ("a", "i # x"),
    ] {
        assert!(
            text(namespace, image, Executor::Agent).is_err(),
            "{namespace:?} {image:?}"
        );
    }
}
