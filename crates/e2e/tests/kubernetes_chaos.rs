//! A fan-out over a hundred pods on a real Kubernetes while everything around it dies: every
//! outcome is true, nothing reaches another incarnation, the counts are right.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use belay_testkit::{
    Cluster, NOTIFICATIONS, Part, Rest, Stage, eventually_within, notification, processes,
    rest::name, until_file,
};
use serde_json::{Value, json};

use fleet::{
    Incarnation, PATIENCE, SLOTS, begun, children, complete, counted, delivered_to, fan_out,
    incarnations, items, let_end, member, run_all, runs, told_truly,
};

#[path = "chaos/fleet.rs"]
mod fleet;

const COUNT: usize = 100;
/// More than the agent runs at once, fewer than there are: at any moment some run, some wait for a
/// slot, and some have not been created.
const PARALLELISM: usize = 20;
const APP: &str = "fleet";

/// One fleet, because a hundred pods take their time to start: first each part is killed, then the
/// API server is away for a minute, then the leader of the two controllers stops, the next is killed,
/// and the agent falls silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_fan_out_over_a_hundred_pods_survives_the_end_of_every_part() -> anyhow::Result<()> {
    let Some(mut cluster) = Cluster::start().await? else {
        return Ok(());
    };
    let stage = Stage::of(&cluster).await?;
    let notifiers = [
        "killed",
        "away",
        "unclaimed",
        "taken",
        "inherited",
        "silent",
    ];
    for notifier in notifiers {
        let_end(&stage, notifier, 0)?;
    }
    let pods = (0..COUNT).map(|number| {
        let name = format!("{APP}-{number}");
        member(&stage, APP, &name, &notifiers, code_of(&name))
    });
    run_all(&stage, pods.collect()).await?;
    let who = incarnations(&stage, APP).await?;
    assert_eq!(who.len(), COUNT);
    // Belay is installed over what runs already, which goes on as it was.
    cluster.load_belay().await?;
    cluster.install(&[]).await?;
    assert_eq!(incarnations(&stage, APP).await?, who, "nobody restarted");

    let had_ended = every_part_is_killed(&mut cluster, &stage).await?;
    all_were_reached(&stage, "killed", &who).await?;
    for pod in had_ended {
        assert_eq!(runs(&stage, "killed", &pod), 1, "{pod}");
    }
    the_api_server_is_away_for_a_minute(&mut cluster, &stage).await?;
    all_were_reached(&stage, "away", &who).await?;
    once_each(&stage, "away");
    the_leader_stops_and_comes_back(&cluster, &stage).await?;
    all_were_reached(&stage, "taken", &who).await?;
    once_each(&stage, "taken");
    the_leader_alone_is_killed(&cluster, &stage).await?;
    all_were_reached(&stage, "inherited", &who).await?;
    once_each(&stage, "inherited");
    the_agent_falls_silent(&cluster, &stage).await?;
    assert_eq!(incarnations(&stage, APP).await?, who, "nobody restarted");
    Ok(())
}

/// What a pod's handlers exit with: those of every tenth fail.
fn code_of(pod: &str) -> u8 {
    if pod.ends_with('9') { 5 } else { 0 }
}

/// Everybody is notified, and every outcome is true: what failed is told as failed, by its code.
async fn all_were_reached(
    stage: &Stage,
    notifier: &str,
    who: &BTreeMap<String, Incarnation>,
) -> anyhow::Result<()> {
    let done = complete(stage.admin(), notifier).await?;
    let children = children(stage.admin(), notifier).await?;
    counted(&done, &children, COUNT);
    let fail = COUNT / 10;
    let counts = (
        &done["status"]["succeededCount"],
        &done["status"]["failedCount"],
    );
    assert_eq!(counts, (&json!(COUNT - fail), &json!(fail)), "{done:#}");
    for child in &children {
        let pod = fleet::pod_of(child);
        told_truly(child, code_of(pod));
        let who = who.get(pod).context("a pod of the fleet")?;
        delivered_to(stage, notifier, child, who);
    }
    Ok(())
}

fn once_each(stage: &Stage, notifier: &str) {
    for number in 0..COUNT {
        let pod = format!("{APP}-{number}");
        assert_eq!(runs(stage, notifier, &pod), 1, "{pod}");
    }
}

