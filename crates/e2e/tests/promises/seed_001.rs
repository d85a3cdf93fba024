//! The promises of the execution hook proposal about what is run, where, and what is said of it. Each
//! test quotes the sentence it is about, and runs on the stage that the file including this one gives.

use belay_testkit::{
    HOOK_ACTIONS, HOOKS, Stage, hook, hook_action, hooked, lines, pod, shell, until_file,
};
use serde_json::{Value, json};

/// Long enough that no busy machine lets it end before its time.
pub(crate) const LONG: u32 = 600;

pub(crate) async fn action(
    stage: &Stage,
    name: &str,
    handler: Value,
    seconds: u32,
) -> anyhow::Result<()> {
    let action = hook_action(name, &handler, seconds);
    stage.admin().post(HOOK_ACTIONS, &action).await?.ok()?;
    Ok(())
}

/// Runs a pod with these containers; each knows its own name as `$WHO`.
pub(crate) async fn run(
    stage: &Stage,
    name: &str,
    label: &str,
    containers: &[&str],
) -> anyhow::Result<Value> {
    let mut manifest = pod(name).label("group", label);
    for container in containers {
        let who = json!([{"name": "WHO", "value": format!("{name}/{container}")}]);
        manifest = manifest.idle(container).container_field("env", who);
    }
    stage.run(manifest).await
}

/// What was written, in order.
fn sorted(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut words: Vec<String> = text.lines().map(str::to_owned).collect();
    words.sort();
    words
}

/// "The Create event of ExecutionHook will trigger the hook controller to run HookAction command."
/// "PodContainerNamesList lists the pods/containers on which the ExecutionHook should be executed."
/// "If PodContainerNamesList is specified, this field [the selector] will not be used."
#[tokio::test(flavor = "multi_thread")]
async fn creating_a_hook_runs_its_action_in_the_containers_it_names_and_nowhere_else()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let ran = stage.file("named-ran");
    run(&stage, "named-1", "named", &["a", "b"]).await?;
    run(&stage, "named-2", "named", &["a", "b"]).await?;
    run(&stage, "named-3", "named", &["a"]).await?;
    action(&stage, "named", shell(&format!("echo $WHO >> {ran}")), LONG).await?;
    let asked = hook("named", "named")
        .pod("named-1", &["b"])
        .pod("named-2", &[])
        .labelled(("group", "named"), &[]);
    let done = stage.admin().run_hook(&asked.build()).await?;
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    assert_eq!(sorted(&ran), ["named-1/b", "named-2/a", "named-2/b"]);
    let statuses = done["status"]["hookStatuses"].as_array().map(Vec::len);
    assert_eq!(statuses, Some(3), "{done:#}");
    Ok(())
}

/// "If not specified, the ExecutionHook controller will find all pods and containers based on
/// PodContainerSelector." "If specified, controller only select the containers that are listed from
/// the selected pods based on PodSelector. Otherwise, all containers of the pods will be selected"
#[tokio::test(flavor = "multi_thread")]
async fn a_selector_finds_the_pods_and_all_their_containers_or_those_that_are_listed()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    run(&stage, "found-1", "found", &["a", "b"]).await?;
    run(&stage, "found-2", "found", &["a"]).await?;
    run(&stage, "other-1", "other", &["a"]).await?;
    let ran = stage.file("found-ran");
    action(&stage, "found", shell(&format!("echo $WHO >> {ran}")), LONG).await?;
    let all = hook("found-all", "found").labelled(("group", "found"), &[]);
    let done = stage.admin().run_hook(&all.build()).await?;
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    assert_eq!(sorted(&ran), ["found-1/a", "found-1/b", "found-2/a"]);
    std::fs::remove_file(&ran)?;
    let listed = hook("found-listed", "found").labelled(("group", "found"), &["b", "c"]);
    let done = stage.admin().run_hook(&listed.build()).await?;
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    assert_eq!(sorted(&ran), ["found-1/b"]);
    Ok(())
}

/// "If both PodContainerNamesList and PodContainerSelector are not specified, the ExecutionHook
/// cannot be executed and it will fail."
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_selects_nothing_fails_and_says_why() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    action(&stage, "nothing", shell("true"), LONG).await?;
    let neither = hook("neither", "nothing").build();
    let nobody = hook("nobody", "nothing").labelled(("group", "nobody"), &[]);
    for asked in [neither, nobody.build()] {
        let done = stage.admin().run_hook(&asked).await?;
        let status = &done["status"];
        assert_eq!(status["actionSucceed"], false, "{done:#}");
        assert_eq!(status["error"]["errorType"], "NothingSelected", "{done:#}");
        assert!(status["error"]["message"].is_string(), "{done:#}");
    }
    let lost = hook("lost-action", "no-such-action").labelled(("group", "nobody"), &[]);
    let done = stage.admin().run_hook(&lost.build()).await?;
    let error = &done["status"]["error"];
    assert_eq!(error["errorType"], "ActionNotFound", "{done:#}");
    Ok(())
}

