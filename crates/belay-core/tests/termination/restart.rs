//! The agent dies at each step, and another goes on.

use belay_core::termination::{Effect, End, Event, News, Sending, Stage, begin, resume};

use crate::actor::{Actor, main, sidecar};
use crate::world::{BOOT, Crash, Death, START, World, pod};
use crate::{check, check_told};

#[test]
fn a_restarted_agent_goes_on_with_the_remaining_grace_and_signals_no_second_time() {
    let world = pod(30_000, vec![main("web")]).crash(1000, 4000);
    let expected = [
        "0 web SIGTERM",
        "1000 the agent dies",
        "5000 the agent is back",
        "30000 web KILL",
        "30000 web is gone",
        "30000 done",
    ];
    check(world, &expected);
}

#[test]
fn a_grace_that_ended_while_no_agent_was_there_is_over() {
    let world = pod(30_000, vec![main("web")]).crash(1000, 90_000);
    let expected = [
        "0 web SIGTERM",
        "1000 the agent dies",
        "91000 the agent is back",
        "91000 web KILL",
        "91000 web is gone",
        "91000 done",
    ];
    check(world, &expected);
}

#[test]
fn a_hook_that_still_runs_is_found_and_not_run_again() {
    let actor = main("web").exec().hook_ends(8000).exits_after(1);
    let world = pod(30_000, vec![actor]).crash(1000, 4000);
    let expected = [
        "0 web hook",
        "1000 the agent dies",
        "5000 the agent is back",
        "5000 web find hook",
        "8000 web SIGTERM",
        "8001 web is gone",
        "8001 done",
    ];
    check(world, &expected);
}

#[test]
fn a_hook_that_ended_while_no_agent_was_there_is_reported_as_it_ended() {
    let actor = main("web").exec().hook_fails(2000, "exit code 1");
    let world = pod(30_000, vec![actor.exits_after(1)]).crash(1000, 4000);
    let world = world.run();
    assert!(
        world
            .told
            .contains(&"5000 FailedPreStopHook: PreStopHook failed: exit code 1".to_owned()),
        "{:?}",
        world.told
    );
    assert_eq!(world.gone("web"), 5001);
    assert_eq!(world.hook_starts["web"], 1);
}

#[test]
fn a_hook_that_provably_never_started_is_started() {
    let world = pod(
        30_000,
        vec![main("web").exec().hook_ends(50).exits_after(1)],
    );
    // Its record is on disk, and the agent dies before it can do anything else.
    let world = world.crash_with(Crash {
        death: Death::After(1),
        away: 300,
        record_lost: false,
        reboot: false,
    });
    let expected = [
        "0 the agent dies",
        "300 the agent is back",
        "300 web find hook",
        "300 web hook",
        "350 web SIGTERM",
        "351 web is gone",
        "351 done",
    ];
    check(world, &expected);
}

#[test]
fn a_hook_that_leaves_no_trace_is_told_and_not_run_again() {
    let actor = main("web").http().hook_ends(8000).exits_after(1);
    let expected = [
        "0 web hook",
        "1000 the agent dies",
        "5000 the agent is back",
        "5000 web SIGTERM",
        "5001 web is gone",
        "5001 done",
    ];
    check(
        pod(30_000, vec![actor.clone()]).crash(1000, 4000),
        &expected,
    );
    check_told(
        pod(30_000, vec![actor]).crash(1000, 4000),
        &[
            "0 Killing: Stopping container web",
            "5000 FailedPreStopHook: PreStopHook of container web was interrupted together with the agent; it is not run again",
            "5000 StopSignalSent: Sent SIGTERM to container web after 5.000s; it has 25.000s before SIGKILL",
            "5001 Stopped: Container web ended after SIGTERM, 5.001s after its stop began",
        ],
    );
}

#[test]
fn a_hook_whose_supervisor_was_lost_under_a_living_agent_is_not_run_again() {
    use belay_core::termination::HookTrace;
    let (machine, _) = begin(pod(30_000, vec![main("web").exec()]).plan(), vec![], START);
    let lost = Event::Of {
        container: "web".to_owned(),
        news: News::HookFound(HookTrace::Lost),
    };
    let (_, effects) = machine.next(lost, START + 7);
    let acts = |effect: &&Effect| !matches!(effect, Effect::Tell { .. } | Effect::Journal(_));
    let acts: Vec<&Effect> = effects.iter().filter(acts).collect();
    assert!(matches!(acts[..], [Effect::Signal { .. }]), "{acts:?}");
}

#[test]
fn a_hook_whose_grace_ended_while_no_agent_was_there_is_cancelled_and_the_container_has_2_s() {
    let world = pod(6000, vec![main("web").exec()]).crash(1000, 9000);
    let expected = [
        "0 web hook",
        "1000 the agent dies",
        "10000 the agent is back",
        "10000 web cancel hook",
        "10000 web SIGTERM",
        "12000 web KILL",
        "12000 web is gone",
        "12000 done",
    ];
    check(world, &expected);
}

