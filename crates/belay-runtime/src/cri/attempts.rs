//! Attempts of this agent's own time: on their way up, or followed to their end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use belay_action::{AttemptId, ContainerId, Report, Running, TargetError};
use tokio::sync::{Notify, watch};

use crate::report::failed;

type Key = (ContainerId, AttemptId);

#[derive(Debug, Clone)]
pub(crate) enum Stage {
    /// Whether it starts is not known yet.
    Starting,
    Running,
    Over(End),
}

/// What following an attempt came to.
#[derive(Debug, Clone)]
pub(crate) enum End {
    Report(Report),
    Lost,
    NotStarted,
    /// The runtime does not tell. It may later.
    Unknown {
        problem: String,
    },
}

/// One attempt under way.
#[derive(Debug)]
pub(crate) struct Attempt {
    id: AttemptId,
    stage: watch::Sender<Stage>,
    /// Somebody wants it killed.
    pub(crate) kill: Notify,
}

impl Attempt {
    /// Returns when it is no longer on its way up. True when it runs.
    pub(crate) async fn settled(&self) -> bool {
        let mut stage = self.stage.subscribe();
        let settled = stage.wait_for(|stage| !matches!(stage, Stage::Starting));
        matches!(settled.await.as_deref(), Ok(Stage::Running))
    }

    pub(crate) fn handle(self: &Arc<Self>) -> Box<dyn Running> {
        Box::new(Handle {
            stage: self.stage.subscribe(),
            attempt: Arc::clone(self),
        })
    }
}

/// All attempts under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Attempts {
    all: Arc<Mutex<HashMap<Key, Arc<Attempt>>>>,
}

impl Attempts {
    /// Announces an attempt; `None` when it is under way already.
    pub(crate) fn begin(&self, container: &ContainerId, id: &AttemptId) -> Option<UnderWay> {
        let key = (container.clone(), id.clone());
        let mut all = self.lock();
        if all.contains_key(&key) {
            return None;
        }
        let attempt = Arc::new(Attempt {
            id: id.clone(),
            stage: watch::Sender::new(Stage::Starting),
            kill: Notify::new(),
        });
        all.insert(key.clone(), Arc::clone(&attempt));
        drop(all);
        Some(UnderWay {
            all: self.clone(),
            key,
            attempt,
        })
    }

    pub(crate) fn get(&self, container: &ContainerId, id: &AttemptId) -> Option<Arc<Attempt>> {
        self.lock().get(&(container.clone(), id.clone())).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Attempt>>> {
        // Nobody panics while holding it, and a map is whole in any case.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held by the one task that carries an attempt out. Dropped before its end it leaves the attempt
/// to whoever looks for it.
#[derive(Debug)]
pub(crate) struct UnderWay {
    all: Attempts,
    key: Key,
    pub(crate) attempt: Arc<Attempt>,
}

impl UnderWay {
    pub(crate) fn running(&self) {
        self.attempt.stage.send_replace(Stage::Running);
    }

    pub(crate) fn over(self, end: End) {
        self.finish(end);
    }

    fn finish(&self, end: End) {
        // First out of the map: who was told the end must find it on disk.
        self.all.lock().remove(&self.key);
        self.attempt.stage.send_if_modified(|stage| {
            let first = !matches!(stage, Stage::Over(_));
            if first {
                *stage = Stage::Over(end);
            }
            first
        });
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let attempt = self.all.lock().get(&self.key).cloned();
        if attempt.is_some_and(|attempt| Arc::ptr_eq(&attempt, &self.attempt)) {
            let problem = "nobody follows it any more".to_owned();
            self.finish(End::Unknown { problem });
        }
    }
}

/// Follows an attempt that somebody else carries out.
struct Handle {
    attempt: Arc<Attempt>,
    stage: watch::Receiver<Stage>,
}

#[async_trait]
impl Running for Handle {
    async fn wait(&mut self) -> Result<Report, TargetError> {
        let over = self.stage.wait_for(|stage| matches!(stage, Stage::Over(_)));
        let unknown = |problem: String| failed("tell how an exec ended")(problem.into());
        match over.await.as_deref() {
            Ok(Stage::Over(End::Report(report))) => Ok(report.clone()),
            Ok(Stage::Over(End::Lost)) => Err(TargetError::Lost {
                attempt: self.attempt.id.clone(),
            }),
            Ok(Stage::Over(End::Unknown { problem })) => Err(unknown(problem.clone())),
            Ok(_) => Err(unknown("it was not started".to_owned())),
            Err(error) => Err(unknown(error.to_string())),
        }
    }

    async fn cancel(&mut self) {
        self.attempt.kill.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_action::Outcome;
    use jiff::Timestamp;

    fn ids() -> (ContainerId, AttemptId) {
        (ContainerId::new("c").unwrap(), AttemptId::new("a").unwrap())
    }

    #[tokio::test]
    async fn there_is_one_attempt_of_an_id_at_a_time_and_its_end_is_told_again() {
        let (container, id) = ids();
        let attempts = Attempts::default();
        let under_way = attempts.begin(&container, &id).unwrap();
        assert!(attempts.begin(&container, &id).is_none());
        under_way.running();
        let attempt = attempts.get(&container, &id).unwrap();
        assert!(attempt.settled().await);
        let mut handle = attempt.handle();
        let now = Timestamp::now();
        let report = Report::new(Outcome::Succeeded, now, now);
        under_way.over(End::Report(report.clone()));
        assert_eq!(handle.wait().await.unwrap(), report);
        assert_eq!(handle.wait().await.unwrap(), report);
        assert!(attempts.get(&container, &id).is_none());
    }

    #[tokio::test]
    async fn a_task_that_dies_leaves_nobody_waiting() {
        let (container, id) = ids();
        let attempts = Attempts::default();
        let under_way = attempts.begin(&container, &id).unwrap();
        let attempt = Arc::clone(&under_way.attempt);
        drop(under_way);
        assert!(!attempt.settled().await);
        assert!(attempt.handle().wait().await.is_err());
        assert!(attempts.begin(&container, &id).is_some());
    }
}
