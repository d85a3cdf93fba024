//! Who may run an action may run that one; who may write actions is who may exec; what agents run is
//! the controller's word, and what came of it theirs.

use belay_testkit::{Rest, Stage, eventually};
use serde_json::{Value, json};

use crate::attacker::{agents, apply, cluster, holder, json_patch, refused, user};

const OWN: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/default";
const CONTROLLER: &str = "/api/v1/namespaces/belay-system/serviceaccounts/belay-controller";

fn path(collection: &str, name: &str) -> String {
    format!("{OWN}/{collection}/{name}")
}

fn object(kind: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": kind,
        "metadata": {"name": name}});
    if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
        object.extend(rest);
    }
    object
}

fn action(name: &str, handler: &Value) -> Value {
    object("HookAction", name, json!({"action": handler}))
}

fn exec(command: &str) -> Value {
    json!({"exec": {"command": [command]}})
}

/// Runs in no pod that there is.
fn hook(name: &str, action: &str) -> Value {
    let pods = json!({"podContainerNamesList": [{"podName": "no-such-pod"}]});
    let spec = json!({"podSelection": pods, "actionName": action});
    object("ExecutionHook", name, json!({ "spec": spec }))
}

/// The role that is waited for reads notifications; see `user`.
fn may(rules: &[Value]) -> Value {
    let mut all = vec![
        json!({"apiGroups": ["apps.k8s.io"], "resources": ["podnotifications"],
        "verbs": ["get", "list"]}),
    ];
    all.extend(rules.iter().cloned());
    json!(all)
}

