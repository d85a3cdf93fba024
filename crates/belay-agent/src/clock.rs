//! The clocks of a node: its own that never jumps, and what it knows of the server's.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belay_core::clock::{LocalMillis, Sample, ServerClock, ServerMillis};
use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::watch;

/// Milliseconds since boot, suspended time included.
pub(crate) fn boot_millis() -> LocalMillis {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec
        .saturating_mul(1000)
        .saturating_add(time.tv_nsec / 1_000_000)
}

/// Identity of this boot: times since boot mean nothing under another.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// The node's wall clock, in milliseconds since the epoch.
pub(crate) fn wall_millis() -> i64 {
    Timestamp::now().as_millisecond()
}

/// The estimate of the server's clock that all tasks share.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    estimate: Mutex<ServerClock>,
    /// Whether the server has answered, be it without a date.
    answered: watch::Sender<bool>,
}

impl Clock {
    /// Takes in an answer: when its request was sent, and its `Date` header.
    pub(crate) fn observe(&self, sent: LocalMillis, date: &str) {
        let Ok(date) = jiff::fmt::rfc2822::parse(date) else {
            return;
        };
        let sample = Sample {
            sent,
            received: boot_millis(),
            date_seconds: date.timestamp().as_second(),
        };
        self.estimate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .observe(sample);
    }

    /// The server has answered: what it tells of its clock is known.
    pub(crate) fn answered(&self) {
        self.answered.send_replace(true);
    }

    /// Returns when the server has answered for the first time. What has a deadline on the server is
    /// not decided before.
    pub(crate) async fn ready(&self) {
        // The sender is this clock's.
        let _ = self.answered.subscribe().wait_for(|it| *it).await;
    }

    /// The latest time it can be on the server. Where its answers have no date the node's own clock
    /// has to do.
    pub(crate) fn server_now(&self) -> ServerMillis {
        self.estimate
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .latest(boot_millis())
            .unwrap_or_else(wall_millis)
    }

    /// The same as a time, for what is judged by the server's clock later, such as how long a result
    /// has been kept.
    pub(crate) fn server_time(&self) -> Timestamp {
        Timestamp::from_millisecond(self.server_now()).unwrap_or_else(|_| Timestamp::now())
    }

    /// How long until the server's clock may show `at`.
    pub(crate) fn until(&self, at: ServerMillis) -> Duration {
        let left = at.saturating_sub(self.server_now());
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_header_of_an_answer_moves_the_estimate() {
        let clock = Clock::default();
        clock.observe(boot_millis(), "Tue, 05 Jan 2044 10:00:00 GMT");
        let at: Timestamp = "2044-01-05T10:00:00Z".parse().unwrap();
        let ahead = clock.server_now() - at.as_millisecond();
        assert!((1000..60_000).contains(&ahead), "{ahead}");
    }

    #[test]
    fn a_header_that_is_no_date_changes_nothing() {
        let clock = Clock::default();
        for rubbish in ["", "yesterday", "Tue, 99 Jan 2044 10:00:00 GMT", "\u{1}"] {
            clock.observe(boot_millis(), rubbish);
        }
        assert!((clock.server_now() - wall_millis()).abs() < 60_000);
    }
}
