//! One session, from the upgraded connection to its close.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use belay_action::{AttemptId, ContainerId};
use belay_runtime::{Session, SessionEnd, SessionRequest, Size, Streams};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};
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
/// How often the client is asked whether it is there, and told that we are.
const PING: Duration = Duration::from_secs(5);
/// A client of which nothing was heard for so long, not even the answer to a ping, is gone. The
/// kernel would take a quarter of an hour to say so of one that went without a word.
const GONE: Duration = Duration::from_secs(60);
/// How much of what was heard may wait until something can be done with it, as long as a command
/// leaves its input unread. With more of it waiting nobody listens.
const ROOM: u32 = 4 << 20;
/// What a word takes beside its data.
const WORD: u32 = 64;
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
        let Streams {
            stdin,
            stdout,
            stderr,
        } = streams;
        let mut stdin = stdin.filter(|_| self.options.stdin);
        let mut output = Output {
            stdout: Source::new(STDOUT, Some(stdout), self.options.stdout),
            stderr: Source::new(STDERR, stderr, self.options.stderr),
        };
        let (words, heard) = mpsc::unbounded_channel();
        let over = tokio::select! {
            ended = output.pass_on(session.ended(), &mut sink) => {
                ended.map_or(Over::ClientGone, Over::Ended)
            }
            () = client.listen(words) => Over::ClientGone,
            () = carry_out(heard, &session, &mut stdin) => Over::ClientGone,
            () = self.stop.cancelled() => Over::Stopping,
        };
        let listens = !matches!(over, Over::ClientGone);
        let end = match over {
            Over::Ended(end) => end,
            Over::ClientGone | Over::Stopping => session.kill().await,
        };
        info!(session = %self.id, container = %self.container, ?end, "a session is over");
        // Its terminal and its pipes are not needed while the client says goodbye. Before it is dead
        // they are: what loses them may end by itself, and leave something running.
        drop((session, stdin, output));
        if listens {
            finish(&mut sink, &mut client, &status::of_end(&end)).await;
        }
    }
}

/// Something that was heard, and the room that it takes.
type Word = (Said, OwnedSemaphorePermit);

/// The client's words.
struct Client<S> {
    stream: S,
    protocol: Protocol,
    /// Heard before anything could be done with it.
    early: VecDeque<Said>,
}

impl<S> Client<S>
where
    S: Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
{
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

    /// Hears what it says, ahead of what can be done with it, until it is gone.
    ///
    /// Whoever reads answers the client's own pings. A client that waits in vain for that, because
    /// its command leaves its input unread, hangs up.
    async fn listen(&mut self, words: mpsc::UnboundedSender<Word>) {
        let room = Arc::new(Semaphore::new(ROOM as usize));
        loop {
            let said = match timeout(GONE, self.next()).await {
                Ok(Some(said)) => said,
                Ok(None) => return,
                Err(_) => return debug!("a session's client has fallen silent"),
            };
            let data = match &said {
                Said::Stdin(data) => data.len(),
                Said::StdinClosed | Said::Resize(_) => 0,
                Said::Nothing | Said::Goodbye => continue,
            };
            let size = u32::try_from(data).unwrap_or(ROOM).saturating_add(WORD);
            // For as long as nobody listens nobody is called silent.
            let taken = Arc::clone(&room).acquire_many_owned(size.min(ROOM)).await;
            let Ok(taken) = taken else { return };
            if words.send((said, taken)).is_err() {
                return;
            }
        }
    }
}

