//! What must hold whatever happens, in whatever order.

use std::collections::{BTreeMap, BTreeSet};

use std::time::Duration;

use belay_core::delivery::{
    Conclusion, Effect, Event, Facts, Phase, Record, Retry, Trace, Verdict, View, open,
};
use proptest::prelude::*;

use crate::{DEADLINE, facts, outcome, record};

fn any_view() -> impl Strategy<Value = View> {
    let claim = record(&[("a", true), ("b", false)]);
    prop_oneof![
        Just(View::Unclaimed),
        Just(View::Ours(claim.clone())),
        Just(View::Foreign),
        Just(View::Final),
        Just(View::Deleting(None)),
        Just(View::Deleting(Some(claim))),
        Just(View::Gone),
    ]
}

fn any_trace() -> impl Strategy<Value = Trace> {
    prop_oneof![
        Just(Trace::NeverStarted),
        Just(Trace::Running),
        Just(Trace::Lost),
        Just(Trace::Ended(outcome(Verdict::Exited { code: 1 }))),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let container = prop_oneof![
        Just("a".to_owned()),
        Just("b".to_owned()),
        Just("x".to_owned())
    ];
    prop_oneof![
        3 => Just(Event::Claimed),
        1 => any_view().prop_map(Event::ClaimRefused),
        4 => (0u32..6).prop_map(|seq| Event::Journalled { seq }),
        1 => (0u32..6).prop_map(|seq| Event::JournalFailed { seq, message: "full".into() }),
        4 => (container.clone(), 1u32..4, any_trace(), any::<bool>()).prop_map(
            |(container, attempt, trace, same_incarnation)| Event::Found {
                container, attempt, trace, same_incarnation
            }
        ),
        4 => container.clone().prop_map(|container| Event::Slot { container }),
        3 => (container.clone(), 1u32..4).prop_map(|(container, attempt)| Event::Ended {
            container, attempt, outcome: outcome(Verdict::Succeeded)
        }),
        3 => (container.clone(), 1u32..4).prop_map(|(container, attempt)| Event::Ended {
            container, attempt, outcome: outcome(Verdict::Exited { code: 1 })
        }),
        1 => (container, 1u32..4).prop_map(|(container, attempt)| Event::Refused {
            container, attempt, verdict: Verdict::ContainerNotRunning
        }),
        1 => any_view().prop_map(Event::Seen),
        2 => Just(Event::Tick),
        1 => Just(Event::Reported),
        1 => any_view().prop_map(Event::ReportRefused),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any events, in any order, late and twice: what the machine asks for stays within its promises.
    #[test]
    fn events_in_any_order_never_break_a_promise(
        view in any_view(),
        journalled in any::<bool>(),
        events in proptest::collection::vec((any_event(), 0i64..110), 0..60),
        retried in any::<bool>(),
    ) {
        const TIME: i64 = 40;
        let retry = retried.then_some(Retry {
            timeout: Duration::from_millis(TIME.unsigned_abs()),
            first_pause: Duration::from_millis(3),
            longest_pause: Duration::from_millis(9),
        });
        let containers = [("a", true), ("b", false)];
        let journal = journalled.then(|| record(&containers));
        let claimed_before = matches!(view, View::Ours(_));
        let (mut delivery, mut effects) = open(
            Facts { retry, ..facts(view, journal.clone(), &containers) },
            0,
        );
        let mut claimed = claimed_before;
        let mut durable: BTreeMap<u32, Record> = BTreeMap::new();
        let mut on_disk = journal;
        let mut started = BTreeSet::new();
        let mut ended: BTreeSet<String> = BTreeSet::new();
        let mut now = 0i64;
        let mut queue = events.into_iter();
        loop {
            for effect in &effects {
                match effect {
                    Effect::Journal { seq, record } => { durable.insert(*seq, record.clone()); }
                    Effect::Start { container, attempt } => {
                        match (retried, on_disk.as_ref().and_then(|record| record.entries[container].first)) {
                            (false, _) => prop_assert!(now < DEADLINE, "started late"),
                            (true, Some(first)) => prop_assert!(now < first.boot + TIME, "started late"),
                            (true, None) => prop_assert!(false, "the first start is not journalled"),
                        }
                        prop_assert!(claimed, "started unclaimed");
                        let known = on_disk.as_ref().map(|record| &record.entries[container]);
                        prop_assert!(known.is_some_and(|entry| entry.attempt >= *attempt), "not journalled");
                        prop_assert!(started.insert((container.clone(), *attempt)), "started twice");
                        prop_assert!(!ended.contains(container), "started after its end");
                    }
                    Effect::Audit { container, .. } => {
                        prop_assert!(ended.insert(container.clone()), "ended twice");
                    }
                    Effect::Progress | Effect::Discard { .. } => {
                        prop_assert!(retried, "nothing is repeated");
                    }
                    Effect::Report(Conclusion::Ran(record)) => {
                        prop_assert!(record.entries.values().all(|entry| entry.outcome.is_some()));
                    }
                    Effect::Report(_)
                    | Effect::Claim(_)
                    | Effect::Find { .. }
                    | Effect::Queue { .. }
                    | Effect::Follow { .. }
                    | Effect::Cancel { .. }
                    | Effect::Forget(_) => {}
                }
            }
            if delivery.is_over() {
                prop_assert_eq!(delivery.phase(), &Phase::Over);
            }
            let Some((event, at)) = queue.next() else { break };
            now = now.max(at);
            match &event {
                Event::Claimed | Event::ClaimRefused(View::Ours(_)) => {
                    claimed |= matches!(delivery.phase(), Phase::Claiming { .. });
                }
                Event::Journalled { seq } => {
                    if let Some((_, record)) = durable.range(..=*seq).next_back() {
                        on_disk = Some(record.clone());
                    }
                }
                _ => {}
            }
            let over = delivery.is_over();
            (delivery, effects) = delivery.next(event, now);
            prop_assert!(!over || (delivery.is_over() && effects.is_empty()), "over is over");
        }
    }
}
