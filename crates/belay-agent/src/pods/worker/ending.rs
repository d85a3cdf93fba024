//! The end of a pod on this node.
//!
//! Its containers are ended; what is left of it in the runtime is taken down while its last status
//! is reported; its object is deleted; then its traces on disk go.

use std::sync::Arc;
use std::time::Duration;

use belay_action::ContainerId;
use belay_api::pod::Pod;
use belay_core::termination::Cause;
use belay_runtime::RuntimeError;
use futures::future::{FutureExt as _, join_all};
use futures::stream::StreamExt as _;
use jiff::Timestamp;
use tokio::time::Instant;
use tracing::{info, warn};

use super::launch::Outcome;
use super::{Desired, Happening, Worker, earliest_time, providing};
use crate::context::Host;
use crate::crash;
use crate::pods::hook::PAUSE;
use crate::pods::status::Over;
use crate::pods::{config, plan, report, terminate};

/// How long the object of a pod whose containers have ended waits for a runtime that does not come
/// to end the rest or to take it down. That goes on when the object is gone.
pub(super) const TEAR_DOWN: Duration = Duration::from_secs(10);

/// The end of the pod, once it has begun.
#[derive(Debug)]
pub(super) struct Ending {
    /// The grace that was asked for last.
    asked: Duration,
    /// Whether the final status has been reported, or nobody is left to report it to.
    pub(super) told: bool,
    down: Down,
    /// Counts how often the runtime was asked to forget: what came late is asked for once more.
    round: u32,
    pub(super) deleting: bool,
    /// Whether the object has been deleted as far as this node can.
    pub(super) deleted: bool,
}

/// How far the runtime is with forgetting the pod.
#[derive(Debug, Clone, Copy)]
enum Down {
    No,
    UnderWay { since: Instant },
    Yes,
}

impl Ending {
    pub(super) fn torn_down(&mut self, round: u32) {
        if matches!(self.down, Down::UnderWay { .. }) && self.round == round {
            self.down = Down::Yes;
        }
    }

    /// The runtime has something more to forget.
    pub(super) fn not_torn_down(&mut self) {
        self.down = Down::No;
    }
}

impl Worker {
    /// Whether the pod is to leave the node, by the API's word or by that of the journal.
    pub(super) fn ends(&self, desired: &Desired) -> bool {
        let journalled = match self.terminations.pod_cause() {
            // Such a pod has ended and stays.
            None | Some(Cause::PodCompleted | Cause::DeadlineExceeded) => false,
            Some(_) => true,
        };
        let asked = match desired {
            Desired::Known(pod) => pod.is_terminating(),
            Desired::Gone(_) => true,
        };
        asked || self.ending.is_some() || journalled
    }

    /// One step of the pod's end. Returns whether nothing is left to do but to clean up.
    pub(super) fn end(&mut self, desired: &Desired) -> bool {
        let gone = matches!(desired, Desired::Gone(_));
        let pod = desired.pod();
        let grace = terminate::grace(pod, gone);
        match &mut self.ending {
            None => self.begin_end(gone, grace),
            Some(ending) if grace < ending.asked => {
                ending.asked = grace;
                self.terminations.shrink(grace);
            }
            Some(_) => {}
        }
        self.terminations.end_latecomers(grace, &self.tracked);
        let plan = plan::Plan {
            initialized: plan::initialized(pod, &self.tracked),
            ..plan::Plan::default()
        };
        if !self.is_stopped(grace) {
            self.report(pod, &plan, Over::No);
            return false;
        }
        let Some(ending) = &self.ending else {
            return false;
        };
        if gone || ending.deleted {
            return true;
        }
        let is_down = self.is_down();
        if self.ending.as_ref().is_some_and(|ending| !ending.told) {
            let told = !self.report(pod, &plan, Over::Stopped);
            if told && let Some(ending) = &mut self.ending {
                ending.told = true;
            }
        }
        let ready = self
            .ending
            .as_ref()
            .is_some_and(|ending| ending.told && !ending.deleting);
        if ready && is_down && self.retry_at.is_none() && !self.reporting {
            if let Some(ending) = &mut self.ending {
                ending.deleting = true;
            }
            crash::at(crash::BEFORE_DELETION);
            let deletion = report::delete(Arc::clone(&self.context), Arc::clone(pod));
            self.happenings
                .push(deletion.map(Happening::Deleted).boxed());
        }
        false
    }

