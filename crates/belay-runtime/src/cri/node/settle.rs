//! Where a container stands, from what the runtime says and what the kernel knows.

use std::time::{Duration, Instant};

use belay_action::ContainerId;
use belay_shim::clock::Wall;
use tokio::time::sleep;
use tonic::Code;
use tracing::warn;

use super::translate::{CONFIG, IMAGE_STOP_SIGNAL};
use crate::blocking::blocking;
use crate::cri::client::{CallError, Client};
use crate::cri::protocol::runtime::v1::{ContainerState as State, ContainerStatus};
use crate::cri::{CriRuntime, group};
use crate::pod::ASK_STATE;
use crate::report::timestamp;
use crate::{ContainerConfig, ContainerState, Exit, ExitReason, RuntimeError};

/// What Kubernetes shows for a container of which nobody knows how it ended.
const UNKNOWN_CODE: i32 = 137;
/// How long the runtime may take to tell of an end that has happened.
pub(super) const LATE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Whether a container was made and has not run: for the agent there is no such container.
pub(super) fn never_ran(status: &ContainerStatus) -> bool {
    match status.state() {
        State::ContainerCreated => true,
        // Without a time it was being made or started when the runtime was killed.
        State::ContainerExited => status.reason == "StartError" || status.started_at == 0,
        State::ContainerRunning | State::ContainerUnknown => false,
    }
}

pub(super) async fn status(
    client: &Client,
    id: &ContainerId,
) -> Result<ContainerStatus, RuntimeError> {
    match client.container_status(id.as_str()).await {
        Ok(answer) => Ok(answer.status.unwrap_or_default()),
        Err(error) if error.is(Code::NotFound) => Err(RuntimeError::NotFound { id: id.clone() }),
        Err(error) => Err(error.during(ASK_STATE)),
    }
}

/// A pause that doubles.
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn new() -> Self {
        Pause(FIRST_PAUSE)
    }

    pub(super) async fn take(&mut self) {
        sleep(self.0).await;
        self.0 = (self.0 * 2).min(LONGEST_PAUSE);
    }
}

impl CriRuntime {
    /// What the runtime knows of a container, once that is so for the kernel as well.
    pub(super) async fn settled(&self, id: &ContainerId) -> Result<ContainerState, RuntimeError> {
        let shared = &self.shared;
        let begin = Instant::now();
        let mut pause = Pause::new();
        loop {
            let status = status(&shared.client, id).await?;
            let config = recorded(id, &status)?;
            if never_ran(&status) {
                return Err(RuntimeError::NotFound { id: id.clone() });
            }
            let (pid, now) = match status.state() {
                State::ContainerCreated | State::ContainerExited => {
                    (None, crate::ContainerStatus::Exited(exit_of(&status)))
                }
                State::ContainerUnknown if begin.elapsed() < LATE => {
                    warn!(container = %id, "the runtime has lost sight of a container; it is killed");
                    match shared.client.stop_container(id.as_str()).await {
                        Ok(()) => {
                            pause.take().await;
                            continue;
                        }
                        // It would refuse again; the kernel does not.
                        Err(CallError::Answer(refused)) => {
                            let name = id.to_string();
                            let left = blocking(move || group::kill_all(&name)).await?;
                            warn!(container = %id, refused = refused.message(), ?left, "killed without the runtime");
                            (None, crate::ContainerStatus::Exited(lost(&status)))
                        }
                        Err(error) => return Err(error.during("stop a container")),
                    }
                }
                State::ContainerUnknown => (None, crate::ContainerStatus::Exited(lost(&status))),
                State::ContainerRunning => {
                    let container = self.container(id).await?;
                    let alive = container.is_running(&shared.boot_id)?;
                    match container.first.as_ref().filter(|_| alive) {
                        Some(first) => {
                            let started = timestamp(Wall(status.started_at));
                            let pid = u32::try_from(first.pid).ok();
                            (pid, crate::ContainerStatus::Running { started })
                        }
                        None if begin.elapsed() < LATE => {
                            pause.take().await;
                            continue;
                        }
                        None => (None, crate::ContainerStatus::Exited(lost(&status))),
                    }
                }
            };
            return Ok(ContainerState {
                id: id.clone(),
                config,
                pid,
                image_stop_signal: status.annotations.get(IMAGE_STOP_SIGNAL).cloned(),
                status: now,
            });
        }
    }
}

