//! What to start now, and what has to wait. Pure.
//!
//! Init containers run one after the other, each to its success, and a sidecar among them until it
//! is up; then all containers run at once. An ended container is started again as the restart policy
//! says, after its back-off, and a sidecar always, until the pod has come to its end.

use std::collections::BTreeMap;

use belay_api::pod::{Pod, RestartPolicy};
use jiff::Timestamp;

use super::tracked::Tracked;
use super::waiting::Waiting;

/// The exit code of a container that could not be run, as containerd has it.
pub(crate) const START_ERROR_CODE: i32 = 128;
/// The reason of that end.
pub(crate) const START_ERROR: &str = "StartError";

/// What to do with a pod that is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Containers to start now.
    pub(crate) start: Vec<String>,
    /// Why others do not run.
    pub(crate) waiting: BTreeMap<String, Waiting>,
    /// When to plan again, if nothing happens before.
    pub(crate) wake: Option<Timestamp>,
    /// Whether all init containers are done.
    pub(crate) initialized: bool,
    /// Whether the pod has come to its end, and its sidecars may go.
    pub(crate) completed: bool,
}

/// One container's next step.
enum Next {
    /// It runs, or it is done for good.
    Nothing,
    Start,
    Wait {
        waiting: Waiting,
        until: Option<Timestamp>,
    },
}

/// Plans for a pod.
pub(crate) fn plan(pod: &Pod, tracked: &BTreeMap<String, Tracked>, now: Timestamp) -> Plan {
    let mut plan = Plan {
        // Those of a pod that has come to its end are not run again, whatever became of its sandbox.
        initialized: initialized(pod, tracked) || all_done(pod, tracked),
        ..Plan::default()
    };
    let policy = pod.spec.restart_policy();
    let completed = completed(pod, tracked);
    plan.completed = completed;
    if plan.initialized {
        let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
        for container in sidecars.filter(|_| !completed) {
            let policy = RestartPolicy::Always;
            let next = next(pod, &container.name, policy, tracked, now);
            plan.take(pod, &container.name, next);
        }
        for container in &pod.spec.containers {
            let next = next(pod, &container.name, policy, tracked, now);
            plan.take(pod, &container.name, next);
        }
        return plan;
    }
    for container in &pod.spec.containers {
        plan.waiting
            .insert(container.name.clone(), Waiting::initializing());
    }
    // An init container is started again unless the pod gives up at its first failure.
    let init_policy = match policy {
        RestartPolicy::Always | RestartPolicy::OnFailure => RestartPolicy::OnFailure,
        RestartPolicy::Never => RestartPolicy::Never,
    };
    let mut turn = true;
    for container in &pod.spec.init_containers {
        let known = tracked.get(&container.name);
        if turn && container.is_sidecar() {
            if !completed {
                let policy = RestartPolicy::Always;
                let next = next(pod, &container.name, policy, tracked, now);
                plan.take(pod, &container.name, next);
            }
            turn = has_been_up(known);
            continue;
        }
        if !container.is_sidecar() && prepared(known) {
            continue;
        }
        if turn {
            let policy = if known.is_some_and(|known| known.elsewhere) && !completed {
                // What it prepared is gone with its sandbox, and it prepares it once more.
                RestartPolicy::Always
            } else {
                init_policy
            };
            let next = next(pod, &container.name, policy, tracked, now);
            plan.take(pod, &container.name, next);
            turn = false;
        } else {
            plan.waiting
                .insert(container.name.clone(), Waiting::initializing());
        }
    }
    plan
}

