//! Starting a container, as the worker sees it: begun here, carried out by a
//! [launch](super::launch), taken in here.

use std::sync::Arc;

use belay_api::pod::Pod;
use belay_api::reasons;
use belay_runtime::RuntimeError;
use futures::future::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use tracing::{debug, info, warn};

use super::launch::{Launch, Outcome};
use super::{Happening, Worker, reference};
use crate::pods::hook::causes;
use crate::pods::tracked::{FailedStart, Instance};
use crate::pods::waiting::{RUN_CONTAINER_ERROR, Waiting};
use crate::pods::{config, images, plan};

/// When a runtime that is away is asked again.
const AWAY: SignedDuration = SignedDuration::from_secs(1);
/// When a spec that cannot be run is looked at again: what it refers to may have come.
const CONFIG: SignedDuration = SignedDuration::from_secs(10);
/// How long a failed pull or start is shown as such before the wait for the next one is.
const SHOWN: SignedDuration = SignedDuration::from_secs(1);

impl Worker {
    /// Begins to start a container. There is a sandbox for it.
    pub(super) fn start(&mut self, pod: &Arc<Pod>, name: &str) {
        let Some(container) = pod.container(name) else {
            return;
        };
        let floor = self.floor.get(name).copied().unwrap_or(0);
        let known = self.tracked.get(name).cloned().unwrap_or_default();
        let restart_count = known.next_restart_count().max(floor);
        let found = self.provided.found();
        let node = self.config_node();
        let draft = config::container_config(pod, container, restart_count, node, &found);
        let draft = match draft {
            Ok(draft) => draft,
            Err(waiting) => {
                let image = container.image.clone().unwrap_or_default();
                return self.launched(pod, name, image, Outcome::NotConfigured(waiting));
            }
        };
        let launch = Launch {
            context: Arc::clone(&self.context),
            pod: Arc::clone(pod),
            container: container.clone(),
            draft,
            sandbox: self.site.id().to_owned(),
            address: self.address().to_owned(),
            about: reference(pod, Some(name)),
            cancel: self.launches.clone(),
        };
        self.tracked.entry(name.to_owned()).or_default().launching = true;
        let container = name.to_owned();
        let image = launch.container.image.clone().unwrap_or_default();
        let launching = async move {
            let outcome = launch.run().await;
            Happening::Launched {
                container,
                image,
                outcome,
            }
        };
        self.happenings.push(launching.boxed());
    }

    /// Whether a start or a sandbox is on its way, which may yet come to something.
    pub(super) fn is_launching(&self) -> bool {
        self.site.is_asked() || self.tracked.values().any(|known| known.launching)
    }

    /// A start has come to something.
    pub(super) fn launched(&mut self, pod: &Pod, name: &str, image: String, outcome: Outcome) {
        let now = Timestamp::now();
        let after = |pause: SignedDuration| now.saturating_add(pause).unwrap_or(Timestamp::MAX);
        let floor = self.floor.get(name).copied().unwrap_or(0);
        let known = self.tracked.entry(name.to_owned()).or_default();
        known.launching = false;
        let another = match &known.failed_start {
            Some(before) => before.image != image,
            None => known.is_outdated(&image),
        };
        if another {
            // How often another image failed says nothing of this one.
            known.forgive();
        }
        let mut failed = FailedStart {
            waiting: Waiting::creating(),
            at: now,
            until: now,
            then: None,
            crash: false,
            config: false,
            image,
        };
        match outcome {
            Outcome::Started(instance) => return self.started(pod, name, *instance, now),
            Outcome::Found(instance) => return self.found(pod, name, *instance),
            Outcome::GivenUp => return,
            Outcome::NoImage { waiting, away } => {
                if away {
                    failed.until = after(AWAY);
                } else {
                    known.pulls.failed(now);
                    failed.until = known.pulls.ready_at(now);
                }
                if waiting.reason == "ErrImagePull" {
                    let then = Waiting::pull_back_off(&failed.image, &waiting);
                    failed.then = Some((after(SHOWN), then));
                }
                failed.waiting = waiting;
            }
            Outcome::NotConfigured(waiting) => {
                failed.until = after(CONFIG);
                failed.config = true;
                // What is yet to be read is no failure.
                if !waiting.message.is_empty() {
                    let message = format!("Error: {}", waiting.message);
                    let about = reference(pod, Some(name));
                    let events = &self.context.events;
                    events.warning(about, reasons::FAILED, message);
                }
                failed.waiting = waiting;
            }
            Outcome::Failed(error) => {
                let message = causes(&error);
                warn!(pod = pod.name(), container = name, message, "cannot start");
                let reason = match &error {
                    RuntimeError::StartFailed {
                        reason: "InvalidConfig",
                        ..
                    } => "CreateContainerConfigError",
                    RuntimeError::StartFailed { .. } => RUN_CONTAINER_ERROR,
                    _ => "CreateContainerError",
                };
                if matches!(error, RuntimeError::Away { .. }) {
                    failed.until = after(AWAY);
                } else {
                    failed.crash = true;
                    let ended = known.ended().unwrap_or(now);
                    known.backoff.restarted(ended, now);
                    failed.until = known.backoff.ready_at(now);
                }
                let about = reference(pod, Some(name));
                let told = format!("Error: {message}");
                self.context.events.warning(about, reasons::FAILED, told);
                failed.waiting = Waiting { reason, message };
                if failed.is_start_error() {
                    known.not_run = Some(known.next_restart_count().max(floor));
                    let then = plan::back_off(pod, name, known, now);
                    failed.then = Some((after(SHOWN), then));
                }
            }
        }
        if let Some(known) = self.tracked.get_mut(name) {
            known.failed_start = Some(failed);
        }
        // Maybe because what it was to be started in is gone.
        self.site.doubt();
    }

