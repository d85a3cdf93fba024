//! Commands against servers that hang, refuse, or answer for somebody who is no longer there.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use belay_testkit::processes;
use serde_json::{Value, json};

/// Far more than anything here takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the server does with a request.
enum Answer {
    Says(u16, Value),
    /// It keeps the connection open and says nothing.
    Hangs,
}

/// How often a method was asked for so far, this time included, decides the answer.
type Script = fn(method: &str, path: &str, time: usize) -> Answer;

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<String>>,
    arrived: Condvar,
}

impl Seen {
    fn count(&self, method: &str) -> usize {
        count(&self.requests.lock().unwrap(), method)
    }

    /// Waits until so many requests of a method are here.
    fn until(&self, method: &str, number: usize) {
        let requests = self.requests.lock().unwrap();
        let missing = |requests: &mut Vec<String>| count(requests, method) < number;
        let waited = self.arrived.wait_timeout_while(requests, PATIENCE, missing);
        let (requests, waited) = waited.unwrap();
        assert!(!waited.timed_out(), "{number} {method} among {requests:?}");
    }
}

fn count(requests: &[String], method: &str) -> usize {
    requests.iter().filter(|seen| *seen == method).count()
}

/// The program, killed when it takes longer than anything here does: nobody waits for ever for what
/// it prints, or for its end. Signals are passed on to it.
fn belay() -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--foreground", "--signal=KILL"])
        .arg(PATIENCE.as_secs().to_string())
        .arg(env!("CARGO_BIN_EXE_belay"));
    command
}

struct Server {
    seen: Arc<Seen>,
    home: tempfile::TempDir,
    kubeconfig: PathBuf,
}

impl Server {
    fn start(script: Script) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let home = tempfile::tempdir().unwrap();
        let kubeconfig = home.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("http://{}", listener.local_addr().unwrap())}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let seen = Arc::new(Seen::default());
        let all = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&all);
                std::thread::spawn(move || serve(stream, script, &seen));
            }
        });
        Server {
            seen,
            home,
            kubeconfig,
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = belay();
        command
            .args(words)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .env_clear()
            .env("HOME", self.home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn belay(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }
}

fn serve(stream: TcpStream, script: Script, seen: &Seen) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut first = String::new();
        reader.read_line(&mut first).ok()?;
        let mut words = first.split_whitespace();
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.split_once(':') else {
                break;
            };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().ok()?;
            }
        }
        reader.read_exact(&mut vec![0; length]).ok()?;
        let time = {
            let mut requests = seen.requests.lock().unwrap();
            requests.push(method.clone());
            seen.arrived.notify_all();
            count(&requests, &method)
        };
        match script(&method, &path, time) {
            Answer::Says(code, body) => {
                let body = body.to_string();
                let head = format!(
                    "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                writer.write_all(head.as_bytes()).ok()?;
                writer.write_all(body.as_bytes()).ok()?;
            }
            // Until the client has gone.
            Answer::Hangs => return reader.read_line(&mut String::new()).ok().map(drop),
        }
    }
}

fn status(code: u16, message: &str) -> Answer {
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": "x", "message": message});
    Answer::Says(code, body)
}

fn notification(number: usize) -> Answer {
    let name = format!("n-{number}");
    let body = json!({
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "PodNotification",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"podName": "p", "notifier": "reload"}, "status": {"state": "New"},
    });
    Answer::Says(201, body)
}

fn hook() -> Answer {
    let body = json!({
        "apiVersion": "apps.k8s.io/v1alpha1", "kind": "ExecutionHook",
        "metadata": {"name": "run-flush-x", "namespace": "default", "uid": "u"},
        "spec": {"podSelection": {}, "actionName": "flush"},
    });
    Answer::Says(201, body)
}

fn interrupt(child: &Child) {
    processes::interrupt(child.id());
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_a_server_may_have_done_is_not_asked_of_it_again() {
    for code in [429, 503, 504] {
        let script: Script = match code {
            429 => |_, _, _| status(429, "busy"),
            503 => |_, _, _| status(503, "away"),
            _ => |_, _, _| status(504, "late"),
        };
        let server = Server::start(script);
        let ran = server.belay(&["notify", "reload", "pod/web", "--no-wait"]);
        assert_eq!(ran.status.code(), Some(1), "{code}: {}", told(&ran));
        assert_eq!(server.seen.count("POST"), 1, "{code}: {}", told(&ran));
    }
}

#[test]
fn a_proxy_that_is_named_for_the_world_is_not_asked_for_this_machine() {
    let server = Server::start(|_, _, _| {
        let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []});
        Answer::Says(200, list)
    });
    let get = |variables: &[(&str, &str)]| {
        let mut command = server.command(&["get", "pods"]);
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let proxy = ("HTTPS_PROXY", "http://127.0.0.1:1");
    let ran = get(&[proxy]);
    assert_eq!(ran.status.code(), Some(0), "{}", told(&ran));

    // Another machine (an address given to nobody, RFC 5737) would be asked by the proxy.
    let text = std::fs::read_to_string(&server.kubeconfig).unwrap();
    let text = text.replace("http://127.0.0.1", "http://192.0.2.1");
    std::fs::write(&server.kubeconfig, text).unwrap();
    let ran = get(&[proxy, ("NO_PROXY", "example.com")]);
    assert_eq!(ran.status.code(), Some(1));
    for word in ["$HTTPS_PROXY", "192.0.2.1", "$NO_PROXY"] {
        assert!(told(&ran).contains(word), "{}", told(&ran));
    }
}

