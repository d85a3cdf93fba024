//! Containers among others: sidecars, and a pod's end that takes over a container's.

use belay_core::termination::{Cause, Effect, Event, News, Termination, begin};

use crate::actor::{init, main, sidecar};
use crate::check;
use crate::world::{START, pod};

#[test]
fn a_sidecar_s_hook_starts_at_once_and_its_signal_waits_for_the_main_containers() {
    let world = pod(
        30_000,
        vec![
            sidecar("log").exec().hook_ends(10).exits_after(1),
            main("a").exits_after(500),
            main("b").exits_after(800),
        ],
    );
    let expected = [
        "0 log hook",
        "0 a SIGTERM",
        "0 b SIGTERM",
        "500 a is gone",
        "800 b is gone",
        "800 log SIGTERM",
        "801 log is gone",
        "801 done",
    ];
    check(world, &expected);
}

#[test]
fn sidecars_stop_in_the_reverse_order_of_their_declaration() {
    let world = pod(
        30_000,
        vec![
            sidecar("first").exits_after(10),
            sidecar("second").exits_after(10),
            sidecar("third").exits_after(10),
            main("web").exits_after(10),
        ],
    );
    let expected = [
        "0 web SIGTERM",
        "10 web is gone",
        "10 third SIGTERM",
        "20 third is gone",
        "20 second SIGTERM",
        "30 second is gone",
        "30 first SIGTERM",
        "40 first is gone",
        "40 done",
    ];
    check(world, &expected);
}

#[test]
fn a_sidecar_that_does_not_run_keeps_nobody_waiting() {
    let world = pod(
        30_000,
        vec![
            sidecar("first").exits_after(1),
            sidecar("second").not_running(),
            main("web").not_running(),
        ],
    );
    check(world, &["0 first SIGTERM", "1 first is gone", "1 done"]);
}

#[test]
fn a_sidecar_waits_for_a_later_init_container_that_still_runs() {
    let world = pod(
        30_000,
        vec![
            sidecar("proxy").exits_after(1),
            init("fetch").exits_after(40),
            main("web").not_running(),
        ],
    );
    let expected = [
        "0 fetch SIGTERM",
        "40 fetch is gone",
        "40 proxy SIGTERM",
        "41 proxy is gone",
        "41 done",
    ];
    check(world, &expected);
}

#[test]
fn a_sidecar_s_wait_is_bounded_by_its_grace_and_followed_by_2_s() {
    let world = pod(6000, vec![sidecar("log"), main("web").exec()]);
    let expected = [
        "0 web hook",
        "6000 log SIGTERM",
        "6000 web cancel hook",
        "6000 web SIGTERM",
        "8000 log KILL",
        "8000 web KILL",
        "8000 log is gone",
        "8000 web is gone",
        "8000 done",
    ];
    check(world, &expected);
}

#[test]
fn a_killed_container_frees_the_sidecars_that_waited_for_it() {
    let world = pod(6000, vec![sidecar("log").exits_after(1), main("web")]);
    let expected = [
        "0 web SIGTERM",
        "6000 log SIGTERM",
        "6000 web KILL",
        "6000 web is gone",
        "6001 log is gone",
        "6001 done",
    ];
    check(world, &expected);
}

#[test]
fn an_exit_frees_the_sidecars_before_the_rest_of_the_container_is_dead() {
    // The probe's grace is over long before the pod's.
    let (web, _) = begin(pod(1000, vec![main("web")]).plan(), Vec::new(), START);
    let whole = pod(30_000, vec![sidecar("log"), main("web")]).plan();
    let (machine, _) = begin(whole, vec![web], START + 10);
    let (machine, effects) = machine.next(Event::Tick, START + 1000);
    let container = "web".to_owned();
    assert!(effects.contains(&Effect::Kill { container }));
    let exited = Event::Of {
        container: "web".to_owned(),
        news: News::Exited,
    };
    let (_, effects) = machine.next(exited, START + 1001);
    let signal = Effect::Signal {
        container: "log".to_owned(),
        signal: "SIGTERM".to_owned(),
    };
    assert!(effects.contains(&signal), "{effects:?}");
}

