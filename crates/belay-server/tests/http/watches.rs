//! Watches: resumption, selection, bookmarks, the end of history.

use std::pin::pin;

use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::harness::{Client, Harness, MAPS, PODS, map, pod, run_pod};

/// The events of a watch, as they arrive.
pub(crate) async fn watch(client: &Client, path: &str) -> BoxStream<'static, Value> {
    let request = Request::get(path)
        .body(kube::client::Body::empty())
        .unwrap();
    let response = client.0.send(request).await.unwrap();
    assert!(response.status().is_success(), "{}", response.status());
    let lines = response
        .into_body()
        .into_data_stream()
        .map_err(std::io::Error::other);
    let lines = tokio_util::io::StreamReader::new(lines);
    let lines = tokio_util::codec::FramedRead::new(lines, tokio_util::codec::LinesCodec::new());
    lines
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .boxed()
}

fn brief(event: &Value) -> String {
    let object = &event["object"];
    format!(
        "{} {}",
        event["type"].as_str().unwrap(),
        object["metadata"]["name"].as_str().unwrap_or("")
    )
}

async fn take(stream: &mut BoxStream<'static, Value>, count: usize) -> Vec<String> {
    pin!(stream).take(count).map(|e| brief(&e)).collect().await
}

#[tokio::test]
async fn a_watch_resumes_from_any_revision_it_has_seen() {
    let h = Harness::start().await;
    let c = h.admin();
    let first = c.post(MAPS, &map("a", &[])).await.ok();
    let rv = first["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    c.patch(
        &format!("{MAPS}/a"),
        "merge-patch",
        &json!({"data": {"x": "1"}}),
    )
    .await
    .ok();
    c.post(MAPS, &map("b", &[])).await.ok();
    c.delete(&format!("{MAPS}/a")).await.ok();
    let path = format!("{MAPS}?watch=1&resourceVersion={rv}");
    let mut events = watch(&c, &path).await;
    let expected = ["MODIFIED a", "ADDED b", "DELETED a"];
    assert_eq!(take(&mut events, 3).await, expected);
    let h = h.reopen(Default::default()).await;
    let c = h.admin();
    let mut events = watch(&c, &path).await;
    assert_eq!(
        take(&mut events, 3).await,
        expected,
        "the history survives a restart"
    );
    c.post(MAPS, &map("c", &[])).await.ok();
    assert_eq!(take(&mut events, 1).await, ["ADDED c"]);
}

#[tokio::test]
async fn a_watch_without_a_revision_begins_with_what_is_there() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(MAPS, &map("a", &[])).await.ok();
    let mut events = watch(&c, &format!("{MAPS}?watch=1")).await;
    assert_eq!(take(&mut events, 1).await, ["ADDED a"]);
    let mut events = watch(&c, &format!("{MAPS}?watch")).await;
    assert_eq!(take(&mut events, 1).await, ["ADDED a"]);
    let streaming =
        "watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let mut events = watch(&c, &format!("{MAPS}?{streaming}")).await;
    assert_eq!(take(&mut events, 1).await, ["ADDED a"]);
    let bookmark = events.next().await.unwrap();
    assert_eq!(
        bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
}

#[tokio::test]
async fn what_comes_to_match_is_added_and_what_ceases_to_is_deleted() {
    let h = Harness::start().await;
    let c = h.admin();
    let mut events = watch(
        &c,
        &format!("{PODS}?watch=1&fieldSelector=spec.nodeName%3Dn1"),
    )
    .await;
    c.post(PODS, &pod("p")).await.ok();
    run_pod(&c, "p", "n1").await;
    assert_eq!(take(&mut events, 2).await, ["ADDED p", "MODIFIED p"]);
    let mut events = watch(&c, &format!("{PODS}?watch=1&labelSelector=app%3Dp")).await;
    let relabel = json!({"metadata": {"labels": {"app": "q"}}});
    c.patch(&format!("{PODS}/p"), "merge-patch", &relabel)
        .await
        .ok();
    assert_eq!(take(&mut events, 2).await, ["ADDED p", "DELETED p"]);
}

