//! Whatever is sent, the answer is a `Status`, never a panic and never a 5xx.

use proptest::prelude::*;
use serde_json::json;

use crate::harness::{Harness, MAPS, NOTIFICATIONS, PODS, pod};

#[tokio::test]
async fn malformed_requests_are_the_clients_fault() {
    let h = Harness::start().await;
    let c = h.admin();
    let json_type = [("content-type", "application/json")];
    for body in [
        "",
        "{",
        "null",
        "[]",
        "\"x\"",
        "{\"metadata\":7}",
        "{\"metadata\":{\"name\":{}}}",
        "\u{0}",
    ] {
        for path in [MAPS, PODS, NOTIFICATIONS] {
            let answer = c
                .send("POST", path, &json_type, body.as_bytes().to_vec())
                .await;
            assert!(answer.code.is_client_error(), "{path} {body:?}: {answer:?}");
            assert_eq!(answer.body["kind"], "Status");
        }
    }
    let deep = "[".repeat(100_000);
    assert_eq!(
        c.send("POST", MAPS, &json_type, deep.into_bytes())
            .await
            .code,
        400
    );
    let huge = vec![b' '; 4 << 20];
    c.send("POST", MAPS, &json_type, huge)
        .await
        .refused(413, "RequestEntityTooLarge");
    for content_type in [
        "text/plain",
        "application/vnd.kubernetes.protobuf",
        "application/yaml",
    ] {
        let answer = c
            .send(
                "POST",
                MAPS,
                &[("content-type", content_type)],
                b"{}".to_vec(),
            )
            .await;
        answer.refused(415, "UnsupportedMediaType");
    }
    for (method, path) in [
        ("PUT", MAPS),
        ("PATCH", PODS),
        ("POST", "/api"),
        ("DELETE", "/version"),
    ] {
        c.send(method, path, &json_type, b"{}".to_vec())
            .await
            .refused(405, "MethodNotAllowed");
    }
    c.post(PODS, &pod("p")).await.ok();
    for sub in ["binding", "log", "exec", "attach", "portforward"] {
        let path = format!("{PODS}/p/{sub}");
        c.put(&path, &pod("p"))
            .await
            .refused(405, "MethodNotAllowed");
        c.patch(&path, "merge-patch", &json!({}))
            .await
            .refused(405, "MethodNotAllowed");
    }
    let accept = [("accept", "application/vnd.kubernetes.protobuf")];
    c.send("GET", MAPS, &accept, vec![])
        .await
        .refused(406, "NotAcceptable");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn random_requests_never_break_the_server(
        requests in proptest::collection::vec(
            (
                prop_oneof![Just("GET"), Just("POST"), Just("PUT"), Just("PATCH"), Just("DELETE")],
                "(/(api|apis|v1|apps\\.k8s\\.io|v1alpha1|namespaces|default|pods|configmaps|a|status|[a-z%./]{0,6})){0,8}",
                "((watch|limit|continue|labelSelector|fieldSelector|resourceVersion|dryRun|x)=[a-z0-9%=!,()]{0,8}&){0,3}timeoutSeconds=1",
                prop_oneof![
                    Just("application/json"), Just("application/json-patch+json"),
                    Just("application/merge-patch+json"),
                    Just("application/strategic-merge-patch+json"), Just("x/y"),
                ],
                prop_oneof![
                    "\\PC{0,60}".prop_map(String::into_bytes),
                    proptest::collection::vec(any::<u8>(), 0..60),
                    Just(json!({"metadata": {"name": "a"}, "spec": {"containers": [{}]}}).to_string().into_bytes()),
                ],
            ),
            1..20,
        )
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let h = Harness::start().await;
            let c = h.admin();
            for (method, path, query, content_type, body) in requests {
                let uri = format!("{}?{query}", if path.is_empty() { "/" } else { &path });
                if uri.parse::<http::Uri>().is_err() {
                    continue;
                }
                let answer = c.send(method, &uri, &[("content-type", content_type)], body).await;
                assert!(!answer.code.is_server_error(), "{method} {uri}: {answer:?}");
            }
            c.get("/readyz").await.ok();
        });
    }
}
