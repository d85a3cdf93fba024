//! Feature gates of server and agent, set separately: every row of `version_skew.json` that applies,
//! as the design reads it, on a real server with two real agents, one of which has its gates off.
//!
//! The server is started with its gates on, then off, then on again; what was created before goes on
//! through all of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::{Instance, PODS, PodBuilder, Stage, pod};
use serde_json::{Value, json};

use belay_testkit::source::has_test;

use belay_testkit::ends::{LONG, delete, gone, pre_stop, reports, run, sent, told};

const OFF: &str = "--feature-gates=ContainerStopSignals=false,PodLifecycleSleepAction=false";
/// Nodes, named after the gates of their agents.
const GATES_ON: &str = "gates-on";
const GATES_OFF: &str = "gates-off";

/// Rows that are tried here.
const HERE: [&str; 7] = [
    "skew-both-off",
    "skew-api-on-kubelet-off",
    "skew-api-off-kubelet-on",
    "skew-gate-off-after-use",
    "skew-kep-vs-code-gate-off",
    "skew-sleep-api-on-kubelet-old",
    "skew-sleep-gate-off-then-on",
];

/// Rows about a container runtime, and the tests on real ones that try them.
const ELSEWHERE: [(&str, &str, &str); 3] = [
    (
        "skew-old-runtime",
        "crates/e2e/tests/promises/seed_002.rs",
        "kep_4960_e2e_containers_are_killed_with_the_right_stop_signal",
    ),
    (
        "skew-new-runtime-old-kubelet",
        "crates/e2e/tests/promises/images.rs",
        "kep_4960_e2e_an_agent_with_its_gate_off_leaves_it_to_the_image",
    ),
    (
        "skew-cri-enum-rename",
        "crates/belay-api/src/signal.rs",
        "the_set_is_the_65_names_with_the_cri_and_linux_numbers_of_upstream",
    ),
];

/// Rows that do not apply, and why.
const NOT_OURS: [(&str, &str); 1] = [(
    "skew-static-pod",
    "an agent runs the pods that its server binds to it; there are no static pods and no mirrors",
)];

fn file() -> anyhow::Result<BTreeMap<String, Value>> {
    let file = include_str!("../../belay-api/tests/data/version_skew.json");
    let file: Value = serde_json::from_str(file)?;
    let cases = file["cases"].as_array().context("no cases")?;
    let row = |case: &Value| Some((case["id"].as_str()?.to_owned(), case.clone()));
    Ok(cases.iter().filter_map(row).collect())
}

#[test]
fn every_row_is_tried_somewhere_or_does_not_apply_for_a_reason() -> anyhow::Result<()> {
    let file = file()?;
    let elsewhere = ELSEWHERE.iter().map(|(id, ..)| *id);
    let not_ours = NOT_OURS.iter().map(|(id, _)| *id);
    let listed: Vec<&str> = HERE.into_iter().chain(elsewhere).chain(not_ours).collect();
    let once: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(once.len(), listed.len(), "a row is listed twice");
    let rows: BTreeSet<&str> = file.keys().map(String::as_str).collect();
    assert_eq!(once, rows);
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (id, path, test) in ELSEWHERE {
        let text = std::fs::read_to_string(root.join(path)).context(path)?;
        assert!(has_test(&text, test), "{id}: {path} has no test {test}");
    }
    Ok(())
}

/// The rows that are tried here; each is taken once.
struct Rows {
    file: BTreeMap<String, Value>,
    taken: RefCell<BTreeSet<String>>,
}

impl Rows {
    fn take(&self, id: &str) -> anyhow::Result<&Value> {
        anyhow::ensure!(self.taken.borrow_mut().insert(id.to_owned()), "{id} twice");
        self.file.get(id).with_context(|| id.to_owned())
    }
}

/// The server and its two nodes, with what runs there.
struct World {
    instance: Instance,
    rows: Rows,
}

impl World {
    async fn stage(&self) -> anyhow::Result<Stage> {
        Stage::on(&self.instance).await
    }

    /// A pod on a node, which reports its signal in a file of its own name.
    fn pod(&self, name: &str, node: &str) -> PodBuilder {
        let script = reports(&self.instance.file(name), &["TERM", "USR1"]);
        pod(name)
            .container("main", ["sh", "-c", &script])
            .grace(LONG)
            .node(node)
    }

    fn with_signal(&self, name: &str, node: &str, signal: &Value) -> PodBuilder {
        self.pod(name, node)
            .container_field("stopSignal", signal.clone())
    }

