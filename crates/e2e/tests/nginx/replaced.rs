//! nginx under continuous load while its pods are replaced: `docs/guide/zero-downtime-nginx.md`,
//! with the manifest and the commands of that page, on three nodes of the runtime that the file
//! including this one gives.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use belay_testkit::{
    EVENTS, Instance, Kubectl, PODS, Rest, eventually, reaper::Reaper, rest::name, skip::skip,
};
use jiff::Timestamp;
use serde_json::Value;

use super::balancer::Balancer;
use super::load::{Failure, Load, Tally};

const GUIDE: &str = include_str!("../../../../docs/guide/zero-downtime-nginx.md");
const NODES: usize = 3;

/// The manifest of the guide.
fn manifest() -> anyhow::Result<&'static str> {
    let (_, rest) = GUIDE.split_once("```yaml\n").context("no manifest")?;
    let (manifest, rest) = rest.split_once("```\n").context("no end")?;
    anyhow::ensure!(!rest.contains("```yaml"), "which of several?");
    Ok(manifest)
}

/// The commands of the guide that begin so, without `kubectl`.
fn command(beginning: &str) -> anyhow::Result<Vec<&'static str>> {
    let mut lines = GUIDE
        .lines()
        .filter_map(|line| line.strip_prefix("$ kubectl "));
    let line = lines.find(|line| line.starts_with(beginning));
    let words = line.with_context(|| format!("no command {beginning}"))?;
    Ok(words.split_whitespace().collect())
}

/// A server with three nodes, each with a loopback address of its own.
struct World {
    /// Ends with this value.
    _instance: Instance,
    kubectl: Kubectl,
    admin: Rest,
    /// They remove what the manifest keeps nginx's files in.
    _reapers: Vec<Reaper>,
}

impl World {
    /// `None` after having said that the test is skipped.
    async fn new() -> anyhow::Result<Option<Self>> {
        let places = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"];
        if !places.iter().any(|path| PathBuf::from(path).exists()) {
            skip("nginx is missing; install nginx");
            return Ok(None);
        }
        let Some(server) = super::server().await? else {
            return Ok(None);
        };
        let mut instance = server.start().await?;
        let Some(kubectl) = Kubectl::of(&instance) else {
            return Ok(None);
        };
        // The port is the manifest's; the addresses are nobody else's.
        let [.., high, low] = std::process::id().to_be_bytes();
        static NEXT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
        let mut reapers = Vec::new();
        for _ in 0..NODES {
            let host = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let address = Ipv4Addr::new(127, high.max(1), low, host);
            let listen = format!("{address}:0");
            let arguments = ["--listen", &listen];
            // What is on a runtime belongs to the node whose name is on it.
            let node = format!("n{host}");
            instance
                .start_agent_with_args(&node, &arguments, &[])
                .await?;
            let files = PathBuf::from(format!("/tmp/web-{address}"));
            reapers.push(Reaper::watch(&files)?);
        }
        let admin = instance.admin().await?;
        eventually("three nodes", async || {
            let list = admin.get("/api/v1/nodes").await?.ok()?;
            let nodes = list["items"].as_array().map_or(0, Vec::len);
            Ok((nodes == NODES).then_some(()))
        })
        .await?;
        Ok(Some(Self {
            _instance: instance,
            kubectl,
            admin,
            _reapers: reapers,
        }))
    }

    async fn apply(&self, text: &str) -> anyhow::Result<()> {
        let said = self.kubectl.with_text(&["apply", "-f", "-"], text).await?;
        anyhow::ensure!(said.success, "{}{}", said.stdout, said.stderr);
        self.rolled_out().await
    }

    async fn rolled_out(&self) -> anyhow::Result<()> {
        let mut words = command("rollout status")?;
        words.push("--timeout=150s");
        self.kubectl.ok(&words).await.map(drop)
    }

