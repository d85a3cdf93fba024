//! Waiting for something to become true, with a bound that only a broken program reaches.

use std::time::Duration;

use anyhow::Context;
use tokio::time::Instant;

/// Long enough for a machine that does many other things at the same time.
const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(25);

/// Asks until there is an answer. The last error or the lack of an answer is told on giving up.
pub async fn eventually<T>(
    what: &str,
    ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    eventually_within(PATIENCE, what, ask).await
}

/// [`eventually`] with a bound of its own.
pub async fn eventually_within<T>(
    patience: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        let answer = ask().await;
        if let Ok(Some(found)) = answer {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            answer.with_context(|| format!("waited {patience:?} for {what}"))?;
            anyhow::bail!("waited {patience:?} for {what}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reads the file until its text satisfies `holds`; returns that text.
pub async fn until_file(path: &str, holds: impl Fn(&str) -> bool) -> anyhow::Result<String> {
    eventually(&format!("the text of {path}"), async || {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(holds(&text).then_some(text))
    })
    .await
}

/// How many lines a file has; an absent one has none.
pub fn lines(path: &str) -> usize {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .lines()
        .count()
}
