//! Handlers with a probe: the probe decides, within the notifier's time, also after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::rig::{Rig, exec, idle, until, until_lines};

/// An HTTP server at the address of the node, that is, of its pods.
pub(crate) struct Web {
    pub(crate) port: u16,
    pub(crate) code: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
}

impl Web {
    pub(crate) async fn serve(code: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let web = Web {
            port: listener.local_addr().unwrap().port(),
            code: Arc::new(AtomicU16::new(code)),
            asked: Arc::default(),
        };
        let (code, asked) = (Arc::clone(&web.code), Arc::clone(&web.asked));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                // A probe's request fits into one read.
                let _ = stream.read(&mut [0; 4096]).await;
                let code = code.load(Ordering::SeqCst);
                asked.fetch_add(1, Ordering::SeqCst);
                let answer = format!("HTTP/1.1 {code} x\r\nContent-Length: 0\r\n\r\n");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        web
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

// `json!` literals read better without a borrow.
#[allow(clippy::needless_pass_by_value)]
fn probed(mut notifier: Value, probe: Value) -> Value {
    notifier["probe"] = json!({"periodSeconds": 1, "timeoutSeconds": 30});
    for (key, value) in probe.as_object().unwrap() {
        notifier["probe"][key] = value.clone();
    }
    notifier
}

fn by_exec(script: &str) -> Value {
    json!({"exec": {"command": ["/bin/sh", "-c", script]}})
}

fn ask(notifier: &str) -> Value {
    json!({"podName": "p", "notifier": notifier, "deadlineSeconds": 600})
}

fn main_status(done: &Value) -> &Value {
    &done["status"]["containers"][0]
}

fn message(done: &Value) -> &str {
    main_status(done)["error"]["message"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_notification_s_success_is_the_probe_s() {
    let rig = Rig::start().await;
    let (well, ill) = (Web::serve(503).await, Web::serve(503).await);
    let get = |port: Value| json!({"httpGet": {"port": port, "path": "/level"}});
    let notifiers = json!([
        probed(exec("good", "echo done", 60), get(json!("web"))),
        probed(exec("never", "echo done", 10), get(json!(ill.port))),
        probed(exec("broken", "exit 3", 60), get(json!(ill.port))),
        probed(exec("astray", "exit 0", 60), get(json!("admin"))),
        probed(
            exec("socket", "exit 0", 60),
            json!({"tcpSocket": {"port": "web"}})
        ),
    ]);
    let mut spec = idle(notifiers);
    spec["containers"][0]["ports"] = json!([{"name": "web", "containerPort": well.port}]);
    rig.run_pod("p", spec).await;

    rig.notify("good", ask("good")).await;
    until("a first try", async || (well.asked() > 0).then_some(())).await;
    let still = rig.notifications().get("good").await.unwrap();
    assert!(
        !still.state().is_final(),
        "the handler alone decides nothing"
    );
    well.code.store(200, Ordering::SeqCst);
    let good = rig.finished("good").await;
    assert_eq!(good["status"]["state"], "Succeeded", "{good:#}");
    assert_eq!(main_status(&good)["output"], "done\n");
    assert_eq!(main_status(&good)["exitCode"], 0);

    // A handler that fails is not probed.
    rig.notify("broken", ask("broken")).await;
    let broken = rig.finished("broken").await;
    assert_eq!(main_status(&broken)["error"]["type"], "HandlerFailed");
    assert_eq!(main_status(&broken)["exitCode"], 3);
    assert_eq!(ill.asked(), 0);

    rig.notify("never", ask("never")).await;
    let never = rig.finished("never").await;
    assert_eq!(main_status(&never)["error"]["type"], "HandlerTimeout");
    assert_eq!(
        message(&never),
        "the probe did not succeed within 10 s; last: HTTP 503"
    );
    assert_eq!(main_status(&never)["exitCode"], 0, "the handler's own");
    assert!(ill.asked() >= 1);

    rig.notify("socket", ask("socket")).await;
    let socket = rig.finished("socket").await;
    assert_eq!(socket["status"]["state"], "Succeeded", "{socket:#}");

    rig.notify("astray", ask("astray")).await;
    let astray = rig.finished("astray").await;
    let error = &astray["status"]["error"];
    assert_eq!(error["type"], "RuntimeError", "{astray:#}");
    let said = error["message"].as_str().unwrap();
    assert!(said.contains("names the port \"admin\""), "{said}");
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_ends_while_it_is_probed_took_the_command_s_effect_with_it() {
    let rig = Rig::start().await;
    let (tries, gate) = (rig.dir.path().join("tries"), rig.dir.path().join("gate"));
    let script = format!("echo tried >> {}; exit 1", tries.display());
    let mut spec = idle(json!([probed(exec("n", "exit 0", 600), by_exec(&script))]));
    let wait = format!("while ! test -e {}; do sleep 0.05; done", gate.display());
    spec["containers"][0]["command"] = json!(["/bin/sh", "-c", wait]);
    rig.run_pod("p", spec).await;
    rig.notify("n", ask("n")).await;
    until_lines(&tries, 1).await;
    std::fs::write(&gate, "").unwrap();
    let done = rig.finished("n").await;
    assert_eq!(
        main_status(&done)["error"]["type"],
        "ContainerRestarted",
        "{done:#}"
    );
    assert!(message(&done).contains("may have run"));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_a_notification_kills_the_try_that_is_under_way() {
    let rig = Rig::start().await;
    let tries = rig.dir.path().join("tries");
    let script = format!("echo $$ >> {}; exec sleep 1000", tries.display());
    let mut probe = by_exec(&script);
    probe["timeoutSeconds"] = json!(600);
    rig.run_pod("p", idle(json!([probed(exec("n", "exit 0", 600), probe)])))
        .await;
    rig.notify("n", ask("n")).await;
    until_lines(&tries, 1).await;
    let pid = std::fs::read_to_string(&tries).unwrap().trim().to_owned();
    rig.notifications()
        .delete("n", &DeleteParams::default())
        .await
        .unwrap();
    let audit = rig.agent_dir().join("agent-audit.jsonl");
    until("the audit line", async || {
        let text = std::fs::read_to_string(&audit).unwrap();
        text.contains("\"outcome\":\"Cancelled\"").then_some(())
    })
    .await;
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    rig.end().await;
}

/// A handler that counts its runs, and a probe that counts its tries and asks for a file.
struct Gated {
    name: String,
    runs: std::path::PathBuf,
    tries: std::path::PathBuf,
    gate: std::path::PathBuf,
}

impl Gated {
    fn new(rig: &Rig, name: &str) -> Self {
        let path = |what: &str| rig.dir.path().join(format!("{name}-{what}"));
        Gated {
            name: name.to_owned(),
            runs: path("runs"),
            tries: path("tries"),
            gate: path("gate"),
        }
    }

    fn notifier(&self, timeout: u32) -> Value {
        let run = format!("echo run >> {}; echo out", self.runs.display());
        let script = format!(
            "echo tried >> {}; test -e {}",
            self.tries.display(),
            self.gate.display()
        );
        probed(exec(&self.name, &run, timeout), by_exec(&script))
    }

    fn open(&self) {
        std::fs::write(&self.gate, "").unwrap();
    }

    fn runs(&self) -> usize {
        let runs = std::fs::read_to_string(&self.runs).unwrap();
        runs.lines().count()
    }

    fn tries(&self) -> usize {
        let tries = std::fs::read_to_string(&self.tries).unwrap();
        tries.lines().count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_goes_on_probing_and_does_not_run_the_handler_again() {
    let mut rig = Rig::start().await;
    let gated = Gated::new(&rig, "n");
    rig.run_pod("p", idle(json!([gated.notifier(600)]))).await;
    rig.notify("n", ask("n")).await;
    until_lines(&gated.tries, 1).await;
    rig.stop_agent().await;
    rig.start_agent().await;
    until_lines(&gated.tries, gated.tries() + 1).await;
    gated.open();
    let done = rig.finished("n").await;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    assert_eq!(main_status(&done)["output"], "out\n");
    assert_eq!(main_status(&done)["attempts"], 1);
    assert_eq!(gated.runs(), 1);
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_comes_back_too_late_lets_one_last_try_decide() {
    /// Short enough to be slept through, long enough for a first try on a busy machine.
    const OVER: u32 = 40;
    let mut rig = Rig::start().await;
    let (opened, closed) = (Gated::new(&rig, "opened"), Gated::new(&rig, "closed"));
    let notifiers = json!([opened.notifier(OVER), closed.notifier(OVER)]);
    rig.run_pod("p", idle(notifiers)).await;
    for gated in [&opened, &closed] {
        rig.notify(&gated.name, ask(&gated.name)).await;
        until_lines(&gated.tries, 1).await;
    }
    rig.stop_agent().await;
    tokio::time::sleep(Duration::from_secs(u64::from(OVER) + 1)).await;
    opened.open();
    let before = (opened.tries(), closed.tries());
    rig.start_agent().await;
    let done = rig.finished("opened").await;
    assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    let done = rig.finished("closed").await;
    assert_eq!(
        main_status(&done)["error"]["type"],
        "HandlerTimeout",
        "{done:#}"
    );
    let after = (opened.tries(), closed.tries());
    assert_eq!(after, (before.0 + 1, before.1 + 1));
    assert_eq!((opened.runs(), closed.runs()), (1, 1));
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_keeps_its_slot_while_it_is_probed() {
    let rig = Rig::start().await;
    let gated = Gated::new(&rig, "n");
    rig.run_pod("p", idle(json!([gated.notifier(600)]))).await;
    for n in 0..20 {
        rig.notify(&format!("n{n}"), ask("n")).await;
    }
    // As many as there are slots; the others wait for a probe to be done.
    until_lines(&gated.runs, 16).await;
    until_lines(&gated.tries, gated.tries() + 20).await;
    assert_eq!(gated.runs(), 16);
    gated.open();
    for n in 0..20 {
        let done = rig.finished(&format!("n{n}")).await;
        assert_eq!(done["status"]["state"], "Succeeded", "{done:#}");
    }
    assert_eq!(gated.runs(), 20);
    rig.end().await;
}
