//! A container's `postStart` hook.
//!
//! The container counts as up when the hook has succeeded. One whose hook fails, or is cut short, has
//! not come up; it is ended like any other, its own `preStop` included, and started again as the
//! restart policy says.

use std::sync::Arc;

use belay_action::{AttemptId, ContainerId, Found};
use belay_api::gates::Feature;
use belay_api::pod::Pod;
use belay_api::reasons;
use belay_core::termination::{Cause, HookResult};
use futures::future::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::{Happening, Worker};
use crate::pods::hook::{self, Came, FOREVER, Hook, Place};
use crate::pods::terminate;

impl Worker {
    /// The `postStart` hook of a container, if it has one that is to be run.
    fn post_start_hook(&self, pod: &Pod, container: &str) -> Option<Result<Hook, String>> {
        let declared = pod.container(container)?;
        let handler = declared.lifecycle.as_ref()?.post_start.as_ref()?;
        let gates = self.context.gates;
        if handler.sleep.is_some() && !gates.enabled(Feature::PodLifecycleSleepAction) {
            return None;
        }
        let hook = hook::resolve(handler, declared, self.address());
        Some(hook.map_err(|why| format!("the hook {why}")))
    }

    /// Where the hook runs, with a token that ends it.
    fn post_start_place(&mut self, container: &str, id: &ContainerId) -> Option<Place> {
        let attempt = AttemptId::new(format!("{id}.poststart")).ok()?;
        let cancel = CancellationToken::new();
        self.post_starts
            .insert(container.to_owned(), cancel.clone());
        if let Some(tracked) = self.tracked.get_mut(container) {
            tracked.starting = true;
        }
        Some(Place {
            runtime: Arc::clone(&self.context.runtime),
            id: id.clone(),
            attempt,
            cancel,
        })
    }

    /// Runs the hook of a container that has just been started.
    pub(super) fn post_start(&mut self, pod: &Pod, container: &str, id: ContainerId) {
        let Some(hook) = self.post_start_hook(pod, container) else {
            return;
        };
        let Some(place) = self.post_start_place(container, &id) else {
            return;
        };
        let container = container.to_owned();
        let hooking = async move {
            let came = match hook {
                Ok(hook) => hook::run(&place, hook, FOREVER).await,
                Err(message) => Came::Ended(HookResult::Failed { message }),
            };
            Happening::PostStarted {
                container,
                id,
                came,
            }
        };
        self.happenings.push(hooking.boxed());
    }

    /// Goes on with the hook of a container that an earlier agent started. A command that provably
    /// never ran is run; what may have been done before is not done again.
    pub(super) fn find_post_start(&mut self, pod: &Pod, container: &str, id: ContainerId) {
        // What was reported as started had its hook done.
        if self.reported_of(container, &id).started {
            return;
        }
        let Some(hook) = self.post_start_hook(pod, container) else {
            return;
        };
        if self.terminations.stops(container) {
            // Nobody waits for it to come up, and it does not any more.
            if let Some(tracked) = self.tracked.get_mut(container) {
                tracked.starting = true;
            }
            return;
        }
        let Ok(hook @ Hook::Exec(_)) = hook else {
            return;
        };
        let Some(place) = self.post_start_place(container, &id) else {
            return;
        };
        let container = container.to_owned();
        let hooking = async move {
            let came = match hook::find(&place).await {
                Found::NeverStarted => hook::run(&place, hook, FOREVER).await,
                Found::Running(running) => hook::follow(&place, running).await,
                Found::Ended(report) => Came::Ended(hook::result(report)),
                Found::Lost => Came::Lost,
            };
            Happening::PostStarted {
                container,
                id,
                came,
            }
        };
        self.happenings.push(hooking.boxed());
    }

    /// The container has ended.
    pub(super) fn cancel_post_start(&mut self, container: &str, id: &ContainerId) {
        let tracked = self.tracked.get(container);
        if let Some(tracked) = tracked
            && tracked.current.as_ref().is_some_and(|i| i.id == *id)
            && let Some(cancel) = self.post_starts.remove(container)
        {
            cancel.cancel();
        }
    }

    /// The pod ends: nobody waits for it to come up.
    pub(super) fn cancel_post_starts(&mut self) {
        for (_, cancel) in std::mem::take(&mut self.post_starts) {
            cancel.cancel();
        }
    }

    pub(super) fn post_started(
        &mut self,
        pod: &Pod,
        container: &str,
        id: &ContainerId,
        came: Came,
    ) {
        let Some(tracked) = self.tracked.get_mut(container) else {
            return;
        };
        if tracked.running() != Some(id) {
            return;
        }
        self.post_starts.remove(container);
        debug!(container, %id, ?came, "its postStart hook has ended");
        let message = match came {
            // An agent before this one may have seen its end.
            Came::Ended(HookResult::Succeeded) | Came::Lost => {
                tracked.starting = false;
                return;
            }
            Came::Ended(HookResult::Failed { message }) => message,
            // Cancelled, because the container is to end anyway.
            Came::Ended(HookResult::Killed { .. }) => return,
        };
        if self.terminations.stops(container) {
            return;
        }
        let about = self.reference(pod, Some(container));
        self.context.events.warning(
            about,
            reasons::FAILED_POST_START_HOOK,
            format!("PostStartHook failed: {message}"),
        );
        let grace = terminate::grace(pod, false);
        let cause = Cause::PostStartFailed;
        self.terminations
            .end_container(container, cause, grace, &self.tracked);
    }
}
