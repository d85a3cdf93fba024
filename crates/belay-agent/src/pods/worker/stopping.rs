//! Ending everything of a pod that runs, for whatever reason.

use std::time::Duration;

use belay_action::ContainerId;
use belay_api::pod::Pod;
use belay_api::reasons;
use belay_core::termination::Cause;
use belay_runtime::{Exit, ExitReason};
use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;
use tracing::warn;

use super::{Worker, earliest_time};
use crate::pods::status::DEADLINE_MESSAGE;
use crate::pods::terminate;

/// Longer than anything lasts; a grace that is longer still no clock could add.
const LONGEST: Duration = crate::pods::hook::FOREVER;
/// How long a runtime may take to tell how a container ended that has been killed.
const UNTOLD: Duration = Duration::from_secs(5);
const SIGKILL: i32 = 9;

impl Worker {
    /// Ends a pod that is there longer than it may be.
    pub(super) fn keep_deadline(&mut self, pod: &Pod) {
        let (Some(seconds), Some(start)) = (
            pod.spec.active_deadline_seconds,
            self.reported.start_time.as_ref(),
        ) else {
            return;
        };
        let deadline = start.0.saturating_add(SignedDuration::from_secs(seconds));
        let deadline = deadline.unwrap_or(Timestamp::MAX);
        if Timestamp::now() < deadline {
            self.wake = earliest_time(self.wake, Some(deadline));
            return;
        }
        match self.terminations.pod_cause() {
            None | Some(Cause::PodCompleted) => {}
            Some(_) => return,
        }
        let about = self.reference(pod, None);
        let message = DEADLINE_MESSAGE.to_owned();
        let events = &self.context.events;
        events.normal(about, reasons::DEADLINE_EXCEEDED, message);
        self.begin_stop(Cause::DeadlineExceeded, terminate::grace(pod, false));
    }

    /// Begins to end everything of the pod.
    pub(super) fn begin_stop(&mut self, cause: Cause, grace: Duration) {
        self.launches.cancel();
        self.cancel_post_starts();
        self.ending_since = Some(Instant::now());
        self.terminations.end_pod(cause, grace, &self.tracked);
    }

    /// Whether everything that runs has ended, and nothing is expected to come: a start that is
    /// under way is waited for as long as the pod may take to end.
    pub(super) fn is_stopped(&mut self, grace: Duration) -> bool {
        if !self.terminations.pod_is_over() {
            return false;
        }
        self.give_up_waiting();
        if self.tracked.values().any(|known| known.running().is_some()) {
            return false;
        }
        let since = *self.ending_since.get_or_insert_with(Instant::now);
        let left = (since + grace.min(LONGEST)).saturating_duration_since(Instant::now());
        if self.is_launching() && !left.is_zero() {
            let until = Timestamp::now().saturating_add(left);
            self.wake = earliest_time(self.wake, until.ok());
            return false;
        }
        true
    }

    /// What has ended is dead, also when its runtime does not come to tell.
    fn give_up_waiting(&mut self) {
        let running = self.tracked.iter();
        let running =
            running.filter_map(|(name, known)| Some((name.clone(), known.running()?.clone())));
        let ended: Vec<(String, ContainerId)> = running
            .filter(|(name, id)| self.terminations.has_ended(name, id))
            .collect();
        if ended.is_empty() {
            return;
        }
        let since = *self.killed_since.get_or_insert_with(Instant::now);
        let left = (since + UNTOLD).saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let until = Timestamp::now().saturating_add(left);
            self.wake = earliest_time(self.wake, until.ok());
            return;
        }
        for (name, id) in ended {
            // That its first process has ended says nothing of the others.
            if !self.terminations.is_killed(&name, &id) {
                self.terminations.sweep(&name, &id);
                continue;
            }
            let known = self.tracked.get_mut(&name);
            if let Some(instance) = known.and_then(|known| known.current.as_mut()) {
                warn!(container = name, id = %instance.id, "the runtime does not tell how it ended");
                instance.exit = Some(Exit {
                    code: 128 + SIGKILL,
                    signal: Some(SIGKILL),
                    started: instance.started,
                    finished: Timestamp::now(),
                    reason: ExitReason::Error,
                });
            }
        }
    }
}
