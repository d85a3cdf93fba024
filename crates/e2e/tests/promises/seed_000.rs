//! The promises of the container notifier proposal (KEP-1977) about `ContainerNotifier` and
//! `PodNotification`, phases 1 and 2, that need no selector: what happens then. Each test quotes the
//! sentence it is about, and runs on the stage that the file including this one gives.

use belay_testkit::{
    EVENTS, NOTIFICATIONS, PODS, eventually, exec, lines, notification, pod, signal, until_file,
};
use serde_json::{Value, json};

/// The status of one container in a notification.
pub(crate) fn container<'a>(notification: &'a Value, name: &str) -> &'a Value {
    let containers = notification["status"]["containers"].as_array();
    containers
        .and_then(|containers| containers.iter().find(|one| one["name"] == name))
        .unwrap_or(&Value::Null)
}

/// "Names with other prefixes such as `example.com/` or unprefixed are custom names."
#[tokio::test(flavor = "multi_thread")]
async fn prefixed_and_plain_names_can_be_triggered() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let manifest = pod("custom")
        .idle("main")
        .notifier("example.com/freeze", exec(["true"]).timeout(30))
        .notifier("freeze", exec(["true"]).timeout(30));
    stage.run(manifest).await?;
    for (name, notifier) in [("custom-1", "example.com/freeze"), ("custom-2", "freeze")] {
        let done = admin
            .notify(&notification(name, "custom", notifier).build())
            .await?;
        assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    }
    Ok(())
}

/// "Number of seconds after which the notifier will time out. Default to 1 second."
#[tokio::test(flavor = "multi_thread")]
async fn the_timeout_is_one_second_unless_given() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let manifest = pod("default-timeout")
        .idle("main")
        .notifier("hang", exec(["sleep", "60"]));
    stage.run(manifest).await?;
    let asked = notification("default-timeout", "default-timeout", "hang").build();
    let done = admin.notify(&asked).await?;
    let error = &container(&done, "main")["error"];
    assert_eq!(error["type"], "HandlerTimeout");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("timeout of 1 s"), "{message}");
    Ok(())
}

/// "Upon creation of a PodNotification, Container(s) in the specified Pod with a matching notifier
/// name will be executed."
#[tokio::test(flavor = "multi_thread")]
async fn creating_a_notification_runs_the_handler_once() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let counter = stage.file("runs-once");
    let manifest = pod("runs-once").idle("main").notifier(
        "count",
        exec(["sh", "-c", &format!("echo ran >> {counter}")]).timeout(30),
    );
    let manifest = manifest.notifier("other", exec(["true"]).timeout(30));
    stage.run(manifest).await?;
    let done = admin
        .notify(&notification("runs-once", "runs-once", "count").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    // The same agent has gone on to another one: it does not come back to the first.
    let other = notification("runs-other", "runs-once", "other").build();
    let other = admin.notify(&other).await?;
    assert_eq!(other["status"]["state"], "Succeeded", "{other:#}");
    assert_eq!(lines(&counter), 1);
    Ok(())
}

/// "All containers in the specified `Pod` which have the requested "ContainerNotifier" defined in
/// their spec will have their corresponding "ContainerNotifierHandler" executed."
#[tokio::test(flavor = "multi_thread")]
async fn every_container_that_declares_it_runs_its_own_handler_and_no_other() -> anyhow::Result<()>
{
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("every");
    let write = |word: &str| format!("echo {word} >> {file}");
    let manifest = pod("every")
        .idle("one")
        .notifier("mark", exec(["sh", "-c", &write("one")]).timeout(30))
        .idle("two")
        .notifier("mark", exec(["sh", "-c", &write("two")]).timeout(30))
        .notifier("other", exec(["sh", "-c", &write("other")]).timeout(30))
        .idle("three");
    stage.run(manifest).await?;
    let done = admin
        .notify(&notification("every", "every", "mark").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    let mut names: Vec<_> = std::fs::read_to_string(&file)?
        .lines()
        .map(str::to_owned)
        .collect();
    names.sort();
    assert_eq!(names, ["one", "two"]);
    let containers = done["status"]["containers"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let mut named: Vec<_> = containers.iter().map(|one| one["name"].as_str()).collect();
    named.sort();
    assert_eq!(named, [Some("one"), Some("two")]);
    Ok(())
}

/// "The name of the Pod to which notification will be addressed. Note that a PodNotificaion only
/// notifies a Pod in the same namespace."
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_another_namespace_is_not_reached() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let counter = stage.file("namespaces");
    let manifest = pod("neighbour").idle("main").notifier(
        "count",
        exec(["sh", "-c", &format!("echo ran >> {counter}")]).timeout(30),
    );
    stage.run(manifest).await?;
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "elsewhere" } });
    admin.post("/api/v1/namespaces", &namespace).await?.ok()?;
    let elsewhere = NOTIFICATIONS.replace("/default/", "/elsewhere/");
    admin
        .post(&elsewhere, &notification("n", "neighbour", "count").build())
        .await?
        .ok()?;
    let done = admin
        .until(&format!("{elsewhere}/n"), "a final state", |object| {
            (object["status"]["state"] != "New").then(|| object.clone())
        })
        .await?;
    assert_eq!(done["status"]["state"], "Failed");
    assert_eq!(done["status"]["error"]["type"], "PodNotFound");
    assert_eq!(lines(&counter), 0);
    Ok(())
}

