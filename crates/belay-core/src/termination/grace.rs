//! How long a container may take to end.

use std::time::Duration;

use crate::clock::LocalMillis;

/// What a pod gets that says nothing.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// Who may set the grace, as the API writes it: seconds, and possibly nonsense.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sources {
    /// The delete request's, which the object carries as `deletionGracePeriodSeconds`.
    pub deletion: Option<i64>,
    /// The killing probe's `terminationGracePeriodSeconds`; `None` unless a probe kills.
    pub probe: Option<i64>,
    /// The pod's `terminationGracePeriodSeconds`.
    pub pod: Option<i64>,
}

impl Sources {
    /// The effective grace: the first that is set, in the order of the fields, else
    /// [`DEFAULT_GRACE`].
    ///
    /// A probe's may be longer than the pod's. A negative one counts as a second, as it does on a
    /// stock API server: only an honest 0 kills at once.
    pub fn effective(self) -> Duration {
        self.deletion
            .or(self.probe)
            .or(self.pod)
            .map_or(DEFAULT_GRACE, |seconds| {
                Duration::from_secs(u64::try_from(seconds).unwrap_or(1))
            })
    }
}

/// The grace after somebody asked for another while the containers are stopping: shorter is
/// granted, longer is not.
pub fn shrunk(present: Duration, asked: Duration) -> Duration {
    present.min(asked)
}

/// The moment `length` after `start`; a length that is too long for a clock never comes.
pub(super) fn after(start: LocalMillis, length: Duration) -> LocalMillis {
    start.saturating_add(i64::try_from(length.as_millis()).unwrap_or(i64::MAX))
}

/// How long it is from `start` to `end`; nothing if it is the other way round.
pub(super) fn between(start: LocalMillis, end: LocalMillis) -> Duration {
    Duration::from_millis(u64::try_from(end.saturating_sub(start)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICES: [Option<i64>; 6] = [None, Some(-1), Some(0), Some(1), Some(7), Some(i64::MAX)];

    fn seconds(value: i64) -> Duration {
        Duration::from_secs(if value < 0 { 1 } else { value.unsigned_abs() })
    }

    #[test]
    fn the_delete_request_beats_the_probe_the_probe_the_pod_and_the_pod_the_default() {
        for deletion in CHOICES {
            for probe in CHOICES {
                for pod in CHOICES {
                    let sources = Sources {
                        deletion,
                        probe,
                        pod,
                    };
                    let expected = match (deletion, probe, pod) {
                        (Some(deletion), _, _) => seconds(deletion),
                        (None, Some(probe), _) => seconds(probe),
                        (None, None, Some(pod)) => seconds(pod),
                        (None, None, None) => Duration::from_secs(30),
                    };
                    assert_eq!(sources.effective(), expected, "{sources:?}");
                }
            }
        }
    }

    #[test]
    fn named_cases_of_the_effective_grace() {
        let table = [
            // deletion, probe, pod -> seconds
            (None, None, None, 30),
            (None, None, Some(0), 0),
            (None, None, Some(60), 60),
            // A probe may take longer than the pod allows for itself.
            (None, Some(90), Some(60), 90),
            (None, Some(0), Some(60), 0),
            // Whoever deletes the pod decides, in both directions.
            (Some(0), Some(90), Some(60), 0),
            (Some(120), None, Some(60), 120),
            // Negative is what somebody wrote who did not mean "at once".
            (Some(-5), None, Some(60), 1),
            (None, Some(-1), Some(60), 1),
            (None, None, Some(-1), 1),
        ];
        for (deletion, probe, pod, expected) in table {
            let sources = Sources {
                deletion,
                probe,
                pod,
            };
            assert_eq!(sources.effective().as_secs(), expected, "{sources:?}");
        }
    }

    #[test]
    fn a_grace_that_is_changed_shrinks_and_never_grows() {
        let lengths = [0, 1, 2, 1999, 2000, 30_000, u64::MAX].map(Duration::from_millis);
        for present in lengths {
            for asked in lengths {
                let new = shrunk(present, asked);
                assert!(new <= present && new <= asked);
                assert!(new == present || new == asked);
            }
        }
    }

    #[test]
    fn moments_and_lengths_add_up_to_the_millisecond_and_never_overflow() {
        let long = Duration::from_secs(u64::MAX);
        assert_eq!(after(5, Duration::from_millis(37)), 42);
        assert_eq!(after(5, long), i64::MAX);
        assert_eq!(between(5, 42), Duration::from_millis(37));
        assert_eq!(between(42, 5), Duration::ZERO);
        assert_eq!(
            between(i64::MIN, i64::MAX),
            Duration::from_millis(u64::MAX / 2)
        );
    }
}
