//! `belay controller` as processes of their own, against a real instance.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Stdio;

use belay_testkit::{Instance, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/belay-system/leases/belay-controller";

struct Controller {
    child: Child,
    /// Where its metrics are.
    address: String,
}

impl Controller {
    async fn start(instance: &Instance, identity: &str, words: &[&str]) -> anyhow::Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_belay"))
            .arg("controller")
            .arg("--kubeconfig")
            .arg(instance.kubeconfig())
            .args(["--identity", identity])
            .args(words)
            .env("BELAY_TEST_DIR", instance.dir())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(log(instance.dir(), identity))?)
            .kill_on_drop(true)
            .spawn()?;
        let stdout = child.stdout.take().unwrap();
        let line = BufReader::new(stdout).lines().next_line().await?;
        let line = line.unwrap_or_else(|| {
            let told = std::fs::read_to_string(log(instance.dir(), identity));
            panic!("it ended: {told:?}");
        });
        let address = line
            .split("http://")
            .nth(1)
            .and_then(|rest| rest.strip_suffix("/metrics"))
            .unwrap_or_else(|| panic!("{line}"));
        Ok(Controller {
            address: address.to_owned(),
            child,
        })
    }

    async fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    async fn leads(&self) -> anyhow::Result<bool> {
        let text = self.get("/metrics").await?;
        assert!(text.contains("belay_is_leader "), "{text}");
        Ok(text.contains("belay_is_leader 1"))
    }

    async fn until_leading(&self) -> anyhow::Result<()> {
        eventually("it to lead", async || Ok(self.leads().await?.then_some(()))).await
    }

    async fn terminate(mut self) -> anyhow::Result<i32> {
        let pid = self.child.id().unwrap().to_string();
        Command::new("kill").arg(pid).status().await?;
        Ok(self.child.wait().await?.code().unwrap_or(-1))
    }
}

fn log(dir: &Path, identity: &str) -> std::path::PathBuf {
    dir.join(format!("controller-{identity}.log"))
}

async fn instance() -> anyhow::Result<Instance> {
    let instance = Instance::server().start().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
                           "metadata": {"name": "belay-system"}});
    let admin = instance.admin().await?;
    admin.post("/api/v1/namespaces", &namespace).await?.ok()?;
    Ok(instance)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_one_acts_and_the_other_takes_over_when_it_is_killed() -> anyhow::Result<()> {
    let instance = instance().await?;
    let admin = instance.admin().await?;
    let mut first = Controller::start(&instance, "first", &[]).await?;
    first.until_leading().await?;
    let second = Controller::start(&instance, "second", &[]).await?;
    assert!(second.get("/healthz").await?.starts_with("HTTP/1.1 200"));
    let lease = async || admin.get(LEASE).await?.ok();
    let holds = |lease: &Value, name: &str| {
        let holder = lease["spec"]["holderIdentity"].as_str();
        // Another process of the same name would be somebody else.
        let unique = holder.and_then(|holder| holder.strip_prefix(&format!("{name}_")));
        unique.is_some_and(|unique| !unique.is_empty())
    };
    // Each looks at the lease about as often as its holder renews it.
    for _ in 0..2 {
        let before = lease().await?["spec"]["renewTime"].clone();
        eventually("the lease to be renewed", async || {
            Ok((lease().await?["spec"]["renewTime"] != before).then_some(()))
        })
        .await?;
    }
    eventually("the first to lead, and it alone", async || {
        let alone = first.leads().await? && !second.leads().await?;
        Ok((alone && holds(&lease().await?, "first")).then_some(()))
    })
    .await?;
    for one in [&first, &second] {
        let ready = one.get("/readyz").await?;
        assert!(
            ready.starts_with("HTTP/1.1 200"),
            "a standby is ready too: {ready}"
        );
    }

    first.child.kill().await?;
    second.until_leading().await?;
    let held = lease().await?;
    assert!(holds(&held, "second"), "{held:#}");
    assert_eq!(held["spec"]["leaseDurationSeconds"], 10);

    assert_eq!(second.terminate().await?, 0);
    let lease = lease().await?;
    assert_eq!(lease["spec"]["holderIdentity"], "", "it is released");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_gate_off_a_controller_says_so_and_is_there_for_what_is_deleted()
-> anyhow::Result<()> {
    let instance = instance().await?;
    let off = ["--feature-gates", "ContainerNotifier=false"];
    let controller = Controller::start(&instance, "off", &off).await?;
    assert!(
        controller
            .get("/healthz")
            .await?
            .starts_with("HTTP/1.1 200")
    );
    let path = log(instance.dir(), "off");
    eventually("it to say so", async || {
        let told = std::fs::read_to_string(&path)?;
        Ok(told.contains("ContainerNotifier is off").then_some(()))
    })
    .await?;
    let metrics = controller.get("/metrics").await?;
    assert!(
        metrics.contains("kubernetes_feature_enabled{name=\"ContainerNotifier\"} 0"),
        "{metrics}"
    );
    controller.until_leading().await?;
    let ready = controller.get("/readyz").await?;
    assert!(
        ready.starts_with("HTTP/1.1 200"),
        "nothing is asked of it: {ready}"
    );
    assert_eq!(controller.terminate().await?, 0);
    Ok(())
}
