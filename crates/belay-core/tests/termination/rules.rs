//! One rule of the design after the other.

use std::time::Duration;

use belay_core::termination::{
    Did, Effect, End, Event, HookResult, News, Plan, Stage, Step, begin,
};

use crate::actor::{main, sidecar};
use crate::world::{START, pod};
use crate::{check, check_told};

#[test]
fn a_container_that_obeys_gets_its_signal_at_once_and_nothing_else() {
    let world = pod(30_000, vec![main("web").exits_after(12)]);
    check(world, &["0 web SIGTERM", "12 web is gone", "12 done"]);
}

#[test]
fn a_container_that_does_not_obey_is_killed_when_its_grace_is_over() {
    let world = pod(30_000, vec![main("web")]);
    let expected = [
        "0 web SIGTERM",
        "30000 web KILL",
        "30000 web is gone",
        "30000 done",
    ];
    check(world, &expected);
}

#[test]
fn all_containers_of_a_pod_stop_at_once_and_each_has_its_own_signal() {
    let world = pod(
        30_000,
        vec![
            main("a").signal("SIGRTMIN+3").exits_after(5),
            main("b").signal("SIGUSR1").exits_after(9),
        ],
    );
    let expected = [
        "0 a SIGRTMIN+3",
        "0 b SIGUSR1",
        "5 a is gone",
        "9 b is gone",
        "9 done",
    ];
    check(world, &expected);
}

#[test]
fn a_grace_of_0_kills_at_once_without_hook_and_signal() {
    for actor in [
        main("web").exec(),
        main("web").sleep(0),
        main("web").sleep(5000),
        main("web"),
        sidecar("web").exec(),
    ] {
        let world = pod(0, vec![actor]);
        check(world, &["0 web KILL", "0 web is gone", "0 done"]);
    }
}

#[test]
fn nothing_is_done_to_a_container_that_does_not_run() {
    let world = pod(30_000, vec![main("web").exec().not_running()]);
    check(world, &["0 done"]);
    let world = pod(0, vec![main("web").not_running()]);
    check_told(world, &[]);
}

#[test]
fn the_time_a_hook_takes_is_subtracted_to_the_millisecond() {
    let world = pod(10_000, vec![main("web").exec().hook_ends(4321)]);
    let expected = [
        "0 web hook",
        "4321 web SIGTERM",
        "10000 web KILL",
        "10000 web is gone",
        "10000 done",
    ];
    check(world, &expected);
}

#[test]
fn a_hook_that_hangs_is_cancelled_when_the_grace_is_over_and_the_container_has_2_s_more() {
    let expected = [
        "0 web hook",
        "30000 web cancel hook",
        "30000 web SIGTERM",
        "32000 web KILL",
        "32000 web is gone",
        "32000 done",
    ];
    check(pod(30_000, vec![main("web").exec()]), &expected);
    check(pod(30_000, vec![main("web").http()]), &expected);
}

#[test]
fn a_hook_that_nearly_uses_up_the_grace_leaves_2_s_too() {
    let world = pod(30_000, vec![main("web").exec().hook_ends(29_500)]);
    let world = world.run();
    assert_eq!(world.gone("web"), 31_500);
}

#[test]
fn without_a_hook_the_grace_is_the_grace_however_short() {
    for grace in [1, 500, 1000, 1999] {
        let world = pod(grace, vec![main("web")]).run();
        assert_eq!(world.gone("web").unsigned_abs(), grace);
    }
}

#[test]
fn a_hook_that_fails_is_told_and_the_end_goes_on() {
    let actor = main("web")
        .exec()
        .hook_fails(70, "exit code 3")
        .exits_after(1);
    let world = pod(30_000, vec![actor.clone()]);
    let expected = ["0 web hook", "70 web SIGTERM", "71 web is gone", "71 done"];
    check(world, &expected);
    check_told(
        pod(30_000, vec![actor]),
        &[
            "0 Killing: Stopping container web",
            "70 FailedPreStopHook: PreStopHook failed: exit code 3",
            "70 StopSignalSent: Sent SIGTERM to container web after 0.070s; it has 29.930s before SIGKILL",
            "71 Stopped: Container web ended after SIGTERM, 0.071s after its stop began",
        ],
    );
}

#[test]
fn a_hook_out_of_grace_and_a_kill_are_told() {
    check_told(
        pod(3000, vec![main("web").exec().survived_by(&["7 (stuck)"])]),
        &[
            "0 Killing: Stopping container web",
            "3000 UnfinishedPreStopHook: PreStopHook of container web did not end within the grace period of 3.000s and was cancelled",
            "3000 StopSignalSent: Sent SIGTERM to container web after 3.000s; it has 2.000s before SIGKILL",
            "5000 Killing: Container web did not end within its grace period and was killed",
            "5000 ProcessesSurvived: these processes of container web could not be killed: 7 (stuck)",
        ],
    );
}

