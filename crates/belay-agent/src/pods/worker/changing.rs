//! A container whose definition changes while it runs: its image, the one part that may.
//!
//! It is ended like any other, and another takes its place, whatever the restart policy says. An
//! init container that runs to its end is left alone, as a kubelet does.

use belay_api::pod::{Container, Pod};
use belay_core::termination::Cause;
use tracing::info;

use super::Worker;
use crate::pods::terminate;

impl Worker {
    /// Ends what runs and is made of another image than the pod wants.
    pub(super) fn replace_outdated(&mut self, pod: &Pod) {
        let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
        let grace = terminate::grace(pod, false);
        for Container { name, image, .. } in sidecars.chain(&pod.spec.containers) {
            let Some(known) = self.tracked.get_mut(name) else {
                continue;
            };
            let image = image.as_deref().unwrap_or_default();
            if known.running().is_none() || !known.is_outdated(image) {
                continue;
            }
            // One that is being ended already ends; its successor is made of what is wanted.
            known.condemned = true;
            let cause = Cause::DefinitionChanged;
            let begins = self
                .terminations
                .end_container(name, cause, grace, &self.tracked);
            if begins {
                info!(
                    pod = pod.name(),
                    container = name,
                    image,
                    "its image has changed"
                );
            }
        }
    }
}
