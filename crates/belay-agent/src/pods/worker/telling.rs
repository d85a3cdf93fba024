//! What a worker tells: the pod's status, events, and the table that others look things up in.

use std::sync::Arc;

use belay_api::pod::Pod;
use belay_api::reasons;
use futures::future::FutureExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;

use super::{Desired, Happening, Worker};
use crate::pods::status::Over;
use crate::pods::table::{ContainerView, PodView};
use crate::pods::tracked::Tracked;
use crate::pods::{plan, report, status};

/// A wait that has been told as an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BackOff {
    /// For the restart after the incarnation with this number.
    Restart(u32),
    /// For another try after the one that failed then.
    Try(Timestamp),
}

impl Worker {
    /// Reports the status if it differs from the one reported last. Returns whether a report is on
    /// its way.
    pub(super) fn report(&mut self, pod: &Arc<Pod>, plan: &plan::Plan, over: Over) -> bool {
        if self.reporting {
            return true;
        }
        let node = status::Node {
            address: &self.context.node_address,
            pod_address: self.site.address(),
            runtime: self.context.runtime.name(),
            gates: self.context.gates,
        };
        let status = status::status(
            pod,
            &self.reported,
            &self.tracked,
            plan,
            node,
            over,
            Timestamp::now(),
        );
        if status == self.reported && !self.owed {
            return false;
        }
        if self.retry_at.is_some() {
            return true;
        }
        self.reported = status.clone();
        self.reporting = true;
        let report = report::status(Arc::clone(&self.context), Arc::clone(pod), status);
        let over = over != Over::No;
        let reported = report.map(move |outcome| Happening::Reported { outcome, over });
        self.happenings.push(reported.boxed());
        true
    }

    pub(super) fn tell_back_off(&mut self, pod: &Pod, plan: &plan::Plan) {
        for (container, waiting) in &plan.waiting {
            let pulls = match waiting.reason {
                "CrashLoopBackOff" => false,
                "ImagePullBackOff" => true,
                _ => continue,
            };
            let known = self.tracked.get(container);
            // What is waited for: the next incarnation, or the next try of a pull or a start.
            let about_what = match known.and_then(|known| known.failed_start.as_ref()) {
                Some(failed) => BackOff::Try(failed.at),
                None => BackOff::Restart(known.map_or(0, Tracked::restart_count)),
            };
            let told = self.told_back_off.insert(container.clone(), about_what);
            if told == Some(about_what) {
                continue;
            }
            let about = self.reference(pod, Some(container));
            let events = &self.context.events;
            if pulls {
                let image = pod.container(container).and_then(|c| c.image.as_deref());
                let image = image.unwrap_or_default();
                let message = format!("Back-off pulling image \"{image}\"");
                events.normal(about.clone(), reasons::BACK_OFF, message);
                let message = format!("Error: {}", waiting.reason);
                events.warning(about, reasons::FAILED, message);
            } else {
                let message = format!(
                    "Back-off restarting failed container {container} in pod {}_{}({})",
                    pod.name(),
                    pod.namespace(),
                    self.uid
                );
                events.warning(about, reasons::BACK_OFF, message);
            }
        }
    }

    pub(super) fn publish(&self, desired: &Desired) {
        let pod = match desired {
            Desired::Known(pod) => pod,
            // Nobody can ask for anything of a pod that is not there.
            Desired::Gone(_) => return self.context.pods.remove(&self.uid),
        };
        let containers = self
            .tracked
            .iter()
            .filter_map(|(name, tracked)| {
                let current = tracked.current.as_ref()?;
                let view = ContainerView {
                    id: current.id.clone(),
                    restart_count: current.restart_count,
                    running: current.exit.is_none(),
                    previous: tracked
                        .previous
                        .as_ref()
                        .map(|previous| previous.restart_count),
                };
                Some((name.clone(), view))
            })
            .collect();
        self.context.pods.put(
            &self.uid,
            PodView {
                pod: Arc::clone(pod),
                address: self.address().to_owned(),
                containers,
            },
        );
    }

    pub(super) fn reference(&self, pod: &Pod, container: Option<&str>) -> ObjectReference {
        reference(pod, container)
    }
}

/// A pod or one of its containers, for events.
pub(crate) fn reference(pod: &Pod, container: Option<&str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name().to_owned()),
        namespace: Some(pod.namespace().to_owned()),
        uid: Some(pod.uid().to_owned()),
        field_path: container.map(|name| {
            let init = pod.spec.init_containers.iter().any(|c| c.name == name);
            let list = if init { "initContainers" } else { "containers" };
            format!("spec.{list}{{{name}}}")
        }),
        ..ObjectReference::default()
    }
}
