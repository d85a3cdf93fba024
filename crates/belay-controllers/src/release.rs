//! Letting children go: they carry a finalizer, so that none is gone before what came of it stands in
//! the status of its owner.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use belay_api::lenient::Lenient;
use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::Semaphore;
use tracing::warn;

use crate::objects;

/// How long to wait after something went wrong.
const RETRY: Duration = Duration::from_secs(1);

/// A child that is held until it is counted.
pub(crate) trait Held:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// What holds it.
    const FINALIZER: &'static str;

    /// Whether nothing of it runs, nor will: it has ended, or nobody has claimed it. That nobody does
    /// after this was read is the resource version's to see to.
    fn is_at_rest(&self) -> bool;

    /// Whether it would be gone if we let it go.
    fn is_held(&self) -> bool {
        self.finalizers().iter().any(|name| name == Self::FINALIZER)
    }

    /// Whether it is being deleted and waits for us to let it go.
    fn is_leaving(&self) -> bool {
        self.meta().deletion_timestamp.is_some() && self.is_held()
    }
}

/// Whether the end of what was claimed is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It is: a child that is claimed stays, and its end, when it comes, is told by the watch.
    UntilAtRest,
    /// It has been, for as long as a lost executor is waited for.
    Over,
}

/// Lets a child go: takes our finalizer away. Tried until it is done, or not to be done. Between
/// tries it keeps no slot: what can never be let go must not hold up the others.
pub(crate) async fn release<K: Held>(
    client: Client,
    slots: Arc<Semaphore>,
    namespace: String,
    name: String,
    patience: Patience,
) {
    let api: Api<Lenient<K>> = Api::namespaced(client, &namespace);
    loop {
        // Never closed.
        let slot = slots.acquire().await;
        let Err(error) = try_release(&api, &name, patience).await else {
            return;
        };
        drop(slot);
        if !matches!(&error, kube::Error::Api(status) if status.code == 409) {
            warn!(namespace, name, %error, "cannot let it go; trying again");
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn try_release<K: Held>(
    api: &Api<Lenient<K>>,
    name: &str,
    patience: Patience,
) -> kube::Result<()> {
    let Some(child) = objects::find(api, name).await? else {
        return Ok(());
    };
    let waits = patience == Patience::UntilAtRest && !child.is_at_rest();
    if !child.is_leaving() || waits {
        return Ok(());
    }
    let rest: Vec<&String> = child
        .finalizers()
        .iter()
        .filter(|finalizer| *finalizer != K::FINALIZER)
        .collect();
    // A claim that is written meanwhile is a conflict, and keeps it.
    let patch = json!({"metadata": {
        "finalizers": rest, "resourceVersion": child.resource_version(),
    }});
    match api
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map(|_| ()),
    }
}
