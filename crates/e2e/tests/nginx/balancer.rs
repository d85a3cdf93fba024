//! A small HTTP balancer that follows the pods of the API: it sends requests to those that are Ready
//! and not being deleted, over connections that it keeps, and hears of an end later than the node
//! does, as real ones do.
//!
//! It repeats nothing: what fails behind it fails before it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use belay_testkit::{PODS, Rest};
use jiff::Timestamp;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How late it is: watches, configurations to write, other machines to tell.
const PROPAGATION: Duration = Duration::from_secs(1);
const SELECTOR: &str = "labelSelector=app%3Dweb";
const PORT: u16 = 8080;

/// A pod that gets requests.
#[derive(Debug)]
struct Endpoint {
    address: SocketAddr,
    active: AtomicUsize,
    idle: Mutex<Vec<TcpStream>>,
}

type Endpoints = Arc<Mutex<BTreeMap<String, Arc<Endpoint>>>>;
/// When each pod that has left got its last request at the latest.
type Removals = Arc<Mutex<BTreeMap<String, Timestamp>>>;

/// Ends with its value.
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    endpoints: Endpoints,
    removals: Removals,
    _tasks: JoinSet<()>,
}

impl Balancer {
    pub(crate) async fn start(admin: Rest) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let endpoints = Endpoints::default();
        let mut tasks = JoinSet::new();
        let removals = Removals::default();
        tasks.spawn(follow(admin, Arc::clone(&endpoints), Arc::clone(&removals)));
        let shared = Arc::clone(&endpoints);
        tasks.spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                clients.spawn(serve(client, Arc::clone(&shared)));
            }
        });
        Ok(Self {
            address,
            endpoints,
            removals,
            _tasks: tasks,
        })
    }

    /// How many pods get requests.
    pub(crate) fn size(&self) -> usize {
        lock(&self.endpoints).len()
    }

    /// When it stopped to send requests to the pod with this UID, if it has.
    pub(crate) fn removed(&self, uid: &str) -> Option<Timestamp> {
        lock(&self.removals).get(uid).copied()
    }

    /// How many requests the least busy of them has at this moment.
    pub(crate) fn least_active(&self) -> usize {
        let endpoints = lock(&self.endpoints);
        let active = endpoints
            .values()
            .map(|one| one.active.load(Ordering::Relaxed));
        active.min().unwrap_or(0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the endpoints up to date, for ever.
async fn follow(admin: Rest, endpoints: Endpoints, removals: Removals) {
    let mut leaving = JoinSet::new();
    loop {
        if let Err(error) = follow_once(&admin, &endpoints, &removals, &mut leaving).await {
            eprintln!("the balancer's watch: {error:#}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn follow_once(
    admin: &Rest,
    endpoints: &Endpoints,
    removals: &Removals,
    leaving: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let list = admin.get(&format!("{PODS}?{SELECTOR}")).await?.ok()?;
    for pod in list["items"].as_array().into_iter().flatten() {
        see(pod, false, endpoints, removals, leaving);
    }
    let revision = &list["metadata"]["resourceVersion"];
    let revision = revision.as_str().context("no revision")?;
    let path = format!("{PODS}?watch=true&{SELECTOR}&resourceVersion={revision}");
    let mut watch = admin.watch(&path).await?;
    while let Some(event) = watch.next().await {
        let deleted = event["type"] == "DELETED";
        see(&event["object"], deleted, endpoints, removals, leaving);
    }
    Ok(())
}

/// Who is ready gets requests from now on; who is leaving gets them a little longer.
fn see(
    pod: &Value,
    deleted: bool,
    endpoints: &Endpoints,
    removals: &Removals,
    leaving: &mut JoinSet<()>,
) {
    let uid = pod["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let conditions = pod["status"]["conditions"].as_array();
    let is_ready = conditions.is_some_and(|list| {
        list.iter()
            .any(|one| one["type"] == "Ready" && one["status"] == "True")
    });
    let stays = is_ready && !deleted && pod["metadata"]["deletionTimestamp"].is_null();
    let known = lock(endpoints).contains_key(&uid);
    if stays && !known {
        let ip = pod["status"]["podIP"]
            .as_str()
            .and_then(|ip| ip.parse().ok());
        if let Some(ip) = ip {
            let endpoint = Endpoint {
                address: SocketAddr::new(ip, PORT),
                active: AtomicUsize::new(0),
                idle: Mutex::default(),
            };
            lock(endpoints).insert(uid, Arc::new(endpoint));
        }
    } else if !stays && known {
        let (endpoints, removals) = (Arc::clone(endpoints), Arc::clone(removals));
        leaving.spawn(async move {
            tokio::time::sleep(PROPAGATION).await;
            lock(&endpoints).remove(&uid);
            lock(&removals).entry(uid).or_insert_with(Timestamp::now);
        });
    }
}

/// The one with the fewest requests, which has one more from now on.
fn choose(endpoints: &Endpoints) -> Option<Arc<Endpoint>> {
    let endpoints = lock(endpoints);
    let active = |one: &&Arc<Endpoint>| one.active.load(Ordering::Relaxed);
    let chosen = endpoints.values().min_by_key(active)?;
    chosen.active.fetch_add(1, Ordering::Relaxed);
    Some(Arc::clone(chosen))
}

/// Answers one client until it leaves, or something goes wrong for it.
async fn serve(mut client: TcpStream, endpoints: Endpoints) {
    while let Ok(request) = read_head(&mut client).await {
        let Some(endpoint) = choose(&endpoints) else {
            let _ = refuse(&mut client, "no endpoint").await;
            return;
        };
        let forwarded = forward(&endpoint, &request, &mut client).await;
        endpoint.active.fetch_sub(1, Ordering::Relaxed);
        match forwarded {
            Ok(()) => {}
            Err(Failed::Before(error)) => {
                let why = format!("{}: {error:#}", endpoint.address);
                let _ = refuse(&mut client, &why).await;
                return;
            }
            // The client sees a response that ends too early.
            Err(Failed::Amid) => return,
        }
    }
}

/// What went wrong behind the balancer.
enum Failed {
    /// The client has got nothing yet.
    Before(anyhow::Error),
    /// The client has got a part of the response.
    Amid,
}

async fn refuse(client: &mut TcpStream, why: &str) -> std::io::Result<()> {
    let length = why.len();
    let answer = format!("HTTP/1.1 502 Bad Gateway\r\ncontent-length: {length}\r\n\r\n{why}");
    client.write_all(answer.as_bytes()).await
}

async fn forward(endpoint: &Endpoint, request: &str, client: &mut TcpStream) -> Result<(), Failed> {
    let mut upstream = connect(endpoint).await.map_err(Failed::Before)?;
    let head = async {
        upstream.write_all(request.as_bytes()).await?;
        read_head(&mut upstream).await
    };
    let head = head.await.map_err(Failed::Before)?;
    let Some(length) = content_length(&head) else {
        return Err(Failed::Before(anyhow::anyhow!("no length: {head}")));
    };
    let passed = async {
        client.write_all(head.as_bytes()).await?;
        pass_on(&mut upstream, client, length).await
    };
    passed.await.map_err(|_| Failed::Amid)?;
    if !head.to_ascii_lowercase().contains("connection: close") {
        lock(&endpoint.idle).push(upstream);
    }
    Ok(())
}

/// A connection that was kept and is still open, or a new one.
async fn connect(endpoint: &Endpoint) -> anyhow::Result<TcpStream> {
    loop {
        let kept = lock(&endpoint.idle).pop();
        let Some(kept) = kept else { break };
        let closed = |error: std::io::Error| error.kind() != std::io::ErrorKind::WouldBlock;
        if !kept.try_read(&mut [0]).map_or_else(closed, |_| true) {
            return Ok(kept);
        }
    }
    let connected = TcpStream::connect(endpoint.address).await;
    connected.context("cannot connect")
}

async fn pass_on(
    from: &mut TcpStream,
    to: &mut TcpStream,
    mut length: usize,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    while length > 0 {
        let most = length.min(buffer.len());
        let read = from.read(&mut buffer[..most]).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        to.write_all(&buffer[..read]).await?;
        length -= read;
    }
    Ok(())
}

/// The head of a request or response, with the empty line after it.
pub(crate) async fn read_head(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> anyhow::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        // Byte by byte, so that nothing of the body is taken.
        head.push(
            stream
                .read_u8()
                .await
                .context("the connection was closed")?,
        );
    }
    Ok(String::from_utf8(head)?)
}

pub(crate) fn content_length(head: &str) -> Option<usize> {
    let lower = head.to_ascii_lowercase();
    let mut lines = lower.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length:"))?;
    length.trim().parse().ok()
}
