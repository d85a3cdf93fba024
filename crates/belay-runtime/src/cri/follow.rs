//! From the start of an exec to its end.
//!
//! ```text
//!   traces: directory ──> Exec ──> traces: starting ──> Start ──> traces: started
//!                                                                    │ follow
//!      Wait answers, or the kernel in its place ────┐                v
//!      deadline, cancel ──> kill all that belongs ──┴──> traces: exit ──> Delete ──> output, report
//! ```
//!
//! containerd keeps the exit status until the exec is deleted, and that is done only when the end
//! is on disk. Deleting it also ends the collector of its output, which has then written it.

use std::os::fd::AsFd as _;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use belay_action::{AttemptId, ExecRequest, Report, TargetError};
use belay_shim::clock::{Boot, Wall};
use belay_shim::instance::{Ending, Exit, StartError, StartFailure, Started};
use belay_shim::sys::{self, WaitStatus};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tracing::{debug, info, warn};

use super::attempts::End;
use super::client::{CallError, ExecName};
use super::container::Container;
use super::hunt;
use super::refusal::{self, Refusal};
use super::specification::exec_process;
use super::traces::{AttemptTraces, Sight};
use super::{Shared, leader, nanos, sweep};
use crate::blocking::blocking;
use crate::readiness::readable;
use crate::report::{failed, report, start_report};
use crate::{RuntimeError, identity};

/// Pauses between calls to a runtime that is away.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the runtime may take to tell of an end that has happened.
const LATE: Duration = Duration::from_secs(10);
/// How long it may take before the kernel's word is taken for it. The output goes with containerd's.
const UNTOLD: Duration = Duration::from_secs(3);
/// How long the output of an exec that was killed is waited for.
const OUTPUT: Duration = Duration::from_secs(3);
/// Clock ticks per second in `/proc`, the same on every machine Linux runs on today.
const TICKS: i64 = 100;

/// What a start came to.
pub(crate) enum Begun {
    Running(Started),
    Over(Report),
}

/// How an exec is to be ended.
#[derive(Debug, Clone, Copy)]
enum Cause {
    Deadline,
    Cancel,
}

/// One exec.
pub(crate) struct Exec {
    pub(crate) shared: Arc<Shared>,
    pub(crate) container: Arc<Container>,
    pub(crate) attempt: AttemptId,
    pub(crate) name: ExecName,
    pub(crate) traces: AttemptTraces,
}

impl Exec {
    /// Starts it, not after `latest`. When this fails and has left traces, those tell what became of
    /// it.
    pub(crate) async fn begin(
        &self,
        request: &ExecRequest,
        latest: Option<Instant>,
    ) -> Result<Begun, TargetError> {
        if let Some(message) = bad_command(&request.command) {
            let error = start_error(StartFailure::NotFound, message);
            return Ok(Begun::Over(start_report(&error)));
        }
        let shared = &self.shared;
        let running = self.container.is_running(&shared.boot_id);
        if !running.map_err(|error| failed("start an exec")(error.into()))? {
            return Err(self.not_running());
        }
        let first = self.container.process(&shared.client).await;
        let first = first.map_err(|error| failed("start an exec")(error.into()))?;
        let process = exec_process(
            first,
            &request.command,
            &self.name.container,
            self.attempt.as_str(),
        );
        let _turn = self.container.turn().await;
        // Others may have had their turn for long.
        self.in_time(latest)?;
        if !self.make_traces().await? {
            return Err(TargetError::Exists {
                attempt: self.attempt.clone(),
            });
        }
        let output = shared.output_uri(self.traces.dir());
        match shared.client.exec(&self.name, process, &output).await {
            Ok(()) => {}
            Err(error) if error.is(Code::NotFound) => {
                self.erase().await;
                return Err(self.not_running());
            }
            Err(error) => return Err(failed("make an exec")(error.into())),
        }
        let (traces, limit) = (self.traces.clone(), request.timeout);
        blocking(move || traces.write_starting(limit))
            .await
            .map_err(|error| failed("record the start of an exec")(error.into()))?;
        // Making it may have taken as long as a call may take.
        if let Err(late) = self.in_time(latest) {
            self.erase().await;
            return Err(late);
        }
        let pid = match shared.client.start(&self.name).await {
            Ok(pid) => pid,
            Err(error) => return self.refused(error, &request.command).await,
        };
        let deadline = Boot::now().after(request.timeout);
        let started = self.started(pid, Wall::now(), deadline).await;
        let (traces, record) = (self.traces.clone(), started.clone());
        if let Err(error) = blocking(move || traces.write_started(&record)).await {
            // containerd and the kernel know it as well.
            warn!(attempt = %self.attempt, %error, "the start of an exec cannot be recorded");
        }
        Ok(Begun::Running(started))
    }

