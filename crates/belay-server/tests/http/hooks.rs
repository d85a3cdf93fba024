//! Hooks, their actions and podactions: what is refused, who may write them, and how they look.

use belay_server::Identity;
use serde_json::{Value, json};

use crate::harness::{Client, Harness};
use crate::rbac::{grant, rule, user};

const OWN: &str = "apps.k8s.io";
const HOOKS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/executionhooks";
const ACTIONS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/hookactions";
const POD_ACTIONS: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default/podactions";

fn action(name: &str, command: &str) -> Value {
    json!({
        "apiVersion": "apps.k8s.io/v1alpha1",
        "kind": "HookAction",
        "metadata": {"name": name},
        "action": {"exec": {"command": [command]}},
    })
}

fn hook(name: &str, action: &str) -> Value {
    json!({
        "apiVersion": "apps.k8s.io/v1alpha1",
        "kind": "ExecutionHook",
        "metadata": {"name": name},
        "spec": {
            "podSelection": {"podContainerNamesList": [{"podName": "db"}]},
            "actionName": action,
        },
    })
}

fn pod_action(name: &str, hook: &Value, node: &str) -> Value {
    json!({
        "apiVersion": "apps.k8s.io/v1alpha1",
        "kind": "PodAction",
        "metadata": {"name": name, "labels": {"apps.k8s.io/hook-uid": hook["metadata"]["uid"]}},
        "spec": {
            "hook": {"name": hook["metadata"]["name"], "uid": hook["metadata"]["uid"]},
            "podName": "db", "podUID": "u1", "nodeName": node, "containers": ["main"],
            "action": {"exec": {"command": ["true"]}},
            "actionTimeoutSeconds": 30, "deadlineSeconds": 60,
        },
    })
}

async fn status(client: &Client, of: &str, name: &str, status: Value) -> crate::harness::Answer {
    let path = format!("{of}/{name}/status");
    client
        .patch(&path, "merge-patch", &json!({ "status": status }))
        .await
}

#[tokio::test]
async fn an_action_is_defaulted_changed_and_counted_although_it_has_no_spec() {
    let h = Harness::start().await;
    let c = h.admin();
    let made = c.post(ACTIONS, &action("a", "first")).await.ok();
    assert_eq!(made["actionTimeoutSeconds"], 30);
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(made.get("status"), None);
    let path = format!("{ACTIONS}/a");
    let change = json!({"action": {"exec": {"command": ["second"]}}});
    let changed = c.patch(&path, "merge-patch", &change).await.ok();
    assert_eq!(changed["metadata"]["generation"], 2);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let labelled = c.patch(&path, "merge-patch", &label).await.ok();
    assert_eq!(labelled["metadata"]["generation"], 2);
    let broken = json!({"action": {"exec": null}});
    let refused = c.patch(&path, "merge-patch", &broken).await;
    let message = refused.refused(422, "Invalid");
    assert!(message.contains("must specify a handler type"), "{message}");
}

#[tokio::test]
async fn the_spelling_of_the_seeds_examples_is_told_the_right_field() {
    let h = Harness::start().await;
    let c = h.admin();
    let example = json!({
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "HookAction",
        "metadata": {"name": "action-demo"},
        "Action": {"exec": {"command": ["run_quiesce.sh"]}, "actionTimeoutSeconds": 10},
    });
    let strict = format!("{ACTIONS}?fieldValidation=Strict");
    let refused = c.post(&strict, &example).await;
    let message = refused.refused(400, "BadRequest");
    assert!(message.contains("unknown field \"Action\""), "{message}");
    assert!(message.contains("use action"), "{message}");
    let nested = json!({
        "metadata": {"name": "action-demo"},
        "action": {"exec": {"command": ["run_quiesce.sh"]}, "actionTimeoutSeconds": 10},
    });
    let refused = c.post(&strict, &nested).await;
    let message = refused.refused(400, "BadRequest");
    assert!(message.contains("stands beside action"), "{message}");
    // Without strict validation what is unknown is dropped, and the rest is held to the rules.
    let refused = c.post(ACTIONS, &example).await;
    let message = refused.refused(422, "Invalid");
    assert!(message.contains("action: Required value"), "{message}");

    let example = json!({
        "metadata": {"name": "hook-demo"},
        "spec": {
            "podContainerNamesList": [{"podName": "my-pod-1", "containerName": "c"}],
            "hookActionName": "action-demo",
        },
    });
    let refused = c
        .post(&format!("{HOOKS}?fieldValidation=Strict"), &example)
        .await;
    let message = refused.refused(400, "BadRequest");
    for right in ["use podSelection.podContainerNamesList", "use actionName"] {
        assert!(message.contains(right), "{message}");
    }
    let refused = c.post(HOOKS, &example).await;
    let causes = refused.body["details"]["causes"].as_array().unwrap();
    let fields: Vec<&Value> = causes.iter().map(|cause| &cause["field"]).collect();
    assert_eq!(fields, ["spec.podSelection", "spec.actionName"]);
}