#[test]
fn a_server_that_hangs_after_the_creation_ends_no_command_too_late() {
    let script: Script = |method, _, _| match method {
        "POST" => hook(),
        _ => Answer::Hangs,
    };
    let server = Server::start(script);
    let ran = server.belay(&["hook", "run", "flush", "pod/web", "--timeout", "1s"]);
    let said = told(&ran);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for words in [
        "timed out waiting",
        "eh/run-flush-x is left behind",
        "kubectl delete eh run-flush-x -n default",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }

    let server = Server::start(script);
    let command = &["hook", "run", "flush", "pod/web", "-n", "shop"];
    let child = server.command(command).spawn().unwrap();
    server.seen.until("GET", 1);
    interrupt(&child);
    server.seen.until("DELETE", 1);
    interrupt(&child);
    let ran = child.wait_with_output().unwrap();
    let said = told(&ran);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert!(
        said.contains("kubectl delete eh run-flush-x -n shop"),
        "{said}"
    );
    assert!(!said.contains("cancelled: "), "{said}");
}

#[test]
fn a_creation_that_hangs_ends_with_the_timeout() {
    let server = Server::start(|_, _, _| Answer::Hangs);
    for words in [
        &["hook", "run", "flush", "pod/web", "--timeout", "1s"][..],
        &["notify", "reload", "-l", "app=web", "--timeout", "1s"],
        &[
            "notify",
            "reload",
            "-l",
            "app=web",
            "--timeout",
            "1s",
            "--dry-run",
        ],
        &["notify", "reload", "web", "--timeout", "1s", "--dry-run"],
    ] {
        let ran = server.belay(words);
        assert_eq!(ran.status.code(), Some(1), "{}", told(&ran));
        assert!(
            told(&ran).contains("did not answer within"),
            "{}",
            told(&ran)
        );
    }
}

#[test]
fn ctrl_c_while_several_are_created_cancels_those_that_were() {
    let server = Server::start(|method, path, time| match (method, time) {
        ("POST", ..=5) => notification(time),
        ("DELETE", _) => {
            assert!(path.contains("/n-"), "{path}");
            Answer::Says(200, json!({"kind": "Status", "status": "Success"}))
        }
        _ => Answer::Hangs,
    });
    let pods: Vec<String> = (0..40).map(|number| format!("pod/web-{number}")).collect();
    let mut words = vec!["notify", "reload"];
    words.extend(pods.iter().map(String::as_str));
    let mut child = server.command(&words).spawn().unwrap();
    // As many as are created at a time, beside those that are.
    server.seen.until("POST", 21);
    interrupt(&child);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("under way") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    interrupt(&child);
    server.seen.until("DELETE", 5);
    stderr.read_to_string(&mut said).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert_eq!(server.seen.count("DELETE"), 5, "{said}");
    assert_eq!(server.seen.count("POST"), 21, "{said}");
    for words in ["35 of 40 requests", "-n default", "were deleted"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn what_could_not_be_deleted_is_not_said_to_be_cancelled() {
    let server = Server::start(|method, _, time| match method {
        "POST" => notification(time),
        "DELETE" => status(500, "no"),
        _ => Answer::Hangs,
    });
    let child = server
        .command(&["notify", "reload", "a", "b"])
        .spawn()
        .unwrap();
    server.seen.until("GET", 1);
    interrupt(&child);
    let ran = child.wait_with_output().unwrap();
    let said = told(&ran);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("pn/n-1 is left behind: no"), "{said}");
    assert!(
        said.contains("interrupted; what is left behind goes on"),
        "{said}"
    );
}

#[test]
fn why_one_was_refused_is_told_in_every_format() {
    for format in [&[][..], &["-o", "json"], &["-o", "yaml"]] {
        let server = Server::start(|_, _, time| match time {
            1 => status(403, "not you"),
            _ => notification(time),
        });
        let words = [&["notify", "reload", "a", "b", "--no-wait"], format].concat();
        let ran = server.belay(&words);
        let said = told(&ran);
        assert_eq!(ran.status.code(), Some(1), "{said}");
        assert!(said.contains(": refused: not you"), "{format:?}: {said}");
        // Two were asked for, so a list has the one that there is.
        if format == ["-o", "json"] {
            let list: Value = serde_json::from_slice(&ran.stdout).unwrap();
            assert_eq!(list["kind"], "List", "{list}");
            assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
        }
    }
}

#[test]
fn who_may_not_watch_is_told_so_and_what_goes_on() {
    let forbidden: Script = |method, _, time| match method {
        "POST" => notification(time),
        _ => status(403, "podnotifications is forbidden: ann cannot list it"),
    };
    let server = Server::start(forbidden);
    let ran = server.belay(&["notify", "reload", "web", "-n", "shop"]);
    let said = told(&ran);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for words in [
        "ann cannot list it",
        "were created and go on",
        "verbs list and watch on podnotifications.apps.k8s.io in namespace shop",
        "--no-wait",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert_eq!(server.seen.count("DELETE"), 0, "{said}");
}

#[test]
fn a_kubeconfig_that_is_broken_is_not_said_to_be_missing() {
    let home = tempfile::tempdir().unwrap();
    let run = |variables: &[(&str, &str)]| {
        let mut command = belay();
        command.args(["get", "pods"]).env_clear();
        command.env("HOME", home.path());
        command.env("XDG_STATE_HOME", home.path());
        told(&command.envs(variables.iter().copied()).output().unwrap())
    };
    let said = run(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]);
    assert!(said.contains("service account"), "{said}");
    std::fs::create_dir(home.path().join(".kube")).unwrap();
    std::fs::write(home.path().join(".kube/config"), "clusters: [").unwrap();
    let said = run(&[]);
    assert!(said.contains(".kube/config cannot be used: "), "{said}");
}

#[test]
fn what_describe_could_not_list_is_not_told_as_none() {
    let script: Script = |_, path, _| {
        if path.contains("/podnotifications") {
            return status(403, "ann cannot list them");
        }
        if path.contains("/podactions") {
            return status(404, "404 page not found");
        }
        if path.contains("/events") {
            return Answer::Says(
                200,
                json!({"kind": "EventList", "apiVersion": "v1",
                "metadata": {}, "items": []}),
            );
        }
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "main"}]}});
        Answer::Says(200, pod)
    };
    let server = Server::start(script);
    let ran = server.belay(&["describe", "pod/web"]);
    let shown = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(ran.status.code(), Some(0), "{}", told(&ran));
    assert!(
        shown.contains("podnotifications: ann cannot list them"),
        "{shown}"
    );
    // What is not served has none.
    assert!(!shown.contains("podactions"), "{shown}");
}

