//! The tour: each step says what is done, shows the command and what came of it, and checks it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use belay_api::notification::{PodNotification, State};
use belay_api::pod::Pod;
use kube::api::{Api, DeleteParams, ListParams, LogParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt as _};

use super::processes;
use super::stage::{Stage, Typed, typed};
use super::workload;
use crate::format;

/// How long anything may take that is waited for. Far more than it needs; a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(90);
/// How often a step is done that has to be seen while it lasts.
const LOOKS: u32 = 10;

/// Walks through all steps. The first thing that is not as it should be ends the tour.
pub(super) async fn walk(stage: &mut Stage) -> anyhow::Result<()> {
    say(&format!(
        "Belay runs the actions that a workload declares for itself. This tour uses a throw-away\n\
         instance in {} and nothing but the loopback.",
        stage.path().display()
    ))?;
    start(stage).await?;
    let client = stage.client().await?;
    declare(stage, &client).await?;
    reload(stage, &client).await?;
    with_output(stage).await?;
    failing(stage).await?;
    hanging(stage).await?;
    let interrupted = crash(stage).await?;
    timeline(stage, &interrupted).await?;
    stop(stage).await
}

async fn start(stage: &mut Stage) -> anyhow::Result<()> {
    title("1. An API server and a node, in one process")?;
    let data_dir = stage.data_dir();
    command(&format!("belay up --data-dir {}", data_dir.display()))?;
    let before = Instant::now();
    stage.start().await?;
    checked(&format!(
        "ready after {:.1} s",
        before.elapsed().as_secs_f64()
    ))?;
    command(&format!(
        "export KUBECONFIG={}",
        stage.kubeconfig().display()
    ))
}

async fn declare(stage: &Stage, client: &Client) -> anyhow::Result<()> {
    title("2. A pod that declares what may be done to it")?;
    let manifest = workload::manifest(stage.path());
    command("tail web.yaml")?;
    shown(&from_line(&manifest, "notifiers:"))?;
    command("kubectl apply -f web.yaml")?;
    let api = pods(client);
    let pod = workload::pod(stage.path())?;
    api.create(&PostParams::default(), &pod)
        .await
        .context("the pod was refused")?;
    let running = |pod: Option<&Pod>| {
        pod.and_then(|pod| pod.status.as_ref())
            .and_then(|status| status.container_statuses.as_ref())
            .is_some_and(|all| !all.is_empty() && all.iter().all(|container| container.ready))
    };
    tokio::time::timeout(
        PATIENCE,
        await_condition(api.clone(), workload::NAME, running),
    )
    .await
    .context("the pod did not start")??;
    until_log(&api, "started", 1).await?;
    checked("the pod runs")
}

async fn reload(stage: &Stage, client: &Client) -> anyhow::Result<()> {
    title("3. Reload it: a signal to its first process, and to nothing else")?;
    let result = notify(stage, "reload", 0).await?;
    ensure!(result.stdout.contains("SIGHUP"), "no signal in the result");
    command("kubectl logs web")?;
    let log = until_log(&pods(client), "reloaded", 1).await?;
    shown(&log)?;
    checked("the workload itself says that it reloaded, once")
}

async fn with_output(stage: &Stage) -> anyhow::Result<()> {
    title("4. A command in the container, and what it printed")?;
    let result = notify(stage, "status", 0).await?;
    ensure!(
        result.stdout.contains("3 sites, 0 errors"),
        "the output is not in the result"
    );
    checked("its output is part of the result")
}

async fn failing(stage: &Stage) -> anyhow::Result<()> {
    title("5. One that fails says how, and is not tried again behind your back")?;
    let result = notify(stage, "check", 1).await?;
    ensure!(
        result.stdout.contains("HandlerFailed") && result.stdout.contains("line 7: unknown word"),
        "the failure is not explained"
    );
    checked("exit code 1, the handler's own exit code and its words")
}

