//! Probes over the network, against real listeners on this machine. Probes by exec are tested where
//! there are real containers, in `belay-runtime`.

#![allow(clippy::unwrap_used)]

mod grpc;
mod http;
mod tcp;

use std::time::Duration;

use async_trait::async_trait;
use belay_action::probe::{Cadence, Check, Course, Probe, Probed, run};
use belay_action::*;
use belay_api::signal::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Far more than anything here takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A container that does nothing but end when it is told to. A probe over the network asks nothing
/// else of it.
struct Idle {
    incarnation: Incarnation,
    ended: watch::Sender<bool>,
}

impl Idle {
    fn new() -> Self {
        Idle {
            incarnation: Incarnation {
                pod_uid: "u".into(),
                container: "main".into(),
                id: ContainerId::new("c1").unwrap(),
            },
            ended: watch::Sender::new(false),
        }
    }
}

#[async_trait]
impl Target for Idle {
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
        panic!("a probe over the network ran {:?}", request.command)
    }
    async fn find(&self, _: &AttemptId) -> Result<Found, TargetError> {
        Ok(Found::NeverStarted)
    }
    async fn forget(&self, _: &AttemptId) {}
    async fn signal(&self, _: Signal) -> Result<(), TargetError> {
        Err(TargetError::Unsupported { what: "signal" })
    }
    async fn disposition(&self, _: Signal) -> Result<Disposition, TargetError> {
        Err(TargetError::Unsupported { what: "signal" })
    }
    async fn wait(&self) -> Result<(), TargetError> {
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
        Ok(())
    }
}

fn probe(check: Check, timeout: Duration) -> Probe {
    Probe {
        check,
        cadence: Cadence {
            initial_delay: Duration::ZERO,
            period: Duration::from_millis(20),
            timeout,
            success_threshold: 1,
        },
    }
}

fn course(end: Duration) -> Course {
    Course {
        handled: Duration::ZERO,
        now: Duration::ZERO,
        end,
    }
}

async fn verify(
    target: &Idle,
    probe: &Probe,
    course: Course,
    cancel: &CancellationToken,
) -> Probed {
    let attempt = AttemptId::new("u.main.1").unwrap();
    tokio::time::timeout(LONG, run(target, probe, &attempt, course, cancel))
        .await
        .expect("it hangs")
}

/// One try, and what it says if it fails: what an agent does that comes back too late.
async fn once(check: Check, timeout: Duration) -> Result<(), String> {
    let late = Course {
        now: Duration::from_secs(10),
        ..course(Duration::from_secs(5))
    };
    let never = CancellationToken::new();
    match verify(&Idle::new(), &probe(check, timeout), late, &never).await {
        Probed::Succeeded => Ok(()),
        Probed::TimedOut { last } => Err(last.unwrap()),
        other => panic!("{other:?}"),
    }
}
