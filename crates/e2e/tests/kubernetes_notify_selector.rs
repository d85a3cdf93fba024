//! `belay notify -l` on a real Kubernetes: what a platform engineer sees, with which rights, and what
//! is left behind; and what somebody can do to a fan-out whose names they know beforehand.

use std::{
    path::Path,
    process::{Output, Stdio},
};

use anyhow::Context as _;
use belay_testkit::{
    Cluster, FANOUTS, NOTIFICATIONS, Rest, Stage, binary, cluster::NODE, eventually, exec, fanout,
    lines, notification, pod, processes, rest::name, until_file,
};
use serde_json::{Value, json};
use tokio::{process::Command, sync::OnceCell};

async fn cluster() -> anyhow::Result<Option<&'static Cluster>> {
    static SHARED: OnceCell<Option<Cluster>> = OnceCell::const_new();
    Ok(SHARED.get_or_try_init(Cluster::with_belay).await?.as_ref())
}

fn belay(kubeconfig: &Path, words: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(binary::belay()?);
    command
        .args(words)
        .env("KUBECONFIG", kubeconfig)
        .env("NO_PROXY", "*")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs pods `{group}-0` and so on whose `work` is this script, with `$N` their number.
async fn run_pods(stage: &Stage, group: &str, pods: usize, script: &str) -> anyhow::Result<()> {
    for number in 0..pods {
        let script = format!("N={number}; {script}");
        let manifest = pod(&format!("{group}-{number}"))
            .label("group", group)
            .idle("main")
            .notifier("work", exec(["sh", "-c", &script]).timeout(600))
            .notifier("drop", exec(["sh", "-c", &script]).timeout(600));
        stage.create(manifest).await?;
    }
    for number in 0..pods {
        stage.admin().running(&format!("{group}-{number}")).await?;
    }
    Ok(())
}

/// What there is of the group's notifications.
async fn left(admin: &Rest, group: &str) -> anyhow::Result<usize> {
    let mut count = 0;
    for path in [FANOUTS, NOTIFICATIONS] {
        let list = admin.get(path).await?.ok()?;
        let own = |object: &&Value| {
            let pod = object["spec"]["podName"].as_str().unwrap_or_default();
            object["spec"]["selector"]["matchLabels"]["group"] == group
                || pod.starts_with(&format!("{group}-"))
        };
        count += list["items"]
            .as_array()
            .context("a list")?
            .iter()
            .filter(own)
            .count();
    }
    Ok(count)
}

async fn nothing_is_left(admin: &Rest, group: &str) -> anyhow::Result<()> {
    eventually("everything to be deleted", async || {
        Ok((left(admin, group).await? == 0).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rehearsal_runs_nothing_and_then_everybody_is_notified_and_nothing_left()
-> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let file = stage.file("grouped");
    run_pods(
        &stage,
        "grouped",
        3,
        &format!("echo $N >> {file}; echo reloaded"),
    )
    .await?;
    let silent = pod("grouped-silent").label("group", "grouped").idle("main");
    stage.run(silent).await?;
    let words = ["notify", "work", "-l", "group=grouped"];

    let dry = [&words[..], &["--dry-run"]].concat();
    let dry = belay(&cluster.kubeconfig(), &dry)?.output().await?;
    let (said, told) = (stdout(&dry), stderr(&dry));
    assert_eq!(dry.status.code(), Some(0), "{said}{told}");
    for (pod, declares) in [
        ("grouped-0", "yes"),
        ("grouped-2", "yes"),
        ("grouped-silent", "no"),
    ] {
        let row = said.lines().find(|line| line.starts_with(pod));
        assert!(
            row.is_some_and(|row| row.contains(declares)),
            "{pod}: {said}"
        );
    }
    assert_eq!(left(admin, "grouped").await?, 0, "nothing was created");
    assert_eq!(lines(&file), 0, "nothing ran");

    let ended = belay(&cluster.kubeconfig(), &words)?.output().await?;
    let (said, told) = (stdout(&ended), stderr(&ended));
    assert_eq!(ended.status.code(), Some(0), "{said}{told}");
    for text in [
        "3     main       succeeded     0",
        "    | reloaded\n    grouped-0, grouped-1, grouped-2\n",
        "1     -          not declared",
    ] {
        assert!(said.contains(text), "{text:?} in {said}");
    }
    assert!(told.contains("in grouped-silent"), "{told}");
    assert_eq!(lines(&file), 3);
    nothing_is_left(admin, "grouped").await
}

/// As many as an operator has no wish to read one by one: what they say is grouped, counted, to be had
/// as objects, and no more is risked than was said.
#[tokio::test(flavor = "multi_thread")]
async fn of_thirty_pods_each_outcome_is_told_once_and_not_more_fail_than_may() -> anyhow::Result<()>
{
    const COUNT: usize = 30;
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let file = stage.file("many");
    // Those of 9, 19 and 29 fail.
    let script =
        format!("echo $N >> {file}; case $N in *9) echo no space; exit 3;; esac; echo reloaded");
    run_pods(&stage, "many", COUNT, &script).await?;
    let words = ["notify", "work", "-l", "group=many"];
    let run = async |more: &[&str]| -> anyhow::Result<(Output, usize)> {
        let before = lines(&file);
        let words = [&words[..], more].concat();
        let ended = belay(&cluster.kubeconfig(), &words)?.output().await?;
        let told = stderr(&ended);
        assert_eq!(ended.status.code(), Some(1), "{}{told}", stdout(&ended));
        nothing_is_left(admin, "many").await?;
        Ok((ended, lines(&file) - before))
    };

    let (ended, ran) = run(&[]).await?;
    let said = stdout(&ended);
    for text in [
        "3     main       failed     3            HandlerFailed",
        "    | no space\n    many-19, many-29, many-9\n",
        "27    main       succeeded  0",
        "    | reloaded\n    many-0, many-1, many-10, many-11, many-12, many-13, many-14, many-15 \
         and 19 more (-o wide names all)\n",
        "MATCHED  SUCCEEDED  FAILED  NO RESULT  NOT DECLARED  NOT NOTIFIED\n\
         30       27         3       0          0             0",
    ] {
        assert!(said.contains(text), "{text:?} in {said}");
    }
    assert_eq!(ran, COUNT);

    let objects = |ended: &Output| -> anyhow::Result<(Value, Vec<Value>)> {
        let list: Value = serde_json::from_str(&stdout(ended))?;
        assert_eq!(list["kind"], "List", "{list:#}");
        let mut items = list["items"].as_array().context("a list")?.clone();
        let whole = items.remove(0);
        assert_eq!(whole["kind"], "Notification", "{whole:#}");
        Ok((whole["status"].clone(), items))
    };
    let (ended, ran) = run(&["-o", "json"]).await?;
    let (whole, children) = objects(&ended)?;
    let counts = (&whole["succeededCount"], &whole["failedCount"]);
    assert_eq!(counts, (&json!(27), &json!(3)), "{whole:#}");
    assert_eq!((children.len(), ran), (COUNT, COUNT));
    for child in &children {
        let pod = child["spec"]["podName"].as_str().context("a pod")?;
        let main = &child["status"]["containers"][0];
        let (code, output) = if pod.ends_with('9') {
            (3, "no space\n")
        } else {
            (0, "reloaded\n")
        };
        assert_eq!(main["exitCode"], code, "{child:#}");
        assert_eq!(main["output"], output, "{child:#}");
    }

    // One after the other, until the first of the three fails.
    let few = ["--max-failures", "1", "--parallelism", "1", "-o", "json"];
    let (ended, ran) = run(&few).await?;
    let (whole, children) = objects(&ended)?;
    assert_eq!(whole["failedCount"], 1, "{whole:#}");
    assert_eq!(
        whole["succeededCount"].as_u64().unwrap_or(0),
        ran as u64 - 1
    );
    assert_eq!(whole["targetCount"], COUNT, "{whole:#}");
    assert_eq!(children.len(), ran);
    assert!(ran <= COUNT - 2, "two more would have failed: {ran}");
    Ok(())
}

/// A user with these rules; their kubeconfig.
async fn user(cluster: &Cluster, who: &str, rules: Value) -> anyhow::Result<std::path::PathBuf> {
    let kubectl = cluster.kubectl();
    kubectl.ok(&["create", "serviceaccount", who]).await?;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": who}, "rules": rules,
    });
    kubectl.create(&role).await?;
    let (role, account) = (
        format!("--role={who}"),
        format!("--serviceaccount=default:{who}"),
    );
    kubectl
        .ok(&["create", "rolebinding", who, &role, &account])
        .await?;
    let token = kubectl.ok(&["create", "token", who]).await?;
    cluster.kubeconfig_with_token(who, token.trim())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_and_nothing_is_created() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let file = stage.file("allowed");
    run_pods(&stage, "allowed", 1, &format!("echo $N >> {file}")).await?;
    let rules = json!([
        {"apiGroups": ["apps.k8s.io"], "resources": ["notifications", "podnotifications"],
         "verbs": ["create", "get", "list", "watch", "delete"]},
        {"apiGroups": ["apps.k8s.io"], "resources": ["notifiers"], "resourceNames": ["work"],
         "verbs": ["notify"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
    ]);
    let nina = user(cluster, "nina", rules).await?;
    // Until the roles are known, a refusal proves nothing.
    let caller = Rest::from_kubeconfig(&nina).await?;
    eventually("the roles to be known", async || {
        caller.get(belay_testkit::PODS).await?.ok()?;
        caller.get(FANOUTS).await?.ok().map(Some)
    })
    .await?;

    let refused = belay(&nina, &["notify", "drop", "-l", "group=allowed"])?
        .output()
        .await?;
    let told = stderr(&refused);
    assert_eq!(refused.status.code(), Some(1), "{told}");
    for word in ["\"notify\"", "notifiers", "\"drop\"", "\"default\"", "nina"] {
        assert!(told.contains(word), "{word} in {told}");
    }
    let dry = ["notify", "drop", "-l", "group=allowed", "--dry-run"];
    let dry = belay(&nina, &dry)?.output().await?;
    let told = stderr(&dry);
    assert_eq!(dry.status.code(), Some(1), "{told}");
    let missing =
        "missing right: verb \"notify\" on notifiers.apps.k8s.io \"drop\" in namespace default";
    assert!(told.contains(missing), "{told}");
    assert_eq!((left(admin, "allowed").await?, lines(&file)), (0, 0));

    let done = belay(&nina, &["notify", "work", "-l", "group=allowed"])?
        .output()
        .await?;
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(lines(&file), 1);
    nothing_is_left(admin, "allowed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_cancels_what_runs_and_says_what_had_run() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let (file, gate) = (stage.file("stopped"), stage.file("stopped-go"));
    // The first to come ends; whoever comes second would wait for ever.
    let script = format!(
        "echo $N >> {file}; [ $(wc -l < {file}) = 1 ] || while [ ! -e {gate} ]; do sleep 0.1; done; \
         echo $N >> {file}.ended"
    );
    run_pods(&stage, "stopped", 3, &script).await?;
    let words = [
        "notify",
        "work",
        "-l",
        "group=stopped",
        "--parallelism",
        "1",
    ];
    let child = belay(&cluster.kubeconfig(), &words)?.spawn()?;
    until_file(&file, |text| text.lines().count() == 2).await?;
    // What it tells is what it has seen so far.
    let seen = "1 succeeded, 1 running, 1 not notified of 3 pods";
    let (ended, told) = processes::interrupt_after(child, seen).await?;
    assert_eq!(ended.code(), Some(1), "{told}");
    for text in [
        "interrupted: 1 succeeded, 1 running, 1 not notified of 3 pods; cancelling",
        "is deleted and nothing of it runs any more",
    ] {
        assert!(told.contains(text), "{text:?} in {told}");
    }
    nothing_is_left(admin, "stopped").await?;
    // Whoever still ran would now end by itself, and say so.
    std::fs::write(&gate, "")?;
    eventually("what ran to be dead", async || {
        Ok(processes::with_command(&gate).is_empty().then_some(()))
    })
    .await?;
    assert_eq!(lines(&format!("{file}.ended")), 1, "the other was killed");
    assert_eq!(lines(&file), 2, "the third was not notified");
    Ok(())
}

/// "Mechanism to notify `Pod`s on a to-be-evicted node": no pod comes to the node any more, those that
/// are there are notified, and only then they are evicted.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_node_that_is_to_be_evicted_are_notified_before_they_go() -> anyhow::Result<()> {
    const PODS: usize = 3;
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let file = |number: usize| stage.file(&format!("leaving-{number}"));
    for number in 0..PODS {
        let file = file(number);
        let first = format!("trap 'echo ended >> {file}; exit' TERM; while :; do sleep 0.1; done");
        let script = format!("echo notified >> {file}");
        let manifest = pod(&format!("leaving-{number}"))
            .label("group", "leaving")
            .container("main", ["sh", "-c", &first])
            .notifier("leave", exec(["sh", "-c", &script]).timeout(60));
        stage.create(manifest).await?;
    }
    for number in 0..PODS {
        stage.admin().running(&format!("leaving-{number}")).await?;
    }
    let kubectl = cluster.kubectl();
    kubectl.ok(&["cordon", NODE]).await?;
    let words = ["notify", "leave", "-l", "group=leaving"];
    let notified = belay(&cluster.kubeconfig(), &words)?.output().await?;
    assert_eq!(notified.status.code(), Some(0), "{}", stderr(&notified));
    let drain = ["drain", NODE, "--pod-selector=group=leaving", "--force"];
    let drained = kubectl.ok(&drain).await;
    kubectl.ok(&["uncordon", NODE]).await?;
    drained?;
    for number in 0..PODS {
        until_file(&file(number), |text| text == "notified\nended\n").await?;
    }
    Ok(())
}

/// The name of a fan-out's child, which anybody can work out who can read the Notification and the pod.
fn child_name(notification: &Value, pod: &Value) -> String {
    let uid = |object: &Value| {
        object["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let hash = format!("{}/{}", uid(notification), uid(pod))
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    format!("{}-{hash:016x}", name(notification))
}

/// Whoever could take the name of a child before it is created would keep its pod from being notified.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_the_name_of_a_child() -> anyhow::Result<()> {
    let Some(cluster) = cluster().await? else {
        return Ok(());
    };
    let stage = Stage::of(cluster).await?;
    let admin = stage.admin();
    let (file, gate) = (stage.file("taken"), stage.file("taken-go"));
    let script = format!("echo $N >> {file}; while [ ! -e {gate} ]; do sleep 0.1; done");
    run_pods(&stage, "taken", 2, &script).await?;
    let asked = fanout("taken", ("group", "taken"), "work").parallelism(1);
    let asked = admin.post(FANOUTS, &asked.build()).await?.ok()?;
    until_file(&file, |text| text.lines().count() == 1).await?;
    let first = std::fs::read_to_string(&file)?;
    let second = if first == "0\n" { "taken-1" } else { "taken-0" };
    let victim = admin
        .get(&format!("{}/{second}", belay_testkit::PODS))
        .await?
        .ok()?;
    let squat = child_name(&asked, &victim);
    // Final at once, and a success, if anybody counted it.
    let silent = notification(&squat, second, "undeclared").build();
    let refused = admin.post(NOTIFICATIONS, &silent).await?;
    let answer = refused.json();
    assert_eq!(refused.status.as_u16(), 403, "{answer:#}");
    let why = answer["message"].as_str().unwrap_or_default();
    assert!(
        why.contains("are for podnotifications that are part of a Notification"),
        "{why}"
    );
    std::fs::write(&gate, "")?;

    let path = format!("{FANOUTS}/taken");
    let done = admin
        .until(&path, "the end", |object| {
            let complete = object["status"]["completeTime"].is_string();
            complete.then(|| object.clone())
        })
        .await?;
    assert_eq!(done["status"]["succeededCount"], 2, "{done:#}");
    assert_eq!(lines(&file), 2);
    Ok(())
}
