//! The rules of repeated attempts.

use std::time::Duration;

use belay_core::delivery::{
    Conclusion, Delivery, Effect, Event, Facts, First, Outcome, Record, Retry, Trace, Verdict,
    View, open,
};

use crate::{DEADLINE, facts, outcome, record};

/// The time of the action; longer than the deadline for its first start.
const TIME: i64 = 3 * DEADLINE;
const PAUSE: i64 = 10;

fn retry() -> Retry {
    Retry {
        timeout: Duration::from_millis(TIME.unsigned_abs()),
        first_pause: Duration::from_millis(PAUSE.unsigned_abs()),
        longest_pause: Duration::from_millis(4 * PAUSE.unsigned_abs()),
    }
}

fn begin(view: View, journal: Option<Record>, now: i64) -> (Delivery, Vec<Effect>) {
    let facts = facts(view, journal, &[("a", true)]);
    open(
        Facts {
            retry: Some(retry()),
            ..facts
        },
        now,
    )
}

fn container() -> String {
    "a".to_owned()
}

fn slot() -> Event {
    Event::Slot {
        container: container(),
    }
}

fn ended(attempt: u32, verdict: Verdict) -> Event {
    Event::Ended {
        container: container(),
        attempt,
        outcome: outcome(verdict),
    }
}

fn failure() -> Verdict {
    Verdict::Exited { code: 3 }
}

fn journalled(effects: &[Effect]) -> (u32, Record) {
    let newest = effects.iter().rev().find_map(|effect| match effect {
        Effect::Journal { seq, record } => Some((*seq, record.clone())),
        _ => None,
    });
    newest.expect("something is journalled")
}

/// Feeds a slot and the journal's answer; returns what is on disk when the attempt starts.
fn started(delivery: Delivery, attempt: u32, now: i64) -> (Delivery, Record) {
    let (delivery, effects) = delivery.next(slot(), now);
    assert!(delivery.holds_slot("a"), "the slot is kept meanwhile");
    let (seq, record) = journalled(&effects);
    let (delivery, effects) = delivery.next(Event::Journalled { seq }, now);
    let mut expected = vec![
        Effect::Start {
            container: container(),
            attempt,
        },
        Effect::Progress,
    ];
    if attempt > 1 {
        let discard = Effect::Discard {
            container: container(),
            attempt: attempt - 1,
        };
        expected.insert(0, discard);
    }
    assert_eq!(effects, expected);
    (delivery, record)
}

/// A first attempt that was started at 0.
fn running() -> (Delivery, Record) {
    let (delivery, _) = begin(View::Unclaimed, None, 0);
    let (delivery, _) = delivery.next(Event::Claimed, 0);
    let (delivery, _) = delivery.next(Event::Journalled { seq: 1 }, 0);
    started(delivery, 1, 0)
}

fn conclusion(effects: &[Effect]) -> Option<(Outcome, u32)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Report(Conclusion::Ran(record)) => {
            let entry = &record.entries["a"];
            Some((entry.outcome.clone()?, entry.attempt))
        }
        _ => None,
    })
}

#[test]
fn the_first_start_is_on_disk_before_anything_runs_and_never_changes() {
    let (delivery, record) = running();
    let first = Some(First { boot: 0, wall: 0 });
    assert_eq!(record.entries["a"].first, first);
    let (delivery, _) = delivery.next(ended(1, failure()), 5);
    let (delivery, _) = delivery.next(Event::Tick, 5 + PAUSE);
    let (_, record) = started(delivery, 2, 5 + PAUSE);
    assert_eq!(record.entries["a"].first, first);
    assert_eq!(record.entries["a"].attempt, 2);
}

