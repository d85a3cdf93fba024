//! Whatever is sent, the answer is a proper refusal: never a 5xx, never a panic, never silence.

use belay_testkit::{CONFIG_MAPS, Instance, NOTIFICATIONS, PODS, Rest, pod};
use http::Method;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};

/// The server is there, nothing panicked, and the daily work still works.
async fn assert_unhurt(instance: &Instance) -> anyhow::Result<()> {
    let admin = instance.admin().await?;
    assert_eq!(admin.get("/readyz").await?.status, 200);
    assert_eq!(admin.get(PODS).await?.status, 200);
    let log = instance.log();
    assert!(!log.contains("panicked"), "{log}");
    Ok(())
}

async fn refusal(
    admin: &Rest,
    method: Method,
    path: &str,
    content_type: &str,
    body: &[u8],
) -> anyhow::Result<u16> {
    let headers = [("content-type", content_type)];
    let reply = admin
        .send(method.clone(), path, &headers, body.to_vec())
        .await?;
    let code = reply.status.as_u16();
    let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
    assert!(
        (400..500).contains(&code),
        "{method} {path} {content_type} {shown}: {code} {}",
        reply.text()
    );
    let status = reply.json();
    assert_eq!(
        status["kind"],
        "Status",
        "{method} {path} {shown}: {}",
        reply.text()
    );
    assert_eq!(
        status["code"],
        code,
        "{method} {path} {shown}: {}",
        reply.text()
    );
    let said = status["message"]
        .as_str()
        .is_some_and(|message| !message.is_empty());
    assert!(
        said,
        "{method} {path} {shown}: a refusal says why: {status}"
    );
    Ok(code)
}

const JSON: &str = "application/json";

