//! Belay on a real Kubernetes exactly as `belay manifests --executor controller` prints it: no agent,
//! the controller runs commands over `pods/exec` with the rights that are printed and no others, and
//! says what it cannot do.

use belay_testkit::{
    Cluster, FANOUTS, HOOK_ACTIONS, PODS, Rest, Stage, exec, fanout, hook, hook_action, hooked,
    lines, notification, pod, shell, signal, until_file,
};
use serde_json::{Value, json};

async fn come_of(admin: &Rest, notifier: &str) -> anyhow::Result<Value> {
    let done = admin
        .notify(&notification(notifier, "web", notifier).build())
        .await?;
    Ok(done["status"].clone())
}

fn error(status: &Value) -> (&str, &str) {
    let error = &status["error"];
    (
        error["type"].as_str().unwrap_or_default(),
        error["message"].as_str().unwrap_or_default(),
    )
}

/// Hooks without agents: tried again, stopped when their time is over, and told what is not promised.
async fn hooks(stage: &Stage) -> anyhow::Result<()> {
    let admin = stage.admin();
    let tries = stage.file("hook-tries");
    let second = format!("echo ran >> {tries}; test \"$(wc -l < {tries})\" -ge 2");
    let closed = json!({"tcpSocket": {"port": 9}});
    for (name, handler, seconds) in [
        ("second", shell(&second), 300),
        ("hangs", shell("sleep 3600"), 3),
        ("closed", closed, 3),
    ] {
        let action = hook_action(name, &handler, seconds);
        admin.post(HOOK_ACTIONS, &action).await?.ok()?;
    }
    let run = async |name: &str| {
        let asked = hook(name, name).labelled(("app", "web"), &[]);
        admin.run_hook(&asked.build()).await
    };
    let second = run("second").await?;
    assert_eq!(second["status"]["actionSucceed"], true, "{second:#}");
    assert_eq!(lines(&tries), 2, "{second:#}");
    let told = &second["status"]["conditions"][0];
    assert_eq!(told["type"], "FullGuarantees", "{second:#}");
    assert_eq!(told["status"], "False", "{second:#}");
    let hangs = run("hangs").await?;
    let error = &hooked(&hangs, "web", "main")["error"];
    assert_eq!(error["errorType"], "ExecutionTimeout", "{hangs:#}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("may still be running"), "{hangs:#}");
    let closed = run("closed").await?;
    let error = &hooked(&closed, "web", "main")["error"];
    assert_eq!(error["errorType"], "ExecutionFailwithError", "{closed:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_agents_the_printed_rights_are_enough_to_run_commands() -> anyhow::Result<()> {
    let Some(cluster) = Cluster::start().await? else {
        return Ok(());
    };
    cluster.load_belay().await?;
    cluster.install(&["--executor", "controller"]).await?;
    let stage = Stage::of(&cluster).await?;
    let admin = stage.admin();
    let sets = "/apis/apps/v1/namespaces/belay-system/daemonsets";
    let sets = admin.get(sets).await?.ok()?;
    assert_eq!(sets["items"].as_array().map(Vec::len), Some(0), "no agents");

    let (runs, hup) = (stage.file("runs"), stage.file("hup"));
    let main = format!(
        "trap 'echo hup >> {hup}' HUP; echo up >> {hup}; while :; do sleep 3600 & wait; done"
    );
    let good = format!("echo ran >> {runs}; echo fine");
    let slow = format!("echo began >> {runs}.slow; sleep 3600");
    let manifest = pod("web")
        .label("app", "web")
        .container("main", ["sh", "-c", &main])
        .notifier("good", exec(["sh", "-c", &good]).timeout(60))
        .notifier(
            "bad",
            exec(["sh", "-c", "echo no space; exit 3"]).timeout(60),
        )
        .notifier("slow", exec(["sh", "-c", &slow]).timeout(3))
        .notifier("missing", exec(["/no/such/program"]).timeout(60))
        .notifier("reload", signal("SIGHUP").timeout(60));
    stage.run(manifest).await?;
    until_file(&hup, |text| text == "up\n").await?;

    let good = come_of(admin, "good").await?;
    assert_eq!(good["state"], "Succeeded", "{good:#}");
    assert_eq!(good["containers"][0]["output"], "fine\n", "{good:#}");
    assert_eq!(good["containers"][0]["exitCode"], 0, "{good:#}");
    assert_eq!(good["executor"], "belay-controller", "{good:#}");
    let conditions = good["conditions"].as_array();
    let told = conditions.and_then(|all| all.iter().find(|one| one["type"] == "FullGuarantees"));
    let told = told.map(|told| (&told["status"], &told["reason"]));
    assert_eq!(told, Some((&json!("False"), &json!("NoAgent"))), "{good:#}");
    let bad = come_of(admin, "bad").await?;
    assert_eq!(error(&bad).0, "HandlerFailed", "{bad:#}");
    assert_eq!(bad["containers"][0]["exitCode"], 3, "{bad:#}");
    assert_eq!(bad["containers"][0]["output"], "no space\n", "{bad:#}");
    let slow = come_of(admin, "slow").await?;
    assert_eq!(error(&slow).0, "HandlerTimeout", "{slow:#}");
    assert!(error(&slow).1.contains("may still be running"), "{slow:#}");
    let missing = come_of(admin, "missing").await?;
    assert_eq!(error(&missing).0, "HandlerFailed", "{missing:#}");
    let reload = come_of(admin, "reload").await?;
    assert_eq!(error(&reload).0, "RuntimeError", "{reload:#}");
    assert!(
        error(&reload).1.contains("needs Belay's agent"),
        "{reload:#}"
    );
    assert_eq!(lines(&hup), 1, "no signal was sent");

    let all = fanout("all", ("app", "web"), "good").build();
    admin.post(FANOUTS, &all).await?.ok()?;
    let done = admin
        .until(&format!("{FANOUTS}/all"), "the end", |object| {
            let complete = object["status"]["completeTime"].is_string();
            complete.then(|| object.clone())
        })
        .await?;
    assert_eq!(done["status"]["succeededCount"], 1, "{done:#}");
    assert_eq!(lines(&runs), 2);

    hooks(&stage).await?;

    // Rights for that, and for nothing beside it.
    let account = "--as=system:serviceaccount:belay-system:belay-controller";
    let kubectl = cluster.kubectl();
    for (verb, resource, allowed) in [
        ("create", "pods/exec", true),
        ("get", "pods", true),
        ("delete", "pods", false),
        ("patch", "pods", false),
        ("create", "pods", false),
        ("get", "secrets", false),
        ("create", "pods/attach", false),
        ("create", "pods/portforward", false),
        ("get", "pods/log", false),
    ] {
        let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
        let part = format!("--subresource={part}");
        let asked = ["auth", "can-i", verb, resource, &part, account];
        let answer = kubectl.run(&asked).await?;
        assert_eq!(answer.success, allowed, "{asked:?}: {answer:?}");
    }
    let pods = admin.get(PODS).await?.ok()?;
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}
