//! Those who try, what they were given, and what they try it on.

use belay_testkit::{
    Cluster, NOTIFICATIONS, Reply, Rest, Stage, eventually, exec, notification, pod, rest::name,
    until_file,
};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Where roles and their bindings are found.
pub(crate) const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
/// The account of the agents.
pub(crate) const AGENT: &str = "/api/v1/namespaces/belay-system/serviceaccounts/belay-agent";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SYSTEM_PODS: &str = "/api/v1/namespaces/belay-system/pods";

/// One cluster for all of them; `None` after having said that the test is skipped.
pub(crate) async fn cluster() -> anyhow::Result<Option<&'static Cluster>> {
    static SHARED: OnceCell<Option<Cluster>> = OnceCell::const_new();
    Ok(SHARED.get_or_try_init(Cluster::with_belay).await?.as_ref())
}

/// Somebody with a token of the account, bound to an object if one is given.
pub(crate) async fn holder(cluster: &Cluster, account: &str, bound: Value) -> anyhow::Result<Rest> {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"boundObjectRef": bound, "expirationSeconds": 3600},
    });
    let admin = cluster.admin().await?;
    let made = admin
        .post(&format!("{account}/token"), &request)
        .await?
        .ok()?;
    let token = made["status"]["token"].as_str().unwrap_or_default();
    Rest::with_token(&cluster.kubeconfig(), token).await
}

/// A user of the namespace `default`, who is a service account of it, with this role.
pub(crate) async fn user(cluster: &Cluster, who: &str, role: Value) -> anyhow::Result<Rest> {
    let admin = cluster.admin().await?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": who}});
    admin.post(ACCOUNTS, &account).await?.ok()?;
    bind(&admin, who, role).await?;
    let user = holder(cluster, &format!("{ACCOUNTS}/{who}"), Value::Null).await?;
    // Every role here lets its holder read these; until it does, a refusal proves nothing.
    eventually("the role to be known", async || {
        user.get(NOTIFICATIONS).await?.ok().map(Some)
    })
    .await?;
    Ok(user)
}

/// Binds an account to a ClusterRole by its name, or to a new Role with these rules.
pub(crate) async fn bind(admin: &Rest, who: &str, role: Value) -> anyhow::Result<()> {
    let role_ref = if let Some(name) = role.as_str() {
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name})
    } else {
        let object = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": who}, "rules": role,
        });
        admin.post(&format!("{RBAC}/roles"), &object).await?.ok()?;
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": who})
    };
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": who}, "roleRef": role_ref,
        "subjects": [{"kind": "ServiceAccount", "name": who, "namespace": "default"}],
    });
    let bindings = format!("{RBAC}/rolebindings");
    admin.post(&bindings, &binding).await?.ok().map(drop)
}

/// To trigger `reload`, as a guide would tell how to grant it.
pub(crate) fn may_reload() -> Value {
    json!([
        {"apiGroups": ["apps.k8s.io"], "resources": ["podnotifications", "notifications"],
         "verbs": ["create", "get", "list", "watch", "delete"]},
        {"apiGroups": ["apps.k8s.io"], "resources": ["notifiers"], "resourceNames": ["reload"],
         "verbs": ["notify"]},
    ])
}

/// To trigger `reload`, and every right around it that somebody might have been given besides.
pub(crate) fn may_reload_and_write() -> Value {
    json!([
        {"apiGroups": ["apps.k8s.io"], "verbs": ["*"], "resources": [
            "podnotifications", "podnotifications/status", "notifications", "notifications/status"]},
        {"apiGroups": ["apps.k8s.io"], "resources": ["notifiers"], "resourceNames": ["reload"],
         "verbs": ["notify"]},
        {"apiGroups": [""], "verbs": ["create", "get", "list", "watch", "update", "patch"],
         "resources": ["pods/status", "pods/ephemeralcontainers", "pods/resize", "pods/binding",
                       "bindings"]},
        {"apiGroups": [""], "verbs": ["get", "list", "watch", "update", "patch"],
         "resources": ["pods"]},
    ])
}

