//! One command, from its connection to its status.

use std::time::Duration;

use async_trait::async_trait;
use belay_action::{
    AttemptId, ContainerId, ExecRequest, MAX_OUTPUT, Outcome, Report, Running, TargetError,
    output_text,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tracing::debug;

use super::{Place, PodsExec};

/// How long the end of the output may take once the status is there.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// What a cancelled command leaves.
const LEFT: &str = "the handler itself, which pods/exec cannot kill";

/// What has come of a command.
#[derive(Debug, Clone)]
enum End {
    Reported(Report),
    /// Its connection broke, or the container was replaced.
    Lost,
}

/// A command under way.
struct Exec {
    attempt: AttemptId,
    end: watch::Receiver<Option<End>>,
    cancel: watch::Sender<bool>,
}

#[async_trait]
impl Running for Exec {
    async fn wait(&mut self) -> Result<Report, TargetError> {
        let lost = || TargetError::Lost {
            attempt: self.attempt.clone(),
        };
        let end = self.end.wait_for(Option::is_some).await;
        match end.as_deref() {
            Ok(Some(End::Reported(report))) => Ok(report.clone()),
            Ok(Some(End::Lost) | None) | Err(_) => Err(lost()),
        }
    }

    async fn cancel(&mut self) {
        self.cancel.send_replace(true);
    }
}

/// A command of which nothing has run.
pub(super) fn unstarted(error: &dyn std::error::Error) -> Box<dyn Running> {
    let message = match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    };
    let now = Timestamp::now();
    let report = Report::new(Outcome::StartFailed { message }, now, now);
    Box::new(Unstarted(report))
}

struct Unstarted(Report);

#[async_trait]
impl Running for Unstarted {
    async fn wait(&mut self) -> Result<Report, TargetError> {
        Ok(self.0.clone())
    }

    async fn cancel(&mut self) {}
}

/// Starts a command.
///
/// # Errors
///
/// When nobody knows whether it runs. What the server refused is a command that could not be
/// started.
pub(super) async fn start(
    runtime: &PodsExec,
    place: &Place,
    id: &ContainerId,
    request: &ExecRequest,
) -> Result<Box<dyn Running>, TargetError> {
    let api: Api<Pod> = Api::namespaced(runtime.client.clone(), &place.namespace);
    let params = AttachParams::default()
        .container(&place.container)
        .stdin(false)
        .stdout(true)
        .stderr(true);
    let started = Timestamp::now();
    let process = match api.exec(&place.pod, &request.command, &params).await {
        Ok(process) => process,
        Err(error @ (kube::Error::Api(_) | kube::Error::UpgradeConnection(_))) => {
            return Ok(unstarted(&error));
        }
        Err(error) => {
            return Err(TargetError::Runtime {
                what: "start a command over pods/exec".to_owned(),
                source: error.into(),
            });
        }
    };
    let (cancel, cancelled) = watch::channel(false);
    let (tell, end) = watch::channel(None);
    let (runtime, place, id) = (runtime.clone(), place.clone(), id.clone());
    let timeout = request.timeout;
    tokio::spawn(async move {
        let mut ended = follow(process, timeout, cancelled, started).await;
        // The command may have run in a successor: nobody can tell.
        let same = runtime.runs(&id, &place).await;
        if !matches!(same, Ok(true)) {
            debug!(container = %id, ?same, "not the incarnation that runs after its command");
            ended = End::Lost;
        }
        tell.send_replace(Some(ended));
    });
    Ok(Box::new(Exec {
        attempt: request.attempt.clone(),
        end,
        cancel,
    }))
}

