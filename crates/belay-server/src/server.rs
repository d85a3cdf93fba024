//! Opening a server on a data directory, and what it offers to the roles in the same process.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belay_api::gates::FeatureGates;
use belay_store::{Options as StoreOptions, Store};
use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri};
use http_body_util::BodyExt as _;
use rustix::fs::{FlockOperation, flock};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::audit::Audit;
use crate::identity::{Identity, Tokens, write_private};
use crate::metrics::Metrics;
use crate::object::{Meta, RevisionMark};
use crate::pki::{Credential, Pki, PkiError, serving_names};
use crate::rbac::{Rbac, defaults};
use crate::registry::Registry;
use crate::serve;

/// Where and how a server runs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Everything the server keeps is in here.
    pub data_dir: PathBuf,
    /// The address of the TLS listener; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Feature gates of the API.
    pub gates: FeatureGates,
    /// Further names and addresses for the serving certificate.
    pub tls_names: Vec<String>,
}

/// Why a server cannot start or do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Another process works on the same data directory.
    #[error(
        "{dir} is in use by another belay (process {pid}); stop it, or choose another --data-dir"
    )]
    InUse {
        /// The data directory.
        dir: PathBuf,
        /// The process that has it.
        pid: String,
    },
    /// A file of the data directory.
    #[error("cannot use {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}; is another server using it? Choose one with --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] belay_store::OpenError),
    /// Certificates.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The server has not run here yet.
    #[error("{dir} holds no belay server; start one there first (belay up --data-dir {dir})")]
    NoServer {
        /// The data directory.
        dir: PathBuf,
    },
    /// Nobody can be called that.
    #[error("no token for user {user:?}: {why}")]
    ReservedUser {
        /// The user.
        user: String,
        /// What is wrong with the name or a group.
        why: String,
    },
    /// An object the server makes for itself was refused.
    #[error("cannot create {name}: {message}")]
    Bootstrap {
        /// What and which.
        name: String,
        /// What went wrong.
        message: String,
    },
}

/// Namespaces every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
const RENEWAL_CHECK: Duration = Duration::from_secs(12 * 3600);
const LOCK_TRIES: usize = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
const EXPIRY_CHECK: Duration = Duration::from_secs(5 * 60);
/// Kept free on the disk, so that deleting and compacting remain possible.
const MIN_FREE: u64 = 16 * 1024 * 1024;
const HISTORY_EVENTS: usize = 10_000;
const HISTORY_BYTES: usize = 16 * 1024 * 1024;

/// A server that is open on its data directory. Cloning shares it.
#[derive(Debug, Clone)]
pub struct Server {
    api: Arc<Api>,
    data_dir: PathBuf,
    address: SocketAddr,
    tls_names: Vec<String>,
    listener: Arc<Mutex<Option<TcpListener>>>,
    /// Holds the lock on the data directory for as long as any clone lives.
    _lock: Arc<File>,
}

impl Server {
    /// Locks the data directory, replays the store, makes what is missing, binds the listener and
    /// writes the admin's kubeconfig.
    ///
    /// # Errors
    /// Each variant of [`ServerError`] says what to do.
    pub async fn open(config: Config) -> Result<Self, ServerError> {
        let dir = &config.data_dir;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(io(dir))?;
        let lock = lock(dir).await?;
        let listener =
            TcpListener::bind(config.listen)
                .await
                .map_err(|source| ServerError::Listen {
                    address: config.listen,
                    source,
                })?;
        let address = listener.local_addr().map_err(io(dir))?;
        let registry = Registry::new(&config.gates);
        let pki = Pki::open(
            &dir.join("pki"),
            serving_names(config.listen.ip(), &config.tls_names),
        )?;
        let audit_path = dir.join("audit.log");
        let api = Api {
            store: open_store(&dir.join("store.redb"), registry.clone()).await?,
            registry,
            gates: config.gates,
            mark: RevisionMark::random(),
            tokens: Tokens::at(dir),
            rbac: Rbac::default(),
            pki,
            metrics: Metrics::new(&config.gates),
            audit: Audit::open(&audit_path).map_err(io(&audit_path))?,
            openapi_index: std::sync::OnceLock::new(),
            bookmark_every: BOOKMARK_EVERY,
            stopping: CancellationToken::new(),
        };
        let server = Self {
            api: Arc::new(api),
            data_dir: dir.clone(),
            address,
            tls_names: config.tls_names,
            listener: Arc::new(Mutex::new(Some(listener))),
            _lock: Arc::new(lock),
        };
        server.make_namespaces().await?;
        server.make_roles().await?;
        server.write_kubeconfig()?;
        Ok(server)
    }

