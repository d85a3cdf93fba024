//! What the container notifier proposal promises about `Notification`, on the embedded server, and
//! what a crash in the middle of one, its feature gate and the deletion of owners come to.

use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::{
    FANOUTS, Instance, NOTIFICATIONS, PODS, Stage, eventually, eventually_within, exec, fanout,
    lines, notification, pod, processes, rest::name, until_file,
};
use seed_000_fanout::{
    children, counts, ended, member, run_all, sorted_lines, until_fanout, waiting,
};
use serde_json::{Value, json};
use tokio::time::Instant;

#[path = "promises/seed_000_fanout.rs"]
mod seed_000_fanout;
#[path = "promises/seed_000_fanout_ends.rs"]
mod seed_000_fanout_ends;

async fn stage() -> anyhow::Result<Option<Stage>> {
    Stage::embedded().await
}

/// "Setting this field to a negative number fails": the answer to the request says so already.
#[tokio::test(flavor = "multi_thread")]
async fn a_negative_parallelism_is_worth_a_warning() -> anyhow::Result<()> {
    let admin = Instance::shared().await?.admin().await?;
    let object = fanout("warned", ("group", "nobody"), "work").parallelism(-1);
    let warned = admin.post(FANOUTS, &object.build()).await?.warnings();
    assert!(
        warned.iter().any(|text| text.contains("negative")),
        "{warned:?}"
    );
    Ok(())
}

/// "Every outcome true": killed in the middle of a fan-out, everybody is notified once, and the
/// counts are right.
#[tokio::test(flavor = "multi_thread")]
async fn killed_in_the_middle_of_a_fan_out_nobody_is_notified_twice_and_counts_are_right()
-> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let file = instance.file("crash");
    let pods = (0..40).map(|number| {
        let name = format!("crash-{number:02}");
        let exit = u8::from(number % 10 == 7);
        let script = format!("echo {name} >> {file}; sleep 0.1; exit {exit}");
        pod(&name)
            .label("group", "crash")
            .idle("main")
            .notifier("work", exec(["sh", "-c", &script]).timeout(120))
    });
    run_all(&Stage::on(&instance).await?, pods.collect()).await?;
    let object = fanout("crash", ("group", "crash"), "work")
        .parallelism(4)
        .spec("deadlineSeconds", 600);
    admin.post(FANOUTS, &object.build()).await?.ok()?;
    for reached in [6, 17, 29] {
        until_file(&file, |text| text.lines().count() >= reached).await?;
        instance.kill9().await?;
        instance.start_again().await?;
    }
    let admin = instance.admin().await?;
    let done = ended(&admin, "crash").await?;
    assert_eq!(counts(&done), (36, 4), "{done:#}");
    assert_eq!(done["status"]["targetCount"], 40);
    assert_eq!(done["status"]["pending"], Value::Null);
    let mut told = sorted_lines(&file);
    let before = told.len();
    told.dedup();
    assert_eq!(told.len(), 40, "somebody was left out");
    assert_eq!(before, 40, "somebody was notified twice");
    let children = children(&admin, "crash").await?;
    assert_eq!(children.len(), 40);
    for child in children {
        let failed = child["status"]["state"] == "Failed";
        let name = child["spec"]["podName"].as_str().context("a pod")?;
        assert_eq!(failed, name.ends_with('7'), "{child:#}");
    }
    Ok(())
}

