//! What the driver does on the server: each a future that ends with what came of it.

use std::sync::Arc;
use std::time::Duration;

use belay_api::fanout::{Notification, NotificationStatus};
use belay_api::lenient::Lenient;
use belay_api::notification::PodNotification;
use belay_api::selector::LabelSelector;
use belay_core::fanout::{Outcome, Target};
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions, VersionMatch};
use kube::{Client, ResourceExt as _};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::{pods, record};
use crate::expiry::tracker::Key;
use crate::objects;
use crate::release::{Patience, release};

/// How long to wait after something went wrong.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Pods are read in pages of this size.
const PAGE: u32 = 500;

/// What came of a piece of work on one Notification.
#[derive(Debug)]
pub(super) enum Done {
    Fixed(String, kube::Result<Vec<Target>>),
    Created(String, Target, Creation),
    Written(String, Box<Writing>),
    Collected(Key, bool),
    /// Nothing has to be said about it.
    Quietly,
}

/// What came of a creation. Never a guess: see [`create`].
#[derive(Debug)]
pub(super) enum Creation {
    /// It is there, and may have ended already: the embedded server settles in the creating write
    /// what can reach nobody.
    There(Option<Outcome>),
    Refused(String),
    /// The server did not say, and it is not there.
    Unanswered(String),
    /// There is something else of its name, which this names.
    Taken(String),
}

/// What came of a write of the status.
#[derive(Debug)]
pub(super) enum Writing {
    Ok(Notification),
    /// Somebody changed the object; this is what it is now.
    Changed(Notification),
    Gone,
    Failed(kube::Error),
}

fn children(client: &Client, namespace: &str) -> Api<Lenient<PodNotification>> {
    Api::namespaced(client.clone(), namespace)
}

fn notifications(client: &Client, namespace: &str) -> Api<Lenient<Notification>> {
    Api::namespaced(client.clone(), namespace)
}

/// The running pods that match, at the resource version of the Notification. Where the server has
/// forgotten that version: those that run now and were created before it.
pub(super) async fn fix(client: Client, object: Notification, selector: LabelSelector) -> Done {
    let uid = object.uid().unwrap_or_default();
    let version = object.resource_version().unwrap_or_default();
    let result = match select(&client, &object, &selector, Some(&version)).await {
        // 410 is the stock answer; one that cannot find the version says 400 or 504.
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 410 | 504) => {
            debug!(%uid, error = %status.message, "its own version is not to be had any more");
            select(&client, &object, &selector, None).await
        }
        result => result,
    };
    Done::Fixed(uid, result)
}

async fn select(
    client: &Client,
    object: &Notification,
    selector: &LabelSelector,
    version: Option<&str>,
) -> kube::Result<Vec<Target>> {
    let api = pods::api(client, &object.namespace().unwrap_or_default());
    let all = ListParams::default()
        .labels(&selector.to_string())
        .limit(PAGE);
    let first = match version {
        Some(version) => all.at(version).matching(VersionMatch::Exact),
        None => all,
    };
    let before = |pod: &pods::SlimPod| {
        let created = (pod.creation_timestamp(), object.creation_timestamp());
        version.is_some() || matches!(created, (Some(pod), Some(own)) if pod.0 <= own.0)
    };
    let mut targets = Vec::new();
    objects::pages(&api, &first, |pod: pods::SlimPod| {
        let facts = pods::facts(&pod);
        if facts.eligible && before(&pod) {
            targets.push(facts.target);
        }
    })
    .await?;
    Ok(targets)
}

/// Creates the child of a pod. An answer that got lost is looked for until it is found: as long as
/// nobody knows whether the child exists, its place is taken.
pub(super) async fn create(
    client: Client,
    object: Notification,
    target: Target,
    now: Timestamp,
) -> Done {
    let uid = object.uid().unwrap_or_default();
    let child = record::child(&object, &target, now);
    let api = children(&client, &object.namespace().unwrap_or_default());
    let creation = match objects::create(&api, &child).await {
        Ok(made) => Creation::There(record::read(&made).and_then(|made| made.outcome)),
        Err(kube::Error::Api(status))
            if (400..500).contains(&status.code) && !matches!(status.code, 408 | 409 | 429) =>
        {
            Creation::Refused(status.message.clone())
        }
        Err(error) => {
            debug!(%uid, %error, "looking whether the child is there");
            look(&api, &uid, &child).await
        }
    };
    Done::Created(uid, target, creation)
}

