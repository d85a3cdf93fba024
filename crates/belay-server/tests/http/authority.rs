//! Who gets in, and how far.

use belay_server::Identity;
use serde_json::json;

use crate::harness::{Client, Harness, MAPS, NOTIFICATIONS, PODS, map, notification, pod, run_pod};

/// A client over TLS with the given kubeconfig user.
async fn over_tls(h: &Harness, token: Option<&str>) -> Client {
    Client(kube::Client::try_from(tls_config(h, token)).unwrap())
}

fn tls_config(h: &Harness, token: Option<&str>) -> kube::Config {
    let mut config = kube::Config::new(
        format!("https://{}", h.server.local_addr())
            .parse()
            .unwrap(),
    );
    let ca = rustls::pki_types::CertificateDer::from_pem(&h.server.ca_pem());
    config.root_cert = Some(vec![ca]);
    config.auth_info.token = token.map(|t| t.to_owned().into());
    config
}

trait FromPem {
    fn from_pem(pem: &str) -> Vec<u8>;
}

impl FromPem for rustls::pki_types::CertificateDer<'_> {
    fn from_pem(pem: &str) -> Vec<u8> {
        use rustls::pki_types::pem::PemObject as _;
        rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes())
            .unwrap()
            .to_vec()
    }
}

fn serve(h: &Harness) -> tokio_util::sync::DropGuard {
    let stop = tokio_util::sync::CancellationToken::new();
    tokio::spawn({
        let (server, stop) = (h.server.clone(), stop.clone());
        async move { server.serve(stop).await }
    });
    stop.drop_guard()
}

#[tokio::test]
async fn a_stranger_sees_health_and_version_and_nothing_else() {
    let h = Harness::start().await;
    let _serving = serve(&h);
    let stranger = over_tls(&h, None).await;
    for path in ["/readyz", "/livez", "/version"] {
        stranger.get(path).await.ok();
    }
    for path in [
        "/",
        "/api",
        "/apis",
        "/api/v1/pods",
        "/metrics",
        "/openapi/v3",
        "/nonsense",
        PODS,
    ] {
        stranger.get(path).await.refused(401, "Unauthorized");
    }
    stranger
        .post(MAPS, &map("a", &[]))
        .await
        .refused(401, "Unauthorized");
    let forger = over_tls(&h, Some("made-up")).await;
    forger.get("/version").await.refused(401, "Unauthorized");
}

#[tokio::test]
async fn a_strangers_body_is_not_waited_for() {
    use futures::StreamExt as _;
    use hyper_util::client::legacy::Client as HttpClient;
    use kube::client::ConfigExt as _;
    let h = Harness::start().await;
    let _serving = serve(&h);
    let connector = tls_config(&h, None).rustls_https_connector().unwrap();
    let executor = hyper_util::rt::TokioExecutor::new();
    let client = HttpClient::builder(executor).build(connector);
    for token in [None, Some("made-up")] {
        // One that begins and never ends.
        let first = futures::stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::from("{"))]);
        let endless = first.chain(futures::stream::pending());
        let frames = endless.map(|part| part.map(http_body::Frame::data)).boxed();
        let uri = format!("https://{}{MAPS}", h.server.local_addr());
        let mut request = http::Request::post(uri);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(http_body_util::StreamBody::new(frames));
        let response = client.request(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
    }
}

#[tokio::test]
async fn the_admin_kubeconfig_works_and_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let h = Harness::start().await;
    let _serving = serve(&h);
    let path = h.server.kubeconfig_path();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let kubeconfig = kube::config::Kubeconfig::read_from(&path).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    let admin = Client(kube::Client::try_from(config).unwrap());
    admin.post(MAPS, &map("a", &[])).await.ok();
}

