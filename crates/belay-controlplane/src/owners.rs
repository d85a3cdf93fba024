//! Deletes what belongs to something that is gone, as a stock garbage collector does.
//!
//! # Expected flow
//!
//! All kinds that discovery lists are watched, metadata only. An object whose owners are all gone is
//! deleted. A deletion that asks for it leaves the owner in place with a finalizer: `orphan` until
//! its dependents have been disowned, `foregroundDeletion` until those that block it are gone. What
//! another owner keeps is not waited for: it is disowned.
//!
//! # Guarantees
//!
//! Nothing is deleted before every kind has been listed, nor on a guess: an owner that no watch has
//! told of is looked for by its name and UID. A reference to an owner in another namespace, or by a
//! wrong name, is one to something that does not exist, and says nothing of what has that UID.
//! Deletions carry the UID they were decided for.

mod graph;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::FutureExt as _;
use futures::stream::{BoxStream, SelectAll, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, PartialObjectMeta, Patch, PatchParams,
    Preconditions,
};
use kube::discovery::{Discovery, Scope, verbs};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use graph::{Cascade, Graph, Owner, Place, Seen, Task};

/// How long a task that failed waits before it is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How many tasks are under way at once.
const CONCURRENT: usize = 16;

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

type Object = PartialObjectMeta<DynamicObject>;
type Events = SelectAll<BoxStream<'static, (usize, watcher::Result<Event<Object>>)>>;

/// A kind that can be collected.
struct Kind {
    resource: ApiResource,
    namespaced: bool,
}

/// Tasks that failed, to be tried again.
#[derive(Debug, Default)]
struct Retries {
    tasks: Vec<Task>,
    /// Counts from the first of them: those that fail later must not put it off.
    at: Option<Instant>,
}

impl Retries {
    fn add(&mut self, failed: Vec<Task>) {
        if !failed.is_empty() {
            self.at.get_or_insert_with(|| Instant::now() + RETRY);
            self.tasks.extend(failed);
        }
    }

    /// Waits until it is time, and takes them. Nothing is lost by who stops waiting.
    async fn due(&mut self) -> Vec<Task> {
        match self.at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
        self.at = None;
        std::mem::take(&mut self.tasks)
    }
}

/// Collects until `shutdown`.
pub async fn run(client: Client, shutdown: CancellationToken) {
    let collect = async {
        let collector = Collector {
            kinds: discover(&client).await,
            client,
        };
        collector.run().await;
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = collect => {}
    }
}

