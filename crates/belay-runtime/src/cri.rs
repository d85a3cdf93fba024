//! Containers on a CRI runtime, whoever runs them. How we run them ourselves is in `node`.
//!
//! ```text
//!   recorded_pod ──────────── CRI: ListPodSandbox, PodSandboxStatus, ListContainers
//!   is_running, target ────── CRI: ContainerStatus (once per incarnation), then a note and the kernel
//!   Target::start ─────────── containerd: Containers.Get (once), Tasks.Exec, Start, Wait, Delete
//!   Target::signal ────────── a pidfd; beside a kubelet on containerd: Tasks.Kill
//!   Target::wait, disposition the kernel
//! ```
//!
//! Execs need containerd: no other way to run a command in a container tells its process, so that
//! it can be killed with all it started, or keeps its outcome for a restarted agent. On other
//! runtimes containers can be found and signalled.
//!
//! The agent must see the host's processes, and the runtime must see the agent's directory under
//! the same path.
//!
//! **Invariant:** a container's ID is its incarnation. Its first process is known by number and
//! start time, checked once against its control group.

mod attempts;
mod client;
mod container;
mod first;
mod follow;
mod group;
mod hunt;
mod leader;
mod node;
mod pause;
mod pods;
mod protocol;
mod reference;
mod refusal;
mod session;
mod specification;
mod target;
mod traces;

pub(crate) use client::CallError;
#[cfg(test)]
pub(crate) use group::kill_all;

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use belay_action::{AttemptId, ContainerId, Target};
use belay_shim::proc;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use sha2::{Digest, Sha256};
use tokio::time::timeout;
use tracing::{debug, warn};

use self::attempts::Attempts;
use self::client::Client;
use self::container::Container;
use self::node::Node;
use self::target::CriTarget;
use crate::blocking::blocking;
use crate::{Containers, RecordedPod, RecordedPods, RuntimeError, binary};

/// The runtime whose task service we know.
const CONTAINERD: &str = "containerd";
/// How long a runtime that is known may take to tell its name.
const PATIENCE: Duration = Duration::from_secs(1);
/// Incarnations that are remembered before the dead among them are forgotten.
const REMEMBERED: usize = 256;
/// What may stand in a path as it is.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.');

/// Acts on the containers of a CRI runtime.
#[derive(Debug, Clone)]
pub struct CriRuntime {
    shared: Arc<Shared>,
}

/// What never changes while the runtime is open, and what goes on.
#[derive(Debug)]
struct Shared {
    client: Client,
    name: String,
    /// The runtime has containerd's task service.
    tasks: bool,
    containers: PathBuf,
    /// The collector of output.
    program: PathBuf,
    boot_id: String,
    attempts: Attempts,
    /// Held while a container's directory is made.
    making: Mutex<()>,
    known: Mutex<HashMap<ContainerId, Arc<Container>>>,
    /// Of whoever runs the pods; `None` beside a kubelet.
    node: Option<Arc<Node>>,
}

impl CriRuntime {
    /// Connects to the runtime behind a socket, given as `unix:///path` or as its path. `dir` is for
    /// the records of execs; the runtime must see it under the same path, and execute programs in
    /// it. When the runtime is restarted later it is found again by itself.
    ///
    /// # Errors
    ///
    /// When the runtime does not answer, or the directory cannot be used.
    pub async fn connect(endpoint: &str, dir: &Path) -> Result<Self, RuntimeError> {
        let client = Client::new(&client::socket_path(endpoint)?);
        let name = client.name().await.map_err(unusable)?;
        Self::open(client, name, dir, None).await
    }

    /// The same for whoever runs the pods of `node` itself: what it makes has that name on it, and
    /// it touches nothing that has not.
    ///
    /// # Errors
    ///
    /// As [`CriRuntime::connect`].
    pub async fn for_node(endpoint: &str, dir: &Path, node: &str) -> Result<Self, RuntimeError> {
        let client = Client::new(&client::socket_path(endpoint)?);
        let name = client.name().await.map_err(unusable)?;
        Self::open(client, name, dir, Some(Arc::new(Node::new(node)))).await
    }

    /// The same for whoever has used this runtime before, under this `name`: it need not answer now.
    /// What runs there can be ended all the same, and the rest waits for it.
    ///
    /// # Errors
    ///
    /// When the directory cannot be used.
    pub async fn for_node_again(
        endpoint: &str,
        dir: &Path,
        node: &str,
        name: &str,
    ) -> Result<Self, RuntimeError> {
        let client = Client::new(&client::socket_path(endpoint)?);
        let name = match timeout(PATIENCE, client.name()).await {
            Ok(Ok(name)) => name,
            silent => {
                warn!(
                    endpoint,
                    ?silent,
                    "the container runtime does not answer yet"
                );
                name.to_owned()
            }
        };
        Self::open(client, name, dir, Some(Arc::new(Node::new(node)))).await
    }