async fn look(
    api: &Api<Lenient<PodNotification>>,
    owner: &str,
    child: &PodNotification,
) -> Creation {
    let name = child.name_any();
    loop {
        match api.get_opt(&name).await {
            Ok(Some(found)) => {
                // What cannot be read is none that was made here.
                let found = found.read().ok();
                let wanted = child.spec.pod_uid.as_deref();
                let ours = found.as_ref().and_then(record::read).filter(|found| {
                    found.owner == owner
                        && Some(found.target.uid.as_str()) == wanted
                        && found.notifier == child.spec.notifier
                });
                return match ours {
                    Some(found) => Creation::There(found.outcome),
                    None => Creation::Taken(name),
                };
            }
            Ok(None) => return Creation::Unanswered("the server did not answer".to_owned()),
            Err(error) => {
                debug!(name, %error, "cannot look whether the child is there");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Writes the status on the version that is known.
pub(super) async fn write(
    client: Client,
    mut object: Notification,
    status: NotificationStatus,
) -> Done {
    let (uid, name) = (object.uid().unwrap_or_default(), object.name_any());
    let api = notifications(&client, &object.namespace().unwrap_or_default());
    object.status = Some(status);
    let writing = match objects::replace_status(&api, &object).await {
        Ok(object) => Writing::Ok(object),
        Err(kube::Error::Api(status)) if status.code == 404 => Writing::Gone,
        // A conflict, or an answer that got lost: what is there now tells.
        Err(error) => match objects::find(&api, &name).await {
            Ok(Some(now)) if now.uid().as_deref() == Some(&uid) => match error {
                kube::Error::Api(status) if status.code != 409 => {
                    Writing::Failed(kube::Error::Api(status))
                }
                _ => Writing::Changed(now),
            },
            Ok(_) => Writing::Gone,
            Err(_) => Writing::Failed(error),
        },
    };
    Done::Written(uid, Box::new(writing))
}

/// Lets a child go when nothing of it runs.
pub(super) async fn let_go(
    client: Client,
    slots: Arc<Semaphore>,
    namespace: String,
    name: String,
) -> Done {
    release::<PodNotification>(client, slots, namespace, name, Patience::UntilAtRest).await;
    Done::Quietly
}

/// Deletes a child that has ended and whose pod is gone. It goes when it is counted. Tried until it
/// is done.
pub(super) async fn discard(
    client: Client,
    slots: Arc<Semaphore>,
    namespace: String,
    name: String,
) -> Done {
    let api = children(&client, &namespace);
    loop {
        let slot = slots.acquire().await;
        match api.delete(&name, &DeleteParams::default()).await {
            Ok(_) => return Done::Quietly,
            Err(kube::Error::Api(status)) if status.code == 404 => return Done::Quietly,
            Err(error) => {
                drop(slot);
                warn!(namespace, name, %error, "cannot be collected; trying again");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Deletes a Notification whose time to live is over; its children go with it.
pub(super) async fn collect(client: Client, key: Key) -> Done {
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(key.uid.clone()),
        resource_version: None,
    });
    let api = notifications(&client, &key.namespace);
    let done = match api.delete(&key.name, &params).await {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => true,
        Err(error) => {
            warn!(namespace = key.namespace, name = key.name, %error, "cannot be collected; trying again");
            false
        }
    };
    Done::Collected(key, done)
}

/// Tells. An event that cannot be written is no reason to try anything again.
pub(super) async fn tell(client: Client, event: k8s_openapi::api::core::v1::Event) -> Done {
    let namespace = event.metadata.namespace.clone().unwrap_or_default();
    let api: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(client, &namespace);
    if let Err(error) = api.create(&PostParams::default(), &event).await {
        debug!(%error, "event not recorded");
    }
    Done::Quietly
}
