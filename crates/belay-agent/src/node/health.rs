//! Whether the runtime answers, as the node's condition `Ready` tells it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a runtime may be silent, for a restart of its own for example, before the node says so.
/// A kubelet's limit.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// When the runtime answered last. Told by whoever asks it regularly, read by whoever keeps the
/// node's object.
#[derive(Debug)]
pub(crate) struct Health(Mutex<State>);

#[derive(Debug)]
struct State {
    answered: Instant,
    /// What was said instead of an answer since.
    problem: Option<String>,
}

impl Health {
    /// One that nobody has asked yet counts as one that answers.
    pub(crate) fn new() -> Self {
        Health(Mutex::new(State {
            answered: Instant::now(),
            problem: None,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is whole whatever happened to whoever held it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answered(&self) {
        *self.state() = State {
            answered: Instant::now(),
            problem: None,
        };
    }

    pub(crate) fn refused(&self, problem: String) {
        self.state().problem = Some(problem);
    }

    /// Why the node cannot run pods; `None` if it can.
    pub(crate) fn problem(&self) -> Option<String> {
        let state = self.state();
        if state.answered.elapsed() < SILENCE {
            return None;
        }
        // Without a time in it: a text that changes is a write for each change.
        let limit = SILENCE.as_secs();
        Some(match &state.problem {
            Some(problem) => format!("the runtime has not answered for {limit} s: {problem}"),
            None => format!("the runtime has not answered for {limit} s"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_is_silent_for_long_is_a_problem_until_it_answers() {
        let health = Health::new();
        assert_eq!(health.problem(), None);
        health.refused("no such socket".to_owned());
        tokio::time::advance(SILENCE - Duration::from_millis(1)).await;
        assert_eq!(health.problem(), None, "a restart of the runtime");
        tokio::time::advance(Duration::from_millis(1)).await;
        let problem = health.problem().unwrap();
        assert_eq!(
            problem,
            "the runtime has not answered for 30 s: no such socket"
        );
        tokio::time::advance(SILENCE).await;
        assert_eq!(
            health.problem(),
            Some(problem),
            "the same problem reads the same"
        );
        health.answered();
        assert_eq!(health.problem(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_needs_no_words_to_be_a_problem() {
        let health = Health::new();
        tokio::time::advance(SILENCE).await;
        assert!(health.problem().is_some());
    }
}
