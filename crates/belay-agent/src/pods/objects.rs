//! The ConfigMaps and secrets that this node's pods use, as the API last told of them.
//!
//! Each is watched by its name for as long as a pod of this node uses it, once for all pods. What
//! was read stays known while the API server is away: a container that has to be started again then
//! gets the environment it would have got before.
//!
//! **Invariant:** the node asks for no object that none of its pods names.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use belay_api::pod::{Pod, Reference, ReferenceKind};
use futures::future::select_all;
use futures::stream::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::watching::follow;

/// The data of a ConfigMap or a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Object {
    /// What an environment can be made of.
    pub(crate) data: BTreeMap<String, Vec<u8>>,
    /// A ConfigMap's `binaryData`, which only files can show.
    pub(crate) binary: BTreeMap<String, Vec<u8>>,
}

impl From<ConfigMap> for Object {
    fn from(object: ConfigMap) -> Self {
        let data = object.data.unwrap_or_default();
        let binary = object.binary_data.unwrap_or_default();
        Object {
            data: data.into_iter().map(|(k, v)| (k, v.into_bytes())).collect(),
            binary: binary.into_iter().map(|(k, v)| (k, v.0)).collect(),
        }
    }
}

impl From<Secret> for Object {
    fn from(object: Secret) -> Self {
        let data = object.data.unwrap_or_default();
        Object {
            data: data.into_iter().map(|(k, v)| (k, v.0)).collect(),
            binary: BTreeMap::new(),
        }
    }
}

/// What is known of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Known {
    /// It has not been read; if that was tried in vain, why.
    Unread(Option<Arc<str>>),
    Missing,
    Found(Arc<Object>),
}

/// Everything that a pod uses.
pub(crate) type Found = BTreeMap<Reference, Known>;

type Key = (String, Reference);

/// The objects of the whole node.
pub(crate) struct Objects {
    client: Client,
    watched: Mutex<HashMap<Key, watch::Sender<Known>>>,
}

impl Objects {
    pub(crate) fn new(client: Client) -> Arc<Self> {
        Arc::new(Objects {
            client,
            watched: Mutex::new(HashMap::new()),
        })
    }

    /// Follows everything that a pod uses.
    pub(crate) fn of(self: &Arc<Self>, pod: &Pod) -> Uses {
        let references = pod.references().into_iter();
        Uses(
            references
                .map(|reference| {
                    let key = (pod.namespace().to_owned(), reference.clone());
                    (reference, self.follow(key))
                })
                .collect(),
        )
    }

    fn follow(self: &Arc<Self>, key: Key) -> watch::Receiver<Known> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = watched.get(&key) {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(Known::Unread(None));
        watched.insert(key.clone(), sender.clone());
        drop(watched);
        let objects = Arc::clone(self);
        tokio::spawn(async move {
            match key.1.kind {
                ReferenceKind::ConfigMap => objects.watch::<ConfigMap>(key, sender).await,
                ReferenceKind::Secret => objects.watch::<Secret>(key, sender).await,
            }
        });
        receiver
    }

    /// Runs until nobody follows the object any more.
    async fn watch<K>(&self, key: Key, sender: watch::Sender<Known>)
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug
            + Send
            + 'static,
        Object: From<K>,
    {
        let (namespace, Reference { kind, name }) = &key;
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let selector = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = std::pin::pin!(follow(api, selector));
        let mut listed = None;
        loop {
            let event = tokio::select! {
                () = sender.closed() => {
                    // Looked at again under the lock, under which a new follower would come.
                    let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
                    if sender.receiver_count() == 0 {
                        watched.remove(&key);
                        return debug!(namespace, %kind, name, "no pod uses it any more");
                    }
                    continue;
                }
                event = events.next() => event,
            };
            match event {
                Some(Ok(Event::Init)) => listed = None,
                Some(Ok(Event::InitApply(object))) => listed = Some(object),
                Some(Ok(Event::InitDone)) => tell(&sender, listed.take()),
                Some(Ok(Event::Apply(object))) => tell(&sender, Some(object)),
                Some(Ok(Event::Delete(_))) => tell::<K>(&sender, None),
                Some(Err(error)) => {
                    let problem: Arc<str> = error.to_string().into();
                    let told = sender.send_if_modified(|known| match known {
                        Known::Unread(told) if told.as_ref() != Some(&problem) => {
                            *told = Some(problem);
                            true
                        }
                        _ => false,
                    });
                    // That the server is away is said often enough by others.
                    if told {
                        warn!(namespace, %kind, name, %error, "cannot be read; trying again");
                    } else {
                        debug!(namespace, %kind, name, %error, "cannot be watched; trying again");
                    }
                }
                None => return,
            }
        }
    }
}

/// Tells followers only of what differs: an object's labels are not its data.
fn tell<K>(sender: &watch::Sender<Known>, object: Option<K>)
where
    Object: From<K>,
{
    let now = match object {
        Some(object) => Known::Found(Arc::new(object.into())),
        None => Known::Missing,
    };
    sender.send_if_modified(|known| {
        let differs = *known != now;
        if differs {
            *known = now;
        }
        differs
    });
}

/// What one pod uses. Dropped, nothing is followed for it any more.
#[derive(Debug, Default)]
pub(crate) struct Uses(BTreeMap<Reference, watch::Receiver<Known>>);

impl Uses {
    /// What is known now.
    pub(crate) fn found(&self) -> Found {
        self.0
            .iter()
            .map(|(reference, receiver)| (reference.clone(), receiver.borrow().clone()))
            .collect()
    }

    /// Completes when anything is told that differs from what is known now; never for a pod that
    /// uses nothing.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + Send + 'static {
        let receivers = self.0.values().map(|receiver| {
            let mut receiver = receiver.clone();
            receiver.mark_unchanged();
            Box::pin(async move {
                if receiver.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            })
        });
        let waiting: Vec<_> = receivers.collect();
        async move {
            if waiting.is_empty() {
                std::future::pending::<()>().await;
            }
            select_all(waiting).await;
        }
    }
}