#[tokio::test(flavor = "multi_thread")]
async fn malformed_json_is_a_bad_request() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let deep = "[".repeat(100_000);
    let deep_objects = "{\"a\":".repeat(50_000);
    let bodies: [&[u8]; 14] = [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\"Pod\"",
        b"17",
        b"{\"a\":}",
        b"{'a':1}",
        b"{\"kind\":\"Pod\"} trailing",
        b"\xff\xfe\x00",
        b"{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"\xc3\x28\"}}",
        b"{\"metadata\":{\"name\":\"\\ud800\"}}",
        deep.as_bytes(),
        deep_objects.as_bytes(),
    ];
    for body in bodies {
        for path in [
            PODS,
            CONFIG_MAPS,
            NOTIFICATIONS,
            "/api/v1/namespaces",
            "/api/v1/nodes",
        ] {
            refusal(&admin, Method::POST, path, JSON, body).await?;
        }
        refusal(&admin, Method::PUT, &format!("{PODS}/x"), JSON, body).await?;
    }
    assert_unhurt(instance).await
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_types_are_refused_and_named() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let wrong = [
        ("/metadata", "17"),
        ("/metadata/name", "{}"),
        ("/metadata/labels", "[]"),
        ("/metadata/labels", "{\"a\":1}"),
        ("/metadata/annotations", "\"x\""),
        ("/metadata/ownerReferences", "{}"),
        ("/metadata/finalizers", "[1]"),
        ("/spec", "[]"),
        ("/spec/containers", "{}"),
        ("/spec/containers", "[17]"),
        ("/spec/containers/0/command", "\"sh\""),
        ("/spec/containers/0/notifiers", "{}"),
        ("/spec/containers/0/notifiers", "[[]]"),
        (
            "/spec/containers/0/ports",
            "[{\"containerPort\":\"eighty\"}]",
        ),
        ("/spec/terminationGracePeriodSeconds", "\"long\""),
        ("/spec/terminationGracePeriodSeconds", "1e400"),
        (
            "/spec/terminationGracePeriodSeconds",
            "99999999999999999999",
        ),
    ];
    for (pointer, value) in wrong {
        let mut object = pod("typed").idle("main").build();
        for (part, empty) in [
            ("/metadata/labels", "labels"),
            ("/metadata/annotations", "x"),
        ] {
            if pointer.starts_with(part) {
                object["metadata"][empty] = serde_json::json!({});
            }
        }
        // Numbers that no parser of ours may round are put in as text.
        let (parent, field) = pointer.rsplit_once('/').unwrap_or_default();
        let holder = if parent.is_empty() {
            Some(&mut object)
        } else {
            object.pointer_mut(parent)
        };
        if let Some(holder) = holder {
            holder[field] = "@".into();
        }
        let body = object.to_string().replace("\"@\"", value);
        refusal(&admin, Method::POST, PODS, JSON, body.as_bytes()).await?;
    }
    assert_unhurt(instance).await
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_bodies_are_cut_off() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let huge = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"huge\"}},\
         \"data\":{{\"a\":\"{}\"}}}}",
        "x".repeat(16 << 20)
    );
    let headers = [("content-type", JSON)];
    // The server may answer before it has read everything and close; then the sender sees only
    // the broken pipe. Either is a refusal.
    if let Ok(reply) = admin.send(Method::POST, CONFIG_MAPS, &headers, huge).await {
        assert_eq!(reply.status, 413, "{}", reply.text());
    }
    admin
        .get(&format!("{CONFIG_MAPS}/huge"))
        .await?
        .refused(404)?;
    assert_unhurt(instance).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_methods_are_refused() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    for path in [
        "/api/v2",
        "/api/v1/nothing",
        "/api/v1/namespaces/default/nothing",
        "/api/v1/namespaces/default/pods/a/b/c/d",
        "/api/v1/namespaces//pods",
        "/api/v1/namespaces/default/pods/%00",
        "/api/v1/namespaces/default/pods/%2e%2e%2fsecrets",
        "/api/v1/namespaces/default/pods/..",
        "/api/v1/namespaces/%ff/pods/x",
        "/apis/none.example.com/v1",
        "/apis/apps.k8s.io/v1alpha1/namespaces/default/podnotifications/x/nothing",
        "//api/v1/pods/x",
        "/api/v1/pods/x/status",
    ] {
        let reply = admin.get(path).await?;
        let code = reply.status.as_u16();
        assert!(
            (400..500).contains(&code),
            "{path}: {code} {}",
            reply.text()
        );
    }
    for (method, path) in [
        (Method::POST, format!("{PODS}/x")),
        (Method::PUT, PODS.to_owned()),
        (Method::PATCH, PODS.to_owned()),
        (Method::from_bytes(b"BREW")?, PODS.to_owned()),
        (Method::TRACE, PODS.to_owned()),
        (Method::POST, format!("{PODS}/x/log")),
        (Method::DELETE, "/version".to_owned()),
    ] {
        let reply = admin
            .send(method.clone(), &path, &[("content-type", JSON)], "{}")
            .await?;
        let code = reply.status.as_u16();
        assert!(
            [404, 405].contains(&code),
            "{method} {path}: {code} {}",
            reply.text()
        );
    }
    assert_unhurt(instance).await
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_content_types_are_refused() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let object = pod("typed").idle("main").build().to_string();
    for content_type in ["text/plain", "application/xml", "/"] {
        let code = refusal(&admin, Method::POST, PODS, content_type, object.as_bytes()).await?;
        assert_eq!(code, 415, "{content_type}");
    }
    let map = belay_testkit::rest::config_map("patched", "a", "b");
    admin.post(CONFIG_MAPS, &map).await?.ok()?;
    let path = format!("{CONFIG_MAPS}/patched");
    for content_type in [
        "application/json",
        "text/plain",
        "application/nothing-patch+json",
    ] {
        let code = refusal(&admin, Method::PATCH, &path, content_type, b"{}").await?;
        assert_eq!(code, 415, "{content_type}");
    }
    // Custom kinds have no merge keys, so a stock server refuses this too.
    let own = belay_testkit::notification("patched", "nowhere", "n").build();
    admin.post(NOTIFICATIONS, &own).await?.ok()?;
    let strategic = "application/strategic-merge-patch+json";
    let path = format!("{NOTIFICATIONS}/patched");
    assert_eq!(
        refusal(&admin, Method::PATCH, &path, strategic, b"{}").await?,
        415
    );
    assert_unhurt(instance).await
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_that_make_no_sense_are_refused() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let map = belay_testkit::rest::config_map("senseless", "a", "b");
    admin.post(CONFIG_MAPS, &map).await?.ok()?;
    let path = format!("{CONFIG_MAPS}/senseless");
    let json_patches = [
        "{}",
        "[{}]",
        "[{\"op\":\"jump\",\"path\":\"/data\"}]",
        "[{\"op\":\"remove\",\"path\":\"/nothing\"}]",
        "[{\"op\":\"test\",\"path\":\"/data/a\",\"value\":\"c\"}]",
        "[{\"op\":\"add\",\"path\":\"data\",\"value\":1}]",
        "[{\"op\":\"replace\",\"path\":\"/metadata/name\",\"value\":\"other\"}]",
        "[{\"op\":\"copy\",\"from\":\"/data\",\"path\":\"/data/a/b/c\"}]",
    ];
    for patch in json_patches {
        let content_type = "application/json-patch+json";
        refusal(&admin, Method::PATCH, &path, content_type, patch.as_bytes()).await?;
    }
    let strategic = [
        "[]",
        "{\"data\":17}",
        "{\"metadata\":{\"ownerReferences\":[{}]}}",
        "{\"$patch\":\"explode\"}",
        "{\"metadata\":{\"finalizers\":[{\"a\":1}]}}",
    ];
    for patch in strategic {
        let content_type = "application/strategic-merge-patch+json";
        refusal(&admin, Method::PATCH, &path, content_type, patch.as_bytes()).await?;
    }
    assert_unhurt(instance).await
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_and_options_that_cannot_be_read_are_refused() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    for query in [
        "labelSelector=%3D",
        "labelSelector=a%20in%20(",
        "labelSelector=a%3D%3D%3Db",
        "labelSelector=-a%3Db",
        "labelSelector=a%20notin%20b",
        "fieldSelector=nothing.here%3D1",
        "fieldSelector=metadata.name",
        "fieldSelector=metadata.name%3Ea",
        "limit=many",
        "limit=-1",
        "continue=rubbish",
        "continue=%ff",
        "resourceVersion=abc",
        "resourceVersion=-1",
        "watch=true&resourceVersion=x",
        "watch=true&timeoutSeconds=soon",
        "watch=perhaps",
        "resourceVersionMatch=Sideways&resourceVersion=1",
        "limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiYSJ9",
    ] {
        let path = format!("{PODS}?{query}");
        let reply = admin.get(&path).await?;
        let code = reply.status.as_u16();
        assert!(
            [400, 410, 422].contains(&code),
            "{query}: {code} {}",
            reply.text()
        );
    }
    for query in ["fieldValidation=Sometimes", "dryRun=perhaps"] {
        let object = pod("options").idle("main").build().to_string();
        let path = format!("{PODS}?{query}");
        refusal(&admin, Method::POST, &path, JSON, object.as_bytes()).await?;
    }
    assert_unhurt(instance).await
}