impl Plan {
    fn take(&mut self, pod: &Pod, name: &str, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Start => {
                self.start.push(name.to_owned());
                self.waiting.insert(name.to_owned(), at_first(pod));
            }
            Next::Wait { waiting, until } => {
                self.waiting.insert(name.to_owned(), waiting);
                self.wake = match (self.wake, until) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
    }
}

/// What a kubelet says of a container that has not been tried to start.
pub(crate) fn at_first(pod: &Pod) -> Waiting {
    if pod.spec.init_containers.is_empty() {
        Waiting::creating()
    } else {
        Waiting::initializing()
    }
}

/// Whether the pod's own containers may run: every init container succeeded, or they have run
/// already and the agent only came back.
pub(crate) fn initialized(pod: &Pod, tracked: &BTreeMap<String, Tracked>) -> bool {
    let began = |name: &str| {
        let known = tracked.get(name);
        known.is_some_and(|known| known.current.is_some() && !known.elsewhere)
    };
    pod.spec
        .containers
        .iter()
        .any(|container| began(&container.name))
        || pod
            .spec
            .init_containers
            .iter()
            .all(|container| match tracked.get(&container.name) {
                known if container.is_sidecar() => has_been_up(known),
                known => prepared(known),
            })
}

/// Whether an init container has done its part, and nothing undid it.
fn prepared(tracked: Option<&Tracked>) -> bool {
    succeeded(tracked) && tracked.is_some_and(|known| !known.elsewhere)
}

/// Whether a sidecar has let the next container start; one that ended since is started again, and
/// does not hold up the others a second time.
fn has_been_up(tracked: Option<&Tracked>) -> bool {
    tracked.is_some_and(Tracked::has_been_up)
}

/// Whether no container of the pod runs or will run again, sidecars aside.
pub(crate) fn completed(pod: &Pod, tracked: &BTreeMap<String, Tracked>) -> bool {
    let policy = pod.spec.restart_policy();
    let init = pod.spec.init_containers.iter();
    let gave_up = policy == RestartPolicy::Never
        && init
            .filter(|container| !container.is_sidecar())
            .any(|container| exit_code(tracked.get(&container.name)).is_some_and(|code| code != 0));
    gave_up || all_done(pod, tracked)
}

/// Whether all of the pod's own containers have ended for good.
fn all_done(pod: &Pod, tracked: &BTreeMap<String, Tracked>) -> bool {
    let policy = pod.spec.restart_policy();
    let mut main = pod.spec.containers.iter();
    main.len() > 0 && main.all(|container| is_done(tracked.get(&container.name), policy))
}

/// Whether it has ended for good.
fn is_done(tracked: Option<&Tracked>, policy: RestartPolicy) -> bool {
    let ended = exit_code(tracked).is_some();
    ended
        && !is_condemned(tracked)
        && match policy {
            RestartPolicy::Always => false,
            RestartPolicy::OnFailure => succeeded(tracked),
            RestartPolicy::Never => true,
        }
}

/// Whether the newest incarnation ended with 0, and not because another is to take its place.
pub(crate) fn succeeded(tracked: Option<&Tracked>) -> bool {
    exit_code(tracked) == Some(0) && !is_condemned(tracked)
}

fn is_condemned(tracked: Option<&Tracked>) -> bool {
    tracked.is_some_and(Tracked::is_condemned)
}

/// The exit code of the newest incarnation, if it has ended; one that could not be run has.
pub(crate) fn exit_code(tracked: Option<&Tracked>) -> Option<i32> {
    let tracked = tracked?;
    if tracked.start_error().is_some() {
        return Some(START_ERROR_CODE);
    }
    Some(tracked.current.as_ref()?.exit.as_ref()?.code)
}

fn next(
    pod: &Pod,
    name: &str,
    policy: RestartPolicy,
    tracked: &BTreeMap<String, Tracked>,
    now: Timestamp,
) -> Next {
    let Some(known) = tracked.get(name) else {
        return Next::Start;
    };
    if known.running().is_some() || is_done(Some(known), policy) {
        return Next::Nothing;
    }
    let image = pod.container(name).and_then(|c| c.image.as_deref());
    let image = image.unwrap_or_default();
    // What failed with another image says nothing of this one.
    let failed = known.failed_start.as_ref();
    if let Some(failed) = failed.filter(|failed| failed.image == image) {
        let (waiting, changes) = failed.shown(now);
        let waiting = waiting.clone();
        if known.launching {
            // The reason of the failure says more than that there is another try.
            let until = changes;
            return Next::Wait { waiting, until };
        }
        // A clock that was set back is no reason to wait longer.
        if failed.until > now && failed.at <= now {
            let until = Some(changes.unwrap_or(failed.until));
            return Next::Wait { waiting, until };
        }
        return Next::Start;
    }
    if known.launching {
        return Next::Wait {
            waiting: at_first(pod),
            until: None,
        };
    }
    let ended = known.ended().filter(|_| !known.is_outdated(image));
    let Some(ended) = ended.filter(|_| known.failed_start.is_none()) else {
        return Next::Start;
    };
    let ready = known.backoff.ready_at(ended);
    // Nor is it here.
    if ready <= now || ended > now {
        return Next::Start;
    }
    Next::Wait {
        waiting: back_off(pod, name, known, ended),
        until: Some(ready),
    }
}

/// What is said of a container that waits for its restart, in the kubelet's sentence, which people
/// search for.
pub(crate) fn back_off(pod: &Pod, name: &str, known: &Tracked, ended: Timestamp) -> Waiting {
    let seconds = known.backoff.delay(ended).as_secs();
    let delay = match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    };
    Waiting::crash_loop(format!(
        "back-off {delay} restarting failed container={name} pod={}_{}({})",
        pod.name(),
        pod.namespace(),
        pod.uid()
    ))
}