/// The kinds served; they do not change while the server runs.
async fn discover(client: &Client) -> Vec<Kind> {
    loop {
        match Discovery::new(client.clone()).run().await {
            Ok(found) => return found.groups().flat_map(kinds).collect(),
            Err(error) => debug!(%error, "cannot discover the kinds; trying again"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn kinds(group: &kube::discovery::ApiGroup) -> Vec<Kind> {
    let resources = group.recommended_resources().into_iter();
    resources
        // Events come and go by themselves, and nothing that belongs to one.
        .filter(|(resource, can)| {
            resource.kind != "Event"
                && can.supports_operation(verbs::WATCH)
                && can.supports_operation(verbs::DELETE)
        })
        .map(|(resource, can)| Kind {
            resource,
            namespaced: can.scope == Scope::Namespaced,
        })
        .collect()
}

struct Collector {
    client: Client,
    kinds: Vec<Kind>,
}

impl Collector {
    async fn run(&self) {
        let mut events: Events = self.watch();
        let mut graph = Graph::default();
        let mut unlisted: BTreeSet<usize> = (0..self.kinds.len()).collect();
        let mut retries = Retries::default();
        loop {
            tokio::select! {
                Some((kind, event)) = events.next() => {
                    self.event(&mut graph, &mut unlisted, kind, event);
                }
                tasks = retries.due() => {
                    for task in &tasks {
                        graph.again(task);
                    }
                }
            }
            // A burst is looked at once, not once per event.
            while let Some(Some((kind, event))) = events.next().now_or_never() {
                self.event(&mut graph, &mut unlisted, kind, event);
            }
            if !unlisted.is_empty() {
                continue;
            }
            retries.add(self.collect(&mut graph).await);
        }
    }

    /// Does what there is to do, and what follows from it. Returns what has to be tried again.
    async fn collect(&self, graph: &mut Graph) -> Vec<Task> {
        let mut failed = Vec::new();
        loop {
            let tasks = graph.tasks();
            if tasks.is_empty() {
                return failed;
            }
            let done = futures::stream::iter(tasks)
                .map(|task| async move {
                    let result = self.carry_out(&task).await;
                    (task, result)
                })
                .buffer_unordered(CONCURRENT)
                .collect::<Vec<_>>()
                .await;
            for (task, result) in done {
                match (result, &task) {
                    (Ok(exists), Task::Find { uid, place }) => graph.found(uid, place, exists),
                    (Ok(_), _) => {}
                    (Err(error), _) => {
                        warn!(?task, %error, "cannot collect; trying again");
                        failed.push(task);
                    }
                }
            }
        }
    }

    fn watch(&self) -> Events {
        let streams = self.kinds.iter().enumerate().map(|(index, kind)| {
            let api: Api<Object> = Api::all_with(self.client.clone(), &kind.resource);
            watcher(api, watcher::Config::default())
                .default_backoff()
                .map(move |event| (index, event))
                .boxed()
        });
        futures::stream::select_all(streams)
    }

    fn event(
        &self,
        graph: &mut Graph,
        unlisted: &mut BTreeSet<usize>,
        kind: usize,
        event: watcher::Result<Event<Object>>,
    ) {
        match event {
            Ok(Event::Init) => graph.listing(kind),
            Ok(Event::InitApply(object)) => graph.listed(self.seen(kind, &object)),
            Ok(Event::InitDone) => {
                graph.listing_done(kind);
                unlisted.remove(&kind);
            }
            Ok(Event::Apply(object)) => graph.applied(self.seen(kind, &object)),
            Ok(Event::Delete(object)) => {
                let Seen { uid, place, .. } = self.seen(kind, &object);
                graph.deleted(&uid, &place);
            }
            Err(error) => debug!(%error, "watch interrupted; it is resumed"),
        }
    }

    fn seen(&self, kind: usize, object: &Object) -> Seen {
        let namespace = object.namespace();
        let finalizers = object.finalizers();
        let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
        let cascade = if has(ORPHAN) {
            Some(Cascade::Orphan)
        } else {
            has(FOREGROUND).then_some(Cascade::Foreground)
        };
        Seen {
            uid: object.uid().unwrap_or_default(),
            owners: object
                .owner_references()
                .iter()
                .map(|owner| self.owner(owner, namespace.as_deref()))
                .collect(),
            place: Place {
                kind,
                namespace,
                name: object.name_any(),
            },
            terminating: object.metadata.deletion_timestamp.is_some(),
            cascade,
        }
    }

    /// An owner is in the namespace of its dependent, or in none. What is in no namespace cannot
    /// say where an owner in one would be.
    fn owner(&self, owner: &OwnerReference, namespace: Option<&str>) -> Owner {
        let kind = self.kinds.iter().position(|kind| {
            kind.resource.api_version == owner.api_version && kind.resource.kind == owner.kind
        });
        let place = kind.and_then(|kind| {
            let namespace = match (self.kinds[kind].namespaced, namespace) {
                (true, None) => return None,
                (true, Some(namespace)) => Some(namespace.to_owned()),
                (false, _) => None,
            };
            let name = owner.name.clone();
            Some(Place {
                kind,
                namespace,
                name,
            })
        });
        Owner {
            uid: owner.uid.clone(),
            place,
            blocks: owner.block_owner_deletion == Some(true),
        }
    }

    fn api(&self, place: &Place) -> Api<Object> {
        let resource = &self.kinds[place.kind].resource;
        match &place.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }

    /// Does it. The answer matters for a search only: whether it was found.
    async fn carry_out(&self, task: &Task) -> kube::Result<bool> {
        match task {
            Task::Find { uid, place } => {
                let found = self.api(place).get_opt(&place.name).await?;
                Ok(found.is_some_and(|found| found.uid().as_deref() == Some(uid)))
            }
            Task::Delete { uid, place } => {
                let params = DeleteParams::background().preconditions(Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                });
                gone_is_fine(
                    self.api(place)
                        .delete(&place.name, &params)
                        .await
                        .map(|_| ()),
                )?;
                debug!(?place, "deleted, for its owner is gone");
                Ok(true)
            }
            Task::Disown { uid, place, owner } => {
                self.change(uid, place, |object| {
                    let rest: Vec<&OwnerReference> = object
                        .owner_references()
                        .iter()
                        .filter(|reference| reference.uid != *owner)
                        .collect();
                    json!({"ownerReferences": rest})
                })
                .await
            }
            Task::LetGo {
                uid,
                place,
                cascade,
            } => {
                let own = match cascade {
                    Cascade::Orphan => ORPHAN,
                    Cascade::Foreground => FOREGROUND,
                };
                self.change(uid, place, |object| {
                    let rest: Vec<&String> = object
                        .finalizers()
                        .iter()
                        .filter(|finalizer| *finalizer != own)
                        .collect();
                    json!({"finalizers": rest})
                })
                .await
            }
        }
    }

    /// Changes the metadata of an object, if it is still the one that was meant.
    async fn change(
        &self,
        uid: &str,
        place: &Place,
        change: impl Fn(&Object) -> Value,
    ) -> kube::Result<bool> {
        let api = self.api(place);
        let Some(object) = api.get_opt(&place.name).await? else {
            return Ok(false);
        };
        if object.uid().as_deref() != Some(uid) {
            return Ok(false);
        }
        let mut metadata = change(&object);
        metadata["resourceVersion"] = json!(object.resource_version());
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let changed = api
            .patch(&place.name, &PatchParams::default(), &patch)
            .await;
        gone_is_fine(changed.map(|_| ()))?;
        Ok(true)
    }
}

fn gone_is_fine(result: kube::Result<()>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_fails_again_and_again_does_not_put_off_the_retries_of_the_others() {
        let started = Instant::now();
        let task = |uid: &str| Task::Find {
            uid: uid.into(),
            place: Place {
                kind: 0,
                namespace: None,
                name: uid.into(),
            },
        };
        let mut retries = Retries::default();
        retries.add(vec![task("first")]);
        let due = loop {
            tokio::select! {
                due = retries.due() => break due,
                () = tokio::time::sleep(RETRY / 3) => {}
            }
            assert!(started.elapsed() < RETRY * 2, "never tried again");
            retries.add(vec![task("other")]);
        };
        assert_eq!(due[0], task("first"));
        assert!(due.len() > 1);
    }

    #[tokio::test]
    async fn where_the_owner_of_a_thing_in_no_namespace_would_be_nobody_knows() {
        let kind = |kind: &str, namespaced| Kind {
            resource: ApiResource {
                group: String::new(),
                version: "v1".into(),
                api_version: "v1".into(),
                kind: kind.into(),
                plural: String::new(),
            },
            namespaced,
        };
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
                .await
        });
        let collector = Collector {
            client: Client::new(service, "default"),
            kinds: vec![kind("ConfigMap", true), kind("Node", false)],
        };
        let place = |of: &str, namespace| {
            let reference = OwnerReference {
                api_version: "v1".into(),
                kind: of.into(),
                name: "o".into(),
                ..OwnerReference::default()
            };
            let place = collector.owner(&reference, namespace).place;
            place.map(|place| (place.kind, place.namespace))
        };
        assert_eq!(place("ConfigMap", Some("a")), Some((0, Some("a".into()))));
        assert_eq!(place("ConfigMap", None), None);
        assert_eq!(place("Node", Some("a")), Some((1, None)));
        assert_eq!(place("Node", None), Some((1, None)));
        assert_eq!(place("Pod", Some("a")), None);
    }
}