/// What an executor has claimed is given up when its deadline is over and nothing was heard of it for
/// 40 s: what another one does that is alive goes on for as long as it takes, and what the lost one
/// tells when it is back comes too late.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_lost_agent_claimed_is_interrupted_for_good_and_what_a_living_one_does_goes_on()
-> anyhow::Result<()> {
    const DEADLINE: u32 = 20;
    const SILENCE: u32 = 40;
    let mut instance = Instance::server().start().await?;
    for node in ["alive", "lost"] {
        instance.start_agent(node, &[]).await?;
    }
    let stage = Stage::on(&instance).await?;
    let admin = stage.admin();
    let (alive, lost, beside) = (
        stage.file("alive.ran"),
        stage.file("lost.ran"),
        stage.file("beside"),
    );
    run_all(
        &stage,
        vec![
            waiting("alive", "goes-on", &alive).node("alive"),
            waiting("lost", "is-lost", &lost).node("lost"),
            member("lost", "is-beside", &beside).node("alive"),
        ],
    )
    .await?;
    let asked = notification("goes-on", "goes-on", "work").deadline(DEADLINE);
    admin.post(NOTIFICATIONS, &asked.build()).await?.ok()?;
    let asked = fanout("lost", ("group", "lost"), "work").spec("deadlineSeconds", DEADLINE);
    admin.post(FANOUTS, &asked.build()).await?.ok()?;
    let both = Instant::now();
    for file in [&alive, &lost] {
        until_file(file, |text| !text.is_empty()).await?;
    }
    instance.kill9_agent("lost").await?;

    // As a part of its Notification it has failed, and nothing else is waited for.
    let path = format!("{FANOUTS}/lost");
    let done = eventually_within(Duration::from_secs(300), "the lost one's end", async || {
        let object = admin.get(&path).await?.ok()?;
        Ok((object["status"]["state"] != "New").then_some(object))
    })
    .await?;
    assert_eq!(counts(&done), (1, 1), "{done:#}");
    assert_eq!(done["status"]["state"], "Failed", "{done:#}");
    assert!(done["status"]["completeTime"].is_string(), "{done:#}");
    let mut children = children(admin, "lost").await?;
    children.retain(|child| child["spec"]["podName"] == "is-lost");
    let [interrupted] = &children[..] else {
        anyhow::bail!("one for each pod: {children:#?}");
    };
    let status = &interrupted["status"];
    assert_eq!(status["state"], "Failed", "{interrupted:#}");
    assert_eq!(status["executor"], "lost", "{interrupted:#}");
    for error in [&status["error"], &status["containers"][0]["error"]] {
        assert_eq!(error["type"], "Interrupted", "{interrupted:#}");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains("it may have run"), "{interrupted:#}");
    }
    let whether = &status["containers"][0]["succeeded"];
    assert_eq!(*whether, Value::Null, "nobody knows: {interrupted:#}");

    // It ends by itself, and its agent comes back and sees that.
    std::fs::write(format!("{lost}.go"), "")?;
    until_file(&format!("{lost}.ended"), |text| !text.is_empty()).await?;
    instance.start_agent("lost", &[]).await?;
    let uid = interrupted["metadata"]["uid"].as_str().context("a UID")?;
    let audit = instance.dir().join("lost/agent-audit.jsonl");
    let audit = audit.display().to_string();
    let whole = |text: &str| text.contains(uid) && text.ends_with('\n');
    let line = until_file(&audit, whole).await?;
    assert!(line.contains("\"outcome\":\"Succeeded\""), "{line}");
    let again = admin
        .notify(&notification("again", "is-lost", "work").build())
        .await?;
    assert_eq!(again["status"]["state"], "Succeeded", "{again:#}");
    let name = interrupted["metadata"]["name"].as_str().context("a name")?;
    let after = admin.get(&format!("{NOTIFICATIONS}/{name}")).await?.ok()?;
    assert_eq!(after["status"], *status, "its result comes too late");
    let after = admin.get(&path).await?.ok()?;
    assert_eq!(after["status"], done["status"], "and counts for nothing");
    assert_eq!(lines(&lost), 2, "it ran once for each that asked");

    // The living one is way past its deadline and everybody's patience.
    let over = Duration::from_secs(u64::from(DEADLINE + SILENCE + 10));
    tokio::time::sleep_until(both + over).await;
    let path = format!("{NOTIFICATIONS}/goes-on");
    let still = admin.get(&path).await?.ok()?;
    assert_eq!(still["status"]["state"], "New", "{still:#}");
    assert_eq!(still["status"]["executor"], "alive", "{still:#}");
    std::fs::write(format!("{alive}.go"), "")?;
    let ended = admin.finished("goes-on").await?;
    assert_eq!(ended["status"]["state"], "Succeeded", "{ended:#}");
    assert_eq!(ended["status"]["containers"][0]["attempts"], 1, "{ended:#}");
    assert_eq!(lines(&alive), 1);
    Ok(())
}

