//! One container of the process runtime, as something to act on.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belay_action::{
    AttemptId, Capabilities, Disposition, ExecRequest, Found, Incarnation, Outcome, Report,
    Running, Target, TargetError,
};
use belay_api::signal::Signal;
use belay_shim::instance::{Durable, StartError, StartFailure, Started};
use tokio::time::{Instant, sleep};

use super::Shared;
use super::container::{Container, exec_spec};
use super::launch::{self, Created};
use super::standing::Standing;
use super::talk::{Link, Talk, Told};
use crate::blocking::blocking;
use crate::report::{Ended, failed, report, start_report};
use crate::{RuntimeError, identity};

pub(crate) struct ProcessTarget {
    shared: Arc<Shared>,
    container: Container,
    incarnation: Incarnation,
    /// The first process; `None` when the container had ended before we looked.
    first: Option<Started>,
}

impl ProcessTarget {
    pub(crate) fn new(shared: Arc<Shared>, container: Container, first: Option<Started>) -> Self {
        let incarnation = Incarnation {
            pod_uid: container.config.pod_uid.clone(),
            container: container.config.name.clone(),
            id: container.id.clone(),
        };
        ProcessTarget {
            shared,
            container,
            incarnation,
            first,
        }
    }

    fn not_running(&self) -> TargetError {
        TargetError::NotRunning {
            container: self.container.id.clone(),
        }
    }

    fn first(&self) -> Result<&Started, TargetError> {
        self.first.as_ref().ok_or_else(|| self.not_running())
    }

    fn running(&self, attempt: &AttemptId, link: Option<Link>) -> Box<dyn Running> {
        let talk = Talk::new(self.container.exec(attempt), self.container.same_boot);
        Box::new(ProcessRunning {
            container: self.container.clone(),
            attempt: attempt.clone(),
            talk: match link {
                Some(link) => talk.over(link),
                None => talk,
            },
            ended: None,
        })
    }
}