/// Waits until as many have begun as can while `ended` may end, and checks that there is work left of
/// every kind.
async fn in_the_middle(stage: &Stage, notifier: &str, ended: usize) -> anyhow::Result<()> {
    begun(stage, notifier, ended + SLOTS).await?;
    let open = eventually_within(PATIENCE, "as many as may be open", async || {
        let children = children(stage.admin(), notifier).await?;
        Ok((unfinished(&children) == PARALLELISM).then_some(children))
    })
    .await?;
    assert!(open.len() < COUNT, "all have been created already");
    Ok(())
}

/// The next ones may go on in the moment in which the part dies, so that it dies at work. Nothing runs
/// twice for that, but for the execs that die with containerd, which is last. Returns the pods whose
/// handlers had ended, and been told of, before that.
async fn every_part_is_killed(cluster: &mut Cluster, stage: &Stage) -> anyhow::Result<Vec<String>> {
    const STEP: usize = 14;
    fan_out(stage, APP, "killed", PARALLELISM).await?;
    in_the_middle(stage, "killed", 0).await?;
    let_end(stage, "killed", STEP)?;
    cluster.kill9_role("belay agent")?;
    in_the_middle(stage, "killed", STEP).await?;
    let_end(stage, "killed", 2 * STEP)?;
    cluster.kill9_role("belay controller")?;
    let mut had_ended = Vec::new();
    for (number, part) in (2..).zip([Part::Kubelet, Part::ApiServer, Part::Containerd]) {
        in_the_middle(stage, "killed", number * STEP).await?;
        if part == Part::Containerd {
            for pod in (0..COUNT).map(|number| format!("{APP}-{number}")) {
                assert!(runs(stage, "killed", &pod) <= 1, "{pod}");
            }
            let mut children = children(stage.admin(), "killed").await?;
            children.retain(|child| child["status"]["completeTime"].is_string());
            had_ended = children
                .iter()
                .map(|child| fleet::pod_of(child).to_owned())
                .collect();
        }
        let_end(stage, "killed", (number + 1) * STEP)?;
        cluster.kill9(part).await?;
        cluster.start_part(part)?;
        cluster.api_server_ready().await?;
    }
    in_the_middle(stage, "killed", 5 * STEP).await?;
    let_end(stage, "killed", COUNT)?;
    assert!(had_ended.len() > 3 * STEP, "{had_ended:?}");
    Ok(had_ended)
}

async fn the_api_server_is_away_for_a_minute(
    cluster: &mut Cluster,
    stage: &Stage,
) -> anyhow::Result<()> {
    fan_out(stage, APP, "away", PARALLELISM).await?;
    in_the_middle(stage, "away", 0).await?;
    // The agent is asked to do this one within the default of 60 s, and cannot claim it.
    let pod = format!("{APP}-0");
    let agent = process_of(cluster, "belay agent", None)?;
    processes::stop(agent);
    let unclaimed = format!("{NOTIFICATIONS}/unclaimed");
    let asked = notification("unclaimed", &pod, "unclaimed")
        .spec("deadlineSeconds", Value::Null)
        .build();
    stage.admin().post(NOTIFICATIONS, &asked).await?.ok()?;
    let assigned = |object: &Value| object["status"]["nodeName"].is_string().then_some(());
    stage
        .admin()
        .until(&unclaimed, "the node", assigned)
        .await?;
    cluster.kill9(Part::ApiServer).await?;
    processes::go_on(agent);
    // What ends now cannot be told to anybody for a minute.
    let_end(stage, "away", COUNT / 2)?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    cluster.start_part(Part::ApiServer)?;
    cluster.api_server_ready().await?;
    // Said by the controller, or by the agent if it had heard of it before the server was away.
    let expired = stage.admin().finished("unclaimed").await?;
    assert_eq!(expired["status"]["error"]["type"], "Expired", "{expired:#}");
    assert_eq!(expired["spec"]["deadlineSeconds"], 60, "{expired:#}");
    in_the_middle(stage, "away", COUNT / 2).await?;
    let_end(stage, "away", COUNT)?;
    complete(stage.admin(), "away").await?;
    assert_eq!(runs(stage, "unclaimed", &pod), 0, "it has not even begun");
    Ok(())
}

