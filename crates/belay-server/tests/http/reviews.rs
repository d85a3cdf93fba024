//! Questions about rights, and acting as somebody else.

use belay_server::Identity;
use serde_json::{Value, json};

use crate::harness::{Client, Harness, MAPS};
use crate::rbac::{RBAC, grant, rule, user};

const ACCESS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const OTHERS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const HERE: &str = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

fn may(verb: &str, group: &str, resource: &str, name: &str) -> Value {
    json!({"resourceAttributes": {
        "namespace": "default", "verb": verb, "group": group, "resource": resource, "name": name}})
}

async fn asks(client: &Client, path: &str, spec: &Value) -> bool {
    let answer = client.post(path, &json!({"spec": spec})).await.ok();
    answer["status"]["allowed"].as_bool().unwrap()
}

#[tokio::test]
async fn everybody_is_told_what_they_may() {
    let h = Harness::start().await;
    let mut notify = rule("apps.k8s.io", "notifiers", &["notify"]);
    notify["resourceNames"] = json!(["reload"]);
    grant(&h, "ann", &[notify, rule("", "pods", &["get"])]).await;
    let ann = h.of(user("ann"));
    for (spec, expected) in [
        (may("notify", "apps.k8s.io", "notifiers", "reload"), true),
        (may("notify", "apps.k8s.io", "notifiers", "lock"), false),
        (may("notify", "apps.k8s.io", "notifiers", ""), false),
        (may("get", "", "pods", "x"), true),
        (may("list", "", "pods", ""), false),
        (may("*", "*", "*", ""), false),
        (
            json!({"nonResourceAttributes": {"verb": "get", "path": "/api"}}),
            true,
        ),
        (
            json!({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}),
            false,
        ),
    ] {
        assert_eq!(asks(&ann, ACCESS, &spec).await, expected, "{spec}");
        assert!(asks(&h.admin(), ACCESS, &spec).await, "{spec}");
    }
    let list = ann
        .post(RULES, &json!({"spec": {"namespace": "default"}}))
        .await
        .ok();
    let rules = list["status"]["resourceRules"].as_array().unwrap();
    assert!(
        rules
            .iter()
            .any(|r| r["resourceNames"] == json!(["reload"])),
        "{list}"
    );
    assert_eq!(list["status"]["incomplete"], false);
    let node = h.of(Identity::node("n1"));
    let list = node
        .post(RULES, &json!({"spec": {"namespace": "default"}}))
        .await
        .ok();
    assert_eq!(list["status"]["incomplete"], true);
    ann.post(ACCESS, &json!({"spec": {}}))
        .await
        .refused(400, "BadRequest");
    ann.get(ACCESS).await.refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn asking_about_others_is_a_right() {
    let h = Harness::start().await;
    grant(
        &h,
        "ann",
        &[
            rule("", "pods", &["get"]),
            rule(
                "authorization.k8s.io",
                "localsubjectaccessreviews",
                &["create"],
            ),
        ],
    )
    .await;
    let mut spec = may("get", "", "pods", "x");
    spec["user"] = "ann".into();
    assert!(asks(&h.admin(), OTHERS, &spec).await);
    let ann = h.of(user("ann"));
    ann.post(OTHERS, &json!({"spec": spec}))
        .await
        .refused(403, "Forbidden");
    assert!(asks(&ann, HERE, &spec).await);
    spec["user"] = "bob".into();
    assert!(!asks(&ann, HERE, &spec).await);
    spec["groups"] = json!(["system:masters"]);
    assert!(asks(&ann, HERE, &spec).await);
    spec["resourceAttributes"]["namespace"] = "kube-system".into();
    ann.post(HERE, &json!({"spec": spec}))
        .await
        .refused(400, "BadRequest");
}

#[tokio::test]
async fn everybody_is_told_who_they_are() {
    let h = Harness::start().await;
    let ann = h.of(Identity::user("ann", &["ops".to_owned()]));
    let told = ann.post(WHOAMI, &json!({})).await.ok();
    assert_eq!(
        told["status"]["userInfo"],
        json!({"username": "ann", "groups": ["ops", "system:authenticated"]})
    );
    let headers = [
        ("impersonate-user", "bob"),
        ("impersonate-group", "dev"),
        ("content-type", "application/json"),
    ];
    let admin = h.admin();
    let told = admin.send("POST", WHOAMI, &headers, b"{}".to_vec()).await;
    let told = told.ok();
    assert_eq!(told["status"]["userInfo"]["username"], "bob");
}

#[tokio::test]
async fn acting_as_somebody_needs_the_right_to_and_gives_no_more_than_theirs() {
    let h = Harness::start().await;
    grant(&h, "bob", &[rule("", "configmaps", &["list"])]).await;
    let bob = [("impersonate-user", "bob")];
    h.admin().send("GET", MAPS, &bob, vec![]).await.ok();
    h.admin()
        .send("GET", "/api/v1/nodes", &bob, vec![])
        .await
        .refused(403, "Forbidden");
    let ann = h.of(user("ann"));
    let refused = ann.send("GET", MAPS, &bob, vec![]).await;
    assert_eq!(
        refused.refused(403, "Forbidden"),
        "users \"bob\" is forbidden: User \"ann\" cannot impersonate resource \"users\" in API \
         group \"\" at the cluster scope"
    );
    // The right to be bob is no right to be in his groups, nor to be anybody else.
    let mut impersonate = rule("", "users", &["impersonate"]);
    impersonate["resourceNames"] = json!(["bob"]);
    let role = json!({"metadata": {"name": "as-bob"}, "rules": [impersonate]});
    h.admin()
        .post(&format!("{RBAC}/clusterroles"), &role)
        .await
        .ok();
    let binding = json!({
        "metadata": {"name": "as-bob"},
        "roleRef": {"kind": "ClusterRole", "name": "as-bob"},
        "subjects": [{"kind": "User", "name": "ann"}],
    });
    h.admin()
        .post(&format!("{RBAC}/clusterrolebindings"), &binding)
        .await
        .ok();
    ann.send("GET", MAPS, &bob, vec![]).await.ok();
    for headers in [
        &[
            ("impersonate-user", "bob"),
            ("impersonate-group", "system:masters"),
        ][..],
        &[("impersonate-user", "belay:admin")],
        &[
            ("impersonate-user", "system:node:n1"),
            ("impersonate-group", "system:nodes"),
        ],
    ] {
        ann.send("GET", MAPS, headers, vec![])
            .await
            .refused(403, "Forbidden");
    }
    for headers in [
        &[("impersonate-group", "system:masters")][..],
        &[("impersonate-user", "bob"), ("impersonate-uid", "1")],
        &[("impersonate-user", "bob"), ("impersonate-extra-x", "1")],
    ] {
        h.admin()
            .send("GET", MAPS, headers, vec![])
            .await
            .refused(400, "BadRequest");
    }
}
