use super::*;
use proptest::prelude::*;

fn rule(delay: u64, period: u64, success: u32, failure: u32) -> Rule {
    Rule {
        initial_delay: Duration::from_millis(delay),
        period: Duration::from_millis(period),
        success_threshold: success,
        failure_threshold: failure,
    }
}

fn only(kind: Kind, rule: Rule) -> Rules {
    let mut rules = Rules::default();
    match kind {
        Kind::Startup => rules.startup = Some(rule),
        Kind::Liveness => rules.liveness = Some(rule),
        Kind::Readiness => rules.readiness = Some(rule),
    }
    rules
}

fn new(rules: Rules) -> Probing {
    Probing::new(rules, 0, Before::default())
}

/// Tries the probe when it is due. `+` succeeds, `-` fails, `?` says nothing.
fn give(probing: &mut Probing, kind: Kind, result: char) -> Option<Verdict> {
    let now = probing.next_wake().unwrap();
    assert!(probing.due(now).contains(&kind), "{kind:?} is not due");
    probing.begin(kind, now);
    let tried = match result {
        '+' => Tried::Success,
        '-' => Tried::Failure,
        _ => Tried::Nothing,
    };
    probing.tried(kind, tried, now + 1)
}

#[test]
fn thresholds_count_results_in_a_row() {
    use Verdict::{Kill, NotReady, Ready, Started};
    // kind, thresholds of success and failure, results, where which verdict came
    let table = [
        (Kind::Liveness, 1, 3, "---", vec![(2, Kill(Kind::Liveness))]),
        (
            Kind::Liveness,
            1,
            3,
            "--+---",
            vec![(5, Kill(Kind::Liveness))],
        ),
        (Kind::Liveness, 1, 1, "++-", vec![(2, Kill(Kind::Liveness))]),
        (Kind::Liveness, 1, 2, "-?-", vec![(2, Kill(Kind::Liveness))]),
        (Kind::Liveness, 1, 2, "-+-+-+", vec![]),
        (Kind::Startup, 1, 3, "--+", vec![(2, Started)]),
        (Kind::Startup, 1, 3, "---", vec![(2, Kill(Kind::Startup))]),
        (Kind::Startup, 1, 3, "-??-?+", vec![(5, Started)]),
        (
            Kind::Readiness,
            1,
            1,
            "+-+",
            vec![(0, Ready), (1, NotReady), (2, Ready)],
        ),
        (
            Kind::Readiness,
            2,
            3,
            "+-++-+--+---",
            vec![(3, Ready), (11, NotReady)],
        ),
        (Kind::Readiness, 1, 1, "----", vec![]),
        (
            Kind::Readiness,
            1,
            2,
            "+++-?-",
            vec![(0, Ready), (5, NotReady)],
        ),
    ];
    for (kind, success, failure, results, expected) in table {
        let mut probing = new(only(kind, rule(0, 10, success, failure)));
        let verdicts: Vec<_> = results
            .chars()
            .enumerate()
            .filter_map(|(n, result)| Some((n, give(&mut probing, kind, result)?)))
            .collect();
        assert_eq!(verdicts, expected, "{kind:?} {success} {failure} {results}");
    }
}

#[test]
fn nothing_else_is_probed_until_the_startup_probe_has_succeeded() {
    let rules = Rules {
        startup: Some(rule(0, 10, 1, 30)),
        liveness: Some(rule(0, 10, 1, 1)),
        readiness: Some(rule(0, 10, 1, 1)),
    };
    let mut probing = new(rules);
    for n in 0..20 {
        assert_eq!(probing.due(n * 10), [Kind::Startup]);
        probing.begin(Kind::Startup, n * 10);
        assert!(probing.due(1_000_000).is_empty());
        probing.tried(Kind::Startup, Tried::Failure, n * 10);
        assert!(!probing.started() && !probing.ready());
    }
    assert_eq!(
        give(&mut probing, Kind::Startup, '+'),
        Some(Verdict::Started)
    );
    assert!(probing.started() && !probing.ready());
    assert_eq!(probing.due(200), [Kind::Liveness, Kind::Readiness]);
    assert_eq!(
        give(&mut probing, Kind::Readiness, '+'),
        Some(Verdict::Ready)
    );
    assert!(probing.ready());
}

#[test]
fn without_a_readiness_probe_what_has_started_is_ready() {
    let mut probing = new(only(Kind::Startup, rule(0, 10, 1, 3)));
    assert!(!probing.ready());
    give(&mut probing, Kind::Startup, '+');
    assert!(probing.ready());
    assert_eq!(probing.next_wake(), None);
    assert!(new(only(Kind::Liveness, rule(0, 10, 1, 3))).ready());
}

