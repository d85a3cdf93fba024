//! One session, from the upgraded connection to its close.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use belay_action::{AttemptId, ContainerId};
use belay_runtime::{Session, SessionEnd, SessionRequest, Size, Streams};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::channels::{self, STATUS, STDERR, STDOUT, Said};
use super::handshake::Protocol;
use super::options::Options;
use super::status;
use crate::context::Host;

/// How long a client may take to say how large its terminal is. Those that know say so at once.
const SIZE: Duration = Duration::from_millis(250);
/// More words of a client than this do not wait for its size.
const EARLY: usize = 64;
/// How often the client is asked whether it is there. One that is gone, while nothing can be written
/// to a command that does not read, is noticed in no other way.
const PING: Duration = Duration::from_secs(5);
/// How long after the end of a command its output may be silent before it is complete. Usually it
/// ends; it does not when the command left something running that has it open.
const SILENCE: Duration = Duration::from_secs(2);
/// How long a client may take to say goodbye.
const FAREWELL: Duration = Duration::from_secs(5);
/// The longest message of a client.
const LONGEST: usize = 16 << 20;
/// The longest piece of output.
const PIECE: usize = 32 << 10;

type Connection = WebSocketStream<TokioIo<Upgraded>>;
type Sink = SplitSink<Connection, Message>;

/// What a session is made of before it begins.
pub(super) struct Driver {
    pub(super) context: Arc<Host>,
    pub(super) container: ContainerId,
    /// Of the container, in its pod.
    pub(super) name: String,
    pub(super) id: AttemptId,
    pub(super) options: Options,
    pub(super) protocol: Protocol,
    pub(super) stop: CancellationToken,
}

/// Why a session is over.
#[derive(Debug)]
enum Over {
    Ended(SessionEnd),
    ClientGone,
    Stopping,
}

impl Driver {
    pub(super) async fn run(self, connection: Upgraded) {
        let config = WebSocketConfig::default()
            .max_message_size(Some(LONGEST))
            .max_frame_size(Some(LONGEST));
        let connection = TokioIo::new(connection);
        let connection =
            WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await;
        let (mut sink, stream) = connection.split();
        let mut client = Client {
            stream,
            protocol: self.protocol,
            early: VecDeque::new(),
        };
        let terminal = match self.options.terminal {
            true => Some(client.size().await),
            false => None,
        };
        let request = SessionRequest {
            id: self.id.clone(),
            command: self.options.command.clone(),
            stdin: self.options.stdin,
            terminal,
        };
        let opened = self.context.runtime.open(&self.container, &request).await;
        let (session, streams) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                info!(session = %self.id, container = %self.container, %error, "not begun");
                let status = status::of_error(&error, &self.name);
                return finish(&mut sink, &mut client, &status).await;
            }
        };
        info!(session = %self.id, container = %self.container, "a session began");
        let over = self.drive(&session, streams, &mut sink, &mut client).await;
        let listens = !matches!(over, Over::ClientGone);
        let end = match over {
            Over::Ended(end) => end,
            Over::ClientGone | Over::Stopping => session.kill().await,
        };
        info!(session = %self.id, container = %self.container, ?end, "a session is over");
        // Its terminal and its pipes are not needed while the client says goodbye.
        drop(session);
        if listens {
            finish(&mut sink, &mut client, &status::of_end(&end)).await;
        }
    }

    async fn drive(
        &self,
        session: &Session,
        streams: Streams,
        sink: &mut Sink,
        client: &mut Client,
    ) -> Over {
        let Streams {
            stdin,
            stdout,
            stderr,
        } = streams;
        let stdin = stdin.filter(|_| self.options.stdin);
        let output = Output {
            stdout: Source::new(STDOUT, Some(stdout), self.options.stdout),
            stderr: Source::new(STDERR, stderr, self.options.stderr),
        };
        tokio::select! {
            ended = output.pass_on(session, sink) => ended.map_or(Over::ClientGone, Over::Ended),
            () = client.type_in(session, stdin) => Over::ClientGone,
            () = self.stop.cancelled() => Over::Stopping,
        }
    }
}

/// The client's words.
struct Client {
    stream: SplitStream<Connection>,
    protocol: Protocol,
    /// Heard before anything could be done with it.
    early: VecDeque<Said>,
}

impl Client {
    /// The next that it says; `None` when it is gone.
    async fn next(&mut self) -> Option<Said> {
        if let Some(said) = self.early.pop_front() {
            return Some(said);
        }
        self.hear().await
    }

