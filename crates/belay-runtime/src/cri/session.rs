//! Sessions in containers of containerd.
//!
//! ```text
//!   sessions/ID: record, pipes ──> Exec ──> Start ──> follow: Wait, or kill all that belongs
//!                                                        │ told, then everybody lets go
//!                                                        v
//!                                          Delete ──> sessions/ID removed
//! ```
//!
//! containerd copies between its pipes or its terminal and ours; deleting the exec ends that, so it
//! is done only when the session is dropped. An agent that died leaves its directories: the next one
//! kills what they name.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belay_action::{AttemptId, ContainerId};
use belay_shim::clock::Wall;
use belay_shim::instance::{STDERR, STDIN, STDOUT, Started};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tracing::{debug, info, warn};

use super::client::{CallError, Ends, ExecName};
use super::hunt::{self, Bag};
use super::refusal::{self, Refusal};
use super::specification::exec_process;
use super::{CriRuntime, Shared, exec_id, leader};
use crate::blocking::blocking;
use crate::process::TERM;
use crate::sessions::{Knobs, Pipes, Reins, reined};
use crate::{
    RuntimeError, Session, SessionEnd, SessionError, SessionRequest, Sessions, Size, Streams,
};

/// Pauses between calls to a runtime that is away.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long containerd may take to see and forget what was killed.
const LATE: Duration = Duration::from_secs(10);
/// The longest pause between two kills of what containerd does not let go of.
const BETWEEN_KILLS: Duration = Duration::from_secs(5);
/// The same while somebody is there who cannot be killed: each costs a look at all processes.
const BETWEEN_VAIN_KILLS: Duration = Duration::from_secs(60);
/// How long a start that containerd has forgotten may take until its process is the command, which
/// has the marks.
const BECOMING: Duration = Duration::from_secs(1);
/// The file that tells a later agent what a directory is of.
const RECORD: &str = "session";

/// What an agent that died has left.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    container: String,
    session: AttemptId,
    boot: String,
}

/// One session, as containerd and the disk know it.
struct Place {
    shared: Arc<Shared>,
    name: ExecName,
    session: AttemptId,
    dir: PathBuf,
}

#[async_trait]
impl Sessions for CriRuntime {
    async fn open(
        &self,
        id: &ContainerId,
        request: &SessionRequest,
    ) -> Result<(Session, Streams), SessionError> {
        let shared = &self.shared;
        if !shared.tasks {
            return Err(SessionError::Unsupported {
                what: "run commands so that they can be killed with all they start: that needs \
                       containerd",
            });
        }
        if request.command.first().is_none_or(String::is_empty) {
            let message = "there is no command to run".to_owned();
            return Err(SessionError::Command { message });
        }
        let container = self.container(id).await?;
        let not_running = || SessionError::NotRunning {
            container: id.clone(),
        };
        if !container.is_running(&shared.boot_id)? {
            return Err(not_running());
        }
        let first = container.process(&shared.client).await?;
        let process = session_process(first, request, id)?;
        let place = Place::new(shared, id, &request.id);
        let _turn = container.turn().await;
        let pipes = place.prepare(request).await?;
        match place.start(&pipes, process, request).await {
            Ok(leader) => {
                let streams = pipes.streams();
                let knobs = CriKnobs {
                    shared: Arc::clone(shared),
                    name: place.name.clone(),
                    terminal: request.terminal.is_some(),
                };
                let (session, reins) = reined(Box::new(knobs));
                tokio::spawn(place.follow(leader, reins));
                Ok((session, streams))
            }
            Err(error) => {
                // Whatever became of it, nothing of it may stay.
                let program = request.command.first().map_or("", String::as_str);
                let refusal = refusal::of_exec(&error, &place.name, &place.session, program).await;
                let unclear = refusal == Refusal::Unclear;
                tokio::spawn(async move {
                    if unclear {
                        place.end().await;
                    } else {
                        place.clear().await;
                    }
                });
                Err(match refusal {
                    Refusal::NotRunning => not_running(),
                    Refusal::Command { message } | Refusal::Node { message } => {
                        SessionError::Command { message }
                    }
                    Refusal::Unclear => error.during("start a command").into(),
                })
            }
        }
    }
}

