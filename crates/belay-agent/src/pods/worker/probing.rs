//! Probing the containers that run. [`belay_core::probing`] decides, this carries out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belay_action::{AttemptId, ContainerId};
use belay_api::pod::{Container, Pod, RestartPolicy};
use belay_api::reasons;
use belay_core::probing::{Before, Kind, Probing, Tried, Verdict};
use belay_core::termination::{Cause, Record};
use futures::future::FutureExt as _;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use super::{Happening, Worker};
use crate::clock::boot_millis;
use crate::pods::hook::Place;
use crate::pods::probes::{self, Said, Try};
use crate::pods::terminate;
use crate::pods::tracked::Tracked;

impl Worker {
    /// Begins all tries that are due, and notes when the next one is.
    pub(super) fn probe(&mut self, pod: &Pod) {
        let now = boot_millis();
        let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
        let mut wake = None;
        for container in sidecars.chain(&pod.spec.containers) {
            let name = &container.name;
            self.follow_probes(container);
            if self.terminations.stops(name) {
                self.stop_killing_probes(name);
            }
            let Some(tracked) = self.tracked.get_mut(name) else {
                continue;
            };
            let (Some(id), Some(probing)) = (tracked.running().cloned(), &mut tracked.probing)
            else {
                continue;
            };
            let due = probing.due(now);
            for kind in &due {
                probing.begin(*kind, now);
            }
            if let Some(next) = probing.next_wake() {
                wake = Some(wake.map_or(next, |wake: i64| wake.min(next)));
            }
            for kind in due {
                self.try_probe(container, kind, id.clone());
            }
        }
        self.probe_at = wake.map(|wake| {
            let left = u64::try_from(wake.saturating_sub(now)).unwrap_or(0);
            Instant::now() + Duration::from_millis(left)
        });
    }

    /// Follows the probes of an incarnation that is up, or that was found by an agent which did not
    /// start it. What was reported of that one holds until its probes say otherwise.
    fn follow_probes(&mut self, container: &Container) {
        let Some(tracked) = self.tracked.get(&container.name) else {
            return;
        };
        let Some(instance) = &tracked.current else {
            return;
        };
        if tracked.starting || tracked.probing.is_some() {
            return;
        }
        let rules = probes::rules(container);
        if rules.is_empty() {
            return;
        }
        let age = Timestamp::now().duration_since(instance.started);
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX).max(0);
        let since = boot_millis().saturating_sub(age);
        let before = self.reported_of(&container.name, &instance.id);
        debug!(container = container.name, id = %instance.id, ?before, "its probes begin");
        if let Some(tracked) = self.tracked.get_mut(&container.name) {
            tracked.probing = Some(Probing::new(rules, since, before));
        }
    }

    /// What was last reported of exactly this incarnation.
    pub(super) fn reported_of(&self, container: &str, id: &ContainerId) -> Before {
        let id = format!("{}://{id}", self.context.runtime.name());
        let init = self.reported.init_container_statuses.iter().flatten();
        let main = self.reported.container_statuses.iter().flatten();
        init.chain(main)
            .find(|status| status.name == container && status.container_id.as_ref() == Some(&id))
            .map(|status| Before {
                started: status.started.unwrap_or(false),
                ready: status.ready,
            })
            .unwrap_or_default()
    }

    fn try_probe(&mut self, container: &Container, kind: Kind, id: ContainerId) {
        let suffix = match kind {
            Kind::Startup => "startup",
            Kind::Liveness => "live",
            Kind::Readiness => "ready",
        };
        let attempt = match AttemptId::new(format!("{id}.{suffix}")) {
            Ok(attempt) => attempt,
            Err(error) => {
                let said = Said::Unknown(error.to_string());
                let container = container.name.clone();
                let probed = Happening::Probed {
                    container,
                    id,
                    kind,
                    said,
                };
                return self.happenings.push(std::future::ready(probed).boxed());
            }
        };
        let cancel = CancellationToken::new();
        let key = (container.name.clone(), kind);
        let first = self.tries.insert(key, cancel.clone()).is_none();
        let place = Place {
            runtime: Arc::clone(&self.context.runtime),
            id: id.clone(),
            attempt,
            cancel,
        };
        let Some(one) = Try::new(container, kind, self.address(), place, first) else {
            return;
        };
        let container = container.name.clone();
        let trying = async move {
            Happening::Probed {
                container,
                id,
                kind,
                said: one.run().await,
            }
        };
        self.happenings.push(trying.boxed());
    }

    /// The container is being stopped.
    fn stop_killing_probes(&mut self, container: &str) {
        if let Some(tracked) = self.tracked.get_mut(container)
            && let Some(probing) = &mut tracked.probing
        {
            probing.stop();
        }
        for kind in [Kind::Startup, Kind::Liveness] {
            self.cancel_probe(container, kind);
        }
    }

    /// The container has ended.
    pub(super) fn cancel_probes(&mut self, container: &str) {
        for kind in Kind::ALL {
            self.cancel_probe(container, kind);
        }
    }

    fn cancel_probe(&mut self, container: &str, kind: Kind) {
        if let Some(cancel) = self.tries.remove(&(container.to_owned(), kind)) {
            cancel.cancel();
        }
    }

    pub(super) fn probed(
        &mut self,
        pod: &Pod,
        container: &str,
        id: &ContainerId,
        kind: Kind,
        said: &Said,
    ) {
        let Some(tracked) = self.tracked.get_mut(container) else {
            return;
        };
        if tracked.running() != Some(id) {
            return;
        }
        let Some(probing) = &mut tracked.probing else {
            return;
        };
        // Its end has another reason already.
        if kind != Kind::Readiness && self.terminations.stops(container) {
            return;
        }
        debug!(container, %id, ?kind, ?said, "probed");
        let tried = match said {
            Said::Succeeded => Tried::Success,
            Said::Failed(_) => Tried::Failure,
            Said::Unknown(_) | Said::Nothing => Tried::Nothing,
        };
        let verdict = probing.tried(kind, tried, boot_millis());
        if let Some(message) = probes::complaint(kind, said) {
            let about = self.reference(pod, Some(container));
            let events = &self.context.events;
            events.warning(about, reasons::UNHEALTHY, message);
        }
        match verdict {
            None => {}
            Some(verdict @ (Verdict::Started | Verdict::Ready | Verdict::NotReady)) => {
                info!(pod = pod.name(), container, ?verdict, "probed");
            }
            Some(Verdict::Kill(kind)) => self.kill_unhealthy(pod, container, kind),
        }
    }

    fn kill_unhealthy(&mut self, pod: &Pod, container: &str, kind: Kind) {
        let Some(declared) = pod.container(container) else {
            return;
        };
        let restarts = declared.is_sidecar() || pod.spec.restart_policy() != RestartPolicy::Never;
        let cause = match kind {
            Kind::Startup => Cause::StartupProbe { restarts },
            Kind::Liveness | Kind::Readiness => Cause::LivenessProbe { restarts },
        };
        if let Some(tracked) = self.tracked.get_mut(container) {
            tracked.condemned = restarts;
        }
        let grace = terminate::probe_grace(pod, probes::grace_seconds(declared, kind));
        self.terminations
            .end_container(container, cause, grace, &self.tracked);
    }
}