    async fn hear(&mut self) -> Option<Said> {
        match self.stream.next().await? {
            Ok(message) => match channels::understand(message, self.protocol) {
                Said::Goodbye => None,
                said => Some(said),
            },
            Err(error) => {
                debug!(%error, "a session's client went away");
                None
            }
        }
    }

    /// The size of its terminal, if it says so before long.
    async fn size(&mut self) -> Size {
        let until = Instant::now() + SIZE;
        while self.early.len() < EARLY {
            match tokio::time::timeout_at(until, self.hear()).await {
                Ok(Some(Said::Resize(size))) => return size,
                Ok(Some(said)) => self.early.push_back(said),
                Ok(None) | Err(_) => break,
            }
        }
        Size::default()
    }

    /// Carries out what it says, until it is gone.
    async fn type_in(&mut self, session: &Session, mut stdin: Option<pipe::Sender>) {
        while let Some(said) = self.next().await {
            match said {
                Said::Stdin(data) => {
                    if let Some(pipe) = &mut stdin
                        && pipe.write_all(&data).await.is_err()
                    {
                        // Nobody reads it any more; the command may well go on.
                        stdin = None;
                    }
                }
                Said::StdinClosed => {
                    stdin = None;
                    session.close_stdin().await;
                }
                Said::Resize(size) => {
                    if let Err(error) = session.resize(size).await {
                        debug!(%error, "a terminal keeps its size");
                    }
                }
                Said::Nothing | Said::Goodbye => {}
            }
        }
    }
}

/// One stream of a command.
struct Source {
    channel: u8,
    pipe: Option<pipe::Receiver>,
    /// Read in any case: a command must not wait for somebody who does not want to know.
    wanted: bool,
    buffer: Vec<u8>,
}

impl Source {
    fn new(channel: u8, pipe: Option<pipe::Receiver>, wanted: bool) -> Self {
        Source {
            channel,
            pipe,
            wanted,
            buffer: vec![0; PIECE],
        }
    }

    /// The next message for the client; `None` when the stream has ended. Cancel-safe.
    async fn next(&mut self) -> Option<Message> {
        loop {
            let Some(pipe) = &mut self.pipe else {
                return std::future::pending().await;
            };
            // A terminal that nobody has open any more is an error.
            match pipe.read(&mut self.buffer).await {
                Ok(0) | Err(_) => {
                    self.pipe = None;
                    return None;
                }
                Ok(length) if self.wanted => {
                    return Some(channels::message(self.channel, &self.buffer[..length]));
                }
                Ok(_) => {}
            }
        }
    }
}

struct Output {
    stdout: Source,
    stderr: Source,
}

impl Output {
    /// Sends what the command writes until it has ended and all was said. `None` when nothing can be
    /// sent any more.
    async fn pass_on(mut self, session: &Session, sink: &mut Sink) -> Option<SessionEnd> {
        let mut ended = None;
        let mut ping = interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let open = self.stdout.pipe.is_some() || self.stderr.pipe.is_some();
            if let Some(end) = ended.take_if(|_| !open) {
                return Some(end);
            }
            let message = tokio::select! {
                // What was said before the end is sent before it.
                biased;
                message = self.stdout.next() => message,
                message = self.stderr.next() => message,
                end = session.ended(), if ended.is_none() => {
                    ended = Some(end);
                    None
                }
                _ = ping.tick() => Some(Message::Ping(bytes::Bytes::new())),
                () = sleep(SILENCE), if ended.is_some() => return ended,
            };
            if let Some(message) = message
                && sink.send(message).await.is_err()
            {
                return None;
            }
        }
    }
}

/// Says how it ended, and goodbye.
async fn finish(sink: &mut Sink, client: &mut Client, status: &Value) {
    let last = async {
        let text = status.to_string();
        sink.send(channels::message(STATUS, text.as_bytes()))
            .await?;
        let frame = CloseFrame {
            code: CloseCode::Normal,
            reason: "".into(),
        };
        sink.send(Message::Close(Some(frame))).await
    };
    // What it still says is read: a connection that is closed with words unread loses what was said.
    let farewell = async {
        if last.await.is_ok() {
            while client.hear().await.is_some() {}
        }
    };
    if timeout(FAREWELL, farewell).await.is_err() {
        debug!("a session's client does not say goodbye");
    }
}
