//! Pods whose handlers wait for the test, not for time, and leave on the node who they were: what a
//! status says is compared with that.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::Context as _;
use belay_testkit::{
    FANOUTS, NOTIFICATIONS, PODS, PodBuilder, Rest, Stage, eventually_within, exec, fanout, lines,
    pod, rest::name,
};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};

pub(crate) const PATIENCE: Duration = Duration::from_secs(900);
/// No notification of these tests ends by time.
pub(crate) const LONG: u32 = 3600;
/// How many handlers an agent runs at once.
pub(crate) const SLOTS: usize = 16;

/// One incarnation of a pod's container: the pod's UID, the container's ID, and a word that its
/// first process made up and that handlers see only in the same file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Incarnation {
    pub(crate) uid: String,
    pub(crate) container: String,
    pub(crate) word: String,
}

impl Incarnation {
    /// What a handler leaves that runs in it.
    fn line(&self, pod: &str) -> String {
        format!("{pod} {} {}", self.uid, self.word)
    }
}

/// A pod that notes each of its incarnations, and each time that one of its notifiers runs there. A
/// handler ends when its number, in the order in which handlers of this notifier began, may end; then
/// it prints who it is, and exits with `code`.
pub(crate) fn member(
    stage: &Stage,
    app: &str,
    name: &str,
    notifiers: &[&str],
    code: u8,
) -> PodBuilder {
    let born = stage.file(&format!("{name}.born"));
    let first = format!(
        "cat /proc/sys/kernel/random/uuid > /tmp/word; echo $POD_UID $(cat /tmp/word) >> {born}; \
         while :; do sleep 3600 & wait; done"
    );
    let uid =
        json!([{"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]);
    let mut built = pod(name)
        .label("app", app)
        .container("main", ["sh", "-c", &first])
        .container_field("env", uid);
    for notifier in notifiers {
        let ran = ran(stage, notifier, name);
        let (order, may_end) = (order(stage, notifier), may_end(stage, notifier));
        let script = format!(
            "echo $HOSTNAME $POD_UID $(cat /tmp/word) >> {ran}; echo $HOSTNAME >> {order}; \
             n=$(grep -nx $HOSTNAME {order} | head -n 1 | cut -d : -f 1); \
             while [ $n -gt $(cat {may_end}) ]; do sleep 0.2; done; \
             echo $HOSTNAME ends with {code}; exit {code}"
        );
        built = built.notifier(notifier, exec(["sh", "-c", &script]).timeout(LONG));
    }
    built
}

fn ran(stage: &Stage, notifier: &str, pod: &str) -> String {
    stage.file(&format!("{pod}.{notifier}"))
}

fn order(stage: &Stage, notifier: &str) -> String {
    stage.file(&format!("order.{notifier}"))
}

fn may_end(stage: &Stage, notifier: &str) -> String {
    stage.file(&format!("may-end.{notifier}"))
}

/// Lets the first so many handlers end; the others go on.
pub(crate) fn let_end(stage: &Stage, notifier: &str, count: usize) -> anyhow::Result<()> {
    let (file, new) = (may_end(stage, notifier), stage.file("may-end.new"));
    std::fs::write(&new, format!("{count}\n"))?;
    Ok(std::fs::rename(new, file)?)
}

/// How often the notifier has run in the pods of this name.
pub(crate) fn runs(stage: &Stage, notifier: &str, pod: &str) -> usize {
    lines(&ran(stage, notifier, pod))
}

/// Waits until handlers have begun in this many pods.
pub(crate) async fn begun(stage: &Stage, notifier: &str, wanted: usize) -> anyhow::Result<()> {
    eventually_within(PATIENCE, "handlers to begin", async || {
        let text = std::fs::read_to_string(order(stage, notifier)).unwrap_or_default();
        let pods: BTreeSet<&str> = text.lines().collect();
        Ok((pods.len() >= wanted).then_some(()))
    })
    .await
}

/// Creates them, and waits until all run.
pub(crate) async fn run_all(stage: &Stage, pods: Vec<PodBuilder>) -> anyhow::Result<()> {
    let names: Vec<String> = futures::stream::iter(pods.into_iter().map(|pod| stage.create(pod)))
        .buffer_unordered(8)
        .map_ok(|created| name(&created).to_owned())
        .try_collect()
        .await?;
    for name in names {
        settled(stage, &name).await?;
    }
    Ok(())
}

/// Waits until the pod runs and its first process has said who it is.
pub(crate) async fn settled(stage: &Stage, pod: &str) -> anyhow::Result<Incarnation> {
    eventually_within(PATIENCE, &format!("{pod} to run"), async || {
        let object = stage.admin().get(&format!("{PODS}/{pod}")).await?.ok()?;
        incarnation(stage, &object)
    })
    .await
}

/// Who runs in the pod now, if anybody does and has said so.
fn incarnation(stage: &Stage, pod: &Value) -> anyhow::Result<Option<Incarnation>> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let status = &pod["status"]["containerStatuses"][0];
    let uid = text(&pod["metadata"]["uid"]).context("a UID")?;
    let born = std::fs::read_to_string(stage.file(&format!("{}.born", name(pod))));
    let born = born.unwrap_or_default();
    // Predecessors of the same name have left their words too.
    let words: Vec<&str> = born
        .lines()
        .filter_map(|line| line.strip_prefix(&uid))
        .collect();
    let running = status["state"]["running"].is_object() && pod["status"]["phase"] == "Running";
    if !running || json!(words.len()) != json!(status["restartCount"].as_u64().unwrap_or(0) + 1) {
        return Ok(None);
    }
    Ok(Some(Incarnation {
        uid,
        container: text(&status["containerID"]).context("a container ID")?,
        word: words.last().copied().unwrap_or_default().trim().to_owned(),
    }))
}

/// Everybody of the app, by name.
pub(crate) async fn incarnations(
    stage: &Stage,
    app: &str,
) -> anyhow::Result<BTreeMap<String, Incarnation>> {
    let path = format!("{PODS}?labelSelector=app%3D{app}");
    let list = stage.admin().get(&path).await?.ok()?;
    items(&list)
        .map(|pod| {
            let who = incarnation(stage, pod)?;
            Ok((name(pod).to_owned(), who.context("a pod does not run")?))
        })
        .collect()
}

pub(crate) fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// Notifies everybody of the app who is there now.
pub(crate) async fn fan_out(
    stage: &Stage,
    app: &str,
    notifier: &str,
    parallelism: usize,
) -> anyhow::Result<()> {
    let object = fanout(notifier, ("app", app), notifier)
        .parallelism(i32::try_from(parallelism)?)
        .spec("deadlineSeconds", LONG);
    let reply = stage.admin().post(FANOUTS, &object.build()).await?;
    reply.ok().map(drop)
}

/// The children of the fan-out for this notifier.
pub(crate) async fn children(admin: &Rest, notifier: &str) -> anyhow::Result<Vec<Value>> {
    let list = admin.get(NOTIFICATIONS).await?.ok()?;
    let owner = |child: &&Value| child["metadata"]["ownerReferences"][0]["name"] == notifier;
    Ok(items(&list).filter(owner).cloned().collect())
}

pub(crate) fn pod_of(child: &Value) -> &str {
    child["spec"]["podName"].as_str().unwrap_or_default()
}

/// Waits until the fan-out is complete; returns it.
pub(crate) async fn complete(admin: &Rest, notifier: &str) -> anyhow::Result<Value> {
    let mut last = Value::Null;
    let done = eventually_within(PATIENCE, "the fan-out to complete", async || {
        last = admin.get(&format!("{FANOUTS}/{notifier}")).await?.ok()?;
        let done = last["status"]["completeTime"].is_string();
        Ok(done.then(|| last.clone()))
    })
    .await;
    done.with_context(|| format!("it last was {last:#}"))
}

/// The Notification counts what its children came to, and there is one for each of `pods`.
pub(crate) fn counted(done: &Value, children: &[Value], pods: usize) {
    let named: BTreeSet<&str> = children.iter().map(pod_of).collect();
    assert_eq!(children.len(), pods, "one for each pod");
    assert_eq!(named.len(), pods, "and for no pod two");
    let of = |state: &str| {
        let count = children
            .iter()
            .filter(|child| child["status"]["state"] == state)
            .count();
        json!(count)
    };
    let status = &done["status"];
    let count = |field: &str| json!(status[field].as_u64().unwrap_or(0));
    assert_eq!(count("succeededCount"), of("Succeeded"), "{done:#}");
    assert_eq!(count("failedCount"), of("Failed"), "{done:#}");
    assert_eq!(count("targetCount"), json!(pods), "{done:#}");
}

/// The status tells how its handler ended: with this code, after it had printed it.
pub(crate) fn told_truly(child: &Value, code: u8) {
    let (status, main) = (&child["status"], &child["status"]["containers"][0]);
    let state = if code == 0 { "Succeeded" } else { "Failed" };
    assert_eq!(status["state"], state, "{child:#}");
    assert_eq!(main["succeeded"], code == 0, "{child:#}");
    assert_eq!(main["exitCode"], code, "{child:#}");
    let printed = format!("{} ends with {code}\n", pod_of(child));
    assert_eq!(main["output"], printed, "{child:#}");
}

/// Its handler ran in this incarnation, as often as it says at most, and in no other; the status
/// names the same one.
pub(crate) fn delivered_to(stage: &Stage, notifier: &str, child: &Value, who: &Incarnation) {
    let pod = pod_of(child);
    let text = std::fs::read_to_string(ran(stage, notifier, pod)).unwrap_or_default();
    let status = &child["status"];
    let main = &status["containers"][0];
    assert!(!text.is_empty(), "it ran nowhere: {child:#}");
    for line in text.lines() {
        assert_eq!(line, who.line(pod), "it ran in another one: {child:#}");
    }
    let attempts = main["attempts"].as_u64().unwrap_or(0) as usize;
    assert!(text.lines().count() <= attempts, "{text} of {child:#}");
    assert_eq!(child["spec"]["podUID"], json!(who.uid), "{child:#}");
    assert_eq!(status["podUID"], json!(who.uid), "{child:#}");
    assert_eq!(main["containerID"], json!(who.container), "{child:#}");
}