#[tokio::test(flavor = "multi_thread")]
async fn protobuf_that_cannot_be_read_is_a_bad_request() -> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let endless = [&b"k8s\0"[..], &[0xff; 64]].concat();
    // A field that claims to be longer than the message.
    let too_long = [&b"k8s\0"[..], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x07, b'x']].concat();
    let deep = [&b"k8s\0"[..], &[0x0b; 100_000]].concat();
    let bodies: [&[u8]; 7] = [
        b"",
        b"k8s",
        b"k8s\0",
        b"{\"kind\":\"Pod\"}",
        &endless,
        &too_long,
        &deep,
    ];
    for body in bodies {
        let content_type = "application/vnd.kubernetes.protobuf";
        for path in [PODS, CONFIG_MAPS, NOTIFICATIONS, "/api/v1/namespaces"] {
            refusal(&admin, Method::POST, path, content_type, body).await?;
        }
    }
    assert_unhurt(instance).await
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_http_hurt_nobody() -> anyhow::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let instance = Instance::shared().await?;
    let address = Rest::address(&instance.kubeconfig()).await?;
    let zeros = vec![0; 4096];
    for bytes in [&b"\x16\x03\x01\xff\xff"[..], b"GET", b"\x00", &zeros] {
        let mut stream = tokio::net::TcpStream::connect(&address).await?;
        stream.write_all(bytes).await?;
        stream.shutdown().await?;
        let mut answer = Vec::new();
        // A reset is an answer as well.
        let _ = stream.read_to_end(&mut answer).await;
    }
    assert_unhurt(instance).await
}