/// The configuration that was recorded with a container; without one it is not ours.
fn recorded(id: &ContainerId, status: &ContainerStatus) -> Result<ContainerConfig, RuntimeError> {
    let recorded = status.annotations.get(CONFIG);
    let recorded = recorded.ok_or_else(|| RuntimeError::NotFound { id: id.clone() })?;
    serde_json::from_str(recorded).map_err(|error| RuntimeError::Damaged {
        path: format!("the annotation {CONFIG} of container {id}").into(),
        source: error.into(),
    })
}

pub(super) fn exit_of(status: &ContainerStatus) -> Exit {
    if status.reason == "Unknown" {
        return lost(status);
    }
    let code = status.exit_code;
    let reason = match (status.reason.as_str(), code) {
        ("OOMKilled", _) => ExitReason::OomKilled,
        (_, 0) => ExitReason::Completed,
        _ => ExitReason::Error,
    };
    Exit {
        code,
        signal: matches!(code, 129..=192).then(|| code - 128),
        // The runtime takes the time of the start when it is told of it: one may end before that.
        started: timestamp(Wall(status.started_at.min(status.finished_at))),
        finished: timestamp(Wall(status.finished_at)),
        reason,
    }
}

/// It is dead, and nobody saw it end.
fn lost(status: &ContainerStatus) -> Exit {
    let finished = match status.finished_at {
        0 => Wall::now(),
        at => Wall(at),
    };
    Exit {
        code: UNKNOWN_CODE,
        signal: None,
        started: timestamp(Wall(status.started_at)),
        finished: timestamp(finished),
        reason: ExitReason::ContainerStatusUnknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_nobody_can_read_is_damaged_and_one_that_is_missing_is_not_ours() {
        let id = ContainerId::new("c1").unwrap();
        let of = |annotation: Option<&str>| {
            let annotation = annotation.map(|text| (CONFIG.to_owned(), text.to_owned()));
            let status = ContainerStatus {
                annotations: annotation.into_iter().collect(),
                ..ContainerStatus::default()
            };
            recorded(&id, &status)
        };
        assert_eq!(of(Some("{}")).unwrap(), ContainerConfig::default());
        let missing = of(None).unwrap_err();
        assert!(matches!(missing, RuntimeError::NotFound { .. }));
        let damaged = of(Some("{")).unwrap_err();
        assert!(!damaged.is_transient());
        let told = damaged.to_string();
        assert!(told.contains("c1") && told.contains(CONFIG), "{told}");
    }

    #[test]
    fn how_it_ended_is_told_in_kubernetes_words() {
        let told = |exit_code: i32, reason: &str| {
            let exit = exit_of(&ContainerStatus {
                exit_code,
                reason: reason.to_owned(),
                started_at: 1,
                finished_at: 2,
                ..ContainerStatus::default()
            });
            (exit.code, exit.signal, exit.reason)
        };
        assert_eq!(told(0, "Completed"), (0, None, ExitReason::Completed));
        assert_eq!(told(3, "Error"), (3, None, ExitReason::Error));
        assert_eq!(told(143, "Error"), (143, Some(15), ExitReason::Error));
        assert_eq!(
            told(137, "OOMKilled"),
            (137, Some(9), ExitReason::OomKilled)
        );
        let unknown = (137, None, ExitReason::ContainerStatusUnknown);
        assert_eq!(told(255, "Unknown"), unknown);
    }
}
