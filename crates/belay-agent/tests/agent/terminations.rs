//! The end of pods on the real process runtime: hooks, signals, graces, sidecars.

use std::path::Path;
use std::time::Duration;

use belay_api::gates::{Feature, FeatureGates};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};

use crate::rig::{Rig, until, until_lines};

/// Longer than any test waits: what ends before it has been ended.
pub(crate) const LONG: u32 = 600;

pub(crate) fn sh(script: &str) -> Value {
    json!(["/bin/sh", "-c", script])
}

/// A container that writes down what it hears of its end.
pub(crate) fn listening(name: &str, heard: &Path, on_term: &str) -> Value {
    let script = format!(
        "trap 'echo {name}-term >> {0}; {on_term}' TERM; echo {name}-up >> {0}; while :; do sleep 0.05; done",
        heard.display()
    );
    json!({"name": name, "image": "none", "command": sh(&script)})
}

/// A pod with one such container, which ends when it is asked to.
pub(crate) fn polite(heard: &Path, pre_stop: Value, grace: u32) -> Value {
    let mut container = listening("main", heard, "exit 0");
    container["lifecycle"] = json!({"preStop": pre_stop});
    json!({"terminationGracePeriodSeconds": grace, "containers": [container]})
}

pub(crate) fn exec(script: &str) -> Value {
    json!({"exec": {"command": sh(script)}})
}

