//! The loop against a server that answers from a script: PodActions that somebody deleted while no
//! controller was there to see it.

use std::collections::BTreeMap;

use belay_api::hook::FINALIZER;
use http::{Method, Response};
use jiff::SignedDuration;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::testing::{Server, dated, drive, failure, for_a_while, list, reply};

const OWN: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/ns/executionhooks/h";
const LATER: &str = "2100-01-01T00:00:00Z";

/// What the server holds.
#[derive(Default)]
struct Script {
    hook: Value,
    children: BTreeMap<String, Value>,
    /// How a pod is read, instead of as it is.
    pods: Option<u16>,
    /// The pods that a list shows.
    listed: Vec<Value>,
    version: u64,
    log: Vec<String>,
}

impl Server for Script {
    fn answer(&mut self, method: &Method, path: &str, _: &str, body: Value) -> Response<Body> {
        let name = path.rsplit('/').next().unwrap_or_default();
        match *method {
            Method::GET if path == OWN && self.hook.is_null() => failure(404, "NotFound"),
            Method::GET if path == OWN => reply(200, &self.hook),
            Method::GET if name == "executionhooks" => {
                let there = (!self.hook.is_null()).then(|| self.hook.clone());
                reply(200, &list(there.as_slice()))
            }
            Method::GET if name == "podactions" => {
                let children: Vec<Value> = self.children.values().cloned().collect();
                reply(200, &list(&children))
            }
            Method::GET if path.ends_with("/hookactions/x") => reply(200, &action()),
            Method::GET if path.contains("/pods") && self.pods.is_some() => {
                failure(self.pods.unwrap(), "InternalError")
            }
            Method::GET if name == "pods" => reply(200, &list(&self.listed)),
            // A pod that could be acted on, were it asked for.
            Method::GET if path.ends_with(&format!("/pods/{name}")) => reply(200, &pod(name)),
            Method::GET => match self.children.get(name) {
                Some(child) => reply(200, child),
                None => failure(404, "NotFound"),
            },
            Method::PUT if self.hook.is_null() => failure(404, "NotFound"),
            Method::PUT => {
                let status = &body["status"];
                self.log.push(format!("status {}", status["actionSucceed"]));
                self.version += 1;
                self.hook = body;
                self.hook["metadata"]["resourceVersion"] = json!(self.version.to_string());
                reply(200, &self.hook)
            }
            Method::PATCH => {
                assert_eq!(body["metadata"]["finalizers"], json!([]));
                self.log.push(format!("release {name}"));
                let child = self.children.remove(name);
                child.map_or_else(|| failure(404, "NotFound"), |child| reply(200, &child))
            }
            Method::POST if name == "podactions" => {
                self.log.push(format!("create {}", body["spec"]["podName"]));
                let name = body["metadata"]["name"].as_str().unwrap();
                self.children.insert(name.to_owned(), body.clone());
                reply(201, &body)
            }
            Method::DELETE => {
                self.log.push(format!("delete {name}"));
                reply(200, &body)
            }
            _ => reply(201, &body),
        }
    }

    fn log(&self) -> &[String] {
        &self.log
    }
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "ns", "name": name, "uid": format!("u-{name}")},
        "spec": {"nodeName": "n1", "containers": [{"name": "a"}]},
        "status": {"phase": "Running"}})
}

fn action() -> Value {
    json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "HookAction",
        "metadata": {"namespace": "ns", "name": "x", "uid": "au", "resourceVersion": "7"},
        "action": {"exec": {"command": ["true"]}}, "actionTimeoutSeconds": 30})
}

/// A hook that has started in one container of each of these pods, and whose status tells nothing
/// more yet.
fn hook(pods: &[&str]) -> Value {
    let statuses: Vec<Value> = pods
        .iter()
        .map(|pod| json!({"podName": pod, "containerName": "a", "podUID": format!("u-{pod}")}))
        .collect();
    let created = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap();
    json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "ExecutionHook",
        "metadata": {"namespace": "ns", "name": "h", "uid": "hu", "resourceVersion": "1",
            "creationTimestamp": created.to_string()},
        "spec": {"podSelection": {}, "actionName": "x", "deadlineSeconds": 60},
        "status": {"startTime": created.to_string(), "hookStatuses": statuses,
            "action": {"uid": "au", "resourceVersion": "7", "actionTimeoutSeconds": 30,
                "action": {"exec": {"command": ["true"]}}}}})
}

