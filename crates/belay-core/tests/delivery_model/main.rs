//! Model of one delivery: server, journal, runtime and an agent that may die between any two steps.
//!
//! Every interleaving of landing writes, answers, crashes, deletion, the deadline, a restarting
//! container, a killed shim, a lost journal and a controller that gives up on the node is visited.

mod world;

use stateright::{Checker, Model, Property};
use world::{Act, Limits, World};

#[derive(Debug)]
struct Delivering {
    /// Containers: name, and whether the runtime remembers attempts of its action.
    containers: Vec<(&'static str, bool)>,
    limits: Limits,
}

impl Model for Delivering {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.containers, self.limits)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Act>) {
        actions.extend(world.actions());
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        next.act(act);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always("no start breaks a promise", |_, world| {
                world.broken_start().is_none()
            }),
            Property::<Self>::always("every result is truthful", |_, world| {
                world.broken_result().is_none()
            }),
            Property::<Self>::always(
                "where nothing can happen any more, all is resolved",
                |_, world| !world.actions().is_empty() || world.is_resolved(),
            ),
            Property::<Self>::sometimes("a delivery succeeds", |_, world| world.has_succeeded()),
            Property::<Self>::sometimes(
                "an agent follows what its predecessor left",
                |_, world| world.was_followed(),
            ),
        ]
    }
}

const NEVER: [&str; 3] = [
    "no start breaks a promise",
    "every result is truthful",
    "where nothing can happen any more, all is resolved",
];

/// Visits every state and expects the sentences of `sometimes` to come true somewhere.
fn check(containers: Vec<(&'static str, bool)>, limits: Limits, sometimes: &[&str]) {
    let checker = Delivering { containers, limits }
        .checker()
        .threads(2)
        .spawn_bfs()
        .join();
    for (name, path) in checker.discoveries() {
        let world = path.last_state().clone();
        assert!(
            !NEVER.contains(&name),
            "not so: {name}: {:?} {:?}\n{world:#?}\nafter {:#?}",
            world.broken_start(),
            world.broken_result(),
            path.into_actions()
        );
    }
    for name in sometimes {
        assert!(checker.discoveries().contains_key(name), "never: {name}");
    }
    println!("{} states", checker.unique_state_count());
}

const CALM: Limits = Limits {
    crashes: 0,
    restarts: 0,
    shim_kills: 0,
    journal_losses: 0,
    deletions: 0,
    rivals: 0,
    finalizer: false,
    failures: 0,
};
const SUCCEEDS: &str = "a delivery succeeds";
const FOLLOWS: &str = "an agent follows what its predecessor left";

#[test]
fn an_exec_under_two_crashes_with_a_killed_shim_and_a_lost_journal() {
    let limits = Limits {
        crashes: 2,
        shim_kills: 1,
        journal_losses: 1,
        ..CALM
    };
    check(vec![("a", true)], limits, &[SUCCEEDS, FOLLOWS]);
}

#[test]
fn an_exec_under_a_crash_with_a_restarting_container_and_a_killed_shim() {
    let limits = Limits {
        crashes: 1,
        restarts: 1,
        shim_kills: 1,
        ..CALM
    };
    check(vec![("a", true)], limits, &[SUCCEEDS, FOLLOWS]);
}

#[test]
fn an_exec_under_a_crash_with_a_deletion_a_rival_and_a_restarting_container() {
    let limits = Limits {
        crashes: 1,
        restarts: 1,
        deletions: 1,
        rivals: 1,
        ..CALM
    };
    check(vec![("a", true)], limits, &[SUCCEEDS, FOLLOWS]);
}

#[test]
fn an_exec_under_a_crash_with_a_deletion_that_a_finalizer_holds_back() {
    let limits = Limits {
        crashes: 1,
        deletions: 1,
        shim_kills: 1,
        finalizer: true,
        ..CALM
    };
    check(vec![("a", true)], limits, &[SUCCEEDS, FOLLOWS]);
}

#[test]
fn a_signal_under_two_crashes_with_a_lost_journal() {
    let limits = Limits {
        crashes: 2,
        journal_losses: 1,
        ..CALM
    };
    check(vec![("s", false)], limits, &[SUCCEEDS]);
}

#[test]
fn a_signal_under_a_crash_with_a_deletion_and_a_restarting_container() {
    let limits = Limits {
        crashes: 1,
        deletions: 1,
        restarts: 1,
        ..CALM
    };
    check(vec![("s", false)], limits, &[SUCCEEDS]);
}

#[test]
fn an_exec_and_a_signal_of_one_pod_under_a_crash() {
    let limits = Limits { crashes: 1, ..CALM };
    check(
        vec![("a", true), ("s", false)],
        limits,
        &[SUCCEEDS, FOLLOWS],
    );
}

#[test]
fn a_retried_exec_that_fails_twice_under_two_crashes_with_a_killed_shim() {
    let limits = Limits {
        crashes: 2,
        shim_kills: 1,
        failures: 2,
        ..CALM
    };
    check(vec![("a", true)], limits, &[SUCCEEDS, FOLLOWS]);
}

#[test]
fn a_retried_exec_that_fails_under_a_crash_with_a_deletion_and_a_restarting_container() {
    let limits = Limits {
        crashes: 1,
        deletions: 1,
        restarts: 1,
        failures: 1,
        ..CALM
    };
    check(vec![("a", true)], limits, &[SUCCEEDS, FOLLOWS]);
}

#[test]
fn a_retried_request_that_fails_twice_under_two_crashes() {
    let limits = Limits {
        crashes: 2,
        failures: 2,
        ..CALM
    };
    check(vec![("r", false)], limits, &[SUCCEEDS]);
}