    /// Shows at `/metrics`, beside the server's own, what a role in this process has to show: text in
    /// the format of OpenMetrics, with no metric that the server has itself.
    pub fn show_metrics(&self, text: impl Fn() -> String + Send + Sync + 'static) {
        self.api.metrics.show_beside(Box::new(text));
    }

    /// Answers requests until `shutdown`; then lets open ones finish and the store come to rest.
    ///
    /// # Errors
    /// When TLS cannot be set up. Serving itself does not fail.
    pub async fn serve(&self, shutdown: CancellationToken) -> Result<(), ServerError> {
        let tls = tokio_rustls::TlsAcceptor::from(self.api.pki.server_config()?);
        let listener = self
            .listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(listener) = listener else {
            return Ok(());
        };
        let upkeep = tokio::spawn(self.clone().upkeep());
        serve::listen(Arc::clone(&self.api), listener, tls, shutdown).await;
        upkeep.abort();
        self.api.store.shutdown().await;
        Ok(())
    }

    /// The address the listener is bound to.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// A client that reaches this server through memory, as `identity`.
    pub fn connect(&self, identity: Identity) -> kube::Client {
        serve::connect(Arc::clone(&self.api), identity)
    }

    /// Where the admin's kubeconfig is.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.data_dir.join("kubeconfig")
    }

    /// The certificate authority, PEM.
    pub fn ca_pem(&self) -> String {
        self.api.pki.ca_pem().to_owned()
    }

    /// Copies the store, as of now, to a new file.
    ///
    /// # Errors
    /// As [`Store::backup`].
    pub fn backup(&self, path: &Path) -> Result<belay_store::Revision, belay_store::BackupError> {
        self.api.store.backup(path)
    }

    /// Renews certificates and drops what has expired, from time to time.
    async fn upkeep(self) {
        let mut renewal = tokio::time::interval(RENEWAL_CHECK);
        let mut expiry = tokio::time::interval(EXPIRY_CHECK);
        // The first tick comes at once, and everything was just made.
        renewal.tick().await;
        loop {
            tokio::select! {
                _ = renewal.tick() => self.renew(),
                _ = expiry.tick() => self.api.drop_expired(jiff::Timestamp::now()).await,
            }
        }
    }

    fn renew(&self) {
        let renewed = self.api.pki.renew().map_err(ServerError::from);
        if let Err(error) = renewed.and_then(|()| self.write_kubeconfig()) {
            tracing::error!(%error, "cannot renew certificates");
        }
    }

    fn write_kubeconfig(&self) -> Result<(), ServerError> {
        let identity = Identity::admin();
        let leaf = self.api.pki.client(&identity)?;
        let text =
            self.api
                .pki
                .kubeconfig(&url(self.address), "admin", &Credential::Certificate(leaf));
        let path = self.kubeconfig_path();
        write_private(&path, text.as_bytes()).map_err(io(&path))?;
        // Where `belay token create`, another process, finds this server.
        let path = address_path(&self.data_dir);
        let mut known = self.address.to_string();
        for name in &self.tls_names {
            known.push('\n');
            known.push_str(name);
        }
        write_private(&path, known.as_bytes()).map_err(io(&path))
    }

    async fn make_namespaces(&self) -> Result<(), ServerError> {
        for name in NAMESPACES {
            let object = json!({"metadata": {"name": name}});
            let what = format!("namespace {name}");
            self.make(&what, Method::POST, "/api/v1/namespaces", &object)
                .await?;
        }
        Ok(())
    }

    /// Makes the roles that everybody expects, and completes those that lack something.
    async fn make_roles(&self) -> Result<(), ServerError> {
        for built_in in defaults::all() {
            let (collection, name) = (built_in.collection, built_in.name);
            let path = format!("/apis/{}/v1/{collection}", belay_api::rbac::GROUP);
            let what = format!("{collection} {name}");
            match self.own(collection, name) {
                None => {
                    self.make(&what, Method::POST, &path, &built_in.object)
                        .await?;
                }
                Some(stored) => {
                    if let Some(next) = defaults::completed(&stored, &built_in.object) {
                        let path = format!("{path}/{name}");
                        self.make(&what, Method::PUT, &path, &next).await?;
                    }
                }
            }
        }
        Ok(())
    }

    fn own(&self, plural: &str, name: &str) -> Option<Value> {
        crate::registry::World::get(&*self.api, plural, None, name)
    }

    /// Writes an object of the server's own, unless it is there.
    async fn make(
        &self,
        what: &str,
        method: Method,
        path: &str,
        object: &Value,
    ) -> Result<(), ServerError> {
        let failed = |message: String| ServerError::Bootstrap {
            name: what.to_owned(),
            message,
        };
        let (parts, ()) = Request::builder()
            .method(method)
            .uri(path)
            .body(())
            .map_err(|e| failed(e.to_string()))?
            .into_parts();
        let body = Bytes::from(object.to_string());
        let response = self
            .api
            .handle(Some(&Identity::admin()), &parts, body)
            .await;
        let status = response.status();
        if status.is_success() || status == StatusCode::CONFLICT {
            return Ok(());
        }
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(|e| failed(e.to_string()))?;
        let told: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
        let message = told["message"]
            .as_str()
            .map_or_else(|| status.to_string(), str::to_owned);
        Err(failed(message))
    }
}