fn name(pod: &str) -> String {
    belay_core::fanout::child_name("h", "hu", &format!("u-{pod}"))
}

/// The PodAction of this pod, which somebody has deleted.
fn leaving(pod: &str, status: &Value) -> (String, Value) {
    let child = json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodAction",
        "metadata": {"namespace": "ns", "name": name(pod), "resourceVersion": "5",
            "labels": {HOOK_LABEL: "hu"}, "finalizers": [FINALIZER],
            "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"hook": {"name": "h", "uid": "hu"}, "podName": pod,
            "podUID": format!("u-{pod}"), "nodeName": "n1", "containers": ["a"],
            "action": {"exec": {"command": ["true"]}}, "actionTimeoutSeconds": 30,
            "deadlineSeconds": 60},
        "status": status});
    (name(pod), child)
}

fn succeeded() -> Value {
    json!({"state": "Succeeded", "executor": "n1", "completeTime": "2026-01-01T00:00:00Z",
        "containers": [{"name": "a", "succeed": true, "attempts": 1}]})
}

fn claimed() -> Value {
    json!({"state": "New", "executor": "n1", "containers": [{"name": "a"}]})
}

fn script(hook: Value, children: impl IntoIterator<Item = (String, Value)>) -> Script {
    Script {
        hook,
        children: children.into_iter().collect(),
        version: 1,
        ..Script::default()
    }
}

async fn run_until(script: Script, until: impl FnMut(&mut Script) -> bool) -> Script {
    let run = |client, stop| run(Controllers::new(client), Clock::default(), stop);
    drive(run, script, until).await
}

fn is_empty(script: &mut Script) -> bool {
    script.children.is_empty()
}

#[tokio::test(start_paused = true)]
async fn one_that_was_deleted_after_it_succeeded_is_counted_and_not_made_again() {
    let done = run_until(script(hook(&["p"]), [leaving("p", &succeeded())]), is_empty).await;
    assert_eq!(
        done.log,
        ["status true".to_owned(), format!("release {}", name("p"))]
    );
    assert_eq!(done.hook["status"]["hookStatuses"][0]["succeed"], true);
}

