use super::*;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn cadence(delay: u64, period: u64, timeout: u64, threshold: u32) -> Cadence {
    Cadence {
        initial_delay: secs(delay),
        period: secs(period),
        timeout: secs(timeout),
        success_threshold: threshold,
    }
}

fn course(handled: u64, now: u64, end: u64) -> Course {
    Course {
        handled: secs(handled),
        now: secs(now),
        end: secs(end),
    }
}

/// One try as it went: when, how long it might have taken, how long it took, how it came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tried {
    at: Duration,
    allowed: Duration,
    took: Duration,
    passed: bool,
}

/// Plays a schedule to its end. Each try wants to take `want` seconds and comes out as the next bit
/// of `results` says; one that is cut off has failed.
fn play(cadence: Cadence, course: Course, want: u64, results: u32) -> (Vec<Tried>, Step, Duration) {
    let mut schedule = Schedule::new(cadence, course);
    let mut now = course.now;
    let mut tries = Vec::new();
    for _ in 0..100 {
        match schedule.next(now) {
            Step::Wait { until } => {
                assert!(until > now, "a wait that waits for nothing");
                now = until;
            }
            Step::Try { timeout } => {
                assert!(timeout > Duration::ZERO);
                let took = secs(want).min(timeout);
                let passed = secs(want) < timeout && results >> tries.len() & 1 == 1;
                let at = now;
                now += took;
                schedule.tried(at, now, passed);
                tries.push(Tried {
                    at,
                    allowed: timeout,
                    took,
                    passed,
                });
            }
            end @ (Step::Succeeded | Step::TimedOut) => return (tries, end, now),
        }
    }
    panic!("it does not end: {cadence:?} {course:?}");
}

#[test]
fn a_probe_that_succeeds_at_once_is_tried_once() {
    let (tries, end, now) = play(cadence(0, 10, 1, 1), course(2, 2, 5), 0, 0b1);
    assert_eq!((tries.len(), end, now), (1, Step::Succeeded, secs(2)));
}

#[test]
fn it_is_tried_after_the_delay_and_every_period_until_it_succeeds() {
    let (tries, end, _) = play(cadence(3, 2, 1, 1), course(1, 1, 20), 0, 0b1000);
    let at: Vec<_> = tries.iter().map(|tried| tried.at.as_secs()).collect();
    assert_eq!((at, end), (vec![4, 6, 8, 10], Step::Succeeded));
}

#[test]
fn one_that_never_succeeds_times_out_at_the_end_and_not_before() {
    let (tries, end, now) = play(cadence(0, 3, 1, 1), course(1, 1, 8), 0, 0);
    let at: Vec<_> = tries.iter().map(|tried| tried.at.as_secs()).collect();
    assert_eq!((at, end, now), (vec![1, 4, 7], Step::TimedOut, secs(8)));
}

#[test]
fn a_try_is_cut_off_by_the_end() {
    let (tries, end, now) = play(cadence(0, 10, 5, 1), course(0, 0, 2), 3, 0b1);
    assert_eq!(tries[0].allowed, secs(2));
    assert_eq!((tries.len(), end, now), (1, Step::TimedOut, secs(2)));
}

#[test]
fn a_threshold_wants_successes_in_a_row() {
    let (tries, end, _) = play(cadence(0, 1, 1, 2), course(0, 0, 60), 0, 0b110_1101 >> 1);
    // 0, 1, 1: the single success before the failure does not count.
    assert_eq!((tries.len(), end), (3, Step::Succeeded));
    let (tries, end, _) = play(cadence(0, 1, 1, 2), course(0, 0, 60), 0, 0b1101);
    assert_eq!((tries.len(), end), (4, Step::Succeeded));
}

#[test]
fn a_delay_beyond_the_end_means_that_it_is_never_tried() {
    for now in [0, 50] {
        let (tries, end, _) = play(cadence(9, 1, 1, 1), course(0, now, 9), 0, u32::MAX);
        assert_eq!((tries.len(), end), (0, Step::TimedOut), "now {now}");
    }
}

#[test]
fn after_a_restart_it_goes_on_with_what_is_left_of_the_time() {
    let (tries, end, now) = play(cadence(1, 2, 1, 1), course(1, 6, 10), 0, 0);
    let at: Vec<_> = tries.iter().map(|tried| tried.at.as_secs()).collect();
    assert_eq!((at, end, now), (vec![6, 8], Step::TimedOut, secs(10)));
}

