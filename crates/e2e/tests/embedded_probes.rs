//! Probes of containers on the whole program: with a stock kubectl, and over a `kill -9`.

use belay_testkit::{Instance, Kubectl, PODS, Rest, eventually, lines, pod, until_file};
use serde_json::{Value, json};

/// A probe that leaves a line at each try and asks for a file.
struct Asks {
    tries: String,
    gate: String,
}

impl Asks {
    fn new(instance: &Instance, name: &str) -> Self {
        Self {
            tries: instance.file(&format!("{name}-tries")),
            gate: instance.file(&format!("{name}-gate")),
        }
    }

    fn probe(&self, failure_threshold: u32) -> Value {
        let script = format!("echo tried >> {}; test -e {}", self.tries, self.gate);
        json!({
            "exec": { "command": ["sh", "-c", script] },
            "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": failure_threshold,
        })
    }

    fn open(&self) -> anyhow::Result<()> {
        Ok(std::fs::write(&self.gate, "")?)
    }

    fn shut(&self) -> anyhow::Result<()> {
        Ok(std::fs::remove_file(&self.gate)?)
    }

    async fn tried_again(&self, times: usize) -> anyhow::Result<()> {
        let wanted = lines(&self.tries) + times;
        until_file(&self.tries, |text| text.lines().count() >= wanted)
            .await
            .map(drop)
    }
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

async fn ready_pod(admin: &Rest, name: &str) -> anyhow::Result<Value> {
    eventually(&format!("pod {name} to be ready"), async || {
        let pod = admin.get(&format!("{PODS}/{name}")).await?.ok()?;
        Ok(is_ready(&pod).then_some(pod))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_waits_for_ready_and_shows_what_fails() -> anyhow::Result<()> {
    let Some((instance, kubectl)) = Kubectl::shared().await? else {
        return Ok(());
    };
    let asks = Asks::new(instance, "waits");
    let manifest = pod("waits")
        .idle("main")
        .container_field("readinessProbe", asks.probe(1))
        .build();
    kubectl.create(&manifest).await?;
    asks.tried_again(2).await?;
    let table = kubectl.ok(&["get", "pod", "waits"]).await?;
    assert!(table.contains("0/1"), "{table}");
    let ready = ["wait", "pod/waits", "--for=condition=Ready"];
    let early = kubectl
        .fails(&[&ready[..], &["--timeout=1s"]].concat())
        .await?;
    assert!(early.contains("timed out"), "{early}");
    eventually("the event", async || {
        let described = kubectl.ok(&["describe", "pod", "waits"]).await?;
        let told = described.contains("Unhealthy") && described.contains("Readiness probe failed");
        Ok(told.then_some(()))
    })
    .await?;
    asks.open()?;
    kubectl
        .ok(&[&ready[..], &["--timeout=120s"]].concat())
        .await?;
    let table = kubectl.ok(&["get", "pod", "waits"]).await?;
    assert!(table.contains("1/1"), "{table}");
    asks.shut()?;
    let gone = ["wait", "pod/waits", "--for=condition=Ready=false"];
    kubectl
        .ok(&[&gone[..], &["--timeout=120s"]].concat())
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_ready_stays_so_when_everything_is_killed_and_started_again() -> anyhow::Result<()>
{
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let (startup, asks) = (
        Asks::new(&instance, "startup"),
        Asks::new(&instance, "ready"),
    );
    startup.open()?;
    asks.open()?;
    let manifest = pod("p")
        .idle("main")
        .container_field("startupProbe", startup.probe(1))
        .container_field("readinessProbe", asks.probe(1000))
        .build();
    admin.run(&manifest).await?;
    let before = ready_pod(&admin, "p").await?;
    instance.kill9().await?;
    // From now on no try succeeds; what is ready can only have been ready before.
    startup.shut()?;
    asks.shut()?;
    instance.start_again().await?;
    asks.tried_again(3).await?;
    let admin = instance.admin().await?;
    let after = admin.get(&format!("{PODS}/p")).await?.ok()?;
    assert!(is_ready(&after), "{after:#}");
    let status = |pod: &Value| pod["status"]["containerStatuses"][0].clone();
    assert_eq!(status(&after)["started"], true);
    assert_eq!(
        status(&after)["containerID"],
        status(&before)["containerID"]
    );
    assert_eq!(lines(&startup.tries), 1, "it starts only once");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_was_under_way_at_a_kill_is_ended_and_probing_goes_on() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let (pids, gate) = (instance.file("pids"), instance.file("gate"));
    let script = format!("test -e {gate} && exit 0; echo $$ >> {pids}; exec sleep 1000");
    let probe = json!({
        "exec": { "command": ["sh", "-c", script] }, "periodSeconds": 1, "timeoutSeconds": 600,
    });
    let manifest = pod("p")
        .idle("main")
        .container_field("readinessProbe", probe)
        .build();
    admin.run(&manifest).await?;
    let text = until_file(&pids, |text| text.lines().count() == 1).await?;
    let pid: u32 = text.trim().parse()?;
    instance.kill9().await?;
    assert!(belay_testkit::processes::is_alive(pid));
    std::fs::write(&gate, "")?;
    instance.start_again().await?;
    let admin = instance.admin().await?;
    ready_pod(&admin, "p").await?;
    assert!(!belay_testkit::processes::is_alive(pid));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_a_probe_ends_over_a_kill_is_started_again_whatever_its_exit_code()
-> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let (heard, ill, gate) = (
        instance.file("heard"),
        instance.file("ill"),
        instance.file("gate"),
    );
    let main = format!("trap 'exit 0' TERM; echo up >> {heard}; while :; do sleep 0.05; done");
    let hook = format!("echo hook >> {heard}; while ! test -e {gate}; do sleep 0.05; done");
    let check = format!("test -e {ill} && exit 1; exit 0");
    let manifest = pod("p")
        .container("main", ["sh", "-c", &main])
        .container_field(
            "lifecycle",
            json!({ "preStop": { "exec": { "command": ["sh", "-c", hook] } } }),
        )
        .container_field(
            "livenessProbe",
            json!({
                "exec": { "command": ["sh", "-c", check] },
                "periodSeconds": 1, "timeoutSeconds": 30, "failureThreshold": 1,
            }),
        )
        .restart_policy("OnFailure")
        .grace(600)
        .build();
    admin.run(&manifest).await?;
    until_file(&heard, |text| text.contains("up")).await?;
    std::fs::write(&ill, "")?;
    until_file(&heard, |text| text.contains("hook")).await?;
    instance.kill9().await?;
    std::fs::remove_file(&ill)?;
    instance.start_again().await?;
    std::fs::write(&gate, "")?;
    let admin = instance.admin().await?;
    let restarted = eventually("the container to be up again", async || {
        let pod = admin.get(&format!("{PODS}/p")).await?.ok()?;
        let main = pod["status"]["containerStatuses"][0].clone();
        Ok((main["restartCount"] == 1 && is_ready(&pod)).then_some(main))
    })
    .await?;
    let last = &restarted["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 0, "{restarted:#}");
    until_file(&heard, |text| text == "up\nhook\nup\n").await?;
    Ok(())
}
