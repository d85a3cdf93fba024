//! Pods of every shape end while their agent is killed with `kill -9` again and again, at whatever
//! step they are: each ends as its spec says, no earlier than its spec says, no hook runs twice,
//! nothing is left behind, and those that are not meant never notice.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::ends::{LONG, delete, gone, pre_stop, told};
use belay_testkit::{Instance, PODS, PodBuilder, Stage, eventually, pod, processes, until_file};
use serde_json::{Value, json};

/// Its own name: what is on a runtime belongs to the node whose name is on it.
const NODE: &str = "amid-kills";
/// What is between two kills, in milliseconds: an agent that has hardly begun, one that is in the
/// middle, one that has caught up.
const PAUSES: [u64; 7] = [0, 20, 60, 120, 250, 500, 1000];

/// Seconds since boot, as containers read them too.
fn uptime() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    let first = text.split_whitespace().next().context("no uptime")?;
    Ok(first.parse()?)
}

/// On SIGTERM it says so, and when.
fn obedient(file: &str, name: &str) -> String {
    format!(
        "trap 'read t r < /proc/uptime; echo {name} term $t >> {file}; exit 0' TERM; \
         echo {name} up >> {file}; while :; do sleep 0.05; done"
    )
}

fn hooked(name: &str, file: &str) -> PodBuilder {
    let hook = format!("echo hook >> {file}; sleep 0.5; echo done >> {file}");
    let hook = json!({ "preStop": { "exec": { "command": ["sh", "-c", hook] } } });
    pod(name)
        .container("main", ["sh", "-c", &obedient(file, "main")])
        .container_field("lifecycle", hook)
        .grace(LONG)
}

fn sleeping(name: &str, file: &str) -> PodBuilder {
    pod(name)
        .container("main", ["sh", "-c", &obedient(file, "main")])
        .container_field("lifecycle", pre_stop(2))
        .grace(LONG)
}

/// What children that take no notice do, by which they are found wherever they went.
static DEAF_CHILD: LazyLock<String> =
    LazyLock::new(|| format!("sleep {}", processes::unique_seconds()));

/// It takes no notice, and has a child that does not either.
fn deaf(name: &str, file: &str) -> PodBuilder {
    let child = DEAF_CHILD.as_str();
    let script = format!(
        "trap 'echo main term >> {file}' TERM; setsid {child} & echo main up >> {file}; \
         while :; do read t r < /proc/uptime; echo $t >> {file}.last; sleep 0.05; done"
    );
    pod(name).container("main", ["sh", "-c", &script]).grace(10)
}

fn served(name: &str, file: &str) -> PodBuilder {
    pod(name)
        .sidecar("side", ["sh", "-c", &obedient(file, "side")])
        .container("main", ["sh", "-c", &obedient(file, "main")])
        .container_field("lifecycle", pre_stop(1))
        .grace(LONG)
}

