//! One hook from its start to its end: what is asked of the server, and what is made of the answers.
//!
//! ```text
//!   begin: read the action and the pods ──▶ the start, on the server ──▶ one PodAction per pod
//!                                                                               │
//!   status, once a second  ◀── Progress ◀── what the PodActions say ◀───────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belay_api::hook::{
    ExecutionHook, ExecutionHookStatus, HOOK_LABEL, HookAction, HookError, HookErrorType,
    PodAction, ResolvedAction,
};
use belay_api::lenient::Lenient;
use belay_api::pod::Pod;
use belay_api::selector::LabelSelector;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use super::record::{self, Part, Progress};
use super::select::{self, Target};
use crate::clock::Clock;
use crate::{Metrics, event, objects};

/// How long to wait after something went wrong.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// How long after a write of a status the next one waits.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);
/// Pods and PodActions are read in pages of this size.
const PAGE: u32 = 500;
/// How many pods are read at once.
const CONCURRENT: usize = 16;

/// What the watch of PodActions tells one hook.
#[derive(Debug)]
pub(super) enum Told {
    Seen(Box<PodAction>),
    /// The PodAction of the pod with this UID is gone.
    Gone(String),
    /// The watch was begun anew; what it has not shown since may be gone.
    Relisted,
}

/// How the work on a hook ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It has its result, or is gone.
    Over,
    /// Somebody else has written its status; it has to be taken up anew.
    Again,
}

/// What every hook's work shares.
#[derive(Clone)]
pub(super) struct Shop {
    pub(super) client: Client,
    pub(super) metrics: Arc<Metrics>,
    /// The server's, by which hooks' deadlines count.
    pub(super) clock: Clock,
    /// For creations.
    pub(super) slots: Arc<Semaphore>,
}

/// What came of the creation of a PodAction.
struct Made {
    pod_uid: String,
    result: Result<Box<PodAction>, HookError>,
}

/// Works on one hook.
pub(super) struct Work {
    shop: Shop,
    /// With the newest metadata that is known, and without its status.
    object: ExecutionHook,
    /// The status on the server.
    written: ExecutionHookStatus,
}

impl Work {
    pub(super) fn new(shop: Shop, mut object: ExecutionHook) -> Self {
        Work {
            shop,
            written: object.status.take().unwrap_or_default(),
            object,
        }
    }

    fn namespace(&self) -> String {
        self.object.namespace().unwrap_or_default()
    }

    /// Runs the hook to its end.
    pub(super) async fn run(mut self, mut told: mpsc::UnboundedReceiver<Told>) -> End {
        let mut nodes = BTreeMap::new();
        let resumed = self.written.start_time.is_some();
        if !resumed {
            let (status, found) = self.begin().await;
            if let Some(end) = self.write(status).await {
                return end;
            }
            nodes = found;
        }
        let Some(action) = self.written.action.clone() else {
            return self.ended().await;
        };
        let mut progress = Progress::of(self.written.clone());
        if resumed {
            for child in self.children().await {
                progress.seen(&child);
            }
        }
        let mut making: FuturesUnordered<_> = progress
            .uncreated()
            .into_iter()
            .map(|part| {
                let node = nodes.remove(&part.pod_uid);
                self.make(&action, part, node)
            })
            .collect();
        let mut next_write = Instant::now() + BETWEEN_WRITES;
        let mut dirty = true;
        loop {
            if progress.is_over() || (dirty && Instant::now() >= next_write) {
                let status = progress.status(self.shop.clock.latest());
                if status != self.written {
                    if let Some(end) = self.write(status).await {
                        return end;
                    }
                    next_write = Instant::now() + BETWEEN_WRITES;
                }
                dirty = false;
            }
            if self.written.action_succeed.is_some() {
                return self.ended().await;
            }
            tokio::select! {
                heard = told.recv() => match heard {
                    Some(heard) => self.told(heard, &mut progress).await,
                    // Nobody wants it any more.
                    None => return End::Over,
                },
                Some(made) = making.next() => self.made(made, &mut progress),
                () = sleep_until(next_write), if dirty => continue,
            }
            dirty = true;
        }
    }

