//! The end of a pod while the agent is killed with `kill -9` at each of its steps, and while the
//! API server is away, on the runtime that the file including this one gives. A file with one line
//! for everything that happens proves what did, how often and in which order.
//!
//! A debug build ends itself with SIGKILL at the point that `BELAY_CRASH_AT` names.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::{
    EVENTS, Instance, PODS, PodBuilder, Rest, eventually, lines, pod, processes, until_file,
};
use serde_json::{Value, json};

use crate::on_runtime;

/// Longer than any test waits, in seconds: what ends before it has been ended.
pub(crate) const LONG: u32 = 600;

/// A pod that writes down what happens to it.
pub(crate) struct Work {
    pub(crate) heard: String,
    pub(crate) gate: String,
    /// Where its containers find the files; `None` for plain processes, which see all.
    files: Option<PathBuf>,
}

impl Work {
    pub(crate) fn new(instance: &Instance) -> Self {
        Self {
            heard: instance.file("heard"),
            gate: instance.file("gate"),
            files: instance
                .is_on_containerd()
                .then(|| instance.dir().to_owned()),
        }
    }

    pub(crate) fn build(&self, pod: PodBuilder) -> Value {
        match &self.files {
            Some(files) => pod.in_containers(files).build(),
            None => pod.build(),
        }
    }

    /// On SIGTERM it ends as soon as the gate is open.
    fn manifest(&self, pre_stop: &Value) -> Value {
        let script = format!(
            "trap 'echo term >> {0}' TERM; echo up >> {0}; \
             while ! grep -q term {0} || ! test -e {1}; do sleep 0.05; done",
            self.heard, self.gate
        );
        let pod = pod("p")
            .container("main", ["sh", "-c", &script])
            .container_field("lifecycle", json!({ "preStop": pre_stop }))
            .grace(LONG);
        self.build(pod)
    }

    /// A hook that leaves a line, waits for its own gate, and leaves another.
    fn hook(&self) -> Value {
        let script = format!(
            "echo hook >> {0}; while ! test -e {1}.hook; do sleep 0.05; done; echo done >> {0}",
            self.heard, self.gate
        );
        json!({ "exec": { "command": ["sh", "-c", script] } })
    }

    fn let_hook_end(&self) -> anyhow::Result<()> {
        Ok(std::fs::write(format!("{}.hook", self.gate), "")?)
    }

    pub(crate) fn let_container_end(&self) -> anyhow::Result<()> {
        Ok(std::fs::write(&self.gate, "")?)
    }

    pub(crate) async fn until(&self, line: &str) -> anyhow::Result<()> {
        until_file(&self.heard, |text| text.lines().any(|l| l == line))
            .await
            .map(drop)
    }

    pub(crate) fn heard(&self) -> String {
        std::fs::read_to_string(&self.heard).unwrap_or_default()
    }

    pub(crate) async fn run(&self, admin: &Rest, pre_stop: &Value) -> anyhow::Result<()> {
        admin.run(&self.manifest(pre_stop)).await?;
        self.until("up").await
    }
}

/// The server may be gone before it has answered; the pod is marked all the same.
pub(crate) async fn delete(admin: &Rest) {
    let _ = admin.delete(&format!("{PODS}/p")).await;
}

pub(crate) async fn gone(instance: &Instance) -> anyhow::Result<()> {
    let admin = instance.admin().await?;
    eventually("the pod to be gone", async || {
        let reply = admin.get(&format!("{PODS}/p")).await?;
        Ok((reply.status.as_u16() == 404).then_some(()))
    })
    .await
}

async fn event(instance: &Instance, reason: &str) -> anyhow::Result<String> {
    event_about(instance, reason, "").await
}

/// The message of an event that contains `text`.
pub(crate) async fn event_about(
    instance: &Instance,
    reason: &str,
    text: &str,
) -> anyhow::Result<String> {
    let admin = instance.admin().await?;
    eventually(&format!("the event {reason}"), async || {
        let list = admin.get(EVENTS).await?.ok()?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let told = items.iter().filter(|event| event["reason"] == reason);
        let mut messages = told.filter_map(|event| event["message"].as_str());
        let found = messages.find(|message| message.contains(text));
        Ok(found.map(str::to_owned))
    })
    .await
}

/// Runs the pod on an instance that ends itself at `point`, and deletes it.
async fn crashed_at(point: &str) -> anyhow::Result<(Instance, Work)> {
    let up = Instance::up().env("BELAY_CRASH_AT", point);
    let mut instance = on_runtime(up).await?.start().await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    work.run(&admin, &work.hook()).await?;
    if point != "agent.stop-journalled" {
        work.let_hook_end()?;
    }
    delete(&admin).await;
    let status = instance.ended().await?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(9), "{status}");
    Ok((instance, work))
}

