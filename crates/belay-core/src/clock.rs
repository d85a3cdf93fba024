//! How late it may be on the server, seen from a node.
//!
//! Deadlines count by the server's clock, and a node must never start anything after one. A node
//! knows the server's clock only through what answers carry: the `Date` header, whole seconds,
//! written somewhere between the sending of the request and the arrival of the answer. Each answer
//! therefore bounds the distance between the two clocks from both sides, and answers at different
//! moments within a second narrow it to milliseconds.
//!
//! The node takes the **late** end: it believes the server to be as late as it can possibly be.
//! The price is that up to a second of a deadline is lost right after the start of an agent, which
//! is when the bound is still wide; the gain is that nothing starts after its deadline. Whoever ends
//! what nobody started in time takes the **early** end, and so does nothing before its deadline.
//!
//! The local side is a clock that does not jump (time since boot), so setting the node's wall clock
//! changes nothing. When two answers contradict each other, the server's clock was set: the newest
//! answer alone counts from then on.

/// Milliseconds of a local clock that never jumps, counted from any fixed point.
pub type LocalMillis = i64;

/// Milliseconds since the Unix epoch by the server's clock.
pub type ServerMillis = i64;

/// One answer of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When the request was sent.
    pub sent: LocalMillis,
    /// When the head of the answer had arrived.
    pub received: LocalMillis,
    /// The `Date` header in whole seconds since the epoch.
    pub date_seconds: i64,
}

/// Bounds of (server's clock - local clock), in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    earliest: i64,
    latest: i64,
    /// When these bounds were last confirmed; they widen with time, because clocks drift.
    at: LocalMillis,
}

/// The node's estimate of the server's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerClock {
    bounds: Option<Bounds>,
}

/// Clocks that are kept by NTP differ by less than this rate (parts per million).
const DRIFT_PPM: i64 = 500;

impl ServerClock {
    /// Takes in one answer.
    pub fn observe(&mut self, sample: Sample) {
        let date = sample.date_seconds.saturating_mul(1000);
        let fresh = Bounds {
            earliest: date.saturating_sub(sample.received),
            latest: date.saturating_add(1000).saturating_sub(sample.sent),
            at: sample.received,
        };
        self.bounds = Some(match self.bounds {
            None => fresh,
            Some(old) => {
                let slack = Self::slack(old.at, sample.received);
                let narrowed = Bounds {
                    earliest: fresh.earliest.max(old.earliest.saturating_sub(slack)),
                    latest: fresh.latest.min(old.latest.saturating_add(slack)),
                    at: sample.received,
                };
                if narrowed.earliest < narrowed.latest {
                    narrowed
                } else {
                    fresh
                }
            }
        });
    }

    /// The latest time it can be on the server at `local`; `None` before the first answer.
    pub fn latest(&self, local: LocalMillis) -> Option<ServerMillis> {
        self.bounds.map(|bounds| {
            local
                .saturating_add(bounds.latest)
                .saturating_add(Self::slack(bounds.at, local))
        })
    }

    /// The earliest time it can be on the server at `local`; `None` before the first answer.
    pub fn earliest(&self, local: LocalMillis) -> Option<ServerMillis> {
        self.bounds.map(|bounds| {
            local
                .saturating_add(bounds.earliest)
                .saturating_sub(Self::slack(bounds.at, local))
        })
    }

    /// How much of a deadline the present uncertainty can cost, in milliseconds.
    pub fn uncertainty(&self) -> Option<i64> {
        self.bounds
            .map(|bounds| bounds.latest.saturating_sub(bounds.earliest))
    }

    fn slack(from: LocalMillis, to: LocalMillis) -> i64 {
        to.saturating_sub(from).max(0).saturating_mul(DRIFT_PPM) / 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A server whose clock is `offset` ahead of the local one.
    fn sample(sent: i64, rtt: i64, offset: i64) -> Sample {
        let written = sent + rtt / 2;
        Sample {
            sent,
            received: sent + rtt,
            date_seconds: (written + offset).div_euclid(1000),
        }
    }

    #[test]
    fn nothing_is_known_before_the_first_answer() {
        assert_eq!(ServerClock::default().latest(5), None);
    }

    #[test]
    fn answers_at_different_moments_of_a_second_narrow_the_bound() {
        let mut clock = ServerClock::default();
        clock.observe(sample(0, 2, 1_000_300));
        let first = clock.uncertainty().unwrap();
        for n in 1..20 {
            clock.observe(sample(n * 130, 2, 1_000_300));
        }
        let last = clock.uncertainty().unwrap();
        assert!(first > 900 && last < 150, "{first} then {last}");
    }

    #[test]
    fn a_server_clock_that_was_set_back_is_believed_again_at_once() {
        let mut clock = ServerClock::default();
        clock.observe(sample(0, 2, 9_000_000));
        clock.observe(sample(1000, 2, 1_000_000));
        let latest = clock.latest(1002).unwrap();
        assert!((1_001_002..1_002_100).contains(&latest), "{latest}");
    }

    proptest! {
        #[test]
        fn the_estimate_is_never_earlier_than_the_server(
            offset in 0i64..4_000_000_000_000,
            steps in proptest::collection::vec((1i64..5_000, 0i64..300), 1..40),
            after in 0i64..60_000,
        ) {
            let mut clock = ServerClock::default();
            let mut local = 0;
            for (pause, rtt) in steps {
                local += pause;
                clock.observe(sample(local, rtt, offset));
                local += rtt;
            }
            let now = local + after;
            prop_assert!(clock.latest(now).unwrap() >= now + offset);
        }

        #[test]
        fn any_numbers_are_taken_without_a_panic(
            samples in proptest::collection::vec((any::<i64>(), any::<i64>(), any::<i64>()), 0..10),
            at in any::<i64>(),
        ) {
            let mut clock = ServerClock::default();
            for (sent, received, date_seconds) in samples {
                clock.observe(Sample { sent, received, date_seconds });
            }
            let _ = clock.latest(at);
            let _ = clock.uncertainty();
        }
    }
}
