//! How long a container that ended waits before it is started again.
//!
//! The first restart is immediate; then 10 s after its end, doubling to 300 s. A container that ran
//! for ten minutes begins anew.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
const RESET: SignedDuration = SignedDuration::from_secs(600);

/// The back-off of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    entry: Option<(Duration, Timestamp)>,
}

impl Backoff {
    /// How long a container that ended at `ended` has to wait, counted from its end.
    pub(crate) fn delay(&self, ended: Timestamp) -> Duration {
        match self.entry {
            Some((delay, restarted)) if ended.duration_since(restarted) <= RESET => delay,
            Some(_) | None => Duration::ZERO,
        }
    }

    /// When such a container may be started again.
    pub(crate) fn ready_at(&self, ended: Timestamp) -> Timestamp {
        ended
            .saturating_add(self.delay(ended))
            .unwrap_or(Timestamp::MAX)
    }

    /// Takes note of something that failed at `now` and is to be tried again.
    pub(crate) fn failed(&mut self, now: Timestamp) {
        self.restarted(now, now);
    }

    /// Takes note of a restart at `now` of a container that had ended at `ended`.
    pub(crate) fn restarted(&mut self, ended: Timestamp, now: Timestamp) {
        let delay = match self.delay(ended) {
            Duration::ZERO => FIRST,
            delay => (delay * 2).min(LONGEST),
        };
        self.entry = Some((delay, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    #[test]
    fn restarts_wait_nothing_then_ten_seconds_then_twice_as_long_up_to_five_minutes() {
        let mut backoff = Backoff::default();
        let mut now = 0;
        let mut delays = Vec::new();
        for _ in 0..9 {
            let ended = at(now);
            delays.push(backoff.delay(ended).as_secs());
            now += i64::try_from(backoff.delay(ended).as_secs()).unwrap();
            backoff.restarted(ended, at(now));
            // It runs for a second.
            now += 1;
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn a_container_that_ran_for_ten_minutes_begins_anew() {
        let mut backoff = Backoff::default();
        for n in 0..4 {
            backoff.restarted(at(n), at(n));
        }
        assert_eq!(backoff.delay(at(4 + 590)).as_secs(), 80);
        assert_eq!(backoff.delay(at(4 + 601)).as_secs(), 0);
        assert_eq!(backoff.ready_at(at(1000)), at(1000));
    }
}