/// "How does this feature react if the API server and/or etcd is unavailable?": what runs goes on and
/// is told with its real end; nothing starts after the deadline, the default of a minute here.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_server_is_away_for_the_default_deadline_what_runs_ends_and_what_waits_expires()
-> anyhow::Result<()> {
    const COUNT: u8 = 5;
    const SLOTS: usize = 2;
    let mut instance = Instance::server().start().await?;
    let slots = SLOTS.to_string();
    let arguments = ["--max-actions", slots.as_str()];
    instance
        .start_agent_with_args("n1", &arguments, &[])
        .await?;
    let stage = Stage::on(&instance).await?;
    let (began, gate) = (stage.file("began"), stage.file("gate"));
    let pods = (0..COUNT).map(|code| {
        let script = format!(
            "echo away-{code} >> {began}; while [ ! -e {gate} ]; do sleep 0.05; done; exit {code}"
        );
        pod(&format!("away-{code}"))
            .label("group", "away")
            .idle("main")
            .notifier("work", exec(["sh", "-c", &script]).timeout(600))
    });
    run_all(&stage, pods.collect()).await?;
    let asked = fanout("away", ("group", "away"), "work").spec("deadlineSeconds", Value::Null);
    stage.admin().post(FANOUTS, &asked.build()).await?.ok()?;
    let claimed = eventually("all to be claimed", async || {
        let mut children = children(stage.admin(), "away").await?;
        children.retain(|child| child["status"]["executor"] == "n1");
        Ok((children.len() == usize::from(COUNT)).then_some(children))
    })
    .await?;
    for child in &claimed {
        assert_eq!(child["spec"]["deadlineSeconds"], 60, "{child:#}");
    }
    until_file(&began, |text| text.lines().count() == SLOTS).await?;
    instance.kill9().await?;
    // Creation times are whole seconds, cut off.
    tokio::time::sleep(Duration::from_secs(60 + 2)).await;
    // Two slots get free, for those who may not start any more.
    std::fs::write(&gate, "")?;
    eventually("the end of what runs", async || {
        Ok(processes::with_command(&gate).is_empty().then_some(()))
    })
    .await?;
    instance.start_again().await?;

    let admin = instance.admin().await?;
    let done = ended(&admin, "away").await?;
    let ran = std::fs::read_to_string(&began)?;
    let ran: Vec<&str> = ran.lines().collect();
    assert_eq!(ran.len(), SLOTS, "nothing has begun since: {ran:?}");
    let children = children(&admin, "away").await?;
    assert_eq!(children.len(), usize::from(COUNT), "{children:#?}");
    for child in &children {
        let pod = child["spec"]["podName"].as_str().context("a pod")?;
        let (status, main) = (&child["status"], &child["status"]["containers"][0]);
        if ran.contains(&pod) {
            let code: u8 = pod.trim_start_matches("away-").parse()?;
            assert_eq!(main["exitCode"], code, "{child:#}");
            assert_eq!(main["succeeded"], code == 0, "{child:#}");
            let error = (code != 0).then_some("HandlerFailed");
            assert_eq!(main["error"]["type"], json!(error), "{child:#}");
        } else {
            assert_eq!(status["state"], "Failed", "{child:#}");
            assert_eq!(main["error"]["type"], "Expired", "{child:#}");
            assert_eq!(main["exitCode"], Value::Null, "{child:#}");
        }
    }
    let succeeded = i64::from(ran.contains(&"away-0"));
    let all = i64::from(COUNT);
    assert_eq!(counts(&done), (succeeded, all - succeeded), "{done:#}");
    assert_eq!(done["status"]["targetCount"], all, "{done:#}");
    assert_eq!(done["status"]["pending"], Value::Null, "{done:#}");
    Ok(())
}

