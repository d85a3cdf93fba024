//! Users with roles, on the real program: one who may trigger a single notifier can do that and
//! nothing else, tried as an attacker would; and kubectl's own questions about rights.

use std::fs;

use belay_testkit::{
    CONFIG_MAPS, Instance, Kubectl, NOTIFICATIONS, PODS, Rest, eventually, exec, notification, pod,
    rest::config_map, until_file,
};
use http::Method;
use serde_json::{Value, json};

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
const CLUSTER_BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";

/// What "may reload" takes: the notifier, and to create and see notifications.
fn may_trigger(notifier: &str) -> Value {
    json!([
        {"apiGroups": ["apps.k8s.io"], "resources": ["notifiers"], "resourceNames": [notifier],
         "verbs": ["notify"]},
        {"apiGroups": ["apps.k8s.io"], "resources": ["podnotifications"],
         "verbs": ["create", "get", "list", "watch"]},
    ])
}

/// A user with rules in `default`, by the name of the user.
async fn user(instance: &Instance, name: &str, rules: &Value) -> anyhow::Result<Rest> {
    let admin = instance.admin().await?;
    let role = json!({"metadata": {"name": name}, "rules": rules});
    admin.post(ROLES, &role).await?.ok()?;
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"kind": "Role", "name": name},
        "subjects": [{"kind": "User", "name": name}],
    });
    admin.post(BINDINGS, &binding).await?.ok()?;
    let kubeconfig = instance.user_kubeconfig(name, &[]).await?;
    Rest::from_kubeconfig(&kubeconfig).await
}

