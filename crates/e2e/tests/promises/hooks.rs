//! The hooks of a container that are no commands: requests, connections, sleeps, before its life
//! counts and before it ends. They go to the pod's own address. Runs on the stage that the file
//! including this one gives.

use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::ends::{LONG, asked, delete, gone, run, sent, stopping, told, until_told};
use belay_testkit::ports::unique_port;
use belay_testkit::{PodBuilder, Stage, eventually, pod, until_file};
use futures::future::try_join_all;
use serde_json::{Value, json};

/// What a server says to a request.
const OK: &str = "printf 'HTTP/1.0 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n'";
const BUSY: &str = "printf 'HTTP/1.0 503 Busy\\r\\nContent-Length: 0\\r\\n\\r\\n'";
const NOTHING: &str = "exec sleep 3600";

/// A server in a container.
struct Server {
    port: u16,
    /// Runs it in the background, and waits until it listens.
    start: String,
    /// Succeeds when it listens.
    listens: String,
}

/// One that writes the first line of what it is asked into `heard`, and answers as it is told.
fn server(stage: &Stage, name: &str, heard: &str, answer: &str) -> anyhow::Result<Server> {
    let port = unique_port()?;
    let file = stage.file(&format!("{name}-server"));
    // Whoever closes a connection before he has read all of it breaks it.
    let script = format!(
        "read -r line\necho \"asked ${{line%?}}\" >> {heard}\n\
         while read -r rest && [ ${{#rest}} -gt 1 ]; do :; done\n{answer}\n"
    );
    std::fs::write(&file, script)?;
    let listens = format!("cat /proc/net/tcp* | grep -q ':{port:04X} .* 0A '");
    let start =
        format!("busybox nc -ll -p {port} -e sh {file} & until {listens}; do sleep 0.05; done");
    Ok(Server {
        port,
        start,
        listens,
    })
}

fn get(port: impl Into<Value>) -> Value {
    json!({ "httpGet": { "port": port.into(), "path": "/hook" } })
}

/// A pod that says in `file` that it is up and that it got SIGTERM, and ends by itself when there is
/// a file beside it; its server is asked before it ends.
fn asks(name: &str, file: &str, server: &Server, hook: &Value) -> PodBuilder {
    let script = format!(
        "{}; trap 'echo TERM >> {file}; exit 0' TERM; echo up >> {file}; \
         while ! test -e {file}.gate; do sleep 0.05; done",
        server.start
    );
    pod(name)
        .container("main", ["sh", "-c", &script])
        .container_field(
            "ports",
            json!([{ "name": "web", "containerPort": server.port }]),
        )
        .container_field("lifecycle", json!({ "preStop": hook }))
        .grace(LONG)
}

#[tokio::test(flavor = "multi_thread")]
async fn before_its_end_a_container_is_asked_at_its_pod_s_own_address() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    /// What is asked for.
    #[derive(Clone, Copy)]
    enum Hook {
        Get,
        Connect,
    }
    let case = async |name: &str, hook, answer, failure: Option<&str>| -> anyhow::Result<()> {
        let file = stage.file(name);
        let server = server(&stage, name, &file, answer)?;
        let (hook, heard) = match hook {
            Hook::Get => (get("web"), "asked GET /hook HTTP/1.1"),
            Hook::Connect => (json!({ "tcpSocket": { "port": server.port } }), "asked"),
        };
        run(&stage, asks(name, &file, &server, &hook), &file).await?;
        delete(&stage, name).await?;
        gone(&stage, name).await?;
        assert_eq!(sent(&stage, name, "main").await?.signal, "SIGTERM");
        let text = std::fs::read_to_string(&file)?;
        let mut lines: Vec<_> = text.lines().map(str::trim).collect();
        if heard == "asked" {
            // Who has connected does not wait until that is written down.
            lines.sort_by_key(|line| *line == "TERM");
        }
        assert_eq!(lines, ["up", heard, "TERM"], "{name}");
        match failure {
            None => {
                let done = "PreStopHook of container main ended after ";
                until_told(&stage, name, "PreStopHookSucceeded", done).await?;
                assert!(told(&stage, name, "FailedPreStopHook").await?.is_empty());
            }
            Some(why) => {
                let failed = until_told(&stage, name, "FailedPreStopHook", why).await?;
                assert!(failed.starts_with("PreStopHook failed: "), "{failed}");
            }
        }
        Ok(())
    };
    tokio::try_join!(
        case("stop-get", Hook::Get, OK, None),
        case("stop-connect", Hook::Connect, OK, None),
        case("stop-busy", Hook::Get, BUSY, Some("503")),
    )?;
    Ok(())
}