/// Carries out what the client said, in that order.
async fn carry_out(
    mut words: mpsc::UnboundedReceiver<Word>,
    session: &Session,
    stdin: &mut Option<pipe::Sender>,
) {
    while let Some((said, _room)) = words.recv().await {
        match said {
            Said::Stdin(data) => {
                if let Some(pipe) = stdin
                    && pipe.write_all(&data).await.is_err()
                {
                    // Nobody reads it any more; the command may well go on.
                    *stdin = None;
                }
            }
            Said::StdinClosed => {
                *stdin = None;
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
    async fn pass_on(
        &mut self,
        end: impl Future<Output = SessionEnd>,
        sink: &mut (impl Sink<Message> + Unpin),
    ) -> Option<SessionEnd> {
        let mut end = std::pin::pin!(end);
        let mut ended = None;
        let mut ping = interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let open = self.stdout.pipe.is_some() || self.stderr.pipe.is_some();
            if let Some(end) = ended.take_if(|_| !open) {
                return Some(end);
            }
            let message = tokio::select! {
                // What was said before the end is sent before it, and nothing keeps a ping waiting:
                // there may be output without end.
                biased;
                _ = ping.tick() => {
                    // An answer before it is asked for: the client's pings may wait behind input
                    // for which there is no room.
                    if sink.feed(Message::Pong(Bytes::new())).await.is_err()
                        || sink.send(Message::Ping(Bytes::new())).await.is_err()
                    {
                        return None;
                    }
                    // To a client that is slow to take them there is more to say than that.
                    ping.reset();
                    None
                }
                message = self.stdout.next() => message,
                message = self.stderr.next() => message,
                end = &mut end, if ended.is_none() => {
                    ended = Some(end);
                    None
                }
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
async fn finish(
    sink: &mut SplitSink<Connection, Message>,
    client: &mut Client<SplitStream<Connection>>,
    status: &Value,
) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn client<S>(stream: S) -> Client<S> {
        Client {
            stream,
            protocol: Protocol::V5,
            early: VecDeque::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_of_which_nothing_is_heard_for_a_minute_is_gone() {
        let pongs = futures::stream::iter(0..3).then(async |_| {
            sleep(Duration::from_secs(50)).await;
            Ok(Message::Pong(Bytes::new()))
        });
        let begin = Instant::now();
        let (words, _heard) = mpsc::unbounded_channel();
        let silent = Box::pin(pongs.chain(futures::stream::pending()));
        client(silent).listen(words).await;
        let last = Duration::from_secs(3 * 50);
        assert!(begin.elapsed() >= last + GONE);
        assert!(begin.elapsed() < last + GONE * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_command_leaves_unread_is_kept_up_to_a_bound_and_then_nobody_is_called_silent() {
        const DATA: u32 = 32 << 10;
        let heard = AtomicU32::new(0);
        let typed = futures::stream::repeat_with(|| {
            heard.fetch_add(1, Ordering::Relaxed);
            Ok(channels::message(0, &[b'x'; DATA as usize]))
        });
        let (words, mut kept) = mpsc::unbounded_channel();
        let mut client = client(typed);
        let mut listening = std::pin::pin!(client.listen(words));
        let most = ROOM / (DATA + WORD);
        assert!(timeout(GONE * 3, &mut listening).await.is_err());
        assert_eq!(heard.load(Ordering::Relaxed), most + 1);
        // Room for one more is made by whoever carries one out.
        drop(kept.recv().await);
        assert!(timeout(GONE * 3, &mut listening).await.is_err());
        assert_eq!(heard.load(Ordering::Relaxed), most + 2);
    }

    /// A client that takes this long for a message is told of an endless output for half a minute.
    async fn told_of_endless_output(pause: Duration) -> Vec<(Duration, Message)> {
        let (mut writer, reader) = pipe::pipe().unwrap();
        tokio::spawn(async move { while writer.write_all(&[b'y'; PIECE]).await.is_ok() {} });
        let mut output = Output {
            stdout: Source::new(STDOUT, Some(reader), true),
            stderr: Source::new(STDERR, None, true),
        };
        let (begin, sent) = (Instant::now(), Mutex::new(Vec::new()));
        let sink = futures::sink::unfold((), async |(), message| {
            sleep(pause).await;
            sent.lock().unwrap().push((begin.elapsed(), message));
            Ok::<(), Infallible>(())
        });
        let mut sink = Box::pin(sink);
        let passing = output.pass_on(pending(), &mut sink);
        assert!(timeout(Duration::from_secs(30), passing).await.is_err());
        drop(sink);
        sent.into_inner().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn output_without_end_keeps_no_ping_and_no_pong_waiting() {
        let sent = told_of_endless_output(Duration::from_secs(1)).await;
        for is in [Message::is_ping, Message::is_pong] {
            let mut last = Duration::ZERO;
            let times = sent.iter().filter(|(_, message)| is(message));
            for (at, _) in times.chain([&(Duration::from_secs(30), Message::Close(None))]) {
                assert!(*at - last <= Duration::from_secs(10), "{last:?} {at:?}");
                last = *at;
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pings_keep_no_output_from_a_client_that_is_slow_to_take_them() {
        let sent = told_of_endless_output(Duration::from_secs(6)).await;
        assert!(
            sent.iter().any(|(_, message)| message.is_binary()),
            "{sent:?}"
        );
    }
}
