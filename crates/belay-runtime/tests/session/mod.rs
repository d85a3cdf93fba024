//! What holds for sessions on every runtime.

// Every test file takes what it needs.
#![allow(dead_code, unreachable_pub)]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belay_action::{AttemptId, ContainerId};
use belay_runtime::{Session, SessionEnd, SessionError, SessionRequest, Sessions, Size, Streams};
use belay_shim::proc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Far more than anything here takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(90);

/// A runtime and a container that sleeps in it.
pub struct Place<'a> {
    pub runtime: &'a dyn Sessions,
    pub container: ContainerId,
}

/// What came of a session.
#[derive(Debug)]
pub struct Seen {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub end: SessionEnd,
}

pub fn request(script: &str) -> SessionRequest {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    SessionRequest {
        id: AttemptId::new(format!("session-{}-{number}", std::process::id())).unwrap(),
        command: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        stdin: false,
        terminal: None,
    }
}

pub fn on_terminal(script: &str, columns: u16, rows: u16) -> SessionRequest {
    SessionRequest {
        stdin: true,
        terminal: Some(Size { columns, rows }),
        ..request(script)
    }
}

impl Place<'_> {
    pub async fn open(&self, request: &SessionRequest) -> (Session, Streams) {
        let opened = soon(self.runtime.open(&self.container, request)).await;
        opened.unwrap()
    }

    /// Runs a command to its end, with `input` for it to read.
    pub async fn run(&self, request: &SessionRequest, input: Vec<u8>) -> Seen {
        let (session, mut streams) = self.open(request).await;
        let stdin = streams.stdin.take();
        let stderr = streams.stderr.take();
        let write = async {
            if let Some(mut stdin) = stdin {
                // A command need not read all of it.
                tokio::select! {
                    _ = stdin.write_all(&input) => {}
                    _ = session.ended() => {}
                }
                drop(stdin);
                session.close_stdin().await;
            }
        };
        let read_err = async {
            match stderr {
                Some(mut stderr) => read(&mut stderr).await,
                None => Vec::new(),
            }
        };
        let all =
            async { tokio::join!(write, read(&mut streams.stdout), read_err, session.ended()) };
        let ((), stdout, stderr, end) = soon(all).await;
        Seen {
            stdout,
            stderr,
            end,
        }
    }

    pub async fn streams_are_apart_and_the_exit_code_is_told(&self) {
        let script = "echo out; echo err >&2; echo $BELAY_CONTAINER_ID; exit 42";
        let seen = self.run(&request(script), Vec::new()).await;
        assert_eq!(text(&seen.stdout), format!("out\n{}\n", self.container));
        assert_eq!(text(&seen.stderr), "err\n");
        assert_eq!(seen.end, SessionEnd::Exited(42));
    }

    pub async fn without_input_there_is_nothing_to_read(&self) {
        let seen = self.run(&request("cat; echo done"), Vec::new()).await;
        assert_eq!(text(&seen.stdout), "done\n");
    }

    pub async fn megabytes_go_through_both_ways_unchanged(&self) {
        let input: Vec<u8> = (0..4_000_000_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let mut cat = request("cat");
        cat.stdin = true;
        let seen = self.run(&cat, input.clone()).await;
        assert_eq!(seen.end, SessionEnd::Exited(0));
        assert!(seen.stdout == input, "{} bytes", seen.stdout.len());
    }

    pub async fn a_command_need_not_read_its_input(&self) {
        let mut command = request("echo done");
        command.stdin = true;
        let seen = self.run(&command, vec![b'x'; 1_000_000]).await;
        assert_eq!(text(&seen.stdout), "done\n");
        assert_eq!(seen.end, SessionEnd::Exited(0));
    }

    pub async fn a_terminal_has_a_size_that_can_change(&self) {
        let script = "test -t 0 && test -t 1 && test -t 2 && echo a $TERM; stty size; \
                      read line; stty size; echo got $line > /dev/tty";
        let (session, mut streams) = self.open(&on_terminal(script, 80, 24)).await;
        assert!(streams.stderr.is_none());
        let mut shown = String::new();
        show_until(&mut streams, &mut shown, "24 80").await;
        let size = Size {
            columns: 132,
            rows: 43,
        };
        session.resize(size).await.unwrap();
        let stdin = streams.stdin.as_mut().unwrap();
        stdin.write_all(b"hello\r").await.unwrap();
        show_until(&mut streams, &mut shown, "got hello").await;
        assert!(shown.contains("a xterm"), "{shown}");
        assert!(shown.contains("43 132"), "{shown}");
        assert_eq!(soon(session.ended()).await, SessionEnd::Exited(0));
    }

    pub async fn a_typed_interrupt_reaches_the_command(&self) {
        let script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.1; done";
        let (session, mut streams) = self.open(&on_terminal(script, 80, 24)).await;
        let mut shown = String::new();
        show_until(&mut streams, &mut shown, "ready").await;
        let stdin = streams.stdin.as_mut().unwrap();
        stdin.write_all(&[3]).await.unwrap();
        show_until(&mut streams, &mut shown, "caught").await;
        assert_eq!(soon(session.ended()).await, SessionEnd::Exited(7));
    }

    pub async fn what_is_killed_or_dropped_leaves_nothing(&self) {
        for terminal in [false, true] {
            for drops in [false, true] {
                let seconds = unique_seconds();
                let script = format!(
                    "trap '' HUP TERM; setsid sleep {seconds} & (setsid sleep {seconds} &) ; \
                     echo ready; sleep {seconds}"
                );
                let request = if terminal {
                    on_terminal(&script, 80, 24)
                } else {
                    request(&script)
                };
                let (session, mut streams) = self.open(&request).await;
                show_until(&mut streams, &mut String::new(), "ready").await;
                until("all of it runs", || with_argument(&seconds).len() == 3).await;
                if drops {
                    drop(session);
                } else {
                    let survivors = vec![];
                    let end = soon(session.kill()).await;
                    assert_eq!(end, SessionEnd::Killed { survivors });
                    assert!(with_argument(&seconds).is_empty());
                }
                until("nothing of it runs", || with_argument(&seconds).is_empty()).await;
            }
        }
    }

    pub async fn what_ends_because_it_is_let_go_of_leaves_nothing(&self) {
        let seconds = unique_seconds();
        let script = format!(
            "setsid sleep {seconds} > /dev/null 2>&1 < /dev/null & echo ready; read line; exit 0"
        );
        let mut reader = request(&script);
        reader.stdin = true;
        let (session, mut streams) = self.open(&reader).await;
        show_until(&mut streams, &mut String::new(), "ready").await;
        until("all of it runs", || with_argument(&seconds).len() == 1).await;
        drop(streams);
        // Nobody here comes to follow it while it ends.
        std::thread::sleep(Duration::from_millis(500));
        drop(session);
        until("nothing of it runs", || with_argument(&seconds).is_empty()).await;
    }

    pub async fn a_command_that_drops_its_environment_is_killed_as_any_other(&self) {
        for drops in [false, true] {
            let seconds = unique_seconds();
            let mut request = request("");
            request.command = ["/bin/env", "-i", "/bin/sleep", &seconds]
                .map(str::to_owned)
                .to_vec();
            let (session, _streams) = self.open(&request).await;
            until("it runs", || with_argument(&seconds).len() == 1).await;
            if drops {
                drop(session);
            } else {
                let survivors = vec![];
                let end = soon(session.kill()).await;
                assert_eq!(end, SessionEnd::Killed { survivors });
            }
            until("it does not run", || with_argument(&seconds).is_empty()).await;
        }
    }

    pub async fn what_a_command_leaves_running_is_the_containers(&self) {
        let seconds = unique_seconds();
        let script = format!("setsid sleep {seconds} > /dev/null 2>&1 < /dev/null & exit 0");
        let seen = self.run(&request(&script), Vec::new()).await;
        assert_eq!(seen.end, SessionEnd::Exited(0));
        until("it runs", || with_argument(&seconds).len() == 1).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let left = with_argument(&seconds);
        assert_eq!(left.len(), 1);
        let pid = rustix::process::Pid::from_raw(left[0]).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    pub async fn a_command_that_is_not_there_is_named(&self) {
        let mut command = request("");
        command.command = vec!["belay-no-such-command".to_owned()];
        for command in [command, {
            let mut empty = request("");
            empty.command = Vec::new();
            empty
        }] {
            match soon(self.runtime.open(&self.container, &command)).await {
                Err(SessionError::Command { message }) => {
                    let named = message.contains("belay-no-such-command");
                    assert!(named || message.contains("no command"), "{message}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub async fn many_at_once_do_not_mix(&self) {
        let one = async |number: usize| {
            let mut cat = request("cat; echo $BELAY_ATTEMPT_ID >&2");
            cat.stdin = true;
            let input = format!("{number}\n").repeat(20_000).into_bytes();
            let seen = self.run(&cat, input.clone()).await;
            assert!(seen.stdout == input, "{number}");
            assert_eq!(text(&seen.stderr), format!("{}\n", cat.id));
        };
        futures_join((0..12).map(one)).await;
    }
}

/// Runs all of them at the same time.
async fn futures_join<F: Future<Output = ()>>(all: impl Iterator<Item = F>) {
    let mut open: Vec<_> = all.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        open.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if open.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// Reads to the end. A terminal that is gone ends with an error.
pub async fn read(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all).await;
    all
}

pub async fn show_until(streams: &mut Streams, shown: &mut String, wanted: &str) {
    let show = async {
        let mut chunk = [0; 4096];
        while !shown.contains(wanted) {
            let length = streams.stdout.read(&mut chunk).await.unwrap_or(0);
            assert!(length > 0, "it ended after {shown:?}");
            shown.push_str(&String::from_utf8_lossy(&chunk[..length]));
        }
    };
    tokio::time::timeout(LONG, show)
        .await
        .unwrap_or_else(|_| panic!("waited for {wanted:?}"));
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// For `sleep` to be found by.
pub fn unique_seconds() -> String {
    belay_testkit::processes::unique_seconds()
}

pub fn with_argument(argument: &str) -> Vec<i32> {
    let all = proc::snapshot().unwrap();
    all.into_iter()
        .filter(|process| !process.is_dead() && process.comm == "sleep")
        .filter(|process| {
            let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
            line.split(|byte| *byte == 0)
                .any(|arg| arg == argument.as_bytes())
        })
        .map(|process| process.pid)
        .collect()
}

pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LONG, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("it hangs")
}
