//! The API's copies of the node's pods, reduced to what a companion compares.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use belay_api::pod::{Container, NOTIFIERS_ANNOTATION, Pod, PodSpec};
use futures::stream::StreamExt as _;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::watcher::{self, Event};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::watching::{Told, watch_all};

/// What is kept of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiCopy {
    /// The notifiers annotation as it is now.
    pub(crate) annotation: Option<String>,
    /// When it was asked to end.
    pub(crate) deleted: Option<Timestamp>,
    /// The containers with their ports, and what else the rules for notifiers ask about.
    pub(crate) spec: PodSpec,
    /// Address of the node, for a pod on the host's network.
    pub(crate) host: Option<String>,
}

impl ApiCopy {
    pub(crate) fn of(pod: &Pod) -> Self {
        let metadata = &pod.metadata;
        ApiCopy {
            annotation: metadata
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(NOTIFIERS_ANNOTATION))
                .cloned(),
            deleted: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            spec: PodSpec {
                containers: pod.spec.containers.iter().map(reduced).collect(),
                init_containers: pod.spec.init_containers.iter().map(reduced).collect(),
                os: pod.spec.os.clone(),
                ..PodSpec::default()
            },
            host: pod
                .status
                .as_ref()
                .and_then(|status| status.host_ip.clone()),
        }
    }
}

/// What a notifier's probe may need of a container, and what tells a sidecar from the init
/// containers that cannot be notified.
fn reduced(container: &Container) -> Container {
    let ports = container.other.get_key_value("ports");
    Container {
        name: container.name.clone(),
        restart_policy: container.restart_policy,
        other: ports
            .map(|(key, ports)| (key.clone(), ports.clone()))
            .into_iter()
            .collect(),
        ..Container::default()
    }
}

/// The copies by UID. Written by [`run`], read by whoever looks a pod up.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    pods: RwLock<HashMap<String, ApiCopy>>,
}

impl Copies {
    pub(crate) fn get(&self, uid: &str) -> Option<ApiCopy> {
        let pods = self.pods.read().unwrap_or_else(PoisonError::into_inner);
        pods.get(uid).cloned()
    }

    fn put(&self, pod: &Pod) {
        let mut pods = self.pods.write().unwrap_or_else(PoisonError::into_inner);
        pods.insert(pod.uid().to_owned(), ApiCopy::of(pod));
    }

    fn remove(&self, uid: &str) {
        let mut pods = self.pods.write().unwrap_or_else(PoisonError::into_inner);
        pods.remove(uid);
    }

    fn keep_only(&self, listed: &HashSet<String>) {
        let mut pods = self.pods.write().unwrap_or_else(PoisonError::into_inner);
        pods.retain(|uid, _| listed.contains(uid));
    }
}

/// Keeps the copies until `shutdown`.
pub(crate) async fn run(
    copies: Arc<Copies>,
    client: Client,
    node: String,
    shutdown: CancellationToken,
) {
    let selector = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let mut events = std::pin::pin!(watch_all::<Pod>(&client, selector));
    let mut listed = HashSet::new();
    loop {
        let event = tokio::select! {
            () = shutdown.cancelled() => return,
            event = events.next() => event,
        };
        match event {
            Some(Ok(Told::Event(Event::Init))) => listed.clear(),
            Some(Ok(Told::Event(Event::InitApply(pod)))) => {
                copies.put(&pod);
                listed.insert(pod.uid().to_owned());
            }
            Some(Ok(Told::Event(Event::InitDone))) => {
                copies.keep_only(&std::mem::take(&mut listed));
            }
            Some(Ok(Told::Event(Event::Apply(pod)))) => copies.put(&pod),
            Some(Ok(Told::Event(Event::Delete(pod)))) => copies.remove(pod.uid()),
            // What was read of it before stays.
            Some(Ok(Told::Unreadable(uid))) => {
                listed.insert(uid);
            }
            Some(Ok(Told::Gone(uid))) => copies.remove(&uid),
            Some(Err(error)) => warn!(%error, "the watch of pods was interrupted; it is resumed"),
            None => return,
        }
    }
}
