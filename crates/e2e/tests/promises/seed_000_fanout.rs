//! The promises of the container notifier proposal (KEP-1977) about `Notification`. Each test quotes
//! the sentence that it keeps, and runs on the stage that the file including this one gives.

use anyhow::Context as _;
use belay_testkit::{
    FANOUTS, NOTIFICATIONS, PODS, PodBuilder, Rest, Stage, eventually, exec, fanout, lines, pod,
    until_file,
};
use serde_json::{Value, json};

/// A pod of a group that notes each `work` in the file of the group.
pub(crate) fn member(group: &str, name: &str, file: &str) -> PodBuilder {
    let script = format!("echo {name} >> {file}; echo done");
    pod(name)
        .label("group", group)
        .idle("main")
        .notifier("work", exec(["sh", "-c", &script]).timeout(60))
}

/// A pod whose `work` lasts until the file `{file}.go` is there.
pub(crate) fn waiting(group: &str, name: &str, file: &str) -> PodBuilder {
    let script = format!(
        "echo {name} >> {file}; while [ ! -e {file}.go ]; do sleep 0.05; done; echo {name} >> {file}.ended"
    );
    pod(name)
        .label("group", group)
        .idle("main")
        .notifier("work", exec(["sh", "-c", &script]).timeout(300))
}

/// Creates all of them, then waits until all run.
pub(crate) async fn run_all(stage: &Stage, pods: Vec<PodBuilder>) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for pod in pods {
        let created = stage.create(pod).await?;
        names.push(
            created["metadata"]["name"]
                .as_str()
                .context("a name")?
                .to_owned(),
        );
    }
    for name in &names {
        stage.admin().running(name).await?;
    }
    Ok(names)
}

pub(crate) async fn until_fanout<T>(
    admin: &Rest,
    name: &str,
    what: &str,
    holds: impl FnMut(&Value) -> Option<T>,
) -> anyhow::Result<T> {
    admin.until(&format!("{FANOUTS}/{name}"), what, holds).await
}

pub(crate) async fn ended(admin: &Rest, name: &str) -> anyhow::Result<Value> {
    until_fanout(admin, name, "a final state", |object| {
        (object["status"]["state"] != "New").then(|| object.clone())
    })
    .await
}

pub(crate) async fn carry_out(admin: &Rest, object: &Value) -> anyhow::Result<Value> {
    let created = admin.post(FANOUTS, object).await?.ok()?;
    ended(
        admin,
        created["metadata"]["name"].as_str().context("a name")?,
    )
    .await
}

pub(crate) async fn children(admin: &Rest, name: &str) -> anyhow::Result<Vec<Value>> {
    let list = admin.get(NOTIFICATIONS).await?.ok()?;
    let own = |child: &&Value| child["metadata"]["ownerReferences"][0]["name"] == name;
    let items = list["items"].as_array().context("a list")?;
    Ok(items.iter().filter(own).cloned().collect())
}

pub(crate) fn counts(object: &Value) -> (i64, i64) {
    let count = |field: &str| object["status"][field].as_i64().unwrap_or(-1);
    (count("succeededCount"), count("failedCount"))
}

