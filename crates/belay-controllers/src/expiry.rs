//! Ends the PodNotifications and PodActions that nobody else will end.
//!
//! # Expected flow
//!
//! Two watches, of what has no end and of what has one and asks to be collected, feed a [`Tracker`]
//! each, which knows when an object falls due. A due object is read again, judged again on what was
//! read, and written with the resource version of that read. What has ended and asks for nothing,
//! which may be very many, is never read: a new leader knows what it has to do at once.
//!
//! # Guarantees
//!
//! - Unclaimed past its deadline: `Failed`, `Expired`. Claimed, past its deadline, and the claiming
//!   executor silent for [`decide::SILENCE`]: `Failed`, `Interrupted`. Finished and past its
//!   `ttlSecondsAfterFinished`: deleted. Whose lease tells of an executor is said in [`tracker`].
//! - A claim or a result that is written between the read and the write wins: the write is refused
//!   by the server, and the object is judged afresh.
//! - Never early; see [`decide::MARGIN`].
//!
//! # Caveats
//!
//! Silence is measured from what this process has seen, so after its own restart a lost executor
//! is given the full time again.

pub mod decide;
mod record;
pub mod tracker;

use std::time::Duration;

use belay_api::lenient::Lenient;
use futures::future::FutureExt as _;
use futures::stream::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource, ResourceExt as _};
use serde::Deserialize;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use decide::{Facts, Progress, Verdict};
pub use record::Expires;
use tracker::{Key, Now, Source, Tracker};

use crate::clock::Clock;
use crate::watching::Events;
use crate::{Controllers, event, objects, watching};

/// Where nodes keep their leases.
const NODE_LEASES: &str = "kube-node-lease";
/// How long a write that failed waits before it is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How many objects are read and written at once.
const CONCURRENT: usize = 16;

/// Runs until `shutdown`.
pub(crate) async fn run<K: Expires>(
    controllers: Controllers,
    clock: Clock,
    shutdown: CancellationToken,
) {
    let client = &controllers.client;
    let mut open = selected::<K>(client, K::OPEN);
    let mut collectable = match K::COLLECTABLE {
        Some(fields) => selected::<K>(client, Some(fields)),
        None => futures::stream::pending().boxed(),
    };
    let mut nodes = leases(client, NODE_LEASES);
    let mut roles = leases(client, &controllers.namespace);
    let mut told = watching::Told::default();
    let mut trackers = Trackers::new(Instant::now());
    loop {
        let next = trackers.next_due();
        let timer = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(event) = open.next() => {
                object_event(&mut trackers.open, &mut told, event, clock.now());
            }
            Some(event) = collectable.next() => {
                object_event(&mut trackers.collectable, &mut told, event, clock.now());
            }
            Some(event) = nodes.next() => lease_event(&mut trackers.open, Source::Node, event, clock.now()),
            Some(event) = roles.next() => lease_event(&mut trackers.open, Source::Role, event, clock.now()),
            () = timer => {}
        }
        // Everything that is known already counts before anything is judged.
        while let Some(Some(event)) = open.next().now_or_never() {
            object_event(&mut trackers.open, &mut told, event, clock.now());
        }
        while let Some(Some(event)) = collectable.next().now_or_never() {
            object_event(&mut trackers.collectable, &mut told, event, clock.now());
        }
        while let Some(Some(event)) = nodes.next().now_or_never() {
            lease_event(&mut trackers.open, Source::Node, event, clock.now());
        }
        while let Some(Some(event)) = roles.next().now_or_never() {
            lease_event(&mut trackers.open, Source::Role, event, clock.now());
        }
        let due = trackers.due(clock.now());
        if due.is_empty() {
            continue;
        }
        let judged = futures::stream::iter(due)
            .map(|key| judge::<K>(&controllers, &clock, &trackers.open, key))
            .buffer_unordered(CONCURRENT)
            .collect::<Vec<_>>();
        let judged = tokio::select! {
            () = shutdown.cancelled() => return,
            judged = judged => judged,
        };
        let again = Instant::now() + RETRY;
        for (key, facts) in judged.into_iter().flatten() {
            trackers.of(&facts).retry(key, facts, again);
        }
    }
}

/// One for each watch, because an object leaves the one and comes into the other in no certain order.
struct Trackers {
    /// Also knows who was heard of.
    open: Tracker,
    collectable: Tracker,
}

impl Trackers {
    fn new(now: Instant) -> Self {
        Trackers {
            open: Tracker::new(now),
            collectable: Tracker::new(now),
        }
    }

    fn of(&mut self, facts: &Facts) -> &mut Tracker {
        match facts.progress {
            Progress::Unclaimed | Progress::Claimed { .. } => &mut self.open,
            Progress::Finished { .. } => &mut self.collectable,
        }
    }

    fn next_due(&self) -> Option<Instant> {
        let due = [self.open.next_due(), self.collectable.next_due()];
        due.into_iter().flatten().min()
    }

    fn due(&mut self, now: Now) -> Vec<Key> {
        let mut due = self.open.due(now);
        due.extend(self.collectable.due(now));
        due
    }
}

