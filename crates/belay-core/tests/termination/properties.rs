//! What holds for every pod, whatever its containers, their hooks and the agent do.

use std::collections::BTreeMap;
use std::time::Duration;

use belay_core::termination::{
    Effect, Event, Hook, HookResult, HookTrace, News, Role, Sending, Stage, Termination, begin,
    resume,
};
use proptest::prelude::*;

use crate::actor::Actor;
use crate::world::{BOOT, Crash, Death, START, World, pod};

const FLOOR: i64 = 2000;

fn any_hook() -> impl Strategy<Value = Option<Hook>> {
    let sleep = (0u64..9000).prop_map(|millis| Hook::Sleep {
        time: Duration::from_millis(millis),
    });
    proptest::option::of(prop_oneof![
        3 => Just(Hook::Exec),
        1 => Just(Hook::HttpGet),
        1 => Just(Hook::TcpSocket),
        2 => sleep,
    ])
}

fn any_actor() -> impl Strategy<Value = Actor> {
    let result = prop_oneof![
        Just(HookResult::Succeeded),
        Just(HookResult::Failed {
            message: "exit code 1".to_owned()
        }),
    ];
    (
        any_hook(),
        proptest::bool::weighted(0.9),
        proptest::option::of((0i64..9000, result)),
        proptest::option::of(0i64..5000),
        proptest::option::weighted(0.2, 0i64..12_000),
        prop_oneof![4 => Just(0u32), 1 => 1u32..9],
        any::<bool>(),
    )
        .prop_map(
            |(hook, running, hook_ends, exits_after, exits_at, refusals, unkillable)| Actor {
                name: String::new(),
                role: Role::Main,
                hook,
                signal: "SIGTERM".to_owned(),
                running,
                hook_ends,
                exits_after,
                exits_at,
                refusals,
                survivors: if unkillable && exits_after.is_none() {
                    vec!["1 (stuck)".to_owned()]
                } else {
                    Vec::new()
                },
            },
        )
}

/// Init containers and sidecars first, as in a pod's spec.
fn any_actors() -> impl Strategy<Value = Vec<Actor>> {
    let early = (any_actor(), any::<bool>()).prop_map(|(actor, sidecar)| Actor {
        role: if sidecar { Role::Sidecar } else { Role::Init },
        hook: actor.hook.filter(|_| sidecar),
        ..actor
    });
    (
        proptest::collection::vec(early, 0..3),
        proptest::collection::vec(any_actor(), 1..4),
    )
        .prop_map(|(early, main)| {
            let all = early.into_iter().chain(main).enumerate();
            all.map(|(index, actor)| Actor {
                name: format!("c{index}"),
                ..actor
            })
            .collect()
        })
}

fn any_grace() -> impl Strategy<Value = i64> {
    prop_oneof![
        1 => Just(0i64),
        1 => Just(1),
        2 => (1i64..9).prop_map(|seconds| seconds * 1000),
        2 => 1i64..9000,
    ]
}

fn any_crash() -> impl Strategy<Value = Crash> {
    let death = prop_oneof![
        (0i64..12_000).prop_map(Death::At),
        (1usize..30).prop_map(Death::After),
    ];
    (death, 0i64..6000, any::<bool>()).prop_map(|(death, away, record_lost)| Crash {
        death,
        away,
        record_lost,
        reboot: false,
    })
}

/// Every container's latest moment, from the grace and all that was asked for it.
fn bound(world: &World, grace: i64, shrinks: &[(i64, i64)]) -> i64 {
    let back = world.returned.map_or(0, |at| at - START);
    let start = if world.begun_again { back } else { 0 };
    let of = |asked_at: i64, grace: i64| {
        if grace == 0 {
            asked_at
        } else {
            asked_at.max(start + grace) + FLOOR
        }
    };
    let asked = shrinks.iter().map(|(at, grace)| of(*at, *grace));
    let bound = asked.fold(of(start, grace), i64::min);
    if back > 0 {
        bound.max(back + FLOOR)
    } else {
        bound
    }
}

fn signals(world: &World) -> BTreeMap<&str, Vec<i64>> {
    let mut signals: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (at, effect) in &world.effects {
        if let Effect::Signal { container, .. } = effect {
            signals.entry(container).or_default().push(at - START);
        }
    }
    signals
}

/// When a container was out of the way: gone, or killed as far as it could be.
fn ended(world: &World, actor: &Actor) -> i64 {
    if !actor.running {
        return 0;
    }
    let killed = world.effects.iter().find_map(|(at, effect)| {
        matches!(effect, Effect::Kill { container } if *container == actor.name).then_some(*at)
    });
    let exited = world.exited.get(&actor.name).copied();
    match (exited, killed) {
        (Some(a), Some(b)) => a.min(b) - START,
        (a, b) => a.or(b).expect("it has ended") - START,
    }
}

