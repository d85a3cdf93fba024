//! Waiting for the end of a container.
//!
//! The kernel tells that it has ended. How it ended the runtime is asked for; where that cannot
//! tell, refuses or does not answer, the kernel's word is taken.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
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
use crate::pod::ASK_STATE;
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
        let mut late = Late::default();
        let mut pause = Pause::new();
        let (container, witness) = loop {
            match self.witnessed(id).await {
                Ok(witnessed) => break witnessed,
                Err(error @ (RuntimeError::Away { .. } | RuntimeError::Io { .. })) => {
                    debug!(container = %id, %error, "waiting again");
                }
                // Its process has ended, and the runtime has not taken note yet.
                Err(error @ RuntimeError::Unseen { .. }) if late.is_borne(Instant::now()) => {
                    debug!(container = %id, %error, "waiting again");
                }
                Err(error) => return Err(error),
            }
            pause.take().await;
        };
        // With its first process most die by themselves; not those who share a PID namespace.
        let left = kill_all(id).await;
        if !left.is_empty() {
            warn!(container = %id, ?left, "some of a container cannot be killed");
        }
        let oom = witness.as_ref().is_some_and(|witness| witness.oom);
        let patience = Instant::now() + settle::LATE;
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
            match weigh(settled, seen, certain, Instant::now() < patience) {
                Weighed::Told(state, seen) => {
                    if let Some(exit) = self.told(&container, *state, seen, oom).await {
                        return Ok(exit);
                    }
                }
                Weighed::Kernels(exit) => {
                    info!(container = %id, "how it ended is told by the kernel");
                    return Ok(exit);
                }
                Weighed::NotYet(error) => debug!(container = %id, %error, "waiting again"),
                Weighed::Failed(error) => return Err(error),
            }
            pause.take().await;
        }
    }

    /// The container, and who saw its end if there was anything to be seen.
    async fn witnessed(
        &self,
        id: &ContainerId,
    ) -> Result<(Arc<Container>, Option<Witness>), RuntimeError> {
        let container = self.container(id).await?;
        let witness = self.watch(&container).await?;
        Ok((container, witness))
    }

    /// Waits for the end of the first process. `None` when that was over before.
    async fn watch(&self, container: &Container) -> Result<Option<Witness>, RuntimeError> {
        let Some(first) = &container.first else {
            return Ok(None);
        };
        let handle = identity::handle(first, &self.shared.boot_id).map_err(RuntimeError::blind())?;
        let oom = OomCount::of(first.pid);
        match handle {
            Some(handle) => Witness::of(handle, first.at, oom).await.map(Some),
            None => Ok(None),
        }
    }

    /// The end as the runtime tells it; `None` while it says that there is none.
    async fn told(
        &self,
        container: &Container,
        state: ContainerState,
        seen: Option<Exit>,
        oom: bool,
    ) -> Option<Exit> {
        let ContainerStatus::Exited(exit) = state.status else {
            return None;
        };
        if exit.reason == ExitReason::ContainerStatusUnknown {
            return Some(seen.unwrap_or(exit));
        }
        let exit = counted(exit, oom, container.killed.load(Ordering::Relaxed));
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

/// Kills what is left of a container, as soon as anybody can be looked at.
async fn kill_all(id: &ContainerId) -> Vec<String> {
    let mut pause = Pause::new();
    loop {
        let name = id.to_string();
        match blocking(move || group::kill_all(&name)).await {
            Ok(left) => return left,
            Err(error) => warn!(container = %id, %error, "killing it again"),
        }
        pause.take().await;
    }
}

/// What is to be made of what the runtime says of an end.
enum Weighed {
    Told(Box<ContainerState>, Option<Exit>),
    /// Nobody knows more than the kernel.
    Kernels(Exit),
    /// It may tell more later.
    NotYet(RuntimeError),
    Failed(RuntimeError),
}

/// Weighs the runtime's answer against how the kernel has `seen` the end; `certain` if the runtime
/// cannot know more than that, `patient` while the runtime may be late.
fn weigh(
    settled: Result<ContainerState, RuntimeError>,
    seen: Option<Exit>,
    certain: bool,
    patient: bool,
) -> Weighed {
    match (settled, seen) {
        (Ok(state), seen) => Weighed::Told(Box::new(state), seen),
        (Err(RuntimeError::NotFound { .. }), Some(exit)) => Weighed::Kernels(exit),
        (Err(error), Some(exit)) if certain && is_passing(&error, true) => Weighed::Kernels(exit),
        (Err(error), _) if is_passing(&error, patient) => Weighed::NotYet(error),
        // That its process is not there any more is no news, and what is damaged stays so.
        (Err(RuntimeError::Unseen { .. } | RuntimeError::Damaged { .. }), Some(exit)) => {
            Weighed::Kernels(exit)
        }
        (Err(error), _) => Weighed::Failed(error),
    }
}

/// How late the runtime is to take note of an end. It is late from when that is seen for the first
/// time, however long it had been away before.
#[derive(Debug, Default)]
struct Late {
    since: Option<Instant>,
}

impl Late {
    fn is_borne(&mut self, now: Instant) -> bool {
        now < *self.since.get_or_insert(now) + settle::LATE
    }
}

/// Whether the runtime may say something else in a moment. That it names a process which is not
/// there it does until it has taken note of the end: `patient` is whether it may be so late.
fn is_passing(error: &RuntimeError, patient: bool) -> bool {
    let unseen = matches!(error, RuntimeError::Unseen { .. });
    let other = matches!(
        error,
        RuntimeError::Away { .. } | RuntimeError::Call { .. } | RuntimeError::Io { .. }
    );
    other || (unseen && patient)
}

/// An end with what the kernel has counted, of which the runtime may not have heard. Whom we have
/// `killed` ourselves was not killed for want of memory.
fn counted(exit: Exit, oom: bool, killed: bool) -> Exit {
    if oom && !killed && exit.signal == Some(SIGKILL) {
        let reason = ExitReason::OomKilled;
        return Exit { reason, ..exit };
    }
    exit
}

fn silent() -> RuntimeError {
    RuntimeError::Away {
        what: ASK_STATE,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(signal: Option<i32>) -> Exit {
        Exit {
            code: signal.map_or(1, |signal| 128 + signal),
            signal,
            started: timestamp(Wall(1)),
            finished: timestamp(Wall(2)),
            reason: ExitReason::Error,
        }
    }

    #[test]
    fn a_kill_that_the_kernel_counted_was_for_want_of_memory_unless_it_was_ours() {
        let reason = |signal, oom, killed| counted(exit(signal), oom, killed).reason;
        assert_eq!(reason(Some(SIGKILL), true, false), ExitReason::OomKilled);
        assert_eq!(reason(Some(SIGKILL), true, true), ExitReason::Error);
        assert_eq!(reason(Some(SIGKILL), false, false), ExitReason::Error);
        assert_eq!(reason(Some(15), true, false), ExitReason::Error);
        assert_eq!(reason(None, true, false), ExitReason::Error);
    }

    #[test]
    fn a_runtime_is_late_from_when_that_is_seen() {
        let mut late = Late::default();
        // It was away for an hour before.
        let seen = Instant::now() + Duration::from_secs(3600);
        assert!(late.is_borne(seen));
        assert!(late.is_borne(seen + settle::LATE - Duration::from_millis(1)));
        assert!(!late.is_borne(seen + settle::LATE));
    }

    #[test]
    fn a_runtime_that_is_late_to_tell_is_waited_for_or_the_kernel_is_believed() {
        let id = || ContainerId::new("c1").unwrap();
        let unseen = || RuntimeError::Unseen { id: id(), pid: 7 };
        let away = || silent();
        let blind = || RuntimeError::blind()(std::io::ErrorKind::OutOfMemory.into());
        let gone = || RuntimeError::NotFound { id: id() };
        let damaged = || RuntimeError::Damaged {
            path: "somewhere".into(),
            source: "nonsense".into(),
        };
        let told = |error: RuntimeError, seen: bool, certain, patient| {
            let seen = seen.then(|| exit(Some(SIGKILL)));
            match weigh(Err(error), seen, certain, patient) {
                Weighed::Told(..) => "told",
                Weighed::Kernels(_) => "kernel",
                Weighed::NotYet(_) => "not yet",
                Weighed::Failed(_) => "failed",
            }
        };
        for late in [&unseen as &dyn Fn() -> RuntimeError, &away, &blind] {
            assert_eq!(told(late(), true, true, true), "kernel");
            assert_eq!(told(late(), true, false, true), "not yet");
            assert_eq!(told(late(), false, false, true), "not yet");
        }
        assert_eq!(told(away(), true, false, false), "not yet");
        assert_eq!(told(blind(), true, false, false), "not yet");
        assert_eq!(told(unseen(), true, false, false), "kernel");
        assert_eq!(told(unseen(), false, false, false), "failed");
        assert_eq!(told(gone(), true, false, true), "kernel");
        assert_eq!(told(gone(), false, false, true), "failed");
        assert_eq!(told(damaged(), true, false, true), "kernel");
        assert_eq!(told(damaged(), false, false, true), "failed");
    }
}