/// A pod whose notifiers write to files of their own.
fn target(instance: &Instance, name: &str) -> Value {
    let touch = |what: &str| {
        format!(
            "echo {what} >> {}",
            instance.file(&format!("{name}-{what}"))
        )
    };
    pod(name)
        .idle("main")
        .notifier("reload", exec(["sh", "-c", &touch("reload")]).timeout(60))
        .notifier("lock", exec(["sh", "-c", &touch("lock")]).timeout(60))
        .build()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_trigger_one_notifier_can_do_that_and_nothing_else() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    admin.run(&target(instance, "victim")).await?;
    let mallory = user(instance, "mallory", &may_trigger("reload")).await?;

    let done = mallory
        .notify(&notification("allowed", "victim", "reload").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");

    // Another notifier, in every way an object can be sent.
    let mut lock = notification("lock", "victim", "lock").build();
    for path in [
        NOTIFICATIONS.to_owned(),
        format!("{NOTIFICATIONS}?dryRun=All"),
        format!("{NOTIFICATIONS}?fieldManager=kubectl&fieldValidation=Ignore"),
    ] {
        let told = mallory.post(&path, &lock).await?.refused(403)?;
        let message = told["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("needs verb \"notify\" on resource \"notifiers\"")
                && message.contains("resource name \"lock\""),
            "{message}"
        );
    }
    lock["metadata"] = json!({"generateName": "lock-"});
    mallory.post(NOTIFICATIONS, &lock).await?.refused(403)?;
    // The same notifier where the role is not bound.
    mallory
        .post(
            "/apis/apps.k8s.io/v1alpha1/namespaces/kube-system/podnotifications",
            &notification("elsewhere", "victim", "reload").build(),
        )
        .await?
        .refused(403)?;

    // What it says about its own notification is not believed.
    let own = format!("{NOTIFICATIONS}/allowed");
    let status = json!({"status": {"state": "Failed", "nodeName": "other"}});
    mallory
        .merge(&format!("{own}/status"), &status)
        .await?
        .refused(403)?;
    mallory
        .merge(&own, &json!({"spec": {"notifier": "lock"}}))
        .await?
        .refused(403)?;
    let mut forged = notification("forged", "victim", "reload").build();
    forged["status"] = json!({"state": "Succeeded", "nodeName": "other", "podUID": "x"});
    let made = mallory.post(NOTIFICATIONS, &forged).await?.ok()?;
    assert_eq!(made["status"]["state"], "New", "{made:#}");
    assert_eq!(made["status"]["nodeName"], "n1", "{made:#}");

    // The pod, what it declares, what it holds, what runs in it.
    let annotation = json!({"metadata": {"annotations": {"apps.k8s.io/notifiers": "{}"}}});
    let refused: [(Method, String, Value); 14] = [
        (Method::GET, PODS.to_owned(), json!({})),
        (Method::GET, format!("{PODS}/victim"), json!({})),
        (Method::GET, format!("{PODS}/victim/log"), json!({})),
        (Method::PATCH, format!("{PODS}/victim"), annotation),
        (Method::DELETE, format!("{PODS}/victim"), json!({})),
        (
            Method::POST,
            PODS.to_owned(),
            pod("own").idle("main").build(),
        ),
        (Method::GET, CONFIG_MAPS.to_owned(), json!({})),
        (
            Method::POST,
            CONFIG_MAPS.to_owned(),
            config_map("a", "b", "c"),
        ),
        (Method::GET, "/api/v1/nodes".to_owned(), json!({})),
        (Method::GET, "/metrics".to_owned(), json!({})),
        (
            Method::POST,
            ROLES.to_owned(),
            json!({"metadata": {"name": "own"}, "rules": may_trigger("lock")}),
        ),
        (
            Method::PATCH,
            format!("{ROLES}/mallory"),
            json!({"rules": may_trigger("lock")}),
        ),
        (
            Method::POST,
            CLUSTER_BINDINGS.to_owned(),
            json!({"metadata": {"name": "own"},
                "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "User", "name": "mallory"}]}),
        ),
        (Method::DELETE, own.clone(), json!({})),
    ];
    for (method, path, body) in refused {
        let content = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let headers = [("content-type", content)];
        let reply = mallory
            .send(method.clone(), &path, &headers, body.to_string())
            .await?;
        assert_eq!(reply.status, 403, "{method} {path}: {}", reply.text());
    }
    // What is inside the pod, and what others say of it; a connection is made by either method.
    for (method, path, right) in [
        (
            Method::GET,
            "pods/victim/exec?command=id",
            "create pods/exec",
        ),
        (
            Method::POST,
            "pods/victim/exec?command=id",
            "create pods/exec",
        ),
        (Method::GET, "pods/victim/attach", "create pods/attach"),
        (Method::POST, "pods/victim/attach", "create pods/attach"),
        (
            Method::GET,
            "pods/victim/portforward",
            "create pods/portforward",
        ),
        (
            Method::POST,
            "pods/victim/portforward",
            "create pods/portforward",
        ),
        (Method::GET, "pods/victim/status", "get pods/status"),
        (Method::PUT, "pods/victim/status", "update pods/status"),
        (Method::PATCH, "pods/victim/status", "patch pods/status"),
        (Method::POST, "pods/victim/binding", "create pods/binding"),
        (Method::GET, "secrets", "list secrets"),
        (Method::POST, "secrets", "create secrets"),
        (Method::GET, "secrets/any", "get secrets"),
    ] {
        let headers = match method {
            Method::PATCH => [("content-type", "application/merge-patch+json")],
            _ => [("content-type", "application/json")],
        };
        let path = format!("/api/v1/namespaces/default/{path}");
        let reply = mallory.send(method.clone(), &path, &headers, "{}").await?;
        let told = reply.refused(403)?;
        let message = told["message"].as_str().unwrap_or_default();
        let (verb, what) = right.split_once(' ').unwrap_or_default();
        let words = format!("User \"mallory\" cannot {verb} resource {what:?} in API group \"\"");
        assert!(message.contains(&words), "{method} {path}: {message}");
    }
    // Nor as somebody else.
    for headers in [
        &[("impersonate-user", "belay:admin")][..],
        &[
            ("impersonate-user", "mallory"),
            ("impersonate-group", "system:masters"),
        ],
        &[
            ("impersonate-user", "system:node:n1"),
            ("impersonate-group", "system:nodes"),
        ],
    ] {
        let reply = mallory.send(Method::GET, PODS, headers, "").await?;
        assert_eq!(reply.status, 403, "{headers:?}: {}", reply.text());
    }

    admin.finished("forged").await?;
    assert!(
        !fs::exists(instance.file("victim-lock"))?,
        "the notifier nobody was allowed to trigger ran"
    );
    // The line comes a moment after the answer.
    until_file(&instance.file("data/audit.log"), |log| {
        log.lines().any(|line| {
            line.contains("\"user\":\"mallory\"") && line.contains("may not trigger the notifier")
        })
    })
    .await
    .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_trigger_but_not_watch_is_told_what_is_missing_and_that_it_goes_on()
-> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    admin.run(&target(instance, "blind")).await?;
    let rules = json!([
        {"apiGroups": ["apps.k8s.io"], "resources": ["notifiers"], "resourceNames": ["reload"],
         "verbs": ["notify"]},
        {"apiGroups": ["apps.k8s.io"], "resources": ["podnotifications"], "verbs": ["create"]},
    ]);
    user(instance, "bob", &rules).await?;
    let kubeconfig = instance.user_kubeconfig("bob", &[]).await?;
    let notify = async |more: &[&str]| {
        tokio::process::Command::new(belay_testkit::binary::belay()?)
            .args(["notify", "reload", "pod/blind", "--kubeconfig"])
            .arg(&kubeconfig)
            .args(more)
            .kill_on_drop(true)
            .output()
            .await
            .map_err(anyhow::Error::from)
    };
    let ran = notify(&[]).await?;
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for words in ["list and watch", "go on", "--no-wait"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let ran = notify(&["--no-wait"]).await?;
    assert_eq!(ran.status.code(), Some(0));
    eventually("both to have run", async || {
        let text = fs::read_to_string(instance.file("blind-reload")).unwrap_or_default();
        Ok((text.lines().count() == 2).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_end_when_their_binding_is_deleted_and_tokens_when_they_are_replaced()
-> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    let fired = user(instance, "fired", &rules).await?;
    fired.get(CONFIG_MAPS).await?.ok()?;
    admin.delete(&format!("{BINDINGS}/fired")).await?.ok()?;
    fired.get(CONFIG_MAPS).await?.refused(403)?;
    instance.user_kubeconfig("fired", &[]).await?;
    fired.get(CONFIG_MAPS).await?.refused(401)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_survive_a_kill() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]);
    let ann = user(&instance, "ann", &rules).await?;
    ann.get(CONFIG_MAPS).await?.ok()?;
    instance.kill9().await?;
    instance.start_again().await?;
    ann.get(CONFIG_MAPS).await?.ok()?;
    ann.get(PODS).await?.refused(403)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_makes_roles_and_answers_questions_about_them() -> anyhow::Result<()> {
    let Some((instance, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    for arguments in [
        &[
            "create",
            "role",
            "reloader",
            "--verb=notify",
            "--resource=notifiers.apps.k8s.io",
            "--resource-name=reload",
        ][..],
        &[
            "create",
            "role",
            "asks",
            "--verb=create,get,list,watch",
            "--resource=podnotifications.apps.k8s.io",
        ],
        &[
            "create",
            "rolebinding",
            "ann-reloads",
            "--role=reloader",
            "--user=ann",
        ],
        &[
            "create",
            "rolebinding",
            "ann-asks",
            "--role=asks",
            "--group=ops",
        ],
        &[
            "create",
            "clusterrole",
            "scraper",
            "--verb=get",
            "--non-resource-url=/metrics",
        ],
        &[
            "create",
            "clusterrolebinding",
            "scrapes",
            "--clusterrole=scraper",
            "--group=ops",
        ],
    ] {
        kubectl.ok(arguments).await?;
    }
    let table = kubectl
        .ok(&["get", "rolebinding", "ann-asks", "-o", "wide"])
        .await?;
    assert!(
        table.contains("Role/asks") && table.contains("ops"),
        "{table}"
    );
    let described = kubectl.ok(&["describe", "role", "reloader"]).await?;
    assert!(
        described.contains("notifiers.apps.k8s.io") && described.contains("[notify]"),
        "{described}"
    );

    let ann = kubectl.with_kubeconfig(instance.user_kubeconfig("ann", &["ops"]).await?);
    for (arguments, expected) in [
        (&["notify", "notifiers.apps.k8s.io/reload"][..], true),
        (&["notify", "notifiers.apps.k8s.io/lock"], false),
        (&["create", "podnotifications.apps.k8s.io"], true),
        (&["create", "pods", "--subresource=exec"], false),
        (&["get", "pods"], false),
        (&["get", "/metrics"], true),
        (&["*", "*"], false),
    ] {
        let mut all = vec!["auth", "can-i"];
        all.extend(arguments);
        let told = ann.run(&all).await?;
        assert_eq!(told.success, expected, "{arguments:?}: {told:?}");
        let as_her = [&all[..], &["--as=ann", "--as-group=ops"]].concat();
        let told = kubectl.run(&as_her).await?;
        assert_eq!(told.success, expected, "{arguments:?} as her: {told:?}");
    }
    let list = ann.ok(&["auth", "can-i", "--list"]).await?;
    assert!(
        list.lines()
            .any(|line| line.contains("notifiers.apps.k8s.io") && line.contains("[reload]")),
        "{list}"
    );
    let who = ann.ok(&["auth", "whoami", "-o", "json"]).await?;
    let who: Value = serde_json::from_str(&who)?;
    assert_eq!(
        who["status"]["userInfo"],
        json!({"username": "ann", "groups": ["ops", "system:authenticated"]})
    );
    let refused = ann.fails(&["get", "pods", "--as=belay:admin"]).await?;
    assert!(refused.contains("cannot impersonate"), "{refused}");
    let refused = kubectl.fails(&["get", "pods", "--as=stranger"]).await?;
    assert!(
        refused.contains("User \"stranger\" cannot list"),
        "{refused}"
    );
    let refused = kubectl
        .fails(&["get", "pods", "--as=ann", "--as-uid=1"])
        .await?;
    assert!(
        refused.contains("impersonate-uid is not supported"),
        "{refused}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregated_role_extends_view() -> anyhow::Result<()> {
    let Some((instance, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    kubectl
        .ok(&[
            "create",
            "rolebinding",
            "vera",
            "--clusterrole=view",
            "--user=vera",
        ])
        .await?;
    let vera = kubectl.with_kubeconfig(instance.user_kubeconfig("vera", &[]).await?);
    vera.ok(&["get", "pods,podnotifications,events,configmaps"])
        .await?;
    vera.fails(&["get", "leases"]).await?;
    kubectl
        .ok(&[
            "create",
            "clusterrole",
            "leases-view",
            "--verb=list",
            "--resource=leases",
        ])
        .await?;
    kubectl
        .ok(&[
            "label",
            "clusterrole",
            "leases-view",
            "rbac.authorization.k8s.io/aggregate-to-view=true",
        ])
        .await?;
    vera.ok(&["get", "leases"]).await?;
    vera.fails(&["delete", "pods", "--all"]).await?;
    kubectl
        .ok(&["delete", "clusterrole", "leases-view"])
        .await?;
    vera.fails(&["get", "leases"]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn belay_notify_says_which_right_is_missing() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    admin.run(&target(instance, "told")).await?;
    user(instance, "nina", &may_trigger("reload")).await?;
    let kubeconfig = instance.dir().join("nina.kubeconfig");
    let kubeconfig = kubeconfig.to_string_lossy();
    let refused = instance
        .belay(&["notify", "lock", "pod/told", "--kubeconfig", &kubeconfig])
        .await?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned()
        + &String::from_utf8_lossy(&refused.stdout);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("needs verb \"notify\""), "{said}");
    let done = instance
        .belay(&[
            "notify",
            "reload",
            "pod/told",
            "--keep",
            "--kubeconfig",
            &kubeconfig,
        ])
        .await?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{said}");
    eventually("the handler's file", async || {
        Ok(fs::exists(instance.file("told-reload"))?.then_some(()))
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_token_takes_a_name_that_is_the_server_s_own() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let data_dir = instance.data_dir();
    let data_dir = data_dir.to_string_lossy();
    for who in [
        &["--user", "system:node:n1"][..],
        &["--user", "system:belay:controller"],
        &["--user", "ann", "--group", "system:nodes"],
        &["--user", "ann", "--node", "n1"],
        &["--group", "ops"],
        &[],
    ] {
        let mut arguments = vec!["token", "create", "--data-dir", &data_dir];
        arguments.extend(who);
        let ended = instance.belay(&arguments).await?;
        assert_eq!(ended.status.code(), Some(2), "{who:?}");
    }
    Ok(())
}
