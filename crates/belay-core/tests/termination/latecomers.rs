//! A container whose start was under way when its pod's end began.

use std::collections::BTreeSet;
use std::time::Duration;

use belay_core::termination::{
    Cause, Container, Effect, Event, Hook, News, Plan, Role, Termination, begin,
};

const START: i64 = 1_000_000;
const GRACE: Duration = Duration::from_secs(30);

fn container(hook: Option<Hook>) -> Container {
    Container {
        name: "late".into(),
        id: "late-1".into(),
        role: Role::Main,
        hook,
        signal: "SIGTERM".into(),
    }
}

/// A pod of which nothing runs.
fn ended() -> Termination {
    let plan = Plan {
        pod_uid: "u".into(),
        pod_name: (String::new(), String::new()),
        boot_id: "b".into(),
        cause: Cause::PodDeleted,
        grace: GRACE,
        sleep_enabled: true,
        containers: Vec::new(),
        running: BTreeSet::new(),
        counted: BTreeSet::new(),
    };
    let (machine, effects) = begin(plan, Vec::new(), START);
    assert!(machine.is_over() && effects.last() == Some(&Effect::Done));
    machine
}

fn signalled(effects: &[Effect]) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::Signal { container, .. } if container == "late"))
}

#[test]
fn it_is_stopped_within_what_is_left_of_the_pods_grace() {
    let (machine, effects) = ended().join(container(None), GRACE, true, START + 10_000);
    assert!(signalled(&effects) && !machine.is_over());
    assert!(matches!(effects[0], Effect::Journal(_)), "{effects:?}");
    assert_eq!(machine.next_wake(), Some(START + 30_000));
    let (machine, effects) = machine.next(Event::Tick, START + 30_000);
    let kill = Effect::Kill {
        container: "late".into(),
    };
    assert!(effects.contains(&kill), "{effects:?}");
    let killed = Event::Of {
        container: "late".into(),
        news: News::Killed { survivors: vec![] },
    };
    let (machine, effects) = machine.next(killed, START + 30_001);
    assert!(machine.is_over() && effects.last() == Some(&Effect::Done));
}

#[test]
fn after_the_grace_it_has_its_signal_and_the_time_that_follows_one() {
    let exec = container(Some(Hook::Exec));
    let (machine, effects) = ended().join(exec, GRACE, true, START + 40_000);
    assert!(signalled(&effects), "{effects:?}");
    assert_eq!(machine.deadline(), Some(START + 42_000));
}

#[test]
fn a_shorter_grace_counts_from_the_beginning_of_the_end_for_it_too() {
    let (machine, _) = ended().join(container(None), GRACE, true, START + 10_000);
    let grace = Duration::from_secs(20);
    let (machine, _) = machine.next(Event::GraceChanged { grace }, START + 11_000);
    assert_eq!(machine.next_wake(), Some(START + 20_000));
}

#[test]
fn it_takes_the_place_of_the_incarnation_that_had_ended() {
    let (machine, _) = ended().join(container(None), GRACE, true, START + 1);
    let gone = Event::Of {
        container: "late".into(),
        news: News::Exited,
    };
    let (machine, _) = machine.next(gone, START + 2);
    assert!(machine.is_over());
    let next = Container {
        id: "late-2".into(),
        ..container(None)
    };
    let (machine, _) = machine.join(next, GRACE, true, START + 3);
    assert_eq!(machine.record().legs.len(), 1);
    let id = &machine.leg("late").expect("it is there").container.id;
    assert_eq!(id, "late-2");
}

#[test]
fn without_a_grace_it_is_killed_at_once() {
    let exec = container(Some(Hook::Exec));
    let (_, effects) = ended().join(exec, Duration::ZERO, true, START + 5);
    assert!(!signalled(&effects));
    let hook = effects
        .iter()
        .any(|effect| matches!(effect, Effect::RunHook { .. }));
    assert!(!hook, "{effects:?}");
}