async fn hanging(stage: &Stage) -> anyhow::Result<()> {
    title("6. One that hangs is ended with everything it started")?;
    text("It starts a process that leaves its parent, then hangs; its timeout is 3 s.")?;
    let mut ended = None;
    // A machine that stands still for the whole timeout shows nothing: then it is done once more.
    for _ in 0..LOOKS {
        command("belay notify hang pod/web")?;
        let mut child = std::pin::pin!(typed(stage.type_in(&["notify", "hang", "pod/web"])?));
        let both = until(|| {
            let alive = hanging_now(stage);
            (alive.len() == workload::HANGING.len()).then_some(alive)
        });
        let seen = tokio::select! {
            alive = both => alive.context("its processes were not seen")?,
            early = &mut child => {
                finish(early?, 1)?;
                text("It was over before anybody could look; once more.")?;
                continue;
            }
        };
        for process in &seen {
            shown(&format!("ps: {} {}\n", process.pid, process.command))?;
        }
        ended = Some(child.await?);
        break;
    }
    let ended = ended.with_context(|| format!("its processes were not seen in {LOOKS} looks"))?;
    let result = finish(ended, 1)?;
    ensure!(
        result.stdout.contains("HandlerTimeout"),
        "the timeout is not reported"
    );
    let left = hanging_now(stage);
    ensure!(left.is_empty(), "still alive: {left:?}");
    checked("both were seen alive; when the timeout was reported, neither was left")
}

fn hanging_now(stage: &Stage) -> Vec<processes::Process> {
    workload::HANGING
        .iter()
        .flat_map(|command| processes::running(stage.path(), command))
        .collect()
}

/// Kills the instance while an action runs and starts it again; returns the name of the
/// notification that lived through it.
async fn crash(stage: &mut Stage) -> anyhow::Result<String> {
    title("7. kill -9 in the middle")?;
    text(
        "The action lasts until the tour lets it end. When it has begun, the whole instance is killed.",
    )?;
    command("belay notify rotate pod/web --keep &")?;
    let child = stage.type_in(&["notify", "rotate", "pod/web", "--keep"])?;
    until(|| (runs(stage) == 1 && is_rotating(stage)).then_some(()))
        .await
        .context("the action did not begin")?;
    let pid = stage.kill().await?;
    command(&format!("kill -9 {pid}"))?;
    ensure!(is_rotating(stage), "the action died with the instance");
    checked("the instance is dead; the action and the container are not")?;
    command(&format!(
        "belay up --data-dir {}",
        stage.data_dir().display()
    ))?;
    stage.start().await?;
    let end = workload::end_file(stage.path());
    command(&format!("touch {}", end.display()))?;
    std::fs::write(&end, "")?;
    let result = finish(typed(child).await?, 0)?;
    ensure!(
        result.stdout.contains("rotated"),
        "the output of the action was lost"
    );
    let runs = runs(stage);
    ensure!(runs == 1, "it ran {runs} times");
    let notification = rotation(&stage.client().await?).await?;
    let status = notification.status.clone().unwrap_or_default();
    ensure!(
        notification.state() == State::Succeeded
            && status.containers.iter().all(|c| c.attempts == Some(1)),
        "the recorded result is wrong: {status:?}"
    );
    checked("its real outcome was reported after the restart, and it ran once (it counts itself)")?;
    Ok(notification.name_any())
}

async fn timeline(stage: &Stage, notification: &str) -> anyhow::Result<()> {
    title("8. What happened, in order")?;
    let object = format!("pn/{notification}");
    for (object, section) in [(object.as_str(), "Timeline:"), ("pod/web", "Timeline:")] {
        command(&format!("belay describe {object}"))?;
        let result = stage.belay(&["describe", object]).await?;
        ensure!(result.code == Some(0), "describe failed: {}", result.stderr);
        let lines = from_line(&result.stdout, section);
        ensure!(lines.lines().count() > 3, "the timeline is empty");
        shown(&lines)?;
    }
    checked("creation, claim, start, end and the events are there")
}

