//! One container of a CRI runtime, as something to act on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use belay_action::{
    AttemptId, Capabilities, ContainerId, Disposition, ExecRequest, Found, Incarnation, Running,
    Target, TargetError,
};
use belay_api::signal::Signal;
use belay_shim::clock::Wall;
use belay_shim::instance::Started;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tonic::Code;

use super::Shared;
use super::attempts::{End, UnderWay};
use super::client::{CallError, ExecName};
use super::container::Container;
use super::follow::{Begun, Exec};
use super::traces::{ContainerTraces, Sight, Standing, Traces, judge};
use crate::blocking::blocking;
use crate::identity;
use crate::readiness::readable;
use crate::report::{failed, start_report};

/// How long containerd may take to tell of an exec before the kernel is asked.
const PROMPT: Duration = Duration::from_secs(3);
/// How long a start that another agent left under way is given to come to something: containerd
/// goes on with it though its caller is gone.
const SETTLES: Duration = Duration::from_secs(3);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct CriTarget {
    shared: Arc<Shared>,
    container: Arc<Container>,
}

impl CriTarget {
    pub(crate) fn new(shared: Arc<Shared>, container: Arc<Container>) -> Self {
        CriTarget { shared, container }
    }

    fn id(&self) -> &ContainerId {
        &self.container.incarnation.id
    }

    fn not_running(&self) -> TargetError {
        TargetError::NotRunning {
            container: self.id().clone(),
        }
    }

    fn first(&self) -> Result<&Started, TargetError> {
        let first = self.container.first.as_ref();
        first.ok_or_else(|| self.not_running())
    }

    fn exec(&self, attempt: &AttemptId) -> Exec {
        let container = ContainerTraces::new(&self.shared.containers, self.id());
        Exec {
            shared: Arc::clone(&self.shared),
            container: Arc::clone(&self.container),
            attempt: attempt.clone(),
            name: ExecName {
                container: self.id().to_string(),
                exec: super::exec_id(attempt),
            },
            traces: container.attempt(attempt),
        }
    }

    /// What containerd knows of an exec.
    async fn sight(&self, exec: &Exec) -> Result<Sight, TargetError> {
        match self.shared.client.get(&exec.name).await {
            Ok(process) => Sight::of(&process).ok_or_else(|| {
                failed("look up an attempt")("containerd cannot tell its state".into())
            }),
            Err(error) if error.is(Code::NotFound) => Ok(Sight::Unknown),
            Err(error) => Err(failed("look up an attempt")(error.into())),
        }
    }

    /// What containerd knows of an exec, or that the kernel sees it run: so much is enough to follow
    /// one while containerd hangs or refuses.
    async fn sight_or_kernels(
        &self,
        exec: &Exec,
        started: Option<&Started>,
    ) -> Result<Sight, TargetError> {
        let alive = |started: &&Started| {
            matches!(identity::handle(started, &self.shared.boot_id), Ok(Some(_)))
        };
        let Some(started) = started.filter(alive) else {
            return self.sight(exec).await;
        };
        match timeout(PROMPT, self.sight(exec)).await {
            Ok(Ok(sight)) => Ok(sight),
            Ok(Err(_)) | Err(_) => Ok(Sight::Running { pid: started.pid }),
        }
    }

    /// The same, when a start that may still be under way has come to something.
    async fn settled(&self, exec: &Exec, traces: &Traces) -> Result<Sight, TargetError> {
        let (started, undecided) = match traces {
            Traces::Starting { started, .. } => (started.as_ref(), started.is_none()),
            _ => (None, false),
        };
        let until = Instant::now() + SETTLES;
        loop {
            let sight = self.sight_or_kernels(exec, started).await?;
            if !undecided || sight != Sight::Created || Instant::now() >= until {
                return Ok(sight);
            }
            sleep(PAUSE).await;
        }
    }

