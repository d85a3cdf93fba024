//! The end-to-end lines of KEP-3960's test plan (the sleep action of `preStop`), on the stage that
//! the file including this one gives. Each test quotes the line it is about.
//!
//! How long something took is read from the agent's record, which the events carry, and only ever
//! held against a lower bound, or against [`LONG`], which no test waits for.

use std::time::Duration;

use belay_testkit::{PODS, pod, until_file};
use futures::future::try_join_all;

use belay_testkit::ends::{
    LONG, asked, delete, delete_within, gone, pre_stop, run, sent, sleeper, stopping, told,
};

/// "Basic functionality": "Delete the pod and observe the time it takes for the container to
/// terminate. Verify that the container sleeps for the specified duration before it is terminated."
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_e2e_basic_functionality() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let file = stage.file("basic");
    run(&stage, sleeper("basic", &file, 5, LONG), &file).await?;
    delete(&stage, "basic").await?;
    gone(&stage, "basic").await?;
    let sent = sent(&stage, "basic", "main").await?;
    assert_eq!(sent.signal, "SIGTERM");
    assert!(sent.after >= Duration::from_secs(5), "{sent:?}");
    let grace = Duration::from_secs(LONG.into());
    assert_eq!(sent.after + sent.left, grace, "what it slept is subtracted");
    assert_eq!(std::fs::read_to_string(&file)?, "up\nTERM\n");
    assert!(told(&stage, "basic", "FailedPreStopHook").await?.is_empty());
    Ok(())
}

/// "Verify that the container keeps executing code while sleeping."
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_e2e_the_container_keeps_executing_code_while_sleeping() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let file = stage.file("works");
    // It answers each question; none is asked before its sleep has begun.
    let script = format!(
        "trap 'echo TERM >> {file}' TERM; echo up >> {file}; for n in 1 2 3; do \
         while ! test -e {file}.$n; do sleep 0.05; done; echo answer $n >> {file}; done; \
         while :; do sleep 0.05; done"
    );
    let manifest = pod("works")
        .container("main", ["sh", "-c", &script])
        .container_field("lifecycle", pre_stop(LONG.into()))
        .grace(LONG);
    run(&stage, manifest, &file).await?;
    delete(&stage, "works").await?;
    stopping(&stage, "works").await?;
    for question in 1..=3 {
        std::fs::write(format!("{file}.{question}"), "")?;
        let answer = format!("answer {question}");
        until_file(&file, |text| text.contains(&answer)).await?;
    }
    let path = format!("{PODS}/works");
    let pod = stage.admin().get(&path).await?.ok()?;
    assert!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod:#}");
    assert_eq!(pod["status"]["phase"], "Running", "{pod:#}");
    let state = &pod["status"]["containerStatuses"][0]["state"];
    assert!(state["running"].is_object(), "{pod:#}");
    let text = std::fs::read_to_string(&file)?;
    assert_eq!(text, "up\nanswer 1\nanswer 2\nanswer 3\n");
    assert!(told(&stage, "works", "StopSignalSent").await?.is_empty());
    delete_within(&stage, "works", 0).await?;
    gone(&stage, "works").await
}

/// "Sleep duration boundary testing": "1 seconds (minimum allowed value), values slightly above the
/// minimum allowed value (to test edge cases)". Ours begins with 0 and ends with the whole grace.
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_e2e_sleep_duration_boundaries() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let boundary = async |seconds: u32, grace: u32| -> anyhow::Result<()> {
        let name = format!("boundary-{seconds}-{grace}");
        let file = stage.file(&name);
        run(&stage, sleeper(&name, &file, seconds.into(), grace), &file).await?;
        delete(&stage, &name).await?;
        gone(&stage, &name).await?;
        let sent = sent(&stage, &name, "main").await?;
        let slept = Duration::from_secs(seconds.into());
        assert!(sent.after >= slept, "{name}: {sent:?}");
        let whole = Duration::from_secs(grace.into());
        assert!(sent.after + sent.left >= whole, "{name}: {sent:?}");
        asked(&stage, &name, &file).await?;
        let failed = told(&stage, &name, "FailedPreStopHook").await?;
        assert!(failed.is_empty(), "{name}: {failed:?}");
        Ok(())
    };
    let cases = [(0, LONG), (1, LONG), (2, LONG), (0, 20), (3, 3)];
    try_join_all(cases.map(|(seconds, grace)| boundary(seconds, grace))).await?;
    Ok(())
}

/// The boundaries on the wrong side: below the minimum, and above the grace period.
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_e2e_a_sleep_beyond_its_boundaries_is_refused() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    for (seconds, grace) in [(-1, 5), (6, 5), (1, 0), (i64::MAX, 5)] {
        let refused = sleeper("refused", "/dev/null", seconds, grace);
        let reply = stage.admin().post(PODS, &stage.manifest(refused)).await?;
        let status = reply.refused(422)?;
        assert_eq!(status["reason"], "Invalid");
        let cause = &status["details"]["causes"][0];
        let field = "spec.containers[0].lifecycle.preStop.sleep";
        assert_eq!(cause["field"], field, "{status:#}");
        let message = cause["message"].as_str().unwrap_or_default();
        let said = format!(
            "Invalid value: {seconds}: must be non-negative and less than \
             terminationGracePeriodSeconds ({grace})"
        );
        assert_eq!(message, said);
    }
    let path = format!("{PODS}/refused");
    stage.admin().get(&path).await?.refused(404).map(drop)
}