    /// Whether the runtime has forgotten the pod, or had its time to do so. It is asked to.
    fn is_down(&mut self) -> bool {
        let down = self.ending.as_ref().map_or(Down::No, |ending| ending.down);
        match down {
            Down::Yes => true,
            Down::UnderWay { since } => {
                let left = (since + TEAR_DOWN).saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    let until = Timestamp::now().saturating_add(left);
                    self.wake = earliest_time(self.wake, until.ok());
                }
                left.is_zero()
            }
            Down::No => {
                let since = Instant::now();
                let mut round = 0;
                if let Some(ending) = &mut self.ending {
                    ending.down = Down::UnderWay { since };
                    ending.round = ending.round.wrapping_add(1);
                    round = ending.round;
                }
                let (context, uid) = (Arc::clone(&self.context), self.uid.clone());
                let ids = self.incarnations();
                let down = async move {
                    tear_down(&context, &uid, ids).await;
                    crash::at(crash::TORN_DOWN);
                    Happening::TornDown { round }
                };
                self.happenings.push(down.boxed());
                false
            }
        }
    }

    /// All that the runtime may know.
    fn incarnations(&self) -> Vec<ContainerId> {
        let tracked = self.tracked.values();
        let instances = tracked.flat_map(|known| [&known.current, &known.previous]);
        instances.flatten().map(|one| one.id.clone()).collect()
    }

    /// The pod's end begins, or an agent before this one began it.
    fn begin_end(&mut self, gone: bool, grace: Duration) {
        match self.terminations.pod_cause() {
            None | Some(Cause::PodCompleted | Cause::DeadlineExceeded) => {
                let cause = if gone {
                    Cause::PodVanished
                } else {
                    Cause::PodDeleted
                };
                self.begin_stop(cause, grace);
            }
            Some(_) => {
                self.cancel_post_starts();
                self.terminations.shrink(grace);
            }
        }
        // A pod that ended before and has no containers left here has said all it had to say.
        let mut known = self.tracked.values();
        let arrived = !self.owed && !self.reporting;
        let told = self.has_ended() && arrived && known.all(|known| known.current.is_none());
        self.ending = Some(Ending {
            asked: grace,
            told,
            down: Down::No,
            round: 0,
            deleting: false,
            deleted: false,
        });
    }

    /// Removes every trace of the pod on this node. Nobody waits for it any more, and it takes as
    /// long as the runtime does.
    pub(super) async fn clean_up(mut self, pod: &Pod) {
        let mut down = matches!(
            self.ending.as_ref().map(|ending| ending.down),
            Some(Down::Yes)
        );
        let mut ids = self.incarnations();
        // What was begun before the end began may still come.
        while self.is_launching() {
            down = false;
            match self.happenings.next().await {
                Some(Happening::Launched {
                    container, outcome, ..
                }) => {
                    if let Outcome::Started(instance) | Outcome::Found(instance) = outcome {
                        ids.push(instance.id);
                    }
                    if let Some(known) = self.tracked.get_mut(&container) {
                        known.launching = false;
                    }
                }
                Some(Happening::Sandboxed(_)) => self.site.answered(),
                Some(Happening::VolumesSetUp(_)) => self.provided.settled(),
                Some(_) => {}
                None => break,
            }
        }
        self.terminations.outlast_hooks().await;
        self.volumes_settle().await;
        if !down {
            tear_down(&self.context, &self.uid, ids).await;
        }
        providing::remove_volumes(&self.context, &self.uid).await;
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
        self.context.journal.forget_stops(&self.uid).await;
        self.context.pods.remove(&self.uid);
        info!(
            pod = pod.name(),
            namespace = pod.namespace(),
            uid = self.uid,
            "has left the node"
        );
    }
}

