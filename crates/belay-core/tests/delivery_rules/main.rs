//! The rules of delivery as tables, and properties over events in any order.

mod properties;
mod retry;

use belay_core::delivery::{
    Conclusion, Delivery, Effect, Entry, Event, Facts, MAX_ATTEMPTS, Outcome, Outlook, Record,
    Trace, Verdict, View, open,
};

const DEADLINE: i64 = 100;

fn record(containers: &[(&str, bool)]) -> Record {
    Record {
        pod_uid: "pod".into(),
        entries: containers
            .iter()
            .map(|(name, traceable)| {
                (
                    (*name).to_owned(),
                    Entry::planned(Some(format!("{name}-1")), *traceable),
                )
            })
            .collect(),
    }
}

fn facts(view: View, journal: Option<Record>, containers: &[(&str, bool)]) -> Facts {
    Facts {
        view,
        journal,
        outlook: Outlook::Run(record(containers)),
        deadline: DEADLINE,
        retry: None,
    }
}

fn outcome(verdict: Verdict) -> Outcome {
    Outcome {
        started: Some(1),
        ..Outcome::unstarted(verdict, 2)
    }
}

fn found(attempt: u32, trace: Trace, same_incarnation: bool) -> Event {
    Event::Found {
        container: "a".into(),
        attempt,
        trace,
        same_incarnation,
    }
}

/// A delivery of one exec that was claimed and journalled by an earlier process.
fn met_again(now: i64) -> (Delivery, Vec<Effect>) {
    let known = record(&[("a", true)]);
    open(
        facts(View::Ours(known.clone()), Some(known), &[("a", true)]),
        now,
    )
}

/// Brings a fresh delivery of one container to the point where it waits for a slot.
fn queued(traceable: bool) -> Delivery {
    let (delivery, _) = open(facts(View::Unclaimed, None, &[("a", traceable)]), 0);
    let (delivery, effects) = delivery.next(Event::Claimed, 0);
    assert!(
        effects.is_empty(),
        "the journal is still missing: {effects:?}"
    );
    let (delivery, effects) = delivery.next(Event::Journalled { seq: 1 }, 0);
    assert_eq!(
        effects,
        [Effect::Queue {
            container: "a".into()
        }]
    );
    delivery
}

fn running(traceable: bool) -> Delivery {
    let (delivery, effects) = queued(traceable).next(
        Event::Slot {
            container: "a".into(),
        },
        0,
    );
    assert_eq!(
        effects,
        [Effect::Start {
            container: "a".into(),
            attempt: 1
        }]
    );
    delivery
}

fn reported(effects: &[Effect]) -> Option<&Conclusion> {
    effects.iter().find_map(|effect| match effect {
        Effect::Report(conclusion) => Some(conclusion),
        _ => None,
    })
}

fn verdict_of(effects: &[Effect]) -> Option<Verdict> {
    match reported(effects)? {
        Conclusion::Ran(record) => Some(record.entries["a"].outcome.clone()?.verdict),
        Conclusion::Refused(verdict) => Some(verdict.clone()),
        Conclusion::NothingDeclared => None,
    }
}

#[test]
fn the_start_waits_for_claim_and_journal_in_either_order() {
    let (delivery, effects) = open(facts(View::Unclaimed, None, &[("a", true)]), 0);
    assert!(matches!(
        &effects[..],
        [Effect::Journal { seq: 1, .. }, Effect::Claim(_)]
    ));
    for order in [
        [Event::Claimed, Event::Journalled { seq: 1 }],
        [Event::Journalled { seq: 1 }, Event::Claimed],
    ] {
        let [first, second] = order;
        let (delivery, effects) = delivery.clone().next(first, 0);
        assert_eq!(effects, []);
        let (_, effects) = delivery.next(second, 0);
        assert_eq!(
            effects,
            [Effect::Queue {
                container: "a".into()
            }]
        );
    }
}

