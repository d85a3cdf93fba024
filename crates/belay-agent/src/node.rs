//! The node's own object.
//!
//! # Expected flow
//!
//! The node is created, or brought up to date if it is there; its status is written at once and then
//! every [`STATUS_EVERY`]. Whatever fails is tried again, for ever: a node without an API server goes
//! on running what it runs.

mod facts;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Error;
use kube::api::{Api, Patch, PatchParams, PostParams};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::context::Host;
pub(crate) use facts::{Facts, Machine};

/// How often an unchanged status is written.
const STATUS_EVERY: Duration = Duration::from_secs(300);
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Keeps the node's object. Runs until `shutdown`.
pub(crate) async fn keep_object(context: Arc<Host>, facts: Facts, shutdown: CancellationToken) {
    let api: Api<Node> = Api::all(context.client.clone());
    let work = async {
        let mut ready_since = Timestamp::now();
        let mut registered = false;
        loop {
            let pause = match write(&api, &facts, &mut ready_since, &mut registered).await {
                Ok(()) => STATUS_EVERY,
                Err(error) => {
                    warn!(node = facts.name, %error, "the node's object could not be written; trying again");
                    registered = false;
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

async fn write(
    api: &Api<Node>,
    facts: &Facts,
    ready_since: &mut Timestamp,
    registered: &mut bool,
) -> Result<(), Error> {
    if !*registered {
        match api.get_opt(&facts.name).await? {
            Some(node) => {
                if let Some(since) = facts::ready_since(&node) {
                    *ready_since = since;
                }
                let params = PatchParams::default();
                api.patch(&facts.name, &params, &Patch::Merge(&facts.metadata_patch()))
                    .await?;
            }
            None => {
                let node = serde_json::from_value(facts.object()).map_err(Error::SerdeError)?;
                match api.create(&PostParams::default(), &node).await {
                    Ok(_) => {}
                    // Somebody was faster; the next round patches it.
                    Err(Error::Api(status)) if status.code == 409 => {
                        return Err(Error::Api(status));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        info!(node = facts.name, "the node is registered");
    }
    let status = facts.status_patch(*ready_since, Timestamp::now());
    match api
        .patch_status(&facts.name, &PatchParams::default(), &Patch::Merge(&status))
        .await
    {
        Ok(_) => {
            *registered = true;
            Ok(())
        }
        Err(error) => Err(error),
    }
}
