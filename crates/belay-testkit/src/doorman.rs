//! Somebody between an agent and its containerd who refuses calls: containerd itself cannot be made
//! to answer a chosen call with an error.
//!
//! Everything else goes through as it is, streams included.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::Context;
use http::{Request, Response, StatusCode};
use http_body_util::{Either, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self as client, SendRequest};
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// The code of an error that says nothing about its cause.
const INTERNAL: &str = "13";

type Body = Either<Incoming, Empty<bytes::Bytes>>;

/// Stands in front of a socket. It ends when it is dropped.
#[derive(Debug)]
pub struct Doorman {
    socket: PathBuf,
    book: Arc<Mutex<Book>>,
    listening: JoinHandle<()>,
}

/// What is refused, and what happened. Methods are named `service/method`, as gRPC does.
#[derive(Debug, Default)]
struct Book {
    refused: Refused,
    /// Methods that were called since they were last asked for.
    called: BTreeSet<String>,
    /// How many calls were refused since then.
    turned_away: usize,
}

#[derive(Debug, Default)]
enum Refused {
    #[default]
    Nothing,
    Method(String),
    Everything,
}

impl Doorman {
    /// Stands at `socket`, in front of the one at `behind`.
    pub fn stand(socket: &Path, behind: &Path) -> anyhow::Result<Self> {
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("cannot listen at {}", socket.display()))?;
        let book = Arc::new(Mutex::new(Book::default()));
        let (kept, behind) = (Arc::clone(&book), behind.to_owned());
        let listening = tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let (book, behind) = (Arc::clone(&kept), behind.clone());
                tokio::spawn(async move {
                    // A connection that breaks is for its two ends to deal with.
                    let _ = serve(caller, &behind, book).await;
                });
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
            book,
            listening,
        })
    }

    /// As an agent is told where its runtime is.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Refuses one method from now on, and lets all others through.
    pub fn refuse(&self, method: &str) {
        self.book().refused = Refused::Method(method.to_owned());
    }

    /// Refuses whatever is asked for.
    pub fn refuse_everything(&self) {
        self.book().refused = Refused::Everything;
    }

    /// Lets everything through again.
    pub fn let_through(&self) {
        self.book().refused = Refused::Nothing;
    }

    /// The methods that were called since this was last asked.
    pub fn called(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.book().called)
    }

    /// How many calls were refused since this was last asked.
    pub fn turned_away(&self) -> usize {
        std::mem::take(&mut self.book().turned_away)
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Doorman {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Book {
    /// Takes note of a call; whether it is refused.
    fn enters(&mut self, method: &str) -> bool {
        self.called.insert(method.to_owned());
        let refused = match &self.refused {
            Refused::Nothing => false,
            Refused::Method(refused) => refused == method,
            Refused::Everything => true,
        };
        self.turned_away += usize::from(refused);
        refused
    }
}

async fn serve(caller: UnixStream, behind: &Path, book: Arc<Mutex<Book>>) -> anyhow::Result<()> {
    let through = UnixStream::connect(behind).await?;
    let (sender, connection) =
        client::handshake(TokioExecutor::new(), TokioIo::new(through)).await?;
    let connected = tokio::spawn(connection);
    let pass = service_fn(|request: Request<Incoming>| {
        let (sender, book) = (sender.clone(), Arc::clone(&book));
        async move { Ok::<_, Infallible>(pass(request, sender, &book).await) }
    });
    let served = server::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(caller), pass)
        .await;
    connected.abort();
    Ok(served?)
}

async fn pass(
    request: Request<Incoming>,
    mut sender: SendRequest<Incoming>,
    book: &Mutex<Book>,
) -> Response<Body> {
    let method = request.uri().path().trim_start_matches('/').to_owned();
    let refused = {
        let mut book = book.lock().unwrap_or_else(PoisonError::into_inner);
        book.enters(&method)
    };
    if refused {
        return refusal("refused by the doorman");
    }
    match sender.send_request(request).await {
        Ok(response) => response.map(Either::Left),
        Err(error) => refusal(&error.to_string()),
    }
}

/// How gRPC says no.
fn refusal(message: &str) -> Response<Body> {
    let mut response = Response::new(Either::Right(Empty::new()));
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("grpc-status", INTERNAL),
        ("grpc-message", message),
    ] {
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
    }
    response
}
