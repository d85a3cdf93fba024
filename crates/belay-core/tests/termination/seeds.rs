//! The lines of the two seeds' test plans that concern the engine, each named by its test.
//! Validation, gates of the server and real containers are tested where they are.

use belay_core::termination::{Container, Role};

use crate::actor::{main, sidecar};
use crate::world::pod;
use crate::{check, check_told};

// KEP-3960, unit tests.

#[test]
fn kep_3960_the_sleep_handler_sleeps_for_the_correct_duration() {
    for millis in [1, 1000, 5000, 29_999] {
        let world = pod(30_000, vec![main("web").sleep(millis).exits_after(0)]).run();
        assert_eq!(world.gone("web").unsigned_abs(), millis);
    }
}

#[test]
fn kep_3960_the_sleep_handler_returns_without_error() {
    check_told(
        pod(30_000, vec![main("web").sleep(5000).exits_after(3)]),
        &[
            "0 Killing: Stopping container web",
            "5000 PreStopHookSucceeded: PreStopHook of container web ended after 5.000s",
            "5000 StopSignalSent: Sent SIGTERM to container web after 5.000s; it has 25.000s before SIGKILL",
            "5003 Stopped: Container web ended after SIGTERM, 5.003s after its stop began",
        ],
    );
}

#[test]
fn kep_3960_the_sleep_handler_returns_immediately_when_given_zero() {
    let world = pod(30_000, vec![main("web").sleep(0).exits_after(3)]);
    check(world, &["0 web SIGTERM", "3 web is gone", "3 done"]);
    // And it takes nothing from, and adds nothing to, the grace.
    let world = pod(1000, vec![main("web").sleep(0)]).run();
    assert_eq!(world.gone("web"), 1000);
}

// KEP-3960, e2e tests, on the simulated clock.

#[test]
fn kep_3960_basic_functionality_the_container_sleeps_before_it_is_terminated() {
    let world = pod(30_000, vec![main("web").sleep(5000).exits_after(40)]);
    check(
        world,
        &["5000 web SIGTERM", "5040 web is gone", "5040 done"],
    );
}

#[test]
fn kep_3960_boundary_the_minimum_and_slightly_above_it() {
    for millis in [1000, 1001, 2000] {
        let world = pod(30_000, vec![main("web").sleep(millis).exits_after(0)]).run();
        assert_eq!(world.gone("web").unsigned_abs(), millis);
    }
}

#[test]
fn kep_3960_exit_the_pod_ends_without_waiting_for_the_entire_sleep() {
    let world = pod(30_000, vec![main("web").sleep(20_000).exits_at(1500)]);
    let expected = [
        "1500 web is gone",
        "1500 sleep ended early: container_exited",
        "1500 done",
    ];
    check(world, &expected);
}

#[test]
fn kep_3960_grace_equal_to_the_sleep_leaves_the_sleep_whole() {
    let world = pod(5000, vec![main("web").sleep(5000)]);
    let expected = [
        "5000 web SIGTERM",
        "7000 web KILL",
        "7000 web is gone",
        "7000 done",
    ];
    check(world, &expected);
}

#[test]
fn kep_3960_grace_greater_than_the_sleep_leaves_what_is_left_of_it() {
    let world = pod(9000, vec![main("web").sleep(5000)]);
    let expected = [
        "5000 web SIGTERM",
        "9000 web KILL",
        "9000 web is gone",
        "9000 done",
    ];
    check(world, &expected);
}

#[test]
fn kep_3960_grace_reduced_to_less_than_the_sleep_at_run_time_ends_it() {
    let world = pod(30_000, vec![main("web").sleep(5000).exits_after(1)]).grace_at(1000, 3000);
    let expected = [
        "3000 sleep ended early: grace_shortened",
        "3000 web SIGTERM",
        "3001 web is gone",
        "3001 done",
    ];
    check(world, &expected);
}

#[test]
fn kep_3960_the_container_is_terminated_after_the_lesser_of_sleep_and_grace() {
    for (sleep, grace) in [(5000, 3000), (3000, 5000), (4000, 4000), (1, 1), (5000, 1)] {
        let world = pod(grace, vec![main("web").sleep(sleep).exits_after(0)]).run();
        assert_eq!(world.gone("web").unsigned_abs(), sleep.min(grace));
    }
}

#[test]
fn kep_3960_an_agent_with_the_gate_off_skips_the_sleep_without_an_error_event() {
    let mut world = pod(30_000, vec![main("web").sleep(5000).exits_after(1)]);
    world.sleep_enabled = false;
    let world = world.run();
    assert_eq!(world.log, ["0 web SIGTERM", "1 web is gone", "1 done"]);
    assert!(world.told.iter().all(|line| !line.contains("PreStop")));
}

#[test]
fn kep_3960_a_pod_is_counted_once_for_each_reason() {
    let world = pod(
        30_000,
        vec![
            main("a").sleep(20_000).exits_at(100),
            main("b").sleep(20_000).exits_at(200),
            main("c").sleep(20_000).exits_after(1),
            main("d").sleep(20_000).exits_after(1),
        ],
    );
    let world = world.grace_at(300, 1000).run();
    let early: Vec<&String> = world.log.iter().filter(|l| l.contains("early")).collect();
    assert_eq!(
        early,
        [
            "100 sleep ended early: container_exited",
            "1000 sleep ended early: grace_shortened"
        ]
    );
}

#[test]
fn kep_3960_a_pod_that_was_counted_before_is_not_counted_again() {
    use belay_core::termination::{Early, Effect, Event, News, begin};
    let mut plan = pod(30_000, vec![main("web").sleep(5000)]).plan();
    plan.counted.insert(Early::ContainerExited);
    let (machine, _) = begin(plan, Vec::new(), 5);
    let exited = Event::Of {
        container: "web".to_owned(),
        news: News::Exited,
    };
    let (machine, effects) = machine.next(exited, 6);
    let counts = |effect: &Effect| matches!(effect, Effect::SleepEndedEarly { .. });
    assert!(machine.is_over() && !effects.iter().any(counts));
}

// KEP-4960, e2e tests.

#[test]
fn kep_4960_containers_are_killed_with_the_right_stop_signal() {
    for signal in ["SIGUSR1", "SIGQUIT", "SIGRTMIN+15", "SIGRTMAX-1", "SIGCLD"] {
        let world = pod(30_000, vec![main("web").signal(signal).exits_after(0)]);
        let sent = format!("0 web {signal}");
        check(world, &[&sent, "0 web is gone", "0 done"]);
        let world = pod(30_000, vec![sidecar("log").signal(signal).exits_after(0)]);
        let sent = format!("0 log {signal}");
        check(world, &[&sent, "0 log is gone", "0 done"]);
    }
}

#[test]
fn kep_4960_a_container_without_one_gets_the_signal_that_was_resolved_for_it() {
    let world = pod(30_000, vec![main("web").exits_after(0)]);
    check(world, &["0 web SIGTERM", "0 web is gone", "0 done"]);
}

#[test]
fn a_hook_has_one_attempt_for_one_incarnation() {
    let container = |name: &str, id: &str| Container {
        name: name.to_owned(),
        id: id.to_owned(),
        role: Role::Main,
        hook: None,
        signal: "SIGTERM".to_owned(),
    };
    assert_eq!(container("a", "c1").hook_attempt(), "c1.prestop");
    assert_ne!(
        container("a", "c1").hook_attempt(),
        container("a", "c2").hook_attempt()
    );
}