    /// A balancer that knows all pods, and clients that keep all of them busy.
    async fn under_load(&self) -> anyhow::Result<(Balancer, Load)> {
        let balancer = Balancer::start(self.admin.clone()).await?;
        eventually("three endpoints", async || {
            Ok((balancer.size() == NODES).then_some(()))
        })
        .await?;
        let load = Load::start(balancer.address);
        eventually("responses under way everywhere", async || {
            Ok((balancer.least_active() >= 2).then_some(()))
        })
        .await?;
        Ok((balancer, load))
    }

    /// The guide's change of the template, or another one of its kind.
    async fn change(&self, version: &str) -> anyhow::Result<()> {
        let mut words = command("set env")?;
        let set = words.pop().context("nothing is set")?;
        let (name, _) = set.split_once('=').context("no value")?;
        let set = format!("{name}={version}");
        words.push(&set);
        self.kubectl.ok(&words).await.map(drop)
    }

    async fn pods(&self) -> anyhow::Result<Vec<Value>> {
        let list = self.admin.get(PODS).await?.ok()?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    async fn events(&self) -> anyhow::Result<Vec<Value>> {
        let list = self.admin.get(EVENTS).await?.ok()?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Has all pods replaced under load.
    async fn replace_all(&self, version: &str) -> anyhow::Result<Replaced> {
        let gone = uids(&self.pods().await?);
        let (balancer, load) = self.under_load().await?;
        self.change(version).await?;
        self.rolled_out().await?;
        let new = uids(&self.pods().await?);
        assert_eq!(new.len(), NODES);
        assert!(new.iter().all(|uid| !gone.contains(uid)), "all are new");
        eventually("all successors to get requests", async || {
            Ok((balancer.size() == NODES && balancer.least_active() > 0).then_some(()))
        })
        .await?;
        let tally = load.end().await;
        let was_late = was_late(&balancer, &gone, &self.events().await?);
        Ok(Replaced {
            gone,
            tally,
            was_late,
        })
    }

    /// nginx was content with its configuration, and runs since its pod does.
    async fn nginx_is_content(&self) -> anyhow::Result<()> {
        for pod in self.pods().await? {
            let log = self.admin.logs(name(&pod), "nginx").await?;
            assert!(!log.contains("emerg"), "{log}");
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            assert_eq!(*restarts, 0, "{pod:#}\n{log}");
        }
        Ok(())
    }
}

/// What came of a replacement of all pods.
struct Replaced {
    /// UIDs of those who were there before.
    gone: Vec<String>,
    tally: Arc<Tally>,
    /// A pod got requests after its stop signal: this machine stood still for longer than its sleep.
    was_late: bool,
}

fn was_late(balancer: &Balancer, gone: &[String], events: &[Value]) -> bool {
    gone.iter().any(|uid| {
        let sent = events.iter().find(|event| {
            event["reason"] == "StopSignalSent" && event["involvedObject"]["uid"] == uid.as_str()
        });
        // It has whole seconds, and is some of them later where nothing is wrong.
        let sent = sent.and_then(|event| event["firstTimestamp"].as_str()?.parse().ok());
        let in_time = balancer.removed(uid).zip(sent);
        in_time.is_none_or(|(removed, sent): (Timestamp, Timestamp)| removed >= sent)
    })
}

fn uids(pods: &[Value]) -> Vec<String> {
    let uids = pods
        .iter()
        .filter_map(|pod| pod["metadata"]["uid"].as_str());
    uids.map(str::to_owned).collect()
}

/// "nginx ... be able to run with zero downtime" (KEP-3960, story 2); "this can result in nginx
/// dropping requests" (KEP-4960, story 1).
#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_three_pods_are_replaced() -> anyhow::Result<()> {
    let Some(world) = World::new().await? else {
        return Ok(());
    };
    world.apply(manifest()?).await?;
    let mut versions = ["two", "three", "four"].into_iter();
    let Replaced { gone, tally, .. } = loop {
        let version = versions.next().context("it was late every time")?;
        let replaced = world.replace_all(version).await?;
        if replaced.tally.failures().is_empty() || !replaced.was_late {
            break replaced;
        }
        // Requests came when the sleep was over, which bridges less than that: nginx had no part in it.
        println!("the balancer was late, so once more: {:?}", replaced.tally);
    };
    assert_eq!(tally.failures(), [], "of {tally:?}");
    let served = |tally: &Tally| {
        use std::sync::atomic::Ordering::Relaxed;
        (tally.fast.load(Relaxed), tally.slow.load(Relaxed))
    };
    let (fast, slow) = served(&tally);
    assert!(fast > 0 && slow > 0, "{tally:?}");
    // All three were asked as the spec says, and none had to be killed.
    let events = world.events().await?;
    let messages = |reason: &str| -> Vec<&str> {
        let about = |event: &&Value| {
            let uid = event["involvedObject"]["uid"].as_str().unwrap_or_default();
            event["reason"] == reason && gone.iter().any(|pod| pod == uid)
        };
        let of = events.iter().filter(about);
        of.filter_map(|event| event["message"].as_str()).collect()
    };
    let sent = messages("StopSignalSent");
    assert_eq!(sent.len(), NODES, "{sent:?}");
    assert!(
        sent.iter()
            .all(|text| text.starts_with("Sent SIGQUIT to container nginx"))
    );
    let killed = messages("Killing");
    assert!(
        killed
            .iter()
            .all(|text| *text == "Stopping container nginx"),
        "{killed:?}"
    );
    Ok(())
}

/// What is missing from the guide's manifest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Without {
    Both,
    Sleep,
    StopSignal,
}