type Shape = (&'static str, fn(&str, &str) -> PodBuilder);
const SHAPES: [Shape; 4] = [
    ("hooked", hooked),
    ("sleeping", sleeping),
    ("deaf", deaf),
    ("served", served),
];

/// When a line came, which ends with its time.
fn time(text: &str, line: &str) -> anyhow::Result<f64> {
    let mut lines = text.lines().filter_map(|one| one.strip_prefix(line));
    let time = lines.next().with_context(|| format!("no {line}: {text}"))?;
    Ok(time.trim().parse()?)
}

/// Whether a pod of this shape, whose deletion was asked for at `asked`, has ended right. A hook
/// whose start was under way when the agent was killed may be `lost`: it is not run again, because
/// it may have run.
fn ended_right(
    shape: &str,
    text: &str,
    last: Option<f64>,
    asked: f64,
    lost: bool,
) -> anyhow::Result<()> {
    let count = |line: &str| text.lines().filter(|one| one.starts_with(line)).count();
    let order: Vec<&str> = text.lines().filter(|line| !line.contains("up")).collect();
    let terms = count("main term");
    anyhow::ensure!(terms >= 1, "it was never asked: {text}");
    match shape {
        "hooked" if lost => {
            anyhow::ensure!(
                count("hook") <= 1 && count("done") <= count("hook"),
                "{text}"
            );
        }
        "hooked" => {
            let hook: Vec<_> = order.iter().take(2).collect();
            anyhow::ensure!(hook == [&"hook", &"done"], "{text}");
            anyhow::ensure!((count("hook"), count("done")) == (1, 1), "{text}");
        }
        "sleeping" => {
            let slept = time(text, "main term")? - asked;
            anyhow::ensure!(slept >= 2.0, "it slept {slept} s");
        }
        "deaf" => {
            let lived = last.context("it never wrote")? - asked;
            // It wrote a little before it was killed.
            anyhow::ensure!(lived >= 6.0, "it lived {lived} s of its grace");
        }
        "served" => {
            let slept = time(text, "main term")? - asked;
            anyhow::ensure!(slept >= 1.0, "it slept {slept} s");
            let side = order.iter().position(|line| line.starts_with("side term"));
            let main = order.iter().position(|line| line.starts_with("main term"));
            anyhow::ensure!(side > main && main.is_some(), "{text}");
        }
        other => anyhow::bail!("no shape {other}"),
    }
    Ok(())
}

fn incarnation(pod: &Value) -> (Value, Value) {
    let status = &pod["status"]["containerStatuses"][0];
    let fields = (
        status["containerID"].clone(),
        status["restartCount"].clone(),
    );
    assert_ne!(fields.0, Value::Null, "{pod:#}");
    fields
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pod_ends_as_its_spec_says_though_its_agent_is_killed_all_the_time()
-> anyhow::Result<()> {
    let mut instance = super::on_runtime(Instance::server()).await?.start().await?;
    instance.start_agent(NODE, &[]).await?;
    let stage = Stage::on(&instance).await?;
    let bystander = stage.file("bystander");
    let script = format!("while :; do echo x >> {bystander}; sleep 0.05; done");
    let before = stage
        .run(pod("bystander").container("main", ["sh", "-c", &script]))
        .await?;

    let (mut pods, mut uids) = (Vec::new(), Vec::new());
    for round in 0..3 {
        for (shape, make) in SHAPES {
            let name = format!("{shape}-{round}");
            let created = stage.create(make(&name, &stage.file(&name))).await?;
            uids.push(
                created["metadata"]["uid"]
                    .as_str()
                    .context("a UID")?
                    .to_owned(),
            );
            pods.push((shape, name));
        }
    }
    for (shape, name) in &pods {
        let ups = if *shape == "served" { 2 } else { 1 };
        let is_up = |text: &str| text.matches(" up\n").count() == ups;
        until_file(&stage.file(name), is_up).await?;
        stage.admin().running(name).await?;
    }
    eventually("the children of the deaf", async || {
        let all = processes::with_command(&DEAF_CHILD);
        let children = all.iter().filter(|one| one.command == *DEAF_CHILD);
        let deaf = pods.iter().filter(|(shape, _)| *shape == "deaf");
        Ok((children.count() == deaf.count()).then_some(()))
    })
    .await?;
    // Not all at once, so that every kill meets pods at different steps.
    let mut asked = Vec::new();
    for (index, (_, name)) in pods.iter().enumerate() {
        asked.push(uptime()?);
        delete(&stage, name).await?;
        let pause = PAUSES[index % PAUSES.len()];
        tokio::time::sleep(Duration::from_millis(pause)).await;
        instance.kill9_agent(NODE).await?;
        instance.start_agent(NODE, &[]).await?;
    }
    for (_, name) in &pods {
        gone(&stage, name).await?;
    }

    for ((shape, name), asked) in pods.iter().zip(asked) {
        let failed = told(&stage, name, "FailedPreStopHook").await?;
        let lost = failed
            .iter()
            .any(|message| message.contains("interrupted together with the agent"));
        let file = stage.file(name);
        let last = std::fs::read_to_string(format!("{file}.last")).ok();
        let last = last.and_then(|text| text.lines().last()?.parse().ok());
        let text = std::fs::read_to_string(&file)?;
        ended_right(shape, &text, last, asked, lost).with_context(|| name.clone())?;
    }
    let after = stage.admin().running("bystander").await?;
    assert_eq!(incarnation(&after), incarnation(&before));
    let lines = belay_testkit::lines(&bystander);
    until_file(&bystander, |text| text.lines().count() > lines).await?;
    eventually("nothing to be left of the others", async || {
        let mut left = processes::with_command(&DEAF_CHILD);
        for (_, name) in &pods {
            left.extend(processes::with_command(&stage.file(name)));
        }
        // On disk as well: nobody but the bystander has a log, records of its container, or of its
        // hooks.
        let entries = ["runtime/containers", "runtime/cri", "logs"].map(|dir| {
            let dir = instance.dir().join(NODE).join(dir);
            std::fs::read_dir(dir).map_or(0, Iterator::count)
        });
        anyhow::ensure!(left.is_empty(), "{left:?}");
        anyhow::ensure!(entries.iter().all(|entries| *entries <= 1), "{entries:?}");
        Ok(Some(()))
    })
    .await?;
    super::nothing_left(&uids, &DEAF_CHILD).await?;
    let list = stage.admin().get(PODS).await?.ok()?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}