/// "The PodNotification fails immediately if the specified Pod does not exist."
#[tokio::test(flavor = "multi_thread")]
async fn a_notification_for_a_pod_that_is_not_there_fails_at_once() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    // Nothing of it waits for a deadline, which would be hours away, or for an executor.
    let asked = notification("no-pod", "nowhere", "lock").deadline(36_000);
    let done = admin.notify(&asked.build()).await?;
    assert_eq!(done["status"]["state"], "Failed");
    assert_eq!(done["status"]["executor"], Value::Null, "{done:#}");
    let error = &done["status"]["error"];
    assert_eq!(error["type"], "PodNotFound");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("nowhere")),
        "{error}"
    );
    assert!(error["timestamp"].is_string(), "{error}");
    assert!(done["status"]["completeTime"].is_string());
    Ok(())
}

/// "The PodNotification completes immediately if no Container in the Pod has the requested
/// ContainerNotifier defined."
#[tokio::test(flavor = "multi_thread")]
async fn a_notifier_that_nobody_declares_completes_at_once() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    stage.run(pod("silent").idle("main")).await?;
    let asked = notification("nobody", "silent", "lock").deadline(36_000);
    let done = admin.notify(&asked.build()).await?;
    assert_eq!(done["status"]["state"], "Succeeded");
    assert_eq!(done["status"]["executor"], Value::Null, "{done:#}");
    let containers = &done["status"]["containers"];
    assert!(
        containers.as_array().is_none_or(Vec::is_empty),
        "{containers}"
    );
    assert!(done["status"]["completeTime"].is_string());
    let conditions = done["status"]["conditions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert!(
        conditions
            .iter()
            .any(|one| one["type"] == "NotifierFound" && one["status"] == "False"),
        "{conditions:?}"
    );
    Ok(())
}

/// "`PodNotificationStatus` ... contains a list of `ContainerNotificationStatus`, a start time
/// stamp ..., a completion time stamp ..., and a succeeded flag representing the final state".
#[tokio::test(flavor = "multi_thread")]
async fn the_status_tells_start_completion_and_each_container() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let manifest = pod("times")
        .idle("main")
        .notifier("lock", exec(["true"]).timeout(30));
    stage.run(manifest).await?;
    let done = admin
        .notify(&notification("times", "times", "lock").build())
        .await?;
    let status = &done["status"];
    assert_eq!(status["state"], "Succeeded", "{done:#}");
    let main = container(&done, "main");
    assert_eq!(main["succeeded"], true);
    assert_eq!(main["error"], Value::Null);
    for times in [status, main] {
        let start = times["startTime"].as_str().unwrap_or_default();
        let complete = times["completeTime"].as_str().unwrap_or_default();
        assert!(
            start.ends_with('Z') && complete.ends_with('Z'),
            "both in UTC: {times}"
        );
        assert!(start <= complete, "{times}");
    }
    Ok(())
}

