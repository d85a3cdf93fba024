//! Logs go to standard error, as text or JSON lines; standard output belongs to results.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Starts logging. `level` (from the command line) wins over `RUST_LOG`, which wins over
/// `default`. A `level` may be a plain level or directives such as `info,belay_server=debug`.
pub(crate) fn start(level: Option<&str>, format: LogFormat, default: &str) -> anyhow::Result<()> {
    let from_env = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    // The client library logs every failed request and watch on its own; those who made them say it
    // better, or try again.
    let quiet = format!("{default},kube_client=off,kube_runtime=error");
    let (name, text) = match (level, from_env.as_deref()) {
        (Some(level), _) => ("--log-level", level),
        (None, Some(text)) => ("RUST_LOG", text),
        (None, None) => ("default", quiet.as_str()),
    };
    let filter = EnvFilter::builder()
        .parse(text)
        .map_err(|error| crate::exit::usage(format!("{name} {text:?}: {error}")))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