#[test]
fn a_failure_is_told_and_tried_again_after_a_pause_that_doubles() {
    let (mut delivery, _) = running();
    let mut now = 0;
    for (attempt, pause) in [(1, PAUSE), (2, 2 * PAUSE), (3, 4 * PAUSE), (4, 4 * PAUSE)] {
        let (failed, effects) = delivery.next(ended(attempt, failure()), now);
        assert_eq!(effects, [Effect::Progress], "attempt {attempt}");
        let entry = &failed.record().unwrap().entries["a"];
        let verdict = entry.failed.as_ref().map(|failed| failed.verdict.clone());
        assert_eq!(verdict, Some(failure()));
        let left = failed.pause(now.into()).unwrap();
        assert_eq!(left, Duration::from_millis(pause.unsigned_abs()));
        let (waiting, effects) = failed.next(Event::Tick, now + pause - 1);
        assert_eq!(effects, [], "not before its time");
        now += pause;
        let (queued, effects) = waiting.next(Event::Tick, now);
        assert_eq!(
            effects,
            [Effect::Queue {
                container: container()
            }]
        );
        (delivery, _) = started(queued, attempt + 1, now);
    }
    let (_, effects) = delivery.next(ended(5, Verdict::Succeeded), now);
    let (outcome, attempts) = conclusion(&effects).unwrap();
    assert_eq!((outcome.verdict, attempts), (Verdict::Succeeded, 5));
}

#[test]
fn it_is_failed_with_its_last_error_when_the_time_since_its_first_start_is_over() {
    let (delivery, _) = running();
    let (delivery, _) = delivery.next(ended(1, failure()), TIME - 1);
    assert_eq!(
        delivery.pause((TIME - 1).into()),
        Some(Duration::from_millis(1)),
        "no pause reaches beyond the end"
    );
    let (_, effects) = delivery.next(Event::Tick, TIME);
    let (outcome, attempts) = conclusion(&effects).unwrap();
    assert_eq!((outcome.verdict, attempts), (failure(), 1));
}

#[test]
fn the_time_may_be_over_in_the_queue_and_in_the_journal() {
    let (delivery, _) = running();
    let (delivery, _) = delivery.next(ended(1, failure()), 0);
    let (queued, _) = delivery.next(Event::Tick, PAUSE);
    let failed = |effects: &[Effect]| {
        let (outcome, attempts) = conclusion(effects).unwrap();
        assert_eq!((outcome.verdict, attempts), (failure(), 1));
    };
    failed(&queued.clone().next(Event::Tick, TIME).1);
    failed(&queued.clone().next(slot(), TIME).1);
    let (stamping, effects) = queued.next(slot(), PAUSE);
    let (seq, _) = journalled(&effects);
    failed(&stamping.next(Event::Journalled { seq }, TIME).1);
}

#[test]
fn what_was_started_goes_on_beyond_the_deadline_for_starting() {
    let (delivery, _) = running();
    let (delivery, _) = delivery.next(ended(1, failure()), DEADLINE + 1);
    let (delivery, _) = delivery.next(Event::Tick, DEADLINE + 1 + PAUSE);
    started(delivery, 2, DEADLINE + 1 + PAUSE);
}

#[test]
fn what_was_not_started_before_the_deadline_is_expired() {
    let (delivery, _) = begin(View::Unclaimed, None, 0);
    let (delivery, _) = delivery.next(Event::Claimed, 0);
    let (delivery, _) = delivery.next(Event::Journalled { seq: 1 }, 0);
    assert_eq!(
        delivery.pause(0.into()),
        Some(Duration::from_millis(DEADLINE.unsigned_abs()))
    );
    let (_, effects) = delivery.next(Event::Tick, DEADLINE);
    let (outcome, attempts) = conclusion(&effects).unwrap();
    assert_eq!((outcome.verdict, attempts), (Verdict::Expired, 0));
}

#[test]
fn what_another_attempt_cannot_mend_ends_it_at_once() {
    let gone = Verdict::ContainerRestarted { may_have_run: true };
    let hung = Verdict::TimedOut {
        seconds: 1,
        survivors: vec![],
    };
    for verdict in [gone, hung, Verdict::Succeeded] {
        let (delivery, _) = running();
        let (_, effects) = delivery.next(ended(1, verdict.clone()), 1);
        let (outcome, attempts) = conclusion(&effects).unwrap();
        assert_eq!((outcome.verdict, attempts), (verdict, 1));
    }
}

#[test]
fn a_start_that_the_runtime_refused_counts_as_a_failure_unless_the_container_is_gone() {
    let refuse = |verdict| {
        let (delivery, _) = running();
        let event = Event::Refused {
            container: container(),
            attempt: 1,
            verdict,
        };
        delivery.next(event, 1)
    };
    let away = Verdict::Runtime {
        message: "away".into(),
    };
    let (_, effects) = refuse(away);
    assert_eq!(effects, [Effect::Progress]);
    let (_, effects) = refuse(Verdict::ContainerRestarted {
        may_have_run: false,
    });
    let (outcome, _) = conclusion(&effects).unwrap();
    assert_eq!(
        outcome.verdict,
        Verdict::ContainerRestarted {
            may_have_run: false
        }
    );
}