    /// Takes over an incarnation that an agent before this one started.
    fn found(&mut self, pod: &Pod, name: &str, instance: Instance) {
        let id = instance.id.clone();
        info!(pod = self.uid, container = name, %id, "adopted");
        if self.take_in(name, instance) {
            self.find_post_start(pod, name, id);
        }
    }

    /// Another incarnation is there, whoever started it. Returns whether its `postStart` hook matters.
    fn take_in(&mut self, name: &str, instance: Instance) -> bool {
        let id = instance.id.clone();
        let known = self.tracked.entry(name.to_owned()).or_default();
        if let Some(dropped) = known.started(instance) {
            self.remove_later(dropped);
        }
        self.terminations.came_back(name, &id);
        // It is to be forgotten with the others, however late it comes.
        if let Some(ending) = &mut self.ending {
            ending.not_torn_down();
        }
        // It may have been started in a sandbox that is gone by now.
        self.leave_sandbox();
        self.wait_for(name, id);
        // A pod that ends has nobody who waits for it to come up.
        self.terminations.pod_cause().is_none()
    }

    /// Something that specs refer to has changed: what could not be made of them may be now.
    pub(super) fn reconsider(&mut self) {
        let now = Timestamp::now();
        for known in self.tracked.values_mut() {
            if let Some(failed) = &mut known.failed_start
                && failed.config
            {
                failed.until = now;
            }
        }
    }

    fn config_node(&self) -> config::Node<'_> {
        config::Node {
            name: &self.context.node_name,
            address: &self.context.node_address,
            pod_address: self.address(),
            cpus: self.context.cpus,
            memory: self.context.memory,
            data_dir: &self.context.data_dir,
        }
    }

    fn started(&mut self, pod: &Pod, name: &str, instance: Instance, now: Timestamp) {
        debug!(pod = pod.name(), container = name, id = %instance.id, "started");
        let about = reference(pod, Some(name));
        let events = &self.context.events;
        let created = format!("Created container: {name}");
        events.normal(about.clone(), reasons::CREATED, created);
        let told = format!("Started container {name}");
        events.normal(about.clone(), reasons::STARTED, told);
        let declared = pod.container(name).and_then(|c| c.declared_stop_signal());
        let written = instance.image_stop_signal.as_deref();
        if let Some(written) = written
            && declared.is_none()
            && images::stop_signal(written).is_none()
        {
            let message = format!(
                "the image of container {name} asks for the stop signal \"{written}\", which there \
                 is not; it is stopped with SIGTERM"
            );
            events.warning(about, reasons::INVALID_STOP_SIGNAL, message);
        }
        let id = instance.id.clone();
        if instance.restart_count > 0 {
            self.context.metrics.restarts.inc();
        }
        let known = self.tracked.entry(name.to_owned()).or_default();
        if let Some(ended) = known.ended()
            && !known.is_outdated(&instance.image)
        {
            known.backoff.restarted(ended, now);
        }
        if self.take_in(name, instance) {
            self.post_start(pod, name, id);
        }
    }
}
