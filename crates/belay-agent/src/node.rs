//! The node's own object.
//!
//! # Expected flow
//!
//! The node is created, or brought up to date if it is there; its status is written at once, then
//! every [`STATUS_EVERY`], and when the runtime falls silent or answers again. Whatever fails is
//! tried again, for ever: a node without an API server goes on running what it runs.

mod facts;
mod health;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Error;
use kube::api::{Api, Patch, PatchParams, PostParams};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::context::Host;
use facts::Readiness;
pub(crate) use facts::{Facts, Machine};
pub(crate) use health::Health;

/// How often an unchanged status is written.
const STATUS_EVERY: Duration = Duration::from_secs(300);
/// How often one is written that says that the node is not ready: who finds an agent alive again
/// that was silent takes its node to be well.
const NOT_READY_EVERY: Duration = Duration::from_secs(30);
/// How often the runtime's health is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps the node's object. Runs until `shutdown`.
pub(crate) async fn keep_object(context: Arc<Host>, facts: Facts, shutdown: CancellationToken) {
    let api: Api<Node> = Api::all(context.client.clone());
    let work = async {
        let mut readiness = Readiness::new(Timestamp::now());
        let mut registered = false;
        loop {
            readiness.see(context.health.problem(), Timestamp::now());
            let pause = match write(&api, &facts, &mut readiness, &mut registered).await {
                Ok(()) if readiness.problem.is_some() => NOT_READY_EVERY,
                Ok(()) => STATUS_EVERY,
                Err(error) => {
                    warn!(node = facts.name, %error, "the node's object could not be written; trying again");
                    registered = false;
                    RETRY
                }
            };
            let changed = async {
                while context.health.problem() == readiness.problem {
                    tokio::time::sleep(LOOK).await;
                }
            };
            // Either is a reason to write.
            let _ = tokio::time::timeout(pause, changed).await;
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
    readiness: &mut Readiness,
    registered: &mut bool,
) -> Result<(), Error> {
    if !*registered {
        match api.get_opt(&facts.name).await? {
            Some(node) => {
                readiness.go_on(&node);
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
    let status = facts.status_patch(readiness, Timestamp::now());
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