#[test]
fn what_a_restarted_agent_finds_decides_what_it_does() {
    // trace, same incarnation, late -> the effect or the verdict
    enum Then {
        Queue,
        Follow,
        Repeat,
        End(Verdict),
    }
    let done = || Trace::Ended(outcome(Verdict::Exited { code: 7 }));
    let restarted = |may_have_run| Then::End(Verdict::ContainerRestarted { may_have_run });
    let table = [
        (Trace::NeverStarted, true, false, Then::Queue),
        (Trace::NeverStarted, true, true, Then::End(Verdict::Expired)),
        (Trace::NeverStarted, false, false, restarted(false)),
        (Trace::NeverStarted, false, true, restarted(false)),
        (Trace::Running, true, false, Then::Follow),
        (Trace::Running, true, true, Then::Follow),
        (Trace::Running, false, false, Then::Follow),
        (Trace::Running, false, true, Then::Follow),
        (done(), true, false, Then::End(Verdict::Exited { code: 7 })),
        (done(), true, true, Then::End(Verdict::Exited { code: 7 })),
        (done(), false, false, Then::End(Verdict::Exited { code: 7 })),
        (done(), false, true, Then::End(Verdict::Exited { code: 7 })),
        (Trace::Lost, true, false, Then::Repeat),
        (Trace::Lost, true, true, Then::End(Verdict::Interrupted)),
        (Trace::Lost, false, false, restarted(true)),
        (Trace::Lost, false, true, restarted(true)),
    ];
    for (trace, same, late, then) in table {
        let now = if late { DEADLINE } else { DEADLINE - 1 };
        let (delivery, effects) = met_again(now);
        assert_eq!(
            effects,
            [Effect::Find {
                container: "a".into(),
                attempt: 1
            }]
        );
        let lost = trace == Trace::Lost;
        let case = format!("{trace:?}, same {same}, late {late}");
        let (mut delivery, mut effects) = delivery.next(found(1, trace, same), now);
        if lost {
            assert_eq!(
                effects,
                [Effect::Find {
                    container: "a".into(),
                    attempt: 2
                }],
                "{case}"
            );
            (delivery, effects) = delivery.next(found(2, Trace::NeverStarted, same), now);
        }
        match then {
            Then::Queue => assert_eq!(
                effects,
                [Effect::Queue {
                    container: "a".into()
                }],
                "{case}"
            ),
            Then::Follow => {
                assert_eq!(
                    effects,
                    [Effect::Follow {
                        container: "a".into(),
                        attempt: 1
                    }],
                    "{case}"
                );
            }
            Then::Repeat => {
                assert!(
                    matches!(&effects[..], [Effect::Journal { seq: 1, record }]
                    if record.entries["a"].attempt == 2),
                    "{case}: {effects:?}"
                );
                let (delivery, effects) = delivery.next(Event::Journalled { seq: 1 }, now);
                assert_eq!(
                    effects,
                    [Effect::Queue {
                        container: "a".into()
                    }],
                    "{case}"
                );
                let (_, effects) = delivery.next(
                    Event::Slot {
                        container: "a".into(),
                    },
                    now,
                );
                assert_eq!(
                    effects,
                    [Effect::Start {
                        container: "a".into(),
                        attempt: 2
                    }],
                    "{case}"
                );
            }
            Then::End(verdict) => assert_eq!(verdict_of(&effects), Some(verdict), "{case}"),
        }
    }
}

#[test]
fn a_recorded_result_is_reported_and_never_runs_again() {
    let mut journal = record(&[("a", true)]);
    journal.entries.get_mut("a").unwrap().outcome = Some(outcome(Verdict::Succeeded));
    for now in [0, DEADLINE + 5] {
        let view = View::Ours(record(&[("a", true)]));
        let (_, effects) = open(facts(view, Some(journal.clone()), &[("a", true)]), now);
        assert!(reported(&effects).unwrap().succeeded(), "{effects:?}");
        assert_eq!(effects.len(), 1, "nothing else happens: {effects:?}");
    }
}

#[test]
fn a_journal_that_counted_further_is_not_needed_to_find_the_second_attempt() {
    let claim = record(&[("a", true)]);
    let (delivery, effects) = open(facts(View::Ours(claim), None, &[("a", true)]), 0);
    assert!(matches!(&effects[..], [Effect::Journal { seq: 1, .. }]));
    let (delivery, effects) = delivery.next(Event::Journalled { seq: 1 }, 0);
    assert_eq!(
        effects,
        [Effect::Find {
            container: "a".into(),
            attempt: 1
        }]
    );
    let (delivery, _) = delivery.next(found(1, Trace::Lost, true), 0);
    let (_, effects) = delivery.next(found(2, Trace::Running, true), 0);
    assert_eq!(
        effects,
        [Effect::Follow {
            container: "a".into(),
            attempt: 2
        }]
    );
}

#[test]
fn what_nobody_claimed_in_time_ends_as_expired() {
    let (delivery, effects) = open(facts(View::Unclaimed, None, &[("a", true)]), DEADLINE);
    assert_eq!(verdict_of(&effects), Some(Verdict::Expired));
    let (delivery, effects) = delivery.next(Event::Reported, DEADLINE);
    assert_eq!(effects, [Effect::Forget(None)]);
    assert!(delivery.is_over());
}

