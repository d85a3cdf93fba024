//! The shim's life: take over, start, watch, end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::clock::{Boot, Wall};
use crate::collect;
use crate::control::{self, Control};
use crate::gate;
use crate::instance::{self, Durable, Ending, Exit, StartError, StartFailure, Started};
use crate::kill;
use crate::mounts;
use crate::output::Output;
use crate::pause;
use crate::phase::{self, Effect, Event, Phase, Role};
use crate::proc::{self, Membership, Process};
use crate::record::{Record, VERSION};
use crate::session;
use crate::spawn::{self, failed};
use crate::spec::{Kind, Spec};
use crate::sys::{self, Fork, Heard, Pid, Reaped, Watched};

/// How often an end that could not be written (a full disk) is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The instance's directory: a shim lives in it.
const HERE: &str = ".";
/// The directory of an exec's container, seen from the exec's.
const CONTAINER: &str = "../..";

/// The program. Started by the agent with the instance's directory as working directory, the held
/// lock as standard input and one end of a socket pair as standard output; with `output DIR` it
/// does something smaller, see [`collect`].
pub fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let mode = arguments.next().unwrap_or_default();
    let mode = mode.to_string_lossy();
    if mode == "pause" {
        return pause::main();
    }
    if let ("output", Some(dir)) = (&*mode, arguments.next()) {
        return collect::main(Path::new(&dir));
    }
    if !matches!(&*mode, "container" | "exec" | "session") {
        println!("{VERSION}: supervises a container for belay, which starts it by itself");
        return if mode == "--version" {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(2)
        };
    }
    match take_over(mode == "session") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Leaves the agent's family, and goes on in a process of its own.
fn take_over(session: bool) -> io::Result<()> {
    sys::close_inherited();
    let limit = std::env::var(sys::OPEN_FILES).ok();
    if let Some(limit) = limit.and_then(|limit| limit.parse().ok()) {
        sys::limit_open_files(limit)?;
    }
    let lock = sys::adopt(0)?;
    let link = UnixStream::from(sys::adopt(1)?);
    if let Fork::Parent { .. } = sys::fork()? {
        sys::exit_now(0);
    }
    sys::setsid()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for standard in 0..=2 {
        sys::duplicate_onto(null.as_fd(), standard)?;
    }
    drop(null);
    let signals = sys::take_signals(&[Heard::ChildEnded])?;
    sys::become_subreaper()?;
    run(link, signals);
    if session && let Ok(here) = std::env::current_dir() {
        // Nobody asks later what became of a session. What is left goes with the container.
        let _ = std::fs::remove_dir_all(here);
    }
    // Held to the very end.
    drop(lock);
    Ok(())
}

fn run(mut link: UnixStream, signals: OwnedFd) {
    match begin() {
        Ok(begun) => {
            // The agent may be gone already; a later one reads the file.
            let _ = begun.started.to_record().send(&mut link);
            match Control::new(begun.listener, link) {
                Ok(control) => {
                    Supervisor::new(
                        begun.spec,
                        &begun.started,
                        begun.output,
                        control,
                        signals,
                        begun.timer,
                    )
                    .supervise();
                }
                // The first process dies with us.
                Err(_) => return,
            }
        }
        Err(error) => {
            let record = error.to_record();
            if let Ok(bytes) = record.encode() {
                let _ =
                    instance::write(Path::new(HERE), instance::START_ERROR, &bytes, Durable::No);
            }
            let _ = record.send(&mut link);
        }
    }
    let _ = std::fs::remove_file(instance::CONTROL);
}

/// A first process that runs, and what it takes to supervise it.
struct Begun {
    spec: Spec,
    started: Started,
    output: Output,
    listener: UnixListener,
    timer: Option<OwnedFd>,
}

