//! Startup, liveness and readiness probes of containers, on the real process runtime.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use belay_api::pod::Pod;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::probes::Web;
use crate::rig::{Rig, until, until_lines};
use crate::terminations::{
    LONG, delete, event, exec, gone, is_alive, listening, polite, read, sh, sleep, told,
};

/// As often as it goes, with time for a busy machine, and with these fields.
fn probe(mut handler: Value, fields: Value) -> Value {
    handler["periodSeconds"] = json!(1);
    handler["timeoutSeconds"] = json!(30);
    for (key, value) in fields.as_object().unwrap() {
        handler[key] = value.clone();
    }
    handler
}

/// Notes each try in a file and asks for another file.
struct Asks {
    tries: PathBuf,
    gate: PathBuf,
}

impl Asks {
    fn new(rig: &Rig, name: &str) -> Self {
        Asks {
            tries: rig.dir.path().join(format!("{name}-tries")),
            gate: rig.dir.path().join(format!("{name}-gate")),
        }
    }

    fn handler(&self) -> Value {
        exec(&format!(
            "echo tried >> {}; test -e {}",
            self.tries.display(),
            self.gate.display()
        ))
    }

    fn open(&self) {
        std::fs::write(&self.gate, "").unwrap();
    }

    fn shut(&self) {
        std::fs::remove_file(&self.gate).unwrap();
    }

    fn tries(&self) -> usize {
        read(&self.tries).lines().count()
    }

    async fn tried_again(&self, times: usize) {
        until_lines(&self.tries, self.tries() + times).await;
    }
}

fn idle(fields: Value) -> Value {
    let mut container = json!({"name": "main", "image": "none", "command": ["sleep", "1000"]});
    for (key, value) in fields.as_object().unwrap() {
        container[key] = value.clone();
    }
    json!({"terminationGracePeriodSeconds": 5, "containers": [container]})
}

fn status(pod: &Pod) -> Value {
    serde_json::to_value(&pod.status).unwrap()
}

fn main(pod: &Pod) -> Value {
    status(pod)["containerStatuses"][0].clone()
}

fn condition(pod: &Pod, kind: &str) -> Value {
    let status = status(pod);
    let mut list = status["conditions"].as_array().into_iter().flatten();
    let found = list.find(|condition| condition["type"] == kind);
    found.cloned().unwrap_or_default()
}

fn is_ready(pod: &Pod) -> bool {
    ["Ready", "ContainersReady"]
        .iter()
        .all(|kind| condition(pod, kind)["status"] == "True")
}

fn is_unready(pod: &Pod) -> bool {
    ["Ready", "ContainersReady"]
        .iter()
        .all(|kind| condition(pod, kind)["status"] == "False")
}

fn restarts(pod: &Pod) -> u64 {
    main(pod)["restartCount"].as_u64().unwrap_or_default()
}

