//! The agent's port to the pod that a notification names.
//!
//! Whoever runs the pods has them in a table; whoever works beside a kubelet asks the runtime and
//! the API. The deliveries do not know which.

use std::sync::Arc;

use async_trait::async_trait;
use belay_core::delivery::Verdict;

use crate::journal::Started;
use crate::pods::{PodView, Table};

/// What was found.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    /// The pod, its notifiers, and its containers as they are now.
    Pod(Arc<PodView>),
    /// It cannot be notified.
    Refused(Verdict),
}

/// Why a pod could not be looked up just now.
#[derive(Debug, thiserror::Error)]
#[error("pod {pod} cannot be looked up: {message}")]
pub(crate) struct LookupError {
    pub(crate) pod: String,
    pub(crate) message: String,
}

/// Whether the server says that the object of this name is not there. One that does not serve its
/// kind, or a proxy that knows no such path, answers 404 too, and tells nothing of the object.
pub(crate) fn is_gone(error: &kube::Error, name: &str) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let about = status.details.as_ref();
    status.code == 404 && about.is_some_and(|details| details.name == name)
}

#[async_trait]
pub(crate) trait Lookup: Send + Sync {
    /// Returns when what is not found is not there. Nothing is claimed or given up before.
    async fn ready(&self);

    /// The pod of a notification, by the UID that it was assigned with.
    async fn find(&self, about: &Started) -> Result<Found, LookupError>;
}

#[async_trait]
impl Lookup for Table {
    async fn ready(&self) {
        self.until_listed().await;
    }

    async fn find(&self, about: &Started) -> Result<Found, LookupError> {
        let view = self.get(&about.record.pod_uid);
        Ok(view.map_or(Found::Refused(Verdict::PodNotFound), Found::Pod))
    }
}