#[tokio::test(start_paused = true)]
async fn one_that_was_deleted_before_anybody_took_it_up_is_cancelled_and_not_made_again() {
    for unclaimed in [Value::Null, json!({"state": "New"})] {
        let script = script(hook(&["p"]), [leaving("p", &unclaimed)]);
        let done = run_until(script, is_empty).await;
        assert_eq!(
            done.log,
            ["status false".to_owned(), format!("release {}", name("p"))]
        );
        let container = &done.hook["status"]["hookStatuses"][0];
        assert_eq!(container["error"]["errorType"], "Cancelled", "{container}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_runs_of_a_deleted_one_is_waited_for_and_what_came_of_it_is_counted() {
    let script = script(hook(&["p"]), [leaving("p", &claimed())]);
    let mut done = run_until(script, for_a_while()).await;
    assert!(done.children.contains_key(&name("p")), "{:?}", done.log);
    assert_eq!(done.hook["status"]["actionSucceed"], Value::Null);

    let child = done.children.get_mut(&name("p")).unwrap();
    child["status"] = succeeded();
    child["metadata"]["resourceVersion"] = json!("6");
    let done = run_until(done, is_empty).await;
    assert_eq!(done.hook["status"]["actionSucceed"], true);
    assert!(done.log.iter().all(|line| !line.starts_with("create")));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_counted_goes_while_its_hook_goes_on() {
    let mut busy = leaving("q", &claimed());
    busy.1["metadata"]["deletionTimestamp"] = Value::Null;
    let script = script(hook(&["p", "q"]), [leaving("p", &succeeded()), busy]);
    let done = run_until(script, |script| script.children.len() == 1).await;
    assert!(done.children.contains_key(&name("q")), "{:?}", done.log);
    // It may be listed again, and let go again, before it is gone.
    assert_eq!(
        done.log[..2],
        ["status null".to_owned(), format!("release {}", name("p"))]
    );
}

#[tokio::test(start_paused = true)]
async fn where_the_hook_is_gone_going_or_has_ended_it_stays_until_nothing_of_it_runs() {
    let mut going = hook(&["p", "q"]);
    going["metadata"]["deletionTimestamp"] = json!(LATER);
    let mut ended = hook(&["p", "q"]);
    ended["status"]["actionSucceed"] = json!(false);
    ended["status"]["completeTime"] = json!(LATER);
    for hook in [Value::Null, going, ended] {
        let children = [leaving("p", &claimed()), leaving("q", &Value::Null)];
        let mut done = run_until(script(hook, children), for_a_while()).await;
        assert_eq!(done.log, [format!("release {}", name("q"))]);
        assert!(done.children.contains_key(&name("p")));

        done.children.get_mut(&name("p")).unwrap()["status"]["state"] = json!("Failed");
        run_until(done, is_empty).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_deletes_is_left_alone() {
    let (name, mut alive) = leaving("p", &succeeded());
    alive["metadata"]["deletionTimestamp"] = Value::Null;
    let script = script(Value::Null, [(name.clone(), alive)]);
    let done = run_until(script, for_a_while()).await;
    assert!(done.log.is_empty(), "{:?}", done.log);
    assert!(done.children.contains_key(&name));
}

/// Runs the loop against a server whose clock is so many seconds ahead of this machine's.
async fn run_dated(script: Script, ahead: i64, until: impl FnMut(&mut Script) -> bool) -> Script {
    let run = |client, stop| {
        let clock = Clock::default();
        let client = dated(client, SignedDuration::from_secs(ahead));
        run(Controllers::new(clock.bind(client)), clock, stop)
    };
    drive(run, script, until).await
}

#[tokio::test(start_paused = true)]
async fn a_hook_has_its_time_by_the_servers_clock() {
    // By this machine's clock it was over before the hook was created.
    let hook = of_age(hook(&["p"]), 90);
    let ended = |script: &mut Script| script.hook["status"]["actionSucceed"].is_boolean();
    let done = run_dated(script(hook, []), -90, |script| {
        !script.children.is_empty() || ended(script)
    })
    .await;
    let child = done.children.get(&name("p"));
    let seconds = child.and_then(|child| child["spec"]["deadlineSeconds"].as_i64());
    assert!(
        seconds.is_some_and(|seconds| (50..60).contains(&seconds)),
        "{seconds:?} {}",
        done.hook["status"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_kept_for_its_time_by_the_clock_that_its_end_is_written_by() {
    let mut hook = hook(&["p"]);
    hook["spec"]["ttlSecondsAfterFinished"] = json!(10);
    let mut over = None;
    let done = run_dated(script(hook, [leaving("p", &succeeded())]), 30, |script| {
        if over.is_none() && script.hook["status"]["actionSucceed"].is_boolean() {
            over = Some(Instant::now());
        }
        over.is_some_and(|over| over.elapsed() > Duration::from_secs(9))
    })
    .await;
    assert!(!done.log.contains(&"delete h".to_owned()), "{:?}", done.log);
}

/// The hook, created so many seconds ago.
fn of_age(mut hook: Value, seconds: i64) -> Value {
    let created = jiff::Timestamp::now() - SignedDuration::from_secs(seconds);
    let created = jiff::Timestamp::from_second(created.as_second()).unwrap();
    hook["metadata"]["creationTimestamp"] = json!(created.to_string());
    hook
}

/// The hook before anybody has begun with it.
fn new(mut hook: Value, selection: &Value) -> Value {
    hook["status"] = Value::Null;
    hook["spec"]["podSelection"] = selection.clone();
    hook
}

#[tokio::test(start_paused = true)]
async fn one_whose_pods_cannot_be_read_in_its_time_ends() {
    let by_name = json!({"podContainerNamesList": [{"podName": "p"}]});
    let by_label = json!({"podContainerSelector": {"podSelector": {}}});
    let hooks = [
        new(hook(&[]), &by_name),
        new(hook(&[]), &by_label),
        // Begun, by a controller that knew the node.
        hook(&["p"]),
    ];
    for hook in hooks {
        let mut script = script(of_age(hook, 90), []);
        script.pods = Some(500);
        let done = run_until(script, |script| {
            script.hook["status"]["actionSucceed"].is_boolean()
        })
        .await;
        let status = &done.hook["status"];
        assert_eq!(status["actionSucceed"], false, "{status}");
        let error = match &status["error"] {
            Value::Null => &status["hookStatuses"][0]["error"],
            error => error,
        };
        assert_eq!(error["errorType"], "Expired", "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_selects_a_pod_that_cannot_be_read_never_succeeds_without_it() {
    let by_label = json!({"podContainerSelector": {"podSelector": {}}});
    let mut unreadable = pod("q");
    unreadable["spec"]["containers"] = json!("none");
    for (age, ends) in [(0, false), (90, true)] {
        let mut script = script(of_age(new(hook(&[]), &by_label), age), []);
        script.listed = vec![pod("p"), unreadable.clone()];
        let done = run_until(script, for_a_while()).await;
        assert!(done.children.is_empty(), "{:?}", done.log);
        let status = &done.hook["status"];
        assert_eq!(status["actionSucceed"] == false, ends, "{status}");
        if ends {
            let reason = status["error"]["reason"].as_str().unwrap();
            assert!(reason.contains("ns/q cannot be read"), "{reason}");
        }
    }
}

/// The watches of hooks and of PodActions are not in step with each other.
#[tokio::test]
async fn one_whose_deletion_is_told_before_that_of_its_hook_is_let_go() {
    let nobody = tower::service_fn(|_: http::Request<Body>| {
        std::future::pending::<Result<Response<Body>, std::io::Error>>()
    });
    let mut session = Session::new(
        &Controllers::new(Client::new(nobody, "ns")),
        Clock::default(),
    );
    let hook: ExecutionHook = serde_json::from_value(hook(&["p"])).unwrap();
    session.hook(Event::InitApply(hook.clone()));
    assert!(session.hook(Event::InitDone));
    let (_, child) = leaving("p", &Value::Null);
    session.action(Event::Apply(serde_json::from_value(child).unwrap()));
    assert!(session.releasing.is_empty(), "it would have to be counted");
    session.hook(Event::Delete(hook));
    assert_eq!(session.releasing.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_thousand_containers_is_written_once_a_second_and_stays_small() {
    let pods: Vec<String> = (0..100).map(|number| format!("pod-{number}")).collect();
    let names: Vec<String> = (0..10).map(|number| format!("c{number}")).collect();
    let mut all = hook(&[]);
    let of_pod = |pod: &String| -> Vec<Value> {
        let one =
            |name| json!({"podName": pod, "podUID": format!("u-{pod}"), "containerName": name});
        names.iter().map(one).collect()
    };
    all["status"]["hookStatuses"] = pods.iter().flat_map(of_pod).collect();
    // As much as an executor tells of a failure.
    let error = json!({"errorType": "ExecutionFailwithError", "reason": "x".repeat(1000),
        "message": "the command exited with code 9"});
    let failed = |name| json!({"name": name, "succeed": false, "attempts": 1, "error": error});
    let failed = json!({"state": "Failed", "executor": "n1", "completeTime": "2026-01-01T00:00:00Z",
        "containers": names.iter().map(failed).collect::<Vec<_>>()});
    let began = Instant::now();
    // Every fifth of a second another pod is done.
    let mut next = began;
    let done = run_until(script(all, []), |script| {
        let open = |child: &&mut Value| child["status"].is_null();
        if Instant::now() >= next
            && let Some(child) = script.children.values_mut().find(open)
        {
            next = Instant::now() + Duration::from_millis(200);
            child["status"] = failed.clone();
        }
        script.hook["status"]["actionSucceed"].is_boolean()
    })
    .await;
    let status = &done.hook["status"];
    assert_eq!(status["failedCount"], 1000);
    let writes = done.log.iter().filter(|line| line.starts_with("status"));
    let (writes, seconds) = (writes.count(), began.elapsed().as_secs());
    assert!(seconds >= 20, "{seconds} s");
    // One more at the end.
    let most = usize::try_from(seconds).unwrap() + 1;
    assert!((10..=most).contains(&writes), "{writes} in {seconds} s");
    assert!(status.to_string().len() < 1024 * 1024);
}
