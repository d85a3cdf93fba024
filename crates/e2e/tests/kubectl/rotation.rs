//! A log that grows too long while somebody follows it.

use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::ends::{delete, gone};
use belay_testkit::{PODS, Stage, eventually, pod};
use tokio::io::AsyncReadExt as _;

/// Far more than it takes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Numbered lines, more than one file takes, then some every moment, until there is a file `gate`.
const WRITER: &str = r#"
    BEGIN {
        x = sprintf("%200s", ""); gsub(/ /, "x", x)
        for (i = 0; i < 45000; i++) printf "%06d %s\n", i, x
        while ((getline line < gate) < 0) {
            for (n = 0; n < 10; n++) printf "%06d\n", i++
            fflush(); system("sleep 0.01")
        }
        print "end"
    }"#;

/// The file is renamed amid the writing, and neither who follows nor who comes later misses a line.
pub(crate) async fn a_long_log_is_rotated_and_read_over_the_boundary(
    stage: &Stage,
) -> anyhow::Result<()> {
    let Some(kubectl) = stage.kubectl() else {
        return Ok(());
    };
    let gate = stage.file("long-gate");
    let given = format!("gate={gate}");
    let long = pod("long")
        .container("main", ["awk", "-v", &given, WRITER])
        .restart_policy("Never");
    let running = stage.run(long).await?;
    let uid = running["metadata"]["uid"].as_str().context("a UID")?;
    let mut following = kubectl.start(&["logs", "-f", "long"])?;
    let mut output = following.stdout.take().context("no output")?;
    let followed = tokio::spawn(async move {
        let mut text = String::new();
        output.read_to_string(&mut text).await.map(|_| text)
    });
    let log = stage.file(&format!("data/agent/logs/default_long_{uid}/main/0.log"));
    eventually("the log to go on in another file", async || {
        let renamed = std::fs::metadata(format!("{log}.1")).is_ok();
        let goes_on = std::fs::metadata(&log).is_ok_and(|log| log.len() > 0);
        Ok((renamed && goes_on).then_some(()))
    })
    .await?;
    std::fs::write(&gate, "")?;

    let text = tokio::time::timeout(PATIENCE, followed).await???;
    assert!(following.wait().await?.success());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.last(), Some(&"end"));
    for (number, line) in lines[..lines.len() - 1].iter().enumerate() {
        let told: Option<usize> = line.get(..6).and_then(|number| number.parse().ok());
        assert_eq!(told, Some(number), "{line}");
    }
    let path = format!("{PODS}/long");
    eventually("its end", async || {
        let pod = stage.admin().get(&path).await?.ok()?;
        Ok((pod["status"]["phase"] == "Succeeded").then_some(()))
    })
    .await?;
    assert!(kubectl.ok(&["logs", "long"]).await? == text, "all of it");
    let tail = format!("--tail={}", lines.len() - 1000);
    let tail = kubectl.ok(&["logs", "long", &tail]).await?;
    assert!(tail.starts_with("001000 ") && text.ends_with(&tail));
    delete(stage, "long").await?;
    gone(stage, "long").await
}
