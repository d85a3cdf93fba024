//! What somebody can do on a real Kubernetes who may trigger one notifier, who may write around it,
//! or who holds an agent's token: nothing that the manifests do not mean. Tried as an attacker would.

use std::fs;

use belay_testkit::{
    FANOUTS, NOTIFICATIONS, PODS, Stage, eventually, fanout, lines, notification, pod,
};
use http::Method;
use serde_json::{Value, json};

use attacker::{
    AGENT, RBAC, agents, apply, bind, cluster, held, json_patch, lie, may_reload,
    may_reload_and_write, members, refused, target, user,
};

#[path = "authority/attacker.rs"]
mod attacker;
#[path = "authority/hooks.rs"]
mod hooks;

const ANNOTATION: &str = "apps.k8s.io/notifiers";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/belay-system/leases";

#[tokio::test(flavor = "multi_thread")]
async fn who_may_trigger_one_notifier_triggers_that_and_no_other() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    target(&stage, "one").await?;
    let mallory = user(cluster, "mallory", may_reload()).await?;
    let done = mallory
        .notify(&notification("one-may", "one", "reload").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    let all = fanout("one-all", ("app", "one"), "reload").build();
    mallory.post(FANOUTS, &all).await?.ok()?;
    let counted = |object: &Value| {
        object["status"]["completeTime"]
            .is_string()
            .then(|| object.clone())
    };
    let done = mallory
        .until(&format!("{FANOUTS}/one-all"), "the end", counted)
        .await?;
    assert_eq!(done["status"]["succeededCount"], 1, "{done:#}");
    assert_eq!(lines(&stage.file("one-reload")), 2);

    let other = notification("one-not", "one", "drop").build();
    let mut unnamed = other.clone();
    unnamed["metadata"] = json!({"generateName": "one-not-"});
    let many = fanout("one-not", ("app", "one"), "drop").build();
    let dry = |path: &str| format!("{path}?dryRun=All");
    let rule = [
        "\"notify\"",
        "notifiers",
        "\"drop\"",
        "\"default\"",
        "mallory",
    ];
    for (path, object) in [
        (NOTIFICATIONS, &other),
        (NOTIFICATIONS, &unnamed),
        (FANOUTS, &many),
        (&dry(NOTIFICATIONS), &other),
        (&dry(FANOUTS), &many),
    ] {
        refused(mallory.post(path, object).await?, 403, &rule)?;
    }

    // Names that only look like the one that was granted.
    for notifier in ["Reload", "reload.drop", "example.com/reload", "reload-2"] {
        let object = notification("one-not", "one", notifier).build();
        let reply = mallory.post(NOTIFICATIONS, &object).await?;
        refused(reply, 403, &["\"notify\"", notifier])?;
    }

    // More rights on notifications are no rights on notifiers.
    let mallet = user(cluster, "mallet", may_reload_and_write()).await?;
    let path = format!("{NOTIFICATIONS}/one-not");
    let rule = ["\"notify\"", "notifiers", "\"drop\"", "mallet"];
    refused(apply(&mallet, &path, &other).await?, 403, &rule)?;
    let path = format!("{FANOUTS}/one-not");
    refused(apply(&mallet, &path, &many).await?, 403, &rule)?;

    // Nor is a right in one namespace one in another, where they may create what they like.
    let admin = stage.admin();
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}});
    admin.post("/api/v1/namespaces", &namespace).await?.ok()?;
    let elsewhere = NOTIFICATIONS.replace("/default/", "/other/");
    let object = notification("one-not", "one", "reload").build();
    let reply = mallory.post(&elsewhere, &object).await?;
    refused(reply, 403, &["cannot create", "\"other\""])?;
    let creator = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "mallory", "namespace": "other"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "mallory", "namespace": "default"}],
    });
    let bindings = format!("{RBAC}/rolebindings").replace("/default/", "/other/");
    admin.post(&bindings, &creator).await?.ok()?;
    eventually("the role to be known", async || {
        mallory.get(&elsewhere).await?.ok().map(Some)
    })
    .await?;
    let reply = mallory.post(&elsewhere, &object).await?;
    refused(reply, 403, &["\"notify\"", "\"reload\"", "\"other\""])?;

    assert_eq!(lines(&stage.file("one-drop")), 0, "it never ran");
    assert_eq!(lines(&stage.file("one-reload")), 2, "nor this more often");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_for_stays_what_was_asked_for() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    target(&stage, "fixed").await?;
    let writer = user(cluster, "fixed", may_reload_and_write()).await?;
    // Waits for a pod that is never there, so that nobody is done with it.
    let many = fanout("fixed", ("app", "nobody-yet"), "reload").all_pods();
    let asked = [
        (
            NOTIFICATIONS,
            notification("fixed", "fixed", "reload").build(),
        ),
        (FANOUTS, many.build()),
    ];
    for (collection, object) in asked {
        let path = format!("{collection}/fixed");
        writer.post(collection, &object).await?.ok()?;
        let change = json!({"spec": {"notifier": "drop"}});
        refused(writer.merge(&path, &change).await?, 422, &["immutable"])?;
        let change = json!([{"op": "replace", "path": "/spec/notifier", "value": "drop"}]);
        refused(
            json_patch(&writer, &path, &change).await?,
            422,
            &["immutable"],
        )?;
        let mut now = writer.get(&path).await?.ok()?;
        now["spec"]["notifier"] = "drop".into();
        if let Some(metadata) = now["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
        }
        let mut whole = object.clone();
        whole["spec"]["notifier"] = "drop".into();
        refused(apply(&writer, &path, &whole).await?, 422, &["immutable"])?;
        let written = writer.put(&path, &now).await?;
        assert!(!written.status.is_success(), "{}", written.text());
    }
    let done = writer.finished("fixed").await?;
    assert_eq!(done["spec"]["notifier"], "reload");
    assert_eq!(lines(&stage.file("fixed-drop")), 0);
    Ok(())
}