#[test]
fn after_a_restart_that_came_too_late_one_last_round_decides() {
    let late = course(1, 100, 10);
    let (tries, end, now) = play(cadence(0, 2, 3, 1), late, 1, 0b1);
    assert_eq!((tries.len(), end, now), (1, Step::Succeeded, secs(101)));
    assert_eq!(tries[0].allowed, secs(3), "a full try");
    let (tries, end, _) = play(cadence(0, 2, 3, 1), late, 1, 0);
    assert_eq!((tries.len(), end), (1, Step::TimedOut));
    // A threshold is asked for here too, and the first failure ends it.
    let (tries, end, _) = play(cadence(0, 2, 3, 3), late, 1, 0b111);
    assert_eq!((tries.len(), end), (3, Step::Succeeded));
    let (tries, end, _) = play(cadence(0, 2, 3, 3), late, 1, 0b1101);
    assert_eq!((tries.len(), end), (2, Step::TimedOut));
}

#[test]
fn a_huge_delay_or_period_does_not_overflow() {
    let mut huge = cadence(0, 1, 1, 2);
    huge.period = Duration::MAX;
    let (tries, end, _) = play(huge, course(1, 1, 5), 0, 0b11);
    assert_eq!((tries.len(), end), (1, Step::TimedOut));
    huge.initial_delay = Duration::MAX;
    assert_eq!(
        Schedule::new(huge, course(1, 1, 5)).next(secs(1)),
        Step::Wait { until: secs(5) }
    );
}

/// Every small cadence, course, length and result of tries, against the rules as sentences.
#[test]
fn the_rules_hold_for_every_small_schedule() {
    let mut played = 0;
    for bits in 0..3 * 3 * 3 * 2 * 3 * 5 {
        let pick = |of: u64, within: &mut u64| {
            let value = *within % of;
            *within /= of;
            value
        };
        let mut rest: u64 = bits;
        let (delay, period) = (pick(3, &mut rest), 1 + pick(3, &mut rest));
        let (timeout, threshold) = (1 + pick(3, &mut rest), 1 + pick(2, &mut rest));
        let (handled, late) = (pick(3, &mut rest), pick(5, &mut rest) * 2);
        let cadence = cadence(delay, period, timeout, u32::try_from(threshold).unwrap());
        for end in handled + 1..9 {
            for want in 0..4 {
                for results in 0..64 {
                    let course = course(handled, handled + late, end);
                    check(cadence, course, want, results);
                    played += 1;
                }
            }
        }
    }
    assert!(played > 1_000_000, "{played}");
}

fn check(cadence: Cadence, course: Course, want: u64, results: u32) {
    let (tries, end, now) = play(cadence, course, want, results);
    let told = || format!("{cadence:?} {course:?} want {want} results {results:b}: {tries:?}");
    let first_due = course.handled + cadence.initial_delay;
    let too_late = course.now >= course.end;
    let wanted = usize::try_from(cadence.success_threshold).unwrap();

    // The end says what the tries said.
    let run = tries.iter().rev().take_while(|tried| tried.passed).count();
    assert_eq!(end == Step::Succeeded, run >= wanted, "{}", told());
    let ever = tries
        .windows(wanted)
        .take(tries.len().saturating_sub(wanted));
    assert!(
        !ever
            .into_iter()
            .any(|row| row.iter().all(|tried| tried.passed)),
        "it went on after its success: {}",
        told()
    );
    // The first try is made when it is due, or as soon as somebody is there.
    if first_due < course.end {
        assert_eq!(tries[0].at, first_due.max(course.now), "{}", told());
    } else {
        assert!(tries.is_empty(), "{}", told());
    }
    // The next one a period later, or at once after one that lasted longer.
    for pair in tries.windows(2) {
        let due = (pair[0].at + cadence.period).max(pair[0].at + pair[0].took);
        assert_eq!(pair[1].at, due, "{}", told());
    }
    if too_late {
        // One round: all but the last have passed.
        let failed = tries.iter().filter(|tried| !tried.passed).count();
        assert!(failed <= 1 && tries.len() <= wanted, "{}", told());
    } else {
        for tried in &tries {
            let left = course.end - tried.at;
            assert_eq!(tried.allowed, cadence.timeout.min(left), "{}", told());
        }
        assert!(now <= course.end, "{}", told());
        assert!(end == Step::Succeeded || now == course.end, "{}", told());
    }
}
