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
///
/// `problems` holds the containers whose spec cannot be run, by name.
pub(crate) fn plan(
    pod: &Pod,
    tracked: &BTreeMap<String, Tracked>,
    problems: &BTreeMap<String, Waiting>,
    now: Timestamp,
) -> Plan {
    let mut plan = Plan {
        initialized: initialized(pod, tracked),
        ..Plan::default()
    };
    let policy = pod.spec.restart_policy();
    let completed = completed(pod, tracked);
    plan.completed = completed;
    if plan.initialized {
        let sidecars = pod.spec.init_containers.iter().filter(|c| c.is_sidecar());
        for container in sidecars.filter(|_| !completed) {
            let policy = RestartPolicy::Always;
            let next = next(pod, &container.name, policy, tracked, problems, now);
            plan.take(&container.name, next);
        }
        for container in &pod.spec.containers {
            let next = next(pod, &container.name, policy, tracked, problems, now);
            plan.take(&container.name, next);
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
                let next = next(pod, &container.name, policy, tracked, problems, now);
                plan.take(&container.name, next);
            }
            turn = has_been_up(known);
            continue;
        }
        if !container.is_sidecar() && succeeded(known) {
            continue;
        }
        if turn {
            let next = next(pod, &container.name, init_policy, tracked, problems, now);
            plan.take(&container.name, next);
            turn = false;
        } else {
            plan.waiting
                .insert(container.name.clone(), Waiting::initializing());
        }
    }
    plan
}

impl Plan {
    fn take(&mut self, name: &str, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Start => {
                self.start.push(name.to_owned());
                self.waiting.insert(name.to_owned(), Waiting::creating());
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

/// Whether the pod's own containers may run: every init container succeeded, or they have run
/// already and the agent only came back.
pub(crate) fn initialized(pod: &Pod, tracked: &BTreeMap<String, Tracked>) -> bool {
    let began = |name: &str| tracked.get(name).is_some_and(|t| t.current.is_some());
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
                known => succeeded(known),
            })
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
    let main = &pod.spec.containers;
    gave_up
        || (!main.is_empty()
            && main
                .iter()
                .all(|container| is_done(tracked.get(&container.name), policy)))
}

/// Whether it has ended for good.
fn is_done(tracked: Option<&Tracked>, policy: RestartPolicy) -> bool {
    let ended = exit_code(tracked).is_some();
    ended
        && match policy {
            RestartPolicy::Always => false,
            RestartPolicy::OnFailure => succeeded(tracked),
            RestartPolicy::Never => true,
        }
}

/// Whether the newest incarnation ended with 0, and not because a probe ended it.
pub(crate) fn succeeded(tracked: Option<&Tracked>) -> bool {
    let condemned = tracked.is_some_and(|tracked| tracked.condemned);
    exit_code(tracked) == Some(0) && !condemned
}

/// The exit code of the newest incarnation, if it has ended.
pub(crate) fn exit_code(tracked: Option<&Tracked>) -> Option<i32> {
    Some(tracked?.current.as_ref()?.exit.as_ref()?.code)
}

fn next(
    pod: &Pod,
    name: &str,
    policy: RestartPolicy,
    tracked: &BTreeMap<String, Tracked>,
    problems: &BTreeMap<String, Waiting>,
    now: Timestamp,
) -> Next {
    let Some(known) = tracked.get(name) else {
        return start_unless(problems.get(name));
    };
    if known.running().is_some() {
        return Next::Nothing;
    }
    if is_done(Some(known), policy) {
        return Next::Nothing;
    }
    let Some(ended) = known.ended() else {
        return start_unless(problems.get(name));
    };
    let ready = known.backoff.ready_at(ended);
    if ready <= now {
        return start_unless(problems.get(name));
    }
    let waiting = match &known.failed_start {
        // The reason of the failure says more than the wait does.
        Some(failed) => failed.waiting.clone(),
        None => Waiting::crash_loop(back_off_message(pod, name, known, ended)),
    };
    Next::Wait {
        waiting,
        until: Some(ready),
    }
}

fn start_unless(problem: Option<&Waiting>) -> Next {
    match problem {
        None => Next::Start,
        Some(problem) => Next::Wait {
            waiting: problem.clone(),
            until: None,
        },
    }
}

/// The kubelet's sentence, which people search for.
fn back_off_message(pod: &Pod, name: &str, known: &Tracked, ended: Timestamp) -> String {
    let seconds = known.backoff.delay(ended).as_secs();
    let delay = match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    };
    format!(
        "back-off {delay} restarting failed container={name} pod={}_{}({})",
        pod.name(),
        pod.namespace(),
        pod.uid()
    )
}