/// The counts of a Notification are what its children came to: who may trigger one notifier must not
/// be able to say what came of another.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_part_of_a_fan_out_is_said_by_the_controller_alone() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let pod = target(&stage, "part").await?;
    let forger = user(cluster, "forger", may_reload_and_write()).await?;
    let asked = fanout("part", ("app", "nobody-at-all"), "drop").all_pods();
    let asked = admin.post(FANOUTS, &asked.build()).await?.ok()?;
    let uid = &asked["metadata"]["uid"];
    let label = json!({"apps.k8s.io/notification-uid": uid});
    let owner = json!([{
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification", "name": "part",
        "uid": uid, "controller": true,
    }]);
    let own = notification("part", "part", "reload").spec("podUID", pod["metadata"]["uid"].clone());
    let claims = [
        json!({"name": "part-1", "labels": label}),
        json!({"name": "part-1", "ownerReferences": owner}),
        json!({"name": "part-1", "labels": label, "ownerReferences": owner}),
    ];
    let rule = ["only the controller of Belay"];
    for metadata in &claims {
        let mut object = own.clone().build();
        object["metadata"] = metadata.clone();
        refused(forger.post(NOTIFICATIONS, &object).await?, 403, &rule)?;
        refused(admin.post(NOTIFICATIONS, &object).await?, 403, &rule)?;
    }
    forger.post(NOTIFICATIONS, &own.build()).await?.ok()?;
    let path = format!("{NOTIFICATIONS}/part");
    for metadata in claims {
        let mut patch = json!({"metadata": metadata});
        patch["metadata"]["name"] = "part".into();
        refused(forger.merge(&path, &patch).await?, 403, &rule)?;
    }
    // The names of such ones cannot be taken beforehand, and who is counted stays counted.
    let taken = notification("part-0123456789abcdef", "part", "reload").build();
    let reply = forger.post(NOTIFICATIONS, &taken).await?;
    refused(reply, 403, &["sixteen hexadecimal digits"])?;
    let counted = fanout("counted", ("app", "part"), "reload").all_pods();
    let counted = admin.post(FANOUTS, &counted.build()).await?.ok()?;
    let uid = counted["metadata"]["uid"].as_str().unwrap_or_default();
    let of = format!("{NOTIFICATIONS}?labelSelector=apps.k8s.io/notification-uid%3D{uid}");
    let child = eventually("the child", async || {
        let list = admin.get(&of).await?.ok()?;
        Ok(list["items"][0]["metadata"]["name"]
            .as_str()
            .map(str::to_owned))
    })
    .await?;
    let child = format!("{NOTIFICATIONS}/{child}");
    let unlabelled = json!({"metadata": {"labels": {"apps.k8s.io/notification-uid": null}}});
    refused(forger.merge(&child, &unlabelled).await?, 403, &rule)?;
    // Anything else may be written on it.
    let harmless = json!({"metadata": {"labels": {"team": "a"}}});
    forger.merge(&path, &harmless).await?.ok()?;
    let counted = admin.get(&format!("{FANOUTS}/part")).await?.ok()?;
    assert_eq!(counted["status"]["succeededCount"].as_u64().unwrap_or(0), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_but_belay_says_what_came_of_a_notification() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let writer = user(cluster, "writer", may_reload_and_write()).await?;
    // Said in the same breath with the request, it is not heard.
    let mut told = notification("told", "no-such-pod", "reload").build();
    told["status"] = json!({"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z"});
    let done = writer.notify(&told).await?;
    assert_eq!(done["status"]["error"]["type"], "PodNotFound", "{done:#}");
    let gate = held(&stage, "forged").await?;
    let mut many = fanout("forged", ("app", "nobody-here"), "reload")
        .all_pods()
        .build();
    many["status"] = json!({"state": "New", "succeededCount": 7});
    writer.post(FANOUTS, &many).await?.ok()?;

    let reader = user(cluster, "reader", may_reload()).await?;
    let editor = user(cluster, "editor", json!("edit")).await?;
    let owner = user(cluster, "owner", json!("admin")).await?;
    let policy = "may not write the status";
    let lies = [
        (NOTIFICATIONS, json!({"status": lie()})),
        (FANOUTS, json!({"status": {"succeededCount": 7}})),
    ];
    for (collection, lie) in lies {
        let path = format!("{collection}/forged/status");
        for (caller, word) in [
            (&reader, "cannot patch"),
            (&editor, "cannot patch"),
            (&owner, "cannot patch"),
            (&writer, policy),
            (admin, policy),
        ] {
            refused(caller.merge(&path, &lie).await?, 403, &[word])?;
            let patch: Vec<_> = members(&lie["status"])
                .map(|(field, value)| {
                    json!({"op": "add", "path": format!("/status/{field}"), "value": value})
                })
                .collect();
            let reply = json_patch(caller, &path, &json!(patch)).await?;
            refused(reply, 403, &[word])?;
            let whole = caller.get(&format!("{collection}/forged")).await?.ok()?;
            let part = json!({"apiVersion": whole["apiVersion"], "kind": whole["kind"],
                "metadata": {"name": "forged"}, "status": lie["status"]});
            refused(apply(caller, &path, &part).await?, 403, &[word])?;
            let word = word.replace("patch", "update");
            // The controller may write meanwhile, which is a conflict.
            eventually("the whole to be refused", async || {
                let mut whole = caller.get(&format!("{collection}/forged")).await?.ok()?;
                for (field, value) in members(&lie["status"]) {
                    whole["status"][field] = value.clone();
                }
                let reply = caller.put(&path, &whole).await?;
                refused(reply, 403, &[&word]).map(Some)
            })
            .await?;
        }
        // What is written on the object itself does not reach its status.
        writer
            .merge(&format!("{collection}/forged"), &lie)
            .await?
            .ok()?;
        let now = admin.get(&format!("{collection}/forged")).await?.ok()?;
        let status = &now["status"];
        assert_eq!(status["state"], "New", "{now:#}");
        assert!(status["error"].is_null(), "{now:#}");
        assert_ne!(status["succeededCount"], 7, "{now:#}");
    }
    fs::write(&gate, "")?;
    let done = admin.finished("forged").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pod_declares_cannot_be_added_changed_or_removed() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let evil = r#"{"main":[{"name":"reload","handler":{"exec":{"command":["id"]}}}]}"#;
    target(&stage, "declared").await?;
    stage.run(pod("bare").idle("main")).await?;
    stage
        .create(pod("unbound").idle("main").spec("schedulerName", "nobody"))
        .await?;
    let writer = user(cluster, "annotator", may_reload_and_write()).await?;
    let editor = user(cluster, "annotating-editor", json!("edit")).await?;
    let touch = json!({"metadata": {"annotations": {"touched": "yes"}}});
    for caller in [&writer, &editor, admin] {
        for name in ["declared", "bare"] {
            let path = format!("{PODS}/{name}");
            let declared = async || -> anyhow::Result<Value> {
                let pod = admin.get(&path).await?.ok()?;
                Ok(pod["metadata"]["annotations"][ANNOTATION].clone())
            };
            let before = declared().await?;
            caller.merge(&path, &touch).await?.ok()?;
            let mut patches = vec![json!({"metadata": {"annotations": {ANNOTATION: evil}}})];
            if name == "declared" {
                patches.push(json!({"metadata": {"annotations": {ANNOTATION: null}}}));
                patches.push(json!({"metadata": {"annotations": null}}));
                patches.push(json!({"metadata": {"annotations": {ANNOTATION: ""}}}));
            }
            for patch in &patches {
                let reply = caller.merge(&path, patch).await?;
                refused(reply, 403, &[ANNOTATION, "fixed when the pod is created"])?;
                let dry = caller.merge(&format!("{path}?dryRun=All"), patch).await?;
                refused(dry, 403, &["fixed when the pod is created"])?;
                for part in ["status", "ephemeralcontainers", "resize"] {
                    let reply = caller.merge(&format!("{path}/{part}"), patch).await?;
                    // Of the others the server itself takes no annotations.
                    if part == "status" {
                        refused(reply, 403, &[])?;
                    }
                    assert_eq!(declared().await?, before, "through {part}");
                }
            }
            let whole = json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "annotations": {ANNOTATION: evil}}});
            refused(apply(caller, &path, &whole).await?, 403, &[ANNOTATION])?;
            assert_eq!(declared().await?, before);
        }
    }

    // A binding carries annotations to its pod.
    for caller in [&writer, admin] {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": "unbound", "annotations": {ANNOTATION: evil}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
        });
        let bindings = PODS.replace("/pods", "/bindings");
        for path in [&format!("{PODS}/unbound/binding"), &bindings] {
            let reply = caller.post(path, &binding).await?;
            refused(reply, 403, &[ANNOTATION, "binding"])?;
        }
    }
    let pod = admin.get(&format!("{PODS}/unbound")).await?.ok()?;
    assert!(
        pod["metadata"]["annotations"][ANNOTATION].is_null(),
        "{pod:#}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_right_to_trigger_is_none_to_exec_to_impersonate_or_to_grant() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    target(&stage, "inside").await?;
    let mut rules = may_reload();
    if let Some(rules) = rules.as_array_mut() {
        rules.push(json!({"apiGroups": ["rbac.authorization.k8s.io"],
            "resources": ["roles", "rolebindings"], "verbs": ["create", "get", "update", "patch"]}));
    }
    let climber = user(cluster, "climber", rules).await?;
    for way in [
        "exec?command=id&container=main&stdout=true",
        "attach?container=main&stdout=true",
        "portforward?ports=80",
    ] {
        let path = format!("{PODS}/inside/{way}");
        refused(climber.get(&path).await?, 403, &["cannot get"])?;
        refused(
            climber.post(&path, &json!({})).await?,
            403,
            &["cannot create"],
        )?;
    }
    let patch = json!({"spec": {"ephemeralContainers": [{"name": "x", "image": "x"}]}});
    let path = format!("{PODS}/inside/ephemeralcontainers");
    refused(climber.merge(&path, &patch).await?, 403, &["cannot patch"])?;

    // Nobody's identity but their own, and no token of somebody else.
    let object = serde_json::to_vec(&notification("inside", "inside", "drop").build())?;
    for who in [
        "system:serviceaccount:belay-system:belay-controller",
        "system:serviceaccount:belay-system:belay-agent",
        "admin",
    ] {
        let headers = [
            ("content-type", "application/json"),
            ("impersonate-user", who),
        ];
        let reply = climber
            .send(Method::POST, NOTIFICATIONS, &headers, object.clone())
            .await?;
        refused(reply, 403, &["cannot impersonate"])?;
    }
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    for account in ["belay-agent", "belay-controller"] {
        let path = AGENT.replace("belay-agent", account);
        let reply = climber.post(&format!("{path}/token"), &request).await?;
        refused(reply, 403, &["cannot create"])?;
    }

    // Who may write roles cannot write more into them than they have.
    for (name, names) in [("all", Value::Null), ("drop", json!(["drop"]))] {
        let mut rule = json!({"apiGroups": ["apps.k8s.io"], "resources": ["notifiers"],
            "verbs": ["notify"]});
        if !names.is_null() {
            rule["resourceNames"] = names;
        }
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": name}, "rules": [rule]});
        let reply = climber.post(&format!("{RBAC}/roles"), &role).await?;
        refused(reply, 403, &["notify", "not currently held"])?;
        let patch = json!({"rules": [rule]});
        let reply = climber
            .merge(&format!("{RBAC}/roles/climber"), &patch)
            .await?;
        refused(reply, 403, &["notify", "not currently held"])?;
    }
    for role in [
        "belay-controller",
        "belay-agent",
        "belay-admin",
        "admin",
        "cluster-admin",
    ] {
        let refusal = bind(&climber, "climber", json!(role)).await;
        let Err(refusal) = refusal else {
            panic!("bound to {role}");
        };
        let told = format!("{refusal:#}");
        assert!(told.contains("not currently held"), "{role}: {told}");
    }
    assert_eq!(lines(&stage.file("inside-drop")), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_writes_what_came_of_notifications_for_its_own_node_only() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let (near, far, nowhere) = agents(cluster).await?;
    let gate = held(&stage, "held").await?;
    let status = format!("{NOTIFICATIONS}/held/status");
    let condition = json!({"status": {"conditions": [{"type": "Forged", "status": "True",
        "reason": "Lie", "message": "a lie", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    for (agent, node) in [(&far, "\"n2\""), (&nowhere, "\"\"")] {
        let rule = [node, "may not write the status", "\"n1\""];
        for write in [&json!({"status": lie()}), &condition] {
            refused(agent.merge(&status, write).await?, 403, &rule)?;
        }
        for take in [
            json!({"nodeName": "n2"}),
            json!({"nodeName": null}),
            json!({"executor": "n2"}),
            json!({"podUID": "another"}),
        ] {
            let reply = agent.merge(&status, &json!({"status": take})).await?;
            assert!(
                matches!(reply.status.as_u16(), 403 | 422),
                "{}",
                reply.text()
            );
        }
    }
    // Not even the right one gives it to somebody else, or lets it go.
    for to in [json!("n2"), Value::Null] {
        let away = json!({"status": {"nodeName": to}});
        let reply = near.merge(&status, &away).await?;
        assert!(
            matches!(reply.status.as_u16(), 403 | 422),
            "{}",
            reply.text()
        );
    }
    let now = admin.get(&format!("{NOTIFICATIONS}/held")).await?.ok()?;
    assert_eq!(now["status"]["nodeName"], "n1", "{now:#}");
    assert_eq!(now["status"]["state"], "New", "{now:#}");

    // What was never given to a node is no agent's.
    let nobody = notification("nobody-s", "no-such-pod", "work").build();
    let nobody = admin.notify(&nobody).await?;
    assert!(nobody["status"]["nodeName"].is_null(), "{nobody:#}");
    let path = format!("{NOTIFICATIONS}/nobody-s/status");
    for agent in [&near, &far, &nowhere] {
        for write in [
            json!({"status": {"nodeName": "n1"}}),
            json!({"status": {"executor": "n1"}}),
        ] {
            let reply = agent.merge(&path, &write).await?;
            refused(reply, 403, &["may not write the status"])?;
        }
    }

    fs::write(&gate, "")?;
    let done = admin.finished("held").await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(done["status"]["executor"], "n1");
    for agent in [&far, &nowhere] {
        refused(agent.merge(&status, &condition).await?, 403, &["may not"])?;
    }

    // It triggers nothing, execs nothing, and counts nothing.
    let ask = notification("by-an-agent", "held", "work").build();
    for agent in [&near, &far, &nowhere] {
        refused(
            agent.post(NOTIFICATIONS, &ask).await?,
            403,
            &["cannot create"],
        )?;
        let exec = format!("{PODS}/held/exec?command=id&container=main&stdout=true");
        refused(
            agent.post(&exec, &json!({})).await?,
            403,
            &["cannot create"],
        )?;
        refused(agent.get(&exec).await?, 403, &["cannot get"])?;
        let pod = json!({"metadata": {"labels": {"by": "agent"}}});
        let path = format!("{PODS}/held");
        refused(agent.merge(&path, &pod).await?, 403, &["cannot patch"])?;
        let count = json!({"status": {"succeededCount": 7}});
        let path = format!("{FANOUTS}/any/status");
        refused(agent.merge(&path, &count).await?, 403, &["cannot patch"])?;
    }

    // It shows that it lives, and of nobody else that they do.
    let touch = json!({"metadata": {"labels": {"touched": "yes"}}});
    near.merge(&format!("{LEASES}/n1"), &touch).await?.ok()?;
    let rule = ["the lease of its own node only"];
    for (agent, others) in [
        (&near, &["belay-controller"][..]),
        (&far, &["n1", "belay-controller"]),
        (&nowhere, &["n1", "belay-controller"]),
    ] {
        for lease in others {
            let path = format!("{LEASES}/{lease}");
            refused(agent.merge(&path, &touch).await?, 403, &rule)?;
            refused(agent.delete(&path).await?, 403, &["cannot delete"])?;
        }
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "n3"}, "spec": {"holderIdentity": "n3"}});
        refused(agent.post(LEASES, &lease).await?, 403, &rule)?;
    }
    Ok(())
}