    fn with_sleep(&self, name: &str, node: &str, seconds: i64) -> PodBuilder {
        self.pod(name, node)
            .container_field("lifecycle", pre_stop(seconds))
    }

    async fn run(&self, name: &str, manifest: PodBuilder) -> anyhow::Result<Value> {
        run(&self.stage().await?, manifest, &self.instance.file(name)).await
    }

    /// Deletes the pod; how long it took until the signal, and what the process heard.
    async fn end(&self, name: &str) -> anyhow::Result<(Duration, String)> {
        let stage = self.stage().await?;
        delete(&stage, name).await?;
        gone(&stage, name).await?;
        let sent = sent(&stage, name, "main").await?;
        let failed = told(&stage, name, "FailedPreStopHook").await?;
        assert!(failed.is_empty(), "{name}: {failed:?}");
        let heard = std::fs::read_to_string(self.instance.file(name))?;
        let heard = heard.strip_prefix("up\n").unwrap_or_default();
        Ok((sent.after, heard.trim_end().to_owned()))
    }

    async fn restart_server(&mut self, arguments: &[&str]) -> anyhow::Result<()> {
        self.instance.stop().await?;
        self.instance.start_again_with_args(arguments).await
    }
}

fn stored(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]["stopSignal"]
}

fn shown(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["stopSignal"]
}

fn kept_sleep(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
}

/// The server knows both features, and one of the agents knows neither.
async fn server_on(world: &World) -> anyhow::Result<()> {
    let row = world.rows.take("skew-api-on-kubelet-off")?;
    let signal = &row["input"]["create"]["stopSignal"];
    let made = world.with_signal("on-off", GATES_OFF, signal);
    let running = world.run("on-off", made).await?;
    assert_eq!(stored(&running), &row["expect"]["storedStopSignal"]);
    assert_eq!(shown(&running), &row["expect"]["status.stopSignal"]);
    let (_, heard) = world.end("on-off").await?;
    assert_eq!(heard, "TERM", "the agent ignores it");

    // Upstream's old kubelet fails; an agent with the gate off skips the sleep, and that is no error.
    let row = world.rows.take("skew-sleep-api-on-kubelet-old")?;
    assert_eq!(row["input"]["preStop"]["sleep"]["seconds"], 5);
    let made = world.with_sleep("sleep-on-off", GATES_OFF, LONG.into());
    let running = world.run("sleep-on-off", made).await?;
    assert_eq!(kept_sleep(&running), LONG);
    let (after, heard) = world.end("sleep-on-off").await?;
    assert!(after < Duration::from_secs(LONG.into()), "{after:?}");
    assert_eq!(heard, "TERM");
    Ok(())
}

/// What is there when the server loses its gates.
async fn created_before(world: &World) -> anyhow::Result<()> {
    let usr1 = json!("SIGUSR1");
    for name in ["signal-kept", "signal-kept-2"] {
        let made = world.with_signal(name, GATES_ON, &usr1);
        let running = world.run(name, made).await?;
        assert_eq!(shown(&running), "SIGUSR1", "with both gates on");
    }
    let long = i64::from(LONG);
    for (name, seconds) in [
        ("sleep-kept", 1),
        ("sleep-kept-2", 1),
        ("sleep-kept-3", long),
    ] {
        let made = world.with_sleep(name, GATES_ON, seconds);
        world.run(name, made).await?;
    }
    Ok(())
}