/// "If multiple pod/containers are selected, the action will executed on them asynchronously."
#[tokio::test(flavor = "multi_thread")]
async fn the_action_runs_in_all_containers_at_the_same_time() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    run(&stage, "meet-1", "meet", &["a", "b"]).await?;
    run(&stage, "meet-2", "meet", &["a"]).await?;
    // Each waits until all three have come.
    let came = stage.file("came");
    let script =
        format!("echo $WHO >> {came}; while [ \"$(wc -l < {came})\" -lt 3 ]; do sleep 0.05; done");
    action(&stage, "meet", shell(&script), LONG).await?;
    let asked = hook("meet", "meet").labelled(("group", "meet"), &[]);
    let done = stage.admin().run_hook(&asked.build()).await?;
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    assert_eq!(lines(&came), 3, "each ran once");
    Ok(())
}

/// "Timestamp: If not set, it is nil, indicating Action has not started. If set, it means Action has
/// started at the specified time". "ActionSucceed: If not set, this field is nil, meaning the hook
/// controller still needs to wait for the Action commands to finish running on all containers. If set,
/// either true or false, it means the Action commands have finished running (or timeout) on all
/// containers." "ActionSucceed [of a container] is set to true when the action is executed in the
/// container succesfully."
#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_what_has_started_what_has_ended_and_when_all_has() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let before = jiff::Timestamp::now().as_second();
    run(&stage, "told", "told", &["fast", "slow"]).await?;
    let go = stage.file("told-go");
    let script =
        format!("case $WHO in */slow) while [ ! -e {go} ]; do sleep 0.05; done;; esac; echo done");
    action(&stage, "told", shell(&script), LONG).await?;
    let asked = hook("told", "told")
        .pod("told", &[])
        .pod("no-such-pod", &["x"]);
    admin.post(HOOKS, &asked.build()).await?.ok()?;
    let middle = admin
        .until(&format!("{HOOKS}/told"), "one end, one start", |hook| {
            let (fast, slow) = (hooked(hook, "told", "fast"), hooked(hook, "told", "slow"));
            let so = fast["succeed"] == true && slow["timestamp"].is_i64();
            so.then(|| hook.clone())
        })
        .await?;
    assert_eq!(middle["status"]["actionSucceed"], Value::Null, "{middle:#}");
    let slow = hooked(&middle, "told", "slow");
    assert_eq!(slow["succeed"], Value::Null, "{middle:#}");
    let started = slow["timestamp"].as_i64().unwrap_or_default();
    assert!(started >= before - 1, "seconds since 1970: {started}");
    let missing = hooked(&middle, "no-such-pod", "x");
    assert_eq!(missing["timestamp"], Value::Null, "it has not started");
    assert_eq!(missing["error"]["errorType"], "PodNotFound", "{middle:#}");
    std::fs::write(&go, "")?;
    let done = admin.hook_ended("told").await?;
    assert_eq!(done["status"]["actionSucceed"], false, "one pod is missing");
    assert_eq!(hooked(&done, "told", "slow")["succeed"], true, "{done:#}");
    assert_eq!(hooked(&done, "told", "slow")["timestamp"], started);
    assert_eq!(done["status"]["succeededCount"], 2, "{done:#}");
    assert_eq!(done["status"]["failedCount"], 1, "{done:#}");
    Ok(())
}

/// "HookAction will be created by the user and can be re-used later."
#[tokio::test(flavor = "multi_thread")]
async fn an_action_can_be_used_again_and_two_hooks_in_one_container_both_tell_the_truth()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    run(&stage, "reused", "reused", &["main"]).await?;
    let (ran, go) = (stage.file("reused-ran"), stage.file("reused-go"));
    // The first of two that run at the same time fails, the other succeeds.
    let script = format!(
        "mkdir {ran}.first 2>/dev/null && first=1; echo ran >> {ran}; \
         while [ \"$(wc -l < {ran})\" -lt 2 ]; do sleep 0.05; done; \
         [ -z \"$first\" ] && exit 0; while [ ! -e {go} ]; do sleep 0.05; done"
    );
    action(&stage, "reused", shell(&script), LONG).await?;
    for name in ["reused-1", "reused-2"] {
        let asked = hook(name, "reused").pod("reused", &["main"]).build();
        admin.post(HOOKS, &asked).await?.ok()?;
    }
    let ended = belay_testkit::eventually("one of them to end", async || {
        for (name, other) in [("reused-1", "reused-2"), ("reused-2", "reused-1")] {
            let object = admin.get(&format!("{HOOKS}/{name}")).await?.ok()?;
            if object["status"]["actionSucceed"] == true {
                return Ok(Some(other));
            }
        }
        Ok(None)
    })
    .await?;
    let other = admin.get(&format!("{HOOKS}/{ended}")).await?.ok()?;
    assert_eq!(other["status"]["actionSucceed"], Value::Null, "{other:#}");
    std::fs::write(&go, "")?;
    let other = admin.hook_ended(ended).await?;
    assert_eq!(other["status"]["actionSucceed"], true, "{other:#}");
    assert_eq!(lines(&ran), 2, "each ran once");
    Ok(())
}