#[test]
fn a_hook_is_cancelled_at_once_when_its_container_exits_and_nothing_is_called_a_failure() {
    let actor = main("web").exec().exits_at(1234);
    let expected = [
        "0 web hook",
        "1234 web is gone",
        "1234 web cancel hook",
        "1234 done",
    ];
    check(pod(30_000, vec![actor.clone()]), &expected);
    check_told(
        pod(30_000, vec![actor]),
        &[
            "0 Killing: Stopping container web",
            "1234 Stopped: Container web ended by itself, 1.234s after its stop began",
        ],
    );
}

#[test]
fn a_termination_is_not_over_while_a_cancelled_hook_lives() {
    let plan = pod(30_000, vec![main("web").exec()]).plan();
    let (machine, _) = begin(plan, Vec::new(), START);
    let of = |news| Event::Of {
        container: "web".to_owned(),
        news,
    };
    let (machine, effects) = machine.next(of(News::Exited), START + 5);
    assert!(!machine.is_over() && !effects.contains(&Effect::Done));
    let survivors = vec!["9 (hook)".to_owned()];
    let dead = of(News::HookEnded(HookResult::Killed { survivors }));
    let (machine, effects) = machine.next(dead, START + 9);
    assert!(machine.is_over());
    let told = effects.iter().find_map(|effect| match effect {
        Effect::Tell { notice, .. } => Some(notice.reason()),
        _ => None,
    });
    assert_eq!(told, Some("ProcessesSurvived"));
    assert_eq!(effects.last(), Some(&Effect::Done));
}

#[test]
fn a_grace_that_shrinks_counts_from_the_beginning() {
    let world = pod(30_000, vec![main("web")]).grace_at(2000, 5000);
    assert_eq!(world.run().gone("web"), 5000);
    let world = pod(30_000, vec![main("web")]).grace_at(9000, 5000);
    assert_eq!(world.run().gone("web"), 9000);
}

#[test]
fn a_grace_never_grows() {
    let world = pod(5000, vec![main("web")]).grace_at(1000, 60_000);
    assert_eq!(world.run().gone("web"), 5000);
    let world = pod(30_000, vec![main("web")])
        .grace_at(1000, 6000)
        .grace_at(2000, 20_000);
    assert_eq!(world.run().gone("web"), 6000);
}

#[test]
fn a_running_hook_is_cancelled_when_the_shrunken_grace_is_over() {
    let world = pod(30_000, vec![main("web").exec().exits_after(1)]).grace_at(1000, 4000);
    let expected = [
        "0 web hook",
        "4000 web cancel hook",
        "4000 web SIGTERM",
        "4001 web is gone",
        "4001 done",
    ];
    check(world, &expected);
    let late = pod(30_000, vec![main("web").exec().exits_after(1)]).grace_at(9000, 4000);
    let expected = [
        "0 web hook",
        "9000 web cancel hook",
        "9000 web SIGTERM",
        "9001 web is gone",
        "9001 done",
    ];
    check(late, &expected);
}

#[test]
fn a_grace_that_becomes_0_kills_at_once_in_every_stage() {
    let kill = ["700 web KILL", "700 web is gone", "700 done"];
    let world = pod(30_000, vec![main("web")]).grace_at(700, 0);
    check(world, &[&["0 web SIGTERM"][..], &kill].concat());
    let world = pod(30_000, vec![main("web").exec()]).grace_at(700, 0);
    let hook = ["0 web hook", "700 web cancel hook"];
    check(world, &[&hook[..], &kill].concat());
    let world = pod(30_000, vec![main("web").sleep(5000)]).grace_at(700, 0);
    let early = ["700 sleep ended early: grace_shortened"];
    check(world, &[&early[..], &kill].concat());
    let world = pod(30_000, vec![main("web").exec().hook_ends(600)]).grace_at(700, 0);
    let hook = ["0 web hook", "600 web SIGTERM"];
    check(world, &[&hook[..], &kill].concat());
    let world = pod(30_000, vec![sidecar("log"), main("web")]).grace_at(700, 0);
    let both = [
        "0 web SIGTERM",
        "700 log KILL",
        "700 web KILL",
        "700 log is gone",
        "700 web is gone",
        "700 done",
    ];
    check(world, &both);
}

#[test]
fn a_signal_that_the_runtime_refused_is_sent_again_until_it_takes_it() {
    let actor = main("web").refused(3).exits_after(5);
    let expected = [
        "0 web SIGTERM",
        "100 web SIGTERM",
        "300 web SIGTERM",
        "700 web SIGTERM",
        "705 web is gone",
        "705 done",
    ];
    check(pod(30_000, vec![actor.clone()]), &expected);
    check_told(
        pod(30_000, vec![actor]),
        &[
            "0 Killing: Stopping container web",
            "0 FailedStopSignal: SIGTERM could not be sent to container web, trying again: the runtime is away",
            "700 StopSignalSent: Sent SIGTERM to container web after 0.700s; it has 29.300s before SIGKILL",
            "705 Stopped: Container web ended after SIGTERM, 0.705s after its stop began",
        ],
    );
}