/// A server that takes the request and says nothing holds nothing up for longer than the grace lasts,
/// nor for longer than the container does.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_never_answered_ends_with_the_grace_or_with_the_container()
-> anyhow::Result<()> {
    const GRACE: u32 = 3;
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let files = ["silent-grace", "silent-exit"].map(|name| (name, stage.file(name)));
    for (name, file) in &files {
        let heard = format!("{file}.asked");
        let server = server(&stage, name, &heard, NOTHING)?;
        let manifest = asks(name, file, &server, &get(server.port));
        let grace = if *name == "silent-grace" { GRACE } else { LONG };
        run(&stage, manifest.grace(grace), file).await?;
        delete(&stage, name).await?;
        stopping(&stage, name).await?;
        until_file(&heard, |text| text.contains("GET /hook")).await?;
    }
    let [(bounded, file), (exits, gate)] = &files;
    std::fs::write(format!("{gate}.gate"), "")?;
    gone(&stage, bounded).await?;
    gone(&stage, exits).await?;

    let late = "did not end within the grace period of 3.000s and was cancelled";
    until_told(&stage, bounded, "UnfinishedPreStopHook", late).await?;
    let sent = sent(&stage, bounded, "main").await?;
    assert!(sent.after >= Duration::from_secs(GRACE.into()), "{sent:?}");
    assert!(sent.left <= Duration::from_secs(2), "{sent:?}");
    asked(&stage, bounded, file).await?;

    assert_eq!(std::fs::read_to_string(gate)?, "up\n", "nobody signals it");
    for reason in ["StopSignalSent", "FailedPreStopHook"] {
        let said = told(&stage, exits, reason).await?;
        assert!(said.is_empty(), "{said:?}");
    }
    Ok(())
}

/// A pod whose sidecar serves what its container is to have done before it counts as up.
fn begins(name: &str, server: &Server, hook: &Value) -> PodBuilder {
    let serve = format!("{}; while :; do sleep 3600 & wait; done", server.start);
    let listens = json!({
        "exec": { "command": ["sh", "-c", server.listens] },
        "periodSeconds": 1, "failureThreshold": LONG, "timeoutSeconds": 30,
    });
    pod(name)
        .sidecar("server", ["sh", "-c", &serve])
        .container_field("startupProbe", listens)
        .idle("main")
        .container_field("lifecycle", json!({ "postStart": hook }))
        .grace(10)
}

fn time(value: &Value) -> anyhow::Result<jiff::Timestamp> {
    let text = value
        .as_str()
        .with_context(|| format!("no time: {value}"))?;
    Ok(text.parse()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_counts_as_up_when_what_comes_after_its_start_is_done() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let kinds = ["start-get", "start-connect", "start-sleep"];
    try_join_all(kinds.map(async |name| -> anyhow::Result<()> {
        let heard = stage.file(name);
        let server = server(&stage, name, &heard, OK)?;
        let (hook, line) = match name {
            "start-get" => (get(server.port), Some("asked GET /hook HTTP/1.1")),
            "start-connect" => (
                json!({ "tcpSocket": { "port": server.port } }),
                Some("asked"),
            ),
            _ => (json!({ "sleep": { "seconds": 3 } }), None),
        };
        stage.create(begins(name, &server, &hook)).await?;
        let health = stage.health(name).await?;
        let main = &health["containers"][0];
        assert_eq!(main["restartCount"], 0, "{health:#}");
        match line {
            Some(line) => {
                let text = until_file(&heard, |text| text.contains('\n')).await?;
                assert_eq!(text.trim(), line, "{name}");
            }
            None => {
                let began = time(&main["state"]["running"]["startedAt"])?;
                let ready = time(&health["ready"]["lastTransitionTime"])?;
                // Both without their fractions.
                let slept = ready.duration_since(began);
                assert!(slept.as_secs() > 1, "{health:#}");
            }
        }
        delete(&stage, name).await?;
        gone(&stage, name).await?;
        assert!(told(&stage, name, "FailedPostStartHook").await?.is_empty());
        Ok(())
    }))
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_refused_what_comes_after_its_start_has_not_come_up()
-> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let name = "start-busy";
    let server = server(&stage, name, &stage.file(name), BUSY)?;
    let refused = begins(name, &server, &get(server.port));
    stage.create(refused.restart_policy("Never")).await?;
    let failed = until_told(&stage, name, "FailedPostStartHook", "503").await?;
    assert!(failed.starts_with("PostStartHook failed: "), "{failed}");
    eventually("its end", async || {
        let path = format!("{}/{name}", belay_testkit::PODS);
        let pod = stage.admin().get(&path).await?.ok()?;
        let main = &pod["status"]["containerStatuses"][0];
        anyhow::ensure!(main["ready"] == false, "{main:#}");
        Ok(main["state"]["terminated"].is_object().then_some(()))
    })
    .await?;
    delete(&stage, name).await?;
    gone(&stage, name).await
}
