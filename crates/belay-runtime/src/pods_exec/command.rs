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
use kube::client::UpgradeConnectionError;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tracing::debug;

use super::{Place, PodsExec};

/// How long the end of the output may take once the status is there.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// Pauses between questions that were not answered.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// Bad gateway, gateway timeout.
const GATEWAY: [u16; 2] = [502, 504];
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

/// Whether an error says that the server did not take the request. Only its own answer does, and only
/// before it switched protocols: afterwards the command may run, and a gateway in between that gave
/// up does not know what became of what it passed on.
fn is_refusal(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => !GATEWAY.contains(&status.code),
        kube::Error::UpgradeConnection(error) => {
            matches!(error, UpgradeConnectionError::ProtocolSwitch(_))
        }
        _ => false,
    }
}

/// Whether the incarnation still runs, asked a few times: an outcome that is known should not be given
/// up because one question was not answered.
async fn still_runs(runtime: &PodsExec, id: &ContainerId, place: &Place) -> bool {
    let mut pauses = PAUSES.iter();
    loop {
        match (runtime.runs(id, place).await, pauses.next()) {
            (Ok(runs), _) => return runs,
            (Err(error), Some(pause)) => {
                debug!(container = %id, %error, "asking again whether it runs");
                tokio::time::sleep(*pause).await;
            }
            (Err(error), None) => {
                debug!(container = %id, %error, "nobody can tell whether it runs");
                return false;
            }
        }
    }
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
        Err(error) if is_refusal(&error) => return Ok(unstarted(&error)),
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
        if !still_runs(&runtime, &id, &place).await {
            debug!(container = %id, "not the incarnation that runs after its command");
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
    fn only_an_answer_before_the_switch_says_that_nothing_runs() {
        let api = |code: u16| {
            kube::Error::Api(
                kube::core::Status::failure("no", "x")
                    .with_code(code)
                    .boxed(),
            )
        };
        let upgrade = kube::Error::UpgradeConnection;
        for code in [400, 403, 404, 500, 503] {
            assert!(is_refusal(&api(code)), "{code}");
        }
        assert!(is_refusal(&upgrade(
            UpgradeConnectionError::ProtocolSwitch(http::StatusCode::OK)
        )));
        for code in GATEWAY {
            assert!(!is_refusal(&api(code)), "{code}");
        }
        for after in [
            UpgradeConnectionError::MissingUpgradeWebSocketHeader,
            UpgradeConnectionError::MissingConnectionUpgradeHeader,
            UpgradeConnectionError::SecWebSocketAcceptKeyMismatch,
            UpgradeConnectionError::SecWebSocketProtocolMismatch,
        ] {
            assert!(!is_refusal(&upgrade(after)));
        }
        assert!(!is_refusal(&kube::Error::LinesCodecMaxLineLengthExceeded));
    }

    /// Asks a server that fails this many times before it answers.
    async fn asked(failures: usize, running: &str) -> bool {
        let pod = json!({
            "metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "main"}]},
            "status": {"containerStatuses": [{"name": "main", "containerID": format!("c://{running}"),
                "restartCount": 0, "image": "", "imageID": "", "ready": true,
                "state": {"running": {}}}]},
        });
        let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(failures));
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let (pod, left) = (pod.to_string(), std::sync::Arc::clone(&left));
            async move {
                use std::sync::atomic::Ordering::SeqCst;
                if left
                    .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
                    .is_ok()
                {
                    return Err(std::io::Error::other("away"));
                }
                let body = kube::client::Body::from(pod.into_bytes());
                Ok(http::Response::new(body))
            }
        });
        let runtime = PodsExec::new(kube::Client::new(service, "ns"));
        let place = Place {
            namespace: "ns".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "main".into(),
            seen: tokio::time::Instant::now(),
        };
        still_runs(&runtime, &ContainerId::new("c1").unwrap(), &place).await
    }

    #[tokio::test(start_paused = true)]
    async fn an_outcome_survives_questions_that_are_not_answered() {
        assert!(asked(0, "c1").await);
        assert!(asked(3, "c1").await);
        assert!(asked(PAUSES.len(), "c1").await);
        assert!(!asked(PAUSES.len() + 1, "c1").await, "nobody can tell");
        assert!(!asked(0, "c2").await, "another incarnation");
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