/// "Mechanism to notify `Pod`s on a to-be-evicted node": whoever knows the node gives its pods a label,
/// and notifies those who have it. Each agent notifies its own; the others hear nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_pods_of_a_node_that_is_to_be_evicted_are_notified_by_their_label_and_no_others()
-> anyhow::Result<()> {
    let mut instance = Instance::server().start().await?;
    for node in ["stays", "goes"] {
        instance.start_agent(node, &[]).await?;
    }
    let stage = Stage::on(&instance).await?;
    let admin = stage.admin();
    let file = stage.file("told");
    let pods = ["stays", "goes"].into_iter().flat_map(|node| {
        let file = &file;
        (0..3).map(move |number| member("web", &format!("{node}-{number}"), file).node(node))
    });
    run_all(&stage, pods.collect()).await?;
    let path = format!("{PODS}?fieldSelector=spec.nodeName%3Dgoes");
    let there = admin.get(&path).await?.ok()?;
    let there: Vec<&str> = there["items"]
        .as_array()
        .context("a list")?
        .iter()
        .map(name)
        .collect();
    assert_eq!(there.len(), 3, "{there:?}");
    for pod in &there {
        let label = json!({"metadata": {"labels": {"evict": "soon"}}});
        admin.merge(&format!("{PODS}/{pod}"), &label).await?.ok()?;
    }
    let asked = fanout("leave", ("evict", "soon"), "work").build();
    admin.post(FANOUTS, &asked).await?.ok()?;
    let done = ended(admin, "leave").await?;
    assert_eq!(counts(&done), (3, 0), "{done:#}");
    assert_eq!(sorted_lines(&file), ["goes-0", "goes-1", "goes-2"]);
    for child in children(admin, "leave").await? {
        assert_eq!(child["status"]["executor"], "goes", "{child:#}");
    }
    // By the label that all have, those of both nodes are.
    let asked = fanout("both", ("group", "web"), "work").build();
    admin.post(FANOUTS, &asked).await?.ok()?;
    let done = ended(admin, "both").await?;
    assert_eq!(counts(&done), (6, 0), "{done:#}");
    assert_eq!(lines(&file), 3 + 6);
    Ok(())
}

