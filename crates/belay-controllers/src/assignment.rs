//! Settles who is to act on a new PodNotification, or that nobody can.
//!
//! The embedded server does this in the creating write, so that this loop finds nothing to do there.
//! On a stock cluster it is the first thing that happens to a notification.
//!
//! # Expected flow
//!
//! A watch selects the notifications that are new and have no node. For each the pod is read from the
//! server and [`belay_core::resolve`] decides; the status is written with the resource version of the
//! notification.
//!
//! # Guarantees
//!
//! - The pod is read afresh for each notification, not taken from a watch: a watch that lags would call
//!   a pod missing that is there, or send the notification to a pod that its successor has replaced.
//! - `status.nodeName` and `status.podUID` are written once. Whoever writes the notification in
//!   between wins, and it is looked at afresh.
//! - Finished notifications are not in the watch.
//! - A child of a Notification is assigned only if the Notification was there, and not being deleted,
//!   after the child was. Whoever deletes a Notification and then finds none of its children left may
//!   therefore take it that nothing of it runs or will: a child whose creation was under way comes to
//!   nothing. (The embedded server does not create it.)

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belay_api::fanout::Notification;
use belay_api::lenient::Lenient;
use belay_api::notification::{ErrorType, PodNotification, PodNotificationStatus};
use belay_api::pod::Pod;
use belay_api::reasons;
use belay_core::resolve::{Declares, PodFacts, Resolution, resolve};
use futures::stream::{FuturesUnordered, StreamExt as _};
use jiff::Timestamp;
use kube::api::{Api, GetParams, PartialObjectMeta};
use kube::core::Request;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::clock::Clock;
use crate::{Controllers, event, objects, watching};

/// What nobody has resolved.
const UNRESOLVED: &str = "status.state=New,status.nodeName=";
/// How many are resolved at once.
const CONCURRENT: usize = 32;
/// Pauses between tries.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Where the server refuses, or what it has cannot be read: that passes when somebody does something.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Where it does not answer, or cannot: that passes, and then nobody is to wait for long.
const LONGEST_OUTAGE: Duration = Duration::from_secs(5);
/// How many Notifications it is remembered of when they were asked for.
const REMEMBERED: usize = 1024;

/// Runs until `shutdown`.
pub(crate) async fn run(controllers: Controllers, clock: Clock, shutdown: CancellationToken) {
    let config = watcher::Config::default().fields(UNRESOLVED);
    let mut events = watching::watch_all::<PodNotification>(&controllers.client, config);
    let mut told = watching::Told::default();
    let mut queue = Queue::default();
    let owners = Owners::default();
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < CONCURRENT
            && let Some(turn) = queue.next(Instant::now())
        {
            running.push(settle(&controllers, &clock, &owners, turn));
        }
        let next = queue.next_timer();
        let timer = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some(event) = events.next() => match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => queue.add(object),
                // One that leaves the selection has been resolved.
                Ok(Event::Delete(_) | Event::Init | Event::InitDone) => {}
                Err(error) => told.interrupted("podnotifications", &error),
            },
            Some(settling) = running.next() => match settling {
                Settling::Done(uid) => queue.done(&uid),
                Settling::Later(turn, pause) => queue.later(turn, Instant::now() + pause),
            },
            () = timer => {}
        }
    }
}

/// A notification to resolve.
#[derive(Debug)]
struct Turn {
    object: Box<PodNotification>,
    /// When it was seen first.
    seen: Instant,
    /// How long it waits when it fails again; `None` for one that never did.
    pause: Option<Duration>,
}

/// What came of a turn. What could not be settled waits outside: those that cannot be written, for
/// whatever reason, must not hold up the others.
#[derive(Debug)]
enum Settling {
    /// The UID of what nothing has to be done with any more.
    Done(String),
    /// Another turn, after this time.
    Later(Turn, Duration),
}

/// Notifications to resolve, each once at a time.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Turn>,
    /// Those that failed, by the time of their next turn and UID.
    later: BTreeMap<(Instant, String), Turn>,
    /// Waiting or under way.
    known: HashSet<String>,
}

impl Queue {
    fn add(&mut self, object: PodNotification) {
        if is_unresolved(&object) && self.known.insert(object.uid().unwrap_or_default()) {
            self.waiting.push_back(Turn {
                object: Box::new(object),
                seen: Instant::now(),
                pause: None,
            });
        }
    }

