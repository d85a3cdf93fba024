//! How soon a watch that broke is tried again.
//!
//! One controller of a cluster has a handful of watches, and notifications have deadlines of a minute:
//! when the server is back, the controller is back within [`LONGEST`].

use std::time::Duration;

use kube::runtime::utils::Backoff;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(3);

/// Doubling pauses; a watch that works begins anew.
#[derive(Debug, Clone)]
pub(crate) struct Reconnect {
    next: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Reconnect { next: FIRST }
    }
}

impl Iterator for Reconnect {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        Some(pause)
    }
}

impl Backoff for Reconnect {
    fn reset(&mut self) {
        *self = Reconnect::default();
    }
}
