//! One start of one container, apart from the worker: its image, its configuration, the start
//! itself. However long one of them takes or hangs, the worker goes on with everything else.

use std::sync::Arc;

use belay_action::ContainerId;
use belay_api::gates::Feature;
use belay_api::pod::{Container, Pod};
use belay_api::reasons;
use belay_runtime::{
    ContainerConfig, ContainerStatus, Image, ImageError, Mount, Pull, RuntimeError, rotation,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::context::Host;
use crate::pods::config::Draft;
use crate::pods::hook::causes;
use crate::pods::message::{self, Source};
use crate::pods::tracked::Instance;
use crate::pods::waiting::Waiting;
use crate::pods::{images, network, security, volumes};

/// What is to be started, and where.
pub(super) struct Launch {
    pub(super) context: Arc<Host>,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) draft: Draft,
    pub(super) sandbox: String,
    /// Where the pod is reached.
    pub(super) address: String,
    /// Who is told of, in events.
    pub(super) about: ObjectReference,
    /// The pod ends. What has not begun does not begin any more.
    pub(super) cancel: CancellationToken,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Outcome {
    Started(Box<Instance>),
    /// One runs already that nobody knew of: the runtime could not tell of it when it was asked.
    Found(Box<Instance>),
    /// There is no image.
    NoImage {
        waiting: Waiting,
        away: bool,
    },
    /// The spec cannot be run.
    NotConfigured(Waiting),
    Failed(RuntimeError),
    /// Nothing was begun.
    GivenUp,
}

impl Launch {
    pub(super) async fn run(mut self) -> Outcome {
        let image = tokio::select! {
            image = self.image() => image,
            // An image that is on its way may come; nobody waits for it.
            () = self.cancel.cancelled() => return Outcome::GivenUp,
        };
        let image = match image {
            Ok(image) => image,
            Err(error) => return self.no_image(error),
        };
        let config = match self.config(&image).await {
            Ok(config) => config,
            Err(waiting) => return Outcome::NotConfigured(waiting),
        };
        if self.cancel.is_cancelled() {
            return Outcome::GivenUp;
        }
        match self.start(&config, &image).await {
            Ok(instance) => Outcome::Started(Box::new(instance)),
            Err(RuntimeError::StillRunning { id }) => self.find(&id).await,
            Err(error) => {
                if let RuntimeError::StartFailed { .. } = error {
                    self.clear_up(config).await;
                }
                Outcome::Failed(error)
            }
        }
    }

    async fn config(&mut self, image: &Image) -> Result<ContainerConfig, Waiting> {
        security::verify_non_root(&self.pod, &self.container, &image.user)?;
        let mounts = std::mem::take(&mut self.draft.mounts);
        let draft = &self.draft.config;
        let mut mounts = volumes::prepare(&self.context.data_dir, draft, mounts).await?;
        // Without an image there is no place of the container's own to write to.
        if !image.id.is_empty() {
            mounts.extend(self.message_mount().await);
            mounts.extend(self.hosts_mount(&mounts).await);
        }
        let stop_signal = self.container.declared_stop_signal();
        let gate = Feature::ContainerStopSignals;
        let stop_signal = stop_signal.filter(|_| self.context.gates.enabled(gate));
        Ok(ContainerConfig {
            sandbox: self.sandbox.clone(),
            image_id: image.id.clone(),
            stop_signal: stop_signal.map(|signal| signal.to_string()),
            mounts,
            ..draft.clone()
        })
    }

    /// Where the container may say why it ends. It is no reason not to start one.
    async fn message_mount(&self) -> Option<Mount> {
        let dir = volumes::dir(&self.context.data_dir, self.pod.uid());
        let (container, config) = (self.container.clone(), self.draft.config.clone());
        let made = tokio::task::spawn_blocking(move || message::mount(&dir, &container, &config));
        match made.await.unwrap_or_else(|error| Err(error.into())) {
            Ok(mount) => Some(mount),
            Err(error) => {
                warn!(container = self.container.name, %error, "no place for its last message");
                None
            }
        }
    }

    /// The names of hosts that it knows. It is no reason not to start one.
    async fn hosts_mount(&self, mounts: &[Mount]) -> Option<Mount> {
        let dir = volumes::dir(&self.context.data_dir, self.pod.uid());
        let (pod, name) = (Arc::clone(&self.pod), self.container.name.clone());
        let (address, mounts) = (self.address.clone(), mounts.to_vec());
        let made = tokio::task::spawn_blocking(move || {
            network::hosts_mount(&dir, &pod, &name, &address, &mounts)
        });
        match made.await.unwrap_or_else(|error| Err(error.into())) {
            Ok(mount) => mount.map(|mount| Mount {
                read_only: self.draft.config.security.read_only_root,
                ..mount
            }),
            Err(error) => {
                warn!(container = self.container.name, %error, "no names of hosts for it");
                None
            }
        }
    }

    /// Removes the files of a container that could not be run: the next one has its own.
    async fn clear_up(&self, config: ContainerConfig) {
        let dir = volumes::dir(&self.context.data_dir, self.pod.uid());
        let cleared = tokio::task::spawn_blocking(move || {
            message::forget(&dir, &config);
            let _ = rotation::remove(&config.log_path);
        });
        // What stays goes with the pod.
        let _ = cleared.await;
    }

    async fn image(&self) -> Result<Image, ImageError> {
        let runtime = &self.context.runtime;
        let name = self.container.image.as_deref().unwrap_or_default();
        let policy = images::pull_policy(&self.container);
        let here = match runtime.image(name, Pull::Never).await {
            // Images are not used here.
            Ok(image) if image.id.is_empty() => return Ok(image),
            Ok(image) => Some(image),
            Err(ImageError::NeverPull { .. }) if policy != Pull::Never => None,
            Err(error) => return Err(error),
        };
        if let Some(image) = here
            && policy != Pull::Always
        {
            let message = format!("Container image \"{name}\" already present on machine");
            self.tell(reasons::PULLED, message);
            return Ok(image);
        }
        if images::has_pull_secrets(&self.pod) {
            let message = format!(
                "imagePullSecrets are not supported by this agent: image \"{name}\" is pulled \
                 without credentials"
            );
            self.warn(reasons::FAILED_TO_RETRIEVE_IMAGE_PULL_SECRET, message);
        }
        self.tell(reasons::PULLING, format!("Pulling image \"{name}\""));
        let begun = Instant::now();
        let image = runtime.image(name, policy).await?;
        let took = begun.elapsed().as_millis();
        let message = format!(
            "Successfully pulled image \"{name}\" in {}.{:03}s",
            took / 1000,
            took % 1000
        );
        self.tell(reasons::PULLED, message);
        Ok(image)
    }

    /// In the kubelet's words.
    fn no_image(&self, error: ImageError) -> Outcome {
        let (reason, event, message, away) = match error {
            ImageError::InvalidName { image, problem } => (
                "InvalidImageName",
                reasons::INSPECT_FAILED,
                format!(
                    "Failed to apply default image tag \"{image}\": couldn't parse image name \
                     \"{image}\": {problem}"
                ),
                false,
            ),
            ImageError::NeverPull { image } => (
                "ErrImageNeverPull",
                reasons::ERR_IMAGE_NEVER_PULL,
                format!("Container image \"{image}\" is not present with pull policy of Never"),
                false,
            ),
            ImageError::Pull { image, problem } => {
                let told = format!("Failed to pull image \"{image}\": {problem}");
                self.warn(reasons::FAILED, told);
                ("ErrImagePull", reasons::FAILED, problem, false)
            }
            ImageError::Runtime(error) => {
                let image = self.container.image.as_deref().unwrap_or_default();
                let message = format!("Failed to inspect image \"{image}\": {}", causes(&error));
                let away = matches!(error, RuntimeError::Away { .. });
                ("ImageInspectError", reasons::INSPECT_FAILED, message, away)
            }
        };
        if event != reasons::FAILED {
            self.warn(event, message.clone());
        }
        self.warn(reasons::FAILED, format!("Error: {reason}"));
        let waiting = Waiting { reason, message };
        Outcome::NoImage { waiting, away }
    }

    async fn start(
        &self,
        config: &ContainerConfig,
        image: &Image,
    ) -> Result<Instance, RuntimeError> {
        let runtime = &self.context.runtime;
        let id = runtime.start(config).await?;
        let (started, image_stop_signal) = match runtime.state(&id).await {
            Ok(state) => (begun(&state.status), state.image_stop_signal),
            Err(error) => {
                warn!(container = %id, %error, "a new container cannot be looked at");
                (Timestamp::now(), image.stop_signal.clone())
            }
        };
        Ok(Instance {
            id,
            restart_count: config.restart_count,
            started,
            exit: None,
            sandbox: config.sandbox.clone(),
            image: config.image.clone(),
            image_id: config.image_id.clone(),
            image_stop_signal,
            messages: Source::of(Some(&self.container), config),
            message: None,
        })
    }

    async fn find(&self, id: &ContainerId) -> Outcome {
        match self.context.runtime.state(id).await {
            Ok(state) => {
                let messages = Source::of(Some(&self.container), &state.config);
                let mut instance: Instance = state.into();
                instance.messages = messages;
                Outcome::Found(Box::new(instance))
            }
            Err(error) => Outcome::Failed(error),
        }
    }

    fn tell(&self, reason: &'static str, message: String) {
        let events = &self.context.events;
        events.normal(self.about.clone(), reason, message);
    }

    fn warn(&self, reason: &'static str, message: String) {
        let events = &self.context.events;
        events.warning(self.about.clone(), reason, message);
    }
}

/// When a container began.
fn begun(status: &ContainerStatus) -> Timestamp {
    match status {
        ContainerStatus::Running { started } => *started,
        ContainerStatus::Exited(exit) => exit.started,
    }
}
