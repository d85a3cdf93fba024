//! Roles and bindings: what they give, who may write them, and what a notification needs.

use belay_server::Identity;
use serde_json::{Value, json};

use crate::harness::{Client, Harness, MAPS, NOTIFICATIONS, PODS, map, notification, pod, run_pod};

pub(crate) const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const OWN: &str = "apps.k8s.io";

pub(crate) fn user(name: &str) -> Identity {
    Identity::user(name, &[])
}

pub(crate) fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

fn role(name: &str, rules: &[Value]) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user}],
    })
}

/// Gives a user rules in the namespace `default`.
pub(crate) async fn grant(h: &Harness, name: &str, rules: &[Value]) {
    let admin = h.admin();
    admin.post(ROLES, &role(name, rules)).await.ok();
    admin
        .post(BINDINGS, &binding(name, "Role", name, name))
        .await
        .ok();
}

/// What a user needs to trigger one notifier and see what came of it.
fn may_trigger(notifier: &str) -> [Value; 2] {
    let mut notify = rule(OWN, "notifiers", &["notify"]);
    notify["resourceNames"] = json!([notifier]);
    [
        rule(OWN, "podnotifications", &["create", "get", "list", "watch"]),
        notify,
    ]
}

async fn running_pod(h: &Harness) -> Client {
    let admin = h.admin();
    admin.post(PODS, &pod("web")).await.ok();
    run_pod(&admin, "web", "n1").await;
    admin
}

