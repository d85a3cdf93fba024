//! `kill -9` at every durable step of a notification's way, of the one process, of the agent
//! alone, of a shim alone. A file with one line per run proves how often the action ran.
//!
//! A debug build ends itself with SIGKILL at the point that `BELAY_CRASH_AT` names.

use belay_testkit::{
    Instance, NOTIFICATIONS, PODS, Rest, eventually, exec, lines, notification, pod, processes,
    until_file,
};
use serde_json::{Value, json};

/// Long enough that no busy machine lets a notification expire that should not.
const LONG: u32 = 600;
/// Short enough to be slept through, long enough for a busy machine to claim and start in.
const SHORT: u32 = 30;

/// An action that leaves a line when it starts, ends when the gate opens, and exits with 5, so
/// that its real outcome cannot be mistaken for another.
struct Work {
    counter: String,
    gate: String,
    /// Found in the command line of its processes.
    marker: String,
}

impl Work {
    fn new(instance: &Instance) -> Self {
        let file = instance.file("counter");
        Self {
            marker: file.clone(),
            counter: file,
            gate: instance.file("gate"),
        }
    }

    fn script(&self) -> String {
        format!(
            "echo ran >> {}; while [ ! -e {} ]; do sleep 0.05; done; echo out; exit 5",
            self.counter, self.gate
        )
    }

    fn manifest(&self) -> Value {
        pod("p")
            .idle("main")
            .notifier("work", exec(["sh", "-c", &self.script()]).timeout(LONG))
            .build()
    }

    fn open_gate(&self) -> anyhow::Result<()> {
        Ok(std::fs::write(&self.gate, "")?)
    }

    fn runs(&self) -> usize {
        lines(&self.counter)
    }

    async fn started(&self) -> anyhow::Result<()> {
        until_file(&self.counter, |text| !text.is_empty())
            .await
            .map(drop)
    }

    /// The shim above the action's first process.
    async fn shim(&self, instance: &Instance) -> anyhow::Result<u32> {
        let shims = || processes::with_program_under(instance.dir());
        eventually("the action's shim", async || {
            let work = processes::with_command(&self.marker);
            let parents: Vec<u32> = work
                .iter()
                .filter_map(|process| processes::parent(process.pid))
                .collect();
            Ok(shims()
                .iter()
                .map(|shim| shim.pid)
                .find(|pid| parents.contains(pid)))
        })
        .await
    }
}

fn main_status(notification: &Value) -> &Value {
    &notification["status"]["containers"][0]
}

/// The action ran to its end, once, and that is what is reported.
fn assert_real_outcome(done: &Value, work: &Work) {
    assert_eq!(done["status"]["state"], "Failed", "{done:#}");
    let main = main_status(done);
    assert_eq!(main["error"]["type"], "HandlerFailed", "{done:#}");
    assert_eq!(main["exitCode"], 5, "{done:#}");
    assert!(
        main["output"]
            .as_str()
            .is_some_and(|text| text.contains("out")),
        "{done:#}"
    );
    assert_eq!(work.runs(), 1, "it ran exactly once");
    assert!(
        main["attempts"].is_null() || main["attempts"] == 1,
        "{done:#}"
    );
}

/// Starts an instance that ends itself at `point`, runs the pod, creates the notification and
/// waits for the end.
async fn crashed_at(point: &str, deadline: u32) -> anyhow::Result<(Instance, Work)> {
    let mut instance = Instance::up().env("BELAY_CRASH_AT", point).start().await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    admin.run(&work.manifest()).await?;
    if [
        "agent.ended",
        "agent.result-journalled",
        "agent.after-result",
    ]
    .contains(&point)
    {
        work.open_gate()?;
    }
    create(&admin, deadline).await;
    let status = instance.ended().await?;
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "{status}"
    );
    Ok((instance, work))
}

