//! Notifications on a real Kubernetes with Belay installed, beside `kubectl exec` and the raw task
//! calls on a containerd of the same version.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use belay_api::signal::Signal;
use belay_testkit::{CONFIG_MAPS, Cluster, Kubectl, Rest, Stage, rest::config_map};

use crate::{
    burst::{AT_ONCE, Load},
    clients::{CLIENTS, Clients},
    delivery::{Ends, POD, two_writes, workload},
    raw,
    samples::{Samples, ms},
    scaled,
};

const TITLE: &str = "## On a real Kubernetes\n\n";
const ROUNDS: usize = 200;
const COUNT: usize = 1_000;
/// Its creation, the assignment, the claim, the result.
const WRITES_EACH: usize = 4;

pub(crate) async fn measure() -> anyhow::Result<String> {
    let Some(cluster) = Cluster::with_belay().await? else {
        return Ok(format!(
            "{TITLE}Not measured: there was no Kubernetes (`cargo xtask bench` builds one).\n"
        ));
    };
    let stage = Stage::of(&cluster).await?;
    let admin = stage.admin();
    stage.run(workload()).await?;
    let container = Arc::new(raw::Container::on_containerd().await?);
    let version = admin.get("/version").await?.ok()?;
    let version = version["gitVersion"].as_str().unwrap_or("unknown");
    let one = one_by_one(admin, &cluster.kubectl(), &container).await?;
    let many = at_once(&cluster, admin, &container).await?;
    container.stop().await?;
    Ok(format!(
        "{TITLE}Kubernetes {version} with etcd and containerd, one node, Belay installed from its \
         manifests; all of it on this machine's cores.\n\n{one}\n{many}"
    ))
}

/// Created to Succeeded, one notification after the other.
async fn one_by_one(
    admin: &Rest,
    kubectl: &Kubectl,
    container: &raw::Container,
) -> anyhow::Result<String> {
    let ends = Ends::watch(admin).await?;
    let hup: Signal = "SIGHUP".parse().context("SIGHUP is a signal")?;
    admin
        .post(CONFIG_MAPS, &config_map("pairs", "value", "0"))
        .await?
        .ok()?;
    // The first one fills kubectl's cache.
    kubectl_exec(kubectl).await?;
    let (mut signals, mut execs) = (Samples::default(), Samples::default());
    let (mut raw_signals, mut raw_execs) = (Samples::default(), Samples::default());
    let (mut pairs, mut kubectls) = (Samples::default(), Samples::default());
    // All six in turn, so that a noisy moment hits all of them alike.
    for round in 0..scaled(ROUNDS)? {
        signals.push(ends.notify(admin, &format!("s{round}"), "signal").await?);
        raw_signals.push(container.signal(hup).await?);
        execs.push(ends.notify(admin, &format!("e{round}"), "exec").await?);
        raw_execs.push(container.exec(&["true"]).await?);
        kubectls.push(kubectl_exec(kubectl).await?);
        pairs.push(two_writes(admin, round).await?);
    }
    let row = |name: &str, measured: &Samples, raw: &Samples, allowance: u64| {
        let target = pairs.p50() + raw.p50() + Duration::from_millis(allowance);
        let with_third = target + pairs.p50() / 2;
        let met = |target| {
            if measured.p50() <= target {
                "yes"
            } else {
                "no"
            }
        };
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} | {} |\n",
            ms(measured.p50()),
            ms(measured.p99()),
            ms(raw.p50()),
            ms(target),
            met(target),
            ms(with_third),
            met(with_third),
        )
    };
    Ok(format!(
        "One notification: from the answer to the create request until a watcher holds \
         `Succeeded`; {} rounds of each, one after the other. The raw act is the same call of \
         containerd's task service by the same code, without server and agent, on a containerd of \
         the same version beside the cluster. Two durable writes through the same API server, in \
         the same rounds: p50 {}, p99 {}. The target is those two writes, the raw act, and 2 ms \
         (signal) or 3 ms (exec). On a stock cluster the controller assigns a notification to its \
         node with one more durable write, which the target does not allow for; the last two \
         columns do.\n\n\
         | what | p50 | p99 | raw act p50 | target p50 | met | target with the assignment | met \
         |\n|---|---|---|---|---|---|---|---|\n{}{}\
         | `kubectl exec POD -- true` | {} | {} | | | | | |\n",
        signals.len(),
        ms(pairs.p50()),
        ms(pairs.p99()),
        row("signal", &signals, &raw_signals, 2),
        row("exec `true`", &execs, &raw_execs, 3),
        ms(kubectls.p50()),
        ms(kubectls.p99()),
    ))
}

/// What a user waits for, the start of kubectl included.
async fn kubectl_exec(kubectl: &Kubectl) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    kubectl.ok(&["exec", POD, "--", "true"]).await?;
    Ok(begin.elapsed())
}

/// A thousand of them from many clients, beside the same execs without Belay.
async fn at_once(
    cluster: &Cluster,
    admin: &Rest,
    container: &Arc<raw::Container>,
) -> anyhow::Result<String> {
    let count = scaled(COUNT)?;
    let clients = Clients::connect(&cluster.kubeconfig()).await?;
    let raw = container.burst(&["true"], count, AT_ONCE).await?;
    let alone = clients.writes_alone("alone", count * WRITES_EACH).await?;
    let load = Load::put(admin, &clients, POD, "exec", count).await?;
    let ratio = |to: Duration| load.took.as_secs_f64() / to.as_secs_f64();
    Ok(format!(
        "{count} PodNotifications with exec `true` at once for that node, created by {CLIENTS} \
         clients, from the first request to the last final state (*notified*), beside the same \
         execs run directly on containerd (*raw*), {AT_ONCE} at a time in both cases, and beside \
         the {} durable writes that belong to them, alone. Target: at most 1.15 times the raw work; \
         two status writes each, and on a stock cluster the assignment as a third; no \
         failure.\n\n\
         | raw | its writes alone | notified | to raw | met | to raw and writes | status writes \
         each | failed |\n|---|---|---|---|---|---|---|---|\n\
         | {:.2} s | {:.2} s | {:.2} s | {:.2} | {} | {:.2} | {:.2} | {} |\n",
        count * WRITES_EACH,
        raw.as_secs_f64(),
        alone.as_secs_f64(),
        load.took.as_secs_f64(),
        ratio(raw),
        if ratio(raw) <= 1.15 { "yes" } else { "no" },
        ratio(raw + alone),
        load.status_writes as f64 / count as f64,
        load.failed,
    ))
}