#[test]
fn a_deadline_that_passes_in_the_queue_expires_the_notification() {
    for event in [
        Event::Tick,
        Event::Slot {
            container: "a".into(),
        },
    ] {
        let (_, effects) = queued(true).next(event, DEADLINE);
        assert_eq!(verdict_of(&effects), Some(Verdict::Expired));
    }
    let (delivery, effects) = queued(true).next(Event::Tick, DEADLINE - 1);
    assert_eq!((effects, delivery), (vec![], queued(true)));
}

#[test]
fn a_running_action_outlives_the_deadline() {
    let (delivery, effects) = running(true).next(Event::Tick, DEADLINE);
    assert_eq!(effects, []);
    let end = Event::Ended {
        container: "a".into(),
        attempt: 1,
        outcome: outcome(Verdict::Succeeded),
    };
    let (_, effects) = delivery.next(end, DEADLINE + 1);
    assert_eq!(verdict_of(&effects), Some(Verdict::Succeeded));
}

#[test]
fn deleting_the_object_kills_what_runs_and_reports_to_nobody() {
    let (delivery, effects) = running(true).next(Event::Seen(View::Gone), 1);
    assert_eq!(
        effects,
        [Effect::Cancel {
            container: "a".into()
        }]
    );
    let (delivery, again) = delivery.next(Event::Seen(View::Gone), 1);
    assert_eq!(again, [], "it is cancelled once");
    let verdict = Verdict::Cancelled { survivors: vec![] };
    let end = Event::Ended {
        container: "a".into(),
        attempt: 1,
        outcome: outcome(verdict),
    };
    let (delivery, effects) = delivery.next(end, 2);
    assert!(
        matches!(
            &effects[..],
            [Effect::Audit { .. }, Effect::Forget(Some(_))]
        ),
        "{effects:?}"
    );
    assert!(delivery.is_over());
}

#[test]
fn an_object_that_was_deleted_while_the_agent_was_away_is_cleaned_up() {
    let journal = record(&[("a", true)]);
    let (delivery, effects) = open(facts(View::Gone, Some(journal), &[]), 0);
    assert_eq!(
        effects,
        [Effect::Find {
            container: "a".into(),
            attempt: 1
        }]
    );
    let (_, effects) = delivery.clone().next(found(1, Trace::Running, true), 0);
    assert_eq!(
        effects,
        [
            Effect::Follow {
                container: "a".into(),
                attempt: 1
            },
            Effect::Cancel {
                container: "a".into()
            }
        ]
    );
    let (delivery, effects) = delivery.next(found(1, Trace::NeverStarted, true), 0);
    assert!(delivery.is_over());
    assert!(
        matches!(effects.last(), Some(Effect::Forget(Some(_)))),
        "{effects:?}"
    );
}

#[test]
fn anothers_claim_is_never_touched() {
    let (delivery, effects) = open(facts(View::Foreign, None, &[("a", true)]), 0);
    assert!(delivery.is_over() && effects.is_empty());
    let (delivery, _) = open(facts(View::Unclaimed, None, &[("a", true)]), 0);
    let (delivery, effects) = delivery.next(Event::ClaimRefused(View::Foreign), 0);
    assert!(delivery.is_over());
    assert!(matches!(&effects[..], [Effect::Forget(Some(_))]));
}

#[test]
fn a_result_that_meets_somebody_elses_end_is_dropped() {
    let end = Event::Ended {
        container: "a".into(),
        attempt: 1,
        outcome: outcome(Verdict::Succeeded),
    };
    let (delivery, _) = running(true).next(end, 1);
    let ours = View::Ours(record(&[("a", true)]));
    let (delivery, effects) = delivery.next(Event::ReportRefused(ours), 1);
    assert!(reported(&effects).is_some(), "still ours: written again");
    let (delivery, effects) = delivery.next(Event::ReportRefused(View::Final), 1);
    assert!(delivery.is_over());
    assert!(matches!(&effects[..], [Effect::Forget(Some(_))]));
}

#[test]
fn an_object_that_the_controller_ended_lets_the_action_run_out_and_starts_nothing() {
    let (delivery, effects) = running(true).next(Event::Seen(View::Final), 1);
    assert_eq!(effects, []);
    let end = Event::Ended {
        container: "a".into(),
        attempt: 1,
        outcome: outcome(Verdict::Succeeded),
    };
    let (delivery, effects) = delivery.next(end, 1);
    assert!(delivery.is_over() && reported(&effects).is_none());
    let (delivery, effects) = queued(true).next(Event::Seen(View::Final), 1);
    assert!(
        delivery.is_over() && reported(&effects).is_none(),
        "{effects:?}"
    );
}