    async fn make_traces(&self) -> Result<bool, TargetError> {
        let (shared, traces) = (Arc::clone(&self.shared), self.traces.clone());
        let made = blocking(move || {
            let making = shared.making.lock().unwrap_or_else(PoisonError::into_inner);
            let new = traces.container().prepare(&shared.boot_id)?;
            drop(making);
            Ok((new, traces.make()?))
        });
        let (new, made) = made
            .await
            .map_err(|error| failed("record an exec")(error.into()))?;
        if new {
            // A new container is the moment to look for old ones.
            tokio::spawn(sweep(Arc::clone(&self.shared)));
        }
        Ok(made)
    }

    /// What it means that containerd did not start it.
    async fn refused(&self, error: CallError, command: &[String]) -> Result<Begun, TargetError> {
        let program = command.first().map_or("", String::as_str);
        match refusal::of_exec(&error, &self.name, &self.attempt, program).await {
            Refusal::NotRunning => {
                self.erase().await;
                Err(self.not_running())
            }
            Refusal::Command { message } => {
                let error = start_error(StartFailure::System, message);
                let (traces, record) = (self.traces.clone(), error.clone());
                let recorded = blocking(move || traces.write_failed(&record)).await;
                recorded.map_err(|error| failed("record an exec")(error.into()))?;
                self.delete().await;
                Ok(Begun::Over(start_report(&error)))
            }
            Refusal::Node { message } => {
                self.erase().await;
                Err(failed("start an exec")(message.into()))
            }
            Refusal::Unclear => Err(failed("start an exec")(error.into())),
        }
    }

    /// The exec's first process, if it can still be seen.
    async fn started(&self, pid: u32, at: Wall, deadline: Boot) -> Started {
        let pid = i32::try_from(pid).unwrap_or(0);
        let client = &self.shared.client;
        let seen = leader::start_time(client, &self.name, self.attempt.as_str(), pid).await;
        let start_time = seen.unwrap_or(0);
        Started {
            pid,
            start_time,
            boot_id: self.shared.boot_id.clone(),
            at,
            deadline: Some(deadline),
        }
    }

    /// The same for an exec whose start was not recorded. Its time began with its process.
    pub(crate) async fn recovered(&self, pid: u32, limit: Duration) -> Started {
        let (wall, boot) = (Wall::now(), Boot::now());
        let mut started = self.started(pid, wall, boot.after(limit)).await;
        if started.start_time > 0 {
            let ticks = i64::try_from(started.start_time).unwrap_or(i64::MAX);
            let begin = Boot(ticks.saturating_mul(1_000_000_000 / TICKS));
            started.deadline = Some(begin.after(limit));
            started.at = Wall(wall.0.saturating_sub(boot.0.saturating_sub(begin.0)));
        }
        started
    }

    /// Follows it to its end; kills it at its deadline, and when `kill` is told.
    pub(crate) async fn follow(&self, started: &Started, kill: &Notify) -> End {
        let mut ended = pin!(self.ended());
        let deadline = started.deadline.unwrap_or(Boot(i64::MAX));
        let cause = tokio::select! {
            // An end that is there beats a deadline or a cancel that came too late.
            biased;
            ended = &mut ended => return self.settle(started, ended).await,
            exit = self.witnessed(started) => return self.conclude(exit).await,
            () = kill.notified() => Cause::Cancel,
            () = until(deadline) => Cause::Deadline,
        };
        let leader = leader::to_be_killed(&self.shared.client, &self.name, started).await;
        // One that cannot be looked at may live.
        let lives =
            |leader: &Started| !matches!(identity::handle(leader, &self.shared.boot_id), Ok(None));
        if !leader.as_ref().is_some_and(lives) {
            // It has ended by itself; containerd is late to tell.
            if let Ok(ended) = timeout(LATE, &mut ended).await {
                return self.settle(started, ended).await;
            }
            if leader.is_some() {
                let problem = "it has ended, and the container runtime does not tell how";
                return End::Unknown {
                    problem: problem.to_owned(),
                };
            }
        }
        let mut survivors = match self.kill(leader).await {
            Ok(survivors) => survivors,
            Err(error) => {
                let problem = error.to_string();
                return End::Unknown { problem };
            }
        };
        // containerd must have seen it before it can be deleted.
        if survivors.is_empty() && timeout(OUTPUT, ended).await.is_err() {
            survivors.extend(leader::survivor(&self.shared.client, &self.name).await);
        }
        info!(attempt = %self.attempt, ?cause, ?survivors, "an exec was killed");
        let ending = match cause {
            Cause::Deadline => Ending::TimedOut,
            Cause::Cancel => Ending::Cancelled,
        };
        self.conclude(exit(ending, started.at, Wall::now(), survivors))
            .await
    }