/// The process of a session: the container's own, with another command and perhaps a terminal.
fn session_process(
    first: &Value,
    request: &SessionRequest,
    container: &ContainerId,
) -> Result<Vec<u8>, SessionError> {
    let process = exec_process(
        first,
        &request.command,
        container.as_str(),
        request.id.as_str(),
    );
    let Some(size) = request.terminal else {
        return Ok(process);
    };
    let mut process: Value =
        serde_json::from_slice(&process).map_err(|error| RuntimeError::Call {
            what: "describe a command",
            problem: error.to_string(),
        })?;
    process["terminal"] = true.into();
    if size != Size::default() {
        process["consoleSize"] = serde_json::json!({"width": size.columns, "height": size.rows});
    }
    let (name, value) = TERM;
    if let Some(environment) = process["env"].as_array_mut() {
        let other = |variable: &Value| {
            let named = variable.as_str().and_then(|text| text.split('=').next());
            named != Some(name)
        };
        environment.retain(other);
        environment.push(format!("{name}={value}").into());
    }
    Ok(process.to_string().into_bytes())
}

fn directory(shared: &Shared) -> PathBuf {
    shared.containers.with_file_name("sessions")
}

impl Place {
    fn new(shared: &Arc<Shared>, container: &ContainerId, session: &AttemptId) -> Self {
        Place {
            shared: Arc::clone(shared),
            name: ExecName {
                container: container.to_string(),
                exec: exec_id(session),
            },
            session: session.clone(),
            dir: directory(shared).join(session.as_str()),
        }
    }

    /// Makes the directory with its record and pipes.
    async fn prepare(&self, request: &SessionRequest) -> Result<Pipes, RuntimeError> {
        let record = Record {
            container: self.name.container.clone(),
            session: self.session.clone(),
            boot: self.shared.boot_id.clone(),
        };
        let (dir, stdin, stderr) = (
            self.dir.clone(),
            request.stdin || request.terminal.is_some(),
            request.terminal.is_none(),
        );
        blocking(move || {
            let made = make(&dir, &record).and_then(|()| Pipes::make(&dir, stdin, stderr));
            if made.is_err() {
                let _ = fs::remove_dir_all(&dir);
            }
            made
        })
        .await
    }

    /// Makes the exec known and starts it.
    async fn start(
        &self,
        pipes: &Pipes,
        process: Vec<u8>,
        request: &SessionRequest,
    ) -> Result<Started, CallError> {
        let terminal = request.terminal.is_some();
        let paths = [STDIN, STDOUT, STDERR].map(|name| pipes.path(name));
        let ends = Ends {
            stdin: (request.stdin || terminal).then_some(&*paths[0]),
            stdout: &paths[1],
            stderr: (!terminal).then_some(&*paths[2]),
            terminal,
        };
        let client = &self.shared.client;
        client.exec_session(&self.name, process, ends).await?;
        let pid = client.start(&self.name).await?;
        Ok(self.leader(pid).await)
    }

    /// The first process, if it can still be seen.
    async fn leader(&self, pid: u32) -> Started {
        let pid = i32::try_from(pid).unwrap_or(0);
        let client = &self.shared.client;
        let seen = leader::start_time(client, &self.name, self.session.as_str(), pid).await;
        Started {
            pid,
            start_time: seen.unwrap_or(0),
            boot_id: self.shared.boot_id.clone(),
            at: Wall::now(),
            deadline: None,
        }
    }