/// `World::run` itself asserts that nothing gone is signalled or gets a hook, that no grace grows,
/// that a restart changes no grace, that records survive JSON, and that it comes to an end.
fn holds(world: &World, grace: i64, shrinks: &[(i64, i64)]) -> Result<(), TestCaseError> {
    let latest = bound(world, grace, shrinks);
    let signals = signals(world);
    let crashed = world.returned.is_some();
    for (index, actor) in world.actors.iter().enumerate() {
        let gone = ended(world, actor);
        prop_assert!(
            gone <= latest,
            "{} at {gone}, not {latest}: {:#?}",
            actor.name,
            world.log
        );
        let plain = actor.hook.is_none() && actor.role != Role::Sidecar;
        if plain && !crashed && actor.running {
            prop_assert!(gone <= grace, "without a hook the grace is the grace");
        }
        let starts = world.hook_starts.get(&actor.name).copied().unwrap_or(0);
        prop_assert!(starts <= 1, "a hook runs once: {:#?}", world.log);
        let Some(sent) = signals.get(actor.name.as_str()) else {
            continue;
        };
        prop_assert!(grace > 0, "no signal without a grace");
        if !crashed {
            let refused = format!(
                "FailedStopSignal: SIGTERM could not be sent to container {},",
                actor.name
            );
            let refused = world.told.iter().any(|line| line.contains(&refused));
            prop_assert!(sent.len() == 1 || refused, "sent twice: {:#?}", world.log);
        }
        if actor.role == Role::Sidecar && !crashed {
            let first = sent[0];
            let served = world.actors.iter().enumerate();
            let served = served.filter(|(other, _)| *other > index);
            let all_ended = served
                .into_iter()
                .all(|(_, other)| ended(world, other) <= first);
            let own_end = shrinks
                .iter()
                .map(|(at, g)| (*at).max(*g))
                .fold(grace, i64::min);
            prop_assert!(all_ended || first >= own_end, "too early: {:#?}", world.log);
        }
    }
    let count = |reason: &str| {
        world
            .log
            .iter()
            .filter(|line| line.ends_with(reason))
            .count()
    };
    // What was counted may be lost with the record that says so.
    let most = if crashed { 2 } else { 1 };
    prop_assert!(count("container_exited") <= most && count("grace_shortened") <= most);
    prop_assert!(count(" done") >= 1);
    Ok(())
}

/// Any news, for the machine's patience.
fn any_news() -> impl Strategy<Value = News> {
    let killed = HookResult::Killed { survivors: vec![] };
    prop_oneof![
        Just(News::Exited),
        Just(News::HookEnded(HookResult::Succeeded)),
        Just(News::HookEnded(killed.clone())),
        Just(News::HookFound(HookTrace::NeverStarted)),
        Just(News::HookFound(HookTrace::Running)),
        Just(News::HookFound(HookTrace::Ended(killed))),
        Just(News::HookFound(HookTrace::Lost)),
        Just(News::SignalSent),
        Just(News::SignalFailed {
            message: "no".to_owned()
        }),
        Just(News::Killed { survivors: vec![] }),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0usize..5, any_news()).prop_map(|(index, news)| Event::Of {
            container: format!("c{index}"),
            news,
        }),
        1 => any_grace().prop_map(|grace| Event::GraceChanged {
            grace: Duration::from_millis(grace.unsigned_abs()),
        }),
        2 => Just(Event::Tick),
    ]
}

/// What a restart must not change: where a container stands, and until when.
fn deadlines(machine: &Termination, now: i64) -> Vec<(String, i64)> {
    let legs = machine.record().legs.iter();
    legs.map(|leg| {
        let name = leg.container.name.clone();
        let end = i64::try_from(leg.grace.as_millis()).expect("short");
        (name, (leg.began + end).max(now))
    })
    .collect()
}

