//! Waiting for the end of a container.
//!
//! The kernel tells that it has ended. How it ended the runtime is asked for; where that cannot
//! tell, refuses or does not answer, the kernel's word is taken.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use belay_action::ContainerId;
use belay_shim::clock::Wall;
use belay_shim::sys::{self, WaitStatus};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::settle::{self, Pause};
use crate::blocking::blocking;
use crate::cri::CriRuntime;
use crate::cri::container::Container;
use crate::cri::group::{self, OomCount};
use crate::readiness::readable;
use crate::report::timestamp;
use crate::{
    ContainerConfig, ContainerState, ContainerStatus, Exit, ExitReason, RuntimeError, identity,
};

/// How long the runtime may take to tell what the kernel knows as well.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the reason of an end may come after the end, and how often it is asked for.
const REASON: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(50);
/// Sent by whoever kills, and by a kernel that has no memory left.
const SIGKILL: i32 = 9;

impl CriRuntime {
    /// Returns when the container has ended and nothing of it is left.
    pub(super) async fn ended(&self, id: &ContainerId) -> Result<Exit, RuntimeError> {
        self.shared.node()?;
        let mut pause = Pause::new();
        let (container, witness) = loop {
            match self.container(id).await {
                Ok(container) => {
                    let witness = self.watch(&container).await?;
                    break (container, witness);
                }
                Err(RuntimeError::Away { problem, .. }) => {
                    debug!(container = %id, problem, "waiting again");
                }
                Err(error) => return Err(error),
            }
            pause.take().await;
        };
        // With its first process most die by themselves; not those who share a PID namespace.
        let name = id.to_string();
        let left = blocking(move || Ok(group::kill_all(&name))).await?;
        if !left.is_empty() {
            warn!(container = %id, ?left, "some of a container cannot be killed");
        }
        let mut pause = Pause::new();
        loop {
            let seen = witness.as_ref().and_then(Witness::tell);
            // Whether a kill was for want of memory the runtime may know where its group is gone.
            let certain = seen
                .as_ref()
                .is_some_and(|exit| exit.signal != Some(SIGKILL));
            let settled = if certain {
                let settled = timeout(PATIENCE, self.settled(id)).await;
                settled.unwrap_or_else(|_| Err(silent()))
            } else {
                self.settled(id).await
            };
            match (settled, seen) {
                (Ok(state), seen) => {
                    if let Some(exit) = self.told(&container, state, seen).await {
                        return Ok(exit);
                    }
                }
                (
                    Err(RuntimeError::Away { problem, .. } | RuntimeError::Call { problem, .. }),
                    Some(exit),
                ) if certain => {
                    info!(container = %id, problem, "how it ended is told by the kernel");
                    return Ok(exit);
                }
                (
                    Err(RuntimeError::Away { problem, .. } | RuntimeError::Call { problem, .. }),
                    _,
                ) => {
                    debug!(container = %id, problem, "waiting again");
                }
                (Err(RuntimeError::NotFound { .. }), Some(exit)) => return Ok(exit),
                (Err(error), _) => return Err(error),
            }
            pause.take().await;
        }
    }

    /// Waits for the end of the first process. `None` when that was over before.
    async fn watch(&self, container: &Container) -> Result<Option<Witness>, RuntimeError> {
        let first = container.first.as_ref();
        let handle = first.and_then(|first| {
            let handle = identity::handle(first, &self.shared.boot_id)?;
            Some((handle, first.at))
        });
        let oom = first.and_then(|first| OomCount::of(first.pid));
        match handle {
            Some((handle, started)) => Witness::of(handle, started, oom).await.map(Some),
            None => Ok(None),
        }
    }

    /// The end as the runtime tells it; `None` while it says that there is none.
    async fn told(
        &self,
        container: &Container,
        state: ContainerState,
        seen: Option<Exit>,
    ) -> Option<Exit> {
        let ContainerStatus::Exited(exit) = state.status else {
            return None;
        };
        if exit.reason == ExitReason::ContainerStatusUnknown {
            return Some(seen.unwrap_or(exit));
        }
        // containerd may not have heard of what the kernel counted.
        let oom = seen.is_some_and(|seen| seen.reason == ExitReason::OomKilled);
        if oom && !container.killed.load(Ordering::Relaxed) {
            let reason = ExitReason::OomKilled;
            return Some(Exit { reason, ..exit });
        }
        Some(self.reasoned(container, &state.config, exit).await)
    }

    /// That a kill was for want of memory containerd may tell some time after the end.
    async fn reasoned(
        &self,
        container: &Container,
        config: &ContainerConfig,
        mut exit: Exit,
    ) -> Exit {
        let killed = container.killed.load(Ordering::Relaxed);
        if killed || config.resources.memory_limit.is_none() {
            return exit;
        }
        let patience = Instant::now() + REASON;
        while exit.signal == Some(SIGKILL)
            && exit.reason == ExitReason::Error
            && Instant::now() < patience
        {
            sleep(LOOK).await;
            match settle::status(&self.shared.client, &container.incarnation.id).await {
                Ok(status) => exit = settle::exit_of(&status),
                Err(_) => break,
            }
        }
        exit
    }
}

fn silent() -> RuntimeError {
    RuntimeError::Away {
        what: "ask for the state of a container",
        problem: "the container runtime has not answered".to_owned(),
    }
}

/// What the kernel knows of an end. containerd 2 forgets how containers ended that ended while it
/// was away.
struct Witness {
    handle: OwnedFd,
    started: Wall,
    ended: Wall,
    /// Whether its group counted somebody who was killed for want of memory.
    oom: bool,
}

impl Witness {
    /// Waits for the end.
    async fn of(
        handle: OwnedFd,
        started: Wall,
        oom: Option<OomCount>,
    ) -> Result<Self, RuntimeError> {
        let failed = || RuntimeError::io("wait for a process of", "/proc".as_ref());
        let kept = handle.try_clone().map_err(failed())?;
        readable(handle).await.map_err(failed())?;
        // At once: the runtime is about to remove the group.
        let oom = oom.is_some_and(|count| count.has_killed());
        Ok(Witness {
            oom,
            handle: kept,
            started,
            ended: Wall::now(),
        })
    }

    /// The end as it was; `None` on a kernel that tells it only to a parent.
    fn tell(&self) -> Option<Exit> {
        let (code, signal) = match sys::pidfd_exit(self.handle.as_fd())? {
            WaitStatus::Exited(code) => (code, None),
            WaitStatus::Signaled(signal) => (128 + signal, Some(signal)),
        };
        Some(Exit {
            code,
            signal,
            started: timestamp(self.started.min(self.ended)),
            finished: timestamp(self.ended),
            reason: match signal {
                Some(SIGKILL) if self.oom => ExitReason::OomKilled,
                _ if code == 0 => ExitReason::Completed,
                _ => ExitReason::Error,
            },
        })
    }
}
