//! Logs go to standard error, as text or JSON lines; standard output belongs to results.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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
    let filter =
        filter(text).map_err(|why| crate::exit::usage(format!("{name} {text:?}: {why}")))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}

/// Reads levels and directives. A word alone is a level: the library would take any other one for a
/// part of the program, and a misspelt level would silence everything.
fn filter(text: &str) -> Result<EnvFilter, String> {
    let help = "a level is error, warn, info, debug, trace or off; that of one part of the program is said as belay_agent=debug";
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let alone = !part.contains(['=', '[']);
        if alone && part.parse::<LevelFilter>().is_err() {
            return Err(format!("{part:?} is no level; {help}"));
        }
    }
    EnvFilter::builder()
        .parse(text)
        .map_err(|error| format!("{error}; {help}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_level_is_refused_with_those_there_are() {
        for text in ["warning", "verbose", "info,verbose", "belay_agent=loud"] {
            let error = filter(text).unwrap_err();
            assert!(error.contains("error, warn, info"), "{text}: {error}");
        }
    }

    #[test]
    fn levels_and_directives_are_read() {
        for text in [
            "warn",
            "INFO",
            "off",
            "",
            "belay_agent=debug",
            "info,belay_server=debug,kube_client=off",
            "belay_agent[pod]=trace",
        ] {
            assert!(filter(text).is_ok(), "{text}");
        }
    }
}