/// "Both APIs are namespaced and they should be in the same namespace."
#[tokio::test(flavor = "multi_thread")]
async fn an_action_of_another_namespace_is_not_found() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "elsewhere"}});
    let namespaces = "/api/v1/namespaces";
    stage.admin().post(namespaces, &namespace).await?.ok()?;
    let there = HOOK_ACTIONS.replace("/default/", "/elsewhere/");
    let action = hook_action("there", &shell("true"), LONG);
    stage.admin().post(&there, &action).await?.ok()?;
    run(&stage, "here", "here", &["main"]).await?;
    let asked = hook("there", "there").pod("here", &[]).build();
    let done = stage.admin().run_hook(&asked).await?;
    let error = &done["status"]["error"];
    assert_eq!(error["errorType"], "ActionNotFound", "{done:#}");
    Ok(())
}

/// Changing or deleting an action while hooks run changes nothing for them, and the status says what
/// was resolved.
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_runs_what_its_action_was_when_it_started() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    run(&stage, "fixed", "fixed", &["main"]).await?;
    let (ran, go) = (stage.file("fixed-ran"), stage.file("fixed-go"));
    let script = format!("echo old >> {ran}; test -e {go}");
    action(&stage, "fixed", shell(&script), LONG).await?;
    let asked = hook("fixed", "fixed").pod("fixed", &[]);
    admin.post(HOOKS, &asked.build()).await?.ok()?;
    until_file(&ran, |text| !text.is_empty()).await?;
    let path = format!("{HOOK_ACTIONS}/fixed");
    let changed = json!({"action": shell(&format!("echo new >> {ran}"))});
    admin.merge(&path, &changed).await?.ok()?;
    let before = lines(&ran);
    until_file(&ran, |text| text.lines().count() > before).await?;
    admin.delete(&path).await?.ok()?;
    let before = lines(&ran);
    until_file(&ran, |text| text.lines().count() > before).await?;
    std::fs::write(&go, "")?;
    let done = admin.hook_ended("fixed").await?;
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    assert!(sorted(&ran).iter().all(|word| word == "old"), "{ran}");
    let resolved = &done["status"]["action"];
    assert_eq!(resolved["action"], shell(&script), "{done:#}");
    assert_eq!(resolved["actionTimeoutSeconds"], LONG, "{done:#}");
    Ok(())
}

/// "It is the caller's (user or controller) responsibility to delete the hook once the execution
/// finishes (either succeeded or failed). Otherwise, ExecutionHook controller will garbage collect them
/// after a certain amount of time."
#[tokio::test(flavor = "multi_thread")]
async fn finished_hooks_are_collected_with_all_that_belongs_to_them_and_no_others()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    run(&stage, "collected", "collected", &["main"]).await?;
    let go = stage.file("collected-go");
    action(&stage, "collected-true", shell("true"), LONG).await?;
    action(
        &stage,
        "collected-wait",
        shell(&format!("test -e {go}")),
        LONG,
    )
    .await?;
    let short = hook("collected-short", "collected-true").pod("collected", &[]);
    let short = short.spec("ttlSecondsAfterFinished", 1).build();
    let long = hook("collected-long", "collected-true")
        .pod("collected", &[])
        .build();
    let open = hook("collected-open", "collected-wait").pod("collected", &[]);
    let open = open.spec("ttlSecondsAfterFinished", 0).build();
    for asked in [&open, &long, &short] {
        admin.post(HOOKS, asked).await?.ok()?;
    }
    let of = async |name: &str| anyhow::Ok(admin.pod_actions(name).await?.len());
    belay_testkit::eventually("the finished one to go", async || {
        let gone = admin.get(&format!("{HOOKS}/collected-short")).await?.status == 404;
        Ok((gone && of("collected-short").await? == 0).then_some(()))
    })
    .await?;
    let kept = admin.hook_ended("collected-long").await?;
    assert_eq!(kept["status"]["actionSucceed"], true, "{kept:#}");
    assert_eq!(of("collected-long").await?, 1);
    let open = admin.get(&format!("{HOOKS}/collected-open")).await?.ok()?;
    assert_eq!(open["status"]["actionSucceed"], Value::Null, "{open:#}");
    std::fs::write(&go, "")?;
    belay_testkit::eventually("the other one to go", async || {
        let gone = admin.get(&format!("{HOOKS}/collected-open")).await?.status == 404;
        Ok((gone && of("collected-open").await? == 0).then_some(()))
    })
    .await
}