    async fn follow(self, leader: Started, mut reins: Reins) {
        let ended = tokio::select! {
            // One that is let go of may have ended just because of that.
            biased;
            () = reins.killed() => {
                let leader =
                    leader::to_be_killed(&self.shared.client, &self.name, &leader).await;
                let mut survivors = self.kill(leader).await;
                // containerd must have seen it before it can be deleted.
                if timeout(LATE, self.ended()).await.is_err() && survivors.is_empty() {
                    survivors.extend(leader::survivor(&self.shared.client, &self.name).await);
                }
                info!(session = %self.session, ?survivors, "a session was killed");
                SessionEnd::Killed { survivors }
            }
            ended = self.ended() => match ended {
                SessionEnd::Lost { problem } => self.lose(&leader, problem).await,
                ended => ended,
            },
        };
        reins.tell(ended);
        // Its output may still be on its way.
        reins.dropped().await;
        self.clear().await;
    }

    /// Waits until containerd tells the end, through as many of its restarts as it takes.
    async fn ended(&self) -> SessionEnd {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.shared.client.wait(&self.name).await {
                Ok(answer) => {
                    return match i32::try_from(answer.exit_status) {
                        Ok(code) => SessionEnd::Exited(code),
                        Err(_) => SessionEnd::Lost {
                            problem: "containerd cannot tell how it ended".to_owned(),
                        },
                    };
                }
                Err(error) if error.is(Code::NotFound) => {
                    return SessionEnd::Lost {
                        problem: "containerd has forgotten it".to_owned(),
                    };
                }
                Err(error) => debug!(session = %self.session, %error, "waiting again"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Nobody knows whether it has ended: what may be left of it dies, before that is told.
    async fn lose(&self, leader: &Started, problem: String) -> SessionEnd {
        let leader = leader::to_be_killed(&self.shared.client, &self.name, leader).await;
        let survivors = self.kill(leader).await;
        warn!(session = %self.session, problem, ?survivors, "a session was lost and killed");
        let left = match survivors.is_empty() {
            true => "what it left was killed".to_owned(),
            false => format!("what it left cannot be killed: {}", survivors.join(", ")),
        };
        SessionEnd::Lost {
            problem: format!("{problem}; {left}"),
        }
    }

    /// Kills all that belongs to it, as soon as anybody can be looked at.
    async fn kill(&self, leader: Option<Started>) -> Vec<String> {
        self.hunt(leader).await.survivors
    }

    /// The same, and whether there was anybody.
    async fn hunt(&self, leader: Option<Started>) -> Bag {
        let mut pause = FIRST_PAUSE;
        loop {
            let (container, session) = (self.name.container.clone(), self.session.to_string());
            let leader = leader.clone();
            let killed =
                blocking(move || hunt::kill_found(&container, &session, leader.as_ref())).await;
            match killed {
                Ok(bag) => return bag,
                Err(error) => warn!(session = %self.session, %error, "killing it again"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Kills whatever there is of it until containerd has let go of it, and removes the directory.
    /// A start that nobody waits for any more may come to something only after a while.
    async fn end(&self) {
        let shared = &self.shared;
        let mut pause = FIRST_PAUSE;
        let mut seen = false;
        let mut named = false;
        loop {
            let leader = leader::unknown(&shared.client, &self.name, &shared.boot_id).await;
            let bag = self.hunt(leader).await;
            seen |= bag.any;
            if !bag.survivors.is_empty() && !named {
                let survivors = &bag.survivors;
                warn!(session = %self.session, ?survivors, "a session cannot be killed yet");
                named = true;
            }
            match shared.client.delete(&self.name).await {
                Ok(()) => break,
                Err(error) if error.is(Code::NotFound) => break,
                Err(error) => debug!(session = %self.session, %error, "killing again"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(match bag.survivors.is_empty() {
                true => BETWEEN_KILLS,
                false => BETWEEN_VAIN_KILLS,
            });
        }
        if !seen {
            sleep(BECOMING).await;
            self.hunt(None).await;
        }
        self.remove().await;
    }

    /// Lets containerd forget the exec, and removes the directory.
    async fn clear(&self) {
        let mut pause = FIRST_PAUSE;
        let deleted = timeout(LATE, async {
            loop {
                match self.shared.client.delete(&self.name).await {
                    Ok(()) => return,
                    Err(error) if error.is(Code::NotFound) => return,
                    // Away, or it has not seen the end yet.
                    Err(error) => debug!(session = %self.session, %error, "deleting again"),
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
        if deleted.await.is_err() {
            // It goes with its container at the latest.
            warn!(session = %self.session, "containerd does not forget a session");
        }
        self.remove().await;
    }

    async fn remove(&self) {
        let dir = self.dir.clone();
        let removed =
            blocking(move || fs::remove_dir_all(&dir).map_err(RuntimeError::io("remove", &dir)));
        if let Err(error) = removed.await {
            warn!(session = %self.session, %error, "a session's directory stays");
        }
    }
}

fn make(dir: &Path, record: &Record) -> Result<(), RuntimeError> {
    let io = |error| RuntimeError::io("create", dir)(error);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(io)?;
    let bytes = serde_json::to_vec(record).map_err(|error| io(error.into()))?;
    fs::write(dir.join(RECORD), bytes).map_err(io)
}

struct CriKnobs {
    shared: Arc<Shared>,
    name: ExecName,
    terminal: bool,
}

#[async_trait]
impl Knobs for CriKnobs {
    async fn resize(&self, size: Size) -> Result<(), RuntimeError> {
        if !self.terminal {
            return Ok(());
        }
        let resized = self.shared.client.resize(&self.name, size).await;
        resized.map_err(|error| error.during("resize a terminal"))
    }

    /// Says so until containerd has heard it: a command may wait for nothing else.
    async fn close_stdin(&self) {
        if self.terminal {
            return;
        }
        let mut pause = FIRST_PAUSE;
        loop {
            match self.shared.client.close_stdin(&self.name).await {
                Ok(()) => return,
                Err(error) if error.is(Code::NotFound) => return,
                Err(error) => {
                    debug!(session = %self.name.exec, %error, "telling the end of the input again");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Kills the sessions that an agent before this one has left.
pub(super) async fn sweep(shared: &Arc<Shared>) {
    let root = directory(shared);
    let left = blocking(move || {
        let entries = fs::read_dir(&root).into_iter().flatten().flatten();
        let records = entries.filter_map(|entry| {
            let record = fs::read(entry.path().join(RECORD)).ok();
            let record = record.and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
            if record.is_none() {
                // It got no further than its directory.
                let _ = fs::remove_dir_all(entry.path());
            }
            record
        });
        Ok(records.collect::<Vec<_>>())
    });
    for record in left.await.unwrap_or_default() {
        let Ok(container) = ContainerId::new(&record.container) else {
            continue;
        };
        let place = Place::new(shared, &container, &record.session);
        if record.boot == shared.boot_id {
            let survivors = place.kill(None).await;
            info!(session = %place.session, ?survivors, "a session of an agent before was killed");
            // What could be told from others is dead now. The rest may take as long as it likes.
            tokio::spawn(async move { place.end().await });
        } else {
            tokio::spawn(async move { place.clear().await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_terminal_has_a_name_and_a_size_and_the_rest_is_the_containers() {
        let first = json!({"env": ["TERM=dumb", "A=b"], "cwd": "/srv", "terminal": false});
        let mut request = SessionRequest {
            id: AttemptId::new("s1").unwrap(),
            command: vec!["sh".to_owned()],
            stdin: true,
            terminal: Some(Size {
                columns: 80,
                rows: 24,
            }),
        };
        let container = ContainerId::new("c1").unwrap();
        let made = |request: &SessionRequest| -> Value {
            let process = session_process(&first, request, &container).unwrap();
            serde_json::from_slice(&process).unwrap()
        };
        let process = made(&request);
        assert_eq!(process["terminal"], true);
        assert_eq!(process["consoleSize"], json!({"width": 80, "height": 24}));
        assert_eq!(
            process["env"],
            json!([
                "A=b",
                "BELAY_CONTAINER_ID=c1",
                "BELAY_ATTEMPT_ID=s1",
                "TERM=xterm"
            ])
        );
        assert_eq!(process["cwd"], "/srv");
        request.terminal = None;
        let process = made(&request);
        assert_eq!(process["terminal"], false);
        assert_eq!(process["env"][0], "TERM=dumb");
    }
}
