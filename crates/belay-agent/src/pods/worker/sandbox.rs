//! What the containers of the pod share.
//!
//! It is asked for before the first container, and again before a start that follows an exit: a
//! sandbox that died takes its containers with it. In another one everything begins anew, init
//! containers included. That of a pod that has come to its end is stopped; the records of its
//! containers and their logs stay until the pod is deleted.

use std::sync::Arc;
use std::time::Duration;

use belay_api::pod::Pod;
use belay_api::reasons;
use belay_core::termination::Cause;
use belay_runtime::{Dns, PodConfig, RuntimeError, Sandbox};
use futures::future::FutureExt as _;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Happening, Worker, earliest};
use crate::context::Host;
use crate::pods::hook::causes;
use crate::pods::tracked::Tracked;
use crate::pods::{config, network, terminate};

/// How long a sandbox that could not be made is waited for before the next try, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The pod's sandbox, as far as it is known.
#[derive(Debug)]
pub(super) struct Site {
    /// The newest, dead or alive.
    known: Option<Sandbox>,
    address: Option<String>,
    standing: Standing,
    pause: Duration,
    /// Whether the end of the newest has been told.
    told: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// To be asked for before the next start.
    Unsure,
    Asked,
    Ready,
    /// Seen dead. Another takes its place when nothing runs in it any more.
    Dead,
    /// There is none, or it could not be stopped, and the next try has to wait.
    Failed {
        until: Instant,
    },
    /// Being stopped for good.
    Retiring,
    Retired,
}

impl Site {
    /// Where an agent before this one left the pod.
    pub(super) fn adopt(found: Vec<Sandbox>, node_address: &str) -> Self {
        let newest = found.into_iter().max_by_key(|sandbox| sandbox.attempt);
        let mut site = Site {
            known: None,
            address: None,
            standing: Standing::Unsure,
            pause: RETRY.0,
            told: false,
        };
        if let Some(sandbox) = newest {
            let ready = sandbox.ready;
            site.take(sandbox, node_address);
            if !ready {
                site.standing = Standing::Dead;
            }
        }
        site
    }

    /// Whether a container in this sandbox is where the pod is.
    pub(super) fn holds(&self, sandbox: &str) -> bool {
        self.standing != Standing::Dead && self.id() == sandbox
    }

    fn take(&mut self, sandbox: Sandbox, node_address: &str) {
        let address = sandbox.address.map(|address| address.to_string());
        self.address = Some(address.unwrap_or_else(|| node_address.to_owned()));
        self.known = Some(sandbox);
        self.standing = Standing::Ready;
        self.pause = RETRY.0;
        self.told = false;
    }

    /// The ID of the newest.
    pub(super) fn id(&self) -> &str {
        self.known.as_ref().map_or("", |known| &known.id)
    }

    /// Where the pod is reached, while it is.
    pub(super) fn address(&self) -> Option<&str> {
        let there = match self.standing {
            Standing::Ready | Standing::Unsure | Standing::Asked => true,
            Standing::Dead | Standing::Failed { .. } | Standing::Retiring | Standing::Retired => {
                false
            }
        };
        self.address.as_deref().filter(|_| there)
    }

    /// Whether one is being made.
    pub(super) fn is_asked(&self) -> bool {
        self.standing == Standing::Asked
    }

    /// What was asked for has been answered, and nobody cares.
    pub(super) fn answered(&mut self) {
        self.standing = Standing::Unsure;
    }

    fn failed(&mut self) {
        let until = Instant::now() + self.pause;
        self.standing = Standing::Failed { until };
        self.pause = (self.pause * 2).min(RETRY.1);
    }

    /// Something ended: maybe because the sandbox did.
    pub(super) fn doubt(&mut self) {
        if self.standing == Standing::Ready {
            self.standing = Standing::Unsure;
        }
    }
}

impl Worker {
    /// Where the containers of the pod are reached.
    pub(super) fn address(&self) -> &str {
        let own = self.site.address.as_deref();
        own.unwrap_or(&self.context.node_address)
    }