/// A segment of a path: mostly what exists, so that the depths are reached, sometimes anything.
fn segment() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "api", "apis", "v1", "v1alpha1", "apps.k8s.io", "namespaces", "default", "pods",
            "nodes", "events", "configmaps", "podnotifications", "leases", "status", "log",
            "binding", "coordination.k8s.io", "openapi", "v3", "metrics", "version", "",
        ]).prop_map(str::to_owned),
        1 => "[a-zA-Z0-9._~%-]{0,12}",
        1 => prop::collection::vec(any::<u8>(), 0..6)
            .prop_map(|bytes| bytes.iter().map(|byte| format!("%{byte:02x}")).collect()),
    ]
}

fn query() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "labelSelector",
        "fieldSelector",
        "limit",
        "continue",
        "resourceVersion",
        "resourceVersionMatch",
        "timeoutSeconds",
        "dryRun",
        "fieldValidation",
        "container",
        "tailLines",
        "sinceTime",
        "gracePeriodSeconds",
        "propagationPolicy",
        "pretty",
        "x",
    ]);
    let value = prop_oneof![
        "[a-zA-Z0-9=!,()/._-]{0,16}",
        prop::collection::vec(any::<u8>(), 0..8).prop_map(|bytes| bytes
            .iter()
            .map(|byte| format!("%{byte:02x}"))
            .collect::<String>()),
    ];
    let pairs = prop::collection::vec((name, value), 0..4);
    pairs.prop_map(|pairs| {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        pairs.join("&")
    })
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "[ -~]{0,8}".prop_map(Into::into),
    ];
    let key = prop_oneof![
        3 => prop::sample::select(vec![
            "apiVersion", "kind", "metadata", "spec", "status", "name", "namespace", "labels",
            "containers", "notifiers", "handler", "exec", "command", "signal", "podName",
            "notifier", "data", "finalizers", "ownerReferences", "uid", "resourceVersion",
            "deletionTimestamp", "$patch", "op", "path", "value",
        ]).prop_map(str::to_owned),
        1 => "[ -~]{0,6}",
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn random_requests_never_get_a_5xx() -> anyhow::Result<()> {
    let instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let method = prop::sample::select(vec!["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]);
    let content_type = prop::sample::select(vec![
        "application/json",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "application/vnd.kubernetes.protobuf",
        "text/plain",
        "application/json; charset=utf-8; x=\"",
    ]);
    let body = prop_oneof![
        json().prop_map(|value| value.to_string().into_bytes()),
        prop::collection::vec(any::<u8>(), 0..64),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(|rest| [&b"k8s\0"[..], &rest].concat()),
    ];
    let path = prop::collection::vec(segment(), 0..8);
    let strategy = (method, path, query(), content_type, body);
    let handle = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        let config = Config {
            cases: 600,
            failure_persistence: None,
            ..Config::default()
        };
        TestRunner::new(config)
            .run(&strategy, |(method, path, query, content_type, body)| {
                let path = format!("/{}?{query}", path.join("/"));
                let method = Method::from_bytes(method.as_bytes()).expect("a method");
                let headers = [("content-type", content_type)];
                let sent = admin.send(method.clone(), &path, &headers, body);
                match handle.block_on(sent) {
                    Ok(reply) => {
                        let code = reply.status.as_u16();
                        // 501 and 504 are never right here, and 500 is a bug by definition.
                        prop_assert!(code < 500, "{method} {path}: {code} {}", reply.text());
                    }
                    // What the client itself cannot express is no finding about the server.
                    Err(error) => {
                        let text = format!("{error:#}").to_lowercase();
                        prop_assert!(
                            text.contains("uri")
                                || text.contains("header")
                                || text.contains("path"),
                            "{method} {path}: {error:#}"
                        );
                    }
                }
                Ok(())
            })
            .map_err(|error| anyhow::anyhow!("{error}"))
    })?;
    assert_unhurt(&instance).await
}
