//! The driver: watches pods and nodes, carries out what the [`Ledger`] plans.
//!
//! # Guarantees
//!
//! A binding is a write that the server refuses for a pod that has a node, so two binders, or one
//! that was restarted, cannot move a pod. A failed write is tried again after a pause; a pod that
//! is gone or bound meanwhile is dropped by the watch.

use std::time::Duration;

use futures::future::FutureExt as _;
use futures::stream::{BoxStream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, Resource};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::choose::Choice;
use crate::event::{self, About, By};
use crate::ledger::{Ledger, PodKey, Step};

/// How long a write that failed waits before it is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How many writes are under way at once; they share the store's group commit.
const CONCURRENT: usize = 16;

/// Binds pods without a node until `shutdown`.
pub async fn run(client: Client, shutdown: CancellationToken) {
    let mut pods = watch::<Pod>(&client);
    let mut nodes = watch::<Node>(&client);
    let mut ledger = Ledger::default();
    let mut retry_at: Option<Instant> = None;
    loop {
        let retry = async {
            match retry_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(event) = pods.next() => pod_event(&mut ledger, event),
            Some(event) = nodes.next() => node_event(&mut ledger, event),
            () = retry => retry_at = None,
        }
        // A burst is planned once, not once per event.
        while let Some(Some(event)) = pods.next().now_or_never() {
            pod_event(&mut ledger, event);
        }
        while let Some(Some(event)) = nodes.next().now_or_never() {
            node_event(&mut ledger, event);
        }
        if retry_at.is_some() || ledger.waiting() == 0 {
            continue;
        }
        let round = carry_out(&client, ledger.plan());
        let done = tokio::select! {
            () = shutdown.cancelled() => return,
            done = round => done,
        };
        for (step, result) in done {
            match (result, &step.choice) {
                (Ok(()), Choice::Bind { node }) => ledger.pod_bound(&step.pod, node),
                (Ok(()), Choice::Unschedulable { message }) => {
                    ledger.pod_refused(&step.pod, message);
                }
                (Err(error), _) => {
                    report(&step, &error);
                    retry_at = Some(Instant::now() + RETRY);
                }
            }
        }
    }
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

fn watch<K>(client: &Client) -> Events<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + 'static,
    K: serde::de::DeserializeOwned,
{
    watcher(Api::<K>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .boxed()
}

fn pod_event(ledger: &mut Ledger, event: watcher::Result<Event<Pod>>) {
    match event {
        Ok(Event::Init) => ledger.pods_listing(),
        Ok(Event::InitApply(pod)) => ledger.pod_listed(pod),
        Ok(Event::InitDone) => ledger.pods_listed(),
        Ok(Event::Apply(pod)) => ledger.pod_applied(pod),
        Ok(Event::Delete(pod)) => ledger.pod_deleted(&pod),
        Err(error) => debug!(%error, "watch of pods interrupted; it is resumed"),
    }
}

fn node_event(ledger: &mut Ledger, event: watcher::Result<Event<Node>>) {
    match event {
        Ok(Event::Init) => ledger.nodes_listing(),
        Ok(Event::InitApply(node)) => ledger.node_listed(node),
        Ok(Event::InitDone) => ledger.nodes_listed(),
        Ok(Event::Apply(node)) => ledger.node_applied(node),
        Ok(Event::Delete(node)) => ledger.node_deleted(&node),
        Err(error) => debug!(%error, "watch of nodes interrupted; it is resumed"),
    }
}

async fn carry_out(client: &Client, plan: Vec<Step>) -> Vec<(Step, Result<(), kube::Error>)> {
    futures::stream::iter(plan.into_iter().filter(|step| !step.already_said))
        .map(|step| async move {
            let result = match &step.choice {
                Choice::Bind { node } => bind(client, &step.pod, node).await,
                Choice::Unschedulable { message } => refuse(client, &step.pod, message).await,
            };
            (step, result)
        })
        .buffer_unordered(CONCURRENT)
        .collect()
        .await
}

async fn bind(client: &Client, pod: &PodKey, node: &str) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        // The UID keeps the binding from a successor of the same name.
        "metadata": {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let _: Value = api
        .create_subresource("binding", &pod.name, &PostParams::default(), &binding)
        .await?;
    info!(namespace = pod.namespace, pod = pod.name, node, "bound");
    let note = format!(
        "Successfully assigned {}/{} to {node}",
        pod.namespace, pod.name
    );
    record(client, pod, "Normal", "Scheduled", &note).await;
    Ok(())
}

async fn refuse(client: &Client, pod: &PodKey, message: &str) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let patch = json!({
        "metadata": {"uid": pod.uid},
        "status": {"conditions": [{
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }]},
    });
    api.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    record(client, pod, "Warning", "FailedScheduling", message).await;
    Ok(())
}

async fn record(client: &Client, pod: &PodKey, kind: &str, reason: &str, note: &str) {
    let about = About {
        api_version: "v1",
        kind: "Pod",
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
    };
    let by = By {
        controller: "binder",
        action: "Binding",
    };
    event::record(client, &about, &by, kind, reason, note).await;
}

fn report(step: &Step, error: &kube::Error) {
    let (namespace, pod) = (&step.pod.namespace, &step.pod.name);
    match error {
        // Gone, or bound by someone else: the watch says which.
        kube::Error::Api(status) if status.code == 404 || status.code == 409 => {
            debug!(namespace, pod, %error, "pod changed while it was being placed");
        }
        _ => warn!(namespace, pod, %error, "pod could not be placed; trying again"),
    }
}

#[cfg(test)]
mod tests;