    /// Whether containers can be started now. If not, what is needed is under way.
    pub(super) fn is_sandboxed(&mut self, pod: &Arc<Pod>) -> bool {
        // What runs in a sandbox that is gone comes to its end first.
        let leaving = self
            .tracked
            .values()
            .any(|known| known.elsewhere && known.running().is_some());
        match self.site.standing {
            Standing::Ready => return !leaving,
            // Nothing is started in a pod that has come to its end.
            Standing::Asked | Standing::Retiring | Standing::Retired => return false,
            Standing::Unsure | Standing::Dead => {}
            Standing::Failed { until } => {
                if Instant::now() < until {
                    self.sandbox_at = earliest(self.sandbox_at, Some(until));
                    return false;
                }
            }
        }
        if leaving {
            return false;
        }
        self.site.standing = Standing::Asked;
        let runtime = Arc::clone(&self.context.runtime);
        let mut config = pod_config(pod, &self.context);
        let pod = Arc::clone(pod);
        let asking = async move {
            config.dns = dns(pod).await?;
            runtime.sandbox(&config).await
        };
        self.happenings
            .push(asking.map(Happening::Sandboxed).boxed());
        false
    }

    pub(super) fn sandboxed(&mut self, pod: &Pod, answer: Result<Sandbox, RuntimeError>) {
        let sandbox = match answer {
            Ok(sandbox) => sandbox,
            Err(error) => {
                let message = format!("Failed to create pod sandbox: {}", causes(&error));
                warn!(pod = pod.name(), message);
                let about = self.reference(pod, None);
                let events = &self.context.events;
                events.warning(about, reasons::FAILED_CREATE_POD_SANDBOX, message);
                return self.site.failed();
            }
        };
        debug!(
            pod = pod.name(),
            id = sandbox.id,
            attempt = sandbox.attempt,
            "its sandbox"
        );
        let before = self.site.known.as_ref();
        let another = before.is_some_and(|before| before.id != sandbox.id);
        if another && !self.is_on_its_way_out() {
            self.tell_sandbox_changed(pod);
        }
        self.site.take(sandbox, &self.context.node_address);
        self.leave_sandbox();
    }

    /// The runtime was looked at; `seen` is what it has of this pod.
    pub(super) fn looked(&mut self, pod: &Pod, seen: &[Sandbox]) {
        let id = self.site.id();
        let dead = seen.iter().any(|one| one.id == id && !one.ready);
        let believed = match self.site.standing {
            Standing::Ready | Standing::Unsure => true,
            // What is asked for will be another one.
            Standing::Asked
            | Standing::Dead
            | Standing::Failed { .. }
            | Standing::Retiring
            | Standing::Retired => false,
        };
        // Of a pod that has come to its end, or is on its way there, nobody misses it.
        if !dead || !believed || self.is_on_its_way_out() {
            return;
        }
        info!(pod = pod.name(), id, "its sandbox is dead");
        self.site.standing = Standing::Dead;
        self.tell_sandbox_changed(pod);
        self.leave_sandbox();
    }

    fn tell_sandbox_changed(&mut self, pod: &Pod) {
        if std::mem::replace(&mut self.site.told, true) {
            return;
        }
        let about = self.reference(pod, None);
        let message = "Pod sandbox changed, it will be killed and re-created.".to_owned();
        let events = &self.context.events;
        events.normal(about, reasons::SANDBOX_CHANGED, message);
    }

    /// Stops the sandbox of a pod that has come to its end, once nothing of it is there any more.
    pub(super) fn retire_sandbox(&mut self) {
        let busy = self.is_launching() || self.tracked.values().any(|one| one.running().is_some());
        if !self.has_ended() || busy || self.site.known.is_none() {
            return;
        }
        match self.site.standing {
            Standing::Ready | Standing::Unsure | Standing::Dead => {}
            Standing::Failed { until } => {
                if Instant::now() < until {
                    self.sandbox_at = earliest(self.sandbox_at, Some(until));
                    return;
                }
            }
            Standing::Asked | Standing::Retiring | Standing::Retired => return,
        }
        self.site.standing = Standing::Retiring;
        let (runtime, uid) = (Arc::clone(&self.context.runtime), self.uid.clone());
        let stopping = async move { Happening::SandboxStopped(runtime.stop_sandboxes(&uid).await) };
        self.happenings.push(stopping.boxed());
    }

    pub(super) fn sandbox_stopped(&mut self, pod: &Pod, answer: Result<(), RuntimeError>) {
        match answer {
            Ok(()) => self.site.standing = Standing::Retired,
            Err(error) => {
                let message = causes(&error);
                warn!(
                    pod = pod.name(),
                    message, "its sandbox could not be stopped; trying again"
                );
                self.site.failed();
            }
        }
    }

    /// Whether the pod has come to its end, or is on its way there: nothing of it begins anew.
    fn is_on_its_way_out(&self) -> bool {
        let ending = self.terminations.pod_cause().is_some();
        ending || self.has_ended() || self.ends(&self.desired.borrow())
    }

