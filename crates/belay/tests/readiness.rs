//! What `/readyz` of a role says, asked of the real program.

#![allow(clippy::unwrap_used)]

use std::process::Stdio;

use belay_testkit::{Instance, eventually};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// A role, and where it serves its health.
async fn role(instance: &Instance, words: &[&str]) -> anyhow::Result<(Child, String)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_belay"))
        .args(words)
        .arg("--kubeconfig")
        .arg(instance.kubeconfig())
        .env("BELAY_TEST_DIR", instance.dir())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(instance.dir().join("role.log"))?)
        .kill_on_drop(true)
        .spawn()?;
    let stdout = child.stdout.take().unwrap();
    let line = BufReader::new(stdout).lines().next_line().await?.unwrap();
    let address = line.split("http://").nth(1).unwrap();
    let address = address.strip_suffix("/metrics").unwrap().to_owned();
    Ok((child, address))
}

async fn get(address: &str, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_companion_with_a_wrong_socket_lives_and_says_why_it_is_not_ready() -> anyhow::Result<()>
{
    let instance = Instance::server().start().await?;
    let data = instance.dir().join("companion");
    let words = [
        "agent",
        "--mode=companion",
        "--node-name=n1",
        "--listen=127.0.0.1:0",
        "--runtime-endpoint=unix:///nonexistent/containerd.sock",
        "--data-dir",
        data.to_str().unwrap(),
    ];
    let (_companion, address) = role(&instance, &words).await?;
    eventually("it to try the socket", async || {
        let said = get(&address, "/readyz").await?;
        // Never ready, not even for a moment.
        assert!(said.starts_with("HTTP/1.1 503"), "{said}");
        let tried = said.contains("/nonexistent/containerd.sock")
            && said.contains("chosen with --runtime-endpoint")
            && said.contains("lease belay-system/n1 is not renewed")
            && !said.contains("admission policies");
        Ok(tried.then_some(()))
    })
    .await?;
    assert!(get(&address, "/healthz").await?.starts_with("HTTP/1.1 200"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_is_ready_while_it_reaches_the_api_server() -> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
                           "metadata": {"name": "belay-system"}});
    let admin = instance.admin().await?;
    admin.post("/api/v1/namespaces", &namespace).await?.ok()?;
    let words = ["controller", "--identity=one", "--listen=127.0.0.1:0"];
    let (_controller, address) = role(&instance, &words).await?;
    eventually("it to be ready", async || {
        let said = get(&address, "/readyz").await?;
        Ok(said.starts_with("HTTP/1.1 200").then_some(()))
    })
    .await?;
    instance.kill9().await?;
    eventually("it to miss the server", async || {
        let said = get(&address, "/readyz").await?;
        Ok((said.starts_with("HTTP/1.1 503") && said.contains("the API server")).then_some(()))
    })
    .await?;
    assert!(get(&address, "/healthz").await?.starts_with("HTTP/1.1 200"));
    Ok(())
}
