//! Terminations of pods that have no worker yet.
//!
//! An agent that was killed and started again has its journal, and what it needs to signal, kill and
//! wait for the incarnations in it. It goes on with these at once, whether the runtime tells what it
//! runs or not, and whether the API server is there to tell of the pods or not. As soon as a pod has
//! a worker, that one takes over what is under way, as it is.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use belay_action::ContainerId;
use belay_api::pod::Pod;
use futures::future::{FutureExt as _, join_all};
use kube::api::{Api, ListParams};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Terminations;
use crate::context::Host;

/// How long the API may take to tell more of a pod than the journal knows: its hooks.
const PATIENCE: Duration = Duration::from_secs(1);

/// The terminations of one pod, until it has a worker.
pub(crate) struct Interim {
    over: CancellationToken,
    task: JoinHandle<Option<Terminations>>,
}

impl Interim {
    /// Goes on with all terminations in the journal, by pod.
    pub(crate) fn of_all(host: &Arc<Host>) -> HashMap<String, Interim> {
        let known = {
            let host = Arc::clone(host);
            async move { Arc::new(known(&host).await) }.boxed().shared()
        };
        let begin = |uid: String| {
            let (host, known) = (Arc::clone(host), known.clone());
            let over = CancellationToken::new();
            let (token, of) = (over.clone(), uid.clone());
            let task = tokio::spawn(async move {
                let pod = token.run_until_cancelled(known).await?;
                let pod = pod.iter().find(|pod| pod.uid() == of).cloned();
                let pod = pod.unwrap_or_else(|| by_record(&host, of));
                go_on(&host, Arc::new(pod), &token).await
            });
            (uid, Interim { over, task })
        };
        host.journal.stopped_pods().into_iter().map(begin).collect()
    }

    /// What is under way, for whoever drives it from now on; `None` if nothing was taken up.
    pub(crate) async fn end(self) -> Option<Terminations> {
        self.over.cancel();
        let ended = self.task.await;
        ended.unwrap_or_else(|error| {
            warn!(%error, "terminations are taken up anew from the journal");
            None
        })
    }
}

/// The node's pods, if the API tells them soon.
async fn known(host: &Host) -> Vec<Pod> {
    let api: Api<Pod> = Api::all(host.client.clone());
    let of_node = ListParams::default().fields(&format!("spec.nodeName={}", host.node_name));
    match timeout(PATIENCE, api.list(&of_node)).await {
        Ok(Ok(list)) => list.items,
        silent => {
            debug!(?silent, "the pods that are ended are known by the journal");
            Vec::new()
        }
    }
}

/// What the journal knows of a pod.
fn by_record(host: &Host, uid: String) -> Pod {
    let single = host.journal.container_stops(&uid).into_iter();
    let mut records = host.journal.stop(&uid).into_iter();
    let record = records.next().or(single.map(|(_, record)| record).next());
    let mut pod = Pod::default();
    if let Some((namespace, name)) = record.map(|record| record.pod_name) {
        pod.metadata.namespace = Some(namespace);
        pod.metadata.name = Some(name);
    }
    pod.metadata.uid = Some(uid);
    pod
}

async fn go_on(host: &Arc<Host>, pod: Arc<Pod>, over: &CancellationToken) -> Option<Terminations> {
    let uid = pod.uid();
    let single = host.journal.container_stops(uid).into_iter();
    let records = host.journal.stop(uid).into_iter();
    let ids = records
        .chain(single.map(|(_, record)| record))
        .flat_map(|record| record.legs)
        .filter_map(|leg| ContainerId::new(&leg.container.id).ok());
    // One of which nobody knows may run.
    let running = join_all(ids.map(async |id| {
        let runs = host.runtime.is_running(&id).await.unwrap_or(true);
        runs.then(|| id.as_str().to_owned())
    }));
    let running = over.run_until_cancelled(running).await?;
    let running: BTreeSet<String> = running.into_iter().flatten().collect();
    let mut terminations = Terminations::resume(Arc::clone(host), pod, &running);
    while let Some(moment) = over.run_until_cancelled(terminations.next()).await {
        terminations.happened(moment);
    }
    Some(terminations)
}
