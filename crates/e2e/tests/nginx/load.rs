//! Clients that never stop asking, and what came of it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::balancer::{content_length, read_head};

/// Who asks for short answers, all the time.
const FAST: usize = 4;
/// Who asks for one that takes eight seconds; one of them begins every half second.
const SLOW: usize = 16;
const APART: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(3);

/// How a request failed, as its user sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There was no answer, or it was an error: the text says which.
    Refused(String),
    /// The answer ended in the middle.
    Cut,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) fast: AtomicUsize,
    pub(crate) slow: AtomicUsize,
    failures: Mutex<Vec<(String, Failure)>>,
}

impl Tally {
    pub(crate) fn failures(&self) -> Vec<(String, Failure)> {
        let failures = self.failures.lock();
        failures.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Ends with its value.
pub(crate) struct Load {
    pub(crate) tally: Arc<Tally>,
    stop: tokio::sync::watch::Sender<bool>,
    clients: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(on: SocketAddr) -> Self {
        let tally = Arc::new(Tally::default());
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let mut clients = JoinSet::new();
        let later = (0..SLOW).map(|index| ("/report", APART * u32::try_from(index).unwrap_or(0)));
        let now = (0..FAST).map(|_| ("/version", Duration::ZERO));
        for (path, delay) in now.chain(later) {
            let (tally, stopped) = (Arc::clone(&tally), stopped.clone());
            clients.spawn(async move {
                tokio::time::sleep(delay).await;
                ask_on(on, path, &tally, &stopped).await;
            });
        }
        Self {
            tally,
            stop,
            clients,
        }
    }

    /// Lets every request that is under way come to its end.
    pub(crate) async fn end(self) -> Arc<Tally> {
        self.stop.send_replace(true);
        self.clients.join_all().await;
        self.tally
    }
}

/// One client with one connection, which it opens again when it was closed.
async fn ask_on(
    on: SocketAddr,
    path: &str,
    tally: &Tally,
    stopped: &tokio::sync::watch::Receiver<bool>,
) {
    let count = if path == "/report" {
        &tally.slow
    } else {
        &tally.fast
    };
    let mut connection = None;
    while !*stopped.borrow() {
        match ask(on, &mut connection, path).await {
            Ok(()) => drop(count.fetch_add(1, Ordering::Relaxed)),
            Err(failure) => {
                connection = None;
                let failures = tally.failures.lock();
                failures
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((path.to_owned(), failure));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ask(
    on: SocketAddr,
    connection: &mut Option<TcpStream>,
    path: &str,
) -> Result<(), Failure> {
    let refused = |error: anyhow::Error| Failure::Refused(format!("{error:#}"));
    let asked = async {
        let stream = match connection {
            Some(stream) => stream,
            None => connection.insert(TcpStream::connect(on).await.context("the balancer")?),
        };
        let request = format!("GET {path} HTTP/1.1\r\nhost: web\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let head = read_head(stream).await?;
        let length = content_length(&head).with_context(|| head.clone())?;
        anyhow::Ok((stream, head, length))
    };
    let (stream, head, length) = asked.await.map_err(refused)?;
    let mut body = vec![0; length];
    stream
        .read_exact(&mut body)
        .await
        .map_err(|_| Failure::Cut)?;
    if !head.starts_with("HTTP/1.1 200 ") {
        let said = String::from_utf8_lossy(&body).into_owned();
        return Err(Failure::Refused(format!(
            "{} {said}",
            head.lines().next().unwrap_or("")
        )));
    }
    Ok(())
}
