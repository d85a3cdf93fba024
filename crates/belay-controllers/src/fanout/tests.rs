//! The driver against a server that answers from a script, for faults that a real server cannot be
//! made to show on demand: answers that get lost, statuses that somebody else writes.

use std::collections::BTreeMap;

use http::{Method, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::testing::{Server, dated, drive, failure, for_a_while, list, reply};

const CHILDREN: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/ns/podnotifications";
const OWN: &str = "/apis/apps.k8s.io/v1alpha1/namespaces/ns/notifications/n";

/// What the server holds and how it behaves.
#[derive(Default)]
struct Script {
    notification: Value,
    pods: Vec<Value>,
    children: BTreeMap<String, Value>,
    /// How many more creations are carried out and not answered.
    lose_answers: usize,
    /// How many more creations are refused.
    refuse: usize,
    /// Refuses an exact version, as a server that has compacted it does.
    forgot: bool,
    /// Does not list pods.
    no_pods: bool,
    /// Taken by the next write of the status, which then meets this object and a conflict.
    meanwhile: Option<Value>,
    /// A child that is claimed as soon as somebody reads it by its name.
    claimed_when_read: Option<String>,
    version: u64,
    log: Vec<String>,
}

impl Server for Script {
    fn answer(&mut self, method: &Method, path: &str, query: &str, body: Value) -> Response<Body> {
        if method == Method::GET {
            return match path {
                "/api/v1/namespaces/ns/pods" if self.forgot && query.contains("Exact") => {
                    failure(410, "Expired")
                }
                "/api/v1/namespaces/ns/pods" if self.no_pods => failure(500, "InternalError"),
                "/api/v1/namespaces/ns/pods" | "/api/v1/pods" => {
                    self.log.push(format!("pods {}", query.contains("Exact")));
                    reply(200, &list(&self.pods))
                }
                "/apis/apps.k8s.io/v1alpha1/podnotifications" => {
                    let children: Vec<Value> = self.children.values().cloned().collect();
                    reply(200, &list(&children))
                }
                "/apis/apps.k8s.io/v1alpha1/notifications" => {
                    let there = (!self.notification.is_null()).then(|| self.notification.clone());
                    reply(200, &list(there.as_slice()))
                }
                OWN => reply(200, &self.notification),
                _ => self.show(path.rsplit('/').next().unwrap_or_default()),
            };
        }
        if method == Method::POST && path == CHILDREN {
            return self.create(body);
        }
        if method == Method::PUT {
            return self.write(body);
        }
        if method == Method::PATCH {
            let name = path.rsplit('/').next().unwrap_or_default();
            if path.contains("/bad/") {
                self.log.push(format!("refuse {name}"));
                return failure(500, "InternalError");
            }
            self.log.push(format!("release {name}"));
            assert_eq!(body["metadata"]["finalizers"], json!([]));
            let child = self.children.remove(name);
            return child.map_or_else(|| failure(404, "NotFound"), |child| reply(200, &child));
        }
        if method == Method::DELETE {
            let name = path.rsplit('/').next().unwrap_or_default();
            self.log.push(format!("delete {name}"));
        }
        if path.ends_with("/events") {
            let text = |field: &str| body[field].as_str().unwrap_or_default().to_owned();
            self.log
                .push(format!("event {} {}", text("reason"), text("message")));
        }
        reply(201, &body)
    }

    fn log(&self) -> &[String] {
        &self.log
    }
}

impl Script {
    fn show(&mut self, name: &str) -> Response<Body> {
        if self.claimed_when_read.take_if(|it| it == name).is_some() {
            self.children.get_mut(name).unwrap()["status"]["executor"] = json!("node");
        }
        let Some(child) = self.children.get(name).cloned() else {
            return failure(404, "NotFound");
        };
        reply(200, &child)
    }

    fn create(&mut self, mut child: Value) -> Response<Body> {
        let name = child["metadata"]["name"].as_str().unwrap().to_owned();
        self.log
            .push(format!("create {}", child["spec"]["podName"]));
        if self.refuse > 0 {
            self.refuse -= 1;
            return failure(403, "Forbidden");
        }
        if self.children.contains_key(&name) {
            return failure(409, "AlreadyExists");
        }
        // Nobody declares the notifier: it is final at once.
        child["status"] = json!({"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z"});
        self.children.insert(name, child.clone());
        if self.lose_answers > 0 {
            self.lose_answers -= 1;
            return failure(500, "InternalError");
        }
        reply(201, &child)
    }

    fn write(&mut self, mut object: Value) -> Response<Body> {
        if let Some(other) = self.meanwhile.take() {
            self.notification = other;
            return failure(409, "Conflict");
        }
        if object["metadata"]["resourceVersion"] != self.notification["metadata"]["resourceVersion"]
        {
            return failure(409, "Conflict");
        }
        self.log.push(format!(
            "status {} {}",
            object["status"]["state"], object["status"]["succeededCount"]
        ));
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(format!("w{}", self.version));
        self.notification = object.clone();
        reply(200, &object)
    }
}

fn pod(name: &str, phase: &str, created: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "spec": {}, "status": {"phase": phase},
        "metadata": {"namespace": "ns", "name": name, "uid": format!("u-{name}"),
            "creationTimestamp": created}})
}