#[cfg(test)]
mod tests {
    use super::super::tracked::{FailedStart, Instance};
    use super::super::waiting::RUN_CONTAINER_ERROR;
    use super::*;
    use belay_runtime::{Exit, ExitReason};
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(policy: &str, init: &[&str], main: &[&str]) -> Pod {
        let list = |names: &[&str]| names.iter().map(|n| json!({"name": n})).collect::<Vec<_>>();
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"restartPolicy": policy, "initContainers": list(init), "containers": list(main)},
        }))
        .unwrap()
    }

    fn running() -> Tracked {
        let mut tracked = Tracked::default();
        tracked.started(Instance::test("c1", 0));
        tracked
    }

    fn exited(code: i32, finished: i64) -> Tracked {
        let mut tracked = running();
        tracked.current.as_mut().unwrap().exit = Some(Exit {
            code,
            signal: None,
            started: at(0),
            finished: at(finished),
            reason: ExitReason::Error,
        });
        tracked
    }

    fn known(list: Vec<(&str, Tracked)>) -> BTreeMap<String, Tracked> {
        list.into_iter()
            .map(|(name, tracked)| (name.to_owned(), tracked))
            .collect()
    }

    #[test]
    fn a_new_pod_starts_all_its_containers_at_once() {
        let plan = plan(&pod("Always", &[], &["a", "b"]), &BTreeMap::new(), at(0));
        assert_eq!(plan.start, ["a", "b"]);
        assert!(plan.initialized);
    }

    #[test]
    fn init_containers_run_one_after_the_other() {
        let pod = pod("Always", &["i", "j"], &["a"]);
        let steps = [
            (vec![], vec!["i"]),
            (vec![("i", running())], vec![]),
            (vec![("i", exited(0, 1))], vec!["j"]),
            (vec![("i", exited(0, 1)), ("j", running())], vec![]),
            (vec![("i", exited(0, 1)), ("j", exited(0, 2))], vec!["a"]),
        ];
        for (before, start) in steps {
            let plan = plan(&pod, &known(before.clone()), at(5));
            assert_eq!(plan.start, start, "{before:?}");
            assert_eq!(plan.initialized, start == ["a"]);
        }
    }

    fn with_sidecar(policy: &str) -> Pod {
        let mut pod = pod(policy, &["i", "proxy", "j"], &["a"]);
        pod.spec.init_containers[1].restart_policy = Some(RestartPolicy::Always);
        pod
    }

    #[test]
    fn a_sidecar_is_started_in_its_turn_and_runs_beside_the_rest() {
        let pod = with_sidecar("Always");
        let starting = Tracked {
            starting: true,
            ..running()
        };
        let i = ("i", exited(0, 1));
        let steps = [
            (vec![i.clone()], vec!["proxy"]),
            (vec![i.clone(), ("proxy", starting)], vec![]),
            (vec![i.clone(), ("proxy", running())], vec!["j"]),
            // One that crashed is started again and holds nobody up.
            (vec![i.clone(), ("proxy", exited(0, 1))], vec!["proxy", "j"]),
            (
                vec![i.clone(), ("proxy", running()), ("j", exited(0, 2))],
                vec!["a"],
            ),
            (
                vec![i.clone(), ("proxy", exited(1, 3)), ("a", running())],
                vec!["proxy"],
            ),
        ];
        for (before, start) in steps {
            let plan = plan(&pod, &known(before.clone()), at(5));
            assert_eq!(plan.start, start, "{before:?}");
            assert!(!plan.completed);
        }
    }

    #[test]
    fn a_sidecar_is_not_started_again_when_the_pod_has_come_to_its_end() {
        let before = known(vec![("proxy", exited(1, 3)), ("a", exited(0, 4))]);
        for policy in ["Never", "OnFailure"] {
            let plan = plan(&with_sidecar(policy), &before, at(5));
            assert!(plan.completed && plan.start.is_empty(), "{policy}");
        }
        let gave_up = known(vec![
            ("i", exited(0, 1)),
            ("proxy", running()),
            ("j", exited(1, 2)),
        ]);
        assert!(completed(&with_sidecar("Never"), &gave_up));
        assert!(!completed(&with_sidecar("OnFailure"), &gave_up));
    }

    #[test]
    fn a_failed_init_container_ends_a_pod_that_never_restarts() {
        for (policy, start) in [
            ("Never", vec![]),
            ("OnFailure", vec!["i"]),
            ("Always", vec!["i"]),
        ] {
            let plan = plan(
                &pod(policy, &["i"], &["a"]),
                &known(vec![("i", exited(1, 1))]),
                at(5),
            );
            assert_eq!(plan.start, start, "{policy}");
        }
    }

    #[test]
    fn the_restart_policy_decides_about_an_ended_container() {
        let table = [
            ("Always", 0, true),
            ("Always", 1, true),
            ("OnFailure", 0, false),
            ("OnFailure", 1, true),
            ("Never", 0, false),
            ("Never", 1, false),
        ];
        for (policy, code, restarts) in table {
            let before = known(vec![("a", exited(code, 1))]);
            let plan = plan(&pod(policy, &[], &["a"]), &before, at(5));
            assert_eq!(!plan.start.is_empty(), restarts, "{policy} {code}");
        }
    }

    #[test]
    fn a_restart_waits_for_its_back_off_and_says_so_like_the_kubelet() {
        let mut tracked = exited(1, 100);
        tracked.backoff.restarted(at(50), at(60));
        let pod = pod("Always", &[], &["a"]);
        let before = known(vec![("a", tracked)]);
        let early = plan(&pod, &before, at(105));
        assert_eq!(early.wake, Some(at(110)));
        assert_eq!(early.waiting["a"].reason, "CrashLoopBackOff");
        assert_eq!(
            early.waiting["a"].message,
            "back-off 10s restarting failed container=a pod=p_ns(u)"
        );
        assert_eq!(plan(&pod, &before, at(110)).start, ["a"]);
    }

    #[test]
    fn a_clock_that_was_set_back_holds_nobody_up() {
        let mut tracked = exited(1, 100);
        tracked.backoff.restarted(at(50), at(60));
        let pod = pod("Always", &[], &["a"]);
        assert_eq!(plan(&pod, &known(vec![("a", tracked)]), at(7)).start, ["a"]);
        let failed = failed(Waiting::crash_loop("why".to_owned()), 100, 110);
        let before = known(vec![("a", failed)]);
        assert!(plan(&pod, &before, at(100)).start.is_empty());
        assert_eq!(plan(&pod, &before, at(7)).start, ["a"]);
    }

    fn failed(waiting: Waiting, moment: i64, until: i64) -> Tracked {
        Tracked {
            failed_start: Some(FailedStart {
                waiting,
                at: at(moment),
                until: at(until),
                then: None,
                crash: false,
                config: true,
                image: String::new(),
            }),
            ..Tracked::default()
        }
    }

    #[test]
    fn a_start_that_failed_keeps_its_reason_while_it_waits_and_while_it_is_tried_again() {
        let pod = pod("Always", &[], &["a", "b"]);
        let tracked = failed(Waiting::config("no such map".into()), 10, 20);
        let before = known(vec![("a", tracked.clone())]);
        let early = plan(&pod, &before, at(12));
        assert_eq!(early.start, ["b"]);
        assert_eq!(early.waiting["a"].message, "no such map");
        assert_eq!(early.wake, Some(at(20)));
        assert_eq!(plan(&pod, &before, at(20)).start, ["a", "b"]);
        let launching = Tracked {
            launching: true,
            ..tracked
        };
        let again = plan(&pod, &known(vec![("a", launching)]), at(30));
        assert_eq!(again.start, ["b"], "it is on its way");
        assert_eq!(again.waiting["a"].message, "no such map");
    }

    #[test]
    fn another_image_does_not_wait_for_the_back_off_of_the_one_before() {
        let mut wanted = pod("Always", &[], &["a"]);
        wanted.spec.containers[0].image = Some("new".into());
        let mut crashed = exited(1, 100);
        crashed.backoff.restarted(at(50), at(60));
        let mut unpulled = failed(Waiting::config("no route".into()), 100, 400);
        for (image, start) in [("new", vec![]), ("old", vec!["a"])] {
            crashed.current.as_mut().unwrap().image = image.into();
            unpulled.failed_start.as_mut().unwrap().image = image.into();
            for before in [&crashed, &unpulled] {
                let plan = plan(&wanted, &known(vec![("a", before.clone())]), at(105));
                assert_eq!(plan.start, start, "{image} {before:?}");
            }
        }
    }

    #[test]
    fn what_was_ended_for_another_image_comes_back_whatever_the_policy() {
        for policy in ["Always", "OnFailure", "Never"] {
            let mut tracked = exited(0, 100);
            tracked.condemned = true;
            let before = known(vec![("a", tracked)]);
            let plan = plan(&pod(policy, &[], &["a"]), &before, at(105));
            assert_eq!(plan.start, ["a"], "{policy}");
            assert!(!plan.completed, "{policy}");
        }
    }

    #[test]
    fn what_could_not_be_run_is_done_if_the_policy_says_never() {
        let waiting = Waiting {
            reason: RUN_CONTAINER_ERROR,
            message: "no such file".into(),
        };
        let before = known(vec![("a", failed(waiting, 10, 20))]);
        for (policy, done) in [("Never", true), ("OnFailure", false), ("Always", false)] {
            let plan = plan(&pod(policy, &[], &["a"]), &before, at(20));
            assert_eq!(plan.completed, done, "{policy}");
            assert_eq!(plan.start.is_empty(), done, "{policy}");
        }
    }

    #[test]
    fn an_image_that_cannot_be_had_is_an_error_first_and_a_back_off_then() {
        let mut tracked = failed(
            Waiting {
                reason: "ErrImagePull",
                message: "no route".into(),
            },
            10,
            20,
        );
        if let Some(failed) = &mut tracked.failed_start {
            let then = Waiting::pull_back_off("x", &failed.waiting);
            failed.then = Some((at(11), then));
        }
        let pod = pod("Always", &[], &["a"]);
        let before = known(vec![("a", tracked)]);
        let first = plan(&pod, &before, at(10));
        assert_eq!(first.waiting["a"].reason, "ErrImagePull");
        assert_eq!(first.wake, Some(at(11)));
        let then = plan(&pod, &before, at(11));
        assert_eq!(then.waiting["a"].reason, "ImagePullBackOff");
        assert_eq!(then.wake, Some(at(20)));
    }

    #[test]
    fn nothing_is_started_while_a_start_of_it_is_under_way() {
        let launching = Tracked {
            launching: true,
            ..Tracked::default()
        };
        let restarting = Tracked {
            launching: true,
            ..exited(1, 1)
        };
        let before = known(vec![("a", launching), ("b", restarting)]);
        let plan = plan(&pod("Always", &[], &["a", "b"]), &before, at(5));
        assert_eq!(plan.start, Vec::<String>::new());
        assert_eq!(plan.waiting["a"].reason, "ContainerCreating");
    }

    #[test]
    fn in_a_new_sandbox_everything_begins_anew() {
        let moved = |mut tracked: Tracked| {
            tracked.moved();
            tracked
        };
        let pod = with_sidecar("Always");
        let steps = [
            (
                vec![
                    ("i", moved(exited(0, 1))),
                    ("proxy", moved(exited(137, 9))),
                    ("j", moved(exited(0, 2))),
                    ("a", moved(exited(137, 9))),
                ],
                vec!["i"],
            ),
            (
                vec![
                    ("i", exited(0, 20)),
                    ("proxy", moved(exited(137, 9))),
                    ("j", moved(exited(0, 2))),
                    ("a", moved(exited(137, 9))),
                ],
                vec!["proxy"],
            ),
            (
                vec![
                    ("i", exited(0, 20)),
                    ("proxy", running()),
                    ("j", moved(exited(0, 2))),
                    ("a", moved(exited(137, 9))),
                ],
                vec!["j"],
            ),
            (
                vec![
                    ("i", exited(0, 20)),
                    ("proxy", running()),
                    ("j", exited(0, 21)),
                    ("a", moved(exited(137, 9))),
                ],
                vec!["a"],
            ),
        ];
        for (before, start) in steps {
            let plan = plan(&pod, &known(before.clone()), at(30));
            assert_eq!(plan.start, start, "{before:?}");
        }
    }

    #[test]
    fn a_pod_that_has_come_to_its_end_does_not_begin_anew_in_another_sandbox() {
        let moved = |mut tracked: Tracked| {
            tracked.moved();
            tracked
        };
        let ended = |code| {
            known(vec![
                ("i", moved(exited(0, 1))),
                ("a", moved(exited(code, 2))),
            ])
        };
        for (policy, code) in [("Never", 0), ("Never", 137), ("OnFailure", 0)] {
            let plan = plan(&pod(policy, &["i"], &["a"]), &ended(code), at(5));
            assert!(plan.completed && plan.initialized, "{policy} {code}");
            assert_eq!(plan.start, Vec::<String>::new(), "{policy} {code}");
        }
        let gave_up = known(vec![("i", moved(exited(1, 1)))]);
        let plan = plan(&pod("Never", &["i"], &["a"]), &gave_up, at(5));
        assert!(plan.completed && plan.start.is_empty());
    }

    #[test]
    fn containers_that_ran_before_are_not_held_up_by_lost_init_records() {
        let plan = plan(
            &pod("Always", &["i"], &["a"]),
            &known(vec![("a", exited(1, 1))]),
            at(5),
        );
        assert!(plan.initialized);
        assert_eq!(plan.start, ["a"]);
    }
}
