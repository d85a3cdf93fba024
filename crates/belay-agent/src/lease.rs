//! The lease by which others see that this agent lives: the node's own, or the companion's.
//!
//! It is renewed every [`EVERY`]; whatever fails is tried again, for ever. The answers also tell the
//! server's clock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::context::Context;
use crate::dated::{self, AskError, ask};

/// How often the lease is renewed.
const EVERY: Duration = Duration::from_secs(10);
/// How long a lease is good for; who waits longer may think its holder lost.
const SECONDS: i32 = 40;
/// How long to wait after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Where nodes keep theirs.
pub(crate) const NODES: &str = "kube-node-lease";

/// When the lease was last renewed, for whoever asks from outside.
#[derive(Debug, Default)]
pub(crate) struct LeaseHealth(Mutex<Option<Instant>>);

impl LeaseHealth {
    /// Whether it was renewed so lately that nobody takes its holder for lost.
    pub(crate) fn is_kept(&self) -> bool {
        let good = Duration::from_secs(u64::from(SECONDS.unsigned_abs()));
        let renewed = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.is_some_and(|at| at.elapsed() < good)
    }

    fn renewed(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// Which lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) namespace: String,
    pub(crate) name: String,
    kept: watch::Sender<bool>,
}

impl Lease {
    pub(crate) fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Lease {
            namespace: namespace.into(),
            name: name.into(),
            kept: watch::Sender::new(false),
        }
    }

    /// Turns true when the lease has been renewed for the first time.
    pub(crate) fn kept(&self) -> watch::Receiver<bool> {
        self.kept.subscribe()
    }

    fn collection(&self) -> String {
        let namespace = &self.namespace;
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    }

    fn path(&self) -> String {
        format!("{}/{}", self.collection(), self.name)
    }
}

/// Keeps a lease, and with it the estimate of the server's clock. Runs until `shutdown`.
pub(crate) async fn keep(context: Arc<Context>, lease: Lease, shutdown: CancellationToken) {
    let work = async {
        let mut first = true;
        let mut complained = false;
        loop {
            if let Err(error) = renew(&context, &lease).await {
                let (namespace, name) = (&lease.namespace, &lease.name);
                if std::mem::replace(&mut complained, true) {
                    debug!(namespace, name, %error, "its lease could not be renewed; trying again");
                } else {
                    warn!(namespace, name, %error, "its lease could not be renewed; trying again");
                }
                tokio::time::sleep(RETRY).await;
                continue;
            }
            complained = false;
            context.metrics.lease.renewed();
            lease.kept.send_replace(true);
            if std::mem::take(&mut first) {
                dated::first_samples(&context, &lease.path()).await;
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = work => {}
    }
}

async fn renew(context: &Context, lease: &Lease) -> Result<(), AskError> {
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(Timestamp::now());
    let spec = json!({
        "holderIdentity": lease.name,
        "leaseDurationSeconds": SECONDS,
        "renewTime": now,
    });
    let patch = json!({ "spec": spec });
    let (code, message) = ask(context, Method::PATCH, &lease.path(), Some(&patch)).await?;
    if code != 404 {
        return accepted(code, message);
    }
    let object = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": lease.name, "namespace": lease.namespace},
        "spec": spec,
    });
    let (code, message) = ask(context, Method::POST, &lease.collection(), Some(&object)).await?;
    accepted(code, message)
}

fn accepted(code: u16, message: String) -> Result<(), AskError> {
    if (200..300).contains(&code) {
        Ok(())
    } else {
        Err(AskError::Refused { code, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Reply, Script, context};

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_nobody_answers_is_given_up_in_time_for_another() {
        let dir = tempfile::tempdir().unwrap();
        let script = Script::new([Reply::Silence, Reply::Answer(200, json!({}))]);
        let context = context(dir.path(), &script);
        let lease = Lease::new("ns", "n1");
        let mut kept = lease.kept();
        tokio::spawn(keep(context, lease, CancellationToken::new()));
        let renewed = kept.wait_for(|kept| *kept);
        let soon = tokio::time::timeout(Duration::from_secs(15), renewed).await;
        assert!(soon.is_ok(), "asked: {:?}", script.asked());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_kept_from_its_renewal_for_as_long_as_it_is_good() {
        let health = LeaseHealth::default();
        assert!(!health.is_kept(), "never renewed");
        health.renewed();
        tokio::time::advance(Duration::from_secs(39)).await;
        assert!(health.is_kept());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(!health.is_kept());
        health.renewed();
        assert!(health.is_kept());
    }
}