/// "Container exit/crash testing": "Exit the container and observe the time it takes for the pod to
/// terminate. Verify that the pod be deleted successfully without waiting for the entire sleep
/// duration." "If the container terminates before the sleep finishes, this action will be
/// interrupted."
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_e2e_container_exit_and_crash() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let exits = async |code: u8| -> anyhow::Result<()> {
        let name = format!("exits-{code}");
        let (file, gate) = (stage.file(&name), stage.file(&format!("{name}-gate")));
        let script = format!(
            "trap 'echo TERM >> {file}' TERM; echo up >> {file}; \
             while ! test -e {gate}; do sleep 0.05; done; exit {code}"
        );
        let manifest = pod(&name)
            .container("main", ["sh", "-c", &script])
            .container_field("lifecycle", pre_stop(LONG.into()))
            .grace(LONG);
        run(&stage, manifest, &file).await?;
        delete(&stage, &name).await?;
        stopping(&stage, &name).await?;
        std::fs::write(&gate, "")?;
        gone(&stage, &name).await?;
        assert_eq!(std::fs::read_to_string(&file)?, "up\n", "nobody signals it");
        for reason in ["StopSignalSent", "FailedPreStopHook"] {
            let said = told(&stage, &name, reason).await?;
            assert!(said.is_empty(), "{name}: {said:?}");
        }
        Ok(())
    };
    try_join_all([0, 3].map(exits)).await?;
    Ok(())
}

/// "Interaction with termination grace period": "Equal to the sleep duration", "Greater than the
/// sleep duration", "Greater than the sleep duration, but reduced to less than the sleep duration at
/// runtime". "Verify that the container is terminated after the min(sleep, grace)."
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_e2e_interaction_with_the_termination_grace_period() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    /// How the grace is reduced.
    #[derive(Clone, Copy, PartialEq)]
    enum Reduced {
        Never,
        /// By the request that deletes the pod.
        AtFirst(u32),
        /// By another one, while it sleeps.
        Later(u32),
    }
    let interacts = async |name: &str, sleep: u32, grace: u32, reduced| -> anyhow::Result<()> {
        let file = stage.file(name);
        run(&stage, sleeper(name, &file, sleep.into(), grace), &file).await?;
        let least = match reduced {
            Reduced::Never => {
                delete(&stage, name).await?;
                grace
            }
            Reduced::AtFirst(grace) => {
                delete_within(&stage, name, grace).await?;
                grace
            }
            Reduced::Later(grace) => {
                delete(&stage, name).await?;
                stopping(&stage, name).await?;
                delete_within(&stage, name, grace).await?;
                grace
            }
        };
        gone(&stage, name).await?;
        let sent = sent(&stage, name, "main").await?;
        let least = Duration::from_secs(sleep.min(least).into());
        assert!(sent.after >= least, "{name}: {sent:?}");
        let longest = Duration::from_secs(LONG.into());
        assert!(sent.after < longest, "{name}: {sent:?}");
        asked(&stage, name, &file).await
    };
    tokio::try_join!(
        interacts("grace-equal", 2, 2, Reduced::Never),
        interacts("grace-greater", 1, LONG, Reduced::Never),
        interacts("grace-reduced", LONG, LONG, Reduced::Later(1)),
        interacts("grace-less", LONG, LONG, Reduced::AtFirst(2)),
    )?;
    Ok(())
}

/// A sidecar's sleep begins with the end of its pod; its signal waits for those it serves.
#[tokio::test(flavor = "multi_thread")]
async fn kep_3960_e2e_a_sidecar_sleeps_while_those_it_serves_end() -> anyhow::Result<()> {
    let Some(stage) = super::stage().await? else {
        return Ok(());
    };
    let file = stage.file("served");
    let says = |name: &str| {
        format!(
            "trap 'echo {name} TERM >> {file}; exit 0' TERM; echo {name} up >> {file}; \
             while :; do sleep 0.05; done"
        )
    };
    let main = says("main");
    let side = says("side");
    let manifest = pod("served")
        .sidecar("side", ["sh", "-c", &side])
        .container_field("lifecycle", pre_stop(1))
        .container("main", ["sh", "-c", &main])
        .container_field("lifecycle", pre_stop(2))
        .grace(LONG);
    stage.run(manifest).await?;
    until_file(&file, |text| text.lines().count() == 2).await?;
    delete(&stage, "served").await?;
    gone(&stage, "served").await?;
    let text = std::fs::read_to_string(&file)?;
    assert!(text.ends_with("main TERM\nside TERM\n"), "{text}");
    // Both slept at the same time: one after the other would leave the last one less.
    let (main, side) = tokio::try_join!(
        sent(&stage, "served", "main"),
        sent(&stage, "served", "side")
    )?;
    assert!(side.after >= main.after, "{main:?} {side:?}");
    assert!(main.after >= Duration::from_secs(2), "{main:?}");
    Ok(())
}
