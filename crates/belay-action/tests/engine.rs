//! The engine against a runtime that behaves as no real one can be made to.

#![allow(clippy::unwrap_used)]

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use belay_action::*;
use belay_api::signal::Signal;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How the fake's execs go.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    EndsAtOnce,
    EndsOnCancel,
    NeverAnswers,
    CannotStart,
}

struct Fake {
    incarnation: Incarnation,
    way: Way,
    signals: bool,
    log: Mutex<Vec<String>>,
}

impl Fake {
    fn new(way: Way) -> Self {
        let id = ContainerId::new("c1").unwrap();
        let incarnation = Incarnation {
            pod_uid: "u".into(),
            container: "main".into(),
            id,
        };
        Fake {
            incarnation,
            way,
            signals: true,
            log: Mutex::default(),
        }
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

struct FakeRunning {
    way: Way,
    cancelled: watch::Sender<bool>,
}

#[async_trait]
impl Running for FakeRunning {
    async fn wait(&mut self) -> Result<Report, TargetError> {
        let now = Timestamp::now();
        match self.way {
            Way::EndsAtOnce => Ok(Report::new(Outcome::Succeeded, now, now)),
            Way::EndsOnCancel => {
                let _ = self
                    .cancelled
                    .subscribe()
                    .wait_for(|cancelled| *cancelled)
                    .await;
                Ok(Report::new(Outcome::Cancelled, now, now))
            }
            Way::NeverAnswers | Way::CannotStart => std::future::pending().await,
        }
    }

    async fn cancel(&mut self) {
        self.cancelled.send_replace(true);
    }
}

#[async_trait]
impl Target for Fake {
    fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            signal: self.signals,
            find_attempts: false,
            kills_tree: false,
        }
    }
    async fn start(&self, request: &ExecRequest) -> Result<Box<dyn Running>, TargetError> {
        self.log.lock().unwrap().push(request.command.join(" "));
        if self.way == Way::CannotStart {
            return Err(TargetError::NotRunning {
                container: self.incarnation.id.clone(),
            });
        }
        Ok(Box::new(FakeRunning {
            way: self.way,
            cancelled: watch::Sender::new(false),
        }))
    }
    async fn find(&self, _: &AttemptId) -> Result<Found, TargetError> {
        Ok(Found::NeverStarted)
    }
    async fn forget(&self, _: &AttemptId) {}
    async fn signal(&self, signal: Signal) -> Result<(), TargetError> {
        if self.way == Way::NeverAnswers {
            std::future::pending::<()>().await;
        }
        self.log.lock().unwrap().push(signal.to_string());
        Ok(())
    }
    async fn disposition(&self, _: Signal) -> Result<Disposition, TargetError> {
        Ok(Disposition::Handled)
    }
    async fn wait(&self) -> Result<(), TargetError> {
        Ok(())
    }
}

async fn go(
    target: &Fake,
    action: &Action,
    cancel: CancellationToken,
) -> Result<Report, TargetError> {
    let attempt = AttemptId::new("a1").unwrap();
    run(target, action, &attempt, Duration::from_secs(5), cancel).await
}

fn exec() -> Action {
    Action::Exec {
        command: vec!["do".into(), "it".into()],
    }
}

fn usr1() -> Action {
    Action::Signal("SIGUSR1".parse().unwrap())
}

#[tokio::test]
async fn an_exec_is_started_and_its_outcome_returned() {
    let target = Fake::new(Way::EndsAtOnce);
    let report = go(&target, &exec(), CancellationToken::new())
        .await
        .unwrap();
    assert_eq!(report.outcome, Outcome::Succeeded);
    assert_eq!(target.log(), ["do it"]);
}

#[tokio::test]
async fn a_cancel_before_the_start_starts_nothing() {
    let target = Fake::new(Way::EndsAtOnce);
    let cancel = CancellationToken::new();
    cancel.cancel();
    for action in [exec(), usr1()] {
        let report = go(&target, &action, cancel.clone()).await.unwrap();
        assert_eq!(report.outcome, Outcome::Cancelled);
    }
    assert!(target.log().is_empty());
}

#[tokio::test]
async fn a_cancel_is_waited_for() {
    let target = Fake::new(Way::EndsOnCancel);
    let cancel = CancellationToken::new();
    let (trigger, action) = (cancel.clone(), exec());
    let (report, ()) = tokio::join!(go(&target, &action, cancel), async move {
        tokio::task::yield_now().await;
        trigger.cancel();
    });
    assert_eq!(report.unwrap().outcome, Outcome::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_never_answers_does_not_hold_the_engine_for_ever() {
    let target = Fake::new(Way::NeverAnswers);
    let error = go(&target, &exec(), CancellationToken::new())
        .await
        .unwrap_err();
    assert!(matches!(error, TargetError::Runtime { .. }), "{error}");

    let cancel = CancellationToken::new();
    let (trigger, action) = (cancel.clone(), exec());
    let (result, ()) = tokio::join!(go(&target, &action, cancel), async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        trigger.cancel();
    });
    assert!(matches!(result, Err(TargetError::Runtime { .. })));

    let report = go(&target, &usr1(), CancellationToken::new())
        .await
        .unwrap();
    assert_eq!(report.outcome, Outcome::TimedOut);
}

#[tokio::test]
async fn an_exec_that_cannot_be_started_is_an_error_of_the_target() {
    let target = Fake::new(Way::CannotStart);
    let error = go(&target, &exec(), CancellationToken::new())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "container c1 is not running");
}

#[tokio::test]
async fn a_signal_is_sent_once_and_only_where_the_runtime_can() {
    let mut target = Fake::new(Way::EndsAtOnce);
    let report = go(&target, &usr1(), CancellationToken::new())
        .await
        .unwrap();
    assert_eq!(report.outcome, Outcome::Succeeded);
    assert_eq!(target.log(), ["SIGUSR1"]);
    target.signals = false;
    let error = go(&target, &usr1(), CancellationToken::new())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "the runtime cannot send signals");
}