/// What the journal holds after `attempt` was started, the first one at 0.
fn left(attempt: u32) -> Record {
    let mut left = record(&[("a", true)]);
    let entry = left.entries.get_mut("a").expect("a");
    entry.first = Some(First { boot: 0, wall: 0 });
    entry.attempt = attempt;
    left
}

#[test]
fn a_restarted_agent_goes_on_until_the_same_end() {
    // trace, same incarnation, time -> what it comes to; none: it is tried again or followed
    let restarted = Verdict::ContainerRestarted { may_have_run: true };
    let table = [
        (Trace::Ended(outcome(failure())), true, 1, None),
        (
            Trace::Ended(outcome(failure())),
            true,
            TIME,
            Some(failure()),
        ),
        (
            Trace::Ended(outcome(Verdict::Succeeded)),
            true,
            TIME,
            Some(Verdict::Succeeded),
        ),
        (Trace::Running, true, TIME, None),
        (Trace::Lost, true, 1, None),
        (Trace::Lost, true, TIME, Some(Verdict::Interrupted)),
        (Trace::Lost, false, 1, Some(restarted.clone())),
        (Trace::NeverStarted, true, 1, None),
        (Trace::NeverStarted, true, TIME, Some(Verdict::Interrupted)),
        (Trace::NeverStarted, false, 1, Some(restarted)),
    ];
    for (trace, same, now, expected) in table {
        let (delivery, effects) = begin(View::Ours(record(&[("a", true)])), Some(left(7)), now);
        assert_eq!(
            effects,
            [Effect::Find {
                container: container(),
                attempt: 7
            }]
        );
        let case = format!("{trace:?}, same {same}, at {now}");
        let (delivery, effects) = delivery.next(crate::found(7, trace, same), now);
        let verdict = conclusion(&effects).map(|(outcome, _)| outcome.verdict);
        assert_eq!(verdict, expected, "{case}: {effects:?}");
        assert!(!delivery.is_over(), "{case}");
    }
}

#[test]
fn a_claim_tells_when_it_began_where_the_journal_is_lost() {
    let (delivery, effects) = begin(View::Ours(left(2)), None, 5);
    let (seq, record) = journalled(&effects);
    assert_eq!(record.entries["a"].first, Some(First { boot: 0, wall: 0 }));
    let (delivery, _) = delivery.next(Event::Journalled { seq }, 5);
    let (delivery, _) = delivery.next(crate::found(2, Trace::Lost, true), TIME);
    let verdict = delivery.record().unwrap().entries["a"].outcome.clone();
    assert_eq!(verdict.unwrap().verdict, Verdict::Interrupted);
}

#[test]
fn a_deletion_ends_who_waits_for_another_attempt() {
    let (delivery, _) = running();
    let (delivery, _) = delivery.next(ended(1, failure()), 1);
    let (_, effects) = delivery.next(Event::Seen(View::Deleting(None)), 2);
    let (outcome, attempts) = conclusion(&effects).unwrap();
    let cancelled = Verdict::Cancelled { survivors: vec![] };
    assert_eq!((outcome.verdict, attempts), (cancelled, 1));
}

#[test]
fn a_journal_that_is_full_for_a_while_delays_the_start_and_does_not_lose_it() {
    let (delivery, _) = begin(View::Unclaimed, None, 0);
    let (delivery, _) = delivery.next(Event::Claimed, 0);
    let (delivery, _) = delivery.next(Event::Journalled { seq: 1 }, 0);
    let (delivery, effects) = delivery.next(slot(), 0);
    let (seq, _) = journalled(&effects);
    let full = Event::JournalFailed {
        seq,
        message: "full".into(),
    };
    let (delivery, effects) = delivery.next(full, 0);
    assert_eq!(effects, [Effect::Progress]);
    let (delivery, _) = delivery.next(Event::Tick, PAUSE);
    started(delivery, 2, PAUSE);
}
