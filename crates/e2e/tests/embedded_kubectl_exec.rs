//! `kubectl exec` into plain processes, and who may.

use belay_testkit::{Builder, Instance, Kubectl, Stage, until_file};
use serde_json::{Value, json};

#[path = "kubectl/exec.rs"]
mod exec;

async fn shared() -> anyhow::Result<Option<(&'static Instance, Stage, Kubectl)>> {
    let instance = Instance::shared().await?;
    let stage = Stage::on(instance).await?;
    let kubectl = stage.kubectl().cloned();
    Ok(kubectl.map(|kubectl| (instance, stage, kubectl)))
}

async fn on_runtime(instance: Builder) -> anyhow::Result<Builder> {
    Ok(instance)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_exec_needs_create_whatever_the_method() -> anyhow::Result<()> {
    let Some((instance, _, kubectl)) = exec::place("guarded").await? else {
        return Ok(());
    };
    let admin = instance.admin().await?;
    let group = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    for (user, verbs) in [("runs", json!(["create"])), ("looks", json!(["get"]))] {
        let rules = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs},
        ]);
        let role: Value = json!({"metadata": {"name": user}, "rules": rules});
        admin.post(&format!("{group}/roles"), &role).await?.ok()?;
        let binding = json!({
            "metadata": {"name": user},
            "roleRef": {"kind": "Role", "name": user},
            "subjects": [{"kind": "User", "name": user}],
        });
        admin
            .post(&format!("{group}/rolebindings"), &binding)
            .await?
            .ok()?;
    }
    let runs = kubectl.with_kubeconfig(instance.user_kubeconfig("runs", &[]).await?);
    let exec = ["exec", "guarded", "--", "echo", "ran"];
    assert_eq!(runs.ok(&exec).await?, "ran\n");
    let looks = kubectl.with_kubeconfig(instance.user_kubeconfig("looks", &[]).await?);
    let told = looks.fails(&exec).await?;
    let words = "User \"looks\" cannot create resource \"pods/exec\" in API group \"\" in the \
                 namespace \"default\"";
    assert!(told.contains(words), "{told}");
    // The line comes a moment after the answer.
    until_file(&instance.file("data/audit.log"), |log| {
        log.lines()
            .any(|line| line.contains("\"user\":\"looks\"") && line.contains("\"code\":403"))
    })
    .await
    .map(drop)
}
