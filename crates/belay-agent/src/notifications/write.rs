//! Writing a notification's status, whatever the network does.

use std::time::Duration;

use belay_api::notification::PodNotification;
use kube::api::{Api, PostParams};
use kube::{Error, ResourceExt as _};
use tracing::{debug, warn};

use crate::context::Context;

/// What became of a write.
#[derive(Debug)]
pub(crate) enum Written {
    /// It is on the server; the object as it is now.
    Landed(Box<PodNotification>),
    /// It is not, or nobody knows; the object as read afterwards, `None` when it is gone.
    Refused(Option<Box<PodNotification>>),
}

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Puts the status, conditional on the object's resource version.
///
/// Returns only with an answer: as long as the server is away, it is asked again. A write whose
/// answer got lost is never repeated blindly; the object is read, and whoever asked decides.
pub(crate) async fn put(context: &Context, object: &PodNotification) -> Written {
    let namespace = object.namespace().unwrap_or_default();
    let name = object.name_any();
    let api: Api<PodNotification> = Api::namespaced(context.client.clone(), &namespace);
    let mut pause = FIRST_PAUSE;
    loop {
        let result = {
            // Never closed.
            let _permit = context.status_writes.acquire().await;
            api.replace_status(&name, &PostParams::default(), object)
                .await
        };
        let error = match result {
            Ok(written) => return Written::Landed(Box::new(written)),
            Err(error) => error,
        };
        let stale = matches!(&error, Error::Api(status) if matches!(status.code, 404 | 409));
        if stale {
            debug!(namespace, name, %error, "a status write came too late");
        } else {
            warn!(namespace, name, %error, "a status could not be written; reading it again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let read = read(&api, &namespace, &name, &mut pause).await;
        let Some(read) = read.filter(|read| read.metadata.uid == object.metadata.uid) else {
            return Written::Refused(None);
        };
        let unchanged = read.metadata.resource_version == object.metadata.resource_version;
        let rejected = matches!(&error, Error::Api(status) if (400..500).contains(&status.code));
        if unchanged && !rejected {
            // It never arrived.
            continue;
        }
        return Written::Refused(Some(Box::new(read)));
    }
}

async fn read(
    api: &Api<PodNotification>,
    namespace: &str,
    name: &str,
    pause: &mut Duration,
) -> Option<PodNotification> {
    loop {
        match api.get_opt(name).await {
            Ok(object) => return object,
            Err(error) => {
                warn!(namespace, name, %error, "cannot be read; trying again");
                tokio::time::sleep(*pause).await;
                *pause = (*pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}