#[test]
fn a_right_that_is_missing_is_1_in_a_dry_run_also_where_nothing_would_run() {
    let script: Script = |method, _, _| match method {
        "POST" => Answer::Says(
            201,
            json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
                "metadata": {}, "spec": {}, "status": {"allowed": false}}),
        ),
        _ => Answer::Says(
            200,
            json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web"},
                "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Running"}}),
        ),
    };
    let server = Server::start(script);
    let ran = server.belay(&["notify", "reload", "web", "--dry-run"]);
    let said = told(&ran);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for words in ["no container declares", "missing right"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn what_a_selector_asked_for_is_printed_as_a_list_also_when_nothing_matches() {
    let script: Script = |method, path, _| {
        let one = json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification",
            "metadata": {"name": "n", "namespace": "default", "uid": "u"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "notifier": "reload",
                "policy": "PreExistingPods"},
            "status": {"state": "Succeeded", "startTime": "2026-01-01T00:00:00Z"},
        });
        let none = json!({"kind": "PodNotificationList", "apiVersion": "apps.k8s.io/v1alpha1",
            "metadata": {"resourceVersion": "1"}, "items": []});
        match method {
            "POST" => Answer::Says(201, one),
            "GET" if path.contains("watch=") => Answer::Hangs,
            "GET" if path.contains("/podnotifications") => Answer::Says(200, none),
            _ => Answer::Says(200, json!({"kind": "Status", "status": "Success"})),
        }
    };
    let server = Server::start(script);
    let ran = server.belay(&["notify", "reload", "-l", "app=web", "-o", "json"]);
    let said = told(&ran);
    assert_eq!(ran.status.code(), Some(3), "{said}");
    let list: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(list["kind"], "List", "{list}");
    assert_eq!(list["items"][0]["kind"], "Notification", "{list}");
}

#[test]
fn who_may_watch_the_children_but_not_the_notification_is_told_so() {
    let script: Script = |method, path, _| {
        let one = json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "Notification",
            "metadata": {"name": "n", "namespace": "default", "uid": "u"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "notifier": "reload",
                "policy": "PreExistingPods"},
        });
        let none = json!({"kind": "PodNotificationList", "apiVersion": "apps.k8s.io/v1alpha1",
            "metadata": {"resourceVersion": "1"}, "items": []});
        match method {
            "POST" => Answer::Says(201, one),
            _ if path.contains("watch=") => Answer::Hangs,
            _ if path.contains("/podnotifications") => Answer::Says(200, none),
            _ => {
                // The other watch is heard first.
                std::thread::sleep(Duration::from_secs(1));
                status(403, "ann cannot list notifications")
            }
        }
    };
    let server = Server::start(script);
    let ran = server.belay(&["notify", "reload", "-l", "app=web"]);
    let said = told(&ran);
    assert_eq!(ran.status.code(), Some(1), "{said}");
    for words in [
        "it cannot be watched: ann cannot list notifications",
        "goes on",
        "verbs list and watch on notifications.apps.k8s.io",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("does not answer"), "{said}");
}