fn begin() -> Result<Begun, StartError> {
    let here = Path::new(HERE);
    let system = |what: &'static str| {
        move |error: io::Error| failed(StartFailure::System, format!("{what}: {error}"))
    };
    let spec = read_spec(here).map_err(system("cannot read what to run"))?;
    let boot_id = proc::boot_id().map_err(system("cannot read the boot ID"))?;
    if boot_id != spec.boot_id {
        return Err(failed(
            StartFailure::System,
            "it was meant for an earlier boot".to_owned(),
        ));
    }
    // One from a shim that died before it began.
    let _ = std::fs::remove_file(instance::CONTROL);
    let listener =
        UnixListener::bind(instance::CONTROL).map_err(system("cannot listen for the agent"))?;
    let (output, ends) = match &spec.kind {
        Kind::Container { log } => Output::log(log)
            .map_err(|e| failed(StartFailure::System, format!("log {}: {e}", log.display())))?,
        Kind::Exec { .. } => Output::tail().map_err(system("cannot make a pipe"))?,
        Kind::Session {
            terminal, stdin, ..
        } => {
            let ends = session::open(here, &spec, terminal.as_deref(), *stdin)
                .map_err(system("cannot open the session's streams"))?;
            (Output::elsewhere(), ends)
        }
    };
    let pass = match &spec.kind {
        Kind::Container { .. } => None,
        Kind::Exec { .. } | Kind::Session { .. } => match gate::enter(Path::new(CONTAINER)) {
            Ok(Some(pass)) => Some(pass),
            Ok(None) => {
                return Err(failed(
                    StartFailure::ContainerEnded,
                    "the container has ended".to_owned(),
                ));
            }
            Err(error) => return Err(system("cannot enter the container")(error)),
        },
    };
    let joined = match spec.joins_mounts {
        false => None,
        true => match mounts::of_container(Path::new(CONTAINER)) {
            Ok(Some(mounts)) => Some(mounts),
            Ok(None) => {
                return Err(failed(
                    StartFailure::ContainerEnded,
                    "the container has ended".to_owned(),
                ));
            }
            Err(error) => return Err(system("cannot find the container's mounts")(error)),
        },
    };
    instance::write(here, instance::STARTING, b"", Durable::No)
        .map_err(system("cannot mark the start"))?;
    let end = || {
        let _ = kill::kill_members(&membership(&spec, 0), kill::PATIENCE, &mut || {
            while let Reaped::Ended(..) = sys::reap() {}
        });
    };
    let pid = spawn::start(&spec, &ends, joined.as_ref(), &end)?;
    drop((ends, pass, joined));
    let deadline = match &spec.kind {
        Kind::Container { .. } | Kind::Session { .. } => None,
        Kind::Exec { timeout, .. } => Some(Boot::now().after(*timeout)),
    };
    let record = || -> io::Result<(Started, Option<OwnedFd>)> {
        let timer = deadline.map(sys::timer).transpose()?;
        // Not reaped yet, so it is there even if it has ended.
        let process = Process::read(pid)?.ok_or_else(|| io::Error::other("/proc has no entry"))?;
        let start_time = process.start_time;
        let started = Started {
            pid,
            start_time,
            boot_id,
            at: Wall::now(),
            deadline,
        };
        let bytes = started.to_record().encode().map_err(io::Error::other)?;
        instance::write(here, instance::STARTED, &bytes, durable(&spec.kind))?;
        Ok((started, timer))
    };
    match record() {
        Ok((started, timer)) => Ok(Begun {
            spec,
            started,
            output,
            listener,
            timer,
        }),
        Err(error) => {
            // What cannot be recorded must not run.
            end();
            Err(system(
                "started, and killed because it could not be recorded",
            )(error))
        }
    }
}

fn read_spec(dir: &Path) -> io::Result<Spec> {
    let record = instance::read(dir, instance::SPEC)?
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?
        .map_err(io::Error::other)?;
    Spec::from_record(&record).map_err(io::Error::other)
}

fn durable(kind: &Kind) -> Durable {
    match kind {
        Kind::Container { .. } => Durable::Yes,
        Kind::Exec { .. } | Kind::Session { .. } => Durable::No,
    }
}

/// What dies with the instance.
fn membership(spec: &Spec, not_before: u64) -> Membership {
    let descendants_of = Pid::try_from(std::process::id()).ok();
    match &spec.kind {
        Kind::Container { .. } => Membership {
            descendants_of,
            marks: vec![(proc::CONTAINER_MARK, spec.container.clone())],
            execs_of: Some(spec.container.clone()),
            not_before,
        },
        Kind::Exec { attempt, .. }
        | Kind::Session {
            session: attempt, ..
        } => Membership {
            descendants_of,
            marks: vec![
                (proc::CONTAINER_MARK, spec.container.clone()),
                (proc::ATTEMPT_MARK, attempt.clone()),
            ],
            execs_of: None,
            not_before,
        },
    }
}

/// [`kill::kill_members`], or what a test has in its place.
type Kill = fn(&Membership, Duration, &mut dyn FnMut()) -> io::Result<Vec<String>>;

struct Supervisor {
    spec: Spec,
    role: Role,
    phase: Phase,
    first: Pid,
    started: Wall,
    output: Output,
    control: Control,
    signals: OwnedFd,
    timer: Option<OwnedFd>,
    members: Membership,
    kill: Kill,
    events: VecDeque<Event>,
    first_ended: Option<Wall>,
    survivors: Vec<String>,
    end: Option<Record>,
    unsaved: bool,
}

impl Supervisor {
    fn new(
        spec: Spec,
        started: &Started,
        output: Output,
        control: Control,
        signals: OwnedFd,
        timer: Option<OwnedFd>,
    ) -> Self {
        let role = match spec.kind {
            Kind::Container { .. } => Role::Container,
            Kind::Exec { .. } => Role::Exec,
            Kind::Session { .. } => Role::Session,
        };
        let members = membership(&spec, started.start_time);
        Supervisor {
            spec,
            role,
            phase: Phase::Running,
            first: started.pid,
            started: started.at,
            output,
            control,
            signals,
            timer,
            members,
            kill: kill::kill_members,
            events: VecDeque::new(),
            first_ended: None,
            survivors: Vec::new(),
            end: None,
            unsaved: false,
        }
    }

