//! Talking with a shim until its instance has come to something.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use belay_shim::control;
use belay_shim::instance::{self, Exit, StartError, Started};
use belay_shim::record::{Record, RecordError, take_message};
use belay_shim::sys::{self, Pid};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::standing::{Instance, Standing};
use crate::RuntimeError;

/// How long a shim may hold its lock without being reached. One on its way up takes milliseconds;
/// one in the middle of killing a stubborn tree takes seconds, but can be connected to.
pub(super) const SILENCE: Duration = Duration::from_secs(20);

/// How long a shim may take to kill what it was asked to kill. One that is stopped or stuck is
/// killed itself then; what it leaves is found by its marks.
const OBEDIENCE: Duration = Duration::from_secs(10);

/// What a shim, or what it left behind, says.
#[derive(Debug)]
pub(crate) enum Told {
    Ended(Exit),
    /// The first process has ended, and the rest is being killed. Told only where it is wanted.
    FirstEnded,
    Failed(StartError),
    /// It was killed as asked, and its first process would not die.
    Unkillable(Vec<String>),
    NeverStarted,
    Abandoned(Option<Started>),
    /// There is no such instance (any more).
    Gone,
}

/// A conversation about one instance, taken up again as often as the connection breaks.
#[derive(Debug)]
pub(crate) struct Talk {
    instance: Instance,
    same_boot: bool,
    link: Option<Link>,
    /// When it was asked to kill.
    kill: Option<Instant>,
    first: bool,
}

impl Talk {
    pub(crate) fn new(instance: Instance, same_boot: bool) -> Self {
        Talk {
            instance,
            same_boot,
            link: None,
            kill: None,
            first: false,
        }
    }

    /// Goes on with the stream that a shim was started with.
    pub(crate) fn over(mut self, link: Link) -> Self {
        self.link = Some(link);
        self
    }

    /// Wants to be told of the first process's end as well.
    pub(crate) fn of_first(mut self) -> Self {
        self.first = true;
        self
    }

    /// Asks to kill, now if there is a connection and otherwise as soon as there is one.
    pub(crate) async fn ask_to_kill(&mut self) {
        self.kill.get_or_insert_with(Instant::now);
        if let Some(link) = &mut self.link
            && link.send(control::KILL).await.is_err()
        {
            self.link = None;
        }
    }

    /// Waits for what comes of the instance. Cancel-safe.
    pub(crate) async fn told(&mut self) -> Result<Told, RuntimeError> {
        let mut pause = Duration::from_millis(1);
        let mut heard = Instant::now();
        let mut connected = false;
        loop {
            if let Some(link) = &mut self.link {
                let begin = Instant::now();
                let patience = self.kill.map(|asked| asked + OBEDIENCE);
                let next = tokio::select! {
                    next = link.next() => next,
                    () = overdue(patience) => {
                        // Its lock is held, so the process that listens is the shim.
                        self.instance.kill_shim().await;
                        self.kill = Some(Instant::now());
                        continue;
                    }
                };
                match next {
                    // It could not see whom to kill, and nobody else is asked.
                    Ok(Some(record)) if record.kind == control::ERROR && self.kill.is_some() => {
                        self.ask_to_kill().await;
                        continue;
                    }
                    Ok(Some(record)) => match understand(&record) {
                        Ok(Some(Told::FirstEnded)) if !self.first => continue,
                        Ok(Some(told)) => return Ok(told),
                        // Something that a newer shim says besides.
                        Ok(None) => continue,
                        Err(error) => {
                            let socket = self.instance.dir.join(instance::CONTROL);
                            return Err(RuntimeError::damaged(&socket)(error));
                        }
                    },
                    Ok(None) | Err(_) => {
                        self.link = None;
                        if begin.elapsed() > Duration::from_secs(1) {
                            heard = Instant::now();
                        }
                    }
                }
            }
            match self.instance.standing(self.same_boot)? {
                None => return Ok(Told::Gone),
                Some(Standing::Ended(exit)) => return Ok(Told::Ended(exit)),
                Some(Standing::Failed(error)) => return Ok(Told::Failed(error)),
                Some(Standing::NeverStarted) => return Ok(Told::NeverStarted),
                Some(Standing::Abandoned(started)) => return Ok(Told::Abandoned(started)),
                // The first time at once, later with a pause before every try.
                Some(Standing::Running(_)) if !connected => {
                    connected = true;
                    self.link = self.connect().await.ok();
                    continue;
                }
                Some(Standing::Running(_) | Standing::Coming) => connected = false,
            }
            if heard.elapsed() > SILENCE {
                return Err(RuntimeError::Silent {
                    dir: self.instance.dir.clone(),
                });
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(50));
        }
    }