    /// Reads what is to be run and where, until there is an answer or it is too late for one. Returns
    /// the status that starts the hook, and the nodes of its pods by their UIDs.
    async fn begin(&self) -> (ExecutionHookStatus, BTreeMap<String, String>) {
        loop {
            let now = self.shop.clock.latest();
            let error = match self.resolve().await {
                Ok(Err(refusal)) => return (record::refused(refusal, now), BTreeMap::new()),
                Ok(Ok((action, targets))) => {
                    let status = record::started(action, &targets, now);
                    let nodes = targets
                        .into_iter()
                        .filter_map(|target| Some((target.pod_uid?, target.node.ok()?)));
                    return (status, nodes.collect());
                }
                Err(error) => error,
            };
            let (now, obstacle) = (self.shop.clock.latest(), error.to_string());
            if let Err(expired) = record::time_left(&self.object, now, Some(&obstacle)) {
                return (record::refused(expired, now), BTreeMap::new());
            }
            let (namespace, name) = (self.namespace(), self.object.name_any());
            warn!(namespace, name, %error, "the hook cannot be started; trying again");
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn resolve(&self) -> kube::Result<Result<(ResolvedAction, Vec<Target>), HookError>> {
        let spec = &self.object.spec;
        let actions: Api<Lenient<HookAction>> =
            Api::namespaced(self.shop.client.clone(), &self.namespace());
        let Some(action) = objects::find(&actions, &spec.action_name).await? else {
            let message = format!(
                "HookAction {:?} does not exist in this namespace; nothing was run",
                spec.action_name
            );
            return Ok(Err(HookError::new(HookErrorType::ActionNotFound, message)));
        };
        let selection = &spec.pod_selection;
        let named = &selection.pod_container_names_list;
        let targets = match &selection.pod_container_selector {
            _ if !named.is_empty() => {
                let names = named.iter().map(|named| named.pod_name.clone());
                select::by_name(named, &self.named(names.collect()).await?)
            }
            Some(selector) => {
                let labels = LabelSelector::try_from(&selector.pod_selector);
                let labels = labels.map_err(|error| error.to_string());
                match labels.and_then(|labels| objects::asked_for(&labels)) {
                    Ok(labels) => {
                        let pods = self.labelled(&labels).await?;
                        select::by_label(&selector.container_list, &pods)
                    }
                    Err(error) => {
                        let message = format!("podSelector: {error}; nothing was run");
                        return Ok(Err(HookError::new(HookErrorType::InvalidSelector, message)));
                    }
                }
            }
            None => Vec::new(),
        };
        if targets.is_empty() {
            let message = if named.is_empty() && selection.pod_container_selector.is_none() {
                "podSelection has neither podContainerNamesList nor podContainerSelector; nothing was run"
            } else {
                "podSelection selects no container of a pod that runs; nothing was run"
            };
            return Ok(Err(HookError::new(HookErrorType::NothingSelected, message)));
        }
        let resolved = ResolvedAction {
            uid: action.uid().unwrap_or_default(),
            resource_version: action.resource_version().unwrap_or_default(),
            action: action.spec.action.clone(),
            action_timeout_seconds: action.spec.action_timeout_seconds,
        };
        Ok(Ok((resolved, targets)))
    }

    async fn named(&self, names: Vec<String>) -> kube::Result<BTreeMap<String, Pod>> {
        let api: Api<Lenient<Pod>> = Api::namespaced(self.shop.client.clone(), &self.namespace());
        let read = |name: String| {
            let api = api.clone();
            async move { kube::Result::Ok((name.clone(), objects::find(&api, &name).await?)) }
        };
        futures::stream::iter(names)
            .map(read)
            .buffer_unordered(CONCURRENT)
            .try_filter_map(async |(name, pod)| Ok(pod.map(|pod| (name, pod))))
            .try_collect()
            .await
    }

    /// The pods with these labels. One that cannot be read is an error: without it the hook would
    /// be called successful where it may not be.
    async fn labelled(&self, labels: &str) -> kube::Result<Vec<Pod>> {
        let api: Api<Lenient<Pod>> = Api::namespaced(self.shop.client.clone(), &self.namespace());
        objects::all(&api, &labels_in_pages(labels)).await
    }

    /// The PodActions that an earlier process has made.
    async fn children(&self) -> Vec<PodAction> {
        let api: Api<Lenient<PodAction>> =
            Api::namespaced(self.shop.client.clone(), &self.namespace());
        let uid = self.object.uid().unwrap_or_default();
        let labels = format!("{HOOK_LABEL}={uid}");
        loop {
            let mut children = Vec::new();
            let own = |child: PodAction| {
                if child.spec.hook.uid == uid {
                    children.push(child);
                }
            };
            match objects::pages(&api, &labels_in_pages(&labels), own).await {
                Ok(()) => return children,
                Err(error) => warn!(uid, %error, "its PodActions cannot be listed; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Makes the PodAction of a pod. Where the node is not known the pod is read again.
    fn make(
        &self,
        action: &ResolvedAction,
        part: Part,
        node: Option<String>,
    ) -> BoxFuture<'static, Made> {
        let (shop, object, action) = (self.shop.clone(), self.object.clone(), action.clone());
        let making = async move {
            let result = make(&shop, &object, &action, &part, node).await;
            Made {
                pod_uid: part.pod_uid,
                result,
            }
        };
        making.boxed()
    }

    fn made(&self, made: Made, progress: &mut Progress) {
        match made.result {
            Ok(child) => {
                self.shop.metrics.action_created();
                progress.created(&made.pod_uid);
                progress.seen(&child);
            }
            Err(error) => progress.not_created(&made.pod_uid, &error),
        }
    }

    async fn told(&self, told: Told, progress: &mut Progress) {
        match told {
            Told::Seen(child) => progress.seen(&child),
            Told::Gone(pod_uid) => self.look(&pod_uid, progress).await,
            Told::Relisted => {
                for part in progress.under_way() {
                    self.look(&part.pod_uid, progress).await;
                }
            }
        }
    }

    /// Looks whether a PodAction that should be there is.
    async fn look(&self, pod_uid: &str, progress: &mut Progress) {
        let api: Api<Lenient<PodAction>> =
            Api::namespaced(self.shop.client.clone(), &self.namespace());
        let name = record::name(&self.object, pod_uid);
        loop {
            match objects::find(&api, &name).await {
                Ok(Some(child)) => return progress.seen(&child),
                Ok(None) => {
                    let message = format!(
                        "its PodAction {name:?} was deleted; what ran was stopped, or may still end"
                    );
                    let error = HookError::new(HookErrorType::Cancelled, message);
                    return progress.fail(pod_uid, &error);
                }
                Err(error) => debug!(name, %error, "cannot be read; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Writes the status on the version that is known, until it is there.
    async fn write(&mut self, status: ExecutionHookStatus) -> Option<End> {
        let name = self.object.name_any();
        let api: Api<Lenient<ExecutionHook>> =
            Api::namespaced(self.shop.client.clone(), &self.namespace());
        loop {
            let object = ExecutionHook {
                status: Some(status.clone()),
                ..self.object.clone()
            };
            let error = match objects::replace_status(&api, &object).await {
                Ok(object) => {
                    self.object.metadata = object.metadata;
                    self.written = status;
                    return None;
                }
                Err(error) => error,
            };
            if !matches!(&error, kube::Error::Api(status) if matches!(status.code, 404 | 409)) {
                warn!(name, %error, "the status of a hook cannot be written; trying again");
                tokio::time::sleep(RETRY).await;
            }
            // A conflict, or an answer that got lost: what is there now tells.
            match objects::find(&api, &name).await {
                Ok(Some(now)) if now.uid() == self.object.uid() => {
                    let there = now.status.clone().unwrap_or_default();
                    if there == status {
                        self.object.metadata = now.metadata;
                        self.written = status;
                        return None;
                    }
                    if there != self.written {
                        warn!(name, "the status of a hook was written by somebody else");
                        return Some(End::Again);
                    }
                    self.object.metadata = now.metadata;
                }
                Ok(_) => return Some(End::Over),
                Err(error) => debug!(name, %error, "cannot be read; trying again"),
            }
        }
    }

    /// The result is on the server: what is left is to tell.
    async fn ended(self) -> End {
        let created = self.object.creation_timestamp();
        let took = created.map(|created| self.shop.clock.latest().duration_since(created.0));
        let took = took.and_then(|took| Duration::try_from(took).ok());
        let succeeded = self.written.action_succeed == Some(true);
        self.shop
            .metrics
            .hooked(succeeded, took.unwrap_or_default());
        let (namespace, name) = (self.namespace(), self.object.name_any());
        info!(namespace, name, succeeded, "hook ended");
        let event = record::ending(&self.object, &self.written, Timestamp::now());
        event::tell(&self.shop.client, &event).await;
        End::Over
    }
}

fn labels_in_pages(labels: &str) -> ListParams {
    ListParams::default().labels(labels).limit(PAGE)
}

/// Makes the PodAction of a pod, as long as it could still be started.
async fn make(
    shop: &Shop,
    object: &ExecutionHook,
    action: &ResolvedAction,
    part: &Part,
    node: Option<String>,
) -> Result<Box<PodAction>, HookError> {
    let namespace = object.namespace().unwrap_or_default();
    let api: Api<Lenient<PodAction>> = Api::namespaced(shop.client.clone(), &namespace);
    let mut node = node;
    let mut obstacle: Option<String> = None;
    loop {
        // Not kept between tries: what is refused here must not hold up others' hooks.
        let slot = shop.slots.acquire().await;
        let left = record::time_left(object, shop.clock.latest(), obstacle.as_deref())?;
        let failed = match &node {
            Some(node) => {
                let child = record::child(object, action, part, node, left);
                match objects::create(&api, &child).await {
                    Ok(made) => return Ok(Box::new(made)),
                    Err(error) => match objects::find(&api, &child.name_any()).await {
                        // Made before, or the answer got lost.
                        Ok(Some(found)) if found.spec.hook == child.spec.hook => {
                            return Ok(Box::new(found));
                        }
                        Ok(_) | Err(_) => error,
                    },
                }
            }
            None => {
                let pods = Api::namespaced(shop.client.clone(), &namespace);
                match objects::find(&pods, &part.pod).await {
                    Ok(pod) => {
                        let pod = pod.filter(|pod: &Pod| pod.uid() == part.pod_uid);
                        node = Some(select::place(&pod.ok_or_else(|| {
                            let message = format!("pod {:?} is gone; nothing was run", part.pod);
                            HookError::new(HookErrorType::PodNotFound, message)
                        })?)?);
                        continue;
                    }
                    Err(error) => error,
                }
            }
        };
        debug!(namespace, pod = part.pod, error = %failed, "no PodAction could be made; trying again");
        obstacle = Some(failed.to_string());
        drop(slot);
        tokio::time::sleep(RETRY).await;
    }
}