fn notification(spec: &Value) -> Value {
    let mut whole = json!({"selector": {}, "notifier": "work", "policy": "PreExistingPods"});
    for (field, value) in spec.as_object().unwrap() {
        whole[field] = value.clone();
    }
    json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification", "spec": whole,
        "metadata": {"namespace": "ns", "name": "n", "uid": "u", "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:10Z"}})
}

fn script(spec: &Value) -> Script {
    Script {
        notification: notification(spec),
        pods: vec![
            pod("a", "Running", "2026-01-01T00:00:00Z"),
            pod("b", "Running", "2026-01-01T00:00:00Z"),
            pod("c", "Pending", "2026-01-01T00:00:00Z"),
        ],
        ..Script::default()
    }
}

/// Runs the driver until the Notification is final.
async fn run_to_the_end(script: Script) -> Script {
    run_until(script, |script| {
        let state = &script.notification["status"]["state"];
        state == "Succeeded" || state == "Failed"
    })
    .await
}

/// Runs the driver until something holds of the server.
async fn run_until(script: Script, until: impl FnMut(&mut Script) -> bool) -> Script {
    let run = |client, stop| run(Controllers::new(client), Clock::default(), stop);
    drive(run, script, until).await
}

/// Runs the driver against a server whose clock is half a minute ahead of this machine's.
async fn run_behind(script: Script, until: impl FnMut(&mut Script) -> bool) -> Script {
    let run = |client, stop| {
        let clock = Clock::default();
        let client = dated(client, jiff::SignedDuration::from_secs(30));
        run(Controllers::new(clock.bind(client)), clock, stop)
    };
    drive(run, script, until).await
}

fn created(script: &Script) -> Vec<&str> {
    let created = script.log.iter().filter(|line| line.starts_with("create"));
    created.map(String::as_str).collect()
}

#[tokio::test(start_paused = true)]
async fn the_set_is_fixed_at_the_notifications_version_before_anybody_is_notified() {
    let done = run_to_the_end(script(&json!({}))).await;
    assert_eq!(
        done.log[..2],
        ["pods true", "status \"New\" 0"],
        "{:?}",
        done.log
    );
    assert_eq!(created(&done), ["create \"a\"", "create \"b\""]);
    let status = &done.notification["status"];
    assert_eq!(status["state"], "Succeeded");
    assert_eq!(
        (&status["targetCount"], &status["succeededCount"]),
        (&json!(2), &json!(2))
    );
    let child = done.children.values().next().unwrap();
    let pod = child["spec"]["podName"].as_str().unwrap();
    assert_eq!(child["spec"]["podUID"], format!("u-{pod}"));
    assert_eq!(
        child["metadata"]["finalizers"],
        json!(["apps.k8s.io/notification"])
    );
    assert_eq!(child["metadata"]["ownerReferences"][0]["controller"], true);
}