#[tokio::test]
async fn a_user_may_nothing_until_a_role_is_bound_and_nothing_after_it_is_gone() {
    let h = Harness::start().await;
    let ann = h.of(user("ann"));
    let refused = ann.get(MAPS).await;
    assert_eq!(
        refused.refused(403, "Forbidden"),
        "configmaps is forbidden: User \"ann\" cannot list resource \"configmaps\" in API group \
         \"\" in the namespace \"default\""
    );
    grant(&h, "ann", &[rule("", "configmaps", &["list", "create"])]).await;
    ann.get(MAPS).await.ok();
    ann.post(MAPS, &map("a", &[])).await.ok();
    ann.get(&format!("{MAPS}/a"))
        .await
        .refused(403, "Forbidden");
    ann.delete(&format!("{MAPS}/a"))
        .await
        .refused(403, "Forbidden");
    ann.get("/api/v1/configmaps")
        .await
        .refused(403, "Forbidden");
    ann.get("/api/v1/namespaces/kube-system/configmaps")
        .await
        .refused(403, "Forbidden");
    h.of(user("bob")).get(MAPS).await.refused(403, "Forbidden");
    h.admin().delete(&format!("{BINDINGS}/ann")).await.ok();
    ann.get(MAPS).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn a_role_of_names_is_about_these_names_also_in_a_list_of_one() {
    let h = Harness::start().await;
    let mut one = rule("", "configmaps", &["get", "list", "delete"]);
    one["resourceNames"] = json!(["a"]);
    grant(&h, "ann", &[one]).await;
    h.admin().post(MAPS, &map("a", &[])).await.ok();
    h.admin().post(MAPS, &map("b", &[])).await.ok();
    let ann = h.of(user("ann"));
    ann.get(&format!("{MAPS}/a")).await.ok();
    ann.get(&format!("{MAPS}/b"))
        .await
        .refused(403, "Forbidden");
    ann.get(MAPS).await.refused(403, "Forbidden");
    let list = ann
        .get(&format!("{MAPS}?fieldSelector=metadata.name%3Da"))
        .await
        .ok();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    ann.get(&format!("{MAPS}?fieldSelector=metadata.name!%3Da"))
        .await
        .refused(403, "Forbidden");
    ann.delete(&format!("{MAPS}/b"))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn the_built_in_roles_are_there_and_come_back() {
    let h = Harness::start().await;
    for name in ["cluster-admin", "admin", "edit", "view"] {
        h.admin()
            .get(&format!("{RBAC}/clusterroles/{name}"))
            .await
            .ok();
    }
    let bind = |role: &str, who: &str| binding(who, "ClusterRole", role, who);
    for (role, who) in [("view", "vera"), ("edit", "ed"), ("admin", "ada")] {
        h.admin().post(BINDINGS, &bind(role, who)).await.ok();
    }
    running_pod(&h).await;
    let trigger = notification("n", "web", "reload");
    let vera = h.of(user("vera"));
    vera.get(PODS).await.ok();
    vera.get(NOTIFICATIONS).await.ok();
    vera.post(NOTIFICATIONS, &trigger)
        .await
        .refused(403, "Forbidden");
    vera.delete(&format!("{PODS}/web"))
        .await
        .refused(403, "Forbidden");
    vera.get(ROLES).await.refused(403, "Forbidden");
    let ed = h.of(user("ed"));
    ed.post(NOTIFICATIONS, &trigger)
        .await
        .refused(403, "Forbidden");
    ed.post(ROLES, &role("r", &[]))
        .await
        .refused(403, "Forbidden");
    // An administrator of a namespace hands out what they have, there.
    let ada = h.of(user("ada"));
    ada.post(NOTIFICATIONS, &trigger).await.ok();
    ada.post(ROLES, &role("flush", &may_trigger("flush")))
        .await
        .ok();
    ada.post(BINDINGS, &binding("flush", "Role", "flush", "bob"))
        .await
        .ok();
    ada.post(ROLES, &role("all", &[rule("*", "*", &["*"])]))
        .await
        .refused(403, "Forbidden");
    ada.post(
        BINDINGS,
        &binding("all", "ClusterRole", "cluster-admin", "ada"),
    )
    .await
    .refused(403, "Forbidden");
    let elsewhere = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings";
    ada.post(elsewhere, &bind("view", "ada"))
        .await
        .refused(403, "Forbidden");

    h.admin()
        .delete(&format!("{RBAC}/clusterroles/view"))
        .await
        .ok();
    vera.get(PODS).await.refused(403, "Forbidden");
    let h = h.reopen(Default::default()).await;
    h.of(user("vera")).get(PODS).await.ok();
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_have() {
    let h = Harness::start().await;
    let writes = rule(
        "rbac.authorization.k8s.io",
        "*",
        &["create", "update", "patch", "get"],
    );
    grant(&h, "ann", &[writes, rule("", "pods", &["get"])]).await;
    let ann = h.of(user("ann"));
    ann.post(ROLES, &role("less", &[rule("", "pods", &["get"])]))
        .await
        .ok();
    let refused = ann
        .post(
            ROLES,
            &role("more", &[rule("", "pods", &["get", "delete"])]),
        )
        .await;
    assert_eq!(
        refused.refused(403, "Forbidden"),
        "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"ann\" \
         (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently \
         held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"
    );
    let more = json!({"rules": [rule("", "pods", &["*"])]});
    ann.patch(&format!("{ROLES}/less"), "merge-patch", &more)
        .await
        .refused(403, "Forbidden");
    ann.patch(&format!("{ROLES}/ann"), "merge-patch", &more)
        .await
        .refused(403, "Forbidden");
    let dry = format!("{ROLES}?dryRun=All");
    ann.post(&dry, &role("more", &[rule("*", "*", &["*"])]))
        .await
        .refused(403, "Forbidden");
    // Nor by binding what others wrote, nor what is not there yet.
    ann.post(
        BINDINGS,
        &binding("b", "ClusterRole", "cluster-admin", "ann"),
    )
    .await
    .refused(403, "Forbidden");
    ann.post(BINDINGS, &binding("b", "Role", "later", "ann"))
        .await
        .refused(404, "NotFound");
    let to_more = json!({"subjects": [{"kind": "User", "name": "ann"}]});
    h.admin()
        .post(BINDINGS, &binding("theirs", "ClusterRole", "edit", "ed"))
        .await
        .ok();
    ann.patch(&format!("{BINDINGS}/theirs"), "merge-patch", &to_more)
        .await
        .refused(403, "Forbidden");
    ann.get("/api/v1/namespaces/default/events")
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn escalate_and_bind_are_rights_of_their_own() {
    let h = Harness::start().await;
    let group = "rbac.authorization.k8s.io";
    let mut bind = rule(group, "clusterroles", &["bind"]);
    bind["resourceNames"] = json!(["view"]);
    let rules = [
        rule(group, "rolebindings", &["create"]),
        rule(group, "roles", &["create", "escalate"]),
        bind,
    ];
    grant(&h, "ann", &rules).await;
    let ann = h.of(user("ann"));
    ann.post(BINDINGS, &binding("v", "ClusterRole", "view", "bob"))
        .await
        .ok();
    ann.post(BINDINGS, &binding("e", "ClusterRole", "edit", "bob"))
        .await
        .refused(403, "Forbidden");
    ann.post(ROLES, &role("all", &[rule("*", "*", &["*"])]))
        .await
        .ok();
    h.of(user("bob")).get(PODS).await.ok();
}

#[tokio::test]
async fn an_aggregated_role_takes_everything_to_write_and_has_what_it_selects() {
    let h = Harness::start().await;
    let admin = h.admin();
    let extra = json!({
        "metadata": {"name": "maps", "labels": {"example.com/to-maps": "true"}},
        "rules": [rule("", "configmaps", &["list"])],
    });
    let gathering = json!({
        "metadata": {"name": "gathering"},
        "aggregationRule": {"clusterRoleSelectors": [
            {"matchLabels": {"example.com/to-maps": "true"}}]},
    });
    let roles = format!("{RBAC}/clusterroles");
    admin.post(&roles, &gathering).await.ok();
    admin
        .post(BINDINGS, &binding("g", "ClusterRole", "gathering", "ann"))
        .await
        .ok();
    let ann = h.of(user("ann"));
    ann.get(MAPS).await.refused(403, "Forbidden");
    admin.post(&roles, &extra).await.ok();
    ann.get(MAPS).await.ok();
    // Who may write cluster roles, and has the rules, still may not gather.
    let writer = json!({"metadata": {"name": "writer"}, "rules": [
        rule("rbac.authorization.k8s.io", "clusterroles", &["create"]),
    ]});
    admin.post(&roles, &writer).await.ok();
    let everywhere = binding("writer", "ClusterRole", "writer", "bob");
    admin
        .post(&format!("{RBAC}/clusterrolebindings"), &everywhere)
        .await
        .ok();
    let mut another = gathering;
    another["metadata"]["name"] = "another".into();
    let refused = h.of(user("bob")).post(&roles, &another).await;
    let message = refused.refused(403, "Forbidden");
    assert!(message.contains("must have cluster-admin"), "{message}");
}

#[tokio::test]
async fn wrong_roles_and_bindings_are_told_what_is_wrong() {
    let h = Harness::start().await;
    let admin = h.admin();
    admin
        .post(ROLES, &role("r", &[json!({"verbs": ["get"]})]))
        .await
        .refused(422, "Invalid");
    let mut robot = binding("b", "Role", "r", "x");
    robot["subjects"][0]["kind"] = "Robot".into();
    let refused = admin.post(BINDINGS, &robot).await;
    let message = refused.refused(422, "Invalid");
    assert!(
        message.contains("subjects[0].kind: Unsupported value"),
        "{message}"
    );
    let stored = admin
        .post(BINDINGS, &binding("b", "ClusterRole", "view", "ann"))
        .await
        .ok();
    assert_eq!(
        stored["subjects"][0]["apiGroup"],
        "rbac.authorization.k8s.io"
    );
    let other = json!({"roleRef": {"name": "edit"}});
    let refused = admin
        .patch(&format!("{BINDINGS}/b"), "merge-patch", &other)
        .await;
    let message = refused.refused(422, "Invalid");
    assert!(message.contains("cannot change roleRef"), "{message}");
}

#[tokio::test]
async fn who_may_create_notifications_still_needs_the_right_to_notify() {
    let h = Harness::start().await;
    running_pod(&h).await;
    grant(&h, "ann", &may_trigger("reload")).await;
    let ann = h.of(user("ann"));
    let refused = ann
        .post(NOTIFICATIONS, &notification("x", "web", "lock"))
        .await;
    assert_eq!(
        refused.refused(403, "Forbidden"),
        "podnotifications.apps.k8s.io \"x\" is forbidden: User \"ann\" may not trigger the \
         notifier \"lock\": needs verb \"notify\" on resource \"notifiers\" in API group \
         \"apps.k8s.io\", resource name \"lock\", in the namespace \"default\""
    );
    for path in [
        format!("{NOTIFICATIONS}?dryRun=All"),
        format!("{NOTIFICATIONS}?fieldManager=x&fieldValidation=Ignore"),
    ] {
        ann.post(&path, &notification("x", "web", "lock"))
            .await
            .refused(403, "Forbidden");
    }
    let mut generated = notification("", "web", "lock");
    generated["metadata"] = json!({"generateName": "x-"});
    ann.post(NOTIFICATIONS, &generated)
        .await
        .refused(403, "Forbidden");
    // A PUT creates nothing, and a body of another form is no way round.
    ann.put(
        &format!("{NOTIFICATIONS}/x"),
        &notification("x", "web", "lock"),
    )
    .await
    .refused(403, "Forbidden");
    let headers = [("content-type", "application/vnd.kubernetes.protobuf")];
    let answer = ann
        .send("POST", NOTIFICATIONS, &headers, b"k8s\0".to_vec())
        .await;
    assert_eq!(answer.code.as_u16(), 415);
    // What was sent as status counts for nothing.
    let mut forged = notification("mine", "web", "reload");
    forged["status"] = json!({"state": "Succeeded", "nodeName": "other", "executor": "ann"});
    let made = ann.post(NOTIFICATIONS, &forged).await.ok();
    assert_eq!(made["status"]["state"], "New");
    assert_eq!(made["status"]["nodeName"], "n1");
    assert_eq!(made["status"].get("executor"), None);
    let list = h.admin().get(NOTIFICATIONS).await.ok();
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

/// A role that is too wide must not let its users say what came of an action: agents and controllers
/// go by it.
#[tokio::test]
async fn no_user_writes_a_status_whatever_the_roles_grant() {
    let h = Harness::start().await;
    running_pod(&h).await;
    let all = rule(OWN, "*", &["*"]);
    grant(&h, "ann", &[all]).await;
    let ann = h.of(user("ann"));
    ann.post(NOTIFICATIONS, &notification("x", "web", "reload"))
        .await
        .ok();
    let status = format!("{NOTIFICATIONS}/x/status");
    let forged = json!({"status": {"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z"}});
    let refused = ann.patch(&status, "merge-patch", &forged).await;
    let message = refused.refused(403, "Forbidden");
    assert!(
        message.contains("only Belay's controller and agents"),
        "{message}"
    );
    let mut whole = ann.get(&format!("{NOTIFICATIONS}/x")).await.ok();
    whole["status"]["executor"] = "ann".into();
    ann.put(&status, &whole).await.refused(403, "Forbidden");
    let stored = ann.get(&format!("{NOTIFICATIONS}/x")).await.ok();
    assert_eq!(stored["status"]["state"], "New");
}

#[tokio::test]
async fn who_notifies_many_pods_needs_the_same_right() {
    let h = Harness::start().await;
    let mut rules = may_trigger("reload").to_vec();
    rules.push(rule(OWN, "notifications", &["create"]));
    grant(&h, "ann", &rules).await;
    let ann = h.of(user("ann"));
    let many = |notifier: &str| {
        json!({
            "metadata": {"name": notifier},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "notifier": notifier},
        })
    };
    let path = "/apis/apps.k8s.io/v1alpha1/namespaces/default/notifications";
    let refused = ann.post(path, &many("lock")).await;
    let message = refused.refused(403, "Forbidden");
    assert!(
        message.contains("may not trigger the notifier \"lock\""),
        "{message}"
    );
    ann.post(path, &many("reload")).await.ok();
    // Its controller acts for whoever was asked then.
    let controller = h.of(Identity::controller());
    controller
        .post(NOTIFICATIONS, &notification("child", "web", "lock"))
        .await
        .ok();
    // A node triggers nothing.
    h.of(Identity::node("n1"))
        .post(path, &many("reload"))
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn only_the_controller_makes_a_podnotification_part_of_a_notification() {
    let h = Harness::start().await;
    running_pod(&h).await;
    let mut rules = may_trigger("reload").to_vec();
    rules.push(rule(OWN, "podnotifications", &["update", "patch"]));
    grant(&h, "ann", &rules).await;
    let ann = h.of(user("ann"));
    let label = json!({"labels": {"apps.k8s.io/notification-uid": "u1"}});
    let owner = json!({"ownerReferences": [{"apiVersion": "apps.k8s.io/v1alpha1",
        "kind": "Notification", "name": "many", "uid": "u1"}]});
    ann.post(NOTIFICATIONS, &notification("mine", "web", "reload"))
        .await
        .ok();
    for (i, part) in [&label, &owner].into_iter().enumerate() {
        let mut child = notification(&format!("child-{i}"), "web", "reload");
        for (field, value) in part.as_object().unwrap() {
            child["metadata"][field] = value.clone();
        }
        let refused = ann.post(NOTIFICATIONS, &child).await;
        let message = refused.refused(403, "Forbidden");
        assert!(
            message.contains("only the controller of Belay may make a podnotification part"),
            "{message}"
        );
        let patch = json!({ "metadata": part });
        ann.patch(&format!("{NOTIFICATIONS}/mine"), "merge-patch", &patch)
            .await
            .refused(403, "Forbidden");
        h.of(Identity::controller())
            .post(NOTIFICATIONS, &child)
            .await
            .ok();
        // What is part of one already can still be changed otherwise.
        let other = json!({"metadata": {"labels": {"a": "b"}}});
        ann.patch(&format!("{NOTIFICATIONS}/child-{i}"), "merge-patch", &other)
            .await
            .ok();
    }
}

#[tokio::test]
async fn names_of_children_are_the_controller_s_and_a_child_keeps_its_label_until_it_is_counted() {
    let h = Harness::start().await;
    running_pod(&h).await;
    let mut rules = may_trigger("reload").to_vec();
    rules.push(rule(OWN, "podnotifications", &["update", "patch"]));
    grant(&h, "ann", &rules).await;
    let (ann, controller) = (h.of(user("ann")), h.of(Identity::controller()));
    let name = "many-bfe45e90262b0732";
    let mut child = notification(name, "web", "reload");
    let refused = ann.post(NOTIFICATIONS, &child).await;
    let message = refused.refused(403, "Forbidden");
    assert!(message.contains("sixteen hexadecimal digits"), "{message}");

    child["metadata"]["labels"] = json!({"apps.k8s.io/notification-uid": "u1"});
    child["metadata"]["finalizers"] = json!(["apps.k8s.io/notification"]);
    controller.post(NOTIFICATIONS, &child).await.ok();
    let path = format!("{NOTIFICATIONS}/{name}");
    let without = |label: Value, finalizers: Value| {
        json!({"metadata": {"labels": {"apps.k8s.io/notification-uid": label},
            "finalizers": finalizers}})
    };
    let held = json!(["apps.k8s.io/notification"]);
    for patch in [
        without(json!(null), held.clone()),
        without(json!(""), held.clone()),
        without(json!(null), json!([])),
    ] {
        let refused = ann.patch(&path, "merge-patch", &patch).await;
        let message = refused.refused(403, "Forbidden");
        assert!(message.contains("has not been counted"), "{message}");
    }
    let unowned = json!({"metadata": {"ownerReferences": []}});
    ann.patch(&path, "merge-patch", &unowned).await.ok();
    let patch = without(json!("u1"), json!([]));
    controller.patch(&path, "merge-patch", &patch).await.ok();
    let patch = without(json!(null), json!([]));
    ann.patch(&path, "merge-patch", &patch).await.ok();
}

#[tokio::test]
async fn more_rights_on_notifications_are_no_right_to_other_notifiers_or_to_status() {
    let h = Harness::start().await;
    running_pod(&h).await;
    let mut rules = may_trigger("reload").to_vec();
    rules.push(rule(OWN, "podnotifications", &["update", "patch"]));
    grant(&h, "ann", &rules).await;
    let ann = h.of(user("ann"));
    ann.post(NOTIFICATIONS, &notification("mine", "web", "reload"))
        .await
        .ok();
    let path = format!("{NOTIFICATIONS}/mine");
    let other = json!({"spec": {"notifier": "lock"}});
    let answer = ann.patch(&path, "merge-patch", &other).await;
    assert!(matches!(answer.code.as_u16(), 403 | 422), "{answer:?}");
    let status = json!({"status": {"state": "Succeeded"}});
    ann.patch(&format!("{path}/status"), "merge-patch", &status)
        .await
        .refused(403, "Forbidden");
    ann.patch(&path, "merge-patch", &status).await.ok();
    let stored = ann.get(&path).await.ok();
    assert_eq!(stored["status"]["state"], "New");
}

#[tokio::test]
async fn metrics_are_for_those_who_may_see_them() {
    let h = Harness::start().await;
    let ann = h.of(user("ann"));
    for path in ["/api", "/apis", "/openapi/v3", "/version", "/"] {
        ann.get(path).await.ok();
    }
    ann.get("/metrics").await.refused(403, "Forbidden");
    let scraper = json!({"metadata": {"name": "scraper"}, "rules": [
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]});
    h.admin()
        .post(&format!("{RBAC}/clusterroles"), &scraper)
        .await
        .ok();
    h.admin()
        .post(
            &format!("{RBAC}/clusterrolebindings"),
            &binding("scraper", "ClusterRole", "scraper", "ann"),
        )
        .await
        .ok();
    ann.get("/metrics").await.ok();
}

#[tokio::test]
async fn the_audit_log_names_who_was_refused_and_why() {
    let h = Harness::start().await;
    running_pod(&h).await;
    grant(&h, "ann", &may_trigger("reload")).await;
    h.of(user("ann"))
        .post(NOTIFICATIONS, &notification("x", "web", "lock"))
        .await
        .refused(403, "Forbidden");
    let headers = [
        ("impersonate-user", "bob"),
        ("content-type", "application/json"),
    ];
    let body = map("b", &[]).to_string().into_bytes();
    h.admin()
        .send("POST", MAPS, &headers, body)
        .await
        .refused(403, "Forbidden");
    // Closing the server waits for the writer of the log.
    let h = h.reopen(Default::default()).await;
    let log = std::fs::read_to_string(h.dir.path().join("audit.log")).unwrap();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let refused = lines
        .iter()
        .find(|line| line["user"] == "ann" && line["code"] == 403)
        .expect("the refusal");
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("may not trigger the notifier \"lock\""),
        "{message}"
    );
    assert!(
        lines
            .iter()
            .any(|line| line["user"] == "belay:admin" && line["actsAs"] == "bob")
    );
}