#[test]
fn a_container_that_a_probe_killed_stops_by_the_same_rules() {
    let mut world = pod(5000, vec![sidecar("web").sleep(1000)]);
    world.cause = Cause::LivenessProbe { restarts: true };
    let world = world.run();
    let expected = [
        "1000 web SIGTERM",
        "5000 web KILL",
        "5000 web is gone",
        "5000 done",
    ];
    assert_eq!(world.log, expected);
    assert_eq!(
        world.told[0],
        "0 Killing: Container web failed liveness probe, will be restarted"
    );
}

/// The liveness probe stops one container of a pod that is then deleted.
fn taken_over(own_grace: u64, pod_grace: u64) -> (Termination, Vec<Effect>) {
    let mut single = pod(own_grace, vec![main("web")]);
    single.cause = Cause::LivenessProbe { restarts: true };
    let (machine, _) = begin(single.plan(), Vec::new(), START);
    let sent = Event::Of {
        container: "web".to_owned(),
        news: News::SignalSent,
    };
    let (machine, _) = machine.next(sent, START + 1);
    let whole = pod(pod_grace, vec![main("web"), main("db")]);
    begin(whole.plan(), vec![machine], START + 2000)
}

#[test]
fn a_pod_s_end_takes_over_that_of_its_container_and_signals_it_no_second_time() {
    let (machine, effects) = taken_over(8000, 30_000);
    let signalled: Vec<&str> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Signal { container, .. } => Some(container.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(signalled, ["db"]);
    // Its own grace began with the probe, and has not grown.
    assert_eq!(machine.next_wake(), Some(START + 8000));
}

#[test]
fn a_pod_s_shorter_grace_shortens_that_of_a_container_that_stops_already() {
    let (machine, _) = taken_over(60_000, 3000);
    assert_eq!(machine.next_wake(), Some(START + 5000));
    let (_, effects) = taken_over(60_000, 0);
    let kills = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Kill { .. }))
        .count();
    assert_eq!(kills, 2);
}

#[test]
fn a_pod_s_grace_of_0_leaves_no_signal_to_a_container_whose_hook_runs_already() {
    let (web, _) = begin(pod(60_000, vec![main("web").exec()]).plan(), vec![], START);
    let whole = pod(0, vec![main("web").exec()]).plan();
    let (_, effects) = begin(whole, vec![web], START + 2000);
    let acts = |effect: &&Effect| !matches!(effect, Effect::Tell { .. } | Effect::Journal(_));
    let acts: Vec<&Effect> = effects.iter().filter(acts).collect();
    assert!(
        matches!(acts[..], [Effect::CancelHook { .. }, Effect::Kill { .. }]),
        "{acts:?}"
    );
}

#[test]
fn what_a_container_s_end_has_counted_its_pod_s_end_counts_no_more() {
    let sleepers = vec![main("a").sleep(5000), main("b").sleep(5000)];
    let (machine, _) = begin(pod(30_000, sleepers).plan(), vec![], START);
    let exited = |name: &str| Event::Of {
        container: name.to_owned(),
        news: News::Exited,
    };
    let counts = |effects: &[Effect]| {
        let early = |effect: &&Effect| matches!(effect, Effect::SleepEndedEarly { .. });
        effects.iter().filter(early).count()
    };
    let (machine, effects) = machine.next(exited("a"), START + 1);
    assert_eq!(counts(&effects), 1);
    let whole = pod(30_000, vec![main("b").sleep(5000)]).plan();
    let (machine, _) = begin(whole, vec![machine], START + 2);
    let (_, effects) = machine.next(exited("b"), START + 3);
    assert_eq!(counts(&effects), 0);
}