pub(crate) fn sorted_lines(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// "A label query over Pods under the same namespace of the Notification to notify. Note: Only Pods
/// in the 'Running' phase are eligible for notification." "StartTime", "CompleteTime", the counts.
#[tokio::test(flavor = "multi_thread")]
async fn running_pods_of_the_same_namespace_that_match_are_notified_and_counted()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("matching");
    run_all(
        &stage,
        vec![
            member("matching", "matching-1", &file),
            member("matching", "matching-2", &file),
            member("other", "matching-other", &file),
        ],
    )
    .await?;
    // One that has ended, and one that never starts.
    let mut over = stage.manifest(member("matching", "matching-over", &file));
    over["spec"]["restartPolicy"] = json!("Never");
    over["spec"]["containers"][0]["command"] = json!(["true"]);
    admin.post(PODS, &over).await?.ok()?;
    admin
        .until(&format!("{PODS}/matching-over"), "its end", |pod| {
            (pod["status"]["phase"] == "Succeeded").then_some(())
        })
        .await?;
    let nowhere = member("matching", "matching-pending", &file).node("no-such-node");
    stage.create(nowhere).await?;
    // One like the others, in another namespace.
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "far"}});
    admin.post("/api/v1/namespaces", &namespace).await?.ok()?;
    let far = "/api/v1/namespaces/far/pods";
    let stranger = stage.manifest(member("matching", "matching-far", &file));
    // A namespace takes a moment until pods can be created in it.
    eventually("the namespace", async || {
        admin.post(far, &stranger).await?.ok().map(Some)
    })
    .await?;
    admin
        .until(&format!("{far}/matching-far"), "Running", |pod| {
            (pod["status"]["phase"] == "Running").then_some(())
        })
        .await?;

    let done = carry_out(admin, &fanout("m", ("group", "matching"), "work").build()).await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(counts(&done), (2, 0));
    assert_eq!(done["status"]["targetCount"], 2);
    assert!(done["status"]["startTime"].is_string(), "{done:#}");
    assert!(done["status"]["completeTime"].is_string(), "{done:#}");
    assert_eq!(sorted_lines(&file), ["matching-1", "matching-2"]);

    let children = children(admin, "m").await?;
    assert_eq!(children.len(), 2);
    for child in &children {
        let owner = &child["metadata"]["ownerReferences"][0];
        assert_eq!(owner["uid"], done["metadata"]["uid"]);
        assert_eq!(owner["controller"], true);
        assert_eq!(child["status"]["podUID"], child["spec"]["podUID"]);
    }
    Ok(())
}

/// "A label query over Pods": a `LabelSelector` has expressions, too, and all of them must hold.
#[tokio::test(flavor = "multi_thread")]
async fn expressions_of_the_selector_choose_the_pods_that_are_notified() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("expressions");
    let tiers = [("web", Some("web")), ("db", Some("db")), ("plain", None)];
    let pods = tiers.map(|(name, tier)| {
        let pod = member("expressions", &format!("expressions-{name}"), &file);
        tier.into_iter()
            .fold(pod, |pod, tier| pod.label("tier", tier))
    });
    run_all(&stage, pods.into()).await?;
    let expression = |operator: &str, values: &[&str]| {
        let mut one = json!({"key": "tier", "operator": operator});
        if !values.is_empty() {
            one["values"] = json!(values);
        }
        one
    };
    let has_tier = || expression("Exists", &[]);
    for (name, expressions, chosen) in [
        ("in", vec![expression("In", &["web", "cache"])], vec!["web"]),
        // Who has no such label has no such value.
        (
            "not-in",
            vec![expression("NotIn", &["web"])],
            vec!["db", "plain"],
        ),
        ("exists", vec![has_tier()], vec!["db", "web"]),
        (
            "exists-not",
            vec![expression("DoesNotExist", &[])],
            vec!["plain"],
        ),
        (
            "both",
            vec![has_tier(), expression("NotIn", &["web"])],
            vec!["db"],
        ),
    ] {
        let _ = std::fs::remove_file(&file);
        let name = format!("expressions-{name}");
        let mut object = fanout(&name, ("group", "expressions"), "work").build();
        object["spec"]["selector"]["matchExpressions"] = json!(expressions);
        let done = carry_out(admin, &object).await?;
        let chosen: Vec<String> = chosen
            .iter()
            .map(|it| format!("expressions-{it}"))
            .collect();
        assert_eq!(sorted_lines(&file), chosen, "{done:#}");
        assert_eq!(done["status"]["targetCount"], chosen.len(), "{done:#}");
        assert_eq!(counts(&done), (chosen.len() as i64, 0), "{done:#}");
    }
    Ok(())
}