fn own(resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": ["apps.k8s.io"], "resources": resources, "verbs": verbs})
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_run_one_action_runs_that_and_no_other() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let mut run = own(&["hookactions"], &["run"]);
    run["resourceNames"] = json!(["flush"]);
    let rules = [
        own(&["executionhooks", "executionhooks/status"], &["*"]),
        run,
    ];
    let runner = user(cluster, "runner", may(&rules)).await?;
    let hooks = format!("{OWN}/executionhooks");
    let mut forged = hook("run-may", "flush");
    forged["status"] = json!({"actionSucceed": true, "completeTime": "2026-01-01T00:00:00Z"});
    let made = runner.post(&hooks, &forged).await?.ok()?;
    assert!(made["status"]["actionSucceed"].is_null(), "{made:#}");
    assert_eq!(made["spec"]["deadlineSeconds"], 60);

    let other = hook("run-not", "drop");
    let mut unnamed = other.clone();
    unnamed["metadata"] = json!({"generateName": "run-not-"});
    let rule = [
        "may not run the action \"drop\"",
        "\"run\"",
        "hookactions",
        "\"default\"",
        "runner",
    ];
    for (path, object) in [
        (&hooks, &other),
        (&hooks, &unnamed),
        (&format!("{hooks}?dryRun=All"), &other),
    ] {
        refused(runner.post(path, object).await?, 403, &rule)?;
    }
    let reply = apply(&runner, &path("executionhooks", "run-not"), &other).await?;
    refused(reply, 403, &rule)?;
    // What was asked for stays what was asked for, and what came of it is not theirs to say.
    let change = json!({"spec": {"actionName": "drop"}});
    let reply = runner
        .merge(&path("executionhooks", "run-may"), &change)
        .await?;
    refused(reply, 422, &["immutable"])?;
    // The controller may have ended it by now; conditions may be written all the same.
    let lie = json!({"status": {"conditions": [{
        "type": "FullGuarantees", "status": "True", "reason": "Lie", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    for caller in [&runner, stage.admin()] {
        let status = path("executionhooks", "run-may/status");
        let reply = caller.merge(&status, &lie).await?;
        refused(reply, 403, &["may not write the status of executionhooks"])?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_writes_an_action_needs_the_right_to_exec() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let write = own(&["hookactions"], &["create", "get", "update", "patch"]);
    let exec_right = json!({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]});
    let writer = user(cluster, "actions", may(std::slice::from_ref(&write))).await?;
    let execer = user(cluster, "execs", may(&[write, exec_right])).await?;
    let actions = format!("{OWN}/hookactions");
    let made = action("written", &exec("true"));
    let rule = ["may not say what hooks run", "pods/exec", "\"create\""];
    refused(writer.post(&actions, &made).await?, 403, &rule)?;
    let dry = format!("{actions}?dryRun=All");
    refused(writer.post(&dry, &made).await?, 403, &rule)?;
    let at = path("hookactions", "written");
    refused(apply(&writer, &at, &made).await?, 403, &rule)?;
    let stored = execer.post(&actions, &made).await?.ok()?;
    assert_eq!(stored["actionTimeoutSeconds"], 30);
    for change in [
        json!({"action": {"exec": {"command": ["id"]}}}),
        json!({"actionTimeoutSeconds": 3600}),
        json!({"action": {"exec": null, "tcpSocket": {"port": 22}}}),
    ] {
        refused(writer.merge(&at, &change).await?, 403, &rule)?;
    }
    let change = json!([{"op": "replace", "path": "/action/exec/command/0", "value": "id"}]);
    refused(json_patch(&writer, &at, &change).await?, 403, &rule)?;
    // What it does stays the same, so anything else may be written on it.
    let label = json!({"metadata": {"labels": {"team": "a"}}});
    writer.merge(&at, &label).await?.ok()?;
    execer
        .merge(&at, &json!({"action": {"exec": {"command": ["id"]}}}))
        .await?
        .ok()?;
    Ok(())
}

fn pod_action(name: &str, node: &str) -> Value {
    let spec = json!({
        "hook": {"name": "nobody", "uid": "00000000-0000-0000-0000-000000000000"},
        "podName": "no-such-pod", "podUID": "00000000-0000-0000-0000-000000000001",
        "nodeName": node, "containers": ["main"], "action": exec("true"),
        "actionTimeoutSeconds": 30, "deadlineSeconds": 3600,
    });
    object("PodAction", name, json!({ "spec": spec }))
}

/// Makes one where it is not there any more: nobody has to keep what belongs to no hook.
async fn made(controller: &Rest, name: &str, node: &str) -> anyhow::Result<()> {
    let reply = controller
        .post(&format!("{OWN}/podactions"), &pod_action(name, node))
        .await?;
    let exists = reply.status.as_u16() == 409;
    if exists { Ok(()) } else { reply.ok().map(drop) }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_run_the_controllers_podactions_and_answer_for_their_own_node() -> anyhow::Result<()>
{
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let rules = [own(&["*"], &["*"])];
    let forger = user(cluster, "podactions", may(&rules)).await?;
    let (near, far, _) = agents(cluster).await?;
    let controller = holder(cluster, CONTROLLER, Value::Null).await?;
    let collection = format!("{OWN}/podactions");
    let rule = ["only the controller of Belay may create a podaction"];
    for caller in [&forger, stage.admin()] {
        let reply = caller
            .post(&collection, &pod_action("forged", "n2"))
            .await?;
        refused(reply, 403, &rule)?;
    }
    let claim = json!({"status": {"executor": "n2", "startTime": "2026-01-01T00:00:00Z"}});
    let at = path("podactions", "owned/status");
    for (caller, word) in [
        (&forger, "may not write the status of podactions"),
        (stage.admin(), "may not write the status of podactions"),
        (
            &near,
            "may not write the status of podactions for the node \"n2\"",
        ),
    ] {
        eventually("the lie to be refused", async || {
            made(&controller, "owned", "n2").await?;
            refused(caller.merge(&at, &claim).await?, 403, &[word]).map(Some)
        })
        .await?;
    }
    eventually("the agent of the node to claim it", async || {
        made(&controller, "owned", "n2").await?;
        far.merge(&at, &claim).await?.ok().map(Some)
    })
    .await?;
    let join = json!({"metadata": {"labels": {"apps.k8s.io/hook-uid": "other"}}});
    eventually("the membership to be refused", async || {
        made(&controller, "owned", "n2").await?;
        let reply = forger.merge(&path("podactions", "owned"), &join).await?;
        refused(reply, 403, &rule).map(Some)
    })
    .await?;
    eventually("what agents run to stay", async || {
        made(&controller, "owned", "n2").await?;
        let other = json!({"spec": {"action": exec("id")}});
        let reply = controller
            .merge(&path("podactions", "owned"), &other)
            .await?;
        refused(reply, 422, &["immutable"]).map(Some)
    })
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_definitions_refuse_what_the_embedded_server_refuses() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let actions = format!("{OWN}/hookactions?dryRun=All");
    for (handler, word) in [
        (json!({}), "exactly one of"),
        (json!({"exec": {"command": []}}), "exec.command is required"),
        (json!({"sleep": {"seconds": 1}}), "sleep does nothing"),
        (
            json!({"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}),
            "exactly one of",
        ),
        (
            json!({"httpGet": {"port": 80, "host": "db"}}),
            "httpGet.host is forbidden",
        ),
        (
            json!({"tcpSocket": {"port": 80, "host": "db"}}),
            "tcpSocket.host is forbidden",
        ),
        (
            json!({"httpGet": {"port": 80, "scheme": "GOPHER"}}),
            "HTTP or HTTPS",
        ),
        (json!({"httpGet": {"port": 0}}), "port"),
        (json!({"tcpSocket": {"port": 65536}}), "port"),
        (json!({"tcpSocket": {"port": "UPPER"}}), "port"),
    ] {
        let reply = admin.post(&actions, &action("bad", &handler)).await?;
        refused(reply, 422, &[word]).map_err(|error| error.context(handler.to_string()))?;
    }
    for handler in [
        json!({"httpGet": {"port": "web", "path": "/flush"}}),
        json!({"tcpSocket": {"port": 5432}}),
    ] {
        admin
            .post(&actions, &action("good", &handler))
            .await?
            .ok()?;
    }
    let reply = admin
        .post(&actions, &object("HookAction", "bad", json!({})))
        .await?;
    refused(reply, 422, &["action: Required value"])?;
    let mut late = action("bad", &exec("a"));
    late["actionTimeoutSeconds"] = 0.into();
    refused(
        admin.post(&actions, &late).await?,
        422,
        &["actionTimeoutSeconds"],
    )?;

    let hooks = format!("{OWN}/executionhooks?dryRun=All");
    let selector = json!({"podContainerSelector": {"containerList": ["c"]}});
    for (spec, word) in [
        (json!({"actionName": "a"}), "podSelection: Required value"),
        (json!({"podSelection": {}}), "actionName: Required value"),
        (
            json!({"podSelection": selector, "actionName": "a"}),
            "podSelector: Required value",
        ),
        (json!({"podSelection": {}, "actionName": "A"}), "actionName"),
        (
            json!({"podSelection": {}, "actionName": "a", "deadlineSeconds": 0}),
            "deadlineSeconds",
        ),
        (
            json!({"actionName": "a", "podSelection": {"podContainerNamesList": [
                {"podName": "a"}, {"podName": "a"}]}}),
            "Duplicate value",
        ),
    ] {
        let bad = object("ExecutionHook", "bad", json!({ "spec": spec }));
        refused(admin.post(&hooks, &bad).await?, 422, &[word])?;
    }
    // The spelling of the seed's examples is unknown to the server.
    let example = object(
        "ExecutionHook",
        "hook-demo",
        json!({"spec": {"podSelection": {}, "actionName": "a", "hookActionName": "b"}}),
    );
    let strict = format!("{hooks}&fieldValidation=Strict");
    let reply = admin.post(&strict, &example).await?;
    refused(reply, 400, &["unknown field \"spec.hookActionName\""])
}