/// Takes note of the incarnations that an agent before this one ended so that others take their place:
/// their exit codes say nothing. `stops` is what the journal holds of this pod.
pub(super) fn condemn(
    pod: &Pod,
    tracked: &mut BTreeMap<String, Tracked>,
    stops: &[(String, Record)],
) {
    for (container, known) in tracked {
        let Some(current) = &known.current else {
            continue;
        };
        let id = current.id.as_str();
        let being_ended = stops.iter().any(|(_, record)| {
            let mut legs = record.legs.iter();
            record.cause.restarts() && legs.any(|leg| leg.container.id == id)
        });
        // Nothing waits for the record of an end to be on disk, and a disk may refuse it. What was
        // reported tells as much: who waits although it ended for good has been ended so.
        let Some(exit) = &current.exit else {
            known.condemned = being_ended;
            continue;
        };
        let declared = pod.container(container).and_then(|c| c.image.as_deref());
        let for_good = match pod.spec.restart_policy() {
            RestartPolicy::Always => false,
            RestartPolicy::OnFailure => exit.code == 0,
            // Only a changed image brings one back.
            RestartPolicy::Never => known.is_outdated(declared.unwrap_or_default()),
        };
        let mut statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        let waits = statuses.any(|status| {
            let same = status.container_id.as_deref().is_some_and(|full| {
                let (_, reported) = full.split_once("://").unwrap_or_default();
                reported == id
            });
            let state = status.state.as_ref();
            same && status.name == *container && state.is_some_and(|s| s.waiting.is_some())
        });
        known.condemned = being_ended || (for_good && waits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::tracked::Instance;
    use belay_runtime::{Exit, ExitReason};
    use serde_json::{Value, json};

    fn ended_with(code: i32) -> BTreeMap<String, Tracked> {
        let at = Timestamp::UNIX_EPOCH;
        let mut tracked = Tracked::default();
        tracked.started(Instance {
            exit: Some(Exit {
                code,
                signal: None,
                started: at,
                finished: at,
                reason: ExitReason::Completed,
            }),
            ..Instance::test("c1", 0)
        });
        [("a".to_owned(), tracked)].into()
    }

    fn condemned(policy: &str, code: i32, id: &str, state: &Value) -> bool {
        condemned_of("", policy, code, id, state)
    }

    fn condemned_of(image: &str, policy: &str, code: i32, id: &str, state: &Value) -> bool {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"restartPolicy": policy, "containers": [{"name": "a", "image": "new"}]},
            "status": {"containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "containerID": id, "state": state,
            }]},
        }))
        .unwrap();
        let mut tracked = ended_with(code);
        let known = tracked.get_mut("a").unwrap();
        known.current.as_mut().unwrap().image = image.to_owned();
        condemn(&pod, &mut tracked, &[]);
        tracked["a"].condemned
    }

    #[test]
    fn what_waits_although_it_ended_with_0_was_ended_by_a_probe() {
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let ended = json!({"terminated": {"exitCode": 0}});
        assert!(condemned("OnFailure", 0, "process://c1", &waiting));
        assert!(!condemned("OnFailure", 1, "process://c1", &waiting));
        assert!(!condemned("OnFailure", 0, "process://c0", &waiting));
        assert!(!condemned("OnFailure", 0, "process://c1", &ended));
        assert!(!condemned("Always", 0, "process://c1", &waiting));
    }

    #[test]
    fn what_waits_although_it_is_never_restarted_was_ended_for_another_image() {
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff"}});
        let ended = json!({"terminated": {"exitCode": 143}});
        let of = |image, state| condemned_of(image, "Never", 143, "containerd://c1", state);
        assert!(of("old", &waiting));
        assert!(!of("new", &waiting) && !of("old", &ended));
    }
}