    /// Starts a command, not after `latest`.
    async fn launch(
        &self,
        request: &ExecRequest,
        latest: Option<Instant>,
    ) -> Result<Box<dyn Running>, TargetError> {
        if !self.shared.tasks {
            return Err(TargetError::Unsupported {
                what: "run commands so that they can be found and killed: that needs containerd",
            });
        }
        let attempt = &request.attempt;
        let Some(under_way) = self.shared.attempts.begin(self.id(), attempt) else {
            return Err(TargetError::Exists {
                attempt: attempt.clone(),
            });
        };
        let handle = under_way.attempt.handle();
        let (tell, told) = oneshot::channel();
        let (exec, request) = (self.exec(attempt), request.clone());
        // In a task of its own: a start that its caller gives up goes on, and is followed.
        tokio::spawn(async move {
            match exec.begin(&request, latest).await {
                Ok(Begun::Running(started)) => {
                    under_way.running();
                    let _ = tell.send(Ok(()));
                    let end = exec.follow(&started, &under_way.attempt.kill).await;
                    under_way.over(end);
                }
                Ok(Begun::Over(report)) => {
                    under_way.over(End::Report(report));
                    let _ = tell.send(Ok(()));
                }
                Err(error) => {
                    under_way.over(End::NotStarted);
                    let _ = tell.send(Err(error));
                }
            }
        });
        told.await
            .unwrap_or_else(|_| Err(failed("start an exec")("the agent is ending".into())))?;
        Ok(handle)
    }

    /// Looks an attempt up that nobody follows, with nobody else at it.
    async fn look_up(
        &self,
        attempt: &AttemptId,
        under_way: UnderWay,
    ) -> Result<Found, TargetError> {
        let exec = self.exec(attempt);
        let (traces, boot_id) = (exec.traces.clone(), self.shared.boot_id.clone());
        let traces = blocking(move || traces.read(&boot_id)).await;
        let traces = traces.map_err(|error| failed("look up an attempt")(error.into()))?;
        match &traces {
            Traces::Failed(error) => return Ok(Found::Ended(start_report(error))),
            Traces::Ended(exit) => {
                // The agent may have ended before the exec was deleted.
                if !exec.traces.has_output() {
                    exec.delete().await;
                }
                return found(exec.told(exit.clone()));
            }
            Traces::None | Traces::Unknown | Traces::Past => {
                return match judge(&traces, &Sight::Unknown) {
                    Standing::NeverStarted => Ok(Found::NeverStarted),
                    _ => Ok(Found::Lost),
                };
            }
            Traces::Made | Traces::Starting { .. } => {}
        }
        let (limit, started) = match &traces {
            Traces::Starting { timeout, started } => (*timeout, started.clone()),
            _ => (Duration::ZERO, None),
        };
        let sight = self.settled(&exec, &traces).await?;
        match judge(&traces, &sight) {
            Standing::NeverStarted => {
                exec.erase().await;
                Ok(Found::NeverStarted)
            }
            Standing::Lost => found(exec.lose(started).await),
            Standing::Stopped { status, nanos } => {
                let at = started.map_or_else(Wall::now, |started| started.at);
                found(exec.stopped(at, status, nanos).await)
            }
            Standing::Running { pid } => {
                let pid = u32::try_from(pid).unwrap_or(0);
                let started = match started {
                    Some(started) => started,
                    None => exec.recovered(pid, limit).await,
                };
                let handle = under_way.attempt.handle();
                under_way.running();
                tokio::spawn(async move {
                    let end = exec.follow(&started, &under_way.attempt.kill).await;
                    under_way.over(end);
                });
                Ok(Found::Running(handle))
            }
        }
    }
}

fn found(end: End) -> Result<Found, TargetError> {
    match end {
        End::Report(report) => Ok(Found::Ended(report)),
        End::Lost => Ok(Found::Lost),
        End::NotStarted => Ok(Found::NeverStarted),
        End::Unknown { problem } => Err(failed("look up an attempt")(problem.into())),
    }
}