async fn follow(
    mut process: AttachedProcess,
    timeout: Duration,
    mut cancelled: watch::Receiver<bool>,
    started: Timestamp,
) -> End {
    let Some(status) = process.take_status() else {
        return End::Lost;
    };
    let mut status = std::pin::pin!(status);
    let mut stdout = Reader::new(process.stdout());
    let mut stderr = Reader::new(process.stderr());
    let mut tail = Tail::default();
    let mut clock = std::pin::pin!(tokio::time::sleep(timeout));
    let report = |outcome, tail: &Tail| {
        let mut report = Report::new(outcome, started, Timestamp::now());
        report.output = tail.text();
        report
    };
    let told = loop {
        tokio::select! {
            told = &mut status => break told,
            piece = stdout.next() => tail.push(&piece),
            piece = stderr.next() => tail.push(&piece),
            () = &mut clock => return End::Reported(report(Outcome::TimedOut, &tail)),
            Ok(_) = cancelled.wait_for(|cancelled| *cancelled) => {
                let mut report = report(Outcome::Cancelled, &tail);
                report.survivors = vec![LEFT.to_owned()];
                return End::Reported(report);
            }
        }
    };
    let rest = async {
        while stdout.is_open() || stderr.is_open() {
            tokio::select! {
                piece = stdout.next() => tail.push(&piece),
                piece = stderr.next() => tail.push(&piece),
            }
        }
    };
    let _ = tokio::time::timeout(LAST_OUTPUT, rest).await;
    match told {
        Some(status) => End::Reported(report(outcome(&status), &tail)),
        None => End::Lost,
    }
}

/// What a status of `pods/exec` means.
fn outcome(status: &Status) -> Outcome {
    if status.status.as_deref() == Some("Success") {
        return Outcome::Succeeded;
    }
    let causes = status
        .details
        .as_ref()
        .and_then(|details| details.causes.as_ref());
    let code = causes.into_iter().flatten().find_map(|cause| {
        let exit = cause.reason.as_deref() == Some("ExitCode");
        exit.then(|| cause.message.as_ref()?.parse().ok()).flatten()
    });
    match code {
        Some(code) => Outcome::Exited { code },
        None => Outcome::StartFailed {
            message: status
                .message
                .clone()
                .unwrap_or_else(|| "the kubelet does not say why".to_owned()),
        },
    }
}

/// The end of the output.
#[derive(Debug, Default)]
struct Tail {
    bytes: Vec<u8>,
    cut: bool,
}

impl Tail {
    fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        let over = self.bytes.len().saturating_sub(MAX_OUTPUT);
        if over > 0 {
            self.bytes.drain(..over);
            self.cut = true;
        }
    }

    fn text(&self) -> String {
        output_text(&self.bytes, self.cut)
    }
}

/// One stream of output; without a stream, or after its end, its next piece never comes.
struct Reader<R> {
    stream: Option<R>,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    fn new(stream: Option<R>) -> Self {
        Reader {
            stream,
            buffer: vec![0; MAX_OUTPUT],
        }
    }

    fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    async fn next(&mut self) -> Vec<u8> {
        let Some(stream) = &mut self.stream else {
            return std::future::pending().await;
        };
        match stream.read(&mut self.buffer).await {
            Ok(0) | Err(_) => {
                self.stream = None;
                Vec::new()
            }
            Ok(length) => self.buffer[..length].to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn every_status_of_an_exec_has_its_outcome() {
        let read = |value: Value| outcome(&serde_json::from_value(value).unwrap());
        assert_eq!(read(json!({"status": "Success"})), Outcome::Succeeded);
        assert_eq!(
            read(
                json!({"status": "Failure", "reason": "NonZeroExitCode", "message": "exit code 3",
                "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}})
            ),
            Outcome::Exited { code: 3 }
        );
        assert_eq!(
            read(
                json!({"status": "Failure", "reason": "InternalError", "message": "no such file"})
            ),
            Outcome::StartFailed {
                message: "no such file".into()
            }
        );
        assert!(matches!(
            read(json!({"status": "Failure"})),
            Outcome::StartFailed { .. }
        ));
    }

    #[test]
    fn the_end_of_a_long_output_is_kept() {
        let mut tail = Tail::default();
        for n in 0..2000 {
            tail.push(format!("line {n}\n").as_bytes());
        }
        let text = tail.text();
        assert!(text.len() <= MAX_OUTPUT && text.ends_with("line 1999\n"));
    }
}