async fn the_leader_stops_and_comes_back(cluster: &Cluster, stage: &Stage) -> anyhow::Result<()> {
    let admin = stage.admin();
    let (leader, _, before) = both_controllers(admin).await?;
    fan_out(stage, APP, "taken", PARALLELISM).await?;
    in_the_middle(stage, "taken", 0).await?;
    let process = process_of(cluster, "belay controller", Some(&leader))?;
    let begin = Instant::now();
    processes::stop(process);
    let_end(stage, "taken", COUNT / 2)?;
    let after = eventually_within(PATIENCE, "the other to lead", async || {
        let now = lease(admin).await?;
        let other = now["holderIdentity"] != before["holderIdentity"];
        Ok((other && now["holderIdentity"] != "").then_some(now))
    })
    .await?;
    println!(
        "taken over after {:?}; the lease is for {} s",
        begin.elapsed(),
        after["leaseDurationSeconds"]
    );
    assert_eq!(transitions(&after), transitions(&before) + 1);
    in_the_middle(stage, "taken", COUNT / 2).await?;

    // The first one wakes up with its work in its hands, while the second is at work.
    processes::go_on(process);
    let_end(stage, "taken", COUNT)?;
    complete(admin, "taken").await?;
    let path = format!("/api/v1/namespaces/belay-system/pods/{leader}/log");
    eventually_within(PATIENCE, "the first to notice", async || {
        let log = admin.get(&path).await?.text();
        Ok(log.contains("leads no more").then_some(()))
    })
    .await?;
    let end = lease(admin).await?;
    assert_eq!(end["holderIdentity"], after["holderIdentity"], "{end:#}");
    assert_eq!(transitions(&end), transitions(&after), "{end:#}");
    assert!(processes::is_alive(process), "it was not killed meanwhile");
    let taken = after["acquireTime"].as_str().context("a time")?;
    let (of_first, of_both) = (writes(cluster, Some(&leader)), writes(cluster, None));
    let before: Vec<_> = of_first.iter().filter(|(at, _)| **at < *taken).collect();
    let late: Vec<_> = of_first.iter().filter(|(at, _)| **at >= *taken).collect();
    assert!(!before.is_empty(), "it was at work");
    assert!(of_both.iter().any(|(at, _)| **at >= *taken), "the other is");
    assert!(late.is_empty(), "after {taken}: {late:?}");
    let children = children(admin, "taken").await?;
    assert_eq!(json!(children.len()), json!(COUNT), "one for each pod");
    Ok(())
}

/// The one that leads dies at work, and nobody starts it again before the other has taken over: it has
/// written nothing until then, and finds everything where it was left.
async fn the_leader_alone_is_killed(cluster: &Cluster, stage: &Stage) -> anyhow::Result<()> {
    let admin = stage.admin();
    let (leader, standby, before) = both_controllers(admin).await?;
    fan_out(stage, APP, "inherited", PARALLELISM).await?;
    in_the_middle(stage, "inherited", 0).await?;
    let kubelet = cluster.pid(Part::Kubelet).context("the kubelet runs")?;
    processes::stop(kubelet);
    processes::kill(process_of(cluster, "belay controller", Some(&leader))?);
    // What ends now nobody counts for a while.
    let_end(stage, "inherited", COUNT / 2)?;
    let after = eventually_within(PATIENCE, "the other to lead", async || {
        let now = lease(admin).await?;
        let holder = now["holderIdentity"].as_str().unwrap_or_default();
        Ok(holder.starts_with(&standby).then_some(now))
    })
    .await?;
    processes::go_on(kubelet);
    assert_eq!(transitions(&after), transitions(&before) + 1);
    in_the_middle(stage, "inherited", COUNT / 2).await?;
    let_end(stage, "inherited", COUNT)?;
    complete(admin, "inherited").await?;
    let led = before["acquireTime"].as_str().context("a time")?;
    let taken = after["acquireTime"].as_str().context("a time")?;
    let within = |pod: &str| {
        let written = writes(cluster, Some(pod)).into_iter();
        written.filter(|(at, _)| **at >= *led && **at < *taken)
    };
    assert!(within(&leader).count() > 0, "it was at work");
    let early: Vec<_> = within(&standby).collect();
    assert!(early.is_empty(), "before {taken}: {early:?}");
    let mut after = writes(cluster, Some(&standby)).into_iter();
    assert!(after.any(|(at, _)| *at >= *taken), "the other is");
    Ok(())
}