/// "AllPods means all Pods matches the specified label selector in Notification will be notified. If
/// this policy is specified, CompleteTime field of the NotificationStatus will not be set." "If not
/// specified, default to AllPods."
#[tokio::test(flavor = "multi_thread")]
async fn all_pods_picks_up_new_pods_once_each_and_never_completes() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("all");
    run_all(&stage, vec![member("all", "all-1", &file)]).await?;
    let mut object = fanout("all", ("group", "all"), "work").build();
    object["spec"]
        .as_object_mut()
        .context("a spec")?
        .remove("policy");
    let created = admin.post(FANOUTS, &object).await?.ok()?;
    assert_eq!(created["spec"]["policy"], "AllPods");
    let succeeded = async |number: i64| {
        until_fanout(admin, "all", "its count", |object| {
            (counts(object) == (number, 0)).then(|| object.clone())
        })
        .await
    };
    succeeded(1).await?;
    run_all(&stage, vec![member("all", "all-2", &file)]).await?;
    succeeded(2).await?;
    // A pod that comes to match is one more.
    run_all(&stage, vec![member("nobody", "all-3", &file)]).await?;
    let label = json!({"metadata": {"labels": {"group": "all"}}});
    admin.merge(&format!("{PODS}/all-3"), &label).await?.ok()?;
    let now = succeeded(3).await?;
    assert_eq!(now["status"]["state"], "New");
    assert_eq!(now["status"]["completeTime"], Value::Null);

    // A child that is deleted is not made again, and stays counted.
    let child = children(admin, "all").await?.remove(0);
    let name = child["metadata"]["name"].as_str().context("a name")?;
    let path = format!("{NOTIFICATIONS}/{name}");
    admin.delete(&path).await?.ok()?;
    eventually("the child to be gone", async || {
        Ok((admin.get(&path).await?.status == 404).then_some(()))
    })
    .await?;
    // One more pod shows that the controller has gone on since.
    run_all(&stage, vec![member("all", "all-4", &file)]).await?;
    succeeded(4).await?;
    assert_eq!(children(admin, "all").await?.len(), 3);
    assert_eq!(
        sorted_lines(&file),
        ["all-1", "all-2", "all-3", "all-4"],
        "everybody once"
    );
    admin.delete(&format!("{FANOUTS}/all")).await?.ok()?;
    Ok(())
}

/// "PreExistingPods means only those Pods created before the Notification […] are qualified for
/// notification. Newly created Pods after the Notification will not be notified."
#[tokio::test(flavor = "multi_thread")]
async fn pre_existing_pods_leaves_out_those_that_come_later() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("before");
    let pods = ["before-1", "before-2"].map(|name| waiting("before", name, &file));
    run_all(&stage, pods.into()).await?;
    let object = fanout("before", ("group", "before"), "work").parallelism(1);
    admin.post(FANOUTS, &object.build()).await?.ok()?;
    until_file(&file, |text| text.lines().count() == 1).await?;
    run_all(&stage, vec![waiting("before", "before-0-late", &file)]).await?;
    std::fs::write(format!("{file}.go"), "")?;
    let done = ended(admin, "before").await?;
    assert_eq!(counts(&done), (2, 0), "{done:#}");
    assert_eq!(sorted_lines(&file), ["before-1", "before-2"]);
    Ok(())
}

/// "Parallelism specifies the maximum number of Pods to notify at any given time concurrently, which
/// effectively is the same as the number of uncompleted PodNotifications created from this
/// Notification."
#[tokio::test(flavor = "multi_thread")]
async fn no_more_pods_at_a_time_than_parallelism_says() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("few");
    let pods = (0..5).map(|number| waiting("few", &format!("few-{number}"), &file));
    run_all(&stage, pods.collect()).await?;
    let object = fanout("few", ("group", "few"), "work").parallelism(2);
    admin.post(FANOUTS, &object.build()).await?.ok()?;
    until_file(&file, |text| text.lines().count() == 2).await?;
    // Another Notification goes all its way, so the controller has had time for a third.
    run_all(
        &stage,
        vec![member("meanwhile", "meanwhile", &stage.file("meanwhile"))],
    )
    .await?;
    let meanwhile = fanout("meanwhile", ("group", "meanwhile"), "work").build();
    let meanwhile = carry_out(admin, &meanwhile).await?;
    assert_eq!(counts(&meanwhile), (1, 0), "{meanwhile:#}");
    let open = children(admin, "few").await?;
    assert_eq!(open.len(), 2, "{open:#?}");
    for child in &open {
        assert_eq!(child["status"]["completeTime"], Value::Null, "{child:#}");
    }
    assert_eq!(lines(&file), 2);

    // Whenever one is looked at while they go on, there are no more than two.
    std::fs::write(format!("{file}.go"), "")?;
    let mut most = 0;
    let done = until_fanout(admin, "few", "a final state", |object| {
        (object["status"]["state"] != "New").then(|| object.clone())
    });
    let watching = eventually("all of them", async || {
        let children = children(admin, "few").await?;
        let open = children
            .iter()
            .filter(|child| child["status"]["completeTime"].is_null());
        most = most.max(open.count());
        Ok((children.len() == 5).then_some(()))
    });
    let (done, watched) = tokio::join!(done, watching);
    watched?;
    assert_eq!(counts(&done?), (5, 0));
    assert!(most <= 2, "{most} were open at once");
    Ok(())
}

