//! The promises of the execution hook proposal about trying again and about how an action ends. Each
//! test quotes the sentence it is about, and runs on the stage that the file including this one gives.

use belay_testkit::ports::unique_port;
use belay_testkit::{HOOKS, hook, hooked, lines, pod, processes, shell, until_file};
use serde_json::{Value, json};

use crate::seed_001::{LONG, action, run};

/// "If execution fails, the execution hook controller will keep retrying until reaching
/// ActionTimeoutSeconds." "Any action may be triggered more than once but only the latest results will
/// be logged in status." "The last error encountered when executing the action. The hook controller
/// might update this field each time it retries the execution."
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_tried_again_with_its_last_error_in_the_status_until_it_succeeds()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    run(&stage, "again", "again", &["main"]).await?;
    let (runs, code) = (stage.file("again-runs"), stage.file("again-code"));
    std::fs::write(&code, "3\n")?;
    let script = format!("echo ran >> {runs}; echo because; exit $(cat {code})");
    action(&stage, "again", shell(&script), LONG).await?;
    let asked = hook("again", "again").pod("again", &["main"]).build();
    admin.post(HOOKS, &asked).await?.ok()?;
    for wanted in ["3", "4"] {
        std::fs::write(&code, format!("{wanted}\n"))?;
        let message = format!("the command exited with code {wanted}");
        let seen = admin
            .until(&format!("{HOOKS}/again"), &message, |object| {
                let error = &hooked(object, "again", "main")["error"];
                (error["message"] == message.as_str()).then(|| object.clone())
            })
            .await?;
        let main = hooked(&seen, "again", "main");
        assert_eq!(main["succeed"], Value::Null, "it is still tried: {seen:#}");
        assert_eq!(main["error"]["errorType"], "ExecutionFailwithError");
        assert_eq!(main["error"]["reason"], "because", "{seen:#}");
        assert_eq!(seen["status"]["actionSucceed"], Value::Null, "{seen:#}");
    }
    std::fs::write(&code, "0\n")?;
    let done = admin.hook_ended("again").await?;
    let main = hooked(&done, "again", "main");
    assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    assert_eq!(
        main["error"],
        Value::Null,
        "only the latest result: {done:#}"
    );
    assert_eq!(main["exitCode"], 0, "{done:#}");
    let attempts = main["attempts"].as_u64().unwrap_or_default();
    assert_eq!(attempts, u64::try_from(lines(&runs))?, "{done:#}");
    assert!(attempts >= 3, "{done:#}");
    Ok(())
}

/// "If execution still fails or hangs, execution hook controller stops retrying and updates
/// executionhook status to failed." "It will be set to false if the action cannot be executed
/// succesfully after ActionTimeoutSeconds passes." "ExecutionTimeout: The execution hook times out";
/// "ExecutionFailwithError: The execution hook fails with an error".
#[tokio::test(flavor = "multi_thread")]
async fn what_still_fails_or_hangs_when_its_time_is_over_is_failed() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    run(&stage, "over", "over", &["main"]).await?;
    let (fails, hangs) = (stage.file("over-fails"), stage.file("over-hangs"));
    let script = format!("echo ran >> {fails}; echo no; exit 7");
    action(&stage, "over-fails", shell(&script), 12).await?;
    let script = format!("echo ran >> {hangs}; sleep 3600 & wait; true {hangs}");
    action(&stage, "over-hangs", shell(&script), 12).await?;
    let began = jiff::Timestamp::now();
    let asked = hook("over-hangs", "over-hangs").pod("over", &[]).build();
    admin.post(HOOKS, &asked).await?.ok()?;
    let fails_within = async |name: &str| -> anyhow::Result<Value> {
        let asked = hook(name, "over-fails").pod("over", &[]).build();
        admin.post(HOOKS, &asked).await?.ok()?;
        admin.hook_ended(name).await
    };
    let mut failed = fails_within("over-fails").await?;
    if hooked(&failed, "over", "main")["error"]["errorType"] == "ExecutionTimeout" {
        // The time was over in the middle of a try, as it may be on a busy machine.
        failed = fails_within("over-fails-again").await?;
    }
    let main = hooked(&failed, "over", "main");
    assert_eq!(failed["status"]["actionSucceed"], false, "{failed:#}");
    assert_eq!(main["succeed"], false, "{failed:#}");
    let error = &main["error"];
    assert_eq!(error["errorType"], "ExecutionFailwithError", "{failed:#}");
    assert_eq!(error["message"], "the command exited with code 7");
    assert_eq!(main["exitCode"], 7, "{failed:#}");
    assert!(lines(&fails) >= 2, "it was tried again");
    let hung = admin.hook_ended("over-hangs").await?;
    let main = hooked(&hung, "over", "main");
    assert_eq!(main["error"]["errorType"], "ExecutionTimeout", "{hung:#}");
    assert_eq!(lines(&hangs), 1, "it was running all the time");
    assert!(
        processes::with_command(&hangs).is_empty(),
        "nothing of it is left"
    );
    let took = jiff::Timestamp::now().duration_since(began);
    assert!(took.as_secs() >= 12, "not before its time is over: {took}");
    let before = lines(&fails);
    let again = hook("over-after", "over-hangs").pod("over", &[]).build();
    admin.run_hook(&again).await?;
    assert_eq!(lines(&fails), before, "nothing is tried after the end");
    Ok(())
}