#[test]
fn an_action_that_kills_its_supervisor_is_not_run_in_a_circle() {
    let mut delivery = running(true);
    for attempt in 1..MAX_ATTEMPTS {
        let (next, effects) = delivery.next(found(attempt, Trace::Lost, true), 1);
        let Some(Effect::Journal { seq, .. }) = effects.first() else {
            panic!("attempt {attempt}: {effects:?}");
        };
        let (next, _) = next.next(Event::Journalled { seq: *seq }, 1);
        let (next, effects) = next.next(
            Event::Slot {
                container: "a".into(),
            },
            1,
        );
        assert_eq!(
            effects,
            [Effect::Start {
                container: "a".into(),
                attempt: attempt + 1
            }]
        );
        delivery = next;
    }
    let (_, effects) = delivery.next(found(MAX_ATTEMPTS, Trace::Lost, true), 1);
    assert_eq!(verdict_of(&effects), Some(Verdict::Interrupted));
}

#[test]
fn a_lost_signal_is_sent_again_only_in_time_and_to_the_same_incarnation() {
    for (now, same, repeats) in [(0, true, true), (DEADLINE, true, false), (0, false, false)] {
        let known = record(&[("a", false)]);
        let view = View::Ours(known.clone());
        let (delivery, _) = open(facts(view, Some(known), &[("a", false)]), now);
        let (_, effects) = delivery.next(found(1, Trace::Lost, same), now);
        assert_eq!(
            matches!(&effects[..], [Effect::Journal { .. }]),
            repeats,
            "{effects:?}"
        );
    }
}

#[test]
fn a_full_journal_fails_the_notification_without_starting_it() {
    let (delivery, _) = open(facts(View::Unclaimed, None, &[("a", true)]), 0);
    let failed = Event::JournalFailed {
        seq: 1,
        message: "disk full".into(),
    };
    let (delivery, effects) = delivery.next(failed, 0);
    assert_eq!(effects, []);
    let (_, effects) = delivery.next(Event::Claimed, 0);
    assert!(
        matches!(verdict_of(&effects), Some(Verdict::Runtime { message }) if message.contains("disk full"))
    );
}

#[test]
fn a_container_that_is_not_running_fails_without_a_claim() {
    let mut plan = record(&[("a", true)]);
    plan.entries.get_mut("a").unwrap().container_id = None;
    let facts = Facts {
        view: View::Unclaimed,
        journal: None,
        outlook: Outlook::Run(plan),
        deadline: DEADLINE,
        retry: None,
    };
    let (_, effects) = open(facts, 0);
    assert_eq!(verdict_of(&effects), Some(Verdict::ContainerNotRunning));
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Claim(_)))
    );
}

#[test]
fn a_claim_of_an_earlier_process_that_lands_late_is_taken_over() {
    let (delivery, _) = open(facts(View::Unclaimed, None, &[("a", true)]), 0);
    let ours = View::Ours(record(&[("a", true)]));
    let (delivery, effects) = delivery.next(Event::ClaimRefused(ours), 0);
    assert!(matches!(&effects[..], [Effect::Journal { seq: 2, .. }]));
    let (_, effects) = delivery.next(Event::Journalled { seq: 2 }, 0);
    assert_eq!(
        effects,
        [Effect::Find {
            container: "a".into(),
            attempt: 1
        }]
    );
}

#[test]
fn a_start_that_the_runtime_finds_too_late_is_expired_unless_an_earlier_one_may_have_run() {
    let too_late = |attempt| Event::Refused {
        container: "a".into(),
        attempt,
        verdict: Verdict::Expired,
    };
    let (_, effects) = running(true).next(too_late(1), DEADLINE);
    assert_eq!(verdict_of(&effects), Some(Verdict::Expired));

    let (delivery, effects) = running(true).next(found(1, Trace::Lost, true), 1);
    assert!(matches!(&effects[..], [Effect::Journal { seq: 2, .. }]));
    let (delivery, _) = delivery.next(Event::Journalled { seq: 2 }, 1);
    let slot = Event::Slot {
        container: "a".into(),
    };
    let (delivery, _) = delivery.next(slot, 1);
    let (_, effects) = delivery.next(too_late(2), DEADLINE);
    assert_eq!(verdict_of(&effects), Some(Verdict::Interrupted));
}