/// The rest of the way, and that nothing was done twice on it.
async fn ends_properly(instance: &Instance, work: &Work) -> anyhow::Result<()> {
    work.let_hook_end()?;
    work.until("term").await?;
    work.let_container_end()?;
    gone(instance).await?;
    assert_eq!(work.heard(), "up\nhook\ndone\nterm\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_hook_starts_it_runs_after_the_restart() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.stop-journalled").await?;
    assert_eq!(work.heard(), "up\n", "nothing had started");
    instance.start_again().await?;
    ends_properly(&instance, &work).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_the_hook_runs_it_is_followed_and_not_repeated() -> anyhow::Result<()> {
    let mut instance = on_runtime(Instance::up()).await?.start().await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    work.run(&admin, &work.hook()).await?;
    delete(&admin).await;
    work.until("hook").await?;
    for _ in 0..3 {
        instance.kill9().await?;
        instance.start_again().await?;
    }
    ends_properly(&instance, &work).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_nobody_sees_the_hook_end_its_end_is_found() -> anyhow::Result<()> {
    let mut instance = on_runtime(Instance::up()).await?.start().await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    work.run(&admin, &work.hook()).await?;
    delete(&admin).await;
    work.until("hook").await?;
    instance.kill9().await?;
    work.let_hook_end()?;
    work.until("done").await?;
    instance.start_again().await?;
    ends_properly(&instance, &work).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_the_end_of_the_hook_and_the_journal_it_is_not_repeated()
-> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.hook-ended").await?;
    assert_eq!(work.heard(), "up\nhook\ndone\n");
    instance.start_again().await?;
    ends_properly(&instance, &work).await
}

/// Sending and recording are two steps: the second signal does less harm than none.
#[tokio::test(flavor = "multi_thread")]
async fn killed_between_the_signal_and_the_journal_it_is_sent_once_more() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.signal-sent").await?;
    work.until("term").await?;
    instance.start_again().await?;
    until_file(&work.heard, |text| text.matches("term").count() == 2).await?;
    // Confirmed now, and written down by an agent that may end in peace: a restart sends nothing.
    event(&instance, "StopSignalSent").await?;
    instance.stop().await?;
    instance.start_again().await?;
    work.let_container_end()?;
    gone(&instance).await?;
    assert_eq!(work.heard(), "up\nhook\ndone\nterm\nterm\n");
    Ok(())
}

/// Without a hook nothing comes before the signal but the record of the beginning.
#[tokio::test(flavor = "multi_thread")]
async fn killed_right_after_the_first_signal_nobody_gets_his_grace_again() -> anyhow::Result<()> {
    const AWAY: Duration = Duration::from_secs(5);
    let up = Instance::up().env("BELAY_CRASH_AT", "agent.signal-sent");
    let mut instance = on_runtime(up).await?.start().await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    admin.run(&work.build(work.sickly(":").grace(LONG))).await?;
    work.until("up").await?;
    delete(&admin).await;
    let status = instance.ended().await?;
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(9), "{status}");
    tokio::time::sleep(AWAY).await;
    instance.start_again().await?;
    let (after, left) = times_of_signal(&instance, "main").await?;
    assert!(after >= AWAY, "it began anew: {after:?} {left:?}");
    assert_eq!(after + left, Duration::from_secs(LONG.into()));
    let now = format!("{PODS}/p?gracePeriodSeconds=0");
    instance.admin().await?.delete(&now).await?.ok()?;
    work.until_nothing_runs().await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_during_a_sleep_nobody_gets_his_grace_again() -> anyhow::Result<()> {
    const AWAY: Duration = Duration::from_secs(12);
    let mut instance = on_runtime(Instance::up()).await?.start().await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    let mut manifest = work.manifest(&json!({ "sleep": { "seconds": 10 } }));
    // Its hook starts when the beginning of the termination is on disk.
    let begun = instance.file("begun");
    let script = format!("echo begun >> {begun}");
    // The first process of a PID namespace never sees a signal that it has no handler for.
    let obeys = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    let other = pod("p")
        .container("other", ["sh", "-c", obeys])
        .container_field(
            "lifecycle",
            json!({ "preStop": { "exec": { "command": ["sh", "-c", script] } } }),
        );
    let other = work.build(other);
    let containers = manifest["spec"]["containers"].as_array_mut();
    containers
        .context("containers")?
        .push(other["spec"]["containers"][0].clone());
    admin.run(&manifest).await?;
    work.until("up").await?;
    delete(&admin).await;
    until_file(&begun, |text| !text.is_empty()).await?;
    instance.kill9().await?;
    tokio::time::sleep(AWAY).await;
    instance.start_again().await?;
    // It is ready before it has gone on with what it found.
    work.until("term").await?;
    work.let_container_end()?;
    gone(&instance).await?;
    assert_eq!(work.heard(), "up\nterm\n");
    let (after, left) = times_of_signal(&instance, "main").await?;
    assert!(after >= AWAY, "{after:?} {left:?}");
    assert_eq!(after + left, Duration::from_secs(LONG.into()));
    Ok(())
}

/// When a container got its signal, counted from the beginning of its end, and what it had of its
/// grace then.
pub(crate) async fn times_of_signal(
    instance: &Instance,
    container: &str,
) -> anyhow::Result<(Duration, Duration)> {
    // "Sent SIGTERM to container main after 2.345s; it has 597.655s before SIGKILL"
    let sent = event_about(
        instance,
        "StopSignalSent",
        &format!("container {container} "),
    )
    .await?;
    let millis: Vec<u64> = sent
        .split_whitespace()
        .filter_map(|word| word.trim_end_matches(';').strip_suffix('s'))
        .filter_map(|number| number.replace('.', "").parse().ok())
        .collect();
    let [after, left] = millis[..] else {
        anyhow::bail!("{sent}");
    };
    Ok((Duration::from_millis(after), Duration::from_millis(left)))
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_server_away_hook_signal_and_end_come_all_the_same() -> anyhow::Result<()> {
    let mut instance = on_runtime(Instance::server()).await?.start().await?;
    instance.start_agent("n1", &[]).await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    work.run(&admin, &work.hook()).await?;
    delete(&admin).await;
    work.until("hook").await?;
    instance.kill9().await?;
    work.let_hook_end()?;
    work.until("term").await?;
    work.let_container_end()?;
    eventually("the end of its processes", async || {
        Ok(processes::with_command(&work.heard)
            .is_empty()
            .then_some(()))
    })
    .await?;
    instance.start_again().await?;
    gone(&instance).await?;
    assert_eq!(lines(&work.heard), 4, "{}", work.heard());
    // What was done meanwhile is told when somebody can hear it.
    for reason in ["PreStopHookSucceeded", "StopSignalSent", "Stopped"] {
        event(&instance, reason).await?;
    }
    Ok(())
}

/// The last steps, of which the journal is told no more: what is not done yet is done, and nothing
/// twice.
#[tokio::test(flavor = "multi_thread")]
async fn killed_at_the_last_steps_nothing_is_left_and_nothing_is_repeated() -> anyhow::Result<()> {
    for point in ["agent.killed", "agent.torn-down", "agent.before-deletion"] {
        let up = Instance::up().env("BELAY_CRASH_AT", point);
        let mut instance = on_runtime(up).await?.start().await?;
        let work = Work::new(&instance);
        let admin = instance.admin().await?;
        let deaf = work
            .sickly(":")
            .container_field("lifecycle", json!({ "preStop": work.hook() }))
            .grace(10);
        admin.run(&work.build(deaf)).await?;
        work.until("up").await?;
        work.let_hook_end()?;
        delete(&admin).await;
        let status = instance.ended().await?;
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(signal, Some(9), "{point}: {status}");
        instance.start_again().await?;
        gone(&instance).await?;
        work.until_nothing_runs().await?;
        assert_eq!(work.heard(), "up\nhook\ndone\nterm\n", "{point}");
    }
    Ok(())
}

/// Whoever begins a termination has read the pod; whoever goes on with it needs nobody.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_before_its_server_goes_on_with_what_it_began()
-> anyhow::Result<()> {
    let mut instance = on_runtime(Instance::server()).await?.start().await?;
    instance.start_agent("n1", &[]).await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    work.run(&admin, &work.hook()).await?;
    delete(&admin).await;
    work.until("hook").await?;
    instance.kill9().await?;
    instance.kill9_agent("n1").await?;
    work.let_hook_end()?;
    instance.start_agent("n1", &[]).await?;
    work.until("term").await?;
    work.let_container_end()?;
    eventually("the end of its processes", async || {
        Ok(processes::with_command(&work.heard)
            .is_empty()
            .then_some(()))
    })
    .await?;
    instance.start_again().await?;
    gone(&instance).await?;
    assert_eq!(work.heard(), "up\nhook\ndone\nterm\n");
    // The journal knows whom it is about.
    for reason in ["StopSignalSent", "Stopped"] {
        event_about(&instance, reason, " main").await?;
    }
    Ok(())
}

impl Work {
    /// A container that is sick while there is the file `sick`, and does `on_term` on SIGTERM.
    fn sickly(&self, on_term: &str) -> PodBuilder {
        let script = format!(
            "trap 'echo term >> {0}; {on_term}' TERM; echo up >> {0}; while :; do sleep 0.05; done",
            self.heard
        );
        let probe = format!("! test -e {}.sick", self.gate);
        pod("p")
            .container("main", ["sh", "-c", &script])
            .container_field(
                "livenessProbe",
                json!({
                    "exec": {"command": ["sh", "-c", probe]},
                    "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 20,
                }),
            )
    }

    fn sicken(&self) -> anyhow::Result<()> {
        Ok(std::fs::write(format!("{}.sick", self.gate), "")?)
    }

    fn heal(&self) -> anyhow::Result<()> {
        Ok(std::fs::remove_file(format!("{}.sick", self.gate))?)
    }

    async fn until_nothing_runs(&self) -> anyhow::Result<()> {
        eventually("the end of its processes", async || {
            let left = processes::with_command(&self.heard);
            Ok(left.is_empty().then_some(()))
        })
        .await
    }
}

async fn until_restarted(instance: &Instance, count: u32) -> anyhow::Result<()> {
    let admin = instance.admin().await?;
    eventually("the container to be started again", async || {
        let pod = admin.get(&format!("{PODS}/p")).await?.ok()?;
        let status = &pod["status"];
        let ended = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
        anyhow::ensure!(!ended, "it has ended for good: {status:#}");
        let main = &status["containerStatuses"][0];
        let back = main["restartCount"] == count && main["state"]["running"].is_object();
        Ok(back.then_some(()))
    })
    .await
}

/// The same holds for one container that a probe ends.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_before_its_server_goes_on_with_the_end_of_one_container()
-> anyhow::Result<()> {
    let mut instance = on_runtime(Instance::server()).await?.start().await?;
    instance.start_agent("n1", &[]).await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    // Its end is on disk when its hook runs; it does not end by itself.
    let deaf = work
        .sickly(":")
        .container_field("lifecycle", json!({ "preStop": work.hook() }))
        .grace(10);
    admin.run(&work.build(deaf)).await?;
    work.until("up").await?;
    work.sicken()?;
    work.until("hook").await?;
    instance.kill9().await?;
    instance.kill9_agent("n1").await?;
    work.heal()?;
    work.let_hook_end()?;
    instance.start_agent("n1", &[]).await?;
    work.until("term").await?;
    work.until_nothing_runs().await?;
    instance.start_again().await?;
    until_restarted(&instance, 1).await?;
    until_file(&work.heard, |text| text == "up\nhook\ndone\nterm\nup\n").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_successor_of_an_unhealthy_container_runs_it_comes_all_the_same()
-> anyhow::Result<()> {
    let mut instance = on_runtime(Instance::server()).await?.start().await?;
    instance.start_agent("n1", &[]).await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    // Its exit code alone would be the end of the pod.
    let mut manifest = work.build(work.sickly("exit 0").grace(LONG));
    manifest["spec"]["restartPolicy"] = json!("OnFailure");
    admin.run(&manifest).await?;
    work.until("up").await?;
    work.sicken()?;
    work.until("term").await?;
    work.heal()?;
    until_restarted(&instance, 1).await?;
    until_file(&work.heard, |text| text.matches("up").count() == 2).await?;
    // The second restart waits for a while, and nobody hears of that.
    instance.kill9().await?;
    work.sicken()?;
    until_file(&work.heard, |text| text.matches("term").count() == 2).await?;
    work.until_nothing_runs().await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    instance.kill9_agent("n1").await?;
    work.heal()?;
    instance.start_again().await?;
    instance.start_agent("n1", &[]).await?;
    until_restarted(&instance, 2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_a_post_start_hook_runs_it_is_followed_and_not_repeated() -> anyhow::Result<()>
{
    let mut instance = on_runtime(Instance::up()).await?.start().await?;
    let work = Work::new(&instance);
    let pod = pod("p")
        .idle("main")
        .container_field("lifecycle", json!({ "postStart": work.hook() }));
    let manifest = work.build(pod);
    let admin = instance.admin().await?;
    admin.post(PODS, &manifest).await?.ok()?;
    work.until("hook").await?;
    instance.kill9().await?;
    instance.start_again().await?;
    let admin = instance.admin().await?;
    let ready = |pod: &Value| pod["status"]["containerStatuses"][0]["ready"] == true;
    let pod = admin.get(&format!("{PODS}/p")).await?.ok()?;
    assert!(!ready(&pod), "its hook is under way: {pod:#}");
    work.let_hook_end()?;
    let pod = eventually("the container to be ready", async || {
        let pod = admin.get(&format!("{PODS}/p")).await?.ok()?;
        Ok(ready(&pod).then_some(pod))
    })
    .await?;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(work.heard(), "hook\ndone\n");
    Ok(())
}
