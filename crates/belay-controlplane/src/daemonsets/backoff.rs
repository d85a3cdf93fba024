//! Rests between tries on a node, so that a pod that fails at once costs little. Kept in memory: a
//! restarted controller tries everything once.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(15);

/// A set, a template of it and a node: with another template everything may be different.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Spot {
    pub(super) uid: String,
    pub(super) hash: String,
    pub(super) node: String,
}

#[derive(Debug)]
struct Rest {
    until: Instant,
    length: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Backoff {
    rests: HashMap<Spot, Rest>,
}

impl Backoff {
    /// Something failed, or a pod that had ended was removed: the next try waits, twice as long as
    /// the time before.
    pub(super) fn rest(&mut self, spot: Spot, now: Instant) {
        // Who did without a rest for long enough begins anew.
        self.rests
            .retain(|_, rest| now < rest.until + LONGEST.max(rest.length * 2));
        let length = match self.rests.get(&spot) {
            Some(before) => (before.length * 2).min(LONGEST),
            None => FIRST,
        };
        let until = now + length;
        self.rests.insert(spot, Rest { until, length });
    }

    /// How long a spot still rests, if it does.
    pub(super) fn remaining(&self, spot: &Spot, now: Instant) -> Option<Duration> {
        let rest = self.rests.get(spot)?;
        let left = rest.until.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// How long until the first of all rests ends.
    pub(super) fn next(&self, now: Instant) -> Option<Duration> {
        let left = |rest: &Rest| rest.until.saturating_duration_since(now);
        let all = self.rests.values().map(left);
        all.filter(|left| !left.is_zero()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(hash: &str) -> Spot {
        Spot {
            uid: "u".into(),
            hash: hash.into(),
            node: "n".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rests_double_up_to_a_limit_and_are_forgotten_after_a_long_good_time() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        assert_eq!(backoff.remaining(&spot("a"), now), None);
        for seconds in [1, 2, 4, 8] {
            backoff.rest(spot("a"), now);
            let left = backoff.remaining(&spot("a"), now);
            assert_eq!(left, Some(Duration::from_secs(seconds)));
        }
        assert_eq!(backoff.remaining(&spot("b"), now), None, "another template");
        for _ in 0..20 {
            backoff.rest(spot("a"), now);
        }
        assert_eq!(backoff.remaining(&spot("a"), now), Some(LONGEST));
        assert_eq!(backoff.next(now), Some(LONGEST));
        assert_eq!(backoff.remaining(&spot("a"), now + LONGEST), None);
        let later = now + LONGEST * 4;
        backoff.rest(spot("a"), later);
        assert_eq!(backoff.remaining(&spot("a"), later), Some(FIRST));
    }
}
