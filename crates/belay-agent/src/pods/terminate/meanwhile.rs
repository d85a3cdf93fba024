//! Terminations while the runtime does not tell what it runs.
//!
//! An agent that was killed and started again has its journal, and what it needs to signal, kill and
//! wait for the incarnations in it. It goes on with these until the runtime answers, and leaves them
//! to the pods' workers then, as an agent that is killed leaves them to the next.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use belay_action::ContainerId;
use belay_api::pod::Pod;
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use kube::api::{Api, ListParams};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Terminations;
use crate::context::Host;

/// How long the API may take to tell more of a pod than its UID: hooks and events are about that.
const PATIENCE: Duration = Duration::from_secs(1);
/// Before a runtime is asked again that cannot tell where a container is.
const PAUSE: Duration = Duration::from_secs(1);

/// Goes on with all terminations in the journal until it is `over`.
pub(crate) async fn meanwhile(host: &Arc<Host>, over: &CancellationToken) {
    let pods = host.journal.stopped_pods();
    if pods.is_empty() {
        return;
    }
    let known = known(host).await;
    let pods = pods.into_iter().map(|uid| {
        let found = known.iter().find(|pod| pod.uid() == uid).cloned();
        found.unwrap_or_else(|| {
            let mut pod = Pod::default();
            pod.metadata.uid = Some(uid);
            pod
        })
    });
    join_all(pods.map(|pod| go_on(host, Arc::new(pod), over))).await;
}

/// The node's pods, if the API tells them soon.
async fn known(host: &Host) -> Vec<Pod> {
    let api: Api<Pod> = Api::all(host.client.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={}", host.node_name));
    match timeout(PATIENCE, api.list(&of_node)).await {
        Ok(Ok(list)) => list.items,
        silent => {
            debug!(?silent, "the pods that are ended are known by their UIDs");
            Vec::new()
        }
    }
}

async fn go_on(host: &Arc<Host>, pod: Arc<Pod>, over: &CancellationToken) {
    let uid = pod.uid();
    let single = host.journal.container_stops(uid).into_iter();
    let records = host.journal.stop(uid).into_iter();
    let incarnations: Vec<(String, ContainerId)> = records
        .chain(single.map(|(_, record)| record))
        .flat_map(|record| record.legs)
        .filter_map(|leg| {
            Some((
                leg.container.name,
                ContainerId::new(&leg.container.id).ok()?,
            ))
        })
        .collect();
    // One of which nobody knows may run.
    let running = join_all(incarnations.iter().map(async |(_, id)| {
        let runs = host.runtime.is_running(id).await.unwrap_or(true);
        runs.then(|| id.as_str().to_owned())
    }));
    let running: BTreeSet<String> = tokio::select! {
        () = over.cancelled() => return,
        running = running => running.into_iter().flatten().collect(),
    };
    let mut ends: FuturesUnordered<_> = incarnations
        .into_iter()
        .filter(|(_, id)| running.contains(id.as_str()))
        .map(async |(container, id)| {
            end(host, &id).await;
            (container, id)
        })
        .collect();
    let mut terminations = Terminations::resume(Arc::clone(host), pod, &running);
    loop {
        tokio::select! {
            () = over.cancelled() => break,
            Some((container, id)) = ends.next() => terminations.exited(&container, &id),
            moment = terminations.next() => terminations.happened(moment),
        }
    }
    terminations.leave().await;
}

/// Returns when an incarnation has ended, of whose end the kernel tells.
async fn end(host: &Host, id: &ContainerId) {
    loop {
        match host.runtime.target(id).await {
            Ok(target) => match target.wait().await {
                Ok(()) => return,
                Err(error) => debug!(container = %id, %error, "cannot wait for a container"),
            },
            Err(error) => debug!(container = %id, %error, "cannot find a container"),
        }
        sleep(PAUSE).await;
    }
}
