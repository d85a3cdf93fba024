//! Lifecycle hooks, `preStop` and `postStart` alike: what they ask for, and carrying that out.
//!
//! A command is an attempt of the runtime's, which outlives the agent and is found again by its ID.
//! A request or a connection ends with the agent that made it.
//!
//! **Invariant:** when [`run`] or [`follow`] has returned, nothing of the hook is left running but
//! what the result names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_action::probe::{self, Check};
use belay_action::{
    AttemptId, ContainerId, ExecRequest, Found, Outcome, Report, Running, Target, TargetError,
};
use belay_api::pod::{Container, LifecycleHandler, Probe};
use belay_core::termination::HookResult;
use belay_runtime::{PodRuntime, RuntimeError};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::notifications::handler::probe::resolve as resolve_check;

/// What a hook does, with names and ports resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hook {
    Exec(Vec<String>),
    /// An HTTP request or a connection.
    Check(Check),
    Sleep(Duration),
}

/// What a hook came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Came {
    Ended(HookResult),
    /// It was started, and is gone without a trace.
    Lost,
}

/// Where a hook is carried out.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) runtime: Arc<dyn PodRuntime>,
    pub(crate) id: ContainerId,
    pub(crate) attempt: AttemptId,
    /// Kills it with all that it started.
    pub(crate) cancel: CancellationToken,
}

/// The first and the longest pause before the runtime is asked again.
pub(crate) const PAUSE: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(10));
/// How long to wait for the end of a container whose hook was killed, to learn whether that is why.
const TAKEN_ALONG: Duration = Duration::from_secs(1);
/// How much later than its limit a request or a connection ends by itself.
const CANCELLED_LATE: Duration = Duration::from_secs(5);
const SIGKILL: i32 = 9;
/// Longer than anything lasts; a number that every clock can add.
pub(crate) const FOREVER: Duration = Duration::from_secs(86_400 * 365);

/// Reads a hook of a container that is reached at `address`. The error completes the sentence "the
/// hook ...".
pub(crate) fn resolve(
    handler: &LifecycleHandler,
    container: &Container,
    address: &str,
) -> Result<Hook, String> {
    if let Some(exec) = &handler.exec {
        if exec.command.is_empty() {
            return Err("has no command".to_owned());
        }
        return Ok(Hook::Exec(exec.command.clone()));
    }
    if let Some(sleep) = &handler.sleep {
        return Ok(Hook::Sleep(sleep_time(sleep.seconds)));
    }
    let get = handler.other.get("httpGet").filter(|get| !get.is_null());
    let tcp = handler.other.get("tcpSocket").filter(|tcp| !tcp.is_null());
    let mut probe = Probe::default();
    if let Some(get) = get {
        probe.http_get = Some(read(get)?);
    }
    if let Some(tcp) = tcp {
        probe.tcp_socket = Some(read(tcp)?);
    }
    if get.is_none() && tcp.is_none() {
        return Err("has no handler that this agent knows".to_owned());
    }
    resolve_check(&probe, Some(container), address).map(|probe| Hook::Check(probe.check))
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_value(value.clone()).map_err(|error| format!("cannot be read: {error}"))
}

/// The API refuses negative ones; a stored one means nothing.
pub(crate) fn sleep_time(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).min(FOREVER)
}

/// Carries a hook out. An attempt that was started before is followed, not repeated.
pub(crate) async fn run(place: &Place, hook: Hook, limit: Duration) -> Came {
    if place.cancel.is_cancelled() {
        return Came::Ended(never_started());
    }
    let limit = limit.min(FOREVER);
    match hook {
        Hook::Exec(command) => exec(place, command, limit).await,
        Hook::Sleep(time) => tokio::select! {
            () = tokio::time::sleep(time.min(limit)) => Came::Ended(HookResult::Succeeded),
            () = place.cancel.cancelled() => Came::Ended(never_started()),
        },
        Hook::Check(check) => {
            let target = match target(place).await {
                Ok(target) => target,
                Err(result) => return Came::Ended(result),
            };
            let stop = place.cancel.clone();
            // Whoever set the limit cancels it then, and knows that it was not the hook's own end.
            let limit = limit.saturating_add(CANCELLED_LATE);
            let tried = probe::once(&*target, &check, &place.attempt, limit, stop).await;
            Came::Ended(match tried {
                Ok(()) => HookResult::Succeeded,
                Err(_) if place.cancel.is_cancelled() => never_started(),
                Err(message) => HookResult::Failed { message },
            })
        }
    }
}

/// The end of what leaves nothing behind.
pub(crate) fn never_started() -> HookResult {
    HookResult::Killed {
        survivors: Vec::new(),
    }
}