#[async_trait]
impl Target for ProcessTarget {
    fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            signal: true,
            find_attempts: true,
            kills_tree: true,
        }
    }

    async fn start(&self, request: &ExecRequest) -> Result<Box<dyn Running>, TargetError> {
        let (shared, container) = (Arc::clone(&self.shared), self.container.clone());
        let ExecRequest {
            attempt,
            command,
            timeout,
        } = request.clone();
        let dir = container.exec(&attempt).dir;
        let Some(start) = shared.starts.begin(dir.clone()) else {
            return Err(TargetError::Exists { attempt });
        };
        let launched = blocking(move || {
            let _start = start;
            if !container.is_running()? {
                return Ok(Launched::NotRunning);
            }
            let spec = exec_spec(&container, &shared.boot_id, &attempt, &command, timeout)?;
            let bytes = spec
                .to_record()
                .encode()
                .map_err(RuntimeError::damaged(&dir))?;
            let created = launch::create(&dir, &bytes, &[], Durable::No)
                .map_err(RuntimeError::io("create", &dir))?;
            let Created::Locked(lock) = created else {
                return Ok(Launched::Exists);
            };
            launch::launch(&shared.program, &dir, &spec, &lock)
                .map(Launched::Link)
                .map_err(RuntimeError::io("start a shim in", &dir))
        })
        .await;
        let mut link = match launched {
            Ok(Launched::Link(stream)) => {
                Link::from_std(stream).map_err(|error| failed("talk to a shim")(error.into()))?
            }
            Ok(Launched::NotRunning) => return Err(self.not_running()),
            Ok(Launched::Exists) => {
                return Err(TargetError::Exists {
                    attempt: request.attempt.clone(),
                });
            }
            // The command itself cannot be run by anybody: that is the action's outcome.
            Err(RuntimeError::StartFailed { message, .. }) => {
                let now = jiff::Timestamp::now();
                let report = Report::new(Outcome::StartFailed { message }, now, now);
                return Ok(Box::new(Ended(report)));
            }
            Err(error) => return Err(failed("start an exec")(error.into())),
        };
        let first = link.first(self.shared.patience.word).await;
        match first.map(|record| StartError::from_record(&record)) {
            Some(Ok(error)) if error.failure == StartFailure::ContainerEnded => {
                let exec = self.container.exec(&request.attempt);
                let _ = blocking(move || exec.remove()).await;
                Err(self.not_running())
            }
            Some(Ok(error)) => Ok(Box::new(Ended(start_report(&error)))),
            // It says that it has started.
            Some(Err(_)) => Ok(self.running(&request.attempt, Some(link))),
            // It was killed on its way up.
            None => match self.find(&request.attempt).await? {
                Found::Running(running) => Ok(running),
                Found::Ended(report) => Ok(Box::new(Ended(report))),
                Found::Lost => Err(TargetError::Lost {
                    attempt: request.attempt.clone(),
                }),
                Found::NeverStarted => Err(failed("start an exec")("its shim was killed".into())),
            },
        }
    }

    async fn find(&self, attempt: &AttemptId) -> Result<Found, TargetError> {
        let container = &self.container;
        if !container.instance.dir.exists() {
            return Err(self.not_running());
        }
        let exec = container.exec(attempt);
        let begin = Instant::now();
        loop {
            // Seen before the files: a start that is over by now has left its traces.
            let starting = self.shared.starts.contains(&exec.dir);
            match exec.standing(container.same_boot).map_err(look_up)? {
                None if starting => {}
                // Without a durable directory its absence proves something on the same boot only.
                None if container.same_boot => return Ok(Found::NeverStarted),
                None => return Ok(Found::Lost),
                Some(Standing::Running(_)) => {
                    return Ok(Found::Running(self.running(attempt, None)));
                }
                // It may yet turn out never to have begun.
                Some(Standing::Coming) => {}
                Some(Standing::Ended(exit)) => {
                    return Ok(report(&exit).map_or(Found::Lost, Found::Ended));
                }
                Some(Standing::Failed(error)) if error.failure == StartFailure::ContainerEnded => {
                    blocking(move || exec.remove()).await.map_err(look_up)?;
                    return Ok(Found::NeverStarted);
                }
                Some(Standing::Failed(error)) => return Ok(Found::Ended(start_report(&error))),
                Some(Standing::NeverStarted) => {
                    let exec = exec.clone();
                    let removed = blocking(move || {
                        let Some(_claim) = exec.claim()? else {
                            return Ok(false);
                        };
                        // Looked at again under the lock; the removal lets the attempt begin anew.
                        let same = matches!(exec.claimed_standing(true)?, Standing::NeverStarted);
                        if same {
                            exec.remove()?;
                        }
                        Ok(same)
                    });
                    if removed.await.map_err(look_up)? {
                        return Ok(Found::NeverStarted);
                    }
                }
                Some(Standing::Abandoned(started)) => {
                    let (container, attempt) = (container.clone(), attempt.clone());
                    let buried =
                        blocking(move || container.bury_exec(&attempt, started.as_ref())).await;
                    if buried.map_err(look_up)? {
                        return Ok(Found::Lost);
                    }
                }
            }
            if begin.elapsed() > self.shared.patience.coming {
                return Err(look_up(RuntimeError::Silent { dir: exec.dir }));
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn forget(&self, attempt: &AttemptId) {
        let (exec, same_boot) = (self.container.exec(attempt), self.container.same_boot);
        let forgotten = blocking(move || match exec.standing(same_boot)? {
            Some(Standing::Ended(_) | Standing::Failed(_)) => exec.remove(),
            _ => Ok(()),
        });
        if let Err(error) = forgotten.await {
            // It goes with its container at the latest.
            tracing::warn!(%attempt, %error, "cannot forget an attempt");
        }
    }

    async fn signal(&self, signal: Signal) -> Result<(), TargetError> {
        match identity::signal(self.first()?, &self.shared.boot_id, signal.number()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.not_running()),
            Err(error) => Err(failed("send a signal")(error.into())),
        }
    }

    async fn disposition(&self, signal: Signal) -> Result<Disposition, TargetError> {
        let first = self.first()?;
        identity::disposition(first, &self.shared.boot_id, signal.number())
            .map_err(|error| failed("look at a container")(error.into()))?
            .ok_or_else(|| self.not_running())
    }

    async fn wait(&self) -> Result<(), TargetError> {
        let Some(first) = &self.first else {
            return Ok(());
        };
        let container = &self.container;
        let mut talk = Talk::new(container.instance.clone(), container.same_boot).of_first();
        // Whatever is told but a kill that failed means that it has ended.
        loop {
            let handle = identity::handle(first, &self.shared.boot_id);
            let handle = handle.map_err(|error| failed("wait for a container")(error.into()))?;
            if handle.is_none() {
                return Ok(());
            }
            match talk.told().await {
                Ok(Told::Unkillable(_)) => {}
                // It should have died with its shim; now it does.
                Ok(Told::Abandoned(started)) => {
                    let container = container.clone();
                    blocking(move || container.bury(started.as_ref()))
                        .await
                        .map_err(|error| failed("clear up after a container")(error.into()))?;
                }
                Ok(_) => return Ok(()),
                Err(error) => return Err(failed("wait for a container")(error.into())),
            }
        }
    }
}

enum Launched {
    Link(std::os::unix::net::UnixStream),
    NotRunning,
    Exists,
}

struct ProcessRunning {
    container: Container,
    attempt: AttemptId,
    talk: Talk,
    ended: Option<Report>,
}

#[async_trait]
impl Running for ProcessRunning {
    async fn wait(&mut self) -> Result<Report, TargetError> {
        let lost = || TargetError::Lost {
            attempt: self.attempt.clone(),
        };
        if let Some(report) = &self.ended {
            return Ok(report.clone());
        }
        loop {
            let told = self.talk.told().await;
            let ended = match told.map_err(|error| failed("wait for an exec")(error.into()))? {
                Told::Ended(exit) => report(&exit).ok_or_else(lost)?,
                Told::Failed(error) => start_report(&error),
                // A container's answers: they cannot come here.
                Told::Unkillable(_) | Told::FirstEnded => continue,
                Told::NeverStarted | Told::Gone => return Err(lost()),
                Told::Abandoned(started) => {
                    let (container, attempt) = (self.container.clone(), self.attempt.clone());
                    blocking(move || container.bury_exec(&attempt, started.as_ref()))
                        .await
                        .map_err(|error| failed("clear up after an exec")(error.into()))?;
                    continue;
                }
            };
            self.ended = Some(ended.clone());
            return Ok(ended);
        }
    }

    async fn cancel(&mut self) {
        if self.ended.is_none() {
            self.talk.ask_to_kill().await;
        }
    }
}

fn look_up(error: RuntimeError) -> TargetError {
    failed("look up an attempt")(error.into())
}