    async fn connect(&self) -> io::Result<Link> {
        let mut link = Link::connect(&self.instance).await?;
        link.send(control::WAIT).await?;
        if self.kill.is_some() {
            link.send(control::KILL).await?;
        }
        Ok(link)
    }
}

async fn overdue(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// `None` for a message that is not about the end.
fn understand(record: &Record) -> Result<Option<Told>, RecordError> {
    match record.kind.as_str() {
        Exit::KIND => Exit::from_record(record).map(|exit| Some(Told::Ended(exit))),
        StartError::KIND => StartError::from_record(record).map(|error| Some(Told::Failed(error))),
        control::ENDED => Ok(Some(Told::FirstEnded)),
        control::KILLED => {
            let survivors = record
                .all("survivor")
                .map(|s| String::from_utf8_lossy(s).into_owned());
            Ok(Some(Told::Unkillable(survivors.collect())))
        }
        _ => Ok(None),
    }
}

impl Instance {
    /// Ends a shim that no longer does what it is asked. Its first process dies with it.
    pub(super) async fn kill_shim(&self) {
        let link = Link::connect(self).await;
        let Some(pid) = link.ok().and_then(|link| link.peer()) else {
            return;
        };
        let killed = sys::pidfd_open(pid).and_then(|shim| {
            // Whoever is about to become the first process may listen in the place of a shim that is
            // dead, and whose number may be another's by now.
            if !self.is_shim(pid) {
                return Ok(());
            }
            warn!(dir = %self.dir.display(), "the shim does not obey; killing it");
            sys::pidfd_send_signal(shim.as_fd(), Signal::KILL.as_raw())
        });
        if let Err(error) = killed {
            warn!(%error, "cannot kill the shim");
        }
    }

    /// Whether a process was started as the shim of this instance.
    fn is_shim(&self, pid: Pid) -> bool {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut arguments = arguments.split(|byte| *byte == 0).skip(2);
        let name = self.dir.file_name().unwrap_or_default();
        arguments.next() == Some(name.as_encoded_bytes())
    }
}

/// A connection to a shim.
#[derive(Debug)]
pub(crate) struct Link {
    stream: UnixStream,
    incoming: Vec<u8>,
}

impl Link {
    pub(crate) fn from_std(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Link {
            stream: UnixStream::from_std(stream)?,
            incoming: Vec::new(),
        })
    }

    /// Through a descriptor of the directory: the path itself may be longer than a socket's
    /// address can be.
    async fn connect(instance: &Instance) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&instance.dir, flags, Mode::empty())?;
        let path = format!("/proc/self/fd/{}/{}", dir.as_raw_fd(), instance::CONTROL);
        Ok(Link {
            stream: UnixStream::connect(path).await?,
            incoming: Vec::new(),
        })
    }

    /// The process that listens at the other end.
    fn peer(&self) -> Option<Pid> {
        self.stream.peer_cred().ok()?.pid()
    }

    async fn send(&mut self, kind: &str) -> io::Result<()> {
        let frame = Record::new(kind).frame().map_err(io::Error::other)?;
        self.stream.write_all(&frame).await
    }

    /// What came of the start, which is the first that a shim says; `None` when it has died or keeps
    /// silent.
    pub(crate) async fn first(&mut self, patience: Duration) -> Option<Record> {
        timeout(patience, self.next()).await.ok()?.ok()?
    }

    /// The next message; `None` when the shim has closed the connection. Cancel-safe: what has
    /// arrived stays here.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Record>> {
        loop {
            if let Some(message) = take_message(&mut self.incoming)? {
                return Ok(Some(message));
            }
            if self.stream.read_buf(&mut self.incoming).await? == 0 {
                return Ok(None);
            }
        }
    }
}