async fn stop(stage: &mut Stage) -> anyhow::Result<()> {
    title("9. Take it down")?;
    command("kubectl delete pod web")?;
    let api = pods(&stage.client().await?);
    api.delete(workload::NAME, &DeleteParams::default()).await?;
    let gone = |pod: Option<&Pod>| pod.is_none();
    tokio::time::timeout(PATIENCE, await_condition(api, workload::NAME, gone))
        .await
        .context("the pod did not go")??;
    stage.stop().await?;
    until(|| processes::marked(stage.path()).is_empty().then_some(()))
        .await
        .with_context(|| format!("left running: {:?}", processes::marked(stage.path())))?;
    checked("the pod is gone, the instance has stopped, no process is left")
}

/// Types `belay notify` and checks its exit code.
async fn notify(stage: &Stage, notifier: &str, code: i32) -> anyhow::Result<Typed> {
    command(&format!("belay notify {notifier} pod/web"))?;
    finish(stage.belay(&["notify", notifier, "pod/web"]).await?, code)
}

/// Shows what a command printed and checks its exit code.
fn finish(result: Typed, code: i32) -> anyhow::Result<Typed> {
    shown(&result.stderr)?;
    shown(&result.stdout)?;
    ensure!(
        result.code == Some(code),
        "exit code {:?} instead of {code}",
        result.code
    );
    Ok(result)
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
}

fn runs(stage: &Stage) -> usize {
    let text = std::fs::read_to_string(workload::runs_file(stage.path()));
    text.unwrap_or_default().lines().count()
}

fn is_rotating(stage: &Stage) -> bool {
    !processes::running(stage.path(), &workload::rotating()).is_empty()
}

async fn rotation(client: &Client) -> anyhow::Result<PodNotification> {
    let api: Api<PodNotification> = Api::namespaced(client.clone(), "default");
    let list = api.list(&ListParams::default()).await?;
    list.items
        .into_iter()
        .find(|object| object.spec.notifier == "rotate")
        .context("the notification is gone")
}

/// The pod's log, once it has this line so many times; more often is an error.
async fn until_log(api: &Api<Pod>, line: &str, times: usize) -> anyhow::Result<String> {
    let client = api.clone().into_client();
    let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client, "default");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = api.logs(workload::NAME, &LogParams::default()).await?;
        let found = log.lines().filter(|found| *found == line).count();
        ensure!(found <= times, "{line:?} is in the log {found} times");
        if found == times {
            return Ok(log);
        }
        ensure!(
            Instant::now() < deadline,
            "{line:?} is not in the log: {log}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Looks again and again until there is something to see.
async fn until<T>(mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return Ok(seen);
        }
        ensure!(Instant::now() < deadline, "waited {PATIENCE:?} in vain");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The text from the first line that says this, on.
fn from_line(text: &str, line: &str) -> String {
    text.lines()
        .skip_while(|found| found.trim() != line)
        .fold(String::new(), |all, line| all + line + "\n")
}

fn say(words: &str) -> anyhow::Result<()> {
    format::out(&format!("{words}\n"))
}

fn title(words: &str) -> anyhow::Result<()> {
    format::out(&format!("\n{words}\n"))
}

fn text(words: &str) -> anyhow::Result<()> {
    format::out(&format!("   {words}\n"))
}

fn command(words: &str) -> anyhow::Result<()> {
    format::out(&format!("   $ {words}\n"))
}

fn shown(output: &str) -> anyhow::Result<()> {
    output.lines().try_for_each(|line| {
        format::out(format!("     {line}").trim_end()).and_then(|()| format::out("\n"))
    })
}

fn checked(words: &str) -> anyhow::Result<()> {
    format::out(&format!("   ok: {words}\n"))
}