impl Without {
    pub(crate) const ALL: [Without; 3] = [Without::Both, Without::Sleep, Without::StopSignal];

    fn manifest(self) -> anyhow::Result<String> {
        let lines: Vec<&str> = manifest()?.lines().collect();
        let is_signal = |line: &str| line.trim_start().starts_with("stopSignal:");
        let of_sleep = ["lifecycle:", "preStop:", "sleep:", "seconds:"];
        let is_sleep = |line: &str| {
            of_sleep
                .iter()
                .any(|field| line.trim_start().starts_with(field))
        };
        let missing = |line: &str| match self {
            Without::Both => is_signal(line) || is_sleep(line),
            Without::Sleep => is_sleep(line),
            Without::StopSignal => is_signal(line),
        };
        let kept: Vec<&str> = lines
            .iter()
            .copied()
            .filter(|line| !missing(line))
            .collect();
        let left_out = if self == Without::StopSignal { 1 } else { 4 };
        anyhow::ensure!(lines.len() - kept.len() >= left_out, "{kept:#?}");
        Ok(kept.join("\n") + "\n")
    }
}

/// The same without the fields shows why they exist.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_fields_requests_fail_as_the_guide_says() -> anyhow::Result<()> {
    let Some(world) = World::new().await? else {
        return Ok(());
    };
    let refused = |(_, failure): &(String, Failure)| match failure {
        Failure::Refused(why) => why.contains("cannot connect"),
        Failure::Cut => false,
    };
    let cut = |(path, failure): &(String, Failure)| path == "/report" && *failure == Failure::Cut;
    for without in super::WITHOUT {
        world.apply(&without.manifest()?).await?;
        let (_balancer, load) = world.under_load().await?;
        world.change(&format!("{without:?}")).await?;
        let what = format!("what goes wrong without {without:?}");
        eventually(&what, async || {
            let failures = load.tally.failures();
            let was_refused = failures.iter().any(refused);
            let was_cut = failures.iter().any(cut);
            Ok(match *without {
                Without::Both => was_refused && was_cut,
                Without::Sleep => was_refused,
                Without::StopSignal => was_cut,
            }
            .then_some(()))
        })
        .await?;
        drop(load);
        world.rolled_out().await?;
        world.nginx_is_content().await?;
    }
    Ok(())
}