/// "Action core_v1.Handler": a command, a request, or a connection, to the pod's own address.
#[tokio::test(flavor = "multi_thread")]
async fn an_action_may_be_a_request_or_a_connection_to_the_pod() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let (port, root, go) = (
        unique_port()?,
        stage.file("asked-root"),
        stage.file("asked-go"),
    );
    std::fs::create_dir(&root)?;
    let main = format!(
        "while [ ! -e {go} ]; do sleep 0.05; done; busybox httpd -p {port} -h {root}; \
         while :; do sleep 3600 & wait; done"
    );
    let manifest = pod("asked")
        .container("main", ["sh", "-c", &main])
        .container_field("ports", json!([{"name": "web", "containerPort": port}]));
    stage.run(manifest).await?;
    let connect = json!({"tcpSocket": {"port": "web"}});
    action(&stage, "asked-connect", connect, LONG).await?;
    let get = json!({"httpGet": {"port": port, "path": "/ready"}});
    action(&stage, "asked-get", get, LONG).await?;
    for name in ["asked-connect", "asked-get"] {
        let asked = hook(name, name).pod("asked", &[]).build();
        admin.post(HOOKS, &asked).await?.ok()?;
    }
    let said = async |name: &str, what: &str| {
        let path = format!("{HOOKS}/{name}");
        let holds = |object: &Value| {
            let error = &hooked(object, "asked", "main")["error"];
            let message = error["message"].as_str().unwrap_or_default();
            let so = message.contains(what) && error["errorType"] == "ExecutionFailwithError";
            so.then_some(())
        };
        admin.until(&path, what, holds).await
    };
    said("asked-connect", "refused").await?;
    std::fs::write(&go, "")?;
    said("asked-get", "404").await?;
    std::fs::write(format!("{root}/ready"), "yes")?;
    for name in ["asked-connect", "asked-get"] {
        let done = admin.hook_ended(name).await?;
        assert_eq!(done["status"]["actionSucceed"], true, "{done:#}");
    }
    Ok(())
}

/// The process of a hook that is deleted ends, as "Snapshot controller can also decide when to delete
/// those hooks". Who finds none of its PodActions any more knows that it has.
#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_hook_ends_what_runs_of_it() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    run(&stage, "dropped", "dropped", &["main"]).await?;
    let ran = stage.file("dropped-ran");
    let script = format!("echo ran >> {ran}; sleep 3600 & wait; true {ran}");
    action(&stage, "dropped", shell(&script), LONG).await?;
    let asked = hook("dropped", "dropped").pod("dropped", &[]).build();
    admin.post(HOOKS, &asked).await?.ok()?;
    until_file(&ran, |text| !text.is_empty()).await?;
    admin.delete(&format!("{HOOKS}/dropped")).await?.ok()?;
    belay_testkit::eventually("its PodAction to go", async || {
        let none = admin.pod_actions("dropped").await?.is_empty();
        Ok(none.then_some(()))
    })
    .await?;
    assert!(
        processes::with_command(&ran).is_empty(),
        "nothing of it is left"
    );
    assert_eq!(lines(&ran), 1);
    Ok(())
}
