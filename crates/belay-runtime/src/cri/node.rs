//! Running pods on a CRI runtime.
//!
//! ```text
//!   sandbox ──────── ListPodSandbox by owner and UID ──> ready: that one
//!                       └─ dead: StopPodSandbox ──> RunPodSandbox with the next attempt
//!   start ────────── what a call before left ──> CreateContainer ──> StartContainer
//!   list, state ──── ListContainers by owner, ContainerStatus; the configuration is an annotation
//!   wait ─────────── the kernel (pidfd), then ContainerStatus, or the kernel again
//!   kill_tree ────── the kernel (control group)
//! ```
//!
//! **Invariant:** everything that is needed to adopt a pod is in the runtime itself, in labels and
//! annotations. Only what has the label of this node is ever listed, ended or removed.
//!
//! **Invariant:** there is one incarnation of a container at a time. Names in the runtime are made
//! of pod, container and attempt, and a start first clears up what a start before it may have left,
//! whoever gave that up.
//!
//! **Invariant:** ending a container needs no runtime that answers.

mod end;
mod launch;
mod logs;
mod sandbox;
mod settle;
mod translate;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use belay_action::ContainerId;
use futures::stream::{self, StreamExt};
use serde_json::Value;
use tokio::sync::{OnceCell, OwnedMutexGuard};
use tracing::debug;

use super::client::node::shown;
use super::client::{CallError, Client};
use super::pause;
use super::reference::Reference;
use super::{CriRuntime, Shared, group};
use crate::blocking::blocking;
use crate::{
    ContainerConfig, ContainerState, Exit, Image, ImageError, ImageUser, Listed, PodConfig,
    PodRuntime, Pull, RuntimeError, Sandbox,
};

/// Whose sandboxes and containers these are.
pub(crate) const OWNER: &str = "belay.dev/node";
/// How many containers are asked for at once.
const AT_ONCE: usize = 8;

/// What whoever runs pods has beyond whoever acts on them.
#[derive(Debug)]
pub(crate) struct Node {
    /// The value of the label by which its own are told from others'.
    owner: String,
    turns: Turns,
    addresses: sandbox::Addresses,
    settings: OnceCell<Settings>,
}

/// What is asked of the runtime once.
#[derive(Debug, Default)]
struct Settings {
    /// Control groups are systemd's.
    systemd: bool,
}

impl Node {
    pub(crate) fn new(owner: &str) -> Self {
        Node {
            owner: owner.to_owned(),
            turns: Turns::default(),
            addresses: sandbox::Addresses::default(),
            settings: OnceCell::new(),
        }
    }

    async fn settings(&self, client: &Client) -> Result<&Settings, CallError> {
        let ask = async || {
            let configuration = client.configuration().await?;
            let configuration: Value = serde_json::from_str(&configuration).unwrap_or_default();
            if let Some(image) = pause::wanted(&configuration) {
                pause::provide(client, &image).await?;
            }
            let runtimes = &configuration["containerd"];
            let name = runtimes["defaultRuntimeName"].as_str().unwrap_or("runc");
            let systemd = &runtimes["runtimes"][name]["options"]["SystemdCgroup"];
            Ok(Settings {
                systemd: systemd.as_bool().unwrap_or_default(),
            })
        };
        self.settings.get_or_try_init(ask).await
    }

    /// The control group of a pod.
    fn group(&self, uid: &str) -> String {
        if self.settings.get().is_some_and(|settings| settings.systemd) {
            format!("belay-pod{}.slice", uid.replace('-', "_"))
        } else {
            format!("/belay/pod{uid}")
        }
    }
}

/// Who is at a pod or a container: one after the other.
#[derive(Debug, Default)]
struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    fn of(&self, key: &str) -> Arc<tokio::sync::Mutex<()>> {
        // A map is whole whatever happened to whoever held it.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(all.entry(key.to_owned()).or_default())
    }

    async fn take(&self, key: &str) -> OwnedMutexGuard<()> {
        self.of(key).lock_owned().await
    }

    /// `None` when somebody has it.
    fn try_take(&self, key: &str) -> Option<OwnedMutexGuard<()>> {
        self.of(key).try_lock_owned().ok()
    }
}

/// The turn of whoever starts a container.
fn container_turn(uid: &str, name: &str) -> String {
    format!("{uid}/{name}")
}

impl Shared {
    /// `None` beside a kubelet.
    fn node(&self) -> Result<&Node, RuntimeError> {
        self.node.as_deref().ok_or_else(|| RuntimeError::Call {
            what: "run pods",
            problem: "somebody else runs the pods of this runtime".to_owned(),
        })
    }
}

/// Goes on to its end even when the caller is dropped.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, RuntimeError>> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(RuntimeError::Away {
                what: "use the container runtime",
                problem: error.to_string(),
            }),
        },
    }
}

#[async_trait]
impl PodRuntime for CriRuntime {
    async fn sandbox(&self, pod: &PodConfig) -> Result<Sandbox, RuntimeError> {
        to_its_end(sandbox::obtain(Arc::clone(&self.shared), pod.clone())).await
    }

    async fn sandboxes(&self) -> Result<Vec<Sandbox>, RuntimeError> {
        sandbox::all(&self.shared).await
    }

    async fn stop_sandboxes(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        let shared = Arc::clone(&self.shared);
        to_its_end(sandbox::stop(shared, pod_uid.to_owned())).await
    }

