//! Commands in containers over the API's `pods/exec`, where no agent may be installed.
//!
//! It can do less than a runtime on the node, and says so: no signals; a command cannot be killed,
//! only no longer be waited for; an attempt whose connection broke is lost. The API runs a command in
//! whatever container has the pod's name at the moment, so the incarnation is checked before and
//! after.
//!
//! **Invariant:** dropping a [`Running`] changes nothing for the command: its connection belongs to a
//! task of its own.

mod command;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use belay_action::{
    AttemptId, Capabilities, ContainerId, Disposition, ExecRequest, Found, Incarnation, Running,
    Target, TargetError,
};
use belay_api::pod::Pod;
use belay_api::signal::Signal;
use kube::{Api, Client};
use tokio::time::Instant;

use crate::{Containers, RecordedContainer, RuntimeError};

/// More places than this are looked through for old ones.
const MANY: usize = 1024;
/// How long a place is remembered that nobody has looked up again.
const OLD: Duration = Duration::from_secs(3600);
/// How often it is asked whether a container still runs.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A pod as the API has it.
#[derive(Debug, Clone)]
pub struct ApiPod {
    pub pod: Pod,
    /// The newest incarnation of each container that the pod's status tells of.
    pub containers: BTreeMap<String, RecordedContainer>,
}

/// Where an incarnation is.
#[derive(Debug, Clone)]
struct Place {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
    seen: Instant,
}

/// Acts on containers through the API server.
#[derive(Clone)]
pub struct PodsExec {
    client: Client,
    /// Incarnations by ID, as far as their pods have been looked up.
    places: Arc<Mutex<HashMap<ContainerId, Place>>>,
}

impl std::fmt::Debug for PodsExec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PodsExec")
    }
}

impl PodsExec {
    pub fn new(client: Client) -> Self {
        PodsExec {
            client,
            places: Arc::default(),
        }
    }

    /// The pod with this name and UID; its containers can be acted on from now on.
    ///
    /// # Errors
    ///
    /// When the API server does not answer.
    pub async fn pod(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<ApiPod>, RuntimeError> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = match api.get(name).await {
            Ok(pod) if pod.uid() == uid => pod,
            Ok(_) => return Ok(None),
            // A proxy that knows no such path answers 404 too, and tells nothing of the pod.
            Err(kube::Error::Api(status))
                if status.code == 404
                    && status.details.as_ref().is_some_and(|it| it.name == name) =>
            {
                return Ok(None);
            }
            Err(error) => {
                return Err(RuntimeError::Call {
                    what: "read the pod from the API server",
                    problem: error.to_string(),
                });
            }
        };
        let containers = incarnations(&pod);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() > MANY {
            places.retain(|_, place| place.seen.elapsed() < OLD);
        }
        for (container, incarnation) in &containers {
            let place = Place {
                namespace: namespace.to_owned(),
                pod: name.to_owned(),
                uid: uid.to_owned(),
                container: container.clone(),
                seen: Instant::now(),
            };
            places.insert(incarnation.id.clone(), place);
        }
        Ok(Some(ApiPod { pod, containers }))
    }

    fn place(&self, id: &ContainerId) -> Result<Place, RuntimeError> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places
            .get(id)
            .cloned()
            .ok_or_else(|| RuntimeError::NotFound { id: id.clone() })
    }

    /// Whether this incarnation is the one that runs in its place.
    async fn runs(&self, id: &ContainerId, place: &Place) -> Result<bool, RuntimeError> {
        let found = self.pod(&place.namespace, &place.pod, &place.uid).await?;
        Ok(found.is_some_and(|found| {
            found
                .containers
                .get(&place.container)
                .is_some_and(|container| container.id == *id && container.running)
        }))
    }
}

/// What a pod's status tells of its containers. IDs stand there as `containerd://ID`.
fn incarnations(pod: &Pod) -> BTreeMap<String, RecordedContainer> {
    let status = pod.status.as_ref();
    let lists = [
        status.and_then(|status| status.init_container_statuses.as_ref()),
        status.and_then(|status| status.container_statuses.as_ref()),
    ];
    lists
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|container| {
            let id = container.container_id.as_deref()?;
            let id = id.split_once("://").map_or(id, |(_, id)| id);
            let running = container
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some());
            let recorded = RecordedContainer {
                id: ContainerId::new(id).ok()?,
                restart_count: u32::try_from(container.restart_count).unwrap_or(0),
                running,
            };
            Some((container.name.clone(), recorded))
        })
        .collect()
}

