//! One incarnation of a container: what never changes about it, and whether we have killed it.

use std::fs;
use std::io;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use belay_action::{ContainerId, Incarnation};
use belay_shim::clock::Wall;
use belay_shim::instance::Started;
use belay_shim::proc::{self, Process};
use serde_json::Value;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tonic::Code;

use super::client::{CONTAINER_NAME, Client, POD_UID};
use super::group;
use super::protocol::runtime::v1::ContainerState;
use super::specification::first_process;
use crate::pod::ASK_STATE;
use crate::{RuntimeError, identity};

/// How long and how often at least, and with what pauses, a first process is looked for that the runtime says is there.
/// The runtime's word is some milliseconds behind.
const PATIENCE: Duration = Duration::from_secs(2);
const FEWEST_LOOKS: u32 = 10;
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How many execs are started at once in one container. containerd's shim starts one after the other
/// anyway, and that of containerd 1.6 nearly stops when dozens are waiting in it.
const STARTS: usize = 4;

/// One incarnation.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) incarnation: Incarnation,
    /// The first process; `None` when it had ended, or had not begun, before we looked.
    pub(crate) first: Option<Started>,
    /// How the first process was started, once somebody has asked.
    process: OnceCell<Value>,
    starts: Semaphore,
    /// Whether we have killed it.
    pub(crate) killed: AtomicBool,
}

impl Container {
    pub(crate) fn new(incarnation: Incarnation, first: Option<Started>) -> Self {
        Container {
            incarnation,
            first,
            process: OnceCell::new(),
            starts: Semaphore::new(STARTS),
            killed: AtomicBool::new(false),
        }
    }

    pub(crate) async fn load(
        client: &Client,
        id: &ContainerId,
        boot_id: &str,
    ) -> Result<Self, RuntimeError> {
        let begin = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut looks = 0;
        loop {
            looks += 1;
            let answer = client
                .container_status(id.as_str())
                .await
                .map_err(|error| {
                    if error.is(Code::NotFound) {
                        RuntimeError::NotFound { id: id.clone() }
                    } else {
                        error.during(ASK_STATE)
                    }
                })?;
            let status = answer.status.unwrap_or_default();
            let label = |name: &str| status.labels.get(name).cloned().unwrap_or_default();
            let incarnation = Incarnation {
                pod_uid: label(POD_UID),
                container: label(CONTAINER_NAME),
                id: id.clone(),
            };
            let container = |first| Container::new(incarnation, first);
            if status.state() != ContainerState::ContainerRunning {
                return Ok(container(None));
            }
            let info = answer.info.get("info").map_or("", String::as_str);
            let Some(pid) = pid_in(info) else {
                return Err(RuntimeError::Call {
                    what: "find the first process of a container",
                    problem: "the runtime does not tell its pid".to_owned(),
                });
            };
            match look_at(pid, id, boot_id).map_err(RuntimeError::blind())? {
                Look::Seen(mut first) => {
                    first.at = Wall(status.started_at);
                    return Ok(container(Some(first)));
                }
                Look::Ended => return Ok(container(None)),
                Look::Unseen if begin.elapsed() < PATIENCE || looks < FEWEST_LOOKS => {}
                Look::Unseen => {
                    let id = id.clone();
                    return Err(RuntimeError::Unseen { id, pid });
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Whether the first process lives. Asks the kernel, not the runtime.
    pub(crate) fn is_running(&self, boot_id: &str) -> Result<bool, RuntimeError> {
        let Some(first) = &self.first else {
            return Ok(false);
        };
        let handle = identity::handle(first, boot_id).map_err(RuntimeError::blind())?;
        Ok(handle.is_some())
    }

    /// Waits for a turn to start an exec.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Nobody closes it.
        self.starts.acquire().await.ok()
    }

    /// How the first process was started.
    pub(crate) async fn process(&self, client: &Client) -> Result<&Value, RuntimeError> {
        let what = "read the specification of a container";
        let load = async || {
            let id = self.incarnation.id.as_str();
            let bytes = client.specification(id).await;
            let bytes = bytes.map_err(|error| error.during(what))?;
            first_process(&bytes).map_err(|error| RuntimeError::Call {
                what,
                problem: error.to_string(),
            })
        };
        self.process.get_or_try_init(load).await
    }
}

/// The pid in the runtime's verbose answer. containerd and CRI-O both tell it there.
fn pid_in(info: &str) -> Option<u32> {
    let info: Value = serde_json::from_str(info).ok()?;
    u32::try_from(info.get("pid")?.as_u64()?)
        .ok()
        .filter(|pid| *pid > 1)
}

enum Look {
    Seen(Started),
    Ended,
    Unseen,
}

/// Looks for the process that the runtime calls the first of a container.
fn look_at(pid: u32, id: &ContainerId, boot_id: &str) -> io::Result<Look> {
    let Some(process) = Process::read(i32::try_from(pid).unwrap_or(i32::MAX))? else {
        return Ok(Look::Unseen);
    };
    let group = match fs::read_to_string(format!("/proc/{pid}/cgroup")) {
        Err(error) if proc::is_blind(&error) => return Err(error),
        group => group.unwrap_or_default(),
    };
    let first = Started {
        pid: process.pid,
        start_time: process.start_time,
        boot_id: boot_id.to_owned(),
        at: Wall::now(),
        deadline: None,
    };
    // The handle tells that the group was read of the process that was seen before.
    Ok(match identity::handle(&first, boot_id)? {
        Some(_) if group::holds(&group, id.as_str()) => Look::Seen(first),
        None if process.is_dead() => Look::Ended,
        Some(_) | None => Look::Unseen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pid_is_read_from_what_runtimes_tell() {
        assert_eq!(
            pid_in(r#"{"sandboxID":"s","pid":4711,"removing":false}"#),
            Some(4711)
        );
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"pid":0}"#,
            r#"{"pid":-1}"#,
            r#"{"pid":"7"}"#,
        ] {
            assert_eq!(pid_in(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_process_that_is_not_in_the_containers_group_is_not_its_first() {
        let id = ContainerId::new("0123456789abcdef").unwrap();
        assert!(matches!(
            look_at(std::process::id(), &id, "b"),
            Ok(Look::Unseen)
        ));
    }
}