#[tokio::test]
async fn a_watch_that_ends_in_time_leaves_a_bookmark() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "other"}}),
    )
    .await
    .ok();
    let newest = c.get(MAPS).await.ok()["metadata"]["resourceVersion"].clone();
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true");
    let events: Vec<Value> = watch(&c, &path).await.collect().await;
    let last = events.last().unwrap();
    assert_eq!(last["type"], "BOOKMARK");
    assert_eq!(last["object"]["metadata"]["resourceVersion"], newest);
}

#[tokio::test]
async fn a_bookmark_has_the_form_that_was_asked_for() {
    let h = Harness::start().await;
    let c = h.admin();
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true");
    for (accepted, kind, version) in [
        ("application/json", "ConfigMap", "v1"),
        (
            "application/json;as=Table;v=v1;g=meta.k8s.io",
            "Table",
            "meta.k8s.io/v1",
        ),
        (
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
            "PartialObjectMetadata",
            "meta.k8s.io/v1",
        ),
    ] {
        let headers = [("accept", accepted)];
        let answer = c.send("GET", &path, &headers, Vec::new()).await;
        let event = if answer.body.is_object() {
            answer.body
        } else {
            let text = answer.body.as_str().unwrap();
            serde_json::from_str(text.lines().last().unwrap()).unwrap()
        };
        assert_eq!(event["type"], "BOOKMARK", "{event}");
        assert_eq!(event["object"]["kind"], kind);
        assert_eq!(event["object"]["apiVersion"], version);
    }
}

#[tokio::test]
async fn a_bookmark_is_past_what_happened_elsewhere() {
    let h = Harness::start().await;
    let c = h.admin();
    let revision = |object: &Value| -> u64 {
        let text = object["metadata"]["resourceVersion"].as_str().unwrap();
        text.parse().unwrap()
    };
    let mut last = json!(null);
    // On a busy machine the first watch may be over before the namespace is there.
    for seconds in [1, 5, 30] {
        let path = format!("{MAPS}?watch=1&timeoutSeconds={seconds}&allowWatchBookmarks=true");
        let events = watch(&c, &path).await;
        let space = json!({"metadata": {"name": format!("after-{seconds}")}});
        let elsewhere = h.admin().post("/api/v1/namespaces", &space).await.ok();
        last = events.collect::<Vec<_>>().await.pop().unwrap();
        if revision(&last["object"]) >= revision(&elsewhere) {
            return;
        }
    }
    panic!("{last}");
}

#[tokio::test]
async fn a_revision_older_than_the_history_is_gone() {
    let h = Harness::start().await;
    let c = h.admin();
    c.post(MAPS, &map("a", &[])).await.ok();
    // Ten thousand events are remembered; these push the first out.
    let clients: Vec<Client> = (0..32).map(|_| h.admin()).collect();
    futures::future::join_all(clients.iter().enumerate().map(|(i, client)| async move {
        client.post(MAPS, &map(&format!("w{i}"), &[])).await.ok();
        for n in 0..330 {
            let patch = json!({"data": {"n": n.to_string()}});
            client
                .patch(&format!("{MAPS}/w{i}"), "merge-patch", &patch)
                .await
                .ok();
        }
    }))
    .await;
    // In the stream, as a stock server says it: clients look for it there, and list again.
    for (revision, why) in [("2", "too old resource version"), ("99999999", "is newer")] {
        let path = format!("{MAPS}?watch=1&resourceVersion={revision}");
        let events: Vec<Value> = watch(&c, &path).await.collect().await;
        let [event] = &events[..] else {
            panic!("{events:?}");
        };
        assert_eq!(event["type"], "ERROR", "{event}");
        assert_eq!(event["object"]["kind"], "Status", "{event}");
        assert_eq!(event["object"]["code"], 410, "{event}");
        assert_eq!(event["object"]["reason"], "Expired", "{event}");
        let message = event["object"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
}