#[test]
fn a_sleep_goes_on_where_it_was() {
    let world = pod(30_000, vec![main("web").sleep(8000).exits_after(1)]).crash(1000, 4000);
    let expected = [
        "1000 the agent dies",
        "5000 the agent is back",
        "8000 web SIGTERM",
        "8001 web is gone",
        "8001 done",
    ];
    check(world, &expected);
}

#[test]
fn a_container_that_exited_while_no_agent_was_there_is_signalled_no_more() {
    let sleeping = main("web").sleep(8000).exits_at(2000);
    let expected = [
        "1000 the agent dies",
        "2000 web is gone",
        "5000 the agent is back",
        "5000 sleep ended early: container_exited",
        "5000 done",
    ];
    check(
        pod(30_000, vec![sleeping.clone()]).crash(1000, 4000),
        &expected,
    );
    // After the sleep's time nobody knows which came first, and nothing is counted.
    let expected = [
        "1000 the agent dies",
        "2000 web is gone",
        "10000 the agent is back",
        "10000 done",
    ];
    check(pod(30_000, vec![sleeping]).crash(1000, 9000), &expected);
    let hooked = main("web").exec().exits_at(2000);
    let expected = [
        "0 web hook",
        "1000 the agent dies",
        "2000 web is gone",
        "5000 the agent is back",
        "5000 web cancel hook",
        "5000 done",
    ];
    check(pod(30_000, vec![hooked]).crash(1000, 4000), &expected);
    let waiting = vec![sidecar("log").exits_at(2000), main("web").exits_at(3000)];
    let expected = [
        "0 web SIGTERM",
        "1000 the agent dies",
        "2000 log is gone",
        "3000 web is gone",
        "5000 the agent is back",
        "5000 done",
    ];
    check(pod(30_000, waiting).crash(1000, 4000), &expected);
}

#[test]
fn a_sidecar_s_turn_comes_when_those_it_serves_ended_while_no_agent_was_there() {
    let actors = vec![sidecar("log").exits_after(1), main("web").exits_at(3000)];
    let expected = [
        "0 web SIGTERM",
        "1000 the agent dies",
        "3000 web is gone",
        "5000 the agent is back",
        "5000 log SIGTERM",
        "5001 log is gone",
        "5001 done",
    ];
    check(pod(30_000, actors).crash(1000, 4000), &expected);
}

#[test]
fn a_signal_that_is_not_confirmed_is_sent_again() {
    let world = pod(30_000, vec![main("web")]);
    // Dead between the signal and its confirmation: Journal, Tell, Signal.
    let world = world.crash_with(Crash {
        death: Death::After(3),
        away: 300,
        record_lost: false,
        reboot: false,
    });
    let expected = [
        "0 web SIGTERM",
        "0 the agent dies",
        "300 the agent is back",
        "300 web SIGTERM",
        "30000 web KILL",
        "30000 web is gone",
        "30000 done",
    ];
    check(world, &expected);
}

#[test]
fn a_container_that_may_never_have_been_signalled_has_2_s_even_when_its_grace_is_over() {
    let world = pod(5000, vec![main("web")]).crash_with(Crash {
        death: Death::After(2),
        away: 60_000,
        record_lost: false,
        reboot: false,
    });
    let expected = [
        "0 the agent dies",
        "60000 the agent is back",
        "60000 web SIGTERM",
        "62000 web KILL",
        "62000 web is gone",
        "62000 done",
    ];
    check(world, &expected);
}

#[test]
fn a_kill_is_repeated_and_a_grace_of_0_stays_0() {
    // Journal, Tell, Tell: SIGKILL is recorded and not sent.
    let world = pod(0, vec![main("web").exec()]).crash_with(Crash {
        death: Death::After(3),
        away: 10,
        record_lost: false,
        reboot: false,
    });
    let expected = [
        "0 the agent dies",
        "10 the agent is back",
        "10 web KILL",
        "10 web is gone",
        "10 done",
    ];
    check(world, &expected);
}

#[test]
fn a_start_that_never_reached_the_disk_begins_again() {
    let world = pod(5000, vec![main("web")]).crash_with(Crash {
        death: Death::After(1),
        away: 10,
        record_lost: true,
        reboot: false,
    });
    let world = world.run();
    assert!(world.begun_again);
    assert_eq!(world.gone("web"), 5010);
}

