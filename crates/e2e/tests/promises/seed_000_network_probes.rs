//! The promises of the container notifier proposal (KEP-1977) about probes that ask over the network:
//! each asks the pod at its own address. Runs on the stage that the file including this one gives.

use belay_testkit::ports::unique_port;
use belay_testkit::{Stage, exec, notification, pod, until_file};
use serde_json::{Value, json};

/// Long enough that no busy machine lets it end before its time.
const LONG: u32 = 600;
/// Waited for, and long enough for a first try on a busy machine.
const OVER: u32 = 30;

/// "A probe ... to verify": the same probe fails while what it asks for is not there, and succeeds when
/// the handler has seen to it. The first process runs `main`, the handler runs `change`; both say when
/// they are done. Returns what was last said while it failed.
async fn fails_then_succeeds(
    stage: &Stage,
    name: &str,
    port: u16,
    probe: Value,
    main: &str,
    change: &str,
) -> anyhow::Result<String> {
    let up = stage.file(&format!("{name}-up"));
    let main = format!("{main}\n echo up > {up}; while :; do sleep 3600 & wait; done");
    let mut probe = probe;
    probe["periodSeconds"] = json!(1);
    probe["timeoutSeconds"] = json!(30);
    let manifest = pod(name)
        .container("main", ["sh", "-c", &main])
        .container_field("ports", json!([{"name": "probed", "containerPort": port}]))
        .notifier(
            "early",
            exec(["true"]).timeout(OVER).with("probe", probe.clone()),
        )
        .notifier(
            "change",
            exec(["sh", "-c", change])
                .timeout(LONG)
                .with("probe", probe),
        );
    let running = stage.run(manifest).await?;
    assert!(running["status"]["podIP"].is_string(), "{running:#}");
    until_file(&up, |text| !text.is_empty()).await?;
    let early = notification(&format!("{name}-early"), name, "early").build();
    let early = stage.admin().notify(&early).await?;
    let error = &early["status"]["containers"][0]["error"];
    assert_eq!(error["type"], "HandlerTimeout", "{early:#}");
    let said = error["message"].as_str().unwrap_or_default().to_owned();
    let over = format!("the probe did not succeed within {OVER} s");
    assert!(said.starts_with(&over), "{said}");
    let done = notification(name, name, "change").build();
    let done = stage.admin().notify(&done).await?;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(done["status"]["containers"][0]["succeeded"], true);
    Ok(said)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_probe_asks_the_named_port_of_the_pod() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let (port, root) = (unique_port()?, stage.file("web-root"));
    std::fs::create_dir(&root)?;
    let serve = format!("busybox httpd -p {port} -h {root}");
    let probe = json!({"httpGet": {"path": "/ready", "port": "probed"}});
    let change = format!("echo ok > {root}/ready");
    let said = fails_then_succeeds(&stage, "web", port, probe, &serve, &change).await?;
    assert!(said.contains("404"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tcp_probe_asks_whether_the_port_of_the_pod_is_open() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let (port, go) = (unique_port()?, stage.file("port-go"));
    let later = format!(
        "{{ while [ ! -e {go} ]; do sleep 0.05; done; busybox httpd -p {port} -h /tmp; }} &"
    );
    let probe = json!({"tcpSocket": {"port": "probed"}});
    let change = format!("echo go > {go}");
    let said = fails_then_succeeds(&stage, "port", port, probe, &later, &change).await?;
    assert!(said.contains("refused"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grpc_probe_asks_the_pod_for_the_health_of_its_service() -> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let (port, go) = (unique_port()?, stage.file("health-go"));
    let program = stage.program(env!("CARGO_BIN_EXE_grpc-health").as_ref())?;
    let serve = format!("{program} {port} db.Store {go} &");
    let probe = json!({"grpc": {"port": port, "service": "db.Store"}});
    let change = format!("echo go > {go}");
    let said = fails_then_succeeds(&stage, "health", port, probe, &serve, &change).await?;
    assert!(
        said.contains("NOT_SERVING") || said.contains("refused"),
        "{said}"
    );
    Ok(())
}