#[tokio::test]
async fn who_may_create_hooks_still_needs_the_right_to_run_what_they_name() {
    let h = Harness::start().await;
    let mut run = rule(OWN, "hookactions", &["run"]);
    run["resourceNames"] = json!(["flush"]);
    grant(
        &h,
        "ann",
        &[
            rule(OWN, "executionhooks", &["create", "get", "patch", "update"]),
            run,
        ],
    )
    .await;
    let ann = h.of(user("ann"));
    let refused = ann.post(HOOKS, &hook("x", "drop-all")).await;
    assert_eq!(
        refused.refused(403, "Forbidden"),
        "executionhooks.apps.k8s.io \"x\" is forbidden: User \"ann\" may not run the action \
         \"drop-all\": needs verb \"run\" on resource \"hookactions\" in API group \
         \"apps.k8s.io\", resource name \"drop-all\", in the namespace \"default\""
    );
    ann.post(&format!("{HOOKS}?dryRun=All"), &hook("x", "drop-all"))
        .await
        .refused(403, "Forbidden");
    // What was sent as status counts for nothing, and the action cannot be exchanged afterwards.
    let mut forged = hook("mine", "flush");
    forged["status"] = json!({"actionSucceed": true});
    let made = ann.post(HOOKS, &forged).await.ok();
    assert_eq!(made["status"], json!({}));
    let other = json!({"spec": {"actionName": "drop-all"}});
    ann.patch(&format!("{HOOKS}/mine"), "merge-patch", &other)
        .await
        .refused(422, "Invalid");
    status(&ann, HOOKS, "mine", json!({"actionSucceed": true}))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn who_writes_an_action_needs_the_right_to_exec() {
    let h = Harness::start().await;
    let write = rule(OWN, "hookactions", &["create", "update", "patch", "get"]);
    grant(&h, "ann", std::slice::from_ref(&write)).await;
    let exec = rule("", "pods/exec", &["create"]);
    grant(&h, "bob", &[write, exec]).await;
    let (ann, bob) = (h.of(user("ann")), h.of(user("bob")));
    let refused = ann.post(ACTIONS, &action("a", "true")).await;
    assert_eq!(
        refused.refused(403, "Forbidden"),
        "hookactions.apps.k8s.io \"a\" is forbidden: User \"ann\" may not say what hooks run: \
         needs verb \"create\" on resource \"pods/exec\" in API group \"\", in the namespace \
         \"default\""
    );
    bob.post(ACTIONS, &action("a", "true")).await.ok();
    let path = format!("{ACTIONS}/a");
    for change in [
        json!({"action": {"exec": {"command": ["id"]}}}),
        json!({"actionTimeoutSeconds": 3600}),
    ] {
        ann.patch(&path, "merge-patch", &change)
            .await
            .refused(403, "Forbidden");
        bob.patch(&path, "merge-patch", &change).await.ok();
    }
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    ann.patch(&path, "merge-patch", &label).await.ok();
    let mut other = ann.get(&path).await.ok();
    other["action"]["exec"]["command"] = json!(["id", "-u"]);
    ann.put(&path, &other).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn only_the_controller_makes_podactions_and_only_while_their_hook_is_there() {
    let h = Harness::start().await;
    grant(&h, "ann", &[rule(OWN, "*", &["*"])]).await;
    let ann = h.of(user("ann"));
    let controller = h.of(Identity::controller());
    let made = h.admin().post(HOOKS, &hook("h", "a")).await.ok();
    let refused = ann.post(POD_ACTIONS, &pod_action("p", &made, "n1")).await;
    let message = refused.refused(403, "Forbidden");
    assert!(
        message.contains("only the controller of Belay may create a podaction"),
        "{message}"
    );
    let created = controller
        .post(POD_ACTIONS, &pod_action("p", &made, "n1"))
        .await
        .ok();
    assert_eq!(created["status"], json!({"state": "New"}));
    let join = json!({"metadata": {"labels": {"apps.k8s.io/hook-uid": "other"}}});
    ann.patch(&format!("{POD_ACTIONS}/p"), "merge-patch", &join)
        .await
        .refused(403, "Forbidden");
    let action = json!({"spec": {"action": {"exec": {"command": ["id"]}}}});
    for client in [&ann, &controller] {
        client
            .patch(&format!("{POD_ACTIONS}/p"), "merge-patch", &action)
            .await
            .refused(422, "Invalid");
    }
    h.admin().delete(&format!("{HOOKS}/h")).await.ok();
    controller
        .post(POD_ACTIONS, &pod_action("late", &made, "n1"))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn a_node_sees_and_answers_only_its_own_podactions() {
    let h = Harness::start().await;
    let controller = h.of(Identity::controller());
    let made = h.admin().post(HOOKS, &hook("h", "a")).await.ok();
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        controller
            .post(POD_ACTIONS, &pod_action(name, &made, node))
            .await
            .ok();
    }
    let node = h.of(Identity::node("n1"));
    let list = "/apis/apps.k8s.io/v1alpha1/podactions";
    let own = node
        .get(&format!("{list}?fieldSelector=spec.nodeName%3Dn1"))
        .await
        .ok();
    assert_eq!(own["items"].as_array().unwrap().len(), 1);
    assert_eq!(own["items"][0]["metadata"]["name"], "mine");
    for query in ["", "?fieldSelector=spec.nodeName%3Dn2"] {
        node.get(&format!("{list}{query}"))
            .await
            .refused(403, "Forbidden");
    }
    let claim = json!({"executor": "n1", "startTime": "2026-01-01T00:00:00Z"});
    status(&node, POD_ACTIONS, "mine", claim.clone()).await.ok();
    status(&node, POD_ACTIONS, "theirs", claim)
        .await
        .refused(403, "Forbidden");
    node.get(ACTIONS).await.refused(403, "Forbidden");
    node.get(&format!("{HOOKS}/h"))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn a_result_that_was_recorded_stays() {
    let h = Harness::start().await;
    let controller = h.of(Identity::controller());
    let made = h.admin().post(HOOKS, &hook("h", "a")).await.ok();
    controller
        .post(POD_ACTIONS, &pod_action("p", &made, "n1"))
        .await
        .ok();
    let node = h.of(Identity::node("n1"));
    let container = |succeed: Value, start: &str| {
        json!({"executor": "n1", "containers": [
            {"name": "main", "containerID": "c1", "startTime": start, "succeed": succeed}]})
    };
    let at = "2026-01-01T00:00:00.123456Z";
    status(&node, POD_ACTIONS, "p", container(Value::Null, at))
        .await
        .ok();
    // The deadline counts from the first start.
    status(
        &node,
        POD_ACTIONS,
        "p",
        container(Value::Null, "2026-01-01T00:00:09.123456Z"),
    )
    .await
    .refused(422, "Invalid");
    status(&node, POD_ACTIONS, "p", container(json!(true), at))
        .await
        .ok();
    status(&node, POD_ACTIONS, "p", container(Value::Null, at))
        .await
        .refused(422, "Invalid");
    // A hook that has ended keeps what it said.
    let done = json!({
        "completeTime": "2026-01-01T00:00:00Z", "actionSucceed": true,
        "hookStatuses": [{"podName": "db", "containerName": "main", "succeed": true,
                          "timestamp": 1_767_225_600}],
    });
    status(&controller, HOOKS, "h", done).await.ok();
    for change in [
        json!({"actionSucceed": false, "error": {"errorType": "Expired"}}),
        json!({"actionSucceed": null, "completeTime": null}),
        json!({"hookStatuses": []}),
    ] {
        status(&controller, HOOKS, "h", change)
            .await
            .refused(422, "Invalid");
    }
}

#[tokio::test]
async fn tables_and_discovery_show_hooks() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(ACTIONS, &action("a", "flush")).await.ok();
    c.post(HOOKS, &hook("h", "a")).await.ok();
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let cells = |table: &Value| table["rows"][0]["cells"].as_array().unwrap().clone();
    let table = c.send("GET", ACTIONS, &accept, vec![]).await.ok();
    let row = cells(&table);
    assert_eq!(row[..3], [json!("a"), json!("exec"), json!("30s")]);
    assert_eq!(row[4], "flush");
    let table = c.send("GET", HOOKS, &accept, vec![]).await.ok();
    assert_eq!(cells(&table)[..3], [json!("h"), json!("a"), json!("")]);
    let done = json!({
        "completeTime": "2026-01-01T00:00:00Z", "actionSucceed": false, "targetCount": 1,
        "failedCount": 1,
        "hookStatuses": [{"podName": "db", "containerName": "main", "succeed": false,
                          "error": {"errorType": "ExecutionTimeout"}}],
    });
    status(&c, HOOKS, "h", done).await.ok();
    let table = c.send("GET", HOOKS, &accept, vec![]).await.ok();
    let row = cells(&table);
    assert_eq!(row[2], "false");
    assert_eq!(row[8], "ExecutionTimeout");
    let resources = c.get("/apis/apps.k8s.io/v1alpha1").await.ok();
    let short = |plural: &str| {
        let all = resources["resources"].as_array().unwrap();
        let kind = all.iter().find(|one| one["name"] == plural).unwrap();
        kind["shortNames"].clone()
    };
    assert_eq!(short("executionhooks"), json!(["eh"]));
    assert_eq!(short("hookactions"), json!(["ha"]));
}