#[test]
fn tries_begin_after_the_delay_from_the_start_and_a_period_apart() {
    let rules = only(Kind::Liveness, rule(500, 100, 1, 3));
    let mut probing = Probing::new(rules, 1_000, Before::default());
    assert!(probing.due(1_499).is_empty());
    assert_eq!(probing.next_wake(), Some(1_500));
    assert_eq!(probing.due(1_500), [Kind::Liveness]);
    probing.begin(Kind::Liveness, 1_510);
    assert_eq!(probing.next_wake(), None, "one at a time");
    probing.tried(Kind::Liveness, Tried::Success, 1_530);
    assert_eq!(probing.next_wake(), Some(1_610));
    probing.begin(Kind::Liveness, 1_610);
    probing.tried(Kind::Liveness, Tried::Success, 1_999);
    assert_eq!(probing.next_wake(), Some(1_999), "it took too long");
}

#[test]
fn a_termination_ends_all_but_readiness() {
    let rules = Rules {
        startup: None,
        liveness: Some(rule(0, 10, 1, 1)),
        readiness: Some(rule(0, 10, 1, 1)),
    };
    let mut probing = new(rules);
    give(&mut probing, Kind::Readiness, '+');
    probing.begin(Kind::Liveness, 10);
    probing.stop();
    let late = probing.tried(Kind::Liveness, Tried::Failure, 20);
    assert_eq!(late, None, "it was under way");
    assert_eq!(probing.due(100), [Kind::Readiness]);
    assert!(probing.ready(), "until it is known better");
    assert_eq!(
        give(&mut probing, Kind::Readiness, '-'),
        Some(Verdict::NotReady)
    );
}

#[test]
fn a_failed_startup_probe_opens_nothing() {
    let rules = Rules {
        startup: Some(rule(0, 10, 1, 1)),
        liveness: Some(rule(0, 10, 1, 1)),
        readiness: Some(rule(0, 10, 1, 1)),
    };
    let mut probing = new(rules);
    assert_eq!(
        give(&mut probing, Kind::Startup, '-'),
        Some(Verdict::Kill(Kind::Startup))
    );
    assert_eq!(probing.next_wake(), None);
}

#[test]
fn what_was_reported_holds_until_a_threshold_says_otherwise() {
    let rules = Rules {
        startup: Some(rule(0, 10, 1, 1)),
        liveness: None,
        readiness: Some(rule(0, 10, 2, 2)),
    };
    let before = |started, ready| Probing::new(rules, 0, Before { started, ready });
    let mut adopted = before(true, true);
    assert!(adopted.started() && adopted.ready());
    assert_eq!(adopted.due(0), [Kind::Readiness], "it starts only once");
    assert_eq!(give(&mut adopted, Kind::Readiness, '-'), None);
    assert!(adopted.ready());
    assert_eq!(
        give(&mut adopted, Kind::Readiness, '-'),
        Some(Verdict::NotReady)
    );
    let unready = before(true, false);
    assert!(unready.started() && !unready.ready());
    let unstarted = before(false, false);
    assert_eq!(unstarted.due(0), [Kind::Startup]);
}

#[test]
fn words_that_nobody_waits_for_change_nothing() {
    let mut probing = new(only(Kind::Liveness, rule(0, 10, 1, 1)));
    let untouched = probing.clone();
    for kind in Kind::ALL {
        assert_eq!(probing.tried(kind, Tried::Failure, 5), None);
    }
    probing.begin(Kind::Readiness, 5);
    assert_eq!(probing, untouched);
}

proptest! {
    #[test]
    fn a_container_is_killed_by_nothing_but_enough_failures_in_a_row(
        results in proptest::collection::vec(0..3u8, 0..60), threshold in 1u32..6
    ) {
        let mut probing = new(only(Kind::Liveness, rule(0, 10, 1, threshold)));
        let mut row = 0;
        for result in results {
            let char = ['+', '-', '?'][usize::from(result)];
            let verdict = give(&mut probing, Kind::Liveness, char);
            row = match char {
                '+' => 0,
                '-' => row + 1,
                _ => row,
            };
            let killed = verdict == Some(Verdict::Kill(Kind::Liveness));
            prop_assert_eq!(killed, char == '-' && row == threshold);
            if killed {
                prop_assert_eq!(probing.next_wake(), None);
                break;
            }
        }
    }

    #[test]
    fn ready_is_what_the_last_row_that_was_long_enough_said(
        results in proptest::collection::vec(any::<bool>(), 0..60),
        success in 1u32..4, failure in 1u32..4,
    ) {
        let mut probing = new(only(Kind::Readiness, rule(0, 10, success, failure)));
        let (mut ready, mut last, mut row) = (false, false, 0);
        for result in results {
            row = if result == last { row + 1 } else { 1 };
            last = result;
            if row >= if result { success } else { failure } {
                ready = result;
            }
            give(&mut probing, Kind::Readiness, if result { '+' } else { '-' });
            prop_assert_eq!(probing.ready(), ready);
        }
    }

    #[test]
    fn any_numbers_are_taken_without_a_panic(
        since in any::<i64>(), now in any::<i64>(), delay in any::<u64>(), period in any::<u64>()
    ) {
        let rules = only(Kind::Startup, rule(delay, period, 1, 1));
        let mut probing = Probing::new(rules, since, Before::default());
        let _ = probing.due(now);
        probing.begin(Kind::Startup, now);
        let _ = probing.tried(Kind::Startup, Tried::Nothing, now);
        let _ = probing.next_wake();
    }
}
