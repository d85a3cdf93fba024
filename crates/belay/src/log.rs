//! Logs go to standard error, as text or JSON lines; standard output belongs to results.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Starts logging. `level` (from the command line) wins over `RUST_LOG`, which wins over
/// `default`. A `level` may be a plain level or directives such as `info,belay_server=debug`.
pub fn start(level: Option<&str>, format: LogFormat, default: LevelFilter) -> anyhow::Result<()> {
    let filter = match level {
        Some(level) => level
            .parse::<EnvFilter>()
            .map_err(|error| crate::exit::usage(format!("--log-level {level:?}: {error}")))?,
        None => EnvFilter::builder()
            .with_default_directive(default.into())
            .from_env()
            .map_err(|error| crate::exit::usage(format!("RUST_LOG: {error}")))?,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