#[async_trait]
impl Containers for PodsExec {
    fn name(&self) -> &str {
        "pods-exec"
    }

    async fn is_running(&self, id: &ContainerId) -> Result<bool, RuntimeError> {
        let place = self.place(id)?;
        self.runs(id, &place).await
    }

    async fn target(&self, id: &ContainerId) -> Result<Arc<dyn Target>, RuntimeError> {
        let place = self.place(id)?;
        Ok(Arc::new(Remote {
            runtime: self.clone(),
            incarnation: Incarnation {
                pod_uid: place.uid.clone(),
                container: place.container.clone(),
                id: id.clone(),
            },
            place,
        }))
    }
}

/// One incarnation, seen through the API.
struct Remote {
    runtime: PodsExec,
    incarnation: Incarnation,
    place: Place,
}

impl Remote {
    /// Starts a command, not after `latest`.
    async fn launch(
        &self,
        request: &ExecRequest,
        latest: Option<std::time::Instant>,
    ) -> Result<Box<dyn Running>, TargetError> {
        let id = &self.incarnation.id;
        match self.runtime.runs(id, &self.place).await {
            Ok(true) => {}
            Ok(false) => {
                return Err(TargetError::Restarted {
                    container: id.clone(),
                });
            }
            // Nothing has been asked for yet.
            Err(error) => return Ok(command::unstarted(&error)),
        }
        if latest.is_some_and(|latest| std::time::Instant::now() >= latest) {
            return Err(TargetError::TooLate {
                attempt: request.attempt.clone(),
            });
        }
        command::start(&self.runtime, &self.place, id, request).await
    }
}

#[async_trait]
impl Target for Remote {
    fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            signal: false,
            find_attempts: false,
            kills_tree: false,
        }
    }

    async fn start(&self, request: &ExecRequest) -> Result<Box<dyn Running>, TargetError> {
        self.launch(request, None).await
    }

    async fn start_before(
        &self,
        request: &ExecRequest,
        latest: std::time::Instant,
    ) -> Result<Box<dyn Running>, TargetError> {
        self.launch(request, Some(latest)).await
    }

    async fn find(&self, _: &AttemptId) -> Result<Found, TargetError> {
        Ok(Found::Lost)
    }

    async fn forget(&self, _: &AttemptId) {}

    async fn signal(&self, _: Signal) -> Result<(), TargetError> {
        Err(TargetError::Unsupported {
            what: "send signals",
        })
    }

    async fn disposition(&self, _: Signal) -> Result<Disposition, TargetError> {
        Err(TargetError::Unsupported {
            what: "tell what a signal does",
        })
    }

    async fn wait(&self) -> Result<(), TargetError> {
        loop {
            match self.runtime.runs(&self.incarnation.id, &self.place).await {
                Ok(false) => return Ok(()),
                // A server that does not answer tells nothing.
                Ok(true) | Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn incarnations_are_read_from_the_pod_s_status() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "main"}]},
            "status": {
                "initContainerStatuses": [
                    {"name": "proxy", "containerID": "cri-o://b2", "restartCount": 0,
                     "image": "", "imageID": "", "ready": true, "state": {"running": {}}}],
                "containerStatuses": [
                    {"name": "main", "containerID": "containerd://a1", "restartCount": 3,
                     "image": "", "imageID": "", "ready": false, "state": {"terminated": {"exitCode": 1}}},
                    {"name": "new", "restartCount": 0, "image": "", "imageID": "", "ready": false}],
            },
        }))
        .unwrap();
        let found = incarnations(&pod);
        assert_eq!(found.len(), 2);
        assert_eq!(found["proxy"].id.as_str(), "b2");
        assert!(found["proxy"].running && !found["main"].running);
        assert_eq!(found["main"].restart_count, 3);
    }
}