/// The objects that these fields select; all without any.
fn selected<K: Expires>(client: &Client, fields: Option<&str>) -> Events<K> {
    let mut config = watcher::Config::default();
    if let Some(fields) = fields {
        config = config.fields(fields);
    }
    watching::watch_all(client, config)
}

fn leases(client: &Client, namespace: &str) -> Events<Heartbeat> {
    let api = Api::namespaced(client.clone(), namespace);
    watching::watch(api, watcher::Config::default())
}

/// A lease, reduced to what is read of it. When it was renewed is compared and never reckoned with:
/// a time that its holder made up is a sign of life like any other.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Lease)]
struct Heartbeat {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Renewal,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Renewal {
    renew_time: Option<String>,
}

fn object_event<K: Expires>(
    tracker: &mut Tracker,
    told: &mut watching::Told,
    event: watcher::Result<Event<K>>,
    now: Now,
) {
    match event {
        Ok(Event::Init) => tracker.listing(),
        Ok(Event::InitApply(object)) => {
            if let Some(facts) = object.facts() {
                tracker.listed(record::key(&object), facts, now);
            }
        }
        Ok(Event::InitDone) => tracker.listing_done(),
        Ok(Event::Apply(object)) => {
            if let Some(facts) = object.facts() {
                tracker.applied(record::key(&object), facts, now);
            }
        }
        Ok(Event::Delete(object)) => tracker.forget(&record::key(&object)),
        Err(error) => told.interrupted(K::PLURAL, &error),
    }
}

fn lease_event(
    tracker: &mut Tracker,
    source: Source,
    event: watcher::Result<Event<Heartbeat>>,
    now: Now,
) {
    match event {
        Ok(Event::Apply(lease) | Event::InitApply(lease)) => {
            let name = lease.name_any();
            tracker.heartbeat(source, &name, lease.spec.renew_time, now);
        }
        // A lease that is gone is not renewed any more; its silence goes on growing.
        Ok(Event::Delete(_) | Event::Init | Event::InitDone) => {}
        Err(error) => debug!(%error, "watch of leases interrupted; it is resumed"),
    }
}

/// Reads one object again, judges it and writes the verdict. Returns what to keep tracking when
/// it was not settled.
async fn judge<K: Expires>(
    controllers: &Controllers,
    clock: &Clock,
    tracker: &Tracker,
    key: Key,
) -> Option<(Key, Facts)> {
    let client = &controllers.client;
    let api: Api<Lenient<K>> = Api::namespaced(client.clone(), &key.namespace);
    let found = api.get_opt(&key.name).await;
    let object = match found.map(|found| found.map(Lenient::read)) {
        Ok(Some(Ok(object))) if record::key(&object) == key => object,
        Ok(Some(Ok(_)) | None) => return None,
        Ok(Some(Err(unreadable))) => {
            // When it can be read again the watch tells.
            warn!("{} {unreadable}; it is passed over", K::PLURAL);
            return None;
        }
        Err(error) => {
            warn!(namespace = key.namespace, name = key.name, %error, "cannot be read; trying again");
            // Unclaimed facts of long ago: it is due again at once, and read again then.
            return Some((key, Facts::overdue()));
        }
    };
    let facts = object.facts()?;
    let verdict = tracker.verdict(&facts, clock.now());
    let written = match &verdict {
        Verdict::Leave => return None,
        Verdict::LookAgain { .. } => return Some((key, facts)),
        Verdict::Collect => collect(&api, &object).await,
        Verdict::Expire | Verdict::Interrupt { .. } => {
            end(client, clock, &api, &object, &verdict).await
        }
    };
    let (namespace, name) = (&key.namespace, &key.name);
    match written {
        Ok(()) => {
            info!(namespace, name, ?verdict, "settled");
            controllers.metrics.expired(verdict.label());
            None
        }
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(kube::Error::Api(status)) if status.code == 409 => {
            debug!(namespace, name, "changed meanwhile; judging it afresh");
            Some((key, facts))
        }
        Err(error) => {
            warn!(namespace, name, %error, "verdict could not be written; trying again");
            Some((key, facts))
        }
    }
}

async fn collect<K: Expires>(api: &Api<Lenient<K>>, object: &K) -> kube::Result<()> {
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: object.uid(),
        resource_version: object.resource_version(),
    });
    api.delete(&object.name_any(), &params).await.map(|_| ())
}

async fn end<K: Expires>(
    client: &Client,
    clock: &Clock,
    api: &Api<Lenient<K>>,
    object: &K,
    verdict: &Verdict,
) -> kube::Result<()> {
    // By the clock that tells later when it has been kept long enough.
    let Some(ended) = object.ended(verdict, clock.latest()) else {
        return Ok(());
    };
    // The resource version of the read is in the metadata: a claim in between is a conflict.
    let written = objects::replace_status(api, &ended).await?;
    if let Some(event) = written.warning(jiff::Timestamp::now()) {
        event::tell(client, &event).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