/// "PodNotificationStateNew suggests the PodNotification is newly created and has not been picked
/// up yet." "Default to PodNotificationStateNew."
#[tokio::test(flavor = "multi_thread")]
async fn a_notification_is_new_until_it_is_final() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let gate = stage.file("new-gate");
    let wait = format!("while [ ! -e {gate} ]; do sleep 0.05; done");
    let manifest = pod("new")
        .idle("main")
        .notifier("wait", exec(["sh", "-c", &wait]).timeout(120));
    stage.run(manifest).await?;
    let created = admin
        .post(NOTIFICATIONS, &notification("new", "new", "wait").build())
        .await?
        .ok()?;
    assert_eq!(created["status"]["state"], "New");
    // Picked up and running, and still New: there is no fourth state.
    let running = admin
        .until(&format!("{NOTIFICATIONS}/new"), "a start", |object| {
            object["status"]["startTime"]
                .is_string()
                .then(|| object.clone())
        })
        .await?;
    assert_eq!(running["status"]["state"], "New");
    std::fs::write(&gate, "")?;
    assert_eq!(admin.finished("new").await?["status"]["state"], "Succeeded");
    Ok(())
}

/// "the `PodNotification` controller (or Kubelet in phase 2) will NOT retry upon failures/errors
/// returned from `ContainerNotifier`. Top level controllers or users can create another
/// `PodNotification` to do retries."
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_not_retried_but_another_notification_tries_again() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let counter = stage.file("no-retry");
    // Fails the first time, succeeds the second.
    let script = format!("echo ran >> {counter}; test $(wc -l < {counter}) -ge 2");
    let manifest = pod("no-retry")
        .idle("main")
        .notifier("try", exec(["sh", "-c", &script]).timeout(30));
    stage.run(manifest).await?;
    let first = admin
        .notify(&notification("no-retry-1", "no-retry", "try").build())
        .await?;
    assert_eq!(first["status"]["state"], "Failed", "{first:#}");
    assert_eq!(lines(&counter), 1);

    let second = admin
        .notify(&notification("no-retry-2", "no-retry", "try").build())
        .await?;
    assert_eq!(second["status"]["state"], "Succeeded", "{second:#}");
    assert_eq!(lines(&counter), 2);
    let first_again = admin.finished("no-retry-1").await?;
    assert_eq!(
        first_again["status"], first["status"],
        "what is final stays as it is"
    );
    Ok(())
}

/// "The execution of a handler timed out": `HandlerTimeout`. "If it fails or times out, ... sets
/// the Succeed field to False."
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_takes_too_long_is_a_handler_timeout() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let manifest = pod("slow")
        .idle("main")
        .notifier("hang", exec(["sleep", "600"]).timeout(1));
    stage.run(manifest).await?;
    let done = admin
        .notify(&notification("slow", "slow", "hang").build())
        .await?;
    assert_eq!(done["status"]["state"], "Failed");
    let main = container(&done, "main");
    assert_eq!(main["succeeded"], false);
    assert_eq!(main["error"]["type"], "HandlerTimeout");
    assert!(
        main["error"]["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    assert!(main["error"]["timestamp"].is_string());
    for times in [&done["status"], main] {
        assert!(times["completeTime"].is_string(), "{done:#}");
    }
    Ok(())
}

/// "Creators of `PodNotification` resources are responsible of the full lifecycle of them."
#[tokio::test(flavor = "multi_thread")]
async fn a_finished_notification_stays_until_its_creator_deletes_it() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let manifest = pod("kept")
        .idle("main")
        .notifier("lock", exec(["true"]).timeout(30));
    stage.run(manifest).await?;
    let done = admin
        .notify(&notification("kept", "kept", "lock").build())
        .await?;
    let options = json!({ "gracePeriodSeconds": 0 });
    admin
        .delete_with(&format!("{PODS}/kept"), &options)
        .await?
        .ok()?;
    // What asks to be collected goes; this one does not go with it.
    let short = notification("not-kept", "kept", "lock").spec("ttlSecondsAfterFinished", 1);
    admin.post(NOTIFICATIONS, &short.build()).await?.ok()?;
    eventually("the other one to be collected", async || {
        let reply = admin.get(&format!("{NOTIFICATIONS}/not-kept")).await?;
        Ok((reply.status == 404).then_some(()))
    })
    .await?;
    let after = admin.get(&format!("{NOTIFICATIONS}/kept")).await?.ok()?;
    assert_eq!(after["status"], done["status"]);
    admin.delete(&format!("{NOTIFICATIONS}/kept")).await?.ok()?;
    admin
        .get(&format!("{NOTIFICATIONS}/kept"))
        .await?
        .refused(404)?;
    Ok(())
}