    fn supervise(mut self) {
        while self.phase != Phase::Done || self.unsaved {
            let deadline = match self.wait() {
                Ok(deadline) => deadline,
                // Nothing can be watched any more, which no kernel is known to do to us; better
                // ended, with the first process, than blind.
                Err(_) => return,
            };
            // Ends first: one that has happened beats a deadline that passed meanwhile.
            self.reap();
            if deadline {
                self.timer = None;
                self.events.push_back(Event::DeadlinePassed);
            }
            self.output.read();
            self.control.accept();
            if self.control.read(self.end.as_ref()) {
                self.events.push_back(Event::KillAsked);
            }
            if !self.control.has_starter() {
                // Before an end: what ends at the same time may have lost its terminal or its
                // input with its agent.
                self.events.push_front(Event::AgentGone);
            }
            while let Some(event) = self.events.pop_front() {
                self.act(event);
            }
            if self.unsaved {
                self.save();
            }
        }
        // Whoever connected at the last moment.
        self.control.accept();
        if let Some(end) = &self.end {
            self.control.tell_all(end);
        }
    }

    /// Takes the next step.
    fn act(&mut self, event: Event) {
        let before = self.phase;
        let (phase, effects) = phase::step(self.role, before, event);
        self.phase = phase;
        for effect in effects {
            let Err(error) = self.carry_out(effect) else {
                continue;
            };
            if event == Event::KillAsked && self.first_ended.is_none() {
                // Nobody may have been killed: as if it had not been asked for. Whoever has asked
                // asks again.
                self.phase = before;
                let answer = Record::new(control::ERROR).with("message", error.to_string());
                self.control.tell_killers(&answer);
                return;
            }
            // Nobody stands behind a shim who would try again.
            self.survivors = vec![format!("unknown: the processes cannot be seen: {error}")];
        }
    }

    /// Waits for anything to happen. True when the deadline has passed.
    fn wait(&mut self) -> io::Result<bool> {
        let mut watched = vec![Watched::new(self.signals.as_fd())];
        watched.extend(self.timer.as_ref().map(|timer| Watched::new(timer.as_fd())));
        watched.extend(self.output.watched().into_iter().map(Watched::new));
        watched.extend(self.control.watched().into_iter().map(Watched::new));
        sys::poll(&mut watched, self.unsaved.then_some(RETRY))?;
        let deadline = self.timer.is_some() && watched[1].ready;
        if watched[0].ready {
            // The content does not matter: one signal stands for any number of children.
            let mut discard = [0; 1024];
            let mut signals = File::from(self.signals.try_clone()?);
            let _ = signals.read(&mut discard);
        }
        Ok(deadline)
    }

    fn reap(&mut self) {
        loop {
            match sys::reap() {
                Reaped::Ended(pid, status) if pid == self.first && self.first_ended.is_none() => {
                    self.first_ended = Some(Wall::now());
                    self.events.push_back(Event::FirstEnded(status));
                }
                Reaped::Ended(..) => {}
                Reaped::NoneYet => return,
                Reaped::NoChildren => {
                    self.events.push_back(Event::AllGone);
                    return;
                }
            }
        }
    }

    /// Does something. An error says that nobody could be looked at in order to be killed.
    fn carry_out(&mut self, effect: Effect) -> io::Result<()> {
        match effect {
            Effect::Announce => self.control.tell_all(&Record::new(control::ENDED)),
            Effect::CloseGate => {
                // Without the mark a late exec is still found by its environment.
                let _ = gate::close(Path::new(HERE));
            }
            Effect::KillAll => {
                let members = self.members.clone();
                let kill = self.kill;
                self.survivors = kill(&members, kill::PATIENCE, &mut || self.reap())?;
            }
            Effect::Finish(ending) => self.finish(ending),
            Effect::AnswerKill => self.answer_kill(),
        }
        Ok(())
    }

    fn finish(&mut self, ending: Ending) {
        let finished = self.first_ended.unwrap_or_else(Wall::now);
        self.timer = None;
        self.output.drain();
        self.output.finish_lines();
        let (output, output_cut) = self.output.contents();
        let exit = Exit {
            ending,
            started: self.started,
            finished,
            survivors: self.survivors.clone(),
            output,
            output_cut,
        };
        let end = exit.to_record();
        self.end = Some(end.clone());
        self.save();
        self.control.tell_all(&end);
    }

    /// Writes the end down, except that of a session, which nobody asks for later. A full disk is tried again until there is room or the agent, which
    /// was told in any case, has removed the directory.
    fn save(&mut self) {
        if self.role == Role::Session {
            return;
        }
        let Some(bytes) = self.end.as_ref().and_then(|end| end.encode().ok()) else {
            return;
        };
        let here = Path::new(HERE);
        let result = instance::write(here, instance::EXIT, &bytes, durable(&self.spec.kind));
        self.unsaved = result.is_err_and(|error| error.kind() != io::ErrorKind::NotFound);
    }

    fn answer_kill(&mut self) {
        if let Some(end) = &self.end {
            self.control.tell_killers(end);
        } else if self.first_ended.is_none() {
            let mut answer = Record::new(control::KILLED);
            for survivor in &self.survivors {
                answer = answer.with("survivor", survivor.replace('\0', " "));
            }
            self.control.tell_killers(&answer);
        }
    }
}

#[cfg(test)]
mod tests;