#[async_trait]
impl Target for CriTarget {
    fn incarnation(&self) -> &Incarnation {
        &self.container.incarnation
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            signal: true,
            find_attempts: self.shared.tasks,
            kills_tree: self.shared.tasks,
        }
    }

    async fn start(&self, request: &ExecRequest) -> Result<Box<dyn Running>, TargetError> {
        self.launch(request, None).await
    }

    async fn start_before(
        &self,
        request: &ExecRequest,
        latest: Instant,
    ) -> Result<Box<dyn Running>, TargetError> {
        self.launch(request, Some(latest)).await
    }

    async fn find(&self, attempt: &AttemptId) -> Result<Found, TargetError> {
        if !self.shared.tasks {
            // None is ever started there.
            return Ok(Found::NeverStarted);
        }
        loop {
            if let Some(under_way) = self.shared.attempts.begin(self.id(), attempt) {
                return self.look_up(attempt, under_way).await;
            }
            // Somebody is at it: follow that one, or look again when it is over.
            if let Some(attempt) = self.shared.attempts.get(self.id(), attempt)
                && attempt.settled().await
            {
                return Ok(Found::Running(attempt.handle()));
            }
        }
    }

    async fn forget(&self, attempt: &AttemptId) {
        let Some(under_way) = self.shared.attempts.begin(self.id(), attempt) else {
            return;
        };
        let exec = self.exec(attempt);
        let (traces, boot_id) = (exec.traces.clone(), self.shared.boot_id.clone());
        let ended = blocking(move || {
            let read = traces.read(&boot_id)?;
            // What another boot left has ended, too, whatever is known of its end.
            let ended = matches!(read, Traces::Ended(_) | Traces::Failed(_) | Traces::Past);
            Ok((ended, traces.has_output()))
        });
        match ended.await {
            Ok((true, deleted)) => {
                if !deleted {
                    exec.delete().await;
                }
                let traces = exec.traces.clone();
                if let Err(error) = blocking(move || traces.remove()).await {
                    tracing::warn!(%attempt, %error, "cannot forget an attempt");
                }
            }
            Ok((false, _)) => {}
            // It goes with its container at the latest.
            Err(error) => tracing::warn!(%attempt, %error, "cannot forget an attempt"),
        }
        under_way.over(End::NotStarted);
    }

    async fn signal(&self, signal: Signal) -> Result<(), TargetError> {
        let first = self.first()?;
        // Whoever runs the pods is on the host, and must be able to end them whether the runtime
        // answers or not. A companion may be confined in a way that containerd is not.
        if !self.shared.tasks || self.shared.node.is_some() {
            return match identity::signal(first, &self.shared.boot_id, signal.number()) {
                Ok(true) => Ok(()),
                Ok(false) => Err(self.not_running()),
                Err(error) => Err(failed("send a signal")(error.into())),
            };
        }
        let number = u32::try_from(signal.number()).unwrap_or_default();
        match self.shared.client.kill(self.id().as_str(), number).await {
            Ok(()) => Ok(()),
            Err(error) if is_over(&error) => Err(self.not_running()),
            Err(error) => Err(failed("send a signal")(error.into())),
        }
    }

    async fn disposition(&self, signal: Signal) -> Result<Disposition, TargetError> {
        let first = self.first()?;
        identity::disposition(first, &self.shared.boot_id, signal.number())
            .map_err(|error| failed("look at a container")(error.into()))?
            .ok_or_else(|| self.not_running())
    }

    /// The kernel tells of the end, whether the runtime is there or not.
    async fn wait(&self) -> Result<(), TargetError> {
        let Some(first) = &self.container.first else {
            return Ok(());
        };
        let handle = identity::handle(first, &self.shared.boot_id);
        let ended = match handle {
            Ok(Some(handle)) => readable(handle).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        ended.map_err(|error| failed("wait for a container")(error.into()))
    }
}

/// Whether a kill failed because there was nobody to kill.
fn is_over(error: &CallError) -> bool {
    let CallError::Answer(status) = error else {
        return false;
    };
    let over = ["process already finished", "not running", "no such process"];
    status.code() == Code::NotFound || over.iter().any(|words| status.message().contains(words))
}
