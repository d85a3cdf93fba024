//! Sessions in containers of the process runtime: each under a shim that dies with the agent.

use std::sync::Arc;

use async_trait::async_trait;
use belay_action::{AttemptId, ContainerId};
use belay_shim::instance::{Durable, Ending, StartError, StartFailure};
use belay_shim::spec::Kind;

use super::ProcessRuntime;
use super::container::{Container, session_spec};
use super::launch::{self, Created};
use super::talk::{Link, Talk, Told};
use crate::blocking::blocking;
use crate::sessions::{Knobs, Pipes, Reins, Terminal, reined};
use crate::{
    RuntimeError, Session, SessionEnd, SessionError, SessionRequest, Sessions, Size, Streams,
};

#[async_trait]
impl Sessions for ProcessRuntime {
    async fn open(
        &self,
        id: &ContainerId,
        request: &SessionRequest,
    ) -> Result<(Session, Streams), SessionError> {
        let container = self.load(id)?;
        let (shared, request, of) = (Arc::clone(&self.shared), request.clone(), container.clone());
        let session = request.id.clone();
        let launched = blocking(move || {
            if !of.is_running()? {
                return Ok(None);
            }
            let terminal = request.terminal.map(Terminal::open).transpose()?;
            let kind = Kind::Session {
                session: request.id.to_string(),
                terminal: terminal.as_ref().map(|terminal| terminal.path.clone()),
                stdin: request.stdin,
            };
            let spec = session_spec(&of, &shared.boot_id, kind, &request.command)?;
            let dir = of.exec(&request.id).dir;
            let bytes = spec
                .to_record()
                .encode()
                .map_err(RuntimeError::damaged(&dir))?;
            let created = launch::create(&dir, &bytes, &[], Durable::No)
                .map_err(RuntimeError::io("create", &dir))?;
            let Created::Locked(lock) = created else {
                return Err(RuntimeError::io("create", &dir)(
                    std::io::ErrorKind::AlreadyExists.into(),
                ));
            };
            let launch = || {
                let ends = match terminal {
                    Some(terminal) => Ends::Terminal(terminal),
                    None => Ends::Pipes(Pipes::make(&dir, request.stdin, true)?),
                };
                let link = launch::launch(&shared.program, &dir, &spec, &lock)
                    .map_err(RuntimeError::io("start a shim in", &dir))?;
                Ok((ends, link))
            };
            let launched = launch();
            if launched.is_err() {
                of.exec(&request.id).remove()?;
            }
            launched.map(Some)
        });
        let not_running = || SessionError::NotRunning {
            container: id.clone(),
        };
        let (ends, link) = match launched.await {
            Ok(launched) => launched.ok_or_else(not_running)?,
            // The command itself cannot be run by anybody.
            Err(RuntimeError::StartFailed { message, .. }) => {
                return Err(SessionError::Command { message });
            }
            Err(error) => return Err(error.into()),
        };
        let dir = container.exec(&session).dir;
        let mut link = Link::from_std(link).map_err(RuntimeError::io("talk to a shim in", &dir))?;
        let said = link.first(self.shared.patience.word).await;
        match said.map(|record| StartError::from_record(&record)) {
            // It says that it has started.
            Some(Err(_)) => {}
            Some(Ok(error)) if error.failure == StartFailure::ContainerEnded => {
                return Err(not_running());
            }
            Some(Ok(error)) => {
                let message = error.message;
                return Err(SessionError::Command { message });
            }
            None => return Err(RuntimeError::Silent { dir }.into()),
        }
        let (streams, knobs) = match ends {
            Ends::Pipes(pipes) => (pipes.streams(), ProcessKnobs(None)),
            Ends::Terminal(terminal) => (terminal.streams()?, ProcessKnobs(Some(terminal))),
        };
        let (handle, reins) = reined(Box::new(knobs));
        let talk = Talk::new(container.exec(&session), container.same_boot).over(link);
        tokio::spawn(follow(container, session, talk, reins));
        Ok((handle, streams))
    }
}

enum Ends {
    Pipes(Pipes),
    Terminal(Terminal),
}

struct ProcessKnobs(Option<Terminal>);

#[async_trait]
impl Knobs for ProcessKnobs {
    async fn resize(&self, size: Size) -> Result<(), RuntimeError> {
        self.0
            .as_ref()
            .map_or(Ok(()), |terminal| terminal.resize(size))
    }

    /// The pipe itself says so.
    async fn close_stdin(&self) {}
}

/// Has it killed with all it started, and waits until that is done.
async fn kill(talk: &mut Talk) -> Result<Told, RuntimeError> {
    talk.ask_to_kill().await;
    let told = talk.told().await?;
    let by_itself = matches!(
        &told,
        Told::Ended(exit) if !matches!(exit.ending, Ending::TimedOut | Ending::Cancelled)
    );
    if !by_itself {
        return Ok(told);
    }
    // It was told before the shim came to kill, which tells when it has killed what is left.
    match talk.told().await? {
        abandoned @ Told::Abandoned(_) => Ok(abandoned),
        _ => Ok(told),
    }
}

/// Follows a session to its end. When this is dropped, with the agent, the shim kills it.
async fn follow(container: Container, session: AttemptId, mut talk: Talk, mut reins: Reins) {
    let told = tokio::select! {
        // One that is let go of may have ended just because of that.
        biased;
        () = reins.killed() => kill(&mut talk).await,
        told = talk.told() => told,
    };
    let lost = |problem: String| SessionEnd::Lost { problem };
    let end = match told {
        Ok(Told::Ended(exit)) => match exit.ending {
            Ending::Exited(code) => SessionEnd::Exited(code),
            Ending::Signaled(signal) => SessionEnd::Signaled(signal),
            Ending::TimedOut | Ending::Cancelled => SessionEnd::Killed {
                survivors: exit.survivors,
            },
            Ending::Unknown => lost("nobody saw its end".to_owned()),
        },
        Ok(Told::Unkillable(survivors)) => SessionEnd::Killed { survivors },
        Ok(Told::Failed(error)) => lost(error.message),
        Ok(Told::FirstEnded | Told::NeverStarted | Told::Gone) => {
            lost("its shim went away".to_owned())
        }
        Ok(Told::Abandoned(started)) => {
            let (of, id) = (container.clone(), session.clone());
            let buried = blocking(move || {
                of.bury_exec(&id, started.as_ref())?;
                of.exec(&id).remove()
            });
            match buried.await {
                Ok(()) => lost("its shim was killed; what it left was killed too".to_owned()),
                Err(error) => lost(error.to_string()),
            }
        }
        Err(error) => lost(error.to_string()),
    };
    tracing::debug!(container = %container.id, %session, ?end, "a session ended");
    reins.tell(end);
}
