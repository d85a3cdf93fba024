//! A real Kubernetes that has lost the policies Belay was installed with: what a pod declares is
//! still what the runtime recorded, and a role that starts without them refuses to.

use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::{
    Cluster, NOTIFICATIONS, PODS, Rest, Stage, eventually, eventually_within, exec, lines,
    notification, pod, rest::name,
};
use serde_json::{Value, json};

const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const SYSTEM_PODS: &str = "/api/v1/namespaces/belay-system/pods";
const ANNOTATION: &str = "apps.k8s.io/notifiers";
/// The kubelet starts what keeps on failing less and less often.
const PATIENCE: Duration = Duration::from_secs(300);

async fn remove(admin: &Rest, policy: &str) -> anyhow::Result<()> {
    for kind in [
        "validatingadmissionpolicybindings",
        "validatingadmissionpolicies",
    ] {
        let path = format!("{REGISTRATION}/{kind}/{policy}");
        admin.delete(&path).await?.ok()?;
    }
    Ok(())
}

/// Asks for the notifier until what the pod says now was seen by those who act on it, and it ends
/// without a container and with this error.
async fn nothing_runs(admin: &Rest, pod: &str, notifier: &str, error: &str) -> anyhow::Result<()> {
    let (mut asked, mut last) = (0, Value::Null);
    let ended = eventually("the change to be seen", async || {
        asked += 1;
        let ask = notification(&format!("{pod}-{asked}"), pod, notifier).build();
        last = admin.notify(&ask).await?["status"].take();
        let told = last["error"]["type"].as_str().unwrap_or_default();
        Ok((told == error && last["containers"].is_null()).then_some(()))
    });
    ended
        .await
        .with_context(|| format!("{pod} last told {last:#}"))
}

/// The pods of Belay, with what the last of each's containers said before it ended.
async fn last_words(admin: &Rest) -> anyhow::Result<Vec<(Value, String)>> {
    let list = admin.get(SYSTEM_PODS).await?.ok()?;
    let mut all = Vec::new();
    for pod in list["items"].as_array().into_iter().flatten() {
        let log = format!("{SYSTEM_PODS}/{}/log?previous=true", name(pod));
        all.push((pod.clone(), admin.get(&log).await?.text()));
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_policies_nothing_undeclared_runs_and_no_role_starts() -> anyhow::Result<()> {
    let Some(cluster) = Cluster::with_belay().await? else {
        return Ok(());
    };
    let stage = Stage::of(&cluster).await?;
    let admin = stage.admin();
    let evil = stage.file("evil");
    let script = format!("echo ran >> {evil}");
    let declared = || exec(["sh", "-c", "true"]).timeout(60);
    for name in ["changed", "extended", "removed", "same"] {
        stage
            .run(pod(name).idle("main").notifier("lock", declared()))
            .await?;
    }
    stage.run(pod("added").idle("main")).await?;

    // The annotation can be changed now; the runtime knows what it was.
    remove(admin, "belay-annotation").await?;
    let command = json!({"exec": {"command": ["sh", "-c", script]}});
    let other = json!({"name": "evil", "handler": command, "timeoutSeconds": 60});
    let lock = json!({"name": "lock", "handler": command, "timeoutSeconds": 60});
    let mut kept = admin.get(&format!("{PODS}/extended")).await?.ok()?;
    let kept = kept["metadata"]["annotations"][ANNOTATION].take();
    let mut kept: Value = serde_json::from_str(kept.as_str().unwrap_or_default())?;
    if let Some(notifiers) = kept["main"].as_array_mut() {
        notifiers.push(other.clone());
    }
    for (pod, now, notifier) in [
        (
            "changed",
            json!({"main": [lock]}).to_string().into(),
            "lock",
        ),
        ("extended", kept.to_string().into(), "evil"),
        ("added", json!({"main": [other]}).to_string().into(), "evil"),
        ("removed", Value::Null, "lock"),
    ] {
        let patch = json!({"metadata": {"annotations": {ANNOTATION: now}}});
        let path = format!("{PODS}/{pod}");
        eventually("the policy to be gone", async || {
            admin.merge(&path, &patch).await?.ok().map(Some)
        })
        .await?;
        // What the API says is not declared any more, the controller gives to nobody.
        let told = if now.is_null() { "" } else { "Forbidden" };
        nothing_runs(admin, pod, notifier, told).await?;
    }
    assert_eq!(lines(&evil), 0, "what was put there never ran");
    let same = notification("same", "same", "lock").build();
    let same = admin.notify(&same).await?;
    assert_eq!(same["status"]["state"], "Succeeded", "{same:#}");

    // Who starts now, refuses to.
    remove(admin, "belay-notify").await?;
    remove(admin, "belay-status").await?;
    cluster.kill9_role("belay agent")?;
    cluster.kill9_role("belay controller")?;
    eventually_within(PATIENCE, "every role to refuse", async || {
        let all = last_words(admin).await?;
        anyhow::ensure!(!all.is_empty(), "no pods");
        for (pod, said) in all {
            let state = &pod["status"]["containerStatuses"][0]["state"];
            anyhow::ensure!(
                state["waiting"]["reason"] == "CrashLoopBackOff",
                "{}: {state}",
                name(&pod)
            );
            for word in ["belay-annotation", "belay manifests"] {
                anyhow::ensure!(said.contains(word), "{}: {said}", name(&pod));
            }
        }
        Ok(Some(()))
    })
    .await?;
    let late = notification("late", "same", "lock").deadline(1).build();
    admin.post(NOTIFICATIONS, &late).await?.ok()?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let late = admin.get(&format!("{NOTIFICATIONS}/late")).await?.ok()?;
    assert_eq!(late["status"]["state"], "New", "nobody acts: {late:#}");

    // Installed again, it goes on; what is too late by then does not run.
    admin.delete(SYSTEM_PODS).await?.ok()?;
    cluster.install(&[]).await?;
    let late = admin.finished("late").await?;
    assert_eq!(late["status"]["error"]["type"], "Expired", "{late:#}");
    let again = notification("again", "same", "lock").build();
    let again = admin.notify(&again).await?;
    assert_eq!(again["status"]["state"], "Succeeded", "{again:#}");
    let patch = json!({"metadata": {"annotations": {ANNOTATION: "{}"}}});
    eventually("the policy to be back", async || {
        let reply = admin
            .merge(&format!("{PODS}/same?dryRun=All"), &patch)
            .await?;
        reply.refused(403).map(Some)
    })
    .await?;
    Ok(())
}
