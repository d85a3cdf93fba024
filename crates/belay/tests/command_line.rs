//! The boundary of the program: what it prints and how it exits, without any server.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output};

fn belay(words: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_belay"))
        .args(words)
        .env_clear()
        .env("HOME", home.path())
        .env("XDG_STATE_HOME", home.path())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn help_is_the_map_of_all_commands() {
    let output = belay(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/help.txt");
    let found = text(&output.stdout);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &found).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    assert_eq!(
        found, expected,
        "the map changed; if it should, run: UPDATE_GOLDEN=1 cargo test -p belay --test command_line"
    );
}

#[test]
fn wrong_usage_exits_2_and_says_what_is_right() {
    for (words, hint) in [
        (&["frobnicate"][..], "unrecognized subcommand"),
        (&["notify"], "<NOTIFIER>"),
        (&["notify", "reload"], "pod/NAME"),
        (
            &["notify", "reload", "-l", "app=web", "--policy", "AllPods"],
            "--no-wait",
        ),
        (&["notify", "reload", "-l", "app in"], "-l \"app in\""),
        (
            &["notify", "reload", "-l", ""],
            "every pod of the namespace",
        ),
        (&["notify", "reload", "svc/web"], "unknown kind"),
        (&["notify", "reload", "shop/web"], "web -n shop"),
        (&["notify", "reload", "web", "-n", "a/b"], "no namespace"),
        (&["notify", "reload", "web", "--timeout", "soon"], "30s, 2m"),
        (&["get", "deployments"], "podactions, pods and nodes"),
        (&["hook", "run", "flush"], "pod/NAME[/CONTAINER]"),
        (&["hook", "run", "flush", "a/b"], "unknown kind"),
        (&["hook", "run", "flush", "-l", "app in"], "-l \"app in\""),
        (
            &["hook", "run", "flush", "-l", ""],
            "every pod of the namespace",
        ),
        (&["hook", "run", "flush", "pod/a", "-c", "b"], "--selector"),
        (&["hook", "describe", "A"], "cannot be the name"),
        (&["describe", "web"], "KIND/NAME"),
        (&["up", "--runtime", "docker"], "cri, process"),
        (&["up", "--feature-gates", "Nope=true"], "ContainerNotifier"),
        (
            &[
                "agent",
                "--mode=companion",
                "--node-name=belay-controller",
                "--data-dir=/x",
            ],
            "the controller's lease",
        ),
        (&["agent", "--data-dir", "/x"], "token create"),
        (&["crds", "--log-level", "verbose"], "error, warn, info"),
        (&["token", "create", "--node", "UPPER"], "lower case"),
        (
            &["token", "create", "--node", "n", "--server", "api:7443"],
            "https://api.example.com:7443",
        ),
    ] {
        let output = belay(words);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {told}");
        assert!(told.contains(hint), "{words:?}: {told}");
    }
}

#[test]
fn a_runtime_that_does_not_answer_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let output = belay(&[
        "up",
        "--data-dir",
        data,
        "--listen=127.0.0.1:0",
        "--runtime=cri",
        "--runtime-endpoint=unix:///nonexistent/containerd.sock",
    ]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    for part in [
        "no CRI runtime answers",
        "/nonexistent/containerd.sock",
        "--runtime process",
    ] {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn without_a_kubeconfig_it_says_how_to_get_one() {
    for words in [
        &["get", "pods"][..],
        &["notify", "reload", "web"],
        &["describe", "pod/web"],
    ] {
        let output = belay(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(text(&output.stderr).contains("start a server with `belay up`"));
        assert!(output.stdout.is_empty());
    }
    let output = belay(&["get", "pods", "--kubeconfig", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nowhere"));
}

#[test]
fn crds_are_yaml_documents_for_a_stock_cluster() {
    let output = belay(&["crds"]);
    assert_eq!(output.status.code(), Some(0));
    let yaml = text(&output.stdout);
    assert!(yaml.starts_with("---\n"));
    assert!(
        yaml.contains("name: podnotifications.apps.k8s.io"),
        "{yaml}"
    );
    assert!(yaml.contains("unapproved"));
    let output = belay(&["crds", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["kind"], "List");
    assert_eq!(
        list["items"][0]["metadata"]["name"],
        "podnotifications.apps.k8s.io"
    );
}

#[test]
fn an_agent_that_its_server_cannot_reach_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    // An address given to nobody (RFC 5737).
    let text = "{apiVersion: v1, kind: Config, current-context: c, \
         clusters: [{name: c, cluster: {server: \"https://192.0.2.1:7443\"}}], \
         contexts: [{name: c, context: {cluster: c, user: u}}], \
         users: [{name: u, user: {}}]}";
    std::fs::write(&kubeconfig, text).unwrap();
    let output = belay(&[
        "agent",
        "--data-dir",
        dir.path().join("agent").to_str().unwrap(),
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
    ]);
    let told = self::text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("--listen 0.0.0.0:0"), "{told}");
    assert!(told.contains("--node-address"), "{told}");
}

#[test]
fn an_empty_kubeconfig_variable_names_none() {
    let output = Command::new(env!("CARGO_BIN_EXE_belay"))
        .args(["agent", "--data-dir", "/x"])
        .env_clear()
        .env("KUBECONFIG", "")
        .output()
        .unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("token create"), "{told}");
}

#[test]
fn completions_exist_for_the_usual_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let output = belay(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(text(&output.stdout).contains("belay"), "{shell}");
    }
}

#[test]
fn a_token_needs_a_server_that_has_run() {
    let dir = tempfile::tempdir().unwrap();
    let words = [
        "token",
        "create",
        "--node",
        "n1",
        "--data-dir",
        dir.path().to_str().unwrap(),
    ];
    let output = belay(&words);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("belay up"),
        "{}",
        text(&output.stderr)
    );
}

fn interrupt(child: &Child) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn ctrl_c_ends_the_wait_for_a_server_that_does_not_answer() {
    // It takes connections, and nothing more.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let home = tempfile::tempdir().unwrap();
    let kubeconfig = home.path().join("kubeconfig");
    let server = format!("http://{}", silent.local_addr().unwrap());
    let cluster = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, \
         clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}], \
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}], \
         users: [{{name: u, user: {{}}}}]}}"
    );
    std::fs::write(&kubeconfig, cluster).unwrap();
    for (target, hint) in [
        (&["-l", "app=web"][..], "belay get ntf"),
        (
            &["pod/web"],
            "kubectl delete pn -l apps.k8s.io/notify-request=",
        ),
    ] {
        let child = Command::new(env!("CARGO_BIN_EXE_belay"))
            .args(["notify", "reload", "--kubeconfig"])
            .arg(&kubeconfig)
            .args(target)
            .env_clear()
            .env("HOME", home.path())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = child;
        // The request is under way when its connection is here; the signals are listened to before.
        let connection = silent.accept().unwrap();
        interrupt(&child);
        let mut told = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut told).unwrap();
        if told.contains("once more") {
            interrupt(&child);
        }
        stderr.read_to_string(&mut told).unwrap();
        let output = child.wait_with_output().unwrap();
        drop(connection);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("interrupted before"), "{told}");
        assert!(told.contains(hint), "{told}");
    }
}