pub(crate) fn sleep(seconds: u32) -> Value {
    json!({"sleep": {"seconds": seconds}})
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

pub(crate) async fn delete(rig: &Rig, name: &str) {
    let whole = DeleteParams::default();
    rig.pods().delete(name, &whole).await.unwrap();
}

async fn delete_within(rig: &Rig, name: &str, grace: u32) {
    let shorter = DeleteParams::default().grace_period(grace);
    rig.pods().delete(name, &shorter).await.unwrap();
}

pub(crate) async fn gone(rig: &Rig, name: &str) {
    until(&format!("pod {name} to be gone"), async || {
        let found = rig.pods().get_opt(name).await.unwrap();
        found.is_none().then_some(())
    })
    .await;
}

/// Messages of the events of this reason about a pod, as far as they are told by now.
pub(crate) async fn told(rig: &Rig, pod: &str, reason: &str) -> Vec<String> {
    let events: Api<Event> = Api::namespaced(rig.admin.clone(), "default");
    let list = events.list(&ListParams::default()).await.unwrap();
    list.into_iter()
        .filter(|event| event.involved_object.name.as_deref() == Some(pod))
        .filter(|event| event.reason.as_deref() == Some(reason))
        .filter_map(|event| event.message)
        .collect()
}

pub(crate) async fn event(rig: &Rig, pod: &str, reason: &str) -> String {
    until(&format!("the event {reason} about {pod}"), async || {
        told(rig, pod, reason).await.into_iter().next()
    })
    .await
}

/// Makes sure that a container that is gone was asked to stop, not just killed. It has said so; or it
/// had no time to on a machine that stood still, and then it is told that its grace was over first.
async fn asked(rig: &Rig, pod: &str, heard: &Path, before: &str, term: &str) {
    let text = read(heard);
    if text == format!("{before}{term}") {
        return;
    }
    assert_eq!(text, before, "{pod}");
    event(rig, pod, "StopSignalSent").await;
    until(
        &format!("why {pod} did not say that it was asked"),
        async || {
            let told = told(rig, pod, "Killing").await;
            let late = |message: &String| message.contains("did not end within its grace period");
            told.iter().any(late).then_some(())
        },
    )
    .await;
}

/// What "Sent SIGTERM to container main after 1.003s; ..." says about the time before the signal.
fn before_signal(message: &str) -> Duration {
    let after = message.split(" after ").nth(1).unwrap();
    let seconds = after.split('s').next().unwrap();
    Duration::from_secs_f64(seconds.parse().unwrap())
}

pub(crate) fn is_alive(pid: &str) -> bool {
    Path::new(&format!("/proc/{}", pid.trim())).exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pre_stop_command_runs_to_its_end_before_the_stop_signal() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let hook = format!(
        "echo begin >> {0}; sleep 0.3; echo end >> {0}",
        heard.display()
    );
    rig.run_pod("p", polite(&heard, exec(&hook), LONG)).await;
    until_lines(&heard, 1).await;
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    assert_eq!(read(&heard), "main-up\nbegin\nend\nmain-term\n");
    let sent = event(&rig, "p", "StopSignalSent").await;
    assert!(before_signal(&sent) >= Duration::from_millis(300), "{sent}");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_of_nothing_of_a_second_and_of_the_whole_grace_lasts_that_long() {
    let rig = Rig::start().await;
    for (seconds, grace) in [(0, 20), (1, 20), (2, 2)] {
        let name = format!("sleep-{seconds}");
        let heard = rig.dir.path().join(&name);
        rig.run_pod(&name, polite(&heard, sleep(seconds), grace))
            .await;
        until_lines(&heard, 1).await;
        delete(&rig, &name).await;
        gone(&rig, &name).await;
        asked(&rig, &name, &heard, "main-up\n", "main-term\n").await;
        let sent = event(&rig, &name, "StopSignalSent").await;
        let slept = Duration::from_secs(seconds.into());
        assert!(before_signal(&sent) >= slept, "{name}: {sent}");
        assert!(told(&rig, &name, "FailedPreStopHook").await.is_empty());
    }
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_exits_ends_its_sleep() {
    let rig = Rig::start().await;
    let gate = rig.dir.path().join("gate");
    let script = format!("while ! test -e {}; do sleep 0.05; done", gate.display());
    let mut spec = json!({"terminationGracePeriodSeconds": LONG, "containers": [
        {"name": "main", "image": "none", "command": sh(&script)},
    ]});
    spec["containers"][0]["lifecycle"] = json!({"preStop": sleep(LONG)});
    rig.run_pod("p", spec).await;
    delete(&rig, "p").await;
    event(&rig, "p", "Killing").await;
    std::fs::write(&gate, "").unwrap();
    gone(&rig, "p").await;
    assert!(told(&rig, "p", "StopSignalSent").await.is_empty());
    assert!(told(&rig, "p", "FailedPreStopHook").await.is_empty());
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_works_while_it_sleeps_and_a_shorter_grace_ends_the_sleep() {
    let rig = Rig::start().await;
    let (heard, work) = (rig.dir.path().join("heard"), rig.dir.path().join("work"));
    let mut spec = polite(&heard, sleep(LONG), LONG);
    let script = format!(
        "trap 'echo term >> {}; exit 0' TERM; while :; do echo x >> {}; sleep 0.05; done",
        heard.display(),
        work.display()
    );
    spec["containers"][0]["command"] = sh(&script);
    rig.run_pod("p", spec).await;
    until_lines(&work, 1).await;
    delete(&rig, "p").await;
    event(&rig, "p", "Killing").await;
    until_lines(&work, read(&work).lines().count() + 10).await;
    let pod = rig.pods().get("p").await.unwrap();
    assert!(pod.is_terminating() && pod.phase() == "Running");
    assert_eq!(read(&heard), "", "nobody asked it to stop");
    delete_within(&rig, "p", 1).await;
    gone(&rig, "p").await;
    asked(&rig, "p", &heard, "", "term\n").await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_fails_is_told_and_the_container_is_stopped_all_the_same() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let hook = exec("echo secret; exit 7");
    rig.run_pod("p", polite(&heard, hook, LONG)).await;
    until_lines(&heard, 1).await;
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    let failed = event(&rig, "p", "FailedPreStopHook").await;
    assert!(
        failed.contains("code 7") && !failed.contains("secret"),
        "{failed}"
    );
    assert_eq!(read(&heard), "main-up\nmain-term\n");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_stops_its_container_has_not_failed() {
    let rig = Rig::start().await;
    let (heard, pid) = (rig.dir.path().join("heard"), rig.dir.path().join("pid"));
    let hook = format!("kill -TERM $(cat {}); sleep 1000", pid.display());
    let mut spec = polite(&heard, exec(&hook), LONG);
    let script = spec["containers"][0]["command"][2].as_str().unwrap();
    spec["containers"][0]["command"][2] = json!(format!("echo $$$$ > {}; {script}", pid.display()));
    rig.run_pod("p", spec).await;
    until_lines(&heard, 1).await;
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    assert_eq!(read(&heard), "main-up\nmain-term\n");
    assert!(told(&rig, "p", "FailedPreStopHook").await.is_empty());
    assert!(told(&rig, "p", "StopSignalSent").await.is_empty());
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_outlasts_the_grace_is_killed_with_all_it_started() {
    let rig = Rig::start().await;
    let (heard, pids) = (rig.dir.path().join("heard"), rig.dir.path().join("pids"));
    let hook = format!(
        "setsid sleep 98765 & echo $! >> {0}; echo $$ >> {0}; sleep 1000",
        pids.display()
    );
    let mut spec = polite(&heard, exec(&hook), 10);
    // Deaf to what follows, so that SIGKILL is needed for it too.
    spec["containers"][0]["command"] = listening("main", &heard, ":")["command"].clone();
    rig.run_pod("p", spec).await;
    until_lines(&heard, 1).await;
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    assert_eq!(read(&heard), "main-up\nmain-term\n");
    let started = read(&pids);
    assert_eq!(started.lines().count(), 2, "the hook ran once");
    for pid in started.lines() {
        assert!(!is_alive(pid), "{pid} is left of the hook");
    }
    event(&rig, "p", "UnfinishedPreStopHook").await;
    until("the end to be told", async || {
        let told = told(&rig, "p", "Killing").await;
        told.iter().any(|m| m.contains("was killed")).then_some(())
    })
    .await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grace_of_nothing_kills_at_once_without_hook_or_signal() {
    let rig = Rig::start().await;
    let (heard, ran) = (rig.dir.path().join("heard"), rig.dir.path().join("ran"));
    let hook = format!("echo ran >> {}", ran.display());
    let mut spec = polite(&heard, exec(&hook), LONG);
    let script = spec["containers"][0]["command"][2].as_str().unwrap();
    let pid = rig.dir.path().join("pid");
    spec["containers"][0]["command"][2] = json!(format!("echo $$$$ > {}; {script}", pid.display()));
    rig.run_pod("p", spec).await;
    until_lines(&heard, 1).await;
    delete_within(&rig, "p", 0).await;
    until("the end of its process", async || {
        (!is_alive(&read(&pid))).then_some(())
    })
    .await;
    assert_eq!(read(&heard), "main-up\n");
    assert_eq!(read(&ran), "");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_gets_its_signal_after_the_containers_it_serves_have_ended() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let sidecar = |name: &str| {
        let mut container = listening(name, &heard, "exit 0");
        container["restartPolicy"] = json!("Always");
        container
    };
    let slow = format!("sleep 0.5; echo main-end >> {}; exit 0", heard.display());
    let spec = json!({
        "terminationGracePeriodSeconds": LONG,
        "initContainers": [sidecar("first"), sidecar("second")],
        "containers": [listening("main", &heard, &slow)],
    });
    rig.run_pod("p", spec).await;
    until_lines(&heard, 3).await;
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    let heard = read(&heard);
    let (up, down): (Vec<_>, Vec<_>) = heard.lines().partition(|line| line.ends_with("-up"));
    assert_eq!(up.len(), 3, "{heard}");
    assert_eq!(down, ["main-term", "main-end", "second-term", "first-term"]);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_has_come_to_its_end_sends_its_sidecars_home() {
    let rig = Rig::start().await;
    let heard = rig.dir.path().join("heard");
    let mut sidecar = listening("proxy", &heard, "exit 0");
    sidecar["restartPolicy"] = json!("Always");
    let script = format!("echo work >> {}", heard.display());
    let spec = json!({
        "restartPolicy": "Never", "terminationGracePeriodSeconds": LONG,
        "initContainers": [sidecar],
        "containers": [{"name": "main", "image": "none", "command": sh(&script)}],
    });
    rig.create_pod("p", spec).await;
    rig.pod("p", "to succeed", |pod| pod.phase() == "Succeeded")
        .await;
    assert_eq!(read(&heard).lines().last(), Some("proxy-term"));
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_declared_stop_signal_reaches_the_process() {
    let rig = Rig::start().await;
    let signals = [
        ("SIGHUP", 1),
        ("SIGINT", 2),
        ("SIGQUIT", 3),
        ("SIGUSR1", 10),
        ("SIGUSR2", 12),
        ("SIGTERM", 15),
        ("SIGCONT", 18),
        ("SIGWINCH", 28),
        ("SIGRTMIN", 34),
        ("SIGRTMIN+3", 37),
        ("SIGRTMAX-2", 62),
        ("SIGRTMAX", 64),
    ];
    let numbers: Vec<String> = signals.iter().map(|(_, n)| n.to_string()).collect();
    for (index, (signal, number)) in signals.iter().enumerate() {
        let name = format!("p-{number}");
        let heard = rig.dir.path().join(&name);
        let script = format!(
            "for s in {}; do trap \"echo $s >> {1}; exit 0\" $s; done; echo up >> {1}; while :; do sleep 0.05; done",
            numbers.join(" "),
            heard.display()
        );
        let mut container = json!({"name": "main", "image": "none", "command": sh(&script)});
        // Both of its places count.
        if index % 2 == 0 {
            container["stopSignal"] = json!(signal);
        } else {
            container["lifecycle"] = json!({"stopSignal": signal});
        }
        let spec = json!({"os": {"name": "linux"}, "terminationGracePeriodSeconds": LONG, "containers": [container]});
        rig.run_pod(&name, spec).await;
        until_lines(&heard, 1).await;
        delete(&rig, &name).await;
        gone(&rig, &name).await;
        assert_eq!(read(&heard), format!("up\n{number}\n"), "{signal}");
        let sent = event(&rig, &name, "StopSignalSent").await;
        assert!(sent.contains(&format!("Sent {signal} to")), "{sent}");
    }
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_gates_off_there_is_sigterm_and_no_sleep() {
    let gates = FeatureGates::default()
        .with(Feature::ContainerStopSignals, false)
        .with(Feature::PodLifecycleSleepAction, false);
    let rig = Rig::with_gates(gates).await;
    let heard = rig.dir.path().join("heard");
    let mut spec = polite(&heard, sleep(LONG), LONG);
    spec["containers"][0]["stopSignal"] = json!("SIGUSR1");
    rig.run_pod("p", spec).await;
    until_lines(&heard, 1).await;
    delete(&rig, "p").await;
    gone(&rig, "p").await;
    assert_eq!(read(&heard), "main-up\nmain-term\n");
    assert!(told(&rig, "p", "FailedPreStopHook").await.is_empty());
    rig.end().await;
}

/// Answers each connection with this status, and returns where it listens.
async fn answering(status: &'static str, asked: std::path::PathBuf) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..read]).into_owned();
            let line = request.lines().next().unwrap_or("connected").to_owned();
            let before = std::fs::read_to_string(&asked).unwrap_or_default();
            std::fs::write(&asked, format!("{before}{line}\n")).unwrap();
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn http_and_tcp_hooks_ask_once_and_what_is_no_success_is_told() {
    let rig = Rig::start().await;
    let http = |port: u16| json!({"httpGet": {"host": "127.0.0.1", "port": port, "path": "/bye"}});
    let tcp = |port: u16| json!({"tcpSocket": {"host": "127.0.0.1", "port": port}});
    // Bound and not listening: nobody else gets it, and who connects is refused.
    let deaf = TcpSocket::new_v4().unwrap();
    deaf.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let nobody = deaf.local_addr().unwrap().port();
    let asked = |name: &str| rig.dir.path().join(format!("{name}-asked"));
    let good = answering("204 No Content", asked("http-good")).await;
    let bad = answering("503 Service Unavailable", asked("http-bad")).await;
    let open = answering("200 OK", asked("tcp-good")).await;
    let cases = [
        ("http-good", http(good), "GET /bye HTTP/1.1\n", None),
        (
            "http-bad",
            http(bad),
            "GET /bye HTTP/1.1\n",
            Some("HTTP 503"),
        ),
        ("tcp-good", tcp(open), "connected\n", None),
        ("tcp-bad", tcp(nobody), "", Some("cannot connect")),
    ];
    for (name, hook, request, failure) in cases {
        let heard = rig.dir.path().join(name);
        rig.run_pod(name, polite(&heard, hook, LONG)).await;
        until_lines(&heard, 1).await;
        delete(&rig, name).await;
        gone(&rig, name).await;
        assert_eq!(read(&heard), "main-up\nmain-term\n", "{name}");
        match failure {
            None => {
                event(&rig, name, "StopSignalSent").await;
                assert!(told(&rig, name, "FailedPreStopHook").await.is_empty());
            }
            Some(why) => {
                let failed = event(&rig, name, "FailedPreStopHook").await;
                assert!(failed.contains(why), "{name}: {failed}");
            }
        }
        until(&format!("what {name} asked"), async || {
            (read(&asked(name)) == request).then_some(())
        })
        .await;
    }
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_follows_the_hook_it_finds_running() {
    let mut rig = Rig::start().await;
    let (heard, gate) = (rig.dir.path().join("heard"), rig.dir.path().join("gate"));
    let hook = format!(
        "echo hook >> {0}; while ! test -e {1}; do sleep 0.05; done; echo end >> {0}",
        heard.display(),
        gate.display()
    );
    rig.run_pod("p", polite(&heard, exec(&hook), LONG)).await;
    until_lines(&heard, 1).await;
    delete(&rig, "p").await;
    until_lines(&heard, 2).await;
    rig.stop_agent().await;
    rig.start_agent().await;
    std::fs::write(&gate, "").unwrap();
    gone(&rig, "p").await;
    assert_eq!(read(&heard), "main-up\nhook\nend\nmain-term\n");
    rig.end().await;
}
