//! What a companion does beside whoever runs the pods: signals by both ways, and their limits.

#![allow(clippy::unwrap_used)]

mod cri;

use std::sync::Arc;

use belay_action::TargetError;
use belay_api::signal::Signal;
use belay_runtime::Containers;
use cri::*;

#[tokio::test]
async fn a_wait_ends_with_the_first_process_and_nobody_is_signalled_after_it() {
    on_each(async |bench| {
        for tasks in [true, false] {
            let (pod, target) = bench.sleeper().await;
            let target = if tasks {
                target
            } else {
                bench.runtime.without_tasks().target(&pod.id).await.unwrap()
            };
            let wait = tokio::spawn({
                let target = Arc::clone(&target);
                async move { target.wait().await }
            });
            // The first process of a PID namespace drops what it does not handle.
            target.signal(Signal::TERM).await.unwrap();
            assert!(bench.runtime.is_running(&pod.id).await.unwrap());
            target.signal(Signal::KILL).await.unwrap();
            soon(wait).await.unwrap().unwrap();
            assert!(!bench.runtime.is_running(&pod.id).await.unwrap());
            let late = target.signal(Signal::HUP).await.unwrap_err();
            assert!(matches!(late, TargetError::NotRunning { .. }), "{late:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn without_tasks_execs_are_refused_and_said_to_be_impossible() {
    on_each(async |bench| {
        let (pod, with) = bench.sleeper().await;
        let capabilities = with.capabilities();
        assert!(capabilities.signal && capabilities.find_attempts && capabilities.kills_tree);
        let without = bench.runtime.without_tasks().target(&pod.id).await.unwrap();
        let capabilities = without.capabilities();
        assert!(capabilities.signal && !capabilities.find_attempts && !capabilities.kills_tree);
        let error = without
            .start(&exec("a1", "true", LONG))
            .await
            .err()
            .unwrap();
        assert!(matches!(error, TargetError::Unsupported { .. }));
        assert!(error.to_string().contains("needs containerd"), "{error}");
        let found = without.find(&attempt("a1")).await.unwrap();
        assert!(matches!(found, belay_action::Found::NeverStarted));
    })
    .await;
}