/// Makes the runtime forget a pod whose end is over: its containers, then what they shared. Tried
/// until it is done.
async fn tear_down(context: &Host, uid: &str, ids: Vec<ContainerId>) {
    join_all(ids.iter().map(|id| remove(context, id))).await;
    let mut pause = PAUSE.0;
    while let Err(error) = context.runtime.remove_sandboxes(uid).await {
        warn!(pod = uid, %error, "its sandboxes could not be removed; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn remove(context: &Host, id: &ContainerId) {
    let mut pause = PAUSE.0;
    loop {
        let error = match context.runtime.remove(id).await {
            Ok(()) | Err(RuntimeError::NotFound { .. }) => return,
            // One that came after everybody had stopped waiting for it.
            Err(RuntimeError::StillRunning { .. }) => match context.runtime.kill_tree(id).await {
                Ok(survivors) if survivors.is_empty() => continue,
                Ok(survivors) => {
                    let survivors = survivors.join(", ");
                    return warn!(container = %id, survivors, "could not be killed");
                }
                Err(RuntimeError::NotFound { .. }) => return,
                Err(error) => error,
            },
            // What a CRI runtime refuses now it may do when it is less busy.
            Err(error @ RuntimeError::Call { .. }) => error,
            Err(error) if error.is_transient() => error,
            Err(error) => return warn!(container = %id, %error, "could not be removed"),
        };
        warn!(container = %id, %error, "could not be removed; trying again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::watch;

    use super::*;
    use crate::pods::Found;
    use crate::pods::terminate::tests::{Stage, Stubborn};
    use crate::pods::tracked::Instance;

    /// A hook that was under way when the agent was killed, and of which a runtime that refuses
    /// everything does not tell.
    #[tokio::test]
    async fn a_cancelled_hook_of_which_nobody_tells_does_not_keep_a_pod_whose_containers_have_ended()
     {
        let hook = json!({"preStop": {"exec": {"command": ["sleep", "600"]}}});
        let containers = json!([{"name": "web", "lifecycle": hook}]);
        let stage = Stage::new(Stubborn::default(), &containers);
        let grace = Duration::from_secs(600);
        let mut before = stage.terminations();
        before.end_pod(Cause::PodDeleted, grace, &stage.tracked);
        before.leave().await;

        let (_desired, desired) = watch::channel(Desired::Known(Arc::clone(&stage.pod)));
        let (_seen, seen) = watch::channel(Vec::new());
        let host = Arc::clone(&stage.host);
        let begun = Some(stage.terminations());
        let mut worker = Worker::new(host, desired, seen, Found::default(), begun);
        let id = ContainerId::new("web-1").unwrap();
        assert!(!worker.terminations.only_hooks_are_left());
        worker.terminations.exited("web", &id);
        assert!(worker.terminations.only_hooks_are_left());
        assert!(!worker.is_stopped(grace));
        tokio::time::pause();
        tokio::time::advance(TEAR_DOWN).await;
        assert!(worker.is_stopped(grace));
        assert!(!worker.terminations.pod_is_over());
    }

    #[tokio::test]
    async fn what_could_not_be_removed_for_a_moment_is_removed_after_it() {
        let stage = Stage::new(Stubborn::default(), &json!([]));
        let no_descriptor = RuntimeError::Io {
            what: "read",
            path: "state".into(),
            source: std::io::Error::other("too many open files"),
        };
        let removals = [Err(no_descriptor), Ok(())];
        stage.runtime.removals.lock().unwrap().extend(removals);
        remove(&stage.host, &ContainerId::new("web-1").unwrap()).await;
        assert!(stage.runtime.removals.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn whatever_comes_up_when_all_else_is_torn_down_is_torn_down_too_and_has_no_hook() {
        let hook = json!({"postStart": {"exec": {"command": ["true"]}}});
        let containers = json!([{"name": "web", "image": "one", "lifecycle": hook}]);
        let outcomes: [fn(Box<Instance>) -> Outcome; 2] = [Outcome::Started, Outcome::Found];
        for outcome in outcomes {
            let stage = Stage::new(Stubborn::default(), &containers);
            let (_desired, desired) = watch::channel(Desired::Known(Arc::clone(&stage.pod)));
            let (_seen, seen) = watch::channel(Vec::new());
            let host = Arc::clone(&stage.host);
            let mut worker = Worker::new(host, desired, seen, Found::default(), None);
            worker.begin_end(false, Duration::from_secs(600));
            // Nothing of the pod was left in the runtime.
            worker.ending.as_mut().unwrap().down = Down::Yes;
            assert!(worker.is_down());
            let instance = Box::new(Instance::test("web-7", 7));
            worker.launched(&stage.pod, "web", "one".to_owned(), outcome(instance));
            assert!(!worker.is_down());
            assert_eq!(worker.incarnations().len(), 1);
            assert!(worker.post_starts.is_empty());
        }
    }
}