/// The server may be gone before it has answered; the object is there all the same, or the test
/// finds that out later.
async fn create(admin: &Rest, deadline: u32) {
    let object = notification("n", "p", "work").deadline(deadline).build();
    let _ = admin.post(NOTIFICATIONS, &object).await;
}

async fn finished(instance: &Instance) -> anyhow::Result<Value> {
    instance.admin().await?.finished("n").await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_claim_it_runs_after_the_restart() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.before-claim", LONG).await?;
    assert_eq!(work.runs(), 0, "nothing runs before it is claimed");
    instance.start_again().await?;
    work.open_gate()?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_claim_and_start_it_runs_after_the_restart() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.after-claim", LONG).await?;
    assert_eq!(work.runs(), 0, "nothing had started");
    instance.start_again().await?;
    work.open_gate()?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_during_the_action_its_outcome_is_found_when_it_ends_later() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.started", LONG).await?;
    work.started().await?;
    instance.start_again().await?;
    let admin = instance.admin().await?;
    let still = admin.get(&format!("{NOTIFICATIONS}/n")).await?.ok()?;
    assert_eq!(still["status"]["state"], "New", "it still runs");
    work.open_gate()?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_during_the_action_its_outcome_is_found_when_it_ended_meanwhile()
-> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.started", LONG).await?;
    work.started().await?;
    work.open_gate()?;
    eventually("the end of the action", async || {
        Ok(processes::with_command(&work.marker)
            .is_empty()
            .then_some(()))
    })
    .await?;
    instance.start_again().await?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_end_and_journal_the_outcome_is_found_in_the_runtime() -> anyhow::Result<()>
{
    let (mut instance, work) = crashed_at("agent.ended", LONG).await?;
    assert_eq!(work.runs(), 1);
    instance.start_again().await?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_between_journal_and_result_the_outcome_is_reported_from_the_journal()
-> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.result-journalled", LONG).await?;
    assert_eq!(work.runs(), 1);
    instance.start_again().await?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_result_nothing_runs_again() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.after-result", LONG).await?;
    instance.start_again().await?;
    let done = finished(&instance).await?;
    assert_real_outcome(&done, &work);
    // Another notification goes through the restarted agent; the finished one is left alone.
    let admin = instance.admin().await?;
    admin
        .notify(&notification("n2", "p", "work").deadline(LONG).build())
        .await?;
    assert_eq!(work.runs(), 2);
    assert_eq!(finished(&instance).await?["metadata"], done["metadata"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_from_outside_at_any_moment_the_action_has_run_once() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let work = Work::new(&instance);
    instance.admin().await?.run(&work.manifest()).await?;
    create(&instance.admin().await?, LONG).await;
    work.started().await?;
    for _ in 0..3 {
        instance.kill9().await?;
        instance.start_again().await?;
    }
    work.open_gate()?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_claimed_before_the_deadline_expires_and_never_runs() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.before-claim", SHORT).await?;
    past_the_deadline().await;
    instance.start_again().await?;
    let done = finished(&instance).await?;
    assert_eq!(done["status"]["state"], "Failed");
    assert_eq!(done["status"]["error"]["type"], "Expired", "{done:#}");
    assert_eq!(work.runs(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_claimed_but_not_started_is_not_started_after_the_deadline() -> anyhow::Result<()>
{
    let (mut instance, work) = crashed_at("agent.after-claim", SHORT).await?;
    past_the_deadline().await;
    instance.start_again().await?;
    let done = finished(&instance).await?;
    assert_eq!(done["status"]["state"], "Failed", "{done:#}");
    assert_eq!(work.runs(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ran_past_the_deadline_is_reported_as_it_ended() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.started", SHORT).await?;
    work.started().await?;
    past_the_deadline().await;
    instance.start_again().await?;
    work.open_gate()?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_lost_after_the_deadline_is_interrupted() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.started", SHORT).await?;
    work.started().await?;
    processes::kill(work.shim(&instance).await?);
    past_the_deadline().await;
    instance.start_again().await?;
    let done = finished(&instance).await?;
    assert_eq!(done["status"]["state"], "Failed");
    assert_eq!(
        main_status(&done)["error"]["type"],
        "Interrupted",
        "{done:#}"
    );
    assert_eq!(work.runs(), 1);
    assert!(
        processes::with_command(&work.marker).is_empty(),
        "what it left is dead"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_shim_is_a_lost_attempt_that_runs_again_before_the_deadline() -> anyhow::Result<()>
{
    let instance = Instance::up().start().await?;
    let work = Work::new(&instance);
    instance.admin().await?.run(&work.manifest()).await?;
    create(&instance.admin().await?, LONG).await;
    work.started().await?;
    processes::kill(work.shim(&instance).await?);
    until_file(&work.counter, |text| text.lines().count() == 2).await?;
    work.open_gate()?;
    let done = finished(&instance).await?;
    assert_eq!(main_status(&done)["exitCode"], 5, "{done:#}");
    assert_eq!(main_status(&done)["attempts"], 2, "{done:#}");
    assert_eq!(work.runs(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_its_shim_and_the_agent_killed_a_lost_attempt_runs_again() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.started", LONG).await?;
    work.started().await?;
    processes::kill(work.shim(&instance).await?);
    instance.start_again().await?;
    until_file(&work.counter, |text| text.lines().count() == 2).await?;
    work.open_gate()?;
    let done = finished(&instance).await?;
    assert_eq!(main_status(&done)["exitCode"], 5, "{done:#}");
    assert_eq!(main_status(&done)["attempts"], 2, "{done:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_never_moves_to_the_container_s_successor() -> anyhow::Result<()> {
    let (mut instance, work) = crashed_at("agent.after-claim", LONG).await?;
    // The container dies while nobody looks; its successor is started by the restarted agent.
    for shim in processes::with_program_under(instance.dir()) {
        processes::kill(shim.pid);
    }
    instance.start_again().await?;
    let done = finished(&instance).await?;
    assert_eq!(done["status"]["state"], "Failed");
    let error = &main_status(&done)["error"]["type"];
    assert_eq!(error, "ContainerRestarted", "{done:#}");
    instance.admin().await?.running("p").await?;
    assert_eq!(work.runs(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_shim_is_killed_ends_its_action_for_good() -> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    admin.run(&work.manifest()).await?;
    create(&admin, LONG).await;
    work.started().await?;
    let exec_shim = work.shim(&instance).await?;
    let shims = processes::with_program_under(instance.dir());
    for shim in shims.iter().filter(|shim| shim.pid != exec_shim) {
        processes::kill(shim.pid);
    }
    let done = finished(&instance).await?;
    assert_eq!(done["status"]["state"], "Failed");
    let error = main_status(&done)["error"]["type"]
        .as_str()
        .unwrap_or_default();
    assert!(
        ["ContainerRestarted", "HandlerFailed"].contains(&error),
        "{done:#}"
    );
    // The pod comes back, with a new incarnation and a count; the action does not.
    admin
        .until(&format!("{PODS}/p"), "a restart", |pod| {
            let status = &pod["status"]["containerStatuses"][0];
            (status["restartCount"] == 1 && status["state"]["running"].is_object()).then_some(())
        })
        .await?;
    assert_eq!(work.runs(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_the_notification_kills_its_action_and_is_audited() -> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let work = Work::new(&instance);
    let admin = instance.admin().await?;
    admin.run(&work.manifest()).await?;
    create(&admin, LONG).await;
    work.started().await?;
    admin.delete(&format!("{NOTIFICATIONS}/n")).await?.ok()?;
    nothing_left(&work).await?;
    let audit = instance.data_dir().join("agent/agent-audit.jsonl");
    until_file(&audit.display().to_string(), |text| {
        text.to_lowercase().contains("cancelled")
    })
    .await?;
    assert_eq!(work.runs(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_deleted_while_the_agent_was_away_is_cancelled_on_its_return()
-> anyhow::Result<()> {
    let (mut instance, work) = separate().await?;
    let admin = instance.admin().await?;
    create(&admin, LONG).await;
    work.started().await?;
    instance.kill9_agent("n1").await?;
    admin.delete(&format!("{NOTIFICATIONS}/n")).await?.ok()?;
    assert!(
        !processes::with_command(&work.marker).is_empty(),
        "nobody was there to kill it"
    );
    instance.start_agent("n1", &[]).await?;
    nothing_left(&work).await?;
    assert_eq!(work.runs(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_alone_killed_during_the_action_reports_its_outcome_later() -> anyhow::Result<()>
{
    let (mut instance, work) = separate().await?;
    create(&instance.admin().await?, LONG).await;
    work.started().await?;
    instance.kill9_agent("n1").await?;
    work.open_gate()?;
    instance.start_agent("n1", &[]).await?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_alone_killed_between_claim_and_start_starts_it_later() -> anyhow::Result<()> {
    let (mut instance, work) = separate().await?;
    instance.kill9_agent("n1").await?;
    instance
        .start_agent("n1", &[("BELAY_CRASH_AT", "agent.after-claim")])
        .await?;
    create(&instance.admin().await?, LONG).await;
    instance.agent_ended("n1").await?;
    assert_eq!(work.runs(), 0);
    work.open_gate()?;
    instance.start_agent("n1", &[]).await?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_alone_killed_during_the_action_gets_the_outcome_when_it_is_back()
-> anyhow::Result<()> {
    let (mut instance, work) = separate().await?;
    create(&instance.admin().await?, LONG).await;
    work.started().await?;
    instance.kill9().await?;
    work.open_gate()?;
    eventually("the end of the action", async || {
        Ok(processes::with_command(&work.marker)
            .is_empty()
            .then_some(()))
    })
    .await?;
    instance.start_again().await?;
    assert_real_outcome(&finished(&instance).await?, &work);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_outlive_a_killed_instance_and_are_adopted() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let before = admin.run(&pod("lasting").idle("main").build()).await?;
    instance.kill9().await?;
    instance.start_again().await?;
    let after = instance.admin().await?.running("lasting").await?;
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    assert_eq!(id(&after), id(&before), "the same incarnation goes on");
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_leaves_containers_as_they_are() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let marker = processes::unique_seconds();
    let manifest = pod("left").container("main", ["sleep", &marker]).build();
    instance.admin().await?.run(&manifest).await?;
    let status = instance.stop().await?;
    assert!(status.success(), "{status}: {}", instance.log());
    assert_eq!(processes::with_command(&marker).len(), 1);
    Ok(())
}

/// A server and an agent as processes of their own, with the pod running.
async fn separate() -> anyhow::Result<(Instance, Work)> {
    let mut instance = Instance::server().start().await?;
    instance.start_agent("n1", &[]).await?;
    let work = Work::new(&instance);
    instance.admin().await?.run(&work.manifest()).await?;
    Ok((instance, work))
}

async fn nothing_left(work: &Work) -> anyhow::Result<()> {
    eventually("the end of every process of the action", async || {
        Ok(processes::with_command(&work.marker)
            .is_empty()
            .then_some(()))
    })
    .await
}

/// Creation times have whole seconds, so one more than the deadline is needed.
async fn past_the_deadline() {
    tokio::time::sleep(std::time::Duration::from_secs(u64::from(SHORT) + 2)).await;
}

/// The instance names the first one when it is started a second time on the same directory.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_on_the_same_directory_is_refused_and_told_of_the_first()
-> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let data_dir = instance.data_dir().display().to_string();
    let second = instance
        .belay(&["up", "--data-dir", &data_dir, "--listen", "127.0.0.1:0"])
        .await?;
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains(&instance.pid()?.to_string()), "{said}");
    let alive = instance.admin().await?.get("/readyz").await?;
    assert!(alive.status.is_success());
    assert_eq!(alive.json(), json!(null), "health is plain text");
    Ok(())
}