    /// Waits until containerd tells the end, through as many of its restarts as it takes. `None`
    /// when it knows no such exec any more.
    async fn ended(&self) -> Option<(u32, Option<i64>)> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.shared.client.wait(&self.name).await {
                Ok(answer) => {
                    return Some((answer.exit_status, nanos(answer.exited_at.as_ref())));
                }
                Err(error) if error.is(Code::NotFound) => return None,
                Err(error) => debug!(attempt = %self.attempt, %error, "waiting again"),
            }
            // One that does not let us wait may still tell what it knows.
            if let Ok(process) = self.shared.client.get(&self.name).await
                && let Some(Sight::Stopped { status, nanos }) = Sight::of(&process)
            {
                return Some((status, nanos));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The end as the kernel saw it, when containerd hangs or refuses to tell. Never, where the
    /// kernel tells it only to a parent.
    async fn witnessed(&self, started: &Started) -> Exit {
        let seen = async {
            let handle = identity::handle(started, &self.shared.boot_id).ok()??;
            let kept = handle.try_clone().ok()?;
            readable(handle).await.ok()?;
            let finished = Wall::now();
            sleep(UNTOLD).await;
            Some((sys::pidfd_exit(kept.as_fd())?, finished))
        };
        let Some((status, finished)) = seen.await else {
            return std::future::pending().await;
        };
        info!(attempt = %self.attempt, "how an exec ended is told by the kernel");
        let ending = match status {
            WaitStatus::Exited(code) => Ending::Exited(code),
            WaitStatus::Signaled(signal) => Ending::Signaled(signal),
        };
        exit(ending, started.at.min(finished), finished, vec![])
    }

    async fn settle(&self, started: &Started, ended: Option<(u32, Option<i64>)>) -> End {
        match ended {
            Some((status, at)) => self.stopped(started.at, status, at).await,
            None => self.lose(Some(started.clone())).await,
        }
    }

    /// It has ended by itself, or by somebody else's hand.
    pub(crate) async fn stopped(&self, started: Wall, status: u32, at: Option<i64>) -> End {
        let finished = at.map_or_else(Wall::now, Wall);
        self.conclude(exit(
            ending(status),
            started.min(finished),
            finished,
            vec![],
        ))
        .await
    }

    /// Nobody knows how it ended, or whether it ran: what may be left of it dies.
    pub(crate) async fn lose(&self, started: Option<Started>) -> End {
        let leader = started.filter(|started| started.start_time > 0);
        let at = leader.as_ref().map_or_else(Wall::now, |leader| leader.at);
        let survivors = match self.kill(leader).await {
            Ok(survivors) => survivors,
            Err(error) => {
                let problem = error.to_string();
                return End::Unknown { problem };
            }
        };
        warn!(attempt = %self.attempt, ?survivors, "an exec was lost; what it left was killed");
        self.conclude(exit(Ending::Unknown, at, Wall::now(), survivors))
            .await
    }

    async fn kill(&self, leader: Option<Started>) -> Result<Vec<String>, RuntimeError> {
        let (container, attempt) = (self.name.container.clone(), self.attempt.to_string());
        blocking(move || hunt::kill_all(&container, &attempt, leader.as_ref())).await
    }

    /// Records the end, lets containerd forget the exec, and tells the end with its output.
    async fn conclude(&self, exit: Exit) -> End {
        let (traces, record) = (self.traces.clone(), exit.clone());
        match blocking(move || traces.write_exit(&record)).await {
            // containerd keeps it for as long as it is not on disk.
            Err(error) => {
                warn!(attempt = %self.attempt, %error, "the end of an exec cannot be recorded");
            }
            Ok(()) => self.delete().await,
        }
        self.told(exit)
    }

    /// An end that is on disk, with the output.
    pub(crate) fn told(&self, mut exit: Exit) -> End {
        let collected = self.traces.output();
        exit.output = collected.output;
        exit.output_cut = collected.cut;
        report(&exit).map_or(End::Lost, End::Report)
    }

    /// Lets containerd forget it. Tried for a while if containerd is just being restarted.
    pub(crate) async fn delete(&self) {
        let mut pause = FIRST_PAUSE;
        let deleted = timeout(OUTPUT, async {
            loop {
                match self.shared.client.delete(&self.name).await {
                    Err(CallError::Away { .. }) => {}
                    Err(error) if error.is(Code::NotFound) => return Ok(()),
                    other => return other,
                }
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
        match deleted.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(attempt = %self.attempt, %error, "an exec is not deleted"),
            Err(_) => debug!(attempt = %self.attempt, "an exec is not deleted: no answer"),
        }
    }

    /// Nothing of it has run, and nothing will: as if it had never been.
    pub(crate) async fn erase(&self) {
        self.delete().await;
        let traces = self.traces.clone();
        if let Err(error) = blocking(move || traces.remove()).await {
            warn!(attempt = %self.attempt, %error, "the traces of an exec cannot be removed");
        }
    }

    fn in_time(&self, latest: Option<Instant>) -> Result<(), TargetError> {
        if latest.is_some_and(|latest| Instant::now() >= latest) {
            return Err(TargetError::TooLate {
                attempt: self.attempt.clone(),
            });
        }
        Ok(())
    }

    fn not_running(&self) -> TargetError {
        TargetError::NotRunning {
            container: self.container.incarnation.id.clone(),
        }
    }
}

/// Why a command cannot be one.
fn bad_command(command: &[String]) -> Option<String> {
    if command.is_empty() {
        return Some("there is no command to run".to_owned());
    }
    let nul = command.iter().any(|argument| argument.contains('\0'));
    nul.then(|| "an argument contains a NUL byte".to_owned())
}

fn start_error(failure: StartFailure, message: String) -> StartError {
    StartError {
        failure,
        message,
        at: Wall::now(),
    }
}

fn exit(ending: Ending, started: Wall, finished: Wall, survivors: Vec<String>) -> Exit {
    Exit {
        ending,
        started,
        finished,
        survivors,
        output: Vec::new(),
        output_cut: false,
    }
}

/// From containerd's exit status, which is 128 more than the signal when one ended the process. A
/// command that itself exits with such a code, as shells do for their children, looks the same.
fn ending(status: u32) -> Ending {
    match i32::try_from(status) {
        Ok(status @ 129..=192) => Ending::Signaled(status - 128),
        Ok(status) => Ending::Exited(status),
        Err(_) => Ending::Unknown,
    }
}

/// Returns at a moment of boot time.
async fn until(deadline: Boot) {
    let told = match sys::timer(deadline) {
        Ok(timer) => readable(timer).await.is_ok(),
        Err(_) => false,
    };
    if !told {
        // Without a timer of its own the deadline is late by what the machine slept.
        let left = deadline.0.saturating_sub(Boot::now().0).max(0);
        sleep(Duration::from_nanos(left.unsigned_abs())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_status_beyond_128_is_a_signal() {
        assert_eq!(ending(0), Ending::Exited(0));
        assert_eq!(ending(128), Ending::Exited(128));
        assert_eq!(ending(129), Ending::Signaled(1));
        assert_eq!(ending(137), Ending::Signaled(9));
        assert_eq!(ending(192), Ending::Signaled(64));
        assert_eq!(ending(255), Ending::Exited(255));
    }

    #[test]
    fn a_command_must_have_words_without_nul() {
        assert!(bad_command(&[]).is_some());
        assert!(bad_command(&["a\0b".to_owned()]).is_some());
        assert!(bad_command(&["true".to_owned()]).is_none());
    }

    #[tokio::test]
    async fn a_moment_that_has_passed_is_not_waited_for() {
        until(Boot(0)).await;
        until(Boot::now().after(Duration::from_millis(5))).await;
    }
}