/// The container; a runtime that is away is asked until it answers or the hook is cancelled.
async fn target(place: &Place) -> Result<Arc<dyn Target>, HookResult> {
    let mut pause = PAUSE.0;
    loop {
        let error = match place.runtime.target(&place.id).await {
            Ok(target) => return Ok(target),
            Err(error) => error,
        };
        let message = causes(&error);
        if matches!(error, RuntimeError::NotFound { .. }) {
            return Err(HookResult::Failed { message });
        }
        warn!(attempt = %place.attempt, message, "a hook cannot be started; trying again");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = place.cancel.cancelled() => return Err(never_started()),
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn exec(place: &Place, command: Vec<String>, timeout: Duration) -> Came {
    let latest = Instant::now() + timeout;
    let mut request = ExecRequest {
        attempt: place.attempt.clone(),
        command,
        timeout,
    };
    let failed = |message| Came::Ended(HookResult::Failed { message });
    let mut pause = PAUSE.0;
    loop {
        let target = match target(place).await {
            Ok(target) => target,
            Err(result) => return Came::Ended(result),
        };
        let error = match target.start_before(&request, latest).await {
            Ok(running) => return follow(place, running).await,
            Err(
                error @ (TargetError::NotRunning { .. }
                | TargetError::Restarted { .. }
                | TargetError::Unsupported { .. }),
            ) => return failed(causes(&error)),
            Err(TargetError::TooLate { .. }) => return Came::Ended(never_started()),
            // Whether it was started is not known: the runtime's record decides.
            Err(
                error @ (TargetError::Exists { .. }
                | TargetError::Lost { .. }
                | TargetError::Away { .. }
                | TargetError::Runtime { .. }),
            ) => error,
        };
        let problem = causes(&error);
        debug!(attempt = %place.attempt, problem, "a hook's start went wrong; looking what came of it");
        match find(place).await {
            Found::Running(running) => return follow(place, running).await,
            Found::Ended(report) => return Came::Ended(result(report)),
            Found::Lost => return Came::Lost,
            Found::NeverStarted => {}
        }
        // A runtime that is away, as during a restart, is waited for while there is time.
        let left = latest.saturating_duration_since(Instant::now());
        if !matches!(error, TargetError::Away { .. }) || left.is_zero() {
            return failed(problem);
        }
        warn!(attempt = %place.attempt, problem, "a hook was not started; trying again");
        tokio::select! {
            () = tokio::time::sleep(pause.min(left)) => {}
            () = place.cancel.cancelled() => return Came::Ended(never_started()),
        }
        pause = (pause * 2).min(PAUSE.1);
        request.timeout = latest.saturating_duration_since(Instant::now());
    }
}

/// What the runtime knows of an attempt; asked until it answers.
pub(crate) async fn find(place: &Place) -> Found {
    let mut pause = PAUSE.0;
    loop {
        let error = match place.runtime.target(&place.id).await {
            Ok(target) => match target.find(&place.attempt).await {
                Ok(found) => return found,
                Err(TargetError::NotRunning { .. }) => return Found::Lost,
                Err(error) => causes(&error),
            },
            // Its records are gone with it.
            Err(RuntimeError::NotFound { .. }) => return Found::Lost,
            Err(error) => causes(&error),
        };
        warn!(attempt = %place.attempt, error, "a hook cannot be looked up; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Follows an attempt to its end, which is also the end of all that it started.
pub(crate) async fn follow(place: &Place, mut running: Box<dyn Running>) -> Came {
    let mut pause = PAUSE.0;
    loop {
        match belay_action::resume(running, place.cancel.clone()).await {
            Ok(report) => return Came::Ended(result(report)),
            Err(TargetError::Lost { .. }) => return Came::Lost,
            Err(error) => {
                warn!(attempt = %place.attempt, error = causes(&error), "a hook was lost sight of; looking for it");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
        running = match find(place).await {
            Found::Running(running) => running,
            Found::Ended(report) => return Came::Ended(result(report)),
            Found::NeverStarted | Found::Lost => return Came::Lost,
        };
    }
}

/// What it wrote stays out of it: events are read by many.
pub(crate) fn result(report: Report) -> HookResult {
    let message = match report.outcome {
        Outcome::Succeeded => return HookResult::Succeeded,
        Outcome::TimedOut | Outcome::Cancelled => {
            return HookResult::Killed {
                survivors: report.survivors,
            };
        }
        Outcome::Exited { code } => format!("the command exited with code {code}"),
        Outcome::Signaled { signal } => format!("the command was killed by signal {signal}"),
        Outcome::StartFailed { message } => {
            format!("the command could not be started: {message}")
        }
    };
    HookResult::Failed { message }
}

/// Whether the container has ended by now: it takes its hook with it, and that is no failure of the
/// hook's own.
pub(crate) async fn container_ended(place: &Place, came: &Came) -> bool {
    let message = match came {
        Came::Ended(HookResult::Failed { message }) => message,
        Came::Lost => "",
        Came::Ended(HookResult::Succeeded | HookResult::Killed { .. }) => return false,
    };
    // Its end breaks connections and kills commands, and is told of a moment later.
    let killed = format!("the command was killed by signal {SIGKILL}");
    if *message == killed || message.starts_with(probe::NO_ANSWER) {
        return match place.runtime.target(&place.id).await {
            Ok(target) => {
                let ended = tokio::time::timeout(TAKEN_ALONG, target.wait());
                matches!(ended.await, Ok(Ok(())))
            }
            Err(RuntimeError::NotFound { .. }) => true,
            // Whoever waits for the container's own end tells of it.
            Err(_) => false,
        };
    }
    match place.runtime.is_running(&place.id).await {
        Ok(running) => !running,
        Err(RuntimeError::NotFound { .. }) => true,
        Err(_) => false,
    }
}

pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_action::probe::HttpGet;
    use jiff::Timestamp;
    use serde_json::json;

    use crate::pods::terminate::tests::Stubborn;
    use crate::testing::fake::{Fake, ID, Start};

    fn resolved(handler: Value) -> Result<Hook, String> {
        let container = json!({"name": "c", "ports": [{"name": "web", "containerPort": 8080}]});
        let container: Container = serde_json::from_value(container).unwrap();
        let handler: LifecycleHandler = serde_json::from_value(handler).unwrap();
        resolve(&handler, &container, "10.0.0.7")
    }

    #[test]
    fn every_kind_of_hook_is_read() {
        assert_eq!(
            resolved(json!({"exec": {"command": ["a", "b"]}})),
            Ok(Hook::Exec(vec!["a".into(), "b".into()]))
        );
        assert_eq!(
            resolved(json!({"sleep": {"seconds": 3}})),
            Ok(Hook::Sleep(Duration::from_secs(3)))
        );
        assert_eq!(
            resolved(json!({"sleep": {"seconds": -3}})),
            Ok(Hook::Sleep(Duration::ZERO))
        );
        assert_eq!(
            resolved(json!({"httpGet": {"port": "web", "path": "/bye"}})),
            Ok(Hook::Check(Check::Http(HttpGet {
                tls: false,
                host: "10.0.0.7".into(),
                port: 8080,
                path: "/bye".into(),
                headers: vec![],
            })))
        );
        assert_eq!(
            resolved(json!({"tcpSocket": {"port": 9}})),
            Ok(Hook::Check(Check::Tcp {
                host: "10.0.0.7".into(),
                port: 9
            }))
        );
    }

    #[test]
    fn what_cannot_be_carried_out_says_why() {
        for (handler, why) in [
            (json!({}), "has no handler"),
            (json!({"exec": {"command": []}}), "has no command"),
            (json!({"httpGet": {"port": "admin"}}), "names the port"),
            (json!({"tcpSocket": {"port": {}}}), "cannot be read"),
        ] {
            let error = resolved(handler.clone()).unwrap_err();
            assert!(error.starts_with(why), "{handler}: {error}");
        }
    }

    #[test]
    fn a_result_tells_how_it_ended_and_nothing_of_what_it_wrote() {
        let report = |outcome| {
            let mut report = Report::new(outcome, Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
            report.output = "secret".into();
            report.survivors = vec!["7 (dd)".into()];
            report
        };
        let failed = |message: &str| HookResult::Failed {
            message: message.into(),
        };
        assert_eq!(result(report(Outcome::Succeeded)), HookResult::Succeeded);
        assert_eq!(
            result(report(Outcome::Exited { code: 3 })),
            failed("the command exited with code 3")
        );
        for killed in [Outcome::TimedOut, Outcome::Cancelled] {
            let survivors = vec!["7 (dd)".to_owned()];
            assert_eq!(result(report(killed)), HookResult::Killed { survivors });
        }
    }

    /// What a command comes to in a container whose first starts come to this.
    async fn ran(starts: impl IntoIterator<Item = TargetError>, limit: Duration) -> Came {
        let fake = Fake::default();
        let starts = starts.into_iter().map(Start::Fails);
        fake.starts.lock().unwrap().extend(starts);
        let place = Place {
            runtime: Arc::new(Stubborn::with(fake)),
            id: ContainerId::new(ID).unwrap(),
            attempt: AttemptId::new("u.main.1").unwrap(),
            cancel: CancellationToken::new(),
        };
        run(&place, Hook::Exec(vec!["x".into()]), limit).await
    }

    fn away() -> TargetError {
        TargetError::Away {
            what: "start a command".to_owned(),
            source: "it is being restarted".into(),
        }
    }

    #[tokio::test]
    async fn a_hook_that_a_restart_of_the_runtime_kept_from_starting_is_started_after_it() {
        let succeeded = Came::Ended(HookResult::Succeeded);
        let limit = Duration::from_secs(60);
        assert_eq!(ran([away(), away()], limit).await, succeeded);
        let refused = TargetError::Runtime {
            what: "start a command".to_owned(),
            source: "no".into(),
        };
        let refused = ran([refused], limit).await;
        assert!(
            matches!(refused, Came::Ended(HookResult::Failed { .. })),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn a_runtime_that_stays_away_is_asked_no_longer_than_there_is_time() {
        let away = (0..100).map(|_| away());
        let came = ran(away, Duration::from_millis(300)).await;
        assert!(
            !matches!(came, Came::Ended(HookResult::Succeeded) | Came::Lost),
            "{came:?}"
        );
    }
}