/// "The user creates a `PodNotification` object to request the SIGHUP `ContainerNotifier`. ... It
/// sends the SIGHUP signal defined in the `ContainterNotificationHandler` to the container."
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_notifier_reaches_the_container_s_first_process() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("hup");
    let script = format!(
        "trap 'echo hup >> {file}' HUP; trap 'echo usr1 >> {file}' USR1; echo ready >> {file}; \
         while :; do sleep 3600 & wait; done"
    );
    let manifest = pod("hup")
        .container("main", ["sh", "-c", &script])
        .notifier("reload", signal("SIGHUP").timeout(30))
        .notifier("verbose", signal("SIGUSR1").timeout(30));
    stage.run(manifest).await?;
    until_file(&file, |text| text.contains("ready")).await?;
    let done = admin
        .notify(&notification("hup", "hup", "reload").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    until_file(&file, |text| text.contains("hup")).await?;
    // "Example Workflow to Change Log Verbosity": another signal, another notifier.
    let done = admin
        .notify(&notification("usr1", "hup", "verbose").build())
        .await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    let text = until_file(&file, |text| text.contains("usr1")).await?;
    assert_eq!(text.lines().collect::<Vec<_>>(), ["ready", "hup", "usr1"]);
    Ok(())
}

/// What the conditions of this type say.
fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .and_then(|conditions| conditions.iter().find(|one| one["type"] == kind))
        .unwrap_or(&Value::Null)
}

/// A signal that was sent is a success, though nobody may have noticed: that is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_the_process_does_not_handle_is_told() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let ready = stage.file("ignores");
    let script = format!("trap '' USR2; echo up > {ready}; while :; do sleep 3600 & wait; done");
    let manifest = pod("ignores")
        .container("main", ["sh", "-c", &script])
        .notifier("ignored", signal("SIGUSR2").timeout(30))
        .notifier("harmless", signal("SIGWINCH").timeout(30));
    stage.run(manifest).await?;
    until_file(&ready, |text| !text.is_empty()).await?;
    for (name, notifier) in [("ignores-1", "ignored"), ("ignores-2", "harmless")] {
        let done = admin
            .notify(&notification(name, "ignores", notifier).build())
            .await?;
        assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
        let handled = condition(&done, "SignalHandled");
        assert_eq!(handled["status"], "False", "{done:#}");
        assert!(
            handled["message"]
                .as_str()
                .is_some_and(|text| text.contains("main")),
            "{handled}"
        );
        let warns = |event: &Value| {
            event["type"] == "Warning"
                && event["reason"] == "SignalNotHandled"
                && event["involvedObject"]["name"] == name
        };
        let told = |events: &Value| {
            events["items"]
                .as_array()?
                .iter()
                .find(|it| warns(it))
                .map(drop)
        };
        admin.until(EVENTS, "a warning", told).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_the_process_handles_says_nothing_of_the_kind() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let file = stage.file("handles");
    let script = format!(
        "trap 'echo hup >> {file}' HUP; echo ready >> {file}; while :; do sleep 3600 & wait; done"
    );
    let manifest = pod("handles")
        .container("main", ["sh", "-c", &script])
        .notifier("reload", signal("SIGHUP").timeout(30));
    stage.run(manifest).await?;
    until_file(&file, |text| text.contains("ready")).await?;
    let done = admin
        .notify(&notification("handles", "handles", "reload").build())
        .await?;
    assert_ne!(
        condition(&done, "SignalHandled")["status"],
        "False",
        "{done:#}"
    );
    Ok(())
}

/// "For exec, it will depend on the return value of the ExecInContainer method": a command that
/// cannot be started is a failure with a reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_not_there_fails_and_says_so() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let manifest = pod("no-command")
        .idle("main")
        .notifier("lock", exec(["/nonexistent/lock"]).timeout(30));
    stage.run(manifest).await?;
    let done = admin
        .notify(&notification("no-command", "no-command", "lock").build())
        .await?;
    let main = container(&done, "main");
    assert_eq!(main["succeeded"], false);
    assert_eq!(main["error"]["type"], "HandlerFailed");
    let message = main["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("/nonexistent/lock"), "{message}");
    Ok(())
}
