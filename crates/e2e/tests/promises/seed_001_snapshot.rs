//! The workflow of the execution hook proposal: quiesce, snapshot, unquiesce. What is tried is the
//! script that the guide shows, as it stands there.

use std::process::Output;

use belay_testkit::{HOOK_ACTIONS, HOOKS, Kubectl, Stage, lines, pod, processes, until_file};
use serde_json::{Value, json};

const GUIDE: &str = include_str!("../../../../docs/guide/snapshot.md");

/// The one shell script of the page.
fn script() -> anyhow::Result<&'static str> {
    let (_, rest) = GUIDE.split_once("```sh\n").unwrap_or_default();
    let (script, _) = rest.split_once("```").unwrap_or_default();
    anyhow::ensure!(script.starts_with("#!/bin/sh"), "no script in the guide");
    Ok(script)
}

fn says(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{:?}\n{}{}",
        output.status,
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Two pods that are quiesced while their file `NAME-lock` is there.
struct Database<'a> {
    stage: &'a Stage,
    kubectl: &'a Kubectl,
}

impl Database<'_> {
    async fn run(&self) -> anyhow::Result<()> {
        for name in ["snap-0", "snap-1"] {
            let env = json!([
                {"name": "LOCK", "value": self.lock(name)},
                {"name": "BROKEN", "value": self.stage.file(&format!("{name}-broken"))},
                {"name": "RELEASED", "value": self.released(name)},
            ]);
            let manifest = pod(name)
                .label("app", "snap")
                .idle("main")
                .container_field("env", env);
            self.stage.run(manifest).await?;
        }
        let quiesce = "test ! -e \"$BROKEN\" && echo locked > \"$LOCK\"";
        self.action("quiesce", quiesce, 300).await?;
        let unquiesce = "rm -f \"$LOCK\" && echo released >> \"$RELEASED\"";
        self.action("unquiesce", unquiesce, 300).await
    }

    async fn action(&self, name: &str, command: &str, seconds: i64) -> anyhow::Result<()> {
        let action = json!({
            "apiVersion": "apps.k8s.io/v1alpha1", "kind": "HookAction",
            "metadata": {"name": name}, "actionTimeoutSeconds": seconds,
            "action": {"exec": {"command": ["sh", "-c", command]}},
        });
        self.stage.admin().post(HOOK_ACTIONS, &action).await?.ok()?;
        Ok(())
    }

    fn lock(&self, pod: &str) -> String {
        self.stage.file(&format!("{pod}-lock"))
    }

    fn released(&self, pod: &str) -> String {
        self.stage.file(&format!("{pod}-released"))
    }

    fn locked(&self) -> usize {
        let pods = ["snap-0", "snap-1"].iter();
        pods.filter(|pod| lines(&self.lock(pod)) == 1).count()
    }

    fn snapshot(&self, command: &str) -> anyhow::Result<tokio::process::Command> {
        self.kubectl
            .script(script()?, &["app=snap", "sh", "-c", command])
    }

    /// How often both were released.
    fn releases(&self) -> usize {
        let of = |pod| lines(&self.released(pod));
        assert_eq!(of("snap-0"), of("snap-1"));
        of("snap-0")
    }
}

/// "Snapshot controller waits for all Action hooks to complete running before taking snapshot." "No
/// matter the Action succeeds or fails, snapshot controller should create execution hooks for
/// unquiescing application."
#[tokio::test(flavor = "multi_thread")]
async fn all_pods_are_quiesced_before_the_snapshot_and_released_whatever_happened()
-> anyhow::Result<()> {
    let Some(stage) = crate::stage().await? else {
        return Ok(());
    };
    let Some(kubectl) = stage.kubectl() else {
        return Ok(());
    };
    let stage = &stage;
    let database = Database { stage, kubectl };
    database.run().await?;
    let seen = stage.file("seen");
    let look = format!(
        "cat {} {} > {seen}",
        database.lock("snap-0"),
        database.lock("snap-1")
    );

    // It goes well.
    let output = database.snapshot(&look)?.output().await?;
    assert!(output.status.success(), "{}", says(&output));
    assert_eq!(lines(&seen), 2, "both were quiesced");
    assert_eq!((database.locked(), database.releases()), (0, 1));

    // The snapshot fails.
    let output = database.snapshot("exit 7")?.output().await?;
    assert_eq!(output.status.code(), Some(7), "{}", says(&output));
    assert_eq!((database.locked(), database.releases()), (0, 2));

    // Somebody loses patience while it is taken: Ctrl-C is for all that runs in the foreground.
    let taken = stage.file("taken");
    let mut script = database.snapshot(&format!("echo begun > {taken}; exec sleep 300"))?;
    let child = script.spawn()?;
    until_file(&taken, |text| !text.is_empty()).await?;
    assert_eq!(database.locked(), 2);
    let pid = child.id().unwrap_or_default();
    let command = processes::children(pid);
    processes::interrupt(pid);
    command.into_iter().for_each(processes::interrupt);
    let output = child.wait_with_output().await?;
    assert_eq!(output.status.code(), Some(130), "{}", says(&output));
    assert_eq!((database.locked(), database.releases()), (0, 3));

    // One pod cannot be quiesced: there is no snapshot, and both are released.
    std::fs::write(stage.file("snap-1-broken"), "")?;
    let short = json!({"actionTimeoutSeconds": 7});
    let path = format!("{HOOK_ACTIONS}/quiesce");
    stage.admin().merge(&path, &short).await?.ok()?;
    std::fs::remove_file(&seen)?;
    let output = database.snapshot(&look)?.output().await?;
    let told = says(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("snap-1/main"), "{told}");
    assert!(told.contains("ExecutionFailwithError"), "{told}");
    assert_eq!(lines(&seen), 0, "no snapshot was taken");
    assert_eq!((database.locked(), database.releases()), (0, 4));

    let hooks = stage.admin().get(HOOKS).await?.ok()?;
    let hooks = hooks["items"].as_array().cloned().unwrap_or_default();
    let tells = |hook: &&Value| {
        let names = ["quiesce", "unquiesce"].map(Value::from);
        names.contains(&hook["spec"]["actionName"]) && hook["status"]["actionSucceed"].is_boolean()
    };
    assert_eq!(hooks.iter().filter(tells).count(), 8, "they tell of it");
    Ok(())
}