/// The agent halts beside a kubelet that goes on: what it had claimed is given up, and what it tells
/// when it goes on, too, comes too late.
async fn the_agent_falls_silent(cluster: &Cluster, stage: &Stage) -> anyhow::Result<()> {
    let admin = stage.admin();
    let pod = format!("{APP}-0");
    let asked = notification("silent", &pod, "silent").deadline(20);
    admin.post(NOTIFICATIONS, &asked.build()).await?.ok()?;
    begun(stage, "silent", 1).await?;
    let agent = process_of(cluster, "belay agent", None)?;
    processes::stop(agent);
    let path = format!("{NOTIFICATIONS}/silent");
    let given_up = eventually_within(PATIENCE, "the controller to give it up", async || {
        let object = admin.get(&path).await?.ok()?;
        Ok((object["status"]["state"] != "New").then_some(object))
    })
    .await?;
    let error = &given_up["status"]["error"];
    assert_eq!(error["type"], "Interrupted", "{given_up:#}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("it may have run"), "{given_up:#}");
    let_end(stage, "silent", COUNT)?;
    processes::go_on(agent);
    let uid = given_up["metadata"]["uid"].as_str().context("a UID")?;
    let audit = cluster.dir().join("node/var/lib/belay/agent-audit.jsonl");
    until_file(&audit.display().to_string(), |text| text.contains(uid)).await?;
    let again = notification("again", &pod, "silent").build();
    let again = admin.notify(&again).await?;
    told_truly(&again, code_of(&pod));
    let now = admin.get(&path).await?.ok()?;
    assert_eq!(now["status"], given_up["status"], "it comes too late");
    assert_eq!(runs(stage, "silent", &pod), 2, "once for each that asked");
    Ok(())
}

/// What the controllers' lease says.
async fn lease(admin: &Rest) -> anyhow::Result<Value> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/belay-system/leases/belay-controller";
    Ok(admin.get(path).await?.ok()?["spec"].clone())
}

fn transitions(lease: &Value) -> u64 {
    lease["leaseTransitions"].as_u64().unwrap_or(0)
}

/// The pods of the leading controller and of the other, when both are ready, and the lease.
async fn both_controllers(admin: &Rest) -> anyhow::Result<(String, String, Value)> {
    let component = "app.kubernetes.io%2Fcomponent%3Dcontroller";
    let path = format!("/api/v1/namespaces/belay-system/pods?labelSelector={component}");
    eventually_within(PATIENCE, "both controllers", async || {
        let list = admin.get(&path).await?.ok()?;
        let lease = lease(admin).await?;
        // An identity begins with the name of its pod.
        let holder = lease["holderIdentity"].as_str().unwrap_or_default();
        let ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
        let (leading, others): (Vec<&str>, Vec<&str>) = items(&list)
            .filter(ready)
            .map(name)
            .partition(|pod| holder.starts_with(pod));
        let ([leader], [other]) = (&leading[..], &others[..]) else {
            return Ok(None);
        };
        Ok(Some(((*leader).to_owned(), (*other).to_owned(), lease)))
    })
    .await
}

fn unfinished(children: &[Value]) -> usize {
    let open = |child: &&Value| matches!(child["status"]["state"].as_str(), None | Some("New"));
    children.iter().filter(open).count()
}

/// What a controller's pod, or any of them, has written besides its lease: when, and what.
fn writes(cluster: &Cluster, pod: Option<&str>) -> Vec<(String, String)> {
    let events = cluster.audit().into_iter().filter(|event| {
        let who = &event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0];
        event["objectRef"]["resource"] != "leases" && pod.is_none_or(|pod| *who == *pod)
    });
    events
        .map(|event| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let what = [text(&event["verb"]), text(&event["requestURI"])].join(" ");
            (text(&event["requestReceivedTimestamp"]), what)
        })
        .collect()
}

/// The process of a role, in the pod of this name if one is given.
fn process_of(cluster: &Cluster, command: &str, pod: Option<&str>) -> anyhow::Result<u32> {
    let all = match pod {
        Some(pod) => processes::with_environment(&format!("HOSTNAME={pod}")),
        None => processes::with_command(command),
    };
    let found = all
        .into_iter()
        .filter(|process| process.command.contains(command))
        .find(|process| cluster.contains(process.pid));
    Ok(found
        .with_context(|| format!("`{command}` does not run in {pod:?}"))?
        .pid)
}
