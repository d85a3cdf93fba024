//! One try of a probe. What it says when it fails is for people.

use std::error::Error;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::{Check, clear, grpc, http, own_id};
use crate::{Action, AttemptId, Outcome, Target};

/// How probes introduce themselves.
pub(super) const USER_AGENT: &str = concat!("belay-probe/", env!("CARGO_PKG_VERSION"));

/// What one try came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tried {
    Succeeded,
    Failed {
        message: String,
        /// The end of what a command wrote.
        output: String,
    },
    /// Nothing is known of what it tried: the runtime could not carry it out.
    Unknown {
        message: String,
    },
}

impl Tried {
    fn failed(message: String) -> Self {
        Tried::Failed {
            message,
            output: String::new(),
        }
    }
}

impl From<Result<(), String>> for Tried {
    fn from(result: Result<(), String>) -> Self {
        match result {
            Ok(()) => Tried::Succeeded,
            Err(message) => Tried::failed(message),
        }
    }
}

/// Tries once. `stop` ends the try early; an exec is dead then, with all it started.
///
/// The error says how it failed, and nothing of what a command wrote: it is for places that many
/// may read.
pub async fn once(
    target: &dyn Target,
    check: &Check,
    attempt: &AttemptId,
    timeout: Duration,
    stop: CancellationToken,
) -> Result<(), String> {
    match tried(target, check, attempt, timeout, stop).await {
        Tried::Succeeded => Ok(()),
        Tried::Failed { message, .. } | Tried::Unknown { message } => Err(message),
    }
}

/// As [`once`], with all that is known.
pub async fn tried(
    target: &dyn Target,
    check: &Check,
    attempt: &AttemptId,
    timeout: Duration,
    stop: CancellationToken,
) -> Tried {
    // What talks is boxed: most probes are of another kind, and should not be as big as the biggest.
    match check {
        // Its timeout begins with its process and is kept by the runtime, which also kills it.
        Check::Exec { command } => exec(target, command, attempt, timeout, &stop).await,
        Check::Http(request) => bounded(timeout, &stop, Box::pin(http::get(request)))
            .await
            .into(),
        Check::Tcp { host, port } => bounded(timeout, &stop, connect(host, *port))
            .await
            .map(drop)
            .into(),
        Check::Grpc {
            host,
            port,
            service,
        } => bounded(timeout, &stop, Box::pin(grpc::check(host, *port, service)))
            .await
            .into(),
    }
}

async fn bounded<T>(
    timeout: Duration,
    stop: &CancellationToken,
    talk: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    tokio::select! {
        tried = tokio::time::timeout(timeout, talk) => {
            tried.unwrap_or_else(|_| Err(format!("no answer within {}", seconds(timeout))))
        }
        () = stop.cancelled() => Err("given up".to_owned()),
    }
}

async fn exec(
    target: &dyn Target,
    command: &[String],
    attempt: &AttemptId,
    timeout: Duration,
    stop: &CancellationToken,
) -> Tried {
    let own = match own_id(attempt) {
        Ok(own) => own,
        Err(error) => return Tried::failed(error.to_string()),
    };
    let action = Action::Exec {
        command: command.to_vec(),
    };
    let report = match crate::run(target, &action, &own, timeout, stop.clone()).await {
        Ok(report) => report,
        Err(error) => {
            // Whether something runs is not known.
            clear(target, attempt).await;
            let message = causes(&error);
            return Tried::Unknown { message };
        }
    };
    target.forget(&own).await;
    let message = match report.outcome {
        Outcome::Succeeded => return Tried::Succeeded,
        Outcome::Exited { code } => format!("the command exited with code {code}"),
        Outcome::Signaled { signal } => format!("the command was killed by signal {signal}"),
        Outcome::TimedOut => format!("the command did not end within {}", seconds(timeout)),
        Outcome::Cancelled => "given up".to_owned(),
        Outcome::StartFailed { message } => {
            format!("the command could not be started: {message}")
        }
    };
    Tried::Failed {
        message,
        output: report.output,
    }
}

pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, String> {
    TcpStream::connect((host, port))
        .await
        .map_err(|error| format!("cannot connect to {}: {error}", authority(host, port)))
}

/// Host and port as they stand in a URL.
pub(super) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

pub(super) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.ends_with(&told) {
            text.push_str(": ");
            text.push_str(&told);
        }
        cause = error.source();
    }
    text
}

fn seconds(duration: Duration) -> String {
    format!("{} s", (duration.as_secs_f64() * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_addresses_read_as_people_write_them() {
        assert_eq!(seconds(Duration::from_secs(3)), "3 s");
        assert_eq!(seconds(Duration::from_micros(1_499_700)), "1.5 s");
        assert_eq!(authority("10.0.0.1", 80), "10.0.0.1:80");
        assert_eq!(authority("::1", 80), "[::1]:80");
    }
}