/// A running pod whose notifiers leave a line in `NAME-reload` and `NAME-drop`.
pub(crate) async fn target(stage: &Stage, name: &str) -> anyhow::Result<Value> {
    let line = |of: &str| format!("echo ran >> {}", stage.file(&format!("{name}-{of}")));
    let manifest = pod(name)
        .label("app", name)
        .idle("main")
        .notifier("reload", exec(["sh", "-c", &line("reload")]).timeout(60))
        .notifier("drop", exec(["sh", "-c", &line("drop")]).timeout(60));
    stage.run(manifest).await
}

/// A notification of this name whose handler runs until the file that is returned is there.
pub(crate) async fn held(stage: &Stage, name: &str) -> anyhow::Result<String> {
    let (runs, gate) = (
        stage.file(&format!("{name}-runs")),
        stage.file(&format!("{name}-gate")),
    );
    let wait = format!("echo run >> {runs}; while ! test -e {gate}; do sleep 0.1; done");
    let manifest = pod(name)
        .idle("main")
        .notifier("work", exec(["sh", "-c", &wait]).timeout(300));
    stage.run(manifest).await?;
    let ask = notification(name, name, "work").build();
    stage.admin().post(NOTIFICATIONS, &ask).await?.ok()?;
    until_file(&runs, |text| text.lines().count() == 1).await?;
    Ok(gate)
}

/// A lie that is well-formed: nothing but the right to tell it is missing.
pub(crate) fn lie() -> Value {
    json!({"state": "Failed", "completeTime": "2026-01-01T00:00:00Z",
        "error": {"type": "HandlerFailed", "message": "a lie", "timestamp": "2026-01-01T00:00:00Z"}})
}

pub(crate) async fn apply(caller: &Rest, path: &str, object: &Value) -> anyhow::Result<Reply> {
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{path}?fieldManager=attack&force=true");
    let body = serde_json::to_vec(object)?;
    caller.send(Method::PATCH, &path, &headers, body).await
}

pub(crate) async fn json_patch(caller: &Rest, path: &str, patch: &Value) -> anyhow::Result<Reply> {
    let headers = [("content-type", "application/json-patch+json")];
    let body = serde_json::to_vec(patch)?;
    caller.send(Method::PATCH, path, &headers, body).await
}

pub(crate) fn members(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

/// The refusal has this code and says all of these words.
pub(crate) fn refused(reply: Reply, code: u16, words: &[&str]) -> anyhow::Result<()> {
    let status = reply.refused(code)?;
    let message = status["message"].as_str().unwrap_or_default();
    for word in words {
        anyhow::ensure!(message.contains(word), "{word:?} is not in {message:?}");
    }
    Ok(())
}

/// Creates an object, or reads the one that another test has made.
async fn made(admin: &Rest, collection: &str, object: &Value) -> anyhow::Result<Value> {
    let reply = admin.post(collection, object).await?;
    if reply.status.as_u16() == 409 {
        let path = format!("{collection}/{}", name(object));
        return admin.get(&path).await?.ok();
    }
    reply.ok()
}

/// The agents of two nodes, and somebody with an agent's account and no node.
pub(crate) async fn agents(cluster: &Cluster) -> anyhow::Result<(Rest, Rest, Rest)> {
    let admin = cluster.admin().await?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2"}});
    made(&admin, "/api/v1/nodes", &node).await?;
    let far = pod("agent-of-n2")
        .container("agent", ["true"])
        .node("n2")
        .spec("serviceAccountName", "belay-agent");
    let far = made(&admin, SYSTEM_PODS, &far.build()).await?;
    let selector = "labelSelector=app.kubernetes.io%2Fcomponent%3Dagent";
    let found = admin
        .get(&format!(
            "{SYSTEM_PODS}?{selector}&fieldSelector=spec.nodeName%3Dn1"
        ))
        .await?
        .ok()?;
    let bound = |pod: &Value| json!({"apiVersion": "v1", "kind": "Pod", "name": name(pod), "uid": pod["metadata"]["uid"]});
    Ok((
        holder(cluster, AGENT, bound(&found["items"][0])).await?,
        holder(cluster, AGENT, bound(&far)).await?,
        holder(cluster, AGENT, Value::Null).await?,
    ))
}