    async fn open(
        client: Client,
        name: String,
        dir: &Path,
        node: Option<Arc<Node>>,
    ) -> Result<Self, RuntimeError> {
        let dir = std::path::absolute(dir).map_err(RuntimeError::io("resolve", dir))?;
        let opened = blocking(move || {
            let containers = dir.join("cri");
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&containers)
                .map_err(RuntimeError::io("create", &containers))?;
            let program = binary::install(&dir.join("bin"))?;
            let boot_id = proc::boot_id().map_err(RuntimeError::io(
                "read the boot ID from",
                Path::new("/proc"),
            ))?;
            Ok((containers, program, boot_id))
        });
        let (containers, program, boot_id) = opened.await?;
        let shared = Arc::new(Shared {
            client,
            tasks: name == CONTAINERD,
            name,
            containers,
            program,
            boot_id,
            attempts: Attempts::default(),
            making: Mutex::default(),
            known: Mutex::default(),
            node,
        });
        session::sweep(&shared).await;
        tokio::spawn(sweep(Arc::clone(&shared)));
        Ok(CriRuntime { shared })
    }

    /// Whether the runtime answers now.
    ///
    /// # Errors
    ///
    /// Why it does not.
    pub async fn answers(&self) -> Result<(), RuntimeError> {
        let name = self.shared.client.name().await;
        name.map(drop)
            .map_err(|error| error.during("reach the container runtime"))
    }

    /// The same runtime, used by nothing but what every CRI runtime offers: no execs, and signals
    /// through a pidfd.
    #[must_use]
    pub fn without_tasks(&self) -> Self {
        let shared = &self.shared;
        CriRuntime {
            shared: Arc::new(Shared {
                client: shared.client.clone(),
                name: shared.name.clone(),
                tasks: false,
                containers: shared.containers.clone(),
                program: shared.program.clone(),
                boot_id: shared.boot_id.clone(),
                attempts: shared.attempts.clone(),
                making: Mutex::default(),
                known: Mutex::default(),
                node: shared.node.clone(),
            }),
        }
    }

    async fn container(&self, id: &ContainerId) -> Result<Arc<Container>, RuntimeError> {
        let shared = &self.shared;
        let known = shared.known().get(id).cloned();
        if let Some(container) = known
            && container.is_running(&shared.boot_id)?
        {
            return Ok(container);
        }
        let noted = shared.noted(id).await;
        let container = match noted {
            Some(noted) if noted.is_running(&shared.boot_id)? => noted,
            noted => {
                let loaded = Container::load(&shared.client, id, &shared.boot_id).await;
                if let Ok(container) = &loaded {
                    shared.note(container).await;
                }
                believed(loaded, noted)?
            }
        };
        let container = Arc::new(container);
        let mut known = shared.known();
        if known.len() >= REMEMBERED {
            known.retain(|_, container| container.is_running(&shared.boot_id).unwrap_or(true));
        }
        if container.first.is_some() {
            known.insert(id.clone(), Arc::clone(&container));
        } else {
            known.remove(id);
        }
        Ok(container)
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, HashMap<ContainerId, Arc<Container>>> {
        // Nobody panics while holding it, and a map is whole in any case.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was written down of a container by whoever runs the pods.
    async fn noted(&self, id: &ContainerId) -> Option<Container> {
        self.node.as_ref()?;
        let (containers, id) = (self.containers.clone(), id.clone());
        let noted = blocking(move || Ok(first::read(&containers, &id)));
        noted.await.ok().flatten()
    }

    /// Writes down which process is the first of a container.
    async fn note(&self, container: &Container) {
        let (Some(_), Some(first)) = (&self.node, &container.first) else {
            return;
        };
        let (containers, first) = (self.containers.clone(), first.clone());
        let incarnation = container.incarnation.clone();
        let noted = blocking(move || {
            first::write(&containers, incarnation, first)
                .map_err(RuntimeError::io("write into", &containers))
        });
        if let Err(error) = noted.await {
            // A later agent asks the runtime.
            debug!(container = %container.incarnation.id, %error, "its first process is not noted");
        }
    }

    /// Where containerd sends the output of an exec: to the collector, which writes into `dir`.
    fn output_uri(&self, dir: &Path) -> String {
        let encoded = |path: &Path| percent_encode(path.as_os_str().as_bytes(), PATH).to_string();
        format!(
            "binary://{}?output={}",
            encoded(&self.program),
            encoded(dir)
        )
    }
}

#[async_trait]
impl Containers for CriRuntime {
    fn name(&self) -> &str {
        &self.shared.name
    }

    async fn is_running(&self, id: &ContainerId) -> Result<bool, RuntimeError> {
        let container = self.container(id).await?;
        container.is_running(&self.shared.boot_id)
    }

    async fn target(&self, id: &ContainerId) -> Result<Arc<dyn Target>, RuntimeError> {
        let container = self.container(id).await?;
        Ok(Arc::new(CriTarget::new(
            Arc::clone(&self.shared),
            container,
        )))
    }
}

#[async_trait]
impl RecordedPods for CriRuntime {
    async fn recorded_pod(&self, uid: &str) -> Result<Option<RecordedPod>, RuntimeError> {
        let client = &self.shared.client;
        let failed = |error: CallError| error.during("look a pod up in the runtime");
        let sandboxes = client.sandboxes_of(uid).await.map_err(failed)?;
        let Some(sandbox) = pods::current(sandboxes) else {
            return Ok(None);
        };
        let status = match client.sandbox_status(&sandbox.id).await {
            Ok(status) => Some(status),
            // Removed since; its record is still the pod's.
            Err(error) if error.is(tonic::Code::NotFound) => None,
            Err(error) => return Err(failed(error)),
        };
        let containers = client.containers_of(uid).await.map_err(failed)?;
        let pod = pods::recorded(uid, sandbox, status.as_ref(), containers);
        Ok(Some(pod))
    }
}

/// Which container is to be believed in: as the runtime tells it, or as it was written down when
/// its first process lived, which has ended since.
fn believed(
    loaded: Result<Container, RuntimeError>,
    noted: Option<Container>,
) -> Result<Container, RuntimeError> {
    match (loaded, noted) {
        // Nobody tells more than the note. The runtime may be late to tell of an end, too.
        (
            Err(
                RuntimeError::Away { .. } | RuntimeError::Call { .. } | RuntimeError::Unseen { .. },
            ),
            Some(ended),
        ) => Ok(ended),
        (loaded, _) => loaded,
    }
}

fn unusable(error: CallError) -> RuntimeError {
    error.during("use the container runtime")
}

/// Removes the records of containers that the runtime does not have any more.
async fn sweep(shared: Arc<Shared>) {
    // First the directories, then the containers: a new one is never taken for an old one.
    let containers = shared.containers.clone();
    let Ok(all) = blocking(move || Ok(traces::all(&containers))).await else {
        return;
    };
    let existing: HashSet<String> = match shared.client.containers().await {
        Ok(containers) => containers
            .into_iter()
            .map(|container| container.id)
            .collect(),
        Err(error) => return debug!(%error, "old records are not looked for"),
    };
    let removed = blocking(move || {
        for (dir, id) in all {
            if !existing.contains(&id)
                && let Err(error) = fs::remove_dir_all(&dir)
            {
                warn!(container = id, %error, "the records of an old container cannot be removed");
            }
        }
        Ok(())
    });
    if let Err(error) = removed.await {
        debug!(%error, "old records are not removed");
    }
}

/// The name of an attempt's exec: containerd allows fewer and shorter names than we do.
fn exec_id(attempt: &AttemptId) -> String {
    let hash = Sha256::digest(attempt.as_str().as_bytes());
    let hex: String = hash[..20]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("belay-{hex}")
}

/// A moment as nanoseconds since 1970; `None` for one that was never set.
fn nanos(timestamp: Option<&prost_types::Timestamp>) -> Option<i64> {
    let timestamp = timestamp.filter(|timestamp| timestamp.seconds > 0)?;
    timestamp
        .seconds
        .checked_mul(1_000_000_000)?
        .checked_add(i64::from(timestamp.nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_action::Incarnation;

    #[test]
    fn an_execs_name_is_short_and_the_attempts_own() {
        let name = |id: &str| exec_id(&AttemptId::new(id).unwrap());
        assert_eq!(name("a1").len(), 46);
        assert_eq!(name("a1"), name("a1"));
        assert_ne!(name("a1"), name(&"a".repeat(128)));
    }

    #[test]
    fn what_was_written_down_is_believed_where_the_runtime_does_not_know() {
        let container = |pod_uid: &str| {
            let incarnation = Incarnation {
                pod_uid: pod_uid.to_owned(),
                container: "c".to_owned(),
                id: id(),
            };
            Container::new(incarnation, None)
        };
        let problem = String::new;
        let (what, pid) = ("ask", 7);
        for unknown in [
            RuntimeError::Away {
                what,
                problem: problem(),
            },
            RuntimeError::Call {
                what,
                problem: problem(),
            },
            RuntimeError::Unseen { id: id(), pid },
        ] {
            let believed = believed(Err(unknown), Some(container("noted"))).unwrap();
            assert_eq!(believed.incarnation.pod_uid, "noted");
        }
        let gone = believed(
            Err(RuntimeError::NotFound { id: id() }),
            Some(container("noted")),
        );
        assert!(matches!(gone, Err(RuntimeError::NotFound { .. })));
        let told = believed(Ok(container("told")), Some(container("noted"))).unwrap();
        assert_eq!(told.incarnation.pod_uid, "told");
        assert!(believed(Err(RuntimeError::Unseen { id: id(), pid }), None).is_err());
    }

    fn id() -> ContainerId {
        ContainerId::new("c1").unwrap()
    }

    #[test]
    fn go_knows_a_time_that_is_none() {
        let time = |seconds, nanos| prost_types::Timestamp { seconds, nanos };
        assert_eq!(nanos(Some(&time(1, 5))), Some(1_000_000_005));
        assert_eq!(nanos(Some(&time(-62_135_596_800, 0))), None);
        assert_eq!(nanos(Some(&time(i64::MAX, 0))), None);
        assert_eq!(nanos(None), None);
    }
}