#[cfg(test)]
mod tests {
    use super::super::tracked::{FailedStart, Instance};
    use super::*;
    use belay_action::ContainerId;
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
        tracked.started(Instance {
            id: ContainerId::new("c1").unwrap(),
            restart_count: 0,
            started: at(0),
            exit: None,
        });
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
        let plan = plan(
            &pod("Always", &[], &["a", "b"]),
            &BTreeMap::new(),
            &BTreeMap::new(),
            at(0),
        );
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
            let plan = plan(&pod, &known(before.clone()), &BTreeMap::new(), at(5));
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
            let plan = plan(&pod, &known(before.clone()), &BTreeMap::new(), at(5));
            assert_eq!(plan.start, start, "{before:?}");
            assert!(!plan.completed);
        }
    }

    #[test]
    fn a_sidecar_is_not_started_again_when_the_pod_has_come_to_its_end() {
        let before = known(vec![("proxy", exited(1, 3)), ("a", exited(0, 4))]);
        for policy in ["Never", "OnFailure"] {
            let plan = plan(&with_sidecar(policy), &before, &BTreeMap::new(), at(5));
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
                &BTreeMap::new(),
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
            let plan = plan(&pod(policy, &[], &["a"]), &before, &BTreeMap::new(), at(5));
            assert_eq!(!plan.start.is_empty(), restarts, "{policy} {code}");
        }
    }

    #[test]
    fn a_restart_waits_for_its_back_off_and_says_so_like_the_kubelet() {
        let mut tracked = exited(1, 100);
        tracked.backoff.restarted(at(50), at(60));
        let pod = pod("Always", &[], &["a"]);
        let before = known(vec![("a", tracked)]);
        let early = plan(&pod, &before, &BTreeMap::new(), at(105));
        assert_eq!(early.wake, Some(at(110)));
        assert_eq!(early.waiting["a"].reason, "CrashLoopBackOff");
        assert_eq!(
            early.waiting["a"].message,
            "back-off 10s restarting failed container=a pod=p_ns(u)"
        );
        assert_eq!(plan(&pod, &before, &BTreeMap::new(), at(110)).start, ["a"]);
    }

    #[test]
    fn a_start_that_failed_keeps_its_reason_while_it_waits() {
        let mut tracked = Tracked {
            failed_start: Some(FailedStart {
                waiting: Waiting {
                    reason: "RunContainerError",
                    message: "no such file".into(),
                },
                at: at(10),
            }),
            ..Tracked::default()
        };
        tracked.backoff.restarted(at(10), at(10));
        let plan = plan(
            &pod("Always", &[], &["a"]),
            &known(vec![("a", tracked)]),
            &BTreeMap::new(),
            at(12),
        );
        assert_eq!(plan.waiting["a"].message, "no such file");
        assert_eq!(plan.wake, Some(at(20)));
    }

    #[test]
    fn a_spec_that_cannot_be_run_waits_and_the_others_start() {
        let problems = [("a".to_owned(), Waiting::config("no command".into()))].into();
        let plan = plan(
            &pod("Always", &[], &["a", "b"]),
            &BTreeMap::new(),
            &problems,
            at(0),
        );
        assert_eq!(plan.start, ["b"]);
        assert_eq!(plan.waiting["a"].reason, "CreateContainerConfigError");
        assert_eq!(plan.wake, None);
    }

    #[test]
    fn containers_that_ran_before_are_not_held_up_by_lost_init_records() {
        let plan = plan(
            &pod("Always", &["i"], &["a"]),
            &known(vec![("a", exited(1, 1))]),
            &BTreeMap::new(),
            at(5),
        );
        assert!(plan.initialized);
        assert_eq!(plan.start, ["a"]);
    }
}