#[test]
fn after_a_reboot_a_termination_is_over() {
    let actors: Vec<Actor> = vec![
        sidecar("log").exec(),
        main("web").exec(),
        main("db").sleep(4000),
        main("plain"),
    ];
    let world = pod(30_000, actors).crash_with(Crash {
        death: Death::At(1000),
        away: 500,
        record_lost: false,
        reboot: true,
    });
    let world = world.run();
    assert_eq!(world.log.last().unwrap(), "1500 done");
    assert_eq!(world.log.len(), 6, "nothing else is done: {:?}", world.log);
    for leg in &world.machine().record().legs {
        assert_eq!(leg.stage, Stage::Over { end: End::Reboot });
    }
}

#[test]
fn a_record_that_is_over_is_only_done() {
    let world = pod(30_000, vec![main("web").exits_after(1)]).run();
    let record = world.machine().record().clone();
    let (machine, effects) = resume(record.clone(), BOOT, &[].into(), START + 9);
    assert_eq!(effects, [Effect::Done]);
    assert_eq!(*machine.record(), record);
}

#[test]
fn a_confirmed_signal_is_in_the_record_that_follows_it() {
    let (machine, _) = begin(pod(30_000, vec![main("web")]).plan(), vec![], START);
    let sent = Event::Of {
        container: "web".to_owned(),
        news: News::SignalSent,
    };
    let (_, effects) = machine.next(sent, START + 1);
    let Some(Effect::Journal(record)) = effects.first() else {
        panic!("{effects:?}");
    };
    let sending = Sending::Sent;
    let asked = START;
    assert_eq!(record.legs[0].stage, Stage::Signalled { asked, sending });
}

#[test]
fn a_hook_that_was_cancelled_and_not_reported_dead_is_cancelled_again() {
    let cases = [(main("web").exec(), true), (main("web").http(), false)];
    for (actor, traceable) in cases {
        let (machine, _) = begin(pod(3000, vec![actor]).plan(), vec![], START);
        let (machine, _) = machine.next(Event::Tick, START + 3000);
        let running = ["web-1".to_owned()].into();
        let record = machine.record().clone();
        let (machine, effects) = resume(record, BOOT, &running, START + 3500);
        let again = |effect: &Effect| matches!(effect, Effect::CancelHook { .. });
        assert_eq!(effects.iter().any(again), traceable);
        // A request has ended with the agent that made it; nobody waits for it.
        let exited = Event::Of {
            container: "web".to_owned(),
            news: News::Exited,
        };
        let (machine, _) = machine.next(exited, START + 3600);
        assert_eq!(machine.is_over(), !traceable);
    }
}

#[test]
fn a_container_that_went_while_it_was_killed_and_no_agent_was_there_frees_its_sidecars() {
    let (web, _) = begin(pod(1000, vec![main("web")]).plan(), vec![], START);
    let whole = pod(30_000, vec![sidecar("log"), main("web")]).plan();
    let (machine, _) = begin(whole, vec![web], START + 10);
    let (machine, _) = machine.next(Event::Tick, START + 1000);
    let running = ["log-1".to_owned()].into();
    let (_, effects) = resume(machine.record().clone(), BOOT, &running, START + 2000);
    let acts = |effect: &&Effect| !matches!(effect, Effect::Tell { .. } | Effect::Journal(_));
    let acts: Vec<&Effect> = effects.iter().filter(acts).collect();
    assert!(
        matches!(acts[..], [Effect::Kill { .. }, Effect::Signal { .. }]),
        "{acts:?}"
    );
}

/// A pod with a bit of everything.
fn rich() -> World {
    pod(
        10_000,
        vec![
            sidecar("first").exec().hook_ends(12_000),
            sidecar("second").exits_after(100),
            main("web").exec().hook_ends(3000).exits_after(2500),
            main("db").sleep(4000).exits_after(700),
            main("old").http().hook_fails(600, "503"),
            main("deaf").refused(4),
        ],
    )
}

#[test]
fn a_crash_after_any_effect_moves_no_deadline_and_repeats_no_hook() {
    let whole = rich().run();
    for count in 1..whole.effects.len() {
        for record_lost in [false, true] {
            let world = rich().crash_with(Crash {
                death: Death::After(count),
                away: 150,
                record_lost,
                reboot: false,
            });
            let world = world.run();
            for actor in &world.actors {
                assert!(
                    world.hook_starts.get(&actor.name).copied().unwrap_or(0) <= 1,
                    "{count}: {:#?}",
                    world.log
                );
                // Whatever was killed in time is killed at the same moment; what came a little late
                // by the agent's absence, no later than that.
                let (before, after) = (whole.gone(&actor.name), world.gone(&actor.name));
                assert!(
                    after <= before + 150 || world.begun_again,
                    "{} after {count}: {before} then {after}: {:#?}",
                    actor.name,
                    world.log
                );
            }
            if !world.begun_again {
                let returned = world.returned.map(|at| at - START);
                let deaf = world.gone("deaf");
                assert!(
                    deaf == 10_000 || (deaf > 10_000 && Some(deaf) == returned),
                    "{count}: {:#?}",
                    world.log
                );
            }
        }
    }
}