async fn server_off(world: &World) -> anyhow::Result<()> {
    let stage = world.stage().await?;
    let admin = stage.admin();
    // Upstream drops the field and succeeds; the seed, and so this server, refuses the pod.
    let conflict = world.rows.take("skew-kep-vs-code-gate-off")?;
    let seed = "validation fails / workload invalid";
    assert_eq!(conflict["expect"]["kep_text"], seed);
    for (id, node, effective) in [
        ("skew-both-off", GATES_OFF, Value::Null),
        ("skew-api-off-kubelet-on", GATES_ON, json!("SIGTERM")),
    ] {
        let row = world.rows.take(id)?;
        let signal = &row["input"]["create"]["stopSignal"];
        let refused = world.with_signal(id, node, signal).build();
        let refused = admin.post(PODS, &refused).await?.refused(422)?;
        let cause = &refused["details"]["causes"][0];
        assert_eq!(cause["field"], "spec.containers[0].stopSignal", "{id}");
        // "kubelet functions as if no StopSignal has been set for any container."
        let running = world.run(id, world.pod(id, node)).await?;
        assert_eq!(stored(&running), &row["expect"]["storedStopSignal"], "{id}");
        assert_eq!(shown(&running), &effective, "{id}");
        let (_, heard) = world.end(id).await?;
        assert_eq!(heard, "TERM", "{id}");
    }

    let row = world.rows.take("skew-gate-off-after-use")?;
    assert_eq!(row["input"]["update"], "metadata only");
    let label = json!({ "metadata": { "labels": { "touched": "yes" } } });
    let path = format!("{PODS}/signal-kept");
    let kept = admin.merge(&path, &label).await?.ok()?;
    assert_eq!(stored(&kept), &row["expect"]["storedStopSignal"]);
    let (_, heard) = world.end("signal-kept").await?;
    assert_eq!(heard, "USR1", "and is stopped as it was to be");

    let row = world.rows.take("skew-sleep-gate-off-then-on")?;
    assert_eq!(row["expect"]["existingPodKeepsHook"], true);
    assert_eq!(row["expect"]["newPodWhileOff"], "field dropped");
    let path = format!("{PODS}/sleep-kept");
    let kept = admin.merge(&path, &label).await?.ok()?;
    assert_eq!(kept_sleep(&kept), 1);
    // "In this case, the created pods's sleepAction will take effect".
    let (after, heard) = world.end("sleep-kept").await?;
    assert!(after >= Duration::from_secs(1), "{after:?}");
    assert_eq!(heard, "TERM");
    let dropped = world.with_sleep("sleep-dropped", GATES_ON, LONG.into());
    let running = world.run("sleep-dropped", dropped).await?;
    assert_eq!(running["spec"]["containers"][0]["lifecycle"], Value::Null);
    let (after, _) = world.end("sleep-dropped").await?;
    assert!(after < Duration::from_secs(LONG.into()), "{after:?}");
    Ok(())
}

/// "What happens if we reenable the feature if it was previously rolled back?"
async fn server_on_again(world: &World) -> anyhow::Result<()> {
    // "Previously created pod with sleep hook set will execute it before terminating."
    let (after, _) = world.end("sleep-kept-2").await?;
    assert!(after >= Duration::from_secs(1), "{after:?}");
    // "New pods with sleep action in prestop hook can be created." "You'll be able to set the
    // StopSignal field in your Container spec again."
    let made = world
        .with_sleep("again", GATES_ON, 1)
        .container_field("stopSignal", "SIGUSR1");
    let running = world.run("again", made).await?;
    assert_eq!(
        (stored(&running), shown(&running)),
        (&json!("SIGUSR1"), &json!("SIGUSR1"))
    );
    let (after, heard) = world.end("again").await?;
    assert!(after >= Duration::from_secs(1), "{after:?}");
    assert_eq!(heard, "USR1");
    Ok(())
}

/// The seed's manual steps 5 and 6: the agent is restarted with its gates off, and what was created
/// before is deleted.
async fn agent_off(world: &mut World) -> anyhow::Result<()> {
    world.instance.kill9_agent(GATES_ON).await?;
    let instance = &mut world.instance;
    instance
        .start_agent_with_args(GATES_ON, &[OFF], &[])
        .await?;
    let stage = world.stage().await?;
    let path = format!("{PODS}/signal-kept-2");
    let unset = |pod: &Value| shown(pod).is_null().then(|| stored(pod).clone());
    let what = "an effective signal that is not shown";
    let kept = stage.admin().until(&path, what, unset).await?;
    assert_eq!(kept, "SIGUSR1", "what is declared stays");
    let (_, heard) = world.end("signal-kept-2").await?;
    assert_eq!(heard, "TERM");
    // One file has what all agents have said since the beginning.
    let said = world.instance.log().len();
    let (after, heard) = world.end("sleep-kept-3").await?;
    assert!(after < Duration::from_secs(LONG.into()), "{after:?}");
    assert_eq!(heard, "TERM");
    let log = world.instance.log();
    let record = log.get(said..).context("a log that grows")?;
    assert!(
        record.contains("gateOff"),
        "its record says that it was skipped: {record}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gates_of_server_and_agent_work_by_themselves() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    instance.start_agent(GATES_ON, &[]).await?;
    instance
        .start_agent_with_args(GATES_OFF, &[OFF], &[])
        .await?;
    let rows = Rows {
        file: file()?,
        taken: RefCell::default(),
    };
    let mut world = World { instance, rows };
    server_on(&world).await?;
    created_before(&world).await?;
    world.restart_server(&[OFF]).await?;
    server_off(&world).await?;
    world.restart_server(&[]).await?;
    server_on_again(&world).await?;
    agent_off(&mut world).await?;
    let taken = world.rows.taken.take();
    assert_eq!(taken, HERE.map(str::to_owned).into_iter().collect());
    Ok(())
}