/// Gate off, on, off, with objects that exist.
#[tokio::test(flavor = "multi_thread")]
async fn notifications_go_away_with_their_gate_and_go_on_with_it() -> anyhow::Result<()> {
    let mut instance = Instance::up().start().await?;
    let admin = instance.admin().await?;
    let file = instance.file("gate");
    run_all(
        &Stage::on(&instance).await?,
        vec![member("gate", "gate-1", &file)],
    )
    .await?;
    let object = fanout("gate", ("group", "gate"), "work").all_pods();
    admin.post(FANOUTS, &object.build()).await?.ok()?;
    let one = until_fanout(&admin, "gate", "its first pod", |object| {
        (counts(object) == (1, 0)).then(|| object.clone())
    })
    .await?;
    for round in 0..2 {
        instance.stop().await?;
        instance
            .start_again_with_args(&["--feature-gates=ContainerNotifier=false"])
            .await?;
        let admin = instance.admin().await?;
        admin.get(FANOUTS).await?.refused(404)?;
        admin.post(FANOUTS, &one).await?.refused(404)?;
        instance.stop().await?;
        instance.start_again_with_args(&[]).await?;
        let admin = instance.admin().await?;
        let stored = admin.get(&format!("{FANOUTS}/gate")).await?.ok()?;
        assert_eq!(stored["metadata"]["uid"], one["metadata"]["uid"]);
        let name = format!("gate-again-{round}");
        run_all(
            &Stage::on(&instance).await?,
            vec![member("gate", &name, &file)],
        )
        .await?;
        until_fanout(&admin, "gate", "one pod more", |object| {
            (counts(object) == (2 + round, 0)).then_some(())
        })
        .await?;
    }
    assert_eq!(lines(&file), 3, "nobody twice");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_something_that_is_gone_goes_too_unless_it_is_to_be_orphaned()
-> anyhow::Result<()> {
    let instance = Instance::shared().await?;
    let admin = instance.admin().await?;
    let maps = belay_testkit::CONFIG_MAPS;
    for (policy, stays) in [
        ("Background", false),
        ("Foreground", false),
        ("Orphan", true),
    ] {
        let name = policy.to_lowercase();
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        let owner = admin.post(maps, &owner).await?.ok()?;
        let dependent = format!("{name}-dependent");
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name,
            "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true});
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": dependent, "ownerReferences": [reference]}});
        admin.post(maps, &object).await?.ok()?;
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions",
            "propagationPolicy": policy});
        admin
            .delete_with(&format!("{maps}/{name}"), &options)
            .await?
            .ok()?;
        eventually("the owner to be gone", async || {
            let gone = admin.get(&format!("{maps}/{name}")).await?.status == 404;
            Ok(gone.then_some(()))
        })
        .await?;
        let path = format!("{maps}/{dependent}");
        if stays {
            let left = admin.get(&path).await?.ok()?;
            assert!(
                left["metadata"]["ownerReferences"]
                    .as_array()
                    .is_none_or(Vec::is_empty),
                "{left:#}"
            );
        } else {
            eventually("the dependent to be gone", async || {
                Ok((admin.get(&path).await?.status == 404).then_some(()))
            })
            .await?;
        }
    }
    Ok(())
}

/// Children that their Notification leaves behind are held by a finalizer, and nobody counts them.
#[tokio::test(flavor = "multi_thread")]
async fn children_that_are_orphaned_can_be_deleted() -> anyhow::Result<()> {
    let Some(stage) = stage().await? else {
        return Ok(());
    };
    let admin = stage.admin();
    let work = exec(["true"]);
    stage
        .run(
            pod("left")
                .label("group", "left")
                .idle("main")
                .notifier("work", work),
        )
        .await?;
    let object = fanout("left", ("group", "left"), "work").build();
    let uid = admin.post(FANOUTS, &object).await?.ok()?["metadata"]["uid"].clone();
    let uid = uid.as_str().context("it has a UID")?.to_owned();
    let of = format!(
        "{}?labelSelector=apps.k8s.io/notification-uid%3D{uid}",
        belay_testkit::NOTIFICATIONS
    );
    let children = async || -> anyhow::Result<Vec<String>> {
        let list = admin.get(&of).await?.ok()?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let names = items
            .iter()
            .filter_map(|it| it["metadata"]["name"].as_str());
        Ok(names.map(str::to_owned).collect())
    };
    let ended = |object: &Value| object["status"]["completeTime"].as_str().map(|_| ());
    admin
        .until(&format!("{FANOUTS}/left"), "the end", ended)
        .await?;
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions",
        "propagationPolicy": "Orphan"});
    admin
        .delete_with(&format!("{FANOUTS}/left"), &options)
        .await?
        .ok()?;
    eventually("the Notification to be gone", async || {
        let gone = admin.get(&format!("{FANOUTS}/left")).await?.status == 404;
        Ok(gone.then_some(()))
    })
    .await?;
    let left = children().await?;
    anyhow::ensure!(left.len() == 1, "{left:?}");
    let path = format!("{}/{}", belay_testkit::NOTIFICATIONS, left[0]);
    admin.delete(&path).await?.ok()?;
    eventually("the child to be gone", async || {
        Ok(children().await?.is_empty().then_some(()))
    })
    .await?;
    Ok(())
}