async fn told_of(rig: &Rig, reason: &str, part: &str) -> String {
    until(&format!("the event {reason}: {part}"), async || {
        let told = told(rig, "p", reason).await;
        told.into_iter().find(|message| message.contains(part))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_readiness_probe_decides_ready_to_and_fro_and_nothing_else() {
    let rig = Rig::start().await;
    let asks = Asks::new(&rig, "ready");
    let fields = json!({"successThreshold": 2, "failureThreshold": 2});
    let spec = idle(json!({"readinessProbe": probe(asks.handler(), fields)}));
    rig.run_pod("p", spec).await;
    asks.tried_again(3).await;
    let pod = rig.pods().get("p").await.unwrap();
    assert!(is_unready(&pod), "{:#}", status(&pod));
    assert_eq!(main(&pod)["ready"], false);
    assert_eq!(main(&pod)["started"], true);
    let why = condition(&pod, "Ready");
    assert_eq!(why["reason"], "ContainersNotReady");
    assert_eq!(why["message"], "containers with unready status: [main]");
    let complaint = event(&rig, "p", "Unhealthy").await;
    assert_eq!(
        complaint,
        "Readiness probe failed: the command exited with code 1"
    );

    asks.open();
    rig.pod("p", "to be ready", is_ready).await;
    asks.shut();
    rig.pod("p", "not to be ready", is_unready).await;
    asks.open();
    let pod = rig.pod("p", "to be ready again", is_ready).await;
    assert_eq!(restarts(&pod), 0);
    assert!(told(&rig, "p", "NotSupported").await.is_empty());
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_fails_its_liveness_probe_is_stopped_and_started_again_with_back_off() {
    let rig = Rig::start().await;
    let (heard, ill) = (rig.dir.path().join("heard"), rig.dir.path().join("ill"));
    let mut spec = polite(&heard, sleep(0), LONG);
    // Fails exactly twice for one illness.
    let check = format!(
        "test -e {0} || exit 0; echo it is ill; \
         if test -e {0}.again; then rm {0} {0}.again; else touch {0}.again; fi; exit 7",
        ill.display()
    );
    spec["containers"][0]["livenessProbe"] = probe(exec(&check), json!({"failureThreshold": 2}));
    rig.run_pod("p", spec).await;
    until_lines(&heard, 1).await;
    for round in 1..=2 {
        std::fs::write(&ill, "").unwrap();
        until_lines(&heard, 2 * round).await;
        if round == 2 {
            rig.pod("p", "to wait", |pod| {
                main(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            })
            .await;
        }
        rig.pod("p", "to be up again", |pod| {
            restarts(pod) == round as u64 && is_ready(pod)
        })
        .await;
        until_lines(&heard, 2 * round + 1).await;
    }
    assert_eq!(
        read(&heard),
        "main-up\nmain-term\nmain-up\nmain-term\nmain-up\n"
    );
    let complaint = event(&rig, "p", "Unhealthy").await;
    assert_eq!(
        complaint,
        "Liveness probe failed: the command exited with code 7: it is ill"
    );
    let killing = event(&rig, "p", "Killing").await;
    assert_eq!(
        killing,
        "Container main failed liveness probe, will be restarted"
    );
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_failure_below_the_threshold_kills_nothing() {
    let rig = Rig::start().await;
    let (tries, ready) = (rig.dir.path().join("tries"), Asks::new(&rig, "ready"));
    // Every other try fails.
    let check = format!(
        "echo tried >> {0}; test $(($(wc -l < {0}) % 2)) = 0",
        tries.display()
    );
    let fields = json!({"failureThreshold": 2});
    let spec = idle(json!({
        "livenessProbe": probe(exec(&check), fields),
        "readinessProbe": probe(ready.handler(), json!({})),
    }));
    rig.run_pod("p", spec).await;
    until_lines(&tries, 6).await;
    ready.open();
    let pod = rig.pod("p", "to be ready", is_ready).await;
    assert_eq!(restarts(&pod), 0);
    assert!(told(&rig, "p", "Killing").await.is_empty());
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_startup_probe_holds_off_the_others_until_it_has_succeeded() {
    let rig = Rig::start().await;
    let startup = Asks::new(&rig, "startup");
    let (live, ready) = (Asks::new(&rig, "live"), Asks::new(&rig, "ready"));
    live.open();
    ready.open();
    let spec = idle(json!({
        "startupProbe": probe(startup.handler(), json!({"failureThreshold": 1000})),
        "livenessProbe": probe(live.handler(), json!({"failureThreshold": 1})),
        "readinessProbe": probe(ready.handler(), json!({})),
    }));
    rig.run_pod("p", spec).await;
    startup.tried_again(3).await;
    let pod = rig.pods().get("p").await.unwrap();
    assert_eq!((live.tries(), ready.tries()), (0, 0));
    assert_eq!(main(&pod)["started"], false);
    assert!(is_unready(&pod));
    startup.open();
    let pod = rig.pod("p", "to be ready", is_ready).await;
    assert_eq!(main(&pod)["started"], true);
    let tries = startup.tries();
    live.tried_again(2).await;
    assert_eq!(startup.tries(), tries, "it starts only once");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_startup_probe_ends_a_container_for_good_if_its_policy_says_never() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let mut spec = polite(&heard, sleep(0), LONG);
    spec["restartPolicy"] = json!("Never");
    // Its process has set its traps when it has written its first line.
    let check = format!(
        "while ! test -s {}; do sleep 0.02; done; exit 1",
        heard.display()
    );
    spec["containers"][0]["startupProbe"] = probe(exec(&check), json!({"failureThreshold": 1}));
    rig.create_pod("p", spec).await;
    let pod = rig
        .pod("p", "to end", |pod| pod.phase() == "Succeeded")
        .await;
    assert_eq!(main(&pod)["state"]["terminated"]["exitCode"], 0);
    assert_eq!(read(&heard), "main-up\nmain-term\n");
    let killing = event(&rig, "p", "Killing").await;
    assert_eq!(killing, "Container main failed startup probe");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_probe_ended_has_failed_whatever_its_exit_code() {
    let rig = Rig::start().await;
    let (heard, ill) = (rig.dir.path().join("heard"), rig.dir.path().join("ill"));
    let mut spec = polite(&heard, sleep(0), LONG);
    spec["restartPolicy"] = json!("OnFailure");
    let check = format!("test -e {0} && rm {0} && exit 1; exit 0", ill.display());
    spec["containers"][0]["livenessProbe"] = probe(exec(&check), json!({"failureThreshold": 1}));
    rig.run_pod("p", spec).await;
    until_lines(&heard, 1).await;
    std::fs::write(&ill, "").unwrap();
    let pod = rig
        .pod("p", "to be up again", |pod| {
            restarts(pod) == 1 && is_ready(pod)
        })
        .await;
    let last = &main(&pod)["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 0, "{last:#}");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_may_give_less_time_to_end_than_the_pod() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let once = rig.dir.path().join("once");
    let stubborn = listening("main", &heard, ":");
    let check = format!(
        "test -e {0} && exit 0; while ! test -s {1}; do sleep 0.02; done; touch {0}; exit 1",
        once.display(),
        heard.display()
    );
    let fields = json!({"failureThreshold": 1, "terminationGracePeriodSeconds": 1});
    let mut spec = json!({"terminationGracePeriodSeconds": LONG, "containers": [stubborn]});
    spec["containers"][0]["livenessProbe"] = probe(exec(&check), fields);
    rig.create_pod("p", spec).await;
    let pod = rig
        .pod("p", "to be up again", |pod| {
            restarts(pod) == 1 && main(pod)["ready"] == true
        })
        .await;
    let last = &main(&pod)["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 137, "{last:#}");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_and_tcp_probes_ask_a_real_server() {
    let rig = Rig::start().await;
    let web = Web::serve(503).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = listener.local_addr().unwrap().port();
    let once = json!({"failureThreshold": 1});
    let http = json!({"httpGet": {"port": "web", "path": "/ready"}});
    let tcp = json!({"tcpSocket": {"port": socket}});
    let mut spec = idle(json!({
        "readinessProbe": probe(http, once.clone()),
        "ports": [{"name": "web", "containerPort": web.port}],
    }));
    spec["containers"].as_array_mut().unwrap().push(json!({
        "name": "other", "image": "none", "command": ["sleep", "1000"],
        "readinessProbe": probe(tcp, once),
    }));
    rig.run_pod("p", spec).await;
    let ready = |pod: &Pod| {
        let status = status(pod);
        let of = |n: usize| status["containerStatuses"][n]["ready"] == true;
        (of(0), of(1))
    };
    rig.pod("p", "to have a ready socket", |pod| {
        ready(pod) == (false, true)
    })
    .await;
    told_of(&rig, "Unhealthy", "Readiness probe failed: HTTP 503").await;
    web.code.store(200, Ordering::SeqCst);
    rig.pod("p", "to be ready", is_ready).await;
    drop(listener);
    rig.pod("p", "to have lost its socket", |pod| {
        ready(pod) == (true, false)
    })
    .await;
    told_of(&rig, "Unhealthy", "cannot connect to 127.0.0.1").await;
    web.code.store(500, Ordering::SeqCst);
    rig.pod("p", "to have nothing", |pod| ready(pod) == (false, false))
        .await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_hangs_is_killed_with_all_it_started() {
    let rig = Rig::start().await;
    let pids = rig.dir.path().join("pids");
    let check = format!(
        "setsid sleep 1000 & echo $! >> {0}; echo $$ >> {0}; echo so far; wait",
        pids.display()
    );
    let fields = json!({"timeoutSeconds": 20, "periodSeconds": 1000});
    let spec = idle(json!({"readinessProbe": probe(exec(&check), fields)}));
    rig.run_pod("p", spec).await;
    until_lines(&pids, 2).await;
    let complaint = event(&rig, "p", "Unhealthy").await;
    assert_eq!(
        complaint,
        "Readiness probe failed: the command did not end within 20 s: so far"
    );
    for pid in read(&pids).lines() {
        assert!(!is_alive(pid), "{pid} is alive");
    }
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_cannot_be_tried_fails_and_says_why() {
    let rig = Rig::start().await;
    let astray = json!({"httpGet": {"port": "admin"}});
    let spec = idle(json!({
        "livenessProbe": probe(astray.clone(), json!({"failureThreshold": 2})),
        "readinessProbe": probe(astray, json!({})),
    }));
    rig.run_pod("p", spec).await;
    let why = "probe failed: the probe names the port \"admin\"";
    told_of(&rig, "Unhealthy", &format!("Liveness {why}")).await;
    told_of(&rig, "Unhealthy", &format!("Readiness {why}")).await;
    let pod = rig
        .pod("p", "to be started again", |pod| restarts(pod) > 0)
        .await;
    assert!(is_unready(&pod));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_s_startup_probe_holds_back_what_follows_and_its_readiness_counts() {
    let rig = Rig::start().await;
    let (startup, ready) = (Asks::new(&rig, "startup"), Asks::new(&rig, "ready"));
    let prepared = rig.dir.path().join("prepared");
    let prepare = format!("echo prepared >> {}", prepared.display());
    let mut spec = idle(json!({}));
    spec["initContainers"] = json!([
        {
            "name": "proxy", "image": "none", "command": ["sleep", "1000"],
            "restartPolicy": "Always",
            "startupProbe": probe(startup.handler(), json!({"failureThreshold": 1000})),
            "readinessProbe": probe(ready.handler(), json!({})),
        },
        {"name": "prepare", "image": "none", "command": sh(&prepare)},
    ]);
    rig.create_pod("p", spec).await;
    startup.tried_again(3).await;
    let pod = rig.pods().get("p").await.unwrap();
    assert!(!prepared.exists());
    assert_eq!(pod.phase(), "Pending");
    let why = condition(&pod, "Initialized");
    assert_eq!(
        why["message"],
        "containers with incomplete status: [proxy prepare]"
    );
    startup.open();
    let pod = rig
        .pod("p", "to run", |pod| main(pod)["ready"] == true)
        .await;
    assert_eq!(read(&prepared), "prepared\n");
    assert!(is_unready(&pod));
    let why = condition(&pod, "Ready");
    assert_eq!(why["message"], "containers with unready status: [proxy]");
    ready.open();
    rig.pod("p", "to be ready", is_ready).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_pod_ends_only_its_readiness_is_probed() {
    let rig = Rig::start().await;
    let (live, ready) = (Asks::new(&rig, "live"), Asks::new(&rig, "ready"));
    let (heard, gate) = (rig.dir.path().join("heard"), rig.dir.path().join("gate"));
    live.open();
    ready.open();
    let hook = format!(
        "echo hook >> {}; while ! test -e {}; do sleep 0.05; done",
        heard.display(),
        gate.display()
    );
    let mut spec = polite(&heard, exec(&hook), LONG);
    let once = json!({"failureThreshold": 1});
    spec["containers"][0]["livenessProbe"] = probe(live.handler(), once.clone());
    spec["containers"][0]["readinessProbe"] = probe(ready.handler(), once);
    rig.create_pod("p", spec).await;
    rig.pod("p", "to be ready", is_ready).await;
    until_lines(&heard, 1).await;
    until_lines(&live.tries, 1).await;
    delete(&rig, "p").await;
    until_lines(&heard, 2).await;
    // One may have been under way.
    ready.tried_again(2).await;
    live.shut();
    let tries = live.tries();
    ready.tried_again(3).await;
    assert_eq!(live.tries(), tries);
    let pod = rig.pods().get("p").await.unwrap();
    assert!(pod.is_terminating() && is_ready(&pod));
    ready.shut();
    rig.pod("p", "not to be ready", is_unready).await;
    std::fs::write(&gate, "").unwrap();
    gone(&rig, "p").await;
    assert_eq!(read(&heard), "main-up\nhook\nmain-term\n");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_goes_on_probing_and_keeps_what_was_ready() {
    let mut rig = Rig::start().await;
    let (startup, ready) = (Asks::new(&rig, "startup"), Asks::new(&rig, "ready"));
    startup.open();
    ready.open();
    let spec = idle(json!({
        "startupProbe": probe(startup.handler(), json!({"failureThreshold": 1})),
        "readinessProbe": probe(ready.handler(), json!({"failureThreshold": 1000})),
        "lifecycle": {"postStart": exec("true")},
    }));
    rig.create_pod("p", spec).await;
    let before = rig.pod("p", "to be ready", is_ready).await;
    // A second later a change would have another time.
    ready.tried_again(2).await;
    rig.stop_agent().await;
    startup.shut();
    ready.shut();
    rig.start_agent().await;
    ready.tried_again(3).await;
    let after = rig.pods().get("p").await.unwrap();
    assert!(is_ready(&after), "{:#}", status(&after));
    assert_eq!(main(&after)["containerID"], main(&before)["containerID"]);
    assert_eq!(startup.tries(), 1, "it starts only once");
    let since = |pod: &Pod| condition(pod, "Ready")["lastTransitionTime"].clone();
    assert_eq!(since(&after), since(&before), "not even for a moment");
    rig.end().await;
}
