//! The end of a pod on this node.

use std::sync::Arc;
use std::time::Duration;

use belay_api::pod::Pod;
use belay_core::termination::Cause;
use belay_runtime::RuntimeError;
use futures::future::FutureExt as _;
use tracing::{info, warn};

use super::{Desired, Ending, Happening, Worker};
use crate::pods::{config, plan, report, terminate};

impl Worker {
    /// Whether the pod is to leave the node, by the API's word or by that of the journal.
    pub(super) fn ends(&self, desired: &Desired) -> bool {
        let journalled = match self.terminations.pod_cause() {
            // Such a pod has ended and stays.
            None | Some(Cause::PodCompleted) => false,
            Some(_) => true,
        };
        let asked = match desired {
            Desired::Known(pod) => pod.is_terminating(),
            Desired::Remembered(_) => false,
            Desired::Gone(_) => true,
        };
        asked || self.ending.is_some() || journalled
    }

    /// One step of the pod's end. Returns whether nothing is left to do.
    pub(super) fn end(&mut self, desired: &Desired) -> bool {
        let gone = matches!(desired, Desired::Gone(_));
        let pod = match desired {
            Desired::Known(pod) | Desired::Gone(pod) => pod,
            // The journal has said all that its containers need. What the API is to be told, and
            // whether the pod may go, waits for the API.
            Desired::Remembered(_) => return false,
        };
        let grace = terminate::grace(pod, gone);
        match &mut self.ending {
            None => self.begin_end(gone, grace),
            Some(ending) if grace < ending.asked => {
                ending.asked = grace;
                self.terminations.shrink(grace);
            }
            Some(_) => {}
        }
        self.wake = None;
        let running = self
            .tracked
            .values()
            .any(|tracked| tracked.running().is_some());
        if running || !self.terminations.pod_is_over() {
            let plan = plan::Plan {
                initialized: true,
                ..plan::Plan::default()
            };
            self.report(pod, &plan, false);
            return false;
        }
        let Some(ending) = &self.ending else {
            return false;
        };
        if gone || ending.deleted {
            return true;
        }
        if !ending.told {
            let plan = plan::Plan {
                initialized: true,
                ..plan::Plan::default()
            };
            let told = !self.report(pod, &plan, true);
            if told && let Some(ending) = &mut self.ending {
                ending.told = true;
            }
        }
        let ready = self
            .ending
            .as_ref()
            .is_some_and(|ending| ending.told && !ending.deleting);
        if ready && self.retry_at.is_none() && !self.reporting {
            if let Some(ending) = &mut self.ending {
                ending.deleting = true;
            }
            let deletion = report::delete(Arc::clone(&self.context), Arc::clone(pod));
            self.happenings
                .push(deletion.map(Happening::Deleted).boxed());
        }
        false
    }

    /// The pod's end begins, or an agent before this one began it.
    fn begin_end(&mut self, gone: bool, grace: Duration) {
        self.cancel_post_starts();
        match self.terminations.pod_cause() {
            None | Some(Cause::PodCompleted) => {
                let cause = if gone {
                    Cause::PodVanished
                } else {
                    Cause::PodDeleted
                };
                self.terminations.end_pod(cause, grace, &self.tracked);
            }
            Some(_) => self.terminations.shrink(grace),
        }
        // A pod that ended before and has no containers left here has said all it had to say.
        let ended = matches!(self.reported.phase.as_deref(), Some("Succeeded" | "Failed"));
        let told = ended && self.tracked.is_empty();
        self.ending = Some(Ending {
            asked: grace,
            told,
            deleting: false,
            deleted: false,
        });
    }

    /// Removes every trace of the pod on this node.
    pub(super) async fn clean_up(self, pod: &Pod) {
        let instances = self
            .tracked
            .into_values()
            .flat_map(|tracked| [tracked.current, tracked.previous])
            .flatten();
        for instance in instances {
            match self.context.runtime.remove(&instance.id).await {
                Ok(()) | Err(RuntimeError::NotFound { .. }) => {}
                Err(error) => warn!(container = %instance.id, %error, "could not be removed"),
            }
        }
        let logs = config::log_dir(
            &self.context.data_dir,
            pod.namespace(),
            pod.name(),
            &self.uid,
        );
        match tokio::fs::remove_dir_all(&logs).await {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => warn!(path = %logs.display(), %error, "logs could not be removed"),
        }
        self.terminations.leave().await;
        self.context.journal.forget_stop(&self.uid, None).await;
        self.context.pods.remove(&self.uid);
        info!(
            pod = pod.name(),
            namespace = pod.namespace(),
            uid = self.uid,
            "has left the node"
        );
    }
}
