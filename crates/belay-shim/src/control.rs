//! Those who talk to a shim: the agent that started it, and any that comes later.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::record::{Record, take_message};

/// Told to all as soon as a container's first process has ended; the end itself follows when
/// everything else is dead.
pub const ENDED: &str = "ended";
/// A message that asks to be told the end.
pub const WAIT: &str = "wait";
/// A message that asks to kill everything that belongs to the instance.
pub const KILL: &str = "kill";
/// The answer to [`KILL`] when the first process could not be killed; names the survivors.
pub const KILLED: &str = "killed";
/// The answer to a message that is not understood.
pub const ERROR: &str = "error";

/// One agent with a question for every action that it may run at once, and some to spare.
const MAX_CLIENTS: usize = 128;

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    incoming: Vec<u8>,
    asked_to_kill: bool,
    /// It started the shim.
    starter: bool,
}

/// The listening socket and everybody connected.
#[derive(Debug)]
pub(crate) struct Control {
    listener: UnixListener,
    clients: Vec<Client>,
}

impl Control {
    /// Serves `listener`, and `first`, the stream that the shim was born with.
    pub(crate) fn new(listener: UnixListener, first: UnixStream) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut control = Control {
            listener,
            clients: Vec::new(),
        };
        control.add(first, true);
        Ok(control)
    }

    fn add(&mut self, stream: UnixStream, starter: bool) {
        if self.clients.len() < MAX_CLIENTS && stream.set_nonblocking(true).is_ok() {
            self.clients.push(Client {
                stream,
                incoming: Vec::new(),
                asked_to_kill: false,
                starter,
            });
        }
    }

    /// Whether the one who started the shim is still connected.
    pub(crate) fn has_starter(&self) -> bool {
        self.clients.iter().any(|client| client.starter)
    }

    /// The descriptors to watch.
    pub(crate) fn watched(&self) -> Vec<BorrowedFd<'_>> {
        let clients = self.clients.iter().map(|client| client.stream.as_fd());
        [self.listener.as_fd()].into_iter().chain(clients).collect()
    }

    /// Takes in whoever knocks.
    pub(crate) fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            self.add(stream, false);
        }
    }

    /// Reads what has arrived. `end` is the answer to a question about the end, once it is known.
    /// True when somebody asked to kill.
    pub(crate) fn read(&mut self, end: Option<&Record>) -> bool {
        let mut kill = false;
        self.clients
            .retain_mut(|client| client.read(end, &mut kill));
        kill
    }

    /// Tells everybody: those who did not ask yet connected in order to.
    pub(crate) fn tell_all(&mut self, news: &Record) {
        self.clients.retain_mut(|client| client.send(news));
    }

    /// Answers those who asked to kill.
    pub(crate) fn tell_killers(&mut self, answer: &Record) {
        self.clients
            .retain_mut(|client| !std::mem::take(&mut client.asked_to_kill) || client.send(answer));
    }
}

impl Client {
    /// False when the client is gone or talks nonsense.
    fn read(&mut self, end: Option<&Record>, kill: &mut bool) -> bool {
        let mut chunk = [0; 512];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(length) => self.incoming.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
            loop {
                match take_message(&mut self.incoming) {
                    Ok(None) => break,
                    Ok(Some(message)) if message.kind == WAIT => {
                        if end.is_some_and(|end| !self.send(end)) {
                            return false;
                        }
                    }
                    Ok(Some(message)) if message.kind == KILL => {
                        self.asked_to_kill = true;
                        *kill = true;
                    }
                    Ok(Some(message)) => {
                        let answer = Record::new(ERROR).with("unknown", message.kind);
                        if !self.send(&answer) {
                            return false;
                        }
                    }
                    Err(error) => {
                        self.send(&Record::new(ERROR).with("message", error.to_string()));
                        return false;
                    }
                }
            }
        }
    }

    /// Whether it could be sent. An answer is far smaller than a socket's buffer: a client that
    /// has no room for it does not read, and is let go.
    fn send(&mut self, record: &Record) -> bool {
        record
            .frame()
            .is_ok_and(|frame| self.stream.write_all(&frame).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn control() -> (tempfile::TempDir, Control, UnixStream) {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("control")).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        (dir, Control::new(listener, theirs).unwrap(), ours)
    }

    #[test]
    fn a_question_about_a_known_end_is_answered_at_once() {
        let (_dir, mut control, mut agent) = control();
        Record::new(WAIT).send(&mut agent).unwrap();
        assert!(!control.read(Some(&Record::new("exit"))));
        assert_eq!(Record::receive(&mut agent).unwrap().kind, "exit");
    }

    #[test]
    fn only_those_who_asked_to_kill_are_answered() {
        let (dir, mut control, mut agent) = control();
        let mut other = UnixStream::connect(dir.path().join("control")).unwrap();
        control.accept();
        Record::new(KILL).send(&mut agent).unwrap();
        assert!(control.read(None));
        control.tell_killers(&Record::new(KILLED));
        assert_eq!(Record::receive(&mut agent).unwrap().kind, KILLED);
        other.set_nonblocking(true).unwrap();
        assert!(Record::receive(&mut other).is_err());
    }

    #[test]
    fn an_unknown_message_is_answered_with_its_name() {
        let (_dir, mut control, mut agent) = control();
        Record::new("dance").send(&mut agent).unwrap();
        control.read(None);
        assert_eq!(
            Record::receive(&mut agent).unwrap().text("unknown"),
            Ok("dance")
        );
    }

    #[test]
    fn a_client_that_left_is_forgotten() {
        let (_dir, mut control, agent) = control();
        drop(agent);
        control.read(None);
        assert_eq!(control.watched().len(), 1);
    }

    proptest! {
        #[test]
        fn rubbish_ends_the_conversation_and_never_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            let (_dir, mut control, mut agent) = control();
            agent.write_all(&bytes).unwrap();
            control.read(None);
        }

        #[test]
        fn messages_arrive_whole_however_they_are_cut(cut in 1usize..60) {
            let mut frames = Record::new(WAIT).frame().unwrap();
            frames.extend(Record::new(KILL).with("x", "y").frame().unwrap());
            let mut incoming = Vec::new();
            let mut kinds = Vec::new();
            for chunk in frames.chunks(cut) {
                incoming.extend_from_slice(chunk);
                while let Some(message) = take_message(&mut incoming).unwrap() {
                    kinds.push(message.kind);
                }
            }
            prop_assert_eq!(kinds, [WAIT, KILL]);
        }
    }
}
