//! One container that does what the test wants: `main` of the pod `db` with UID `p`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use belay_action::{
    AttemptId, Capabilities, ContainerId, Disposition, ExecRequest, Found, Incarnation, Outcome,
    Report, Running, Target, TargetError,
};
use belay_api::pod::Pod;
use belay_api::signal::Signal;
use belay_runtime::{Containers, RuntimeError};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::{Notify, Semaphore};

use crate::journal::Started;
use crate::lookup::{self, Lookup, LookupError};
use crate::pods::{ContainerView, PodView};

/// The container's ID.
pub(crate) const ID: &str = "c1";

/// A start that comes to nothing.
pub(crate) enum Start {
    Fails(TargetError),
    Panics,
}

/// Succeeds at once at whatever it is asked.
pub(crate) struct Fake {
    pub(crate) incarnation: Incarnation,
    /// What it answers to those who look it up, before it answers.
    pub(crate) failures: Mutex<VecDeque<RuntimeError>>,
    /// Whether signals are swallowed.
    pub(crate) swallows: bool,
    /// What its first starts come to.
    pub(crate) starts: Mutex<VecDeque<Start>>,
    /// What whoever waits for its end is told, once; it runs on.
    pub(crate) waited: Mutex<Option<Result<(), TargetError>>>,
    /// Told when it is asked to forget an attempt.
    pub(crate) forgetting: Notify,
    /// How many attempts it may forget.
    pub(crate) forgets: Semaphore,
}

impl Default for Fake {
    fn default() -> Self {
        Fake {
            incarnation: Incarnation {
                pod_uid: "p".into(),
                container: "main".into(),
                id: ContainerId::new(ID).unwrap(),
            },
            failures: Mutex::default(),
            swallows: false,
            starts: Mutex::default(),
            waited: Mutex::default(),
            forgetting: Notify::new(),
            forgets: Semaphore::new(100),
        }
    }
}

/// The runtime that has it.
pub(crate) struct Runtime(pub(crate) Arc<Fake>);

#[async_trait]
impl Containers for Runtime {
    fn name(&self) -> &str {
        "fake"
    }

    async fn is_running(&self, _: &ContainerId) -> Result<bool, RuntimeError> {
        Ok(true)
    }

    async fn target(&self, _: &ContainerId) -> Result<Arc<dyn Target>, RuntimeError> {
        match self.0.failures.lock().unwrap().pop_front() {
            Some(error) => Err(error),
            None => Ok(Arc::clone(&self.0) as _),
        }
    }
}

/// An attempt that has succeeded.
pub(crate) struct Done;

#[async_trait]
impl Running for Done {
    async fn wait(&mut self) -> Result<Report, TargetError> {
        let now = Timestamp::now();
        Ok(Report {
            output: "said".to_owned(),
            ..Report::new(Outcome::Succeeded, now, now)
        })
    }

    async fn cancel(&mut self) {}
}

#[async_trait]
impl Target for Fake {
    fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            signal: true,
            find_attempts: true,
            kills_tree: true,
        }
    }

    async fn start(&self, _: &ExecRequest) -> Result<Box<dyn Running>, TargetError> {
        let start = self.starts.lock().unwrap().pop_front();
        match start {
            Some(Start::Fails(error)) => Err(error),
            Some(Start::Panics) => panic!("as the test wants it"),
            None => Ok(Box::new(Done)),
        }
    }

    async fn find(&self, _: &AttemptId) -> Result<Found, TargetError> {
        Ok(Found::NeverStarted)
    }

    async fn forget(&self, _: &AttemptId) {
        self.forgetting.notify_one();
        self.forgets.acquire().await.unwrap().forget();
    }

    async fn signal(&self, _: Signal) -> Result<(), TargetError> {
        if self.swallows {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn disposition(&self, _: Signal) -> Result<Disposition, TargetError> {
        Ok(Disposition::Handled)
    }

    async fn wait(&self) -> Result<(), TargetError> {
        let waited = self.waited.lock().unwrap().take();
        match waited {
            Some(waited) => waited,
            None => std::future::pending().await,
        }
    }
}

/// Knows the pod, whose container declares the notifier `lock`.
pub(crate) struct Known;

#[async_trait]
impl Lookup for Known {
    async fn ready(&self) {}

    async fn find(&self, _: &Started) -> Result<lookup::Found, LookupError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "db", "namespace": "ns", "uid": "p"},
            "spec": {"containers": [{"name": "main", "notifiers": [
                {"name": "lock", "handler": {"exec": {"command": ["x"]}}}]}]},
        }))
        .unwrap();
        let container = ContainerView {
            id: ContainerId::new(ID).unwrap(),
            restart_count: 0,
            running: true,
            previous: None,
        };
        Ok(lookup::Found::Pod(Arc::new(PodView {
            pod: Arc::new(pod),
            address: "192.0.2.7".into(),
            containers: [("main".to_owned(), container)].into(),
        })))
    }
}
