//! Who may do what: nobody without credentials, a node only what is its own.

use std::os::unix::fs::PermissionsExt;

use belay_testkit::{Instance, NOTIFICATIONS, PODS, Rest, exec, notification, pod};
use http::Method;
use serde_json::{Value, json};

const PATHS: [&str; 14] = [
    "/",
    "/api",
    "/api/v1",
    "/apis",
    "/apis/apps.k8s.io/v1alpha1",
    "/api/v1/namespaces",
    "/api/v1/nodes",
    PODS,
    "/api/v1/namespaces/default/pods/x/log",
    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
    NOTIFICATIONS,
    "/openapi/v3",
    "/metrics",
    "/nothing/at/all",
];

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_in_without_credentials() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let kubeconfig = instance.kubeconfig();
    let callers = [
        ("without any", instance.anonymous().await?),
        (
            "with a made-up token",
            Rest::with_token(&kubeconfig, "made-up").await?,
        ),
        (
            "with an empty token",
            Rest::with_token(&kubeconfig, "").await?,
        ),
    ];
    for (who, caller) in callers {
        for path in PATHS {
            for method in [
                Method::GET,
                Method::POST,
                Method::PUT,
                Method::PATCH,
                Method::DELETE,
            ] {
                let reply = caller.send(method.clone(), path, &[], "{}").await?;
                assert_eq!(
                    reply.status,
                    401,
                    "{who}: {method} {path}: {}",
                    reply.text()
                );
                assert_eq!(
                    reply.json()["reason"],
                    "Unauthorized",
                    "{who}: {method} {path}"
                );
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_to_everybody() -> anyhow::Result<()> {
    let anonymous = Instance::shared().await?.anonymous().await?;
    for path in ["/readyz", "/livez"] {
        let reply = anonymous.get(path).await?;
        assert_eq!(reply.status, 200, "{path}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_identity_is_never_taken_from_a_header() -> anyhow::Result<()> {
    let anonymous = Instance::shared().await?.anonymous().await?;
    let headers = [
        ("x-remote-user", "admin"),
        ("x-remote-group", "system:masters"),
        ("impersonate-user", "admin"),
        ("authorization", "Basic YWRtaW46YWRtaW4="),
    ];
    let reply = anonymous.send(Method::GET, PODS, &headers, "").await?;
    assert_eq!(reply.status, 401);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_administrator_s_kubeconfig_is_for_its_owner_alone() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let mode = std::fs::metadata(instance.kubeconfig())?
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_is_not_spoken() -> anyhow::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let instance = Instance::shared().await?;
    let address = Rest::address(&instance.kubeconfig()).await?;
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await?;
    let mut answer = Vec::new();
    // A reset is as good a refusal as a closed connection.
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer);
    assert!(!answer.contains("200 OK"), "{answer}");
    Ok(())
}

/// Two nodes, each with a pod and a notification, and the identity of the first.
struct Nodes {
    instance: Instance,
    admin: Rest,
    one: Rest,
}

impl Nodes {
    async fn start() -> anyhow::Result<Self> {
        let instance = Instance::server().start().await?;
        let admin = instance.admin().await?;
        let one = Rest::from_kubeconfig_text(&instance.node_kubeconfig("one").await?).await?;
        for node in ["one", "two"] {
            let object =
                json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node } });
            admin.post("/api/v1/nodes", &object).await?.ok()?;
            let manifest = pod(&format!("on-{node}"))
                .idle("main")
                .notifier("lock", exec(["true"]).timeout(1))
                .node(node)
                .build();
            admin.post(PODS, &manifest).await?.ok()?;
            let running = json!({ "status": { "phase": "Running" } });
            admin
                .merge(&format!("{PODS}/on-{node}/status"), &running)
                .await?
                .ok()?;
            let object = notification(&format!("to-{node}"), &format!("on-{node}"), "lock");
            admin
                .post(NOTIFICATIONS, &object.deadline(600).build())
                .await?
                .ok()?;
        }
        Ok(Self {
            instance,
            admin,
            one,
        })
    }
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    items.iter().map(belay_testkit::rest::name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_reads_only_what_is_its_own() -> anyhow::Result<()> {
    let nodes = Nodes::start().await?;
    let one = &nodes.one;
    for path in [
        "/api/v1/pods",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dtwo",
        "/api/v1/pods?watch=true",
        PODS,
        NOTIFICATIONS,
        "/apis/apps.k8s.io/v1alpha1/podnotifications",
        "/apis/apps.k8s.io/v1alpha1/podnotifications?fieldSelector=status.nodeName%3Dtwo",
        "/api/v1/namespaces/default/configmaps",
        "/api/v1/namespaces/default/pods/on-two",
        "/api/v1/nodes/two",
        "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/two",
    ] {
        let reply = one.get(path).await?;
        assert_eq!(reply.status, 403, "{path}: {}", reply.text());
        assert_eq!(reply.json()["reason"], "Forbidden", "{path}");
    }
    let own = one
        .get("/api/v1/pods?fieldSelector=spec.nodeName%3Done")
        .await?
        .ok()?;
    assert_eq!(names(&own), ["on-one"]);
    let own = "/apis/apps.k8s.io/v1alpha1/podnotifications?fieldSelector=status.nodeName%3Done";
    assert_eq!(names(&one.get(own).await?.ok()?), ["to-one"]);
    one.get(&format!("{PODS}/on-one")).await?.ok()?;
    one.get("/api/v1/nodes/one").await?.ok()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_writes_only_what_is_its_own() -> anyhow::Result<()> {
    let nodes = Nodes::start().await?;
    let one = &nodes.one;
    let touched = json!({ "metadata": { "labels": { "touched": "yes" } } });
    let status = json!({ "status": { "phase": "Failed" } });
    for path in [
        format!("{PODS}/on-one"),
        format!("{PODS}/on-two"),
        "/api/v1/nodes/two".to_owned(),
        format!("{NOTIFICATIONS}/to-one"),
        format!("{NOTIFICATIONS}/to-two"),
    ] {
        let reply = one.merge(&path, &touched).await?;
        assert_eq!(reply.status, 403, "{path}: {}", reply.text());
    }
    for path in [
        format!("{PODS}/on-two/status"),
        "/api/v1/nodes/two/status".to_owned(),
        format!("{NOTIFICATIONS}/to-two/status"),
    ] {
        let reply = one.merge(&path, &status).await?;
        assert_eq!(reply.status, 403, "{path}: {}", reply.text());
    }
    let other_pod = pod("planted").idle("main").build();
    assert_eq!(one.post(PODS, &other_pod).await?.status, 403);
    let asked = notification("asked", "on-one", "lock").build();
    assert_eq!(one.post(NOTIFICATIONS, &asked).await?.status, 403);
    assert_eq!(one.delete(&format!("{PODS}/on-two")).await?.status, 403);
    assert_eq!(
        one.delete(&format!("{NOTIFICATIONS}/to-one")).await?.status,
        403
    );
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "mine" } });
    assert_eq!(
        one.post("/api/v1/namespaces", &namespace).await?.status,
        403
    );

    one.merge(
        &format!("{PODS}/on-one/status"),
        &json!({ "status": { "message": "seen" } }),
    )
    .await?
    .ok()?;
    one.merge(
        "/api/v1/nodes/one/status",
        &json!({ "status": { "phase": "Running" } }),
    )
    .await?
    .ok()?;
    let options = json!({ "gracePeriodSeconds": 0 });
    one.delete_with(&format!("{PODS}/on-one"), &options)
        .await?
        .ok()?;
    nodes.admin.get(&format!("{PODS}/on-two")).await?.ok()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_cannot_move_a_notification_to_itself() -> anyhow::Result<()> {
    let nodes = Nodes::start().await?;
    let path = format!("{NOTIFICATIONS}/to-one/status");
    let moved = json!({ "status": { "nodeName": "two" } });
    let reply = nodes.one.merge(&path, &moved).await?;
    assert!(
        [403, 422].contains(&reply.status.as_u16()),
        "{}: {}",
        reply.status,
        reply.text()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_s_token_holds_after_a_restart_and_names_only_that_node() -> anyhow::Result<()> {
    let mut nodes = Nodes::start().await?;
    nodes.instance.kill9().await?;
    nodes.instance.start_again().await?;
    nodes.one.get("/api/v1/nodes/one").await?.ok()?;
    assert_eq!(nodes.one.get("/api/v1/nodes/two").await?.status, 403);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_and_what_came_of_it_is_in_the_audit_log() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let asked = notification("audited", "nowhere", "lock").build();
    admin.post(NOTIFICATIONS, &asked).await?.ok()?;
    let log = instance.data_dir().join("audit.log");
    let text = belay_testkit::until_file(&log.display().to_string(), |text| {
        text.lines()
            .any(|line| line.contains("podnotifications") && line.contains("201"))
    })
    .await?;
    for line in text.lines() {
        let entry: Value = serde_json::from_str(line)?;
        assert!(entry.is_object(), "{line}");
    }
    Ok(())
}