/// "If not specified or set to 0, all eligible Pods will be notified. If set to a number greater than
/// the number of eligible Pods, all eligible Pods will be notified concurrently."
#[tokio::test(flavor = "multi_thread")]
async fn zero_or_more_than_there_are_is_all_at_once() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    for (group, parallelism) in [("unset", None), ("zero", Some(0)), ("more", Some(99))] {
        let file = stage.file(group);
        let pods = (0..3).map(|number| waiting(group, &format!("{group}-{number}"), &file));
        run_all(&stage, pods.collect()).await?;
        let mut object = fanout(group, ("group", group), "work");
        if let Some(number) = parallelism {
            object = object.parallelism(number);
        }
        admin.post(FANOUTS, &object.build()).await?.ok()?;
        // All have begun, and none can have ended.
        until_file(&file, |text| text.lines().count() == 3).await?;
        std::fs::write(format!("{file}.go"), "")?;
        let done = ended(admin, group).await?;
        assert_eq!(counts(&done), (3, 0), "{done:#}");
    }
    Ok(())
}

/// "Setting this field to a negative number fails the Notification immediately."
#[tokio::test(flavor = "multi_thread")]
async fn a_negative_parallelism_fails_at_once_and_notifies_nobody() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("negative");
    run_all(&stage, vec![member("negative", "negative", &file)]).await?;
    for (name, all) in [("negative-all", true), ("negative-pre", false)] {
        let object = fanout(name, ("group", "negative"), "work").parallelism(-1);
        let object = if all { object.all_pods() } else { object };
        admin.post(FANOUTS, &object.build()).await?.ok()?;
        let done = ended(admin, name).await?;
        assert_eq!(done["status"]["state"], "Failed", "{done:#}");
        assert_eq!(done["status"]["error"]["type"], "InvalidParallelism");
        assert_eq!(done["status"]["completeTime"].is_string(), !all, "{done:#}");
        assert!(children(admin, name).await?.is_empty());
    }
    assert_eq!(lines(&file), 0);
    Ok(())
}

/// "FailedCount indicates the current number of failed PodNotification resources created from this
/// Notification." "SucceededCount" likewise; a pod that does not declare the notifier has nothing to
/// fail.
#[tokio::test(flavor = "multi_thread")]
async fn failures_and_pods_that_do_not_declare_it_are_counted_as_what_they_are()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("mixed");
    let broken = pod("mixed-broken")
        .label("group", "mixed")
        .idle("main")
        .notifier("work", exec(["false"]).timeout(60));
    let silent = pod("mixed-silent").label("group", "mixed").idle("main");
    let good = member("mixed", "mixed-good", &file);
    run_all(&stage, vec![broken, silent, good]).await?;
    let done = carry_out(admin, &fanout("mixed", ("group", "mixed"), "work").build()).await?;
    assert_eq!(counts(&done), (2, 1), "{done:#}");
    assert_eq!(done["status"]["state"], "Failed");
    for child in children(admin, "mixed").await? {
        let failed = child["spec"]["podName"] == "mixed-broken";
        let state = &child["status"]["state"];
        assert_eq!(state == "Failed", failed, "{child:#}");
    }
    // Nobody matches: complete at once, with the reason.
    let none = carry_out(admin, &fanout("none", ("group", "nobody"), "work").build()).await?;
    assert_eq!(none["status"]["state"], "Succeeded");
    let condition = &none["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["status"]),
        (&json!("PodsFound"), &json!("False"))
    );
    Ok(())
}