fn confirmed(machine: &Termination, container: &str) -> bool {
    let stage = machine.leg(container).map(|leg| &leg.stage);
    matches!(
        stage,
        Some(Stage::Signalled {
            sending: Sending::Sent,
            ..
        })
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_pod_ends_in_time_and_in_order(
        actors in any_actors(),
        grace in any_grace(),
        shrinks in proptest::collection::vec((0i64..9000, any_grace()), 0..3),
    ) {
        let mut world = pod(grace.unsigned_abs(), actors);
        for (at, grace) in &shrinks {
            world = world.grace_at(*at, *grace);
        }
        holds(&world.run(), grace, &shrinks)?;
    }

    #[test]
    fn every_pod_ends_in_time_though_the_agent_dies_at_any_step(
        actors in any_actors(),
        grace in any_grace(),
        shrinks in proptest::collection::vec((0i64..9000, any_grace()), 0..2),
        crash in any_crash(),
    ) {
        let mut world = pod(grace.unsigned_abs(), actors).crash_with(crash);
        for (at, grace) in &shrinks {
            world = world.grace_at(*at, *grace);
        }
        holds(&world.run(), grace, &shrinks)?;
    }

    /// Late, twice, in any order and about anybody: nothing is signalled or started after its exit,
    /// nothing is signalled twice without a reason, over is over, and a restart at any point keeps
    /// every deadline.
    #[test]
    fn events_in_any_order_break_no_promise(
        actors in any_actors(),
        grace in any_grace(),
        events in proptest::collection::vec((any_event(), 0i64..1500, proptest::bool::weighted(0.1)), 0..50),
    ) {
        let world = pod(grace.unsigned_abs(), actors);
        let mut now = START;
        let mut exited: Vec<String> = Vec::new();
        let mut pending: BTreeMap<String, bool> = BTreeMap::new();
        let (mut machine, mut effects) = begin(world.plan(), Vec::new(), now);
        for (event, pause, dies) in events {
            for effect in &effects {
                match effect {
                    Effect::Signal { container, .. } => {
                        prop_assert!(!exited.contains(container));
                        let again = pending.insert(container.clone(), true);
                        prop_assert!(again != Some(true), "sent twice without a failure");
                    }
                    Effect::RunHook { container, deadline, .. } => {
                        prop_assert!(!exited.contains(container));
                        prop_assert!(*deadline > now);
                    }
                    Effect::Done => prop_assert!(machine.is_over()),
                    Effect::Journal(record) => prop_assert_eq!(record, machine.record()),
                    Effect::FindHook { .. }
                    | Effect::CancelHook { .. }
                    | Effect::Kill { .. }
                    | Effect::Tell { .. }
                    | Effect::SleepEndedEarly { .. } => {}
                }
            }
            if machine.is_over() {
                prop_assert_eq!(machine.next_wake(), None);
            } else if let Some(wake) = machine.next_wake() {
                prop_assert!(wake > now, "what is due is done");
                prop_assert!(machine.deadline().is_some_and(|latest| latest >= wake));
            }

            let ids: Vec<String> = world.actors.iter().filter(|actor| actor.running)
                .map(|actor| &actor.name)
                .filter(|name| !exited.contains(name))
                .map(|name| format!("{name}-1"))
                .collect();
            let (resumed, again) = resume(
                machine.record().clone(), BOOT, &ids.into_iter().collect(), now,
            );
            prop_assert_eq!(deadlines(&resumed, now), deadlines(&machine, now));
            prop_assert!(resumed.deadline() <= machine.deadline(), "a restart gives nobody more");
            if dies && !machine.is_over() {
                // Only what was not confirmed may be sent again.
                pending.retain(|name, _| confirmed(&machine, name));
                machine = resumed;
                effects = again;
                continue;
            }

            now += pause;
            if let Event::Of { container, news } = &event {
                match news {
                    News::Exited => exited.push(container.clone()),
                    News::SignalFailed { .. } => { pending.insert(container.clone(), false); }
                    _ => {}
                }
            }
            (machine, effects) = machine.next(event, now);
        }
    }

    /// The machine alone, with a runtime, hooks and a journal that never answer: SIGKILL comes.
    #[test]
    fn silence_kills_everything_by_the_deadline(
        actors in any_actors(),
        grace in any_grace(),
    ) {
        let world = pod(grace.unsigned_abs(), actors);
        let (mut machine, mut effects) = begin(world.plan(), Vec::new(), START);
        let mut killed = Vec::new();
        let mut now = START;
        loop {
            let kills = effects.iter().filter_map(|effect| match effect {
                Effect::Kill { container } => Some((container.clone(), now - START)),
                _ => None,
            });
            killed.extend(kills);
            let Some(wake) = machine.next_wake() else { break };
            now = wake;
            (machine, effects) = machine.next(Event::Tick, now);
        }
        let running = world.actors.iter().filter(|actor| actor.running).count();
        prop_assert_eq!(killed.len(), running);
        let latest = if grace == 0 { 0 } else { grace + FLOOR };
        prop_assert!(killed.iter().all(|(_, at)| *at <= latest), "{:?}", killed);
    }
}