    /// What is in another sandbox than the pod is left behind: everything begins anew, unless the pod
    /// has come to its end, or is on its way there.
    pub(super) fn leave_sandbox(&mut self) {
        if self.is_on_its_way_out() {
            return;
        }
        for known in self.tracked.values_mut() {
            let instance = known.current.as_ref();
            if instance.is_some_and(|instance| !self.site.holds(&instance.sandbox)) {
                known.moved();
            }
        }
    }

    /// Ends what still runs in a sandbox that is gone.
    pub(super) fn end_left_behind(&mut self, pod: &Pod) {
        let left = |known: &Tracked| known.elsewhere && known.running().is_some();
        let names: Vec<String> = self
            .tracked
            .iter()
            .filter(|(_, known)| left(known))
            .map(|(name, _)| name.clone())
            .collect();
        let grace = terminate::grace(pod, false);
        for name in names {
            self.terminations
                .end_container(&name, Cause::SandboxChanged, grace, &self.tracked);
        }
    }
}

/// How the pod resolves names.
async fn dns(pod: Arc<Pod>) -> Result<Option<Dns>, RuntimeError> {
    let read = tokio::task::spawn_blocking(move || network::dns(&pod));
    let read = read.await.unwrap_or_else(|error| Err(error.into()));
    read.map_err(|source| RuntimeError::Io {
        what: "read",
        path: network::RESOLV_CONF.into(),
        source,
    })
}

/// What the runtime has to know of a pod. How it resolves names is still to be read.
fn pod_config(pod: &Pod, host: &Host) -> PodConfig {
    let flag = |field: &str| pod.spec.other.get(field).and_then(Value::as_bool) == Some(true);
    PodConfig {
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        hostname: network::hostname(pod),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        log_dir: config::log_dir(&host.data_dir, pod.namespace(), pod.name(), pod.uid()),
        host_network: network::is_on_host_network(pod),
        host_pid: flag("hostPID"),
        host_ipc: flag("hostIPC"),
        share_processes: flag("shareProcessNamespace"),
        dns: None,
        ports: network::ports(pod),
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
    use crate::pods::worker::Desired;

    fn sandbox(id: &str, attempt: u32, ready: bool) -> Sandbox {
        Sandbox {
            id: id.to_owned(),
            attempt,
            ready,
            ..Sandbox::default()
        }
    }

    #[test]
    fn of_several_sandboxes_the_newest_counts() {
        let found = vec![
            sandbox("b", 1, true),
            sandbox("c", 2, false),
            sandbox("a", 0, true),
        ];
        let site = Site::adopt(found, "192.0.2.7");
        assert_eq!((site.id(), site.standing), ("c", Standing::Dead));
        assert!(!site.holds("c") && !site.holds("b"));
        let site = Site::adopt(vec![sandbox("a", 0, true)], "192.0.2.7");
        assert_eq!(site.standing, Standing::Ready);
        assert!(site.holds("a"));
        assert_eq!(site.address(), Some("192.0.2.7"), "the host's network");
        let none = Site::adopt(Vec::new(), "192.0.2.7");
        assert_eq!((none.id(), none.address()), ("", None));
        assert!(none.holds(""), "a runtime without sandboxes");
    }

    #[tokio::test]
    async fn a_sandbox_that_dies_during_its_pod_s_end_is_nobody_s_business() {
        let grace = Duration::from_secs(600);
        for cause in [None, Some(Cause::PodDeleted), Some(Cause::DeadlineExceeded)] {
            let stage = Stage::new(Stubborn::default(), &json!([{"name": "web"}]));
            let (_desired, desired) = watch::channel(Desired::Known(Arc::clone(&stage.pod)));
            let (_seen, seen) = watch::channel(Vec::new());
            let found = Found {
                sandboxes: vec![sandbox("s", 0, true)],
                ..Found::default()
            };
            let mut worker = Worker::new(Arc::clone(&stage.host), desired, seen, found, None);
            let instance = Instance {
                sandbox: "s".to_owned(),
                ..Instance::test("web-1", 0)
            };
            let known = worker.tracked.entry("web".to_owned()).or_default();
            known.started(instance);
            if let Some(cause) = cause {
                worker.terminations.end_pod(cause, grace, &worker.tracked);
            }
            worker.looked(&stage.pod, &[sandbox("s", 0, false)]);
            let anew = cause.is_none();
            assert_eq!(worker.site.told, anew, "{cause:?}");
            assert_eq!(worker.tracked["web"].elsewhere, anew, "{cause:?}");
        }
    }
}