async fn open_store(path: &Path, registry: Registry) -> Result<Store<Meta>, ServerError> {
    let mut options =
        StoreOptions::new(move |key: &str, value: &[u8]| Meta::of(key, value, &registry));
    options.history_events = HISTORY_EVENTS;
    options.history_bytes = HISTORY_BYTES;
    options.min_free_bytes = MIN_FREE;
    // Replaying a large store takes a while; other tasks should not wait for it.
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || Store::open(&path, options)).await;
    match opened {
        Ok(store) => Ok(store?),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// A kubeconfig with a new token.
#[derive(Debug)]
pub struct NewKubeconfig {
    /// Its text.
    pub text: String,
    /// What whoever uses it on another machine should know of the way to the server.
    pub note: Option<String>,
}

/// Makes a token for a node and returns a kubeconfig with it. Works beside a running server, which
/// is reached at `url`, or at what it says of itself.
///
/// # Errors
/// When no server has ever run on `data_dir`.
pub fn create_node_token(
    data_dir: &Path,
    node: &str,
    url: Option<&Uri>,
) -> Result<NewKubeconfig, ServerError> {
    create_token(data_dir, node, &Identity::node(node), url)
}

/// Makes a token for a user and returns a kubeconfig with it. Works beside a running server, which
/// is reached at `url`, or at what it says of itself. What the user may do is what roles give to its
/// name and its groups.
///
/// # Errors
/// When no server has ever run on `data_dir`, and when the name or a group is the server's own.
pub fn create_user_token(
    data_dir: &Path,
    user: &str,
    groups: &[String],
    url: Option<&Uri>,
) -> Result<NewKubeconfig, ServerError> {
    let identity = Identity::user(user, groups);
    if let Some(why) = identity.reserved() {
        let user = user.to_owned();
        return Err(ServerError::ReservedUser { user, why });
    }
    create_token(data_dir, user, &identity, url)
}

fn create_token(
    data_dir: &Path,
    name: &str,
    identity: &Identity,
    url: Option<&Uri>,
) -> Result<NewKubeconfig, ServerError> {
    let no_server = || ServerError::NoServer {
        dir: data_dir.to_owned(),
    };
    let known = std::fs::read_to_string(address_path(data_dir)).map_err(|_| no_server())?;
    let mut known = known.lines().map(str::trim);
    let address = known.next().and_then(|address| address.parse().ok());
    let address: SocketAddr = address.ok_or_else(no_server)?;
    let names: Vec<String> = known.map(str::to_owned).collect();
    let (url, note) = way(address, &names, url);
    let pki = Pki::open(&data_dir.join("pki"), Vec::new())?;
    let tokens = Tokens::at(data_dir);
    let token = tokens.create(identity).map_err(io(data_dir))?;
    let text = pki.kubeconfig(&url, name, &Credential::Token(token));
    Ok(NewKubeconfig { text, note })
}

/// The URL under which others reach a server that listens on `address`, and what they should know
/// of it. A name that its certificate has is one that somebody calls it by.
fn way(address: SocketAddr, tls_names: &[String], asked: Option<&Uri>) -> (String, Option<String>) {
    let ip = address.ip();
    if let Some(asked) = asked {
        let host = asked.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let named = serving_names(ip, tls_names)
            .iter()
            .any(|name| name.eq_ignore_ascii_case(host));
        let note = (!named).then(|| {
            format!("the server's certificate does not name {host}: start the server with --tls-name {host}")
        });
        return (asked.to_string().trim_end_matches('/').to_owned(), note);
    }
    match tls_names.first() {
        Some(name) if ip.is_unspecified() => {
            let host = match name.parse::<IpAddr>() {
                Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
                _ => name.clone(),
            };
            (format!("https://{host}:{}", address.port()), None)
        }
        _ if ip.is_unspecified() => (
            url(address),
            Some(
                "the kubeconfig leads to this machine only: the server listens on every address, but no name of it is known. Start it with --tls-name NAME, or say --server URL"
                    .to_owned(),
            ),
        ),
        _ if ip.is_loopback() => (
            url(address),
            Some(
                "the kubeconfig leads to this machine only, because the server listens nowhere else; for other machines start it with --listen 0.0.0.0:7443 --tls-name NAME"
                    .to_owned(),
            ),
        ),
        _ => (url(address), None),
    }
}

fn address_path(data_dir: &Path) -> PathBuf {
    data_dir.join("address")
}

/// The URL under which clients on this machine reach `address`.
fn url(address: SocketAddr) -> String {
    let ip = address.ip();
    if ip.is_unspecified() {
        format!("https://127.0.0.1:{}", address.port())
    } else {
        format!("https://{address}")
    }
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> ServerError {
    let path = path.to_owned();
    move |source| ServerError::Io { path, source }
}

/// Takes the lock, waiting a moment for a process that is just being killed to let go of it.
async fn locked(file: &File) -> bool {
    for _ in 0..LOCK_TRIES {
        if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    false
}

/// One server per data directory: an exclusive lock that ends with the process.
async fn lock(dir: &Path) -> Result<File, ServerError> {
    let path = dir.join("lock");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(io(&path))?;
    if !locked(&file).await {
        let mut pid = String::new();
        file.read_to_string(&mut pid).map_err(io(&path))?;
        return Err(ServerError::InUse {
            dir: dir.to_owned(),
            pid: pid.trim().to_owned(),
        });
    }
    file.set_len(0).map_err(io(&path))?;
    file.rewind().map_err(io(&path))?;
    file.write_all(std::process::id().to_string().as_bytes())
        .map_err(io(&path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use belay_store::{Expect, WatchItem, Write};

    use super::*;
    use crate::object::encode;

    #[tokio::test]
    async fn what_expires_is_told_with_the_revision_of_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: dir.path().to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            gates: FeatureGates::default(),
            tls_names: Vec::new(),
        };
        let api = Server::open(config).await.unwrap().api;
        let kind = api.registry.by_plural("events").unwrap();
        let event = json!({"metadata": {"name": "e", "creationTimestamp": "2026-01-01T00:00:00Z"}});
        let key = kind.key(Some("default"), "e");
        let write = Write::put(key, Expect::Absent, encode(event, &api.mark));
        let stored = api.store.write(write).await.unwrap();
        let mut watch = api
            .store
            .watch(&kind.prefix(None), stored.modified)
            .unwrap();
        api.drop_expired("2026-01-01T02:00:00Z".parse().unwrap())
            .await;
        let end = loop {
            if let WatchItem::Event(event) = watch.next().await.unwrap() {
                break event;
            }
        };
        assert!(end.deleted);
        let told: Value = serde_json::from_slice(&end.entry.value).unwrap();
        assert_eq!(
            told["metadata"]["resourceVersion"],
            end.revision.to_string()
        );
    }

    #[test]
    fn others_are_led_to_a_name_of_the_server_and_not_to_themselves() {
        let name = || vec!["api.example.com".to_owned(), "10.0.0.9".to_owned()];
        let check = |listen: &str, names: &[String], asked: Option<&str>, url: &str, note: bool| {
            let asked: Option<Uri> = asked.map(|asked| asked.parse().unwrap());
            let (found, told) = way(listen.parse().unwrap(), names, asked.as_ref());
            assert_eq!(found, url, "{listen} {names:?} {asked:?}");
            assert_eq!(
                told.is_some(),
                note,
                "{listen} {names:?} {asked:?}: {told:?}"
            );
        };
        let every = "0.0.0.0:7443";
        check(every, &name(), None, "https://api.example.com:7443", false);
        check(
            "[::]:7443",
            &["::5".into()],
            None,
            "https://[::5]:7443",
            false,
        );
        check(every, &[], None, "https://127.0.0.1:7443", true);
        check(
            "127.0.0.1:7443",
            &name(),
            None,
            "https://127.0.0.1:7443",
            true,
        );
        check(
            "10.0.0.5:7443",
            &name(),
            None,
            "https://10.0.0.5:7443",
            false,
        );
        for (asked, url, note) in [
            (
                "https://API.example.com:1/",
                "https://API.example.com:1",
                false,
            ),
            ("https://10.0.0.9:7443", "https://10.0.0.9:7443", false),
            ("https://other:7443", "https://other:7443", true),
        ] {
            check(every, &name(), Some(asked), url, note);
        }
    }
}
