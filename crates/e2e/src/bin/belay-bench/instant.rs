//! A runtime whose containers exist by being said to, and whose actions are over as soon as they
//! are asked for: what is left of a delivery is the work of server, controllers and agents.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use belay_action::{
    AttemptId, Capabilities, ContainerId, Disposition, ExecRequest, Found, Incarnation, Outcome,
    Report, Running, Target, TargetError,
};
use belay_api::{pod::NOTIFIERS_ANNOTATION, signal::Signal};
use belay_runtime::{Containers, RecordedContainer, RecordedPod, RecordedPods, RuntimeError};
use jiff::Timestamp;

/// The only container of every pod.
pub(crate) const CONTAINER: &str = "main";

/// The pods of all nodes, each with one container that always runs.
pub(crate) struct Instant {
    /// What every pod declares.
    notifiers: String,
    /// Their names by UID.
    names: Mutex<HashMap<String, String>>,
}

impl Instant {
    pub(crate) fn new(notifiers: String) -> Self {
        Self {
            notifiers,
            names: Mutex::default(),
        }
    }

    /// From now on this pod runs.
    pub(crate) fn run(&self, uid: &str, name: &str) {
        let mut names = self.names.lock().expect("no panic");
        names.insert(uid.to_owned(), name.to_owned());
    }
}

#[async_trait]
impl RecordedPods for Instant {
    async fn recorded_pod(&self, uid: &str) -> Result<Option<RecordedPod>, RuntimeError> {
        let name = self.names.lock().expect("no panic").get(uid).cloned();
        let (Some(name), Ok(id)) = (name, ContainerId::new(uid)) else {
            return Ok(None);
        };
        let container = RecordedContainer {
            id,
            restart_count: 0,
            running: true,
        };
        Ok(Some(RecordedPod {
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            name,
            annotations: [(NOTIFIERS_ANNOTATION.to_owned(), self.notifiers.clone())].into(),
            address: None,
            containers: BTreeMap::from([(CONTAINER.to_owned(), container)]),
        }))
    }
}

#[async_trait]
impl Containers for Instant {
    fn name(&self) -> &str {
        "instant"
    }

    async fn is_running(&self, _id: &ContainerId) -> Result<bool, RuntimeError> {
        Ok(true)
    }

    async fn target(&self, id: &ContainerId) -> Result<Arc<dyn Target>, RuntimeError> {
        Ok(Arc::new(Container(Incarnation {
            pod_uid: id.to_string(),
            container: CONTAINER.to_owned(),
            id: id.clone(),
        })))
    }
}

struct Container(Incarnation);

#[async_trait]
impl Target for Container {
    fn incarnation(&self) -> &Incarnation {
        &self.0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            signal: true,
            find_attempts: true,
            kills_tree: true,
        }
    }

    async fn start(&self, _request: &ExecRequest) -> Result<Box<dyn Running>, TargetError> {
        Ok(Box::new(Done))
    }

    async fn find(&self, _attempt: &AttemptId) -> Result<Found, TargetError> {
        Ok(Found::NeverStarted)
    }

    async fn forget(&self, _attempt: &AttemptId) {}

    async fn signal(&self, _signal: Signal) -> Result<(), TargetError> {
        Ok(())
    }

    async fn disposition(&self, _signal: Signal) -> Result<Disposition, TargetError> {
        Ok(Disposition::Handled)
    }

    async fn wait(&self) -> Result<(), TargetError> {
        std::future::pending().await
    }
}

/// An exec that was over before anybody looked.
struct Done;

#[async_trait]
impl Running for Done {
    async fn wait(&mut self) -> Result<Report, TargetError> {
        let now = Timestamp::now();
        Ok(Report::new(Outcome::Succeeded, now, now))
    }

    async fn cancel(&mut self) {}
}