    async fn remove_sandboxes(&self, pod_uid: &str) -> Result<(), RuntimeError> {
        to_its_end(sandbox::remove(
            Arc::clone(&self.shared),
            pod_uid.to_owned(),
        ))
        .await
    }

    async fn image(&self, image: &str, pull: Pull) -> Result<Image, ImageError> {
        if let Err(problem) = Reference::parse(image) {
            let image = image.to_owned();
            return Err(ImageError::InvalidName { image, problem });
        }
        let client = &self.shared.client;
        let failed = |error: CallError| ImageError::Runtime(error.during("look for an image"));
        if pull != Pull::Always {
            let found = client.image(image).await.map_err(failed)?;
            if let Some(found) = told(&found) {
                return Ok(found);
            }
            if pull == Pull::Never {
                let image = image.to_owned();
                return Err(ImageError::NeverPull { image });
            }
        }
        let pulled = client.pull(image).await.map_err(|error| match error {
            CallError::Answer(status) => ImageError::Pull {
                image: image.to_owned(),
                problem: status.message().to_owned(),
            },
            away => ImageError::Runtime(away.during("pull an image")),
        })?;
        let found = client.image(&pulled).await.map_err(failed)?;
        told(&found).ok_or_else(|| ImageError::Pull {
            image: image.to_owned(),
            problem: "it was pulled, and is gone again".to_owned(),
        })
    }

    async fn start(&self, config: &ContainerConfig) -> Result<ContainerId, RuntimeError> {
        let runtime = self.clone();
        let config = config.clone();
        to_its_end(async move { Box::pin(launch::start(&runtime, &config)).await }).await
    }

    async fn list(&self) -> Result<Listed, RuntimeError> {
        let node = self.shared.node()?;
        let labels = [(OWNER, node.owner.as_str())];
        let found = self.shared.client.containers_with(&labels).await;
        let found = found.map_err(|error| error.during("list the containers"))?;
        let mut asked = stream::iter(found)
            .map(async |container| {
                let id = ContainerId::new(&container.id).ok()?;
                let state = self.settled(&id).await;
                if let Err(RuntimeError::NotFound { .. }) = state {
                    // Nobody waits for it, least of all who wants to know what runs.
                    tokio::spawn(launch::clear_up(Arc::clone(&self.shared), container));
                    return None;
                }
                Some((id, state))
            })
            .buffer_unordered(AT_ONCE);
        let mut listed = Listed::default();
        while let Some(answer) = asked.next().await {
            if let Some((id, state)) = answer {
                listed.take(id, state);
            }
        }
        Ok(listed.sorted())
    }

    async fn state(&self, id: &ContainerId) -> Result<ContainerState, RuntimeError> {
        self.settled(id).await
    }

    async fn wait(&self, id: &ContainerId) -> Result<Exit, RuntimeError> {
        self.ended(id).await
    }

    async fn kill_tree(&self, id: &ContainerId) -> Result<Vec<String>, RuntimeError> {
        if let Some(container) = self.shared.known().get(id) {
            container.killed.store(true, Ordering::Relaxed);
        }
        let id = id.to_string();
        blocking(move || group::kill_all(&id)).await
    }

    async fn bound_logs(&self) -> Result<(), RuntimeError> {
        logs::bound(&self.shared).await
    }

    async fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        match self.settled(id).await {
            Ok(state) if state.pid.is_some() => {
                return Err(RuntimeError::StillRunning { id: id.clone() });
            }
            Ok(_) => {}
            Err(RuntimeError::NotFound { .. }) => {
                self.shared.forget(id.as_str()).await;
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let removed = self.shared.client.remove_container(id.as_str()).await;
        removed.map_err(|error| error.during("remove a container"))?;
        self.shared.forget(id.as_str()).await;
        Ok(())
    }
}

impl Shared {
    /// Forgets a container that the runtime has forgotten, with the records of its attempts.
    async fn forget(&self, id: &str) {
        if let Ok(id) = ContainerId::new(id) {
            self.known().remove(&id);
        }
        let dir = self.containers.join(id);
        let removed = blocking(move || {
            if dir.exists() {
                std::fs::remove_dir_all(&dir).map_err(RuntimeError::io("remove", &dir))?;
            }
            Ok(())
        });
        if let Err(error) = removed.await {
            // The next sweep takes them.
            debug!(container = id, %error, "the records of a container are not removed");
        }
    }
}

/// An image as the agent has to know it.
fn told(answer: &super::protocol::runtime::v1::ImageStatusResponse) -> Option<Image> {
    let image = answer.image.as_ref()?;
    let info = answer.info.get("info").map_or("", String::as_str);
    let info: Value = serde_json::from_str(info).unwrap_or_default();
    let signal = info["imageSpec"]["config"]["StopSignal"].as_str();
    Some(Image {
        id: shown(image),
        stop_signal: signal
            .filter(|signal| !signal.is_empty())
            .map(str::to_owned),
        user: user(image),
    })
}

/// Who an image runs as: by number, or by a name that only its own files explain.
fn user(image: &super::protocol::runtime::v1::Image) -> ImageUser {
    let number = image.uid.as_ref().map(|uid| u32::try_from(uid.value));
    match number {
        Some(Ok(number)) => ImageUser::Id(number),
        None if image.username.is_empty() => ImageUser::default(),
        None | Some(Err(_)) => ImageUser::Name(image.username.clone()),
    }
}
