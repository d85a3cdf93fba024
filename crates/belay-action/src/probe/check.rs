//! One try of a probe. What it says when it fails is for people.

use std::error::Error;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::{Check, clear, grpc, http, own_id};
use crate::{Action, AttemptId, Outcome, Target};

/// How probes introduce themselves.
pub(super) const USER_AGENT: &str = concat!("belay-probe/", env!("CARGO_PKG_VERSION"));

/// Tries once. `stop` ends the try early; an exec is dead then, with all it started.
pub async fn once(
    target: &dyn Target,
    check: &Check,
    attempt: &AttemptId,
    timeout: Duration,
    stop: CancellationToken,
) -> Result<(), String> {
    // What talks is boxed: most probes are of another kind, and should not be as big as the biggest.
    match check {
        // Its timeout begins with its process and is kept by the runtime, which also kills it.
        Check::Exec { command } => exec(target, command, attempt, timeout, &stop).await,
        Check::Http(request) => bounded(timeout, &stop, Box::pin(http::get(request))).await,
        Check::Tcp { host, port } => bounded(timeout, &stop, connect(host, *port))
            .await
            .map(drop),
        Check::Grpc {
            host,
            port,
            service,
        } => bounded(timeout, &stop, Box::pin(grpc::check(host, *port, service))).await,
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
) -> Result<(), String> {
    let own = own_id(attempt).map_err(|error| error.to_string())?;
    let action = Action::Exec {
        command: command.to_vec(),
    };
    match crate::run(target, &action, &own, timeout, stop.clone()).await {
        Ok(report) => {
            target.forget(&own).await;
            match report.outcome {
                Outcome::Succeeded => Ok(()),
                Outcome::Exited { code } => Err(format!("the command exited with code {code}")),
                Outcome::Signaled { signal } => {
                    Err(format!("the command was killed by signal {signal}"))
                }
                Outcome::TimedOut => Err(format!(
                    "the command did not end within {}",
                    seconds(timeout)
                )),
                Outcome::Cancelled => Err("given up".to_owned()),
                Outcome::StartFailed { message } => {
                    Err(format!("the command could not be started: {message}"))
                }
            }
        }
        Err(error) => {
            // Whether something runs is not known.
            clear(target, attempt).await;
            Err(causes(&error))
        }
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
