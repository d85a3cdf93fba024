//! Users with roles and Notifications, on the real program: who may trigger one notifier for many pods
//! triggers no other, and does not say what came of it.

use belay_testkit::{
    FANOUTS, Instance, NOTIFICATIONS, Rest, exec, fanout, lines, notification, pod, rest::name,
};
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";

fn may_reload(kinds: &[&str], verbs: &[&str]) -> Value {
    json!([
        {"apiGroups": ["apps.k8s.io"], "resources": ["notifiers"], "resourceNames": ["reload"],
         "verbs": ["notify"]},
        {"apiGroups": ["apps.k8s.io"], "resources": kinds, "verbs": verbs},
    ])
}

/// A user with rules in `default`, by the name of the user.
async fn user(instance: &Instance, name: &str, rules: &Value) -> anyhow::Result<Rest> {
    let admin = instance.admin().await?;
    let role = json!({"metadata": {"name": name}, "rules": rules});
    admin.post(&format!("{RBAC}/roles"), &role).await?.ok()?;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"kind": "Role", "name": name},
        "subjects": [{"kind": "User", "name": name}],
    });
    let bindings = format!("{RBAC}/rolebindings");
    admin.post(&bindings, &binding).await?.ok()?;
    Rest::from_kubeconfig(&instance.user_kubeconfig(name, &[]).await?).await
}

/// A Notification asks for many pods at once; it takes the same right, and its counts are nobody's to
/// write.
#[tokio::test(flavor = "multi_thread")]
async fn the_right_to_one_notifier_is_none_to_another_for_many_pods() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let (reloads, locks) = (instance.file("reloads"), instance.file("locks"));
    let line = |file: &str| format!("echo ran >> {file}");
    let manifest = pod("many")
        .label("app", "many")
        .idle("main")
        .notifier("reload", exec(["sh", "-c", &line(&reloads)]).timeout(60))
        .notifier("lock", exec(["sh", "-c", &line(&locks)]).timeout(60));
    let pod = admin.run(&manifest.build()).await?;
    // Without the kind itself, not even the notifier that was granted.
    let narrow = user(
        instance,
        "narrow",
        &may_reload(&["podnotifications"], &["create", "get", "list", "watch"]),
    )
    .await?;
    let reload = fanout("many-not", ("app", "many"), "reload").build();
    narrow.post(FANOUTS, &reload).await?.refused(403)?;

    let verbs = [
        "create", "get", "list", "watch", "update", "patch", "delete",
    ];
    let rules = may_reload(&["podnotifications", "notifications"], &verbs);
    let marvin = user(instance, "marvin", &rules).await?;
    let mut lock = fanout("many-lock", ("app", "many"), "lock").build();
    for path in [FANOUTS.to_owned(), format!("{FANOUTS}?dryRun=All")] {
        let told = marvin.post(&path, &lock).await?.refused(403)?;
        let message = told["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("needs verb \"notify\" on resource \"notifiers\"")
                && message.contains("resource name \"lock\""),
            "{message}"
        );
    }
    lock["metadata"] = json!({"generateName": "many-"});
    marvin.post(FANOUTS, &lock).await?.refused(403)?;
    let elsewhere = FANOUTS.replace("/default/", "/kube-system/");
    marvin.post(&elsewhere, &reload).await?.refused(403)?;

    // What was granted, and what it says of itself is not believed.
    let mut many = fanout("many", ("app", "many"), "reload").build();
    many["status"] = json!({"state": "Succeeded", "succeededCount": 7});
    marvin.post(FANOUTS, &many).await?.ok()?;
    let done = admin
        .until(&format!("{FANOUTS}/many"), "the end", |object| {
            let complete = object["status"]["completeTime"].is_string();
            complete.then(|| object.clone())
        })
        .await?;
    assert_eq!(done["status"]["succeededCount"], 1, "{done:#}");
    let change = json!({"spec": {"notifier": "lock"}});
    let reply = marvin.merge(&format!("{FANOUTS}/many"), &change).await?;
    reply.refused(422)?;
    let forged = json!({"status": {"succeededCount": 7}});
    let path = format!("{FANOUTS}/many/status");
    marvin.merge(&path, &forged).await?.refused(403)?;

    // Who says that theirs is another's child is not believed, not even under the right name.
    let open = fanout("many-open", ("app", "nobody"), "lock").all_pods();
    let open = admin.post(FANOUTS, &open.build()).await?.ok()?;
    let uid = |object: &Value| object["metadata"]["uid"].as_str().map(str::to_owned);
    let (owner, of) = (
        uid(&open).unwrap_or_default(),
        uid(&pod).unwrap_or_default(),
    );
    let hash = format!("{owner}/{of}")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    let mut child = notification(&format!("many-open-{hash:016x}"), "many", "reload")
        .spec("podUID", of)
        .build();
    child["metadata"]["labels"] = json!({"apps.k8s.io/notification-uid": owner});
    child["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification", "name": "many-open",
        "uid": owner, "controller": true,
    }]);
    if marvin
        .post(NOTIFICATIONS, &child)
        .await?
        .status
        .is_success()
    {
        admin.finished(name(&child)).await?;
    }
    // The controller goes on, and has counted nothing.
    let again = fanout("many-again", ("app", "many"), "reload").build();
    marvin.post(FANOUTS, &again).await?.ok()?;
    admin
        .until(&format!("{FANOUTS}/many-again"), "the end", |object| {
            object["status"]["completeTime"].is_string().then_some(())
        })
        .await?;
    let open = admin.get(&format!("{FANOUTS}/many-open")).await?.ok()?;
    let counted = |field: &str| open["status"][field].as_u64().unwrap_or(0);
    assert_eq!(
        (counted("succeededCount"), counted("targetCount")),
        (0, 0),
        "{open:#}"
    );
    assert_eq!(lines(&locks), 0, "it never ran");
    assert!(lines(&reloads) >= 2, "this did");
    Ok(())
}
