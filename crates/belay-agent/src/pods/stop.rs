//! Ending a container: stop signal, what is left of the grace, SIGKILL to all of it.

use std::sync::Arc;
use std::time::Duration;

use belay_action::{ContainerId, TargetError};
use belay_api::pod::Pod;
use belay_api::signal::Signal;
use belay_runtime::{PodRuntime, RuntimeError};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, warn};

/// What a pod gets that disappeared from the API: only a deletion without grace does that.
const GONE: Duration = Duration::ZERO;

/// How long the containers of a pod that ends may take, counted from the start of its end.
pub(crate) fn grace(pod: &Pod, gone: bool) -> Duration {
    let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let asked = pod.metadata.deletion_grace_period_seconds.map(seconds);
    match (asked, gone) {
        (Some(asked), false) => asked,
        (None, false) => seconds(pod.spec.grace_period_seconds()),
        (Some(asked), true) => asked.min(GONE),
        (None, true) => GONE,
    }
}

/// How a container was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// Whether SIGKILL was needed.
    pub(crate) killed: bool,
    /// What could not be killed, as "pid (name)".
    pub(crate) survivors: Vec<String>,
}

/// Ends one container. `deadline` may move while it waits, to an earlier time only.
pub(crate) async fn stop(
    runtime: Arc<dyn PodRuntime>,
    id: ContainerId,
    signal: Signal,
    mut deadline: watch::Receiver<Instant>,
) -> Stopped {
    let ended = tokio::select! {
        biased;
        () = passed(&mut deadline) => false,
        () = ask(&runtime, &id, signal) => tokio::select! {
            biased;
            ended = runtime.wait(&id) => match ended {
                Ok(_) | Err(RuntimeError::NotFound { .. }) => true,
                Err(error) => {
                    warn!(container = %id, %error, "cannot wait for a container that is stopped; killing it");
                    false
                }
            },
            () = passed(&mut deadline) => false,
        },
    };
    if ended {
        return Stopped {
            killed: false,
            survivors: Vec::new(),
        };
    }
    let mut pause = Duration::from_millis(100);
    loop {
        match runtime.kill_tree(&id).await {
            Ok(survivors) => {
                return Stopped {
                    killed: true,
                    survivors,
                };
            }
            Err(RuntimeError::NotFound { .. }) => {
                return Stopped {
                    killed: true,
                    survivors: Vec::new(),
                };
            }
            Err(error) => warn!(container = %id, %error, "cannot kill a container; trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(10));
    }
}

async fn ask(runtime: &Arc<dyn PodRuntime>, id: &ContainerId, signal: Signal) {
    let sent = match runtime.target(id).await {
        Ok(target) => target.signal(signal).await,
        Err(error) => return debug!(container = %id, %error, "nothing to send a signal to"),
    };
    match sent {
        Ok(()) | Err(TargetError::NotRunning { .. } | TargetError::Restarted { .. }) => {}
        Err(error) => warn!(container = %id, %signal, %error, "the stop signal could not be sent"),
    }
}

async fn passed(deadline: &mut watch::Receiver<Instant>) {
    loop {
        let at = *deadline.borrow_and_update();
        tokio::select! {
            () = tokio::time::sleep_until(at) => return,
            changed = deadline.changed() => if changed.is_err() {
                // Nobody can move it any more.
                return tokio::time::sleep_until(at).await;
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> Pod {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_delete_request_s_grace_beats_the_pod_s_and_the_pod_s_the_default() {
        let asked = pod(json!({
            "metadata": {"deletionGracePeriodSeconds": 3},
            "spec": {"terminationGracePeriodSeconds": 9}
        }));
        assert_eq!(grace(&asked, false).as_secs(), 3);
        let own = pod(json!({"spec": {"terminationGracePeriodSeconds": 9}}));
        assert_eq!(grace(&own, false).as_secs(), 9);
        assert_eq!(grace(&pod(json!({})), false).as_secs(), 30);
    }

    #[test]
    fn a_pod_that_is_gone_gets_no_more_than_a_moment() {
        assert_eq!(grace(&pod(json!({})), true), GONE);
        let forced = pod(json!({"metadata": {"deletionGracePeriodSeconds": 0}}));
        assert_eq!(grace(&forced, true), Duration::ZERO);
        let long = pod(json!({"metadata": {"deletionGracePeriodSeconds": 600}}));
        assert_eq!(grace(&long, true), GONE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_moves_nearer_is_kept() {
        let start = Instant::now();
        let (sender, mut receiver) = watch::channel(start + Duration::from_secs(60));
        let waiting = tokio::spawn(async move {
            passed(&mut receiver).await;
            Instant::now()
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        sender.send_replace(start + Duration::from_secs(5));
        assert_eq!(waiting.await.unwrap() - start, Duration::from_secs(5));
    }
}