/// A runtime may say that it sent a signal when the container has already ended of it.
#[test]
fn a_signal_that_is_confirmed_after_the_end_is_told_and_recorded_once() {
    let plan = pod(30_000, vec![main("web")]).plan();
    let (machine, _) = begin(plan, Vec::new(), START);
    let of = |news| Event::Of {
        container: "web".to_owned(),
        news,
    };
    let (machine, effects) = machine.next(of(News::Exited), START + 3);
    assert!(machine.is_over() && effects.contains(&Effect::Done));
    let (machine, effects) = machine.next(of(News::SignalSent), START + 4);
    let [Effect::Tell { notice, .. }] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(
        notice.message("web"),
        "Sent SIGTERM to container web after 0.004s; it has 29.996s before SIGKILL"
    );
    let sent = |step: &Step| step.did == Did::SendSignal;
    assert!(machine.record().legs[0].steps.iter().any(sent));
    let (_, effects) = machine.next(of(News::SignalSent), START + 5);
    assert_eq!(effects, []);
    // A container that ended by itself was sent nothing.
    let plan = pod(30_000, vec![main("web").sleep(5000)]).plan();
    let (machine, _) = begin(plan, Vec::new(), START);
    let (machine, _) = machine.next(of(News::Exited), START + 3);
    let (_, effects) = machine.next(of(News::SignalSent), START + 4);
    assert_eq!(effects, []);
}

#[test]
fn a_runtime_that_takes_no_signal_moves_no_deadline() {
    let world = pod(30_000, vec![main("web").refused(1000)]).run();
    assert_eq!(world.gone("web"), 30_000);
    let failures = world.machine().record().legs[0]
        .steps
        .iter()
        .filter(|step| matches!(step.did, Did::FailSignal { .. }))
        .count();
    assert_eq!(failures, 1, "the record does not grow with every try");
}

#[test]
fn the_end_waits_for_the_runtime_s_word_about_survivors() {
    let plan = pod(0, vec![main("web")]).plan();
    let (machine, _) = begin(plan, Vec::new(), START);
    let of = |news| Event::Of {
        container: "web".to_owned(),
        news,
    };
    let (machine, _) = machine.next(of(News::Exited), START + 1);
    assert!(!machine.is_over());
    let survivors = vec!["8 (child)".to_owned()];
    let (machine, _) = machine.next(of(News::Killed { survivors }), START + 2);
    assert!(machine.is_over());
    let Stage::Over { end } = &machine.record().legs[0].stage else {
        panic!("{machine:?}");
    };
    let survivors = vec!["8 (child)".to_owned()];
    assert_eq!(*end, End::Killed { survivors });
}

#[test]
fn the_record_tells_which_step_was_taken_when_and_what_ended_it() {
    let actor = main("web").exec().hook_ends(250).signal("SIGQUIT");
    let world = pod(1000, vec![actor]).run();
    let text = serde_json::to_value(&world.machine().record().legs[0].steps).unwrap();
    let at = |offset: i64| START + offset;
    assert_eq!(
        text,
        serde_json::json!([
            {"at": at(0), "did": "begin", "cause": "podDeleted", "graceMillis": 1000},
            {"at": at(0), "did": "startHook"},
            {"at": at(250), "did": "endHook", "how": {"ended": {"result": "succeeded"}}, "tookMillis": 250},
            {"at": at(250), "did": "askSignal", "signal": "SIGQUIT"},
            {"at": at(250), "did": "sendSignal"},
            {"at": at(2250), "did": "kill", "why": "graceOver"},
            {"at": at(2250), "did": "end", "end": {"killed": {"survivors": []}}, "tookMillis": 2250},
        ])
    );
}

#[test]
fn events_that_mean_nothing_change_nothing() {
    let plan = pod(30_000, vec![main("web").sleep(5000)]).plan();
    let (machine, _) = begin(plan, Vec::new(), START);
    for news in [
        News::SignalSent,
        News::SignalFailed {
            message: String::new(),
        },
        News::HookEnded(HookResult::Succeeded),
        News::Killed { survivors: vec![] },
    ] {
        for container in ["web", "unknown"] {
            let event = Event::Of {
                container: container.to_owned(),
                news: news.clone(),
            };
            let (after, effects) = machine.clone().next(event, START + 1);
            assert_eq!((&after, effects), (&machine, vec![]));
        }
    }
}

#[test]
fn a_grace_longer_than_any_clock_is_no_overflow() {
    let plan = Plan {
        grace: Duration::MAX,
        ..pod(0, vec![main("web"), sidecar("log").sleep(u64::MAX)]).plan()
    };
    let (machine, _) = begin(plan, Vec::new(), START);
    let _ = machine.next(Event::Tick, i64::MAX - 1);
}