    fn later(&mut self, turn: Turn, at: Instant) {
        let uid = turn.object.uid().unwrap_or_default();
        self.later.insert((at, uid), turn);
    }

    fn next(&mut self, now: Instant) -> Option<Turn> {
        while let Some(first) = self.later.first_entry()
            && first.key().0 <= now
        {
            self.waiting.push_back(first.remove());
        }
        self.waiting.pop_front()
    }

    /// When another turn comes, if nothing else happens.
    fn next_timer(&self) -> Option<Instant> {
        self.later.first_key_value().map(|((at, _), _)| *at)
    }

    fn done(&mut self, uid: &str) {
        self.known.remove(uid);
    }
}

/// Which Notifications were there, and when that was last asked. Many children are seen in the time
/// that one question takes, and its answer is good for all that were seen before it.
#[derive(Debug, Default)]
struct Owners {
    /// By UID.
    asked: Mutex<HashMap<String, Instant>>,
}

impl Owners {
    /// Whether the Notification that this belongs to, if it does, was there after `seen`.
    async fn alive(
        &self,
        controllers: &Controllers,
        object: &PodNotification,
        seen: Instant,
    ) -> kube::Result<bool> {
        let owner = object
            .owner_references()
            .iter()
            .find(|owner| owner.kind == "Notification" && owner.controller == Some(true));
        let Some(owner) = owner else {
            return Ok(true);
        };
        let known = |asked: &HashMap<String, Instant>| asked.get(&owner.uid).copied();
        if known(&self.asked()).is_some_and(|asked| asked > seen) {
            return Ok(true);
        }
        let now = Instant::now();
        let namespace = object.namespace().unwrap_or_default();
        let found = metadata::<Notification>(&controllers.client, &namespace, &owner.name).await?;
        let alive = found.is_some_and(|found| {
            found.uid().as_deref() == Some(&owner.uid)
                && found.metadata.deletion_timestamp.is_none()
        });
        let mut asked = self.asked();
        if !alive {
            asked.remove(&owner.uid);
        } else if known(&asked).is_none_or(|before| before < now) {
            if asked.len() >= REMEMBERED {
                asked.clear();
            }
            asked.insert(owner.uid.clone(), now);
        }
        Ok(alive)
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        // Nobody panics while holding it, and what it holds is whole at every moment.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the server says of an object whatever its kind, which costs less than the whole.
async fn metadata<K>(
    client: &Client,
    namespace: &str,
    name: &str,
) -> kube::Result<Option<PartialObjectMeta<K>>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let asked = Request::new(K::url_path(&(), Some(namespace)));
    let asked = asked
        .get_metadata(name, &GetParams::default())
        .map_err(kube::Error::BuildRequest)?;
    match client.request::<Lenient<PartialObjectMeta<K>>>(asked).await {
        Ok(found) => Ok(Some(found.read()?)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether it is still to be settled who acts on it.
fn is_unresolved(object: &PodNotification) -> bool {
    let status = object.status.as_ref();
    let set = |field: Option<&String>| field.is_some_and(|value| !value.is_empty());
    !object.state().is_final()
        && object.metadata.deletion_timestamp.is_none()
        && !set(status.and_then(|status| status.node_name.as_ref()))
        && !set(status.and_then(|status| status.executor.as_ref()))
}

/// What becomes of one notification.
#[derive(Debug, Clone, PartialEq)]
struct Settled {
    status: PodNotificationStatus,
    /// Reason and message of the warning that goes with it.
    warning: Option<(&'static str, String)>,
    /// One word for metrics.
    outcome: &'static str,
}

/// Decides, on the pod as it was read.
fn settled(object: &PodNotification, pod: Option<&Pod>, now: Timestamp) -> Settled {
    let spec = &object.spec;
    let declares = pod.map(|pod| pod.declares(&spec.notifier).map_err(|it| it.to_string()));
    let facts = pod.map(|pod| PodFacts {
        uid: pod.uid(),
        node: pod.spec.node_name.as_deref(),
        phase: pod.phase(),
        terminating: pod.is_terminating(),
        declares: match &declares {
            Some(Ok(true)) => Declares::Yes,
            Some(Ok(false)) | None => Declares::No,
            Some(Err(problem)) => Declares::Unusable { problem },
        },
    });
    match resolve(
        &spec.pod_name,
        spec.pod_uid.as_deref(),
        &spec.notifier,
        facts,
    ) {
        Resolution::Assign { node, pod_uid } => Settled {
            status: PodNotificationStatus::assigned(node, pod_uid),
            warning: None,
            outcome: "Assigned",
        },
        Resolution::Failed { error, message } => {
            let type_ = error.parse().unwrap_or(ErrorType::RuntimeError);
            Settled {
                status: PodNotificationStatus::refused(type_, message.clone(), now),
                warning: Some((error, message)),
                outcome: error,
            }
        }
        Resolution::NothingDeclared { message } => Settled {
            status: PodNotificationStatus::nothing_declared(message.clone(), now),
            warning: Some((reasons::NOT_DECLARED, message)),
            outcome: reasons::NOT_DECLARED,
        },
    }
}

/// What becomes of a child whose Notification is gone.
fn orphaned(now: Timestamp) -> Settled {
    let message = "the Notification it belongs to is gone; nothing was run".to_owned();
    Settled {
        status: PodNotificationStatus::refused(ErrorType::Cancelled, message, now),
        warning: None,
        outcome: "Cancelled",
    }
}

/// Tries once to settle a notification.
async fn settle(
    controllers: &Controllers,
    clock: &Clock,
    owners: &Owners,
    mut turn: Turn,
) -> Settling {
    let uid = turn.object.uid().unwrap_or_default();
    let namespace = turn.object.namespace().unwrap_or_default();
    let name = turn.object.name_any();
    let api: Api<Lenient<PodNotification>> =
        Api::namespaced(controllers.client.clone(), &namespace);
    let result = match turn.pause {
        None => Ok(()),
        // It may have changed since it was told of.
        Some(_) => match objects::find(&api, &name).await {
            Ok(Some(read)) if read.uid().as_deref() == Some(&uid) && is_unresolved(&read) => {
                *turn.object = read;
                Ok(())
            }
            Ok(_) => return Settling::Done(uid),
            Err(error) => Err(error),
        },
    };
    let result = match result {
        Ok(()) => write(controllers, clock, owners, &api, &turn.object, turn.seen).await,
        Err(error) => Err(error),
    };
    let pause = turn.pause.unwrap_or(FIRST_PAUSE);
    match result {
        Ok(()) => Settling::Done(uid),
        Err(kube::Error::Api(status)) if status.code == 404 => Settling::Done(uid),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            debug!(namespace, name, "changed meanwhile; looking at it afresh");
            turn.pause = Some(pause);
            Settling::Later(turn, Duration::ZERO)
        }
        Err(error) => {
            warn!(namespace, name, %error, "cannot be assigned; trying again");
            let longest = longest_pause(&error);
            turn.pause = Some((pause * 2).min(longest));
            Settling::Later(turn, pause.min(longest))
        }
    }
}

fn longest_pause(error: &kube::Error) -> Duration {
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) => LONGEST_PAUSE,
        kube::Error::SerdeError(_) => LONGEST_PAUSE,
        _ => LONGEST_OUTAGE,
    }
}

async fn write(
    controllers: &Controllers,
    clock: &Clock,
    owners: &Owners,
    api: &Api<Lenient<PodNotification>>,
    object: &PodNotification,
    seen: Instant,
) -> kube::Result<()> {
    let namespace = object.namespace().unwrap_or_default();
    let now = clock.latest();
    let settled = if owners.alive(controllers, object, seen).await? {
        let pods = Api::namespaced(controllers.client.clone(), &namespace);
        let pod: Option<Pod> = objects::find(&pods, &object.spec.pod_name).await?;
        settled(object, pod.as_ref(), now)
    } else {
        orphaned(now)
    };
    let mut assigned = object.clone();
    assigned.status = Some(settled.status);
    let written = objects::replace_status(api, &assigned).await?;
    let name = object.name_any();
    info!(namespace, name, outcome = settled.outcome, "resolved");
    controllers.metrics.assigned(settled.outcome);
    if let Some((reason, message)) = settled.warning {
        let event = event::about(&written, reason, "Assigning", message, Timestamp::now());
        event::tell(&controllers.client, &event).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