#[tokio::test(start_paused = true)]
async fn where_the_version_is_forgotten_pods_that_came_later_are_left_out() {
    let mut script = script(&json!({}));
    script.forgot = true;
    script
        .pods
        .push(pod("late", "Running", "2026-01-01T00:00:11Z"));
    let done = run_to_the_end(script).await;
    assert_eq!(created(&done), ["create \"a\"", "create \"b\""]);
}

#[tokio::test(start_paused = true)]
async fn more_pods_than_a_status_can_remember_are_too_many_and_nobody_is_notified() {
    use belay_api::fanout::{MAX_TARGET_BYTES, MAX_TARGETS};
    let many = |count: usize, length: usize| {
        let name = |number: usize| format!("{number:0>length$}");
        let created = "2026-01-01T00:00:00Z";
        (0..count)
            .map(|it| pod(&name(it), "Running", created))
            .collect()
    };
    // Each of them is there by name and UID, and what separates them.
    let long = MAX_TARGET_BYTES / (250 + 252 + 4) + 1;
    let cases: [Vec<Value>; 2] = [many(MAX_TARGETS + 1, 5), many(long, 250)];
    for pods in cases {
        let mut script = script(&json!({}));
        let count = pods.len();
        script.pods = pods;
        // What is told of its end comes after it.
        let told = |line: &String| line.starts_with("event") && line.contains("TooManyPods");
        let done = run_until(script, |script| script.log.iter().any(told)).await;
        let status = &done.notification["status"];
        assert_eq!(status["state"], "Failed", "{status}");
        assert_eq!(status["error"]["type"], "TooManyPods", "{status}");
        let message = status["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("{count} pods")), "{message}");
        assert!(status["completeTime"].is_string(), "{status}");
        assert_eq!(created(&done), [""; 0], "nothing was run");
    }
}

#[tokio::test(start_paused = true)]
async fn a_creation_whose_answer_got_lost_is_found_and_not_repeated() {
    let mut script = script(&json!({"parallelism": 1}));
    script.lose_answers = 1;
    let done = run_to_the_end(script).await;
    assert_eq!(created(&done), ["create \"a\"", "create \"b\""]);
    assert_eq!(done.notification["status"]["succeededCount"], 2);
}

/// A final child of pod `a`, as whoever may create notifications can write it.
fn forged(name: &str, notifier: &str) -> (String, Value) {
    let owner = json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification", "name": "n",
        "uid": "u", "controller": true});
    let object = json!({"apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
        "metadata": {"namespace": "ns", "name": name, "ownerReferences": [owner]},
        "spec": {"podName": "a", "podUID": "u-a", "notifier": notifier},
        "status": {"state": "Succeeded", "completeTime": "2026-01-01T00:00:00Z"}});
    (name.to_owned(), object)
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_calls_a_child_counts_for_nothing() {
    let own = belay_core::fanout::child_name("n", "u", "u-a");
    for (name, notifier) in [("n-1", "work"), ("n-1", "other")] {
        let mut script = script(&json!({"parallelism": 1}));
        script.children.extend([forged(name, notifier)]);
        let done = run_to_the_end(script).await;
        let child = &done.children[&own];
        assert_eq!(child["spec"]["notifier"], "work", "{name} {notifier}");
        let status = &done.notification["status"];
        assert_eq!(status["succeededCount"], 2, "{name} {notifier}: {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_child_s_name_is_taken_fails_and_the_others_are_notified() {
    let own = belay_core::fanout::child_name("n", "u", "u-a");
    let mut script = script(&json!({"parallelism": 1}));
    script.children.extend([forged(&own, "other")]);
    let done = run_to_the_end(script).await;
    assert_eq!(created(&done), ["create \"a\"", "create \"b\""]);
    assert_eq!(done.children[&own]["spec"]["notifier"], "other");
    let status = &done.notification["status"];
    assert_eq!(
        (
            &status["state"],
            &status["succeededCount"],
            &status["failedCount"]
        ),
        (&json!("Failed"), &json!(1), &json!(1))
    );
    let told = |event: &&String| event.starts_with("event FailedCreate") && event.contains(&own);
    assert_eq!(done.log.iter().filter(told).count(), 1, "{:?}", done.log);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_child_is_refused_waits_until_the_others_had_their_turn() {
    let mut script = script(&json!({"parallelism": 1}));
    script.refuse = 1;
    let done = run_to_the_end(script).await;
    assert_eq!(
        created(&done),
        ["create \"a\"", "create \"b\"", "create \"a\""]
    );
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_is_refused_is_tried_again() {
    let mut script = script(&json!({"parallelism": 1}));
    script.refuse = 2;
    let done = run_to_the_end(script).await;
    assert_eq!(created(&done).len(), 4);
    assert_eq!(done.children.len(), 2);
    assert_eq!(done.notification["status"]["succeededCount"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_metadata_is_taken_over_and_the_status_written_on_it() {
    let mut script = script(&json!({}));
    let mut labelled = notification(&json!({}));
    labelled["metadata"]["labels"] = json!({"touched": "yes"});
    labelled["metadata"]["resourceVersion"] = json!("8");
    script.meanwhile = Some(labelled);
    let done = run_to_the_end(script).await;
    assert_eq!(done.notification["metadata"]["labels"]["touched"], "yes");
    assert_eq!(done.children.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_somebody_else_has_begun_is_read_anew_and_gone_on_with() {
    let mut script = script(&json!({}));
    let mut begun = notification(&json!({}));
    begun["metadata"]["resourceVersion"] = json!("8");
    begun["status"] = json!({"state": "New", "startTime": "2026-01-01T00:00:10Z",
        "targetCount": 1, "pending": ["b/u-b"]});
    script.meanwhile = Some(begun);
    let done = run_to_the_end(script).await;
    assert_eq!(
        created(&done),
        ["create \"b\""],
        "the set was fixed by the other"
    );
    assert_eq!(done.notification["status"]["targetCount"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_negative_parallelism_and_a_selector_that_is_none_fail_at_once() {
    let bad = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
    // What does not fit in a request.
    let values: Vec<String> = (0..2000).map(|n| format!("{n:0>40}")).collect();
    let long = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
    for (spec, error) in [
        (json!({"parallelism": -2}), "InvalidParallelism"),
        (json!({"selector": bad}), "InvalidSelector"),
        (json!({"selector": long}), "InvalidSelector"),
    ] {
        let done = run_to_the_end(script(&spec)).await;
        assert_eq!(done.notification["status"]["error"]["type"], error);
        assert!(done.children.is_empty());
    }
}

/// A child of pod `pod` that is being deleted and held.
fn leaving(pod: &str, status: &Value) -> (String, Value) {
    let name = belay_core::fanout::child_name("n", "u", &format!("u-{pod}"));
    let (_, mut child) = forged(&name, "work");
    child["spec"]["podName"] = json!(pod);
    child["spec"]["podUID"] = json!(format!("u-{pod}"));
    child["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:20Z");
    child["metadata"]["finalizers"] = json!([belay_api::fanout::FINALIZER]);
    child["status"] = status.clone();
    (name, child)
}

#[tokio::test(start_paused = true)]
async fn without_its_notification_a_child_stays_until_its_handler_has_ended() {
    let running = leaving("a", &json!({"state": "New", "executor": "node"}));
    let (running_name, unclaimed) = (running.0.clone(), leaving("b", &json!({"state": "New"})));
    let unclaimed_name = unclaimed.0.clone();
    let mut script = script(&json!({}));
    script.notification = Value::Null;
    script.children.extend([running, unclaimed]);
    // Long after the one that nobody claimed has been let go, the other is still there.
    let mut done = run_until(script, for_a_while()).await;
    assert!(done.log.contains(&format!("release {unclaimed_name}")));
    assert!(done.children.contains_key(&running_name), "{:?}", done.log);

    done.children.get_mut(&running_name).unwrap()["status"]["state"] = json!("Failed");
    let done = run_until(done, |script| script.children.is_empty()).await;
    assert!(done.log.contains(&format!("release {running_name}")));
}

/// The watches of Notifications and of children are not in step with each other.
#[test]
fn a_child_whose_deletion_is_told_before_that_of_its_notification_is_let_go() {
    let now = Instant::now();
    let mut ledger = Ledger::default();
    let mut begun = notification(&json!({}));
    begun["status"] = json!({"state": "New", "startTime": "2026-01-01T00:00:11Z",
        "targetCount": 1, "pending": ["a/u-a"]});
    ledger.notification_listed(serde_json::from_value(begun).unwrap(), now);
    ledger.notifications_listed();
    ledger.children_listed(now);

    let (name, child) = leaving("a", &json!({"state": "New"}));
    ledger.child_applied(&serde_json::from_value(child).unwrap(), now);
    assert_eq!(ledger.next_release(), None, "it would have to be counted");
    ledger.notification_gone("u");
    assert_eq!(ledger.next_release(), Some(("ns".to_owned(), name)));
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_claimed_before_it_is_let_go_stays() {
    let (name, child) = leaving("a", &json!({"state": "New"}));
    let mut script = script(&json!({}));
    script.notification = Value::Null;
    script.children.extend([(name.clone(), child)]);
    script.claimed_when_read = Some(name.clone());
    let done = run_until(script, for_a_while()).await;
    assert_eq!(done.claimed_when_read, None, "it was about to be let go");
    assert!(done.children.contains_key(&name), "{:?}", done.log);
}

#[tokio::test(start_paused = true)]
async fn one_is_kept_for_its_time_by_the_clock_that_its_end_is_written_by() {
    let script = script(&json!({"ttlSecondsAfterFinished": 10}));
    let mut over = None;
    let done = run_behind(script, |script| {
        if over.is_none() && script.notification["status"]["completeTime"].is_string() {
            over = Some(Instant::now());
        }
        over.is_some_and(|over| over.elapsed() > Duration::from_secs(9))
    })
    .await;
    assert!(!done.log.contains(&"delete n".to_owned()), "{:?}", done.log);
}

/// A ledger with a Notification that has begun, and with no children yet.
fn begun(object: &Value, now: Instant) -> Ledger {
    let mut ledger = Ledger::default();
    ledger.notification_listed(serde_json::from_value(object.clone()).unwrap(), now);
    ledger.notifications_listed();
    ledger
}

#[test]
fn who_waits_for_the_last_ones_after_its_time_does_not_look_again_and_again() {
    let now = Instant::now();
    let mut object = of_age(61, &json!({"deadlineSeconds": 60, "parallelism": 1})).notification;
    object["status"] = json!({"state": "New", "startTime": "2026-01-01T00:00:11Z",
        "targetCount": 3, "pending": ["b/u-b", "c/u-c"]});
    let mut ledger = begun(&object, now);
    let own = belay_core::fanout::child_name("n", "u", "u-a");
    let (_, mut running) = forged(&own, "work");
    running["status"] = json!({"state": "New", "executor": "node"});
    ledger.child_listed(&serde_json::from_value(running).unwrap(), now);
    ledger.children_listed(now);
    // When its status may be written, and long after.
    for seconds in [2, 2, 2, 600, 600] {
        let now = now + Duration::from_secs(seconds);
        ledger.wake(now);
        assert!(ledger.next_child(now).is_none());
    }
    let now = now + Duration::from_secs(600);
    let timer = ledger.next_timer();
    assert!(timer.is_none_or(|at| at > now), "{timer:?} at {now:?}");
    assert!(
        matches!(ledger.next_op(), Some(Op::Write(_, status)) if status.error.is_some()),
        "it tells that its time is over"
    );
}

/// A running pod, as the watch tells of it.
fn running(name: &str) -> pods::PodFacts {
    let pod = pod(name, "Running", "2026-01-01T00:00:00Z");
    pods::facts(&serde_json::from_value(pod).unwrap())
}

/// A ledger whose Notification with `AllPods` has begun and knows of one pod.
fn open(pod: &str, now: Instant) -> Ledger {
    let mut object = notification(&json!({"policy": "AllPods"}));
    object["status"] = json!({"state": "New", "startTime": "2026-01-01T00:00:11Z"});
    let mut ledger = begun(&object, now);
    ledger.children_listed(now);
    ledger.pods_listing();
    ledger.pod_listed("ns", running(pod), now);
    ledger.pods_listed(now);
    ledger
}

#[test]
fn a_pod_that_comes_while_another_is_always_refused_does_not_wait() {
    let mut now = Instant::now();
    let mut ledger = open("a", now);
    // Refused again and again, until the pause is 8 s.
    for pause in [1, 2, 4, 8] {
        let (_, refused) = ledger.next_child(now).expect("its turn");
        ledger.created("u", &refused, Creation::Refused("quota".to_owned()), now);
        assert!(ledger.next_child(now).is_none());
        if pause < 8 {
            now += Duration::from_secs(pause);
            ledger.wake(now);
        }
    }
    ledger.pod_applied("ns", running("b"), now);
    let (_, next) = ledger.next_child(now).expect("nothing is known against it");
    assert_eq!(next.name, "b");
    assert!(ledger.next_child(now).is_none(), "the other still waits");
    // Where the server does not answer, nobody has better luck.
    ledger.created("u", &next, Creation::Unanswered("?".to_owned()), now);
    ledger.pod_applied("ns", running("c"), now);
    assert!(ledger.next_child(now).is_none());
}

#[test]
fn of_a_pod_that_went_while_its_child_was_made_nothing_is_kept() {
    let answers = [
        (Creation::Taken("n-1".to_owned()), 1),
        (Creation::Refused("quota".to_owned()), 0),
    ];
    for (answer, targets) in answers {
        let told = format!("{answer:?}");
        let mut now = Instant::now();
        let mut ledger = open("a", now);
        let (_, target) = ledger.next_child(now).expect("its turn");
        ledger.pod_deleted("ns", &target, now);
        ledger.created("u", &target, answer, now);
        now += Duration::from_secs(600);
        ledger.wake(now);
        assert!(ledger.next_child(now).is_none(), "{told}");
        let write = |op| match op {
            Op::Write(_, status) => Some(status),
            Op::Fix(..) | Op::Tell(_) => None,
        };
        let status = std::iter::from_fn(|| ledger.next_op()).find_map(write);
        // Where nothing has changed nothing is written.
        let status = status.unwrap_or_default();
        let settled = status.settled.unwrap_or_default();
        assert!(settled.pod_uids.is_empty(), "{told}: {settled:?}");
        assert_eq!(status.target_count, targets, "{told}");
    }
}

fn idle(client: Client, stop: CancellationToken) -> impl Future<Output = ()> + Send {
    idle::run(client, Clock::default(), stop)
}

#[tokio::test(start_paused = true)]
async fn with_the_gate_off_children_without_a_notification_go_and_nothing_else_happens() {
    let (name, child) = leaving("a", &json!({"state": "New"}));
    let mut alone = script(&json!({}));
    alone.notification = Value::Null;
    alone.children.extend([(name.clone(), child.clone())]);
    let done = drive(idle, alone, |script| script.children.is_empty()).await;
    assert_eq!(done.log, [format!("release {name}")]);

    let mut held = script(&json!({}));
    held.children.extend([(name.clone(), child)]);
    let done = drive(idle, held, for_a_while()).await;
    assert!(done.log.is_empty(), "{:?}", done.log);
    assert!(done.children.contains_key(&name), "it is not counted");
}

/// A Notification that was created so many seconds ago.
fn of_age(seconds: i64, spec: &Value) -> Script {
    let mut script = script(spec);
    let created = Timestamp::now() - jiff::SignedDuration::from_secs(seconds);
    let created = Timestamp::from_second(created.as_second()).unwrap();
    script.notification["metadata"]["creationTimestamp"] = json!(created.to_string());
    script
}

fn deadlines(script: &Script) -> Vec<i64> {
    let children = script.children.values();
    children
        .map(|child| child["spec"]["deadlineSeconds"].as_i64().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_child_has_what_is_left_of_the_notifications_time_or_the_whole_where_it_has_none() {
    let done = run_to_the_end(of_age(500, &json!({"deadlineSeconds": 1000}))).await;
    for seconds in deadlines(&done) {
        assert!((400..=500).contains(&seconds), "{seconds}");
    }
    let done = run_to_the_end(of_age(500, &json!({}))).await;
    assert_eq!(deadlines(&done), [60, 60]);
    let all = of_age(500, &json!({"deadlineSeconds": 100, "policy": "AllPods"}));
    let done = run_until(all, |script| script.children.len() == 2).await;
    assert_eq!(deadlines(&done), [100, 100]);
}

#[tokio::test(start_paused = true)]
async fn one_whose_pods_cannot_be_listed_in_its_time_fails() {
    let mut broken = of_age(500, &json!({"deadlineSeconds": 500}));
    broken.no_pods = true;
    let done = run_to_the_end(broken).await;
    let error = &done.notification["status"]["error"];
    assert_eq!(error["type"], "Expired", "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_let_go_does_not_hold_up_who_is_to_be_notified() {
    let mut script = script(&json!({}));
    for n in 0..20 {
        let (_, mut child) = leaving(&format!("other-{n}"), &json!({"state": "New"}));
        let pod = child["spec"]["podUID"].as_str().unwrap().to_owned();
        let name = belay_core::fanout::child_name("gone", "gone", &pod);
        child["metadata"]["name"] = json!(name);
        child["metadata"]["namespace"] = json!("bad");
        child["metadata"]["ownerReferences"][0]["name"] = json!("gone");
        child["metadata"]["ownerReferences"][0]["uid"] = json!("gone");
        script.children.insert(name, child);
    }
    let done = run_to_the_end(script).await;
    assert_eq!(done.notification["status"]["succeededCount"], 2);
    assert!(done.log.iter().any(|line| line.starts_with("refuse")));
}

#[tokio::test(start_paused = true)]
async fn when_its_time_is_over_nobody_is_notified_any_more_and_it_fails() {
    let done = run_to_the_end(of_age(500, &json!({"deadlineSeconds": 500}))).await;
    assert!(created(&done).is_empty(), "{:?}", done.log);
    let status = &done.notification["status"];
    assert_eq!(
        (&status["state"], &status["error"]["type"]),
        (&json!("Failed"), &json!("Expired"))
    );
    assert_eq!(status["pending"], json!(["a/u-a", "b/u-b"]));
    assert_eq!(status["targetCount"], 2);
    let stopped = status["conditions"].as_array().unwrap();
    let stopped = stopped
        .iter()
        .find(|condition| condition["type"] == "Stopped");
    assert_eq!(stopped.unwrap()["reason"], "Expired", "{status}");

    // Those who had their turn before a restart count, the others do not get one.
    let mut begun = of_age(500, &json!({"deadlineSeconds": 500}));
    begun.notification["status"] = json!({"state": "New", "startTime": "2026-01-01T00:00:10Z",
        "targetCount": 2, "pending": ["b/u-b"]});
    let own = belay_core::fanout::child_name("n", "u", "u-a");
    begun.children.extend([forged(&own, "work")]);
    let done = run_to_the_end(begun).await;
    assert!(created(&done).is_empty(), "{:?}", done.log);
    let status = &done.notification["status"];
    assert_eq!(
        (&status["succeededCount"], &status["state"]),
        (&json!(1), &json!("Failed"))
    );
}
