//! The end of a pod on this node.

use std::sync::Arc;
use std::time::Duration;

use belay_action::ContainerId;
use belay_api::pod::{Container, Pod};
use belay_api::reasons;
use belay_runtime::RuntimeError;
use futures::future::FutureExt as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Desired, Ending, Happening, Worker};
use crate::clock::boot_millis;
use crate::journal::Stopping;
use crate::pods::{config, plan, report, status, stop};

impl Worker {
    /// One step of the pod's end. Returns whether nothing is left to do.
    pub(super) async fn end(&mut self, desired: &Desired) -> bool {
        let grace = stop::grace(&desired.pod, desired.gone);
        if self.ending.is_none() {
            self.begin_end(&desired.pod, grace);
        }
        self.wake = None;
        let Some(ending) = &mut self.ending else {
            return false;
        };
        let deadline = deadline(ending.started, grace);
        ending.deadline.send_if_modified(|at| {
            let earlier = deadline < *at;
            *at = deadline.min(*at);
            earlier
        });
        if self
            .tracked
            .values()
            .any(|tracked| tracked.running().is_some())
        {
            let plan = plan::Plan {
                initialized: true,
                ..plan::Plan::default()
            };
            self.report(&desired.pod, &plan, false);
            return false;
        }
        if desired.gone || ending.deleted {
            return true;
        }
        if !ending.told {
            let plan = plan::Plan {
                initialized: true,
                ..plan::Plan::default()
            };
            let told = !self.report(&desired.pod, &plan, true);
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
            let deletion = report::delete(Arc::clone(&self.context), Arc::clone(&desired.pod));
            self.happenings
                .push(deletion.map(Happening::Deleted).boxed());
        }
        false
    }

    /// The pod's end begins: all running containers are stopped at once.
    fn begin_end(&mut self, pod: &Pod, grace: Duration) {
        let now = boot_millis();
        let boot_id = &self.context.boot_id;
        // A restarted agent goes on with what is left of the grace.
        let recorded = self
            .context
            .journal
            .stop(&self.uid)
            .filter(|stop| stop.boot_id == *boot_id && stop.started <= now);
        let started = recorded.as_ref().map_or(now, |stop| stop.started);
        if recorded.is_none() {
            let stop = Stopping {
                boot_id: boot_id.clone(),
                started,
            };
            let (context, uid) = (Arc::clone(&self.context), self.uid.clone());
            // Not waited for: a crash before it is on disk gives the containers their grace again.
            tokio::spawn(async move {
                if let Err(error) = context.journal.put_stop(&uid, &stop).await {
                    warn!(pod = uid, %error, "the start of a termination could not be journalled");
                }
            });
        }
        let deadline = watch::Sender::new(deadline(started, grace));
        let running: Vec<(String, ContainerId)> = self
            .tracked
            .iter()
            .filter_map(|(name, tracked)| Some((name.clone(), tracked.running()?.clone())))
            .collect();
        for (name, id) in running {
            let fallback = Container::default();
            let container = pod.container(&name).unwrap_or(&fallback);
            let signal = status::stop_signal(container, self.context.gates);
            let about = self.reference(pod, Some(&name));
            self.context.events.normal(
                about,
                reasons::KILLING,
                format!("Stopping container {name}"),
            );
            let runtime = Arc::clone(&self.context.runtime);
            let deadline = deadline.subscribe();
            let stopping = async move {
                let stopped = stop::stop(runtime, id, signal, deadline).await;
                Happening::Stopped {
                    container: name,
                    stopped,
                }
            };
            self.happenings.push(stopping.boxed());
        }
        info!(
            pod = pod.name(),
            namespace = pod.namespace(),
            uid = self.uid,
            "stopping"
        );
        // A pod that ended before and has no containers left here has said all it had to say.
        let ended = matches!(self.reported.phase.as_deref(), Some("Succeeded" | "Failed"));
        let told = ended && self.tracked.is_empty();
        self.ending = Some(Ending {
            started,
            deadline,
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
        self.context.journal.forget_stop(&self.uid).await;
        self.context.pods.remove(&self.uid);
        info!(
            pod = pod.name(),
            namespace = pod.namespace(),
            uid = self.uid,
            "has left the node"
        );
    }
}

/// When the grace of an end that began at `started` is over.
fn deadline(started: i64, grace: Duration) -> Instant {
    let grace = i64::try_from(grace.as_millis()).unwrap_or(i64::MAX);
    let left = started.saturating_add(grace).saturating_sub(boot_millis());
    // Far enough away never comes.
    let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
    Instant::now() + left.min(Duration::from_secs(86_400 * 365))
}