#[tokio::test]
async fn a_node_token_made_beside_the_server_is_a_node_and_no_more() {
    let h = Harness::start().await;
    let _serving = serve(&h);
    let text = belay_server::create_node_token(h.dir.path(), "n1", None)
        .unwrap()
        .text;
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&text).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    let node = Client(kube::Client::try_from(config).unwrap());
    let register = json!({"metadata": {"name": "n1"}});
    node.post("/api/v1/nodes", &register).await.ok();
    let other = json!({"metadata": {"name": "n2"}});
    node.post("/api/v1/nodes", &other)
        .await
        .refused(403, "Forbidden");
    node.post(PODS, &pod("p")).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn a_node_touches_only_what_is_bound_to_it() {
    let h = Harness::start().await;
    let admin = h.admin();
    for (name, node) in [("mine", "n1"), ("theirs", "n2")] {
        admin.post(PODS, &pod(name)).await.ok();
        run_pod(&admin, name, node).await;
        admin
            .post(NOTIFICATIONS, &notification(name, name, "reload"))
            .await
            .ok();
    }
    let node = h.of(Identity::node("n1"));
    let status = json!({"status": {"phase": "Running", "message": "x"}});
    node.patch(&format!("{PODS}/mine/status"), "merge-patch", &status)
        .await
        .ok();
    node.patch(&format!("{PODS}/theirs/status"), "merge-patch", &status)
        .await
        .refused(403, "Forbidden");
    node.get(&format!("{PODS}/theirs"))
        .await
        .refused(403, "Forbidden");
    node.delete(&format!("{PODS}/theirs"))
        .await
        .refused(403, "Forbidden");
    node.get(PODS).await.refused(403, "Forbidden");
    node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")
        .await
        .ok();
    let claim = json!({"status": {"executor": "n1"}});
    node.patch(
        &format!("{NOTIFICATIONS}/mine/status"),
        "merge-patch",
        &claim,
    )
    .await
    .ok();
    node.patch(
        &format!("{NOTIFICATIONS}/theirs/status"),
        "merge-patch",
        &claim,
    )
    .await
    .refused(403, "Forbidden");
    // Nor may it hand what is its own to another.
    let away = json!({"status": {"nodeName": "n2"}});
    let answer = node
        .patch(
            &format!("{NOTIFICATIONS}/mine/status"),
            "merge-patch",
            &away,
        )
        .await;
    assert!(matches!(answer.code.as_u16(), 403 | 422), "{answer:?}");
    let relabel = json!({"metadata": {"labels": {"a": "b"}}});
    node.patch(&format!("{PODS}/mine"), "merge-patch", &relabel)
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn a_node_reads_the_objects_that_its_pods_use_and_no_others() {
    const SECRETS: &str = "/api/v1/namespaces/default/secrets";
    let h = Harness::start().await;
    let admin = h.admin();
    for name in ["used", "volume", "theirs", "unused"] {
        admin.post(MAPS, &map(name, &[("k", "v")])).await.ok();
        let secret = json!({"metadata": {"name": name}, "stringData": {"k": "v"}});
        admin.post(SECRETS, &secret).await.ok();
    }
    for (name, used) in [
        ("mine", ["used", "volume"]),
        ("others", ["theirs", "theirs"]),
    ] {
        let mut pod = pod(name);
        pod["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": used[0]}}]);
        pod["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": used[1]}}]);
        admin.post(PODS, &pod).await.ok();
    }
    let node = h.of(Identity::node("n1"));
    // Not before the pod is the node's own.
    let used = format!("{MAPS}/used");
    node.get(&used).await.refused(403, "Forbidden");
    run_pod(&admin, "mine", "n1").await;
    run_pod(&admin, "others", "n2").await;
    assert_eq!(node.get(&used).await.ok()["data"]["k"], "v");
    let by_name = |list: &str, name: &str| format!("{list}?fieldSelector=metadata.name%3D{name}");
    let listed = node.get(&by_name(SECRETS, "volume")).await.ok();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    let missing = json!([{"configMapRef": {"name": "later"}}]);
    let mut waiting = pod("waiting");
    waiting["spec"]["containers"][0]["envFrom"] = missing;
    admin.post(PODS, &waiting).await.ok();
    run_pod(&admin, "waiting", "n1").await;
    node.get(&format!("{MAPS}/later"))
        .await
        .refused(404, "NotFound");
    for refused in [
        MAPS.to_owned(),
        SECRETS.to_owned(),
        "/api/v1/secrets".to_owned(),
        "/api/v1/secrets?fieldSelector=metadata.name%3Dvolume".to_owned(),
        // Of the other kind, another node's, nobody's.
        format!("{MAPS}/volume"),
        format!("{SECRETS}/used"),
        format!("{MAPS}/theirs"),
        format!("{SECRETS}/unused"),
        by_name(SECRETS, "unused"),
        format!("{SECRETS}?fieldSelector=metadata.name!%3Dunused"),
    ] {
        node.get(&refused).await.refused(403, "Forbidden");
    }
    node.delete(&used).await.refused(403, "Forbidden");
    let change = json!({"data": {"k": "w"}});
    node.patch(&used, "merge-patch", &change)
        .await
        .refused(403, "Forbidden");
    // With the pod goes the right.
    admin
        .delete(&format!("{PODS}/mine?gracePeriodSeconds=0"))
        .await
        .ok();
    node.get(&used).await.refused(403, "Forbidden");
}

#[tokio::test]
async fn impersonation_is_refused_rather_than_ignored() {
    let h = Harness::start().await;
    let headers = [("impersonate-user", "someone")];
    h.admin()
        .send("GET", PODS, &headers, vec![])
        .await
        .refused(403, "Forbidden");
}

#[tokio::test]
async fn a_second_server_on_the_same_directory_is_refused_naming_the_first() {
    let h = Harness::start().await;
    let config = belay_server::Config {
        data_dir: h.dir.path().to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        gates: Default::default(),
        tls_names: vec![],
    };
    let error = belay_server::Server::open(config)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains(&std::process::id().to_string()), "{error}");
}
